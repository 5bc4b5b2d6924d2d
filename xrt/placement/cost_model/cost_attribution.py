"""What a part would cost that was not measured: node by node, so that all that was measured adds up.

Each engine has a *share* for every kind of node, and a *saving* for every kind of edge: what it gains by having both ends in
one region (a fusion). A region costs a launch and its shares, less the savings of the edges inside. Shares start out in
proportion to the bytes and multiplications of a node, and are multiplied, region by region and the smallest last, until the
regions that were measured cost what they cost: first by operator, then by kind (multiplicative algebraic reconstruction,
Gordon, Bender and Herman, 1970, which stays as near to the start as it can). What is left is put down to savings (Kaczmarz,
1937).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

import numpy as np

from xrt.graph import TensorType
from xrt.partition.cost_table import CostTable, MeasuredCost
from xrt.placement.cost_model.bitset_graph import BitsetGraph, iter_bits

__all__ = ["NodeCosts"]

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
    def fit(cls, ground: BitsetGraph, table: CostTable, hope: float = 0.0) -> NodeCosts:
        """Return the shares under which the parts whose keys the ground knows cost what the table says.

        ``hope`` is what an edge is taken to save that was inside of no measured part, as a part of its cheaper end.
        """
        features = _Features(ground)
        measured = [_measured(ground, table, spec) for spec in ground.engines]
        rates = [_rate(features, regions, table.launch(spec)) for regions, spec in zip(measured, ground.engines, strict=True)]
        known = [rate for rate in rates if rate is not None]
        usual = median(known) * UNMEASURED_PENALTY if known else PER_UNIT
        fits = [
            _fit(features, regions, table.launch(spec), usual if rate is None else rate, hope)
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


def _fit(features: _Features, regions: Sequence[tuple[int, float]], launch: float, rate: float, hope: float) -> np.ndarray:
    """Return shares and savings, in the order of the features, that agree with what was measured."""
    rows = [features.rows(mask) for mask, _ in regions]
    seconds = [max(cost - launch, 0.0) for _, cost in regions]
    kinds = len(features.work)
    nodes = [(where[where < kinds], counts[where < kinds]) for where, counts in rows]
    shares = features.work * _rates(features, nodes, seconds, rate)
    _fit_multiplicative(shares, nodes, seconds)
    fit = np.concatenate([shares, np.zeros(len(features.edges))])
    _fit_fusion_gains(fit, features, rows, seconds)
    seen = {int(feature) for where, _ in rows for feature in where}
    for (a, b), edge in features.edges.items():
        if edge not in seen:
            fit[edge] = hope * min(fit[a], fit[b])
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
