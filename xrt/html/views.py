"""HTML pages and notebook cells: templates, drawings of graphs and plans, and formatted figures.

Pages need no network and no scripts, and escape all names.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias
from unicodedata import category

from xrt.measure.statistics import Interval, RatioInterval

if TYPE_CHECKING:
    from jinja2 import Environment


TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def format_seconds(value: float) -> str:
    """Format a time with three digits.

    >>> format_seconds(0.0027149), format_seconds(12.0), format_seconds(3.2e-6), format_seconds(0)
    ('2.71 ms', '12 s', '3.2 µs', '0 µs')
    """
    scale, unit = _choose_time_unit(value)
    return f"{_format_digits(value / scale)} {unit}"


def format_seconds_interval(value: float, interval: Interval | None) -> str:
    """Format a time with its interval, in one unit.

    >>> format_seconds_interval(0.0027149, Interval(0.00268, 0.0031))
    '2.71 ms (2.68 to 3.1)'
    """
    if interval is None:
        return format_seconds(value)
    scale, _ = _choose_time_unit(value)
    return f"{format_seconds(value)} ({_format_digits(interval.low / scale)} to {_format_digits(interval.high / scale)})"


def format_ratio(ratio: float) -> str:
    """Format a ratio: two decimals below 10, one below 100, otherwise none.

    >>> format_ratio(1.0249), format_ratio(93.46), format_ratio(1234.5)
    ('1.02', '93.5', '1234')
    """
    if ratio < 10:
        return f"{ratio:.2f}"
    return f"{ratio:.1f}" if ratio < 100 else f"{ratio:.0f}"


def format_ratio_interval(ratio: RatioInterval | None) -> str:
    """Format a ratio with its interval; empty for None.

    >>> format_ratio_interval(RatioInterval(1.5, 1.25, 1.75))
    '1.50 (1.25 to 1.75)'
    """
    return "" if ratio is None else f"{format_ratio(ratio.median)} ({format_ratio(ratio.low)} to {format_ratio(ratio.high)})"


def format_percent(share: float) -> str:
    r"""Format a share in per cent, with a non-breaking space.

    >>> format_percent(0.0123), format_percent(0.52)
    ('1.2\xa0%', '52\xa0%')
    """
    return f"{100 * share:.2g}\u00a0%" if share < 0.1 else f"{100 * share:.0f}\u00a0%"


def format_bytes(count: int) -> str:
    """Format a number of bytes in decimal units.

    >>> format_bytes(3_200_000), format_bytes(12), format_bytes(1)
    ('3.2 MB', '12 bytes', '1 byte')
    """
    if count < 1000:
        return format_count(count, "byte")  # bytes have no decimals
    units = ("kB", "MB", "GB", "TB")
    power = min((len(str(int(count))) - 1) // 3, len(units))
    return f"{count / 1000**power:,.1f} {units[power - 1]}"


def format_count(count: int, noun: str) -> str:
    """Format a number with its noun.

    >>> format_count(1, "round"), format_count(20, "round")
    ('1 round', '20 rounds')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_list(words: list[str]) -> str:
    """Join words as in a sentence.

    >>> format_list(["a"]), format_list(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _choose_time_unit(value: float) -> tuple[float, str]:
    return next(((scale, unit) for scale, unit in TIME_UNITS if abs(value) >= scale), TIME_UNITS[-1])


def _format_digits(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


FORMATS: tuple[Callable[..., str], ...] = (
    format_count,
    format_list,
    format_ratio_interval,
    format_seconds_interval,
    format_percent,
    format_seconds,
    format_bytes,
    format_ratio,
)
"""The filters of the templates."""


ROOT_CLASS = "xrt-view"
"""The class of a view's root element."""
ROOT_SELECTOR = f":is(#{ROOT_CLASS}, .{ROOT_CLASS})"
"""Matches the root by class, but with the specificity of an id, so that the view's rules override those of the page around it."""
PIXELS_PER_REM = 16
"""Pixels per ``rem`` in a cell: the page around the cell may define another size of ``rem``."""
CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Content security policy: load and run nothing, whatever a model's name contains."""

_COMMENT = re.compile(r"/\*.*?\*/\s*", re.DOTALL)
_REM = re.compile(r"(\d*\.?\d+)rem\b")
# Characters to look up in the Unicode tables: all but the ASCII characters that most pages consist of.
_UNUSUAL = re.compile(r"[^\n\t -~]")


def render_page(template: str, title: str, **facts: Any) -> str:
    """Render a page, for light and dark screens and for print."""
    return _render("page.html", body=template, style=load_page_style(), policy=CONTENT_POLICY, title=title, **facts)


def render_cell(template: str, **facts: Any) -> str:
    """Render a notebook cell with a style that does not affect the rest of the page."""
    return _render("cell.html", body=template, style=load_cell_style(), **facts)


def _render(template: str, **facts: Any) -> str:
    return _UNUSUAL.sub(_replace_unprintable, _environment().get_template(template).render(root=ROOT_CLASS, **facts))


def _replace_unprintable(match: re.Match[str]) -> str:
    """Replace control characters, surrogates and changes of writing direction, which could make a name look like another one."""
    char = match[0]
    return char if char.isprintable() or category(char) == "Zs" else "�"


@cache
def _environment() -> Environment:
    # Imported here, because every start uses the formats of this module, but few use templates.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("xrt.html"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    # StrictUndefined: a misspelled name in a template is an error instead of an empty cell.
    environment.filters |= {"zip": zip} | {function.__name__: function for function in FORMATS}
    return environment


@cache
def load_page_style() -> str:
    return _read("view.css") + _read("page.css")


@cache
def load_cell_style() -> str:
    """The style sheet of a cell, whose rules apply to the view only."""
    text = _read("view.css") + _read("cell.css")
    # A rem is relative to the font of the page around the cell, so replace it by pixels.
    return _REM.sub(lambda match: f"{float(match[1]) * PIXELS_PER_REM:g}px", text)


def _read(name: str) -> str:
    text = resources.files("xrt.html").joinpath(name).read_text(encoding="utf-8")
    return _COMMENT.sub("", text).replace("&", ROOT_SELECTOR)


INPUTS = -1
"""`RegionInput.source` of a value that is an input of the model."""


@dataclass(frozen=True, slots=True)
class RegionInput:
    """A value that a region reads, or another region that must run before it."""

    source: int
    """Index in execution order of the region that computes the value; `INPUTS` for an input of the model."""
    value: str
    """Name and type; empty if the other region only must run before."""
    size: int | None = None
    """Bytes; None if the extents are unknown."""


@dataclass(frozen=True, slots=True)
class PlanRegion:
    name: str
    engine: str
    nodes: int
    operators: tuple[tuple[str, int], ...]
    """Number of nodes per operator, most frequent first."""
    reads: tuple[RegionInput, ...]
    is_output: bool


@dataclass(frozen=True, slots=True)
class MeanCall:
    """The time of a call in seconds, in total and per region: means over ``calls`` calls."""

    calls: int
    seconds: float
    regions: tuple[float, ...]
    """Seconds of each region, in the order in which the regions run."""

    @property
    def seconds_outside(self) -> float:
        return max(0.0, self.seconds - sum(self.regions))

    @property
    def starts(self) -> tuple[float, ...]:
        """Start of each region: the end of the previous one."""
        return tuple(sum(self.regions[:index]) for index in range(len(self.regions)))


MAX_LENGTH_RATIO = 4
"""Bars and strips are cut at this multiple of the shortest, so that short bars stay comparable."""
AXIS_MARGIN = 1.08
"""Length of the axis relative to the end of the longest interval."""
MIN_SPAN = 0.004
"""A region that is shorter than this share of the axis is drawn together with its neighbors."""
MAX_REGION_ROWS = 12
"""Rows of the table of regions; one more row has the sum of all other regions."""


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    kind: str
    """``fastest``, ``chosen`` and ``tie`` stand out; ``slower``, ``wrong`` and ``failed`` do not."""
    verdict: str
    seconds: float
    interval: Interval | None = None
    note: str = ""
    """Text after the time, such as the ratio to the fastest."""


def make_bars(rows: Sequence[Bar]) -> list[dict[str, Any]]:
    """Scale bars to a common axis that begins at 0."""
    if not rows:
        return []
    limit = MAX_LENGTH_RATIO * min(row.seconds for row in rows)
    # The axis ends after the longest interval, or at the limit, where longer bars are cut.
    ends = [row.interval.high if row.interval else row.seconds for row in rows]
    axis_end = min(limit, AXIS_MARGIN * max(ends))
    return [_make_bar(row, axis_end or 1.0) for row in rows]


def _make_bar(row: Bar, axis_end: float) -> dict[str, Any]:
    is_cut = row.seconds > axis_end
    ends = []
    if row.interval:
        ends = [_format_share(row.interval.low, axis_end), _format_share(row.interval.high, axis_end)]
    note = f", {row.note}" if row.note else ""
    cut = " (the bar is cut)" if is_cut else ""
    figure = f"{format_seconds_interval(row.seconds, row.interval)}{note}{cut}"
    fields = {name: getattr(row, name) for name in ("name", "kind", "verdict", "seconds")}
    return {**fields, "width": _format_share(row.seconds, axis_end), "is_cut": is_cut, "ends": ends, "figure": figure}


def _format_share(value: float, axis_end: float) -> str:
    return f"{100 * min(value / axis_end, 1.0):.3f}%"


@dataclass(frozen=True, slots=True)
class Strip:
    name: str
    plan: Sequence[PlanRegion]
    timeline: MeanCall


def make_strips(strips: Sequence[Strip], colors: Mapping[str, str]) -> dict[str, Any]:
    """Create the template data of strips on a common axis that ends at ``seconds``."""
    # The profiled regions may add up to more than the mean call, because recording takes time.
    durations = [max(strip.timeline.seconds, sum(strip.timeline.regions)) for strip in strips]
    axis_end = min(max(durations), MAX_LENGTH_RATIO * min(durations))
    return {"seconds": axis_end, "strips": [_make_strip(strip, axis_end, colors) for strip in strips]}


def _make_strip(strip: Strip, axis_end: float, colors: Mapping[str, str]) -> dict[str, Any]:
    """Create the template data of a strip: its spans as shares of the axis, and its times in words."""
    duration = strip.timeline.seconds
    outside = format_percent(strip.timeline.seconds_outside / duration) if duration else "0 %"
    cut = " (the strip is cut)" if duration > axis_end else ""
    spans = [
        {
            "x": _format_share(start, axis_end),
            "width": _format_share(min(length, axis_end - start), axis_end),
            "color": colors[engine],
            "title": f"{name} on {engine}: {format_seconds(length)}, from {format_seconds(start)}",
        }
        for engine, name, start, length in _find_spans(strip.plan, strip.timeline, axis_end)
        if start < axis_end
    ]
    regions = format_count(len(strip.plan), "region")
    figure = f"{regions}, {format_seconds(duration)} a call, of it {outside} outside of the regions{cut}"
    return {"name": strip.name, "spans": spans, "figure": figure}


def _find_spans(plan: Sequence[PlanRegion], timeline: MeanCall, axis_end: float) -> Iterator[tuple[str, str, float, float]]:
    """Yield engine, name, start and seconds of each span. A span is a region, or several short neighbors on one engine."""

    def get_span_key(timed_region: tuple[PlanRegion, float, float]) -> tuple[str, bool]:
        region, _, length = timed_region
        return region.engine, length < MIN_SPAN * axis_end

    timed_regions = zip(plan, timeline.starts, timeline.regions, strict=False)
    for (engine, is_short), group in groupby(timed_regions, get_span_key):
        members = list(group)
        if is_short:
            # A region narrower than a pixel would be invisible, so that short neighbors share a span.
            _, first_start, _ = members[0]
            yield engine, format_count(len(members), "region"), first_start, sum(length for _, _, length in members)
        else:
            yield from ((engine, region.name, start, length) for region, start, length in members)


def list_region_times(plan: Sequence[PlanRegion], timeline: MeanCall, colors: Mapping[str, str]) -> list[tuple[Any, ...]]:
    """List table rows: the longest regions in execution order, the sum of the others, and the time outside of all regions."""
    by_length = sorted(range(len(plan)), key=lambda index: -timeline.regions[index])
    rows: list[tuple[Any, ...]] = []
    for index in sorted(by_length[:MAX_REGION_ROWS]):
        region, length = plan[index], timeline.regions[index]
        engine = {"text": region.engine, "color": colors[region.engine]}
        start = format_seconds(timeline.starts[index])
        rows.append((region.name, engine, start, *_format_length(length, timeline), list_operators(region)))
    if others := by_length[MAX_REGION_ROWS:]:
        length = sum(timeline.regions[index] for index in others)
        rows.append((format_count(len(others), "other region"), "", "", *_format_length(length, timeline), ""))
    return [*rows, ("outside of the regions", "", "", *_format_length(timeline.seconds_outside, timeline), "")]


def _format_length(length: float, timeline: MeanCall) -> tuple[str, str]:
    """Format a time in seconds, and as a share of the whole call."""
    return format_seconds(length), format_percent(length / timeline.seconds if timeline.seconds else 0.0)


def list_operators(region: PlanRegion) -> str:
    """List a region's most frequent operators: ``Conv ×3, Relu, Add, Mul, 2 other kinds``."""
    operators = [f"{op} ×{count}" if count > 1 else op for op, count in region.operators[:4]]
    if len(region.operators) > 4:
        operators.append(format_count(len(region.operators) - 4, "other kind"))
    return ", ".join(operators)


Edge: TypeAlias = tuple[int, int]
"""The indices of two boxes: values pass from the first box to the second."""
Point: TypeAlias = tuple[float, float]
INPUTS_BOX = 0
"""Index of the box for the inputs. The box for the outputs has the last index."""
MAX_BOXES = 16
"""Maximum number of inner boxes; a box has several regions or nodes if there are more."""
BOX_WIDTH, BOX_HEIGHT, END_BOX_HEIGHT = 216, 66, 30
"""Width of a box, height of an inner box, and height of the boxes for inputs and outputs, in pixels."""
MARGIN = 2
BEND_PIXELS = 14
"""Distance in pixels between the corner of an edge and the start of its bend."""
LAYOUT = {
    "direction": "topbottom",
    "routing": {"style": "orthogonal"},
    "spacing": {"layer_gap": 40, "node_gap": 20, "dummy_gap": 20},
}


@dataclass(frozen=True, slots=True)
class Box:
    """A box of a drawing: the inputs, the outputs, or one or several consecutive regions or nodes."""

    lines: tuple[str, ...]
    color: str = ""
    """CSS class; empty for inputs and outputs."""
    title: str = ""


def draw_plan(name: str, plan: Sequence[PlanRegion], timeline: MeanCall | None, colors: Mapping[str, str]) -> dict[str, Any]:
    """Lay out a plan as boxes and edges; return data for the template ``parts.html``. ``colors`` maps engines to CSS classes."""
    groups = split_in_boxes(len(plan))
    boxes = []
    for group in groups:
        total = sum(timeline.regions[index] for index in group) if timeline else None
        boxes.append(_make_box([plan[index] for index in group], total, timeline, colors))
    return draw_boxes(boxes, _find_flows(plan, groups), _describe(name, plan, groups))


def make_plan_picture(
    name: str, plan: Sequence[PlanRegion], timeline: MeanCall | None, colors: Mapping[str, str]
) -> dict[str, Any]:
    """Create the template data of a plan: drawing, caption, and the times of the regions if ``timeline`` is known."""
    note = (
        f" It is drawn in {MAX_BOXES} boxes, each of them regions that run one after the other." if len(plan) > MAX_BOXES else ""
    )
    engines = format_list(sorted({region.engine for region in plan}))
    return {
        "name": name,
        "colors": colors,
        "drawing": draw_plan(name, plan, timeline, colors),
        "caption": f"{format_count(len(plan), 'region')} on {engines}.{note}",
        "calls": timeline.calls if timeline else 0,
        "times": list_region_times(plan, timeline, colors) if timeline else [],
    }


def draw_boxes(inner: Sequence[Box], flows: Mapping[Edge, int], description: str) -> dict[str, Any]:
    """Lay out the ``inner`` boxes between a box for the inputs and a box for the outputs; return data for the templates.

    ``flows`` has the bytes that pass between two boxes, 0 if unknown. The index of the inputs is `INPUTS_BOX`; the inner boxes
    follow, then the outputs. ``description`` is the text for screen readers.
    """
    from graphlay import Graph, layout

    # Edges reserve space for their labels, so that the layout keeps labels and boxes apart.
    boxes = [Box(("inputs",)), *inner, Box(("outputs",))]
    labels = [format_bytes(amount) if amount else "" for amount in flows.values()]
    graph = Graph()
    for index, box in enumerate(boxes):
        graph.node(index, width=BOX_WIDTH if box.color else BOX_WIDTH / 2, height=BOX_HEIGHT if box.color else END_BOX_HEIGHT)
    for (source, target), label in zip(flows, labels, strict=True):
        if label:
            graph.edge(source, target, label_size={"width": _measure_label(label), "height": END_BOX_HEIGHT / 2})
        else:
            graph.edge(source, target)
    drawing = layout(graph, options=LAYOUT)
    # Labels may reach beyond the outermost boxes: the drawing is widened to contain them.
    left_edges = [drawing.bounds["min"]["x"]]
    right_edges = [drawing.bounds["max"]["x"]]
    for edge, label in zip(drawing.edges, labels, strict=True):
        if label:
            center = edge["label_anchor"]["x"]
            left_edges.append(center - _measure_label(label) / 2)
            right_edges.append(center + _measure_label(label) / 2)
    left = MARGIN - min(left_edges)
    right = MARGIN + max(right_edges)
    return {
        "description": description,
        "width": round(left + right),
        "height": round(drawing.bounds["max"]["y"] + 2 * MARGIN),
        "boxes": [_place_box(box, node, left) for box, node in zip(boxes, drawing.nodes, strict=True)],
        "edges": [_place_edge(edge, label, left) for edge, label in zip(drawing.edges, labels, strict=True)],
    }


def _measure_label(label: str) -> int:
    return 7 * len(label) + 4


def _place_box(box: Box, node: Mapping[str, Any], left: float) -> dict[str, Any]:
    extent = node["size"]
    x = node["center"]["x"] - extent["width"] / 2 + left
    y = node["center"]["y"] - extent["height"] / 2 + MARGIN
    return {"lines": box.lines, "color": box.color, "title": box.title, "left": round(x, 1), "top": round(y, 1), **extent}


def _place_edge(edge: Mapping[str, Any], label: str, left: float) -> dict[str, Any]:
    points = [(point["x"] + left, point["y"] + MARGIN) for point in edge["points"]]
    x, y = points[-1]
    head = f"{x - 4:.1f},{y - 7:.1f} {x + 4:.1f},{y - 7:.1f} {x:.1f},{y:.1f}"
    placed: dict[str, Any] = {"path": _round_corners(points), "head": head, "label": label}
    if label:
        anchor = edge["label_anchor"]
        placed |= {"x": round(anchor["x"] + left, 1), "y": round(anchor["y"] + MARGIN, 1), "width": _measure_label(label)}
    return placed


def _round_corners(points: Sequence[Point]) -> str:
    """Make an SVG path along the points: lines (L), and a quadratic curve (Q) around each corner."""
    steps = ["M{:.1f} {:.1f}".format(*points[0])]
    for before, (x, y), after in zip(points, points[1:], points[2:], strict=False):
        start, end = _find_bend_start((x, y), before), _find_bend_start((x, y), after)
        steps.append("L{:.1f} {:.1f}Q{:.1f} {:.1f} {:.1f} {:.1f}".format(*start, x, y, *end))
    return " ".join([*steps, "L{:.1f} {:.1f}".format(*points[-1])])


def _find_bend_start(corner: Point, neighbor: Point) -> Point:
    """Find the point on the line from a corner to a neighboring point where the bend around the corner begins."""
    length = math.dist(corner, neighbor)
    share = min(BEND_PIXELS, length / 2) / length if length else 0.0
    return corner[0] + share * (neighbor[0] - corner[0]), corner[1] + share * (neighbor[1] - corner[1])


def _describe(name: str, plan: Sequence[PlanRegion], groups: Sequence[range]) -> str:
    engines = Counter(region.engine for region in plan)
    parts = format_list([f"{count} on {engine}" for engine, count in engines.most_common()])
    note = f", drawn as {len(groups)} boxes of neighbors" if len(groups) < len(plan) else ""
    return f"The plan of {name}: {format_count(len(plan), 'region')}, {parts}{note}. The table of regions has the same in words."


def split_in_boxes(count: int) -> list[range]:
    """Assign ``count`` regions to boxes by index: one region to each box, or several consecutive regions for many.

    Consecutive regions in a box cannot close a cycle between boxes, because edges only lead to later regions.
    """
    boxes = min(count, MAX_BOXES)
    bounds = [round(index * count / boxes) for index in range(boxes + 1)] if boxes else []
    return [range(low, high) for low, high in pairwise(bounds)]


def _make_box(regions: Sequence[PlanRegion], total: float | None, timeline: MeanCall | None, colors: Mapping[str, str]) -> Box:
    """Create the box of one or several consecutive regions. Its color is that of the most frequent engine."""
    first, last = regions[0], regions[-1]
    engines = Counter(region.engine for region in regions)
    ((main_engine, _),) = engines.most_common(1)
    color = colors[main_engine]
    if total is None:
        size = format_count(sum(region.nodes for region in regions), "node")
    else:
        share = f", {format_percent(total / timeline.seconds)}" if timeline and timeline.seconds else ""
        size = f"{format_seconds(total)}{share}"
    if first is last:
        return Box((first.engine, list_operators(first), size), color, f"{first.name}: {format_count(first.nodes, 'node')}")
    engine_list = format_list([f"{count} on {engine}" for engine, count in engines.most_common()])
    return Box((format_count(len(regions), "region"), engine_list, size), color, f"{first.name} to {last.name}: {engine_list}")


def _find_flows(plan: Sequence[PlanRegion], groups: Sequence[range]) -> dict[Edge, int]:
    """Sum the bytes on each edge between boxes; 0 if their number is unknown, or if an edge is only an order of execution."""
    box_of = {index: box for box, group in enumerate(groups, 1) for index in group} | {INPUTS: INPUTS_BOX}
    flows: Counter[Edge] = Counter()
    for index, region in enumerate(plan):
        for reading in region.reads:
            flows[box_of[reading.source], box_of[index]] += reading.size or 0
        if region.is_output:  # adding 0 creates the edge; the size is not known here
            flows[box_of[index], len(groups) + 1] += 0
    return {edge: amount for edge, amount in sorted(flows.items()) if edge[0] != edge[1]}


PALETTE = ("vermilion", "yellow", "gray", "sky", "pink", "green", "orange", "blue")
"""Colors that engines may declare: classes of `view.css`. An engine that declares none gets the first free color."""


def assign_colors(engines: Iterable[str], declared: Callable[[str], str]) -> dict[str, str]:
    """Assign a color to each engine, a name or spec; ``declared`` returns the color that an engine declares.

    A color goes to the first engine that declares it. When no color is free, further engines share the last color.
    """
    specs = list(dict.fromkeys(engines))
    # Specs of one engine with different options share its color.
    name_of = {spec: spec.partition("{")[0].strip() for spec in specs}
    colors: dict[str, str] = {}
    # Declared colors first, so that no other engine gets one of them.
    for name in name_of.values():
        if (color := declared(name)) in PALETTE and color not in colors.values():
            colors.setdefault(name, color)
    for name in name_of.values():
        if name not in colors:
            colors[name] = next((color for color in PALETTE if color not in colors.values()), PALETTE[-1])
    return {spec: colors[name] for spec, name in name_of.items()}
