"""Compiled regions on disk: an executable or a compile failure by signature; listing them and explaining misses."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from xrt.cache.records import Schema
from xrt.cache.signature import Signature
from xrt.errors import CacheError, CompileFailed, CompileRefused
from xrt.formats.container import Container, ContainerWriter

if TYPE_CHECKING:
    from xrt.cache.records import Store
    from xrt.formats.container import Buffer
    from xrt.graph import Function


_KIND = "cache entry"
_ENTRY, _EXECUTABLE = "entry", "executable"


@dataclass(frozen=True, slots=True)
class StoredFailure:
    """A stored compile failure."""

    kind: str
    """The class of the error: ``CompileRefused`` or ``CompileFailed``."""
    reason: str
    nodes: tuple[int, ...] = ()
    """Indices of the nodes that the engine named; not their names, because an equal Function may have others."""

    @classmethod
    def of(cls, error: CompileRefused | CompileFailed, function: Function) -> StoredFailure:
        node_names = set(getattr(error, "nodes", ()))
        indices = tuple(index for index, node in enumerate(function.nodes) if node.name in node_names)
        kind = "CompileRefused" if isinstance(error, CompileRefused) else "CompileFailed"
        return cls(kind, str(error), indices)

    def error(self, function: Function) -> CompileRefused | CompileFailed:
        """Create the error to raise for ``function``, which equals the Function that was not compiled."""
        text = f"{self.reason} (as at an earlier compile; `xrt cache gc --failures` forgets it)"
        if self.kind == "CompileFailed":
            return CompileFailed(text)
        return CompileRefused(text, [function.nodes[index].name for index in self.nodes if index < len(function.nodes)])


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The stored result for a signature: data of an engine, or a failure."""

    signature: Signature
    data: Buffer | None
    """The result of the engine's `save`; None for a failure."""
    failure: StoredFailure | None = None


def _read(path: Path) -> CacheEntry:
    container = Container.open(path, _KIND)
    match json.loads(bytes(container.section(_ENTRY))):
        case {"ingredients": list(pairs), "failure": failure}:
            signature = Signature(tuple((str(name), str(value)) for name, value in pairs))
        case _:
            raise CacheError("its entry has no signature or no failure")
    # A file that was copied or renamed by hand must not be loaded for another region.
    if signature.key != path.stem:
        raise CacheError("it is the entry of another signature")
    match failure:
        case None:
            return CacheEntry(signature, container.section(_EXECUTABLE))
        case {"kind": str(kind), "reason": str(reason), "nodes": list(nodes)} if kind in ("CompileRefused", "CompileFailed"):
            # Positions beyond the Function's nodes are dropped in `error`, where the Function is known.
            indices = tuple(index for index in nodes if type(index) is int and index >= 0)
            return CacheEntry(signature, None, StoredFailure(kind, reason, indices))
    raise ValueError(f"{failure!r:.200} is no failure")


def _write(file: BinaryIO, entry: CacheEntry) -> None:
    writer = ContainerWriter(file, _KIND)
    values = {"ingredients": entry.signature.ingredients, "failure": entry.failure and asdict(entry.failure)}
    writer.add(_ENTRY, json.dumps(values).encode())
    if entry.data is not None:
        writer.add(_EXECUTABLE, entry.data)
    writer.finish()


ENTRIES = Schema("entries", _KIND, _write, _read, suffix=".xrt", is_sharded=True)


# ---------------------------------------------------------------------- reports


@dataclass(frozen=True, slots=True)
class CacheListing:
    """An entry as `xrt cache list` shows it. ``entry`` has the types of the region's inputs, as text."""

    key: str
    size: int
    used: float
    """Time of the last read or write, in seconds since 1970."""
    engine: str
    version: str
    entry: str
    failure: str
    """Why the region did not compile; empty if it did."""
    damage: str = ""
    """Why the file cannot be read; the fields of the signature are then empty."""


def list_entries(store: Store) -> list[CacheListing]:
    """Read and list all entries, most recently used first. Raises OSError if the directory cannot be read."""
    listings = []
    for item in reversed(store.entries.items()):
        try:
            entry = ENTRIES.read(item.path)
        except (CacheError, OSError) as error:
            listings.append(CacheListing(item.key, item.size, item.used, "", "", "", "", str(error)))
            continue
        ingredients = dict(entry.signature.ingredients)
        engine = ingredients.get("engine", "").rpartition(".")[2]
        failure = entry.failure.reason if entry.failure else ""
        version, types = ingredients.get("version", ""), ingredients.get("entry", "")
        listings.append(CacheListing(item.key, item.size, item.used, engine, version, types, failure))
    return listings


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
        requested, stored = dict(self.signature.ingredients), dict(self.nearest.ingredients)
        return tuple((n, requested.get(n, ""), stored.get(n, "")) for n in self.signature.difference(self.nearest))


def explain_misses(store: Store, signatures: Iterable[Signature]) -> list[Miss]:
    """Find the signatures that have no readable entry, each with its nearest entry."""
    stored = []
    for item in store.entries.items():
        with suppress(CacheError, OSError):  # unreadable entries are never nearest
            stored.append(ENTRIES.read(item.path).signature)
    keys = {signature.key for signature in stored}
    return [Miss(signature, _find_nearest(signature, stored)) for signature in signatures if signature.key not in keys]


def _find_nearest(signature: Signature, stored: list[Signature]) -> Signature | None:
    """Find the stored signature with the fewest different ingredients. Of equal ones, prefer the same function, then engine."""

    def distance(other: Signature) -> tuple[int, bool, bool, str]:
        different = signature.difference(other)
        return len(different), "function" in different, "engine" in different, other.key

    return min(stored, key=distance, default=None)
