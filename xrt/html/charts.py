"""Bars and timelines as facts: a candidate's time with its interval, and where the time of one call goes, all to one scale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from xrt.html.formatting import format_count, format_seconds_interval, percent, seconds
from xrt.html.regions import CallTimes, RegionTimes
from xrt.measure.statistics import Interval

__all__ = ["Bar", "Strip", "list_operators", "list_region_times", "make_bars", "make_strips"]

LONGEST = 4
"""A bar or strip that is this many times as long as the shortest is cut there, or the others would be too short to compare."""
ROOM = 1.08
"""Behind the longest bar, for the end of its interval."""
THIN = 0.004
"""Share of the scale under which a region is drawn together with its neighbors."""
SHOWN = 12
"""Regions that the table lists; the others are summed up."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A candidate's time of a call."""

    name: str
    kind: str
    """``fastest``, ``chosen`` and ``tie`` stand out; ``slower``, ``wrong`` and ``failed`` do not."""
    verdict: str
    """The kind in words."""
    seconds: float
    interval: Interval | None = None
    note: str = ""
    """Said behind the time, such as the ratio to the fastest."""


def make_bars(rows: Sequence[Bar]) -> list[dict[str, Any]]:
    """Return the bars, to one scale that begins at nothing."""
    medians = [row.seconds for row in rows]
    limit = LONGEST * min(medians, default=0.0)
    ends = [row.interval.high if row.interval else row.seconds for row in rows]
    most = (min(limit, ROOM * max(ends)) if max(medians, default=0.0) <= limit else limit) if rows else 1.0
    return [_make_bar(row, most or 1.0) for row in rows]


def _make_bar(row: Bar, most: float) -> dict[str, Any]:
    is_cut = row.seconds > most
    ends = [_share(end, most) for end in (row.interval.low, row.interval.high)] if row.interval else []
    note, cut = f", {row.note}" if row.note else "", " (the bar is cut)" if is_cut else ""
    figure = f"{format_seconds_interval(row.seconds, row.interval)}{note}{cut}"
    shown = {"name": row.name, "kind": row.kind, "verdict": row.verdict, "seconds": row.seconds}
    return {**shown, "width": _share(row.seconds, most), "is_cut": is_cut, "ends": ends, "figure": figure}


def _share(value: float, most: float) -> str:
    return f"{100 * min(value / most, 1.0):.3f}%"


# ---------------------------------------------------------------------- timelines


@dataclass(frozen=True, slots=True)
class Strip:
    """A plan of which one call was timed, region by region."""

    name: str
    plan: Sequence[RegionTimes]
    timeline: CallTimes


def make_strips(timed: Sequence[Strip], colors: Mapping[str, str]) -> dict[str, Any]:
    """Return the strips, and the seconds at the right end of their scale."""
    whole = [max(one.timeline.seconds, sum(one.timeline.regions)) for one in timed]
    most = min(max(whole), LONGEST * min(whole))
    return {"seconds": most, "strips": [_make_strip(one, most, colors) for one in timed]}


def _make_strip(one: Strip, most: float, colors: Mapping[str, str]) -> dict[str, Any]:
    taken = one.timeline.seconds
    own = percent(one.timeline.rest / taken) if taken else "0 %"
    cut = " (the strip is cut)" if taken > most else ""
    spans = [
        {
            "x": _share(start, most),
            "width": _share(min(length, most - start), most),
            "color": colors[engine],
            "title": f"{name} on {engine}: {seconds(length)}, from {seconds(start)}",
        }
        for engine, name, start, length in _find_spans(one.plan, one.timeline, most)
        if start < most
    ]
    figure = f"{format_count(len(one.plan), 'region')}, {seconds(taken)} a call, of it {own} outside of the regions{cut}"
    return {"name": one.name, "spans": spans, "figure": figure}


def _find_spans(plan: Sequence[RegionTimes], timeline: CallTimes, most: float) -> Iterator[tuple[str, str, float, float]]:
    """Yield engine, name, start and seconds of what is drawn as one: a region, or neighbors on one engine that are too thin."""
    timed = list(zip(plan, timeline.starts, timeline.regions, strict=False))
    for (engine, thin), group in groupby(timed, lambda one: (one[0].engine, one[2] < THIN * most)):
        members = list(group)
        if thin:
            yield engine, format_count(len(members), "region"), members[0][1], sum(length for _, _, length in members)
        else:
            yield from ((engine, region.name, start, length) for region, start, length in members)


def list_region_times(plan: Sequence[RegionTimes], timeline: CallTimes, colors: Mapping[str, str]) -> list[tuple[Any, ...]]:
    """Return the regions of a plan in the order in which they run, of many only those that take longest; and XRT's own work."""
    longest = sorted(sorted(range(len(plan)), key=lambda index: -timeline.regions[index])[:SHOWN])
    rows: list[tuple[Any, ...]] = []
    for index in longest:
        region, engine = plan[index], {"text": plan[index].engine, "color": colors[plan[index].engine]}
        rows.append(
            (
                region.name,
                engine,
                seconds(timeline.starts[index]),
                *_measure(timeline.regions[index], timeline),
                list_operators(region),
            )
        )
    if len(plan) > len(longest):
        left = sum(timeline.regions) - sum(timeline.regions[index] for index in longest)
        rows.append((format_count(len(plan) - len(longest), "other region"), "", "", *_measure(left, timeline), ""))
    return [*rows, ("outside of the regions", "", "", *_measure(timeline.rest, timeline), "")]


def _measure(length: float, timeline: CallTimes) -> tuple[str, str]:
    return seconds(length), percent(length / timeline.seconds if timeline.seconds else 0.0)


def list_operators(region: RegionTimes, most: int = 4) -> str:
    """Return a region's operators, most frequent first: ``Conv ×3, Relu, 2 others``."""
    named = [f"{op} ×{number}" if number > 1 else op for op, number in region.operators[:most]]
    left = len(region.operators) - most
    return ", ".join([*named, *([format_count(left, "other kind")] if left > 0 else [])])
