"""Operands: how a Python value in an expression with a tensor becomes a tensor.

A value of the graph is itself. An array, or a NumPy scalar, is a constant of its own type. A Python number, and a list of them,
is *weak* (NEP 50): it takes the type of the other operand, and has one of its own only if there is no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import ml_dtypes  # noqa: F401  # registers its types with NumPy
import numpy as np

from xrt.builder.symbol import Symbol
from xrt.errors import ModelError
from xrt.graph.constants import Constant
from xrt.graph.dtypes import DType
from xrt.graph.type_strings import parse_onnx_spelling
from xrt.graph.types import TensorType

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor
    from xrt.graph.op_schema import FormalParameter

__all__ = ["DTypeLike", "Operand", "infer_operand_dtype", "is_strong", "is_weak", "natural_dtype", "weak_array", "weak_dtype"]

Number: TypeAlias = "bool | int | float | complex"
Operand: TypeAlias = "Tensor | Constant | np.ndarray[Any, Any] | np.generic | Number | str | list[Any] | tuple[Any, ...]"
DTypeLike: TypeAlias = "DType | np.dtype[Any] | type[Any] | str"


def is_strong(value: object) -> bool:
    """Whether the value has an element type of its own."""
    return isinstance(value, Symbol | Constant | np.ndarray | np.generic)


def is_weak(value: object) -> bool:
    """Whether the value takes the element type of what it meets: a Python number or text, or a list of them."""
    return not isinstance(value, np.generic) and isinstance(value, bool | int | float | complex | str | list | tuple)


def infer_operand_dtype(like: DTypeLike) -> DType:
    """Return the element type that a person means: a DType, its text (``"float32"``), a NumPy type, or ``int``, ``float``."""
    if isinstance(like, DType):
        return like
    if isinstance(like, str) and like in _TEXTS:
        return DType.parse(like)
    if like is str:
        return DType.STRING
    try:
        return DType.of(np.empty(0, np.dtype(like)))
    except TypeError:
        raise ModelError(f"{like!r} is no element type; give an xrt DType, a NumPy dtype, or a name such as 'float32'") from None


_TEXTS = frozenset(d.text for d in DType)


def natural_dtype(*values: Any) -> DType:
    """Return the element type of weak values that meet nothing: string, or the first of bool, int64, float32 and complex64 that
    holds them all. (ONNX prefers float32 where NumPy takes float64.)
    """
    arrays = [_plain_array(value) for value in values]
    kinds = ["i" if array.size == 0 else array.dtype.kind for array in arrays]
    if any(kind not in _ORDER for kind in kinds):
        return DType.STRING
    return (DType.BOOL, DType.INT64, DType.FLOAT32, DType.COMPLEX64)[max(_ORDER[kind] for kind in kinds)]


def weak_dtype(formal: FormalParameter, bound: Mapping[str, str], values: Sequence[Any]) -> DType:
    """Return the element type that weak values take as inputs of an operator that must have one type.

    The one that the other inputs bind; else their natural one if the operator admits it; else the operator's first that
    can hold them.
    """
    meets = parse_onnx_spelling(bound[formal.variable]) if formal.variable in bound else None
    if isinstance(meets, TensorType):
        return meets.dtype
    natural = natural_dtype(*values)
    admitted = [t.dtype for t in map(parse_onnx_spelling, sorted(formal.types)) if isinstance(t, TensorType)]
    if natural in admitted or not admitted:
        return natural
    fitting = [d for d in (DType.INT64, DType.INT32, DType.FLOAT32, DType.FLOAT64, *admitted) if d in admitted]
    return next((d for d in fitting if all(_fits(_plain_array(value), d) for value in values)), fitting[0])


_ORDER = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}


def _kind(dtype: DType) -> str:
    return "i" if dtype.is_integer else "f" if dtype.is_float else dtype.numpy.kind


def _fits(array: np.ndarray[Any, Any], dtype: DType) -> bool:
    """Whether the kind of number can hold the values: an integer type holds no floats."""
    if dtype is DType.STRING or array.dtype.kind not in _ORDER:
        return dtype is DType.STRING and array.dtype.kind == "U"
    return array.size == 0 or _ORDER[array.dtype.kind] <= _ORDER[_kind(dtype)]


def weak_array(value: Any, dtype: DType) -> np.ndarray[Any, Any]:
    """Return a weak value as an array of an element type; raises ModelError where that type cannot hold it."""
    array = _plain_array(value)
    if not _fits(array, dtype):
        raise ModelError(f"{value!r} cannot be a constant of {dtype}; convert the tensor that it meets with .astype(...)")
    if dtype is DType.STRING:
        return array.astype(object)
    converted = array.astype(dtype.numpy)
    if dtype.is_integer and array.size and not bool((converted.astype(object) == array.astype(object)).all()):
        raise ModelError(f"{value!r} is out of the range of {dtype}; convert the tensor that it meets with .astype(...)")
    return converted


def _plain_array(value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, list | tuple) and any(isinstance(item, Symbol) for item in value):
        raise ModelError(
            "a list that holds tensors of the graph is not an operand; pass the tensors one by one, as in "
            "xrt.ops.Concat(a, b, axis=0)"
        )
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ModelError(f"{value!r} is not a tensor: {error}") from error
