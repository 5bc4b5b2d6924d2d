"""Computing in float32 what is stored in fewer bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax.numpy as jnp

from xrt.engines.xla.table import Operand
from xrt.graph import DType

__all__ = ["NARROW", "rounded_once", "widened"]

NARROW = frozenset(d.numpy for d in DType if d.is_float and d.bits < 32)
"""Float types narrower than float32."""


def widened(x: Operand) -> Operand:
    """Return narrow floats as float32, everything else as it is."""
    return x.astype(jnp.float32) if x.dtype in NARROW else x


def rounded_once(compute: Callable[..., Operand]) -> Callable[..., Operand]:
    """Let a function of float tensors compute narrow types in float32, and round its result to their type at the end.

    The type is that of the first argument; arguments that are not arrays pass through.
    """

    @wraps(compute)
    def run(x: Operand, *rest: Any, **options: Any) -> Operand:
        if x.dtype not in NARROW:
            return compute(x, *rest, **options)
        wide = (widened(value) if hasattr(value, "dtype") else value for value in rest)
        return compute(widened(x), *wide, **options).astype(x.dtype)

    return run
