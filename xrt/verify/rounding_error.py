"""How much of a difference rounding alone can make in a graph: every node's result is disturbed by a few roundings.

A generated graph may subtract what is nearly equal, or take a root near zero; two right engines then differ by more than any
fixed tolerance allows. Rather than widen the tolerance for all graphs, this measures the individual graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt import passes
from xrt.comparison import Comparison
from xrt.verify.execution import Run, run_pieces, split_regions

if TYPE_CHECKING:
    from xrt.graph import Function

__all__ = ["RoundingTrials"]

Array = np.ndarray[Any, Any]

ROUNDINGS = 16
"""By how many roundings a node's result is disturbed, of its own size and of the largest element's: what sums of some hundred
terms and vectorised approximations are apart between libraries."""
TRIALS = 8
PART = 1 << 16
"""Elements that are disturbed at a time."""
SLACK = 4.0
"""How far beyond the widest of the trials a result may lie: eight draws do not find the worst case."""
LEAST_COMPARED = 4
"""As many trials are compared with each other at least."""


class RoundingTrials:
    """What a function gives on one set of inputs with every node's result disturbed: made when it is needed, and kept."""

    def __init__(self, function: Function, inputs: Sequence[Any]) -> None:
        self._function, self._inputs = function.replace(aliases=()), inputs
        self._made: list[list[Any]] = []

    @cached_property
    def _pieces(self) -> tuple[Function, ...]:
        return split_regions(passes.infer_shapes(self._function), range(len(self._function.nodes)))

    def explain(self, results: Sequence[Any], expected: Sequence[Any], run: Run) -> Comparison:
        """Return whether rounding alone explains the difference of results from the expected ones, which ``run`` has computed.

        Types and shapes must be equal, and a result within the trials. Where rounding turns a sign or a Relu of some
        elements, the trials lie beyond each other, and a result may do so in no more elements than each of them, and no farther.
        There are as few trials as explain it.
        """
        beyond = ""
        for count in range(1, TRIALS + 1):
            if count > len(self._made):
                self._made.append(self._disturb_all(count - 1, run))
            beyond = self._find_beyond(results, expected, self._made[:count])
            if not beyond:
                return Comparison()
        return Comparison(f"{beyond} differs by more than rounding can make of it")

    def _find_beyond(self, results: Sequence[Any], expected: Sequence[Any], trials: Sequence[Sequence[Any]]) -> str:
        """Return the name of the first output that the trials do not explain; empty where they explain all."""
        for index, (mine, theirs) in enumerate(zip(results, expected, strict=True)):
            those = [trial[index] for trial in trials]
            if not _within(mine, theirs, those) and not _resembles(mine, theirs, those):
                return self._function.outputs[index].name
        return ""

    def _disturb_all(self, seed: int, run: Run) -> list[Any]:
        rng = np.random.default_rng(seed)

        def run_noisily(piece: Function, given: Sequence[Any]) -> list[Any]:
            return [_disturb(rng, result) for result in run(piece, given)]

        return run_pieces(self._function, self._pieces, self._inputs, run_noisily)


def _disturb(rng: np.random.Generator, value: Any) -> Any:
    if isinstance(value, list):
        return [_disturb(rng, item) for item in value]
    if isinstance(value, dict):
        return {key: _disturbed_number(rng, item) for key, item in value.items()}
    if not isinstance(value, np.ndarray) or value.dtype not in (np.float32, np.float64, np.float16) or not value.size:
        return value
    disturbed = value.astype(np.float64 if value.dtype == np.float64 else np.float32, order="C")
    flat = disturbed.reshape(-1)
    is_finite = None if np.isfinite(flat.min()) and np.isfinite(flat.max()) else np.isfinite(value)
    if is_finite is not None:
        disturbed[~is_finite] = 0
    with np.errstate(over="ignore", under="ignore"):
        _add_noise(flat, float(np.finfo(value.dtype).eps), rng)
        disturbed = disturbed.astype(value.dtype, copy=False)
    return disturbed if is_finite is None else np.where(is_finite, disturbed, value)


def _add_noise(flat: Array, eps: float, rng: np.random.Generator) -> None:
    """Add to each element what that many roundings may make of it, and of an eighth of the largest one.

    Where no element is negative none becomes so: squares and what Relu gives are not rounded to what has no root.
    The random numbers are read from a table, from random places on, and parts are as small as caches: to draw each number, and to
    make arrays of that size, takes longer than the reference does.
    """
    table, share = _make_table(), flat.dtype.type(eps * ROUNDINGS)
    lowest = flat.min()
    least = max(-lowest, flat.max()) / 8 * share
    for first in range(0, len(flat), PART):
        part = flat[first : first + PART]
        noise = np.abs(part)
        noise *= share
        noise += least
        start = int(rng.integers(PART))
        noise *= table[start : start + len(part)]
        part += noise
        if lowest >= 0:
            np.maximum(part, 0, out=part)


@cache
def _make_table() -> Array:
    return np.random.default_rng(0).uniform(-1, 1, 2 * PART).astype(np.float32)


def _disturbed_number(rng: np.random.Generator, value: Any) -> Any:
    """Disturb the number of a map as a float32, which is what ONNX's operators make them of."""
    return float(_disturb(rng, np.array([value], np.float32))[0]) if isinstance(value, float) else value


def _within(mine: Any, theirs: Any, trials: Sequence[Any]) -> bool:
    if isinstance(theirs, list):
        if any(len(trial) != len(theirs) for trial in trials):
            return True
        same = isinstance(mine, list) and len(mine) == len(theirs)
        return same and all(_within(mine[i], theirs[i], [trial[i] for trial in trials]) for i in range(len(theirs)))
    if isinstance(theirs, dict):
        same = isinstance(mine, dict) and mine.keys() == theirs.keys()
        return same and all(_within(*_scalars(mine[k], theirs[k], [trial[k] for trial in trials])) for k in theirs)
    if not isinstance(mine, np.ndarray) or mine.dtype != theirs.dtype or mine.shape != theirs.shape:
        return False
    if any(trial.shape != theirs.shape for trial in trials):
        return True  # rounding decides even the shape
    if theirs.dtype.kind not in "fiub" or not theirs.size:
        return bool(np.array_equal(mine, theirs))
    return not _find_departures(mine, theirs, _widest(theirs, trials)).size


def _widest(expected: Array, trials: Sequence[Array]) -> Array:
    """Return how far the trials lie from what is expected, element by element."""
    wide = expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.max([np.abs(trial.astype(np.float64) - wide) for trial in trials], axis=0)  # type: ignore[no-any-return]


def _find_departures(mine: Array, theirs: Array, spread: Array) -> Array:
    """Return the distances from what is expected that lie beyond the spread of trials, and how many times the spread that is."""
    wide, expected = mine.astype(np.float64), theirs.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        distance = np.abs(wide - expected)
        good = (wide == expected) | (np.isnan(wide) & np.isnan(expected)) | (distance <= SLACK * spread)
        return np.stack([distance[~good], distance[~good] / spread[~good]])


def _resembles(mine: Any, theirs: Any, trials: Sequence[Any]) -> bool:
    """Whether a result departs from the trials in no more elements than each of them from the others, and no farther.

    How far is counted in numbers, and in the spread of the element: a tail of errors among large differences is none of these.
    """
    if len(trials) < LEAST_COMPARED or not isinstance(theirs, np.ndarray) or theirs.dtype.kind != "f":
        return False
    if not isinstance(mine, np.ndarray) or mine.dtype != theirs.dtype or mine.shape != theirs.shape:
        return False
    departures = _find_departures(mine, theirs, _widest(theirs, trials))
    if not np.isfinite(departures[0]).all():
        return False
    farthest = []
    for place, trial in enumerate(trials):
        others = _find_departures(trial, theirs, _widest(theirs, [*trials[:place], *trials[place + 1 :]]))
        others = others[:, np.isfinite(others[0])]
        if others.shape[1] < departures.shape[1]:
            return False
        farthest.append(others.max(axis=1, initial=0.0))
    return bool((departures.max(axis=1, initial=0.0) <= SLACK * np.max(farthest, axis=0)).all())


def _scalars(mine: Any, theirs: Any, trials: Sequence[Any]) -> tuple[Array, Array, list[Array]]:
    return np.array(mine), np.array(theirs), [np.array(trial) for trial in trials]
