"""A Plan as a notebook shows it: its regions as a drawing in their engines' colours, a table of them, and the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from xrt.engines.contract.registry import find_declaration
from xrt.graph import TensorType
from xrt.html.colors import assign_colors, legend
from xrt.html.document import make_cell
from xrt.html.drawing import MOST, draw_plan
from xrt.html.formatting import format_count, format_list
from xrt.html.markup import Child, Markup, tag
from xrt.html.regions import INPUTS, CallTimes, Reading, RegionTimes
from xrt.html.tables import fold, make_facts, make_scrolling, make_table
from xrt.html.timelines import operators, region_table
from xrt.partition.grouping import group_reasons
from xrt.partition.plan import Launch, Plan, Reason

__all__ = ["color_engines", "draw_regions", "list_reasons", "list_regions", "render_plan"]


def render_plan(plan: Plan) -> str:
    """Return the cell of a Plan."""
    nodes = sum(len(launch.nodes) for launch in plan.launches)
    engines = [f"{spec} (not named)" if spec == plan.implicit else spec for spec in plan.engines]
    facts = {
        "engines": ", ".join(engines),
        "device": plan.device if plan.device != "cpu" else None,
        "options": str(plan.options) or None,
        "copies": str(len(plan.copies)) if plan.copies else None,
    }
    title = f"Plan: {format_count(nodes, 'node')} in {format_count(len(plan.launches), 'region')}"
    return make_cell(
        tag("h2", title, class_="title"), make_facts(facts), *draw_regions(plan), *list_reasons(plan.reasons, "plan.reasons")
    )


def draw_regions(plan: Plan, times: CallTimes | None = None, name: str = "this model") -> Iterator[Child]:
    """Yield the pictures of a Plan: colours, drawing, and the table of regions, with their times where they are known."""
    regions = list_regions(plan)
    if not regions:
        yield tag("p", "It has no regions: the outputs are inputs or constants.")
        return
    colours = color_engines(region.engine for region in regions)
    yield legend(colours)
    several = f" It is drawn in {MOST} boxes, each of them regions that run one after the other." if len(regions) > MOST else ""
    used = format_list(sorted({region.engine for region in regions}))
    caption = f"{format_count(len(regions), 'region')} on {used}.{several}"
    drawing = make_scrolling(f"Plan of {name}", draw_plan(name, regions, times, colours))
    yield tag("figure", drawing, tag("figcaption", caption))
    if times is not None:
        yield fold("Times of the regions", make_scrolling("Times of the regions", region_table(name, regions, times, colours)))
    yield fold("Regions", _list_launches(plan, regions))


def list_reasons(reasons: Sequence[Reason], where: str) -> Iterator[Markup]:
    """Yield why nodes are not on engines, equal reasons in one row; ``where`` has them node by node."""
    if not reasons:
        return
    rows = [(one.nodes, len(one.reasons), ", ".join(one.engines), one.reasons[0].text) for one in group_reasons(reasons, least=1)]
    columns = ("nodes", ("count", "number"), "not on", "because")
    yield tag("h3", "Reasons")
    yield make_table(f"Why nodes are not on an engine; node by node in {where}", columns, rows)


def _list_launches(plan: Plan, regions: Sequence[RegionTimes]) -> Markup:
    rows = [
        (
            x.name,
            x.engine,
            plan.get_device(x),
            len(x.nodes),
            operators(region),
            _list(x.function.inputs),
            _list(x.function.outputs),
        )
        for x, region in zip(plan.launches, regions, strict=True)
    ]
    columns = ("region", "engine", "device", ("nodes", "number"), "operators", "in", "out")
    return make_table("Regions, in the order in which they run", columns, rows)


def _list(values: Sequence[object]) -> str:
    return ", ".join(map(str, values)) or "nothing"


# ---------------------------------------------------------------------- plain facts


def color_engines(engines: Iterable[str]) -> dict[str, str]:
    """Return the color of each engine, given by name or spec: the one that it declares, if no other has it."""
    return assign_colors(engines, lambda name: find_declaration(name).color)


def list_regions(plan: Plan) -> tuple[RegionTimes, ...]:
    """Return the facts of a plan's regions, in the order in which they run."""
    number = {launch.name: index for index, launch in enumerate(plan.launches)}
    makers = {value: index for index, launch in enumerate(plan.launches) for value in launch.outputs}
    given = {value.name for value in plan.function.outputs}
    return tuple(
        RegionTimes(
            launch.name,
            launch.engine,
            len(launch.nodes),
            tuple(Counter(node.op for node in launch.function.nodes).most_common()),
            (*_readings(launch, makers), *(Reading(number[before], "") for before in launch.control)),
            not given.isdisjoint(launch.outputs),
        )
        for launch in plan.launches
    )


def _readings(launch: Launch, makers: dict[str, int]) -> Iterator[Reading]:
    for name, value in zip(launch.inputs, launch.function.inputs, strict=True):
        yield Reading(makers.get(name, INPUTS), str(value), value.type.nbytes if isinstance(value.type, TensorType) else None)
