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

    Symbolic links are followed; devices and pipes are written directly. Raises OSError with the original path.
    """
    real = Path(os.path.realpath(path))
    try:
        if _is_device(real):
            content = io.BytesIO()  # a device may not support seeking
            write(content)
            with real.open("wb") as device:
                device.write(content.getvalue())
            return
        _remove_temporaries_once(real.parent)
        temporary, file = _open_temporary(real)
        try:
            with file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
                temporary.replace(real)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error  # the caller does not know the temporary name


def remove_dead_temporaries(folder: Path) -> None:
    """Remove temporary files of killed processes: those that no process has locked."""
    with suppress(OSError), os.scandir(folder) as entries:
        for path in [item.path for item in entries if _TEMPORARY.fullmatch(item.name) and item.is_file(follow_symlinks=False)]:
            with suppress(OSError), open(path, "rb") as file:  # noqa: PTH123
                if _lock(file, wait=False):
                    os.unlink(path)  # noqa: PTH108  # while locked, so that a writer that just created it notices


# Once per folder: listing it for each of thousands of files would take quadratic time.
_remove_temporaries_once = cache(remove_dead_temporaries)


def _open_temporary(real: Path) -> tuple[Path, BinaryIO]:
    """Create a file next to ``real`` that is locked while it is open."""
    while True:
        path = _name_temporary(real)
        file = path.open("xb")
        _lock(file, wait=True)
        with suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(file.fileno())):
                return path, file
        file.close()  # another process removed it as dead before it was locked


def _lock(file: BinaryIO, *, wait: bool) -> bool:
    """Lock a file and return whether it succeeded. The lock ends with the process."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # locked by its writer, or the file system has no locks
        return False
    return True


def why_not_writable(path: Path) -> str | None:
    """Explain why `replace_file` cannot write to the path, or return None. Writes one byte to a temporary file to find out."""
    real = Path(os.path.realpath(path))
    if os.path.isdir(real):  # noqa: PTH112  # unlike pathlib's, it accepts names that are too long
        return "it is a folder"
    if _is_device(real):
        return None if os.access(real, os.W_OK) else "nothing may be written to it"
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    return _why_not_creatable(real.parent, real.name)


def why_not_folder(path: Path) -> str | None:
    """Explain why files cannot be written to a directory, which may not exist yet, or return None. Creates nothing."""
    path = path.absolute()
    ancestor = next(folder for folder in (path, *path.parents) if os.path.lexists(folder))
    if not ancestor.is_dir():
        return f"{ancestor} is not a folder"
    return None if os.access(ancestor, os.W_OK | os.X_OK) else f"nothing may be written to {ancestor}"


def _is_device(path: Path) -> bool:
    return os.path.exists(path) and not os.path.isfile(path)  # noqa: PTH110, PTH113  # as above


def _why_not_creatable(folder: Path, name: str) -> str | None:
    temporary = _name_temporary(folder / name)
    try:
        with temporary.open("xb") as file:
            file.write(b"\0")
    except PermissionError:
        return f"nothing may be written to {folder}"
    except OSError as error:
        return f"no file can be made in {folder}: {error.strerror}"
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    try:
        (folder / name).lstat()
    except FileNotFoundError:
        return None
    except OSError as error:  # for example, the name is too long
        return str(error.strerror)
    return None


def _name_temporary(path: Path) -> Path:
    return path.with_name(f".xrt-{os.urandom(6).hex()}.tmp")  # matches _TEMPORARY


# A timestamp identifies contents only if it is older than this (in ns): two writes within one clock tick look alike.
SETTLED = 2_000_000_000


def identify_file(path: Path) -> Stamp | None:
    """The stamp that identifies the contents of a file. None if there is no file, or if it changed within the last 2 s."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # ValueError: a NUL in a stored path
        return None
    return _make_settled_stamp(status)


def _make_settled_stamp(status: os.stat_result) -> Stamp | None:
    is_settled = max(status.st_mtime_ns, status.st_ctime_ns) + SETTLED < time.time_ns()
    return make_stamp(status) if is_settled else None


def map_file(file: int, path: Path | None = None) -> memoryview:
    """Memory-map the open file descriptor ``file``. The mapping records ``path``, from which `find_places` locates weights."""
    status = os.fstat(file)
    if not status.st_size:
        return memoryview(b"")  # an empty file cannot be mapped
    mapping = FileMapping(file, 0, access=mmap.ACCESS_READ)
    mapping.stamp = _make_settled_stamp(status)
    mapping.path, mapping.inode = path, (status.st_dev, status.st_ino)
    return memoryview(mapping)


class FilePart(np.ndarray[Any, np.dtype[np.uint8]]):
    """A byte range of a file, copied to memory; views of it are plain arrays."""

    stamp: Stamp = ()
    """Identity of the file when it was read."""
    start: int = 0
    """Offset of the first byte in the file."""


def read_file_part(file: io.BufferedReader, start: int, end: int) -> memoryview:
    """Read a part of the file to aligned memory; raises ModelError if the file is too short."""
    part = make_aligned_block(end - start).view(FilePart)
    part.stamp, part.start = make_stamp(os.fstat(file.fileno())), start
    file.seek(start)
    if file.readinto(part.data) != end - start:
        raise ModelError("it became shorter while it was read")
    return part.data
