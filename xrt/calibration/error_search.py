"""Keep the error of a quantized model within a budget by leaving its most sensitive nodes in floating point.

The error of each part is measured with the rest exact. Errors of independent parts add in squares, which predicts the nodes to
exclude. The prediction is then measured on held-out batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from xrt.errors import CalibrationError
from xrt.graph import Function

__all__ = ["KeptNode", "QuantizationResult", "measure_error", "quantize_within"]

Array: TypeAlias = np.ndarray[Any, Any]
Outputs: TypeAlias = Sequence[Sequence[Any]]
"""The outputs of a model, in order, for each batch."""
Run: TypeAlias = Callable[[Function, Sequence[Mapping[str, Any]]], Outputs]
"""Runs a Function on batches of inputs by name."""
Quantize: TypeAlias = Callable[[frozenset[str]], Function]
"""Quantizes the nodes of these names."""
Progress: TypeAlias = Callable[[str], object]

MOST_PARTS = 48
"""Limit on parts that are measured first; in larger models a part has several nodes."""


@dataclass(frozen=True, slots=True)
class KeptNode:
    """A node that stays in floating point."""

    name: str
    error: float
    """Error of the model with only this node quantized."""


@dataclass(frozen=True, slots=True)
class QuantizationResult:
    """A model within the budget."""

    function: Function
    error: float
    """Error on the held-out batches."""
    quantized: tuple[str, ...]
    """Names of the quantized nodes."""
    kept: tuple[KeptNode, ...]
    """Nodes that stay in floating point because of the budget, worst first."""
    runs: int
    """Number of models that were run."""


def measure_error(expected: Outputs, actual: Outputs) -> float:
    """The relative error of the worst output: the norm of the difference over the norm of the output, over all batches.

    Infinite if an output has unexpected NaN or infinities. Without floating-point outputs, the fraction of integer and boolean
    elements that differ.
    """
    places = range(len(expected[0]))
    floats = [place for place in places if np.asarray(expected[0][place]).dtype.kind == "f"]
    measure = _measure_floats if floats else _measure_integers
    columns = ([(a[place], b[place]) for a, b in zip(expected, actual, strict=True)] for place in floats or places)
    return max(map(measure, columns), default=0.0)


def _measure_floats(pairs: Sequence[tuple[Any, Any]]) -> float:
    squares = norm = 0.0
    for a, b in pairs:
        exact, near = np.asarray(a, np.float64), np.asarray(b, np.float64)
        usable = np.isfinite(exact)
        if not np.array_equal(exact[~usable], near[~usable], equal_nan=True) or not np.isfinite(near[usable]).all():
            return math.inf
        squares += float(((exact[usable] - near[usable]) ** 2).sum())
        norm += float((exact[usable] ** 2).sum())
    if not squares:
        return 0.0
    return math.sqrt(squares / norm) if norm else math.inf


def _measure_integers(pairs: Sequence[tuple[Any, Any]]) -> float:
    differing = sum(int((np.asarray(a) != np.asarray(b)).sum()) for a, b in pairs)
    return differing / max(1, sum(np.asarray(a).size for a, _ in pairs))


@dataclass(frozen=True, slots=True)
class _Part:
    """Nodes that are quantized together, and the error of the model with only these quantized."""

    names: tuple[str, ...]
    error: float


@dataclass
class _Search:
    """The state of a search on the selection batches."""

    quantize: Quantize
    run: Run
    batches: Sequence[Mapping[str, Any]]
    expected: Outputs
    progress: Progress
    runs: int = 0
    parts: list[_Part] = field(default_factory=list)
    """Quantized parts, best first."""
    kept: list[KeptNode] = field(default_factory=list)
    nearest: tuple[float, int] = (math.inf, 0)
    """The least measured error, and the number of quantized nodes."""

    def measure(self, names: Iterable[str]) -> _Part:
        listed = tuple(names)
        self.runs += 1
        self.progress(f"{self.runs} quantized models measured")
        error = measure_error(self.expected, self.run(self.quantize(frozenset(listed)), self.batches))
        self.nearest = min(self.nearest, (error, len(listed)))
        return _Part(listed, error)

    def split(self, names: Sequence[str]) -> None:
        """Measure consecutive nodes in at most `MOST_PARTS` parts."""
        size = -(-len(names) // MOST_PARTS)
        self.parts = [self.measure(names[at : at + size]) for at in range(0, len(names), size)]
        self._sort()

    def _sort(self) -> None:
        self.parts.sort(key=lambda part: part.error)

    def remove_nodes(self, least: int, largest_error: float) -> None:
        """Exclude at least ``least`` nodes, worst first, until the predicted error of the rest is at most ``largest_error``.

        A part of several nodes is measured node by node before any of them is excluded.
        """
        wanted = len(self.kept) + least
        while self.parts and (len(self.kept) < wanted or self.predict() > largest_error):
            worst = self.parts.pop()
            if len(worst.names) > 1:
                self.parts += [self.measure([name]) for name in worst.names]
                self._sort()
            else:
                self.kept.append(KeptNode(worst.names[0], worst.error))

    def predict(self) -> float:
        """The error of the quantized parts if their errors are independent."""
        return math.sqrt(sum(part.error**2 for part in self.parts))

    def find_factor(self, error: float) -> float:
        """The ratio of a measured error to its prediction, at least 0.5; 1 if there is no usable prediction."""
        predicted = self.predict()
        return max(0.5, error / predicted) if 0 < predicted < math.inf and error < math.inf else 1.0

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for part in self.parts for name in part.names)


def quantize_within(
    function: Function,
    names: Sequence[str],
    budget: float,
    *,
    quantize: Quantize,
    run: Run,
    batches: Sequence[Mapping[str, Any]],
    held_out: Sequence[Mapping[str, Any]],
    progress: Progress = lambda text: None,
) -> QuantizationResult:
    """Quantize as many of the nodes as the error budget allows.

    Nodes are selected on ``batches``; the error of the result is measured on ``held_out``, which must be disjoint. Takes two runs
    if all nodes can be quantized, else one per node (per part in large models) and a few more. Raises CalibrationError with the
    least measured error if no node can be quantized.
    """
    expected = run(function, held_out)
    search = _Search(quantize, run, batches, run(function, batches), progress)
    attempt = quantize(frozenset(names))
    error = measure_error(expected, run(attempt, held_out))
    search.nearest = error, len(names)
    if error > budget:
        search.split(names)
    else:
        search.parts = [_Part(tuple(names), error)]
    factor, least = search.find_factor(error), 1
    while error > budget:
        search.remove_nodes(least, budget / factor)
        if not search.parts:
            raise _describe_failure(budget, *search.nearest, len(names))
        attempt = quantize(search.names)
        error = measure_error(expected, run(attempt, held_out))
        search.runs += 1
        search.nearest = min(search.nearest, (error, len(search.names)))
        least *= 2  # the prediction was optimistic: exclude more after each failed attempt
    quantized = tuple(name for name in names if name in search.names)
    excluded = tuple(sorted(search.kept, key=lambda node: -node.error))
    return QuantizationResult(attempt, error, quantized, excluded, search.runs + 3)


def _describe_failure(budget: float, error: float, quantized: int, count: int) -> CalibrationError:
    return CalibrationError(
        f"no quantized model keeps the error within {budget:.3%}: the nearest has {error:.3%}, with "
        f"{quantized} of {count} nodes quantized. Allow a larger error, calibrate on more batches, or by another method"
    )
