"""The files of a model, open since a plan of theirs was found: what is read later is of the same version, or is not used."""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from xrt.cache.disk.weight_hashes import identify_file
from xrt.errors import ModelError
from xrt.forking import renew_after_fork
from xrt.graph.deferred_function import StaleFunction
from xrt.graph.memory_map import Stamp, make_stamp

__all__ = ["MOST_FILES", "OpenFiles", "check_unchanged"]

MOST_FILES = 16
"""Files that a module may keep open; no plan is used of a model that has more."""

Files = tuple[tuple[str, Stamp], ...]


def check_unchanged(files: Files) -> None:
    """Raise ModelError unless each path leads to the file that it led to when its stamp was taken."""
    for path, stamp in files:
        if identify_file(Path(path)) != stamp:
            raise ModelError(f"{path} has changed since the module was made; make a new XRTModule")


class OpenFiles:
    """Files by their stamps, open for reading until `close`, or until the object is freed."""

    def __init__(self, files: Files) -> None:
        """Raises OSError where one cannot be opened, and StaleFunction where it is not the one with that stamp."""
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
        """Return bytes of a file: those of the first one in memory of their own, those of another one mapped.

        Raises StaleFunction where the file has changed by the time when they are read, where it cannot be read, and after
        `close`.
        """
        from xrt.formats.onnx.weight_places import read_weight

        with self._lock:
            if not self._close.alive:
                raise StaleFunction("the module is closed")
            path = Path(self._files[number][0])
            try:
                found = read_weight(self._open[number].fileno(), path, offset, size, is_own=number == 0)
            except ModelError as error:
                raise StaleFunction(str(error)) from error
            self._check(number)
            return found

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            self._close()
