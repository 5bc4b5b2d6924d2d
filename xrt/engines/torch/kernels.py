"""The kernels of the torch engine: the shared ones, and overrides where PyTorch has a faster function or a different one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.nn import functional

from xrt.engines.kernels import eager, elementwise, ops as shared, recurrent, reduction
from xrt.engines.kernels.arrays import broadcast_parameters, get_integer_limits, round_once, widen
from xrt.engines.kernels.quantization import SATURABLE
from xrt.engines.kernels.table import KernelContext, Run
from xrt.engines.torch.dtypes import BIT_MASKS, CODED, NATIVE, get_decoded_values, get_torch_dtype, make_from_numpy, make_to_numpy
from xrt.engines.torch.namespace import TORCH, Tensor, is_integral
from xrt.graph import DType, Function, Node, TensorType
from xrt.operators import find_constant, find_node_constant
from xrt.operators.windows import Placement, Window, compute_padding_trims, make_window


@dataclass(frozen=True, slots=True)
class TorchKernelContext(KernelContext):
    """The argument of this engine's kernel factories: the node, its Function, and a list for packed weights."""

    packed_weights: list[Tensor] = field(default_factory=list)
    """Kernels append their copies of constants to this list, so that the executable can report the memory of the copies."""

    def get_torch_dtype_attribute(self, name: str) -> torch.dtype | None:
        """Get the torch.dtype that represents the element type in an attribute; None if it is absent or 0."""
        dtype = self.get_dtype_attribute(name)
        return None if dtype is None else get_torch_dtype(dtype)


Factory: TypeAlias = Callable[[TorchKernelContext], Run]
ops = shared.extend("torch", eager)
"""The table of kernels: the shared kernels, and the kernels of this module, which have a higher priority."""


def overrides(*op_types: str, **options: Any) -> Callable[[Factory], Factory]:
    """Decorate a kernel factory to register it with priority over the shared kernel. ``options`` are those of `ops`."""

    def register(factory: Factory) -> Factory:
        ops(*op_types, priority=2, **options)(lambda node, ctx: factory(ctx))
        return factory

    return register


SIGN_BIT = torch.iinfo(torch.int64).min
"""int64 numbers with this bit flipped compare like uint64 numbers of the original bits."""


def divide(a: Tensor, b: Tensor) -> Tensor:
    """Divide; integer quotients are truncated, and an integer divided by zero is zero.

    PyTorch raises for an integer division by zero, and crashes the process when the lowest integer is divided by -1.
    """
    if not is_integral(a):
        return torch.div(a, b)
    # Replace divisors that would raise or crash by 1, and set the quotients of these elements afterwards.
    is_zero = b == 0
    if not a.dtype.is_signed:
        return torch.div(a, b.masked_fill(is_zero, 1), rounding_mode="trunc").masked_fill_(is_zero, 0)
    is_minus_one = b == -1
    quotient = torch.div(a, b.masked_fill(is_zero | is_minus_one, 1), rounding_mode="trunc")
    return torch.where(is_minus_one, -quotient, quotient).masked_fill_(is_zero, 0)


def power(base: Tensor, exponent: Tensor) -> Tensor:
    """Compute powers in the type of ``base``. Integers to negative or fractional powers are computed in float64 and truncated."""
    if not is_integral(base):
        if exponent.dtype == torch.float64 and base.dtype != torch.float64:
            exponent = exponent.to(base.dtype)
        return torch.pow(base, exponent if is_integral(exponent) else exponent.to(base.dtype))
    if not is_integral(exponent):
        return torch.pow(base.double(), exponent.double()).to(base.dtype)
    # Compute powers both in integers, which raises for negative exponents, and in float64, which is inexact from 2**53 on.
    powers = torch.pow(base, exponent.clamp(min=0)).to(base.dtype)
    truncated = torch.pow(base.double(), exponent.double()).to(base.dtype)
    return torch.where(exponent < 0, truncated, powers)


elementwise.register_binary(ops, "Div", priority=2)(lambda node, ctx: divide)
elementwise.register_binary(ops, "Pow", priority=2)(lambda node, ctx: power)


def _make_comparison(name: str) -> Any:
    """Make the kernel factory of a comparison. The kernel for uint64 flips the sign bits of the int64 operands first."""

    def factory(node: Any, ctx: TorchKernelContext) -> Run:
        compare = getattr(torch, name)
        if ctx.input_dtype(0) is not DType.UINT64:
            return compare  # type: ignore[no-any-return]  # a function of PyTorch
        return lambda *operands: compare(*(x ^ SIGN_BIT for x in operands))

    return factory


for _op, _name in {"Greater": "gt", "Less": "lt", "GreaterOrEqual": "ge", "LessOrEqual": "le"}.items():
    elementwise.register_binary(ops, _op, priority=2)(_make_comparison(_name))


@overrides("Max", "Min")
def max_or_min(ctx: TorchKernelContext) -> Run:
    combine = torch.maximum if ctx.node.op_type == "Max" else torch.minimum
    if ctx.input_dtype(0) is not DType.UINT64:
        return lambda *operands: reduce(combine, operands)
    # The tensors hold uint64 as int64. With the sign bit flipped, the order of int64 is that of uint64.
    return lambda *operands: reduce(combine, (x ^ SIGN_BIT for x in operands)) ^ SIGN_BIT


@overrides("Mod")
def mod(ctx: TorchKernelContext) -> Run:
    """Compute remainders with the sign of the divisor, or with ``fmod=1`` of the dividend. An integer modulo zero is zero."""
    remainder = torch.fmod if ctx.attr("fmod", 0) else torch.remainder

    def run(a: Tensor, b: Tensor) -> Tensor:
        if not is_integral(a):
            return remainder(a, b)
        is_zero = b == 0
        return remainder(a, b.masked_fill(is_zero, 1)).masked_fill_(is_zero, 0)

    return run


@overrides("Gemm")
def gemm(ctx: TorchKernelContext) -> Run:
    """Use torch.addmm if there is a third operand and no factor, else the shared kernel."""
    general = elementwise.gemm(ctx.node, ctx)
    is_unscaled = ctx.attr("alpha", 1.0) == 1 and ctx.attr("beta", 1.0) == 1
    transpose_a, transpose_b = ctx.attr("transA", 0), ctx.attr("transB", 0)

    def run(a: Tensor, b: Tensor, c: Tensor = None) -> Tensor:
        if c is None or not is_unscaled or not a.dtype.is_floating_point:
            return general(a, b, c)
        # Narrow floats are added in float32 and rounded once, as in ONNX's definition.
        wide_a, wide_b = widen(TORCH, a), widen(TORCH, b)
        y = torch.addmm(widen(TORCH, c), wide_a.T if transpose_a else wide_a, wide_b.T if transpose_b else wide_b)
        return y.to(a.dtype)

    return run


# PyTorch has a single function for each of these.
ops("Relu", priority=2)(lambda node, ctx: torch.relu)
ops("Identity", priority=2)(lambda node, ctx: lambda x: x)
ops("Where", priority=2)(lambda node, ctx: torch.where)
ops("Sigmoid", priority=2)(lambda node, ctx: round_once(TORCH, torch.sigmoid))


@overrides("Swish")
def swish(ctx: TorchKernelContext) -> Run:
    alpha = ctx.attr("alpha", 1.0)
    return round_once(TORCH, lambda x: x * torch.sigmoid(alpha * x))


@overrides("HardSigmoid")
def hard_sigmoid(ctx: TorchKernelContext) -> Run:
    alpha, beta = ctx.attr("alpha", float(np.float32(0.2))), ctx.attr("beta", 0.5)
    return round_once(TORCH, lambda x: torch.clamp(alpha * x + beta, 0, 1))


@overrides("Constant")
def constant(ctx: TorchKernelContext) -> Run:
    value = find_node_constant(ctx.node, ctx.function)
    if value is None:
        raise ctx.refuse("does not contain numbers")
    # All calls return the same tensor. `make_program` records its address, so that an output at this address is copied.
    tensor = make_from_numpy(value.dtype)(value.array)
    return lambda: tensor


@overrides("ConstantOfShape", host=(0,))
def constant_of_shape(ctx: TorchKernelContext) -> Run:
    fill = ctx.attr("value")
    if fill is None:
        scalar = torch.zeros((), dtype=torch.float32)
    else:
        scalar = make_from_numpy(fill.dtype)(fill.array).reshape(())
    return lambda shape: scalar.expand(shape.tolist()).clone()


@overrides("LayerNormalization")
def layer_normalization(ctx: TorchKernelContext) -> Run:
    general = reduction.layer_normalization(ctx.node, ctx)
    axis, epsilon = ctx.attr("axis", -1), ctx.attr("epsilon", 1e-5)
    stash_dtype = ctx.get_torch_dtype_attribute("stash_type") or torch.float32

    def run(x: Tensor, scale: Tensor, bias: Tensor = None) -> Any:
        extents = x.shape[axis % x.ndim :]
        has_full_shape = scale.shape == extents and (bias is None or bias.shape == extents)
        # PyTorch's kernel may overflow if it normalizes over a single element.
        is_float32 = x.dtype is torch.float32 and stash_dtype is torch.float32
        if has_full_shape and is_float32 and extents.numel() > 1:
            return torch.native_layer_norm(x, extents, scale, bias, epsilon)
        return general(x, scale, bias)

    return run


def softmax(xp: Any, x: Tensor, axis: int) -> Tensor:
    """Use PyTorch's softmax, except for floats under 32 bits, which ONNX defines to be rounded after each step."""
    return reduction.softmax(xp, x, axis) if x.dtype in xp.narrow else torch.softmax(x, axis)


def log_softmax(xp: Any, x: Tensor, axis: int) -> Tensor:
    return torch.log_softmax(widen(xp, x), axis).to(x.dtype)


for _op, _compute in {"Softmax": softmax, "LogSoftmax": log_softmax}.items():
    ops(_op, since=13, priority=2)(reduction.make_axis_factory(_compute))
    ops(_op, until=12, priority=2)(reduction.make_flattening_factory(_compute))


CONV_TRANSPOSE = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}


def _why_not_convolution_rank(node: Node, function: Function) -> str | None:
    """Explain that PyTorch's convolutions do not support the rank of the input; None if they do."""
    type_ = function.get_type(node.inputs[0])
    rank = len(type_.shape) - 2 if isinstance(type_, TensorType) and type_.shape is not None else 0
    return None if 1 <= rank <= 3 else f"PyTorch supports {node.op} only with one, two or three spatial axes"


def convolve(x: Tensor, w: Tensor, window: Window, group: int, bias: Tensor, is_computed: bool) -> Tensor:
    """Convolve with PyTorch's convolution, or with its function for gradients of weights if that function is faster.

    It may be faster if the weights are computed (``is_computed``), which is common in a backward pass: the gradient of a
    convolution's weights is the convolution of its input with the gradient of its result. A training step of a ResNet on images
    of 32 x 32 pixels takes 1.3 times as long as in eager PyTorch; without that function 1.8 times.
    """
    if group == 1 and bias is None and is_computed:
        placement = window.place(x.shape[2:])
        if _is_weight_gradient(x, placement):
            return _compute_weight_gradient(x, w, placement)
    return TORCH.convolve(x, w, window, group, bias)


def _is_weight_gradient(x: Tensor, placement: Placement) -> bool:
    """Whether PyTorch's function for gradients of weights can compute this convolution, and is faster.

    It is faster if the window has at least four times as many elements as the result has positions. The function pads the end of
    an axis as much as the beginning, so the number of positions must be the same with such padding.
    """
    window = placement.window
    is_supported = type(x) is torch.Tensor and x.dtype in (torch.float32, torch.float64)
    if not is_supported or not 0 < 4 * prod(placement.positions) <= window.size or any(n < 0 for n in placement.begins):
        return False
    axes = zip(
        placement.begins, placement.extents, placement.positions, window.kernel, window.dilations, window.strides, strict=True
    )
    for begin, extent, count, kernel, dilation, stride in axes:
        padded = begin + extent + begin
        covered = (kernel - 1) * dilation + (count - 1) * stride + 1
        # If fewer elements than the dilation remain after the last window, the function returns exactly `kernel` elements.
        if not 0 <= padded - covered < dilation:
            return False
    return True


def _compute_weight_gradient(x: Tensor, w: Tensor, placement: Placement) -> Tensor:
    """Compute a convolution as the gradient of weights of shape (M, N, *positions).

    Compared with the convolution, batch and channels are swapped, and so are strides and dilations.
    """
    window = placement.window
    source, gradient = x.transpose(0, 1), w.transpose(0, 1)
    weights = source.new_empty((gradient.shape[1], source.shape[1], *placement.positions))
    strides, padding, dilations = list(window.dilations), list(placement.begins), list(window.strides)
    is_transposed, output_padding, groups = False, [0] * len(placement.positions), 1
    # Of the gradients of input, weights and bias compute only that of the weights.
    mask = [False, True, False]
    backward = torch.ops.aten.convolution_backward
    options = (strides, padding, dilations, is_transposed, output_padding, groups)
    _, result, _ = backward(gradient, source, weights, None, *options, mask)
    return result.transpose(0, 1)


@overrides("Conv", why_not=_why_not_convolution_rank)
def conv(ctx: TorchKernelContext) -> Run:
    group = ctx.attr("group", 1)
    is_computed = find_constant(ctx.node.inputs[1], ctx.function) is None
    compute = round_once(TORCH, lambda x, w, bias: convolve(x, w, make_window(ctx.node, w.shape[2:]), group, bias, is_computed))
    return lambda x, w, bias=None: compute(x, w, bias)


@overrides("ConvTranspose", why_not=_why_not_convolution_rank)
def conv_transpose(ctx: TorchKernelContext) -> Run:
    group = ctx.attr("group", 1)

    def compute(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        window = make_window(ctx.node, w.shape[2:])
        count = x.ndim - 2
        lengths = zip(x.shape[2:], window.strides, window.spans, strict=True)
        trims = compute_padding_trims(ctx.node, window, [(n - 1) * s + span for n, s, span in lengths], x.shape[2:])
        # A trim is a pad of the uncropped result, negative if it crops: begins, then ends. PyTorch crops both ends by `pads`, so
        # the output padding restores what it crops too much at the end.
        pads = [-begin for begin in trims[:count]]
        output_padding = [pad + end for pad, end in zip(pads, trims[count:], strict=True)]
        limits = zip(pads, output_padding, window.strides, window.dilations, strict=True)
        # PyTorch supports no negative padding, and only output padding that is smaller than the stride or the dilation.
        if all(pad >= 0 and 0 <= end < max(s, d) for pad, end, s, d in limits):
            y = CONV_TRANSPOSE[count](x, w, None, window.strides, pads, output_padding, group, window.dilations)
        else:
            # Compute without padding, and crop or pad the result.
            padded = CONV_TRANSPOSE[count](x, w, None, window.strides, 0, 0, group, window.dilations)
            y = TORCH.pad_axes(padded, trims, "constant", 0, range(2, x.ndim))
        return y if bias is None else y + bias.reshape(-1, *(1,) * (y.ndim - 2))

    rounded = round_once(TORCH, compute)
    return lambda x, w, bias=None: rounded(x, w, bias)


_GATE_ORDERS = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
"""For each gate in PyTorch's order, its index in ONNX's order, which is i o f c for LSTM and z r h for GRU."""
_DEFAULT_ACTIVATIONS = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}
_LAYER_DTYPES = (torch.float32, torch.float64)


class PyTorchLayer:
    """Computes a recurrent layer with PyTorch's function for it, which supports only some inputs (see `accepts`).

    Weights are reordered to PyTorch's gate order: once if they are constant, else in each call.
    """

    def __init__(self, ctx: TorchKernelContext) -> None:
        self._op = ctx.node.op_type
        self._direction = ctx.attr("direction", "forward")
        self._batch_first = bool(ctx.attr("layout", 0))
        self._call = _find_layer_function(ctx)
        weights = filter(None, ctx.node.inputs[1:4])  # of the input and the state, and biases, which may be omitted
        self._is_constant = all(find_constant(name, ctx.function) is not None for name in weights)
        self._packed = ctx.packed_weights
        self._weights: list[Tensor] | None = None

    def accepts(self, x: Tensor, unsupported: Sequence[Tensor]) -> bool:
        """Whether PyTorch supports a call. ``unsupported`` are the lengths and peepholes, which must be absent."""
        is_supported = self._call is not None and type(x) is torch.Tensor and x.dtype in _LAYER_DTYPES
        return is_supported and x.numel() > 0 and all(operand is None for operand in unsupported)

    def __call__(self, x: Tensor, w: Tensor, r: Tensor, bias: Tensor | None, initial: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Compute Y and the last states, in the node's layout. ``initial`` are the initial states; None means zeros."""
        assert self._call is not None  # checked by `accepts`
        x = x.transpose(0, 1) if self._batch_first else x  # (time, batch, features)
        # PyTorch has no layer that runs only backwards: reverse the sequence before and after the call.
        is_reversed = self._direction == "reverse"
        x = x.flip(0) if is_reversed else x
        directions, batch, hidden = r.shape[0], x.shape[1], r.shape[-1]
        zeros = x.new_zeros((directions, batch, hidden))
        states = [zeros if state is None else self._swap_batch_axis(state).contiguous() for state in initial]
        # In PyTorch's order: has biases, layers, dropout, training, bidirectional, batch first.
        options = bias is not None, 1, 0.0, False, directions == 2, False
        first_states = states if self._op == "LSTM" else states[0]
        y, *last = self._call(x, first_states, self._reorder_weights(w, r, bias), *options)
        y = (y.flip(0) if is_reversed else y).unflatten(2, (directions, hidden))  # (time, batch, ...)
        y = y.transpose(0, 1) if self._batch_first else y.transpose(1, 2)
        return y, *map(self._swap_batch_axis, last)

    def _swap_batch_axis(self, state: Tensor) -> Tensor:
        return state.transpose(0, 1) if self._batch_first else state

    def _reorder_weights(self, w: Tensor, r: Tensor, bias: Tensor | None) -> list[Tensor]:
        """List the parameters of PyTorch's function, with gates in its order: for each direction w, r, and the biases if any."""
        if self._weights is not None:
            return self._weights
        order = _GATE_ORDERS[self._op]
        onnx_parameters = [w, r] if bias is None else [w, r, *bias.chunk(2, 1)]
        # Axis 1 consists of one block per gate, with as many rows as there are hidden elements.
        reordered = [p.unflatten(1, (len(order), r.shape[-1]))[:, list(order)].flatten(1, 2) for p in onnx_parameters]
        weights = [parameter[direction] for direction in range(len(w)) for parameter in reordered]
        # Two threads may both do this, with equal results. Then the memory report counts the weights twice.
        if self._is_constant:
            self._packed.extend(reordered)
            self._weights = weights
        return weights


def _find_layer_function(ctx: TorchKernelContext) -> Callable[..., Any] | None:
    """Find PyTorch's function for a layer with the node's attributes; None if there is none."""
    op = ctx.node.op_type
    if ctx.attr("clip") is not None or ctx.attr("activation_alpha") or ctx.attr("activation_beta"):
        return None
    directions = 2 if ctx.attr("direction", "forward") == "bidirectional" else 1
    defaults = _DEFAULT_ACTIVATIONS[op] * directions
    activations = [name.lower() for name in ctx.attr("activations") or defaults]
    if op == "RNN" and activations == ["relu"] * directions:
        return torch.rnn_relu  # type: ignore[no-any-return]  # a function of PyTorch
    # PyTorch's LSTM and GRU have fixed activations.
    if activations != defaults or ctx.attr("input_forget", 0):
        return None
    # PyTorch's GRU applies the reset gate after the product.
    if op == "GRU" and not ctx.attr("linear_before_reset", 0):
        return None
    functions: dict[str, Callable[..., Any]] = {"RNN": torch.rnn_tanh, "LSTM": torch.lstm, "GRU": torch.gru}
    return functions[op]


def _make_layer_factory(general_factory: Callable[..., Run], num_states: int) -> Factory:
    """Make the kernel factory of a recurrent layer. The kernel uses PyTorch's function in calls that it supports.

    Other calls use the shared kernel of ``general_factory``. The inputs after the lengths are ``num_states`` initial states, then
    the peepholes.
    """

    def factory(ctx: TorchKernelContext) -> Run:
        layer = PyTorchLayer(ctx)
        general = general_factory(ctx.node, ctx)

        def run(x: Tensor, w: Tensor, r: Tensor, bias: Tensor = None, lengths: Tensor = None, *optional: Tensor) -> Any:
            initial, peepholes = list(optional[:num_states]), optional[num_states:]
            if layer.accepts(x, [lengths, *peepholes]):
                initial += [None] * (num_states - len(initial))
                return layer(x, w, r, bias, initial)
            return general(x, w, r, bias, lengths, *optional)

        return run

    return factory


overrides("RNN", since=7)(_make_layer_factory(recurrent.rnn, num_states=1))
overrides("GRU", since=7)(_make_layer_factory(recurrent.gru, num_states=1))
overrides("LSTM", since=7)(_make_layer_factory(recurrent.lstm, num_states=2))


def decode(x: Tensor, dtype: DType | None) -> Tensor:
    """Convert a tensor that represents ``dtype`` to its values: coded floats to float32, uint64 to float64, others unchanged."""
    if dtype is DType.UINT64:
        wide = x.to(torch.float64)
        return torch.where(x < 0, wide + 2.0**64, wide)
    return get_decoded_values(dtype)[x.int()] if dtype in CODED else x


def convert(x: Tensor, source: DType | None, to: DType, saturate: bool = True) -> Tensor:
    """Convert a tensor that represents ``source`` to one that represents ``to``, by the rules of ONNX's Cast."""
    if source is to:
        return x
    if to is DType.UINT64 and not x.dtype.is_floating_point and source not in CODED:
        return x.to(torch.int64)
    # The result consists of the lowest bits, which decoding to float64 would lose.
    if source is DType.UINT64 and to.is_integer:
        return _narrow(x, to)
    x = decode(x, source)
    if to is DType.BOOL:
        return x != 0
    if to in CODED:
        return _encode(x, to, saturate)
    if to is DType.UINT64:
        # PyTorch converts floats only to signed integers: subtract 2**63 from values of at least 2**63, and set that bit after.
        return torch.where(x >= 2.0**63, (x - 2.0**63).to(torch.int64) ^ SIGN_BIT, x.to(torch.int64))
    if to.is_integer and (to.bits < 8 or to in BIT_MASKS):
        return _narrow(x.to(torch.int64), to)
    if x.dtype.is_floating_point and to.is_integer and to.bits < 32:
        x = x.to(torch.int32)  # values out of range wrap around; a direct conversion depends on the CPU's vector instructions
    return x.to(get_torch_dtype(to))


def _narrow(x: Tensor, to: DType) -> Tensor:
    """Truncate integers to the lowest bits, as many as ``to`` has, and return a tensor that represents ``to``."""
    if to in BIT_MASKS:
        return (x & BIT_MASKS[to]).to(get_torch_dtype(to))
    if to.bits >= 8:
        return x.to(get_torch_dtype(to))
    low = x & ((1 << to.bits) - 1)
    # Extend the sign of a signed type: flip its highest bit, then subtract it.
    if to.text.startswith("int"):
        half = 1 << (to.bits - 1)
        low = (low ^ half) - half
    return low.to(get_torch_dtype(to))


def _encode(x: Tensor, to: DType, saturate: bool) -> Tensor:
    """Convert numbers to the uint8 codes of a coded type. ``ml_dtypes`` rounds the numbers."""
    if to in SATURABLE and saturate:
        largest = float(get_decoded_values(to).nan_to_num(posinf=0).max())
        x = torch.clamp(x.float() if x.dtype.itemsize < 4 else x, -largest, largest)
    source = x.float() if x.dtype in (torch.bfloat16, torch.bool) else x
    return make_from_numpy(to)(source.numpy().astype(to.numpy))


@overrides("Cast", since=6)
def cast(ctx: TorchKernelContext) -> Run:
    source, to, saturate = ctx.input_dtype(0), DType.from_onnx(ctx.attr("to")), bool(ctx.attr("saturate", 1))
    return lambda x: convert(x, source, to, saturate)


@overrides("CastLike")
def cast_like(ctx: TorchKernelContext) -> Run:
    source, to, saturate = ctx.input_dtype(0), ctx.input_dtype(1), bool(ctx.attr("saturate", 1))
    if to is None:
        raise ctx.refuse("converts to the type of a tensor of unknown type")
    return lambda x, like: convert(x, source, to, saturate)


@overrides("BitCast")
def bit_cast(ctx: TorchKernelContext) -> Run:
    source, to = ctx.input_dtype(0), ctx.get_dtype_attribute("to")
    if source is None or to is None:
        raise ctx.refuse("converts between types that are not known")
    if source in NATIVE and to in NATIVE:
        dtype = NATIVE[to]
        return lambda x: x.contiguous().view(dtype)
    # PyTorch represents other types by tensors of another type, so reinterpret their bits in NumPy.
    to_numpy, from_numpy = make_to_numpy(source), make_from_numpy(to)
    return lambda x: from_numpy(to_numpy(x.contiguous()).view(to.numpy))


def _quantize(ratio: Tensor, zero: Tensor, to: DType, saturate: bool = True) -> Tensor:
    """Round ``ratio`` (input / scale) to the nearest integer, add the zero point, and clamp to the range of ``to``."""
    if not to.is_integer:
        shifted = ratio if zero is None else ratio + decode(zero, to).to(ratio.dtype)
        return convert(shifted, None, to, saturate)
    # In float64, where the sum with a zero point of 32 bits is exact.
    wide = torch.round(ratio).double() + (0 if zero is None else zero.double())
    return wide.clamp(*get_integer_limits(to)).to(torch.int32).to(get_torch_dtype(to))


@overrides("QuantizeLinear")
def quantize_linear(ctx: TorchKernelContext) -> Run:
    axis, block, saturate = ctx.attr("axis", 1), ctx.attr("block_size", 0), bool(ctx.attr("saturate", 1))
    # The inputs are x, the scale and the zero point, which has the type of the result.
    to = ctx.input_dtype(2) or ctx.get_dtype_attribute("output_dtype") or DType.UINT8
    precision, scale_dtype = ctx.get_torch_dtype_attribute("precision"), ctx.input_dtype(1)

    def run(x: Tensor, scale: Tensor, zero: Tensor = None) -> Tensor:
        scale = decode(scale, scale_dtype)
        dtype = precision or scale.dtype
        ratio = x.to(dtype) / broadcast_parameters(TORCH, scale, x, axis, block).to(dtype)
        return _quantize(ratio, None if zero is None else broadcast_parameters(TORCH, zero, x, axis, block), to, saturate)

    return run


@overrides("DequantizeLinear")
def dequantize_linear(ctx: TorchKernelContext) -> Run:
    axis, block = ctx.attr("axis", 1), ctx.attr("block_size", 0)
    source, scale_dtype = ctx.input_dtype(0), ctx.input_dtype(1)  # of x and the zero point, and of the scale
    declared = ctx.get_torch_dtype_attribute("output_dtype")

    def run(x: Tensor, scale: Tensor, zero: Tensor = None) -> Tensor:
        wide, scale = decode(x, source).float(), decode(scale, scale_dtype)
        if zero is not None:
            wide = wide - broadcast_parameters(TORCH, decode(zero, source).float(), x, axis, block)
        return (wide * broadcast_parameters(TORCH, scale, x, axis, block).float()).to(declared or scale.dtype)

    return run


@overrides("DFT", until=19, host=(1,))
def dft_by_attribute(ctx: TorchKernelContext) -> Run:
    axis = ctx.attr("axis", 1)
    return lambda x, length=None: _fourier_transform(ctx, x, None if length is None else int(length.reshape(())), axis)


@overrides("DFT", since=20, host=(1, 2))
def dft(ctx: TorchKernelContext) -> Run:
    def run(x: Tensor, length: Tensor = None, axis: Tensor = None) -> Tensor:
        n = None if length is None else int(length.reshape(()))
        return _fourier_transform(ctx, x, n, -2 if axis is None else int(axis.reshape(())))

    return run


def _fourier_transform(ctx: TorchKernelContext, x: Tensor, length: int | None, axis: int) -> Tensor:
    """Compute a DFT of ``length`` elements; None means the whole axis.

    The last axis of ``x`` contains the real part, or the real and the imaginary part.
    """
    axis %= x.ndim
    onesided, inverse = ctx.attr("onesided", 0), ctx.attr("inverse", 0)
    real, *imaginary = x.double().unbind(-1)
    signal = torch.complex(real, imaginary[0] if imaginary else torch.zeros_like(real))
    n = length or x.shape[axis]
    if onesided and inverse:  # the input is one half of a transform, and the result is real
        return torch.fft.irfft(signal, n=length, dim=axis)[..., None].to(x.dtype)
    transform = torch.fft.ifft if inverse else torch.fft.fft
    y = transform(signal, n=n, dim=axis)
    if onesided:
        y = y.narrow(axis, 0, n // 2 + 1)  # the conjugates of these are the other half
    return torch.view_as_real(y).to(x.dtype)
