"""Python's garbage collector, paused while a large graph is built.

A graph is millions of small objects, none of them garbage and none in a cycle. The collector goes over all of them again and
again while they are made, which costs half as much as making them. The switch is the process's: so it is thrown only for as
long as a graph is built, and put back as it was found.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from xrt.forking import renew_after_fork

__all__ = ["LARGE", "pause_gc"]

LARGE = 50
"""Nodes from which building takes long enough for the collector to matter."""


class _Paused:
    """Who has paused the collector; the last one puts it back."""

    lock = renew_after_fork(threading.Lock())
    count = 0
    was_on = False


@contextmanager
def pause_gc(nodes: int) -> Iterator[None]:
    """Keep the collector from running meanwhile, where so many nodes are a large graph; from any number of threads."""
    if nodes < LARGE:
        yield
        return
    _pause()
    try:
        yield
    finally:
        _resume()


def _pause() -> None:
    with _Paused.lock:
        if not _Paused.count:
            _Paused.was_on = gc.isenabled()
            gc.disable()
        _Paused.count += 1


def _forget() -> None:
    """Put the collector back in a forked child, which has no other thread that builds."""
    if _Paused.count:
        _Paused.count = 0
        if _Paused.was_on:
            gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _resume() -> None:
    with _Paused.lock:
        _Paused.count = max(_Paused.count - 1, 0)
        if _Paused.count <= 0 and _Paused.was_on:
            gc.enable()
