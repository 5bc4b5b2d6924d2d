"""Stages of a Plan: consecutive parts for processes in a row, balanced by cost, with few bytes between them.

A stage is a Plan of its own. It ends between two launches where that is balanced; otherwise launches are cut between two of their
nodes, as a region may be cut anywhere in the order of its nodes. Nothing here is measured: costs come from a cost table, or are
estimated from operations and bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from xrt.errors import PlanError
from xrt.graph import FrozenDict, Function, Node, TensorType, shape_key
from xrt.graph.gc_pause import pause_gc
from xrt.partition.clustering.cluster import Cluster
from xrt.partition.cost_table import CostTable, MeasuredCost
from xrt.partition.fold import fold
from xrt.partition.interval_partition import Sequenced, cut_sequence, find_fewest_parts
from xrt.partition.plan import Plan
from xrt.partition.subgraph import extract_subgraph

__all__ = ["Stage", "cut_plan", "cut_stages", "flatten_plan"]

SLACK = 0.03
"""What the costliest stage may cost more than necessary, for fewer bytes between stages."""
WORTH_A_CUT = 1.15
"""A launch is cut where the costliest stage would otherwise cost that many times as much; a cut loses fusions."""

_RATE = 4e10
"""Operations per second, and bytes per second below, of an estimate; only their ratio matters."""
_BYTES = 1e10


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a Plan for one process."""

    plan: Plan
    """Its inputs are what its nodes read, its outputs what others read or the model returns."""
    received: tuple[str, ...]
    """Values that arrive from the stage before: the plan's inputs, and what only later stages read."""
    sent: tuple[str, ...]
    """Values that go to the next stage, or leave the model."""
    cost: float
    """Seconds, where the plan's launches were measured; otherwise in proportion to them."""
    weight_bytes: int
    value_bytes: int
    """Bytes of the values that exist at the same time, at most."""
    sent_bytes: int
    stop: int
    """The number of the first node of the next stage."""

    def __str__(self) -> str:
        nodes = sum(len(launch.nodes) for launch in self.plan.launches)
        return (
            f"{nodes} nodes in {len(self.plan.launches)} launches, weights {_to_text(self.weight_bytes)}, "
            f"values {_to_text(self.value_bytes)}, sends {_to_text(self.sent_bytes)}"
        )


def _to_text(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def cut_stages(
    plan: Plan, count: int, memory: int | None = None, costs: CostTable | None = None, sizes: Mapping[str, int] | None = None
) -> tuple[Stage, ...]:
    """Return the plan in ``count`` stages whose weights and values each need at most ``memory`` bytes.

    The costliest stage is as cheap as possible, within `SLACK`; among such stages they send the fewest bytes. ``costs`` has
    measured regions, ``sizes`` the extents of symbolic dims (1 without it). Raises PlanError where there are no such stages.
    """
    if plan.function.aliases:
        names = ", ".join(before for before, _ in plan.function.aliases)
        raise PlanError(f"the model updates inputs in place ({names}); stages in processes of their own cannot do that")
    with pause_gc(sum(len(launch.nodes) for launch in plan.launches)):
        nodes = _Nodes(plan, costs or CostTable(), FrozenDict(sizes or {}))
        whole = cut_sequence(nodes.merge(nodes.launch_ends), count, memory, SLACK)
        ends = None if whole is None else [nodes.launch_ends[end - 1] for end in whole]
        if count <= len(nodes.list) and (ends is None or nodes.find_cost(ends) > WORTH_A_CUT * nodes.total / count):
            finer = cut_sequence(nodes.units, count, memory, SLACK)
            if finer is not None and (ends is None or nodes.find_cost(ends) > WORTH_A_CUT * nodes.find_cost(finer)):
                ends = finer
        if ends is None:
            raise PlanError(_why_not(nodes, count, memory))
        return _make_stages(nodes, ends)


def cut_plan(plan: Plan, ends: Sequence[int], sizes: Mapping[str, int] | None = None) -> tuple[Stage, ...]:
    """Return the stages that end before the nodes of those numbers: those of `cut_stages`, by their ``stop``."""
    nodes = _Nodes(plan, CostTable(), FrozenDict(sizes or {}))
    if not ends or list(ends) != sorted(set(ends)) or ends[0] < 1 or ends[-1] != len(nodes.list):
        raise PlanError(f"stages must end at ascending numbers of nodes, the last at {len(nodes.list)}; got {list(ends)}")
    return _make_stages(nodes, ends)


def _why_not(nodes: _Nodes, count: int, memory: int | None) -> str:
    if count < 1 or count > len(nodes.list):
        return f"a plan of {len(nodes.list)} nodes has 1 to {len(nodes.list)} stages; {count} were asked for"
    fewest = find_fewest_parts(nodes.units, memory or 0)
    if fewest is not None:
        return f"{count} stages of at most {_to_text(memory or 0)} each were asked for; the plan needs at least {fewest}"
    units = nodes.units
    needs = [sum(weights.values()) + live for weights, live in zip(units.weights, units.live, strict=True)]
    largest = max(range(len(needs)), key=needs.__getitem__)
    node = nodes.list[largest]
    return (
        f"{count} stages of at most {_to_text(memory or 0)} each were asked for; node {node.name!r} ({node.op}) alone needs "
        f"{_to_text(needs[largest])}"
    )


# ---------------------------------------------------------------------- a plan as a sequence of nodes


def flatten_plan(plan: Plan) -> Function:
    """Return the Function that the plan was made of, as far as the plan has it: without metadata of its own."""
    constants = {name: constant for launch in plan.launches for name, constant in launch.function.constants.items()}
    types = {name: type_ for launch in plan.launches for name, type_ in launch.function.types.items()}
    types |= {value.name: value.type for launch in plan.launches for value in launch.function.outputs if value.type is not None}
    ends = {value.name for value in (*plan.function.inputs, *plan.function.outputs)}
    opsets = {name: version for launch in plan.launches for name, version in launch.function.opsets.items()}
    return plan.function.replace(
        nodes=tuple(node for launch in _list_nodes(plan) for node in launch),
        constants=FrozenDict({**constants, **plan.function.constants}),
        types=FrozenDict({name: type_ for name, type_ in types.items() if name not in ends}),
        opsets=FrozenDict(opsets or plan.function.opsets),
    )


def _list_nodes(plan: Plan) -> Iterator[tuple[Node, ...]]:
    """Yield the nodes of each launch; those of a launch that waits for others wait for all of their nodes."""
    nodes = {launch.name: tuple(node.name for node in launch.function.nodes) for launch in plan.launches}
    for launch in plan.launches:
        before = tuple(name for other in launch.control for name in nodes[other])
        yield tuple(replace(node, control=(*node.control, *before)) if before else node for node in launch.function.nodes)


class _Nodes:
    """The nodes of a plan in an order in which they can run, with what each costs, needs and leaves."""

    def __init__(self, plan: Plan, costs: CostTable, sizes: Mapping[str, int]) -> None:
        self.plan, self.costs, self.sizes = plan, costs, sizes
        self.function = flatten_plan(plan)
        names = [node.name for launch in plan.launches for node in launch.function.nodes]
        self.list = [self.function.node(name) for name in names]
        self.owner = [number for number, launch in enumerate(plan.launches) for _ in launch.function.nodes]
        self.launch_ends = [
            stop for stop in range(1, len(names) + 1) if stop == len(names) or self.owner[stop] != self.owner[stop - 1]
        ]

    @cached_property
    def units(self) -> Sequenced:
        """Every node as a unit."""
        crossing = [sum(map(self.count_bytes, names)) for names in self.crossing]
        made = [sum(self.count_bytes(name) for name in node.defines) for node in self.list]
        live = [before + own for before, own in zip(crossing, made, strict=False)]
        weights = [
            {n: self.function.constants[n].nbytes for n in node.uses if n in self.function.constants} for node in self.list
        ]
        return Sequenced(self._costs, [0, *crossing[1:-1], 0], live, weights)

    def merge(self, ends: Sequence[int]) -> Sequenced:
        """Return the nodes in units that end there."""
        units, spans = self.units, list(pairwise((0, *ends)))
        return Sequenced(
            [sum(units.costs[start:stop]) for start, stop in spans],
            [0, *(units.cuts[end] for end in ends[:-1]), 0],
            [max(units.live[start:stop]) for start, stop in spans],
            [{n: size for one in units.weights[start:stop] for n, size in one.items()} for start, stop in spans],
        )

    @cached_property
    def total(self) -> float:
        return sum(self.units.costs)

    def find_cost(self, ends: Sequence[int]) -> float:
        """Return the cost of the costliest part."""
        return max(sum(self.units.costs[start:stop]) for start, stop in pairwise((0, *ends)))

    @cached_property
    def crossing(self) -> list[tuple[str, ...]]:
        """For each number of nodes the values that exist before that node and are read from it on, or returned."""
        last = {value.name: len(self.list) for value in self.function.outputs}
        for place, node in enumerate(self.list):
            for name in node.uses:
                last[name] = max(last.get(name, 0), place)
        alive = dict.fromkeys(value.name for value in self.function.inputs if value.name in last)
        found = [tuple(alive)]
        for place, node in enumerate(self.list):
            alive.update(dict.fromkeys(name for name in node.defines if last.get(name, -1) > place))
            for name in {*node.uses}:
                if last[name] == place:
                    alive.pop(name, None)
            found.append(tuple(alive))
        return found

    def count_bytes(self, name: str) -> int:
        """Return the bytes of a value, with 1 for an extent that is not known."""
        type_ = self.function.get_type(name)
        if not isinstance(type_, TensorType):
            return 0
        return math.prod(self.find_shape(name)) * int(type_.dtype.numpy.itemsize)

    def find_shape(self, name: str) -> tuple[int, ...]:
        type_ = self.function.get_type(name)
        if not isinstance(type_, TensorType) or type_.shape is None:
            return ()
        return tuple(dim if isinstance(dim, int) else self.sizes.get(dim or "", 1) for dim in type_.shape)

    # ------------------------------------------------------------------ costs

    @cached_property
    def _costs(self) -> list[float]:
        """The cost of each node: the measured seconds of its launch, divided by the estimates of its nodes."""
        estimates = [self._estimate(node) for node in self.list]
        whole = [0.0] * len(self.plan.launches)
        for owner, seconds in zip(self.owner, estimates, strict=True):
            whole[owner] += seconds
        measured = self._find_measured() if self.costs.regions else {}
        usual = sum(measured.values()) / (sum(whole[number] for number in measured) or 1.0) or 1.0
        factors = [measured[number] / (total or 1.0) if number in measured else usual for number, total in enumerate(whole)]
        return [seconds * factors[owner] for owner, seconds in zip(self.owner, estimates, strict=True)]

    def _find_measured(self) -> dict[int, float]:
        found = {}
        for number, launch in enumerate(self.plan.launches):
            cost = self.costs.region(shape_key(launch.function), launch.engine)
            if isinstance(cost, MeasuredCost):
                found[number] = cost.seconds
        return found

    def _estimate(self, node: Node) -> float:
        """Return seconds from the operations and bytes of a node."""
        moved = sum(map(self.count_bytes, {*node.uses, *node.defines}))
        return self._count_operations(node) / _RATE + moved / _BYTES + 1e-7

    def _count_operations(self, node: Node) -> float:
        made = math.prod(self.find_shape(node.outputs[0])) if node.outputs and node.outputs[0] else 1
        shapes = [self.find_shape(name) for name in node.inputs if name]
        if node.op_type in ("MatMul", "Gemm", "MatMulInteger", "QLinearMatMul") and shapes and shapes[0]:
            is_turned = node.op_type == "Gemm" and bool(node.attr("transA", 0))
            return 2.0 * made * shapes[0][0 if is_turned else -1]
        if node.op_type in ("Conv", "ConvInteger", "ConvTranspose") and len(shapes) > 1:
            return 2.0 * made * math.prod(shapes[1][1:])
        return float(made)


# ---------------------------------------------------------------------- parts of it as plans


def _make_stages(nodes: _Nodes, ends: Sequence[int]) -> tuple[Stage, ...]:
    return tuple(_make_stage(nodes, start, stop) for start, stop in pairwise((0, *ends)))


def _make_stage(nodes: _Nodes, start: int, stop: int) -> Stage:
    units, is_last = nodes.units, stop == len(nodes.list)
    weights = {name: size for one in units.weights[start:stop] for name, size in one.items()}
    sent = tuple(value.name for value in nodes.function.outputs) if is_last else nodes.crossing[stop]
    return Stage(
        _plan_part(nodes, start, stop),
        tuple(value.name for value in nodes.function.inputs) if not start else nodes.crossing[start],
        sent,
        sum(units.costs[start:stop]),
        sum(weights.values()),
        max(units.live[start:stop], default=0),
        sum(map(nodes.count_bytes, sent)),
        stop,
    )


def _plan_part(nodes: _Nodes, start: int, stop: int) -> Plan:
    """Return the Plan of the nodes in that range: what is left of each launch is a launch of its own."""
    plan, whole = nodes.plan, nodes.function
    order = {node.name: place for place, node in enumerate(whole.nodes)}
    chosen = sorted(order[node.name] for node in nodes.list[start:stop])
    function = extract_subgraph(whole, chosen, whole.name)
    if stop == len(nodes.list):  # an output that is a constant is made by no node
        fixed = [value for value in whole.outputs if value.name in whole.constants]
        held = {value.name: whole.constants[value.name] for value in fixed}
        function = function.replace(outputs=(*function.outputs, *fixed), constants=FrozenDict({**function.constants, **held}))
    place = {node.name: number for number, node in enumerate(function.nodes)}
    members: dict[int, list[int]] = {}
    for owner, node in zip(nodes.owner[start:stop], nodes.list[start:stop], strict=True):
        members.setdefault(owner, []).append(place[node.name])
    engines = list(dict.fromkeys(plan.launches[owner].engine for owner in members))
    clusters = [
        Cluster(tuple(sorted(own)), engines.index(plan.launches[owner].engine), plan.launches[owner].device)
        for owner, own in members.items()
    ]
    folded = fold(function, clusters, [(spec.partition("{")[0], spec) for spec in engines])
    names = {node.name for node in function.nodes}
    reasons = tuple(reason for reason in plan.reasons if reason.node in names)
    return Plan(folded, plan.engines, reasons, plan.options, plan.implicit, plan.device)
