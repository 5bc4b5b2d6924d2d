"""The plan as a drawing: regions as boxes in their engines' colours, and what flows between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from xrt.bench.html.layers import Edge, Layout, layout
from xrt.bench.html.markup import Markup, tag
from xrt.bench.html.timelines import operators
from xrt.bench.html.wording import counted, listed, percent, seconds, size
from xrt.bench.protocol import Timeline
from xrt.bench.regions import INPUTS, Region

__all__ = ["MOST", "drawing"]

MOST = 16
"""Boxes of one drawing; a plan of more regions is drawn with several in a box."""

WIDE, HIGH, GAP, ROW = 216, 66, 20, 112
"""A box, the room between boxes beside each other, and from one row to the next; in pixels."""
EDGE = 2
"""Around it all."""
LINE = 30
"""Characters that a line in a box holds."""


@dataclass(frozen=True, slots=True)
class _Box:
    """What is drawn as one: the model's inputs or outputs, a region, or several that run one after the other."""

    lines: tuple[str, ...]
    colour: str = "end"
    told: str = ""
    """In full, for whoever points at it."""


def drawing(name: str, plan: Sequence[Region], timeline: Timeline | None, colours: Mapping[str, str]) -> Markup:
    """Return the drawing of a plan, with a description in words."""
    groups = _groups(len(plan))
    boxes = [
        _Box(("inputs",)),
        *(_box([plan[i] for i in group], _seconds(group, timeline), timeline, colours) for group in groups),
        _Box(("outputs",)),
    ]
    flows = _flows(plan, groups)
    laid = layout(len(boxes), list(flows))
    width, height = 2 * EDGE + laid.width * (WIDE + GAP) + WIDE, 2 * EDGE + (laid.height - 1) * ROW + HIGH
    return tag(
        "svg",
        *(_path(edge, count, laid) for edge, count in flows.items()),
        *(_shape(box, laid, index) for index, box in enumerate(boxes)),
        *(_label(edge, count, laid) for edge, count in flows.items() if count and _has_room(edge, flows)),
        role="img",
        aria_label=_described(name, plan, groups),
        class_="plan",
        width=round(width),
        height=round(height),
        viewBox=f"0 0 {round(width)} {round(height)}",
    )


def _described(name: str, plan: Sequence[Region], groups: Sequence[range]) -> str:
    engines = Counter(region.engine for region in plan)
    parts = listed([f"{count} on {engine}" for engine, count in engines.most_common()])
    grouped = f", drawn as {counted(len(groups), 'box')}es of neighbours" if len(groups) < len(plan) else ""
    return f"The plan of {name}: {counted(len(plan), 'region')}, {parts}{grouped}. The table of regions has the same in words."


# ---------------------------------------------------------------------- what is a box


def _groups(regions: int) -> list[range]:
    """Return the regions of each box: one, or of a large plan several that run one after the other, so that no cycle arises."""
    boxes = min(regions, MOST)
    bounds = [round(index * regions / boxes) for index in range(boxes + 1)] if boxes else []
    return [range(low, high) for low, high in pairwise(bounds)]


def _seconds(group: range, timeline: Timeline | None) -> float | None:
    return None if timeline is None else sum(timeline.regions[index] for index in group)


def _box(regions: Sequence[Region], taken: float | None, timeline: Timeline | None, colours: Mapping[str, str]) -> _Box:
    first, last = regions[0], regions[-1]
    engines = Counter(region.engine for region in regions)
    most = engines.most_common(1)[0][0]
    share = f", {percent(taken / timeline.seconds)}" if taken is not None and timeline and timeline.seconds else ""
    time = f"{seconds(taken)}{share}" if taken is not None else counted(sum(region.nodes for region in regions), "node")
    if first is last:
        return _Box((first.engine, operators(first), time), colours[most], f"{first.name}: {counted(first.nodes, 'node')}")
    what = listed([f"{count} on {engine}" for engine, count in engines.most_common()])
    return _Box((counted(len(regions), "region"), what, time), colours[most], f"{first.name} to {last.name}: {what}")


def _flows(plan: Sequence[Region], groups: Sequence[range]) -> dict[Edge, int]:
    """Return the bytes that flow along each edge between boxes; 0 where they are unknown, or only the order is kept."""
    box_of = {index: number for number, group in enumerate(groups, 1) for index in group} | {INPUTS: 0}
    flows: Counter[Edge] = Counter()
    for index, region in enumerate(plan):
        for reading in region.reads:
            flows[box_of[reading.source], box_of[index]] += reading.size or 0
        if region.is_output:
            flows[box_of[index], len(groups) + 1] += 0
    return {edge: count for edge, count in sorted(flows.items()) if edge[0] != edge[1]}


# ---------------------------------------------------------------------- what is drawn


def _middle(place: float) -> float:
    return EDGE + WIDE / 2 + place * (WIDE + GAP)


def _top(row: int) -> float:
    return EDGE + row * ROW


def _shape(box: _Box, laid: Layout, index: int) -> Markup:
    left, top = _middle(laid.places[index]) - WIDE / 2, _top(laid.rows[index])
    if box.colour == "end":
        return _end(box, left, top, is_first=index == 0)
    lines = [
        tag("text", _cut(line), x=left + 18, y=top + 21 + 18 * number, class_="strong" if number == 0 else None)
        for number, line in enumerate(box.lines)
    ]
    frame = tag("rect", x=left, y=top, width=WIDE, height=HIGH, rx=6, class_="box")
    stripe = tag("rect", x=left, y=top, width=8, height=HIGH, rx=3, class_=box.colour)
    return tag("g", tag("title", f"{box.told}; {'; '.join(box.lines)}"), frame, stripe, *lines)


def _end(box: _Box, left: float, top: float, *, is_first: bool) -> Markup:
    """Return a pill, at the foot of its row above everything and at the head of the last one."""
    y = top + (HIGH - PILL if is_first else 0)
    frame = tag("rect", x=left + WIDE / 4, y=y, width=WIDE / 2, height=PILL, rx=PILL / 2, class_="box")
    return tag("g", frame, tag("text", box.lines[0], x=left + WIDE / 2, y=y + 20, text_anchor="middle"))


PILL = 30


def _path(edge: Edge, count: int, laid: Layout) -> Markup:
    points = list(_points(edge, laid))
    steps = ["M{:.1f} {:.1f}".format(*points[0])]
    for (from_x, from_y), (to_x, to_y) in pairwise(points):
        half = (from_y + to_y) / 2
        steps.append(f"C{from_x:.1f} {half:.1f} {to_x:.1f} {half:.1f} {to_x:.1f} {to_y:.1f}")
    x, y = points[-1]
    head = tag("polygon", points=f"{x - 4:.1f},{y - 7:.1f} {x + 4:.1f},{y - 7:.1f} {x:.1f},{y:.1f}", class_="head")
    title = tag("title", size(count)) if count else None
    return tag("g", title, tag("path", d=" ".join(steps), class_="edge"), head)


def _points(edge: Edge, laid: Layout) -> Iterator[tuple[float, float]]:
    """Yield where an edge begins, passes each row between in a straight line, and ends."""
    source, target = edge
    row = laid.rows[source]
    yield _middle(laid.places[source]), _top(row) + HIGH
    for step, place in enumerate(laid.bends[edge], 1):
        yield _middle(place), _top(row + step)
        yield _middle(place), _top(row + step) + HIGH
    yield _middle(laid.places[target]), _top(laid.rows[target])


def _has_room(edge: Edge, flows: Iterable[Edge]) -> bool:
    """Whether nothing else flows into the edge's box; of several, the labels would lie on each other."""
    return sum(target == edge[1] for _, target in flows) == 1


def _label(edge: Edge, count: int, laid: Layout) -> Markup:
    """Return the bytes of an edge beside its head, on the side from which it does not come."""
    *_, (from_x, _), (x, y) = _points(edge, laid)
    aside, anchor = (-9, "end") if from_x > x else (9, "start")
    return tag("text", size(count), x=f"{x + aside:.1f}", y=f"{y - 9:.1f}", text_anchor=anchor, class_="flow")


def _cut(line: str) -> str:
    return line if len(line) <= LINE else f"{line[: LINE - 1]}…"
