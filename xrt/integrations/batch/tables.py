"""Files of rows as Arrow tables, ranges of them that are read alone, and columns as arrays of NumPy and back."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from xrt.errors import InputError
from xrt.graph import DType, MapType, SequenceType, TensorType, Type, Value
from xrt.graph.constants import Stamp, make_stamp

__all__ = ["Chunk", "RowFile", "from_arrow", "list_chunks", "list_row_files", "read_chunk", "to_arrow"]

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
    array = np.empty(len(items), object)
    for place, item in enumerate(items):
        array[place] = item
    return array


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
    item_type = _element_type(type_.dtype)
    for _ in type_.shape:
        item_type = pa.list_(item_type)
    return item_type


def _element_type(dtype: DType) -> Any:
    if dtype is DType.STRING:
        return pa.string()
    return pa.from_numpy_dtype(np.dtype(np.float32) if dtype.numpy.kind == "V" else dtype.numpy)


def _nest(array: Array, mask: Array, leaves: Any) -> Any:
    """Return leaves in lists for each axis but the first, the outermost with nulls."""
    if array.ndim == 1:
        return pa.array(array, mask=mask) if mask.any() else leaves
    nested = leaves
    for axis in range(array.ndim - 1, 0, -1):
        count, size = int(np.prod(array.shape[:axis])), array.shape[axis]
        offsets = pa.array(np.arange(count + 1, dtype=np.int32) * np.int32(size))
        nested = pa.ListArray.from_arrays(offsets, nested, mask=pa.array(mask) if axis == 1 and mask.any() else None)
    return nested


def add_columns(table: Any, kept: Sequence[str], columns: Mapping[str, Any]) -> Any:
    """Return the kept columns of a table with further ones behind them."""
    result = table.select(list(kept))
    for name, column in columns.items():
        result = result.append_column(name, column)
    return result


FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".arrow": "ipc", ".feather": "feather"}
"""Ending of a file's name to the format of its rows."""
USUAL_BYTES = 32 << 20
"""Bytes of rows in a part: what is computed again after a kill, and held in memory by each worker."""
MOST_ROWS = 16384
"""Rows in a part, where they are small."""
USUAL_PARTS, FEW_ROWS = 64, 256
"""Parts of a job, so that many processors have some, unless a part would have fewer rows than that."""


@dataclass(frozen=True, slots=True)
class RowFile:
    """A file of rows, as it was when the job began."""

    path: str
    rows: int
    bytes: int
    modified: int
    """Nanoseconds, as the file system has them."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that become one part of the results."""

    number: int
    """The place of the file in the job's list."""
    path: str
    start: int
    stop: int

    @property
    def part(self) -> str:
        """The name of the part's file; names sort as the rows do."""
        return f"part-{self.number:05d}-{self.start:012d}-{self.stop:012d}.parquet"


def list_row_files(paths: Sequence[str]) -> tuple[RowFile, ...]:
    """Return the files of rows at those paths, and in folders among them, in the order of their names.

    Raises InputError for a path that is missing, for a folder without such files and for another format.
    """
    files = [file for path in paths for file in _expand(Path(path))]
    return tuple(_describe(path) for path in dict.fromkeys(files))


def _expand(path: Path) -> list[Path]:
    if not path.exists():
        raise InputError(f"there are no rows at {path}: no such file or folder")
    if path.is_dir():
        files = sorted(one for one in path.rglob("*") if one.suffix in FORMATS and not one.name.startswith((".", "_")))
        if not files:
            raise InputError(f"folder {path} has no file of rows; these end in {', '.join(FORMATS)}")
        return [file.absolute() for file in files]
    if path.suffix not in FORMATS:
        raise InputError(f"{path} is no file of rows by its name; these end in {', '.join(FORMATS)}")
    return [path.absolute()]


def _describe(path: Path) -> RowFile:
    try:
        rows = _open(os.fspath(path)).count_rows()
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"the rows of {path} cannot be read: {error}") from error
    status = path.stat()
    return RowFile(os.fspath(path), rows, status.st_size, status.st_mtime_ns)


def _open(path: str) -> Any:
    (fragment,) = ds.dataset(path, format=FORMATS[Path(path).suffix]).get_fragments()
    return fragment


def list_chunks(files: Sequence[RowFile], rows: int | None = None) -> list[Chunk]:
    """Return all rows in chunks of at most ``rows``; without it, by the files' sizes and the number of rows.

    It does not depend on the processors, which may be others when a job is continued.
    """
    chunks = []
    most = min(MOST_ROWS, max(FEW_ROWS, sum(file.rows for file in files) // USUAL_PARTS))
    for number, file in enumerate(files):
        size = rows or max(1, min(most, USUAL_BYTES * file.rows // max(_count_bytes(file), 1)))
        starts = range(0, file.rows, size)
        chunks += [Chunk(number, file.path, start, min(start + size, file.rows)) for start in starts]
    return chunks


def _count_bytes(file: RowFile) -> int:
    """Return the bytes of a file's rows before compression, where the format says."""
    groups = getattr(_open(file.path), "row_groups", None)
    return sum(group.total_byte_size for group in groups) if groups else file.bytes


def read_chunk(chunk: Chunk) -> Any:
    """Return the rows of a chunk as a table; of Parquet the row groups are read that have some."""
    first, stamp = 0, make_stamp(Path(chunk.path).stat())
    tables = []
    for group, rows in _list_groups(chunk.path, stamp):
        begin, end = max(chunk.start - first, 0), min(chunk.stop - first, rows)
        if begin < end:
            tables.append(_read_group(chunk.path, stamp, group).slice(begin, end - begin))
        first += rows
    return pa.concat_tables(tables)


@lru_cache(maxsize=64)
def _list_groups(path: str, stamp: Stamp) -> tuple[tuple[int | None, int], ...]:
    """Return the row groups of a file by number, with their rows; another format is one group."""
    fragment = _open(path)
    groups = getattr(fragment, "row_groups", None)
    return tuple((group.id, group.num_rows) for group in groups) if groups else ((None, fragment.count_rows()),)


@lru_cache(maxsize=2)  # chunks are taken in order, so that a large group is read once for all of its chunks
def _read_group(path: str, stamp: Stamp, group: int | None) -> Any:
    fragment = _open(path)
    return (fragment if group is None else fragment.subset(row_group_ids=[group])).to_table()
