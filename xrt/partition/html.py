"""Notebook rendering of a Plan: a diagram and a table of its regions, and the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from xrt.engines.contract.registry import find_declaration
from xrt.graph import TensorType
from xrt.html.drawing import INPUTS, CallTimes, Reading, RegionTimes, assign_colors, list_operators, picture_plan
from xrt.html.formatting import format_count
from xrt.html.rendering import render_cell
from xrt.partition.plan import Launch, Plan, Reason, group_reasons

__all__ = ["color_engines", "describe_plan", "list_regions", "render_plan"]


def render_plan(plan: Plan) -> str:
    """Render the notebook cell of a Plan."""
    nodes = sum(len(launch.nodes) for launch in plan.launches)
    engines = [f"{spec} (fallback)" if spec == plan.implicit else spec for spec in plan.engines]
    facts = {
        "engines": ", ".join(engines),
        "device": plan.device if plan.device != "cpu" else None,
        "options": str(plan.options) or None,
        "copies": str(len(plan.copies)) if plan.copies else None,
    }
    title = f"Plan: {format_count(nodes, 'node')} in {format_count(len(plan.launches), 'region')}"
    return render_cell("plan.html", title=title, facts=facts, **describe_plan(plan, plan.reasons))


def describe_plan(plan: Plan | None, reasons: Sequence[Reason], times: CallTimes | None = None) -> dict[str, Any]:
    """Data for the macros of ``plans.html``: the diagram, launches, and reasons with equal ones in one row."""
    regions = list_regions(plan) if plan else ()
    rows = [(one.nodes, len(one.reasons), ", ".join(one.engines), one.reasons[0].text) for one in group_reasons(reasons, least=1)]
    colors = color_engines(region.engine for region in regions)
    return {
        "picture": picture_plan("this model", regions, times, colors) if regions else None,
        "launches": [_describe_launch(plan, x, region) for x, region in zip(plan.launches, regions, strict=True)] if plan else [],
        "reasons": rows,
    }


def _describe_launch(plan: Plan, x: Launch, region: RegionTimes) -> tuple[object, ...]:
    ends = (", ".join(map(str, values)) or "nothing" for values in (x.function.inputs, x.function.outputs))
    return x.name, x.engine, plan.get_device(x), len(x.nodes), list_operators(region), *ends


def color_engines(engines: Iterable[str]) -> dict[str, str]:
    """Map engines, by name or spec, to colors: the declared color unless another engine has it."""
    return assign_colors(engines, lambda name: find_declaration(name).color)


def list_regions(plan: Plan) -> tuple[RegionTimes, ...]:
    """Describe the regions of a plan in execution order."""
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
