"""From columns of rows to the inputs of a model: types and shapes checked row by row, and rows of equal sizes grouped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from xrt.errors import InputError, OptionError, did_you_mean
from xrt.graph import DType, TensorType, Value
from xrt.graph.types import Dim

__all__ = ["RowGroup", "RowInput", "Rows", "find_fixed_batch", "gather_rows", "match_columns"]

Array: TypeAlias = "np.ndarray[Any, Any]"
Column: TypeAlias = "Array | list[Array | None]"
"""All rows as one array, or each row as its own; None for a row that has no value."""


@dataclass(frozen=True, slots=True)
class RowInput:
    """An input of the model that takes one row per index of its first axis."""

    name: str
    column: str
    """The column that it is filled from."""
    dtype: DType
    shape: tuple[Dim, ...]
    """Of one row."""

    def __str__(self) -> str:
        return f"{self.name!r} takes rows of {TensorType(self.dtype, self.shape)}"


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of equal sizes, as inputs of one call."""

    indices: Array
    """Their positions among all rows, ascending."""
    values: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows as the model's inputs; those that are no valid input are left out, with the reason."""

    count: int
    columns: Mapping[str, Column]
    errors: Mapping[int, str]

    def group(self) -> Iterator[RowGroup]:
        """Yield the valid rows in groups of equal sizes, by first appearance; without a copy where all rows are one array."""
        ragged = {name: column for name, column in self.columns.items() if isinstance(column, list)}
        if not ragged and not self.errors:
            if self.count:
                yield RowGroup(np.arange(self.count), self.columns)  # type: ignore[arg-type]  # none is a list
            return
        groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for row in range(self.count):
            if row not in self.errors:
                sizes = tuple(np.shape(column[row]) for column in ragged.values())  # type: ignore[arg-type]  # it has a value
                groups.setdefault(sizes, []).append(row)
        for members in groups.values():
            yield RowGroup(np.array(members), {name: _take(column, members) for name, column in self.columns.items()})


def _take(column: Column, rows: Sequence[int]) -> Array:
    """Return rows that have a value and one shape as an array."""
    if isinstance(column, list):
        return np.stack([column[row] for row in rows])  # type: ignore[misc]  # none of them is None
    return column[rows]


# ---------------------------------------------------------------------- the model's side


def match_columns(inputs: Sequence[Value], columns: Mapping[str, str] | None = None) -> tuple[RowInput, ...]:
    """Return for each input the column that fills it: the one of its name, or what ``columns`` names.

    Raises OptionError for a name that is no input, and for an input that has no axis of rows.
    """
    names = [value.name for value in inputs]
    chosen = columns or {}
    for name in chosen:
        if name not in names:
            raise OptionError(f"columns names {name!r}; the model's inputs are {', '.join(names)}.{did_you_mean(name, names)}")
    return tuple(_row_input(value, chosen.get(value.name, value.name)) for value in inputs)


def _row_input(value: Value, column: str) -> RowInput:
    type_ = value.type
    if not isinstance(type_, TensorType) or not type_.shape:
        raise OptionError(f"input {value} has no axis of rows, so a column cannot fill it; fix it in the model, as a constant")
    return RowInput(value.name, column, type_.dtype, type_.shape[1:])


def find_fixed_batch(inputs: Sequence[Value]) -> int | None:
    """Return how many rows each call takes; None where that is free. Raises OptionError where inputs differ."""
    sizes = {value.type.shape[0] for value in inputs if isinstance(value.type, TensorType) and value.type.shape}
    fixed = sorted(size for size in sizes if isinstance(size, int))
    if len(fixed) > 1:
        shown = ", ".join(str(value) for value in inputs)
        raise OptionError(f"the inputs take different numbers of rows in a call: {shown}; rows cannot fill them")
    return fixed[0] if fixed else None


# ---------------------------------------------------------------------- the rows' side


def gather_rows(inputs: Sequence[RowInput], columns: Mapping[str, Array]) -> Rows:
    """Return the columns as the inputs; raises InputError where a column is missing."""
    for one in inputs:
        if one.column not in columns:
            known = f"{', '.join(columns) or 'none'}.{did_you_mean(one.column, columns)}"
            raise InputError(
                f"input {one.name!r} is filled from column {one.column!r}, and the rows have {known} "
                f"Name the column: columns={{{one.name!r}: ...}} (--column {one.name}=COLUMN on the command line)"
            )
    errors: dict[int, str] = {}
    found = {one.name: _convert(one, columns[one.column], errors) for one in inputs}
    return Rows(len(next(iter(columns.values()))) if columns else 0, found, errors)


def _convert(wanted: RowInput, column: Array, errors: dict[int, str]) -> Column:
    """Return the column as the input takes it, and add to ``errors`` the rows that it cannot take."""
    if column.dtype != object:
        with suppress(InputError):  # which rows are the cause is found below
            return _fit(wanted, column, column.shape[:1])
    found: list[Array | None] = []
    for row, value in enumerate(column):
        try:
            found.append(_fit(wanted, _as_array(wanted, value), ()))
        except InputError as error:
            errors.setdefault(row, str(error))
            found.append(None)
    return found


def _as_array(wanted: RowInput, value: Any) -> Array:
    if value is None:
        raise InputError(f"input {wanted}; got nothing")
    if wanted.dtype is DType.STRING:
        return np.asarray(value, dtype=object)
    try:
        array = np.asarray(value)
    except ValueError as error:  # lists of unequal lengths
        raise InputError(f"input {wanted}; got lists of unequal lengths") from error
    if array.dtype == object:
        try:
            array = np.stack([np.asarray(one) for one in array]) if array.ndim else array
        except ValueError as error:
            raise InputError(f"input {wanted}; got parts of unequal shapes") from error
    return array


def _fit(wanted: RowInput, array: Array, rows: tuple[int, ...]) -> Array:
    """Return an array of those leading axes with the input's type and shape; itself, where it has both."""
    inner = array.shape[len(rows) :]
    if not _matches(inner, wanted.shape):
        known = [dim for dim in wanted.shape if isinstance(dim, int)]
        if len(known) < len(wanted.shape) or math.prod(known) != math.prod(inner):
            raise InputError(f"input {wanted}; got {array.dtype}{list(inner)}")
        array = array.reshape((*rows, *known))  # a row that was stored flat
    return _cast(wanted, array)


def _matches(shape: tuple[int, ...], declared: tuple[Dim, ...]) -> bool:
    return len(shape) == len(declared) and all(not isinstance(b, int) or a == b for a, b in zip(shape, declared, strict=True))


def _cast(wanted: RowInput, array: Array) -> Array:
    target = wanted.dtype.numpy
    if array.dtype == target:
        if wanted.dtype is DType.STRING and not all(isinstance(text, str) for text in array.flat):
            raise InputError(f"input {wanted}; got something else than texts")
        return array
    kinds = array.dtype.kind, target.kind
    if wanted.dtype is DType.STRING and kinds[0] in "UT":
        return array.astype(object)
    is_number = array.dtype.kind in "biuf" and (target.kind in "biufc" or wanted.dtype.is_float)
    if not is_number or (kinds[0] == "f" and target.kind in "biu") or (kinds[0] != "b" and target.kind == "b"):
        raise InputError(f"input {wanted}; {array.dtype} is another kind of value")
    if kinds[0] in "iu" and target.kind in "iu" and array.size:
        bounds = np.iinfo(target)
        if int(array.min()) < bounds.min or int(array.max()) > bounds.max:
            raise InputError(f"input {wanted}; got numbers from {array.min()} to {array.max()}, which {wanted.dtype} cannot hold")
    with np.errstate(over="ignore"):
        converted = array.astype(target)
    if wanted.dtype.is_float and np.count_nonzero(np.isinf(converted)) > np.count_nonzero(np.isinf(array)):
        large = array[np.isinf(converted) & ~np.isinf(array)].flat[0]
        raise InputError(f"input {wanted}; got {large}, which {wanted.dtype} cannot hold")
    return converted
