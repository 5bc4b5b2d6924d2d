"""Measurements in the cache directory: costs of regions, placement decisions, and which engines work on this machine."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from xrt.cache.disk import DiskTier
from xrt.cache.records import Records, Schema, Store, text_schema
from xrt.cache.signature import CODE_UNKNOWN, Signature, make_engine_key
from xrt.engines.contract.registry import EngineStatus
from xrt.formats.documents import convert
from xrt.formats.placement_file import PlacementFile, dumps, loads
from xrt.partition.cost_table import CostTable

if TYPE_CHECKING:
    from xrt.cache.memory import CompileCache
    from xrt.engines import CompileContext, GraphCompiler


COSTS: Schema[CostTable] = text_schema(
    "costs", "costs", lambda table: dumps(table.to_document()), lambda data: CostTable.from_document(loads(data))
)
DECISIONS: Schema[PlacementFile] = text_schema("decisions", "decision", dumps, loads)
STATUSES: Schema[dict[str, EngineStatus]] = text_schema(
    "engines",
    "statuses of engines",
    lambda statuses: json.dumps([dataclasses.asdict(status) for status in statuses.values()]),
    lambda data: {status.name: status for status in convert(json.loads(data), list[EngineStatus])},
)
"""The statuses of all engines. They depend on the installed packages, so the key of the record is `hash_installed()`."""


class CostStore:
    """Reads and writes measurements in a cache directory. Problems with files are warnings, never errors."""

    def __init__(self, directory: Path | Store) -> None:
        """Create the store without accessing files; ``directory`` is the path of a cache directory, or its Store."""
        self.store = store = directory if isinstance(directory, Store) else Store(directory)
        self._costs, self._decisions = Records(store, COSTS), Records(store, DECISIONS)
        self._statuses = Records(store, STATUSES)

    @classmethod
    def for_cache(cls, cache: CompileCache) -> CostStore | None:
        """Create the store in a cache's directory; return None if the cache has no disk tier."""
        return cls(cache.disk.store) if isinstance(cache.disk, DiskTier) else None

    def read_costs(self, engines: Sequence[GraphCompiler], context: CompileContext) -> CostTable:
        """Read all stored costs of these engines in their current version and configuration."""
        table = CostTable()
        for _, key in _list_keys(engines, context):
            table = table.merge(self._costs.find(key) or CostTable())
        return table

    def store_costs(self, table: CostTable, engines: Sequence[GraphCompiler], context: CompileContext) -> None:
        """Merge the costs that ``table`` has for these engines into the stored ones."""
        for spec, key in _list_keys(engines, context):
            part = CostTable({subject: cost for subject, cost in table.regions.items() if subject[1] == spec})
            if part.regions:
                self._costs.update(key, partial(_merge, part))

    def read_decision(self, request: Signature | None) -> PlacementFile | None:
        """Read the placement that is stored for a request; None if there is none. The caller checks whether it still applies."""
        return None if request is None else self._decisions.find(request.key)

    def store_decision(self, request: Signature | None, document: PlacementFile) -> None:
        """Store or replace the placement of a request; do nothing if ``request`` is None."""
        if request is not None:
            self._decisions.write(request.key, document)

    def read_statuses(self) -> dict[str, EngineStatus]:
        """Read the stored engine statuses, by engine name; empty if a package was installed, updated or removed since."""
        return self._statuses.find(hash_installed()) or {}

    def store_statuses(self, statuses: Sequence[EngineStatus]) -> None:
        self._statuses.write(hash_installed(), {status.name: status for status in statuses})


def hash_installed() -> str:
    # A package has a folder that is named by its name and version. To read the metadata of all packages takes 20 times as long.
    distributions: list[str] = []
    for folder in sys.path:
        with suppress(OSError):  # the import system ignores folders that cannot be read, too
            distributions += (path.name for path in Path(folder).glob("*.*-info"))
    entries = [sys.version, *sys.path, *sorted(distributions)]
    return hashlib.sha256("\n".join(entries).encode("utf-8", "surrogateescape")).hexdigest()


def _list_keys(engines: Sequence[GraphCompiler], context: CompileContext) -> list[tuple[str, str]]:
    """List (spec, key of the cost record) of the engines, without engines whose code changes cannot be detected."""
    # One key per engine, so that a new version of one library keeps the measurements of the others.
    signatures = {engine.spec: make_engine_key(engine, context) for engine in engines}
    return [(spec, item.key) for spec, item in signatures.items() if dict(item.ingredients)["code"] != CODE_UNKNOWN]


def _merge(table: CostTable, stored: CostTable | None) -> CostTable:
    return table if stored is None else stored.merge(table)
