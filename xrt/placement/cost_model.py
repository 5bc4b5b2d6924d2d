"""The planner's cost model: which parts of a model to measure, and region costs measured or estimated from those parts.

Sets of nodes and of values are integer bit masks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import pairwise
from operator import or_
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from xrt.graph import Function, TensorType, shape_key
from xrt.operators import Trait, has_trait
from xrt.partition.cost_table import BOUNDARY, LAUNCH, CostTable, MeasuredCost
from xrt.partition.device_map import DeviceMap
from xrt.partition.fold import extract_subgraph
from xrt.partition.quotient_graph import DependencyGraph
from xrt.partition.support_matrix import EligibleEngines

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.graph import Node


Region: TypeAlias = tuple[int, int]
"""Engine index and node mask."""
Partitioning: TypeAlias = tuple[Region, ...]
"""Regions in topological order; every node is in one."""
_KEYS: WeakKeyDictionary[Function, dict[int, str]] = WeakKeyDictionary()
"""Shape keys by Function and node mask: a search calls the planner many times for one Function."""
UNKNOWN_DIM = 32
"""Assumed extent of a symbolic dim."""
UNKNOWN_BYTES = 4096
"""Assumed size of a value of unknown rank, if the size of no other value is known."""
MOST_PARTS = 256
"""Maximum number of parts of one kind; the longest are kept."""


def to_mask(positions: Iterable[int]) -> int:
    """The mask of these positions."""
    return union(1 << position for position in positions)


def union(masks: Iterable[int]) -> int:
    """The union of these masks."""
    return reduce(or_, masks, 0)


def iter_bits(mask: int) -> Iterator[int]:
    """Yield the positions of the set bits, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@dataclass(frozen=True)
class PlanningGraph:
    """The cost-independent part of planning: dependencies, engine support, value sizes and shape keys."""

    function: Function
    engines: tuple[str, ...]
    """Engine specs by priority."""
    supported: tuple[int, ...]
    """Per engine, the mask of the nodes it supports."""

    @classmethod
    def of(cls, function: Function, engines: Sequence[GraphCompiler], device: str | DeviceMap = "cpu") -> PlanningGraph:
        """Build the graph by querying which nodes each engine supports."""
        homes = DeviceMap.at(device)
        eligible = EligibleEngines.of(function, engines, (), (), [homes.of(engine.spec) for engine in engines])
        supported = [0] * len(engines)
        for position, candidates in enumerate(eligible.candidates()):
            for engine in candidates:
                supported[engine] |= 1 << position
        return cls(function, eligible.engines, tuple(supported))

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
        """Per device that nodes name, the mask of those nodes; a region must not mix devices."""
        nodes = self.function.nodes
        names = sorted({node.device for node in nodes} - {""})
        return tuple(to_mask(at for at, node in enumerate(nodes) if node.device == name) for name in names)

    def supports(self, region: Region) -> bool:
        """Whether the engine supports all nodes of the region, and they name at most one device."""
        engine, mask = region
        return not mask & ~self.supported[engine] and sum(1 for device in self.devices if device & mask) < 2

    # ------------------------------------------------------------------ values

    @cached_property
    def _values(self) -> dict[str, int]:
        """The index of each value that a node defines."""
        return {name: number for number, name in enumerate(n for node in self.function.nodes for n in node.defines)}

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
        """Bytes of each value; unknown sizes are estimated."""
        types = {name: self.function.get_type(name) for name in self._values}
        sizes = [type_.nbytes for type_ in types.values() if isinstance(type_, TensorType) and type_.nbytes is not None]
        usual = int(median(sizes)) if sizes else UNKNOWN_BYTES
        return {name: _estimate_bytes(type_, usual) for name, type_ in types.items()}

    @cached_property
    def _bytes(self) -> tuple[int, ...]:
        return tuple(self.sizes.values())

    def transfer(self, values: int) -> float:
        """Seconds to pass these values between regions."""
        seconds, per_byte = BOUNDARY
        return seconds * values.bit_count() + per_byte * sum(self._bytes[value] for value in iter_bits(values))

    def inputs(self, mask: int) -> int:
        """The mask of the values that a set of nodes reads from outside."""
        nodes = list(iter_bits(mask))
        return union(self.reads[at] for at in nodes) & ~union(self.defines[at] for at in nodes)

    # ------------------------------------------------------------------ parts

    def make_subgraph(self, mask: int) -> Function:
        """Extract these nodes as a Function."""
        return extract_subgraph(self.function, tuple(iter_bits(mask)), "part")

    def key(self, mask: int) -> str:
        """The shape key of these nodes, cached; about 25 us per node."""
        keys = _KEYS.setdefault(self.function, {})
        if mask not in keys:
            keys[mask] = shape_key(self.make_subgraph(mask))
        return keys[mask]

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Per node, its shape key; nodes with equal keys cost the same."""
        return tuple(self.key(1 << at) for at in range(len(self)))

    @cached_property
    def cut_points(self) -> list[int]:
        """Positions, both ends included, at which at most one value is live."""
        last = list(range(len(self)))
        for later, predecessors in enumerate(self.dependencies.predecessors):
            for earlier in predecessors:
                last[earlier] = later
        dying = Counter(last)
        alive, cuts = 0, [0]
        for at in range(len(self)):
            alive += 1 - dying[at]
            if alive <= 1:
                cuts.append(at + 1)
        return cuts if cuts[-1] == len(self) else [*cuts, len(self)]

    @cached_property
    def _runs(self) -> list[int]:
        """Positions, both ends included, at which the operator family changes."""
        families = [classify_operator(node) for node in self.function.nodes]
        return [0, *(at for at in range(1, len(self)) if families[at] != families[at - 1]), len(self)]

    @cached_property
    def within_runs(self) -> int:
        """The mask of the nodes in runs of three or more of one family."""
        return union((1 << end) - (1 << first) for first, end in pairwise(self._runs) if end - first > 2)

    @cached_property
    def parts(self) -> tuple[int, ...]:
        """Parts worth measuring: the whole model, supported stretches, spans between cut points, runs, and single nodes."""
        ops = ["", *(node.op for node in self.function.nodes), ""]
        nodes = self.function.nodes
        products = [0, *(at for at in range(1, len(self)) if classify_operator(nodes[at]) == "product"), len(self)]
        parts = [self.whole]
        for mask in dict.fromkeys(self.supported):
            # The longest supported stretches of an engine with partial support.
            edges = [at for at in range(1, len(self)) if (mask >> at ^ mask >> at - 1) & 1]
            stretches = [pair for pair in pairwise([0, *edges, len(self)]) if mask >> pair[0] & 1]
            parts += _longest(stretches, least=1)
        for bounds in (self.cut_points, self._runs, products):
            parts += _longest(pairwise(bounds))
        singles: dict[str, int] = {}
        for at, kind in enumerate(self.kinds):
            if kind not in singles and ops[at + 1] not in (ops[at], ops[at + 2]):
                singles[kind] = 1 << at
        return tuple(dict.fromkeys(filter(None, (*parts, *singles.values()))))


def _estimate_bytes(type_: Any, usual: int) -> int:
    if not isinstance(type_, TensorType) or type_.shape is None:
        return usual
    extents = (dim if isinstance(dim, int) else UNKNOWN_DIM for dim in type_.shape)
    return math.prod(extents) * max(int(type_.dtype.numpy.itemsize), 1)


def _longest(bounds: Iterable[tuple[int, int]], least: int = 2) -> list[int]:
    stretches = [pair for pair in bounds if pair[1] - pair[0] >= least]
    return [
        (1 << end) - (1 << first) for first, end in sorted(stretches, key=lambda pair: (pair[0] - pair[1], pair))[:MOST_PARTS]
    ]


_FAMILIES = {
    Trait.PRODUCT: "product",
    Trait.REDUCTION: "reduction",
    Trait.ELEMENTWISE: "elementwise",
    Trait.MOVES: "movement",
    Trait.READS_SHAPE: "movement",
}


def classify_operator(node: Node) -> str:
    """The operator family of a node: its custom domain, or control, product, reduction, movement, else elementwise."""
    if node.domain:
        return node.domain
    if node.bodies:
        return "control"
    return next((family for trait, family in _FAMILIES.items() if has_trait(node, trait)), "elementwise")


@dataclass(frozen=True)
class CostModel:
    """Region costs: measured, or estimated from per-node costs that are fitted to the measured parts."""

    graph: PlanningGraph
    table: CostTable
    keys: Mapping[int, str]
    """Shape keys of the node masks to look up in the table."""
    node_seconds: tuple[np.ndarray, ...] = field(repr=False)
    """Per engine, the estimated seconds of each node."""

    @classmethod
    def of(cls, graph: PlanningGraph, table: CostTable, keys: Mapping[int, str] | None = None) -> CostModel:
        keys = {mask: graph.key(mask) for mask in graph.parts} if keys is None else keys
        return cls(graph, table, keys, fit_node_seconds(graph, table, keys))

    def find(self, region: Region) -> MeasuredCost | str | None:
        """The measured cost of a region, the reason why it fails, or None if it was not measured."""
        engine, mask = region
        key = self.keys.get(mask)
        return None if key is None else self.table.region(key, self.graph.engines[engine])

    def seconds(self, region: Region, estimate: float | None = None) -> float:
        """The seconds of a region: measured, else ``estimate`` or the model's estimate; infinite if it is impossible."""
        if not self.graph.supports(region):
            return math.inf
        cost = self.find(region)
        if isinstance(cost, MeasuredCost):
            return cost.seconds
        if cost is not None:
            return math.inf
        return self.estimate(region) if estimate is None else estimate

    def estimate(self, region: Region) -> float:
        """Estimate the seconds of a region: the launch plus the sum over its nodes."""
        engine, mask = region
        return LAUNCH + float(self.node_seconds[engine][list(iter_bits(mask))].sum())

    def total(self, partitioning: Partitioning) -> float:
        """The seconds of all regions and of the transfers between them."""
        return sum(self.seconds(region) + self.graph.transfer(self.graph.inputs(region[1])) for region in partitioning)


# ---------------------------------------------------------------------- shares of nodes

SWEEPS = 25
"""Iterations of the fit over all measurements. With 8 a mixture of four benchmark models was not found; 50 changed nothing."""
PER_UNIT = 2e-10
"""Seconds per byte or multiplication if no engine was measured."""
PER_PRODUCT = 0.02
"""Cost of a multiplication in a product, relative to moving a byte: products are compute bound, other operators memory bound.
Eleven models took 122 measurements with 0.02, 193 with 0.1 and 200 with 0, for the same mixtures."""
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


def fit_node_seconds(graph: PlanningGraph, table: CostTable, keys: Mapping[int, str]) -> tuple[np.ndarray, ...]:
    """Fit the seconds of each node on each engine, so that measured parts add up to their measured cost.

    Nodes with equal shape keys cost the same, and nodes of one operator about the same per unit of work. Costs are scaled, not
    shifted: the fit stays close to the estimated work, and no node becomes free.
    """
    number = {kind: at for at, kind in enumerate(dict.fromkeys(graph.kinds))}
    kinds = np.array([number[kind] for kind in graph.kinds], np.intp)
    operators = list(dict.fromkeys(node.op for node in graph.function.nodes))
    work, operator = np.ones(len(number)), np.zeros(len(number), np.intp)
    for kind, node in zip(kinds, graph.function.nodes, strict=True):
        work[kind], operator[kind] = _estimate_work(node, graph), operators.index(node.op)
    measured = [_list_measured(table, spec, keys) for spec in graph.engines]
    counts = [[np.bincount(kinds[list(iter_bits(mask))], minlength=len(number)) for mask, _ in parts] for parts in measured]
    rates = [
        median(seconds / float(row @ work) for row, (_, seconds) in zip(rows, parts, strict=True)) if parts else None
        for rows, parts in zip(counts, measured, strict=True)
    ]
    measured_rates = [rate for rate in rates if rate is not None]
    usual = median(measured_rates) if measured_rates else PER_UNIT
    node_seconds = []
    for rows, parts, rate in zip(counts, measured, rates, strict=True):
        seconds = [one for _, one in parts]
        by_operator = np.full(len(operators), usual if rate is None else rate)
        _scale(by_operator, [np.bincount(operator, row * work, len(operators)) for row in rows], seconds)
        shares = work * by_operator[operator]
        _scale(shares, rows, seconds)
        node_seconds.append(shares[kinds])
    return tuple(node_seconds)


def _list_measured(table: CostTable, spec: str, keys: Mapping[int, str]) -> list[tuple[int, float]]:
    """The measured parts of an engine, largest first, one per key: node mask, and seconds without the launch."""
    parts: dict[str, tuple[int, float]] = {}
    for mask, key in keys.items():
        if isinstance(cost := table.region(key, spec), MeasuredCost):
            parts.setdefault(key, (mask, max(cost.seconds - LAUNCH, 0.05 * cost.seconds, 1e-9)))
    return sorted(parts.values(), key=lambda part: (-part[0].bit_count(), part[0]))


def _scale(values: np.ndarray, rows: Sequence[np.ndarray], seconds: Sequence[float]) -> None:
    """Scale ``values`` in place, row by row, so that each weighted sum approaches its ``seconds``."""
    used = [np.flatnonzero(row) for row in rows]
    weights = [row[at] for row, at in zip(rows, used, strict=True)]
    for _ in range(SWEEPS):
        for at, weight, cost in zip(used, weights, seconds, strict=True):
            values[at] *= cost / max(float(values[at] @ weight), 1e-30)


def _estimate_work(node: Node, graph: PlanningGraph) -> float:
    """Estimate a node's work: bytes moved plus weighted multiplications."""
    types = graph.function.get_type
    moved = 64.0 + sum(
        graph.sizes.get(name) or getattr(types(name), "nbytes", None) or 64 for name in {*node.uses, *node.defines}
    )
    shape = getattr(types(node.inputs[1]), "shape", None) if node.op_type in _PRODUCTS and len(node.inputs) > 1 else None
    if not shape:
        return moved
    dims = [dim if isinstance(dim, int) else UNKNOWN_DIM for dim in shape]
    depth = math.prod(dims[1:]) if len(dims) > 2 else dims[0]
    return moved + PER_PRODUCT * graph.sizes[node.outputs[0]] * depth
