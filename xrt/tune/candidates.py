"""Which plans may race: those of one engine each; of any plan, whether it keeps the caller's options, and what is known of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TypeAlias

from xrt.engines import GraphCompiler
from xrt.errors import PlanError
from xrt.graph import Function
from xrt.partition import ClusteringOptions, Plan
from xrt.partition.assigned import assigned, homes_of
from xrt.partition.costs import CostTable, Measured
from xrt.partition.devices import Homes

__all__ = ["Placing", "is_allowed", "placing", "single_plans", "summed"]

Placing: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
"""For each region its engine and its nodes."""


def placing(plan: Plan) -> Placing:
    """Return what makes two plans the same: which nodes are together, on which engine."""
    return tuple((launch.engine, launch.nodes) for launch in plan.launches)


def single_plans(function: Function, engines: Sequence[GraphCompiler], homes: Homes) -> Iterator[Plan]:
    """Yield the plan of each engine that takes all nodes, those that are known to fail among them."""
    for engine in engines:
        with suppress(PlanError):
            yield assigned(function, engines, dict.fromkeys((node.name for node in function.nodes), engine.spec), device=homes)


def is_allowed(plan: Plan, engines: Sequence[GraphCompiler], options: ClusteringOptions) -> bool:
    """Whether a plan keeps pins and sizes."""
    sizes = [len(launch.nodes) for launch in plan.launches] or [1]
    most = options.maximum_nodes or max(sizes)
    return options.minimum_nodes <= min(sizes) and max(sizes) <= most and _keeps_pins(plan, engines, options)


def _keeps_pins(plan: Plan, engines: Sequence[GraphCompiler], options: ClusteringOptions) -> bool:
    homes, names = homes_of(plan), {engine.spec: engine.name for engine in engines}
    return not any(
        pin.covers(names[homes[node.name]], homes[node.name]) is pin.forbid
        for pin in options.pins
        for launch in plan.launches
        for node in launch.function.nodes
        if pin.matches(pin.subject(node))
    )


def summed(plan: Plan, table: CostTable) -> Measured | None:
    """Return what the regions of a plan were measured to take together; None where one of them was not."""
    costs = [table.region(launch.function.shape_key, launch.engine) for launch in plan.launches]
    known = [cost for cost in costs if isinstance(cost, Measured)]
    if not costs or len(known) < len(costs):
        return None
    return Measured(*(sum(figures) for figures in zip(*((one.seconds, one.low, one.high) for one in known), strict=True)))
