"""An entry: what was compiled for a signature, or why nothing was. As a value, and as a file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from xrt.cache.signature import Signature
from xrt.errors import BundleError, CacheError, CompileFailed, CompileRefused
from xrt.formats.container import Buffer, Container

if TYPE_CHECKING:
    from xrt.graph import Function

__all__ = ["CacheEntry", "StoredFailure"]

KIND = "cache entry"
FORMAT = 1
"""The version of the JSON that is written, and the only one that is read."""

_ENTRY, _EXECUTABLE = "entry", "executable"
_ERRORS: dict[str, type[CompileRefused | CompileFailed]] = {"CompileRefused": CompileRefused, "CompileFailed": CompileFailed}


@dataclass(frozen=True, slots=True)
class StoredFailure:
    """A compile that failed, as it is remembered."""

    kind: str
    """The class of the error: ``CompileRefused`` or ``CompileFailed``."""
    reason: str
    nodes: tuple[int, ...] = ()
    """Places, in the Function's order, of the nodes that the engine named: an equal Function may call them otherwise."""

    @classmethod
    def of(cls, error: CompileRefused | CompileFailed, function: Function) -> StoredFailure:
        named = set(getattr(error, "nodes", ()))
        places = tuple(place for place, node in enumerate(function.nodes) if node.name in named)
        kind = "CompileRefused" if isinstance(error, CompileRefused) else "CompileFailed"
        return cls(kind, str(error), places)

    def error(self, function: Function) -> CompileRefused | CompileFailed:
        """Return the error to raise again for an equal Function."""
        text = f"{self.reason} (as at an earlier compile; `xrt cache gc --failures` forgets it)"
        if self.kind == "CompileFailed":
            return CompileFailed(text)
        return CompileRefused(text, [function.nodes[place].name for place in self.nodes if place < len(function.nodes)])


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """What the cache has for a signature: an engine's bytes, or a failure."""

    signature: Signature
    data: memoryview | None
    """What the engine's `save` gave; None where the compile failed."""
    failure: StoredFailure | None = None

    @classmethod
    def read(cls, path: Path) -> CacheEntry:
        """Read and check an entry's file.

        Raises FileNotFoundError where there is none, another OSError where it cannot be read, and CacheError, which says
        what is wrong, for one that is damaged or that another version wrote.
        """
        try:
            container = Container.open(path, KIND)
            signature, failure = _parse(bytes(container.section(_ENTRY)))
            entry = cls(signature, None if failure else container.section(_EXECUTABLE), failure)
        except BundleError as error:
            raise CacheError(f"cache entry {path.name} cannot be used: {error}") from error
        if entry.signature.key != path.stem:
            raise CacheError(f"cache entry {path.name} cannot be used: it is the entry of another signature")
        return entry


def _parse(text: bytes) -> tuple[Signature, StoredFailure | None]:
    """Read the signature of an entry, and its failure if it has one; raises BundleError for another text."""
    try:
        match json.loads(text):
            case {"format": int(version)} if version != FORMAT:
                raise BundleError(f"its entry has format {version}, and this version of XRT reads {FORMAT}")
            case {"format": int(), "ingredients": list(pairs), "failure": failure}:
                ingredients = tuple((str(name), str(value)) for name, value in pairs)
                return Signature(ingredients), None if failure is None else _parse_failure(failure)
    except (ValueError, TypeError, RecursionError) as error:
        raise BundleError(f"its entry cannot be read: {error}") from error
    raise BundleError("its entry has no format, no signature or no failure")


def _parse_failure(failure: object) -> StoredFailure:
    match failure:
        case {"kind": str(kind), "reason": str(reason), "nodes": list(nodes)} if kind in _ERRORS:
            return StoredFailure(kind, reason, tuple(place for place in nodes if type(place) is int and place >= 0))
    raise ValueError(f"{failure!r:.200} is no failure")


def write_entry(file: BinaryIO, signature: Signature, content: Buffer | StoredFailure) -> None:
    """Write an entry's file."""
    from xrt.formats.container import ContainerWriter

    failure = asdict(content) if isinstance(content, StoredFailure) else None
    writer = ContainerWriter(file, KIND)
    values = {"format": FORMAT, "ingredients": signature.ingredients, "failure": failure}
    writer.add(_ENTRY, json.dumps(values).encode())
    if not isinstance(content, StoredFailure):
        writer.add(_EXECUTABLE, content)
    writer.finish()
