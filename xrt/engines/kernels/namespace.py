"""The array namespace of NumPy and CuPy: their functions by name, and methods for what array libraries do differently.

The namespaces of JAX (`xrt.engines.xla`) and PyTorch (`xrt.engines.torch`) have the same methods.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial

from xrt.engines.kernels.arrays import NARROW_FLOATS, apply_negative_pads, get_extreme_value
from xrt.engines.kernels.quantization import SATURABLE
from xrt.engines.kernels.reduction import reduce_max
from xrt.engines.kernels.windows import convolve, fold, max_windows, sum_windows
from xrt.graph import DType

if TYPE_CHECKING:
    from xrt.engines.kernels.table import Advance, Array, States


class ArrayNamespace:
    """NumPy's or CuPy's functions by name, and the methods below, which the namespaces of other libraries have too."""

    narrow = NARROW_FLOATS
    """Float types under 32 bits, which kernels compute in float32."""
    product_dtype: Any = np.float64
    """The dtype for products of matrices of 8-bit integers. float64 is exact below 2**53, and BLAS has no integer products."""
    resize_dtype: Any = np.float64
    """The dtype in which Resize computes floats of at most 32 bits."""

    def __init__(self, module: Any, matmul: Callable[[Any, Array, Array], Array] | None = None) -> None:
        """``module`` is numpy or cupy. ``matmul(module, a, b)`` replaces its matrix product."""
        self.module = module
        self.constants = self
        """The namespace in which kernels compute arrays that do not depend on the elements of inputs."""
        self.matmul = (lambda a, b: matmul(module, a, b)) if matmul else module.matmul

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.module, name)
        # Stored, so that the next access does not reach this method.
        setattr(self, name, value)
        return value

    @staticmethod
    def dtype_kind(x: Array) -> str:
        """NumPy's letter for the kind of the dtype: b, i, u, f, c; V for float types that NumPy lacks, O for strings."""
        return x.dtype.kind  # type: ignore[no-any-return]

    get_extreme_value = staticmethod(get_extreme_value)

    @staticmethod
    def astype(x: Array, dtype: Any) -> Array:
        """Convert to a NumPy dtype. Return the array itself if it already has that dtype."""
        return x.astype(dtype, copy=False)

    @staticmethod
    def convert(x: Array, to: DType, saturate: bool = True, round_mode: str = "up") -> Array:
        """Convert an array of any type by the rules of ONNX's Cast. An array of strings has the dtype object."""
        if to is DType.STRING:
            # NumPy writes the shortest strings that represent the numbers exactly.
            return x if x.dtype == object else x.astype(np.str_).astype(object)
        if x.dtype == object:
            x = _parse_numbers(x, to)
        if to in SATURABLE and saturate and x.dtype != to.numpy:
            # Imported here because few models have 8-bit floats, and onnx takes long to import.
            from onnx.numpy_helper import saturate_cast

            return saturate_cast(x, to.numpy)
        if to is DType.FLOAT8E8M0:
            from onnx.numpy_helper import to_float8e8m0

            return to_float8e8m0(x, saturate, round_mode).astype(to.numpy)
        return x.astype(to.numpy)

    @staticmethod
    def bit_cast(x: Array, dtype: Any) -> Array:
        return x.view(dtype)

    @staticmethod
    def make_sizes(sizes: Any) -> Array:
        """Make an int64 array of sizes. It is in host memory, because other operators read sizes there."""
        return np.array(sizes, dtype=np.int64)

    def erf(self, x: Array) -> Array:
        """Compute the error function of a float array in its dtype."""
        flat = x.reshape(-1)
        result = self.empty_like(flat)
        for start in range(0, len(flat), ERF_BLOCK_ELEMENTS):
            block = slice(start, start + ERF_BLOCK_ELEMENTS)
            result[block] = _compute_erf(self.module, flat[block].astype(np.float64))
        return result.reshape(x.shape)

    def subtract_max(self, x: Array, axis: int) -> Array:
        """Subtract the maximum along the axis, so that no exponential of the result overflows."""
        return x - reduce_max(self, x, axis, True)

    def argsort_stable(self, x: Array, axis: int, descending: bool) -> Array:
        """Compute the indices that sort ``x`` along an axis. The sort is stable, and NaN is the largest number."""
        if not descending:
            return self.argsort(x, axis=axis, kind="stable")
        # Sort the flipped axis and flip the result back, so that it is stable. Negating numbers would wrap unsigned ones.
        return x.shape[axis] - 1 - self.flip(self.argsort(self.flip(x, axis), axis=axis, kind="stable"), axis)

    def pad_axes(self, x: Array, pads: Sequence[int], mode: str, value: Any, axes: Sequence[int] | None = None) -> Array:
        """Pad as ONNX's Pad does. ``pads`` has the pads at the begin of each axis, then those at the end; negative ones crop."""
        x, remaining = apply_negative_pads(x, pads, axes)
        if mode != "constant":
            return self.pad(x, remaining, mode=mode)
        extents = [begin + n + end for n, (begin, end) in zip(x.shape, remaining, strict=True)]
        inside = tuple(slice(begin, begin + n) for n, (begin, _) in zip(x.shape, remaining, strict=True))
        out = self.full(extents, value, dtype=x.dtype)
        out[inside] = x
        return out

    def scatter(self, x: Array, indices: tuple[Array, ...], values: Array, reduction: str, out: Array | None = None) -> Array:
        """Write ``values`` to a copy of ``x``, at the elements ``x[indices]``; with ``out`` write to that array instead.

        With a reduction ("add", "mul", "min" or "max") the values are combined with the elements, also at repeated indices.
        """
        if out is None:
            out = self.copy(x)
        # If `out` is `x` itself, it has the elements already.
        elif not _is_same(x, out):
            out[...] = x
        if reduction == "none":
            out[indices] = values
        else:
            names = {"add": "add", "mul": "multiply", "min": "minimum", "max": "maximum"}
            # An indexed assignment would apply only one of several values at a repeated index.
            getattr(self.module, names[reduction]).at(out, indices, values)
        return out

    convolve = convolve
    sum_windows = sum_windows
    max_windows = max_windows
    fold = fold

    def scan_time(
        self, gates: Array, states: States, lengths: Array | None, backwards: bool, advance: Advance
    ) -> tuple[Array, States]:
        """Run the time steps of a recurrent layer with ``advance``, from the last step to the first if ``backwards`` is set.

        ``gates`` (time, batch, gates * hidden) is the part of the gates that depends only on the input. Return the first state
        after each step (time, batch, hidden), and the states after the last step. ``lengths`` has the number of valid steps of
        each sequence; the returned history is zero at the steps after them.
        """
        steps = len(gates)
        history = self.zeros((steps, *states[0].shape), dtype=states[0].dtype)
        times = range(steps - 1, -1, -1) if backwards else range(steps)
        for t in times:
            following = advance(gates[t], states)
            if lengths is None:
                states = following
                history[t] = states[0]
            else:
                # After its end a sequence keeps its last states, and its history is zero.
                alive = (t < lengths)[:, None]
                states = tuple(self.where(alive, new, old) for new, old in zip(following, states, strict=True))
                history[t] = self.where(alive, states[0], 0)
        return history, states


def _is_same(a: Array, b: Array) -> bool:
    """Whether two arrays of the same shape have the same address and strides."""
    first, second = (getattr(x, "__array_interface__", None) or x.__cuda_array_interface__ for x in (a, b))
    return bool(first["data"][0] == second["data"][0] and a.strides == b.strides)


def _parse_numbers(strings: Array, to: DType) -> Array:
    """Parse strings as numbers: int64 if ``to`` is bool or an integer type, else float32 or float64."""
    if to is not DType.BOOL and not to.is_integer:
        return strings.astype(np.float32 if to is DType.FLOAT32 else np.float64)
    # A float is exact only up to 2**53, so it is used only for strings that are not plain digits, such as "1e3".
    numbers = [int(s) if s.lstrip("+-").isdigit() else int(float(s)) for s in strings.flat]
    return np.array(numbers, dtype=np.int64).reshape(strings.shape)


ERF_BLOCK_ELEMENTS = 1 << 14
"""The error function is computed for blocks of this many elements, whose intermediate arrays fit the cache: 3 times as fast."""
ERF_SATURATION = 6.0
"""From this argument on the error function is 1 in double precision."""


@lru_cache(maxsize=1)
def _fit_erf() -> tuple[list[float], list[float]]:
    """Fit the two polynomials with which `_compute_erf` computes the error function; return their coefficients.

    The first is ``erf(sqrt(u)) / sqrt(u)`` for u in [0, 1]. The second is ``exp(z*z) * erfc(z)`` for z in [1, 6], as a polynomial
    in ``t = 1 / (z + 2)``. They interpolate the standard library's scalar functions, so no coefficients are hard-coded.
    """

    def compute_ratio(u: float) -> float:
        return math.erf(math.sqrt(u)) / math.sqrt(u) if u > 0 else 2 / math.sqrt(math.pi)

    def compute_scaled_complement(t: float) -> float:
        z = 1 / t - 2
        return math.exp(z * z) * math.erfc(z)

    smallest_t, largest_t = 1 / (ERF_SATURATION + 2), 1 / 3
    return _fit_polynomial(compute_ratio, 13, (0.0, 1.0)), _fit_polynomial(compute_scaled_complement, 15, (smallest_t, largest_t))


def _fit_polynomial(function: Callable[[float], float], degree: int, domain: tuple[float, float]) -> list[float]:
    """Interpolate a function at the Chebyshev points of a domain; return the coefficients, highest degree first."""
    fit = Chebyshev.interpolate(np.vectorize(function, otypes=[np.float64]), degree, domain)
    return [float(c) for c in fit.convert(kind=Polynomial).coef[::-1]]


def _evaluate_polynomial(coefficients: list[float], x: Array) -> Array:
    """Evaluate a polynomial by Horner's rule. The coefficient of the highest degree is the first."""
    total = x * coefficients[0]
    for coefficient in coefficients[1:-1]:
        total += coefficient
        total *= x
    total += coefficients[-1]
    return total


def _compute_erf(xp: Any, x: Array) -> Array:
    """Compute the error function of a float64 array, with an error of about 1e-15."""
    ratio, scaled_complement = _fit_erf()
    z = xp.abs(x)
    # Compute both formulas for all elements, with arguments clipped to the domains of the fits, and select afterwards.
    small = xp.minimum(z, 1.0)
    near = small * _evaluate_polynomial(ratio, small * small)
    large = xp.clip(z, 1.0, ERF_SATURATION)
    far = 1.0 - xp.exp(-large * large) * _evaluate_polynomial(scaled_complement, 1.0 / (large + 2.0))
    # From ERF_SATURATION on the result is 1. It is computed as `minimum(z, 1)`, which keeps NaN.
    magnitude = xp.where(z < 1.0, near, xp.where(z < ERF_SATURATION, far, xp.minimum(z, 1.0)))
    return xp.copysign(magnitude, x)
