"""Rules of elementwise operators and reductions: arithmetic, comparison, activations, dropout, sums, norms, sorting."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from xrt.builder.record_op import apply, emit
from xrt.frontends.torch.rules.table import (
    Rule,
    Unsupported,
    as_tensor,
    cast,
    constant,
    ints,
    normalize_axes,
    promote_types,
    reshape,
    rule,
    scalar,
)
from xrt.graph import DType, TensorType

if TYPE_CHECKING:
    from xrt.builder import Tensor

_SAME_NAMES = (
    *("abs", "exp", "log", "sqrt", "erf", "neg", "sign", "reciprocal", "sin", "cos", "tan", "asin", "acos", "atan"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "relu", "mish", "selu"),
)
_UNARY = {**{name: name.capitalize() for name in _SAME_NAMES}, "sgn": "Sign", "hardswish": "HardSwish"}


def _unary(op_type: str, result: TensorType, x: Tensor) -> Tensor:
    return emit(op_type, cast(x, result.dtype))


def _round(op_type: str, result: TensorType, x: Tensor) -> Tensor:
    return emit(op_type, x) if x.dtype.is_float else x


for _name, _op_type in _UNARY.items():
    rule(_name)(partial(_unary, _op_type))
for _name in ("floor", "ceil", "round"):
    rule(_name)(partial(_round, _name.capitalize()))


@rule("trunc")
def trunc(result: TensorType, x: Tensor) -> Tensor:
    return emit("Sign", x) * emit("Floor", emit("Abs", x)) if x.dtype.is_float else x


@rule("log1p")
def log1p(result: TensorType, x: Tensor) -> Tensor:
    """Emit log(u) * x / (u - 1), where u is 1 + x rounded: precise for small x."""
    y, one = cast(x, result.dtype), scalar(1, result.dtype)
    u = y + one
    # If x is so small that u is 1, log(1 + x) is x.
    is_tiny = u == one
    value = emit("Log", u) * (y / emit("Where", is_tiny, one, u - one))
    value = emit("Where", u == math.inf, u, value)
    return emit("Where", is_tiny, y, value)


@rule("expm1")
def expm1(result: TensorType, x: Tensor) -> Tensor:
    """Emit 2 * sinh(x / 2) * e**(x / 2), which equals e**x - 1 and is precise for small x."""
    y = cast(x, result.dtype)
    is_near = emit("Abs", y) < 2.0
    # Far from 0 the product may be infinity times zero: its gradient would be NaN, though the result is not selected.
    half = emit("Where", is_near, y * 0.5, scalar(0, result.dtype))
    near = emit("Sinh", half) * 2.0 * emit("Exp", half)
    return emit("Where", is_near, near, emit("Exp", y) - 1.0)


def _cast_both(dtype: DType, a: Any, b: Any) -> tuple[Tensor, Tensor]:
    return cast(a, dtype), cast(b, dtype)


def multiply_by(value: Any, alpha: Any, dtype: DType) -> Tensor:
    x = cast(value, dtype)
    return x if alpha == 1 else x * cast(alpha, dtype)


def _combine(combine: Callable[[Tensor, Tensor], Tensor], result: TensorType, a: Any, b: Any) -> Tensor:
    return combine(*_cast_both(result.dtype, a, b))


def _compare(compare: Callable[[Tensor, Tensor], Tensor], result: TensorType, a: Any, b: Any) -> Tensor:
    return compare(*_cast_both(promote_types(a, b), a, b))


def _extreme(op_type: str, bool_op_type: str, a: Tensor, b: Tensor) -> Tensor:
    return emit(bool_op_type if a.dtype is DType.BOOL else op_type, a, b)


_BINARY: dict[tuple[str, ...], Callable[..., Tensor]] = {
    ("mul.Tensor", "mul.Scalar"): operator.mul,
    ("div.Tensor", "div.Scalar"): partial(emit, "Div"),
    ("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor"): operator.mod,
    ("fmod.Tensor", "fmod.Scalar"): partial(emit, "Mod", fmod=1),
    ("maximum",): partial(_extreme, "Max", "Or"),
    ("minimum",): partial(_extreme, "Min", "And"),
    ("hypot",): lambda x, y: emit("Sqrt", x * x + y * y),
    ("logical_and", "bitwise_and.Tensor", "bitwise_and.Scalar"): operator.and_,
    ("logical_or", "bitwise_or.Tensor", "bitwise_or.Scalar"): operator.or_,
    ("logical_xor", "bitwise_xor.Tensor", "bitwise_xor.Scalar"): operator.xor,
    ("bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar", "__lshift__.Scalar", "__lshift__.Tensor"): operator.lshift,
    (
        "bitwise_right_shift.Tensor",
        "bitwise_right_shift.Tensor_Scalar",
        "__rshift__.Scalar",
        "__rshift__.Tensor",
    ): operator.rshift,
}
"""Functions that combine two operands in the element type of the result. On booleans ``&`` and ``|`` are logical."""
for _names, _function in _BINARY.items():
    rule(*_names)(partial(_combine, _function))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    rule(f"{_name}.Tensor", f"{_name}.Scalar")(partial(_compare, getattr(operator, _name)))


@rule("clamp", "clamp.Tensor")
def clamp(result: TensorType, x: Any, min: Any = None, max: Any = None) -> Tensor:  # noqa: A002  # PyTorch's names
    y = cast(x, result.dtype)
    if min is not None:
        y = emit("Max", y, cast(min, result.dtype))
    return y if max is None else emit("Min", y, cast(max, result.dtype))


_EXPRESSIONS: dict[str, Rule] = {
    "rsqrt": lambda result, x: emit("Reciprocal", emit("Sqrt", cast(x, result.dtype))),
    "log2": lambda result, x: emit("Log", cast(x, result.dtype)) * (1 / math.log(2)),
    "log10": lambda result, x: emit("Log", cast(x, result.dtype)) * (1 / math.log(10)),
    "exp2": lambda result, x: emit("Pow", scalar(2, result.dtype), cast(x, result.dtype)),
    "isnan": lambda result, x: emit("IsNaN", x) if x.dtype.is_float else x != x,  # False everywhere
    "isinf": lambda result, x: emit("Abs", x) == math.inf if x.dtype.is_float else x != x,
    "logical_not": lambda result, x: ~cast(x, DType.BOOL),
    "bitwise_not": lambda result, x: ~x,
    "add.Tensor add.Scalar": lambda result, a, b, alpha=1: cast(a, result.dtype) + multiply_by(b, alpha, result.dtype),
    "sub.Tensor sub.Scalar": lambda result, a, b, alpha=1: cast(a, result.dtype) - multiply_by(b, alpha, result.dtype),
    "scalar_tensor": lambda result, value, **_: cast(as_tensor(value), result.dtype),
    "where.self": lambda result, condition, a, b: emit("Where", cast(condition, DType.BOOL), *_cast_both(result.dtype, a, b)),
    "hardtanh": lambda result, x, min_val=-1.0, max_val=1.0: clamp(result, x, min_val, max_val),
    "gelu": lambda result, x, approximate="none": emit("Gelu", x, approximate=approximate),
    "silu": lambda result, x: x * emit("Sigmoid", x),
    "leaky_relu": lambda result, x, negative_slope=0.01: emit("LeakyRelu", x, alpha=float(negative_slope)),
    "hardsigmoid": lambda result, x: emit("HardSigmoid", x, alpha=1 / 6, beta=0.5),
    "log_sigmoid": lambda result, x: -emit("Softplus", -x),
}
for _name, _function in _EXPRESSIONS.items():
    rule(*_name.split())(_function)


@rule("div.Tensor_mode", "div.Scalar_mode")
def div_mode(result: TensorType, a: Any, b: Any, rounding_mode: str | None = None) -> Tensor:
    x, y = _cast_both(result.dtype, a, b)
    if rounding_mode == "floor":
        return x // y
    quotient = emit("Div", x, y)
    return quotient if rounding_mode is None else trunc(result, quotient)


@rule("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def power(result: TensorType, a: Any, b: Any) -> Tensor:
    if isinstance(b, int | float) and not isinstance(b, bool):
        x = cast(a, result.dtype)
        # Common exponents have cheaper operators than Pow.
        if b == 2:
            return x * x
        if b == 1:
            return x
        if result.dtype.is_float and b in (0.5, -0.5, -1):
            positive_power = x if b == -1 else emit("Sqrt", x)  # x to the power |b|
            return positive_power if b > 0 else emit("Reciprocal", positive_power)
        if not result.dtype.is_float and b < 0:
            raise Unsupported("an integer to a negative power")
    return emit("Pow", *_cast_both(result.dtype, a, b))


@rule("atan2")
def atan2(result: TensorType, y: Any, x: Any) -> Tensor:
    a, b = _cast_both(result.dtype, y, x)
    zero, one, infinity = (scalar(number, result.dtype) for number in (0, 1, math.inf))
    # Replace two infinities by their signs, which have the same angle, because their quotient would be NaN.
    both_infinite = emit("And", emit("Abs", a) == infinity, emit("Abs", b) == infinity)
    a, b = (emit("Where", both_infinite, emit("Sign", operand), operand) for operand in (a, b))
    # Divide the smaller operand by the larger one, so that the quotient and its gradient are finite, also if one is 0.
    is_steep = emit("Abs", a) > emit("Abs", b)
    smaller, larger = emit("Where", is_steep, b, a), emit("Where", is_steep, a, b)
    angle = emit("Atan", smaller / emit("Where", larger == zero, one, larger))
    half_turn = emit("Where", a < zero, scalar(-math.pi, result.dtype), scalar(math.pi, result.dtype))
    # Atan is the angle from the x axis in the right half plane. For steep vectors it is measured from the y axis.
    flat_angle = angle + emit("Where", b < zero, half_turn, zero)
    return emit("Where", is_steep, half_turn * 0.5 - angle, flat_angle)


@rule("elu")
def elu(result: TensorType, x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    if input_scale != 1:
        raise Unsupported("an elu of a scaled input, which PyTorch decomposes")
    return multiply_by(emit("Elu", x, alpha=float(alpha)), scale, x.dtype)


@rule("softplus")
def softplus(result: TensorType, x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    scaled = multiply_by(x, beta, x.dtype)
    smooth = emit("Softplus", scaled)
    return emit("Where", scaled > float(threshold), x, smooth if beta == 1 else smooth / float(beta))


@rule("prelu", "_prelu_kernel")
def prelu(result: TensorType, x: Tensor, weight: Tensor) -> Tensor:
    if x.ndim > 2 and weight.ndim == 1:
        weight = reshape(weight, -1, *[1] * (x.ndim - 2))
    return emit("PRelu", x, weight)


def _softmax(op_type: str, result: TensorType, x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    y = cast(x, result.dtype)
    # ONNX's Softmax needs an axis. y - y is 0, and NaN for NaN and infinities, as in PyTorch.
    if x.shape == ():
        return y - y if op_type == "LogSoftmax" else emit("Exp", y - y)
    return emit(op_type, y, axis=dim)


rule("softmax.int", "_softmax")(partial(_softmax, "Softmax"))
rule("log_softmax.int", "_log_softmax")(partial(_softmax, "LogSoftmax"))


def drop(x: Tensor, p: float) -> Tensor:
    """Emit Dropout in training mode: set elements to zero with probability ``p``, and divide the rest by 1 - p."""
    # ONNX's Dropout with ratio 1 would divide by zero. The product keeps NaN, as in PyTorch.
    return x * 0.0 if p >= 1 else emit("Dropout", x, scalar(p, DType.FLOAT32), scalar(True, DType.BOOL))


@rule("dropout")
def dropout(result: TensorType, x: Tensor, p: float, train: bool) -> Tensor:
    return drop(x, p) if train and p > 0 else x


@rule("native_dropout")
def native_dropout(result: Any, x: Tensor, p: float, train: bool | None) -> Any:
    if train is not False and p > 0:
        return _drop_with_mask(x, p)
    return x, emit("Expand", constant(True, DType.BOOL), emit("Shape", x))


@rule("bernoulli.p")
def bernoulli(result: TensorType, x: Tensor, p: float = 0.5, generator: Any = None) -> Tensor:
    if generator is not None:
        raise Unsupported("random numbers of a generator that the module passes")
    # By the mask of a Dropout, so that Dropout is the only random operator of a Function.
    _, mask = _drop_with_mask(emit("Expand", scalar(1, x.dtype), emit("Shape", x)), 1 - p)
    return cast(mask, result.dtype)


def _drop_with_mask(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Emit Dropout in training mode; return the result and the mask, true where elements were not dropped."""
    if p >= 1:
        return drop(x, p), emit("Expand", constant(False, DType.BOOL), emit("Shape", x))
    y, mask = apply("Dropout", (x, scalar(p, DType.FLOAT32), scalar(True, DType.BOOL)), {}, outputs=2)
    return y, mask


def reduce_axes(op_type: str, x: Tensor, axes: list[int], keepdim: bool) -> Tensor:
    """Reduce over axes. Without axes, as for a 0-d tensor, return ``x`` unchanged."""
    return emit(op_type, x, ints(*axes), keepdims=int(keepdim)) if axes else x


def _reduce(op_type: str, result: TensorType, x: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    return reduce_axes(op_type, cast(x, result.dtype), normalize_axes(x, dim) if x.ndim else [], keepdim)


rule("sum", "sum.dim_IntList")(partial(_reduce, "ReduceSum"))
rule("mean", "mean.dim")(partial(_reduce, "ReduceMean"))
rule("prod", "prod.dim_int")(partial(_reduce, "ReduceProd"))
rule("logsumexp")(partial(_reduce, "ReduceLogSumExp"))


def _register_reduced_extreme(op_type: str, index_op_type: str) -> None:
    """Register the rules of ``max`` or ``min``: values, values with indices, and indices."""

    def extreme(result: TensorType, x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
        if x.dtype is DType.BOOL:
            return cast(_reduce(op_type, TensorType(DType.UINT8), x, dim, keepdim), DType.BOOL)
        return _reduce(op_type, result, x, dim, keepdim)

    def with_index(result: tuple[TensorType, ...], x: Tensor, dim: int, keepdim: bool = False) -> Any:
        if x.ndim == 0:
            return x, scalar(0, DType.INT64)
        # ONNX's ArgMax and ArgMin have no booleans.
        y = cast(x, DType.INT32) if x.dtype is DType.BOOL else x
        indices = emit(index_op_type, y, axis=dim % x.ndim, keepdims=int(keepdim))
        return cast(reduce_axes(op_type, y, [dim % x.ndim], keepdim), x.dtype), indices

    def only_index(result: TensorType, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        if dim is None:
            indices = emit(index_op_type, reshape(x, -1), axis=0, keepdims=0)
            return reshape(indices, *[1] * x.ndim) if keepdim else indices
        return emit(index_op_type, x, axis=dim % x.ndim, keepdims=int(keepdim)) if x.ndim else scalar(0, DType.INT64)

    name = op_type.removeprefix("Reduce").lower()
    rule(name, f"a{name}")(extreme)
    rule(f"{name}.dim")(with_index)
    rule(f"arg{name}")(only_index)


_register_reduced_extreme("ReduceMax", "ArgMax")
_register_reduced_extreme("ReduceMin", "ArgMin")


def _reduce_bools(op_type: str, result: TensorType, x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return cast(_reduce(op_type, TensorType(DType.INT32), cast(x, DType.BOOL), dim, keepdim), result.dtype)


for _name, _op_type in {"any": "ReduceMax", "all": "ReduceMin"}.items():
    rule(_name, f"{_name}.dim", f"{_name}.dims")(partial(_reduce_bools, _op_type))


def _count_elements(x: Tensor, axes: list[int], dtype: DType) -> Any:
    """Count the reduced elements: an int, or a 0-d tensor of ``dtype`` if a size is symbolic."""
    sizes = [x.shape[axis] for axis in axes]
    if all(isinstance(size, int) for size in sizes):
        return math.prod(sizes)
    count = emit("ReduceProd", emit("Gather", emit("Shape", x), ints(*axes)), ints(0), keepdims=0)
    return emit("Cast", count, to=dtype)


def variance(x: Tensor, axes: list[int], correction: float, keepdim: bool) -> Tensor:
    """Emit the variance over axes: the sum of squared differences to the mean, divided by the element count - ``correction``."""
    centered = emit("Sub", x, reduce_axes("ReduceMean", x, axes, True))
    squares = emit("Mul", centered, centered)
    if correction == 0:
        return reduce_axes("ReduceMean", squares, axes, keepdim)
    count = _count_elements(x, axes, x.dtype)
    if isinstance(count, int):
        divisor: Any = scalar(max(count - correction, 0), x.dtype)
    else:
        divisor = emit("Max", emit("Sub", count, scalar(correction, x.dtype)), scalar(0, x.dtype))
    return emit("Div", reduce_axes("ReduceSum", squares, axes, keepdim), divisor)


@rule("var.correction")
def var(result: TensorType, x: Tensor, dim: Any = None, correction: float | None = None, keepdim: bool = False) -> Tensor:
    return variance(x, normalize_axes(x, dim), 1 if correction is None else float(correction), keepdim)


@rule("var_mean.correction")
def var_mean(result: Any, x: Tensor, dim: Any = None, correction: float | None = None, keepdim: bool = False) -> Any:
    return var(result[0], x, dim, correction, keepdim), reduce_axes("ReduceMean", x, normalize_axes(x, dim), keepdim)


@rule("linalg_vector_norm")
def vector_norm(result: TensorType, x: Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    if p not in (1, 2) or x.ndim == 0:
        raise Unsupported("a norm of another order than 1 or 2, which PyTorch decomposes")
    return reduce_axes(f"ReduceL{int(p)}", cast(x, result.dtype), normalize_axes(x, dim), keepdim)


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
    # Sorted always: PyTorch does not define the order of unsorted results.
    count = ints(k) if isinstance(k, int) else k.vector
    return apply("TopK", (x, count), {"axis": dim % x.ndim, "largest": int(largest), "sorted": 1})


@rule("sort", "sort.stable")
def sort(
    result: tuple[TensorType, ...], x: Tensor, *args: Any, stable: Any = None, dim: int = -1, descending: bool = False
) -> Any:
    # `sort` passes dim and descending by position, `sort.stable` by keyword. ONNX's TopK is stable, so `stable` changes nothing.
    if args:
        dim = args[0]
    if len(args) > 1:
        descending = args[1]
    if x.ndim == 0:
        return x, scalar(0, DType.INT64)
    # Not all engines have TopK of narrow integers.
    is_narrow = x.dtype in (DType.BOOL, DType.INT8, DType.UINT8, DType.INT16)
    y = cast(x, DType.INT32) if is_narrow else x
    axis = dim % x.ndim
    count = emit("Shape", x, start=axis, end=axis + 1)
    values, indices = apply("TopK", (y, count), {"axis": axis, "largest": int(descending), "sorted": 1})
    return cast(values, x.dtype), indices
