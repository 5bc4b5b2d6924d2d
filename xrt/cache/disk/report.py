"""The content of the cache, and why something is not in it, as plain data."""

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
    """An entry, as a list shows it."""

    key: str
    size: int
    used: float
    """When it was last read or written, in seconds since 1970."""
    engine: str
    version: str
    entry: str
    """Types of the region's inputs."""
    failure: str
    """Why the region did not compile; empty where it did."""
    damage: str = ""
    """Why the entry cannot be used; empty where it can."""


def list_entries(store: Store) -> list[CacheListing]:
    """Return the entries, the most recently used first. Reads every entry's file; raises OSError."""
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
    """A signature that has no entry, and the entry that is nearest to it."""

    signature: Signature
    nearest: Signature | None
    """The signature of the entry with the fewest other ingredients; None where there is no entry that could be read."""

    @property
    def differences(self) -> tuple[tuple[str, str, str], ...]:
        """Ingredients that differ: name, what is asked for, what the nearest entry has."""
        if self.nearest is None:
            return ()
        mine, theirs = dict(self.signature.ingredients), dict(self.nearest.ingredients)
        return tuple((n, mine.get(n, ""), theirs.get(n, "")) for n in self.signature.difference(self.nearest))


def explain_misses(store: Store, signatures: Iterable[Signature]) -> list[Miss]:
    """Return those of the signatures that have no entry that can be used."""
    known = _signatures(store)
    keys = {signature.key for signature in known}
    return [Miss(one, _nearest(one, known)) for one in signatures if one.key not in keys]


def _signatures(store: Store) -> list[Signature]:
    found = []
    for item in store.items():
        try:
            found.append(CacheEntry.read(item.path).signature)
        except (CacheError, OSError):
            continue  # what cannot be read is near to nothing
    return found


def _nearest(signature: Signature, known: list[Signature]) -> Signature | None:
    """Return the signature with the fewest other ingredients; among equals that of the same function, then engine."""
    return min(known, key=lambda other: _distance(signature, other), default=None)


def _distance(one: Signature, other: Signature) -> tuple[int, bool, bool, str]:
    different = one.difference(other)
    return len(different), "function" in different, "engine" in different, other.key
