"""Sections of `docs/performance.md` on calls, regions, memory, partitioning, imports, first results and new sizes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tools.conformance_page import table

Figures: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and the figure that reaches or misses it."""

    what: str
    target: str
    figure: str
    is_reached: bool


@dataclass(frozen=True, slots=True)
class Section:
    """The section of the page on one benchmark. The functions make tables and verdicts from the figures of the benchmark."""

    title: str
    question: str
    method: str
    list_tables: Callable[[Figures], Iterable[str]]
    list_verdicts: Callable[[Figures], Iterable[Verdict]]
    remarks: str = ""
    """A note below the tables, which does not depend on the figures."""


def format_ratio(ratio: Mapping[str, float], digits: int = 3) -> str:
    """Format a median with its interval."""
    return f"{ratio['median']:.{digits}f} ({ratio['low']:.{digits}f} to {ratio['high']:.{digits}f})"


def judge_at_most(what: str, limit: float, ratio: Mapping[str, float]) -> Verdict:
    return Verdict(what, f"at most {limit:g} x", f"{format_ratio(ratio)} x", ratio["median"] <= limit)


def judge_at_least(what: str, limit: float, ratio: Mapping[str, float]) -> Verdict:
    return Verdict(what, f"at least {limit:g} x", f"{format_ratio(ratio, 2)} x", ratio["median"] >= limit)


# ---------------------------------------------------------------------- calls


def _list_call_tables(figures: Figures) -> Iterator[str]:
    yield "A 2x3 Relu: microseconds per call, and the ratio to the engine's own call:\n\n" + _make_call_table(figures["tiny"])
    yield "A large output, the same; *own and copy* adds a copy into the caller's array:\n\n" + _make_call_table(figures["large"])
    rows = [
        (
            f"`{row['engine']}`",
            size,
            f"{entry['per_s']['own']:,.0f}",
            f"{entry['per_s']['module']:,.0f}",
            format_ratio(entry["ratio"]),
        )
        for row in figures["threaded"]
        for size, entry in _list_outputs(row)
    ]
    columns = ("engine", "output", "engine, calls per s", "module, calls per s", "throughput over the engine's")
    yield "Eight threads that call one module, against eight threads that call the engine:\n\n" + table(columns, rows)


def _make_call_table(rows: Sequence[Figures]) -> str:
    names = [name for name in rows[0] if name not in ("engine", "own")]
    lines = [
        (
            f"`{row['engine']}`",
            f"{row['own']['us']:.2f}",
            *(f"{row[n]['us']:.2f}: {format_ratio(row[n]['ratio'])}" for n in names),
        )
        for row in rows
    ]
    return table(("engine", "own call", *names), lines)


def _list_outputs(row: Figures) -> list[tuple[str, Any]]:
    return [(size, entry) for size, entry in row.items() if size != "engine"]


def _list_call_verdicts(figures: Figures) -> Iterator[Verdict]:
    for row in figures["tiny"]:
        if row["engine"] == "ort":
            yield judge_at_most("a call of `ort` on a 2x3 Relu, to `session.run`", 0.8, row["module"]["ratio"])
    for row in figures["threaded"]:
        for size, entry in _list_outputs(row) if row["engine"] != "toy" else ():
            yield judge_at_least(f"throughput of eight threads, `{row['engine']}`, {size}, to the engine's", 1.0, entry["ratio"])


CALLS = Section(
    "The cost of a call",
    "What does XRT cost on top of an engine's own call?",
    "A module is called by position (*module*), by name (*named*), with `out=` (*out*) and with arrays bound by `m.bind` "
    "(*bound*), in turns with the engine's own call. For `toy` that is `np.maximum(x, 0)`; for `tvm` the virtual machine, one "
    "per thread.",
    _list_call_tables,
    _list_call_verdicts,
    "A call compares type, dtype and shape of each input with those of the compiled program. For small arrays `ort` uses "
    "arrays that XRT bound to the session once, which is faster than passing arrays to `session.run`. XRT ends the spinning of "
    "ONNX Runtime's threads after each call, because it would take a core from other regions and sessions for 30 ms; waking "
    "them is what a module call with a large output takes longer.",
)

# ---------------------------------------------------------------------- regions


def _list_region_tables(figures: Figures) -> Iterator[str]:
    columns = (
        *("engines", "regions", "in regions, ms", "to the regions alone", "bound, to the regions alone"),
        *("in one region, ms", "to one region", "lost fusion", "CPU while idle"),
    )
    rows = [
        (
            *(f"`{row['what']}`", row["regions"], f"{row['cut_ms']:.2f}", format_ratio(row["to_regions_alone"])),
            *(format_ratio(row["bound_to_regions_alone"]), f"{row['whole_ms']:.2f}", format_ratio(row["to_one_region"])),
            *(f"{row['lost_fusion']['median']:+.1%}, {row['lost_fusion_ms']:+.2f} ms", f"{row['idle_cpu']:.1%}"),
        )
        for row in (*figures["cuts"], *figures["alternations"])
    ]
    yield table(columns, rows)
    yield f"`toy` ran {'with' if figures['native'] else 'WITHOUT'} native kernels.\n"
    if figures.get("pairs"):
        yield "Four regions alternating between two engines, to the same regions alone:\n\n" + _make_pairs_table(figures["pairs"])
        if figures.get("pairs_on_one_thread"):
            yield "The same on one thread:\n\n" + _make_pairs_table(figures["pairs_on_one_thread"])
        columns = ("engine", "region", "into new memory, us", "into memory of the plan", "over its input")
        rows = [
            (
                f"`{row['engine']}`",
                row["kind"],
                f"{row['us']:,.0f}",
                _format_best(row.get("given")),
                _format_best(row.get("over")),
            )
            for row in figures["memory"]
        ]
        yield "One region that writes into memory of the plan, or over its input, to one that allocates:\n\n" + table(
            columns, rows
        )


def _make_pairs_table(rows: Sequence[Figures]) -> str:
    kinds = tuple(dict.fromkeys(row["kind"] for row in rows))
    by_pair = {(tuple(row["engines"]), row["kind"]): row for row in rows}
    pairs = dict.fromkeys(tuple(row["engines"]) for row in rows)
    lines = [(f"`{', '.join(pair)}`", *(_format_pair(by_pair[pair, kind]) for kind in kinds)) for pair in pairs]
    return table(("engines", *kinds), lines)


def _format_pair(row: Figures) -> str:
    by_hand = row.get("to_parts_in_turn")
    return _format_best(row.get("to_parts")) + (f", {by_hand['best']:.2f}" if by_hand else "")


def _format_best(ratio: Mapping[str, float] | None) -> str:
    return f"{ratio['best']:.2f} ({ratio['median']:.2f})" if ratio else ""


def _judge_all(what: str, limit: float, ratios: Iterable[tuple[str, Mapping[str, float] | None]]) -> Verdict:
    """Judge that no ratio of best times is over the limit; the figure lists those that are, the worst first."""
    measured = [(ratio["best"], name) for name, ratio in ratios if ratio]
    over = sorted((entry for entry in measured if entry[0] > limit), reverse=True)
    names = "; ".join(f"{name} {ratio:.2f}" for ratio, name in over)
    return Verdict(what, "none", f"{len(over)} of {len(measured)}" + (f": {names}" if names else ""), not over)


BOUNDARY_MILLISECONDS = 0.02
"""Allowed cost of a boundary between two regions."""


def _judge_regions(what: str, row: Figures) -> Verdict:
    """Judge the time of a model in regions, minus the allowed cost of its boundaries, relative to the regions alone."""
    share = 1 - BOUNDARY_MILLISECONDS * (row["regions"] - 1) / row["cut_ms"]
    ratio = {name: share * value for name, value in row["to_regions_alone"].items()}
    return judge_at_most(f"{what}, to the regions alone + 20 us per boundary", 1.05, ratio)


def _list_region_verdicts(figures: Figures) -> Iterator[Verdict]:
    for row in figures["cuts"]:
        if row["regions"] == 8:
            yield _judge_regions(f"8 regions of `ort`, a model of {row['whole_ms']:.0f} ms", row)
    for row in figures["alternations"]:
        yield _judge_regions(f"`{row['what']}` alternating, {row['regions']} regions", row)
    for key, threads in (("pairs", ""), ("pairs_on_one_thread", ", on one thread")):
        if rows := figures.get(key):
            names = [f"`{', '.join(row['engines'])}` {row['kind']}" for row in rows]
            alone = zip(names, (row.get("to_parts") for row in rows), strict=True)
            yield _judge_all(f"mixtures over 1.05 x their regions alone + 20 us per boundary{threads}", 1.05, alone)
    idle = max(row["idle_cpu"] for row in (*figures["cuts"], *figures["alternations"]))
    yield Verdict("processor time while idle, the most", "under 1 % of a core", f"{idle:.1%}", idle < 0.01)


REGIONS = Section(
    "The cost of a boundary",
    "What does it cost to split a model into regions?",
    "16 blocks of convolution, Relu and addition run as 2 to 16 regions of `ort`, and with convolutions on `ort` and the rest "
    "on `tvm` or `toy`. Calls take turns with each region called alone (the times are added up) and with the model in one "
    "region of `ort`. Regions alone are slower than one region because the engine cannot fuse across the boundary (*lost "
    "fusion*); the rest is the cost of XRT. *CPU while idle* is processor time in the second after the last call. In the "
    "tables of pairs the first figure is the ratio of the best times, the median of the rounds is in brackets, and the last "
    "is the ratio to the same regions called by hand, one after the other, after 20 us per boundary. Regions are chains of "
    "eight elementwise operators, Softmax, LayerNormalization or MatMul on 512x512, or a convolution of 32 channels on 64x64.",
    _list_region_tables,
    _list_region_verdicts,
    "With several threads, a region of another engine wakes the threads of that engine's pool, and its data are in the caches "
    "of other cores. A region alone, called again and again, does not have that cost and finds its weights in the caches.",
)

# ---------------------------------------------------------------------- memory

WEIGHTS = {"external": "in external files", "inline": "in the model file"}


def _list_memory_tables(figures: Figures) -> Iterator[str]:
    rows = ((form, row) for form, rows in figures["forms"].items() for row in rows)
    yield f"{figures['megabytes']:,} MB of weights; peak in MB:\n\n" + _make_memory_table(rows)
    if figures["beyond"]:
        yield f"{figures['large']:,} MB of weights, over protobuf's limit of 2 GB:\n\n" + _make_memory_table(
            figures["beyond"].items()
        )


def _make_memory_table(rows: Iterable[tuple[str, Figures]]) -> str:
    columns = (
        *("weights", "engine", "alone", "regions", "XRT", "packed by the engine", "to alone", "to alone, without packed"),
        *("from the cache", "at the end, alone and XRT"),
    )
    lines = [
        (WEIGHTS[form], f"`{row['engine']}`", _format_peak(row["alone"]), count, *_list_memory_cells(xrt, row["alone"]))
        for form, row in rows
        for count, xrt in row["xrt"].items()
    ]
    return table(columns, lines)


def _list_memory_cells(xrt: Figures, alone: Figures) -> tuple[str, ...]:
    if "failed" in xrt:
        return (_format_peak(xrt), *[""] * 5)
    ratios = [f"{xrt[key]:.2f}" if key in xrt else "" for key in ("ratio", "ratio_unpacked")]
    ends = ", ".join(f"{process['now'] / 1e6:,.0f}" if "now" in process else "none" for process in (alone, xrt))
    return (_format_peak(xrt), f"{xrt['packed'] / 1e6:,.0f}", *ratios, _format_peak(xrt["again"]), ends)


def _format_peak(process: Figures) -> str:
    return f"{process['peak'] / 1e6:,.0f}" if "peak" in process else f"failed: {process['failed'][:100]}"


def _list_memory_verdicts(figures: Figures) -> Iterator[Verdict]:
    for form, rows in figures["forms"].items():
        for row in rows:
            for count, xrt in row["xrt"].items():
                yield _judge_peak(
                    f"peak, `{row['engine']}`, {_format_regions(count)}, weights {WEIGHTS[form]}", xrt, row["alone"]
                )
    for form, row in figures["beyond"].items():
        for count, xrt in row["xrt"].items():
            what = f"a model of {figures['large']:,} MB, weights {WEIGHTS[form]}, {_format_regions(count)} of `{row['engine']}`"
            yield Verdict(what, "loads and runs", f"peak {_format_peak(xrt)} MB", "failed" not in xrt)


def _format_regions(count: str) -> str:
    return "one region" if str(count) == "1" else f"{count} regions"


def _judge_peak(what: str, xrt: Figures, alone: Figures) -> Verdict:
    """Judge the higher peak of two processes: the first, and one that starts from the cache."""
    processes = (xrt, xrt["again"]) if "again" in xrt else (xrt,)
    target = "at most 1.2 x the engine alone + 50 MB"
    failed = [process["failed"] for process in (alone, *processes) if "failed" in process]
    if failed:
        return Verdict(what, target, f"failed: {failed[0][:100]}", is_reached=False)
    peak, limit = max(process["peak"] for process in processes), 1.2 * alone["peak"] + 50e6
    figure = f"{peak / 1e6:,.0f} MB, limit {limit / 1e6:,.0f}, alone {_format_peak(alone)}"
    return Verdict(what, target, figure, peak <= limit)


MEMORY = Section(
    "Memory",
    "How much memory does XRT use on top of an engine?",
    "An embedding and matrix products are read from a file, compiled and run once, each time in a new process. The peak is "
    "VmHWM, imports included. `toy` alone is NumPy on arrays that the `onnx` package reads.",
    _list_memory_tables,
    _list_memory_verdicts,
    "*Packed* is memory of the engine that `m.memory()` reports: `ort` packs the weights of matrix products, alone as well. "
    "Alone, it frees each external weight after packing it. XRT keeps the file mapped for other regions and programs; pages "
    "that are read during packing are resident until the region is compiled. They are clean, and more regions mean a lower "
    "peak.",
)

# ---------------------------------------------------------------------- partitioning


def _list_partition_tables(figures: Figures) -> Iterator[str]:
    rows = [
        (
            *(row["graph"], f"{row['nodes']:,}", f"{row['median_s']:.3f}", f"{row['slowest_s']:.3f}"),
            *(f"{row['us_per_node']:.1f}", format_ratio(row["per_node_to_smallest"], 2), f"{row['regions']:,}"),
        )
        for row in figures["partition"]
    ]
    columns = ("graph", "nodes", "median, s", "slowest, s", "us per node", "per node, to the smallest", "regions")
    yield table(columns, rows)


def _list_partition_verdicts(figures: Figures) -> Iterator[Verdict]:
    for nodes, limit in ((10_000, 0.25), (100_000, 3.0)):
        for row in figures["partition"]:
            if row["nodes"] == nodes:
                what, figure = f"{nodes:,} nodes, {row['graph']}, partitioned", f"{row['median_s']:.3f} s"
                yield Verdict(what, f"under {limit:g} s", figure, row["median_s"] < limit)


PARTITION = Section(
    "Partitioning",
    "How long does it take to partition and fold a graph?",
    "Support queries, clustering and folding together, as processor time of one thread. The first engine does not support a "
    "tenth of the nodes.",
    _list_partition_tables,
    _list_partition_verdicts,
)

# ---------------------------------------------------------------------- imports


def _list_import_tables(figures: Figures) -> Iterator[str]:
    rows = [(row["what"], format_ratio(row["seconds"]), format_ratio(row["over_numpy"])) for row in figures["imports"]]
    yield table(("imported", "seconds", "over NumPy, seconds"), rows)


def _list_import_verdicts(figures: Figures) -> Iterator[Verdict]:
    for row in figures["imports"]:
        if row["what"] == "xrt":
            seconds = row["over_numpy"]
            yield Verdict("`import xrt` over `import numpy`", "0.1 s", f"{format_ratio(seconds)} s", seconds["median"] <= 0.1)


IMPORTS = Section(
    "Imports",
    "How long does `import xrt` take?",
    "New processes that take turns; the difference to `import numpy` is within a round. *First use* is that of `XRTModule` and "
    "`xrt.ops`, which imports `onnx`.",
    _list_import_tables,
    _list_import_verdicts,
)

# ---------------------------------------------------------------------- first results

STARTS = {"cache": "from the cache", "bundle": "from a bundle"}
MAX_START_RATIO, MAX_START_SECONDS = 1.25, 0.05
"""Allowed time of a new process: 1.25 times the time of the engine alone, plus 50 ms."""


def _list_first_result_tables(figures: Figures) -> Iterator[str]:
    rows = [
        (
            *(f"`{row['model']}`", f"`{row['engine']}`", f"{row['wall']['engine']:.3f}"),
            *(f"{row['wall'][start]:.3f}: {_format_range(row['wall ratios'][start])}" for start in STARTS),
        )
        for row in figures["rows"]
    ]
    yield f"{figures['rounds']} processes of each kind; seconds, and the ratio to the engine's own:\n\n" + table(
        ("model", "engine", "own", *STARTS.values()), rows
    )


def _format_range(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _list_first_result_verdicts(figures: Figures) -> Iterator[Verdict]:
    for engine in dict.fromkeys(row["engine"] for row in figures["rows"]):
        for start, words in STARTS.items():
            seconds = [
                (row["model"], row["wall"][start], row["wall"]["engine"]) for row in figures["rows"] if row["engine"] == engine
            ]
            over = []
            for model, xrt, own in seconds:
                if xrt > MAX_START_RATIO * own + MAX_START_SECONDS:
                    over.append(f"{model} {xrt:.3f} s for {own:.3f} s")
            what = f"first result of a new process {words}, `{engine}`, {len(seconds)} models"
            target = f"at most {MAX_START_RATIO:g} x the engine's own + 50 ms"
            yield Verdict(what, target, "; ".join(over) or "all within", not over)


FIRST_RESULT = Section(
    "First result of a new process",
    "How long does a new process wait for its first result, with everything cached?",
    "Each figure is a new process: imports, the model from its path, one run. XRT starts from its cache and from a bundle; "
    "ONNX Runtime opens the model that it optimized and saved; OpenVINO has a `CACHE_DIR`.",
    _list_first_result_tables,
    _list_first_result_verdicts,
)

# ---------------------------------------------------------------------- new sizes


def _list_size_tables(figures: Figures) -> Iterator[str]:
    rows = [
        (
            *(f"`{row['engine']}`", row["model"]),
            *(f"{entry['size']}: {format_ratio(entry | {'median': entry['ratio']}, 2)}" for entry in row["sizes"]),
            *(f"{row['first_call_one_ms']:.1f}", f"{row['first_call_each_ms']:.1f}"),
        )
        for row in figures["results"]
    ]
    most = max((len(row["sizes"]) for row in figures["results"]), default=0)
    sizes = [f"call, size {number}" for number in range(1, 1 + most)]
    yield table(("engine", "model", *sizes, "new size with one program, ms", "with a program per size, ms"), rows)


def _list_size_verdicts(figures: Figures) -> Iterator[Verdict]:
    wrong = [f"{row['engine']} {row['model']}" for row in figures["results"] if any(s["difference"] > 1e-3 for s in row["sizes"])]
    yield Verdict("models with other results in one program for all sizes", "none", "; ".join(wrong) or "none", not wrong)
    beyond = [(row["first_call_one_ms"] - _find_call_time(row), f"{row['engine']} {row['model']}") for row in figures["results"]]
    if not beyond:
        return
    most, name = max(beyond)
    yield Verdict(
        "a new size on a dynamic engine, beyond the call itself, the most", "at most 20 ms", f"{most:.1f} ms ({name})", most <= 20
    )


def _find_call_time(row: Figures) -> float:
    """Find the milliseconds of a later call of the program for all sizes, at the largest size: new sizes are a little larger."""
    *_, largest = row["sizes"]
    return float(largest["ms"] * largest["ratio"])


SIZES = Section(
    "New sizes",
    "What does one program for all sizes cost, and what does it save?",
    'A module with `shapes="one"` and one with `shapes="each"` take turns at sizes that both have compiled: over 1, the '
    "program for all sizes is slower. Then each meets sizes for the first time. *The call itself* is a later call of the same "
    "program.",
    _list_size_tables,
    _list_size_verdicts,
)
