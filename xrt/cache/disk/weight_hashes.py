"""Hashes of weights on disk, computed once per file instead of once per process.

Every signature needs the hashes of the weights, which may take seconds. They are stored with a stamp that detects changes of the
file: device, inode, size, mtime and ctime.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from xrt.errors import BundleError, CacheError, ModelError
from xrt.forking import renew_after_fork
from xrt.graph.constants import Stamp, make_stamp
from xrt.graph.deferred_function import StaleFunction

if TYPE_CHECKING:
    from xrt.cache.disk.store import Store
    from xrt.graph import Constant, Function

__all__ = ["MOST_FILES", "OpenFiles", "WeightHashStore", "check_unchanged", "identify_file"]

KIND = "weights memo"
FORMAT = 1
WORTHWHILE = 1 << 20
"""Weights from this many bytes on are worth storing: below, hashing is faster."""
SETTLED = 2_000_000_000
"""Nanoseconds after which timestamps reliably detect a change; more recent files may change within the clock's resolution."""
DIGEST = 32
"""Length of a SHA-256 digest in bytes."""
_SECTION = "memo"


def identify_file(path: Path) -> Stamp | None:
    """The stamp of a file; None if it does not exist or changed just now."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # ValueError: a NUL in a stored path
        return None
    if max(status.st_mtime_ns, status.st_ctime_ns) + SETTLED > time.time_ns():
        return None
    return make_stamp(status)


class WeightHashStore:
    """Stored hashes of the weights of model files, and the pending ones of this process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._new: list[tuple[Path, Stamp, weakref.ref[Function]]] = []
        self._lock = renew_after_fork(threading.Lock())

    def recall(self, function: Function, path: Path, stamp: Stamp | None) -> None:
        """Set the stored hashes of a Function's constants, or register it for `keep`.

        ``stamp`` identifies the file before it was loaded. The Function is referenced weakly. If the stored hashes are
        unusable, they are computed as usual.
        """
        if stamp is None or sum(constant.nbytes for constant in function.constants.values()) < WORTHWHILE:
            return
        known = self._known(path, stamp)
        for name, constant in function.constants.items():
            digest, place = known.get(name, (b"", ()))
            if digest and place == _place(constant):
                constant.know_digest(digest)
        if len(known) < sum(1 for _ in _remembered(function)):
            with self._lock:
                self._new.append((path, stamp, weakref.ref(function)))

    def _known(self, path: Path, stamp: Stamp) -> dict[str, tuple[bytes, Stamp]]:
        from xrt.formats.container import Container
        from xrt.formats.protobuf import read

        file = self._file(path)
        try:
            if not self._store.is_trusted() or not file.exists():
                return {}
            self._store.check(file)
            values = read("WeightsMemo", bytes(Container.open(file, KIND).section(_SECTION)))
        except (OSError, BundleError, CacheError):
            return {}
        if (values["format"], values["path"], values["stamp"]) != (FORMAT, os.fspath(path), stamp):
            return {}
        return {w["name"]: (w["digest"], w["place"]) for w in values["weights"] if len(w["digest"]) == DIGEST}

    def keep(self) -> None:
        """Store the hashes of all registered files; raises OSError."""
        if not self._new:
            return
        with self._lock:
            waiting, self._new = self._new, []
        for path, stamp, reference in waiting:
            function = reference()
            if function is not None and self._store.is_trusted():
                self._write(path, stamp, function)

    def _write(self, path: Path, stamp: Stamp, function: Function) -> None:
        from xrt.formats.container import ContainerWriter
        from xrt.formats.protobuf import write

        hashes = [{"name": name, "digest": c.digest, "place": place} for name, c, place in _remembered(function)]
        values = {"format": FORMAT, "path": os.fspath(path), "stamp": stamp, "weights": hashes}

        def fill(file: BinaryIO) -> None:
            writer = ContainerWriter(file, KIND)
            writer.add(_SECTION, write("WeightsMemo", values))
            writer.finish()

        self._store.place(self._file(path), fill)

    def _file(self, path: Path) -> Path:
        import hashlib

        name = hashlib.sha256(os.fsencode(path)).hexdigest()[:40]
        return self._store.root / "weights" / f"{name}.xrt"

    def sweep(self) -> int:
        """Remove hashes of deleted or changed files; return their number."""
        return sum(map(self._sweep, self._store.list_folder("weights")))

    def _sweep(self, file: Path) -> int:
        from xrt.formats.container import Container
        from xrt.formats.protobuf import read

        try:
            values = read("WeightsMemo", bytes(Container.open(file, KIND).section(_SECTION)))
            stale = values["stamp"] != identify_file(Path(values["path"]))
        except (BundleError, OSError):
            stale = True
        if stale:
            file.unlink(missing_ok=True)
        return int(stale)


def _remembered(function: Function) -> Iterator[tuple[str, Constant, Stamp]]:
    """Yield the constants whose hashes can be stored, with their locations."""
    for name, constant in function.constants.items():
        place = _place(constant)
        if place is not None:
            yield name, constant, place


def _place(constant: Constant) -> Stamp | None:
    """Stamp and offset of a constant in an external data file; empty if it is in the model file.

    None if the file changed too recently or XRT did not map it.
    """
    from xrt.graph.constants import find_file_offset, is_mapped

    if not is_mapped(constant.array):
        return ()
    place = find_file_offset(constant.array)
    if place is None or place[0].stamp is None:
        return None
    return *place[0].stamp, place[1]


MOST_FILES = 16
"""Limit on files that a module keeps open; models with more do not use stored plans."""
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
