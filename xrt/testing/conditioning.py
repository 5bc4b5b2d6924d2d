"""Outputs that rounding decides: a Softmax of computed numbers so large that one rounding of them is a unit and more.

Of such an output three things are defined, on every processor and for every engine: the numbers before the Softmax, within
their tolerance; bounds for each element, from those numbers one rounding up and down; and that each row sums to one. An engine
must have all three right. Where one rounding moves nothing beyond the tolerance, the bounds admit nothing that it refuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from xrt.verify.execution import Run, expose_inner_values

if TYPE_CHECKING:
    from xrt.comparison import Tolerance
    from xrt.graph import Function, Node

__all__ = ["Rounded", "SoftmaxBounds", "find_rounded_outputs"]

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class SoftmaxBounds:
    """What each element of a Softmax may be when each number that it reads is one rounding up or down.

    Evidence as `Ambiguity` are.
    """

    low: Array
    high: Array
    rows: tuple[int, int]
    """From which axis to before which axis a row extends."""
    tolerance: Tolerance

    @classmethod
    def read_from(cls, read: Array, rows: tuple[int, int], tolerance: Tolerance) -> SoftmaxBounds:
        """Return the bounds for finite floating-point numbers."""
        wide, rounding = _as_rows(read.astype(np.float64), rows), _as_rows(np.spacing(np.abs(read)).astype(np.float64), rows)
        up, down = wide + rounding, wide - rounding
        low, high = (_from_rows(_share(own, others), read.shape, rows) for own, others in ((down, up), (up, down)))
        return cls(low, high, rows, tolerance)

    def admits(self, actual: Array, expected: Array) -> Array:
        """Return, for each element, whether it is within its bounds, and in a row that sums to one."""
        wide = actual.astype(np.float64)
        within = (wide >= self.low - self.tolerance.compute_bound(self.low)) & (
            wide <= self.high + self.tolerance.compute_bound(self.high)
        )
        lines = _as_rows(wide, self.rows)
        slack = self.tolerance.rtol + self.tolerance.atol * lines.shape[1]
        sums = np.abs(lines.sum(axis=1, keepdims=True) - 1) <= slack
        return np.logical_and(within, _from_rows(np.broadcast_to(sums, lines.shape), actual.shape, self.rows))


@dataclass(frozen=True, eq=False)
class Rounded:
    """An output that rounding decides, and what is defined of it."""

    read: str
    """The value before the Softmax."""
    expected: Array
    """What the reference engine computes for that value."""
    bounds: SoftmaxBounds


def find_rounded_outputs(function: Function, inputs: Sequence[Any], run: Run, tolerance: Tolerance) -> Mapping[str, Rounded]:
    """Return the outputs that rounding decides, by their names; ``run`` is the reference engine.

    Only an output that a Softmax makes is looked at, and only where a node computed what the Softmax reads: what is given is
    exact.
    """
    makers = {value.name: function.producer(value.name) for value in function.outputs}
    found = {name: node for name, node in makers.items() if node is not None and _reads_computed_values(node, function)}
    if not found:
        return {}
    read = list(dict.fromkeys(node.inputs[0] for node in found.values()))
    values = dict(zip(read, run(expose_inner_values(function, read), inputs), strict=True))
    rounded = {name: _rounded(node, function, values[node.inputs[0]], tolerance) for name, node in found.items()}
    return {name: one for name, one in rounded.items() if one is not None}


def _reads_computed_values(node: Node, function: Function) -> bool:
    return node.op == "Softmax" and function.producer(node.inputs[0]) is not None


def _rounded(node: Node, function: Function, read: Array, tolerance: Tolerance) -> Rounded | None:
    """Return what is defined of that Softmax; None where rounding moves no element beyond the tolerance."""
    if read.dtype.kind != "f" or not read.size or not np.isfinite(read).all():
        return None
    bounds = SoftmaxBounds.read_from(read, _rows(node, function, read.ndim), tolerance)
    moves = bounds.high - bounds.low > tolerance.compute_bound(bounds.low)
    return Rounded(node.inputs[0], read, bounds) if moves.any() else None


def _rows(node: Node, function: Function, rank: int) -> tuple[int, int]:
    """Return the axes of a row: one axis, or before version 13 of the operator all from that axis on."""
    if function.opset(node.domain) >= 13:
        axis = int(node.attr("axis", -1)) % rank
        return axis, axis + 1
    axis = int(node.attr("axis", 1))
    return (axis + rank if axis < 0 else axis), rank


def _as_rows(array: Array, rows: tuple[int, int]) -> Array:
    """Return the array as a matrix whose rows are those that a Softmax makes sum to one."""
    start, end = rows
    last: Array = np.moveaxis(array, range(start, end), range(array.ndim - (end - start), array.ndim))
    matrix: Array = last.reshape(-1, prod(array.shape[start:end]))
    return matrix


def _from_rows(lines: Array, shape: tuple[int, ...], rows: tuple[int, int]) -> Array:
    """Undo `_as_rows`."""
    start, end = rows
    moved = (*shape[:start], *shape[end:], *shape[start:end])
    array: Array = np.moveaxis(lines.reshape(moved), range(len(shape) - (end - start), len(shape)), range(start, end))
    return array


def _share(own: Array, others: Array) -> Array:
    """Return ``exp(own[i]) / (exp(own[i]) + sum of exp(others[j]) over j != i)`` for each row."""
    with np.errstate(over="ignore"):
        share: Array = 1 / (1 + np.exp(_log_sum_of_the_others(others) - own))
    return share


def _log_sum_of_the_others(rows: Array) -> Array:
    """Return, for each element, the logarithm of the sum of exponentials of all the others in its row."""
    if rows.shape[1] == 1:
        return np.full_like(rows, -np.inf)
    at = rows.argmax(axis=1)[:, None]
    others = rows.copy()
    np.put_along_axis(others, at, -np.inf, 1)
    top, second = rows.max(axis=1, keepdims=True), others.max(axis=1, keepdims=True)
    powers = np.exp(rows - top)
    with np.errstate(divide="ignore"):  # nothing may be left where an element itself is the greatest; its sum follows
        found: Array = top + np.log(powers.sum(axis=1, keepdims=True) - powers)
    np.put_along_axis(found, at, second + np.log(np.exp(others - second).sum(axis=1, keepdims=True)), 1)
    return found
