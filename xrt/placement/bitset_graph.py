"""A Function as the planner sees it: nodes and values as bits of integers, asked once what every engine takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from xrt.graph import Function, TensorType, Type, shape_key
from xrt.partition.device_map import DeviceMap
from xrt.partition.fold import extract_subgraph
from xrt.partition.quotient_graph import DependencyGraph
from xrt.partition.support_matrix import EligibleEngines

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.graph import Node

__all__ = [
    "BitsetGraph",
    "Subgraph",
    "classify_operator",
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
    "product": "Conv ConvTranspose Gemm MatMul MatMulInteger QLinearConv QLinearMatMul ConvInteger Einsum LSTM GRU RNN Attention",
    "reduction": "Softmax LogSoftmax Hardmax LayerNormalization RMSNormalization InstanceNormalization GroupNormalization "
    "BatchNormalization MeanVarianceNormalization LpNormalization LRN ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare ArgMax ArgMin TopK CumSum MaxPool AveragePool LpPool "
    "GlobalAveragePool GlobalMaxPool GlobalLpPool",
    "movement": "Transpose Reshape Flatten Squeeze Unsqueeze Concat Split Slice Gather GatherElements GatherND ScatterElements "
    "ScatterND Scatter Pad Tile Expand DepthToSpace SpaceToDepth Resize Upsample ReverseSequence Identity Shape Size Compress",
}
_FAMILY = {op: name for name, ops in _FAMILIES.items() for op in ops.split()}


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
    return "control" if node.bodies else _FAMILY.get(node.op_type, "elementwise")


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
