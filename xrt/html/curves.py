"""Curves of latency over the rate of requests, as facts of a drawing with a line for the bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Curve", "draw_curves"]

WIDE, HIGH = 640, 260
"""Pixels of the drawing."""
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 36
"""Room around the curves, for the axes."""
ROOM = 1.15
"""Behind the largest number of an axis."""
TICKS = 4


@dataclass(frozen=True, slots=True)
class Curve:
    """The loads of a candidate."""

    name: str
    is_chosen: bool
    points: Sequence[tuple[float, float]]
    """Requests per second, and seconds that 99 of 100 did not exceed."""


def draw_curves(curves: Sequence[Curve], bound: float) -> dict[str, Any] | None:
    """Return the drawing; None where there is no point. A latency that is infinite, or far over the bound, is at the top."""
    rates = [rate for curve in curves for rate, _ in curve.points]
    seconds = [late for curve in curves for _, late in curve.points if not math.isinf(late)]
    if not rates:
        return None
    top = 2 * bound if not math.isinf(bound) else ROOM * max(seconds, default=1.0)
    right = ROOM * max(rates)
    drawn = [_draw(curve, right, top) for curve in sorted(curves, key=lambda curve: curve.is_chosen)]
    return {
        "width": WIDE,
        "height": HIGH,
        "left": LEFT,
        "right": WIDE - RIGHT,
        "bottom": HIGH - BOTTOM,
        "curves": drawn,
        "bound": None if math.isinf(bound) else round(_place_late(bound, top), 1),
        "across": [(round(_place_rate(tick, right), 1), f"{tick:.3g}") for tick in _list_ticks(right)],
        "up": [(round(_place_late(tick, top), 1), f"{1e3 * tick:.3g} ms") for tick in _list_ticks(top)],
        "description": f"Latency over the rate of requests, {len(drawn)} candidates. The table has the same in numbers.",
    }


def _draw(curve: Curve, right: float, top: float) -> dict[str, Any]:
    placed = [(_place_rate(rate, right), _place_late(late, top)) for rate, late in sorted(curve.points)]
    marks = [
        {
            "x": round(x, 1),
            "y": round(y, 1),
            "title": f"{curve.name}: {rate:.4g} requests/s, p99 {'no end' if math.isinf(late) else f'{1e3 * late:.3g} ms'}",
        }
        for (x, y), (rate, late) in zip(placed, sorted(curve.points), strict=True)
    ]
    path = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in placed)
    return {"name": curve.name, "path": path, "marks": marks, "is_chosen": curve.is_chosen}


def _place_rate(rate: float, right: float) -> float:
    return LEFT + (WIDE - LEFT - RIGHT) * rate / right


def _place_late(late: float, top: float) -> float:
    return TOP + (HIGH - TOP - BOTTOM) * (1 - min(late / top, 1.0))


def _list_ticks(most: float) -> list[float]:
    """Return round numbers below the end of an axis.

    >>> _list_ticks(11.5), _list_ticks(0.04)
    ([0, 5, 10], [0.0, 0.01, 0.02, 0.03, 0.04])
    """
    power = 10 ** math.floor(math.log10(most / TICKS))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power * TICKS >= 0.8 * most)
    return [number * step for number in range(int(most / step + 1e-9) + 1)]
