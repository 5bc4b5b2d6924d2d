"""Lockfiles: where the nodes of a model go, and why that was chosen, as text for version control.

JSON, sorted, one fact on a line, so that a diff shows what changed and nothing else. The text may have been merged by hand or
come from an unknown source: everything in it is checked, sizes first. `xrt.placement` defines what a lockfile means.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_type_hints

from xrt.errors import LockError
from xrt.formats.output import replace_file
from xrt.graph import FrozenDict

__all__ = ["FORMAT", "Baseline", "CandidateRecord", "Lock", "NodeRange", "dumps", "loads", "read_lock", "write_lock"]

KIND = "xrt lock"
FORMAT = 1
"""The version of the text that is written, and the only one that is read."""

MOST_BYTES = 16 << 20
MOST_TEXT = 4000
"""The most characters of a text in a lock: a name, a version, a note."""
MOST_NODES = 10_000_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeRange:
    """Neighbours in the model's order of nodes that are in one region."""

    region: int
    """The region's number, in the order in which regions run."""
    engine: str
    """The spec of its engine."""
    at: int
    """The place of the first in the model's order."""
    nodes: int
    """How many there are."""
    first: str = ""
    """Name of the first, for who reads the file; places are what counts."""
    last: str = ""


@dataclass(frozen=True, slots=True)
class CandidateRecord:
    """How a plan came off in the race."""

    plan: str
    """Its engines, in the order in which they run."""
    verdict: str
    baseline: bool = False
    """Whether the ratios are to this one."""
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    ratio: float | None = None
    """Its time over the baseline's; with the interval of that ratio."""
    ratio_low: float | None = None
    ratio_high: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What `xrt check` holds a later run against: the plan's time over that of another plan, which took turns with it."""

    plan: str
    """The other plan by its engines."""
    ratio: float
    low: float
    high: float
    rounds: int
    runs: tuple[NodeRange, ...] = ()
    """Where the other plan has the nodes."""


@dataclass(frozen=True, slots=True)
class Lock:
    """A plan that was chosen, of which model, on which machine, with which engines, and against whom."""

    writer: str
    """The version of XRT."""
    date: str
    model: Mapping[str, str] = FrozenDict()
    """Its name, source, fingerprint, number of nodes."""
    inputs: Mapping[str, str] = FrozenDict()
    """Name to type, extents as they were when it was measured."""
    engines: Mapping[str, str] = FrozenDict()
    """Spec to version, of all engines that took part."""
    machine: Mapping[str, str] = FrozenDict()
    options: Mapping[str, str] = FrozenDict()
    """What the plan was made for: device, threads, precision, sizes of clusters, pins."""
    plan: tuple[NodeRange, ...] = ()
    race: tuple[CandidateRecord, ...] = ()
    """The contenders, best first."""
    gate: Baseline | None = None
    """None where no other plan ran."""
    values: Mapping[str, str] = FrozenDict()
    """Name of an input to the file that its values were in, as seen from the lock's folder; those of the others are random, by
    the seed that is among the facts of the model."""

    def __post_init__(self) -> None:
        for name in (*_MAPS, "values"):
            object.__setattr__(self, name, FrozenDict(getattr(self, name)))


_MAPS = ("model", "inputs", "engines", "machine", "options")


# ---------------------------------------------------------------------- written


def dumps(lock: Lock) -> str:
    """Return the lock as text; equal locks give equal text."""
    facts: dict[str, Any] = {name: dict(getattr(lock, name)) for name in _MAPS}
    facts |= {"kind": KIND, "format": FORMAT, "writer": lock.writer, "date": lock.date}
    facts |= {"values": dict(lock.values)} if lock.values else {}
    facts |= {"plan": [_row(run) for run in lock.plan], "race": [_row(one) for one in lock.race]}
    facts["gate"] = None if lock.gate is None else {**_row(lock.gate), "runs": [_row(run) for run in lock.gate.runs]}
    return f"{_lines(facts, '')}\n"


def _row(value: Any) -> dict[str, Any]:
    """Return the fields that say more than their default does."""
    told = {field.name: (getattr(value, field.name), field.default) for field in fields(value)}
    return {name: _rounded(one) for name, (one, default) in told.items() if one != default}


def _rounded(value: Any) -> Any:
    """Return numbers with the digits that mean something."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _lines(value: Any, indent: str) -> str:
    """Return JSON with a line for each entry; an item of a list is one line."""
    inner = f"{indent}  "
    if isinstance(value, dict) and value:
        rows = [f"{inner}{json.dumps(name)}: {_lines(value[name], inner)}" for name in sorted(value)]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"{inner}{json.dumps(row, sort_keys=True)}" for row in value) + f"\n{indent}]"
    return json.dumps(value)


# ---------------------------------------------------------------------- files


def write_lock(lock: Lock, path: str | os.PathLike[str]) -> None:
    """Write a lock, whole or not at all; raises LockError where the file cannot be written."""
    data = dumps(lock).encode()
    try:
        replace_file(Path(path), lambda file: file.write(data))
    except OSError as error:
        raise LockError(f"cannot write {os.fspath(path)!r}: {error.strerror}") from error


def read_lock(path: str | os.PathLike[str]) -> Lock:
    """Return the lock in a file; raises LockError, which names the file, for one that is missing, damaged, hostile or too new."""
    try:
        return loads(_content(Path(path)))
    except FileNotFoundError:
        raise LockError(f"there is no lock {os.fspath(path)!r}; `xrt lock MODEL -o {os.fspath(path)}` writes one") from None
    except (OSError, ValueError) as error:  # a ValueError for a NUL in the path
        told = error.strerror if isinstance(error, OSError) else error
        advice = f"mend it, or make it anew with `xrt lock MODEL -o {os.fspath(path)}`"
        raise LockError(f"cannot read the lock {os.fspath(path)!r}: {told}; {advice}") from error


def _content(path: Path) -> bytes:
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        raise LockError("it is no file")  # to open a pipe may take for ever
    with path.open("rb") as file:
        return file.read(MOST_BYTES + 1)


# ---------------------------------------------------------------------- read


def loads(data: str | bytes) -> Lock:
    """Return the lock that the text holds; raises LockError, which names the defect."""
    facts = _mapping(_json(data), "the whole")
    if facts.get("kind") != KIND:
        raise LockError(f"it is no lock of XRT: its kind is {_shown(facts.get('kind'))}, not {KIND!r}")
    _check_format(facts)
    found: dict[str, Any] = {name: _take(facts, name, _text) for name in ("writer", "date")}
    found |= {name: _take(facts, name, _texts) for name in _MAPS}
    found |= {"plan": _take(facts, "plan", _runs), "race": _take(facts, "race", partial(_rows, CandidateRecord))}
    found["gate"] = _take(facts, "gate", _gate)
    found["values"] = _texts(facts.get("values", {}), "values")
    if left := sorted(facts.keys() - {*found, "kind", "format"}):
        raise LockError(f"it has {_shown(left[0])}, which no lock has")
    return Lock(**found)


def _check_format(facts: Mapping[str, Any]) -> None:
    told = _take(facts, "format", _count)
    if told != FORMAT:
        writer = facts.get("writer")
        by = f", written by xrt {writer}" if isinstance(writer, str) and len(writer) < 40 else ""
        raise LockError(
            f"it has lock format {told}{by}, and this version of XRT reads {FORMAT}; the version that wrote it reads it"
        )


def _json(data: str | bytes) -> Any:
    if len(data) > MOST_BYTES:
        raise LockError(f"it has more than {MOST_BYTES >> 20} MB, and no lock has")
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number)
    except RecursionError:
        raise LockError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        hint = "; was it merged by hand?" if "<<<<<<<" in text else ""
        raise LockError(f"line {error.lineno} is no JSON: {error.msg}{hint}") from None
    except UnicodeDecodeError as error:
        raise LockError(f"byte {error.start} is no UTF-8") from None
    except LockError:
        raise
    except ValueError as error:  # an integer of thousands of digits
        raise LockError(f"it holds a number that cannot be read: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise LockError(f"it says {_shown(twice)} twice; was it merged by hand?")
    return found


def _no_number(text: str) -> NoReturn:
    raise LockError(f"{text} is no number that a lock holds")


def _shown(value: object) -> str:
    """Return a value as an error shows it: short, whatever it is."""
    try:
        shown = ascii(value)
    except RecursionError:  # it was nested just so deep that it could be read
        shown = "nested too deeply to be shown"
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


Check = Callable[[Any, str], T]
"""Returns a value of the right kind; takes the value, and its position for the error."""


def _take(facts: Mapping[str, Any], name: str, check: Check[T], where: str = "") -> T:
    if name not in facts:
        raise LockError(f"{where or 'it'} lacks {name!r}")
    return check(facts[name], f"{where}.{name}" if where else name)


def _wrong(where: str, expected: str, value: object) -> NoReturn:
    raise LockError(f"{where} must be {expected}; it is {_shown(value)}")


def _mapping(value: Any, where: str) -> dict[str, Any]:
    return value if isinstance(value, dict) else _wrong(where, "an object", value)


def _list(value: Any, where: str) -> list[Any]:
    return value if isinstance(value, list) else _wrong(where, "a list", value)


def _text(value: Any, where: str) -> str:
    return value if isinstance(value, str) and len(value) <= MOST_TEXT else _wrong(where, "a text", value)


def _texts(value: Any, where: str) -> FrozenDict[str, str]:
    return FrozenDict({_text(name, where): _text(one, f"{where}.{name[:40]}") for name, one in _mapping(value, where).items()})


def _count(value: Any, where: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_NODES:
        return value
    _wrong(where, f"a count, at most {MOST_NODES}", value)


def _number(value: Any, where: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9 and math.isfinite(value)
    return float(value) if is_number and value >= 0 else _wrong(where, "a number from 0", value)


def _flag(value: Any, where: str) -> bool:
    return value if isinstance(value, bool) else _wrong(where, "true or false", value)


_CHECKS: Mapping[Any, Check[Any]] = {str: _text, int: _count, float: _number, float | None: _number, bool: _flag}
"""By the type of a field."""


def _made(kind: type[T], value: Any, where: str, **more: Any) -> T:
    """Return a dataclass of flat facts; a field with a default may be absent."""
    facts, (types, required) = _mapping(value, where), _form(kind)  # type: ignore[arg-type]  # a class is hashable
    if unknown := sorted(facts.keys() - types.keys()):
        raise LockError(f"{where} has {_shown(unknown[0])}, which it may not have")
    if lacking := sorted(required - facts.keys()):
        raise LockError(f"{where} lacks {lacking[0]!r}")
    return kind(**{name: _take(facts, name, _CHECKS[types[name]], where) for name in facts if name not in more}, **more)


@cache
def _form(kind: type[Any]) -> tuple[Mapping[str, Any], frozenset[str]]:
    """Return a dataclass's fields with their types, and the names of those that have no default."""
    return get_type_hints(kind), frozenset(field.name for field in fields(kind) if field.default is MISSING)


def _rows(kind: type[T], value: Any, where: str) -> tuple[T, ...]:
    return tuple(_made(kind, row, f"{where}[{number}]") for number, row in enumerate(_list(value, where)))


def _runs(value: Any, where: str) -> tuple[NodeRange, ...]:
    return _rows(NodeRange, value, where)


def _gate(value: Any, where: str) -> Baseline | None:
    if value is None:
        return None
    gate = _made(Baseline, value, where, runs=_take(_mapping(value, where), "runs", _runs, where))
    if not 0 < gate.low <= gate.ratio <= gate.high:
        raise LockError(f"{where} needs 0 < low <= ratio <= high; it has {gate.low:g}, {gate.ratio:g} and {gate.high:g}")
    return gate
