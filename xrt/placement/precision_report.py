"""What a placement within an error budget is computed in, as lines of text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xrt.formats.precision_record import LoweredPlanRecord, PrecisionRecord

__all__ = ["MEASURES", "describe_lowered_plan", "describe_precision", "format_error", "list_pareto_plans"]

MEASURES = {"relative": "relative error", "cosine": "cosine distance", "top1": "share of other answers"}
"""What the measures of XRT are called; any other is a metric of the caller's."""
SHOWN, SHOWN_SHORT = 16, 4
"""Nodes in float32 that the text names: of the chosen plan, and of any other."""


def format_error(error: float | None, measure: str) -> str:
    """Return an error as a person reads it: a share in per cent, the loss of a metric as a number.

    >>> format_error(0.0123, "relative"), format_error(0.005, "accuracy")
    ('1.23%', '0.005')
    """
    if error is None or math.isinf(error):
        return "unknown"
    return f"{100 * error:.3g}%" if measure in MEASURES else f"{error:.4g}"


def describe_budget(record: PrecisionRecord) -> str:
    """Return the budget: what is measured, and how large it may be."""
    what = MEASURES.get(record.measure, f"loss of {record.measure}")
    return f"{what} at most {format_error(record.limit, record.measure)}"


def describe_precision(record: PrecisionRecord) -> Iterator[str]:
    """Yield the precision and the measured error; the regions; the nodes in float32 with their reasons; and remarks."""
    data = f"measured on {record.items} items" + (f", calibrated on {record.calibrated} others" if record.calibrated else "")
    budget = describe_budget(record)
    if record.precision == "fp32":
        yield f"precision: fp32, which no plan of lower precision has beaten within {budget}; {data}"
    else:
        yield f"precision: {record.precision}, {_describe_error(record)} of {budget}; {data}"
    for region in record.regions:
        gained = "" if region.gained is None else f", {1e3 * region.gained:.4g} ms less than in fp32"
        share = f", {region.share:.0%} of the error" if region.share else ""
        yield f"  {region.region} on {region.engine} in {region.precision}{share}{gained}"
    for one in record.kept[:SHOWN]:
        error = f", {format_error(one.error, 'relative')} alone" if one.error is not None else ""
        yield f"  {one.name} ({one.op}) stays in fp32: {one.why}{error}"
    if len(record.kept) > SHOWN:
        yield f"  and {len(record.kept) - SHOWN} more nodes stay in fp32"
    for plan in record.plans:
        if plan.outcome in ("over", "wrong", "failed") or (plan.kept and plan.outcome != "won"):
            yield f"  {describe_lowered_plan(plan, record.measure)}"
    yield from (f"  {note}" for note in record.notes)


def describe_lowered_plan(plan: LoweredPlanRecord, measure: str) -> str:
    """Return what came of a plan."""
    outcome = "over the budget" if plan.outcome == "over" else plan.outcome
    parts = [f"{outcome}: {plan.precision} on {plan.plan}"]
    if plan.kept:
        named = ", ".join(plan.nodes[:SHOWN_SHORT]) + (", ..." if plan.kept > SHOWN_SHORT else "")
        parts.append(f"{plan.kept} node{'s' * (plan.kept != 1)} in fp32 ({named})")
    if plan.error is not None and plan.outcome not in ("wrong", "failed"):
        parts.append(_describe_error_of(plan, measure))
    return ", ".join([*parts, *([plan.note] if plan.note else [])])


def _describe_error(record: PrecisionRecord) -> str:
    parts = [format_error(record.error, record.measure)]
    if record.high is not None:
        parts.append(f"up to {format_error(record.high, record.measure)} with 95 % confidence")
    if record.worst is not None:
        parts.append(f"the worst item has {format_error(record.worst, record.measure)}")
    return f"{parts[0]} ({'; '.join(parts[1:])})" if parts[1:] else parts[0]


def _describe_error_of(plan: LoweredPlanRecord, measure: str) -> str:
    high = "" if plan.high is None else f" (up to {format_error(plan.high, measure)})"
    return f"error {format_error(plan.error, measure)}{high}"


def list_pareto_plans(record: PrecisionRecord) -> list[tuple[LoweredPlanRecord, bool]]:
    """Return the plans that were timed, fastest first, each with whether no other is both faster and as exact."""
    timed = sorted((one for one in record.plans if one.seconds is not None), key=lambda one: (one.seconds, one.error or 0.0))
    found, least = [], math.inf
    for one in timed:
        error = one.error or 0.0
        found.append((one, error < least))
        least = min(least, error)
    return found
