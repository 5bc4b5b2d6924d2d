"""Support answers of engines per model on disk, which halves the time of a warm start.

Answering requires an engine to load its kernel tables and to try operators. Answers are stored by model, including names, and by
version, source and options of the engines; on any difference the engines are queried again.

    <directory>/xrt-cache-1/answers/....json
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xrt.cache.signature import CODE_UNKNOWN, Signature, make_engine_key
from xrt.errors import CacheError
from xrt.partition import SupportMatrix

if TYPE_CHECKING:
    from xrt.cache.disk.store import Store
    from xrt.engines import CompileContext, GraphCompiler
    from xrt.graph import Function

__all__ = ["SupportStore", "loads"]

FORMAT = 1
CHEAP = 1 << 20
"""Limit in bytes for weights hashed to look up answers; beyond it the hashes must be known already."""
MOST = 512
"""Limit on models with stored answers; beyond it the oldest is removed."""
MOST_BYTES = 16 << 20


class SupportStore:
    """Answers in a shared cache directory. `recall` and `keep` may raise OSError, and `recall` CacheError."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def recall(
        self, function: Function, engines: Sequence[GraphCompiler], homes: Sequence[str], context: CompileContext
    ) -> SupportMatrix | None:
        """Stored answers of the engines, in order, for these devices; None if unknown."""
        if not self._store.is_trusted() or not self._holds_any():
            return None
        path = self._path(function, engines, homes, context)
        if path is None or not path.is_file():
            return None
        with suppress(FileNotFoundError):  # removed by another process meanwhile
            self._store.check(path)
            with path.open("rb") as file:
                data = file.read(MOST_BYTES + 1)
            return loads(data, len(function.nodes), len(engines))
        return None

    def keep(
        self,
        capability: SupportMatrix,
        function: Function,
        engines: Sequence[GraphCompiler],
        homes: Sequence[str],
        context: CompileContext,
    ) -> None:
        """Store the answers of the engines."""
        path = self._path(function, engines, homes, context)
        if path is None or not self._store.is_trusted():
            return
        facts = {"format": FORMAT, "questions": list(capability.questions), "answers": capability.answers}
        data = json.dumps(facts).encode()
        if len(data) <= MOST_BYTES:
            self._store.place(path, lambda file: file.write(data))
            self._make_room(path.parent)

    def _holds_any(self) -> bool:
        """Whether any answers are stored; if not, hashing the Function is pointless."""
        try:
            with os.scandir(self._store.root / "answers") as found:
                return any(found)
        except (FileNotFoundError, NotADirectoryError):
            return False

    @staticmethod
    def _make_room(folder: Path) -> None:
        if folder.is_symlink():
            return  # never remove files outside the cache directory
        kept = sorted(_written(folder))
        for _, path in kept[: max(len(kept) - MOST, 0)]:
            path.unlink(missing_ok=True)

    def _path(
        self, function: Function, engines: Sequence[GraphCompiler], homes: Sequence[str], context: CompileContext
    ) -> Path | None:
        """The file of the answers; None if hashing is too expensive or an engine's code is unknown."""
        if sum(one.nbytes for one in function.constants.values() if not one.is_hashed) > CHEAP:
            return None
        asked = [make_engine_key(engine, context) for engine in engines]
        if any(dict(one.ingredients)["code"] == CODE_UNKNOWN for one in asked):
            return None
        own = (("answers", str(FORMAT)), ("function", function.fingerprint), ("names", _names(function)))
        contexts = tuple(
            (f"{home} {name}", value) for home, one in zip(homes, asked, strict=True) for name, value in one.ingredients
        )
        return self._store.root / "answers" / f"{Signature((*own, *contexts)).key}.json"


def _written(folder: Path) -> Iterator[tuple[float, Path]]:
    """Yield files with modification times; files removed concurrently are skipped."""
    with suppress(FileNotFoundError):
        for path in folder.iterdir():
            with suppress(FileNotFoundError):
                yield path.lstat().st_mtime, path


def _names(function: Function) -> str:
    """Hash of node and value names, which reasons may quote."""
    names = [name for node in function.nodes for name in (node.name, *node.uses, *node.outputs)]
    return hashlib.sha256("\0".join(names).encode("utf-8", "surrogatepass")).hexdigest()


def loads(data: bytes, nodes: int, engines: int) -> SupportMatrix:
    """Parse stored answers; raises CacheError unless they match the number of nodes and engines."""
    try:
        facts: Any = json.loads(data)
        questions, answers = facts["questions"], facts["answers"]
        is_whole = facts["format"] == FORMAT and len(data) <= MOST_BYTES and len(questions) == nodes
        are_lists = all(type(one) is list for one in (questions, answers, *answers))
        are_numbers = all(type(one) is int and 0 <= one < len(answers) for one in questions)
        are_rows = all(len(row) == engines and all(map(_is_answer, row)) for row in answers)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CacheError(f"it holds no answers of engines: {type(error).__name__}: {error}") from error
    if not (is_whole and are_lists and are_numbers and are_rows):
        raise CacheError("it holds no answers of these engines about this model")
    return SupportMatrix(array("l", questions), tuple(tuple(row) for row in answers))


def _is_answer(value: object) -> bool:
    """Whether it is a reason or None."""
    return value is None or (isinstance(value, str) and value != "")
