"""Fork safety: a forked child gets fresh locks and never frees native objects of its parent.

A child has a single thread. A lock held by another thread of the parent would stay locked forever, and a native library that
shuts down its thread pool would wait for threads that do not exist in the child: it hangs or crashes.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, TypeVar
from weakref import ReferenceType, WeakSet, ref

Lock = TypeVar("Lock")
FORK_TIMEOUT_SECONDS = 20.0
"""How long a fork waits for other threads that compile. Then it continues, because such a thread may wait for the fork."""
_busy: Counter[int] = Counter()
"""In how many blocks of `delay_forks` a thread is, by its identifier."""
_busy_changed = threading.Condition()


@contextmanager
def delay_forks() -> Iterator[None]:
    """Delay forks by other threads until the block ends.

    The block may import modules and call libraries. If another thread forked meanwhile, their locks would stay locked in the
    child.
    """
    thread = threading.get_ident()
    with _busy_changed:
        _busy[thread] += 1
    try:
        yield
    finally:
        with _busy_changed:
            _busy[thread] -= 1
            if not _busy[thread]:
                del _busy[thread]
            _busy_changed.notify_all()


def _wait_for_busy_threads() -> None:
    """Wait until no other thread is in `delay_forks`, and keep other threads from entering it until the fork is done."""
    _busy_changed.acquire()
    _busy_changed.wait_for(lambda: _busy.keys() <= {threading.get_ident()}, FORK_TIMEOUT_SECONDS)


class _Process:
    """State of this process: the registered objects, and the number of forks since the first process."""

    generation = 0
    locks: WeakSet[Any] = WeakSet()
    parent_objects: ClassVar[dict[int, ReferenceType[Any]]] = {}
    """Objects to leak in a child, by ``id``: native objects may not be hashable, and equal objects are not the same."""


def get_generation() -> int:
    """Count the forks between the first process and this process. An object of another generation belongs to a parent process."""
    return _Process.generation


def why_unusable_after_fork(generation: int) -> str:
    """Explain why an object that was made in ``generation`` cannot be used in this process; empty if it can."""
    if generation == get_generation():
        return ""
    return "it was compiled before this process was forked, and the child lacks its threads; compile in the child, or spawn it"


def renew_after_fork(lock: Lock) -> Lock:
    """Register a Lock, RLock or Condition, so that it is unlocked in a forked child; return it."""
    _Process.locks.add(lock)
    return lock


def leak_in_child(value: object) -> None:
    """Register a native object that a forked child must never free, because only the parent may close it."""
    with suppress(TypeError):  # classes without weak references are not from native libraries
        objects, key = _Process.parent_objects, id(value)
        objects[key] = ref(value, lambda _: objects.pop(key, None))


def _begin_child() -> None:
    for thread in _busy.keys() - {threading.get_ident()}:  # these threads do not exist here
        del _busy[thread]
    _busy_changed.release()
    _Process.generation += 1
    # The thread that holds a lock does not exist in the child, so nothing would ever release the lock.
    for lock in list(_Process.locks):
        lock._at_fork_reinit()
    for reference in list(_Process.parent_objects.values()):
        if (value := reference()) is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))  # an extra reference: not even interpreter shutdown frees it
    _Process.parent_objects.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_busy_threads, after_in_parent=_busy_changed.release, after_in_child=_begin_child)
