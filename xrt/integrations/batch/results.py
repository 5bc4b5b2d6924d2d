"""The outputs of calls as columns of rows, in the order of the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from xrt.errors import OptionError
from xrt.graph import TensorType, Value
from xrt.runtime import to_host

__all__ = ["ERROR", "ResultRows", "split_outputs"]

Array: TypeAlias = "np.ndarray[Any, Any]"

ERROR = "error"
"""The column with the reason why a row has no outputs; None for the others."""


def split_outputs(outputs: Sequence[Value], results: Any, rows: int) -> list[Array]:
    """Return each output of a call as an array or a list with one item per row; raises OptionError where that cannot be."""
    found = []
    for value, result in zip(outputs, results if isinstance(results, tuple) else (results,), strict=True):
        item = to_host(result)
        length = len(item) if isinstance(item, list) else item.shape[0] if getattr(item, "ndim", 0) else None
        if length != rows:
            shape = f"{list(item.shape)}" if isinstance(item, np.ndarray) else f"{type(item).__name__}"
            raise OptionError(
                f"output {value.name!r} has no item for each row: {shape} for {rows} rows; name the outputs to keep"
            )
        found.append(_as_objects(item) if isinstance(item, list) else item)
    return found


def _as_objects(items: Sequence[Any]) -> Array:
    found = np.empty(len(items), object)
    found[:] = items
    return found


class ResultRows:
    """Outputs by row, filled group by group."""

    def __init__(self, outputs: Sequence[Value], count: int) -> None:
        self._outputs, self._count = outputs, count
        self._filled: list[tuple[Array, list[Array]]] = []

    def add(self, indices: Array, arrays: list[Array]) -> None:
        """Take the outputs of the rows at those positions."""
        self._filled.append((indices, arrays))

    def collect(self) -> dict[str, Array]:
        """Return a column for each output: one array where all rows have one shape, else an array of arrays.

        A row without outputs has zeros, NaN where the type has it, or an array without elements.
        """
        return {value.name: self._column(place, value) for place, value in enumerate(self._outputs)}

    def _column(self, place: int, value: Value) -> Array:
        parts = [(indices, arrays[place]) for indices, arrays in self._filled]
        if len(parts) == 1 and len(parts[0][0]) == self._count:
            return parts[0][1]
        if not parts:
            return _empty(value, self._count)
        shapes = {(array.shape[1:], array.dtype) for _, array in parts}
        if len(shapes) == 1:
            ((shape, dtype),) = shapes
            found = np.full((self._count, *shape), _missing(dtype), dtype)
            for indices, array in parts:
                found[indices] = array
            return found
        found = _as_objects([np.zeros([0] * (parts[0][1].ndim - 1), parts[0][1].dtype)] * self._count)
        for indices, array in parts:
            for row, item in zip(indices, array, strict=True):
                found[row] = item
        return found


def _empty(value: Value, count: int) -> Array:
    if not isinstance(value.type, TensorType) or value.type.shape is None:
        return np.full(count, None, object)
    dtype = value.type.dtype.numpy
    return np.full((count, *(dim if isinstance(dim, int) else 0 for dim in value.type.shape[1:])), _missing(dtype), dtype)


def _missing(dtype: np.dtype[Any]) -> Any:
    return np.nan if dtype.kind in "fc" else None if dtype.kind == "O" else 0


def add_errors(columns: Mapping[str, Array], errors: Mapping[int, str], count: int) -> dict[str, Array]:
    """Return the columns with one of reasons."""
    reasons = np.full(count, None, object)
    for row, text in errors.items():
        reasons[row] = text
    return {**columns, ERROR: reasons}
