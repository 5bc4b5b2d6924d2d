"""The planner: from measured costs, propose plans, choose the next parts to measure, and predict the cost of a plan.

The planner is deterministic: the same Function, engines and costs give the same plans, byte for byte. A set of nodes is an
integer bit mask over the node indices, and so is a set of values.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import chain, islice, pairwise, zip_longest
from operator import itemgetter, or_
from statistics import median
from typing import TYPE_CHECKING, Literal, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from xrt.graph import Function, shape_key
from xrt.measure.timing import MeasuredCost
from xrt.operators import Trait, has_trait
from xrt.partition.clustering import DependencyGraph, QuotientGraph, find_engine_sequence, minimize_cut
from xrt.partition.cost_table import BOUNDARY, LAUNCH, CostTable
from xrt.partition.fold import extract_subgraph
from xrt.partition.partitioner import plan_from_assignment
from xrt.partition.support_matrix import DeviceMap, SupportMatrix
from xrt.processes.background import OutOfTime

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.graph import Node
    from xrt.partition.plan import Launch, Plan

Region: TypeAlias = tuple[int, int]
"""Engine index and node mask."""
Partitioning: TypeAlias = tuple[Region, ...]
"""Regions in topological order; every node is in one."""
_KEYS: WeakKeyDictionary[Function, dict[int, str]] = WeakKeyDictionary()
"""Shape keys by Function and node mask: a search calls the planner many times for one Function."""


def to_mask(positions: Iterable[int]) -> int:
    return combine_masks(1 << position for position in positions)


def combine_masks(masks: Iterable[int]) -> int:
    return reduce(or_, masks, 0)


def iter_bits(mask: int) -> Iterator[int]:
    while mask:
        lowest_bit = mask & -mask
        yield lowest_bit.bit_length() - 1
        mask ^= lowest_bit


@dataclass(frozen=True)
class PlanningGraph:
    """A Function prepared for planning: dependencies, engine support, value sizes and shape keys."""

    function: Function
    engines: tuple[str, ...]
    """Specs of the engines. The planner refers to an engine by its index in this tuple."""
    supported: tuple[int, ...]
    """Per engine, the mask of the nodes it supports."""
    is_stopped: Callable[[], bool] = lambda: False
    """Whether the search no longer waits for the planner. The planner then raises OutOfTime, to leave the CPU to the race."""

    @classmethod
    def from_function(
        cls,
        function: Function,
        engines: Sequence[GraphCompiler],
        device_map: DeviceMap = DeviceMap(),
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> PlanningGraph:
        supported = [0] * len(engines)
        for index, node_engines in enumerate(SupportMatrix.of(function, engines, device_map).supporting_engines):
            for engine in node_engines:
                supported[engine] |= 1 << index
        return cls(function, tuple(engine.spec for engine in engines), tuple(supported), is_stopped)

    def __len__(self) -> int:
        return len(self.function.nodes)

    @property
    def whole(self) -> int:
        return (1 << len(self)) - 1

    @cached_property
    def dependencies(self) -> DependencyGraph:
        return DependencyGraph.of(self.function)

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """For each device that nodes are assigned to, the mask of these nodes. A region must not mix devices."""
        nodes = self.function.nodes
        names = sorted({node.device for node in nodes} - {""})
        return tuple(to_mask(index for index, node in enumerate(nodes) if node.device == name) for name in names)

    def supports(self, region: Region) -> bool:
        """Whether the engine supports all nodes of the region, and these are assigned to at most one device."""
        engine, mask = region
        unsupported = mask & ~self.supported[engine]
        return not unsupported and sum(1 for device in self.devices if device & mask) < 2

    @cached_property
    def _values(self) -> dict[str, int]:
        """The index of each value that a node defines."""
        names = (name for node in self.function.nodes for name in node.defined_names)
        return {name: index for index, name in enumerate(names)}

    @cached_property
    def defines(self) -> tuple[int, ...]:
        """Per node, the mask of the values it defines."""
        return tuple(to_mask(self._values[name] for name in node.defined_names) for node in self.function.nodes)

    @cached_property
    def reads(self) -> tuple[int, ...]:
        """Per node, the mask of the values it reads from other nodes."""
        values = self._values
        return tuple(to_mask({values[name] for name in node.uses if name in values}) for node in self.function.nodes)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Bytes of each value. A value of unknown size gets the median of the known sizes, or 0 if there are none."""
        sizes = {name: getattr(self.function.get_type(name), "nbytes", None) for name in self._values}
        static_sizes = [size for size in sizes.values() if size is not None]
        median_size = int(median(static_sizes)) if static_sizes else 0
        return {name: median_size if size is None else size for name, size in sizes.items()}

    @cached_property
    def _bytes(self) -> tuple[int, ...]:
        return tuple(self.sizes.values())

    def estimate_transfer(self, values: int) -> float:
        seconds, per_byte = BOUNDARY
        return seconds * values.bit_count() + per_byte * sum(self._bytes[value] for value in iter_bits(values))

    def find_inputs(self, mask: int) -> int:
        """Find the values that the nodes of a mask read from other nodes; returns a mask of values."""
        nodes = list(iter_bits(mask))
        defined = combine_masks(self.defines[index] for index in nodes)
        return combine_masks(self.reads[index] for index in nodes) & ~defined

    def make_subgraph(self, mask: int) -> Function:
        return extract_subgraph(self.function, tuple(iter_bits(mask)), "part")

    def get_key(self, mask: int) -> str:
        """Get the shape key of the nodes in a mask. Keys are cached, since computing one takes about 25 us per node."""
        keys = _KEYS.setdefault(self.function, {})
        if mask not in keys:
            keys[mask] = shape_key(self.make_subgraph(mask))
        return keys[mask]

    @cached_property
    def node_keys(self) -> tuple[str, ...]:
        """The shape key of each node alone. Nodes with equal keys cost the same."""
        return tuple(self.get_key(1 << index) for index in range(len(self)))

    @cached_property
    def cut_points(self) -> list[int]:
        """Positions that split the node order where the results of at most one node cross, and 0 and the number of nodes."""
        last_reader = list(range(len(self)))
        for reader, predecessors in enumerate(self.dependencies.predecessors):
            for index in predecessors:
                last_reader[index] = reader
        last_reads = Counter(last_reader)
        # `crossing` counts the nodes whose results are read later.
        crossing, cuts = 0, [0]
        # At each node its own result is added, and the results that it reads last are removed.
        for index in range(len(self)):
            crossing += 1 - last_reads[index]
            if crossing <= 1:
                cuts.append(index + 1)
        return cuts if cuts[-1] == len(self) else [*cuts, len(self)]

    @cached_property
    def _family_changes(self) -> list[int]:
        """Positions in the node order at which the operator family changes, and 0 and the number of nodes."""
        families = [classify_operator(node) for node in self.function.nodes]
        return [0, *(index for index in range(1, len(self)) if families[index] != families[index - 1]), len(self)]

    @cached_property
    def within_runs(self) -> int:
        """The mask of all nodes in runs of three or more consecutive nodes of one operator family."""
        return combine_masks(_make_mask(start, end) for start, end in pairwise(self._family_changes) if end - start > 2)

    @cached_property
    def parts(self) -> tuple[int, ...]:
        """Node masks of the parts worth measuring, without duplicates.

        The parts are the whole model, the longest stretches that an engine supports, stretches between cut points, runs of one
        operator family, stretches from one matrix product to the next, and single nodes whose neighbors are other operators.
        """
        nodes, count = self.function.nodes, len(self)
        parts = [self.whole]
        for mask in dict.fromkeys(self.supported):
            # Indices of the nodes whose support differs from that of the node before.
            changes = [index for index in range(1, count) if (mask >> index & 1) != (mask >> (index - 1) & 1)]
            parts += _select_longest((start, end) for start, end in pairwise([0, *changes, count]) if mask >> start & 1)
        products = [0, *(index for index in range(1, count) if classify_operator(nodes[index]) == "product"), count]
        for bounds in (self.cut_points, self._family_changes, products):
            parts += _select_longest((start, end) for start, end in pairwise(bounds) if end - start > 1)
        ops = ["", *(node.op for node in nodes), ""]
        single_nodes: dict[str, int] = {}
        for index, (previous, op, following) in enumerate(zip(ops, ops[1:], ops[2:], strict=False)):
            if op not in (previous, following):
                single_nodes.setdefault(self.node_keys[index], 1 << index)
        return tuple(dict.fromkeys(mask for mask in (*parts, *single_nodes.values()) if mask))


def _make_mask(start: int, end: int) -> int:
    """Make the mask of the nodes from ``start`` to before ``end``."""
    return (1 << end) - (1 << start)


def _select_longest(stretches: Iterable[tuple[int, int]]) -> list[int]:
    longest_first = sorted((start - end, start, end) for start, end in stretches)
    return [_make_mask(start, end) for _, start, end in longest_first[:MAX_ATOMS]]


_FAMILIES = {
    Trait.PRODUCT: "product",
    Trait.REDUCTION: "reduction",
    Trait.ELEMENTWISE: "elementwise",
    Trait.MOVES: "movement",
    Trait.READS_SHAPE: "movement",
}


def classify_operator(node: Node) -> str:
    """Return a node's operator family: control, product, reduction, movement or elementwise; of a custom operator its domain."""
    if node.domain:
        return node.domain
    if node.bodies:
        return "control"
    return next((family for trait, family in _FAMILIES.items() if has_trait(node, trait)), "elementwise")


@dataclass(frozen=True)
class CostModel:
    """The costs of regions: as measured, or estimated as the sum of node costs that are fitted to the measured parts."""

    graph: PlanningGraph
    table: CostTable
    keys: Mapping[int, str]
    node_seconds: tuple[np.ndarray, ...] = field(repr=False)
    """Per engine, the fitted seconds of each node."""

    @classmethod
    def fit(cls, graph: PlanningGraph, table: CostTable, keys: Mapping[int, str] | None = None) -> CostModel:
        """Fit node costs to the table's costs of the parts in ``keys``, by default all parts of the graph."""
        keys = {mask: graph.get_key(mask) for mask in graph.parts} if keys is None else keys
        return cls(graph, table, keys, fit_node_seconds(graph, table, keys))

    def find_measured(self, region: Region) -> MeasuredCost | str | None:
        """Find the measured cost of a region, or the reason why it fails; None if it was not measured."""
        engine, mask = region
        key = self.keys.get(mask)
        return None if key is None else self.table.region(key, self.graph.engines[engine])

    def seconds(self, region: Region, estimate: float | None = None) -> float:
        """Return the seconds of a region: as measured, else ``estimate``, else an estimate from node costs.

        Infinite if the engine does not support the region or failed on it. Raises OutOfTime if the planner was stopped.
        """
        if self.graph.is_stopped():
            raise OutOfTime("the planner was stopped")
        if not self.graph.supports(region):
            return math.inf
        cost = self.find_measured(region)
        if isinstance(cost, MeasuredCost):
            return cost.seconds
        if cost is not None:
            return math.inf
        return self.estimate(region) if estimate is None else estimate

    def estimate(self, region: Region) -> float:
        engine, mask = region
        return LAUNCH + float(self.node_seconds[engine][list(iter_bits(mask))].sum())

    def compute_total(self, partitioning: Partitioning) -> float:
        total = 0.0
        for region in partitioning:
            total += self.seconds(region) + self.graph.estimate_transfer(self.graph.find_inputs(region[1]))
        return total


FIT_ITERATIONS = 25
"""Iterations of the fit over all measurements. With 8 iterations, one of the four mixtures that are fastest on benchmark models
was not found; 50 iterations changed nothing."""
BYTES_PER_MULTIPLICATION = 0.02
"""Cost of a multiplication in a matrix product or convolution, as the number of moved bytes that cost as much. Eleven models took
122 measurements with 0.02, 193 with 0.1 and 200 with 0, for the same mixtures."""
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


def fit_node_seconds(graph: PlanningGraph, table: CostTable, keys: Mapping[int, str]) -> tuple[np.ndarray, ...]:
    """Fit the seconds of each node on each engine, so that the nodes of measured parts add up to the measured cost.

    Returns an array over the nodes for each engine. Nodes with equal shape keys cost the same. The fit only multiplies costs, so
    that they stay positive and close to the estimated work.
    """
    # Nodes with equal shape keys are one kind.
    kind_index = {key: index for index, key in enumerate(dict.fromkeys(graph.node_keys))}
    kinds = np.array([kind_index[key] for key in graph.node_keys], np.intp)
    operators = list(dict.fromkeys(node.op for node in graph.function.nodes))
    work_of_kind, operator_of_kind = np.ones(len(kind_index)), np.zeros(len(kind_index), np.intp)
    for kind, node in zip(kinds, graph.function.nodes, strict=True):
        work_of_kind[kind] = _estimate_work(node, graph)
        operator_of_kind[kind] = operators.index(node.op)

    # For each engine: the seconds of the measured parts, and for each part the number of its nodes of each kind.
    seconds_by_engine, counts_by_engine = [], []
    for spec in graph.engines:
        measured = _list_measured(table, spec, keys)
        seconds_by_engine.append([seconds for _, seconds in measured])
        node_lists = [list(iter_bits(mask)) for mask, _ in measured]
        counts_by_engine.append([np.bincount(kinds[nodes], minlength=len(kind_index)) for nodes in node_lists])
    # Seconds per byte of work. An engine that was not measured gets the median rate of the others.
    rates: dict[int, float] = {}
    for engine, (seconds, counts) in enumerate(zip(seconds_by_engine, counts_by_engine, strict=True)):
        if seconds:
            rates[engine] = median((np.array(seconds) / [float(row @ work_of_kind) for row in counts]).tolist())
    default_rate = median(rates.values()) if rates else BOUNDARY[1]

    node_seconds = []
    for engine, (seconds, counts) in enumerate(zip(seconds_by_engine, counts_by_engine, strict=True)):
        # Fit a rate per operator first: most nodes were not measured alone, and get the rate of their operator.
        rate_of_operator = np.full(len(operators), rates.get(engine, default_rate))
        _scale(rate_of_operator, [np.bincount(operator_of_kind, row * work_of_kind, len(operators)) for row in counts], seconds)
        seconds_of_kind = work_of_kind * rate_of_operator[operator_of_kind]
        _scale(seconds_of_kind, counts, seconds)
        node_seconds.append(seconds_of_kind[kinds])
    return tuple(node_seconds)


def _list_measured(table: CostTable, spec: str, keys: Mapping[int, str]) -> list[tuple[int, float]]:
    """List (node mask, seconds without the launch) of the measured parts, largest first, one for each shape key."""
    parts: dict[str, tuple[int, float]] = {}
    for mask, key in keys.items():
        if isinstance(cost := table.region(key, spec), MeasuredCost):
            # The fit needs positive seconds, and a small part may take less than the usual launch: then a small share of the
            # measured time remains, or a nanosecond if the measured time is 0.
            parts.setdefault(key, (mask, max(cost.seconds - LAUNCH, 0.05 * cost.seconds, 1e-9)))
    return sorted(parts.values(), key=lambda part: (-part[0].bit_count(), part[0]))


def _scale(values: np.ndarray, rows: Sequence[np.ndarray], seconds: Sequence[float]) -> None:
    """Scale ``values`` in place, so that for each row the weighted sum ``values @ row`` approaches its ``seconds``."""
    used = [np.flatnonzero(row) for row in rows]
    weights = [row[index] for row, index in zip(rows, used, strict=True)]
    for _ in range(FIT_ITERATIONS):
        for index, weight, cost in zip(used, weights, seconds, strict=True):
            # One factor for all nodes of a part keeps their costs positive, and in the same ratio to each other.
            values[index] *= cost / max(float(values[index] @ weight), 1e-30)  # 1e-30: never divide by 0


def _estimate_work(node: Node, graph: PlanningGraph) -> float:
    """Estimate a node's work in bytes: the bytes it moves, and the multiplications of a product converted to bytes."""
    types = graph.function.get_type
    moved = 64.0  # no node is free
    for name in {*node.uses, *node.defined_names}:
        moved += graph.sizes.get(name) or getattr(types(name), "nbytes", None) or 64  # 64: the size is unknown or 0
    if node.op_type not in _PRODUCTS or len(node.inputs) < 2:
        return moved
    shape = getattr(types(node.inputs[1]), "shape", None)
    if not shape or not all(isinstance(dim, int) for dim in shape):
        return moved
    # Multiplications per output element: of a convolution over the kernel, of a matrix product over the rows of the weight.
    depth = math.prod(shape[1:]) if len(shape) > 2 else shape[0]
    return float(moved + BYTES_PER_MULTIPLICATION * graph.sizes[node.outputs[0]] * depth)


MIN_GAIN = 0.05
"""A mixture is proposed only if it is predicted to save this share of the best plan's time. Predictions ignore the effect of a
boundary on caches and threads, and rounds vary by 1 to 8 %, so that a smaller gain rarely wins a race. Eleven models took 122
measurements with 5 %, and 332 with 2 %."""
UNCERTAINTY = 2.0
"""Factor by which a time may be wrong: an engine may be this much faster on a part than estimated, and a time measured while
libraries were imported may be this many times too long. On eleven models the search took 122 measurements with 2 and 206 with 4.
With 1 it found none of the four mixtures that are fastest on these models."""
MAX_ATOMS = 128
"""Maximum atoms (stretches of nodes that are placed as one), and maximum parts to measure of one kind, such as stretches between
cut points. To plan with 128 atoms takes 0.1 s, with quadratic growth. With 32, 128 and 256 parts, twelve models with simulated
costs took the same measurements, for the same mixtures."""
MAX_CANDIDATES = 4
"""Maximum partitionings whose regions are measured, mixtures that race, and parts that are measured before the next are chosen.
With 2, 4 and 8, eleven models took the same measurements, for the same mixtures. On thirty graphs of up to 60 nodes, with 1, 2
and 4 parts at a time, the search took 2,705, 2,585 and 2,678 measurements, and 65, 31 and 18 s to plan."""


def iter_partitionings(costs: CostModel) -> Iterator[Partitioning]:
    """Yield the partitionings to compare: one engine, one engine as far as possible, and the cheapest engines."""
    graph = costs.graph
    engines = range(len(graph.engines))
    for engine in engines:
        if graph.supports((engine, graph.whole)):
            yield ((engine, graph.whole),)
    # As many nodes as possible on one engine, and the other nodes on the next engine that supports them.
    for preferred in engines:
        order = [preferred, *(engine for engine in engines if engine != preferred)]
        yield from _cluster(graph, [_find_first_supporting(graph, index, order) for index in range(len(graph))])
    yield from _cluster(graph, list_cheapest(costs))
    yield from find_best_stretches(costs)


def _find_first_supporting(graph: PlanningGraph, index: int, engines: Iterable[int]) -> int:
    """Find the first of the ``engines`` that supports a node; -1 if there is none."""
    return next((engine for engine in engines if graph.supported[engine] >> index & 1), -1)


def list_cheapest(costs: CostModel) -> list[int]:
    """List the index of the cheapest engine for each node; -1 if no engine supports it."""
    cheapest = []
    for index in range(len(costs.graph)):
        engines = sorted(range(len(costs.graph.engines)), key=lambda engine: costs.node_seconds[engine][index])
        cheapest.append(_find_first_supporting(costs.graph, index, engines))
    return cheapest


def _cluster(graph: PlanningGraph, node_engines: Sequence[int]) -> Iterator[Partitioning]:
    """Yield a partitioning into few regions, given each node's engine index; nothing if a node has no engine (-1)."""
    if -1 in node_engines:
        return
    # Each node gets a position in a sequence of engines; the nodes with one position are a region.
    units = QuotientGraph.of(graph.dependencies, node_engines, [node.device for node in graph.function.nodes])
    regions: dict[int, list[int]] = {}
    for index, position in enumerate(minimize_cut(units, find_engine_sequence(units), ())):
        regions.setdefault(position, []).append(index)
    yield tuple((node_engines[nodes[0]], to_mask(nodes)) for _, nodes in sorted(regions.items()))


def find_best_stretches(costs: CostModel) -> Iterator[Partitioning]:
    """Yield the cheapest division of the node order into stretches, each on one engine, if there is one.

    Found by dynamic programming over the atoms, in time quadratic in the number of atoms.
    """
    graph, atoms = costs.graph, list_atoms(costs)
    masks = [_make_mask(start, end) for start, end in atoms]
    defines = [combine_masks(graph.defines[start:end]) for start, end in atoms]
    reads = [combine_masks(graph.reads[start:end]) for start, end in atoms]
    node_sums = [[float(seconds[start:end].sum()) for start, end in atoms] for seconds in costs.node_seconds]
    # At index n, the cheapest way to run the first n atoms: its seconds, the first atom of its last region, and that region.
    best: list[tuple[float, int, Region]] = [(0.0, 0, (0, 0))]
    transfers: dict[int, float] = {}
    for end in range(1, len(atoms) + 1):
        best.append((math.inf, 0, (0, 0)))
        for engine in range(len(graph.engines)):
            mask = defined = read = 0
            estimate = LAUNCH
            # The region grows backwards, so that its inputs and estimate are updated instead of computed again.
            for start in range(end - 1, -1, -1):
                mask |= masks[start]
                defined |= defines[start]
                read |= reads[start]
                estimate += node_sums[engine][start]
                if not graph.supports((engine, mask)):
                    break
                if (inputs := read & ~defined) not in transfers:
                    transfers[inputs] = graph.estimate_transfer(inputs)
                seconds = best[start][0] + costs.seconds((engine, mask), estimate) + transfers[inputs]
                if seconds < best[end][0]:
                    best[end] = seconds, start, (engine, mask)
    if not atoms or not math.isfinite(best[-1][0]):
        return
    # Walk back from the end: each entry has the start of its last region.
    regions, end = [], len(atoms)
    while end:
        _, end, region = best[end]
        regions.append(region)
    yield tuple(reversed(regions))


def list_atoms(costs: CostModel) -> list[tuple[int, int]]:
    """Split the node order into atoms, stretches (start, end) that are placed as one.

    Cut where the supporting engines, the device or the cheapest engine changes, and at cut points. If that gives more than
    `MAX_ATOMS`, join neighbors that one engine supports.
    """
    graph, cheapest = costs.graph, list_cheapest(costs)
    nodes = graph.function.nodes
    if not nodes:
        return []
    supporting = [0] * len(nodes)  # per node, the mask of the engines that support it
    for engine, mask in enumerate(graph.supported):
        for index in iter_bits(mask):
            supporting[index] |= 1 << engine
    traits = [(supporting[index], node.device, cheapest[index]) for index, node in enumerate(nodes)]
    changes = [index for index in range(1, len(nodes)) if traits[index] != traits[index - 1]]
    starts = {0, *changes}
    # Add cut points at equal distances, as many as the limit leaves.
    cuts = graph.cut_points[1:-1]
    free_cuts = MAX_ATOMS - len(changes)
    if cuts and free_cuts > 0:
        starts.update(cuts[:: math.ceil(len(cuts) / free_cuts)])
    # Join up to `joined_count` consecutive atoms, as long as one of `engines` (a mask) supports all of them on one device.
    joined_count = math.ceil(len(starts) / MAX_ATOMS)
    joined_starts, engines, device = [], 0, ""
    for index, start in enumerate(sorted(starts)):
        common = supporting[start] & engines
        if index % joined_count and nodes[start].device == device and common:
            engines = common
        else:
            joined_starts.append(start)
            engines, device = supporting[start], nodes[start].device
    return list(pairwise([*joined_starts, len(nodes)]))


def rank_partitionings(graph: PlanningGraph, table: CostTable) -> tuple[CostModel, dict[Partitioning, float]]:
    """Rank the possible partitionings; return the cost model, and the seconds of each partitioning, cheapest first."""
    keys = {mask: graph.get_key(mask) for mask in graph.parts}
    measured = {key for key, _ in table.regions}
    while True:
        costs = CostModel.fit(graph, table, keys)
        totals = {p: costs.compute_total(p) for p in iter_partitionings(costs)}
        ranked = sorted((p for p in totals if math.isfinite(totals[p])), key=lambda p: (totals[p], p))
        masks_of_best = {mask for p in ranked[:MAX_CANDIDATES] for _, mask in p}
        new_keys = {mask: graph.get_key(mask) for mask in sorted(masks_of_best - keys.keys())}
        # Fit the model again with the regions of the best partitionings. If none was measured, no cost would change.
        if measured.isdisjoint(new_keys.values()):
            return costs, {p: totals[p] for p in ranked}
        keys |= new_keys


def propose_plans(
    function: Function,
    engines: Sequence[GraphCompiler],
    table: CostTable,
    *,
    device_map: DeviceMap = DeviceMap(),
    to_beat: float = math.inf,
    is_stopped: Callable[[], bool] = lambda: False,
) -> tuple[Plan, ...]:
    """Propose the plan of each engine alone and at most `MAX_CANDIDATES` mixtures, cheapest first.

    ``to_beat`` is the time of a plan in seconds: only plans predicted to be faster by the share `MIN_GAIN` are returned. Plans
    with a region known to fail are left out. Empty if a node has no engine. Raises OutOfTime soon after ``is_stopped()`` is true.
    """
    graph = PlanningGraph.from_function(function, engines, device_map, is_stopped)
    _, totals = rank_partitionings(graph, table)
    ranked = [p for p, seconds in totals.items() if seconds <= (1 - MIN_GAIN) * to_beat]
    mixtures = [p for p in ranked if len(p) > 1][:MAX_CANDIDATES]
    single_engines = [p for p in ranked if len(p) == 1]
    plans = [_make_plan(graph, p, engines, device_map) for p in (*mixtures, *single_engines)]
    # The cost model does not look up every region, so that the table may know of one that fails.
    costs = [(predict_cost(function, plan, table).seconds, plan) for plan in plans]
    possible = [(seconds, plan) for seconds, plan in costs if math.isfinite(seconds)]
    return tuple(plan for _, plan in sorted(possible, key=itemgetter(0)))


def _make_plan(graph: PlanningGraph, partitioning: Partitioning, engines: Sequence[GraphCompiler], device_map: DeviceMap) -> Plan:
    groups: dict[str, int] = {}
    node_engines: dict[str, str] = {}
    for region_index, (engine, mask) in enumerate(partitioning):
        for index in iter_bits(mask):
            name = graph.function.nodes[index].name
            groups[name] = region_index
            node_engines[name] = graph.engines[engine]
    return plan_from_assignment(graph.function, engines, node_engines, groups=groups, device_map=device_map)


@dataclass(frozen=True, slots=True)
class ProfilingRequest:
    key: str
    """The shape key of the part; repeated blocks of a model have the same key."""
    spec: str
    function: Function

    @classmethod
    def from_launch(cls, launch: Launch) -> ProfilingRequest:
        return cls(launch.function.shape_key, launch.engine, launch.function)


def choose_requests(
    function: Function,
    engines: Sequence[GraphCompiler],
    table: CostTable = CostTable(),
    *,
    device_map: DeviceMap = DeviceMap(),
    to_beat: float = math.inf,
    skipped: Collection[tuple[str, str]] = (),
    is_stopped: Callable[[], bool] = lambda: False,
) -> tuple[ProfilingRequest, ...]:
    """Choose the parts to measure next, most useful first. Of equal parts only one is chosen; none if nothing would help.

    First the whole model on each engine that supports it is chosen, then alternately regions of the best plans and parts with the
    largest potential savings. ``to_beat`` is the time of a plan in seconds: only parts that may save the share `MIN_GAIN` of it
    are returned. ``skipped`` has the (shape key, engine) pairs that cannot be measured. Raises OutOfTime soon after
    ``is_stopped()``.
    """
    graph = PlanningGraph.from_function(function, engines, device_map, is_stopped)
    wholes = [(index, graph.whole) for index in range(len(engines)) if graph.supports((index, graph.whole))]
    if requests := tuple(_list_unmeasured(graph, table, wholes, skipped)):
        return requests  # the next requests depend on their costs
    costs, ranked = rank_partitionings(graph, table)
    # A plan without a chance to win by `MIN_GAIN` is not worth a measurement.
    plans = [p for p, seconds in ranked.items() if seconds <= (1 - MIN_GAIN) * to_beat][:MAX_CANDIDATES]
    regions_by_plan = (sorted(plan, key=lambda region: (-costs.seconds(region), region)) for plan in plans)
    min_saving = MIN_GAIN * to_beat if math.isfinite(to_beat) else 0.0
    parts = _list_by_potential_saving(costs, next(iter(ranked), ()), min_saving)
    # Measured regions make the predictions of good plans exact; parts with large savings lead to new plans.
    pairs = zip_longest(chain.from_iterable(regions_by_plan), parts)
    alternating = (region for pair in pairs for region in pair if region is not None)
    return tuple(islice(_list_unmeasured(graph, table, alternating, skipped), MAX_CANDIDATES))


def _list_unmeasured(
    graph: PlanningGraph, table: CostTable, regions: Iterable[Region], skipped: Iterable[tuple[str, str]]
) -> Iterator[ProfilingRequest]:
    """Yield requests for the regions that the table lacks and that are not skipped, each key once per engine."""
    requested = set(skipped)
    for engine, mask in regions:
        subject = graph.get_key(mask), graph.engines[engine]
        if subject not in requested and table.region(*subject) is None:
            requested.add(subject)
            yield ProfilingRequest(*subject, graph.make_subgraph(mask))


def _list_by_potential_saving(costs: CostModel, best: Partitioning, min_saving: float) -> list[Region]:
    """List the parts that may save at least ``min_saving`` seconds over the ``best`` plan, largest saving first.

    The saving is the part's cost in the best plan, minus its estimate on the engine divided by `UNCERTAINTY`, times the number of
    parts with the same shape key.
    """
    graph, engines = costs.graph, range(len(costs.graph.engines))
    parts = [part for part in graph.parts if part != graph.whole]
    # `parts` has each kind of single node only once.
    counts = Counter(graph.get_key(part) for part in parts if part.bit_count() > 1) + Counter(graph.node_keys)

    def list_operators(masks: Iterable[int]) -> set[str]:
        return {graph.function.nodes[index].op for mask in masks for index in iter_bits(mask)}

    proper_parts = [mask for mask in costs.keys if mask != graph.whole]
    measured_operators = [
        list_operators(mask for mask in proper_parts if costs.find_measured((engine, mask)) is not None) for engine in engines
    ]
    savings = []
    for part in parts:
        if best:
            current_seconds = sum(costs.estimate((engine, part & mask)) for engine, mask in best if part & mask)
        else:
            current_seconds = min(costs.estimate((engine, part)) for engine in engines)
        operators = list_operators([part])
        weight = float(counts[graph.get_key(part)])
        # A node out of a run of similar nodes loses its fusion with them, and the run is measured too. With the whole weight
        # eleven models took 150 measurements instead of 122, and one of the four mixtures that are fastest was not found.
        if part.bit_count() == 1 and part & graph.within_runs:
            weight /= UNCERTAINTY**2
        for engine in engines:
            if graph.supports((engine, part)):
                estimate = costs.estimate((engine, part))
                # The engine may be surprisingly fast at an operator that was not measured on it, so the estimate is optimistic.
                if not operators <= measured_operators[engine]:
                    estimate = min(estimate, current_seconds)
                saving = weight * max(current_seconds - estimate / UNCERTAINTY, 0.0)
                if saving >= min_saving:
                    savings.append((saving, (engine, part)))
    return [region for _, region in sorted(savings, key=lambda pair: (-pair[0], pair[1]))]


@dataclass(frozen=True, slots=True)
class RegionPrediction:
    name: str
    engine: str
    nodes: int
    predicted: float | None
    """Seconds, including the launch; None if the engine cannot run it."""
    source: Literal["measured", "estimated", "impossible"]
    """How the time was predicted. ``impossible``: there is no time, because the region failed; `note` says why."""
    note: str = ""
    measured: float | None = None

    def __str__(self) -> str:
        measured = "" if self.measured is None else f", took {format_seconds(self.measured)}"
        note = f" {self.note}" if self.note else ""
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        predicted = f"predicted {format_seconds(self.predicted)} ({self.source}{note})"
        return f"{self.name} on {self.engine}, {nodes}: {predicted}{measured}"


@dataclass(frozen=True, slots=True)
class Prediction:
    seconds: float
    """Seconds per call, with transfers between regions; infinite if a region is known to fail."""
    regions: tuple[RegionPrediction, ...]


def predict_cost(function: Function, plan: Plan, table: CostTable) -> Prediction:
    """Predict the cost of a plan from the table: each region as measured, else as estimated from measured parts."""
    specs = plan.used_engines
    all_nodes = (1 << len(function.nodes)) - 1
    graph = PlanningGraph(function, specs, (all_nodes,) * len(specs))
    positions = {node.name: index for index, node in enumerate(function.nodes)}
    masks = [to_mask(positions[name] for name in launch.nodes) for launch in plan.launches]
    model = None
    regions = []
    for launch, mask in zip(plan.launches, masks, strict=True):
        cost = table.region(launch.function.shape_key, launch.engine)
        head = launch.name, launch.engine, len(launch.nodes)
        if isinstance(cost, MeasuredCost):
            regions.append(RegionPrediction(*head, cost.seconds, "measured"))
        elif cost is not None:  # the reason why the region failed
            regions.append(RegionPrediction(*head, None, "impossible", note=cost))
        else:
            model = model or CostModel.fit(graph, table)  # only if needed, since the fit takes time
            regions.append(RegionPrediction(*head, model.estimate((specs.index(launch.engine), mask)), "estimated"))
    seconds = (math.inf if region.predicted is None else region.predicted for region in regions)
    transfers = (graph.estimate_transfer(graph.find_inputs(mask)) for mask in masks)
    return Prediction(math.fsum([*seconds, *transfers]), tuple(regions))


def format_seconds(seconds: float | None) -> str:
    """Format a time with the unit that suits it.

    >>> format_seconds(0.00123), format_seconds(4.5e-6), format_seconds(12.0), format_seconds(None)
    ('1.23 ms', '4.5 us', '12 s', 'unknown')
    """
    if seconds is None:
        return "unknown"
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        if seconds * factor < 1000:
            return f"{seconds * factor:.4g} {unit}"
    return f"{seconds:.4g} s"
