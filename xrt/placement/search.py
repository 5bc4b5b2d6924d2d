"""The planner: from measured costs, propose plans, choose the next parts to measure, and predict the cost of a plan.

It is deterministic and has no clock: the same Function, engines and table give the same plans, byte for byte. Sets of nodes and
of values are integer bit masks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import chain, islice, pairwise, zip_longest
from operator import or_
from statistics import median
from typing import TYPE_CHECKING, Literal, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from xrt.graph import Function, shape_key
from xrt.operators import Trait, has_trait
from xrt.partition.clustering import DependencyGraph, QuotientGraph, find_engine_sequence, minimize_cut
from xrt.partition.cost_table import BOUNDARY, LAUNCH, CostTable, MeasuredCost
from xrt.partition.fold import extract_subgraph
from xrt.partition.partitioner import plan_from_assignment
from xrt.partition.support_matrix import EligibleEngines
from xrt.processes.background import OutOfTime

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.graph import Node
    from xrt.partition.plan import Launch, Plan
    from xrt.partition.support_matrix import DeviceMap

Region: TypeAlias = tuple[int, int]
"""Engine index and node mask."""
Partitioning: TypeAlias = tuple[Region, ...]
"""Regions in topological order; every node is in one."""
_KEYS: WeakKeyDictionary[Function, dict[int, str]] = WeakKeyDictionary()
"""Shape keys by Function and node mask: a search calls the planner many times for one Function."""


def to_mask(positions: Iterable[int]) -> int:
    """Make the bit mask in which the bits at these positions are set."""
    return union(1 << position for position in positions)


def union(masks: Iterable[int]) -> int:
    """Combine masks by a bitwise or."""
    return reduce(or_, masks, 0)


def iter_bits(mask: int) -> Iterator[int]:
    """Yield the positions of the set bits, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@dataclass(frozen=True)
class PlanningGraph:
    """A Function prepared for planning: dependencies, engine support, value sizes and shape keys; costs are in `CostModel`."""

    function: Function
    engines: tuple[str, ...]
    """Specs of the engines; the planner refers to them by index."""
    supported: tuple[int, ...]
    """Per engine, the mask of the nodes it supports."""
    is_stopped: Callable[[], bool] = lambda: False
    """Whether the search no longer waits for the planner. It then raises OutOfTime, so that it does not disturb the race."""

    @classmethod
    def from_function(
        cls,
        function: Function,
        engines: Sequence[GraphCompiler],
        device: str | DeviceMap = "cpu",
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> PlanningGraph:
        """Create the graph of a Function, after querying which nodes each engine supports."""
        eligible = EligibleEngines.of(function, engines, (), (), device)
        candidates = eligible.candidates()
        supported = (to_mask(index for index, able in enumerate(candidates) if engine in able) for engine in range(len(engines)))
        return cls(function, eligible.engines, tuple(supported), is_stopped)

    def __len__(self) -> int:
        return len(self.function.nodes)

    @property
    def whole(self) -> int:
        """The mask of all nodes."""
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
        return not mask & ~self.supported[engine] and sum(1 for device in self.devices if device & mask) < 2

    # ------------------------------------------------------------------ values

    @cached_property
    def _values(self) -> dict[str, int]:
        """The index of each value that a node defines."""
        return {name: index for index, name in enumerate(n for node in self.function.nodes for n in node.defines)}

    @cached_property
    def defines(self) -> tuple[int, ...]:
        """Per node, the mask of the values it defines."""
        return tuple(to_mask(self._values[name] for name in node.defines) for node in self.function.nodes)

    @cached_property
    def reads(self) -> tuple[int, ...]:
        """Per node, the mask of the values it reads from other nodes."""
        values = self._values
        return tuple(to_mask({values[name] for name in node.uses if name in values}) for node in self.function.nodes)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Bytes of each value; for a value of unknown size the median, and 0 if no size is known."""
        sizes = {name: getattr(self.function.get_type(name), "nbytes", None) for name in self._values}
        static_sizes = [size for size in sizes.values() if size is not None]
        usual = int(median(static_sizes)) if static_sizes else 0
        return {name: usual if size is None else size for name, size in sizes.items()}

    @cached_property
    def _bytes(self) -> tuple[int, ...]:
        return tuple(self.sizes.values())

    def estimate_transfer(self, values: int) -> float:
        """Estimate the seconds to pass values, given as a mask, from one region to another."""
        seconds, per_byte = BOUNDARY
        return seconds * values.bit_count() + per_byte * sum(self._bytes[value] for value in iter_bits(values))

    def find_inputs(self, mask: int) -> int:
        """Find the values that the nodes of a mask read from other nodes; returns a mask of values."""
        nodes = list(iter_bits(mask))
        return union(self.reads[index] for index in nodes) & ~union(self.defines[index] for index in nodes)

    # ------------------------------------------------------------------ parts

    def make_subgraph(self, mask: int) -> Function:
        """Extract the nodes in a mask as a Function."""
        return extract_subgraph(self.function, tuple(iter_bits(mask)), "part")

    def get_key(self, mask: int) -> str:
        """Get the shape key of the nodes in a mask. Keys are cached, since computing one takes about 25 us per node."""
        keys = _KEYS.setdefault(self.function, {})
        if mask not in keys:
            keys[mask] = shape_key(self.make_subgraph(mask))
        return keys[mask]

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The shape key of each node alone. Nodes with equal keys cost the same."""
        return tuple(self.get_key(1 << index) for index in range(len(self)))

    @cached_property
    def cut_points(self) -> list[int]:
        """Positions that split the node order where at most one value crosses, and 0 and the number of nodes."""
        last = list(range(len(self)))
        for later, predecessors in enumerate(self.dependencies.predecessors):
            for earlier in predecessors:
                last[earlier] = later
        dying = Counter(last)
        alive, cuts = 0, [0]
        for index in range(len(self)):
            alive += 1 - dying[index]
            if alive <= 1:
                cuts.append(index + 1)
        return cuts if cuts[-1] == len(self) else [*cuts, len(self)]

    @cached_property
    def _runs(self) -> list[int]:
        """Positions in the node order at which the operator family changes, and 0 and the number of nodes."""
        families = [classify_operator(node) for node in self.function.nodes]
        return [0, *(index for index in range(1, len(self)) if families[index] != families[index - 1]), len(self)]

    @cached_property
    def within_runs(self) -> int:
        """The mask of all nodes in runs of three or more consecutive nodes of one operator family."""
        return union((1 << end) - (1 << first) for first, end in pairwise(self._runs) if end - first > 2)

    @cached_property
    def parts(self) -> tuple[int, ...]:
        """Node masks of the parts worth measuring, without duplicates.

        The whole model, the longest stretches that an engine supports, those between cut points, runs of one operator family,
        stretches from one product to the next, and single nodes whose neighbors are other operators.
        """
        ops = ["", *(node.op for node in self.function.nodes), ""]
        nodes = self.function.nodes
        products = [0, *(index for index in range(1, len(self)) if classify_operator(nodes[index]) == "product"), len(self)]
        parts = [self.whole]
        for mask in dict.fromkeys(self.supported):
            # The longest supported stretches of an engine with partial support.
            edges = [index for index in range(1, len(self)) if (mask >> index ^ mask >> index - 1) & 1]
            stretches = [pair for pair in pairwise([0, *edges, len(self)]) if mask >> pair[0] & 1]
            parts += _select_longest(stretches, least=1)
        for bounds in (self.cut_points, self._runs, products):
            parts += _select_longest(pairwise(bounds))
        singles: dict[str, int] = {}
        for index, kind in enumerate(self.kinds):
            if kind not in singles and ops[index + 1] not in (ops[index], ops[index + 2]):
                singles[kind] = 1 << index
        return tuple(dict.fromkeys(filter(None, (*parts, *singles.values()))))


def _select_longest(bounds: Iterable[tuple[int, int]], least: int = 2) -> list[int]:
    """Return the node masks of the longest (start, end) stretches: at most `MAX_ATOMS`, each with at least ``least`` nodes."""
    stretches = [pair for pair in bounds if pair[1] - pair[0] >= least]
    return [(1 << end) - (1 << first) for first, end in sorted(stretches, key=lambda pair: (pair[0] - pair[1], pair))[:MAX_ATOMS]]


_FAMILIES = {
    Trait.PRODUCT: "product",
    Trait.REDUCTION: "reduction",
    Trait.ELEMENTWISE: "elementwise",
    Trait.MOVES: "movement",
    Trait.READS_SHAPE: "movement",
}


def classify_operator(node: Node) -> str:
    """Return a node's operator family: its domain if custom, else control, product, reduction, movement or elementwise."""
    if node.domain:
        return node.domain
    if node.bodies:
        return "control"
    return next((family for trait, family in _FAMILIES.items() if has_trait(node, trait)), "elementwise")


@dataclass(frozen=True)
class CostModel:
    """The costs of regions: as measured or, for a region that was not, the sum of node costs fitted to measured parts."""

    graph: PlanningGraph
    table: CostTable
    keys: Mapping[int, str]
    """Shape keys of the node masks to look up in the table."""
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

        Infinite if the engine does not support the region or failed on it. Raises OutOfTime if the planner was abandoned.
        """
        if self.graph.is_stopped():
            raise OutOfTime("the planner was abandoned")
        if not self.graph.supports(region):
            return math.inf
        cost = self.find_measured(region)
        if isinstance(cost, MeasuredCost):
            return cost.seconds
        if cost is not None:
            return math.inf
        return self.estimate(region) if estimate is None else estimate

    def estimate(self, region: Region) -> float:
        """Estimate the seconds of a region as the launch plus the sum of its node costs."""
        engine, mask = region
        return LAUNCH + float(self.node_seconds[engine][list(iter_bits(mask))].sum())

    def compute_total(self, partitioning: Partitioning) -> float:
        """Return the seconds of all regions and of the transfers between them."""
        return sum(
            self.seconds(region) + self.graph.estimate_transfer(self.graph.find_inputs(region[1])) for region in partitioning
        )


FIT_ITERATIONS = 25
"""Iterations of the fit over all measurements. With 8 a mixture of four benchmark models was not found; 50 changed nothing."""
BYTES_PER_MULTIPLICATION = 0.02
"""Cost of a multiplication in a product, as bytes moved: products are compute bound, other operators memory bound. Eleven models
took 122 measurements with 0.02, 193 with 0.1 and 200 with 0, for the same mixtures."""
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


def fit_node_seconds(graph: PlanningGraph, table: CostTable, keys: Mapping[int, str]) -> tuple[np.ndarray, ...]:
    """Fit the seconds of each node on each engine, so that the nodes of measured parts add up to the measured cost.

    Returns an array over the nodes for each engine. Nodes with equal shape keys cost the same; nodes of one operator start from
    the same rate per unit of work. The fit only multiplies costs, so that they stay positive and close to the estimated work.
    """
    kind_index = {kind: index for index, kind in enumerate(dict.fromkeys(graph.kinds))}
    kinds = np.array([kind_index[kind] for kind in graph.kinds], np.intp)
    # Most nodes were not measured alone: those of one operator share a rate until a measurement tells them apart.
    operators = list(dict.fromkeys(node.op for node in graph.function.nodes))
    work, operator = np.ones(len(kind_index)), np.zeros(len(kind_index), np.intp)
    for kind, node in zip(kinds, graph.function.nodes, strict=True):
        work[kind], operator[kind] = _estimate_work(node, graph), operators.index(node.op)
    measured = [_list_measured(table, spec, keys) for spec in graph.engines]
    counts = [[np.bincount(kinds[list(iter_bits(mask))], minlength=len(kind_index)) for mask, _ in parts] for parts in measured]
    rates = [
        median(seconds / float(row @ work) for row, (_, seconds) in zip(rows, parts, strict=True)) if parts else None
        for rows, parts in zip(counts, measured, strict=True)
    ]
    measured_rates = [rate for rate in rates if rate is not None]
    usual = median(measured_rates) if measured_rates else BOUNDARY[1]
    node_seconds = []
    for rows, parts, rate in zip(counts, measured, rates, strict=True):
        seconds = [cost for _, cost in parts]
        by_operator = np.full(len(operators), usual if rate is None else rate)
        _scale(by_operator, [np.bincount(operator, row * work, len(operators)) for row in rows], seconds)
        shares = work * by_operator[operator]
        _scale(shares, rows, seconds)
        node_seconds.append(shares[kinds])
    return tuple(node_seconds)


def _list_measured(table: CostTable, spec: str, keys: Mapping[int, str]) -> list[tuple[int, float]]:
    """List (node mask, seconds without the launch) of the measured parts, largest first, one for each shape key."""
    parts: dict[str, tuple[int, float]] = {}
    for mask, key in keys.items():
        if isinstance(cost := table.region(key, spec), MeasuredCost):
            parts.setdefault(key, (mask, max(cost.seconds - LAUNCH, 0.05 * cost.seconds, 1e-9)))
    return sorted(parts.values(), key=lambda part: (-part[0].bit_count(), part[0]))


def _scale(values: np.ndarray, rows: Sequence[np.ndarray], seconds: Sequence[float]) -> None:
    """Scale ``values`` in place, so that for each row the weighted sum ``values @ row`` approaches its ``seconds``."""
    used = [np.flatnonzero(row) for row in rows]
    weights = [row[index] for row, index in zip(rows, used, strict=True)]
    for _ in range(FIT_ITERATIONS):
        for index, weight, cost in zip(used, weights, seconds, strict=True):
            # Multiplication keeps every cost positive, and the ratio of nodes in a part.
            values[index] *= cost / max(float(values[index] @ weight), 1e-30)


def _estimate_work(node: Node, graph: PlanningGraph) -> float:
    """Estimate a node's work in bytes: those moved, plus the multiplications of a product converted to bytes."""
    types = graph.function.get_type
    moved = 64.0 + sum(
        graph.sizes.get(name) or getattr(types(name), "nbytes", None) or 64 for name in {*node.uses, *node.defines}
    )
    shape = getattr(types(node.inputs[1]), "shape", None) if node.op_type in _PRODUCTS and len(node.inputs) > 1 else None
    if not shape or not all(isinstance(dim, int) for dim in shape):
        return moved
    depth = math.prod(shape[1:]) if len(shape) > 2 else shape[0]
    return float(moved + BYTES_PER_MULTIPLICATION * graph.sizes[node.outputs[0]] * depth)


MIN_GAIN = 0.05
"""A mixture is proposed only if it is predicted to save this share of the best plan's time. Predictions ignore the effect of a
boundary on caches and threads, and rounds vary by 1 to 8 %: a smaller gain rarely wins its race. Eleven models took 122
measurements with 5 %, and 332 with 2 %."""
UNCERTAINTY = 2.0
"""Factor by which a time may be wrong: an engine may be this much faster on a part than estimated, and a time measured while
libraries were imported may be this many times too long. With 1 no mixture of four benchmark models was found; with 4 the search
took 206 measurements for them and seven others, not 122. Rounds of one plan vary by up to 28 %."""
MAX_ATOMS = 128
"""Maximum atoms (stretches of nodes that are placed as one), and maximum parts of one kind, of which the longest are used. 128
atoms take 0.1 s, with quadratic growth. With 32, 128 and 256 parts twelve models with simulated costs took the same measurements,
for the same mixtures."""
MAX_CANDIDATES = 4
"""How many partitionings are refined by measuring their regions, how many mixtures race, and how many parts are measured before
the next are chosen. With 2, 4 and 8 eleven models took the same measurements, for the same mixtures. With 3 and 4 twelve models
with simulated costs took 432 and 380 measurements, for mixtures of 0.870 and 0.869 of the fastest engine's time. With 1, 2 and 4
parts at a time thirty graphs of up to 60 nodes took 2,705, 2,585 and 2,678 measurements, and 65, 31 and 18 s to plan."""


# ---------------------------------------------------------------------- partitionings


def iter_partitionings(costs: CostModel) -> Iterator[Partitioning]:
    """Yield candidate partitionings.

    These are each engine alone; each engine for all nodes it supports, with the others in order for the rest; each node on its
    cheapest engine; and the best division of the node order into stretches.
    """
    graph = costs.graph
    engines = range(len(graph.engines))
    yield from (((engine, graph.whole),) for engine in engines if graph.supports((engine, graph.whole)))
    for first in engines:
        order = [first, *(engine for engine in engines if engine != first)]
        yield from _cluster(graph, [next((e for e in order if graph.supported[e] >> i & 1), -1) for i in range(len(graph))])
    yield from _cluster(graph, list_cheapest(costs))
    yield from find_best_stretches(costs)


def list_cheapest(costs: CostModel) -> list[int]:
    """List the index of the cheapest engine for each node; -1 if no engine supports it."""
    graph, seconds = costs.graph, costs.node_seconds
    supporting = ([e for e, mask in enumerate(graph.supported) if mask >> i & 1] for i in range(len(graph)))
    return [min(engines, key=lambda e, i=i: (seconds[e][i], e), default=-1) for i, engines in enumerate(supporting)]  # type: ignore[misc]


def _cluster(graph: PlanningGraph, node_engines: Sequence[int]) -> Iterator[Partitioning]:
    """Yield a partitioning into few regions, given each node's engine index; nothing if a node has none (-1)."""
    if -1 in node_engines:
        return
    units = QuotientGraph.of(graph.dependencies, node_engines, [node.device for node in graph.function.nodes])
    regions: dict[int, list[int]] = {}
    for index, slot in enumerate(minimize_cut(units, find_engine_sequence(units), ())):
        regions.setdefault(slot, []).append(index)
    yield tuple((node_engines[nodes[0]], to_mask(nodes)) for _, nodes in sorted(regions.items()))


def find_best_stretches(costs: CostModel) -> Iterator[Partitioning]:
    """Yield the cheapest division of the node order into stretches, each on one engine, or nothing if a node has no engine.

    Found by dynamic programming over the atoms, in time quadratic in their number.
    """
    graph, atoms = costs.graph, list_atoms(costs)
    masks = [(1 << end) - (1 << start) for start, end in atoms]
    defines = [union(graph.defines[start:end]) for start, end in atoms]
    reads = [union(graph.reads[start:end]) for start, end in atoms]
    node_sums = [[float(seconds[start:end].sum()) for start, end in atoms] for seconds in costs.node_seconds]
    best: list[tuple[float, int, Region]] = [(0.0, 0, (0, 0))]
    """At index n, the cheapest way to run the first n atoms: seconds, first atom of the last region, and that region."""
    transfers: dict[int, float] = {}
    for end in range(1, len(atoms) + 1):
        best.append((math.inf, 0, (0, 0)))
        for engine in range(len(graph.engines)):
            mask = inside = outside = 0
            estimate = LAUNCH
            # The region grows backwards, so that its inputs and estimate are updated instead of computed again.
            for start in range(end - 1, -1, -1):
                mask, inside, outside = mask | masks[start], inside | defines[start], outside | reads[start]
                estimate += node_sums[engine][start]
                if not graph.supports((engine, mask)):
                    break
                if (values := outside & ~inside) not in transfers:
                    transfers[values] = graph.estimate_transfer(values)
                seconds = best[start][0] + costs.seconds((engine, mask), estimate) + transfers[values]
                if seconds < best[end][0]:
                    best[end] = seconds, start, (engine, mask)
    regions, end = [], len(atoms)
    while end and math.isfinite(best[end][0]):
        _, end, region = best[end]
        regions.append(region)
    if atoms and not end:
        yield tuple(reversed(regions))


def list_atoms(costs: CostModel) -> list[tuple[int, int]]:
    """Split the node order into atoms, stretches (start, end) that are placed as one.

    Cut where the supporting engines, the device or the cheapest engine changes, and at cut points. If that gives more than
    `MAX_ATOMS`, join neighbors as long as one engine supports them all.
    """
    graph, cheapest = costs.graph, list_cheapest(costs)
    nodes = graph.function.nodes
    support_and_device = [
        (to_mask(e for e, mask in enumerate(graph.supported) if mask >> i & 1), nodes[i].device) for i in range(len(nodes))
    ]
    changes = [
        i for i in range(1, len(nodes)) if (support_and_device[i], cheapest[i]) != (support_and_device[i - 1], cheapest[i - 1])
    ]
    cuts, free_cuts = graph.cut_points[1:-1], MAX_ATOMS - len(changes)
    spread_cuts = cuts[:: -(-len(cuts) // free_cuts)] if free_cuts > 0 and cuts else []
    starts = sorted({0, *changes, *spread_cuts}) if nodes else []
    most, joined, common = max(-(-len(starts) // MAX_ATOMS), 1), [], (0, "")
    for index, start in enumerate(starts):
        engines, device = support_and_device[start]
        if index % most and device == common[1] and engines & common[0]:
            common = engines & common[0], device
        else:
            joined.append(start)
            common = engines, device
    return list(pairwise([*joined, len(nodes)]))


def rank_partitionings(graph: PlanningGraph, table: CostTable) -> tuple[CostModel, dict[Partitioning, float]]:
    """Rank the candidate partitionings by cost: returns the cost model, and the seconds of each possible one, cheapest first."""
    keys = {mask: graph.get_key(mask) for mask in graph.parts}
    measured = {key for key, _ in table.regions}
    while True:
        costs = CostModel.fit(graph, table, keys)
        totals = {p: costs.compute_total(p) for p in iter_partitionings(costs)}
        ranked = sorted((p for p in totals if math.isfinite(totals[p])), key=lambda p: (totals[p], p))
        fresh = {
            mask: graph.get_key(mask) for mask in sorted({mask for p in ranked[:MAX_CANDIDATES] for _, mask in p} - keys.keys())
        }
        # The model is fitted again with the regions of the best ones, if some were measured. Otherwise no cost would change.
        if measured.isdisjoint(fresh.values()):
            return costs, {p: totals[p] for p in ranked}
        keys = {**keys, **fresh}


def propose_plans(
    function: Function,
    engines: Sequence[GraphCompiler],
    table: CostTable,
    *,
    limit: int = MAX_CANDIDATES,
    device: str | DeviceMap = "cpu",
    to_beat: float = math.inf,
    is_stopped: Callable[[], bool] = lambda: False,
) -> tuple[Plan, ...]:
    """Propose the plan of each engine alone and at most ``limit`` mixtures, cheapest first.

    ``to_beat`` is the time of a plan in seconds: only plans predicted to be faster by the share `MIN_GAIN` are returned. Plans
    with a region known to fail are left out. Empty if a node has no engine. Raises OutOfTime soon after ``is_stopped()`` is true.
    """
    graph = PlanningGraph.from_function(function, engines, device, is_stopped)
    ranked = [p for p, seconds in rank_partitionings(graph, table)[1].items() if seconds <= (1 - MIN_GAIN) * to_beat]
    mixtures = [p for p in ranked if len(p) > 1][:limit]
    plans = [_make_plan(graph, p, engines, device) for p in (*mixtures, *(p for p in ranked if len(p) == 1))]
    seconds = [predict_cost(function, plan, table).seconds for plan in plans]
    return tuple(plans[i] for i in sorted(range(len(plans)), key=lambda i: (seconds[i], i)))


def _make_plan(
    graph: PlanningGraph, partitioning: Partitioning, engines: Sequence[GraphCompiler], device: str | DeviceMap
) -> Plan:
    nodes = graph.function.nodes
    groups = {nodes[index].name: region for region, (_, mask) in enumerate(partitioning) for index in iter_bits(mask)}
    node_engines = {name: graph.engines[partitioning[region][0]] for name, region in groups.items()}
    return plan_from_assignment(graph.function, engines, node_engines, groups=groups, device=device)


# ---------------------------------------------------------------------- the next parts to measure


@dataclass(frozen=True, slots=True)
class ProfilingRequest:
    """A request to measure a part of the model on one engine."""

    key: str
    """The shape key of the part; repeated blocks of a model have the same key."""
    spec: str
    function: Function

    @classmethod
    def from_launch(cls, launch: Launch) -> ProfilingRequest:
        """Make the request to measure a region of a plan."""
        return cls(launch.function.shape_key, launch.engine, launch.function)


def choose_requests(
    function: Function,
    engines: Sequence[GraphCompiler],
    table: CostTable = CostTable(),
    *,
    limit: int = MAX_CANDIDATES,
    device: str | DeviceMap = "cpu",
    to_beat: float = math.inf,
    skipped: Collection[tuple[str, str]] = (),
    is_stopped: Callable[[], bool] = lambda: False,
) -> tuple[ProfilingRequest, ...]:
    """Choose the parts to measure next, most useful first, equal parts once; empty if nothing would help.

    First the whole model on each engine that supports it. Then, alternately, regions of the best plans, and parts with the
    largest potential savings. ``to_beat`` is the time of a plan in seconds: only parts that may save the share `MIN_GAIN` of it
    are returned. ``skipped`` has the (shape key, engine) pairs that cannot be measured. Raises OutOfTime soon after
    ``is_stopped()``.
    """
    graph = PlanningGraph.from_function(function, engines, device, is_stopped)
    wholes = [region for e in range(len(engines)) if graph.supports(region := (e, graph.whole))]
    if requests := tuple(_list_unmeasured(graph, table, wholes, skipped)):
        return requests  # the next requests depend on their costs
    costs, ranked = rank_partitionings(graph, table)
    # A plan without a chance to win by `MIN_GAIN` is not worth a measurement.
    plans = [p for p, seconds in ranked.items() if seconds <= (1 - MIN_GAIN) * to_beat][:MAX_CANDIDATES]
    regions = (sorted(plan, key=lambda region: (-costs.seconds(region), region)) for plan in plans)
    worth = MIN_GAIN * to_beat if math.isfinite(to_beat) else 0.0
    # Alternately: regions of good plans make their predictions exact, and savings lead to plans not thought of yet.
    pairs = zip_longest(chain.from_iterable(regions), _list_by_potential_gain(costs, next(iter(ranked), ()), worth))
    return tuple(islice(_list_unmeasured(graph, table, filter(None, chain.from_iterable(pairs)), skipped), limit))


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


def _list_by_potential_gain(costs: CostModel, best: Partitioning, worth: float) -> list[Region]:
    """List parts to measure by the seconds that they may save over the ``best`` plan, largest first, at least ``worth``.

    The saving is the part's cost in the best plan, minus its estimate on the engine divided by `UNCERTAINTY`, times the number of
    such parts. If the engine was not measured on one of its operators, the estimate is at most the cost in the best plan.
    """
    graph, engines = costs.graph, range(len(costs.graph.engines))
    parts = [part for part in graph.parts if part != graph.whole]
    counts = Counter(graph.get_key(part) for part in parts if part.bit_count() > 1) + Counter(graph.kinds)

    def list_operators(masks: Iterable[int]) -> set[str]:
        return {graph.function.nodes[index].op for mask in masks for index in iter_bits(mask)}

    # An engine may be surprisingly fast at an operator that it has not run alone, so such estimates are optimistic.
    inner = [mask for mask in costs.keys if mask != graph.whole]
    tried = [list_operators(mask for mask in inner if costs.find_measured((engine, mask)) is not None) for engine in engines]
    savings = []
    for part in parts:
        in_best = [costs.estimate((engine, part & nodes)) for engine, nodes in best if part & nodes]
        # Without a best plan, the lowest estimate of an engine.
        current_seconds = sum(in_best) if best else min(costs.estimate((engine, part)) for engine in engines)
        operators = list_operators([part])
        # A node alone loses its fusion with similar nodes, and their run is measured too: a chain of 50 needs 6 measurements, not
        # 20. With its whole saving eleven models took 150 measurements, not 122, and one mixture of four was not found.
        is_cut_out = part.bit_count() == 1 and part & graph.within_runs
        weight = counts[graph.get_key(part)] / (UNCERTAINTY**2 if is_cut_out else 1.0)
        for engine in engines:
            if graph.supports((engine, part)):
                estimate = costs.estimate((engine, part))
                expected = (estimate if operators <= tried[engine] else min(estimate, current_seconds)) / UNCERTAINTY
                saving = weight * max(current_seconds - expected, 0.0)
                if saving >= worth:
                    savings.append((saving, (engine, part)))
    return [region for _, region in sorted(savings, key=lambda pair: (-pair[0], pair[1]))]


@dataclass(frozen=True, slots=True)
class RegionPrediction:
    """The predicted cost of one region of a plan, and its measured cost."""

    name: str
    engine: str
    nodes: int
    predicted: float | None
    """Seconds, including the launch; None if the engine cannot run it."""
    source: Literal["measured", "estimated", "impossible"]
    """Where the predicted time is from. ``impossible``: there is none, because the region failed; `note` says why."""
    note: str = ""
    measured: float | None = None
    """Seconds in the race; None if it was not timed."""

    def __str__(self) -> str:
        measured = "" if self.measured is None else f", took {format_seconds(self.measured)}"
        note = f" {self.note}" if self.note else ""
        nodes = f"{self.nodes} node{'s' * (self.nodes != 1)}"
        predicted = f"predicted {format_seconds(self.predicted)} ({self.source}{note})"
        return f"{self.name} on {self.engine}, {nodes}: {predicted}{measured}"


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted cost of a plan and of its regions."""

    seconds: float
    """Seconds per call, with transfers between regions; infinite if a region is known to fail."""
    regions: tuple[RegionPrediction, ...]


def predict_cost(function: Function, plan: Plan, table: CostTable) -> Prediction:
    """Predict the cost of a plan from the table: of a region as measured, else as estimated from measured parts."""
    specs = tuple(dict.fromkeys(launch.engine for launch in plan.launches))
    graph = PlanningGraph(function, specs, ((1 << len(function.nodes)) - 1,) * len(specs))
    positions = {node.name: index for index, node in enumerate(function.nodes)}
    masks = [to_mask(positions[name] for name in launch.nodes) for launch in plan.launches]
    costs = None
    regions = []
    for launch, mask in zip(plan.launches, masks, strict=True):
        cost = table.region(launch.function.shape_key, launch.engine)
        head = launch.name, launch.engine, len(launch.nodes)
        if isinstance(cost, MeasuredCost):
            regions.append(RegionPrediction(*head, cost.seconds, "measured"))
        elif cost is not None:
            regions.append(RegionPrediction(*head, None, "impossible", cost))
        else:
            costs = costs or CostModel.fit(graph, table)
            regions.append(RegionPrediction(*head, costs.estimate((specs.index(launch.engine), mask)), "estimated"))
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
