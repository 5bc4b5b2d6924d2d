"""Error against time of the plans within an error budget, as a drawing and a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xrt.html.formatting import seconds
from xrt.placement.precision_report import describe_precision, format_error, list_pareto_plans

if TYPE_CHECKING:
    from xrt.formats.precision_record import PrecisionRecord

__all__ = ["describe_errors"]

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
