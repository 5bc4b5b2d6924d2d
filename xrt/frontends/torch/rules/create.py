"""Rules of operators that make tensors of numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import emit
from xrt.frontends.torch.rules.table import Unsupported, cast, constant, ints, rule, scalar
from xrt.frontends.torch.symbols import make_shape
from xrt.graph import DType, TensorType

if TYPE_CHECKING:
    from xrt.builder import Tensor


def _filled(value: Any, sizes: Any, dtype: DType) -> Tensor:
    shape = make_shape(sizes)
    one = cast(value, dtype)
    return emit("Expand", one, shape) if len(sizes) else one


def _filled_like(value: Any, x: Tensor, result: TensorType) -> Tensor:
    one = cast(value, result.dtype)
    if result.is_static:
        return emit("Expand", one, np.array(result.shape, np.int64)) if result.shape else one
    return emit("Expand", one, emit("Shape", x))


@rule("full")
def full(result: TensorType, size: Any, fill_value: Any, **_: Any) -> Tensor:
    return _filled(fill_value, size, result.dtype)


@rule("zeros", "empty.memory_format", "empty_permuted", "_efficientzerotensor")
def zeros(result: TensorType, size: Any, *_: Any, **__: Any) -> Tensor:
    return _filled(0, size, result.dtype)


@rule("ones")
def ones(result: TensorType, size: Any, **_: Any) -> Tensor:
    return _filled(1, size, result.dtype)


@rule("new_zeros", "new_empty")
def new_zeros(result: TensorType, x: Tensor, size: Any, **_: Any) -> Tensor:
    return _filled(0, size, result.dtype)


@rule("empty_strided", "new_empty_strided")
def empty_strided(result: TensorType, *args: Any, **_: Any) -> Tensor:
    return _filled(0, next(arg for arg in args if isinstance(arg, list | tuple)), result.dtype)


@rule("new_ones")
def new_ones(result: TensorType, x: Tensor, size: Any, **_: Any) -> Tensor:
    return _filled(1, size, result.dtype)


@rule("new_full")
def new_full(result: TensorType, x: Tensor, size: Any, fill_value: Any, **_: Any) -> Tensor:
    return _filled(fill_value, size, result.dtype)


@rule("full_like")
def full_like(result: TensorType, x: Tensor, fill_value: Any, **_: Any) -> Tensor:
    return _filled_like(fill_value, x, result)


@rule("zeros_like", "empty_like", "zero")
def zeros_like(result: TensorType, x: Tensor, **_: Any) -> Tensor:
    return _filled_like(0, x, result)


@rule("ones_like")
def ones_like(result: TensorType, x: Tensor, **_: Any) -> Tensor:
    return _filled_like(1, x, result)


@rule("fill.Scalar", "fill.Tensor")
def fill(result: TensorType, x: Tensor, value: Any) -> Tensor:
    return _filled_like(value, x, result)


@rule("copy")
def copy(result: TensorType, x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    y = cast(source, result.dtype)
    return y if source.shape == x.shape else emit("Expand", y, emit("Shape", x))


@rule("arange")
def arange(result: TensorType, end: Any, **options: Any) -> Tensor:
    return arange_step(result, 0, end, 1)


@rule("arange.start")
def arange_start(result: TensorType, start: Any, end: Any, **options: Any) -> Tensor:
    return arange_step(result, start, end, 1)


@rule("arange.start_step")
def arange_step(result: TensorType, start: Any, end: Any, step: Any = 1, **_: Any) -> Tensor:
    """Numbers that are known become a constant, which has no rounding of its own."""
    if all(isinstance(one, int | float) for one in (start, end, step)):
        count = math.ceil((end - start) / step)
        is_whole = all(isinstance(one, int) for one in (start, end, step))
        numbers = start + step * np.arange(count, dtype=np.int64 if is_whole else np.float64)
        return constant(numbers, result.dtype)
    wanted = result.dtype if result.dtype in _RANGES else DType.INT64
    return cast(emit("Range", cast(start, wanted), cast(end, wanted), cast(step, wanted)), result.dtype)


_RANGES = frozenset({DType.FLOAT32, DType.FLOAT64, DType.INT16, DType.INT32, DType.INT64})


@rule("linspace")
def linspace(result: TensorType, start: Any, end: Any, steps: int, **_: Any) -> Tensor:
    if not all(isinstance(one, int | float) for one in (start, end, steps)):
        raise Unsupported("linspace between tensors")
    return constant(np.linspace(start, end, steps), result.dtype)


@rule("eye", "eye.m")
def eye(result: TensorType, n: int, m: int | None = None, **_: Any) -> Tensor:
    if not result.is_static:
        raise Unsupported("an identity matrix of symbolic size")
    return constant(np.eye(n, n if m is None else m), result.dtype)


@rule("one_hot")
def one_hot(result: TensorType, x: Tensor, num_classes: int = -1) -> Tensor:
    if num_classes < 0:
        raise Unsupported("one_hot without the number of classes")
    return emit("OneHot", x, scalar(num_classes, DType.INT64), ints(0, 1))
