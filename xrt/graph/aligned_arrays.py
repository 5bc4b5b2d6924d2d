"""Arrays that begin where vector instructions and libraries want them; NumPy promises a multiple of 16 bytes only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["ALIGNMENT", "make_aligned_array", "make_aligned_block"]

ALIGNMENT = 64
"""Bytes of a line of the cache, and of the widest vector; TVM and XLA take memory without a copy only at such addresses."""


def make_aligned_block(nbytes: int) -> np.ndarray[Any, Any]:
    """Return so many bytes of any content that begin at a multiple of `ALIGNMENT`."""
    block = np.empty(nbytes + ALIGNMENT, np.uint8)
    skip = -block.ctypes.data % ALIGNMENT
    return block[skip : skip + nbytes]


def make_aligned_array(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return an array of any content that begins at a multiple of `ALIGNMENT`; one of objects as NumPy makes it."""
    if dtype.hasobject:
        return np.empty(shape, dtype)
    return make_aligned_block(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
