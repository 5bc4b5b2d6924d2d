"""Typed records in a cache directory: trust checks, atomic writes, locks, eviction and sweeps for all kinds of records.

    <directory>/xrt-cache/entries/ab/abcd....xrt    an executable or a compile failure, by signature
    <directory>/xrt-cache/plans/....xrt             the compiled programs of a model file
    <directory>/xrt-cache/<kind>/....json           smaller records: costs, decisions, engine statuses, ...
    <directory>/xrt-cache/locks/abc                 held while a record with this prefix is created
    <directory>/xrt-cache/work/PID-....             working folder of a process

A record is JSON text, or a container with a JSON section if it has binary data. It never contains Python code. Files are written
in ``work`` and renamed, so readers never see partial files. Files of killed processes stay in ``work``. There is no fsync: after
a power loss, a checksum or the parser detects damage, and the record is created again. All files are private to the user. Files
that another user may have written are not read, and links that leave the directory are not followed. If a file cannot be used,
XRT repeats the work that the record would have saved, and warns once per directory. A call never fails because of a file.
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

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_KNOWS_OWNERS = hasattr(os, "geteuid")
"""Whether files have owners and modes; False on Windows."""


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
    """Open a file, and create it with mode 0600. The argument ``opener`` of `open` takes this function."""
    return os.open(path, flags, 0o600)


def why_not_trusted(directory: Path) -> str | None:
    """Explain how another user could write to a directory, which need not exist; None if that is not possible. Raises OSError."""
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
    return _describe_access(path, status) if status.st_mode & _WRITABLE_BY_OTHERS else None


def _list_parents(real: Path) -> Iterator[Path]:
    """Yield the parent folders up to the home directory, nearest first. Like sshd, XRT trusts the folders above it."""
    try:
        home = Path.home().resolve()
    except RuntimeError:  # the user has no home directory
        home = Path("/")
    if real == home:
        return
    for folder in real.parents:
        yield folder
        if folder == home:
            return


def _why_not_safe_above(folder: Path) -> str | None:
    """Explain how another user could replace the content of a folder above the cache, or return None. Raises OSError."""
    status = folder.stat()
    if reason := _why_not_owned(folder, status):
        return reason
    is_sticky = bool(status.st_mode & stat.S_ISVTX)
    if not status.st_mode & _WRITABLE_BY_OTHERS or is_sticky:
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
    """Whether this user is the only member of a group.

    Group 0 never counts as private, because containers add users to it that are in no list.
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
"""Maximum bytes of a text record that is read. XRT does not write larger ones."""
_MALFORMED = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""Errors of parsers for text that is not JSON or has an unexpected structure."""


@dataclass(frozen=True)
class Schema(Generic[T]):
    """A kind of record: its folder, and functions that write and parse its files."""

    folder: str
    kind: str
    """Name of the kind in error messages."""
    write: Callable[[BinaryIO, T], object]
    parse: Callable[[Path], T]
    suffix: str = ".json"
    is_sharded: bool = False
    """Whether each file is in a subfolder named by the first two characters of its key."""
    is_stale: Callable[[T], bool] = lambda value: False
    """Whether a record is out of date, so that a sweep removes it: for example if the model file it describes has changed."""

    def read(self, path: Path) -> T:
        """Read a file. Raises OSError, or CacheError with the reason if the file is damaged."""
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
    """Reads and writes the records of one kind in a cache directory. Several threads and processes may use it at once."""

    def __init__(self, store: Store, schema: Schema[T]) -> None:
        self.store = store
        self.schema = schema

    def get_path(self, key: str) -> Path:
        """Return the path of a record's file, which may not exist."""
        folder = self.store.root / self.schema.folder
        if self.schema.is_sharded:
            folder /= key[:2]
        return folder / f"{key}{self.schema.suffix}"

    def read(self, key: str) -> T | None:
        """Read a record and set its time of last use; None if it does not exist. Raises OSError, or CacheError for damage."""
        path = self.get_path(key)
        if not self.store.is_trusted():
            return None
        try:
            self.store.check_private(path)
            value = self.schema.read(path)
        except FileNotFoundError:
            return None
        with suppress(OSError):  # a read-only directory
            os.utime(path)
        return value

    def find(self, key: str) -> T | None:
        """Like `read`, but report a file that cannot be read, and return None."""
        try:
            return self.read(key)
        except (OSError, CacheError) as error:
            self.store.report_problem(str(error))
            return None

    def write(self, key: str, value: T) -> bool:
        """Write or replace a record atomically. If that fails, report the problem and return False."""
        if not self.store.is_trusted():
            return False
        try:
            self.store.write_file(self.get_path(key), lambda file: self.schema.write(file, value))
        except (OSError, ValueError) as error:  # ValueError: text that cannot be encoded
            self.store.report_problem(str(error))
            return False
        return True

    def update(self, key: str, change: Callable[[T | None], T]) -> None:
        """Replace a record by ``change(record)`` under a lock. ``change`` is called with None if the record does not exist."""
        with self.store.lock(key):
            self.write(key, change(self.find(key)))

    def items(self) -> list[RecordFile]:
        """List the files of all records, least recently used first. Raises OSError."""
        return self.store.items(self.schema.folder)

    def sweep(self) -> int:
        """Remove damaged and stale records; return how many were removed."""
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
"""Folders without records. Their files are not evicted and do not count towards the size limit."""
LOCK_TIMEOUT_SECONDS = 600.0
"""How long to wait for another process that compiles the same signature, before compiling here too."""
POLL_SECONDS = 0.02
"""Interval for retrying a held lock."""
MAX_WORK_AGE_SECONDS = 24 * 3600.0
"""Age from which a working folder counts as abandoned."""
MAX_REASON_CHARACTERS = 1000
"""Maximum length of the reason in a warning. A reason may quote the content of a file."""
_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Compiled models of XRT: may be removed at any time.\n"


@dataclass(frozen=True, slots=True)
class RecordFile:
    """A record's file, with what eviction needs to know about it."""

    path: Path
    size: int
    """Size in bytes."""
    used: float
    """Time of the last read or write, in seconds since 1970."""

    @property
    def key(self) -> str:
        return self.path.stem


class Store:
    """A cache directory with a size limit. Creating a Store accesses no files; methods may raise OSError."""

    def __init__(self, directory: Path, limit: int = DEFAULT_LIMIT) -> None:
        """Beyond ``limit`` bytes the least recently used records are evicted."""
        self.directory = directory
        self.limit = limit
        self.root = directory / "xrt-cache"
        self.troubles = 0
        """Number of problems with files: unreadable, unwritable or damaged."""
        self._reason: str | None = None
        """Why the directory is not used; None if it is used or was not inspected yet."""
        self._is_inspected = self._warned = False
        self._bytes_until_scan = -1  # the first write scans the directory
        self._lock = renew_after_fork(threading.Lock())

    @cached_property
    def entries(self) -> Records[CacheEntry]:
        """The records of compiled regions, by signature key."""
        from xrt.cache.entries import ENTRIES  # imported here: it imports this module

        return Records(self, ENTRIES)

    def why_not_trusted(self) -> str | None:
        """Explain why the directory is not used: it cannot be opened, or another user may write to it. None if it is used."""
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

    def report_problem(self, reason: str) -> None:
        """Log a problem with a file, in one line. The first problem in this directory also causes a CacheWarning."""
        with self._lock:
            self.troubles += 1
        reason = " ".join(reason.split())[:MAX_REASON_CHARACTERS]
        _log.info("the disk cache in %s: %s", self.directory, reason)
        self._warn_once(
            f"the compile cache in {str(self.directory)!r} could not be used: {reason}. XRT compiles what is missing; this "
            f"warning is shown once. `xrt cache verify` checks the directory, XRT_CACHE=off disables the cache"
        )

    def _warn_once(self, text: str) -> None:
        """Issue a CacheWarning, unless this directory has caused one already."""
        if not self._warned:
            self._warned = True
            warn(text, CacheWarning)

    def check_private(self, path: Path) -> None:
        """Raise CacheError if another user may have written the file or a folder on its path. Raises FileNotFoundError."""
        folder = self.directory
        for part in path.relative_to(self.directory).parts:
            folder = folder / part
            if reason := _why_not_private(folder):
                raise CacheError(f"{path.name} cannot be used: {reason}")

    def write_file(self, path: Path, write: Callable[[BinaryIO], object]) -> None:
        """Write a file in a working folder, rename it to ``path``, and evict records beyond the size limit."""
        with self.make_working_directory() as folder:
            temporary = folder / "file"
            with open(temporary, "xb", opener=open_private) as file:  # Path.open takes no opener
                write(file)
                size = file.tell()
            make_private(path.parent)
            temporary.replace(path)
        self._evict_surplus(size)

    def _evict_surplus(self, written: int) -> None:
        """Evict records beyond the size limit, after ``written`` bytes were added.

        The directory is scanned only when an eighth of the space that was free at the last scan has been used.
        """
        with self._lock:
            self._bytes_until_scan -= written
            if self._bytes_until_scan >= 0:
                return
        for item in self.shrink(self.limit):
            _log.debug("evicted %.12s, %d bytes", item.key, item.size)
        free = self.limit - sum(item.size for item in self.items())
        with self._lock:
            self._bytes_until_scan = free // 8  # not all of it, because other processes write too

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
        """Hold a lock against other threads and processes that create the same record; yield whether it was acquired.

        It is not acquired if the directory is read-only, the file system has no locks, or after `LOCK_TIMEOUT_SECONDS`. The
        operating system releases the locks of a dead process. Keys with the same first three characters share a lockfile, which
        is never removed: deleting a file that another process is opening would break the lock.
        """
        from filelock import FileLock  # imports slowly, and a start from the cache locks nothing

        path = self.root / "locks" / key[:3]
        lock = FileLock(path, timeout=LOCK_TIMEOUT_SECONDS, mode=0o600, poll_interval=POLL_SECONDS, fallback_to_soft=False)
        with suppress(OSError, NotImplementedError):  # NotImplementedError: no locks on this file system
            self._make_root()
            make_private(path.parent)
            lock.acquire()
        try:
            yield lock.is_locked
        finally:
            lock.release()

    def items(self, folder: str = "") -> list[RecordFile]:
        """List the files of all records, least recently used first; with ``folder`` only those in this folder of a schema."""
        if self.root.is_symlink():
            return []
        folders = [self.root / folder] if folder else [path for path in _list_folder(self.root) if path.name not in _NO_RECORDS]
        items = [item for path in folders for item in _walk(path)]
        return sorted(items, key=lambda item: (item.used, item.key))

    def find_damaged(self) -> dict[RecordFile, str]:
        """Check the files of all compiled regions; return the reason for each file that cannot be used."""
        reasons = {}
        for item in self.entries.items():
            try:
                self.check_private(item.path)
                self.entries.schema.read(item.path)
            except FileNotFoundError:
                continue  # evicted meanwhile
            except (CacheError, OSError) as error:
                reasons[item] = str(error)
        return reasons

    def shrink(self, limit: int) -> list[RecordFile]:
        """Remove the least recently used records until the total is at most ``limit`` bytes; return the removed files."""
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
        """Remove the working folders of killed processes; return how many were removed."""
        import shutil

        folders = [] if self.root.is_symlink() else _list_folder(self.root / "work")
        abandoned = [folder for folder in folders if not folder.is_symlink() and _is_abandoned(folder)]
        for folder in abandoned:
            shutil.rmtree(folder, ignore_errors=True)
        return len(abandoned)

    def clear(self) -> None:
        """Remove everything that XRT stores in the directory, also records that other processes are writing."""
        import shutil

        if self.root.is_symlink():
            self.root.unlink()
        else:
            shutil.rmtree(self.root, ignore_errors=True)


def _list_folder(folder: Path) -> list[Path]:
    """List the content of a folder; empty if the folder does not exist or is a link."""
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
        folder.rmdir()  # usually empty, because few engines save or load through files
    except OSError:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Whether the process of a working folder has ended, or the folder is older than `MAX_WORK_AGE_SECONDS`."""
    with suppress(OSError):
        if time.time() - folder.stat().st_mtime > MAX_WORK_AGE_SECONDS:
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
