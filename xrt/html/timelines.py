"""The timelines: where the time of one call goes, region by region, the candidates to one scale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from xrt.html.formatting import format_count, percent, seconds
from xrt.html.markup import Markup, tag
from xrt.html.regions import CallTimes, RegionTimes

__all__ = ["Strip", "operators", "region_table", "strips"]

THIN = 0.004
"""Share of the scale under which a region is drawn together with its neighbours."""
SHOWN = 12
"""Regions that the table lists; the others are summed up."""
LONGEST = 4
"""A call that is this many times as long as the shortest is cut there."""


@dataclass(frozen=True, slots=True)
class Strip:
    """A plan of which one call was timed, region by region."""

    name: str
    plan: Sequence[RegionTimes]
    timeline: CallTimes


def strips(timed: Sequence[Strip], colours: Mapping[str, str]) -> Markup:
    """Return the strips, and the scale that they share."""
    whole = [max(one.timeline.seconds, sum(one.timeline.regions)) for one in timed]
    most = min(max(whole), LONGEST * min(whole))
    items = [_strip(one, most, colours) for one in timed]
    ends = tag("li", tag("span", "0"), tag("span", seconds(most / 2)), tag("span", seconds(most)), class_="axis")
    return tag("ul", *items, ends, class_="strips")


def _strip(one: Strip, most: float, colours: Mapping[str, str]) -> Markup:
    plan, timeline = one.plan, one.timeline
    spans = list(_spans(plan, timeline, most))
    told = f"{format_count(len(plan), 'region')}, {seconds(timeline.seconds)} a call, of it {_beside(timeline)}"
    cut = " (the strip is cut)" if timeline.seconds > most else ""
    drawn = [_segment(span, most, colours) for span in spans if span.start < most]
    return tag(
        "li",
        tag("span", one.name, class_="name"),
        tag("svg", *drawn, width="100%", height=26, aria_hidden="true", focusable="false"),
        tag("span", told + cut, class_="figure"),
    )


def _beside(timeline: CallTimes) -> str:
    return f"{percent(timeline.rest / timeline.seconds) if timeline.seconds else '0 %'} beside the regions"


@dataclass(frozen=True, slots=True)
class _Span:
    """What is drawn as one: a region, or neighbours on one engine that would be too thin alone."""

    engine: str
    name: str
    start: float
    seconds: float


def _spans(plan: Sequence[RegionTimes], timeline: CallTimes, most: float) -> Iterator[_Span]:
    timed = list(zip(plan, timeline.starts, timeline.regions, strict=False))
    for (engine, thin), group in groupby(timed, lambda one: (one[0].engine, one[2] < THIN * most)):
        members = list(group)
        if thin:
            yield _Span(engine, format_count(len(members), "region"), members[0][1], sum(length for _, _, length in members))
        else:
            yield from (_Span(engine, region.name, start, length) for region, start, length in members)


def _segment(span: _Span, most: float, colours: Mapping[str, str]) -> Markup:
    title = tag("title", f"{span.name} on {span.engine}: {seconds(span.seconds)}, from {seconds(span.start)}")
    length = min(span.seconds, most - span.start)
    place = {"x": f"{100 * span.start / most:.3f}%", "width": f"{100 * length / most:.3f}%"}
    return tag(
        "svg", title, tag("rect", width="100%", height=22, class_=f"segment {colours[span.engine]}"), y=2, height=22, **place
    )


# ---------------------------------------------------------------------- as a table


def region_table(name: str, plan: Sequence[RegionTimes], timeline: CallTimes | None, colours: Mapping[str, str]) -> Markup:
    """Return the regions of a plan in the order in which they run; of many only those that take longest."""
    if timeline is None:
        return tag("p", "Its regions were not timed.")
    longest = sorted(range(len(plan)), key=lambda index: -timeline.regions[index])[:SHOWN]
    heads = [tag("th", head, scope="col", class_=kind) for head, kind in HEADS]
    body = [_line(index, plan[index], timeline, colours) for index in sorted(longest)]
    left = sum(timeline.regions) - sum(timeline.regions[index] for index in longest)
    more = format_count(len(plan) - len(longest), "other region")
    rest = [_sum(more, left, timeline)] if len(plan) > len(longest) else []
    own = _sum("beside the regions", timeline.rest, timeline)
    caption = tag("caption", f"{name}: one call, mean of {format_count(timeline.calls, 'call')}")
    return tag("table", caption, tag("thead", tag("tr", *heads)), tag("tbody", *body, *rest, own))


HEADS = (("region", ""), ("engine", ""), ("begins at", "number"), ("takes", "number"), ("share", "number"), ("operators", ""))


def _line(index: int, region: RegionTimes, timeline: CallTimes, colours: Mapping[str, str]) -> Markup:
    key = tag("span", class_=f"key {colours[region.engine]}", aria_hidden="true")
    length = timeline.regions[index]
    return tag(
        "tr",
        tag("th", region.name, scope="row"),
        tag("td", key, region.engine),
        tag("td", seconds(timeline.starts[index]), class_="number"),
        tag("td", seconds(length), class_="number"),
        tag("td", percent(length / timeline.seconds if timeline.seconds else 0.0), class_="number"),
        tag("td", operators(region)),
    )


def _sum(what: str, length: float, timeline: CallTimes) -> Markup:
    cells = [
        tag("td", figure, class_="number")
        for figure in (seconds(length), percent(length / timeline.seconds if timeline.seconds else 0.0))
    ]
    return tag("tr", tag("th", what, scope="row"), tag("td"), tag("td"), *cells, tag("td"))


def operators(region: RegionTimes, most: int = 4) -> str:
    """Return a region's operators, most frequent first: ``Conv ×3, Relu, 2 others``."""
    named = [f"{op} ×{count}" if count > 1 else op for op, count in region.operators[:most]]
    left = len(region.operators) - most
    return ", ".join([*named, *([format_count(left, "other kind")] if left > 0 else [])])
