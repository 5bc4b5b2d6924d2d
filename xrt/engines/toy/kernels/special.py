"""Functions that NumPy lacks."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial

if TYPE_CHECKING:
    from xrt.engines.toy.table import Array

__all__ = ["erf"]

BLOCK = 1 << 14
"""Elements per block, so that intermediate values stay in the cache: three times as quick."""
SATURATED = 6.0
"""``erf`` of anything greater is 1 in double precision."""


@lru_cache(maxsize=1)
def _small() -> list[float]:
    """Coefficients, highest first, of ``erf(sqrt(u)) / sqrt(u)`` for u in [0, 1]."""
    return _interpolated(lambda u: math.erf(math.sqrt(u)) / math.sqrt(u) if u > 0 else 2 / math.sqrt(math.pi), 13, (0.0, 1.0))


@lru_cache(maxsize=1)
def _large() -> list[float]:
    """Coefficients, highest first, of ``exp(z*z) * erfc(z)`` in ``t = 1 / (z + 2)`` for z in [1, 6]."""
    ends = (1 / (SATURATED + 2), 1 / 3)
    return _interpolated(lambda t: math.exp((1 / t - 2) ** 2) * math.erfc(1 / t - 2), 15, ends)


def _interpolated(function: Any, degree: int, domain: tuple[float, float]) -> list[float]:
    """Return the polynomial through a function's values at the Chebyshev points of a domain."""
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
    """Return the error function of a float array, in its dtype; good to about 1e-15.

    Near zero it is x times a polynomial in x squared; from 1 on it is one minus a scaled complement. Both polynomials
    interpolate the standard library's scalar function, so there are no coefficients to trust.
    """
    flat = x.reshape(-1)
    result = xp.empty_like(flat)
    for start in range(0, flat.size, BLOCK):
        block = slice(start, start + BLOCK)
        result[block] = _erf(xp, flat[block].astype(np.float64))
    return result.reshape(x.shape)


def _erf(xp: Any, x: Array) -> Array:
    z = xp.abs(x)
    small = xp.minimum(z, 1.0)
    near = small * _horner(_small(), small * small)
    large = xp.clip(z, 1.0, SATURATED)
    far = 1.0 - xp.exp(-large * large) * _horner(_large(), 1.0 / (large + 2.0))
    # Beyond saturation the minimum is 1, and NaN stays NaN.
    return xp.copysign(xp.where(z < 1.0, near, xp.where(z < SATURATED, far, xp.minimum(z, 1.0))), x)
