"""The rows of a job: files of rows, and ranges of them that are read on their own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from xrt.errors import InputError
from xrt.graph.memory_map import Stamp, make_stamp

__all__ = ["Chunk", "RowFile", "list_chunks", "list_row_files", "read_chunk"]

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
    found = [file for path in paths for file in _expand(Path(path))]
    return tuple(_describe(path) for path in dict.fromkeys(found))


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
    found = []
    most = min(MOST_ROWS, max(FEW_ROWS, sum(file.rows for file in files) // USUAL_PARTS))
    for number, file in enumerate(files):
        size = rows or max(1, min(most, USUAL_BYTES * file.rows // max(_count_bytes(file), 1)))
        starts = range(0, file.rows, size)
        found += [Chunk(number, file.path, start, min(start + size, file.rows)) for start in starts]
    return found


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
