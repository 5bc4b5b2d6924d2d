"""What a forked child does with what its parent made: it renews the locks, and closes nothing.

A child has one thread. A lock that another thread of the parent held is held for ever there, and a native library that closes
a pool waits for threads that the child does not have: it hangs, or ends the process.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from typing import Any, ClassVar, TypeVar
from weakref import ReferenceType, WeakSet, ref

__all__ = ["get_generation", "leave_to_parent", "renew_after_fork", "why_left_behind"]

L = TypeVar("L")


class _Process:
    """What has been registered, and the number of forks before."""

    generation = 0
    locks: WeakSet[Any] = WeakSet()
    left: ClassVar[dict[int, ReferenceType[Any]]] = {}
    """By identity: values need not be hashable, and equal ones are not the same."""


def get_generation() -> int:
    """Count the forks between the first process and this one: what has another number was made by a parent."""
    return _Process.generation


def why_left_behind(generation: int) -> str:
    """Explain why what was made in that generation does not run here; empty where it does."""
    if generation == get_generation():
        return ""
    return "it was compiled before this process was forked, and the child lacks its threads; compile in the child, or spawn it"


def renew_after_fork(lock: L) -> L:
    """Return the lock, a Lock, RLock or Condition, which no thread holds in a forked child."""
    _Process.locks.add(lock)
    return lock


def leave_to_parent(value: object) -> None:
    """Keep a forked child from ever freeing the value: to close it is the parent's."""
    with suppress(TypeError):  # a class without weak references, of no library
        forget, key = _Process.left.pop, id(value)
        _Process.left[key] = ref(value, lambda _: forget(key, None))


def _begin_child() -> None:
    _Process.generation += 1
    for lock in list(_Process.locks):
        lock._at_fork_reinit()
    for reference in list(_Process.left.values()):
        if (value := reference()) is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))  # also at the end of the interpreter, which clears all modules
    _Process.left.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)
