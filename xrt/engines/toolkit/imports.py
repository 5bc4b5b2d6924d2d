"""Importing a library without the optional modules that it imports."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

__all__ = ["hide_module"]


class _Hidden:
    """Finds no module of one name for the thread that made it; other threads import it as ever."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.thread = threading.get_ident()

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> None:
        if name == self.name and threading.get_ident() == self.thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@contextmanager
def hide_module(name: str) -> Iterator[None]:
    """Let what this thread imports in the meantime do without an optional module, as if it were not installed.

    A module that was imported before stays as it is, and one that is hidden here can be imported afterwards.
    """
    finder = _Hidden(name)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
