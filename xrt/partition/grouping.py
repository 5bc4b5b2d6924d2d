"""What is printed once although a plan has it many times: equal reasons, and regions of the same operators."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from xrt.partition.plan import Reason

__all__ = ["ReasonGroup", "group", "group_reasons", "list_some"]

GROUPED = 3
"""Number of equal things from which one line represents all of them."""
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


@dataclass(frozen=True, slots=True)
class ReasonGroup:
    """Nodes that are not on some engines for the same reason."""

    reasons: tuple[Reason, ...]
    """One for each node, of the first of the engines."""
    engines: tuple[str, ...]

    @property
    def summary(self) -> str:
        """What they have in common: ``52 nodes not on ort, xla: placed by measurement``."""
        count = len(self.reasons)
        return f"{count} node{'s' * (count != 1)} not on {', '.join(self.engines)}: {self.reasons[0].text}"

    @property
    def nodes(self) -> str:
        """Some of the nodes' names."""
        return list_some([reason.node for reason in self.reasons])


def group_reasons(reasons: Iterable[Reason], least: int = GROUPED) -> list[ReasonGroup]:
    """Return the reasons in groups: nodes of equal engine and reason, where there are at least so many, else each alone.

    Groups of the same nodes and the same reason on several engines become one.
    """
    merged: dict[tuple[str, tuple[str, ...]], ReasonGroup] = {}
    for alike in group(reasons, lambda reason: (reason.engine, reason.text), least):
        key = alike[0].text, tuple(reason.node for reason in alike)
        known = merged.get(key)
        engines = (*known.engines, alike[0].engine) if known else (alike[0].engine,)
        merged[key] = ReasonGroup(known.reasons if known else tuple(alike), engines)
    return list(merged.values())


def list_some(names: Sequence[str], most: int = SHOWN) -> str:
    """Return the names, the first of them where there are more.

    >>> list_some(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
