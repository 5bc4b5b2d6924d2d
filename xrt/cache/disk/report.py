"""List the entries of a cache directory, and explain misses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xrt.cache.disk.store import CacheEntry
from xrt.errors import CacheError

if TYPE_CHECKING:
    from xrt.cache.disk.store import Item, Store
    from xrt.cache.signature import Signature

__all__ = ["CacheListing", "Miss", "explain_misses", "list_entries"]


@dataclass(frozen=True, slots=True)
class CacheListing:
    """An entry as shown in a list."""

    key: str
    size: int
    used: float
    """Time of the last read or write, in seconds since 1970."""
    engine: str
    version: str
    entry: str
    """Types of the region's inputs."""
    failure: str
    """Why the region did not compile; empty if it did."""
    damage: str = ""
    """Why the entry is unusable; empty if it is usable."""


def list_entries(store: Store) -> list[CacheListing]:
    """All entries, most recently used first. Reads every file; raises OSError."""
    return [_listed(item) for item in reversed(store.items())]


def _listed(item: Item) -> CacheListing:
    try:
        entry = CacheEntry.read(item.path)
    except (CacheError, OSError) as error:
        return CacheListing(item.key, item.size, item.used, "", "", "", "", str(error))
    known = dict(entry.signature.ingredients)
    engine = known.get("engine", "").rpartition(".")[2]
    failure = entry.failure.reason if entry.failure else ""
    return CacheListing(item.key, item.size, item.used, engine, known.get("version", ""), known.get("entry", ""), failure)


@dataclass(frozen=True, slots=True)
class Miss:
    """A signature without an entry, and the most similar entry."""

    signature: Signature
    nearest: Signature | None
    """The signature with the fewest different ingredients; None if no entry could be read."""

    @property
    def differences(self) -> tuple[tuple[str, str, str], ...]:
        """The ingredients that differ: name, requested value, value of the nearest entry."""
        if self.nearest is None:
            return ()
        mine, theirs = dict(self.signature.ingredients), dict(self.nearest.ingredients)
        return tuple((n, mine.get(n, ""), theirs.get(n, "")) for n in self.signature.difference(self.nearest))


def explain_misses(store: Store, signatures: Iterable[Signature]) -> list[Miss]:
    """The signatures that have no usable entry."""
    known = _signatures(store)
    keys = {signature.key for signature in known}
    return [Miss(one, _nearest(one, known)) for one in signatures if one.key not in keys]


def _signatures(store: Store) -> list[Signature]:
    found = []
    for item in store.items():
        try:
            found.append(CacheEntry.read(item.path).signature)
        except (CacheError, OSError):
            continue  # unreadable entries are never nearest
    return found


def _nearest(signature: Signature, known: list[Signature]) -> Signature | None:
    """The signature with the fewest different ingredients; ties prefer the same function, then the same engine."""
    return min(known, key=lambda other: _distance(signature, other), default=None)


def _distance(one: Signature, other: Signature) -> tuple[int, bool, bool, str]:
    different = one.difference(other)
    return len(different), "function" in different, "engine" in different, other.key
