"""The disk tier: load an executable from disk, else compile and store it. File problems never reach the caller."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from xrt.cache.disk.store import CacheEntry, Store, StoredFailure
from xrt.cache.disk.weight_hashes import WeightHashStore
from xrt.cache.signature import CODE_UNKNOWN, Signature
from xrt.engines import CompileContext, Executable, GraphCompiler
from xrt.errors import CacheError, CacheWarning, CompileFailed, CompileRefused, warn
from xrt.forking import renew_after_fork
from xrt.graph.deferred_function import find_stale

if TYPE_CHECKING:
    from xrt.cache.disk.plan_store import PlanStore, StoredModel
    from xrt.cache.disk.support_store import SupportStore
    from xrt.graph import Function
    from xrt.graph.constants import FileIdentity

__all__ = ["CheckedFileStore", "CompileRequest", "DiskStatistics", "DiskTier"]

Make: TypeAlias = Callable[[], Executable]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CompileRequest:
    """The inputs of a compile, which an engine needs to load a saved executable."""

    function: Function
    engine: GraphCompiler
    context: CompileContext

    @cached_property
    def is_kept(self) -> bool:
        """Whether the engine can save executables, and loads this one faster than it compiles."""
        return type(self.engine).save is not GraphCompiler.save and self.engine.is_worth_saving(self.function)


@dataclass(frozen=True, slots=True)
class DiskStatistics:
    """Counts since the creation of the tier, in this process."""

    hits: int = 0
    """Executables loaded instead of compiled."""
    misses: int = 0
    """Compiles because there was no entry."""
    writes: int = 0
    """Entries written, failures included."""
    failures: int = 0
    """Compiles skipped because a failure is stored."""
    troubles: int = 0
    """Files that could not be read or written, and unusable entries."""


class DiskTier:
    """Executables by signature in a directory shared by processes. Thread-safe."""

    def __init__(self, directory: Path, limit: int) -> None:
        """No file is touched before the first use. Beyond ``limit`` bytes the least recently used entries are evicted."""
        self.store = Store(directory)
        self.limit = limit
        self.weights = WeightHashStore(self.store)
        self._lock = renew_after_fork(threading.Lock())
        self._statistics = DiskStatistics()
        self._room = -1  # unknown until the first scan

    @cached_property
    def plans(self) -> PlanStore:
        """The store of plans."""
        from xrt.cache.disk.plan_store import PlanStore

        return PlanStore(self.store)

    @cached_property
    def checked(self) -> CheckedFileStore:
        """The record of verified bundles."""
        return CheckedFileStore(self.store)

    @cached_property
    def answers(self) -> SupportStore:
        """The store of support answers."""
        from xrt.cache.disk.support_store import SupportStore

        return SupportStore(self.store)

    def keep_plans(self, signature: Signature, model: StoredModel) -> None:
        """Store or replace the plans of a model; raises OSError."""
        self._make_room(self.plans.write(signature, model))

    @property
    def statistics(self) -> DiskStatistics:
        return self._statistics

    def find_learning_directory(self, engine: str) -> Path | None:
        """The directory, not necessarily existing, for persistent data of an engine.

        None if another user may have written to it.
        """
        folder = self.store.kept / engine
        if not self.store.is_trusted():
            return None
        try:
            self.store.check(folder)
        except FileNotFoundError:
            return folder
        except (OSError, CacheError) as error:
            self.trouble(str(error))
            return None
        return folder

    def get_or_compile(self, signature: Signature, recipe: CompileRequest, make: Make, *, force: bool = False) -> Executable:
        """Load the signature's executable or make and store it; return it prepared.

        Concurrent processes wait for the one that makes it. ``force`` makes it again and replaces the entry. Raises errors of
        ``make``. An engine's refusal or failure is stored too, and raised again next time without a compile.
        """
        if not self.store.is_trusted():
            return make()
        self.keep_weights()
        if dict(signature.ingredients).get("code") == CODE_UNKNOWN:
            return make()  # code changes cannot be detected, so nothing is stored
        if not force and (found := self._found(signature, recipe)) is not None:
            return found
        if not recipe.is_kept:
            return self._made(signature, recipe, make)
        with self.store.lock(signature.key) as locked:
            if locked and not force and (found := self._found(signature, recipe)) is not None:
                return found  # made by another process meanwhile
            return self._made(signature, recipe, make)

    # ------------------------------------------------------------------ reading

    def _found(self, signature: Signature, recipe: CompileRequest) -> Executable | None:
        """Load the entry; None if there is no usable one. Raises a stored failure."""
        entry = self._entry(signature)
        if entry is None:
            return None
        if entry.failure is not None:
            self._count("failures")
            raise entry.failure.error(recipe.function)
        return self._loaded(entry, recipe)

    def _entry(self, signature: Signature) -> CacheEntry | None:
        try:
            return self.store.read(signature.key)
        except (OSError, CacheError) as error:
            self.trouble(f"{error}")
            return None

    def _loaded(self, entry: CacheEntry, recipe: CompileRequest) -> Executable | None:
        if entry.data is None:
            return None
        try:
            with self.store.make_working_directory() as folder:
                context = replace(recipe.context, workdir=folder)
                executable = recipe.engine.load(entry.data, recipe.function, context)
                executable.prepare()
        except Exception as error:  # noqa: BLE001  # engines may raise anything, and can still compile
            if stale := find_stale(error):
                raise stale from None
            self.trouble(f"engine {recipe.engine.spec!r} cannot load what it saved: {type(error).__name__}: {error}")
            return None
        self._count("hits")
        return executable

    # ------------------------------------------------------------------ writing

    def _made(self, signature: Signature, recipe: CompileRequest, make: Make) -> Executable:
        self._count("misses")
        try:
            executable = make()
        except (CompileRefused, CompileFailed) as error:
            if not _may_pass(error):
                self._write(signature, StoredFailure.of(error, recipe.function))
            raise
        if recipe.is_kept:
            self._save(signature, recipe, executable)
        return executable

    def _save(self, signature: Signature, recipe: CompileRequest, executable: Executable) -> None:
        try:
            with self.store.make_working_directory() as folder:
                data = recipe.engine.save(executable, replace(recipe.context, workdir=folder))
                self._write(signature, data)
        except CompileRefused as error:
            _log.info("not kept on disk: %s", error)
        except OSError as error:
            self.trouble(str(error))
        except Exception:  # noqa: BLE001  # engines may raise anything, and the executable still runs
            _log.warning("engine %r failed to save an executable", recipe.engine.spec, exc_info=True)

    def _write(self, signature: Signature, content: bytes | memoryview | StoredFailure) -> None:
        if not isinstance(content, StoredFailure) and len(content) > self.limit:
            _log.info("not kept on disk: %d bytes are more than the limit of %d", len(content), self.limit)
            return
        try:
            written = self.store.write(signature, content)
            self._count("writes")
            self._make_room(written)
        except (OSError, ValueError) as error:  # ValueError: protobuf cannot store a path that is not UTF-8
            self.trouble(str(error))

    def _make_room(self, written: int) -> None:
        """Evict beyond the limit. The directory is scanned only after an eighth of its free space was used."""
        with self._lock:
            self._room -= written
            if self._room >= 0:
                return
        for item in self.store.shrink(self.limit):
            _log.debug("evicted %.12s, %d bytes", item.key, item.size)
        free = self.limit - sum(item.size for item in self.store.list_evictable())
        with self._lock:
            self._room = free // 8  # other processes write too

    def keep_weights(self) -> None:
        """Store newly computed weight hashes for the next process."""
        try:
            self.weights.keep()
        except (OSError, ValueError) as error:
            self.trouble(str(error))

    # ------------------------------------------------------------------ reports

    def _count(self, what: str) -> None:
        with self._lock:
            self._statistics = replace(self._statistics, **{what: getattr(self._statistics, what) + 1})

    def trouble(self, what: str) -> None:
        """Log a problem; warn about the first one."""
        self._count("troubles")
        _log.info("the disk cache in %s: %s", self.store.directory, what)
        if self.store.is_first_trouble():
            warn(
                f"the compile cache in {str(self.store.directory)!r} could not serve: {what}. The run goes on and compiles what "
                f"is missing; this is said once. `xrt cache verify` checks the directory, XRT_CACHE=off does without",
                CacheWarning,
            )


def _may_pass(error: BaseException | None) -> bool:
    """Whether a failure may be transient: memory, files, time."""
    while error is not None:
        if isinstance(error, MemoryError | OSError):
            return True
        error = error.__cause__ or error.__context__
    return False


_FOLDER = "checked"
MOST_BYTES = 1 << 16
"""Larger files are rejected: XRT does not write them."""


class CheckedFileStore:
    """Records which bundles, and which variants in them, this user has verified."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def knows(self, path: Path, suffix: str, stamp: FileIdentity | None) -> bool:
        """Whether the file in its current state was verified. ``stamp`` is None if it changed just now."""
        file = self._file(path, suffix)
        try:
            if stamp is None or not self._store.is_trusted() or not file.exists():
                return False
            self._store.check(file)
            if file.stat().st_size > MOST_BYTES:
                return False
            values = json.loads(file.read_bytes())
        except (OSError, ValueError, CacheError, RecursionError):
            return False
        return bool(values == [os.fspath(path), suffix, *stamp])

    def keep(self, path: Path, suffix: str, stamp: FileIdentity | None) -> None:
        """Record a verified file; raises OSError."""
        if stamp is not None and self._store.is_trusted():
            text = json.dumps([os.fspath(path), suffix, *stamp]).encode()
            self._store.place(self._file(path, suffix), lambda file: file.write(text))

    def sweep(self) -> int:
        """Remove records of deleted files; return their number."""
        return sum(map(_sweep, self._store.list_folder(_FOLDER)))

    def _file(self, path: Path, suffix: str) -> Path:
        name = hashlib.sha256(os.fsencode(path) + b"\0" + suffix.encode()).hexdigest()[:40]
        return self._store.root / _FOLDER / f"{name}.json"


def _sweep(file: Path) -> int:
    try:
        gone = not Path(json.loads(file.read_bytes())[0]).exists()
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        gone = True
    if gone:
        file.unlink(missing_ok=True)
    return int(gone)
