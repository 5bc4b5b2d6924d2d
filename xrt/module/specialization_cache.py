"""The specializations of a module, bounded by the bytes that they hold, and the prepared calls that lead to them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any

from xrt.cache.closing import close_in_background
from xrt.cache.memory import LEAST_BYTES, THREADS, count_bytes
from xrt.errors import SignatureWarning, warn
from xrt.forking import renew_after_fork

if TYPE_CHECKING:
    from xrt.module.dispatch import FastPath
    from xrt.module.specialization import Specialization
    from xrt.runtime import Program

__all__ = ["NO_LIMIT", "SpecializationCache", "warn_of_signatures"]


def warn_of_signatures(limit: int) -> None:
    """Issue the SignatureWarning of a module that drops what it has compiled."""
    warn(
        f"what this module has compiled for its signatures holds more than max_specialization_bytes={limit}, or {THREADS} "
        f"threads, and it drops the least recently used; give inputs of fewer shapes, or engines that keep symbolic dims, or "
        f"raise the limit",
        SignatureWarning,
    )


NO_LIMIT = 1 << 62
"""The limit of a module that keeps all that it compiles, to save it."""
MAX_READY = 1024
"""Prepared calls that a module keeps; one more drops the least recently used. They are small: one program serves many."""


@dataclass(eq=False, slots=True)
class _Entry:
    key: object
    build: Specialization
    program: Program | None = None
    """What was counted."""
    prepared: set[object] = field(default_factory=set)
    """The types and shapes of its prepared calls."""


@dataclass(eq=False, slots=True)
class _Shared:
    """An executable, which several programs may run."""

    nbytes: int
    threads: int
    users: int = 0


class SpecializationCache:
    """Specializations by what of the inputs they depend on, least recently used first. Lookups take constant time.

    Executables count once, however many specializations run them. A specialization that is dropped is closed in the background
    when no call uses it any more.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.max_threads = THREADS
        """Threads that executables may keep for themselves, all together."""
        self._entries: OrderedDict[object, _Entry] = OrderedDict()
        self._prepared: OrderedDict[object, tuple[FastPath, _Entry]] = OrderedDict()
        self._executables: dict[int, _Shared] = {}
        self._lock = renew_after_fork(RLock())
        self._dropped = self._warned = False
        self.nbytes = self.idle_threads = 0
        """What the executables hold between calls; each counts at least `LEAST_BYTES`."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Specialization]:
        with self._lock:
            return iter([entry.build for entry in self._entries.values()])

    def get(self, key: object) -> Specialization | None:
        """Return the specialization for a key, which is the most recently used then; None where there is none."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry.build

    def put(self, key: object, build: Specialization) -> None:
        """Keep a specialization, in place of one for the same key."""
        with self._lock:
            if key in self._entries:
                self._drop(key)
            self._entries[key] = _Entry(key, build)
            build.key = key
            self._shrink(build)
        self._warn()

    def remove(self, build: Specialization) -> None:
        """Drop a specialization if it is kept."""
        with self._lock:
            entry = self._entries.get(build.key)
            if entry is not None and entry.build is build:
                self._drop(build.key)

    def to_dict(self) -> dict[Any, Specialization]:
        """Return all specializations by their keys."""
        with self._lock:
            return {key: entry.build for key, entry in self._entries.items()}

    def count(self, build: Specialization, program: Program) -> bool:
        """Count what a compiled program holds, and drop what was not used for longest beyond the bounds; never this one.

        Return whether the program is new here.
        """
        with self._lock:
            entry = self._entries.get(build.key)
            if entry is None or entry.build is not build:
                return True  # it was dropped, or replaced, meanwhile
            if entry.program is program:
                return False
            self._uncount(entry)
            entry.program = program
            for executable in {id(one): one for one in program.executables}.values():
                shared = self._executables.get(id(executable))
                if shared is None:
                    shared = self._executables[id(executable)] = _Shared(count_bytes(executable), executable.idle_threads)
                    self._add(shared, 1)
                shared.users += 1
            self._shrink(build)
        self._warn()
        return True

    def _warn(self) -> None:
        """Issue the SignatureWarning, once."""
        if self._dropped and not self._warned:
            self._warned = True
            warn_of_signatures(self._max_bytes)

    def _add(self, shared: _Shared, sign: int) -> None:
        self.nbytes += sign * shared.nbytes
        self.idle_threads += sign * shared.threads

    def _uncount(self, entry: _Entry) -> None:
        program, entry.program = entry.program, None
        for number in {id(one) for one in program.executables} if program is not None else ():
            shared = self._executables[number]
            shared.users -= 1
            if not shared.users:
                self._add(self._executables.pop(number), -1)

    def _shrink(self, newest: Specialization) -> None:
        while self._is_full:
            key = next((key for key, entry in self._entries.items() if entry.build is not newest), None)
            if key is None:
                return
            self._drop(key)
            self._dropped = True

    @property
    def _is_full(self) -> bool:
        has_threads = self.idle_threads > self.max_threads and self._max_bytes < NO_LIMIT
        return has_threads or max(self.nbytes, len(self._entries) * LEAST_BYTES) > self._max_bytes

    def _drop(self, key: object) -> None:
        entry = self._entries.pop(key)
        self._uncount(entry)
        self._forget(entry)
        entry.build.close_in_background()
        close_in_background(partial(_ignore, entry))  # freeing a large graph takes a while, too

    def clear(self) -> None:
        """Drop all; the last user of each closes it."""
        with self._lock:
            self._entries.clear()
            self._prepared.clear()
            self._executables.clear()
            self.nbytes = self.idle_threads = 0

    # ------------------------------------------------------------------ prepared calls

    def prepare(self, types: object, call: FastPath) -> bool:
        """Keep a prepared call for inputs of these types and shapes; return whether it leads to a specialization that is kept."""
        with self._lock:
            entry = self._entries.get(call.build.key) if call.build is not None else None
            if entry is None or entry.build is not call.build:
                return False  # it was dropped, or replaced, meanwhile
            self._prepared[types] = call, entry
            self._prepared.move_to_end(types)
            entry.prepared.add(types)
            while len(self._prepared) > MAX_READY:
                oldest, (_, owner) = self._prepared.popitem(last=False)
                owner.prepared.discard(oldest)
            return True

    def find_prepared(self, types: object) -> FastPath | None:
        """Return the prepared call for inputs of these types and shapes. Takes no lock: other threads' calls do not delay it."""
        found = self._prepared.get(types)
        if found is None:
            return None
        try:
            self._prepared.move_to_end(types)
            self._entries.move_to_end(found[1].key)
        except KeyError:
            pass  # another thread has dropped it just now; it is whole as long as it is in use
        return found[0]

    def forget_calls(self) -> None:
        """Drop all prepared calls."""
        with self._lock:
            for entry in self._entries.values():
                self._forget(entry)

    def _forget(self, entry: _Entry) -> None:
        for types in entry.prepared:
            self._prepared.pop(types, None)
        entry.prepared.clear()


def _ignore(_: object) -> None:
    """Take the last reference."""
