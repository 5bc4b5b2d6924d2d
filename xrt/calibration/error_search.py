"""Keep the error of a quantized model within a budget: find the nodes that cost most, and leave them in floating point.

The error of a part is measured with all else exact. Errors of parts add up about as squares, so a sum predicts which nodes have
to stay; what is predicted is then measured on batches that nothing was chosen by.
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
"""Returns the model with the nodes of these names quantized."""
Progress: TypeAlias = Callable[[str], object]

MOST_PARTS = 48
"""How many parts are measured at first; those of larger models have several nodes."""


@dataclass(frozen=True, slots=True)
class KeptNode:
    """A node that stays in floating point."""

    name: str
    error: float
    """Of the model with this node alone quantized."""


@dataclass(frozen=True, slots=True)
class QuantizationResult:
    """A model within the budget."""

    function: Function
    error: float
    """On the held-out batches."""
    quantized: tuple[str, ...]
    """The names of the quantized nodes."""
    kept: tuple[KeptNode, ...]
    """The nodes that stay in floating point for the budget's sake, worst first."""
    runs: int
    """How many models were run."""


def measure_error(expected: Outputs, results: Outputs) -> float:
    """Return the relative error of the output that differs most: the norm of the difference, over all batches, by its own norm.

    Infinity where an output has NaN, or an infinity that is not expected. Integers and booleans count where no output is of
    floats: then it is the share of elements that differ.
    """
    places = range(len(expected[0]))
    floats = [place for place in places if np.asarray(expected[0][place]).dtype.kind == "f"]
    measure = _measure_floats if floats else _measure_integers
    return max(
        (measure([(a[place], b[place]) for a, b in zip(expected, results, strict=True)]) for place in floats or places),
        default=0.0,
    )


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
    """Nodes that are quantized together, and the error of the model with these alone."""

    names: tuple[str, ...]
    error: float


@dataclass
class _Search:
    """One search: measurements on batches for choosing."""

    quantize: Quantize
    run: Run
    batches: Sequence[Mapping[str, Any]]
    expected: Outputs
    progress: Progress
    runs: int = 0
    parts: list[_Part] = field(default_factory=list)
    """What is still quantized, best first."""
    kept: list[KeptNode] = field(default_factory=list)
    nearest: tuple[float, int] = (math.inf, 0)
    """The least error that was measured, and how many nodes were quantized."""

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
        """Keep at least so many nodes in floating point, the worst first, until the others promise an error that is small enough.

        A part of several nodes is measured node by node before one of them is kept.
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
        """Return the error of what is still quantized, if errors of parts are independent."""
        return math.sqrt(sum(part.error**2 for part in self.parts))

    def find_factor(self, error: float) -> float:
        """Return an error as a multiple of what is predicted of it, at least a half; 1 where that says nothing."""
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
    """Return the model with as many of the nodes quantized as keep the error within the budget.

    Nodes are chosen by ``batches``; the result's error is that of ``held_out``, which must be others. Cost: two runs where all
    nodes can be quantized; else one for each node, or each part of a large model, and a few more. Raises CalibrationError, with
    the least error that was found, where no node can be.
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
        least *= 2  # the prediction was too good; each attempt that fails removes more
    quantized = tuple(name for name in names if name in search.names)
    return QuantizationResult(
        attempt, error, quantized, tuple(sorted(search.kept, key=lambda exclusion: -exclusion.error)), search.runs + 3
    )


def _describe_failure(budget: float, error: float, quantized: int, count: int) -> CalibrationError:
    return CalibrationError(
        f"no quantized model keeps the error within {budget:.3%}: the nearest has {error:.3%}, with "
        f"{quantized} of {count} nodes quantized. Allow a larger error, calibrate on more batches, or by another method"
    )
