"""``xrt conformance``: the tests of the installed onnx package on an engine, on a list, alternating, or placed by measurement."""

from __future__ import annotations

import json
from collections.abc import Mapping

import click

from xrt.cli.screen import out, progress, show_table
from xrt.engines import split_specs
from xrt.errors import OptionError
from xrt.testing import GROUPS, ConformanceReport, Outcome, ResultWord, conform
from xrt.testing.open_dims import OPENINGS, Opening

__all__ = ["command"]


@click.command("conformance")
@click.argument("engines")
@click.option("--group", "groups", multiple=True, type=click.Choice(list(GROUPS)), help="Only these groups of tests; repeatable")
@click.option(
    "--cases",
    multiple=True,
    default=("*",),
    show_default="all",
    help="Which cases, as globs with commas: 'test_conv*'; repeatable",
)
@click.option("--alternate", is_flag=True, help="Put neighboring nodes on different engines, each node in its own region")
@click.option(
    "--opening",
    type=click.Choice(OPENINGS),
    help="Replace extents of inputs by symbolic dims, every one, equal ones by one, or the first, and run at several sizes",
)
@click.option("--reference", is_flag=True, help="Also run onnx.reference.ReferenceEvaluator, and count what it alone passes")
@click.option("--reasons", is_flag=True, help="List why each declined case was declined")
@click.option("--operators", is_flag=True, help="Show the counts per operator, and its engines")
@click.option(
    "--in-process",
    is_flag=True,
    help="Run the cases in this process, for a debugger: a crash ends it, where it is one failed case otherwise",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON")
def command(
    engines: str,
    groups: tuple[str, ...],
    cases: tuple[str, ...],
    alternate: bool,
    opening: Opening | None,
    reference: bool,
    reasons: bool,
    operators: bool,
    in_process: bool,
    as_json: bool,
) -> int:
    """Count the tests of onnx that ENGINES (one, or several with commas) pass, decline and fail; exit code 1 when one fails.

    With "auto" among them each case is placed by measurement, on the other engines of the list or on all that are ready.
    """
    listed = split_specs(engines)
    with ConformanceProgress(f"{engines}{', alternating' * alternate}") as watched:
        report = conform(
            listed if len(listed) > 1 else listed[0],
            ",".join(cases),
            groups=groups,
            alternate=alternate,
            opening=opening,
            reference=reference,
            isolate=not in_process,
            progress=watched.advance,
        )
    if not report.outcomes:
        within = f" in {', '.join(groups)}" if groups else ""
        raise OptionError(f"no test has a name like {','.join(cases)}{within}; names read like test_conv_with_strides_padding")
    if as_json:
        click.echo(json.dumps(report.to_dict(), indent=1))
    else:
        _show(report, reasons=reasons, operators=operators)
    return 0 if report.ok else 1


class ConformanceProgress:
    """A progress bar over the cases, with what failed so far; nothing off a terminal."""

    def __init__(self, what: str) -> None:
        self._bar, self._what = progress(), what
        self._task = self._bar.add_task(what, total=None)
        self._failed = 0

    def __enter__(self) -> ConformanceProgress:
        self._bar.start()
        return self

    def __exit__(self, *rest: object) -> None:
        self._bar.stop()

    def advance(self, done: int, total: int, outcome: Outcome) -> None:
        self._failed += outcome.word is ResultWord.FAILED
        failed = f", {self._failed} failed" if self._failed else ""
        self._bar.update(self._task, completed=done, total=total, description=f"{self._what}{failed}: {outcome.group}")


def _show(report: ConformanceReport, *, reasons: bool, operators: bool) -> None:
    if operators:
        placed = report.placements()
        rows = [(name, *_row(counts), _shown(placed.get(name, {}))) for name, counts in report.by_operator().items()]
        show_table(("operator", *ResultWord, "ran on"), rows, numbers=tuple(ResultWord))
    if reasons:
        show_table(("declined", "reason"), [(o.case, o.reason) for o in report.of(ResultWord.DECLINED)])
    if gaps := report.of(ResultWord.GAP):
        show_table(("known gap", "reason"), [(o.case, o.reason) for o in gaps])
    if len(groups := report.by_group()) > 1:
        show_table(("group", *ResultWord), [(name, *_row(counts)) for name, counts in groups.items()], numbers=tuple(ResultWord))
    out.print(str(report), markup=False)


def _row(counts: Mapping[ResultWord, int]) -> list[int]:
    return [counts[word] for word in ResultWord]


def _shown(engines: Mapping[str, int]) -> str:
    return ", ".join(f"{engine} {count}" for engine, count in engines.items())
