"""The account of a chosen plan: what each region and each boundary costs, who came next, and what would unlock the graph."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from xrt.engines import GraphCompiler
from xrt.formats.lock import Standing
from xrt.graph import Function
from xrt.partition import Plan
from xrt.partition.costs import CostTable
from xrt.partition.devices import Homes
from xrt.partition.planner import Unlock, predicted, unlocks
from xrt.partition.planner.prediction import BoundaryCost, RegionPrediction
from xrt.tune.lock import standings_of
from xrt.tune.tuned import Tuned

__all__ = ["Account", "Part", "account_of", "time_of"]

SHOWN = 8
"""Rows of one kind that the text has; `to_dict` has all."""


@dataclass(frozen=True, slots=True)
class Part:
    """A region of the plan: what it was predicted to cost, and what it took."""

    name: str
    engine: str
    nodes: int
    predicted: float | None
    """Seconds, its launch included; None where nobody knows, or it is impossible by the table."""
    source: str
    """How the prediction is known: ``measured``, ``estimated`` or ``impossible``."""
    note: str
    measured: float | None
    """Seconds within calls of the whole; None where that was not profiled."""

    def __str__(self) -> str:
        took = "" if self.measured is None else f", took {time_of(self.measured)}"
        how = f" ({self.source}{f' {self.note}' if self.note else ''})" if self.source else ""
        nodes = f"{self.nodes} node{'s' * (self.nodes != 1)}"
        return f"{self.name} on {self.engine}, {nodes}: predicted {time_of(self.predicted)}{how}{took}"


@dataclass(frozen=True, slots=True)
class Account:
    """What a chosen plan costs, part by part. Prints as text."""

    predicted: float | None
    """Seconds of a call, boundaries included; None where nothing was measured to predict it by."""
    measured: float | None
    """Seconds of a call as it was raced; None where it was not."""
    parts: tuple[Part, ...] = ()
    boundaries: tuple[BoundaryCost, ...] = ()
    standings: tuple[Standing, ...] = ()
    """The contenders, best first."""
    unlocks: tuple[Unlock, ...] = ()
    """Operators whose support by an engine would save something, the largest saving first."""

    def to_dict(self) -> dict[str, Any]:
        """Return the account as plain data; numbers that are not finite are None."""
        found: dict[str, Any] = _finite(asdict(self))
        return found

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def account_of(
    plan: Plan, tuned: Tuned, function: Function, engines: Sequence[GraphCompiler], table: CostTable, device: str | Homes = "cpu"
) -> Account:
    """Return the account of a plan by what the table knows; of an empty table there is none to be had, but for the standings."""
    standings = standings_of(tuned.race)
    seconds = tuned.race.winner.seconds if tuned.race.winner else None
    if not table.regions:
        return Account(None, seconds, standings=standings)
    found = predicted(plan, table)
    took = tuned.race.winner.regions if tuned.race.winner and tuned.race.winner.plan == plan else ()
    parts = tuple(_part(*pair) for pair in zip(found.regions, _took(took, seconds, len(found.regions)), strict=True))
    total = found.seconds if math.isfinite(found.seconds) else None
    return Account(total, seconds, parts, found.boundaries, standings, unlocks(function, engines, table, device=device))


def _took(regions: Sequence[float], seconds: float | None, count: int) -> Sequence[float | None]:
    """Return what each region took; one that is all there is took what the call did."""
    if count == 1:
        return [seconds]
    return regions if len(regions) == count else [None] * count


def _part(region: RegionPrediction, took: float | None) -> Part:
    seconds = region.seconds if math.isfinite(region.seconds) else None
    return Part(region.name, region.engine, region.nodes, seconds, region.source, region.note, took)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---------------------------------------------------------------------- as text


def time_of(seconds: float | None) -> str:
    """Return a time as a person reads it.

    >>> time_of(0.00123), time_of(4.5e-6), time_of(12.0), time_of(None)
    ('1.23 ms', '4.5 us', '12 s', 'unknown')
    """
    if seconds is None:
        return "unknown"
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        if seconds * factor < 1000:
            return f"{seconds * factor:.4g} {unit}"
    return f"{seconds:.4g} s"


def _lines(account: Account) -> Iterator[str]:
    if account.predicted is not None:
        yield f"predicted {time_of(account.predicted)} for a call; it took {time_of(account.measured)}:"
    yield from _some([f"  {part}" for part in account.parts], "regions")
    yield from _some([f"  {boundary}" for boundary in account.boundaries], "boundaries")
    if account.unlocks:
        yield "what would unlock the graph, by the prediction:"
    yield from _some([f"  {unlocked(one)}" for one in account.unlocks], "operators")


def unlocked(one: Unlock) -> str:
    """Return what an engine's support of an operator would save."""
    return f"{one.operator} on {one.engine} ({one.nodes} node{'s' * (one.nodes != 1)}): {time_of(one.seconds)} less"


def _some(lines: Sequence[str], what: str) -> Iterator[str]:
    yield from lines[:SHOWN]
    if len(lines) > SHOWN:
        yield f"  and {len(lines) - SHOWN} more {what}"
