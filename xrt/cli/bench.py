"""``xrt bench``: what engines, and mixtures of them, cost on a model."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from xrt.bench import AUTO, BenchCandidate, BenchOptions, BenchReport, BenchTarget, Group, ReportRow, compare_engines, page
from xrt.cli.options import ENGINE_NAMES, add_dims, check_sizes, check_writable, parse_dims, parse_seconds
from xrt.cli.screen import WorkStatus, human_bytes, out, show_table
from xrt.engines import ExecutionOptions
from xrt.engines.contract import registry
from xrt.engines.contract.discovery import probe_all
from xrt.errors import OptionError
from xrt.formats.output import replace_file
from xrt.graph import FrozenDict
from xrt.module import validate_budget
from xrt.runtime import default_budget

__all__ = ["command"]

COLUMNS = ("candidate", "verdict", "ms", "x best", "alone ms", "first ms", "compile s", "peak", "regions", "off by")
NUMBERS = ("ms", "x best", "alone ms", "first ms", "compile s", "peak", "regions", "off by")
NARROW = ("candidate", "verdict", "ms", "x best", "compile s", "peak")
"""Columns of a terminal in which the others find no room; JSON and a pipe have them all."""
WIDE = 130


@click.command("bench")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option(
    *ENGINE_NAMES[:-1],
    "candidates",
    multiple=True,
    metavar="CANDIDATE",
    help="A candidate: ort, auto, 'ort,tvm,auto', or 'tvm,ort with Conv|MatMul=ort'; repeatable [default: each ready engine]",
)
@click.option(
    "--threads",
    default=str(default_budget()),
    show_default="the cores of this process",
    metavar="N,...",
    help="Thread counts: 1,2",
)
@click.option("--batch", default="", metavar="N,...", help="Batch sizes: 1,8 [default: the model's own]")
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
@click.option("--json", "as_json", is_flag=True, help="Print JSON")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Also write a page to this file")
@click.pass_obj
def command(
    typed: tuple[str, ...],
    models: tuple[str, ...],
    candidates: tuple[str, ...],
    threads: str,
    batch: str,
    rounds: int,
    dims: tuple[str, ...],
    budget: float,
    time_limit: float,
    seed: int,
    as_json: bool,
    html: Path | None,
) -> int:
    """Compare engines on MODELs: shipped ones (squeezenet, 'bert{layers=2}'), or paths of ONNX files or bundles.

    Each candidate has its own process and the whole model: no other engine replaces it. The exit code is 1 when
    the results of one differ from the reference engine's, 2 when none ran.
    """
    if html is not None:
        check_writable(html)
    batches: list[int | None] = [*_counts(batch, "--batch")] or [None]
    extents = parse_dims(dims)
    targets = [BenchTarget.parse(model, size) for model in models for size in batches]
    subjects = [replace(target, sizes=FrozenDict({**extents, **target.sizes})) for target in targets]
    for subject in subjects:
        if (function := subject.check()) is not None:
            check_sizes(function)
    report = _compared(
        subjects,
        _candidates(candidates),
        _budgets(_counts(threads, "--threads") or [default_budget()]),
        BenchOptions(rounds=rounds, limit_seconds=time_limit + budget, seed=seed, budget_seconds=budget),
        silent=as_json,
    )
    if html is not None:
        text = page(replace(report, command=shlex.join(["xrt", *typed]))).encode()
        replace_file(html, lambda file: file.write(text))
    if as_json:
        out.print_json(json.dumps(report.to_dict()))
    else:
        out.print("\n".join(_footer(report)), markup=False)
    return _exit_code(report)


def _exit_code(report: BenchReport) -> int:
    if not any(row.median_seconds for group in report.groups for row in group.rows):
        return 2
    return 0 if report.agrees else 1


def _counts(text: str, option: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise OptionError(f"{option} takes positive numbers with commas, such as 1,2; got {text!r}")
    return [int(part) for part in parts]


def _budgets(asked: list[int]) -> list[int]:
    """Return the budgets that were asked for, each once and none above the cores, with a warning for what is."""
    return list(dict.fromkeys(validate_budget(ExecutionOptions(threads=count)) for count in asked))


def _candidates(given: tuple[str, ...]) -> list[BenchCandidate]:
    if given:
        chosen = list(dict.fromkeys(BenchCandidate.parse(text) for text in given))
        for name in dict.fromkeys(name for candidate in chosen for name in candidate.names if name != AUTO):
            registry.check_registered(name)
        return chosen
    with WorkStatus("asking which engines are ready"):
        return [BenchCandidate((status.name,)) for status in probe_all() if status.state == "ready"]


def _compared(
    subjects: list[BenchTarget], candidates: list[BenchCandidate], threads: list[int], settings: BenchOptions, *, silent: bool
) -> BenchReport:
    with WorkStatus("") as status:

        def finished(group: Group) -> None:
            if not silent:
                status.stop()  # a table on standard output would be written into it
                _show(group)
                status.start()

        return compare_engines(subjects, candidates, threads, settings, status.update, finished)


# ---------------------------------------------------------------------- on the screen


def _show(group: Group) -> None:
    out.print(f"{group.title}; a tie is what is within {group.noise:.1%} of the best", markup=False)
    if not out.is_terminal:
        show_table((*COLUMNS, "note"), [(*_cells(row), "; ".join(_notes(row))) for row in group.rows])
        return
    shown = COLUMNS if out.width >= WIDE else NARROW
    rows = [dict(zip(COLUMNS, _cells(row), strict=True)) for row in group.rows]
    show_table(shown, [[cells[name] for name in shown] for cells in rows], numbers=NUMBERS, whole=("verdict",))
    for row in group.rows:
        for note in _notes(row):
            out.print(f" {row.candidate}: {note}", markup=False)


def _cells(row: ReportRow) -> tuple[str, ...]:
    start = row.start
    if start is None or row.median_seconds is None:
        return (str(row.candidate), row.verdict, *[""] * 8)
    return (
        str(row.candidate),
        row.verdict,
        f"{_milliseconds(row.median_seconds)}{_bounds(row)}",
        f"{best.median:.2f} ({best.low:.2f}-{best.high:.2f})" if (best := row.to_best) else "",
        _milliseconds(start.alone_seconds),
        _milliseconds(start.first_seconds),
        f"{start.compile_seconds:.2f}",
        human_bytes(start.peak_bytes),
        str(len(start.regions)),
        "" if row.agreement is None or row.agreement.absolute is None else f"{row.agreement.absolute:.1e}",
    )


def _bounds(row: ReportRow) -> str:
    """Return the interval of a time, in its unit."""
    return f" ({_milliseconds(row.interval.low)}-{_milliseconds(row.interval.high)})" if row.interval else ""


def _notes(row: ReportRow) -> Iterator[str]:
    if row.reason:
        yield _brief(row.reason)
    if row.start is not None and row.start.placement:
        yield row.start.placement[0]
    if row.start is not None and not row.start.steady:
        yield f"not steady after {row.start.warm_calls} calls"


def _brief(reason: str) -> str:
    """Return a reason on one line: what it says first, the first of what it lists, and how much more there is."""
    first, *listed = (line.strip() for line in reason.splitlines())
    more = f" (and {len(listed) - 1} more)" if len(listed) > 1 else ""
    return " ".join([first, *listed[:1]]) + more


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.4g}"


def _footer(report: BenchReport) -> Iterator[str]:
    groups: tuple[Group, ...] = report.groups
    rounds = max((len(row.rounds) for group in groups for row in group.rows), default=0)
    yield f"medians of {rounds} rounds in turn; x best: median ratio within a round; 95 % intervals by bootstrap over rounds"
    yield "; ".join(f"{engine}: {version}" for engine, version in report.versions.items())
    yield ", ".join(f"{name} {value}" for name, value in report.machine.items())
