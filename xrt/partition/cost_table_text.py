"""A cost table as text: JSON, sorted, one fact on a line, so that a person can read it and a diff shows what changed.

The text comes from disk and may be damaged or come from an unknown source: everything in it is checked, sizes first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, TypeVar

from xrt.errors import CacheError, OptionError
from xrt.partition.cost_table import MOST_TEXT, CostTable, MeasuredCost, RegionCost

__all__ = ["FORMAT", "dumps", "loads"]

FORMAT = 1
"""The version of the text that is written, and the only one that is read."""

MOST_BYTES = 256 << 20
MOST_ROWS = 1_000_000

_KEY = re.compile(r"[0-9a-f]{64}")
_T = TypeVar("_T")


# ------------------------------------------------------------------ written


def dumps(table: CostTable) -> str:
    """Return the table as text; equal tables give equal text."""
    rows = {
        "regions": [_region_row(key, spec, table.regions[key, spec]) for key, spec in sorted(table.regions)],
        "launches": [{"engine": spec, "seconds": float(table.launches[spec])} for spec in sorted(table.launches)],
        "boundaries": [_boundary_row(pair, table.boundaries[pair]) for pair in sorted(table.boundaries)],
    }
    sections = ",\n".join(f'  "{name}": {_listed(rows[name])}' for name in ("launches", "boundaries", "regions"))
    return f'{{\n  "format": {FORMAT},\n{sections}\n}}\n'


def _region_row(key: str, spec: str, cost: RegionCost) -> dict[str, Any]:
    told = {"why_not": cost} if isinstance(cost, str) else _seconds_row(cost)
    return {"region": key, "engine": spec, **told}


def _seconds_row(cost: MeasuredCost) -> dict[str, Any]:
    return {"seconds": float(cost.seconds), "low": float(cost.low), "high": float(cost.high)}


def _boundary_row(pair: tuple[str, str], cost: tuple[float, float]) -> dict[str, Any]:
    return {"from": pair[0], "to": pair[1], "seconds": float(cost[0]), "per_byte": float(cost[1])}


def _listed(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "[]"
    return "[\n" + ",\n".join(f"    {json.dumps(row)}" for row in rows) + "\n  ]"


# ------------------------------------------------------------------ read


def loads(text: str | bytes) -> CostTable:
    """Return the table that `to_text` wrote; raises CacheError for anything else."""
    try:
        return _table(_opened(text))
    except (
        ValueError,
        OverflowError,
        RecursionError,
        MemoryError,
    ) as error:  # JSON that is none, nested without end, numbers without end
        raise CacheError(f"{_BROKEN}: {str(error)[:200]}; {_ADVICE}") from error


_BROKEN = "the cost table cannot be read"
_ADVICE = "delete it, and what it held is measured again"


def _opened(text: str | bytes) -> dict[str, Any]:
    if len(text) > MOST_BYTES:
        _refuse(f"it is {len(text)} bytes long, and {MOST_BYTES} are the most")
    data = json.loads(text, parse_constant=_no_constant)
    _fields(data, "the table", "format", "launches", "boundaries", "regions")
    if type(data["format"]) is not int or data["format"] != FORMAT:
        _refuse(f"it has format {str(data['format'])[:40]}, and this version of XRT reads {FORMAT}")
    return dict(data)


def _table(data: dict[str, Any]) -> CostTable:
    return CostTable(
        _by_subject(data["regions"], "region", _region),
        _by_subject(data["launches"], "launch", _launch),
        _by_subject(data["boundaries"], "boundary", _boundary),
    )


def _by_subject(rows: object, what: str, read: Callable[[object], tuple[Any, _T]]) -> dict[Any, _T]:
    if not isinstance(rows, list) or len(rows) > MOST_ROWS:
        _refuse(f"it must hold a list of at most {MOST_ROWS} {what} costs")
    found: dict[Any, _T] = {}
    for subject, cost in map(read, rows):
        if subject in found:
            _refuse(f"it tells the cost of {what} {subject} twice")
        found[subject] = cost
    return found


def _region(row: object) -> tuple[tuple[str, str], RegionCost]:
    if isinstance(row, dict) and "why_not" in row:
        key, spec, why = _texts(_fields(row, "a region", "region", "engine", "why_not"))
        return (_key(key), spec), why
    key, spec, *seconds = _fields(row, "a region", "region", "engine", "seconds", "low", "high")
    subject = _key(key), *_texts([spec])
    try:
        return subject, MeasuredCost(*_numbers(seconds))  # type: ignore[return-value]  # one text in, one out
    except OptionError as error:
        _refuse(str(error))


def _launch(row: object) -> tuple[str, float]:
    spec, seconds = _fields(row, "a launch", "engine", "seconds")
    return next(_texts([spec])), next(_numbers([seconds]))


def _boundary(row: object) -> tuple[tuple[str, str], tuple[float, float]]:
    source, target, seconds, per_byte = _fields(row, "a boundary", "from", "to", "seconds", "per_byte")
    first, second = _numbers([seconds, per_byte])
    source, target = _texts([source, target])
    return (source, target), (first, second)


def _fields(row: object, what: str, *names: str) -> list[Any]:
    if not isinstance(row, dict) or set(row) != set(names):
        _refuse(f"{what} must have {', '.join(names)} and nothing else")
    return [row[name] for name in names]


def _key(value: object) -> str:
    if not isinstance(value, str) or not _KEY.fullmatch(value):
        _refuse(f"a region is named by 64 hexadecimal digits; it has {str(value)[:80]!r}")
    return value


def _texts(values: Iterable[object]) -> Iterator[str]:
    for value in values:
        if not isinstance(value, str) or not 0 < len(value) <= MOST_TEXT:
            _refuse(f"an engine or a reason is text of 1 to {MOST_TEXT} characters; it has {str(value)[:80]!r}")
        yield value


def _numbers(values: Iterable[object]) -> Iterator[float]:
    for value in values:
        if type(value) not in (int, float):
            _refuse(f"seconds are a number; it has {str(value)[:80]!r}")
        yield float(value)  # type: ignore[arg-type]  # one of the two types above


def _no_constant(name: str) -> NoReturn:
    _refuse(f"{name} is no number of seconds")


def _refuse(why: str) -> NoReturn:
    raise CacheError(f"{_BROKEN}: {why}; {_ADVICE}")
