"""A TuningResult as a notebook shows it: who ran against whom as bars, and the plan that was chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xrt.html.drawing import Bar, MeanCall, make_bars
from xrt.html.formatting import format_ratio_interval, seconds, times
from xrt.html.rendering import render_cell, render_page
from xrt.measure.statistics import Interval, RatioInterval
from xrt.partition.html import describe_plan
from xrt.placement.report import CostReport, describe_missing_support, describe_precision, format_error, list_pareto_plans
from xrt.placement.result import VERDICTS, CandidateResult, TuningResult

if TYPE_CHECKING:
    from xrt.formats.placement_file import PrecisionRecord

__all__ = ["describe_costs", "describe_errors", "render_tuning_page", "render_tuning_result"]

WIDTH, HEIGHT, MARGIN = 560.0, 220.0, 44.0
"""Pixels of the drawing, and of the room for its scales."""


def describe_errors(record: PrecisionRecord | None) -> dict[str, Any]:
    """Return what a view shows of a precision: lines, points of the plans that were timed, and a table of all plans."""
    if record is None:
        return {"precision": None}
    timed = list_pareto_plans(record)
    most = max((one.seconds or 0.0 for one, _ in timed), default=0.0) or 1.0
    worst = max([record.limit, *(one.error or 0.0 for one, _ in timed)]) or 1.0
    points = [
        {
            "x": MARGIN + (WIDTH - 2 * MARGIN) * (one.seconds or 0.0) / most,
            "y": HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (one.error or 0.0) / worst,
            "label": f"{one.precision} on {one.plan}: {_describe(one.error, record)}, {seconds(one.seconds or 0.0)}",
            "is_best": is_best,
        }
        for one, is_best in timed
    ]
    best = {id(one) for one, is_best in timed if is_best}
    rows = [
        (
            one.precision,
            one.plan,
            "best" if id(one) in best else one.outcome,
            one.kept or "",
            "" if one.outcome in ("wrong", "failed") else _describe(one.error, record),
            "" if one.seconds is None else seconds(one.seconds),
            one.note,
        )
        for one in record.plans
    ]
    drawing = {"width": WIDTH, "height": HEIGHT, "margin": MARGIN, "points": points}
    scales = {"limit": _describe(record.limit, record), "worst": _describe(worst, record), "slowest": seconds(most)}
    limit = HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * record.limit / worst
    return {"precision": {**drawing, **scales, "limit_at": limit, "rows": rows, "lines": list(describe_precision(record))}}


def _describe(error: float | None, record: PrecisionRecord) -> str:
    return format_error(error, record.measure)


SHOWN = 12
"""Rows of a table of costs."""


def render_tuning_result(tuned: TuningResult) -> str:
    """Return the cell of a TuningResult."""
    return render_cell("tuning_result.html", title=_make_title(tuned), **_describe_result(tuned))


def render_tuning_page(results: Mapping[str, TuningResult], model: str) -> str:
    """Return the text of a page about searches for a model, by its sizes; of one search they may be empty."""
    found = [
        {**_describe_result(tuned), "title": f"{sizes}: {_make_title(tuned)}" if sizes else _make_title(tuned)}
        for sizes, tuned in results.items()
    ]
    title = f"{model}: {found[0]['title']}" if len(found) == 1 else f"{model}: placed by measurement at {len(found)} sizes"
    return render_page("tuning_results.html", title, results=found)


def _make_title(tuned: TuningResult) -> str:
    head, *_ = str(tuned).splitlines()
    return f"{head[:1].upper()}{head[1:]}"


def _describe_result(tuned: TuningResult) -> dict[str, Any]:
    return {
        "tuned": tuned,
        "bars": make_bars([_make_bar(one) for one in tuned.race.contenders if one.seconds]),
        "candidates": [_describe_candidate(one, tuned) for one in tuned.race.contenders],
        **describe_errors(tuned.precision),
        **describe_plan(tuned.plan, tuned.plan.reasons, _find_times(tuned)),
    }


def _make_bar(one: CandidateResult) -> Bar:
    interval = None if one.low is None or one.high is None else Interval(one.low, one.high)
    return Bar(one.title, VERDICTS[one.verdict], VERDICTS[one.verdict], one.seconds or 0.0, interval, one.note)


def _describe_candidate(one: CandidateResult, tuned: TuningResult) -> tuple[object, ...]:
    baseline = tuned.race.baseline
    is_baseline = baseline is not None and tuned.race.contenders[baseline] is one
    note = "; ".join(filter(None, ("the best single engine" if is_baseline else "", one.note)))
    verdict = {"text": VERDICTS[one.verdict], "verdict": VERDICTS[one.verdict]}
    taken = "" if one.seconds is None else seconds(one.seconds)
    return one.title, verdict, len(one.plan.launches), taken, _format_ratio(one), note


def _format_ratio(one: CandidateResult) -> str:
    if one.ratio is None or one.ratio_low is None or one.ratio_high is None:
        return "" if one.ratio is None else times(one.ratio)
    return format_ratio_interval(RatioInterval(one.ratio, one.ratio_low, one.ratio_high))


def _find_times(tuned: TuningResult) -> MeanCall | None:
    """Return what the regions of the chosen plan took within calls, where that was measured."""
    winner = tuned.race.winner
    if winner is None or winner.plan != tuned.plan or len(winner.regions) != len(tuned.plan.launches) or not winner.seconds:
        return None
    return MeanCall(tuned.race.rounds, winner.seconds, winner.regions)


def describe_costs(account: CostReport | None) -> dict[str, Any]:
    """Return what the parts of a chosen plan cost as tables, as predicted and as measured, and what would save time."""
    if account is None:
        return {"costs": [], "savings": []}
    took = "" if account.measured is None else f"; it took {seconds(account.measured)}"
    head = f"Predicted {_known(account.predicted)} for a call{took}"
    parts = [(x.name, x.engine, x.nodes, _known(x.predicted), x.source, _known(x.measured)) for x in account.parts]
    columns = {"region": "", "engine": "", "nodes": "number", "predicted": "number", "known": "", "took": "number"}
    boundaries = [(x.value, x.source, x.target, _known(x.seconds)) for x in account.boundaries]
    crossing = {"value": "", "from": "", "to": "", "costs": "number"}
    tables = [_bound(head, columns, parts), _bound("Boundaries", crossing, boundaries)]
    savings = [describe_missing_support(one) for one in account.unlocks[:SHOWN]]
    return {"costs": [table for table in tables if table[2]], "savings": savings}


def _known(value: float | None) -> str:
    return "unknown" if value is None else seconds(value)


def _bound(caption: str, columns: dict[str, str], rows: Sequence[tuple[object, ...]]) -> tuple[str, dict[str, str], Any]:
    return f"{caption} (the first {SHOWN} of {len(rows)})" if len(rows) > SHOWN else caption, columns, rows[:SHOWN]
