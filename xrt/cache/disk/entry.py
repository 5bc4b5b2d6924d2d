"""An entry: what was compiled for a signature, or why nothing was. As a value, and as a file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from xrt.cache.signature import Signature
from xrt.errors import BundleError, CacheError, CompileFailed, CompileRefused
from xrt.formats.container import Buffer, Container
from xrt.formats.wire_messages import read_cache_entry

if TYPE_CHECKING:
    from xrt.graph import Function

__all__ = ["CacheEntry", "StoredFailure"]

KIND = "cache entry"
FORMAT = 1
"""The version of the message that is written, and the only one that is read."""

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
            values = read_cache_entry(bytes(container.section(_ENTRY)))
            if values["format"] != FORMAT:
                raise BundleError(f"its entry has format {values['format']}, and this version of XRT reads {FORMAT}")
            entry = cls(_signature(values), *_content(values, container))
        except BundleError as error:
            raise CacheError(f"cache entry {path.name} cannot be used: {error}") from error
        if entry.signature.key != path.stem:
            raise CacheError(f"cache entry {path.name} cannot be used: it is the entry of another signature")
        return entry


def _signature(values: dict[str, Any]) -> Signature:
    return Signature(tuple((one["name"], one["value"]) for one in values["ingredients"]))


def _content(values: dict[str, Any], container: Container) -> tuple[memoryview | None, StoredFailure | None]:
    failure = values["failure"]
    if failure is None:
        return container.section(_EXECUTABLE), None
    if failure["kind"] not in _ERRORS:
        raise BundleError(f"it remembers a failure of an unknown kind {failure['kind']!r}")
    return None, StoredFailure(**failure)


def write_entry(file: BinaryIO, signature: Signature, content: Buffer | StoredFailure) -> None:
    """Write an entry's file."""
    from xrt.formats.container import ContainerWriter
    from xrt.formats.protobuf import write

    failure = asdict(content) if isinstance(content, StoredFailure) else None
    ingredients = [{"name": name, "value": value} for name, value in signature.ingredients]
    writer = ContainerWriter(file, KIND)
    writer.add(_ENTRY, write("CacheEntry", {"format": FORMAT, "ingredients": ingredients, "failure": failure}))
    if not isinstance(content, StoredFailure):
        writer.add(_EXECUTABLE, content)
    writer.finish()
