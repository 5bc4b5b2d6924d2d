"""NaN, infinities and denormal numbers among the inputs of generated graphs.

Every other graph keeps ordinary inputs. The others have one kind of special numbers, or all kinds, at random indices of each
floating-point input. A seed gives both, so a graph and its inputs are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import ml_dtypes
import numpy as np

from xrt.graph import DType, Function

__all__ = [
    "KINDS",
    "Kind",
    "has_denormals",
    "holds_special_numbers",
    "insert_special_numbers",
    "select_kinds",
    "smallest_normal",
    "with_zeros_for_denormals",
]

Array: TypeAlias = np.ndarray[Any, Any]
Kind: TypeAlias = Literal["nan", "infinity", "denormal"]

KINDS: tuple[Kind, ...] = ("nan", "infinity", "denormal")
_CHOICES: tuple[tuple[Kind, ...], ...] = ((), (), (), (), ("nan",), ("infinity",), ("denormal",), KINDS)
"""What the inputs of a graph have; each choice is as likely as the others."""
_limits: Callable[[Any], Any] = ml_dtypes.finfo


def smallest_normal(dtype: Any) -> float:
    """Return the smallest normal number of a floating-point type of NumPy or ml_dtypes."""
    return float(_limits(dtype).smallest_normal)


def select_kinds(seed: int) -> tuple[Kind, ...]:
    """Return the kinds of special numbers among the inputs of the graph of a seed; empty for ordinary inputs."""
    return _CHOICES[int(np.random.default_rng([seed, 1]).integers(len(_CHOICES)))]


def insert_special_numbers(inputs: Sequence[Any], seed: int) -> list[Any]:
    """Return the inputs with the special numbers of the seed in them; the given arrays are left as they are."""
    kinds = select_kinds(seed)
    rng = np.random.default_rng([seed, 2])
    return [_with_numbers(value, kinds, rng) if kinds else value for value in inputs]


def _with_numbers(value: Any, kinds: Sequence[Kind], rng: np.random.Generator) -> Any:
    if isinstance(value, list):
        return [_with_numbers(item, kinds, rng) for item in value]
    if not isinstance(value, np.ndarray) or not value.size or not DType.of(value).is_float:
        return value
    numbers = [number for kind in kinds for number in _NUMBERS[kind](value.dtype)]
    array = value.copy()
    flat = array.reshape(-1)
    for index in rng.choice(array.size, 1 + array.size // 8, replace=False):
        flat[index] = numbers[rng.integers(len(numbers))]
    return array


def _denormals(dtype: Any) -> tuple[Any, ...]:
    smallest = _limits(dtype).smallest_subnormal
    tiny = _limits(dtype).smallest_normal
    return smallest, -smallest, tiny - smallest, -tiny / dtype.type(2), tiny, dtype.type(-0.0)


_NUMBERS: Mapping[Kind, Callable[[Any], tuple[Any, ...]]] = {
    "nan": lambda dtype: (np.nan,),
    "infinity": lambda dtype: (np.inf, -np.inf),
    "denormal": _denormals,
}


def holds_special_numbers(function: Function, inputs: Sequence[Any]) -> bool:
    """Whether an input or a constant of the function holds one of the numbers that are inserted here."""
    arrays = [value for value in inputs if isinstance(value, np.ndarray)]
    arrays += [constant.array for constant in function.constants.values()]
    floats = [array for array in arrays if DType.of(array).is_float]
    return any(not np.isfinite(a).all() or has_denormals(a, frozenset({a.dtype.name})) for a in floats)


def has_denormals(value: Any, types: frozenset[str]) -> bool:
    """Whether the value is an array of one of those types with a denormal number in it."""
    if not isinstance(value, np.ndarray) or value.dtype.name not in types:
        return False
    magnitude = np.abs(value)
    return bool(((magnitude > 0) & (magnitude < _limits(value.dtype).smallest_normal)).any())


def with_zeros_for_denormals(value: Any, types: frozenset[str]) -> Any:
    """Return the value with zeros for the denormal numbers of those types."""
    if isinstance(value, list):
        return [with_zeros_for_denormals(item, types) for item in value]
    if not has_denormals(value, types):
        return value
    zero = np.zeros((), value.dtype)
    return np.where(np.abs(value) < _limits(value.dtype).smallest_normal, np.copysign(zero, value), value)
