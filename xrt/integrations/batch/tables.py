"""Columns of Arrow tables as arrays of NumPy, without a copy where the memory allows, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from xrt.graph import DType, MapType, SequenceType, TensorType, Type, Value

__all__ = ["from_arrow", "to_arrow"]

Array: TypeAlias = "np.ndarray[Any, Any]"


def from_arrow(column: Any) -> Array:
    """Return a column as one array where all rows have one shape, else as an array of arrays; a null is None."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # without chunks
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if isinstance(array.type, pa.FixedShapeTensorType) and not array.null_count:
        return array.to_numpy_ndarray()  # type: ignore[no-any-return]  # pyarrow has no types
    if isinstance(array, pa.ExtensionArray):
        return from_arrow(array.storage)
    if pa.types.is_dictionary(array.type):
        return from_arrow(array.dictionary_decode())
    if _is_list(array.type):
        return _from_lists(array)
    if array.null_count or not _is_number(array.type):
        return _as_objects(array.to_pylist())
    return array.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _is_number(type_: Any) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_boolean(type_))


def _is_list(type_: Any) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_))


def _from_lists(array: Any) -> Array:
    if not array.null_count:
        lengths = _lengths(array)
        inner = from_arrow(array.flatten())
        if inner.dtype != object and len(set(lengths.tolist())) <= 1:
            return inner.reshape(len(array), int(lengths[0]) if len(lengths) else 0, *inner.shape[1:])
        if inner.dtype != object:
            return _as_objects(np.split(inner, np.cumsum(lengths)[:-1]))
    return _as_objects([None if item is None else _from_lists_of_row(item) for item in _rows(array)])


def _lengths(array: Any) -> Array:
    if pa.types.is_fixed_size_list(array.type):
        return np.full(len(array), array.type.list_size)
    return array.value_lengths().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _rows(array: Any) -> list[Any]:
    return [scalar.values if scalar.is_valid else None for scalar in array]


def _from_lists_of_row(values: Any) -> Array:
    return from_arrow(values)


def _as_objects(items: Sequence[Any]) -> Array:
    found = np.empty(len(items), object)
    for place, item in enumerate(items):
        found[place] = item
    return found


def to_arrow(value: Value, column: Array, missing: Sequence[int] = ()) -> Any:
    """Return a column of an output's type: nested lists for the axes of a row, nulls for the rows that are missing.

    The type depends on the declared type alone, so that all parts of a job have one schema, where the rank is declared.
    """
    mask = np.zeros(len(column), bool)
    mask[list(missing)] = True
    type_ = _arrow_type(value.type)
    if column.dtype == object:
        items = [None if gone or item is None else _to_plain(item) for item, gone in zip(column, mask, strict=True)]
        return pa.array(items, type_)
    flat = column.astype(np.float32) if column.dtype.kind == "V" else column  # bfloat16 and its kin
    return _nest(flat, mask, pa.array(np.ascontiguousarray(flat).reshape(-1)))


def _to_plain(item: Any) -> Any:
    if isinstance(item, Mapping):
        return [(_to_plain(key), _to_plain(one)) for key, one in item.items()]
    if isinstance(item, list | tuple):
        return [_to_plain(one) for one in item]
    if not isinstance(item, np.ndarray | np.generic):
        return item
    return (item.astype(np.float32) if item.dtype.kind == "V" else item).tolist()


def _arrow_type(type_: Type | None) -> Any:
    """The type of a row of an output: of one item of a sequence, or along the first axis of a tensor."""
    if isinstance(type_, SequenceType):
        return _item_type(type_.element)
    return _item_type(type_.with_shape(type_.shape[1:])) if isinstance(type_, TensorType) and type_.shape else None


def _item_type(type_: Type | None) -> Any:
    if isinstance(type_, SequenceType):
        element = _item_type(type_.element)
        return None if element is None else pa.list_(element)
    if isinstance(type_, MapType):
        value = _item_type(type_.value)
        return None if value is None else pa.map_(_element_type(type_.key), value)
    if not isinstance(type_, TensorType) or type_.shape is None:
        return None
    found = _element_type(type_.dtype)
    for _ in type_.shape:
        found = pa.list_(found)
    return found


def _element_type(dtype: DType) -> Any:
    if dtype is DType.STRING:
        return pa.string()
    return pa.from_numpy_dtype(np.dtype(np.float32) if dtype.numpy.kind == "V" else dtype.numpy)


def _nest(array: Array, mask: Array, leaves: Any) -> Any:
    """Return leaves in lists for each axis but the first, the outermost with nulls."""
    if array.ndim == 1:
        return pa.array(array, mask=mask) if mask.any() else leaves
    found = leaves
    for axis in range(array.ndim - 1, 0, -1):
        count, size = int(np.prod(array.shape[:axis])), array.shape[axis]
        offsets = pa.array(np.arange(count + 1, dtype=np.int32) * np.int32(size))
        found = pa.ListArray.from_arrays(offsets, found, mask=pa.array(mask) if axis == 1 and mask.any() else None)
    return found


def add_columns(table: Any, kept: Sequence[str], made: Mapping[str, Any]) -> Any:
    """Return the kept columns of a table with further ones behind them."""
    found = table.select(list(kept))
    for name, column in made.items():
        found = found.append_column(name, column)
    return found
