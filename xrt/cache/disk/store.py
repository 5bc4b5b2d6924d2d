"""The files of a cache directory: entries by signature, locks between processes, working folders, and the order of removal.

    <directory>/xrt-cache-1/entries/ab/abcd....xrt    an entry, named by its signature's hash
    <directory>/xrt-cache-1/locks/abc                 held while an entry whose name begins so is made
    <directory>/xrt-cache-1/weights/....xrt           the hashes of a model file's weights
    <directory>/xrt-cache-1/plans/....xrt             the plans of a model file
    <directory>/xrt-cache-1/kept/tvm                  what an engine learns of this machine
    <directory>/xrt-cache-1/work/PID-....             where a process writes before it moves the result to its place

A file is moved to its place by a rename, so a reader sees all of it or nothing. What a killed process leaves is in ``work``.
Nothing is forced to the disk: a checksum finds what a loss of power damages, and it is compiled again. All files are accessible
to this user alone. Files that another user can have written are not read; no link leads out of the directory.
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
"""The version of the JSON that is written, and the only one that is read."""
_ENTRY, _EXECUTABLE = "entry", "executable"
_ERRORS: dict[str, type[CompileRefused | CompileFailed]] = {"CompileRefused": CompileRefused, "CompileFailed": CompileFailed}


@dataclass(frozen=True, slots=True)
class StoredFailure:
    """A compile that failed, as it is remembered."""

    kind: str
    """The class of the error: ``CompileRefused`` or ``CompileFailed``."""
    reason: str
    nodes: tuple[int, ...] = ()
    """Places, in the Function's order, of the nodes that the engine named: an equal Function may call them otherwise."""

    @classmethod
    def of(cls, error: CompileRefused | CompileFailed, function: Function) -> StoredFailure:
        named = set(getattr(error, "nodes", ()))
        places = tuple(place for place, node in enumerate(function.nodes) if node.name in named)
        kind = "CompileRefused" if isinstance(error, CompileRefused) else "CompileFailed"
        return cls(kind, str(error), places)

    def error(self, function: Function) -> CompileRefused | CompileFailed:
        """Return the error to raise again for an equal Function."""
        text = f"{self.reason} (as at an earlier compile; `xrt cache gc --failures` forgets it)"
        if self.kind == "CompileFailed":
            return CompileFailed(text)
        return CompileRefused(text, [function.nodes[place].name for place in self.nodes if place < len(function.nodes)])


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """What the cache has for a signature: an engine's bytes, or a failure."""

    signature: Signature
    data: memoryview | None
    """What the engine's `save` gave; None where the compile failed."""
    failure: StoredFailure | None = None

    @classmethod
    def read(cls, path: Path) -> CacheEntry:
        """Read and check an entry's file.

        Raises FileNotFoundError where there is none, another OSError where it cannot be read, and CacheError, which says
        what is wrong, for one that is damaged or that another version wrote.
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
    """Read the signature of an entry, and its failure if it has one; raises BundleError for another text."""
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
"""False on Windows, where modes and owners say nothing."""


def make_private(folder: Path) -> None:
    """Make a folder that only this user may read, and those above it that are missing; raises OSError.

    A folder that exists is left as it is.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileNotFoundError:
        if folder.parent.is_dir():  # a file system such as /proc, where nothing can be made
            raise
        make_private(folder.parent)
        make_private(folder)
    except FileExistsError:
        if not folder.is_dir():
            raise
    else:
        folder.chmod(0o700)  # an odd umask may have taken the user's own rights too


def open_private(path: str, flags: int) -> int:
    """Open a file that only this user may read, as an ``opener`` of `open`."""
    return os.open(path, flags, 0o600)


def why_not_trusted(directory: Path) -> str | None:
    """Explain why the directory cannot be trusted, whether it exists yet or not; None where it can.

    Raises OSError where that cannot be found out.
    """
    if not _KNOWS_OWNERS:
        return None
    if directory.is_symlink() and (reason := _why_not_owned(directory, directory.lstat())):
        return reason
    real = Path(os.path.realpath(directory))
    with suppress(FileNotFoundError):  # made later, in the folders that are looked at below
        if reason := why_not_private(real):
            return reason
    for folder in _above(real):
        with suppress(FileNotFoundError):
            if reason := _why_not_safe_above(folder):
                return reason
    return None


def why_not_private(path: Path) -> str | None:
    """Return why another user may have made or may change a file or folder; None if none can. Raises OSError."""
    if not _KNOWS_OWNERS:
        return None
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return f"{str(path)!r} is a link"
    if reason := _why_not_owned(path, status):
        return reason
    return _describe_access(path, status) if status.st_mode & _OTHERS else None


def _above(real: Path) -> Iterator[Path]:
    """Yield the folders above, the nearest first; beyond the home directory, itself included, sshd does not look either."""
    try:
        home = Path.home().resolve()
    except RuntimeError:  # this user has none
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
    """Whether a group has no member but this user, as the groups that some systems make for each user.

    Group 0 is none of them: containers put users in it who are listed nowhere.
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
"""The folder of this layout; a version of XRT with another layout has a folder of its own in the same directory."""
PATIENCE = 600.0
"""Seconds to wait for another process that makes the same entry; then it is made here too."""
ABANDONED = 24 * 3600.0
"""Seconds after which any working folder counts as abandoned."""
_SUFFIX = ".xrt"
_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Compiled models of XRT: may be removed at any time.\n"


@dataclass(frozen=True, slots=True)
class Item:
    """An entry's file."""

    path: Path
    size: int
    used: float
    """When it was last read or written, in seconds since 1970."""

    @property
    def key(self) -> str:
        return self.path.stem


class Store:
    """A cache directory. Every method may raise OSError; making one touches nothing."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = directory / LAYOUT
        self.kept = self.root / "kept"
        """What engines learn of the machine, a folder for each; neither evicted nor counted, and cleared with the rest."""
        self._reason: str | None = None
        self._is_known = self._warned = False

    # ------------------------------------------------------------------ whose it is

    def why_not_trusted(self) -> str | None:
        """Explain why the directory is not used: it cannot be opened, or another user can write to it. None if it is used."""
        if not self._is_known:
            self._reason = _why_not_usable(self.directory)
            self._is_known = self._reason is not None or self.directory.is_dir()
        return self._reason

    def is_trusted(self) -> bool:
        """Whether the directory may be used; warns the first time that it may not."""
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
        """Whether this is the first trouble with the directory, so that each directory causes one warning."""
        first, self._warned = not self._warned, True
        return first

    def check(self, path: Path) -> None:
        """Raise CacheError for a file in the directory, or a folder on the way to it, that another user can have written.

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
        """Return the entry of that signature, which thereby counts as used; None where there is none.

        Raises CacheError for one that is damaged.
        """
        path = self.path(key)
        try:
            self.check(path)
            entry = CacheEntry.read(path)
        except FileNotFoundError:
            return None
        with suppress(OSError):  # a directory that may only be read
            os.utime(path)
        return entry

    def write(self, signature: Signature, content: Buffer | StoredFailure) -> int:
        """Write the signature's entry, whole or not at all, over one that is there; return its size."""
        path = self.path(signature.key)
        self.place(path, lambda file: write_entry(file, signature, content))
        return path.stat().st_size

    def remove(self, key: str) -> None:
        self.path(key).unlink(missing_ok=True)

    def place(self, path: Path, write: Callable[[BinaryIO], object]) -> None:
        """Write a file in a working folder, and move it to its place."""
        with self.make_working_directory() as folder:
            temporary = folder / "file"
            with open(temporary, "xb", opener=open_private) as file:  # Path.open takes no opener
                write(file)
            make_private(path.parent)
            temporary.replace(path)

    @contextmanager
    def make_working_directory(self) -> Iterator[Path]:
        """Make a folder for this process alone, and remove it in the end."""
        folder = self.root / "work" / f"{os.getpid()}-{os.urandom(6).hex()}"
        self._make_root()
        make_private(folder)
        try:
            yield folder
        finally:
            _remove(folder)

    def _make_root(self) -> None:
        make_private(self.root)
        if reason := self.why_not_trusted():  # another process may have made it first
            raise PermissionError(reason)
        with suppress(FileExistsError), open(self.directory / "CACHEDIR.TAG", "x", encoding="utf-8", opener=open_private) as tag:
            tag.write(_TAG)

    @contextmanager
    def lock(self, key: str) -> Iterator[bool]:
        """Keep other processes from making the entry meanwhile; tells whether that worked.

        It does not where the directory cannot be written to, where its file system has no locks, or after `PATIENCE`.
        Entries whose names begin alike share a lock, so that lock files stay few; they are never removed, since a file
        that is removed while another process opens it locks nothing.
        """
        held = self._acquire(self.root / "locks" / key[:3])
        try:
            yield held is not None
        finally:
            if held is not None:
                held()

    def _acquire(self, path: Path) -> Callable[[], object] | None:
        """Return what gives the lock back; None where there is none to be had."""
        # DELETED-LINE  # for those who compile; who finds everything in the cache needs no lock

        try:
            self._make_root()
            make_private(path.parent)
            return acquire_lock(path, PATIENCE)
        except OSError:
            return None

    # ------------------------------------------------------------------ all of them

    def items(self) -> list[Item]:
        """Return the entries, the least recently used first."""
        return sorted(self._found(), key=lambda item: (item.used, item.key))

    def _found(self) -> Iterator[Item]:
        for folder in self.list_folder("entries"):
            for path in self.list_folder("entries", folder.name):
                with suppress(FileNotFoundError):  # another process was quicker
                    status = path.lstat()
                    if path.suffix == _SUFFIX and stat.S_ISREG(status.st_mode):
                        yield Item(path, status.st_size, status.st_mtime)

    def list_evictable(self) -> list[Item]:
        """Return the entries and the files of plans, the least recently used first: what counts in the directory's size."""
        plans = []
        for path in self.list_folder("plans"):
            with suppress(FileNotFoundError):
                status = path.lstat()
                if path.suffix == _SUFFIX and stat.S_ISREG(status.st_mode):
                    plans.append(Item(path, status.st_size, status.st_mtime))
        return sorted([*self._found(), *plans], key=lambda item: (item.used, item.key))

    def list_folder(self, *names: str) -> list[Path]:
        """Return what is in a folder of the directory; nothing where there is none, or a link on the way to it."""
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
        """Remove the least recently used entries and plans until the rest fits the limit in bytes; return those removed."""
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
        """Check every entry, and return what is wrong with those that cannot be used."""
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
        """Remove the working folders that killed processes have left; return how many there were."""
        import shutil

        left = [folder for folder in self.list_folder("work") if not folder.is_symlink() and _is_abandoned(folder)]
        for folder in left:
            shutil.rmtree(folder, ignore_errors=True)
        return len(left)

    def clear(self) -> None:
        """Remove all that XRT keeps in the directory, other layouts too; a process that compiles meanwhile may find no entry."""
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
    except (OSError, ValueError) as error:  # a folder without permission, a loop of links, too long a name; ValueError: a NUL
        return f"it cannot be opened ({getattr(error, 'strerror', None) or error})"
    return reason


def _remove(folder: Path) -> None:
    """Remove a folder with all that is in it; what cannot be removed stays."""
    try:
        folder.rmdir()  # most are empty: few engines save or load by way of files
    except OSError:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Whether the folder is out of use: its process is gone, or it is old."""
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
        return True  # it is another user's
    return True


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # what `acquire_lock` looks at
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
