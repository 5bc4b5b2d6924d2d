"""Locations of weights in model files, so that another process can read one weight without parsing the model."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xrt.errors import ModelError
from xrt.forking import renew_after_fork
from xrt.formats.output import identify_file, map_file
from xrt.graph.constants import Stamp, find_file_offset, make_stamp
from xrt.graph.deferred_function import StaleFunction

if TYPE_CHECKING:
    from xrt.graph.constants import Constant

__all__ = ["MOST_FILES", "FilePart", "OpenFiles", "Place", "check_unchanged", "find_places", "read_file_part", "read_weight"]

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


MOST_FILES = 16
"""Limit on files that a module keeps open; a start from the cache does not support models with more."""
Files = tuple[tuple[str, Stamp], ...]


def check_unchanged(files: Files) -> None:
    """Raise ModelError unless all files still match their stamps."""
    for path, stamp in files:
        if identify_file(Path(path)) != stamp:
            raise ModelError(f"{path} has changed since the module was made; make a new XRTModule")


class OpenFiles:
    """Open files that match their stamps; closed by `close` or on garbage collection."""

    def __init__(self, files: Files) -> None:
        """Raises OSError if a file cannot be opened, StaleFunction if it does not match its stamp."""
        self._files = files
        self._lock = renew_after_fork(threading.Lock())
        with ExitStack() as stack:
            self._open = [stack.enter_context(Path(path).open("rb", buffering=0)) for path, _ in files]
            for number in range(len(files)):
                self._check(number)
            self._close = weakref.finalize(self, stack.pop_all().close)

    def _check(self, number: int) -> None:
        path, stamp = self._files[number]
        if make_stamp(os.fstat(self._open[number].fileno())) != stamp:
            raise StaleFunction(f"{path} has changed since the module was made")

    def read(self, number: int, offset: int, size: int) -> Any:
        """Read bytes of a file: copied from the first file, mapped from the others.

        Raises StaleFunction if the file has changed, is unreadable, or after `close`.
        """
        with self._lock:
            if not self._close.alive:
                raise StaleFunction("the module is closed")
            path = Path(self._files[number][0])
            try:
                part = read_weight(self._open[number].fileno(), path, offset, size, is_own=number == 0)
            except ModelError as error:
                raise StaleFunction(str(error)) from error
            self._check(number)
            return part

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            self._close()
