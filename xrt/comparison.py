"""The comparison of results: what counts as equal, and how far two results are apart.

Two values go in, a Comparison comes out: empty when they agree, otherwise a sentence for a person. Type and shape are
always exact, and so are integers, truth values and text; floating-point numbers are held to a `Tolerance`. A result
that steps (an index, a rounding, a threshold) is exact too, unless the caller brings the evidence that a tie was possible.
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
    """How far a floating-point result may be from the expected one: ``atol + rtol * |expected| + peak * max |expected|``."""

    rtol: float = 0.0
    """Share of the expected element."""
    atol: float = 0.0
    """Absolute."""
    peak: float = 0.0
    """Share of the largest finite element of the expected tensor. A sum is as inexact as its summands are large, so an
    element that is small by cancellation carries the error of its large neighbours."""
    bits: bool = False
    """Tell ``-0.0`` from ``0.0``. A NaN equals a NaN of any payload all the same: which one comes out depends on how
    a loop was vectorised, and no operator of ONNX can see it."""

    def compute_bound(self, expected: Array) -> Array:
        """Return the greatest admitted difference for each element; zero where the expected one is infinite or NaN."""
        magnitude = np.abs(expected)
        finite = np.isfinite(magnitude)
        magnitude = np.where(finite, magnitude, 0.0)
        top = float(magnitude.max(initial=0.0))
        return np.where(finite, self.atol + self.rtol * magnitude + self.peak * top, 0.0)


EXACT = Tolerance()
"""Equal as numbers: zeros of both signs are the same."""
BIT_EQUAL = Tolerance(bits=True)
"""Equal to the last bit, signs of zeros included."""

# rtol and peak, for one operator and for a whole network. The float32 row: 1e-5 of the peak is 84 roundings, what a sum
# of 7,000 terms in random order gathers (roundings grow with the square root), so two engines may differ by it in one
# large product; 1e-4 of the element covers the approximations of exp, tanh and erf that vector libraries use. A network
# of 100 such layers gathers the square root of 100 of them: ten times as much. Narrower types are two roundings wide for
# an operator, since engines differ on whether they accumulate in float32, and ten for a network.
_DECLARED: dict[str, dict[Scope, tuple[float, float]]] = {
    "float64": {"operator": (1e-9, 1e-12), "network": (1e-8, 1e-11)},
    "float32": {"operator": (1e-4, 1e-5), "network": (1e-3, 1e-4)},
    "float16": {"operator": (2e-3, 2e-3), "network": (1e-2, 1e-2)},
    "bfloat16": {"operator": (2**-6, 2**-6), "network": (2**-4, 2**-4)},
}
_FLOOR = {"float64": 1e-15, "float32": 1e-7, "float16": 6e-8, "bfloat16": 1e-7}
"""The absolute part, for tensors that ought to be zero throughout; float16's is its smallest number."""


def tolerance_for(dtype: Any, scope: Scope = "operator") -> Tolerance:
    """Return the declared tolerance of an element type, for the result of one operator or of a whole network.

    ``dtype`` is anything that ``numpy.dtype`` takes, the types of ml_dtypes too. Types that are not floating-point, and
    floats of a byte or less (where a step is an eighth of the value and more), must be equal: `EXACT`.

    >>> tolerance_for("float32").rtol, tolerance_for("int32") == EXACT
    (0.0001, True)
    """
    if scope not in ("operator", "network"):
        raise InputError(f"a tolerance is declared for the scope 'operator' or 'network'; got {scope!r}")
    kind = np.dtype(dtype)
    name = {"complex64": "float32", "complex128": "float64"}.get(kind.name, kind.name)
    if name not in _DECLARED:
        return EXACT
    rtol, peak = _DECLARED[name][scope]
    return Tolerance(rtol, _FLOOR[name], peak)


# ---------------------------------------------------------------------- ties


class Ambiguity(Protocol):
    """The evidence that a stepping result may differ, and where."""

    def admits(self, actual: Array, expected: Array) -> Array:
        """Return, for each element, whether that difference is a tie. Both have the same type and shape."""
        ...  # pragma: no cover


@dataclass(frozen=True, eq=False)
class StepAmbiguity:
    """Ties of a rounding, a cast to integers or a threshold: near the edge of a step, the neighbouring step is as good.

    Make one with `rounding` or `threshold`, from what the operator read when the expected result was computed.
    """

    near: Array
    """Where the input of the operator is so close to an edge that an admitted difference crosses it."""
    step: int = 1
    """How far the result jumps at an edge."""

    @classmethod
    def from_rounding(cls, read: Array, at: Literal["halves", "integers"], tolerance: Tolerance | None = None) -> StepAmbiguity:
        """Return the ties of Round (its edges lie at the halves), or of Floor, Ceil and casts (at the integers)."""
        wide, tolerance = _wide(read), tolerance or tolerance_for(read.dtype)
        shifted = wide - 0.5 if at == "halves" else wide
        return cls(np.abs(shifted - np.rint(shifted)) <= tolerance.compute_bound(wide))

    @classmethod
    def from_threshold(cls, left: Array, right: Array, tolerance: Tolerance | None = None) -> StepAmbiguity:
        """Return the ties of ``left < right`` and its kin: the places where the two sides are as good as equal."""
        tolerance = tolerance or tolerance_for(left.dtype)
        wide_left, wide_right = np.broadcast_arrays(_wide(left), _wide(right))
        slack = tolerance.compute_bound(wide_left) + tolerance.compute_bound(wide_right)
        return cls(np.abs(wide_left - wide_right) <= slack)

    def admits(self, actual: Array, expected: Array) -> Array:
        if self.near.shape != expected.shape:
            raise InputError(f"the evidence of ties has shape {self.near.shape}, the result {expected.shape}; both must be equal")
        gap = np.abs(_wide(actual) - _wide(expected)) if _is_float(expected.dtype) else _gap(actual, expected)
        return np.logical_and(self.near, gap <= self.step)


@dataclass(frozen=True, eq=False)
class IndexAmbiguity:
    """Ties of ArgMax, ArgMin and the indices of TopK: another place along the axis is as good where its value is as good."""

    values: Array
    """What the operator chose from, as it was when the expected result was computed."""
    axis: int
    tolerance: Tolerance | None = None

    def admits(self, actual: Array, expected: Array) -> Array:
        """As `Ambiguity.admits`; a place chosen twice is no tie, nor is one outside of the axis."""
        values = _wide(self.values)
        tolerance = self.tolerance or tolerance_for(self.values.dtype)
        kept = actual.ndim == values.ndim
        mine, theirs = (a.astype(np.int64) if kept else np.expand_dims(a.astype(np.int64), self.axis) for a in (actual, expected))
        inside = (mine >= 0) & (mine < values.shape[self.axis])
        chosen = np.take_along_axis(values, np.where(inside, mine, 0), self.axis)
        best = np.take_along_axis(values, theirs, self.axis)
        slack = tolerance.compute_bound(values)
        good = inside & (np.abs(chosen - best) <= np.take_along_axis(slack, theirs, self.axis))
        good = np.logical_and(good, ~_repeats(mine, self.axis))
        admitted: Array = good if kept else np.squeeze(good, self.axis)
        return admitted


def _repeats(indices: Array, axis: int) -> Array:
    """Return where a lane along the axis holds some index twice, for all elements of the lane."""
    ordered = np.sort(indices, axis=axis)
    twice = np.any(np.diff(ordered, axis=axis) == 0, axis=axis, keepdims=True)
    return np.broadcast_to(twice, indices.shape)


# ---------------------------------------------------------------------- the comparison


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison: true when the two agree. It gives the worst differences in either case."""

    message: str = ""
    """What differs, as a sentence; empty when all agrees."""
    absolute: float = 0.0
    """The largest absolute difference between numbers; infinite where only one of them is infinite or NaN."""
    relative: float = 0.0
    """The largest difference as a share of the expected number, over those that are not zero."""
    where: str = ""
    """The place of the largest absolute difference, such as ``y[0][2,3]``; empty when there is none."""

    def __bool__(self) -> bool:
        return not self.message


def compare(
    actual: Any, expected: Any, tolerance: Tolerance | None = None, *, ties: Ambiguity | None = None, name: str = "result"
) -> Comparison:
    """Compare one result with the expected one: arrays, lists and dictionaries of values, or None for an absent one.

    Without a tolerance, floating-point arrays are held to `tolerance_for` their type. ``name`` is what the message calls
    the value. The actual value must be of the kind that engines return (an array and not a NumPy scalar); the
    expected one may be anything that ``numpy.asarray`` takes.
    """
    if expected is None or actual is None:
        return _compare_absent(actual, expected, name)
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
    """Compare the outputs of a function one by one; the first message and the worst differences of all are kept."""
    if len(actual) != len(expected):
        return Comparison(f"there are {len(actual)} outputs; {len(expected)} were expected")
    names = names or [f"output {i}" for i in range(len(expected))]
    evidence = ties or [None] * len(expected)
    return _worst_of(
        [compare(a, e, tolerance, ties=t, name=n) for a, e, t, n in zip(actual, expected, evidence, names, strict=True)]
    )


def _worst_of(parts: Sequence[Comparison]) -> Comparison:
    """Return one Comparison for several: the first message, the place of the largest difference."""
    if not parts:
        return Comparison()
    worst = max(parts, key=lambda part: part.absolute)
    message = next((part.message for part in parts if part.message), "")
    return replace(worst, message=message, relative=max(part.relative for part in parts))


def _compare_absent(actual: Any, expected: Any, name: str) -> Comparison:
    if actual is expected:
        return Comparison()
    if actual is None:
        return Comparison(f"{name} is absent; a {_kind(expected)} was expected")
    return Comparison(f"{name} is a {_kind(actual)}; it must be absent")


def _kind(value: Any) -> str:
    return "list" if isinstance(value, list | tuple) else type(value).__name__


def _compare_sequences(actual: Any, expected: Sequence[Any], tolerance: Tolerance | None, name: str) -> Comparison:
    if not isinstance(actual, list | tuple):
        return Comparison(f"{name} is a {_kind(actual)}; it must be a list")
    if len(actual) != len(expected):
        return Comparison(f"{name} has {len(actual)} elements; {len(expected)} were expected")
    pairs = enumerate(zip(actual, expected, strict=True))
    return _worst_of([compare(a, e, tolerance, name=f"{name}[{i}]") for i, (a, e) in pairs])


def _compare_mappings(actual: Any, expected: dict[Any, Any], tolerance: Tolerance | None, name: str) -> Comparison:
    if not isinstance(actual, dict):
        return Comparison(f"{name} is a {_kind(actual)}; it must be a dictionary")
    if actual.keys() != expected.keys():
        return Comparison(f"{name} has the keys {list(actual)}; {list(expected)} were expected")
    # The numbers of a map are Python's own, which do not show that ONNX's operators make maps of float32.
    tolerance = tolerance or tolerance_for("float32")
    return _worst_of([_compare_scalars(actual[k], expected[k], tolerance, f"{name}[{k!r}]") for k in expected])


def _compare_scalars(actual: Any, expected: Any, tolerance: Tolerance, name: str) -> Comparison:
    """Compare two values of a map; texts are objects, so that each is a scalar whatever its length."""
    mine, theirs = (np.asarray(value, dtype=object if isinstance(value, str) else None) for value in (actual, expected))
    return compare(mine, theirs, tolerance, name=name)


def _compare_arrays(actual: Array, expected: Array, tolerance: Tolerance | None, ties: Ambiguity | None, name: str) -> Comparison:
    if _type_name(actual) != _type_name(expected):
        return Comparison(f"{name} is of type {_type_name(actual)}; {_type_name(expected)} was expected")
    if actual.shape != expected.shape:
        return Comparison(f"{name} has shape {actual.shape}; {expected.shape} was expected")
    if expected.dtype.kind in "OUST":
        return _compare_text(actual, expected, name)
    if _is_float(expected.dtype):
        return _compare_floats(actual, expected, tolerance or tolerance_for(expected.dtype), ties, name)
    return _compare_exact(actual, expected, ties, name)


def _type_name(array: Array) -> str:
    """Name the element type; all of NumPy's ways to hold text are one, and byte order is no difference."""
    return "string" if array.dtype.kind in "OUST" else str(array.dtype.newbyteorder("=").name)


def _is_float(dtype: np.dtype[Any]) -> bool:
    return "float" in dtype.name or dtype.kind == "c"


def _compare_text(actual: Array, expected: Array, name: str) -> Comparison:
    differ = np.asarray(actual.astype(object) != expected.astype(object), dtype=bool)
    if not differ.any():
        return Comparison()
    at = _first(differ)
    count = _count(differ)
    return Comparison(f"{name} differs in {count}; {name}{_index(at)} is {str(actual[at])!r}, {str(expected[at])!r} was expected")


def _compare_exact(actual: Array, expected: Array, ties: Ambiguity | None, name: str) -> Comparison:
    gap = _gap(actual, expected)
    wrong = gap != 0
    if ties is not None and wrong.any():
        wrong = wrong & ~ties.admits(actual, expected)
    magnitude = np.abs(expected.astype(np.float64))
    relative = np.where(magnitude == 0, 0.0, gap / np.maximum(magnitude, 1.0))
    return _verdict(actual, expected, gap, relative, wrong, name, "must be equal" if ties is None else "the difference is no tie")


def _gap(actual: Array, expected: Array) -> Array:
    """Return |actual - expected| of integers or truth values as float64, without overflow on the way."""
    mine, theirs = (a.astype(np.uint64 if a.dtype == np.uint64 else np.int64) for a in (actual, expected))
    larger, smaller = np.maximum(mine, theirs), np.minimum(mine, theirs)
    with np.errstate(over="ignore"):  # int64 may wrap on the way; read as uint64, the difference is right
        gap: Array = (larger.astype(np.uint64) - smaller.astype(np.uint64)).astype(np.float64)
    return gap


def _compare_floats(actual: Array, expected: Array, tolerance: Tolerance, ties: Ambiguity | None, name: str) -> Comparison:
    mine, theirs = _wide(actual), _wide(expected)
    same = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
    if tolerance.bits:
        same &= (np.signbit(mine) == np.signbit(theirs)) | np.isnan(mine)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        gap = np.abs(mine - theirs)
        gap = np.where(same, 0.0, np.where(np.isfinite(theirs) & np.isfinite(mine), gap, np.inf))
        relative = np.where(same | (theirs == 0), 0.0, gap / np.abs(theirs))
    relative = np.where(np.isnan(relative), np.inf, relative)
    wrong = ~same & ((gap > tolerance.compute_bound(theirs)) | np.isinf(gap) | tolerance.bits)
    if ties is not None and wrong.any():
        wrong = wrong & ~ties.admits(actual, expected)
    return _verdict(actual, expected, gap, relative, wrong, name, f"beyond {_shown(tolerance)}")


def _wide(array: Array) -> Array:
    """Return the numbers as float64; a complex array gets a last axis of real and imaginary part."""
    if array.dtype.kind == "c":
        return np.stack([array.real, array.imag], axis=-1).astype(np.float64)
    return array.astype(np.float64)


def _shown(tolerance: Tolerance) -> str:
    if tolerance.bits:
        return "equality of bits"
    parts = [f"{field} {getattr(tolerance, field):.3g}" for field in ("rtol", "atol", "peak") if getattr(tolerance, field)]
    return ", ".join(parts) or "equality"


def _verdict(actual: Array, expected: Array, gap: Array, relative: Array, wrong: Array, name: str, rule: str) -> Comparison:
    """Gather the worst differences; where some are wrong, say how many and show the worst of those."""
    if not gap.size:
        return Comparison()
    at = np.unravel_index(int(np.argmax(gap)), gap.shape)
    absolute, worst_relative = float(gap[at]), float(relative.max())
    where = f"{name}{_index(at[: actual.ndim])}" if absolute else ""
    if not wrong.any():
        return Comparison("", absolute, worst_relative, where)
    shown = np.unravel_index(int(np.argmax(np.where(wrong, gap, -1.0))), gap.shape)[: actual.ndim]
    message = (
        f"{name} differs in {_count(wrong)}; at worst {name}{_index(shown)} is {actual[shown]}, {expected[shown]} was expected "
        f"(absolute difference {absolute:.3g}, relative {worst_relative:.3g}; {rule})"
    )
    return Comparison(message, absolute, worst_relative, where)


def _first(mask: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), mask.shape))


def _count(mask: Array) -> str:
    return f"{int(mask.sum())} of {mask.size} elements"


def _index(at: Sequence[Any]) -> str:
    return f"[{','.join(str(int(i)) for i in at)}]" if at else ""
