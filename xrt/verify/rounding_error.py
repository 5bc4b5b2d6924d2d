"""How much of a difference rounding alone can make in a graph: every node's result is disturbed by a few roundings.

A generated graph may subtract what is nearly equal, or take a root near zero; two right engines then differ by more than any
fixed tolerance allows. Rather than widen the tolerance for all graphs, this measures the individual graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.comparison import Comparison
from xrt.verify.execution import Run, run_regions

if TYPE_CHECKING:
    from xrt.graph import Function

__all__ = ["is_within_rounding_error"]

Array = np.ndarray[Any, Any]

ROUNDINGS = 16
"""By how many roundings a node's result is disturbed, of its own size and of the largest element's: what sums of some hundred
terms and vectorised approximations are apart between libraries."""
TRIALS = 8
SLACK = 4.0
"""How far beyond the widest of the trials a result may lie: eight draws do not find the worst case."""


def is_within_rounding_error(
    function: Function, inputs: Sequence[Any], results: Sequence[Any], expected: Sequence[Any], run: Run
) -> Comparison:
    """Return whether rounding alone explains the difference of results from the expected ones.

    Types and shapes must be equal, and so must what is not disturbed by any of the trials.
    """
    trials = [_disturbed(function, inputs, run, seed) for seed in range(TRIALS)]
    for index, (mine, theirs) in enumerate(zip(results, expected, strict=True)):
        if not _within(mine, theirs, [trial[index] for trial in trials]):
            return Comparison(f"{function.outputs[index].name} differs by more than rounding can make of it")
    return Comparison()


def _disturbed(function: Function, inputs: Sequence[Any], run: Run, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)

    def run_noisily(piece: Function, given: Sequence[Any]) -> list[Any]:
        return [_disturb(rng, result) for result in run(piece, given)]

    plain = function.replace(aliases=())
    return run_regions(plain, range(len(function.nodes)), inputs, run_noisily)


def _disturb(rng: np.random.Generator, value: Any) -> Any:
    if isinstance(value, list):
        return [_disturb(rng, item) for item in value]
    if isinstance(value, dict):
        return {key: _disturbed_number(rng, item) for key, item in value.items()}
    if not isinstance(value, np.ndarray) or value.dtype not in (np.float32, np.float64, np.float16) or not value.size:
        return value
    finite = np.where(np.isfinite(value), value, 0).astype(np.float64)
    scale = np.abs(finite) + np.abs(finite).max() / 8
    noise = rng.uniform(-1, 1, value.shape) * scale * float(np.finfo(value.dtype).eps) * ROUNDINGS
    return np.where(np.isfinite(value), (finite + noise), value).astype(value.dtype)


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
    wide, expected = mine.astype(np.float64), theirs.astype(np.float64)
    with np.errstate(invalid="ignore"):
        spread = np.max([np.abs(trial.astype(np.float64) - expected) for trial in trials], axis=0)
        good = (wide == expected) | (np.isnan(wide) & np.isnan(expected)) | (np.abs(wide - expected) <= SLACK * spread)
    return bool(good.all())


def _scalars(mine: Any, theirs: Any, trials: Sequence[Any]) -> tuple[Array, Array, list[Array]]:
    return np.array(mine), np.array(theirs), [np.array(trial) for trial in trials]
