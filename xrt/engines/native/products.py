"""Matrix products by NumPy's BLAS, divided among XRT's threads; see ``src/products.h``."""

from __future__ import annotations

from ctypes import c_int64
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.native.bindings import address_of, core

if TYPE_CHECKING:
    from xrt.engines.toolkit.blas import BlasCalls

__all__ = ["multiply"]

Array = np.ndarray[Any, Any]
_Words = c_int64 * 20
"""``xrt_products`` as an array, since all fields are 64 bits wide: several times as fast to create as a structure."""


def multiply(blas: BlasCalls, a: Array, b: Array, threads: int) -> Array | None:
    """Multiply arrays of rank 2 or more with the same BLAS type and no zero extent.

    Return None if an operand broadcasts along only some of the batch dimensions.
    """
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) if a.ndim > 2 or b.ndim > 2 else ()
    first, second = _stacked(a, batch), _stacked(b, batch)
    if first is None or second is None:
        return None
    result = np.empty((*batch, a.shape[-2], b.shape[-1]), a.dtype)
    stack = result.reshape(-1, *result.shape[-2:])
    # A batch that shares its right operand is one product with more rows.
    if len(second) == 1 and len(first) == len(stack) > 1 and first.flags.c_contiguous:
        first, stack = (x.reshape(1, -1, x.shape[-1]) for x in (first, stack))
    (count, m, n), k = stack.shape, a.shape[-1]
    numbers = (*blas.find_calls(a.dtype), 8 * a.itemsize, blas.indices, count, m, n, k)
    core().multiply(_Words(*numbers, *_matrices(first), *_matrices(second), *_matrices(stack)), threads)
    return result


def _stacked(array: Array, batch: tuple[int, ...]) -> Array | None:
    """Flatten the batch dimensions; copy if BLAS cannot read the strides. None if only some batch dimensions broadcast."""
    leading = array.shape[:-2]
    if prod(leading) != 1 and prod(leading) != prod(batch):
        return None
    stack = array.reshape(-1, *array.shape[-2:])
    return stack if array.flags.aligned and _leading(stack) else np.ascontiguousarray(stack)


def _matrices(stack: Array) -> tuple[int, int, int, bool]:
    """The fields of ``xrt_matrices``."""
    leading, flipped = _leading(stack) or (0, False)  # `_stacked` let no other in
    return address_of(stack), stack.strides[0] if len(stack) > 1 else 0, leading, flipped


def _leading(stack: Array) -> tuple[int, bool] | None:
    """The leading dimension of each matrix in elements, and whether it is stored transposed.

    None if neither rows nor columns are contiguous.
    """
    (_, high, wide), (_, down, across), size = stack.shape, stack.strides, stack.itemsize
    if across == size and (high == 1 or (down >= wide * size and down % size == 0)):
        return (wide if high == 1 else down // size), False
    if down == size and (wide == 1 or (across >= high * size and across % size == 0)):
        return (high if wide == 1 else across // size), True
    return None
