"""What is printed once although a plan has it many times: equal reasons, and regions of the same operators."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

__all__ = ["group", "list_some"]

GROUPED = 3
"""Equal things from which one line stands for all of them."""
SHOWN = 4
"""Names that such a line gives."""

T = TypeVar("T")


def group(things: Iterable[T], key: Callable[[T], Hashable], least: int = GROUPED) -> Iterator[Sequence[T]]:
    """Yield things of equal key together where there are at least so many, at the place of the first; each other alone."""
    listed = list(things)
    alike: dict[Hashable, list[T]] = {}
    for thing in listed:
        alike.setdefault(key(thing), []).append(thing)
    met: set[Hashable] = set()
    for thing in listed:
        kind = key(thing)
        if len(alike[kind]) < least:
            yield (thing,)
        elif kind not in met:
            met.add(kind)
            yield alike[kind]


def list_some(names: Sequence[str], most: int = SHOWN) -> str:
    """Return the names, the first of them where there are more.

    >>> list_some(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
