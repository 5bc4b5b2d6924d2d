"""The array namespace of NumPy and CuPy: their functions by name, and the operations that libraries spell differently.

The namespaces of JAX (`xrt.engines.xla`) and PyTorch (`xrt.engines.torch`) have the same methods.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial

from xrt.engines.kernels.arrays import NARROW, extreme, trim
from xrt.engines.kernels.quantization import SATURABLE
from xrt.engines.kernels.reduction import greatest
from xrt.engines.kernels.windows import around, convolve, fold, max_windows, sum_windows
from xrt.graph import DType

if TYPE_CHECKING:
    from xrt.engines.kernels.table import Advance, Array, States


class ArrayNamespace:
    """The functions of an array module whose arrays can be written to, with NumPy's names."""

    narrow = NARROW
    """Float types that are computed in float32."""
    exact: Any = np.float64
    """The dtype for sums of products of 8-bit integers: exact below 2**53, and BLAS has no integer products."""
    wide: Any = np.float64
    """The dtype in which Resize computes float32 and narrower types."""

    def __init__(self, module: Any, matmul: Callable[[Any, Array, Array], Array] | None = None) -> None:
        """``matmul`` replaces the module's matrix product; called with the module and two arrays."""
        self.module = module
        self.constants = self
        """The namespace for arrays that do not depend on the inputs."""
        self.matmul = (lambda a, b: matmul(module, a, b)) if matmul else module.matmul

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.module, name)
        # The next access does not reach this method.
        setattr(self, name, value)
        return value

    # ------------------------------------------------------------------ element types

    @staticmethod
    def kind(x: Array) -> str:
        """NumPy's dtype kind: b, i, u, f, c; V for float types that NumPy lacks, O for strings."""
        return x.dtype.kind  # type: ignore[no-any-return]

    extreme = staticmethod(extreme)

    @staticmethod
    def astype(x: Array, dtype: Any) -> Array:
        """Convert to a NumPy dtype; returns the array itself if it has that dtype."""
        return x.astype(dtype, copy=False)

    @staticmethod
    def convert(x: Array, to: DType, saturate: bool = True, round_mode: str = "up") -> Array:
        """Convert an array of any type by the rules of ONNX's Cast."""
        return convert(x, to, saturate, round_mode)

    @staticmethod
    def bit_cast(x: Array, dtype: Any) -> Array:
        """Reinterpret the memory as elements of another dtype."""
        return x.view(dtype)

    @staticmethod
    def sizes(sizes: Any) -> Array:
        """An int64 array of sizes. It stays on the host, where other operators read it."""
        return np.array(sizes, dtype=np.int64)

    # ------------------------------------------------------------------ elements and places

    def erf(self, x: Array) -> Array:
        """The error function."""
        return erf(self.module, x)

    def subtract_max(self, x: Array, axis: int) -> Array:
        """Subtract the maximum along the axis."""
        return x - greatest(self, x, axis, True)

    def order(self, x: Array, axis: int, descending: bool) -> Array:
        """Indices that sort along an axis; stable, NaN counts as the largest."""
        if not descending:
            return self.argsort(x, axis=axis, kind="stable")
        # A stable sort of the flipped axis, flipped back, is a stable descending sort. Negation would wrap unsigned numbers.
        return x.shape[axis] - 1 - self.flip(self.argsort(self.flip(x, axis), axis=axis, kind="stable"), axis)

    def pad_axes(self, x: Array, pads: Sequence[int], mode: str, value: Any, axes: Sequence[int] | None = None) -> Array:
        """Pad as ONNX does: ``pads`` has all begins, then all ends; negative ones crop."""
        x, more = trim(x, pads, axes)
        if mode != "constant":
            return self.pad(x, more, mode=mode)
        out = self.full([n + b + e for n, (b, e) in zip(x.shape, more, strict=True)], value, dtype=x.dtype)
        out[tuple(slice(b, b + n) for n, (b, _) in zip(x.shape, more, strict=True))] = x
        return out

    def scatter(self, x: Array, places: tuple[Array, ...], values: Array, reduction: str, out: Array | None = None) -> Array:
        """Write values at positions of a copy, or of ``out``. With a reduction, repeated positions accumulate."""
        if out is None:
            out = self.copy(x)
        # The buffer may be the tensor itself, which then has the elements already.
        elif not _is_same(x, out):
            out[...] = x
        if reduction == "none":
            out[places] = values
        else:
            names = {"add": "add", "mul": "multiply", "min": "minimum", "max": "maximum"}
            # An indexed assignment would apply only one of several updates at a repeated position.
            getattr(self.module, names[reduction]).at(out, places, values)
        return out

    # ------------------------------------------------------------------ windows and time

    convolve = convolve
    around = around
    sum_windows = sum_windows
    max_windows = max_windows
    fold = fold

    def walk(
        self, gates: Array, states: States, lengths: Array | None, backwards: bool, advance: Advance
    ) -> tuple[Array, States]:
        """Run a recurrence; return the first state per step (time, batch, hidden), zero past the ends, and the last states."""
        steps = len(gates)
        history = self.zeros((steps, *states[0].shape), dtype=states[0].dtype)
        for t in range(steps - 1, -1, -1) if backwards else range(steps):
            following = advance(gates[t], states)
            if lengths is None:
                states = following
                history[t] = states[0]
            else:
                # Past its end a sequence keeps its last state and emits zeros.
                alive = (t < lengths)[:, None]
                states = tuple(self.where(alive, new, old) for new, old in zip(following, states, strict=True))
                history[t] = self.where(alive, states[0], 0)
        return history, states


def _is_same(a: Array, b: Array) -> bool:
    """Whether two arrays of the same shape have the same address and strides."""
    first, second = (getattr(x, "__array_interface__", None) or x.__cuda_array_interface__ for x in (a, b))
    return bool(first["data"][0] == second["data"][0] and a.strides == b.strides)


def convert(x: Array, to: DType, saturate: bool = True, round_mode: str = "up") -> Array:
    """Convert an array of NumPy or CuPy, or an array of strings, by the rules of ONNX's Cast."""
    if to is DType.STRING:
        return _as_text(x)
    if x.dtype == object:
        x = _parse_numbers(x, to)
    if to in SATURABLE and saturate and x.dtype != to.numpy:
        # Imported on use: few models have 8-bit floats, and onnx takes long to import.
        from onnx.numpy_helper import saturate_cast

        return saturate_cast(x, to.numpy)
    if to is DType.FLOAT8E8M0:
        from onnx.numpy_helper import to_float8e8m0

        return to_float8e8m0(x, saturate, round_mode).astype(to.numpy)
    return x.astype(to.numpy)


def _as_text(x: Array) -> Array:
    """Convert numbers to their shortest strings that round-trip."""
    if x.dtype == object:
        return x
    return x.astype(np.str_).astype(object)


def _parse_numbers(text: Array, to: DType) -> Array:
    """Parse strings as numbers, in a dtype that represents them exactly."""
    if to is DType.BOOL or to.is_integer:
        # Digits are parsed as an integer, since a float is exact up to 2**53 only; other spellings (1e3) need a float.
        return np.array([int(float(s)) if not s.lstrip("+-").isdigit() else int(s) for s in text.flat], dtype=np.int64).reshape(
            text.shape
        )
    return text.astype(np.float64 if to is not DType.FLOAT32 else np.float32)


BLOCK = 1 << 14
"""Elements per block, so that intermediates stay in the cache: three times as fast."""
SATURATED = 6.0
"""Magnitude above which ``erf`` is 1 in double precision."""


@lru_cache(maxsize=1)
def _fit_small() -> list[float]:
    """Coefficients, highest first, of ``erf(sqrt(u)) / sqrt(u)`` for u in [0, 1]."""
    return _fit_polynomial(lambda u: math.erf(math.sqrt(u)) / math.sqrt(u) if u > 0 else 2 / math.sqrt(math.pi), 13, (0.0, 1.0))


@lru_cache(maxsize=1)
def _fit_large() -> list[float]:
    """Coefficients, highest first, of ``exp(z*z) * erfc(z)`` in ``t = 1 / (z + 2)`` for z in [1, 6]."""
    ends = (1 / (SATURATED + 2), 1 / 3)
    return _fit_polynomial(lambda t: math.exp((1 / t - 2) ** 2) * math.erfc(1 / t - 2), 15, ends)


def _fit_polynomial(function: Any, degree: int, domain: tuple[float, float]) -> list[float]:
    """Interpolate a function at the Chebyshev points of a domain; return the polynomial's coefficients, highest first."""
    fit = Chebyshev.interpolate(np.vectorize(function, otypes=[np.float64]), degree, domain)
    coefficients = fit.convert(kind=Polynomial).coef[::-1]
    return [float(c) for c in coefficients]


def _horner(coefficients: list[float], x: Array) -> Array:
    total = x * coefficients[0]
    for coefficient in coefficients[1:-1]:
        total += coefficient
        total *= x
    total += coefficients[-1]
    return total


def erf(xp: Any, x: Array) -> Array:
    """The error function of a float array, in its dtype, to about 1e-15.

    Below 1, x times a polynomial in x squared; from 1 on, one minus a scaled complement. Both polynomials interpolate
    the standard library's scalar function, so no coefficients are hard-coded.
    """
    flat = x.reshape(-1)
    result = xp.empty_like(flat)
    for start in range(0, len(flat), BLOCK):
        block = slice(start, start + BLOCK)
        result[block] = _erf(xp, flat[block].astype(np.float64))
    return result.reshape(x.shape)


def _erf(xp: Any, x: Array) -> Array:
    z = xp.abs(x)
    # Both formulas are computed for all elements, so each argument is clipped to the domain of its fit.
    small = xp.minimum(z, 1.0)
    near = small * _horner(_fit_small(), small * small)
    large = xp.clip(z, 1.0, SATURATED)
    far = 1.0 - xp.exp(-large * large) * _horner(_fit_large(), 1.0 / (large + 2.0))
    # Beyond saturation the minimum is 1, and NaN stays NaN.
    return xp.copysign(xp.where(z < 1.0, near, xp.where(z < SATURATED, far, xp.minimum(z, 1.0))), x)
