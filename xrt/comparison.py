"""Comparison of results: tolerances per element type, ties of discontinuous operators, and the largest differences.

`compare` returns a Comparison, with a message if the values differ. Types and shapes must match exactly, and so must
integers, booleans and strings; floating-point numbers are compared within a `Tolerance`. Results of discontinuous operators
(an index, a rounding, a threshold) must match exactly too, unless the caller passes an `Ambiguity` that admits ties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from xrt.errors import InputError

__all__ = [
    "BIT_EQUAL",
    "EXACT",
    "Ambiguity",
    "Comparison",
    "IndexAmbiguity",
    "Scope",
    "StepAmbiguity",
    "Tolerance",
    "compare",
    "compare_all",
    "tolerance_for",
]

Array: TypeAlias = np.ndarray[Any, Any]
Scope: TypeAlias = Literal["operator", "network"]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Bound on the error of a floating-point result: ``atol + rtol * |expected| + peak * max |expected|``."""

    rtol: float = 0.0
    """Relative to the expected element."""
    atol: float = 0.0
    peak: float = 0.0
    """Relative to the largest finite element of the expected tensor: an element that is small by cancellation has the error of
    its large neighbors, because the error of a sum depends on the size of its terms."""
    signed_zeros: bool = False
    """Distinguish ``-0.0`` from ``0.0``. NaNs are equal regardless of payload, which depends on how a loop was vectorized."""

    def compute_bound(self, expected: Array) -> Array:
        """Compute the largest allowed difference per element; zero where the expected element is infinite or NaN."""
        magnitude = np.abs(expected)
        finite = np.isfinite(magnitude)
        magnitude = np.where(finite, magnitude, 0.0)
        top = float(magnitude.max(initial=0.0))
        return np.where(finite, self.atol + self.rtol * magnitude + self.peak * top, 0.0)


EXACT = Tolerance()
"""Numerically equal: ``-0.0 == 0.0``."""
BIT_EQUAL = Tolerance(signed_zeros=True)
"""Equal in every bit, including the sign of zeros."""

# rtol and peak, for one operator and for a whole network. The float32 row: 1e-5 of the peak is 84 roundings, as many as a sum
# of 7,000 terms in random order accumulates (the error grows with the square root), so engines may differ by it in one
# large product; 1e-4 of the element covers the approximations of exp, tanh and erf that vector libraries use. A network
# of 100 such layers accumulates the square root of 100 of them: ten times as much. Narrower types allow two roundings for
# an operator, since engines differ on whether they accumulate in float32, and ten for a network.
_DEFAULTS: dict[str, dict[Scope, tuple[float, float]]] = {
    "float64": {"operator": (1e-9, 1e-12), "network": (1e-8, 1e-11)},
    "float32": {"operator": (1e-4, 1e-5), "network": (1e-3, 1e-4)},
    "float16": {"operator": (2e-3, 2e-3), "network": (1e-2, 1e-2)},
    "bfloat16": {"operator": (2**-6, 2**-6), "network": (2**-4, 2**-4)},
}
# The absolute part, for tensors that should be zero everywhere; float16's is its smallest positive number.
_FLOOR = {"float64": 1e-15, "float32": 1e-7, "float16": 6e-8, "bfloat16": 1e-7}


def tolerance_for(dtype: Any, scope: Scope = "operator") -> Tolerance:
    """Choose the default tolerance for results of an element type, of one operator or of a whole network.

    ``dtype`` is anything that ``numpy.dtype`` accepts, including types of ml_dtypes. The tolerance is `EXACT` for types that are
    not floating-point, and for floats of a byte or less: their steps are at least an eighth of the value.

    >>> tolerance_for("float32").rtol, tolerance_for("int32") == EXACT
    (0.0001, True)
    """
    if scope not in ("operator", "network"):
        raise InputError(f"a tolerance is declared for the scope 'operator' or 'network'; got {scope!r}")
    element_type = np.dtype(dtype)
    # Complex numbers are as accurate as their parts.
    name = {"complex64": "float32", "complex128": "float64"}.get(element_type.name, element_type.name)
    if name not in _DEFAULTS:
        return EXACT
    rtol, peak = _DEFAULTS[name][scope]
    return Tolerance(rtol, _FLOOR[name], peak)


class Ambiguity(Protocol):
    """Decides which differences in the result of a discontinuous operator are ties: two results that are equally valid."""

    def admits(self, actual: Array, expected: Array) -> Array:
        """Return a boolean mask: whether the difference of each element is a tie. Both arrays have the same type and shape."""
        ...  # pragma: no cover


@dataclass(frozen=True, eq=False)
class StepAmbiguity:
    """Ties of a rounding, a cast to integers or a comparison: near the edge of a step, the values on both sides are valid.

    Create it with `from_rounding` or `from_threshold` from the operator's inputs for the expected result.
    """

    is_near_edge: Array
    """Boolean mask of elements whose input is so close to an edge that an error within the tolerance crosses it."""
    step: int = 1
    """Difference between the values on both sides of an edge."""

    @classmethod
    def from_rounding(cls, values: Array, edges: Literal["halves", "integers"]) -> StepAmbiguity:
        """Create the ties from the input of an operator: a Round has its edges at halves; a Floor, Ceil or cast, at integers."""
        wide = _widen(values)
        shifted = wide - 0.5 if edges == "halves" else wide
        return cls(np.abs(shifted - np.rint(shifted)) <= tolerance_for(values.dtype).compute_bound(wide))

    @classmethod
    def from_threshold(cls, left: Array, right: Array) -> StepAmbiguity:
        """Create the ties of a comparison such as ``left < right``: elements where both sides are equal within the tolerance."""
        tolerance = tolerance_for(left.dtype)
        wide_left, wide_right = np.broadcast_arrays(_widen(left), _widen(right))
        slack = tolerance.compute_bound(wide_left) + tolerance.compute_bound(wide_right)
        return cls(np.abs(wide_left - wide_right) <= slack)

    def admits(self, actual: Array, expected: Array) -> Array:
        if self.is_near_edge.shape != expected.shape:
            raise InputError(f"the ties are for shape {self.is_near_edge.shape}, but the result has shape {expected.shape}")
        gap = np.abs(_widen(actual) - _widen(expected)) if _is_float(expected.dtype) else _compute_gap(actual, expected)
        return np.logical_and(self.is_near_edge, gap <= self.step)


@dataclass(frozen=True, eq=False)
class IndexAmbiguity:
    """Ties of ArgMax, ArgMin and the indices of TopK: another index is valid if its value is equal within tolerance."""

    values: Array
    """The operator's input for the expected result."""
    axis: int

    def admits(self, actual: Array, expected: Array) -> Array:
        """Return a mask of the ties, as `Ambiguity.admits` does. Repeated indices and indices out of range are not ties."""
        values = _widen(self.values)
        indices, expected_indices = actual.astype(np.int64), expected.astype(np.int64)
        # ArgMax with keepdims=0 removes the axis.
        has_axis = actual.ndim == values.ndim
        if not has_axis:
            indices = np.expand_dims(indices, self.axis)
            expected_indices = np.expand_dims(expected_indices, self.axis)
        inside = (indices >= 0) & (indices < values.shape[self.axis])
        actual_values = np.take_along_axis(values, np.where(inside, indices, 0), self.axis)
        expected_values = np.take_along_axis(values, expected_indices, self.axis)
        slack = tolerance_for(self.values.dtype).compute_bound(values)
        is_tie = inside & (np.abs(actual_values - expected_values) <= np.take_along_axis(slack, expected_indices, self.axis))
        is_tie = np.logical_and(is_tie, ~_mark_repeats(indices, self.axis))
        admitted: Array = is_tie if has_axis else np.squeeze(is_tie, self.axis)
        return admitted


def _mark_repeats(indices: Array, axis: int) -> Array:
    """Return a mask of the indices' shape: True for all elements of a lane along ``axis`` that has some index twice."""
    ordered = np.sort(indices, axis=axis)
    has_repeats = np.any(np.diff(ordered, axis=axis) == 0, axis=axis, keepdims=True)
    return np.broadcast_to(has_repeats, indices.shape)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison: true if the values agree. It has the largest differences even then."""

    message: str = ""
    """The difference as a sentence; empty if the values agree."""
    absolute: float = 0.0
    """The largest absolute difference; infinite if one number is infinite or NaN and the other is not equal to it."""
    relative: float = 0.0
    """The largest difference relative to the expected number; elements that are expected to be zero are left out."""
    where: str = ""
    """Position of the largest absolute difference, such as ``y[0][2,3]``; empty if there is none."""

    def __bool__(self) -> bool:
        return not self.message


def compare(
    actual: Any, expected: Any, tolerance: Tolerance | None = None, *, ties: Ambiguity | None = None, name: str = "result"
) -> Comparison:
    """Compare a result with the expected one. Both are an array, a list or dictionary, or None for an absent optional.

    The default tolerance of a floating-point array is `tolerance_for` its type. ``ties`` decides about the differences of a
    discontinuous operator. ``name`` is the value's name in the message. ``actual`` must have a type that engines return (an
    array, not a NumPy scalar); ``expected`` may be anything that ``numpy.asarray`` accepts.
    """
    if expected is None or actual is None:
        if actual is expected:
            return Comparison()
        if actual is None:
            return Comparison(f"{name} is absent; a {_get_kind(expected)} was expected")
        return Comparison(f"{name} is a {_get_kind(actual)}; it must be absent")
    if isinstance(expected, dict):
        return _compare_mappings(actual, expected, tolerance, name)
    if isinstance(expected, list | tuple):
        return _compare_sequences(actual, expected, tolerance, name)
    if not isinstance(actual, np.ndarray):
        return Comparison(f"{name} is a {type(actual).__name__}; it must be an array")
    return _compare_arrays(actual, np.asarray(expected), tolerance, ties, name)


def compare_all(
    actual: Sequence[Any],
    expected: Sequence[Any],
    tolerance: Tolerance | None = None,
    *,
    ties: Sequence[Ambiguity | None] | None = None,
    names: Sequence[str] | None = None,
) -> Comparison:
    """Compare the outputs of a Function with the expected outputs. The message describes the first output that differs."""
    if len(actual) != len(expected):
        return Comparison(f"there are {len(actual)} outputs; {len(expected)} were expected")
    names = names or [f"output {i}" for i in range(len(expected))]
    outputs = zip(actual, expected, ties or [None] * len(expected), names, strict=True)
    return _merge([compare(a, e, tolerance, ties=ambiguity, name=name) for a, e, ambiguity, name in outputs])


def _merge(parts: Sequence[Comparison]) -> Comparison:
    """Merge comparisons into one with the first message, the largest differences, and the position of the largest."""
    if not parts:
        return Comparison()
    worst = max(parts, key=lambda part: part.absolute)
    message = next((part.message for part in parts if part.message), "")
    return replace(worst, message=message, relative=max(part.relative for part in parts))


def _get_kind(value: Any) -> str:
    return "list" if isinstance(value, list | tuple) else type(value).__name__


def _compare_sequences(actual: Any, expected: Sequence[Any], tolerance: Tolerance | None, name: str) -> Comparison:
    if not isinstance(actual, list | tuple):
        return Comparison(f"{name} is a {_get_kind(actual)}; it must be a list")
    if len(actual) != len(expected):
        return Comparison(f"{name} has {len(actual)} elements; {len(expected)} were expected")
    pairs = enumerate(zip(actual, expected, strict=True))
    return _merge([compare(a, e, tolerance, name=f"{name}[{i}]") for i, (a, e) in pairs])


def _compare_mappings(actual: Any, expected: dict[Any, Any], tolerance: Tolerance | None, name: str) -> Comparison:
    """Compare dictionaries of numbers or strings by key; the keys must be equal."""
    if not isinstance(actual, dict):
        return Comparison(f"{name} is a {_get_kind(actual)}; it must be a dictionary")
    if actual.keys() != expected.keys():
        return Comparison(f"{name} has the keys {list(actual)}; {list(expected)} were expected")
    # ONNX operators compute maps of float32, but Python floats do not show it.
    tolerance = tolerance or tolerance_for("float32")
    return _merge(
        [compare(_to_array(actual[key]), _to_array(expected[key]), tolerance, name=f"{name}[{key!r}]") for key in expected]
    )


def _to_array(value: Any) -> Array:
    """Convert a number or string; strings become object arrays, so that their length does not matter."""
    return np.asarray(value, dtype=object if isinstance(value, str) else None)


def _compare_arrays(actual: Array, expected: Array, tolerance: Tolerance | None, ties: Ambiguity | None, name: str) -> Comparison:
    if _type_name(actual) != _type_name(expected):
        return Comparison(f"{name} is of type {_type_name(actual)}; {_type_name(expected)} was expected")
    if actual.shape != expected.shape:
        return Comparison(f"{name} has shape {actual.shape}; {expected.shape} was expected")
    if expected.dtype.kind in "OUST":
        return _compare_strings(actual, expected, name)
    if _is_float(expected.dtype):
        return _compare_floats(actual, expected, tolerance or tolerance_for(expected.dtype), ties, name)
    return _compare_exact(actual, expected, ties, name)


def _type_name(array: Array) -> str:
    """Name the element type. Byte order does not matter, and all of NumPy's types for strings have the same name."""
    return "string" if array.dtype.kind in "OUST" else str(array.dtype.newbyteorder("=").name)


def _is_float(dtype: np.dtype[Any]) -> bool:
    return "float" in dtype.name or dtype.kind == "c"


def _compare_strings(actual: Array, expected: Array, name: str) -> Comparison:
    differ = np.asarray(actual.astype(object) != expected.astype(object), dtype=bool)
    if not differ.any():
        return Comparison()
    first = tuple(int(i) for i in np.unravel_index(int(np.argmax(differ)), differ.shape))
    values = f"{name}{_format_index(first)} is {str(actual[first])!r}, {str(expected[first])!r} was expected"
    return Comparison(f"{name} differs in {_format_count(differ)}; {values}")


def _compare_exact(actual: Array, expected: Array, ties: Ambiguity | None, name: str) -> Comparison:
    gap = _compute_gap(actual, expected)
    wrong = gap != 0
    if ties is not None and wrong.any():
        wrong = wrong & ~ties.admits(actual, expected)
    magnitude = np.abs(expected.astype(np.float64))
    # The maximum only avoids a division by zero: nonzero integers are at least 1.
    relative = np.where(magnitude == 0, 0.0, gap / np.maximum(magnitude, 1.0))
    rule = "must be equal" if ties is None else "the difference is no tie"
    return _report(actual, expected, gap, relative, wrong, name, rule)


def _compute_gap(actual: Array, expected: Array) -> Array:
    """Compute ``|actual - expected|`` of integers or booleans as float64, without overflow."""
    wide_type = np.uint64 if expected.dtype == np.uint64 else np.int64
    left, right = actual.astype(wide_type), expected.astype(wide_type)
    larger, smaller = np.maximum(left, right), np.minimum(left, right)
    with np.errstate(over="ignore"):  # int64 may wrap, but the difference is correct as uint64
        gap: Array = (larger.astype(np.uint64) - smaller.astype(np.uint64)).astype(np.float64)
    return gap


def _compare_floats(actual: Array, expected: Array, tolerance: Tolerance, ties: Ambiguity | None, name: str) -> Comparison:
    """Compare elements within the tolerance. Equal infinities agree, and two NaNs; a NaN differs from every number."""
    wide_actual, wide_expected = _widen(actual), _widen(expected)
    same = (wide_actual == wide_expected) | (np.isnan(wide_actual) & np.isnan(wide_expected))
    if tolerance.signed_zeros:
        same &= (np.signbit(wide_actual) == np.signbit(wide_expected)) | np.isnan(wide_actual)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        gap = np.abs(wide_actual - wide_expected)
        is_finite = np.isfinite(wide_expected) & np.isfinite(wide_actual)
        gap = np.where(same, 0.0, np.where(is_finite, gap, np.inf))
        relative = np.where(same | (wide_expected == 0), 0.0, gap / np.abs(wide_expected))
    relative = np.where(np.isnan(relative), np.inf, relative)
    if tolerance.signed_zeros:  # the gap between -0.0 and 0.0 is 0
        wrong = ~same
    else:
        wrong = ~same & ((gap > tolerance.compute_bound(wide_expected)) | np.isinf(gap))
    if ties is not None and wrong.any():
        wrong = wrong & ~ties.admits(actual, expected)
    return _report(actual, expected, gap, relative, wrong, name, f"beyond {_format_tolerance(tolerance)}")


def _widen(array: Array) -> Array:
    """Convert to float64; a complex array becomes one with a last axis of real and imaginary parts."""
    if array.dtype.kind == "c":
        return np.stack([array.real, array.imag], axis=-1).astype(np.float64)
    return array.astype(np.float64)


def _format_tolerance(tolerance: Tolerance) -> str:
    if tolerance.signed_zeros:
        return "equality of bits"
    parts = [f"{field} {getattr(tolerance, field):.3g}" for field in ("rtol", "atol", "peak") if getattr(tolerance, field)]
    return ", ".join(parts) or "equality"


def _report(actual: Array, expected: Array, gap: Array, relative: Array, wrong: Array, name: str, rule: str) -> Comparison:
    """Build the Comparison. If elements are ``wrong``, the message has their count, the worst of them and the violated rule."""
    if not gap.size:
        return Comparison()
    index = np.unravel_index(int(np.argmax(gap)), gap.shape)  # a complex gap has a last axis more, see `_widen`
    absolute, worst_relative = float(gap[index]), float(relative.max())
    position = f"{name}{_format_index(index[: actual.ndim])}" if absolute else ""
    if not wrong.any():
        return Comparison("", absolute, worst_relative, position)
    worst = np.unravel_index(int(np.argmax(np.where(wrong, gap, -1.0))), gap.shape)[: actual.ndim]
    values = f"{name}{_format_index(worst)} is {actual[worst]}, {expected[worst]} was expected"
    differences = f"absolute difference {absolute:.3g}, relative {worst_relative:.3g}"
    message = f"{name} differs in {_format_count(wrong)}; at worst {values} ({differences}; {rule})"
    return Comparison(message, absolute, worst_relative, position)


def _format_count(mask: Array) -> str:
    return f"{int(mask.sum())} of {mask.size} elements"


def _format_index(index: Sequence[Any]) -> str:
    return f"[{','.join(str(int(i)) for i in index)}]" if index else ""
