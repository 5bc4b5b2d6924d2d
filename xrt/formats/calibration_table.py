"""Calibration tables: the observed range of each value of a model, as JSON with one line per value.

A value is identified by its `xrt.graph.hash_values` key, so a table stays valid when values or nodes are renamed. The table also
has names, but only for readers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from xrt.errors import CalibrationError
from xrt.formats.documents import DocumentType
from xrt.formats.output import replace_file
from xrt.graph import Function, hash_values

__all__ = ["CalibrationTable", "ValueRange"]

Text: TypeAlias = Annotated[str, Meta(max_length=4000)]
"""A name, a version or a note of at most 4,000 characters."""
Key: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 40)]


class ValueRange(Struct, frozen=True, forbid_unknown_fields=True):
    """The range of one value: ``low`` to ``high`` is quantized, ``least`` to ``most`` was observed."""

    key: Key
    """Hash of the computation of the value, from `xrt.graph.hash_values`."""
    low: float
    high: float
    least: float
    most: float
    batches: Count = 1
    """Number of batches observed."""
    name: Text = ""
    """Name of the value in the model, for readers."""

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.low, self.high, self.least, self.most))):
            raise ValueError("needs finite numbers")
        if not (self.low <= self.high and self.least <= self.most):
            raise ValueError("needs low <= high and least <= most")


class CalibrationTable(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """Ranges of the values of a model, in model order. ``method`` and ``parameters`` are how ``low`` and ``high`` were chosen."""

    method: Text
    parameters: Mapping[Text, float] = {}
    ranges: tuple[ValueRange, ...] = ()

    @cached_property
    def _by_key(self) -> Mapping[str, ValueRange]:
        return {entry.key: entry for entry in self.ranges}

    def __len__(self) -> int:
        return len(self._by_key)

    def find(self, key: str) -> ValueRange | None:
        """Find the range of the value with this `xrt.graph.hash_values` key; None if there is none."""
        return self._by_key.get(key)

    def bind(self, function: Function) -> dict[str, ValueRange]:
        """Map the names of a Function's values to their ranges; values without a range are omitted.

        Raises CalibrationError if no value has a range, because the table then belongs to another model.
        """
        ranges = {name: entry for name, key in hash_values(function).items() if (entry := self.find(key)) is not None}
        if not ranges and self.ranges:
            raise CalibrationError(
                f"the calibration table has ranges of {len(self)} values, and none is a value of this model: it was made of "
                "another model, or the weights have changed since. Calibrate this model: m.calibrate(batches)"
            )
        return ranges

    def add(self, name: str, key: str, value_range: ValueRange) -> CalibrationTable:
        """Return a copy of the table with ``value_range`` added for the value with this name and key."""
        return msgspec.structs.replace(self, ranges=(*self.ranges, msgspec.structs.replace(value_range, name=name, key=key)))

    def dumps(self) -> str:
        return _TYPE.dumps(self)

    @classmethod
    def loads(cls, data: str | bytes) -> CalibrationTable:
        """Parse a table; raises CalibrationError with the reason if it is invalid."""
        try:
            table = _TYPE.loads(data)
        except ValueError as error:
            raise CalibrationError(str(error)) from None
        # `len(table)` counts distinct keys.
        if len(table) != len(table.ranges):
            raise CalibrationError("it has two ranges of one value; remove one")
        return table

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table atomically; raises CalibrationError on failure."""
        data = self.dumps().encode()
        try:
            replace_file(Path(path), lambda file: file.write(data))
        except OSError as error:
            raise CalibrationError(f"cannot write {os.fspath(path)!r}: {error.strerror}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CalibrationTable:
        """Read a table; raises CalibrationError if the file is missing or corrupt."""
        try:
            return cls.loads(_TYPE.read_bytes(Path(path)))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise CalibrationError(f"cannot read the calibration table {os.fspath(path)!r}: {reason}") from error


_TYPE = DocumentType("xrt calibration table", "calibration table", CalibrationTable, 64 << 20)
