"""The files of a cache directory: entries, locks between processes, working folders, trust checks and eviction.

    <directory>/xrt-cache-1/entries/ab/abcd....xrt    an entry, named by the hash of its signature
    <directory>/xrt-cache-1/locks/abc                 held while an entry with this prefix is made
    <directory>/xrt-cache-1/weights/....xrt           weight hashes of a model file
    <directory>/xrt-cache-1/plans/....xrt             plans of a model file
    <directory>/xrt-cache-1/kept/tvm                  persistent data of an engine about this machine
    <directory>/xrt-cache-1/work/PID-....             working folder of a process

Files are written in ``work`` and renamed, so readers never see partial files; leftovers of killed processes stay in ``work``.
There is no fsync: after a power loss a checksum detects damage, and the entry is compiled again. All files are private to the
user. Files that another user may have written are not read, and links that leave the directory are not followed.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from xrt.cache.signature import Signature
from xrt.errors import BundleError, CacheError, CacheWarning, CompileFailed, CompileRefused, warn
from xrt.formats.container import Buffer, Container

if TYPE_CHECKING:
    from xrt.graph import Function

__all__ = [
    "CacheEntry",
    "Item",
    "Store",
    "StoredFailure",
    "acquire_lock",
    "make_private",
    "open_private",
    "why_not_private",
    "why_not_trusted",
]

KIND = "cache entry"
FORMAT = 1
"""Version of the JSON text; others are rejected."""
_ENTRY, _EXECUTABLE = "entry", "executable"
_ERRORS: dict[str, type[CompileRefused | CompileFailed]] = {"CompileRefused": CompileRefused, "CompileFailed": CompileFailed}


@dataclass(frozen=True, slots=True)
class StoredFailure:
    """A stored compile failure."""

    kind: str
    """The class of the error: ``CompileRefused`` or ``CompileFailed``."""
    reason: str
    nodes: tuple[int, ...] = ()
    """Positions of the nodes that the engine named: an equal Function may use other names."""

    @classmethod
    def of(cls, error: CompileRefused | CompileFailed, function: Function) -> StoredFailure:
        named = set(getattr(error, "nodes", ()))
        places = tuple(place for place, node in enumerate(function.nodes) if node.name in named)
        kind = "CompileRefused" if isinstance(error, CompileRefused) else "CompileFailed"
        return cls(kind, str(error), places)

    def error(self, function: Function) -> CompileRefused | CompileFailed:
        """The error to raise for an equal Function."""
        text = f"{self.reason} (as at an earlier compile; `xrt cache gc --failures` forgets it)"
        if self.kind == "CompileFailed":
            return CompileFailed(text)
        return CompileRefused(text, [function.nodes[place].name for place in self.nodes if place < len(function.nodes)])


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The stored result for a signature: data of an engine, or a failure."""

    signature: Signature
    data: memoryview | None
    """The result of the engine's `save`; None for a failure."""
    failure: StoredFailure | None = None

    @classmethod
    def read(cls, path: Path) -> CacheEntry:
        """Read and verify an entry's file.

        Raises FileNotFoundError if there is none, another OSError if it is unreadable, and CacheError with the reason if it is
        damaged or written by another version.
        """
        try:
            container = Container.open(path, KIND)
            signature, failure = _parse(bytes(container.section(_ENTRY)))
            entry = cls(signature, None if failure else container.section(_EXECUTABLE), failure)
        except BundleError as error:
            raise CacheError(f"cache entry {path.name} cannot be used: {error}") from error
        if entry.signature.key != path.stem:
            raise CacheError(f"cache entry {path.name} cannot be used: it is the entry of another signature")
        return entry


def _parse(text: bytes) -> tuple[Signature, StoredFailure | None]:
    """Parse the signature and failure of an entry; raises BundleError if invalid."""
    try:
        match json.loads(text):
            case {"format": int(version)} if version != FORMAT:
                raise BundleError(f"its entry has format {version}, and this version of XRT reads {FORMAT}")
            case {"format": int(), "ingredients": list(pairs), "failure": failure}:
                ingredients = tuple((str(name), str(value)) for name, value in pairs)
                return Signature(ingredients), None if failure is None else _parse_failure(failure)
    except (ValueError, TypeError, RecursionError) as error:
        raise BundleError(f"its entry cannot be read: {error}") from error
    raise BundleError("its entry has no format, no signature or no failure")


def _parse_failure(failure: object) -> StoredFailure:
    match failure:
        case {"kind": str(kind), "reason": str(reason), "nodes": list(nodes)} if kind in _ERRORS:
            return StoredFailure(kind, reason, tuple(place for place in nodes if type(place) is int and place >= 0))
    raise ValueError(f"{failure!r:.200} is no failure")


def write_entry(file: BinaryIO, signature: Signature, content: Buffer | StoredFailure) -> None:
    """Write an entry's file."""
    from xrt.formats.container import ContainerWriter

    failure = asdict(content) if isinstance(content, StoredFailure) else None
    writer = ContainerWriter(file, KIND)
    values = {"format": FORMAT, "ingredients": signature.ingredients, "failure": failure}
    writer.add(_ENTRY, json.dumps(values).encode())
    if not isinstance(content, StoredFailure):
        writer.add(_EXECUTABLE, content)
    writer.finish()


_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_KNOWS_OWNERS = hasattr(os, "geteuid")
"""False on Windows, where file modes and owners carry no information."""


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents with mode 0700; an existing folder is unchanged. Raises OSError."""
    try:
        folder.mkdir(mode=0o700)
    except FileNotFoundError:
        if folder.parent.is_dir():  # for example /proc, where mkdir is impossible
            raise
        make_private(folder.parent)
        make_private(folder)
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
        if reason := why_not_private(real):
            return reason
    for folder in _above(real):
        with suppress(FileNotFoundError):
            if reason := _why_not_safe_above(folder):
                return reason
    return None


def why_not_private(path: Path) -> str | None:
    """Explain how another user could have written a file or folder, or return None. Raises OSError."""
    if not _KNOWS_OWNERS:
        return None
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return f"{str(path)!r} is a link"
    if reason := _why_not_owned(path, status):
        return reason
    return _describe_access(path, status) if status.st_mode & _OTHERS else None


def _above(real: Path) -> Iterator[Path]:
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
    if not status.st_mode & stat.S_IWOTH and _is_own_group(status.st_gid):
        return None
    return _describe_access(folder, status)


def _why_not_owned(path: Path, status: os.stat_result) -> str | None:
    if status.st_uid in (0, os.geteuid()):
        return None
    return f"{str(path)!r} belongs to another user, {_name_user(status.st_uid)}"


def _describe_access(path: Path, status: os.stat_result) -> str:
    return f"others may write to {str(path)!r}, whose mode is {stat.S_IMODE(status.st_mode):04o}"


def _name_user(number: int) -> str:
    import pwd  # not on Windows

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _is_own_group(number: int) -> bool:
    """Whether this user is the only member of a group, as with per-user groups.

    Group 0 does not count: containers put unlisted users in it.
    """
    import grp  # not on Windows
    import pwd

    if number == 0:
        return False
    try:
        group, user = grp.getgrgid(number), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    others = [one for one in pwd.getpwall() if one.pw_gid == number and one.pw_uid != user.pw_uid]
    return user.pw_gid == number and not others and not set(group.gr_mem) - {user.pw_name}


_LAYOUTS = "xrt-cache-"
LAYOUT = f"{_LAYOUTS}1"
"""The folder of this layout; other layouts have their own folder in the same directory."""
PATIENCE = 600.0
"""Seconds to wait for another process that makes the same entry; afterwards make it here too."""
ABANDONED = 24 * 3600.0
"""Age in seconds at which any working folder counts as abandoned."""
_SUFFIX = ".xrt"
_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Compiled models of XRT: may be removed at any time.\n"


@dataclass(frozen=True, slots=True)
class Item:
    """The file of an entry."""

    path: Path
    size: int
    used: float
    """Time of the last read or write, in seconds since 1970."""

    @property
    def key(self) -> str:
        return self.path.stem


class Store:
    """A cache directory. Creating a Store touches no files; all methods may raise OSError."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = directory / LAYOUT
        self.kept = self.root / "kept"
        """Persistent data of engines, one folder each; not evicted or counted, but cleared."""
        self._reason: str | None = None
        self._is_known = self._warned = False

    # ------------------------------------------------------------------ whose it is

    def why_not_trusted(self) -> str | None:
        """Explain why the directory is not used: unusable, or writeable for other users. None if it is used."""
        if not self._is_known:
            self._reason = _why_not_usable(self.directory)
            self._is_known = self._reason is not None or self.directory.is_dir()
        return self._reason

    def is_trusted(self) -> bool:
        """Whether the directory may be used; warn the first time if not."""
        reason = self.why_not_trusted()
        if reason is not None and self.is_first_trouble():
            warn(
                f"the compile cache in {str(self.directory)!r} is not used: {reason}. It must be a directory that only "
                f"you can write to (chown, chmod 700), since its files are run as native code; or name another one in "
                f"XRT_CACHE_DIR. The run goes on and compiles what it needs; this is said once",
                CacheWarning,
            )
        return reason is None

    def is_first_trouble(self) -> bool:
        """True on the first call, so that each directory causes one warning."""
        first, self._warned = not self._warned, True
        return first

    def check(self, path: Path) -> None:
        """Raise CacheError if the file, or a folder on its path, may have been written by another user.

        Raises FileNotFoundError if there is none.
        """
        parts = path.relative_to(self.directory).parts
        at = self.directory
        for part in parts:
            at = at / part
            if reason := why_not_private(at):
                raise CacheError(f"{path.name} cannot be used: {reason}")

    # ------------------------------------------------------------------ one entry

    def path(self, key: str) -> Path:
        return self.root / "entries" / key[:2] / f"{key}{_SUFFIX}"

    def read(self, key: str) -> CacheEntry | None:
        """The entry of a signature key, marked as used; None if there is none.

        Raises CacheError if it is damaged.
        """
        path = self.path(key)
        try:
            self.check(path)
            entry = CacheEntry.read(path)
        except FileNotFoundError:
            return None
        with suppress(OSError):  # a read-only directory
            os.utime(path)
        return entry

    def write(self, signature: Signature, content: Buffer | StoredFailure) -> int:
        """Write or replace the signature's entry atomically; return its size."""
        path = self.path(signature.key)
        self.place(path, lambda file: write_entry(file, signature, content))
        return path.stat().st_size

    def remove(self, key: str) -> None:
        self.path(key).unlink(missing_ok=True)

    def place(self, path: Path, write: Callable[[BinaryIO], object]) -> None:
        """Write a file in a working folder, then rename it to `path`."""
        with self.make_working_directory() as folder:
            temporary = folder / "file"
            with open(temporary, "xb", opener=open_private) as file:  # Path.open takes no opener
                write(file)
            make_private(path.parent)
            temporary.replace(path)

    @contextmanager
    def make_working_directory(self) -> Iterator[Path]:
        """A context manager for a private temporary folder."""
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
        """Lock out other processes that make the same entry; yield whether that worked.

        It fails if the directory is read-only, the file system has no locks, or after `PATIENCE`. Entries with the same prefix
        share a lock file, which is never removed: deleting a file that another process is opening would break the lock.
        """
        held = self._acquire(self.root / "locks" / key[:3])
        try:
            yield held is not None
        finally:
            if held is not None:
                held()

    def _acquire(self, path: Path) -> Callable[[], object] | None:
        """Acquire a lock; return its release function, or None if that failed."""
        try:
            self._make_root()
            make_private(path.parent)
            return acquire_lock(path, PATIENCE)
        except OSError:
            return None

    # ------------------------------------------------------------------ all of them

    def items(self) -> list[Item]:
        """All entries, least recently used first."""
        return sorted(self._found(), key=lambda item: (item.used, item.key))

    def _found(self) -> Iterator[Item]:
        for folder in self.list_folder("entries"):
            for path in self.list_folder("entries", folder.name):
                with suppress(FileNotFoundError):  # removed by another process meanwhile
                    status = path.lstat()
                    if path.suffix == _SUFFIX and stat.S_ISREG(status.st_mode):
                        yield Item(path, status.st_size, status.st_mtime)

    def list_evictable(self) -> list[Item]:
        """Entries and plan files, least recently used first: the files that count towards the size limit."""
        plans = []
        for path in self.list_folder("plans"):
            with suppress(FileNotFoundError):
                status = path.lstat()
                if path.suffix == _SUFFIX and stat.S_ISREG(status.st_mode):
                    plans.append(Item(path, status.st_size, status.st_mtime))
        return sorted([*self._found(), *plans], key=lambda item: (item.used, item.key))

    def list_folder(self, *names: str) -> list[Path]:
        """Files of a folder; empty if it does not exist or a link is on its path."""
        folder = self.root
        for name in ("", *names):
            folder = folder / name
            if folder.is_symlink():
                return []
        try:
            return sorted(folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def shrink(self, limit: int) -> list[Item]:
        """Remove the least recently used entries and plans until the rest fits `limit` bytes; return those removed."""
        items = self.list_evictable()
        excess = sum(item.size for item in items) - limit
        removed = []
        for item in items:
            if excess <= 0:
                break
            item.path.unlink(missing_ok=True)
            removed.append(item)
            excess -= item.size
        return removed

    def find_damaged(self) -> dict[Item, str]:
        """Verify all entries; return the reason for each damaged one."""
        found = {}
        for item in self.items():
            try:
                self.check(item.path)
                CacheEntry.read(item.path)
            except FileNotFoundError:
                continue  # evicted meanwhile
            except (CacheError, OSError) as error:
                found[item] = str(error)
        return found

    def sweep(self) -> int:
        """Remove working folders of killed processes; return their number."""
        import shutil

        left = [folder for folder in self.list_folder("work") if not folder.is_symlink() and _is_abandoned(folder)]
        for folder in left:
            shutil.rmtree(folder, ignore_errors=True)
        return len(left)

    def clear(self) -> None:
        """Remove everything XRT stores in the directory, other layouts too; concurrent compiles may lose their entries."""
        import shutil

        for folder in self.directory.glob(f"{_LAYOUTS}*"):
            if folder.is_symlink():
                folder.unlink(missing_ok=True)
            else:
                shutil.rmtree(folder, ignore_errors=True)


def _why_not_usable(directory: Path) -> str | None:
    try:
        reason = why_not_trusted(directory)
        if reason is None and directory.exists() and not directory.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except (OSError, ValueError) as error:  # no permission, a link loop, a long name; ValueError: a NUL
        return f"it cannot be opened ({getattr(error, 'strerror', None) or error})"
    return reason


def _remove(folder: Path) -> None:
    """Remove a folder and its content; ignore failures."""
    try:
        folder.rmdir()  # mostly empty: few engines use files to save or load
    except OSError:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Whether a working folder is unused: its process is gone, or it is old."""
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


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # checked in `acquire_lock`
POLL_SECONDS = 0.02
"""Interval for retrying a held lock."""


def acquire_lock(path: Path, patience: float) -> Callable[[], object]:
    """Lock a file, created if necessary in an existing folder; return the release function.

    Excludes threads, too. The operating system releases locks of a dead process. Raises TimeoutError after `patience` seconds,
    other OSErrors if the file cannot be opened or the file system has no locks.
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
            fcntl.flock(file, fcntl.LOCK_UN)  # a forked child may have the file open, too
        finally:
            os.close(file)

    return release


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # some file systems raise PermissionError for a held lock
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
