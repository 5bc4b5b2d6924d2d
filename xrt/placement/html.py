"""A TuningResult as a notebook shows it: who ran against whom as bars, and the plan that was chosen."""

from __future__ import annotations

from collections.abc import Iterator

from xrt.html.bars import Bar, bars
from xrt.html.document import make_cell
from xrt.html.formatting import seconds, times
from xrt.html.markup import Child, tag
from xrt.html.regions import MeanCall
from xrt.html.tables import fold, make_table
from xrt.measure.ratios import Interval
from xrt.partition.html import draw_regions, list_reasons
from xrt.placement.report import CostReport, describe_missing_support
from xrt.placement.result import CandidateResult, TuningResult

__all__ = ["list_costs", "render_tuning_result"]

KINDS = {"won": "best", "tie": "tie", "lost": "slower", "wrong": "wrong", "failed": "failed"}
SHOWN = 12
"""Rows of a table of costs."""


def render_tuning_result(tuned: TuningResult) -> str:
    """Return the cell of a TuningResult."""
    head, *_ = str(tuned).splitlines()
    title = tag("h2", f"{head[:1].upper()}{head[1:]}", class_="title")
    spent = f"{tuned.spent:.1f} of {tuned.budget:g} s, {tuned.measurements} measurements of regions, {tuned.race.rounds} rounds"
    remarks = fold("Remarks", tag("ul", *(tag("li", remark) for remark in tuned.remarks))) if tuned.remarks else None
    searched = tag("p", spent) if tuned.how in ("measured", "interrupted") else None
    plan = draw_regions(tuned.plan, _times(tuned))
    return make_cell(
        title,
        searched,
        *_draw_race(tuned),
        remarks,
        tag("h3", "The plan"),
        *plan,
        *list_reasons(tuned.plan.reasons, "plan.reasons"),
    )


def _draw_race(tuned: TuningResult) -> Iterator[Child]:
    """Yield bars of the candidates that ran, and a table of all."""
    found = tuned.race.contenders
    ran = [_bar(one) for one in found if one.seconds]
    if ran:
        yield tag(
            "figure",
            bars(ran),
            tag("figcaption", "Time of a call: medians, with their intervals where there were enough rounds."),
        )
    if found:
        columns = ("plan", "verdict", ("regions", "number"), ("a call", "number"), ("× the baseline", "number"), "")
        yield make_table("Candidates, best first", columns, [_cells(one, tuned) for one in found])


def _bar(one: CandidateResult) -> Bar:
    interval = None if one.low is None or one.high is None else Interval(one.low, one.high)
    return Bar(one.title, KINDS[one.verdict], one.verdict, one.seconds or 0.0, interval, one.note)


def _cells(one: CandidateResult, tuned: TuningResult) -> tuple[Child, ...]:
    baseline = tuned.race.baseline
    is_baseline = baseline is not None and tuned.race.contenders[baseline] is one
    note = "; ".join(filter(None, ("the baseline" if is_baseline else "", one.note)))
    verdict = tag("span", one.verdict, class_=f"verdict {KINDS[one.verdict]}")
    taken = "" if one.seconds is None else seconds(one.seconds)
    return one.title, verdict, len(one.plan.launches), taken, _ratio(one), note


def _ratio(one: CandidateResult) -> str:
    if one.ratio is None:
        return ""
    if one.ratio_low is None or one.ratio_high is None:
        return times(one.ratio)
    return f"{times(one.ratio)} ({times(one.ratio_low)} to {times(one.ratio_high)})"


def _times(tuned: TuningResult) -> MeanCall | None:
    """Return what the regions of the chosen plan took within calls, where that was measured."""
    winner = tuned.race.winner
    if winner is None or winner.plan != tuned.plan or len(winner.regions) != len(tuned.plan.launches) or not winner.seconds:
        return None
    return MeanCall(tuned.race.rounds, winner.seconds, winner.regions)


def list_costs(account: CostReport) -> Iterator[Child]:
    """Yield what the parts of a chosen plan cost, as predicted and as measured, and what would save time."""
    if account.parts:
        rows = [(x.name, x.engine, x.nodes, _known(x.predicted), x.source, _known(x.measured)) for x in account.parts[:SHOWN]]
        columns = ("region", "engine", ("nodes", "number"), ("predicted", "number"), "known", ("took", "number"))
        head = f"Predicted {_known(account.predicted)} for a call; it took {_known(account.measured)}"
        yield make_table(_bound(head, len(account.parts)), columns, rows)
    if account.boundaries:
        crossing = [(x.value, x.source, x.target, _known(x.seconds)) for x in account.boundaries[:SHOWN]]
        yield make_table(_bound("Boundaries", len(account.boundaries)), ("value", "from", "to", ("costs", "number")), crossing)
    if account.unlocks:
        yield tag("h3", "What would save time, by the prediction")
        yield tag("ul", *(tag("li", describe_missing_support(one)) for one in account.unlocks[:SHOWN]))


def _known(value: float | None) -> str:
    return "unknown" if value is None else seconds(value)


def _bound(caption: str, count: int) -> str:
    return f"{caption} (the first {SHOWN} of {count})" if count > SHOWN else caption
