"""Locations of weights in model files, so that another process can read one weight without parsing the model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xrt.errors import ModelError
from xrt.formats.output import map_file
from xrt.graph.constants import Stamp, find_file_offset, make_stamp

if TYPE_CHECKING:
    from xrt.graph.constants import Constant

__all__ = ["FilePart", "Place", "find_places", "read_file_part", "read_weight"]

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Place(NamedTuple):
    """A byte range of a file."""

    path: Path
    offset: int
    size: int


class FilePart(np.ndarray[Any, np.dtype[np.uint8]]):
    """A byte range of a file, copied to memory; views of it are plain arrays."""

    stamp: Stamp = ()
    """Identity of the file when it was read."""
    start: int = 0
    """Offset of the first byte in the file."""


def read_file_part(file: BufferedReader, start: int, end: int) -> memoryview:
    """Read a part of the file to aligned memory; raises ModelError if the file is too short."""
    from xrt.graph.constants import make_aligned_block

    length = end - start
    part = make_aligned_block(length).view(FilePart)
    part.stamp = make_stamp(os.fstat(file.fileno()))
    part.start = start
    file.seek(start)
    if file.readinto(part.data) != length:
        raise ModelError("it became shorter while it was read")
    return part.data


def _find_file_part(array: np.ndarray[Any, Any]) -> tuple[Stamp, int] | None:
    """Stamp of the file that a C-contiguous array was read from, and its offset; None for any other array."""
    if not array.flags.c_contiguous:
        return None
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        if isinstance(base, FilePart):
            return base.stamp, base.start + array.ctypes.data - base.ctypes.data
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return None


def find_places(path: Path, stamp: Stamp, constants: Mapping[str, Constant]) -> dict[str, Place]:
    """Locate constants in a model file with this stamp, or in its external data. Reads nothing.

    Constants from memory, or from another version of the file, are omitted.
    """
    found: dict[str, Place] = {}
    for name, constant in constants.items():
        mapped, part = find_file_offset(constant.array), _find_file_part(constant.array)
        if mapped is not None and mapped[0].path is not None:
            found[name] = Place(Path(mapped[0].path), mapped[1], constant.nbytes)
        elif part is not None and part[0] == stamp:
            found[name] = Place(path, part[1], constant.nbytes)
    return found


def read_weight(file: int, path: Path, offset: int, size: int, *, is_own: bool) -> Bytes:
    """Read bytes of an open file: to aligned memory if it is the model file (``is_own``), else mapped.

    Raises ModelError if the file is too short or cannot be read.
    """
    try:
        if offset + size > os.fstat(file).st_size:
            raise ModelError(f"{os.fspath(path)!r} has become shorter")
        if not is_own:
            return np.frombuffer(map_file(file, path), np.uint8, size, offset)
        from xrt.graph.constants import make_aligned_block

        part = make_aligned_block(size)
        done = 0
        while done < size:  # one call reads at most 2 GB
            got = os.preadv(file, [part.data[done:]], offset + done)
            if not got:
                raise ModelError(f"{os.fspath(path)!r} became shorter while it was read")
            done += got
        return part
    except OSError as error:
        raise ModelError(f"{os.fspath(path)!r} cannot be read: {error.strerror}") from error
