"""A graph as a drawing: boxes, and what flows between them; of a plan the regions, in their engines' colours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from xrt.html.formatting import format_count, format_list, percent, seconds, size
from xrt.html.layers import Edge, GraphLayout, layout
from xrt.html.markup import Markup, tag
from xrt.html.regions import INPUTS, CallTimes, RegionTimes
from xrt.html.timelines import operators

__all__ = ["INPUTS_BOX", "MOST", "Box", "draw_boxes", "draw_plan", "split_in_boxes"]

INPUTS_BOX = 0
"""The number of the box of the inputs; that of the outputs is the last."""
MOST = 16
"""Boxes of one drawing; a plan of more regions is drawn with several in a box."""

WIDE, HIGH, GAP, ROW = 216, 66, 20, 112
"""A box's width and height, the gap between boxes of a row, and the distance between rows; in pixels."""
EDGE = 2
"""Around it all."""
LINE = 28
"""Characters that a line in a box holds."""


@dataclass(frozen=True, slots=True)
class Box:
    """What is drawn as one: inputs or outputs, a region or node, or several that run one after the other."""

    lines: tuple[str, ...]
    colour: str = "end"
    told: str = ""
    """The full text, shown when the reader points at the box."""


def draw_plan(name: str, plan: Sequence[RegionTimes], timeline: CallTimes | None, colours: Mapping[str, str]) -> Markup:
    """Return the drawing of a plan, with a description in words."""
    groups = split_in_boxes(len(plan))
    inner = [_box([plan[i] for i in group], _seconds(group, timeline), timeline, colours) for group in groups]
    return draw_boxes(inner, _flows(plan, groups), _described(name, plan, groups))


def draw_boxes(inner: Sequence[Box], flows: Mapping[Edge, int], description: str) -> Markup:
    """Return the drawing of boxes between those of the inputs and the outputs, with a description in words.

    ``flows`` are bytes between boxes, by their numbers: `INPUTS_BOX`, then the inner ones, then the outputs; each leads to a
    box of a higher number. 0 is a flow of unknown size.
    """
    boxes = [Box(("inputs",)), *inner, Box(("outputs",))]
    laid = layout(len(boxes), list(flows))
    width, height = 2 * EDGE + laid.width * (WIDE + GAP) + WIDE, 2 * EDGE + (laid.height - 1) * ROW + HIGH
    return tag(
        "svg",
        *(_path(edge, count, laid) for edge, count in flows.items()),
        *(_shape(box, laid, index) for index, box in enumerate(boxes)),
        *(_label(edge, count, laid) for edge, count in flows.items() if count and _has_room(edge, flows)),
        role="img",
        aria_label=description,
        class_="plan",
        width=round(width),
        height=round(height),
        viewBox=f"0 0 {round(width)} {round(height)}",
    )


def _described(name: str, plan: Sequence[RegionTimes], groups: Sequence[range]) -> str:
    engines = Counter(region.engine for region in plan)
    parts = format_list([f"{count} on {engine}" for engine, count in engines.most_common()])
    grouped = f", drawn as {format_count(len(groups), 'box')}es of neighbours" if len(groups) < len(plan) else ""
    return (
        f"The plan of {name}: {format_count(len(plan), 'region')}, {parts}{grouped}. The table of regions has the same in words."
    )


# ---------------------------------------------------------------------- what is a box


def split_in_boxes(count: int) -> list[range]:
    """Return what each box holds: one thing, or of many several that run one after the other, so that no cycle arises."""
    boxes = min(count, MOST)
    bounds = [round(index * count / boxes) for index in range(boxes + 1)] if boxes else []
    return [range(low, high) for low, high in pairwise(bounds)]


def _seconds(group: range, timeline: CallTimes | None) -> float | None:
    return None if timeline is None else sum(timeline.regions[index] for index in group)


def _box(regions: Sequence[RegionTimes], taken: float | None, timeline: CallTimes | None, colours: Mapping[str, str]) -> Box:
    first, last = regions[0], regions[-1]
    engines = Counter(region.engine for region in regions)
    most = engines.most_common(1)[0][0]
    share = f", {percent(taken / timeline.seconds)}" if taken is not None and timeline and timeline.seconds else ""
    time = f"{seconds(taken)}{share}" if taken is not None else format_count(sum(region.nodes for region in regions), "node")
    if first is last:
        return Box((first.engine, operators(first), time), colours[most], f"{first.name}: {format_count(first.nodes, 'node')}")
    what = format_list([f"{count} on {engine}" for engine, count in engines.most_common()])
    return Box((format_count(len(regions), "region"), what, time), colours[most], f"{first.name} to {last.name}: {what}")


def _flows(plan: Sequence[RegionTimes], groups: Sequence[range]) -> dict[Edge, int]:
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


def _shape(box: Box, laid: GraphLayout, index: int) -> Markup:
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


def _end(box: Box, left: float, top: float, *, is_first: bool) -> Markup:
    """Return a pill, at the foot of its row above everything and at the head of the last one."""
    y = top + (HIGH - PILL if is_first else 0)
    frame = tag("rect", x=left + WIDE / 4, y=y, width=WIDE / 2, height=PILL, rx=PILL / 2, class_="box")
    return tag("g", frame, tag("text", box.lines[0], x=left + WIDE / 2, y=y + 20, text_anchor="middle"))


PILL = 30


def _path(edge: Edge, count: int, laid: GraphLayout) -> Markup:
    points = list(_points(edge, laid))
    steps = ["M{:.1f} {:.1f}".format(*points[0])]
    for (from_x, from_y), (to_x, to_y) in pairwise(points):
        half = (from_y + to_y) / 2
        steps.append(f"C{from_x:.1f} {half:.1f} {to_x:.1f} {half:.1f} {to_x:.1f} {to_y:.1f}")
    x, y = points[-1]
    head = tag("polygon", points=f"{x - 4:.1f},{y - 7:.1f} {x + 4:.1f},{y - 7:.1f} {x:.1f},{y:.1f}", class_="head")
    title = tag("title", size(count)) if count else None
    return tag("g", title, tag("path", d=" ".join(steps), class_="edge"), head)


def _points(edge: Edge, laid: GraphLayout) -> Iterator[tuple[float, float]]:
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


def _label(edge: Edge, count: int, laid: GraphLayout) -> Markup:
    """Return the bytes of an edge next to its head, on the side from which it does not come."""
    *_, (from_x, _), (x, y) = _points(edge, laid)
    aside, anchor = (-9, "end") if from_x > x else (9, "start")
    return tag("text", size(count), x=f"{x + aside:.1f}", y=f"{y - 9:.1f}", text_anchor=anchor, class_="flow")


def _cut(line: str) -> str:
    return line if len(line) <= LINE else f"{line[: LINE - 1]}…"
