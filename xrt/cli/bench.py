"""``xrt bench``: compare the speed of engines, and of mixtures of them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import click

from xrt.bench import AUTO, BenchCandidate, BenchOptions, BenchReport, BenchTarget, Group, ReportRow, compare_engines, page
from xrt.cli import options
from xrt.cli.screen import TimedRow, WorkStatus, out, print_json, print_lines, show_times
from xrt.engines import ExecutionOptions
from xrt.engines.contract import registry
from xrt.engines.contract.registry import probe_all
from xrt.graph import FrozenDict
from xrt.html.views import size as format_bytes
from xrt.module import validate_budget
from xrt.runtime import default_budget

DETAILS = ("ms from-to", "alone ms", "first ms", "compile s", "peak", "regions", "off by")
"""Columns in a pipe."""
SHOWN = ("ms from-to", "first ms", "compile s", "peak", "off by")
"""Columns that -v shows on a terminal, where they fit 80 columns."""


@click.command("bench")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option(
    *options.ENGINE_NAMES[:-1],
    "candidates",
    multiple=True,
    metavar="CANDIDATE",
    help="A candidate: ort, auto, 'ort,tvm,auto', or 'tvm,ort with Conv|MatMul=ort'; repeatable [default: each ready engine]",
)
@click.option("--threads", type=options.NUMBERS, help=f"Thread counts: 1,2 [default: {options.CORES}]")
@click.option("--batch", type=options.NUMBERS, help="Batch sizes: 1,8 [default: the model's own]")
@options.add_dims
@options.option("--rounds", default=20, type=click.IntRange(2), help="Turns of each candidate")
@options.add_time("--budget", "20s", "With auto: time of the search")
@options.add_time("--time-limit", "2m", "Time of the start of a candidate, without its search")
@options.add_seed("Seed of weights and inputs")
@options.add_json
@options.add_html
@click.option("-v", "--verbose", is_flag=True, help="Also show intervals, compile times, memory, versions and the machine")
@click.pass_obj
def bench_command(typed: tuple[str, ...], /, models: tuple[str, ...], as_json: bool, verbose: bool, **params: Any) -> int:
    """Compare engines on MODELs: shipped ones (squeezenet, 'bert{layers=2}'), or paths of ONNX files or bundles.

    Each candidate has its own process and the whole model: no other engine replaces it. The exit code is 1 when
    the results of one differ from the reference engine's, 2 when none ran.
    """
    dims, budget = options.parse_dims(params["dims"]), params["budget"]
    targets = [BenchTarget.parse(model, size) for model in models for size in params["batch"] or (None,)]
    targets = [replace(target, sizes=FrozenDict({**dims, **target.sizes})) for target in targets]
    for target in targets:
        if (function := target.check()) is not None:
            options.check_sizes(function)
    threads = dict.fromkeys(validate_budget(ExecutionOptions(threads=n)) for n in params["threads"] or (default_budget(),))
    settings = BenchOptions(
        rounds=params["rounds"], limit_seconds=params["time_limit"] + budget, seed=params["seed"], budget_seconds=budget
    )
    with WorkStatus("") as status:

        def finish(group: Group) -> None:
            if not as_json:
                status.stop()  # otherwise it would write into the table
                show_group(group, verbose=verbose)
                status.start()

        candidates = _parse_candidates(params["candidates"])
        report = compare_engines(targets, candidates, list(threads), settings, status.update, finish)
    if params["html"] is not None:
        options.write_page(params["html"], page(replace(report, command=shlex.join(["xrt", *typed]))))
    if as_json:
        print_json(report.to_dict())
    else:
        print_lines(*_list_footer(report, verbose=verbose))
    if not any(row.median_seconds for group in report.groups for row in group.rows):
        return 2
    return 0 if report.agrees else 1


def _parse_candidates(texts: tuple[str, ...]) -> list[BenchCandidate]:
    if not texts:
        return [BenchCandidate((status.name,)) for status in probe_all() if status.state == "ready"]
    candidates = list(dict.fromkeys(BenchCandidate.parse(text) for text in texts))
    for name in dict.fromkeys(name for candidate in candidates for name in candidate.names if name != AUTO):
        registry.check_registered(name)
    return candidates


# ---------------------------------------------------------------------- on the screen


def show_group(group: Group, *, verbose: bool) -> None:
    """Print the times of a model with a thread budget."""
    print_lines(group.title)
    rounds = max((len(row.rounds) for row in group.rows), default=0)
    rows, notes = [], []
    for row in group.rows:
        texts = list(_list_notes(row, rounds))
        notes += [f" {row.candidate}: {text}" for text in texts]
        ratio = "" if row.ratio is None else f"{row.ratio.median:.2f}"
        if row.ratio is not None and row.verdict != "fastest":
            ratio += f" ({row.ratio.low:.2f}-{row.ratio.high:.2f})"
        details = {**_details(row), "note": "; ".join(texts)}
        rows.append(TimedRow(str(row.candidate), row.median_seconds, ratio, row.verdict, details))
    show_times("engine", rows, (*DETAILS, "note"), verbose=SHOWN if verbose else ())
    if out.is_terminal:
        print_lines(*notes)
        if any(row.verdict == "too noisy" for row in rows):
            print_lines("too noisy to rank: measure again on an idle machine, or with more --rounds")


def _details(row: ReportRow) -> dict[str, str]:
    start = row.start
    if start is None or row.median_seconds is None:
        return dict.fromkeys(DETAILS, "")
    difference = None if row.agreement is None else row.agreement.absolute
    cells = (
        f"{1e3 * row.interval.low:.4g}-{1e3 * row.interval.high:.4g}" if row.interval else "",
        f"{1e3 * start.alone_seconds:.4g}",
        f"{1e3 * start.first_seconds:.4g}",
        f"{start.compile_seconds:.2f}",
        format_bytes(start.peak_bytes),
        str(len(start.regions)),
        "" if difference is None else f"{difference:.1e}",
    )
    return dict(zip(DETAILS, cells, strict=True))


def _list_notes(row: ReportRow, rounds: int) -> Iterator[str]:
    if row.reason:
        # The first line, the first item of its list, and the number of further items.
        first, *listed = (line.strip() for line in row.reason.splitlines())
        more = f" (and {len(listed) - 1} more)" if len(listed) > 1 else ""
        yield " ".join([first, *listed[:1]]) + more
    if row.start is not None and row.start.placement:
        yield row.start.placement[0]
    if row.start is not None and not row.start.steady:
        yield f"not steady after {row.start.warm_calls} calls"
    if row.rounds and len(row.rounds) < rounds:
        yield f"{len(row.rounds)} of {rounds} rounds, which used up its time"


def _list_footer(report: BenchReport, *, verbose: bool) -> Iterator[str]:
    rounds = max((len(row.rounds) for group in report.groups for row in group.rows), default=0)
    yield f"ms: median of {rounds} rounds in turn; ratio: to the fastest, with its 95 % interval"
    if verbose:
        yield "; ".join(f"{engine}: {version}" for engine, version in report.versions.items())
        yield ", ".join(f"{name} {value}" for name, value in report.machine.items())
