"""Row files (Parquet, CSV, JSON, Arrow): chunks that can be read separately, and conversion between Arrow and NumPy."""

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
from xrt.integrations.batch.model import as_objects

Array: TypeAlias = "np.ndarray[Any, Any]"


def from_arrow(column: Any) -> Array:
    """Convert an Arrow column to one array if all rows have the same shape, else to an object array. Null becomes None."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # without chunks
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if isinstance(array.type, pa.FixedShapeTensorType) and not array.null_count:
        return array.to_numpy_ndarray()  # type: ignore[no-any-return]  # pyarrow has no types
    if isinstance(array, pa.ExtensionArray):
        return from_arrow(array.storage)
    if pa.types.is_dictionary(array.type):
        return from_arrow(array.dictionary_decode())
    types = pa.types
    if types.is_list(array.type) or types.is_large_list(array.type) or types.is_fixed_size_list(array.type):
        return _from_lists(array)
    is_number = types.is_integer(array.type) or types.is_floating(array.type) or types.is_boolean(array.type)
    if array.null_count or not is_number:
        return as_objects(array.to_pylist())
    return array.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _from_lists(array: Any) -> Array:
    # Convert the elements of all lists at once and divide them, which is far faster than one list at a time.
    elements = None if array.null_count else from_arrow(array.flatten())
    if elements is not None and elements.dtype != object:
        if pa.types.is_fixed_size_list(array.type):
            lengths = np.full(len(array), array.type.list_size)
        else:
            lengths = array.value_lengths().to_numpy(zero_copy_only=False)
        if len(set(lengths.tolist())) <= 1:
            length = int(lengths[0]) if len(lengths) else 0
            return elements.reshape(len(array), length, *elements.shape[1:])
        return as_objects(np.split(elements, np.cumsum(lengths)[:-1]))
    return as_objects([from_arrow(row.values) if row.is_valid else None for row in array])


def to_arrow(value: Value, column: Array, missing: Sequence[int] = ()) -> Any:
    """Convert an output to an Arrow column: nested lists for the axes of a row, null for missing rows.

    The Arrow type depends only on the declared type, if its rank is known, so that all parts of a job share one schema.
    """
    mask = np.zeros(len(column), bool)
    mask[list(missing)] = True
    if column.dtype == object:  # strings, maps, sequences, and rows of different shapes
        items = [None if is_missing or item is None else _to_plain(item) for item, is_missing in zip(column, mask, strict=True)]
        # A row is an item of a sequence, or of a tensor along its first axis.
        type_: Type | None = value.type.element if isinstance(value.type, SequenceType) else None
        if isinstance(value.type, TensorType) and value.type.shape:
            type_ = value.type.with_shape(value.type.shape[1:])
        return pa.array(items, _item_type(type_))
    array = column.astype(np.float32) if column.dtype.kind == "V" else column  # types of ml_dtypes, which Arrow lacks
    nested = pa.array(np.ascontiguousarray(array).reshape(-1))
    if array.ndim == 1:
        return pa.array(array, mask=mask) if mask.any() else nested
    # From the last axis to axis 1: put the elements, or the lists of the axis behind, into ``count`` lists of equal size.
    for axis in range(array.ndim - 1, 0, -1):
        count = int(np.prod(array.shape[:axis]))
        size = array.shape[axis]  # the length of all lists of this axis
        offsets = pa.array(np.arange(count + 1, dtype=np.int32) * np.int32(size))
        # Only the outermost lists are rows, which may be missing.
        row_mask = pa.array(mask) if axis == 1 and mask.any() else None
        nested = pa.ListArray.from_arrays(offsets, nested, mask=row_mask)
    return nested


def _to_plain(item: Any) -> Any:
    """Convert the value of a row to Python lists and numbers. A map becomes a list of pairs, as pyarrow expects it."""
    if isinstance(item, Mapping):
        return [(_to_plain(key), _to_plain(value)) for key, value in item.items()]
    if isinstance(item, list | tuple):
        return [_to_plain(element) for element in item]
    if not isinstance(item, np.ndarray | np.generic):
        return item
    return (item.astype(np.float32) if item.dtype.kind == "V" else item).tolist()


def _item_type(type_: Type | None) -> Any:
    """Find the Arrow type of a row's value; None if the rank is unknown, so that pyarrow infers the type from the data."""
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
    """Find the Arrow type of a tensor's elements; float32 for a float type that Arrow lacks."""
    if dtype is DType.STRING:
        return pa.string()
    return pa.from_numpy_dtype(np.dtype(np.float32) if dtype.numpy.kind == "V" else dtype.numpy)


FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".arrow": "ipc", ".feather": "feather"}
"""File suffix to format."""
TARGET_PART_BYTES = 32 << 20
"""Target size of the rows of a part: a part is computed again after a kill, and each worker has a part in memory."""
MAX_PART_ROWS = 16384
TARGET_PARTS = 64
"""Target number of parts, enough to occupy many processors."""
MIN_PART_ROWS = 256
"""Minimum number of rows that the target number of parts may lead to."""


@dataclass(frozen=True, slots=True)
class RowFile:
    path: str
    rows: int
    bytes: int
    modified: int
    """Modification time in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that become one part of the results."""

    number: int
    """Index of the file in the job's list."""
    path: str
    start: int
    stop: int

    @property
    def part(self) -> str:
        """The file name of the part; names sort in row order."""
        return f"part-{self.number:05d}-{self.start:012d}-{self.stop:012d}.parquet"


def list_row_files(paths: Sequence[str]) -> tuple[RowFile, ...]:
    """List the row files at these paths and in these folders, sorted by name within a folder.

    Raises InputError for a missing path, an unknown format, a folder without row files, and a file that cannot be read.
    """
    files = []
    for file in dict.fromkeys(file for path in paths for file in _expand(Path(path))):
        try:
            rows = _open(os.fspath(file)).count_rows()
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"the rows of {file} cannot be read: {error}") from error
        status = file.stat()
        files.append(RowFile(os.fspath(file), rows, status.st_size, status.st_mtime_ns))
    return tuple(files)


def _expand(path: Path) -> list[Path]:
    """List the absolute path of a row file, or the paths of the row files in a folder."""
    if not path.exists():
        raise InputError(f"there are no rows at {path}: no such file or folder")
    if path.is_dir():
        # Hidden files, and those that begin with an underscore, are metadata by the convention of Hive and Spark.
        files = sorted(file for file in path.rglob("*") if file.suffix in FORMATS and not file.name.startswith((".", "_")))
        if not files:
            raise InputError(f"folder {path} has no file of rows, whose name ends in {', '.join(FORMATS)}")
        return [file.absolute() for file in files]
    if path.suffix not in FORMATS:
        raise InputError(f"{path} is not a file of rows, whose name ends in {', '.join(FORMATS)}")
    return [path.absolute()]


def _open(path: str) -> Any:
    (fragment,) = ds.dataset(path, format=FORMATS[Path(path).suffix]).get_fragments()
    return fragment


def list_chunks(files: Sequence[RowFile], rows: int | None = None) -> list[Chunk]:
    """Split all rows into chunks of at most ``rows``; by default sized by bytes and number of rows.

    Does not depend on the number of CPUs, which may differ when a job is resumed.
    """
    chunks = []
    max_rows = min(MAX_PART_ROWS, max(MIN_PART_ROWS, sum(file.rows for file in files) // TARGET_PARTS))
    for number, file in enumerate(files):
        groups = None if rows else getattr(_open(file.path), "row_groups", None)
        # Parquet stores the uncompressed size of the rows.
        nbytes = sum(group.total_byte_size for group in groups) if groups else file.bytes
        size = rows or max(1, min(max_rows, TARGET_PART_BYTES * file.rows // max(nbytes, 1)))
        starts = range(0, file.rows, size)
        chunks += [Chunk(number, file.path, start, min(start + size, file.rows)) for start in starts]
    return chunks


def read_chunk(chunk: Chunk) -> Any:
    """Read the rows of a chunk as a table; from Parquet, only the row groups that contain them."""
    group_start, stamp = 0, make_stamp(Path(chunk.path).stat())
    tables = []
    for group, rows in _list_groups(chunk.path, stamp):
        start, stop = max(chunk.start - group_start, 0), min(chunk.stop - group_start, rows)
        if start < stop:
            tables.append(_read_group(chunk.path, stamp, group).slice(start, stop - start))
        group_start += rows
    return pa.concat_tables(tables)


# The stamp is in the keys of both caches, so that a file that changed is read again.
@lru_cache(maxsize=64)
def _list_groups(path: str, stamp: Stamp) -> tuple[tuple[int | None, int], ...]:
    """List the row groups of a Parquet file as (index, number of rows). Other files are one group with the index None."""
    fragment = _open(path)
    groups = getattr(fragment, "row_groups", None)
    return tuple((group.id, group.num_rows) for group in groups) if groups else ((None, fragment.count_rows()),)


@lru_cache(maxsize=2)  # chunks are in order: a large group is read once for all its chunks
def _read_group(path: str, stamp: Stamp, group: int | None) -> Any:
    fragment = _open(path)
    return (fragment if group is None else fragment.subset(row_group_ids=[group])).to_table()
