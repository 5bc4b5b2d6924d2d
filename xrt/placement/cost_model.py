"""A Function as the planner sees it: nodes and values as bits of integers, asked once what every engine takes."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from xrt.graph import Function, TensorType, Type, shape_key
from xrt.operators import Trait, has_trait
from xrt.partition.cost_table import CostTable, MeasuredCost
from xrt.partition.device_map import DeviceMap
from xrt.partition.fold import extract_subgraph
from xrt.partition.quotient_graph import DependencyGraph
from xrt.partition.support_matrix import EligibleEngines

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.graph import Node

__all__ = [
    "BitsetGraph",
    "EngineRegion",
    "NodeCosts",
    "PartitionCostModel",
    "Partitioning",
    "SearchBudget",
    "Subgraph",
    "classify_operator",
    "coarsen",
    "enumerate_subgraphs",
    "find_cut_points",
    "iter_bits",
    "register_keys",
    "to_mask",
]

UNKNOWN_DIM = 32
"""What an extent that is known only at run time is taken to be."""
UNKNOWN_BYTES = 4096
"""The size of a value of which not even the rank is known, where nothing is known of any other either."""
_KEYS: WeakKeyDictionary[Function, dict[int, str]] = WeakKeyDictionary()
"""Keys of subgraphs by Function, as long as it lives: a tuning session calls the planner many times for one Function."""


def to_mask(places: Sequence[int]) -> int:
    """Return the set of those places as an integer."""
    mask = 0
    for place in places:
        mask |= 1 << place
    return mask


def iter_bits(mask: int) -> Iterator[int]:
    """Yield the places in a set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@dataclass(frozen=True)
class BitsetGraph:
    """What does not depend on costs: dependencies, capabilities, sizes of values, and the names of equal parts."""

    function: Function
    engines: tuple[str, ...]
    """Specs, by priority."""
    takes: tuple[int, ...]
    """For each engine the set of nodes that it takes."""
    _keys: dict[int, str] = field(default_factory=dict, repr=False)
    """Shape keys that have been computed, for whatever ground of the Function; they do not change."""
    parts: list[Subgraph] = field(default_factory=list, repr=False)
    """What `enumerate_subgraphs` found."""
    _asked: dict[int, str] = field(default_factory=dict, repr=False)
    """Those of them that have been asked for since the ground was made or `unasked`."""

    @classmethod
    def of(cls, function: Function, engines: Sequence[GraphCompiler], device: str | DeviceMap = "cpu") -> BitsetGraph:
        """Ask the engines about the nodes. Linear in nodes and edges."""
        homes = DeviceMap.at(device)
        choices = EligibleEngines.of(function, engines, (), (), [homes.of(engine.spec) for engine in engines])
        takes = [0] * len(engines)
        for place, willing in enumerate(choices.candidates()):
            for engine in willing:
                takes[engine] |= 1 << place
        return cls(function, choices.engines, tuple(takes), _KEYS.setdefault(function, {}))

    def __len__(self) -> int:
        return len(self.function.nodes)

    @property
    def whole(self) -> int:
        """The set of all nodes."""
        return (1 << len(self)) - 1

    @cached_property
    def graph(self) -> DependencyGraph:
        """Who must run before whom."""
        return DependencyGraph.of(self.function)

    @cached_property
    def devices(self) -> dict[str, int]:
        """For each device that nodes name the set of those nodes."""
        found: dict[str, int] = {}
        for place, node in enumerate(self.function.nodes):
            if node.device:
                found[node.device] = found.get(node.device, 0) | 1 << place
        return found

    def holds(self, engine: int, mask: int) -> bool:
        """Whether an engine takes all of some nodes, and they are of one device."""
        return not mask & ~self.takes[engine] and sum(1 for device in self.devices.values() if device & mask) < 2

    # ------------------------------------------------------------------ values

    @cached_property
    def values(self) -> dict[str, int]:
        """The values that nodes make, numbered."""
        return {name: number for number, name in enumerate(n for node in self.function.nodes for n in node.defines)}

    @cached_property
    def makes(self) -> tuple[int, ...]:
        """For each node the set of values that it makes."""
        return tuple(to_mask([self.values[name] for name in node.defines]) for node in self.function.nodes)

    @cached_property
    def reads(self) -> tuple[int, ...]:
        """For each node the set of values that it reads and another node makes."""
        known = self.values
        return tuple(to_mask([known[name] for name in node.uses if name in known]) for node in self.function.nodes)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """For each value its bytes, estimated where they are not known."""
        types = [self.function.get_type(name) for name in self.values]
        known = [type_.nbytes for type_ in types if isinstance(type_, TensorType) and type_.nbytes is not None]
        usual = int(median(known)) if known else UNKNOWN_BYTES
        return tuple(_bytes(type_, usual) for type_ in types)

    # ------------------------------------------------------------------ parts

    def part(self, mask: int, name: str = "part") -> Function:
        """Return those nodes as a Function of their own."""
        return extract_subgraph(self.function, tuple(iter_bits(mask)), name)

    def key(self, mask: int) -> str:
        """Return the shape key of those nodes, computed once. Linear in them, some 25 us for each."""
        key = self._asked.get(mask)
        if key is None:
            key = self._asked[mask] = self._key(mask)
        return key

    def know(self, mask: int, key: str) -> None:
        """Take the shape key of those nodes from who has it."""
        self._keys[mask] = key

    def _key(self, mask: int) -> str:
        key = self._keys.get(mask)
        if key is None:
            key = self._keys[mask] = shape_key(self.part(mask))
        return key

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """For each node the shape key of it alone: equal for nodes that cost the same."""
        return tuple(self._key(1 << place) for place in range(len(self)))

    def list_known(self) -> dict[int, str]:
        """Return the parts whose keys have been asked for, with the keys: what the shares are fitted to."""
        return self._asked

    def forget_keys(self) -> BitsetGraph:
        """Return the same ground as if no key had been asked for: what is found then does not depend on what was found before."""
        other = copy(self)
        object.__setattr__(other, "_asked", {})
        return other


def _bytes(type_: Type | None, usual: int) -> int:
    """Return the bytes of a value; each extent that is not known counts as `UNKNOWN_DIM`."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        return usual
    count: int = max(type_.dtype.numpy.itemsize, 1)
    for dim in type_.shape:
        count *= dim if isinstance(dim, int) else UNKNOWN_DIM
    return count


DIVISIONS = (2, 3, 4, 8)
"""Into how many parts of about as many nodes a model is cut at its narrow places."""
MOST_SEGMENTS = 256
"""The most parts between narrow places that are looked at, and the most runs."""
_FAMILIES = {
    Trait.PRODUCT: "product",
    Trait.REDUCTION: "reduction",
    Trait.ELEMENTWISE: "elementwise",
    Trait.MOVES: "movement",
    Trait.READS_SHAPE: "movement",
}


@dataclass(frozen=True, slots=True)
class Subgraph:
    """Some nodes, and why their cost is worth knowing."""

    mask: int
    why: str
    is_rough: bool = False
    """Whether it was cut by size alone, or out of a run of its like, and not where another sort of work begins."""


def classify_operator(node: Node) -> str:
    """Return what sort of work the node does: a product, a reduction, movement, or elementwise and all else."""
    if node.domain:
        return node.domain
    if node.bodies:
        return "control"
    return next((family for trait, family in _FAMILIES.items() if has_trait(node, trait)), "elementwise")


def enumerate_subgraphs(ground: BitsetGraph) -> tuple[Subgraph, ...]:
    """Return the whole, the longest stretches each engine supports, divisions, segments, runs and single nodes: each set once.

    Their number is bounded except for the single nodes. Linear, not counting the hashes that a caller may compute from them.
    """
    if not ground.parts:
        ground.parts.extend(_found(ground))
    return tuple(ground.parts)


def _found(ground: BitsetGraph) -> Iterable[Subgraph]:
    cuts = find_cut_points(ground)
    found: dict[int, Subgraph] = {}
    for parts in (_whole(ground), _taken(ground), _divisions(ground, cuts), _segments(cuts), _runs(ground), _singles(ground)):
        for part in parts:
            found.setdefault(part.mask, part)
    return found.values()


def register_keys(ground: BitsetGraph) -> None:
    """Ask for the keys of all standard parts, so that what is measured of them is known of."""
    for part in enumerate_subgraphs(ground):
        ground.key(part.mask)


def find_cut_points(ground: BitsetGraph) -> list[int]:
    """Return the places of the order, ends included, at which at most one value is alive: everything passes through it."""
    last = list(range(len(ground)))
    for later, earliers in enumerate(ground.graph.predecessors):
        for earlier in earliers:
            last[earlier] = later
    dying = Counter(last)
    alive, cuts = 0, [0]
    for place in range(len(ground)):
        alive += 1 - dying[place]
        if alive <= 1:
            cuts.append(place + 1)
    return cuts if cuts[-1] == len(ground) else [*cuts, len(ground)]


def _whole(ground: BitsetGraph) -> Iterator[Subgraph]:
    yield Subgraph(ground.whole, "the whole")


def _taken(ground: BitsetGraph) -> Iterator[Subgraph]:
    """Yield, for an engine that does not take all, the longest stretches that it takes."""
    for mask in dict.fromkeys(ground.takes):
        if mask != ground.whole:
            yield from (Subgraph(part, "all that an engine takes in one go") for part in _stretches(mask, len(ground)))


def _stretches(mask: int, count: int) -> list[int]:
    found, run = [], 0
    for place in range(count + 1):
        if place < count and mask >> place & 1:
            run |= 1 << place
        elif run:
            found.append(run)
            run = 0
    return sorted(found, key=lambda part: (-part.bit_count(), part))[:MOST_SEGMENTS]


def _between(first: int, end: int) -> int:
    return (1 << end) - (1 << first)


def _divisions(ground: BitsetGraph, cuts: Sequence[int]) -> Iterator[Subgraph]:
    for count in DIVISIONS:
        wanted = [len(ground) * i / count for i in range(count + 1)]
        places = sorted({min(cuts, key=lambda cut, at=at: (abs(cut - at), cut)) for at in wanted})  # type: ignore[misc]
        for first, end in pairwise(places):
            yield Subgraph(_between(first, end), f"one of {count} divisions", is_rough=True)


def _segments(cuts: Sequence[int]) -> Iterator[Subgraph]:
    """Yield the nodes between neighbouring narrow cuts, where there is more than one node."""
    wide = [(first, end) for first, end in pairwise(cuts) if end - first > 1]
    for first, end in sorted(wide, key=lambda pair: (pair[0] - pair[1], pair))[:MOST_SEGMENTS]:
        yield Subgraph(_between(first, end), "what lies between two narrow places")


def _runs(ground: BitsetGraph) -> Iterator[Subgraph]:
    """Yield runs of nodes of one family, and products with what follows them up to the next."""
    families = [classify_operator(node) for node in ground.function.nodes]
    starts = [0, *(i for i in range(1, len(ground)) if families[i] != families[i - 1])]
    products = [0, *(i for i in range(1, len(ground)) if families[i] == "product")]
    for bounds, why in ((starts, "a run of {}"), (products, "a product and what follows it")):
        runs = [(first, end) for first, end in pairwise([*bounds, len(ground)]) if end - first > 1]
        for first, end in sorted(runs, key=lambda pair: (pair[0] - pair[1], pair))[:MOST_SEGMENTS]:
            yield Subgraph(_between(first, end), why.format(families[first]))


def _singles(ground: BitsetGraph) -> Iterator[Subgraph]:
    """Yield one node of each kind, where there is one such a node that has no neighbour of its family in the order."""
    families = ["", *(classify_operator(node) for node in ground.function.nodes), ""]
    found: dict[str, Subgraph] = {}
    for place, kind in enumerate(ground.kinds):
        before, own, after = families[place : place + 3]
        part = Subgraph(to_mask([place]), f"{ground.function.nodes[place].op} alone", is_rough=own in (before, after))
        if kind not in found or (found[kind].is_rough and not part.is_rough):
            found[kind] = part
    yield from found.values()


def coarsen(
    costs: Sequence[Sequence[float]], takes: Sequence[int], devices: Sequence[str], most: int
) -> tuple[tuple[int, ...], ...]:
    """Return the atoms in at most so many stretches, merging neighbours where that loses least; more where it must not be.

    ``costs`` and ``takes`` are by engine, ``devices`` by atom. A merge loses what it costs to have both on the engine that is
    best for them together, against each on its own best. Time grows as n log n.
    """
    cuts = _Cuts(costs, takes, devices)
    while cuts.count > most and cuts.merge_cheapest():
        pass
    return cuts.stretches()


class _Cuts:
    """Stretches of atoms, known by their first, with what each costs on every engine."""

    def __init__(self, costs: Sequence[Sequence[float]], takes: Sequence[int], devices: Sequence[str]) -> None:
        self.count = len(devices)
        self._end = list(range(1, self.count + 1))
        self._previous = [start - 1 for start in range(self.count)]
        rows = [
            [one if mask >> atom & 1 else math.inf for atom, one in enumerate(row)]
            for row, mask in zip(costs, takes, strict=True)
        ]
        self._costs = [list(column) for column in zip(*rows, strict=True)]
        self._device = list(devices)
        self._alive = [True] * self.count
        self._queue = [self._entry(first, second) for first, second in pairwise(range(self.count))]
        heapq.heapify(self._queue)

    def merge_cheapest(self) -> bool:
        """Merge the two neighbours that lose least; return False where none can be merged."""
        while self._queue:
            loss, _, first, second, *ends = heapq.heappop(self._queue)
            if math.isinf(loss):
                return False
            if self._alive[first] and self._alive[second] and ends == [self._end[first], self._end[second]]:
                self._merge(first, second)
                return True
        return False

    def stretches(self) -> tuple[tuple[int, ...], ...]:
        """Return the stretches as they are."""
        return tuple(tuple(range(start, self._end[start])) for start, alive in enumerate(self._alive) if alive)

    def _merge(self, first: int, second: int) -> None:
        self.count -= 1
        self._alive[second] = False
        self._end[first] = end = self._end[second]
        self._costs[first] = _added(self._costs[first], self._costs[second])
        self._device[first] = self._device[first] or self._device[second]
        if end < len(self._end):
            self._previous[end] = first
            heapq.heappush(self._queue, self._entry(first, end))
        if (before := self._previous[first]) >= 0:
            heapq.heappush(self._queue, self._entry(before, first))

    def _entry(self, first: int, second: int) -> tuple[float, float, int, int, int, int]:
        a, b = self._costs[first], self._costs[second]
        both = min(_added(a, b))
        apart = len({self._device[first], self._device[second]} - {""}) > 1
        loss = math.inf if apart or math.isinf(both) else max(both - min(a) - min(b), 0.0)
        return loss, both, first, second, self._end[first], self._end[second]


def _added(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [x + y for x, y in zip(a, b, strict=True)]


SWEEPS = 25
"""How often the corrections go over all that was measured."""
STEP = 0.1
"""By how much a share shrinks, or its inverse grows, at most at once."""
TINY = 1e-30
"""What keeps a quotient finite."""
PER_UNIT = 2e-10
"""Seconds per byte or multiplication where no engine has been measured at all."""
UNMEASURED_PENALTY = 1.25
"""Cost multiplier for an engine without measurements, over the others: measured engines are preferred."""
MAX_FUSION_GAIN = 0.95
"""The most that an edge saves, as a part of its cheaper end: of 50 elementwise operators in one loop, 49 nearly vanish."""
PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
PER_PRODUCT = 0.02
"""A multiplication of a product or convolution, against a byte moved: products are bound by arithmetic, the rest by memory."""


@dataclass(frozen=True, slots=True)
class NodeCosts:
    """Seconds of nodes and of edges, by engine."""

    nodes: tuple[tuple[float, ...], ...]
    """For each engine the share of each node."""
    links: tuple[Mapping[tuple[int, int], float], ...]
    """For each engine the saving of each edge (earlier node, later node)."""

    @classmethod
    def fit(cls, ground: BitsetGraph, table: CostTable) -> NodeCosts:
        """Return the shares under which the parts whose keys the ground knows cost what the table says."""
        features = _Features(ground)
        measured = [_measured(ground, table, spec) for spec in ground.engines]
        rates = [_rate(features, regions, table.launch(spec)) for regions, spec in zip(measured, ground.engines, strict=True)]
        known = [rate for rate in rates if rate is not None]
        usual = median(known) * UNMEASURED_PENALTY if known else PER_UNIT
        fits = [
            _fit(features, regions, table.launch(spec), usual if rate is None else rate)
            for regions, spec, rate in zip(measured, ground.engines, rates, strict=True)
        ]
        return cls(tuple(features.by_node(fit) for fit in fits), tuple(features.by_edge(fit) for fit in fits))

    def seconds(self, engine: int, mask: int, before: Sequence[int]) -> float:
        """Return what a set of nodes costs in one region, its launch apart; ``before`` holds each node's direct predecessors."""
        nodes, links = self.nodes[engine], self.links[engine]
        total = 0.0
        for place in iter_bits(mask):
            total += nodes[place]
            if inside := before[place] & mask:
                total -= sum(links.get((earlier, place), 0.0) for earlier in iter_bits(inside))
        return max(total, 0.0)


def _measured(ground: BitsetGraph, table: CostTable, spec: str) -> list[tuple[int, float]]:
    """Return the parts that were measured on an engine, the largest first, one of each key."""
    parts: dict[str, tuple[int, float]] = {}
    for mask, key in ground.list_known().items():
        cost = table.region(key, spec)
        if isinstance(cost, MeasuredCost):
            parts.setdefault(key, (mask, cost.seconds))
    return sorted(parts.values(), key=lambda part: (-part[0].bit_count(), part[0]))


_Row: TypeAlias = tuple[np.ndarray, np.ndarray]
"""Features of a part, and how often each is in it."""


class _Features:
    """Kinds of nodes and of edges, numbered; and each part as counts of them."""

    def __init__(self, ground: BitsetGraph) -> None:
        kinds = {kind: number for number, kind in enumerate(dict.fromkeys(ground.kinds))}
        self.kind = [kinds[kind] for kind in ground.kinds]
        self.before = ground.graph.predecessors
        self.edges: dict[tuple[int, int], int] = {}
        for later, earliers in enumerate(self.before):
            for earlier in sorted(earliers):
                self.edges.setdefault((self.kind[earlier], self.kind[later]), len(kinds) + len(self.edges))
        operators = {op: number for number, op in enumerate(dict.fromkeys(node.op for node in ground.function.nodes))}
        self.work = np.ones(len(kinds))
        self.operator = np.zeros(len(kinds), dtype=np.intp)
        """For each kind of node its operator."""
        for place, kind in enumerate(self.kind):
            self.work[kind] = _work(ground, place)
            self.operator[kind] = operators[ground.function.nodes[place].op]

    def rows(self, mask: int) -> _Row:
        """Return the features of a part, and how often each is in it; savings count negative."""
        counts: dict[int, float] = {}
        for place in iter_bits(mask):
            kind = self.kind[place]
            counts[kind] = counts.get(kind, 0.0) + 1.0
            for earlier in sorted(self.before[place]):
                if mask >> earlier & 1:
                    edge = self.edges[self.kind[earlier], kind]
                    counts[edge] = counts.get(edge, 0.0) - 1.0
        return np.array(list(counts), dtype=np.intp), np.array(list(counts.values()))

    def by_node(self, fit: np.ndarray) -> tuple[float, ...]:
        """Return each node's share."""
        return tuple(float(fit[kind]) for kind in self.kind)

    def by_edge(self, fit: np.ndarray) -> dict[tuple[int, int], float]:
        """Return each edge's saving, those without one left out."""
        found = {}
        for later, earliers in enumerate(self.before):
            for earlier in sorted(earliers):
                if saving := float(fit[self.edges[self.kind[earlier], self.kind[later]]]):
                    found[earlier, later] = saving
        return found


def _work(ground: BitsetGraph, place: int) -> float:
    """Return what a node moves and multiplies, in bytes: a first guess at how costs divide."""
    node = ground.function.nodes[place]
    sizes = [_size(ground, name) for name in dict.fromkeys((*node.uses, *node.defines))]
    moved = sum(sizes) + 64.0
    if node.op_type not in PRODUCTS or len(node.inputs) < 2:
        return moved
    return moved + PER_PRODUCT * _size(ground, node.outputs[0]) * _depth(ground, node.inputs[1])


def _size(ground: BitsetGraph, name: str) -> float:
    number = ground.values.get(name)
    if number is not None:
        return float(ground.sizes[number])
    type_ = ground.function.get_type(name)
    return float(type_.nbytes or 64) if isinstance(type_, TensorType) else 64.0


def _depth(ground: BitsetGraph, weights: str) -> float:
    """Return about how many products are added up for each result."""
    type_ = ground.function.get_type(weights)
    if not isinstance(type_, TensorType) or not type_.shape:
        return 64.0
    dims = [dim if isinstance(dim, int) else 32 for dim in type_.shape]
    return float(np.prod(dims[1:])) if len(dims) > 2 else float(dims[0])


def _rate(features: _Features, regions: Sequence[tuple[int, float]], launch: float) -> float | None:
    """Return an engine's seconds per unit of work; None where nothing was measured."""
    if not regions:
        return None
    found = []
    for mask, seconds in regions:
        kinds = [features.kind[place] for place in iter_bits(mask)]
        found.append(max(seconds - launch, 0.05 * seconds, 1e-9) / float(features.work[kinds].sum()))
    return float(median(found))


def _fit(features: _Features, regions: Sequence[tuple[int, float]], launch: float, rate: float) -> np.ndarray:
    """Return shares and savings, in the order of the features, that agree with what was measured."""
    rows = [features.rows(mask) for mask, _ in regions]
    seconds = [max(cost - launch, 0.0) for _, cost in regions]
    kinds = len(features.work)
    nodes = [(where[where < kinds], counts[where < kinds]) for where, counts in rows]
    shares = features.work * _rates(features, nodes, seconds, rate)
    _fit_multiplicative(shares, nodes, seconds)
    fit = np.concatenate([shares, np.zeros(len(features.edges))])
    _fit_fusion_gains(fit, features, rows, seconds)
    return fit


def _rates(features: _Features, nodes: Sequence[_Row], seconds: Sequence[float], rate: float) -> np.ndarray:
    """Return for each kind the seconds per unit of work of its operator: what one softmax costs tells of the others."""
    count = int(features.operator.max(initial=-1)) + 1
    rows = []
    for kinds, counts in nodes:
        amounts = np.bincount(features.operator[kinds], features.work[kinds] * counts, count)
        present = np.flatnonzero(amounts)
        rows.append((present, amounts[present]))
    rates = np.full(count, rate)
    _fit_multiplicative(rates, rows, seconds)
    return np.asarray(rates[features.operator])


def _fit_multiplicative(fit: np.ndarray, rows: Sequence[_Row], seconds: Sequence[float]) -> None:
    """Multiply features, row by row, until every row costs its seconds: of all ways the one nearest to where they started."""
    for _ in range(SWEEPS):
        for (where, counts), cost in zip(rows, seconds, strict=True):
            fit[where] *= min(max(cost / max(float(fit[where] @ counts), TINY), STEP), 1 / STEP)


def _fit_fusion_gains(fit: np.ndarray, features: _Features, rows: Sequence[_Row], seconds: Sequence[float]) -> None:
    """Let edges save what regions cost less than their nodes, row by row, none more than `MAX_FUSION_GAIN` of its cheaper end."""
    kinds = len(features.work)
    most = np.array([0.0] * kinds + [MAX_FUSION_GAIN * min(fit[a], fit[b]) for a, b in features.edges])
    for _ in range(SWEEPS):
        for (where, counts), cost in zip(rows, seconds, strict=True):
            edges = where >= kinds
            if not edges.any():
                continue
            toward = most[where] ** 2 * counts * edges
            excess = float(fit[where] @ counts) - cost
            fit[where] -= excess * toward / max(float(counts @ toward), TINY)
            fit[where[edges]] = np.clip(fit[where[edges]], -most[where[edges]], most[where[edges]])


EngineRegion: TypeAlias = tuple[int, int]
"""An engine, by its place in the list, and the set of its atoms."""
Partitioning: TypeAlias = tuple[EngineRegion, ...]
"""Regions in an order in which they can run; every atom is in one."""
SMALL = 64
"""The most nodes of a model every region of which is looked up in the table as it comes up; in larger ones only parts that
are measured on purpose and the regions of plans that are proposed."""


@dataclass(slots=True)
class SearchBudget:
    """How much may still be done; counted, so that it is the same on every machine."""

    nodes: int
    """Nodes that may be hashed."""

    def spend(self, nodes: int) -> bool:
        """Take so many nodes off what is left, and return whether there was enough."""
        self.nodes -= nodes
        return self.nodes >= 0


@dataclass(frozen=True)
class PartitionCostModel:
    """Atoms, their costs, and what has been found out about sets of them."""

    ground: BitsetGraph
    table: CostTable
    shares: NodeCosts
    atoms: tuple[tuple[int, ...], ...]
    """For each atom its nodes."""
    effort: SearchBudget
    _seconds: dict[EngineRegion, float] = field(default_factory=dict, repr=False)
    _crossing: dict[int, tuple[int, int]] = field(default_factory=dict, repr=False)
    _nodes: dict[int, int] = field(default_factory=dict, repr=False)
    _sizes: dict[int, int] = field(default_factory=dict, repr=False)
    _totals: dict[Partitioning, float] = field(default_factory=dict, repr=False)

    @classmethod
    def at_node_level(cls, ground: BitsetGraph, table: CostTable, effort: SearchBudget) -> PartitionCostModel:
        """Return the board whose atoms are the nodes."""
        shares = NodeCosts.fit(ground, table)
        return cls(ground, table, shares, tuple((place,) for place in range(len(ground))), effort)

    def coarsen(self, most: int) -> PartitionCostModel:
        """Return the board with about so many atoms, each a stretch of this one's; the same board where it has no more."""
        if len(self) <= most:
            return self
        joined = coarsen(self.alone, self.takes, self.named, most)
        atoms = tuple(tuple(node for atom in stretch for node in self.atoms[atom]) for stretch in joined)
        return PartitionCostModel(self.ground, self.table, self.shares, atoms, self.effort)

    def to_nodes(self, layout: Partitioning) -> Partitioning:
        """Return the layout in nodes instead of atoms."""
        return tuple((engine, self.nodes(mask)) for engine, mask in layout)

    def to_atoms(self, layout: Partitioning) -> Partitioning:
        """Return a layout in nodes in atoms, none of which it may cut."""
        return tuple((engine, to_mask(sorted({self.atom_of_node[node] for node in iter_bits(mask)}))) for engine, mask in layout)

    def __len__(self) -> int:
        return len(self.atoms)

    # ------------------------------------------------------------------ atoms

    @cached_property
    def atom_of_node(self) -> tuple[int, ...]:
        """For each node its atom."""
        found = [0] * len(self.ground)
        for number, atom in enumerate(self.atoms):
            for place in atom:
                found[place] = number
        return tuple(found)

    @cached_property
    def before(self) -> tuple[int, ...]:
        """For each atom the set of those that it directly needs."""
        rows = [0] * len(self)
        for place, earliers in enumerate(self.ground.graph.predecessors):
            for earlier in earliers:
                rows[self.atom_of_node[place]] |= 1 << self.atom_of_node[earlier]
        return tuple(row & ~(1 << own) for own, row in enumerate(rows))

    @cached_property
    def takes(self) -> tuple[int, ...]:
        """For each engine the set of atoms that it takes."""
        masks = [to_mask(atom) for atom in self.atoms]
        return tuple(to_mask([a for a, mask in enumerate(masks) if not mask & ~takes]) for takes in self.ground.takes)

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """For each device that nodes name the set of its atoms; a region may touch one of these sets."""
        return tuple(
            to_mask(sorted({self.atom_of_node[place] for place in iter_bits(mask)})) for mask in self.ground.devices.values()
        )

    @cached_property
    def named(self) -> tuple[str, ...]:
        """For each atom the device that its nodes name; empty where none names one."""
        nodes = self.ground.function.nodes
        return tuple(max(nodes[place].device for place in atom) for atom in self.atoms)

    @cached_property
    def _makes(self) -> tuple[int, ...]:
        return tuple(_union(self.ground.makes[place] for place in atom) for atom in self.atoms)

    @cached_property
    def _reads(self) -> tuple[int, ...]:
        return tuple(_union(self.ground.reads[place] for place in atom) for atom in self.atoms)

    @cached_property
    def alone(self) -> tuple[tuple[float, ...], ...]:
        """For each engine what each atom costs in one region."""
        before = [to_mask(earlier) for earlier in self.ground.graph.predecessors]
        masks = [to_mask(atom) for atom in self.atoms]
        return tuple(tuple(self.shares.seconds(e, mask, before) for mask in masks) for e in range(len(self.ground.engines)))

    @cached_property
    def _savings(self) -> tuple[tuple[tuple[tuple[int, float], ...], ...], ...]:
        """For each engine and atom (the set of an earlier atom, what it saves to be in one region with that)."""
        return tuple(self._by_atom(links) for links in self.shares.links)

    def _by_atom(self, links: Mapping[tuple[int, int], float]) -> tuple[tuple[tuple[int, float], ...], ...]:
        found: list[dict[int, float]] = [{} for _ in self.atoms]
        for (earlier, later), saving in links.items():
            source, target = self.atom_of_node[earlier], self.atom_of_node[later]
            if source != target:
                found[target][1 << source] = found[target].get(1 << source, 0.0) + saving
        return tuple(tuple(sorted(row.items())) for row in found)

    # ------------------------------------------------------------------ regions

    def nodes(self, mask: int) -> int:
        """Return the set of nodes of a set of atoms."""
        known = self._nodes.get(mask)
        if known is None:
            known = self._nodes[mask] = _union(to_mask(self.atoms[a]) for a in iter_bits(mask))
        return known

    def allows(self, region: EngineRegion) -> bool:
        """Whether the engine takes all of the atoms, and they are of one device."""
        engine, mask = region
        return not mask & ~self.takes[engine] and sum(1 for device in self.devices if device & mask) < 2

    def seconds(self, region: EngineRegion) -> float:
        """Return what a region costs: as measured, or estimated; infinite where it is impossible."""
        known = self._seconds.get(region)
        if known is None:
            known = self._seconds[region] = self._found(region) if self.allows(region) else math.inf
        return known

    def estimate(self, region: EngineRegion) -> float:
        """Return what a region would cost by its shares."""
        engine, mask = region
        alone, savings = self.alone[engine], self._savings[engine]
        total = 0.0
        for atom in iter_bits(mask):
            total += alone[atom]
            for earlier, saving in savings[atom]:
                if earlier & mask:
                    total -= saving
        return max(total, 0.0) + self.table.launch(self.ground.engines[engine])

    def cost(self, region: EngineRegion) -> MeasuredCost | str | None:
        """Return what the table has of a region, whatever its size; None where that is nothing."""
        return self.table.region(self.ground.key(self.nodes(region[1])), self.ground.engines[region[0]])

    def _found(self, region: EngineRegion) -> float:
        mask = self.nodes(region[1])
        if mask not in self.ground.list_known():
            if len(self.ground) > SMALL or not self.effort.spend(mask.bit_count()):
                return self.estimate(region)
        cost = self.cost(region)
        if isinstance(cost, MeasuredCost):
            return cost.seconds
        return self.estimate(region) if cost is None else math.inf

    # ------------------------------------------------------------------ boundaries

    def find_boundary_values(self, mask: int) -> tuple[int, int]:
        """Return the values that a set of atoms reads from elsewhere, and those that it makes."""
        known = self._crossing.get(mask)
        if known is None:
            makes = reads = 0
            for atom in iter_bits(mask):
                makes |= self._makes[atom]
                reads |= self._reads[atom]
            known = self._crossing[mask] = (reads & ~makes, makes)
        return known

    def total(self, layout: Partitioning) -> float:
        """Return what a layout costs: its regions, and what crosses between them. Linear in regions times engines."""
        known = self._totals.get(layout)
        if known is None:
            made = self.made(layout)
            known = self._totals[layout] = sum(self.seconds(region) + self.inflow(region, made) for region in layout)
        return known

    def made(self, layout: Partitioning) -> list[int]:
        """Return for each engine the values that its regions make."""
        made = [0] * len(self.takes)
        for engine, mask in layout:
            made[engine] |= self.find_boundary_values(mask)[1]
        return made

    def inflow(self, region: EngineRegion, made: Sequence[int]) -> float:
        """Return what it costs that a region reads its inputs, each made on some engine."""
        inputs = self.find_boundary_values(region[1])[0]
        return self._entering(inputs, made, region[0]) if inputs else 0.0

    def _entering(self, inputs: int, made: Sequence[int], target: int) -> float:
        """Return what it costs that an engine reads those values, each of them made by some engine."""
        total = 0.0
        for source, values in enumerate(made):
            if values := values & inputs:
                fixed, per_byte = self._pairs[source][target]
                total += fixed * values.bit_count() + per_byte * self.size(values)
        return total

    def compute_transfer_cost(self, mask: int, source: int, target: int) -> float:
        """Return what it costs that a set of atoms on one engine reads from another engine; nothing comes from -1."""
        values = self.find_boundary_values(mask)[0]
        if source < 0 or not values:
            return 0.0
        fixed, per_byte = self._pairs[source][target]
        return fixed * values.bit_count() + per_byte * self.size(values)

    def size(self, values: int) -> int:
        """Return the bytes of a set of values."""
        known = self._sizes.get(values)
        if known is None:
            known = self._sizes[values] = sum(self.ground.sizes[value] for value in iter_bits(values))
        return known

    @cached_property
    def _pairs(self) -> tuple[tuple[tuple[float, float], ...], ...]:
        specs = self.ground.engines
        return tuple(tuple(self.table.boundary(a, b) for b in specs) for a in specs)


def _union(masks: Iterable[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found
