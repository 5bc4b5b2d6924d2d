"""The kernels of the xla engine: the shared kernels with a JAX namespace, and kernels that replace them where XLA needs other
code.

A kernel is called once, when its node is traced. An operand is either *traced*: a JAX array with a shape and a dtype but without
elements. Or it is *known*: a NumPy array of a small constant, or of a value that is computed from shapes and known operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil, prod
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from xrt.engines.kernels import ops as shared
from xrt.engines.kernels.arrays import NARROW_FLOATS, apply_negative_pads, get_extreme_value, round_once
from xrt.engines.kernels.elementwise import register_binary
from xrt.engines.kernels.namespace import ArrayNamespace
from xrt.engines.kernels.quantization import SATURABLE
from xrt.engines.kernels.windows import add_bias
from xrt.graph import DType
from xrt.operators import find_node_constant
from xrt.operators.windows import Window, compute_padding_trims, make_window

if TYPE_CHECKING:
    from xrt.engines.kernels.table import Advance, Factory, NodeContext, Run, States
    from xrt.engines.xla.export import LoweringContext
    from xrt.graph import Node
    from xrt.operators.windows import Placement

Operand: TypeAlias = Any
"""A traced JAX array, or a known NumPy array."""
NUMPY = ArrayNamespace(np)
"""The namespace for nodes whose operands are all known."""
ops = shared.extend("xla")
_HIGHEST = jax.lax.Precision.HIGHEST
MAX_KNOWN_ELEMENTS = 1024
"""A larger constant is an argument of the compiled code instead of a part of it, and a larger result is traced, even if its
operands are known."""


def register_lowering(*op_types: str, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a decorator that registers a kernel ``f(ctx, *operands)`` instead of the shared kernel (see `LoweringContext`)."""

    def register(lowering: Callable[..., Any]) -> Callable[..., Any]:
        ops(*op_types, priority=1, **options)(lambda node, ctx: partial(lowering, ctx))
        return lowering

    return register


class JaxNamespace:
    """The namespace for traced operands: the functions of ``jax.numpy``, and the methods of `ArrayNamespace`."""

    narrow = NARROW_FLOATS
    product_dtype: Any = np.int32
    resize_dtype: Any = np.float32
    constants = NUMPY
    make_sizes = staticmethod(NUMPY.make_sizes)
    dtype_kind = staticmethod(NUMPY.dtype_kind)
    get_extreme_value = staticmethod(NUMPY.get_extreme_value)

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)

    def astype(self, x: Operand, dtype: Any) -> Operand:
        return x.astype(dtype)

    def take(self, x: Operand, indices: Operand, axis: int | None = None) -> Operand:
        extent = prod(x.shape) if axis is None else x.shape[axis]
        return jnp.take(x, jnp.where(indices < 0, indices + extent, indices), axis=axis, mode="clip")

    def argsort_stable(self, x: Operand, axis: int, descending: bool) -> Operand:
        return jnp.argsort(x, axis=axis, stable=True, descending=descending)

    def erf(self, x: Operand) -> Operand:
        return jax.lax.erf(x)

    def convert(self, x: Operand, to: DType, saturate: bool = True, round_mode: str = "up") -> Operand:
        if to.numpy == x.dtype:
            return x
        if to is DType.BOOL:
            return x != 0
        if to in SATURABLE and saturate:
            largest = float(jnp.finfo(to.numpy).max)
            x = jnp.clip(x.astype(np.float32) if x.dtype.itemsize < 4 else x, -largest, largest)
        if to.is_integer and to.bits < 8:
            x = x.astype(np.int32)  # in ONNX, integers keep their lowest bits; from a float, XLA would clamp
        if x.dtype == np.bool_ and to.is_float:
            # XLA simplifies the product of x and a converted boolean: where it is false the result is 0, also if x is NaN.
            return jnp.where(x, to.numpy.type(1), to.numpy.type(0))
        return x.astype(to.numpy)

    def subtract_max(self, x: Operand, axis: int) -> Operand:
        """Subtract the maximum along the axis. The largest element becomes exactly zero.

        With a plain subtraction it would not: if ``x`` is a product, XLA fuses product and subtraction to an FMA without rounding
        the product. For large elements, the difference to the rounded maximum may be hundreds.
        """
        maximum = jnp.max(x, axis=axis, keepdims=True, initial=-jnp.inf)
        return jnp.where(x == maximum, maximum - maximum, x - maximum)

    def convolve(self, x: Operand, w: Operand, window: Window, group: int) -> Operand:
        x, w = jnp.asarray(x), jnp.asarray(w)
        pads = window.place(x.shape[2:]).pads
        return jax.lax.conv_general_dilated(
            x, w, window.strides, pads, rhs_dilation=window.dilations, feature_group_count=group, precision=_HIGHEST
        )

    def sum_windows(self, x: Operand, placement: Placement) -> Operand:
        return _combine_windows(placement, x, jax.lax.add, 0)

    def max_windows(self, x: Operand, placement: Placement) -> Operand:
        return _combine_windows(placement, x, jax.lax.max, get_extreme_value(x.dtype, lowest=True))

    def fold(self, columns: Operand, placement: Placement, extents: Sequence[int]) -> Operand:
        out: Any = jnp.zeros((*columns.shape[:2], *extents), dtype=columns.dtype)
        for offset, region in placement.iterate_offsets():
            out = out.at[region].add(columns[(slice(None), slice(None), *offset)])
        return out

    def pad_axes(self, x: Operand, pads: Sequence[int], mode: str, value: Any, axes: Sequence[int] | None = None) -> Operand:
        x, remaining = apply_negative_pads(x, pads, axes)
        return jnp.pad(x, remaining, constant_values=value) if mode == "constant" else jnp.pad(x, remaining, mode=mode)

    def scatter(self, x: Operand, indices: tuple[Operand, ...], values: Operand, reduction: str) -> Operand:
        target: Any = jnp.asarray(x).at[indices]
        write = {"none": target.set, "add": target.add, "mul": target.multiply, "min": target.min, "max": target.max}[reduction]
        return write(values)

    def scan_time(
        self, gates: Operand, states: States, lengths: Operand | None, backwards: bool, advance: Advance
    ) -> tuple[Operand, States]:
        def step(states: States, now: tuple[Operand, Operand]) -> tuple[States, Operand]:
            time, part = now
            following = advance(part, states)
            if lengths is None:
                return following, following[0]
            # After the end of a sequence its states do not change, and its output is zero.
            is_active = (time < lengths)[:, None]
            states = tuple(jnp.where(is_active, new, old) for new, old in zip(following, states, strict=True))
            return states, jnp.where(is_active, states[0], 0)

        first = tuple(map(jnp.asarray, states))
        last, history = jax.lax.scan(step, first, (jnp.arange(len(gates)), gates), reverse=backwards)
        return history, last


JAX = JaxNamespace()


def _combine_windows(placement: Placement, x: Operand, combine: Any, neutral: Any) -> Operand:
    """Combine the elements of each window of ``x`` (N, C, *spatial). The padding has the value ``neutral``."""
    window = placement.window
    initial = np.asarray(neutral, x.dtype)
    kernel, strides, dilations = (1, 1, *window.kernel), (1, 1, *window.strides), (1, 1, *window.dilations)
    pads = [(0, 0), (0, 0), *placement.pads]
    return jax.lax.reduce_window(x, initial, combine, kernel, strides, pads, window_dilation=dilations)


def make_sum_factory(name: str) -> Factory:
    """Make the factory for the kernels of Add or Sub.

    XLA would change ``(x + a) + b`` with constants a and b to ``x + (a + b)``, which is rounded differently. A barrier prevents
    this. It does not prevent fusion, because XLA removes barriers before.
    """

    def factory(node: Node, ctx: NodeContext) -> Run:
        def run(a: Operand, b: Operand) -> Operand:
            has_known_operand = isinstance(a, np.ndarray) or isinstance(b, np.ndarray)
            if ctx.xp is JAX and has_known_operand and not _is_integer(a):  # integer sums are exact in any order
                a = a if isinstance(a, np.ndarray) else jax.lax.optimization_barrier(a)
                b = b if isinstance(b, np.ndarray) else jax.lax.optimization_barrier(b)
            return getattr(ctx.xp, name)(a, b)

        return run

    return factory


for _op, _name in {"Add": "add", "Sub": "subtract"}.items():
    register_binary(ops, _op)(make_sum_factory(_name))


def _is_integer(x: Operand) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.integer))


def _power(base: Operand, exponent: Operand) -> Operand:
    """Compute powers in the type of ``base``. Other than natural powers of integers are computed in float64 and truncated."""
    if not _is_integer(base):
        return jnp.power(base, exponent.astype(base.dtype))
    if not _is_integer(exponent):
        return jnp.power(base.astype(jnp.float64), exponent.astype(jnp.float64)).astype(base.dtype)
    powers = jnp.power(base, jnp.maximum(exponent, 0)).astype(base.dtype)
    if jnp.issubdtype(exponent.dtype, jnp.unsignedinteger):
        return powers
    truncated = jnp.power(base.astype(jnp.float64), exponent.astype(jnp.float64)).astype(base.dtype)
    return jnp.where(exponent < 0, truncated, powers)


register_binary(ops, "Pow")(lambda node, ctx: _power)


@register_lowering("DFT")
def dft(ctx: LoweringContext, x: Operand, length_operand: Operand = None, axis_operand: Operand = None) -> Operand:
    """The last axis of ``x`` holds the real part, or the real and the imaginary part."""
    # The second argument of `get_ints` is the index of the input.
    length = None if length_operand is None else ctx.get_ints(length_operand, 1)[0]
    # Since version 20 the axis is an input, with another default.
    default_axis = ctx.attr("axis", 1) if ctx.version < 20 else -2
    axis = default_axis if axis_operand is None else ctx.get_ints(axis_operand, 2)[0]
    axis %= x.ndim
    onesided, inverse = ctx.attr("onesided", 0), ctx.attr("inverse", 0)
    # In float32, XLA's transform has errors of 1e-5 in sums that cancel. The inverse transform divides the errors by the length.
    parts = x if inverse else x.astype(jnp.float64)
    imaginary = parts[..., 1] if x.shape[-1] == 2 else jnp.zeros_like(parts[..., 0])
    signal = jax.lax.complex(parts[..., 0], imaginary)
    n = length or x.shape[axis]
    if onesided and inverse:  # the input is one half of a transform, and the result is real
        return jnp.fft.irfft(signal, n=length, axis=axis)[..., None].astype(x.dtype)
    transform = jnp.fft.ifft if inverse else jnp.fft.fft
    y = transform(signal, n=n, axis=axis)
    if onesided:
        y = jax.lax.slice_in_dim(y, 0, n // 2 + 1, axis=axis)  # the conjugates of these are the other half
    return jnp.stack([y.real, y.imag], axis=-1).astype(x.dtype)


@register_lowering("Expand")
def expand(ctx: LoweringContext, x: Operand, target: Operand) -> Operand:
    extents = np.broadcast_shapes(x.shape, ctx.get_ints(target, 1))
    return _choose_module(prod(extents), x).broadcast_to(x, extents)


def _choose_module(size: int, *operands: Operand) -> Any:
    """Return NumPy if the operands are known and the result has few elements (``size``), otherwise ``jax.numpy``."""
    are_known = all(isinstance(x, np.ndarray) for x in operands)
    return np if are_known and size <= MAX_KNOWN_ELEMENTS else jnp


@register_lowering("Tile", since=6)
def tile(ctx: LoweringContext, x: Operand, repeats: Operand) -> Operand:
    counts = ctx.get_ints(repeats, 1)
    return _choose_module(x.size * prod(counts), x).tile(x, counts)


@register_lowering("Pad", since=2)
def pad(ctx: LoweringContext, x: Operand, pads: Operand = None, value: Operand = None, axes: Operand = None) -> Operand:
    mode = ctx.attr("mode", "constant")
    if ctx.version < 11:
        return JAX.pad_axes(x, ctx.attr("pads"), mode, ctx.attr("value", 0.0))
    fill = 0 if value is None else value.reshape(())
    return JAX.pad_axes(x, ctx.get_ints(pads, 1), mode, fill, None if axes is None else ctx.get_ints(axes, 3))


@register_lowering("Constant")
def constant(ctx: LoweringContext) -> Operand:
    value = find_node_constant(ctx.node, ctx.function)
    if value is None:
        raise ctx.refuse("without numbers is not supported")
    return value.array


@register_lowering("ConstantOfShape")
def constant_of_shape(ctx: LoweringContext, shape: Operand) -> Operand:
    extents, fill = ctx.get_ints(shape, 0), ctx.attr("value")
    value = np.zeros((), np.float32) if fill is None else fill.array.reshape(())
    return _choose_module(prod(extents)).full(extents, value, dtype=value.dtype)


@register_lowering("EyeLike")
def eye_like(ctx: LoweringContext, x: Operand) -> Operand:
    dtype = ctx.get_dtype_attribute("dtype")
    return np.eye(x.shape[0], x.shape[1], k=ctx.attr("k", 0), dtype=dtype.numpy if dtype else x.dtype)


@register_lowering("Range")
def range_(ctx: LoweringContext, start: Operand, limit: Operand, delta: Operand) -> Operand:
    first = ctx.get_constant(start, 0).reshape(()).item()
    end = ctx.get_constant(limit, 1).reshape(()).item()
    step = ctx.get_constant(delta, 2).reshape(()).item()
    count = max(0, ceil((end - first) / step))
    wide = np.dtype(np.float32) if start.dtype in NARROW_FLOATS else start.dtype
    indices = _choose_module(count).arange(count, dtype=wide)
    return (wide.type(first) + indices * wide.type(step)).astype(start.dtype)


@register_lowering("Dropout", since=7)
def dropout(ctx: LoweringContext, x: Operand, ratio: Operand = None, training: Operand = None) -> Operand:
    """Return x and a mask of ones: the engine declines training. Before version 10 the mask has the dtype of x."""
    mask = jnp.ones(x.shape, bool if ctx.version >= 10 else x.dtype)
    return (x, mask) if ctx.wants(1) else x


@register_lowering("BitCast")
def bit_cast(ctx: LoweringContext, x: Operand) -> Operand:
    return jax.lax.bitcast_convert_type(x, DType.from_onnx(ctx.attr("to")).numpy)


@register_lowering("ConvTranspose")
def conv_transpose(ctx: LoweringContext, x: Operand, w: Operand, bias: Operand = None) -> Operand:
    """Convolve x with the flipped kernel, after inserting zeros between the elements of x for strides."""
    window, group = make_window(ctx.node, w.shape[2:]), ctx.attr("group", 1)

    def compute(x: Operand, w: Operand, bias: Operand) -> Operand:
        padded = _convolve_transposed(x, w, window, group)
        pads = compute_padding_trims(ctx.node, window, padded.shape[2:], x.shape[2:])
        return add_bias(JAX.pad_axes(padded, pads, "constant", 0, range(2, x.ndim)), bias)

    return round_once(JAX, compute)(x, w, bias)


def _convolve_transposed(x: Operand, w: Operand, window: Window, group: int) -> Operand:
    """Compute a transposed convolution without cropping the result by the pads."""
    # From (inputs, outputs of one group, ...) to (outputs, inputs of one group, ...), the layout of a convolution.
    parts = jnp.asarray(w).reshape(group, w.shape[0] // group, *w.shape[1:]).swapaxes(1, 2)
    flipped = jnp.flip(parts.reshape(-1, *parts.shape[2:]), range(2, w.ndim))
    strides = (1,) * len(window.kernel)
    pads = [(span - 1, span - 1) for span in window.spans]
    dilations = {"lhs_dilation": window.strides, "rhs_dilation": window.dilations}
    return jax.lax.conv_general_dilated(
        jnp.asarray(x), flipped, strides, pads, **dilations, feature_group_count=group, precision=_HIGHEST
    )


MAX_UNROLLED_ITERATIONS = 8
"""A loop with a known trip count of at most this is unrolled, because only then shapes may change between iterations. It is not
faster: for 2 to 32 iterations of MatMul, Tanh and Add (8x8 and 128x128) both take the same time, and compiling up to twice as
long."""


@register_lowering("If")
def if_(ctx: LoweringContext, condition: Operand) -> tuple[Operand, ...]:
    then, otherwise = ctx.make_body_tracer("then_branch"), ctx.make_body_tracer("else_branch")
    if isinstance(condition, np.ndarray):
        taken = then if condition.reshape(()) else otherwise
        return tuple(taken([]))
    # JAX traces both branches, whose results must have equal types, so convert known results to JAX arrays.
    branches = (lambda: tuple(map(jnp.asarray, then([]))), lambda: tuple(map(jnp.asarray, otherwise([]))))
    return tuple(jax.lax.cond(condition.reshape(()), *branches))


class _NotCountedError(Exception):
    """A loop cannot be traced with its trip count, because the condition that its body computes may end it earlier."""


@register_lowering("Loop")
def loop(ctx: LoweringContext, trips: Operand = None, condition: Operand = None, *carried: Operand) -> tuple[Operand, ...]:
    """Run the body while the condition is true, at most ``trips`` times. Returns the carried values, then the scan outputs."""
    tracer = _LoopTracer(ctx, len(carried))
    # If the condition is False at the start, no iteration runs.
    if isinstance(condition, np.ndarray) and not condition.reshape(()):
        trips, condition = np.array(0), None
    if isinstance(trips, np.ndarray) and (condition is None or isinstance(condition, np.ndarray)):
        try:
            return tracer.trace_counted(int(trips.reshape(())), carried)
        except _NotCountedError:
            pass  # trace it as a while loop instead
    return tracer.trace_while(trips, condition, carried)


class _LoopTracer:
    """Traces a Loop as unrolled code, as a scan, or as a while loop."""

    def __init__(self, ctx: LoweringContext, n_carried: int) -> None:
        self._ctx = ctx
        self._body: Callable[[Sequence[Operand]], list[Operand]] = ctx.make_body_tracer("body")
        self._num_carried = n_carried

    def trace_counted(self, trips: int, carried: Sequence[Operand]) -> tuple[Operand, ...]:
        """Trace a loop with a known trip count. Raises _NotCountedError if the condition may end it earlier."""
        # Use a scan for zero iterations too, because it traces the body, which determines the types of the scan outputs.
        if 0 < trips <= MAX_UNROLLED_ITERATIONS:
            return self._unroll(trips, list(carried))
        last, stacks = jax.lax.scan(self._step, tuple(map(jnp.asarray, carried)), jnp.arange(trips), length=max(trips, 0))
        return *last, *stacks

    def _step(self, carried: tuple[Operand, ...], trip: Operand) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
        """Trace one iteration of a scan. Returns the carried values, and the values of the scan outputs."""
        flag, *results = self._body([trip, np.array(True), *carried])
        # A scan cannot stop early, so the condition must be known, and True.
        if not isinstance(flag, np.ndarray) or not flag.reshape(()):
            raise _NotCountedError
        arrays = tuple(map(jnp.asarray, results))
        return arrays[: self._num_carried], arrays[self._num_carried :]

    def _unroll(self, trips: int, carried: list[Operand]) -> tuple[Operand, ...]:
        scanned: list[list[Operand]] = []
        for trip in range(trips):
            condition, *results = self._body([np.array(trip, np.int64), np.array(True), *carried])
            carried = results[: self._num_carried]
            scanned.append(results[self._num_carried :])
            if not isinstance(condition, np.ndarray):
                raise _NotCountedError
            if not condition.reshape(()):
                break
        return *carried, *(jnp.stack(values) for values in zip(*scanned, strict=True))

    def trace_while(self, trips: Operand, condition: Operand, carried: Sequence[Operand]) -> tuple[Operand, ...]:
        """Trace a loop whose trip count is known only at run time. Raises CompileRefused if the loop has scan outputs."""
        n_scanned = len(self._ctx.attr("body").outputs) - 1 - self._num_carried
        if n_scanned:
            raise self._ctx.refuse(
                "stacks a number of results that is known only at run time, and XLA supports only static shapes"
            )
        max_trips = np.iinfo(np.int64).max if trips is None else jnp.asarray(trips).reshape(()).astype(jnp.int64)
        enters = jnp.asarray(True if condition is None else condition).reshape(())

        def has_next(state: tuple[Any, ...]) -> Operand:
            trip, flag, *_ = state
            return (trip < max_trips) & flag

        def advance(state: tuple[Any, ...]) -> tuple[Any, ...]:
            trip, flag, *values = state
            proceed, *results = self._body([trip, flag, *values])
            return trip + 1, jnp.asarray(proceed).reshape(()), *map(jnp.asarray, results)

        first = (jnp.zeros((), jnp.int64), enters, *map(jnp.asarray, carried))
        return tuple(jax.lax.while_loop(has_next, advance, first)[2:])


@register_lowering("Scan", since=9)
def scan(ctx: LoweringContext, *values: Operand) -> tuple[Operand, ...]:
    """Scan along an axis of some inputs. The inputs are states, then scanned inputs; the outputs last states, then stacks."""
    body, n_scanned = ctx.make_body_tracer("body"), ctx.attr("num_scan_inputs")
    n_states = len(values) - n_scanned
    n_stacks = len(ctx.attr("body").outputs) - n_states
    # Each scanned input and each stack has a time axis, and a direction, of which 1 is backwards.
    in_axes = ctx.attr("scan_input_axes") or (0,) * n_scanned
    out_axes = ctx.attr("scan_output_axes") or (0,) * n_stacks
    in_directions = ctx.attr("scan_input_directions") or (0,) * n_scanned
    out_directions = ctx.attr("scan_output_directions") or (0,) * n_stacks
    scanned = zip(values[n_states:], in_axes, in_directions, strict=True)
    rows = tuple(_move_to_front(x, axis, backwards) for x, axis, backwards in scanned)

    def step(states: tuple[Operand, ...], row: tuple[Operand, ...]) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
        results = tuple(map(jnp.asarray, body([*states, *row])))
        return results[:n_states], results[n_states:]

    last, stacks = jax.lax.scan(step, tuple(map(jnp.asarray, values[:n_states])), rows)
    outputs = zip(stacks, out_axes, out_directions, strict=True)
    return *last, *(jnp.moveaxis(y[::-1] if backwards else y, 0, axis) for y, axis, backwards in outputs)


def _move_to_front(x: Operand, axis: int, backwards: int) -> Operand:
    moved = jnp.moveaxis(jnp.asarray(x), axis, 0)
    return moved[::-1] if backwards else moved
