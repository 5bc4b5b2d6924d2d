"""``xrt conform``: the node tests of the installed onnx package on an engine, or on a list of engines."""

from __future__ import annotations

import json

import click

from xrt.cli.screen import out, progress, show_table
from xrt.engines import split_specs
from xrt.testing import Outcome, Report, Word, conform

__all__ = ["command"]


@click.command("conform")
@click.argument("engines")
@click.option("--cases", default="*", show_default=True, help="Which cases, as a glob: 'test_conv*'")
@click.option("--reference", is_flag=True, help="Run onnx.reference.ReferenceEvaluator beside, and count what it alone passes")
@click.option("--reasons", is_flag=True, help="List why each declined case was declined")
@click.option("--operators", is_flag=True, help="Show the counts per operator")
@click.option("--json", "as_json", is_flag=True, help="Print JSON")
def command(engines: str, cases: str, reference: bool, reasons: bool, operators: bool, as_json: bool) -> int:
    """Count the node tests that ENGINES (one, or several with commas) pass, decline and fail; exit code 1 when one fails."""
    report = _run(split_specs(engines), cases, reference)
    if as_json:
        out.print_json(json.dumps(report.to_dict()))
    else:
        _show(report, reasons=reasons, operators=operators)
    return 0 if report.ok else 1


def _run(engines: list[str], cases: str, reference: bool) -> Report:
    with progress() as bar:
        task = bar.add_task(f"node tests on {','.join(engines)}", total=None)

        def advance(done: int, total: int, outcome: Outcome) -> None:
            bar.update(task, completed=done, total=total)

        return conform(engines if len(engines) > 1 else engines[0], cases, reference=reference, progress=advance)


def _show(report: Report, *, reasons: bool, operators: bool) -> None:
    if operators:
        rows = [(name, *(counts[word] for word in Word)) for name, counts in report.by_operator().items()]
        show_table(("operator", *Word), rows, numbers=tuple(Word))
    if reasons:
        show_table(("declined", "reason"), [(o.case, o.reason) for o in report.of(Word.DECLINED)])
    gaps = report.of(Word.GAP)
    if gaps:
        show_table(("known gap", "reason"), [(o.case, o.reason) for o in gaps])
    out.print(str(report), markup=False)
