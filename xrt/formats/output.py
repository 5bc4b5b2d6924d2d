"""Atomic file output, checks that a path is writable, and input that is mapped or read to aligned memory."""

from __future__ import annotations

import io
import mmap
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from xrt.errors import ModelError
from xrt.graph.constants import FileMapping, Stamp, make_aligned_block, make_stamp

try:
    import fcntl
except ImportError:  # Windows: leftover temporary files are not removed
    fcntl = None  # type: ignore[assignment]
_TEMPORARY = re.compile(r"\.xrt-[\w-]+\.tmp")


def replace_file(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Write a file atomically: to a temporary file in the same directory, which is then renamed.

    Symbolic links are followed; devices and pipes are written directly. Raises OSError with ``path``, not the temporary one.
    """
    target = Path(os.path.realpath(path))
    try:
        if _is_device(target):
            content = io.BytesIO()  # a device may not support seeking
            write(content)
            with target.open("wb") as device:
                device.write(content.getvalue())
            return
        _remove_temporaries_once(target.parent)
        temporary, file = _open_temporary(target)
        try:
            with file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
                temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def remove_dead_temporaries(folder: Path) -> None:
    """Remove temporary files of killed processes; a file that is still being written is locked and stays."""
    with suppress(OSError), os.scandir(folder) as entries:
        for path in [item.path for item in entries if _TEMPORARY.fullmatch(item.name) and item.is_file(follow_symlinks=False)]:
            with suppress(OSError), open(path, "rb") as file:  # noqa: PTH123
                if _lock(file, wait=False):
                    os.unlink(path)  # noqa: PTH108  # while locked, so that a writer that just created it notices


# Once per folder: listing it for each of thousands of files would take quadratic time.
_remove_temporaries_once = cache(remove_dead_temporaries)


def _open_temporary(target: Path) -> tuple[Path, BinaryIO]:
    """Create a file next to ``target`` that is locked while it is open."""
    while True:
        path = _name_temporary(target)
        file = path.open("xb")
        _lock(file, wait=True)
        # Another process may have removed the file as dead before it was locked: then try again.
        with suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(file.fileno())):
                return path, file
        file.close()


def _lock(file: BinaryIO, *, wait: bool) -> bool:
    """Lock a file and return whether that succeeded. The lock ends with the process."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # locked by its writer, or the file system has no locks
        return False
    return True


def why_not_writable(path: Path) -> str | None:
    """Explain why `replace_file` cannot write to the path, or return None. Writes one byte to a temporary file to find out."""
    target = Path(os.path.realpath(path))
    if os.path.isdir(target):  # noqa: PTH112  # unlike Path.is_dir, it accepts names that are too long
        return "it is a folder"
    if _is_device(target):
        return None if os.access(target, os.W_OK) else "nothing may be written to it"
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    return _why_not_creatable(target)


def why_not_folder(path: Path) -> str | None:
    """Explain why files cannot be written to a directory, which may not exist yet, or return None. Creates nothing."""
    path = path.absolute()
    ancestor = next(folder for folder in (path, *path.parents) if os.path.lexists(folder))
    if not ancestor.is_dir():
        return f"{ancestor} is not a folder"
    return None if os.access(ancestor, os.W_OK | os.X_OK) else f"nothing may be written to {ancestor}"


def _is_device(path: Path) -> bool:
    return os.path.exists(path) and not os.path.isfile(path)  # noqa: PTH110, PTH113  # they accept names that are too long


def _why_not_creatable(path: Path) -> str | None:
    temporary = _name_temporary(path)
    try:
        with temporary.open("xb") as file:
            file.write(b"\0")
    except PermissionError:
        return f"nothing may be written to {path.parent}"
    except OSError as error:
        return f"no file can be made in {path.parent}: {error.strerror}"
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    # The temporary name is short; the name of the file itself may be too long.
    try:
        path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return str(error.strerror)
    return None


def _name_temporary(path: Path) -> Path:
    return path.with_name(f".xrt-{os.urandom(6).hex()}.tmp")  # matches _TEMPORARY


# A timestamp identifies contents only if it is older than 2 s: two writes within one tick of the clock have equal timestamps.
MIN_STAMP_AGE_NS = 2_000_000_000


def identify_file(path: Path) -> Stamp | None:
    """The stamp that identifies the contents of a file; None if the file does not exist or changed within the last 2 s."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # ValueError: a NUL in a stored path
        return None
    return _make_settled_stamp(status)


def _make_settled_stamp(status: os.stat_result) -> Stamp | None:
    is_settled = max(status.st_mtime_ns, status.st_ctime_ns) + MIN_STAMP_AGE_NS < time.time_ns()
    return make_stamp(status) if is_settled else None


def map_file(descriptor: int, path: Path | None = None) -> memoryview:
    """Memory-map an open file. The mapping records ``path``, so that `find_file_ranges` can locate the weights in it."""
    status = os.fstat(descriptor)
    if not status.st_size:
        return memoryview(b"")  # an empty file cannot be mapped
    mapping = FileMapping(descriptor, 0, access=mmap.ACCESS_READ)
    mapping.stamp = _make_settled_stamp(status)
    mapping.path, mapping.inode = path, (status.st_dev, status.st_ino)
    return memoryview(mapping)


class FilePart(np.ndarray[Any, np.dtype[np.uint8]]):
    """A byte range of a file, copied to memory. `find_file_ranges` recognizes arrays that are views of it."""

    stamp: Stamp = ()
    """Identity of the file when the range was read."""
    start: int = 0
    """Offset of the first byte in the file."""


def read_file_part(file: io.BufferedReader, start: int, end: int) -> memoryview:
    """Read the bytes between two offsets of a file to aligned memory; raises ModelError if the file is too short."""
    part = make_aligned_block(end - start).view(FilePart)
    part.stamp, part.start = make_stamp(os.fstat(file.fileno())), start
    file.seek(start)
    if file.readinto(part.data) != end - start:
        raise ModelError("it became shorter while it was read")
    return part.data
