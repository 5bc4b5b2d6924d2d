"""The parts of a model that are worth knowing the cost of, whatever is known already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from xrt.placement.cost_model.bitset_graph import BitsetGraph, to_mask

if TYPE_CHECKING:
    from xrt.graph import Node

__all__ = ["Subgraph", "classify_operator", "enumerate_subgraphs", "find_cut_points", "register_keys"]

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
