"""What element types hold: computing in float32 what is stored in fewer bits, and the extremes; for arrays of any library."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from xrt.graph import DType

__all__ = ["NARROW", "extreme", "round_once", "widen"]

NARROW = frozenset(d.numpy for d in DType if d.is_float and d.bits < 32)
"""Float types narrower than float32."""


def widen(x: Any) -> Any:
    """Return narrow floats as float32, everything else as it is."""
    return x.astype(np.float32) if x.dtype in NARROW else x


def round_once(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function of float arrays compute narrow types in float32, and round its result to their type at the end.

    The type is that of the first argument; arguments that are not arrays pass through.
    """

    @wraps(compute)
    def run(x: Any, *rest: Any, **options: Any) -> Any:
        if x.dtype not in NARROW:
            return compute(x, *rest, **options)
        wide = (widen(value) if hasattr(value, "dtype") else value for value in rest)
        return compute(widen(x), *wide, **options).astype(x.dtype)

    return run


def extreme(dtype: Any, *, lowest: bool) -> Any:
    """Return what the extreme of no elements is: the value that every other one beats."""
    if dtype.kind == "b":
        return np.bool_(not lowest)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return dtype.type(info.min if lowest else info.max)
    return dtype.type(-np.inf if lowest else np.inf)
