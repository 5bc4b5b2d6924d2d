"""What `docs/performance.md` says of each benchmark: its question, how it is measured, its tables and its targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tools.conformance_page import table

Figures: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target of DESIGN.md or of an issue, beside the figure."""

    what: str
    target: str
    figure: str
    reached: bool


@dataclass(frozen=True, slots=True)
class Section:
    """What the page says of one benchmark."""

    title: str
    question: str
    method: str
    tables: Callable[[Figures], Iterable[str]]
    verdicts: Callable[[Figures], Iterable[Verdict]]
    remarks: str = ""
    """What a reader may take wrongly, or wonder at; true whatever the figures are."""


def spread(found: Mapping[str, float], digits: int = 3) -> str:
    """Return a median with its quartiles."""
    return f"{found['median']:.{digits}f} ({found['low']:.{digits}f} to {found['high']:.{digits}f})"


def at_most(what: str, limit: float, ratio: Mapping[str, float]) -> Verdict:
    return Verdict(what, f"at most {limit:g} x", f"{spread(ratio)} x", ratio["median"] <= limit)


def at_least(what: str, limit: float, ratio: Mapping[str, float]) -> Verdict:
    return Verdict(what, f"at least {limit:g} x", f"{spread(ratio, 2)} x", ratio["median"] >= limit)


# ---------------------------------------------------------------------- the cost of a call


def dispatch_tables(figures: Figures) -> Iterator[str]:
    yield "A 2x3 Relu, microseconds per call, and the ratio to the engine's own call:\n\n" + ways(figures["tiny"])
    yield "A large output, the same, beside the engine's own call and a copy to the caller's buffer:\n\n" + ways(figures["large"])
    rows = [
        (f"`{row['engine']}`", size, *(f"{found['per_s'][who]:,.0f}" for who in ("own", "module")), spread(found["ratio"]))
        for row in figures["threaded"]
        for size, found in sizes_of(row)
    ]
    columns = ("engine", "output", "engine, calls per s", "module, calls per s", "throughput over the engine's")
    yield "Eight threads that call one module, against eight that call the engine:\n\n" + table(columns, rows)


def ways(rows: Sequence[Figures]) -> str:
    """Return a line per engine with its own call and each way to call the module."""
    names = [name for name in rows[0] if name not in ("engine", "own")]
    lines = [
        (f"`{row['engine']}`", f"{row['own']['us']:.2f}", *(f"{row[n]['us']:.2f}: {spread(row[n]['ratio'])}" for n in names))
        for row in rows
    ]
    return table(("engine", "own call", *names), lines)


def sizes_of(row: Figures) -> list[tuple[str, Any]]:
    return [(size, found) for size, found in row.items() if size != "engine"]


def dispatch_verdicts(figures: Figures) -> Iterator[Verdict]:
    for row in figures["tiny"]:
        if row["engine"] == "ort":
            yield at_most("a call of `ort` on a 2x3 Relu, to `session.run`", 1.0, row["module"]["ratio"])
    for row in figures["threaded"]:
        for size, found in sizes_of(row) if row["engine"] != "toy" else ():
            yield at_least(f"throughput of eight threads, `{row['engine']}`, {size}, to the engine's", 1.0, found["ratio"])


# ---------------------------------------------------------------------- the cost of a cut


def regions_tables(figures: Figures) -> Iterator[str]:
    columns = (
        *("engines", "regions", "in regions, ms", "to the regions alone", "bound, to the same"),
        *("in one, ms", "to one region", "of it lost fusion", "idle CPU"),
    )
    rows = [
        (
            *(f"`{row['what']}`", row["regions"], f"{row['cut_ms']:.2f}", spread(row["to_regions_alone"])),
            *(spread(row["bound_to_regions_alone"]), f"{row['whole_ms']:.2f}", spread(row["to_one_region"])),
            *(f"{row['lost_fusion']['median']:+.1%}, {row['lost_fusion_ms']:+.2f} ms", f"{row['idle_cpu']:.1%}"),
        )
        for row in (*figures["cuts"], *figures["alternations"])
    ]
    yield table(columns, rows)
    yield f"`toy` ran {'with' if figures['native'] else 'WITHOUT'} native kernels.\n"
    if figures.get("pairs"):  # a record from before these were measured has none
        yield (
            "Four regions of a kind on two engines in turns, to the same regions alone, and to these called by hand:\n\n"
            + pairs_table(figures["pairs"])
        )
        if figures.get("pairs_on_one_thread"):
            yield "The same on one thread:\n\n" + pairs_table(figures["pairs_on_one_thread"])
        yield "One region into given memory, and over its input, to new memory:\n\n" + memory_kinds_table(figures["memory"])


def pairs_table(rows: Sequence[Figures]) -> str:
    """Return a line per pair of engines, with the ratio of the best times and the median for each kind of region."""
    kinds = tuple(dict.fromkeys(row["kind"] for row in rows))
    found = {(tuple(row["engines"]), row["kind"]): row for row in rows}
    pairs = dict.fromkeys(tuple(row["engines"]) for row in rows)
    lines = [(f"`{', '.join(pair)}`", *(pair_cell(found[pair, kind]) for kind in kinds)) for pair in pairs]
    return table(("engines", *kinds), lines)


def pair_cell(row: Figures) -> str:
    in_turn = row.get("to_parts_in_turn")
    return best(row.get("to_parts")) + (f", {in_turn['best']:.2f}" if in_turn else "")


def memory_kinds_table(rows: Sequence[Figures]) -> str:
    lines = [(f"`{r['engine']}`", r["kind"], f"{r['us']:,.0f}", best(r.get("given")), best(r.get("over"))) for r in rows]
    return table(("engine", "region", "into new memory, us", "into given memory", "over its input"), lines)


def best(found: Mapping[str, float] | None) -> str:
    return f"{found['best']:.2f} ({found['median']:.2f})" if found else ""


def slower(limit: float, rows: Iterable[tuple[str, Mapping[str, float] | None]]) -> tuple[str, bool]:
    """Return which of the rows are over the limit by their best times, the worst first, and whether none is."""
    measured = [(name, found["best"]) for name, found in rows if found]
    over = sorted(((ratio, name) for name, ratio in measured if ratio > limit), reverse=True)
    names = "; ".join(f"{name} {ratio:.2f}" for ratio, name in over)
    return f"{len(over)} of {len(measured)}" + (f": {names}" if names else ""), not over


def regions_verdicts(figures: Figures) -> Iterator[Verdict]:
    for row in figures["cuts"]:
        if row["regions"] == 8:
            what = f"8 regions of `ort`, a model of {row['whole_ms']:.0f} ms, to the regions alone"
            yield at_most(what, 1.05, row["to_regions_alone"])
    for row in figures["alternations"]:
        yield at_most(f"`{row['what']}` in turns, {row['regions']} regions, to the same alone", 1.05, row["to_regions_alone"])
    if figures.get("pairs"):
        for key, where in (("pairs", ""), ("pairs_on_one_thread", ", on one thread")):
            rows = figures.get(key, ())
            pairs = ((f"`{', '.join(row['engines'])}` {row['kind']}", row.get("to_parts")) for row in rows)
            what = f"mixtures of two engines over 1.05 x their regions alone + 20 us per boundary{where}"
            if rows:
                yield Verdict(what, "none", *slower(1.05, pairs))
            in_turn = ((f"`{', '.join(row['engines'])}` {row['kind']}", row.get("to_parts_in_turn")) for row in rows)
            if any("to_parts_in_turn" in row for row in rows):
                yield Verdict(
                    f"mixtures of two engines over 1.05 x the same regions called by hand + 20 us per boundary{where}",
                    "none",
                    *slower(1.05, in_turn),
                )
        ways = (
            (f"`{row['engine']}` {row['kind']} {way}", row.get(way)) for row in figures["memory"] for way in ("given", "over")
        )
        yield Verdict(
            "regions over 1.05 x as slow into given memory, or over their input, as into new", "none", *slower(1.05, ways)
        )
    idle = max(row["idle_cpu"] for row in (*figures["cuts"], *figures["alternations"]))
    yield Verdict("processor time while idle, the most", "about 0 %: under 1 % of a core", f"{idle:.1%}", idle < 0.01)


# ---------------------------------------------------------------------- memory


def memory_tables(figures: Figures) -> Iterator[str]:
    yield f"{figures['megabytes']:,} MB of weights, the peak in MB:\n\n" + memory_table(
        (form, row) for form, rows in figures["forms"].items() for row in rows
    )
    if figures["beyond"]:
        yield f"{figures['large']:,} MB of weights, beyond protobuf's 2 GB:\n\n" + memory_table(figures["beyond"].items())


def memory_table(found: Iterable[tuple[str, Figures]]) -> str:
    columns = (
        *("weights", "engine", "alone", "regions", "XRT", "packed by the engine", "to alone", "to alone, without packed"),
        *("from the cache", "at the end, alone and XRT"),
    )
    lines = [
        (WHERE[form], f"`{row['engine']}`", peak(row["alone"]), count, *memory_cells(mine, row["alone"]))
        for form, row in found
        for count, mine in row["xrt"].items()
    ]
    return table(columns, lines)


WHERE = {"external": "in external files", "inline": "in the model file"}


def memory_cells(mine: Figures, alone: Figures) -> tuple[str, ...]:
    if "failed" in mine:
        return (peak(mine), *[""] * 5)
    compared = [f"{mine[key]:.2f}" if key in mine else "" for key in ("ratio", "ratio_unpacked")]
    ends = ", ".join(f"{one['now'] / 1e6:,.0f}" if "now" in one else "none" for one in (alone, mine))
    return (peak(mine), f"{mine['packed'] / 1e6:,.0f}", *compared, peak(mine["again"]), ends)


def peak(row: Figures) -> str:
    return f"{row['peak'] / 1e6:,.0f}" if "peak" in row else f"failed: {row['failed'][:100]}"


def memory_verdicts(figures: Figures) -> Iterator[Verdict]:
    for form, rows in figures["forms"].items():
        for row in rows:
            for count, mine in row["xrt"].items():
                what = f"`{row['engine']}`, {regions(count)}, weights {WHERE[form]}"
                yield from (peak_verdict(what, mine, row["alone"], apart=apart) for apart in (True, False))
    for form, row in figures["beyond"].items():
        for count, mine in row["xrt"].items():
            what = f"a model of {figures['large']:,} MB, weights {WHERE[form]}, {regions(count)} of `{row['engine']}`"
            yield Verdict(what, "loads and runs", f"peak {peak(mine)} MB", "failed" not in mine)


def regions(count: str) -> str:
    return "one region" if count == "1" else f"{count} regions"


def peak_verdict(what: str, mine: Figures, alone: Figures, *, apart: bool) -> Verdict:
    """Judge the higher peak, of the first run and of the one from the cache, without what the engine packs or in total."""
    runs = (mine, mine["again"]) if "again" in mine else (mine,)
    target = "at most 1.1 x the engine alone + 50 MB" + ", without its packed form" * apart
    what = f"peak{'' if apart else ' in total'}, {what}"
    failed = [run["failed"] for run in (alone, *runs) if "failed" in run]
    if failed:
        return Verdict(what, target, f"failed: {failed[0][:100]}", reached=False)
    most, limit = max(run["peak"] - run["packed"] * apart for run in runs), 1.1 * alone["peak"] + 50e6
    figure = f"{most / 1e6:,.0f} MB, limit {limit / 1e6:,.0f}, alone {peak(alone)}"
    return Verdict(what, target, figure, most <= limit)


# ---------------------------------------------------------------------- partitioning


def partition_tables(figures: Figures) -> Iterator[str]:
    rows = [
        (
            *(row["graph"], f"{row['nodes']:,}", f"{row['median_s']:.3f}", f"{row['slowest_s']:.3f}"),
            *(f"{row['us_per_node']:.1f}", spread(row["per_node_to_smallest"], 2), f"{row['regions']:,}"),
        )
        for row in figures["partition"]
    ]
    columns = ("graph", "nodes", "median, s", "slowest, s", "us per node", "per node, to the smallest", "regions")
    yield table(columns, rows)


def partition_verdicts(figures: Figures) -> Iterator[Verdict]:
    for nodes, limit in ((10_000, 0.25), (100_000, 3.0)):
        for row in figures["partition"]:
            if row["nodes"] == nodes:
                what, figure = f"{nodes:,} nodes, {row['graph']}, partitioned", f"{row['median_s']:.3f} s"
                yield Verdict(what, f"under {limit:g} s", figure, row["median_s"] < limit)


# ---------------------------------------------------------------------- imports


def imports_tables(figures: Figures) -> Iterator[str]:
    rows = [(row["what"], spread(row["seconds"]), spread(row["over_numpy"])) for row in figures["imports"]]
    yield table(("imported", "seconds", "over NumPy, seconds"), rows)


def imports_verdicts(figures: Figures) -> Iterator[Verdict]:
    for row in figures["imports"]:
        if row["what"] == "xrt":
            found = row["over_numpy"]
            yield Verdict("`import xrt` over `import numpy`", "0.1 s", f"{spread(found)} s", found["median"] <= 0.1)
