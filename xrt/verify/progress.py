"""Who wants to know how far a long search is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

__all__ = ["Progress", "ignore_progress"]

Progress: TypeAlias = Callable[[int, int], None]
"""Called with two numbers, which the function that calls it explains."""


def ignore_progress(first: int, second: int) -> None:
    """Take no note."""
