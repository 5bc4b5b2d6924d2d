"""The reference in float64: how far results in narrower floats may be from the exact ones.

A graph may subtract nearly equal values, or divide by a value near zero. Two right engines then differ by more than a fixed
tolerance allows. Rather than widen the tolerance for all graphs, compare both with the same graph in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt import passes
from xrt.errors import XRTError
from xrt.graph import Constant, DType, Function, Node, TensorType, Value
from xrt.graph.attributes import Attribute, AttrKind

if TYPE_CHECKING:
    from xrt.comparison import Tolerance
    from xrt.verify.execution import Run

__all__ = ["Float64Reference", "widen"]

Array = np.ndarray[Any, Any]

TIMES = 10.0
"""An engine may miss the float64 result by this many times the error of the float32 reference."""
ROW = 16
"""Elements of the last axis from which on its largest error counts for that row alone."""
_NARROW = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
_TYPE_ATTRIBUTES = ("to", "dtype", "output_datatype")
_NARROW_NUMBERS = {1: 11, 10: 11, 16: 11}
"""ONNX's numbers of the narrow types, each with that of float64."""


class Float64Reference:
    """The results of a function in float64, computed when they are first needed."""

    def __init__(self, function: Function, inputs: Sequence[Any], run: Run) -> None:
        self._function, self._inputs, self._run = function, inputs, run

    @cached_property
    def outputs(self) -> list[Any] | None:
        """The exact outputs; None where the reference cannot compute the function in float64."""
        try:
            wide = passes.infer_shapes(widen(self._function))
            return list(self._run(wide, [_widen_value(value) for value in self._inputs]))
        except (XRTError, TypeError, ValueError, NotImplementedError):  # a kernel may have no form for float64
            return None

    def explains(self, results: Sequence[Any], expected: Sequence[Any], tolerances: Sequence[Tolerance]) -> bool:
        """Whether each result misses the exact one by no more than its tolerance, or `TIMES` the error of the expected one."""
        if self.outputs is None or len(results) != len(expected):
            return False
        return all(map(_is_near, results, expected, self.outputs, tolerances))


def widen(function: Function) -> Function:
    """Return the function with float64 in place of narrower floats; only the types of inputs are left."""
    return function.replace(
        inputs=tuple(_widen_declaration(value) for value in function.inputs),
        outputs=tuple(Value(value.name) for value in function.outputs),
        nodes=tuple(_widen_node(node) for node in function.nodes),
        constants={name: Constant(_widen_value(constant.array)) for name, constant in function.constants.items()},
        types={},
        aliases=(),
    )


def _widen_declaration(value: Value) -> Value:
    if isinstance(value.type, TensorType) and value.type.dtype in _NARROW:
        return Value(value.name, TensorType(DType.FLOAT64, value.type.shape))
    return value


def _widen_node(node: Node) -> Node:
    attributes = tuple(_widen_attribute(attribute) for attribute in node.attributes)
    return replace(node, attributes=attributes).map_bodies(widen)


def _widen_attribute(attribute: Attribute) -> Attribute:
    if attribute.kind is AttrKind.TENSOR:
        return Attribute(attribute.name, attribute.kind, Constant(_widen_value(attribute.value.array)))
    if attribute.kind is AttrKind.INT and attribute.name in _TYPE_ATTRIBUTES:
        return Attribute(attribute.name, attribute.kind, _NARROW_NUMBERS.get(attribute.value, attribute.value))
    return attribute


def _widen_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_widen_value(item) for item in value]
    is_narrow = isinstance(value, np.ndarray) and value.dtype.kind not in "OUST" and DType.of(value) in _NARROW
    return value.astype(np.float64) if is_narrow else value


def _is_near(mine: Any, theirs: Any, exact: Any, tolerance: Tolerance) -> bool:
    if theirs is None:  # an optional without a value
        return mine is None
    if isinstance(theirs, list):
        same = isinstance(mine, list) and isinstance(exact, list) and len(mine) == len(theirs) == len(exact)
        return same and all(_is_near(a, b, c, tolerance) for a, b, c in zip(mine, theirs, exact, strict=True))
    if isinstance(theirs, dict):
        same = isinstance(mine, dict) and isinstance(exact, dict) and mine.keys() == theirs.keys() == exact.keys()
        return same and all(_is_near(np.asarray(mine[k]), np.asarray(theirs[k]), np.asarray(exact[k]), tolerance) for k in theirs)
    if not isinstance(mine, np.ndarray) or mine.dtype != theirs.dtype or mine.shape != theirs.shape:
        return False
    if theirs.dtype.kind in "OUST":
        return bool(np.array_equal(mine, theirs))
    if theirs.shape != exact.shape:
        return False
    return _is_array_near(mine.astype(np.float64), theirs.astype(np.float64), exact.astype(np.float64), tolerance)


def _is_array_near(mine: Array, theirs: Array, exact: Array, tolerance: Tolerance) -> bool:
    with np.errstate(invalid="ignore"):
        error, reference_error = np.abs(mine - exact), np.abs(theirs - exact)
    is_number = np.isfinite(error) & np.isfinite(reference_error)
    is_same = (mine == theirs) | (mine == exact) | (np.isnan(mine) & (np.isnan(theirs) | np.isnan(exact)))
    reference_error = np.where(is_number, reference_error, 0.0)
    # A row that cancels must not excuse the others. A short row says little: its reference may be exact by chance.
    is_row = mine.ndim > 1 and mine.shape[-1] >= ROW
    allowed = TIMES * (reference_error.max(-1, keepdims=True) if is_row else reference_error.max(initial=0.0))
    return bool((is_same | (is_number & (error <= np.maximum(allowed, tolerance.compute_bound(exact))))).all())
