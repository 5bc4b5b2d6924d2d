"""Calibration tables: the range of each value of a model, found by its content, as JSON with a line for each value.

msgspec checks the schema. A value is found by `xrt.graph.hash_values`, so a table outlasts a renaming of values and nodes. The
names in it are for its reader.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias

import msgspec
from msgspec import Meta, Struct

from xrt.errors import CalibrationError
from xrt.formats.output import replace_file
from xrt.graph import Function, hash_values

__all__ = ["FORMAT", "CalibrationTable", "RangeDifference", "ValueRange"]

KIND = "xrt calibration table"
FORMAT = 1
"""The version of the text that is written, and the only one that is read."""
MOST_BYTES = 64 << 20

Text: TypeAlias = Annotated[str, Meta(max_length=4000)]
Key: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 40)]


class ValueRange(Struct, frozen=True, forbid_unknown_fields=True):
    """The range of one value."""

    key: Key
    """What computes the value: see `xrt.graph.hash_values`."""
    low: float
    """The lowest number that a quantized form must have."""
    high: float
    least: float
    """The lowest number that was observed."""
    most: float
    batches: Count = 1
    """The batches in which it was observed."""
    name: Text = ""
    """The value's name in the model, for the reader."""

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.low, self.high, self.least, self.most))):
            raise ValueError("needs finite numbers")
        if not (self.low <= self.high and self.least <= self.most):
            raise ValueError("needs low <= high and least <= most")


class RangeDifference(Struct, frozen=True):
    """A value whose ranges differ between two tables; None where a table lacks it."""

    first: ValueRange | None
    second: ValueRange | None

    def __str__(self) -> str:
        known = self.first or self.second
        named = known.name or known.key if known is not None else ""
        return f"{named}: {_describe(self.first)} and {_describe(self.second)}"


def _describe(found: ValueRange | None) -> str:
    return "no range" if found is None else f"{found.low:g} to {found.high:g}"


class CalibrationTable(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """Ranges of the values of a model, each found by what computes the value."""

    method: Text
    """How the ranges were chosen."""
    parameters: Mapping[Text, float] = {}
    """The parameters of the method."""
    ranges: tuple[ValueRange, ...] = ()
    """In the order of the model."""

    @property
    def _by_key(self) -> Mapping[str, ValueRange]:
        known: dict[str, ValueRange] | None = self.__dict__.get("by_key")
        if known is None:
            known = self.__dict__["by_key"] = {found.key: found for found in self.ranges}
        return known

    def __len__(self) -> int:
        return len(self._by_key)

    def find(self, key: str) -> ValueRange | None:
        """Return the range of the value with that key; None where the table has none."""
        return self._by_key.get(key)

    def bind(self, function: Function) -> dict[str, ValueRange]:
        """Return the ranges by the names that values have in a Function; values without a range are left out.

        Raises CalibrationError where no value of the Function has a range: the table is of another model.
        """
        found = {name: known for name, key in hash_values(function).items() if (known := self.find(key)) is not None}
        if not found and self.ranges:
            raise CalibrationError(
                f"the calibration table has ranges of {len(self)} values, and none is a value of this model: it was made of "
                "another model, or the weights have changed since. Calibrate this one: m.calibrate(batches)"
            )
        return found

    def add(self, name: str, key: str, found: ValueRange) -> CalibrationTable:
        """Return the table with a range for one more value, which has that name and key."""
        return msgspec.structs.replace(self, ranges=(*self.ranges, msgspec.structs.replace(found, name=name, key=key)))

    def merge(self, other: CalibrationTable) -> CalibrationTable:
        """Return a table of the values of both, as if the model had been calibrated on the batches of both.

        A value in both has the wider range with ``minmax``; with the other methods the average, weighted by the batches. Raises
        CalibrationError for tables of different methods or parameters.
        """
        if (self.method, dict(self.parameters)) != (other.method, dict(other.parameters)):
            raise CalibrationError(
                f"cannot merge a calibration table of method {self.method!r} {dict(self.parameters)} with one of "
                f"{other.method!r} {dict(other.parameters)}; calibrate both with the same method"
            )
        known = {found.key: found for found in self.ranges}
        for found in other.ranges:
            known[found.key] = self._merge(known[found.key], found) if found.key in known else found
        return msgspec.structs.replace(self, ranges=tuple(known.values()))

    def _merge(self, a: ValueRange, b: ValueRange) -> ValueRange:
        total, least, most = a.batches + b.batches, min(a.least, b.least), max(a.most, b.most)
        low, high = least, most
        if self.method != "minmax":
            low, high = ((x * a.batches + y * b.batches) / total for x, y in ((a.low, b.low), (a.high, b.high)))
        return ValueRange(key=a.key, low=low, high=high, least=least, most=most, batches=total, name=a.name)

    def compare(self, other: CalibrationTable, tolerance: float = 0.0) -> list[RangeDifference]:
        """Return the values whose ranges differ by more than a share of the wider one, or that one table lacks."""
        return list(self._differences(other, tolerance))

    def _differences(self, other: CalibrationTable, tolerance: float) -> Iterator[RangeDifference]:
        for found in self.ranges:
            second = other.find(found.key)
            if second is None or _distance(found, second) > tolerance:
                yield RangeDifference(found, second)
        yield from (RangeDifference(None, found) for found in other.ranges if self.find(found.key) is None)

    # ------------------------------------------------------------------ as text

    def dumps(self) -> str:
        """Return the table as JSON with a line for each value; equal tables give equal text."""
        facts = {"kind": KIND, "format": FORMAT, "method": self.method, "parameters": dict(self.parameters)}
        rows = [f"    {json.dumps(msgspec.to_builtins(found))}" for found in self.ranges]
        head = [f"  {json.dumps(name)}: {json.dumps(value, sort_keys=True)}" for name, value in facts.items()]
        body = '  "ranges": [' + ("\n" + ",\n".join(rows) + "\n  ]" if rows else "]")
        return "{\n" + ",\n".join([*head, body]) + "\n}\n"

    @classmethod
    def loads(cls, data: str | bytes) -> Self:
        """Return the table that the text holds; raises CalibrationError, which says what is wrong with it."""
        facts = _parse(data)
        kind, version = facts.pop("kind", None), facts.pop("format", None)
        if kind != KIND:
            raise CalibrationError(f"it is no calibration table: its kind is {str(kind)[:80]!r}, not {KIND!r}")
        if type(version) is not int or version != FORMAT:
            raise CalibrationError(f"it has format {str(version)[:20]}, and this version of XRT reads {FORMAT}; calibrate again")
        try:
            table = msgspec.convert(facts, cls)
        except (msgspec.ValidationError, UnicodeEncodeError) as error:
            reason = re.sub(r" - at `[$][.]?(.*)`", r" at \1", str(error))
            raise CalibrationError(f"it breaks the schema: {reason}") from None
        if len(table) != len(table.ranges):
            raise CalibrationError("it has two ranges of one value; remove one")
        return table

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table to a file, whole or not at all; raises CalibrationError where that cannot be done."""
        data = self.dumps().encode()
        try:
            replace_file(Path(path), lambda file: file.write(data))
        except OSError as error:
            raise CalibrationError(f"cannot write {os.fspath(path)!r}: {error.strerror}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the table in a file; raises CalibrationError for one that is missing, damaged or of another format."""
        try:
            if Path(path).exists() and not Path(path).is_file():
                raise CalibrationError("it is not a regular file")
            with Path(path).open("rb") as file:
                return cls.loads(file.read(MOST_BYTES + 1))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise CalibrationError(f"cannot read the calibration table {os.fspath(path)!r}: {reason}") from error


def _distance(a: ValueRange, b: ValueRange) -> float:
    """Return by how much two ranges differ, as a share of the wider one."""
    width = max(a.high - a.low, b.high - b.low)
    moved = max(abs(a.low - b.low), abs(a.high - b.high))
    return moved / width if width else moved


def _parse(data: str | bytes) -> dict[str, Any]:
    if len(data) > MOST_BYTES:
        raise CalibrationError(f"it has more than {MOST_BYTES >> 20} MB, and no calibration table has")
    try:
        facts = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise CalibrationError(f"it is no JSON: {error}") from None
    if not isinstance(facts, dict):
        raise CalibrationError("it is no JSON object")
    return facts
