"""A lock of a file that other processes respect: the system's own where it has one, else that of `filelock`.

Importing `filelock` takes 9 ms of processor time, as long as an engine's library needs for a small model. On Linux and macOS it
locks with the same call of the system, so processes that use either exclude each other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # what `acquire_lock` looks at

__all__ = ["acquire_lock"]

POLL_SECONDS = 0.02
"""How often a lock that another process holds is tried."""


def acquire_lock(path: Path, patience: float) -> Callable[[], object]:
    """Return what releases the lock of a file, which is made where there is none; its folder must exist.

    Threads exclude each other, too. The system releases the lock of a process that ends. Raises OSError: TimeoutError after so
    many seconds of waiting for another holder, others where the file cannot be opened or its file system has no locks.
    """
    return _lock_by_library(path, patience) if fcntl is None else _lock_by_system(path, patience)


def _lock_by_system(path: Path, patience: float) -> Callable[[], object]:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    ends = time.monotonic() + patience
    try:
        while not _try_lock(file):
            if time.monotonic() >= ends:
                raise TimeoutError(f"another process has held {str(path)!r} for {patience:g} seconds")
            time.sleep(POLL_SECONDS)
    except BaseException:
        os.close(file)
        raise

    def release() -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_UN)  # a child that was forked meanwhile has the file open, too
        finally:
            os.close(file)

    return release


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # some file systems say the latter of a lock that is held
        return False
    return True


def _lock_by_library(path: Path, patience: float) -> Callable[[], object]:
    import filelock  # for systems without flock

    lock = filelock.FileLock(path, timeout=patience, mode=0o600, poll_interval=POLL_SECONDS, fallback_to_soft=False)
    try:
        lock.acquire()
    except NotImplementedError as error:
        raise OSError(str(error)) from error
    return lock.release
