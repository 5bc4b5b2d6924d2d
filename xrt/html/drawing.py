"""A graph as the facts of a drawing: boxes, and what flows between them; of a plan the regions, in their engines' colors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

from xrt.html.charts import list_operators, list_region_times
from xrt.html.formatting import format_count, format_list, percent, seconds, size
from xrt.html.regions import INPUTS, CallTimes, RegionTimes

__all__ = [
    "INPUTS_BOX",
    "MOST",
    "Box",
    "Edge",
    "draw_boxes",
    "draw_plan",
    "fit_text",
    "measure_text",
    "picture_plan",
    "split_in_boxes",
]

Edge: TypeAlias = tuple[int, int]
"""From a box to a later one."""
Point: TypeAlias = tuple[float, float]

INPUTS_BOX = 0
"""The number of the box of the inputs; that of the outputs is the last."""
MOST = 16
"""Boxes of one drawing; a plan of more regions is drawn with several in a box."""

WIDE, HIGH, LOW = 216, 66, 30
"""The width of a box, and the heights of inner boxes and of those of the inputs and outputs; in pixels."""
TEXT = WIDE - 18 - 8
"""The pixels of a line of text in a box, behind the engine's color."""
SIZE, STRONG = 13, 1.12
"""The size of the text in boxes, and how much wider it is when bold."""
MARGIN = 2
BEND = 14
"""How far from its corner the bend of an edge begins."""
LAYOUT = {
    "direction": "topbottom",
    "routing": {"style": "orthogonal"},
    "spacing": {"layer_gap": 40, "node_gap": 20, "dummy_gap": 20},
}


@dataclass(frozen=True, slots=True)
class Box:
    """What is drawn as one: inputs or outputs, a region or node, or several that run one after the other."""

    lines: tuple[str, ...]
    color: str = ""
    """Its class; empty for the inputs and the outputs."""
    title: str = ""
    """The full text, shown when the reader points at the box."""


def draw_plan(name: str, plan: Sequence[RegionTimes], timeline: CallTimes | None, colors: Mapping[str, str]) -> dict[str, Any]:
    """Return the drawing of a plan, with a description in words."""
    groups = split_in_boxes(len(plan))
    inner = [_make_box([plan[i] for i in group], _sum_seconds(group, timeline), timeline, colors) for group in groups]
    return draw_boxes(inner, _find_flows(plan, groups), _describe(name, plan, groups))


def picture_plan(name: str, plan: Sequence[RegionTimes], timeline: CallTimes | None, colors: Mapping[str, str]) -> dict[str, Any]:
    """Return what the templates show of a plan: the drawing, a caption, and the times of its regions where these are known."""
    several = f" It is drawn in {MOST} boxes, each of them regions that run one after the other." if len(plan) > MOST else ""
    used = format_list(sorted({region.engine for region in plan}))
    return {
        "name": name,
        "colors": colors,
        "drawing": draw_plan(name, plan, timeline, colors),
        "caption": f"{format_count(len(plan), 'region')} on {used}.{several}",
        "calls": timeline.calls if timeline else 0,
        "times": list_region_times(plan, timeline, colors) if timeline else [],
    }


def draw_boxes(inner: Sequence[Box], flows: Mapping[Edge, int], description: str) -> dict[str, Any]:
    """Return the drawing of boxes between those of the inputs and the outputs, with a description in words.

    ``flows`` are bytes between boxes, by their numbers: `INPUTS_BOX`, then the inner ones, then the outputs; each leads to a
    box of a higher number. 0 is a flow of unknown size.
    """
    from graphlay import Graph, layout

    boxes = [Box(("inputs",)), *inner, Box(("outputs",))]
    labels = [size(amount) if amount else "" for amount in flows.values()]
    graph = Graph()
    for number, box in enumerate(boxes):
        graph.node(number, width=WIDE if box.color else WIDE / 2, height=HIGH if box.color else LOW)
    for (source, target), label in zip(flows, labels, strict=True):
        extent: dict[str, Any] = {"label_size": {"width": _measure(label), "height": LOW / 2}} if label else {}
        graph.edge(source, target, **extent)
    laid = layout(graph, options=LAYOUT)
    anchors = [(edge["label_anchor"]["x"], _measure(label)) for edge, label in zip(laid.edges, labels, strict=True) if label]
    left = MARGIN - min([laid.bounds["min"]["x"], *(x - width / 2 for x, width in anchors)])
    right = MARGIN + max([laid.bounds["max"]["x"], *(x + width / 2 for x, width in anchors)])
    return {
        "description": description,
        "width": round(left + right),
        "height": round(laid.bounds["max"]["y"] + 2 * MARGIN),
        "boxes": [_place_box(box, node, left) for box, node in zip(boxes, laid.nodes, strict=True)],
        "edges": [_place_edge(edge, label, left) for edge, label in zip(laid.edges, labels, strict=True)],
    }


def _measure(label: str) -> int:
    """Return the pixels that a label takes."""
    return 7 * len(label) + 4


# Widths of letters, in hundredths of the size: those of DejaVu Sans, the widest of the usual fonts. Letters that are not listed
# count as an em.
_WIDTHS = {letter: width for letters, width in (
    ("'ijlIJ", 29), (" ,./:;\\|f", 35), ("-()[]t!r", 41), ('"*_`sz?', 52), ("cLFkvxyPTYao", 61), ("eESbdghnpqu$0123456789{}", 64),
    ("KAVBRXZC", 70), ("UHNDG&", 78), ("OQw#+<=>^~×", 84), ("µ", 64), ("M", 86), ("%mW@", 100),
) for letter in letters}  # fmt: skip


def measure_text(text: str, *, is_strong: bool = False) -> float:
    """Return the pixels that a line of text in a box takes at most."""
    return sum(_WIDTHS.get(letter, 100) for letter in text) / 100 * SIZE * (STRONG if is_strong else 1)


def fit_text(text: str, *, is_strong: bool = False) -> str:
    """Return a line of text as far as it fits in a box."""
    if measure_text(text, is_strong=is_strong) <= TEXT:
        return text
    while text and measure_text(f"{text}…", is_strong=is_strong) > TEXT:
        text = text[:-1]
    return f"{text.rstrip(' ,')}…"


def _place_box(box: Box, node: Mapping[str, Any], left: float) -> dict[str, Any]:
    center, extent = node["center"], node["size"]
    x, y = center["x"] - extent["width"] / 2 + left, center["y"] - extent["height"] / 2 + MARGIN
    shown = [fit_text(line, is_strong=number == 0) for number, line in enumerate(box.lines)] if box.color else box.lines
    return {
        "lines": box.lines,
        "shown": shown,
        "color": box.color,
        "title": box.title,
        "left": round(x, 1),
        "top": round(y, 1),
        **extent,
    }


def _place_edge(edge: Mapping[str, Any], label: str, left: float) -> dict[str, Any]:
    points = [(point["x"] + left, point["y"] + MARGIN) for point in edge["points"]]
    x, y = points[-1]
    path, head = _round_corners(points), f"{x - 4:.1f},{y - 7:.1f} {x + 4:.1f},{y - 7:.1f} {x:.1f},{y:.1f}"
    if not label:
        return {"path": path, "head": head, "label": ""}
    middle, width = edge["label_anchor"], _measure(label)
    place = {"x": round(middle["x"] + left, 1), "y": round(middle["y"] + MARGIN, 1), "width": width}
    return {"path": path, "head": head, "label": label, **place}


def _round_corners(points: Sequence[Point]) -> str:
    """Return the path along the points, each corner a bend."""
    steps = ["M{:.1f} {:.1f}".format(*points[0])]
    for before, (x, y), after in zip(points, points[1:], points[2:], strict=False):
        start, end = _approach((x, y), before), _approach((x, y), after)
        steps.append("L{:.1f} {:.1f}Q{:.1f} {:.1f} {:.1f} {:.1f}".format(*start, x, y, *end))
    return " ".join([*steps, "L{:.1f} {:.1f}".format(*points[-1])])


def _approach(corner: Point, other: Point) -> Point:
    """Return the point at which a bend begins that goes around a corner, on the line to another point."""
    length = math.dist(corner, other)
    share = min(BEND, length / 2) / length if length else 0.0
    return corner[0] + share * (other[0] - corner[0]), corner[1] + share * (other[1] - corner[1])


def _describe(name: str, plan: Sequence[RegionTimes], groups: Sequence[range]) -> str:
    engines = Counter(region.engine for region in plan)
    parts = format_list([f"{number} on {engine}" for engine, number in engines.most_common()])
    grouped = f", drawn as {format_count(len(groups), 'box')}es of neighbors" if len(groups) < len(plan) else ""
    return (
        f"The plan of {name}: {format_count(len(plan), 'region')}, {parts}{grouped}. The table of regions has the same in words."
    )


# ---------------------------------------------------------------------- what is a box


def split_in_boxes(things: int) -> list[range]:
    """Return what each box holds: one thing, or of many several that run one after the other, so that no cycle arises."""
    boxes = min(things, MOST)
    bounds = [round(index * things / boxes) for index in range(boxes + 1)] if boxes else []
    return [range(low, high) for low, high in pairwise(bounds)]


def _sum_seconds(group: range, timeline: CallTimes | None) -> float | None:
    return None if timeline is None else sum(timeline.regions[index] for index in group)


def _make_box(regions: Sequence[RegionTimes], taken: float | None, timeline: CallTimes | None, colors: Mapping[str, str]) -> Box:
    first, last = regions[0], regions[-1]
    engines = Counter(region.engine for region in regions)
    color = colors[engines.most_common(1)[0][0]]
    share = f", {percent(taken / timeline.seconds)}" if taken is not None and timeline and timeline.seconds else ""
    time = f"{seconds(taken)}{share}" if taken is not None else format_count(sum(region.nodes for region in regions), "node")
    if first is last:
        return Box((first.engine, list_operators(first), time), color, f"{first.name}: {format_count(first.nodes, 'node')}")
    what = format_list([f"{number} on {engine}" for engine, number in engines.most_common()])
    return Box((format_count(len(regions), "region"), what, time), color, f"{first.name} to {last.name}: {what}")


def _find_flows(plan: Sequence[RegionTimes], groups: Sequence[range]) -> dict[Edge, int]:
    """Return the bytes that flow along each edge between boxes; 0 where they are unknown, or only the order is kept."""
    box_of = {index: number for number, group in enumerate(groups, 1) for index in group} | {INPUTS: INPUTS_BOX}
    flows: Counter[Edge] = Counter()
    for index, region in enumerate(plan):
        for reading in region.reads:
            flows[box_of[reading.source], box_of[index]] += reading.size or 0
        if region.is_output:
            flows[box_of[index], len(groups) + 1] += 0
    return {edge: amount for edge, amount in sorted(flows.items()) if edge[0] != edge[1]}
