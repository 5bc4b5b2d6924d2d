"""Rules of reductions, cumulative operators and sorting."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from xrt.builder.record_op import apply, emit
from xrt.frontends.torch.rules.table import Unsupported, cast, ints, normalize_axes, reshape, rule, scalar
from xrt.graph import DType, TensorType

if TYPE_CHECKING:
    from xrt.builder import Tensor


def reduce_by(op_type: str, x: Tensor, axes: list[int], keepdim: bool) -> Tensor:
    """Reduce over axes; a 0-d tensor is returned unchanged."""
    return emit(op_type, x, ints(*axes), keepdims=int(keepdim)) if axes else x


def _reduced(op_type: str, result: TensorType, x: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    return reduce_by(op_type, cast(x, result.dtype), normalize_axes(x, dim) if x.ndim else [], keepdim)


rule("sum", "sum.dim_IntList")(partial(_reduced, "ReduceSum"))
rule("mean", "mean.dim")(partial(_reduced, "ReduceMean"))
rule("prod", "prod.dim_int")(partial(_reduced, "ReduceProd"))
rule("logsumexp")(partial(_reduced, "ReduceLogSumExp"))


def _register_extreme(op_type: str, index: str, *names: str) -> None:
    def extreme(result: TensorType, x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
        if x.dtype is DType.BOOL:
            return cast(_reduced(op_type, TensorType(DType.UINT8), x, dim, keepdim), DType.BOOL)
        return _reduced(op_type, result, x, dim, keepdim)

    def with_index(result: tuple[TensorType, ...], x: Tensor, dim: int, keepdim: bool = False) -> Any:
        if x.ndim == 0:
            return x, scalar(0, DType.INT64)
        # ONNX's ArgMax and ArgMin have no booleans.
        y = cast(x, DType.INT32) if x.dtype is DType.BOOL else x
        found = emit(index, y, axis=dim % x.ndim, keepdims=int(keepdim))
        return cast(reduce_by(op_type, y, [dim % x.ndim], keepdim), x.dtype), found

    def only_index(result: TensorType, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        if dim is None:
            found = emit(index, reshape(x, -1), axis=0, keepdims=0)
            return reshape(found, *[1] * x.ndim) if keepdim else found
        return emit(index, x, axis=dim % x.ndim, keepdims=int(keepdim)) if x.ndim else scalar(0, DType.INT64)

    low = op_type.removeprefix("Reduce").lower()
    rule(low, f"a{low}")(extreme)
    rule(f"{low}.dim")(with_index)
    rule(f"arg{low}")(only_index)


_register_extreme("ReduceMax", "ArgMax")
_register_extreme("ReduceMin", "ArgMin")


def _test(op_type: str, result: TensorType, x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return cast(_reduced(op_type, TensorType(DType.INT32), cast(x, DType.BOOL), dim, keepdim), result.dtype)


for _name, _op_type in {"any": "ReduceMax", "all": "ReduceMin"}.items():
    rule(_name, f"{_name}.dim", f"{_name}.dims")(partial(_test, _op_type))


# ---------------------------------------------------------------------- variance and norms


def _count(x: Tensor, axes: list[int], dtype: DType) -> Any:
    """Number of reduced elements: a number, or a 0-d tensor for symbolic extents."""
    sizes = [x.shape[axis] for axis in axes]
    if all(isinstance(size, int) for size in sizes):
        return math.prod(sizes)
    row = emit("ReduceProd", emit("Gather", emit("Shape", x), ints(*axes)), ints(0), keepdims=0)
    return emit("Cast", row, to=dtype)


def variance(x: Tensor, axes: list[int], correction: float, keepdim: bool) -> Tensor:
    """Variance over axes with Bessel's correction."""
    centered = emit("Sub", x, reduce_by("ReduceMean", x, axes, True))
    squares = emit("Mul", centered, centered)
    if correction == 0:
        return reduce_by("ReduceMean", squares, axes, keepdim)
    count = _count(x, axes, x.dtype)
    if isinstance(count, int):
        divisor: Any = scalar(max(count - correction, 0), x.dtype)
    else:
        divisor = emit("Max", emit("Sub", count, scalar(correction, x.dtype)), scalar(0, x.dtype))
    return emit("Div", reduce_by("ReduceSum", squares, axes, keepdim), divisor)


@rule("var.correction")
def var(result: TensorType, x: Tensor, dim: Any = None, correction: float | None = None, keepdim: bool = False) -> Tensor:
    return variance(x, normalize_axes(x, dim), 1 if correction is None else float(correction), keepdim)


@rule("var_mean.correction")
def var_mean(result: Any, x: Tensor, dim: Any = None, correction: float | None = None, keepdim: bool = False) -> Any:
    return var(result[0], x, dim, correction, keepdim), reduce_by("ReduceMean", x, normalize_axes(x, dim), keepdim)


@rule("linalg_vector_norm")
def vector_norm(result: TensorType, x: Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    if p not in (1, 2) or x.ndim == 0:
        raise Unsupported("a norm of another order than 1 or 2, which PyTorch decomposes")
    return reduce_by(f"ReduceL{int(p)}", cast(x, result.dtype), normalize_axes(x, dim), keepdim)


# ---------------------------------------------------------------------- along an axis


def _accumulate(op_type: str, result: TensorType, x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    y = cast(x, result.dtype)
    return emit(op_type, y, scalar(dim % x.ndim, DType.INT64)) if x.ndim else y


rule("cumsum")(partial(_accumulate, "CumSum"))
rule("cumprod")(partial(_accumulate, "CumProd"))


@rule("topk")
def topk(
    result: tuple[TensorType, ...],
    x: Tensor,
    k: Any,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,  # noqa: A002
) -> Any:
    if x.ndim == 0:
        return x, scalar(0, DType.INT64)
    count = ints(k) if isinstance(k, int) else k.row
    return apply("TopK", (x, count), {"axis": dim % x.ndim, "largest": int(largest), "sorted": 1})


@rule("sort", "sort.stable")
def sort(
    result: tuple[TensorType, ...], x: Tensor, *args: Any, stable: Any = None, dim: int = -1, descending: bool = False
) -> Any:
    if args:
        dim, descending = args[0], args[1] if len(args) > 1 else descending
    if x.ndim == 0:
        return x, scalar(0, DType.INT64)
    axis, narrow = dim % x.ndim, x.dtype in (DType.BOOL, DType.INT8, DType.UINT8, DType.INT16)
    y = cast(x, DType.INT32) if narrow else x
    count = emit("Shape", x, start=axis, end=axis + 1)
    values, where = apply("TopK", (y, count), {"axis": axis, "largest": int(descending), "sorted": 1})
    return cast(values, x.dtype), where
