"""The bars: a candidate's time per call with its interval, quickest first, all to one scale that begins at nothing."""

from __future__ import annotations

from collections.abc import Sequence

from xrt.bench.figures import Interval
from xrt.bench.html.markup import Markup, tag
from xrt.bench.html.wording import seconds_within, times_within
from xrt.bench.report import Row

__all__ = ["VERDICTS", "bars"]

LONGEST = 4
"""A bar that is this many times as long as the shortest is cut there, or the others would be too short to compare."""
ROOM = 1.08
"""Behind the longest bar, for the end of its interval."""
VERDICTS = {"best": "the quickest", "tie": "a tie", "slower": "slower", "wrong": "wrong", "failed": "failed"}


def bars(rows: Sequence[Row]) -> Markup:
    """Return the chart of the rows that ran and agree; each bar's figures stand beside it as text."""
    most = _scale(rows)
    return tag("ul", *(_item(row, most) for row in rows), class_="bars")


def _scale(rows: Sequence[Row]) -> float:
    """Return the seconds at the right end."""
    medians = [row.median_seconds or 0.0 for row in rows]
    limit = LONGEST * min(medians)
    ends = [row.interval.high if row.interval else median for row, median in zip(rows, medians, strict=True)]
    return min(limit, ROOM * max(ends)) if max(medians) <= limit else limit


def _item(row: Row, most: float) -> Markup:
    median = row.median_seconds or 0.0
    ratio = "" if row.verdict == "best" else f", {times_within(row.to_best)} × the quickest"
    cut = " (the bar is cut)" if median > most else ""
    figure = f"{seconds_within(median, row.interval)}{ratio}{cut}"
    return tag(
        "li",
        tag("span", str(row.candidate), class_="name"),
        tag("span", VERDICTS[row.verdict], class_=f"verdict {row.verdict}"),
        _bar(median, row.interval, most, row.verdict),
        tag("span", figure, class_="figure"),
    )


def _bar(median: float, interval: Interval | None, most: float, verdict: str) -> Markup:
    """Return the bar as a drawing without words: whoever cannot see it has the figure behind it."""
    length = tag("rect", class_=f"bar {verdict}", x=0, y=4, width=_share(median, most), height=14, data_seconds=median)
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
