"""Fork safety: a forked child gets fresh locks and never frees native objects of its parent.

A child has a single thread. A lock held by another thread of the parent would stay locked forever, and a native library that
shuts down its thread pool would wait for threads that do not exist in the child: it hangs or crashes.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from typing import Any, ClassVar, TypeVar
from weakref import ReferenceType, WeakSet, ref

Lock = TypeVar("Lock")


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
    with suppress(TypeError):  # classes that do not support weak references are not from native libraries
        objects, key = _Process.parent_objects, id(value)
        objects[key] = ref(value, lambda _: objects.pop(key, None))  # removed when the parent frees it


def _begin_child() -> None:
    _Process.generation += 1
    # The thread that holds a lock does not exist in the child, so nothing would ever release the lock.
    for lock in list(_Process.locks):
        lock._at_fork_reinit()
    for reference in list(_Process.parent_objects.values()):
        if (value := reference()) is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))  # an extra reference: not even interpreter shutdown frees it
    _Process.parent_objects.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)
