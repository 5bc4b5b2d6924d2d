"""Computing in float32 what is stored in fewer bits, and the values that every other one beats."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from xrt.engines.torch.table import Tensor

__all__ = ["NARROW", "extreme", "is_whole", "round_once", "widen"]

NARROW = frozenset({torch.float16, torch.bfloat16})


def widen(x: Tensor) -> Tensor:
    """Return narrow floats as float32, everything else as it is."""
    return x.float() if x.dtype in NARROW else x


def round_once(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function of float tensors compute narrow types in float32, and round its result to their type at the end.

    The type is that of the first argument; arguments that are not tensors pass through.
    """

    @wraps(compute)
    def run(x: Tensor, *rest: Any, **options: Any) -> Any:
        if x.dtype not in NARROW:
            return compute(x, *rest, **options)
        wide = (widen(value) if isinstance(value, torch.Tensor) else value for value in rest)
        return compute(x.float(), *wide, **options).to(x.dtype)

    return run


def is_whole(x: Tensor) -> bool:
    """Whether a tensor holds whole numbers or truth values."""
    return not x.dtype.is_floating_point


def extreme(dtype: torch.dtype, *, lowest: bool) -> Any:
    """Return what the extreme of no elements is: the value that every other one beats."""
    if dtype is torch.bool:
        return not lowest
    if dtype.is_floating_point:
        return float("-inf") if lowest else float("inf")
    info = torch.iinfo(dtype)
    return info.min if lowest else info.max
