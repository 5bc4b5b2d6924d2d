"""Arrays over memory that NumPy marks as read-only, for libraries that accept writable arrays alone."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["make_writable_alias"]


class _WritableMemory:
    """The memory of an array without its read-only mark. The owner of the memory lives as long as this."""

    def __init__(self, array: np.ndarray[Any, Any], owner: Any) -> None:
        self._owner = owner
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def make_writable_alias(array: np.ndarray[Any, Any], owner: Any = None) -> np.ndarray[Any, Any]:
    """Return an array over the same memory that may be written to; nothing is copied.

    The caller guarantees that no other code writes to it, or that the memory is its own. ``owner`` is kept alive with the
    result, by default the array. Types of ml_dtypes, for which the array interface has no name, pass through integers of their
    size.
    """
    own = array if owner is None else owner
    if array.dtype.isbuiltin == 1:
        return np.asarray(_WritableMemory(array, own))
    return np.asarray(_WritableMemory(array.view(f"u{array.itemsize}"), own)).view(array.dtype)
