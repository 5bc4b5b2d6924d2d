"""Rules of activation functions, softmax and dropout."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from xrt.builder.record_op import apply, emit
from xrt.frontends.torch.rules.elementwise import clamp, multiply_by
from xrt.frontends.torch.rules.table import Unsupported, cast, constant, ints, reshape, rule, scalar
from xrt.graph import DType, TensorType

if TYPE_CHECKING:
    from xrt.builder import Tensor


@rule("gelu")
def gelu(result: TensorType, x: Tensor, approximate: str = "none") -> Tensor:
    return emit("Gelu", x, approximate=approximate)


@rule("silu")
def silu(result: TensorType, x: Tensor) -> Tensor:
    return emit("Mul", x, emit("Sigmoid", x))


@rule("mish")
def mish(result: TensorType, x: Tensor) -> Tensor:
    return emit("Mish", x)


@rule("elu")
def elu(result: TensorType, x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    if input_scale == 1:
        y = emit("Elu", x, alpha=float(alpha))
    else:
        grown = emit("Sub", emit("Exp", emit("Mul", x, scalar(input_scale, x.dtype))), scalar(1, x.dtype))
        y = emit("Where", emit("Greater", x, scalar(0, x.dtype)), x, emit("Mul", grown, scalar(alpha, x.dtype)))
    return multiply_by(y, scale, x.dtype)


@rule("celu")
def celu(result: TensorType, x: Tensor, alpha: float = 1.0) -> Tensor:
    return emit("Celu", x, alpha=float(alpha)) if x.dtype is DType.FLOAT32 else elu(result, x, alpha, 1, 1 / alpha)


@rule("selu")
def selu(result: TensorType, x: Tensor) -> Tensor:
    return emit("Selu", x)


@rule("leaky_relu")
def leaky_relu(result: TensorType, x: Tensor, negative_slope: float = 0.01) -> Tensor:
    return emit("LeakyRelu", x, alpha=float(negative_slope))


@rule("hardswish")
def hardswish(result: TensorType, x: Tensor) -> Tensor:
    return emit("HardSwish", x)


@rule("hardsigmoid")
def hardsigmoid(result: TensorType, x: Tensor) -> Tensor:
    return emit("HardSigmoid", x, alpha=1 / 6, beta=0.5)


@rule("softplus")
def softplus(result: TensorType, x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    scaled = multiply_by(x, beta, x.dtype)
    smooth = emit("Softplus", scaled)
    smooth = smooth if beta == 1 else emit("Div", smooth, scalar(beta, x.dtype))
    return emit("Where", emit("Greater", scaled, scalar(threshold, x.dtype)), x, smooth)


@rule("log_sigmoid")
def log_sigmoid(result: TensorType, x: Tensor) -> Tensor:
    return emit("Neg", emit("Softplus", emit("Neg", x)))


@rule("prelu", "_prelu_kernel")
def prelu(result: TensorType, x: Tensor, weight: Tensor) -> Tensor:
    if x.ndim > 2 and weight.ndim == 1:
        weight = reshape(weight, -1, *[1] * (x.ndim - 2))
    return emit("PRelu", x, weight)


@rule("glu")
def glu(result: TensorType, x: Tensor, dim: int = -1) -> Tensor:
    first, second = apply("Split", (x,), {"axis": dim, "num_outputs": 2}, outputs=2)
    return emit("Mul", first, emit("Sigmoid", second))


@rule("logit")
def logit(result: TensorType, x: Tensor, eps: float | None = None) -> Tensor:
    y = cast(x, result.dtype)
    y = y if eps is None else clamp(result, y, eps, 1 - eps)
    return emit("Log", emit("Div", y, emit("Sub", scalar(1, result.dtype), y)))


@rule("softmax.int", "_softmax")
def softmax(result: TensorType, x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    return _normalized("Softmax", result, x, dim)


@rule("_safe_softmax")
def safe_softmax(result: TensorType, x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """A row of negative infinities gives zeros."""
    if x.ndim == 0:
        raise Unsupported("a safe softmax of a 0-d tensor")
    x = cast(x, result.dtype)
    top = emit("ReduceMax", x, ints(dim % x.ndim), keepdims=1)
    hidden = emit("Equal", top, scalar(-math.inf, result.dtype))
    return emit("Where", hidden, scalar(0, result.dtype), _normalized("Softmax", result, x, dim))


@rule("log_softmax.int", "_log_softmax")
def log_softmax(result: TensorType, x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    return _normalized("LogSoftmax", result, x, dim)


def _normalized(op_type: str, result: TensorType, x: Tensor, dim: int) -> Tensor:
    y = cast(x, result.dtype)
    if x.shape == ():
        return emit("Sub" if op_type == "LogSoftmax" else "Div", y, y)
    return emit(op_type, y, axis=dim)


def drop(x: Tensor, p: float) -> Tensor:
    """Return the tensor with elements dropped in that share, in training form; the others are divided by what is kept."""
    if p >= 1:
        return emit("Mul", x, scalar(0, x.dtype))
    return emit("Dropout", x, scalar(p, DType.FLOAT32), scalar(True, DType.BOOL))


@rule("dropout", "dropout_")
def dropout(result: TensorType, x: Tensor, p: float, train: bool) -> Tensor:
    return drop(x, p) if train and p > 0 else x


@rule("feature_dropout", "feature_dropout_")
def feature_dropout(result: TensorType, x: Tensor, p: float, train: bool) -> Tensor:
    """Drop whole channels: a factor of each, as it broadcasts."""
    if not train or p == 0:
        return x
    return emit("Mul", x, drop(_make_ones(x, channels=True), p))


@rule("alpha_dropout", "alpha_dropout_")
def alpha_dropout(result: TensorType, x: Tensor, p: float, train: bool) -> Tensor:
    return _drop_to_alpha(x, p, channels=False) if train and p > 0 else x


@rule("feature_alpha_dropout", "feature_alpha_dropout_")
def feature_alpha_dropout(result: TensorType, x: Tensor, p: float, train: bool) -> Tensor:
    return _drop_to_alpha(x, p, channels=True) if train and p > 0 else x


def _make_ones(x: Tensor, *, channels: bool) -> Tensor:
    if not channels:
        return emit("Expand", scalar(1, x.dtype), emit("Shape", x))
    shape = emit("Concat", emit("Shape", x, end=2), ints(*[1] * (x.ndim - 2)), axis=0) if x.ndim > 2 else emit("Shape", x)
    return emit("Expand", scalar(1, x.dtype), shape)


def _drop_to_alpha(x: Tensor, p: float, *, channels: bool) -> Tensor:
    """Set what is dropped to the limit of SELU, and keep mean and variance; Klambauer et al., arXiv:1706.02515, section 2."""
    if p >= 1:
        return emit("Mul", x, scalar(0, x.dtype))
    alpha = 1.7580993408473766
    scale = 1 / math.sqrt((alpha * alpha * p + 1) * (1 - p))
    kept = emit("Mul", drop(_make_ones(x, channels=channels), p), scalar(1 - p, x.dtype))
    shift = emit("Add", emit("Mul", kept, scalar(alpha * scale, x.dtype)), scalar(alpha * scale * (p - 1), x.dtype))
    return emit("Add", emit("Mul", x, emit("Mul", kept, scalar(scale, x.dtype))), shift)


@rule("native_dropout")
def native_dropout(result: Any, x: Tensor, p: float, train: bool | None) -> Any:
    if train is not False and p > 0:
        return _draw(x, p)
    return x, emit("Expand", constant(True, DType.BOOL), emit("Shape", x))


@rule("bernoulli.p")
def bernoulli(result: TensorType, x: Tensor, p: float = 0.5, generator: Any = None) -> Tensor:
    if generator is not None:
        raise Unsupported("numbers of a generator of its own")
    _, mask = _draw(_make_ones(x, channels=False), 1 - p)
    return cast(mask, result.dtype)


def _draw(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Return the tensor as `drop` does, and whether each element is kept."""
    if p >= 1:
        return drop(x, p), emit("Expand", constant(False, DType.BOOL), emit("Shape", x))
    y, mask = apply("Dropout", (x, scalar(p, DType.FLOAT32), scalar(True, DType.BOOL)), {}, outputs=2)
    return y, mask
