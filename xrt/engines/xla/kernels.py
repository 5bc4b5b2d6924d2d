"""The kernels of the xla engine: the shared kernels over a JAX namespace, and replacements where XLA needs other code.

A kernel runs once, while its node is traced. An operand is either traced, with a shape and a dtype but no elements, or
*known*: a NumPy array, because it is a small constant or was computed from shapes and known operands.
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
from xrt.engines.kernels.arrays import NARROW, extreme, round_once, trim
from xrt.engines.kernels.elementwise import binary
from xrt.engines.kernels.namespace import ArrayNamespace
from xrt.engines.kernels.quantization import SATURABLE
from xrt.engines.kernels.windows import with_bias
from xrt.graph import DType
from xrt.operators.windows import Window, compute_padding_trims, make_window
from xrt.passes import find_constant

if TYPE_CHECKING:
    from xrt.engines.kernels.table import Advance, Factory, NodeContext, Run, States
    from xrt.engines.xla.export import LoweringContext
    from xrt.graph import Node
    from xrt.operators.windows import Placement


Operand: TypeAlias = Any
"""A traced JAX array, or a known NumPy array."""
NUMPY = ArrayNamespace(np)
"""The namespace for operators with known operands only."""

ops = shared.extend("xla")
MOST_KNOWN = 1024
"""Maximum number of elements of a known result."""


def lowers(*op_types: str, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a kernel ``f(context, *operands)`` with a `LoweringContext`; it overrides the shared kernel, if any."""

    def register(lowering: Callable[..., Any]) -> Callable[..., Any]:
        ops(*op_types, priority=1, **options)(lambda node, at: partial(lowering, at))
        return lowering

    return register


# ---------------------------------------------------------------------- the namespace


class JaxNamespace:
    """The functions of ``jax.numpy``, and the operations that libraries spell differently; all can be traced.

    Implements the methods of `ArrayNamespace`.
    """

    narrow = NARROW
    exact: Any = np.int32
    wide: Any = np.float32
    constants = NUMPY
    sizes = staticmethod(NUMPY.sizes)
    kind = staticmethod(NUMPY.kind)
    extreme = staticmethod(NUMPY.extreme)

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)

    def astype(self, x: Operand, dtype: Any) -> Operand:
        return x.astype(dtype)

    def take(self, x: Operand, indices: Operand, axis: int | None = None) -> Operand:
        extent = prod(x.shape) if axis is None else x.shape[axis]
        return jnp.take(x, jnp.where(indices < 0, indices + extent, indices), axis=axis, mode="clip")

    def order(self, x: Operand, axis: int, descending: bool) -> Operand:
        return jnp.argsort(x, axis=axis, stable=True, descending=descending)

    def erf(self, x: Operand) -> Operand:
        return jax.lax.erf(x)

    def convert(self, x: Operand, to: DType, saturate: bool = True, round_mode: str = "up") -> Operand:
        if to.numpy == x.dtype:
            return x
        if to is DType.BOOL:
            return x != 0
        if to in SATURABLE and saturate:
            most = float(jnp.finfo(to.numpy).max)
            x = jnp.clip(x.astype(np.float32) if x.dtype.itemsize < 4 else x, -most, most)
        if to.is_integer and to.bits < 8:
            x = x.astype(np.int32)  # integers keep their lowest bits, as ONNX specifies; XLA would saturate a float
        if x.dtype == np.bool_ and to.is_float:
            # XLA rewrites a product with a converted boolean to a select with zero, although NaN times zero is NaN.
            return jnp.where(x, to.numpy.type(1), to.numpy.type(0))
        return x.astype(to.numpy)

    def subtract_max(self, x: Operand, axis: int) -> Operand:
        """Subtract the maximum along the axis, so that the largest element becomes exactly zero.

        If x is a product, XLA recomputes it for the difference inside an FMA, without rounding: for large numbers, the largest
        element would differ from itself by hundreds.
        """
        maximum = jnp.max(x, axis=axis, keepdims=True, initial=-jnp.inf)
        return jnp.where(x == maximum, maximum - maximum, x - maximum)

    def convolve(self, x: Operand, w: Operand, window: Window, group: int) -> Operand:
        return jax.lax.conv_general_dilated(
            jnp.asarray(x),
            jnp.asarray(w),
            window.strides,
            window.over(x.shape[2:]).pads,
            rhs_dilation=window.dilations,
            feature_group_count=group,
            precision=jax.lax.Precision.HIGHEST,
        )

    def around(self, place: Placement, x: Operand, fill: Any) -> Operand:
        return jnp.pad(x, [(0, 0)] * (x.ndim - len(place.extents)) + place.pads, constant_values=fill)

    def sum_windows(self, x: Operand, place: Placement) -> Operand:
        return _combine_windows(place, x, jax.lax.add, 0)

    def max_windows(self, x: Operand, place: Placement) -> Operand:
        return _combine_windows(place, x, jax.lax.max, extreme(x.dtype, lowest=True))

    def fold(self, columns: Operand, place: Placement, extents: Sequence[int]) -> Operand:
        out: Any = jnp.zeros((*columns.shape[:2], *extents), dtype=columns.dtype)
        for offset, region in place.offsets():
            out = out.at[region].add(columns[(slice(None), slice(None), *offset)])
        return out

    def pad_axes(self, x: Operand, pads: Sequence[int], mode: str, value: Any, axes: Sequence[int] | None = None) -> Operand:
        x, remaining = trim(x, pads, axes)
        return jnp.pad(x, remaining, constant_values=value) if mode == "constant" else jnp.pad(x, remaining, mode=mode)

    def scatter(self, x: Operand, places: tuple[Operand, ...], values: Operand, reduction: str) -> Operand:
        target: Any = jnp.asarray(x).at[places]
        write = {"none": target.set, "add": target.add, "mul": target.multiply, "min": target.min, "max": target.max}[reduction]
        return write(values)

    def walk(
        self, gates: Operand, states: States, lengths: Operand | None, backwards: bool, advance: Advance
    ) -> tuple[Operand, States]:
        def step(states: States, now: tuple[Operand, Operand]) -> tuple[States, Operand]:
            time, part = now
            following = advance(part, states)
            if lengths is None:
                return following, following[0]
            # Sequences that have ended keep their states and output zeros.
            alive = (time < lengths)[:, None]
            states = tuple(jnp.where(alive, new, old) for new, old in zip(following, states, strict=True))
            return states, jnp.where(alive, states[0], 0)

        first = tuple(map(jnp.asarray, states))
        last, history = jax.lax.scan(step, first, (jnp.arange(len(gates)), gates), reverse=backwards)
        return history, last


JAX = JaxNamespace()


def _combine_windows(place: Placement, x: Operand, combine: Any, neutral: Any) -> Operand:
    """Combine the elements of each window of (N, C, *spatial); ``neutral`` is the padding value."""
    window = place.window
    return jax.lax.reduce_window(
        x,
        np.asarray(neutral, x.dtype),
        combine,
        (1, 1, *window.kernel),
        (1, 1, *window.strides),
        [(0, 0), (0, 0), *place.pads],
        window_dilation=(1, 1, *window.dilations),
    )


# ---------------------------------------------------------------------- arithmetic


def make_sum(name: str) -> Factory:
    """The factory of a kernel that adds or subtracts, and that XLA does not merge with other sums of constants.

    XLA reassociates ``(x + a) + b`` to ``x + (a + b)``, which undoes intended rounding. The barrier is removed before fusion.
    """

    def factory(node: Node, env: NodeContext) -> Run:
        def run(a: Operand, b: Operand) -> Operand:
            if env.xp is JAX and not _is_integer(a) and (isinstance(a, np.ndarray) or isinstance(b, np.ndarray)):
                a, b = (x if isinstance(x, np.ndarray) else jax.lax.optimization_barrier(x) for x in (a, b))
            return getattr(env.xp, name)(a, b)

        return run

    return factory


for _op, _name in {"Add": "add", "Sub": "subtract"}.items():
    binary(ops, _op)(make_sum(_name))


def _is_integer(x: Operand) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.integer))


@binary(ops, "Pow")
def power(node: Node, env: NodeContext) -> Run:
    """Mixed types are computed in the wider float type; integers to negative powers in float64, and truncated."""
    return _power


def _power(base: Operand, exponent: Operand) -> Operand:
    if not _is_integer(base):
        return jnp.power(base, exponent.astype(base.dtype))
    if not _is_integer(exponent):
        return jnp.power(base.astype(jnp.float64), exponent.astype(jnp.float64)).astype(base.dtype)
    powers = jnp.power(base, jnp.maximum(exponent, 0)).astype(base.dtype)
    if jnp.issubdtype(exponent.dtype, jnp.unsignedinteger):
        return powers
    truncated = jnp.power(base.astype(jnp.float64), exponent.astype(jnp.float64)).astype(base.dtype)
    return jnp.where(exponent < 0, truncated, powers)


@lowers("DFT", until=19)
def dft_by_attribute(at: LoweringContext, x: Operand, length: Operand = None) -> Operand:
    return _transform(at, x, None if length is None else at.ints(length, 1)[0], at.attr("axis", 1))


@lowers("DFT", since=20)
def dft(at: LoweringContext, x: Operand, length: Operand = None, axis: Operand = None) -> Operand:
    return _transform(at, x, None if length is None else at.ints(length, 1)[0], -2 if axis is None else at.ints(axis, 2)[0])


def _transform(at: LoweringContext, x: Operand, length: int | None, axis: int) -> Operand:
    """Transform along an axis of a tensor whose last axis holds real parts, or real and imaginary parts."""
    axis, onesided, inverse = axis % x.ndim, at.attr("onesided", 0), at.attr("inverse", 0)
    # XLA's forward transform has errors of 1e-5 in float32 where sums cancel; the inverse divides them by the length.
    wide = x if inverse else x.astype(jnp.float64)
    signal = jax.lax.complex(wide[..., 0], wide[..., 1] if x.shape[-1] == 2 else jnp.zeros_like(wide[..., 0]))
    n = length or x.shape[axis]
    if onesided and inverse:
        return jnp.fft.irfft(signal, n=length, axis=axis)[..., None].astype(x.dtype)
    y = (jnp.fft.ifft if inverse else jnp.fft.fft)(signal, n=n, axis=axis)
    if onesided:
        y = jax.lax.slice_in_dim(y, 0, n // 2 + 1, axis=axis)
    return jnp.stack([y.real, y.imag], axis=-1).astype(x.dtype)


# ---------------------------------------------------------------------- layout


@lowers("Expand")
def expand(at: LoweringContext, x: Operand, target: Operand) -> Operand:
    extents = np.broadcast_shapes(x.shape, at.ints(target, 1))
    return (np if _is_small(x, extents) else jnp).broadcast_to(x, extents)


def _is_small(x: Operand, extents: Sequence[int]) -> bool:
    return isinstance(x, np.ndarray) and prod(extents) <= MOST_KNOWN


@lowers("Tile", since=6)
def tile(at: LoweringContext, x: Operand, repeats: Operand) -> Operand:
    counts = at.ints(repeats, 1)
    is_small = isinstance(x, np.ndarray) and x.size * prod(counts) <= MOST_KNOWN
    return (np if is_small else jnp).tile(x, counts)


@lowers("Pad", since=2, until=10)
def pad_by_attributes(at: LoweringContext, x: Operand) -> Operand:
    return JAX.pad_axes(x, at.attr("pads"), at.attr("mode", "constant"), at.attr("value", 0.0))


@lowers("Pad", since=11)
def pad(at: LoweringContext, x: Operand, pads: Operand, value: Operand = None, axes: Operand = None) -> Operand:
    fill = 0 if value is None else value.reshape(())
    return JAX.pad_axes(x, at.ints(pads, 1), at.attr("mode", "constant"), fill, None if axes is None else at.ints(axes, 3))


@lowers("Constant")
def constant(at: LoweringContext) -> Operand:
    value = find_constant(at.node, at.function)
    if value is None:
        raise at.refuse("of no numbers is not lowered")
    return value.array


@lowers("ConstantOfShape")
def constant_of_shape(at: LoweringContext, shape: Operand) -> Operand:
    extents, fill = at.ints(shape, 0), at.attr("value")
    value = np.zeros((), np.float32) if fill is None else fill.array.reshape(())
    xp: Any = np if prod(extents) <= MOST_KNOWN else jnp
    return xp.full(extents, value, dtype=value.dtype)


@lowers("EyeLike")
def eye_like(at: LoweringContext, x: Operand) -> Operand:
    return np.eye(x.shape[0], x.shape[1], k=at.attr("k", 0), dtype=at.dtype("dtype", x.dtype))


@lowers("Range")
def range_(at: LoweringContext, start: Operand, limit: Operand, delta: Operand) -> Operand:
    """Element i is ``start + i * delta``, in float32 for narrower floats."""
    first, end, step = (at.get_constant(v, i).reshape(()).item() for i, v in enumerate((start, limit, delta)))
    count = max(0, ceil((end - first) / step))
    wide = np.dtype(np.float32) if start.dtype in NARROW else start.dtype
    xp: Any = np if count <= MOST_KNOWN else jnp
    return (wide.type(first) + xp.arange(count, dtype=wide) * wide.type(step)).astype(start.dtype)


@lowers("Dropout", since=7)
def dropout(at: LoweringContext, x: Operand, ratio: Operand = None, training: Operand = None) -> Operand:
    """Return x unchanged, as in inference, and a mask of ones: booleans, or before version 10 in the dtype of x."""
    mask = jnp.ones(x.shape, bool if at.version >= 10 else x.dtype)
    return (x, mask) if at.wants(1) else x


@lowers("BitCast")
def bit_cast(at: LoweringContext, x: Operand) -> Operand:
    return jax.lax.bitcast_convert_type(x, at.dtype("to"))


@lowers("ConvTranspose")
def conv_transpose(at: LoweringContext, x: Operand, w: Operand, bias: Operand = None) -> Operand:
    """The gradient of a convolution: convolve x, dilated by the strides, with the flipped kernel."""
    window, group = make_window(at.node, w.shape[2:]), at.attr("group", 1)

    def compute(x: Operand, w: Operand, bias: Operand) -> Operand:
        padded = _convolve_transposed(x, w, window, group)
        pads = compute_padding_trims(at.node, window, padded.shape[2:], x.shape[2:])
        return with_bias(JAX.pad_axes(padded, pads, "constant", 0, range(2, x.ndim)), bias)

    return round_once(JAX, compute)(x, w, bias)


def _convolve_transposed(x: Operand, w: Operand, window: Window, group: int) -> Operand:
    """The full transposed convolution, before pads crop it."""
    parts = jnp.asarray(w).reshape(group, w.shape[0] // group, *w.shape[1:]).swapaxes(1, 2)
    flipped = jnp.flip(parts.reshape(-1, *parts.shape[2:]), range(2, w.ndim))
    return jax.lax.conv_general_dilated(
        jnp.asarray(x),
        flipped,
        (1,) * len(window.kernel),
        [(span - 1, span - 1) for span in window.spans],
        lhs_dilation=window.strides,
        rhs_dilation=window.dilations,
        feature_group_count=group,
        precision=jax.lax.Precision.HIGHEST,
    )


# ---------------------------------------------------------------------- control flow

# Not for speed: of 2 to 32 iterations of MatMul, Tanh and Add (8x8 and 128x128), unrolled and scanned code took the same time,
# and compiling the unrolled code up to twice as long. But only unrolled iterations may carry values of changing shapes.
UNROLLED = 8
"""Maximum number of iterations of a loop that is unrolled, so that shapes may change between iterations."""


@lowers("If")
def if_(at: LoweringContext, condition: Operand) -> tuple[Operand, ...]:
    then, otherwise = at.body("then_branch"), at.body("else_branch")
    if isinstance(condition, np.ndarray):
        return tuple((then if condition.reshape(()) else otherwise)([]))
    # Both branches are traced; known results become arrays, because their types must agree.
    branches = (lambda: tuple(map(jnp.asarray, then([]))), lambda: tuple(map(jnp.asarray, otherwise([]))))
    return tuple(jax.lax.cond(condition.reshape(()), *branches))


# ---------------------------------------------------------------------- Loop


class _UndecidedError(Exception):
    """Raised when a loop's condition is known only at run time."""


@lowers("Loop")
def loop(at: LoweringContext, trips: Operand = None, condition: Operand = None, *carried: Operand) -> tuple[Operand, ...]:
    """Run the body while its condition holds, at most ``trips`` times: final carried values, then stacked scan outputs."""
    iterate = _Iteration(at, len(carried))
    # A condition that is false at the start: no iterations, whatever the trip count.
    if isinstance(condition, np.ndarray) and not condition.reshape(()):
        trips, condition = np.array(0), None
    if isinstance(trips, np.ndarray) and (condition is None or isinstance(condition, np.ndarray)):
        try:
            return iterate.trace_counted(int(trips.reshape(())), carried)
        except _UndecidedError:
            pass  # the body computes its condition: trace it again, as a while loop
    return iterate.trace_while(trips, condition, carried)


class _Iteration:
    """A loop body that can be unrolled, scanned, or run as a while loop."""

    def __init__(self, at: LoweringContext, n_carried: int) -> None:
        self._at = at
        self._body: Callable[[Sequence[Operand]], list[Operand]] = at.body("body")
        self._n = n_carried

    def trace_counted(self, trips: int, carried: Sequence[Operand]) -> tuple[Operand, ...]:
        """Trace a loop with a known trip count; raises _UndecidedError if the body's condition may end it earlier."""
        # No iterations go to `scan`, which traces the body once for the types of the stacked outputs.
        if 0 < trips <= UNROLLED:
            return self._unroll(trips, list(carried))
        last, stacks = jax.lax.scan(self._step, tuple(map(jnp.asarray, carried)), jnp.arange(trips), length=max(trips, 0))
        return *last, *stacks

    def _step(self, carried: tuple[Operand, ...], trip: Operand) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
        flag, *results = self._body([trip, np.array(True), *carried])
        if not isinstance(flag, np.ndarray) or not flag.reshape(()):
            raise _UndecidedError
        arrays = tuple(map(jnp.asarray, results))
        return arrays[: self._n], arrays[self._n :]

    def _unroll(self, trips: int, carried: list[Operand]) -> tuple[Operand, ...]:
        rows: list[list[Operand]] = []
        for trip in range(trips):
            flag, *results = self._body([np.array(trip, np.int64), np.array(True), *carried])
            carried = results[: self._n]
            rows.append(results[self._n :])
            if not isinstance(flag, np.ndarray):
                raise _UndecidedError
            if not flag.reshape(()):
                break
        return *carried, *(jnp.stack(column) for column in zip(*rows, strict=True))

    def trace_while(self, trips: Operand, condition: Operand, carried: Sequence[Operand]) -> tuple[Operand, ...]:
        """Trace a while loop whose trip count is known only at run time. Raises CompileRefused if it has scan outputs."""
        n_scanned = len(self._at.attr("body").outputs) - 1 - self._n
        if n_scanned:
            raise self._at.refuse("scans as many results as only the run shows, and XLA has no such shape")
        bound = np.iinfo(np.int64).max if trips is None else jnp.asarray(trips).reshape(()).astype(jnp.int64)
        enters = jnp.asarray(True if condition is None else condition).reshape(())

        def has_next(state: tuple[Any, ...]) -> Operand:
            return (state[0] < bound) & state[1]

        def advance(state: tuple[Any, ...]) -> tuple[Any, ...]:
            trip, flag, *values = state
            proceed, *results = self._body([trip, flag, *values])
            return trip + 1, jnp.asarray(proceed).reshape(()), *map(jnp.asarray, results)

        first = (jnp.zeros((), jnp.int64), enters, *map(jnp.asarray, carried))
        return tuple(jax.lax.while_loop(has_next, advance, first)[2:])


# ---------------------------------------------------------------------- Scan


@lowers("Scan", since=9)
def scan(at: LoweringContext, *values: Operand) -> tuple[Operand, ...]:
    body, n_scanned = at.body("body"), at.attr("num_scan_inputs")
    n_states = len(values) - n_scanned
    n_stacks = len(at.attr("body").outputs) - n_states
    in_axes, in_directions = (at.attr(f"scan_input_{name}") or (0,) * n_scanned for name in ("axes", "directions"))
    out_axes, out_directions = (at.attr(f"scan_output_{name}") or (0,) * n_stacks for name in ("axes", "directions"))
    rows = tuple(_move_to_front(*scan_input) for scan_input in zip(values[n_states:], in_axes, in_directions, strict=True))

    def step(states: tuple[Operand, ...], row: tuple[Operand, ...]) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
        results = tuple(map(jnp.asarray, body([*states, *row])))
        return results[:n_states], results[n_states:]

    last, stacks = jax.lax.scan(step, tuple(map(jnp.asarray, values[:n_states])), rows)
    outputs = zip(stacks, out_axes, out_directions, strict=True)
    return *last, *(jnp.moveaxis(y[::-1] if backwards else y, 0, axis) for y, axis, backwards in outputs)


def _move_to_front(x: Operand, axis: int, backwards: int) -> Operand:
    moved = jnp.moveaxis(jnp.asarray(x), axis, 0)
    return moved[::-1] if backwards else moved
