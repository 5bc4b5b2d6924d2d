"""The disk tier of the cache: load an executable from disk, else compile and store it. Environment variables configure it.

Problems with files are reported as warnings. They never fail a compile.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from xrt.cache.entries import CacheEntry, StoredFailure
from xrt.cache.records import DEFAULT_LIMIT, Store
from xrt.cache.signature import CODE_UNKNOWN, Signature
from xrt.engines import CompileContext, Executable, GraphCompiler
from xrt.engines.contract.graph_compiler import prepare_or_close
from xrt.errors import CacheError, CacheWarning, CompileFailed, CompileRefused, warn
from xrt.forking import renew_after_fork
from xrt.graph.deferred_function import find_stale

if TYPE_CHECKING:
    from xrt.graph import Function

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CompileRequest:
    """What an engine needs to compile a region, or to load an executable that was saved for the region."""

    function: Function
    engine: GraphCompiler
    context: CompileContext

    @cached_property
    def is_kept(self) -> bool:
        """Whether to store the executable: the engine can save it, and loads it faster than it compiles it."""
        return type(self.engine).save is not GraphCompiler.save and self.engine.is_worth_saving(self.function)


@dataclass(frozen=True, slots=True)
class DiskStatistics:
    """Counts of this process since the creation of the tier."""

    hits: int = 0
    misses: int = 0
    writes: int = 0
    """Files that were written, with executables or compile failures."""
    failures: int = 0
    """Compiles that were skipped because an earlier failure is stored."""
    troubles: int = 0
    """Problems with files: unreadable, unwritable or damaged."""


class DiskTier:
    """Executables by signature in a directory shared by processes. Thread-safe."""

    def __init__(self, directory: Path, limit: int) -> None:
        """Create the tier without accessing files. Beyond ``limit`` bytes, the least recently used records are evicted."""
        self.store = Store(directory, limit)
        self.limit = limit
        self._lock = renew_after_fork(threading.Lock())
        self._statistics = DiskStatistics()

    @property
    def statistics(self) -> DiskStatistics:
        return replace(self._statistics, troubles=self.store.troubles)

    def get_or_compile(
        self, signature: Signature, request: CompileRequest, make: Callable[[], Executable], *, force: bool = False
    ) -> Executable:
        """Load the signature's executable, or create it by ``make`` and store it. Returns it ready to run.

        While one process compiles a signature, other processes that request it wait. ``force`` compiles in any case and replaces
        the stored file. CompileRefused and CompileFailed are stored too, and raised by the next request without a compile.
        """
        if not self.store.is_trusted():
            return make()
        if dict(signature.ingredients).get("code") == CODE_UNKNOWN:
            return make()  # code changes cannot be detected, so nothing is stored
        if not force and (executable := self._load(self.store.entries.find(signature.key), request)) is not None:
            return executable
        if not request.is_kept:
            return self._compile(signature, request, make)
        with self.store.lock(signature.key) as locked:
            if locked and not force and (executable := self._load(self.store.entries.find(signature.key), request)) is not None:
                return executable  # compiled by another process meanwhile
            return self._compile(signature, request, make)

    def _load(self, entry: CacheEntry | None, request: CompileRequest) -> Executable | None:
        """Load the executable of an entry, or raise its stored failure. Return None without an entry, or if loading fails."""
        if entry is None:
            return None
        if entry.failure is not None:
            self._count("failures")
            raise entry.failure.make_error(request.function)
        if entry.data is None:
            return None
        try:
            with self.store.make_working_directory() as folder:
                context = replace(request.context, workdir=folder)
                executable = prepare_or_close(request.engine.load(memoryview(entry.data), request.function, context))
        except Exception as error:  # noqa: BLE001  # engines may raise anything; the region is compiled instead
            if stale := find_stale(error):
                raise stale from None
            self.store.report_problem(
                f"engine {request.engine.spec!r} cannot load what it saved: {type(error).__name__}: {error}"
            )
            return None
        self._count("hits")
        return executable

    def _compile(self, signature: Signature, request: CompileRequest, make: Callable[[], Executable]) -> Executable:
        self._count("misses")
        try:
            executable = make()
        except (CompileRefused, CompileFailed) as error:
            if not _is_transient(error):
                self._write(CacheEntry(signature, None, StoredFailure.from_error(error, request.function)))
            raise
        if request.is_kept:
            self._save(signature, request, executable)
        return executable

    def _save(self, signature: Signature, request: CompileRequest, executable: Executable) -> None:
        try:
            with self.store.make_working_directory() as folder:
                data = request.engine.save(executable, replace(request.context, workdir=folder))
                self._write(CacheEntry(signature, data))
        except CompileRefused as error:
            _log.info("not stored on disk: %s", error)
        except OSError as error:
            self.store.report_problem(str(error))
        except Exception:  # noqa: BLE001  # engines may raise anything, and the executable still runs
            _log.warning("engine %r failed to save an executable", request.engine.spec, exc_info=True)

    def _write(self, entry: CacheEntry) -> None:
        size = len(entry.data or b"")
        if size > self.limit:
            _log.info("not stored on disk: %d bytes are more than the limit of %d", size, self.limit)
        elif self.store.entries.write(entry.signature.key, entry):
            self._count("writes")

    def _count(self, counter: str) -> None:
        with self._lock:
            self._statistics = replace(self._statistics, **{counter: getattr(self._statistics, counter) + 1})


def _is_transient(error: BaseException | None) -> bool:
    """Whether a compile may succeed next time: it failed for lack of memory, a file error or a timeout."""
    while error is not None:
        if isinstance(error, MemoryError | OSError):
            return True
        error = error.__cause__ or error.__context__
    return False


# ---------------------------------------------------------------------- configuration

DIRECTORY_VARIABLE = "XRT_CACHE_DIR"
"""Environment variable for the directory; the default is ``xrt`` in the user's cache directory."""
SWITCH_VARIABLE = "XRT_CACHE"
"""Environment variable that disables the disk tier if it is ``off``."""
LIMIT_VARIABLE = "XRT_CACHE_SIZE"
"""Environment variable for the size limit, such as ``500MB`` or ``20GB``."""

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([kMGT]?)B?", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def find_cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Find the cache directory, which may not exist yet. Raises CacheError if the user has no home directory."""
    configured = environment.get(DIRECTORY_VARIABLE, "").strip()
    if configured:
        return expand_user(configured, DIRECTORY_VARIABLE)
    import platformdirs  # only needed for the default directory

    path = platformdirs.user_cache_path("xrt", appauthor=False)
    if not path.is_absolute():  # without a home directory it is "~/.cache"
        raise CacheError(f"this user has no home directory for a cache; set {DIRECTORY_VARIABLE} to a directory")
    return path


def expand_user(text: str | os.PathLike[str], setting: str) -> Path:
    """Expand ``~`` and make the path absolute. Raises CacheError, with the name of the ``setting``, for an unknown user."""
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:  # raised by pathlib for an unknown user
        name = os.fspath(text).split("/")[0]
        raise CacheError(
            f"{setting} is {os.fspath(text)!r}, and {name!r} has no known home directory; use an absolute path"
        ) from None


def open_disk_tier(environment: Mapping[str, str] = os.environ, directory: Path | None = None) -> DiskTier | None:
    """Create the disk tier, in ``directory`` or the directory that the environment selects.

    Return None if the environment disables the tier, or there is no directory for it.
    """
    switch = environment.get(SWITCH_VARIABLE, "").strip().lower()
    if switch in ("off", "0", "no", "false"):
        return None
    if switch not in ("", "on", "1", "yes", "true"):
        warn(f"{SWITCH_VARIABLE} must be on or off; got {switch!r}, so the disk cache is on", CacheWarning)
    try:
        folder = directory or find_cache_directory(environment)
    except CacheError as error:
        warn(f"{error}. Nothing is stored on disk", CacheWarning)
        return None
    return DiskTier(folder, limit=_read_limit(environment))


def _read_limit(environment: Mapping[str, str]) -> int:
    text = environment.get(LIMIT_VARIABLE, "").strip()
    if not text:
        return DEFAULT_LIMIT
    if (limit := parse_size(text)) is not None:
        return limit
    warn(
        f"{LIMIT_VARIABLE} must be a size such as 500MB or 20GB; got {text!r}, so it is {DEFAULT_LIMIT // 10**9}GB", CacheWarning
    )
    return DEFAULT_LIMIT


def parse_size(text: str) -> int | None:
    """Parse a size in bytes; None if the text is not a size.

    >>> parse_size("1.5 GB"), parse_size("1024"), parse_size("big"), parse_size("9" * 400)
    (1500000000, 1024, None, None)
    """
    match = _SIZE.fullmatch(text.strip())
    return int(float(match[1]) * _UNITS[match[2].lower()]) if match else None
