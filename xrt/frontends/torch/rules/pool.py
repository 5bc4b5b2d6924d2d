"""Rules of pools."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from xrt.builder.record_op import emit
from xrt.builder.symbol import current
from xrt.frontends.torch.rules.reduce import reduce_by
from xrt.frontends.torch.rules.table import (
    Unsupported,
    add_batch,
    drop_batch,
    each,
    fixed_size,
    ints,
    rule,
    scalar,
)
from xrt.graph import DType, TensorType

if TYPE_CHECKING:
    from xrt.builder import Tensor


def _pool(
    op_type: str, count: int, x: Tensor, kernel: Any, stride: Any, padding: Any, ceil_mode: bool, **attributes: Any
) -> Tensor:
    """Pool the last axes, ``count`` of them; strides that are left out are the sizes of the kernel."""
    y, is_single = add_batch(x, count)
    sizes = each(kernel, count)
    strides = sizes if stride in ((), [], None) else each(stride, count)
    pads = each(padding, count) * 2
    y = emit(op_type, y, kernel_shape=sizes, strides=strides, pads=pads, ceil_mode=int(ceil_mode), **attributes)
    return drop_batch(y, is_single)


def _max_pool(
    count: int,
    result: TensorType,
    x: Tensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Tensor:
    return _pool("MaxPool", count, x, kernel, stride, padding, ceil_mode, dilations=each(dilation, count))


def _average_pool(
    count: int,
    result: TensorType,
    x: Tensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    if divisor_override is not None:
        raise Unsupported("an average pool with a divisor of its own")
    return _pool("AveragePool", count, x, kernel, stride, padding, ceil_mode, count_include_pad=int(count_include_pad))


def _max_pool_with_indices(count: int, result: Any, x: Tensor, kernel: Any, *args: Any, **options: Any) -> Any:
    """ONNX counts the indices over the whole tensor, PyTorch over one plane."""
    if result[1] is None:
        return _max_pool(count, result[0], x, kernel, *args, **options), None
    if x.ndim != count + 2:
        raise Unsupported("a pool without a batch of which the indices are used")
    _max_pool(count, result[0], x, kernel, *args, **options)
    builder = current("a pool")
    node = builder.nodes.pop()
    label = builder.names.plain(f"{node.name}_indices")
    y, found = builder.record(replace(node, outputs=(*node.outputs, label)), (result[0], TensorType(DType.INT64)))
    plane = scalar(math.prod(fixed_size(x, axis) for axis in range(2, x.ndim)), DType.INT64)
    return y, emit("Mod", found, plane)


def _adaptive_max_pool(count: int, result: Any, x: Tensor, output_size: Any) -> Any:
    if result[1] is not None:
        raise Unsupported("an adaptive pool of which the indices are used")
    return _adaptive("MaxPool", x, output_size, count), None


def _adaptive_average_pool(count: int, result: TensorType, x: Tensor, output_size: Any) -> Tensor:
    return _adaptive("AveragePool", x, output_size, count)


def _adaptive(op_type: str, x: Tensor, output_size: Any, count: int) -> Tensor:
    wanted = each(output_size, count)
    axes = list(range(x.ndim - count, x.ndim))
    if all(size == 1 for size in wanted):
        return reduce_by("ReduceMean" if op_type == "AveragePool" else "ReduceMax", x, axes, True)
    sizes = [x.shape[axis] for axis in axes]
    wanted = [size if want is None else want for size, want in zip(sizes, wanted, strict=True)]
    if not all(isinstance(size, int) and isinstance(want, int) for size, want in zip(sizes, wanted, strict=True)):
        raise Unsupported("an adaptive pool over axes of symbolic size")
    if all(size % want == 0 for size, want in zip(sizes, wanted, strict=True)):  # type: ignore[operator]  # all are integers
        kernel = [size // want for size, want in zip(sizes, wanted, strict=True)]  # type: ignore[operator]  # as above
        y, is_single = add_batch(x, count)
        return drop_batch(emit(op_type, y, kernel_shape=kernel, strides=kernel), is_single)
    for axis, size, want in zip(axes, sizes, wanted, strict=True):
        x = _adaptive_axis(op_type, x, axis, int(size), want)  # type: ignore[arg-type]  # as above
    return x


def _adaptive_axis(op_type: str, x: Tensor, axis: int, size: int, want: int) -> Tensor:
    """Pool one axis: averages are a product with a matrix of weights, and largest elements are taken part by part."""
    starts = [i * size // want for i in range(want)]
    ends = [-(-(i + 1) * size // want) for i in range(want)]
    parts = []
    for start, end in zip(starts, ends, strict=True):
        part = emit("Slice", x, ints(start), ints(end), ints(axis))
        parts.append(reduce_by("ReduceMean" if op_type == "AveragePool" else "ReduceMax", part, [axis], True))
    return parts[0] if len(parts) == 1 else emit("Concat", *parts, axis=axis)


for _count in (1, 2, 3):
    rule(f"max_pool{_count}d")(partial(_max_pool, _count))
    rule(f"max_pool{_count}d_with_indices")(partial(_max_pool_with_indices, _count))
    rule(f"avg_pool{_count}d")(partial(_average_pool, _count))
    rule(f"adaptive_avg_pool{_count}d", *[f"_adaptive_avg_pool{_count}d"][: _count - 1])(partial(_adaptive_average_pool, _count))
    rule(f"adaptive_max_pool{_count}d")(partial(_adaptive_max_pool, _count))
