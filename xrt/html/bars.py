"""The bars: a candidate's time per call with its interval, quickest first, all to one scale that begins at nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xrt.html.formatting import format_seconds_interval
from xrt.html.markup import Markup, tag
from xrt.measure.ratios import Interval

__all__ = ["Bar", "bars"]

LONGEST = 4
"""A bar that is this many times as long as the shortest is cut there, or the others would be too short to compare."""
ROOM = 1.08
"""Behind the longest bar, for the end of its interval."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A candidate's time of a call."""

    name: str
    kind: str
    """``best`` and ``tie`` stand out; ``slower``, ``wrong`` and ``failed`` do not."""
    verdict: str
    """The kind in words."""
    seconds: float
    interval: Interval | None = None
    note: str = ""
    """Said behind the time, such as the ratio to the quickest."""


def bars(rows: Sequence[Bar]) -> Markup:
    """Return the chart; each bar's figures stand behind it as text."""
    most = _scale(rows)
    return tag("ul", *(_item(row, most) for row in rows), class_="bars")


def _scale(rows: Sequence[Bar]) -> float:
    """Return the seconds at the right end."""
    medians = [row.seconds for row in rows]
    limit = LONGEST * min(medians)
    ends = [row.interval.high if row.interval else row.seconds for row in rows]
    return (min(limit, ROOM * max(ends)) if max(medians) <= limit else limit) or 1.0


def _item(row: Bar, most: float) -> Markup:
    cut = " (the bar is cut)" if row.seconds > most else ""
    figure = f"{format_seconds_interval(row.seconds, row.interval)}{f', {row.note}' if row.note else ''}{cut}"
    return tag(
        "li",
        tag("span", row.name, class_="name"),
        tag("span", row.verdict, class_=f"verdict {row.kind}"),
        _bar(row.seconds, row.interval, most, row.kind),
        tag("span", figure, class_="figure"),
    )


def _bar(median: float, interval: Interval | None, most: float, kind: str) -> Markup:
    """Return the bar as a drawing without words: a reader who cannot see it has the figure after it."""
    length = tag("rect", class_=f"bar {kind}", x=0, y=4, width=_share(median, most), height=14, data_seconds=median)
    parts = [length, *([_cut()] if median > most else _whisker(interval, most) if interval else [])]
    return tag("svg", *parts, width="100%", height=22, aria_hidden="true", focusable="false")


def _whisker(interval: Interval, most: float) -> list[Markup]:
    low, high = _share(interval.low, most), _share(interval.high, most)
    caps = [tag("line", class_="whisker", x1=end, x2=end, y1=7, y2=15) for end in (low, high)]
    return [tag("line", class_="whisker interval", x1=low, x2=high, y1=11, y2=11), *caps]


def _cut() -> Markup:
    """Return the gap that says: it goes on."""
    return tag("rect", class_="gap", x="96%", y=2, width="1%", height=18)


def _share(value: float, most: float) -> str:
    return f"{100 * min(value / most, 1.0):.3f}%"
