"""``xrt bench``: what engines, and mixtures of them, cost on a model."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from xrt.bench import AUTO, BenchCandidate, BenchOptions, BenchReport, BenchTarget, Group, ReportRow, compare_engines, page
from xrt.cli.options import (
    CORES,
    ENGINE_NAMES,
    add_dims,
    add_json,
    check_sizes,
    check_writable,
    parse_dims,
    parse_numbers,
    parse_seconds,
)
from xrt.cli.screen import TimedRow, WorkStatus, human_bytes, out, show_table, show_times
from xrt.engines import ExecutionOptions
from xrt.engines.contract import registry
from xrt.engines.contract.registry import probe_all
from xrt.formats.output import replace_file
from xrt.graph import FrozenDict
from xrt.module import validate_budget
from xrt.runtime import default_budget

__all__ = ["command"]

DETAILS = ("ms from-to", "alone ms", "first ms", "compile s", "peak", "regions", "off by")
"""Columns in a pipe."""
SHOWN = ("ms from-to", "first ms", "compile s", "peak", "off by")
"""Those that -v shows on a terminal, where they fit 80 columns."""


@click.command("bench")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option(
    *ENGINE_NAMES[:-1],
    "candidates",
    multiple=True,
    metavar="CANDIDATE",
    help="A candidate: ort, auto, 'ort,tvm,auto', or 'tvm,ort with Conv|MatMul=ort'; repeatable [default: each ready engine]",
)
@click.option("--threads", callback=parse_numbers, metavar="N,...", help=f"Thread counts: 1,2 [default: {CORES}]")
@click.option("--batch", callback=parse_numbers, metavar="N,...", help="Batch sizes: 1,8 [default: the model's own]")
@add_dims
@click.option("--rounds", default=20, show_default=True, type=click.IntRange(2), help="Turns of each candidate")
@click.option(
    "--budget",
    default="20s",
    show_default=True,
    callback=parse_seconds,
    metavar="TIME",
    help="With auto: time of the search: 60s, 2m",
)
@click.option(
    "--time-limit",
    default="2m",
    show_default=True,
    callback=parse_seconds,
    metavar="TIME",
    help="Time of the start of a candidate, without its search: 60s, 2m",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of weights and inputs")
@add_json
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Also write a page to this file")
@click.option("-v", "--verbose", is_flag=True, help="Also show intervals, compile times, memory, versions and the machine")
@click.pass_obj
def command(
    typed: tuple[str, ...],
    models: tuple[str, ...],
    candidates: tuple[str, ...],
    threads: tuple[int, ...] | None,
    batch: tuple[int, ...] | None,
    rounds: int,
    dims: tuple[str, ...],
    budget: float,
    time_limit: float,
    seed: int,
    as_json: bool,
    html: Path | None,
    verbose: bool,
) -> int:
    """Compare engines on MODELs: shipped ones (squeezenet, 'bert{layers=2}'), or paths of ONNX files or bundles.

    Each candidate has its own process and the whole model: no other engine replaces it. The exit code is 1 when
    the results of one differ from the reference engine's, 2 when none ran.
    """
    if html is not None:
        check_writable(html)
    extents = parse_dims(dims)
    targets = [BenchTarget.parse(model, size) for model in models for size in batch or (None,)]
    subjects = [replace(target, sizes=FrozenDict({**extents, **target.sizes})) for target in targets]
    for subject in subjects:
        if (function := subject.check()) is not None:
            check_sizes(function)
    report = _compared(
        subjects,
        _candidates(candidates),
        list(dict.fromkeys(validate_budget(ExecutionOptions(threads=count)) for count in threads or (default_budget(),))),
        BenchOptions(rounds=rounds, limit_seconds=time_limit + budget, seed=seed, budget_seconds=budget),
        silent=as_json,
        verbose=verbose,
    )
    if html is not None:
        text = page(replace(report, command=shlex.join(["xrt", *typed]))).encode()
        replace_file(html, lambda file: file.write(text))
    if as_json:
        out.print_json(json.dumps(report.to_dict()))
    else:
        out.print("\n".join(_footer(report, verbose=verbose)), markup=False)
    if not any(row.median_seconds for group in report.groups for row in group.rows):
        return 2
    return 0 if report.agrees else 1


def _candidates(texts: tuple[str, ...]) -> list[BenchCandidate]:
    if texts:
        chosen = list(dict.fromkeys(BenchCandidate.parse(text) for text in texts))
        for name in dict.fromkeys(name for candidate in chosen for name in candidate.names if name != AUTO):
            registry.check_registered(name)
        return chosen
    with WorkStatus("asking which engines are ready"):
        return [BenchCandidate((status.name,)) for status in probe_all() if status.state == "ready"]


def _compared(
    subjects: list[BenchTarget],
    candidates: list[BenchCandidate],
    threads: list[int],
    settings: BenchOptions,
    *,
    silent: bool,
    verbose: bool,
) -> BenchReport:
    with WorkStatus("") as status:

        def finished(group: Group) -> None:
            if not silent:
                status.stop()  # a table on standard output would be written into it
                show_group(group, verbose=verbose)
                status.start()

        return compare_engines(subjects, candidates, threads, settings, status.update, finished)


# ---------------------------------------------------------------------- on the screen


def show_group(group: Group, *, verbose: bool) -> None:
    out.print(group.title, markup=False)
    rounds = max((len(row.rounds) for row in group.rows), default=0)
    rows = [TimedRow(str(row.candidate), row.median_seconds, _ratio(row), row.verdict) for row in group.rows]
    if not out.is_terminal:
        times = [(one.name, _milliseconds(one.seconds), one.ratio, one.verdict) for one in rows]
        notes = ["; ".join(_notes(row, rounds)) for row in group.rows]
        cells = [(*mine, *_details(row), note) for mine, row, note in zip(times, group.rows, notes, strict=True)]
        show_table(("engine", "ms", "ratio", "verdict", *DETAILS, "note"), cells)
        return
    show_times("engine", rows)
    if verbose:
        ran = [(row, dict(zip(DETAILS, _details(row), strict=True))) for row in group.rows if row.median_seconds is not None]
        details = [(str(row.candidate), *(cells[name] for name in SHOWN)) for row, cells in ran]
        show_table(("engine", *SHOWN), details, numbers=SHOWN)
    for row in group.rows:
        for note in _notes(row, rounds):
            out.print(f" {row.candidate}: {note}", markup=False)
    if any(row.verdict == "too noisy" for row in group.rows):
        out.print("too noisy to rank: measure again on an idle machine, or with more --rounds")


def _ratio(row: ReportRow) -> str:
    ratio = row.ratio
    if ratio is None:
        return ""
    return f"{ratio.median:.2f}" if row.verdict == "fastest" else f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"


def _details(row: ReportRow) -> tuple[str, ...]:
    start = row.start
    if start is None or row.median_seconds is None:
        return ("",) * len(DETAILS)
    return (
        f"{_milliseconds(row.interval.low)}-{_milliseconds(row.interval.high)}" if row.interval else "",
        _milliseconds(start.alone_seconds),
        _milliseconds(start.first_seconds),
        f"{start.compile_seconds:.2f}",
        human_bytes(start.peak_bytes),
        str(len(start.regions)),
        "" if row.agreement is None or row.agreement.absolute is None else f"{row.agreement.absolute:.1e}",
    )


def _notes(row: ReportRow, rounds: int) -> Iterator[str]:
    if row.reason:
        yield _brief(row.reason)
    if row.start is not None and row.start.placement:
        yield row.start.placement[0]
    if row.start is not None and not row.start.steady:
        yield f"not steady after {row.start.warm_calls} calls"
    if row.rounds and len(row.rounds) < rounds:
        yield f"{len(row.rounds)} of {rounds} rounds, which used up its time"


def _brief(reason: str) -> str:
    """Return a reason on one line: what it says first, the first of what it lists, and how much more there is."""
    first, *listed = (line.strip() for line in reason.splitlines())
    more = f" (and {len(listed) - 1} more)" if len(listed) > 1 else ""
    return " ".join([first, *listed[:1]]) + more


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.4g}"


def _footer(report: BenchReport, *, verbose: bool) -> Iterator[str]:
    groups: tuple[Group, ...] = report.groups
    rounds = max((len(row.rounds) for group in groups for row in group.rows), default=0)
    yield f"ms: median of {rounds} rounds in turn; ratio: to the fastest, with its 95 % interval"
    if not verbose:
        return
    yield "; ".join(f"{engine}: {version}" for engine, version in report.versions.items())
    yield ", ".join(f"{name} {value}" for name, value in report.machine.items())
