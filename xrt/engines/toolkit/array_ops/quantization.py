"""Quantised tensors: where their scales and zero points lie, and which whole numbers their types hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xrt.graph import DType

__all__ = ["align_to_axis", "broadcast_parameters", "get_integer_limits"]


def get_integer_limits(dtype: DType) -> tuple[int, int]:
    """Return the least and the greatest value of an integer type."""
    return (-(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1) if dtype.text.startswith("int") else (0, (1 << dtype.bits) - 1)


def broadcast_parameters(xp: Any, v: Any, x: Any, axis: int, block: int) -> Any:
    """Return a scale or zero point so that it broadcasts over the tensor: one for all, one per index of an axis, or per block.

    ``xp`` is the module of the arrays.
    """
    if v.size == 1:
        return v.reshape(())
    if block:
        return xp.take(xp.repeat(v, block, axis=axis), xp.arange(x.shape[axis]), axis=axis)
    return v.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])


def align_to_axis(v: Any, axis: int | None, rank: int) -> Any:
    """Return a scalar, or a vector along an axis (of a product: one per row, -2, or per column, -1), shaped to broadcast."""
    if v.size == 1:
        return v.reshape(())
    if v.ndim != 1 or axis is None:
        return v
    return v.reshape([-1 if i == axis % rank else 1 for i in range(rank)])
