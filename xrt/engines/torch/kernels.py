"""The kernels of the torch engine: the shared ones, and overrides where PyTorch has a better or another form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch.nn import functional

from xrt.engines.kernels import eager, elementwise, ops as shared, recurrent, reduction
from xrt.engines.kernels.arrays import broadcast_parameters, get_integer_limits, round_once, widen
from xrt.engines.kernels.quantization import SATURABLE
from xrt.engines.kernels.table import KernelContext, Run
from xrt.engines.torch.dtypes import DIRECT, MASKS, decode_table, from_numpy, get_torch_dtype, to_numpy
from xrt.engines.torch.namespace import TORCH, Tensor, is_integral
from xrt.graph import DType, Function, Node, TensorType
from xrt.operators.windows import Placement, Window, compute_padding_trims, make_window
from xrt.passes import find_constant

if TYPE_CHECKING:
    from xrt.graph import Constant


@dataclass(frozen=True, slots=True)
class TorchKernelContext(KernelContext):
    """A node and its surroundings, for the factory of its kernel."""

    packed_weights: list[Tensor] = field(default_factory=list)
    """Reordered copies of constants; kernels append to it, and the executable reports their memory."""

    def attribute_dtype(self, name: str) -> DType | None:
        """The element type in an attribute; None if absent."""
        number = self.attr(name) or 0
        return DType.from_onnx(number) if number else None

    def attribute_torch_dtype(self, name: str) -> torch.dtype | None:
        """The torch.dtype that represents the element type in an attribute; None if absent."""
        dtype = self.attribute_dtype(name)
        return None if dtype is None else get_torch_dtype(dtype)


def find_constant_input(node: Node, function: Function, index: int) -> Constant | None:
    """The constant behind an input; None if it is omitted or computed."""
    name = node.inputs[index] if index < len(node.inputs) else ""
    if not name:
        return None
    producer = function.producer(name)
    return function.constants.get(name) if producer is None else find_constant(producer, function)


Factory: TypeAlias = Callable[[TorchKernelContext], Run]

ops = shared.extend("torch", eager)
"""The shared kernels, and those of this module, which have priority."""


def overrides(*op_types: str, **options: Any) -> Callable[[Factory], Factory]:
    """Decorator: register a kernel factory that has priority over the shared kernel."""

    def register(factory: Factory) -> Factory:
        ops(*op_types, priority=2, **options)(lambda node, at: factory(at))
        return factory

    return register


# ---------------------------------------------------------------------- arithmetic and activations


SIGN = torch.iinfo(torch.int64).min
"""Flipping this bit makes int64 compare like uint64 of the same bits."""


def divide(a: Tensor, b: Tensor) -> Tensor:
    """The quotient; integers are truncated, and division by zero gives zero.

    PyTorch raises for an integer division by zero, and the process crashes when the least integer is divided by -1.
    """
    if not is_integral(a):
        return torch.div(a, b)
    # Divisors that would raise or crash are replaced by 1, and their quotients set afterwards.
    is_zero = b == 0
    if not a.dtype.is_signed:
        return torch.div(a, b.masked_fill(is_zero, 1), rounding_mode="trunc").masked_fill_(is_zero, 0)
    is_minus_one = b == -1
    quotient = torch.div(a, b.masked_fill(is_zero | is_minus_one, 1), rounding_mode="trunc")
    return torch.where(is_minus_one, -quotient, quotient).masked_fill_(is_zero, 0)


def power(base: Tensor, exponent: Tensor) -> Tensor:
    """The power in the base's type; integers to negative or fractional powers are computed in float64 and truncated."""
    if not is_integral(base):
        if exponent.dtype == torch.float64 and base.dtype != torch.float64:
            exponent = exponent.to(base.dtype)
        return torch.pow(base, exponent if is_integral(exponent) else exponent.to(base.dtype))
    if not is_integral(exponent):
        return torch.pow(base.double(), exponent.double()).to(base.dtype)
    # Both are computed: PyTorch raises for negative exponents of integers, and float64 is inexact from 2**53 on.
    powers = torch.pow(base, exponent.clamp(min=0)).to(base.dtype)
    truncated = torch.pow(base.double(), exponent.double()).to(base.dtype)
    return torch.where(exponent < 0, truncated, powers)


elementwise.binary(ops, "Div", priority=2)(lambda node, at: divide)
elementwise.binary(ops, "Pow", priority=2)(lambda node, at: power)


def _make_comparison(name: str) -> Any:
    """Factory of a comparison: uint64 is represented by int64, so its sign bit is flipped first."""

    def factory(node: Any, at: TorchKernelContext) -> Run:
        compare = getattr(torch, name)
        if at.input_dtype(0) is not DType.UINT64:
            return compare  # type: ignore[no-any-return]  # a function of PyTorch
        return lambda *operands: compare(*(x ^ SIGN for x in operands))

    return factory


for _op, _name in {"Greater": "gt", "Less": "lt", "GreaterOrEqual": "ge", "LessOrEqual": "le"}.items():
    elementwise.binary(ops, _op, priority=2)(_make_comparison(_name))


@overrides("Max", "Min")
def extremes(at: TorchKernelContext) -> Run:
    combine = torch.maximum if at.node.op_type == "Max" else torch.minimum
    if at.input_dtype(0) is not DType.UINT64:
        return lambda *operands: reduce(combine, operands)
    return lambda *operands: reduce(combine, (x ^ SIGN for x in operands)) ^ SIGN


@overrides("Mod")
def mod(at: TorchKernelContext) -> Run:
    """The sign follows the divisor, or with ``fmod`` the dividend; integers modulo zero give zero, where PyTorch raises."""
    remainder = torch.fmod if at.attr("fmod", 0) else torch.remainder

    def run(a: Tensor, b: Tensor) -> Tensor:
        if not is_integral(a):
            return remainder(a, b)
        is_zero = b == 0
        return remainder(a, b.masked_fill(is_zero, 1)).masked_fill_(is_zero, 0)

    return run


@overrides("Gemm")
def gemm(at: TorchKernelContext) -> Run:
    """Compute with a single addmm unless the operands are scaled."""
    general, is_plain = elementwise.gemm(at.node, at), at.attr("alpha", 1.0) == 1 and at.attr("beta", 1.0) == 1
    transpose_a, transpose_b = at.attr("transA", 0), at.attr("transB", 0)

    def run(a: Tensor, b: Tensor, c: Tensor = None) -> Tensor:
        if c is None or not is_plain or not a.dtype.is_floating_point:
            return general(a, b, c)
        # Narrow floats are added in float32 and rounded once, as in ONNX's definition.
        wide_a, wide_b = widen(TORCH, a), widen(TORCH, b)
        y = torch.addmm(widen(TORCH, c), wide_a.T if transpose_a else wide_a, wide_b.T if transpose_b else wide_b)
        return y.to(a.dtype)

    return run


# PyTorch has a single function for each of these.
ops("Relu", priority=2)(lambda node, at: torch.relu)
ops("Identity", priority=2)(lambda node, at: lambda x: x)
ops("Where", priority=2)(lambda node, at: torch.where)
ops("Sigmoid", priority=2)(lambda node, at: round_once(TORCH, torch.sigmoid))


@overrides("Swish")
def swish(at: TorchKernelContext) -> Run:
    alpha = at.attr("alpha", 1.0)
    return round_once(TORCH, lambda x: x * torch.sigmoid(alpha * x))


@overrides("HardSigmoid")
def hard_sigmoid(at: TorchKernelContext) -> Run:
    alpha, beta = at.attr("alpha", float(np.float32(0.2))), at.attr("beta", 0.5)
    return round_once(TORCH, lambda x: torch.clamp(alpha * x + beta, 0, 1))


# ---------------------------------------------------------------------- constants


@overrides("Constant")
def constant(at: TorchKernelContext) -> Run:
    value = find_constant(at.node, at.function)
    if value is None:
        raise at.refuse("holds no numbers")
    # Shared by all calls; `make_program` reads its address, so that no result shares its memory.
    tensor = from_numpy(value.dtype)(value.array)
    return lambda: tensor


@overrides("ConstantOfShape", host=(0,))
def constant_of_shape(at: TorchKernelContext) -> Run:
    fill = at.attr("value")
    scalar = torch.zeros((), dtype=torch.float32) if fill is None else from_numpy(fill.dtype)(fill.array).reshape(())
    return lambda shape: scalar.expand(shape.tolist()).clone()


# ---------------------------------------------------------------------- normalizations


@overrides("LayerNormalization")
def layer_normalization(at: TorchKernelContext) -> Run:
    general, axis, epsilon = reduction.layer_normalization(at.node, at), at.attr("axis", -1), at.attr("epsilon", 1e-5)
    stash_dtype = at.attribute_torch_dtype("stash_type") or torch.float32

    def run(x: Tensor, scale: Tensor, bias: Tensor = None) -> Any:
        extents = x.shape[axis % x.ndim :]
        has_full_shape = scale.shape == extents and (bias is None or bias.shape == extents)
        # A single element may overflow in PyTorch's kernel.
        fits = has_full_shape and x.dtype is stash_dtype is torch.float32 and extents.numel() > 1
        return torch.native_layer_norm(x, extents, scale, bias, epsilon) if fits else general(x, scale, bias)

    return run


def softmax(xp: Any, x: Tensor, axis: int) -> Tensor:
    """PyTorch's softmax; narrow types are rounded after each step, as in ONNX's definition."""
    return reduction.softmax(xp, x, axis) if x.dtype in xp.narrow else torch.softmax(x, axis)


def log_softmax(xp: Any, x: Tensor, axis: int) -> Tensor:
    return torch.log_softmax(widen(xp, x), axis).to(x.dtype)


for _op, _compute in {"Softmax": softmax, "LogSoftmax": log_softmax}.items():
    ops(_op, since=13, priority=2)(reduction.along_axis(_compute))
    ops(_op, until=12, priority=2)(reduction.flatten_axes(_compute))

# ---------------------------------------------------------------------- convolutions


TRANSPOSE = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}


def _why_not_rank(node: Node, function: Function) -> str | None:
    """PyTorch's convolutions have one to three spatial axes; the shared kernel serves other and unknown ranks."""
    type_ = function.get_type(node.inputs[0])
    rank = len(type_.shape) - 2 if isinstance(type_, TensorType) and type_.shape is not None else 0
    return None if 1 <= rank <= 3 else f"PyTorch has {node.op} for one, two or three spatial axes"


def convolve(x: Tensor, w: Tensor, window: Window, group: int, bias: Tensor, is_computed: bool) -> Tensor:
    """Convolve by PyTorch's convolution, or by its function for gradients of weights where that is faster.

    In a backward pass, the gradient of a convolution's weights is the convolution of its input with the gradient of its result:
    one with computed weights. A training step of a ResNet of 32 x 32 pixels takes 1.3 times as long as eager PyTorch with that
    function, and 1.8 times without.
    """
    if group == 1 and bias is None and is_computed:
        place = window.over(x.shape[2:])
        if _is_weight_gradient(x, place):
            return _compute_weight_gradient(x, w, place)
    return TORCH.convolve(x, w, window, group, bias)


def _is_weight_gradient(x: Tensor, place: Placement) -> bool:
    """Whether the function for gradients of weights computes this convolution, and is faster.

    It is faster if the window has at least four times as many elements as the result has positions. The function pads both ends
    of an axis equally: its padding, that at the beginning, must give the same number of positions.
    """
    window = place.window
    is_supported = type(x) is torch.Tensor and x.dtype in (torch.float32, torch.float64)
    if not is_supported or not 0 < 4 * prod(place.positions) <= window.size or any(n < 0 for n in place.begins):
        return False
    rests = (
        begin + extent + begin - ((kernel - 1) * dilation + (count - 1) * stride + 1)
        for begin, extent, kernel, dilation, count, stride in zip(
            place.begins, place.extents, window.kernel, window.dilations, place.positions, window.strides, strict=True
        )
    )
    return all(0 <= rest < dilation for rest, dilation in zip(rests, window.dilations, strict=True))


def _compute_weight_gradient(x: Tensor, w: Tensor, place: Placement) -> Tensor:
    """The convolution as a gradient of weights (M, N, *positions): batch and channels are swapped, strides and dilations too."""
    window, source, gradient = place.window, x.transpose(0, 1), w.transpose(0, 1)
    weights = source.new_empty((gradient.shape[1], source.shape[1], *place.positions))
    stride_padding_dilation = (list(window.dilations), list(place.begins), list(window.strides))
    options = (False, [0] * len(place.positions), 1, [False, True, False])  # transposed, output padding, groups, wanted gradients
    gradients = torch.ops.aten.convolution_backward(gradient, source, weights, None, *stride_padding_dilation, *options)
    return gradients[1].transpose(0, 1)


@overrides("Conv", why_not=_why_not_rank)
def conv(at: TorchKernelContext) -> Run:
    group = at.attr("group", 1)
    is_computed = find_constant_input(at.node, at.function, 1) is None
    compute = round_once(TORCH, lambda x, w, bias: convolve(x, w, make_window(at.node, w.shape[2:]), group, bias, is_computed))
    return lambda x, w, bias=None: compute(x, w, bias)


@overrides("ConvTranspose", why_not=_why_not_rank)
def conv_transpose(at: TorchKernelContext) -> Run:
    group = at.attr("group", 1)

    def compute(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        window, count = make_window(at.node, w.shape[2:]), x.ndim - 2
        lengths = zip(x.shape[2:], window.strides, window.spans, strict=True)
        trims = compute_padding_trims(at.node, window, [(n - 1) * s + span for n, s, span in lengths], x.shape[2:])
        pads = [-begin for begin in trims[:count]]
        output_padding = [pad + end for pad, end in zip(pads, trims[count:], strict=True)]
        limits = zip(pads, output_padding, window.strides, window.dilations, strict=True)
        # PyTorch has no negative padding, and output padding only below a stride or dilation: else crop or pad the full result.
        if all(pad >= 0 and 0 <= end < max(s, d) for pad, end, s, d in limits):
            y = TRANSPOSE[count](x, w, None, window.strides, pads, output_padding, group, window.dilations)
        else:
            padded = TRANSPOSE[count](x, w, None, window.strides, 0, 0, group, window.dilations)
            y = TORCH.pad_axes(padded, trims, "constant", 0, range(2, x.ndim))
        return y if bias is None else y + bias.reshape(-1, *(1,) * (y.ndim - 2))

    rounded = round_once(TORCH, compute)
    return lambda x, w, bias=None: rounded(x, w, bias)


# ---------------------------------------------------------------------- recurrent layers


# PyTorch's gate order as indices into ONNX's: i o f c, z r h.
_GATE_ORDERS = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
_DEFAULT_ACTIVATIONS = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}
_LIBRARY_DTYPES = (torch.float32, torch.float64)


class LibraryLayer:
    """A recurrent layer computed by a function of PyTorch, for calls whose inputs it supports.

    Weights are reordered to PyTorch's gate order: once if they are constant, else in each call.
    """

    def __init__(self, at: TorchKernelContext) -> None:
        self._op = at.node.op_type
        self._direction = at.attr("direction", "forward")
        self._batch_first = bool(at.attr("layout", 0))
        self._call = _find_function(at)
        has_bias = len(at.node.inputs) > 3 and bool(at.node.inputs[3])
        self._is_constant = all(find_constant_input(at.node, at.function, i) is not None for i in range(1, 4 if has_bias else 3))
        self._packed = at.packed_weights
        self._weights: list[Tensor] | None = None

    def accepts(self, x: Tensor, rest: Sequence[Tensor]) -> bool:
        """Whether the library supports a call: float32 or float64, and no lengths or peepholes in ``rest``."""
        is_supported = self._call is not None and type(x) is torch.Tensor and x.dtype in _LIBRARY_DTYPES
        return is_supported and x.numel() > 0 and all(operand is None for operand in rest)

    def __call__(self, x: Tensor, w: Tensor, r: Tensor, bias: Tensor, initial: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Compute Y and the last states in the node's layout."""
        x = x.transpose(0, 1) if self._batch_first else x
        # PyTorch has no layer that only runs backwards: reverse the sequence before and after.
        backwards = self._direction == "reverse"
        x = x.flip(0) if backwards else x
        shape = (r.shape[0], x.shape[1], r.shape[-1])
        states = [x.new_zeros(shape) if state is None else self._swap(state).contiguous() for state in initial]
        is_bidirectional = self._direction == "bidirectional"
        states_argument = states if self._op == "LSTM" else states[0]
        assert self._call is not None
        y, *last = self._call(
            x, states_argument, self._order(w, r, bias), bias is not None, 1, 0.0, False, is_bidirectional, False
        )
        y = (y.flip(0) if backwards else y).unflatten(2, (shape[0], shape[2]))
        y = y.transpose(0, 1) if self._batch_first else y.transpose(1, 2)
        return y, *map(self._swap, last)

    def _swap(self, state: Tensor) -> Tensor:
        return state.transpose(0, 1) if self._batch_first else state

    def _order(self, w: Tensor, r: Tensor, bias: Tensor) -> list[Tensor]:
        """The library's parameters per direction: weights of input and state, then biases."""
        if self._weights is not None:
            return self._weights
        order = _GATE_ORDERS[self._op]
        of_gates = [w, r] if bias is None else [w, r, *bias.chunk(2, 1)]
        parts = [value.unflatten(1, (len(order), r.shape[-1]))[:, list(order)].flatten(1, 2) for value in of_gates]
        weights = [value[d] for d in range(len(w)) for value in parts]
        if self._is_constant:  # harmless if two threads do it
            self._packed.extend(parts)
            self._weights = weights
        return weights


def _find_function(at: TorchKernelContext) -> Callable[..., Any] | None:
    """PyTorch's function for these attributes; None if there is none."""
    op = at.node.op_type
    names = {name.lower() for name in at.attr("activations") or ()}
    if at.attr("clip") is not None or at.attr("activation_alpha") or at.attr("activation_beta"):
        return None
    if op == "RNN":
        by_name: dict[str, Callable[..., Any]] = {"tanh": torch.rnn_tanh, "relu": torch.rnn_relu}
        return by_name.get((names or {"tanh"}).pop()) if len(names) < 2 else None
    # PyTorch's LSTM and GRU have fixed activations, and its GRU applies the reset after the product.
    directions = 2 if at.attr("direction", "forward") == "bidirectional" else 1
    activations = [name.lower() for name in at.attr("activations") or _DEFAULT_ACTIVATIONS[op] * directions]
    if activations != _DEFAULT_ACTIVATIONS[op] * directions or at.attr("input_forget", 0):
        return None
    return torch.lstm if op == "LSTM" else torch.gru if at.attr("linear_before_reset", 0) else None


def _make_layer_factory(general_factory: Callable[..., Run], states: slice) -> Factory:
    """Factory of a layer: PyTorch's function if it supports the call, else the shared loop over time."""

    def factory(at: TorchKernelContext) -> Run:
        library, general = LibraryLayer(at), general_factory(at.node, at)

        def run(x: Tensor, w: Tensor, r: Tensor, bias: Tensor = None, lengths: Tensor = None, *rest: Tensor) -> Any:
            initial = [*rest[states], *[None] * (states.stop - len(rest[states]))]
            if library.accepts(x, [lengths, *rest[states.stop :]]):
                return library(x, w, r, bias, initial)
            return general(x, w, r, bias, lengths, *rest)

        return run

    return factory


overrides("RNN", since=7)(_make_layer_factory(recurrent.rnn, slice(1)))
overrides("GRU", since=7)(_make_layer_factory(recurrent.gru, slice(1)))
overrides("LSTM", since=7)(_make_layer_factory(recurrent.lstm, slice(2)))

# ---------------------------------------------------------------------- types that are represented by wider or coded ones


_TWO_TO_64 = 2.0**64


def decode(x: Tensor, dtype: DType | None) -> Tensor:
    """Decode a tensor that represents ``dtype``: small floats to float32, uint64 to float64; others are unchanged."""
    if dtype is DType.UINT64:
        wide = x.to(torch.float64)
        return torch.where(x < 0, wide + _TWO_TO_64, wide)
    return decode_table(dtype)[x.int()] if dtype is not None and _is_coded(dtype) else x


def _is_coded(dtype: DType | None) -> bool:
    return dtype is not None and dtype.is_float and dtype.bits <= 8


def convert(x: Tensor, source: DType | None, to: DType, saturate: bool = True) -> Tensor:
    """Convert to an element type like ONNX's Cast."""
    if source is to:
        return x
    if to is DType.UINT64 and not x.dtype.is_floating_point and not _is_coded(source):
        return x.to(torch.int64)
    # Integers keep their lowest bits, which decoding to float64 would round.
    if source is DType.UINT64 and to.is_integer:
        return _narrow(x, to)
    x = decode(x, source)
    if to is DType.BOOL:
        return x != 0
    if _is_coded(to):
        return _encode(x, to, saturate)
    if to is DType.UINT64:
        # PyTorch converts floats only to signed integers: values from 2**63 on are converted without that bit.
        high = x >= 2.0**63
        return torch.where(high, (x - 2.0**63).to(torch.int64) ^ torch.iinfo(torch.int64).min, x.to(torch.int64))
    if to.is_integer and (to.bits < 8 or to in MASKS):
        return _narrow(x.to(torch.int64), to)
    if x.dtype.is_floating_point and to.is_integer and to.bits < 32:
        x = x.to(torch.int32)  # values out of range wrap around, independent of vector instructions
    return x.to(get_torch_dtype(to))


def _narrow(x: Tensor, to: DType) -> Tensor:
    """Truncate integers to the bits of the type."""
    if to in MASKS:
        return (x & MASKS[to]).to(get_torch_dtype(to))
    if to.bits >= 8:
        return x.to(get_torch_dtype(to))
    low = x & ((1 << to.bits) - 1)
    # Extend the sign: XOR and subtraction of the highest bit.
    if to.text.startswith("int"):
        half = 1 << (to.bits - 1)
        low = (low ^ half) - half
    return low.to(get_torch_dtype(to))


def _encode(x: Tensor, to: DType, saturate: bool) -> Tensor:
    """The codes of small floats, rounded by ``ml_dtypes``."""
    if to in SATURABLE and saturate:
        most = float(decode_table(to).nan_to_num(posinf=0).max())
        x = torch.clamp(x.float() if x.dtype.itemsize < 4 else x, -most, most)
    source = x.float() if x.dtype in (torch.bfloat16, torch.bool) else x
    return from_numpy(to)(source.numpy().astype(to.numpy))


@overrides("Cast", since=6)
def cast(at: TorchKernelContext) -> Run:
    source, to, saturate = at.input_dtype(0), DType.from_onnx(at.attr("to")), bool(at.attr("saturate", 1))
    return lambda x: convert(x, source, to, saturate)


@overrides("CastLike")
def cast_like(at: TorchKernelContext) -> Run:
    source, to, saturate = at.input_dtype(0), at.input_dtype(1), bool(at.attr("saturate", 1))
    if to is None:
        raise at.refuse("is like a tensor of unknown type")
    return lambda x, like: convert(x, source, to, saturate)


@overrides("BitCast")
def bit_cast(at: TorchKernelContext) -> Run:
    source, to = at.input_dtype(0), at.attribute_dtype("to")
    if source is None or to is None:
        raise at.refuse("is between types that are not known")
    if source in DIRECT and to in DIRECT:
        dtype = DIRECT[to]
        return lambda x: x.contiguous().view(dtype)
    write, read = to_numpy(source), from_numpy(to)
    return lambda x: read(write(x.contiguous()).view(to.numpy))


def _quantize(ratio: Tensor, zero: Tensor, to: DType, saturate: bool = True) -> Tensor:
    """Round to the nearest (ties to even), add the zero point, and limit to the type's range."""
    if not to.is_integer:
        shifted = ratio if zero is None else ratio + decode(zero, to).to(ratio.dtype)
        return convert(shifted, None, to, saturate)
    # In float64, where the sum with a zero point of 32 bits is exact.
    wide = torch.round(ratio).double() + (0 if zero is None else zero.double())
    return wide.clamp(*get_integer_limits(to)).to(torch.int32).to(get_torch_dtype(to))


@overrides("QuantizeLinear")
def quantize_linear(at: TorchKernelContext) -> Run:
    axis, block, saturate = at.attr("axis", 1), at.attr("block_size", 0), bool(at.attr("saturate", 1))
    to = at.input_dtype(2) or at.attribute_dtype("output_dtype") or DType.UINT8
    precision, scaled = at.attribute_torch_dtype("precision"), at.input_dtype(1)

    def run(x: Tensor, scale: Tensor, zero: Tensor = None) -> Tensor:
        scale = decode(scale, scaled)
        dtype = precision or scale.dtype
        ratio = x.to(dtype) / broadcast_parameters(TORCH, scale, x, axis, block).to(dtype)
        return _quantize(ratio, None if zero is None else broadcast_parameters(TORCH, zero, x, axis, block), to, saturate)

    return run


@overrides("DequantizeLinear")
def dequantize_linear(at: TorchKernelContext) -> Run:
    axis, block = at.attr("axis", 1), at.attr("block_size", 0)
    source, scaled, declared = at.input_dtype(0), at.input_dtype(1), at.attribute_torch_dtype("output_dtype")

    def run(x: Tensor, scale: Tensor, zero: Tensor = None) -> Tensor:
        wide, scale = decode(x, source).float(), decode(scale, scaled)
        if zero is not None:
            wide = wide - broadcast_parameters(TORCH, decode(zero, source).float(), x, axis, block)
        return (wide * broadcast_parameters(TORCH, scale, x, axis, block).float()).to(declared or scale.dtype)

    return run


# ---------------------------------------------------------------------- Fourier transforms


@overrides("DFT", until=19, host=(1,))
def dft_by_attribute(at: TorchKernelContext) -> Run:
    axis = at.attr("axis", 1)
    return lambda x, length=None: _transform(at, x, None if length is None else int(length.reshape(())), axis)


@overrides("DFT", since=20, host=(1, 2))
def dft(at: TorchKernelContext) -> Run:
    def run(x: Tensor, length: Tensor = None, axis: Tensor = None) -> Tensor:
        n = None if length is None else int(length.reshape(()))
        return _transform(at, x, n, -2 if axis is None else int(axis.reshape(())))

    return run


def _transform(at: TorchKernelContext, x: Tensor, length: int | None, axis: int) -> Tensor:
    """Transform along an axis; the last axis has real parts, or real and imaginary parts."""
    axis, onesided, inverse = axis % x.ndim, at.attr("onesided", 0), at.attr("inverse", 0)
    signal = _to_complex(x)
    n = length or x.shape[axis]
    if onesided and inverse:
        return torch.fft.irfft(signal, n=length, dim=axis)[..., None].to(x.dtype)
    y = (torch.fft.ifft if inverse else torch.fft.fft)(signal, n=n, dim=axis)
    if onesided:
        y = y.narrow(axis, 0, n // 2 + 1)
    return torch.view_as_real(y).to(x.dtype)


def _to_complex(x: Tensor) -> Tensor:
    """Combine the real and imaginary parts in the last axis to complex numbers."""
    wide = x.double()
    return torch.complex(wide[..., 0], wide[..., 1] if x.shape[-1] == 2 else torch.zeros_like(wide[..., 0]))
