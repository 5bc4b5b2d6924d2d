"""Compiled regions on disk: the file format, reports about the stored files, and explanations of cache misses."""

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
    kind: str
    """The class of the error: ``CompileRefused`` or ``CompileFailed``."""
    reason: str
    nodes: tuple[int, ...] = ()
    """Indices of the nodes to blame. They are not stored by name, because an equal Function may have other names."""

    @classmethod
    def from_error(cls, error: CompileRefused | CompileFailed, function: Function) -> StoredFailure:
        node_names = set(getattr(error, "nodes", ()))
        indices = tuple(index for index, node in enumerate(function.nodes) if node.name in node_names)
        kind = "CompileRefused" if isinstance(error, CompileRefused) else "CompileFailed"
        return cls(kind, str(error), indices)

    def make_error(self, function: Function) -> CompileRefused | CompileFailed:
        """Create the error to raise instead of compiling ``function`` again."""
        text = f"{self.reason} (as at an earlier compile; `xrt cache gc --failures` forgets it)"
        if self.kind == "CompileFailed":
            return CompileFailed(text)
        return CompileRefused(text, [function.nodes[index].name for index in self.nodes if index < len(function.nodes)])


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The stored result of a compile: an executable or a failure."""

    signature: Signature
    data: Buffer | None
    """The executable as bytes, from the engine's `save`; None for a failure."""
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
        raise CacheError("its name is not the key of its signature")
    match failure:
        case None:
            return CacheEntry(signature, container.section(_EXECUTABLE))
        case {"kind": str(kind), "reason": str(reason), "nodes": list(nodes)} if kind in ("CompileRefused", "CompileFailed"):
            # `make_error` drops indices beyond the nodes of the Function, which is not known here.
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


@dataclass(frozen=True, slots=True)
class CacheListing:
    """A stored compile result as `xrt cache list` shows it."""

    key: str
    size: int
    used: float
    """Time of the last read or write, in seconds since 1970."""
    engine: str
    version: str
    entry: str
    """Types of the region's inputs, as text."""
    failure: str
    """Why the region did not compile; empty if it did."""
    damage: str = ""
    """Why the file cannot be read; then the other text fields are empty. An empty text if it can be read."""


def list_entries(store: Store) -> list[CacheListing]:
    """List all stored compile results, most recently used first. Raises OSError if the directory cannot be read."""
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
    """A signature that is not stored, and the most similar signature that is."""

    signature: Signature
    nearest: Signature | None
    """The stored signature with the fewest different ingredients; None if no file could be read."""

    @property
    def differences(self) -> tuple[tuple[str, str, str], ...]:
        """The ingredients that differ, as (name, requested value, value of the nearest signature)."""
        if self.nearest is None:
            return ()
        requested, stored = dict(self.signature.ingredients), dict(self.nearest.ingredients)
        return tuple((n, requested.get(n, ""), stored.get(n, "")) for n in self.signature.list_differences(self.nearest))


def explain_misses(store: Store, signatures: Iterable[Signature]) -> list[Miss]:
    """Find the signatures for which no readable file is stored, each with the most similar stored signature."""
    stored = []
    for item in store.entries.items():
        with suppress(CacheError, OSError):  # an unreadable file has no signature to compare
            stored.append(ENTRIES.read(item.path).signature)
    keys = {signature.key for signature in stored}
    return [Miss(signature, _find_nearest(signature, stored)) for signature in signatures if signature.key not in keys]


def _find_nearest(signature: Signature, stored: list[Signature]) -> Signature | None:
    """Find the stored signature with the fewest different ingredients; on a tie, prefer the same function, then engine."""

    def measure_distance(other: Signature) -> tuple[int, bool, bool, str]:
        different = signature.list_differences(other)
        return len(different), "function" in different, "engine" in different, other.key

    return min(stored, key=measure_distance, default=None)
