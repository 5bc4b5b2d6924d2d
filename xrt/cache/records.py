"""Typed records in a cache directory: trust checks, atomic writes, locks, eviction and sweeps, once for all kinds.

    <directory>/xrt-cache/entries/ab/abcd....xrt    an executable or a compile failure, by signature
    <directory>/xrt-cache/plans/....xrt             the compiled programs of a model file
    <directory>/xrt-cache/<kind>/....json           smaller records: costs, decisions, engine statuses, ...
    <directory>/xrt-cache/locks/abc                 held while a record with this prefix is created
    <directory>/xrt-cache/work/PID-....             working folder of a process

A record is JSON text, or a container with a JSON section if it has binary data; never Python code. Files are written in ``work``
and renamed, so readers never see partial files; leftovers of killed processes stay in ``work``. There is no fsync: after a power
loss a checksum or the parser detects damage, and the record is created again. All files are private to the user. Files that
another user may have written are not read, and links that leave the directory are not followed. Problems with files cost the
work that the record would have saved and one warning per directory, never a call.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Generic, TypeVar

from xrt.errors import CacheError, CacheWarning, XRTError, warn
from xrt.forking import renew_after_fork

if TYPE_CHECKING:
    from xrt.cache.entries import CacheEntry


T = TypeVar("T")
DEFAULT_LIMIT = 5_000_000_000
_log = logging.getLogger(__name__)


# ---------------------------------------------------------------------- trust

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_KNOWS_OWNERS = hasattr(os, "geteuid")
"""False on Windows, where file modes and owners carry no information."""


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents with mode 0700; an existing folder is unchanged. Raises OSError."""
    if not folder.parent.is_dir():
        make_private(folder.parent)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if not folder.is_dir():
            raise
    else:
        folder.chmod(0o700)  # an unusual umask may have removed the user's own rights


def open_private(path: str, flags: int) -> int:
    """An ``opener`` for `open` that creates files with mode 0600."""
    return os.open(path, flags, 0o600)


def why_not_trusted(directory: Path) -> str | None:
    """Explain why a directory, existing or not, cannot be trusted, or return None if it can.

    Raises OSError if it cannot be inspected.
    """
    if not _KNOWS_OWNERS:
        return None
    if directory.is_symlink() and (reason := _why_not_owned(directory, directory.lstat())):
        return reason
    real = Path(os.path.realpath(directory))
    with suppress(FileNotFoundError):  # not created yet; its parents are checked below
        if reason := _why_not_private(real):
            return reason
    for folder in _list_parents(real):
        with suppress(FileNotFoundError):
            if reason := _why_not_safe_above(folder):
                return reason
    return None


def _why_not_private(path: Path) -> str | None:
    """Explain how another user could have written a file or folder, or return None. Raises OSError."""
    if not _KNOWS_OWNERS:
        return None
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return f"{str(path)!r} is a link"
    if reason := _why_not_owned(path, status):
        return reason
    return _describe_access(path, status) if status.st_mode & _OTHERS else None


def _list_parents(real: Path) -> Iterator[Path]:
    """Yield the parent folders, nearest first, up to the home directory: sshd checks no further either."""
    try:
        home = Path.home().resolve()
    except RuntimeError:  # the user has no home directory
        home = Path("/")
    for folder in () if real == home else real.parents:
        yield folder
        if folder == home:
            return


def _why_not_safe_above(folder: Path) -> str | None:
    status = folder.stat()
    if reason := _why_not_owned(folder, status):
        return reason
    is_sticky = bool(status.st_mode & stat.S_ISVTX)
    if not status.st_mode & _OTHERS or is_sticky:
        return None
    if not status.st_mode & stat.S_IWOTH and _is_private_group(status.st_gid):
        return None
    return _describe_access(folder, status)


def _why_not_owned(path: Path, status: os.stat_result) -> str | None:
    if status.st_uid in (0, os.geteuid()):
        return None
    return f"{str(path)!r} belongs to another user, {_name_user(status.st_uid)}"


def _describe_access(path: Path, status: os.stat_result) -> str:
    return f"others may write to {str(path)!r}, whose mode is {stat.S_IMODE(status.st_mode):04o}"


def _name_user(uid: int) -> str:
    import pwd  # not on Windows

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _is_private_group(gid: int) -> bool:
    """Whether this user is the only member of a group, as with per-user groups.

    Group 0 does not count: containers put unlisted users in it.
    """
    import grp  # not on Windows
    import pwd

    if gid == 0:
        return False
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    others = [entry for entry in pwd.getpwall() if entry.pw_gid == gid and entry.pw_uid != user.pw_uid]
    return user.pw_gid == gid and not others and not set(group.gr_mem) - {user.pw_name}


# ---------------------------------------------------------------------- records

MAX_TEXT_BYTES = 64 << 20
"""Maximum bytes of a text record; larger files are rejected, since XRT does not write them."""
# Raised for text that is not JSON or has another structure.
_MALFORMED = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


@dataclass(frozen=True)
class Schema(Generic[T]):
    """A kind of record: where its files are, and their content."""

    folder: str
    kind: str
    """What a file holds, for error messages."""
    write: Callable[[BinaryIO, T], object]
    parse: Callable[[Path], T]
    suffix: str = ".json"
    is_sharded: bool = False
    """Whether files are spread over subfolders by the first two characters of the key."""
    is_stale: Callable[[T], bool] = lambda value: False
    """Whether a sweep removes the record, for example because a file that it describes has changed."""

    def read(self, path: Path) -> T:
        """Read a file. Raises FileNotFoundError or another OSError, and CacheError with the reason if it is damaged."""
        if not stat.S_ISREG(path.lstat().st_mode):  # opening a pipe or a device may block
            raise CacheError(f"{self.kind} {path.name} cannot be used: it is not a regular file")
        try:
            return self.parse(path)
        except XRTError as error:
            raise CacheError(f"{self.kind} {path.name} cannot be used: {error}") from error
        except _MALFORMED as error:
            reason = f"it is not a valid {self.kind}: {type(error).__name__}: {error}"
            raise CacheError(f"{self.kind} {path.name} cannot be used: {reason}") from error


def text_schema(folder: str, kind: str, dump: Callable[[T], str], parse: Callable[[bytes], T]) -> Schema[T]:
    """Create a schema of text files; ``dump`` and ``parse`` convert a record to text and back."""

    def write(file: BinaryIO, value: T) -> None:
        file.write(dump(value).encode("utf-8", "surrogatepass"))

    def read(path: Path) -> T:
        with path.open("rb") as file:
            data = file.read(MAX_TEXT_BYTES + 1)
        if len(data) > MAX_TEXT_BYTES:
            raise ValueError(f"it has more than {MAX_TEXT_BYTES} bytes")
        return parse(data)

    return Schema(folder, kind, write, read)


class Records(Generic[T]):
    """The records of one kind in a cache directory, by key. Thread-safe, and safe between processes."""

    def __init__(self, store: Store, schema: Schema[T]) -> None:
        self.store = store
        self.schema = schema

    def path(self, key: str) -> Path:
        """The file of a record, which may not exist."""
        folder = self.store.root / self.schema.folder
        return (folder / key[:2] if self.schema.is_sharded else folder) / f"{key}{self.schema.suffix}"

    def read(self, key: str) -> T | None:
        """Read the record of a key and set its time of last use; None if there is none. Raises OSError, CacheError if damaged."""
        path = self.path(key)
        if not self.store.is_trusted():
            return None
        try:
            self.store.check(path)
            value = self.schema.read(path)
        except FileNotFoundError:
            return None
        with suppress(OSError):  # a read-only directory
            os.utime(path)
        return value

    def find(self, key: str) -> T | None:
        """Read the record of a key; None if there is none. A file that cannot be read is reported, and counts as missing."""
        try:
            return self.read(key)
        except (OSError, CacheError) as error:
            self.store.trouble(str(error))
            return None

    def keep(self, key: str, value: T) -> bool:
        """Write or replace a record atomically. If that fails, report it and return False."""
        if not self.store.is_trusted():
            return False
        try:
            self.store.place(self.path(key), lambda file: self.schema.write(file, value))
        except (OSError, ValueError) as error:  # ValueError: text that cannot be encoded
            self.store.trouble(str(error))
            return False
        return True

    def update(self, key: str, change: Callable[[T | None], T]) -> None:
        """Replace a record by ``change(record)`` while other processes wait. ``change`` gets None if there is no record."""
        with self.store.lock(key):
            self.keep(key, change(self.find(key)))

    def items(self) -> list[RecordFile]:
        """List the files of this kind, least recently used first. Raises OSError."""
        return self.store.items(self.schema.folder)

    def sweep(self) -> int:
        """Remove damaged and stale records; return their number."""
        count = 0
        for item in self.items():
            with suppress(OSError, CacheError, *_MALFORMED):
                if not self.schema.is_stale(self.schema.read(item.path)):
                    continue
            item.path.unlink(missing_ok=True)
            count += 1
        return count


# ---------------------------------------------------------------------- the directory

_NO_RECORDS = ("locks", "work")
"""Folders without records: nothing in them is evicted or counts towards the limit."""
PATIENCE = 600.0
"""Seconds to wait for another process that makes the same entry; afterwards make it here too."""
POLL_SECONDS = 0.02
"""Interval for retrying a held lock."""
ABANDONED = 24 * 3600.0
"""Age in seconds at which any working folder counts as abandoned."""
LONGEST = 1000
"""Limit in characters for the cause in a warning, which may quote the file."""
_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Compiled models of XRT: may be removed at any time.\n"


@dataclass(frozen=True, slots=True)
class RecordFile:
    """A file in the cache directory, with the facts that eviction needs."""

    path: Path
    size: int
    used: float
    """Time of the last read or write, in seconds since 1970."""

    @property
    def key(self) -> str:
        return self.path.stem


class Store:
    """A cache directory with a size limit. Creating a Store touches no files; methods may raise OSError."""

    def __init__(self, directory: Path, limit: int = DEFAULT_LIMIT) -> None:
        """Beyond ``limit`` bytes the least recently used records are evicted."""
        self.directory = directory
        self.limit = limit
        self.root = directory / "xrt-cache"
        self.troubles = 0
        """Files that could not be read or written, and unusable records."""
        self._reason: str | None = None
        self._is_inspected = self._warned = False
        self._room = -1  # bytes until the next scan; unknown until the first
        self._lock = renew_after_fork(threading.Lock())

    @cached_property
    def entries(self) -> Records[CacheEntry]:
        """Executables and compile failures, by the key of the signature."""
        from xrt.cache.entries import ENTRIES  # imported here: it imports this module

        return Records(self, ENTRIES)

    # ------------------------------------------------------------------ trust and trouble

    def why_not_trusted(self) -> str | None:
        """Explain why the directory is not used: it cannot be used at all, or other users may write to it. None if it is used."""
        if not self._is_inspected:
            directory = self.directory
            try:
                self._reason = why_not_trusted(directory)
                if self._reason is None and directory.exists() and not directory.is_dir():
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            except (OSError, ValueError) as error:  # no permission, a link loop, a long name; ValueError: a NUL
                self._reason = f"it cannot be opened ({getattr(error, 'strerror', None) or error})"
            self._is_inspected = self._reason is not None or directory.is_dir()
        return self._reason

    def is_trusted(self) -> bool:
        """Whether the directory may be used; warn the first time if not."""
        reason = self.why_not_trusted()
        if reason is not None:
            self._warn_once(
                f"the compile cache in {str(self.directory)!r} is not used: {reason}. Its files are run as native code, so "
                f"only you may have write access (chown, chmod 700); or set XRT_CACHE_DIR to another directory. XRT compiles "
                f"without the cache; this warning is shown once"
            )
        return reason is None

    def trouble(self, reason: str) -> None:
        """Log a problem with a file in one line. The first problem in this directory is also a CacheWarning."""
        with self._lock:
            self.troubles += 1
        reason = " ".join(reason.split())[:LONGEST]
        _log.info("the disk cache in %s: %s", self.directory, reason)
        self._warn_once(
            f"the compile cache in {str(self.directory)!r} could not be used: {reason}. XRT compiles what is missing; this "
            f"warning is shown once. `xrt cache verify` checks the directory, XRT_CACHE=off disables the cache"
        )

    def _warn_once(self, text: str) -> None:
        """Warn, unless this directory has caused a warning."""
        if not self._warned:
            self._warned = True
            warn(text, CacheWarning)

    def check(self, path: Path) -> None:
        """Raise CacheError if the file, or a folder on its path, may have been written by another user.

        Raises FileNotFoundError if there is none.
        """
        folder = self.directory
        for part in path.relative_to(self.directory).parts:
            folder = folder / part
            if reason := _why_not_private(folder):
                raise CacheError(f"{path.name} cannot be used: {reason}")

    # ------------------------------------------------------------------ writing

    def place(self, path: Path, write: Callable[[BinaryIO], object]) -> None:
        """Write a file in a working folder, rename it to `path`, and evict records beyond the limit."""
        with self.make_working_directory() as folder:
            temporary = folder / "file"
            with open(temporary, "xb", opener=open_private) as file:  # Path.open takes no opener
                write(file)
                size = file.tell()
            make_private(path.parent)
            temporary.replace(path)
        self._make_room(size)

    def _make_room(self, written: int) -> None:
        """Evict records beyond the limit. The directory is scanned only after an eighth of its free space has been used."""
        with self._lock:
            self._room -= written
            if self._room >= 0:
                return
        for item in self.shrink(self.limit):
            _log.debug("evicted %.12s, %d bytes", item.key, item.size)
        free = self.limit - sum(item.size for item in self.items())
        with self._lock:
            self._room = free // 8  # other processes write too

    @contextmanager
    def make_working_directory(self) -> Iterator[Path]:
        """Create a private folder for the duration of the block; remove it afterwards."""
        folder = self.root / "work" / f"{os.getpid()}-{os.urandom(6).hex()}"
        self._make_root()
        make_private(folder)
        try:
            yield folder
        finally:
            _remove(folder)

    def _make_root(self) -> None:
        make_private(self.root)
        if reason := self.why_not_trusted():  # it may have been created by another process
            raise PermissionError(reason)
        with suppress(FileExistsError), open(self.directory / "CACHEDIR.TAG", "x", encoding="utf-8", opener=open_private) as tag:
            tag.write(_TAG)

    @contextmanager
    def lock(self, key: str) -> Iterator[bool]:
        """Lock out other threads and processes that create the same record; yield whether the lock was acquired.

        It is not if the directory is read-only, the file system has no locks, or `PATIENCE` seconds have passed. The operating
        system releases the locks of a dead process. Records with the same prefix share a lockfile, which is never removed:
        deleting a file that another process is opening would break the lock.
        """
        from filelock import FileLock  # imports slowly, and a start from the cache locks nothing

        path = self.root / "locks" / key[:3]
        lock = FileLock(path, timeout=PATIENCE, mode=0o600, poll_interval=POLL_SECONDS, fallback_to_soft=False)
        with suppress(OSError, NotImplementedError):  # NotImplementedError: no locks on this file system
            self._make_root()
            make_private(path.parent)
            lock.acquire()
        try:
            yield lock.is_locked
        finally:
            lock.release()

    # ------------------------------------------------------------------ all records

    def items(self, kind: str = "") -> list[RecordFile]:
        """List the files of all records, or only those in the folder ``kind`` of a schema, least recently used first."""
        folders = [self.root / kind] if kind else [path for path in _list_folder(self.root) if path.name not in _NO_RECORDS]
        items = [item for folder in folders if not self.root.is_symlink() for item in _walk(folder)]
        return sorted(items, key=lambda item: (item.used, item.key))

    def find_damaged(self) -> dict[RecordFile, str]:
        """Check the compiled regions; return the reason for each that cannot be used."""
        reasons = {}
        for item in self.entries.items():
            try:
                self.check(item.path)
                self.entries.schema.read(item.path)
            except FileNotFoundError:
                continue  # evicted meanwhile
            except (CacheError, OSError) as error:
                reasons[item] = str(error)
        return reasons

    def shrink(self, limit: int) -> list[RecordFile]:
        """Remove the least recently used records until the rest fits `limit` bytes; return those removed."""
        items = self.items()
        excess = sum(item.size for item in items) - limit
        removed = []
        for item in items:
            if excess <= 0:
                break
            item.path.unlink(missing_ok=True)
            removed.append(item)
            excess -= item.size
        return removed

    def sweep(self) -> int:
        """Remove working folders of killed processes; return their number."""
        import shutil

        folders = [] if self.root.is_symlink() else _list_folder(self.root / "work")
        abandoned = [folder for folder in folders if not folder.is_symlink() and _is_abandoned(folder)]
        for folder in abandoned:
            shutil.rmtree(folder, ignore_errors=True)
        return len(abandoned)

    def clear(self) -> None:
        """Remove everything XRT stores in the directory; concurrent compiles may lose their entries."""
        import shutil

        if self.root.is_symlink():
            self.root.unlink()
        else:
            shutil.rmtree(self.root, ignore_errors=True)


def _list_folder(folder: Path) -> list[Path]:
    """The content of a folder; empty if it does not exist or is a link."""
    try:
        return [] if folder.is_symlink() else sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _walk(folder: Path) -> Iterator[RecordFile]:
    """Yield the regular files below a folder, without following links."""
    for path in _list_folder(folder):
        with suppress(FileNotFoundError):  # removed by another process meanwhile
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode):
                yield from _walk(path)
            elif stat.S_ISREG(status.st_mode):
                yield RecordFile(path, status.st_size, status.st_mtime)


def _remove(folder: Path) -> None:
    """Remove a folder and its content; ignore failures."""
    try:
        folder.rmdir()  # mostly empty: few engines use files to save or load
    except OSError:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Whether a working folder is unused, because its process has ended or the folder is older than `ABANDONED`."""
    with suppress(OSError):
        if time.time() - folder.stat().st_mtime > ABANDONED:
            return True
    pid = folder.name.partition("-")[0]
    return pid.isdecimal() and not _is_alive(int(pid))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True  # the process of another user
    return True
