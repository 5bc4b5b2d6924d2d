"""Fourier transforms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from xrt.engines.xla.table import Operand, ops

if TYPE_CHECKING:
    from xrt.engines.xla.lowering_context import LoweringContext

__all__: list[str] = []


@ops("DFT", until=19)
def dft_by_attribute(at: LoweringContext, x: Operand, length: Operand = None) -> Operand:
    return _transform(at, x, None if length is None else at.ints(length, 1)[0], at.attr("axis", 1))


@ops("DFT", since=20)
def dft(at: LoweringContext, x: Operand, length: Operand = None, axis: Operand = None) -> Operand:
    return _transform(at, x, None if length is None else at.ints(length, 1)[0], -2 if axis is None else at.ints(axis, 2)[0])


def _transform(at: LoweringContext, x: Operand, length: int | None, axis: int) -> Operand:
    """Transform along an axis of a tensor whose last axis holds real parts, or real and imaginary ones."""
    axis, onesided, inverse = axis % x.ndim, at.attr("onesided", 0), at.attr("inverse", 0)
    # Forward, XLA leaves 1e-5 in float32 where a sum cancels; the inverse divides that by the length.
    wide = x if inverse else x.astype(jnp.float64)
    whole = jax.lax.complex(wide[..., 0], wide[..., 1] if x.shape[-1] == 2 else jnp.zeros_like(wide[..., 0]))
    n = length or x.shape[axis]
    if onesided and inverse:
        return jnp.fft.irfft(whole, n=length, axis=axis)[..., None].astype(x.dtype)
    y = (jnp.fft.ifft if inverse else jnp.fft.fft)(whole, n=n, axis=axis)
    if onesided:
        y = jax.lax.slice_in_dim(y, 0, n // 2 + 1, axis=axis)
    return jnp.stack([y.real, y.imag], axis=-1).astype(x.dtype)
