"""The cost report of a chosen plan: region costs, the other candidates, and operator support that would save time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from xrt.placement import MissingSupport, predict_cost, rank_missing_support
from xrt.placement.records import list_candidate_records
from xrt.placement.search import format_seconds

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.formats.placement_file import CandidateRecord, LoweredPlanRecord, PrecisionRecord
    from xrt.graph import Function
    from xrt.html.views import Bar, MeanCall
    from xrt.partition import Plan
    from xrt.partition.cost_table import CostTable
    from xrt.partition.support_matrix import DeviceMap
    from xrt.placement.result import CandidateResult, TuningResult
    from xrt.placement.search import RegionPrediction

SHOWN = 8
"""Maximum rows of one kind in the text; `to_dict` has all."""


@dataclass(frozen=True, slots=True)
class CostReport:
    """The costs of a chosen plan by region. Prints as text."""

    predicted: float | None
    """Predicted seconds per call; None without measurements."""
    measured: float | None
    """Seconds per call in the race; None if it was not raced."""
    parts: tuple[RegionPrediction, ...] = ()
    standings: tuple[CandidateRecord, ...] = ()
    unlocks: tuple[MissingSupport, ...] = ()
    """Operators whose support by an engine would save time, the largest saving first."""

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data; numbers that are not finite become None."""
        document: dict[str, Any] = _replace_nonfinite(asdict(self) | {"standings": [x.to_dict() for x in self.standings]})
        return document

    def __str__(self) -> str:
        return "\n".join(_format_lines(self))


def make_report(
    plan: Plan,
    tuned: TuningResult,
    function: Function,
    engines: Sequence[GraphCompiler],
    table: CostTable,
    device: str | DeviceMap = "cpu",
) -> CostReport:
    """Report the costs of a plan from the table; with an empty table, only the results of the race."""
    standings = list_candidate_records(tuned.race)
    seconds = tuned.race.winner.seconds if tuned.race.winner else None
    if not table.regions:
        return CostReport(None, seconds, standings=standings)
    cost = predict_cost(function, plan, table)
    times: Sequence[float | None] = tuned.race.winner.regions if tuned.race.winner and tuned.race.winner.plan == plan else ()
    if len(cost.regions) == 1:
        times = [seconds]  # a single region took as long as the call
    elif len(times) != len(cost.regions):
        times = [None] * len(cost.regions)
    parts = tuple(replace(region, measured=time) for region, time in zip(cost.regions, times, strict=True))
    total = cost.seconds if math.isfinite(cost.seconds) else None
    unlocks = rank_missing_support(function, engines, table, device=device)
    return CostReport(total, seconds, parts, standings, unlocks)


def _replace_nonfinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _replace_nonfinite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nonfinite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---------------------------------------------------------------------- as text


def _format_lines(account: CostReport) -> Iterator[str]:
    if account.predicted is not None:
        took = "" if account.measured is None else f"; it took {format_seconds(account.measured)}"
        yield f"predicted {format_seconds(account.predicted)} for a call{took}:"
    yield from _list_some([f"  {part}" for part in account.parts], "regions")
    if account.unlocks:
        yield "what would unlock the graph, by the prediction:"
    yield from _list_some([f"  {describe_missing_support(gap)}" for gap in account.unlocks], "operators")


def describe_missing_support(gap: MissingSupport) -> str:
    """Describe the time that an engine's support of an operator would save."""
    return f"{gap.operator} on {gap.engine} ({gap.nodes} node{'s' * (gap.nodes != 1)}): {format_seconds(gap.seconds)} less"


def _list_some(lines: Sequence[str], what: str) -> Iterator[str]:
    yield from lines[:SHOWN]
    if len(lines) > SHOWN:
        yield f"  and {len(lines) - SHOWN} more {what}"


MEASURES = {"relative": "relative error", "cosine": "cosine distance", "top1": "share of other answers"}
"""Display names of the built-in error measures; any other is the caller's metric."""
PLANS_SHOWN, SHOWN_SHORT = 16, 4
"""Maximum float32 nodes named in the text: of the chosen plan, and of any other."""


def format_error(error: float | None, measure: str) -> str:
    """Format an error: a share in per cent, the loss of a metric as a number.

    >>> format_error(0.0123, "relative"), format_error(0.005, "accuracy")
    ('1.23%', '0.005')
    """
    if error is None or math.isinf(error):
        return "unknown"
    return f"{100 * error:.3g}%" if measure in MEASURES else f"{error:.4g}"


def describe_budget(record: PrecisionRecord) -> str:
    """Describe the error budget: the measure and its limit."""
    measure = MEASURES.get(record.measure, f"loss of {record.measure}")
    return f"{measure} at most {format_error(record.limit, record.measure)}"


def describe_precision(record: PrecisionRecord) -> Iterator[str]:
    """Yield lines on the precision and the measured error, the regions, the float32 nodes with reasons, and remarks."""
    data = f"measured on {record.items} items" + (f", calibrated on {record.calibrated} others" if record.calibrated else "")
    budget = describe_budget(record)
    if record.precision == "fp32":
        yield f"precision: fp32, which no plan of lower precision has beaten within {budget}; {data}"
    else:
        yield f"precision: {record.precision}, {_describe_error(record)} of {budget}; {data}"
    for region in record.regions:
        yield f"  {region.region} on {region.engine} in {region.precision}"
    for node in record.exact_nodes[:PLANS_SHOWN]:
        error = f", {format_error(node.error, 'relative')} alone" if node.error is not None else ""
        yield f"  {node.name} ({node.op}) stays in fp32: {node.why}{error}"
    if len(record.exact_nodes) > PLANS_SHOWN:
        yield f"  and {len(record.exact_nodes) - PLANS_SHOWN} more nodes stay in fp32"
    for plan in record.plans:
        if plan.outcome in ("over", "wrong", "failed") or (plan.exact_count and plan.outcome != "won"):
            yield f"  {describe_lowered_plan(plan, record.measure)}"
    yield from (f"  {note}" for note in record.notes)


def describe_lowered_plan(plan: LoweredPlanRecord, measure: str) -> str:
    """Describe the outcome of a plan of lower precision."""
    outcome = "over the budget" if plan.outcome == "over" else plan.outcome
    parts = [f"{outcome}: {plan.precision} on {plan.plan}"]
    if plan.exact_count:
        names = ", ".join(plan.nodes[:SHOWN_SHORT]) + (", ..." if plan.exact_count > SHOWN_SHORT else "")
        parts.append(f"{plan.exact_count} node{'s' * (plan.exact_count != 1)} in fp32 ({names})")
    if plan.error is not None and plan.outcome not in ("wrong", "failed"):
        high = "" if plan.high is None else f" (up to {format_error(plan.high, measure)})"
        parts.append(f"error {format_error(plan.error, measure)}{high}")
    return ", ".join([*parts, *([plan.note] if plan.note else [])])


def _describe_error(record: PrecisionRecord) -> str:
    parts = [format_error(record.error, record.measure)]
    if record.high is not None:
        parts.append(f"up to {format_error(record.high, record.measure)} with 95 % confidence")
    if record.worst is not None:
        parts.append(f"the worst item has {format_error(record.worst, record.measure)}")
    return f"{parts[0]} ({'; '.join(parts[1:])})" if parts[1:] else parts[0]


def list_pareto_plans(record: PrecisionRecord) -> list[tuple[LoweredPlanRecord, bool]]:
    """List the timed plans, fastest first, each with whether it is on the Pareto front of time and error."""
    timed = sorted((x for x in record.plans if x.seconds is not None), key=lambda x: (x.seconds, x.error or 0.0))
    rows, least = [], math.inf
    for plan in timed:
        error = plan.error or 0.0
        rows.append((plan, error < least))
        least = min(least, error)
    return rows


# ---------------------------------------------------------------------- in a notebook


def describe_errors(record: PrecisionRecord | None) -> dict[str, Any]:
    """Template data of a precision record: its lines, and a table of all plans."""
    from xrt.html.views import seconds

    if record is None:
        return {"precision": None}
    best = {id(plan) for plan, is_best in list_pareto_plans(record) if is_best}
    rows = [
        (
            plan.precision,
            plan.plan,
            "best" if id(plan) in best else plan.outcome,
            plan.exact_count or "",
            "" if plan.outcome in ("wrong", "failed") else format_error(plan.error, record.measure),
            "" if plan.seconds is None else seconds(plan.seconds),
            plan.note,
        )
        for plan in record.plans
    ]
    return {"precision": {"rows": rows, "lines": list(describe_precision(record))}}


MOST_COSTS = 12
"""Maximum rows of a table of costs."""


def render_tuning_result(tuned: TuningResult) -> str:
    """Render a TuningResult as a notebook cell."""
    from xrt.html.views import render_cell

    return render_cell("tuning_result.html", title=_make_title(tuned), **_describe_result(tuned))


def render_tuning_page(tuned: TuningResult, model: str) -> str:
    """Render a TuningResult as a page."""
    from xrt.html.views import render_page

    result = {**_describe_result(tuned), "title": _make_title(tuned)}
    return render_page("tuning_page.html", f"{model}: {result['title']}", result=result)


def _make_title(tuned: TuningResult) -> str:
    head, *_ = str(tuned).splitlines()
    return f"{head[:1].upper()}{head[1:]}"


def _describe_result(tuned: TuningResult) -> dict[str, Any]:
    from xrt.html.views import make_bars
    from xrt.partition.plan import describe_plan

    return {
        "tuned": tuned,
        "bars": make_bars([_make_bar(result) for result in tuned.race.contenders if result.seconds]),
        "candidates": [_describe_candidate(result, tuned) for result in tuned.race.contenders],
        **describe_errors(tuned.precision),
        **describe_plan(tuned.plan, tuned.plan.reasons, _find_times(tuned)),
    }


def _make_bar(result: CandidateResult) -> Bar:
    from xrt.html.views import Bar
    from xrt.measure.statistics import Interval
    from xrt.placement.result import VERDICTS

    interval = None if result.low is None or result.high is None else Interval(result.low, result.high)
    return Bar(result.title, VERDICTS[result.verdict], VERDICTS[result.verdict], result.seconds or 0.0, interval, result.note)


def _describe_candidate(result: CandidateResult, tuned: TuningResult) -> tuple[object, ...]:
    from xrt.html.views import seconds
    from xrt.placement.result import VERDICTS

    baseline = tuned.race.baseline
    is_baseline = baseline is not None and tuned.race.contenders[baseline] is result
    note = "; ".join(filter(None, ("the best single engine" if is_baseline else "", result.note)))
    verdict = {"text": VERDICTS[result.verdict], "verdict": VERDICTS[result.verdict]}
    took = "" if result.seconds is None else seconds(result.seconds)
    return result.title, verdict, len(result.plan.launches), took, _format_ratio(result), note


def _format_ratio(result: CandidateResult) -> str:
    from xrt.html.views import format_ratio_interval, times
    from xrt.measure.statistics import RatioInterval

    if result.ratio is None or result.ratio_low is None or result.ratio_high is None:
        return "" if result.ratio is None else times(result.ratio)
    return format_ratio_interval(RatioInterval(result.ratio, result.ratio_low, result.ratio_high))


def _find_times(tuned: TuningResult) -> MeanCall | None:
    """The measured times of the chosen plan's regions, or None."""
    from xrt.html.views import MeanCall

    winner = tuned.race.winner
    if winner is None or winner.plan != tuned.plan or len(winner.regions) != len(tuned.plan.launches) or not winner.seconds:
        return None
    return MeanCall(tuned.race.rounds, winner.seconds, winner.regions)


def describe_costs(account: CostReport | None) -> dict[str, Any]:
    """Template data of a plan's costs: a table of its regions, and possible savings."""
    from xrt.html.views import seconds

    def show(value: float | None) -> str:
        return "unknown" if value is None else seconds(value)

    if account is None:
        return {"costs": [], "savings": []}
    caption = f"Predicted {show(account.predicted)} for a call"
    caption += "" if account.measured is None else f"; it took {seconds(account.measured)}"
    caption += f" (the first {MOST_COSTS} of {len(account.parts)})" if len(account.parts) > MOST_COSTS else ""
    rows = [(x.name, x.engine, x.nodes, show(x.predicted), x.source, show(x.measured)) for x in account.parts[:MOST_COSTS]]
    columns = {"region": "", "engine": "", "nodes": "number", "predicted": "number", "known": "", "took": "number"}
    savings = [describe_missing_support(gap) for gap in account.unlocks[:MOST_COSTS]]
    return {"costs": [(caption, columns, rows)] if rows else [], "savings": savings}
