"""The in-memory LRU cache of executables, which compiles each signature once and may have a second tier on disk."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol, TypeAlias

from xrt.cache.disk import CompileRequest, DiskStatistics, expand_user, open_disk_tier
from xrt.errors import OptionError
from xrt.forking import get_generation, leak_in_child, renew_after_fork

if TYPE_CHECKING:
    from xrt.cache.signature import Signature
    from xrt.engines import Executable


Close: TypeAlias = Callable[[], object]
EXIT_TIMEOUT_SECONDS = 10.0
"""How long the exit of the process waits for executables that are still being closed."""
_log = logging.getLogger(__name__)


class _Closer:
    """The background thread that closes executables, started on first use."""

    def __init__(self) -> None:
        # Re-entrant: garbage collection inside this class may close another executable.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self.queue: SimpleQueue[Close | None] = SimpleQueue()

    def start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="xrt-close", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while (close := self.queue.get()) is not None:
            try:
                close()
            except Exception:  # noqa: BLE001  # libraries may raise anything, and no call waits for the result
                _log.warning("an executable could not be closed", exc_info=True)
            del close  # otherwise this variable keeps the executable alive while the thread waits for the next one

    def finish(self) -> None:
        """Stop the thread before the process exits, because the exit must not interrupt it inside a native library."""
        if self._thread is not None:
            self.queue.put(None)
            self._thread.join(EXIT_TIMEOUT_SECONDS)


_closer = _Closer()


def close_in_background(close: Close) -> None:
    """Call ``close`` in the background thread; exceptions are logged."""
    _closer.start()
    _closer.queue.put(close)


def close_when_collected(user: object, close: Close) -> None:
    """Call ``close`` in the background thread once ``user`` is garbage-collected; a call in progress keeps ``user`` alive."""
    _closer.start()  # now, because a thread must not be started during garbage collection
    weakref.finalize(user, _closer.queue.put, close).atexit = False


def call_all(closes: Iterable[Close]) -> None:
    """Call all functions in reverse order, even if some of them raise; then raise the last error, if any."""
    with ExitStack() as stack:
        for close in closes:
            stack.callback(close)


def wait_until_closed(seconds: float | None = None) -> bool:
    """Wait until all pending closes are done; return False after a timeout."""
    done = threading.Event()
    close_in_background(done.set)
    return done.wait(seconds)


atexit.register(_closer.finish)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_closer.__init__)  # type: ignore[misc]  # a forked child does not inherit the thread

MAX_EXECUTABLES = 256
"""Default limit on the number of executables in a cache. An evicted executable stays open while a module uses it."""
MAX_BYTES = 1 << 30
"""Default limit on the bytes of all executables in a cache that no module uses."""
MIN_BYTES = 2 << 20
"""Minimum bytes counted per executable, because few libraries report all their memory, such as code and descriptors."""
MAX_IDLE_THREADS = max(32, 8 * (os.cpu_count() or 1))
"""Limit on the threads that cached executables keep between calls: enough for eight executables that use all cores."""


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """Counts since the creation of the cache."""

    hits: int
    misses: int
    """Requests whose executable was not in memory, or that forced a compile."""
    failures: int
    evictions: int
    size: int
    """Number of executables in the cache now."""
    disk: DiskStatistics = field(default_factory=DiskStatistics)


def count_bytes(executable: Executable) -> int:
    """Count the bytes that an executable holds between calls, as its engine reports them; at least `MIN_BYTES`."""
    return max(MIN_BYTES, sum(use.nbytes or 0 for use in executable.memory() or () if not (use.per_call or use.shared)))


class Tier(Protocol):
    """Where a cache looks for an executable that is not in memory: a `DiskTier` or a bundle."""

    @property
    def statistics(self) -> DiskStatistics:
        """Counts since the creation of the tier."""

    def get_or_compile(
        self, signature: Signature, request: CompileRequest, make: Callable[[], Executable], *, force: bool = False
    ) -> Executable:
        """Load the signature's executable if it is stored, else create it by ``make``. Returns it ready to run."""


@dataclass(slots=True, eq=False)
class _Entry:
    """An executable that is cached or being compiled."""

    future: Future[Executable] = field(default_factory=Future)
    holders: int = 1
    """Number of leases of the executable, plus one while the cache contains the entry."""
    nbytes: int = 0
    """Bytes held between calls; 0 while the executable is not ready."""
    generation: int = field(default_factory=get_generation)
    """Fork generation of the process that compiles the executable."""

    @property
    def executable(self) -> Executable | None:
        """The executable; None during the compile and if the compile failed."""
        return self.future.result() if self.future.done() and self.future.exception() is None else None

    @property
    def idle_threads(self) -> int:
        """Number of threads that the executable keeps alive between calls; 0 during the compile."""
        return 0 if (executable := self.executable) is None else executable.idle_threads

    @property
    def close(self) -> Callable[[], None] | None:
        """The function that closes the executable; None without an executable, and in a forked child, as only its parent may."""
        executable = self.executable
        return executable.close if executable is not None and self.generation == get_generation() else None

    @property
    def is_orphaned(self) -> bool:
        """Whether the entry is unusable in a forked child, because threads of the executable or its compile are in the parent."""
        executable = self.executable
        return self.generation != get_generation() and not (executable is not None and executable.survives_fork)


class Lease:
    """A reference to an executable, which is closed after its last lease is released."""

    def __init__(self, cache: CompileCache, entry: _Entry) -> None:
        self._entry: _Entry | None = None  # if result() raises, there is nothing to release
        self.executable: Executable = entry.future.result()
        self.nbytes = entry.nbytes
        """Bytes that the executable holds between calls."""
        self._cache = cache
        self._entry = entry

    def release(self) -> None:
        """Release the executable; further calls have no effect."""
        entry, self._entry = self._entry, None
        if entry is not None:
            self._cache._release(entry)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():  # at interpreter shutdown module globals are None
            self.release()


class CompileCache:
    """Executables by signature. Thread-safe.

    An executable that was evicted, or replaced by a forced compile, is closed after its last lease is released.
    """

    def __init__(self, capacity: int = MAX_EXECUTABLES, disk: Tier | None = None, max_bytes: int = MAX_BYTES) -> None:
        """Limit the number of executables to ``capacity``, and the bytes of executables without a lease to ``max_bytes``.

        The least recently used executables are evicted first. ``disk`` is searched for executables that are not in memory.
        """
        if capacity < 1:
            raise OptionError(f"the capacity of a cache must be at least 1; got {capacity}")
        self.capacity = capacity
        self.max_bytes = max_bytes
        self.disk = disk
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        # Re-entrant: garbage collection inside this class may release a lease.
        self._lock = renew_after_fork(threading.RLock())
        self._hits = self._misses = self._failures = self._evictions = 0

    def lease(
        self,
        signature: Signature,
        make: Callable[[], Executable],
        *,
        force: bool = False,
        request: CompileRequest | None = None,
    ) -> Lease:
        """Lease the signature's executable; call ``make`` if it is not cached, or in any case with ``force``.

        Threads that request the same signature wait for the first thread. If its ``make`` raises an exception, all of them raise
        it, and nothing is cached in memory. The disk tier is used only with a ``request``, which an engine needs for loading.
        """
        key = signature.memory_key
        entry, is_maker = self._claim(key, force)
        if is_maker:
            if self.disk is not None and request is not None:
                make = partial(self.disk.get_or_compile, signature, request, make, force=force)
            self._make(key, entry, make)
        try:
            return Lease(self, entry)
        except BaseException:
            self._release(entry)
            raise

    def _claim(self, key: str, force: bool) -> tuple[_Entry, bool]:
        """Find or create the entry of a key, and count the caller as a holder. Also return True if the entry was created.

        The caller must compile the executable of a new entry, and wait for the future of an existing entry.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and not force and not entry.is_orphaned:
                self._hits += 1
                self._entries.move_to_end(key)
                entry.holders += 1
                return entry, False
            self._misses += 1
            if entry is not None:
                self._drop(key)
            # Two holders: the cache and the caller.
            entry = self._entries[key] = _Entry(holders=2)
            self._shrink()
            return entry, True

    def _make(self, key: str, entry: _Entry, make: Callable[[], Executable]) -> None:
        try:
            executable = make()
            leak_in_child(executable)
            try:
                entry.nbytes = count_bytes(executable)
            except BaseException:  # no lease exists yet that would close it
                executable.close()
                raise
            entry.future.set_result(executable)
        except BaseException as error:  # noqa: BLE001  # the future raises it in all waiting threads
            with self._lock:
                self._failures += 1
                if self._entries.get(key) is entry:
                    self._drop(key)
            entry.future.set_exception(error)
        else:
            with self._lock:
                self._shrink()

    def _shrink(self) -> None:
        """Evict entries until all limits are met; the caller holds the lock. Bytes of leased executables do not count."""
        while len(self._entries) > self.capacity:
            self._evict(next(iter(self._entries)))
        threads = {key: entry.idle_threads for key, entry in self._entries.items() if entry.idle_threads}
        self._evict_surplus(threads, MAX_IDLE_THREADS)
        self._evict_surplus({key: entry.nbytes for key, entry in self._entries.items() if entry.holders == 1}, self.max_bytes)

    def _evict_surplus(self, amounts: Mapping[str, int], limit: int) -> None:
        """Evict entries, oldest first, until the sum of ``amounts`` (by key) is at most ``limit``; never evict the newest."""
        surplus = sum(amounts.values()) - limit
        for key in list(amounts)[:-1]:
            if surplus <= 0:
                break
            surplus -= amounts[key]
            self._evict(key)

    def _evict(self, key: str) -> None:
        self._evictions += 1
        self._drop(key)

    def _drop(self, key: str) -> None:
        """Remove an entry. The caller holds the lock, so the executable is closed in the background."""
        entry = self._entries.pop(key)
        entry.holders -= 1
        if entry.holders == 0 and (close := entry.close) is not None:
            close_in_background(close)

    def _release(self, entry: _Entry) -> None:
        """Remove one holder of an entry; close the executable if it was the last."""
        with self._lock:
            entry.holders -= 1
            is_unused = entry.holders == 0
            self._shrink()
        if is_unused and (close := entry.close) is not None:
            close()

    def clear(self) -> None:
        """Remove all executables. Those without a lease are closed now, leased ones when their last lease is released."""
        with self._lock:
            entries = list(self._entries.values())
            self._entries.clear()
        call_all(partial(self._release, entry) for entry in entries)

    def __contains__(self, signature: Signature) -> bool:
        with self._lock:
            return signature.memory_key in self._entries

    @property
    def statistics(self) -> CacheStatistics:
        with self._lock:
            disk = self.disk.statistics if self.disk else DiskStatistics()
            return CacheStatistics(self._hits, self._misses, self._failures, self._evictions, len(self._entries), disk)


@lru_cache(maxsize=1)
def default_cache() -> CompileCache:
    """Get the cache of all modules that were created without ``cache=``. The environment configures its disk tier."""
    return CompileCache(disk=open_disk_tier())


def open_cache(cache: CompileCache | str | os.PathLike[str] | None) -> CompileCache:
    """Open the cache for a module's argument ``cache``: a cache, a directory, or None for `default_cache`."""
    if cache is None:
        return default_cache()
    if isinstance(cache, CompileCache):
        return cache
    if isinstance(cache, str | os.PathLike):
        return _open_cache_in(expand_user(cache, "cache"))
    raise OptionError(f"cache must be an xrt.cache.CompileCache, or the directory of one; got {cache!r}")


@lru_cache(maxsize=16)
def _open_cache_in(directory: Path) -> CompileCache:
    return CompileCache(disk=open_disk_tier(directory=directory))
