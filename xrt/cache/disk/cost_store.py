"""Measurements on disk: cost tables, placement decisions, support answers and engine statuses.

    <directory>/xrt-cache-1/costs/....json        measured region costs of one engine, version and thread budget
    <directory>/xrt-cache-1/decisions/....json    a placement decision
    <directory>/xrt-cache-1/questions/....json    support answers of one engine and version, by kind of node
    <directory>/xrt-cache-1/engines/....json      which engines are ready, valid for the installed packages

Files are written atomically. A file that is damaged, or belongs to another user, causes a warning and is measured again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import stat
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from xrt.cache.disk.store import Store
from xrt.cache.disk.tier import DiskTier
from xrt.cache.signature import CODE_UNKNOWN, Signature, make_engine_key
from xrt.engines.contract.registry import EngineStatus, State
from xrt.errors import CacheError, CacheWarning, PlacementFileError, warn
from xrt.formats.placement_file import PlacementFile, dumps, loads
from xrt.partition.cost_table import CostTable

if TYPE_CHECKING:
    from xrt.cache.memory import CompileCache
    from xrt.engines import CompileContext, GraphCompiler

__all__ = ["CostStore", "loads_statuses", "parse_answers"]

MOST_BYTES = 64 << 20
"""Larger files are rejected: XRT does not write them."""
MOST_ANSWERS = 20_000
"""Limit on stored answers per engine."""
LONGEST = 1000
"""Limit in characters for the cause in a warning, which may quote the file."""

_log = logging.getLogger(__name__)


class CostStore:
    """Cost tables and decisions in a shared cache directory. Problems with files are warnings, never errors."""

    def __init__(self, directory: Path | Store) -> None:
        """No file is touched before the first use."""
        self._store = directory if isinstance(directory, Store) else Store(directory)

    @classmethod
    def for_cache(cls, cache: CompileCache) -> CostStore | None:
        """The store in a cache's directory; None if it has none."""
        return cls(cache.disk.store) if isinstance(cache.disk, DiskTier) else None

    # ------------------------------------------------------------------ costs

    def table(self, engines: Sequence[GraphCompiler], context: CompileContext) -> CostTable:
        """All stored costs of these engines in their current version and configuration."""
        table = CostTable()
        for circumstances in filter(_is_known, _all_circumstances(engines, context).values()):
            table = table.merge(self._read_table(self._table_path(circumstances)))
        return table

    def keep(self, table: CostTable, engines: Sequence[GraphCompiler], context: CompileContext) -> None:
        """Merge the costs of these engines into the stored ones, under a lock."""
        for spec, circumstances in _all_circumstances(engines, context).items():
            part = _part(table, spec)
            if part != CostTable() and _is_known(circumstances):
                path = self._table_path(circumstances)
                with self._store.lock(path.stem):
                    self._write(path, dumps(self._read_table(path).merge(part).to_document()))

    def _read_table(self, path: Path) -> CostTable:
        document = self._read_document(path)
        try:
            return CostTable() if document is None else CostTable.from_document(document)
        except PlacementFileError as error:
            self.trouble(f"{path}: {error}")
            return CostTable()

    def _read_document(self, path: Path) -> PlacementFile | None:
        data = self._read(path)
        try:
            return None if data is None else loads(data)
        except PlacementFileError as error:
            self.trouble(f"{path}: {error}")
            return None

    def _table_path(self, circumstances: Signature) -> Path:
        return self._store.root / "costs" / f"{circumstances.key}.json"

    # ------------------------------------------------------------------ decisions

    def decision(self, asked: Signature) -> PlacementFile | None:
        """The document stored for the request; the caller checks whether it still applies."""
        return self._read_document(self._decision_path(asked))

    def store_decision(self, asked: Signature, document: PlacementFile) -> None:
        """Store or replace a decision."""
        self._write(self._decision_path(asked), dumps(document))

    def _decision_path(self, asked: Signature) -> Path:
        return self._store.root / "decisions" / f"{asked.key}.json"

    # ------------------------------------------------------------------ answers

    def answers(self, asked: Signature) -> dict[str, str | None]:
        """Stored answers of an engine, by the keys of `QuestionKeys`."""
        path = self._answers_path(asked)
        data = self._read(path)
        try:
            return {} if data is None else parse_answers(data)
        except CacheError as error:
            self.trouble(f"{path}: {error}")
            return {}

    def keep_answers(self, asked: Signature, found: Mapping[str, str | None]) -> None:
        """Add answers; beyond `MOST_ANSWERS` the oldest are removed."""
        path = self._answers_path(asked)
        with self._store.lock(path.stem):
            known = self.answers(asked)
            if not set(found) <= set(known):
                both = list({**known, **found}.items())[-MOST_ANSWERS:]
                self._write(path, json.dumps(dict(both)))

    def _answers_path(self, asked: Signature) -> Path:
        return self._store.root / "questions" / f"{asked.key}.json"

    # ------------------------------------------------------------------ engines

    def statuses(self) -> dict[str, EngineStatus]:
        """Engine statuses found by an earlier process; empty if packages were installed or removed since."""
        data = self._read(self._statuses_path())
        try:
            return {} if data is None else loads_statuses(data)
        except CacheError as error:
            self.trouble(f"{self._statuses_path()}: {error}")
            return {}

    def keep_statuses(self, statuses: Sequence[EngineStatus]) -> None:
        """Store engine statuses for the currently installed packages."""
        self._write(self._statuses_path(), json.dumps([dataclasses.asdict(status) for status in statuses], indent=1))

    def _statuses_path(self) -> Path:
        return self._store.root / "engines" / f"{hash_installed()}.json"

    # ------------------------------------------------------------------ files

    def _read(self, path: Path) -> bytes | None:
        """The content of a file; None if it does not exist or is not trusted."""
        try:
            with suppress(FileNotFoundError):
                if not self._store.is_trusted() or not path.exists():
                    return None
                self._store.check(path)
                state = path.stat()
                if not stat.S_ISREG(state.st_mode) or state.st_size > MOST_BYTES:
                    raise CacheError("it is no file of costs, which is a regular one of at most 64 MB")
                with path.open("rb") as file:
                    return file.read(MOST_BYTES)
        except (OSError, CacheError) as error:
            self.trouble(f"{path}: {error}")
        return None

    def _write(self, path: Path, text: str) -> None:
        if not self._store.is_trusted():
            return
        data = text.encode("utf-8", "surrogatepass")
        try:
            self._store.place(path, lambda file: file.write(data))
        except OSError as error:
            self.trouble(f"{path}: {error}")

    def trouble(self, what: str) -> None:
        """Log a problem; warn about the first one, in one line."""
        what = " ".join(what.split())[:LONGEST]
        _log.info("the cost store: %s", what)
        if self._store.is_first_trouble():
            warn(
                f"the store of costs could not serve: {what}. What it should have held is measured again; this is said once",
                CacheWarning,
            )


def parse_answers(data: bytes) -> dict[str, str | None]:
    """Parse stored answers; raises CacheError if the file is invalid."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CacheError(f"it holds no answers of an engine: {type(error).__name__}: {error}") from error
    if not isinstance(found, dict) or not all(one is None or (isinstance(one, str) and one) for one in found.values()):
        raise CacheError("it holds no answers of an engine")
    return found


def loads_statuses(data: bytes) -> dict[str, EngineStatus]:
    """Parse stored statuses by engine name; raises CacheError if the file is invalid."""
    try:
        return {one["name"]: _status(one) for one in json.loads(data)}
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CacheError(f"it holds no statuses of engines: {type(error).__name__}: {error}") from error


def _status(facts: Mapping[str, Any]) -> EngineStatus:
    """Parse one status; raises ValueError if invalid."""
    texts = [facts[name] for name in ("name", "state", "distribution", "pip", "version", "available", "cause", "lacks")]
    devices = facts["devices"]
    texts.append(facts.get("precisions", ""))
    are_texts = isinstance(devices, list) and all(isinstance(text, str) for text in (*texts, *devices))
    if not are_texts or facts["state"] not in get_args(State):
        raise ValueError(f"{facts!r:.80} is no status of an engine")
    return EngineStatus(**{**facts, "devices": tuple(devices)})


def hash_installed() -> str:
    """Hash of the installed distributions and their versions."""
    found = sorted(f"{one.name} {one.version}" for one in metadata.distributions())
    return hashlib.sha256("\n".join([sys.version, *sys.path, *found]).encode("utf-8", "surrogateescape")).hexdigest()


def _all_circumstances(engines: Sequence[GraphCompiler], context: CompileContext) -> Mapping[str, Signature]:
    return {engine.spec: make_engine_key(engine, context) for engine in engines}


def _is_known(circumstances: Signature) -> bool:
    """Whether code changes of the engine can be detected; otherwise nothing may be stored."""
    return dict(circumstances.ingredients)["code"] != CODE_UNKNOWN


def _part(table: CostTable, spec: str) -> CostTable:
    """The part of a table about one engine; a boundary belongs to the engine that produces the value."""
    return CostTable(
        {subject: cost for subject, cost in table.regions.items() if subject[1] == spec},
        {one: seconds for one, seconds in table.launches.items() if one == spec},
        {pair: cost for pair, cost in table.boundaries.items() if pair[0] == spec},
    )
