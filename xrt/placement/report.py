"""Render results for a reader: the costs of a plan by region, its precision, and a search, as text or as HTML."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from xrt.formats.placement_file import VERDICTS
from xrt.html import views
from xrt.measure.statistics import Interval
from xrt.partition.plan import describe_plan
from xrt.placement import predict_cost
from xrt.placement.search import format_seconds

if TYPE_CHECKING:
    from xrt.formats.placement_file import AttemptRecord, CandidateRecord, PrecisionRecord
    from xrt.graph import Function
    from xrt.partition import Plan
    from xrt.partition.cost_table import CostTable
    from xrt.placement.result import TuningResult
    from xrt.placement.search import RegionPrediction

MAX_LISTED_REGIONS = 8


@dataclass(frozen=True, slots=True)
class CostReport:
    """The costs of a chosen plan by region. Prints as text."""

    predicted: float | None
    """Predicted seconds per call; None without measurements."""
    measured: float | None
    """Seconds per call in the race; None if it was not raced."""
    parts: tuple[RegionPrediction, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        lines = []
        if self.predicted is not None:
            took = "" if self.measured is None else f"; it took {format_seconds(self.measured)}"
            lines.append(f"predicted {format_seconds(self.predicted)} for a call{took}:")
        lines += [f"  {part}" for part in self.parts[:MAX_LISTED_REGIONS]]
        if len(self.parts) > MAX_LISTED_REGIONS:
            lines.append(f"  and {len(self.parts) - MAX_LISTED_REGIONS} more regions")
        return "\n".join(lines)


def make_report(plan: Plan, tuned: TuningResult, function: Function, table: CostTable) -> CostReport:
    """Report the costs of ``plan`` by region; if ``table`` is empty, only its time in the race of ``tuned``."""
    winner = tuned.record.winner
    # The time in a lock was measured elsewhere.
    seconds = winner.seconds if winner and tuned.how != "locked" else None
    if not table.regions:
        return CostReport(None, seconds)
    cost = predict_cost(function, plan, table)
    times: Sequence[float | None] = winner.regions if winner and winner.plan == plan else ()
    if len(cost.regions) == 1:
        times = [seconds]  # a single region took as long as the call
    elif len(times) != len(cost.regions):
        # The plan has changed since the race, such as by fetched values.
        times = [None] * len(cost.regions)
    parts = tuple(replace(region, measured=measured) for region, measured in zip(cost.regions, times, strict=True))
    return CostReport(cost.seconds if math.isfinite(cost.seconds) else None, seconds, parts)


MEASURES = {"relative": "relative error", "cosine": "cosine distance", "top1": "share of other answers"}
"""Display names of the built-in error measures; any other measure is a metric of the caller."""
MAX_EXACT_NODES = 16
"""Maximum nodes that stay in float32 that the text lists for the chosen plan."""
MAX_EXACT_NAMES = 4
"""Maximum nodes that stay in float32 that the line of another plan lists."""


def format_error(error: float | None, measure: str) -> str:
    """Format an error: of a built-in measure in per cent, of a metric of the caller as a number.

    >>> format_error(0.0123, "relative"), format_error(0.005, "accuracy")
    ('1.23%', '0.005')
    """
    if error is None or math.isinf(error):
        return "unknown"
    return f"{100 * error:.3g}%" if measure in MEASURES else f"{error:.4g}"


def describe_budget(measure: str, limit: float) -> str:
    return f"{MEASURES.get(measure, f'loss of {measure}')} at most {format_error(limit, measure)}"


def describe_precision(record: PrecisionRecord) -> Iterator[str]:
    """Yield the lines that describe a precision: the error, the regions, nodes that stay in float32 with reasons, and notes."""
    data = f"measured on {record.items} items"
    if record.calibrated:
        data += f", calibrated on {record.calibrated} others"
    budget = describe_budget(record.measure, record.limit)
    if record.precision == "fp32":
        yield f"precision: fp32, which no plan of reduced precision has beaten within {budget}; {data}"
    else:
        yield f"precision: {record.precision}, {_describe_error(record)} of {budget}; {data}"
    yield from (f"  {region.region} on {region.engine} in {region.precision}" for region in record.regions)
    for node in record.exact_nodes[:MAX_EXACT_NODES]:
        error = f", {format_error(node.error, 'relative')} alone" if node.error is not None else ""
        yield f"  {node.name} ({node.op}) stays in fp32: {node.why}{error}"
    if len(record.exact_nodes) > MAX_EXACT_NODES:
        yield f"  and {len(record.exact_nodes) - MAX_EXACT_NODES} more nodes stay in fp32"
    for plan in record.plans:
        # Plans that only lost by time are in the comparison of the race.
        if plan.outcome in ("over", "wrong", "failed") or (plan.exact_count and plan.outcome != "won"):
            yield f"  {_describe_reduced_plan(plan, record.measure)}"
    yield from (f"  {note}" for note in record.notes)


def _describe_reduced_plan(plan: AttemptRecord, measure: str) -> str:
    outcome = "over the budget" if plan.outcome == "over" else plan.outcome
    parts = [f"{outcome}: {plan.precision} on {plan.plan}"]
    if plan.exact_count:
        names = ", ".join(plan.nodes[:MAX_EXACT_NAMES])
        if plan.exact_count > MAX_EXACT_NAMES:
            names += ", ..."
        parts.append(f"{views.format_count(plan.exact_count, 'node')} in fp32 ({names})")
    if plan.error is not None and plan.outcome not in ("wrong", "failed"):
        high = "" if plan.high is None else f" (up to {format_error(plan.high, measure)})"
        parts.append(f"error {format_error(plan.error, measure)}{high}")
    if plan.note:
        parts.append(plan.note)
    return ", ".join(parts)


def _describe_error(record: PrecisionRecord) -> str:
    parts = [format_error(record.error, record.measure)]
    if record.high is not None:
        parts.append(f"up to {format_error(record.high, record.measure)} with 95 % confidence")
    if record.worst is not None:
        parts.append(f"the worst item has {format_error(record.worst, record.measure)}")
    return f"{parts[0]} ({'; '.join(parts[1:])})" if parts[1:] else parts[0]


def list_pareto_plans(record: PrecisionRecord) -> list[tuple[AttemptRecord, bool]]:
    """List (plan, is_best) of the timed plans, fastest first. A plan is best if all faster plans have a larger error."""
    timed = sorted((x for x in record.plans if x.seconds is not None), key=lambda x: (x.seconds, x.error or 0.0))
    rows, lowest_error = [], math.inf
    for plan in timed:
        error = plan.error or 0.0
        rows.append((plan, error < lowest_error))
        lowest_error = min(lowest_error, error)
    return rows


def describe_errors(record: PrecisionRecord | None) -> dict[str, Any]:
    """Make the HTML template's data for a precision record: its lines, and a table of all plans."""
    if record is None:
        return {"precision": None}
    # By identity: two plans may have equal figures.
    best = {id(plan) for plan, is_best in list_pareto_plans(record) if is_best}
    rows = [
        (
            plan.precision,
            plan.plan,
            "best" if id(plan) in best else plan.outcome,
            plan.exact_count or "",
            "" if plan.outcome in ("wrong", "failed") else format_error(plan.error, record.measure),
            "" if plan.seconds is None else views.format_seconds(plan.seconds),
            plan.note,
        )
        for plan in record.plans
    ]
    return {"precision": {"rows": rows, "lines": list(describe_precision(record))}}


def render_tuning_result(tuned: TuningResult) -> str:
    return views.render_cell("tuning_result.html", **_describe_result(tuned))


def render_tuning_page(tuned: TuningResult, model: str) -> str:
    result = _describe_result(tuned)
    return views.render_page("tuning_page.html", f"{model}: {result['title']}", result=result)


def _describe_result(tuned: TuningResult) -> dict[str, Any]:
    """Make the template's data for a result: candidates as bars and as a table, the precision, and the plan with its times."""
    record, winner = tuned.record, tuned.record.winner
    head, *_ = str(tuned).splitlines()
    times = None
    if winner is not None and winner.plan == tuned.plan and len(winner.regions) == len(tuned.plan.launches) and winner.seconds:
        times = views.MeanCall(record.rounds, winner.seconds, winner.regions)
    return {
        "title": f"{head[:1].upper()}{head[1:]}",
        "tuned": tuned,
        "bars": views.make_bars([_make_bar(candidate) for candidate in record.candidates if candidate.seconds]),
        "candidates": list(map(_describe_candidate, record.candidates)),
        **describe_errors(record.precision),
        **describe_plan(tuned.plan, tuned.plan.reasons, times),
    }


def _make_bar(candidate: CandidateRecord[Plan]) -> views.Bar:
    interval = None if candidate.low is None or candidate.high is None else Interval(candidate.low, candidate.high)
    verdict = VERDICTS[candidate.verdict]
    return views.Bar(candidate.title, verdict, verdict, candidate.seconds or 0.0, interval, candidate.note)


def _describe_candidate(candidate: CandidateRecord[Plan]) -> tuple[object, ...]:
    notes = ["the best single engine"] if candidate.is_baseline else []
    if candidate.note:
        notes.append(candidate.note)
    verdict = VERDICTS[candidate.verdict]
    ratio = views.format_ratio_interval(candidate.ratio_interval)
    if candidate.ratio is not None and candidate.ratio_interval is None:  # too few rounds for an interval
        ratio = views.format_ratio(candidate.ratio)
    took = "" if candidate.seconds is None else views.format_seconds(candidate.seconds)
    regions = len(candidate.plan.launches)
    return candidate.title, {"text": verdict, "verdict": verdict}, regions, took, ratio, "; ".join(notes)


MAX_COST_ROWS = 12


def describe_costs(report: CostReport | None) -> dict[str, Any]:
    """Make the template's data for a plan's costs: a table of its regions, or no table without a report."""

    def show(value: float | None) -> str:
        return "unknown" if value is None else views.format_seconds(value)

    if report is None or not report.parts:
        return {"costs": []}
    caption = f"Predicted {show(report.predicted)} for a call"
    if report.measured is not None:
        caption += f"; it took {views.format_seconds(report.measured)}"
    if len(report.parts) > MAX_COST_ROWS:
        caption += f" (the first {MAX_COST_ROWS} of {len(report.parts)})"
    rows = [(x.name, x.engine, x.nodes, show(x.predicted), x.source, show(x.measured)) for x in report.parts[:MAX_COST_ROWS]]
    columns = {"region": "", "engine": "", "nodes": "number", "predicted": "number", "known": "", "took": "number"}
    return {"costs": [(caption, columns, rows)]}
