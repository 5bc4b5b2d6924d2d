"""Which plans may race: those of one engine each; of any plan, whether it keeps the caller's options, and what is known of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from xrt.errors import PlanError
from xrt.partition import ClusteringOptions, Plan, SupportMatrix, partition
from xrt.partition.cost_table import CostTable, MeasuredCost, RegionCost
from xrt.partition.explicit import map_nodes_to_engines, plan_from_assignment

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.graph import Function
    from xrt.partition.device_map import DeviceMap
    from xrt.placement.request import PlacementRequest

__all__ = ["Candidates", "Placing", "alone", "is_allowed", "list_single_engine_plans", "make_partition_key", "sum_costs"]

Placing: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
"""For each region its engine and its nodes."""


@dataclass(frozen=True)
class Candidates:
    """The plans that there are without measuring, by what engines have answered so far."""

    function: Function
    engines: tuple[GraphCompiler, ...]
    """Engines that take part: the implicit engine only if the others leave a node."""
    options: ClusteringOptions
    implicit: str | None
    homes: DeviceMap
    everything: tuple[GraphCompiler, ...] = ()
    """The engines, the implicit one included."""

    @classmethod
    def of(cls, request: PlacementRequest, engines: Sequence[GraphCompiler]) -> Candidates:
        """Return the candidates for a request on those of its engines."""
        function, options, implicit, homes = request.function, request.clustering, request.implicit, request.device_map
        named = [engine for engine in engines if engine.spec != implicit]
        if implicit is not None and named:
            answers = SupportMatrix.of(function, named, [homes.of(engine.spec) for engine in named])
            if all(answers.supporting_engines()):
                return cls(function, tuple(named), options, None, homes, tuple(engines))
        return cls(function, tuple(engines), options, implicit, homes, tuple(engines))

    @cached_property
    def priority(self) -> Plan:
        """What the order of the list alone gives; raises PlanError where nothing takes a node."""
        where = self.homes
        return partition(
            self.function,
            self.engines,
            self.options,
            implicit=self.implicit,
            device=where.device,
            devices=where.by_engine,
            capability=self.capability,
        )

    @cached_property
    def capability(self) -> SupportMatrix:
        """What the engines have answered, asked once."""
        return SupportMatrix.of(self.function, self.engines, [self.homes.of(engine.spec) for engine in self.engines])

    @cached_property
    def wholes(self) -> tuple[Plan, ...]:
        """The plans of one engine each that keep the caller's options, those that are known to fail among them."""
        return tuple(filter(self.is_allowed, list_single_engine_plans(self.function, self.engines, self.homes, self.capability)))

    @cached_property
    def updating(self) -> tuple[Plan, ...]:
        """The plans of one engine each, but for updates of state that it would copy and another engine writes in place."""
        found = []
        for whole in self.wholes if self.function.aliases else ():
            spec = whole.launches[0].engine if whole.launches else ""
            engines = sorted(self.everything, key=lambda engine: engine.spec != spec)
            with suppress(PlanError):
                where = self.homes
                plan = partition(self.function, engines, self.options, device=where.device, devices=where.by_engine)
                if len({launch.engine for launch in plan.launches}) == 2 and is_allowed(plan, engines, self.options):
                    found.append(plan)
        return tuple(found)

    def is_allowed(self, plan: Plan) -> bool:
        return is_allowed(plan, self.engines, self.options)

    def best_alone(self, table: CostTable) -> tuple[Plan, MeasuredCost] | None:
        """Return the plan of one region that was measured to be the quickest."""
        known = [(plan, cost) for plan in self.wholes if isinstance(cost := alone(plan, table), MeasuredCost)]
        return min(known, key=lambda pair: pair[1].seconds, default=None)


def alone(plan: Plan, table: CostTable) -> RegionCost | None:
    """Return the measured cost of a plan of one region; None for other plans, and if it is unknown."""
    if len(plan.launches) != 1:
        return None
    (launch,) = plan.launches
    return table.region(launch.function.shape_key, launch.engine)


def make_partition_key(plan: Plan) -> Placing:
    """Return what makes two plans the same: which nodes are together, on which engine."""
    return tuple((launch.engine, launch.nodes) for launch in plan.launches)


def list_single_engine_plans(
    function: Function, engines: Sequence[GraphCompiler], homes: DeviceMap, capability: SupportMatrix
) -> Iterator[Plan]:
    """Yield the plan of each engine that takes all nodes, those that are known to fail among them."""
    willing = capability.supporting_engines()
    names = [node.name for node in function.nodes]
    for at, engine in enumerate(engines):
        if all(at in engines_of for engines_of in willing):
            with suppress(PlanError):
                yield plan_from_assignment(
                    function, engines, dict.fromkeys(names, engine.spec), device=homes, capability=capability
                )


def is_allowed(plan: Plan, engines: Sequence[GraphCompiler], options: ClusteringOptions) -> bool:
    """Whether a plan keeps pins and sizes."""
    sizes = [len(launch.nodes) for launch in plan.launches] or [1]
    most = options.maximum_nodes or max(sizes)
    return options.minimum_nodes <= min(sizes) and max(sizes) <= most and _keeps_pins(plan, engines, options)


def _keeps_pins(plan: Plan, engines: Sequence[GraphCompiler], options: ClusteringOptions) -> bool:
    homes, names = map_nodes_to_engines(plan), {engine.spec: engine.name for engine in engines}
    return not any(
        pin.covers(names[homes[node.name]], homes[node.name]) is pin.forbid
        for pin in options.pins
        for launch in plan.launches
        for node in launch.function.nodes
        if pin.matches(pin.subject(node))
    )


def sum_costs(plan: Plan, table: CostTable) -> MeasuredCost | None:
    """Return what the regions of a plan were measured to take together; None where one of them was not."""
    costs = [table.region(launch.function.shape_key, launch.engine) for launch in plan.launches]
    known = [cost for cost in costs if isinstance(cost, MeasuredCost)]
    if not costs or len(known) < len(costs):
        return None
    return MeasuredCost(*(sum(figures) for figures in zip(*((one.seconds, one.low, one.high) for one in known), strict=True)))
