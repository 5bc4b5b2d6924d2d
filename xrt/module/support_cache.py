"""Which engine supports which node of a signature: queried, or recalled from an earlier process.

A query requires an engine to load its kernel tables and to try operators; recalling the answers halves the time of a warm start.
They are stored by model, including names, and by version, source and options of the engines.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable
from functools import cached_property, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from xrt.cache import CompileCache, DiskTier, Records, Signature
from xrt.cache.records import Schema, text_schema
from xrt.cache.signature import CODE_UNKNOWN, make_engine_key
from xrt.partition import SupportMatrix
from xrt.placement.result import unwrap

if TYPE_CHECKING:
    from xrt.graph import Function
    from xrt.placement.engine_list import EngineList

__all__ = ["SupportCache", "make_schema"]

WORTHWHILE = 0.1
"""Seconds that the queries must have taken for the answers to be stored."""
CHEAP = 1 << 20
"""Limit in bytes for weights hashed to look up answers; beyond it the hashes must be known already."""


class SupportCache:
    """The engines' answers about one Function; they are queried once, however often it is planned."""

    def __init__(self, whole: Callable[[], Function], engines: EngineList, cache: CompileCache) -> None:
        self._whole = whole
        self._engines = engines
        self._store = cache.disk.store if isinstance(cache.disk, DiskTier) else None
        self._seconds = 0.0

    @cached_property
    def capability(self) -> SupportMatrix:
        """The answers."""
        function, queried = self._whole(), unwrap(self._engines.engines)
        if (records := self._records) is not None and (key := self._make_key()) is not None:
            stored = records.find(key)
            if stored is not None:
                return stored
        began = perf_counter()
        answers = SupportMatrix.of(function, queried, self._homes)
        self._seconds = perf_counter() - began
        return answers

    def keep(self) -> None:
        """Store the answers if the queries took long; to be called when the weights have been hashed anyway."""
        seconds, self._seconds = self._seconds, 0.0
        if (records := self._records) is not None and seconds >= WORTHWHILE and (key := self._make_key()) is not None:
            records.keep(key, self.capability)

    @property
    def _records(self) -> Records[SupportMatrix] | None:
        if self._store is None:
            return None
        return Records(self._store, make_schema(len(self._whole().nodes), len(self._homes)))

    @property
    def _homes(self) -> list[str]:
        homes = self._engines.homes
        return [homes.of(engine.spec) for engine in self._engines.engines]

    def _make_key(self) -> str | None:
        """The key of the answers; None if hashing is too expensive or an engine's code is unknown."""
        function, context = self._whole(), self._engines.context
        if sum(one.nbytes for one in function.constants.values() if not one.is_hashed) > CHEAP:
            return None
        keys = [make_engine_key(engine, context) for engine in unwrap(self._engines.engines)]
        if any(dict(one.ingredients)["code"] == CODE_UNKNOWN for one in keys):
            return None
        model = (("answers", ""), ("function", function.fingerprint), ("names", _hash_names(function)))
        engines = tuple(
            (f"{home} {name}", value) for home, one in zip(self._homes, keys, strict=True) for name, value in one.ingredients
        )
        return Signature((*model, *engines)).key


def _hash_names(function: Function) -> str:
    """Hash of node and value names, which reasons may quote."""
    names = [name for node in function.nodes for name in (node.name, *node.uses, *node.outputs)]
    return hashlib.sha256("\0".join(names).encode("utf-8", "surrogatepass")).hexdigest()


def make_schema(nodes: int, engines: int) -> Schema[SupportMatrix]:
    """The schema of answers about so many nodes."""
    return text_schema("answers", "answers of engines", _dump, partial(_parse, nodes=nodes, engines=engines))


def _dump(answers: SupportMatrix) -> dict[str, Any]:
    return {"questions": list(answers.questions), "answers": answers.answers}


def _parse(facts: Any, nodes: int, engines: int) -> SupportMatrix:
    questions, answers = facts["questions"], facts["answers"]
    are_lists = all(type(one) is list for one in (questions, answers, *answers))
    are_numbers = all(type(one) is int and 0 <= one < len(answers) for one in questions)
    are_rows = all(len(row) == engines and all(map(_is_answer, row)) for row in answers)
    if not (len(questions) == nodes and are_lists and are_numbers and are_rows):
        raise ValueError("they are of other engines or of another model")
    return SupportMatrix(array("l", questions), tuple(tuple(row) for row in answers))


def _is_answer(value: object) -> bool:
    """Whether it is a reason or None."""
    return value is None or (isinstance(value, str) and value != "")
