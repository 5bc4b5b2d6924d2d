"""A model as a function of columns: match columns to inputs, group rows by shape, run the groups, split outputs into rows."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from xrt.comparison import compare, tolerance_for
from xrt.errors import EngineError, InputError, OptionError, did_you_mean
from xrt.formats.bundle import is_bundle
from xrt.graph import DType, TensorType, Value
from xrt.graph.constants import Stamp, make_stamp
from xrt.graph.types import Dim
from xrt.module import XRTModule, load
from xrt.runtime import to_host

Array: TypeAlias = "np.ndarray[Any, Any]"
Column: TypeAlias = "Array | list[Array | None]"
"""The values of all rows: one array, or a list with an array for each row, and None for a row that failed."""


@dataclass(frozen=True, slots=True)
class RowInput:
    """A model input whose first axis is rows."""

    name: str
    column: str
    dtype: DType
    shape: tuple[Dim, ...]
    """The shape of one row; dynamic extents may differ from row to row."""

    def __str__(self) -> str:
        return f"{self.name!r} takes rows of {TensorType(self.dtype, self.shape)}"


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows whose arrays have equal shapes, so that one call can compute all of them."""

    indices: Array  # row numbers, ascending
    values: Mapping[str, Array]

    def select(self, rows: Any) -> RowGroup:
        """Select rows of the group by a slice, which copies nothing, or by any other index of NumPy."""
        return RowGroup(self.indices[rows], {name: array[rows] for name, array in self.values.items()})

    def split(self, size: int | None) -> Iterator[RowGroup]:
        """Split the group into parts of at most ``size`` rows; without a size, yield the group itself."""
        count = len(self.indices)
        if size is None or count <= size:
            yield self
            return
        for start in range(0, count, size):
            yield self.select(slice(start, start + size))


def group_rows(columns: Mapping[str, Column], errors: Mapping[int, str], count: int) -> Iterator[RowGroup]:
    """Yield the rows without errors, grouped by shape. The groups are in the order of their first rows.

    ``columns`` has the values by input, ``errors`` the reasons of failed rows, and ``count`` is the number of rows. Nothing is
    copied if each column is one array and no row has failed.
    """
    ragged = [column for column in columns.values() if isinstance(column, list)]
    if not ragged and not errors:
        if count:
            yield RowGroup(np.arange(count), columns)  # type: ignore[arg-type]  # no column is a list
        return
    groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for row in range(count):
        if row not in errors:
            shapes = tuple(np.shape(column[row]) for column in ragged)  # type: ignore[arg-type]
            groups.setdefault(shapes, []).append(row)
    for members in groups.values():
        values = {
            name: np.stack([column[row] for row in members]) if isinstance(column, list) else column[members]  # type: ignore[misc]
            for name, column in columns.items()
        }
        yield RowGroup(np.array(members), values)


def match_columns(inputs: Sequence[Value], columns: Mapping[str, str] | None = None) -> tuple[RowInput, ...]:
    """Match each input to a column: the column that ``columns`` maps it to, else the column of the same name.

    Raises OptionError for an unknown input, and for an input without a row axis.
    """
    names = [value.name for value in inputs]
    column_names = columns or {}
    for name in column_names:
        if name not in names:
            raise OptionError(f"columns names {name!r}; the model's inputs are {', '.join(names)}.{did_you_mean(name, names)}")
    rows = []
    for value in inputs:
        type_ = value.type
        if not isinstance(type_, TensorType) or not type_.shape:
            raise OptionError(f"input {value} has no axis of rows, so a column cannot fill it; make it a constant of the model")
        rows.append(RowInput(value.name, column_names.get(value.name, value.name), type_.dtype, type_.shape[1:]))
    return tuple(rows)


def find_fixed_batch(inputs: Sequence[Value]) -> int | None:
    """Find the number of rows per call that the inputs declare; None if it is dynamic. Raises OptionError if they disagree."""
    sizes = {value.type.shape[0] for value in inputs if isinstance(value.type, TensorType) and value.type.shape}
    fixed = sorted(size for size in sizes if isinstance(size, int))
    if len(fixed) > 1:
        input_list = ", ".join(str(value) for value in inputs)
        raise OptionError(f"the inputs take different numbers of rows in a call: {input_list}; rows cannot fill them")
    return fixed[0] if fixed else None


def gather_rows(inputs: Sequence[RowInput], columns: Mapping[str, Array]) -> tuple[dict[str, Column], dict[int, str]]:
    """Convert columns to the types of the inputs; return the values by input name, and error messages by row number.

    Raises InputError for a missing column.
    """
    for row_input in inputs:
        if row_input.column not in columns:
            column_list = ", ".join(columns) or "none"
            hint = did_you_mean(row_input.column, columns)
            raise InputError(
                f"input {row_input.name!r} is filled from column {row_input.column!r}, and the rows have {column_list}.{hint} "
                f"Name the column: columns={{{row_input.name!r}: ...}} (--column {row_input.name}=COLUMN on the command line)"
            )
    errors: dict[int, str] = {}
    return {row_input.name: _convert(row_input, columns[row_input.column], errors) for row_input in inputs}, errors


def _convert(row_input: RowInput, column: Array, errors: dict[int, str]) -> Column:
    """Convert a column to the type of an input. Rows that do not fit become None, with their reason in ``errors``."""
    # Convert all rows at once if possible, as one Python call per row costs more than the conversion.
    if column.dtype != object:
        with suppress(InputError):  # the failing rows are found below
            return _fit(row_input, column, column.shape[:1])
    items: list[Array | None] = []
    for row, value in enumerate(column):
        try:
            items.append(_fit(row_input, _as_array(row_input, value), ()))
        except InputError as error:
            errors.setdefault(row, str(error))
            items.append(None)
    return items


def _as_array(row_input: RowInput, value: Any) -> Array:
    """Convert the value of one row to an array of any type; raises InputError for nested lists of different lengths."""
    if value is None:
        raise InputError(f"input {row_input}; got nothing")
    if row_input.dtype is DType.STRING:
        return np.asarray(value, dtype=object)
    try:
        array = np.asarray(value)
    except ValueError as error:  # lists of unequal lengths
        raise InputError(f"input {row_input}; got lists of unequal lengths") from error
    # Arrow has a matrix as an array of arrays.
    if array.dtype == object and array.ndim:
        try:
            array = np.stack([np.asarray(item) for item in array])
        except ValueError as error:
            raise InputError(f"input {row_input}; got parts of unequal shapes") from error
    return array


def _fit(row_input: RowInput, array: Array, leading: tuple[int, ...]) -> Array:
    """Reshape and cast an array to the input's type, if it has another. ``leading`` is (rows,) for a column, () for one row.

    Raises InputError for a shape or values that do not fit.
    """
    row_shape, shape = array.shape[len(leading) :], row_input.shape
    fits = len(row_shape) == len(shape) and all(
        expected == actual for actual, expected in zip(row_shape, shape, strict=True) if isinstance(expected, int)
    )
    if not fits:
        # Many tables have an image as a flat list.
        fixed_shape = [dim for dim in shape if isinstance(dim, int)]
        if len(fixed_shape) < len(shape) or math.prod(fixed_shape) != math.prod(row_shape):
            raise InputError(f"input {row_input}; got {array.dtype}{list(row_shape)}")
        array = array.reshape((*leading, *fixed_shape))
    return _cast(row_input, array)


def _cast(row_input: RowInput, array: Array) -> Array:
    """Cast to the input's element type; raises InputError if that would change more than the rounding of a number."""
    target = row_input.dtype.numpy
    if array.dtype == target:
        if row_input.dtype is DType.STRING and not all(isinstance(text, str) for text in array.flat):
            raise InputError(f"input {row_input}; got values that are not strings")
        return array
    if row_input.dtype is DType.STRING and array.dtype.kind in "UT":  # NumPy's strings
        return array.astype(object)
    if not _is_castable(array.dtype.kind, row_input.dtype):
        raise InputError(f"input {row_input}; {array.dtype} is another kind of value")
    if array.dtype.kind in "iu" and target.kind in "iu" and array.size:
        bounds = np.iinfo(target)
        if int(array.min()) < bounds.min or int(array.max()) > bounds.max:
            raise InputError(
                f"input {row_input}; got numbers from {array.min()} to {array.max()}, which {row_input.dtype} cannot hold"
            )
    with np.errstate(over="ignore"):
        converted = array.astype(target)
    # Rounding is accepted, but not overflow to infinity.
    if row_input.dtype.is_float and np.count_nonzero(np.isinf(converted)) > np.count_nonzero(np.isinf(array)):
        large = array[np.isinf(converted) & ~np.isinf(array)].flat[0]
        raise InputError(f"input {row_input}; got {large}, which {row_input.dtype} cannot hold")
    return converted


def _is_castable(kind: str, target: DType) -> bool:
    """Whether a kind (NumPy's letter) may be cast to ``target``: booleans to all, integers to numbers, floats to floats."""
    # NumPy gives bfloat16 and float8 the kind V.
    target_kind = "f" if target.is_float else target.numpy.kind
    target_kinds = {"b": "biufc", "i": "iufc", "u": "iufc", "f": "fc"}
    return target_kind in target_kinds.get(kind, "")


ERROR = "error"
"""Column with the reason why a row has no outputs; None for valid rows."""


def as_objects(items: Sequence[Any]) -> Array:
    """Create a 1-D array of objects. `numpy.array` would stack items that are arrays of one shape."""
    array = np.empty(len(items), object)
    array[:] = items
    return array


def collect_column(value: Value, parts: Sequence[tuple[Array, Array]], count: int) -> Array:
    """Join the results of groups to one column of ``count`` rows; ``parts`` has (row numbers, results) of each group.

    If the shapes of the results differ, the column is an object array, in which a row without a result is an empty array.
    Otherwise the row is NaN, or 0 if the type has no NaN.
    """
    if len(parts) == 1:  # no copy in the usual case
        ((indices, array),) = parts
        if len(indices) == count:
            return array
    # If all rows have failed, the declared type decides, so that all parts of a job have the same columns.
    if parts:
        row_types = {(array.shape[1:], array.dtype) for _, array in parts}
    elif isinstance(value.type, TensorType) and value.type.shape is not None:
        declared_shape = tuple(dim if isinstance(dim, int) else 0 for dim in value.type.shape[1:])
        row_types = {(declared_shape, value.type.dtype.numpy)}
    else:
        row_types = {((), np.dtype(object))}
    if len(row_types) == 1:
        ((shape, dtype),) = row_types
        missing = {"f": np.nan, "c": np.nan, "O": None}.get(dtype.kind, 0)
        column = np.full((count, *shape), missing, dtype)
        for indices, array in parts:
            column[indices] = array
        return column
    _, first_array = parts[0]
    empty_row = np.zeros([0] * (first_array.ndim - 1), first_array.dtype)
    column = as_objects([empty_row] * count)
    for indices, array in parts:
        for row, item in zip(indices, array, strict=True):
            column[row] = item
    return column


OnError: TypeAlias = Literal["raise", "column"]
DEFAULT_BATCH = 32
"""Rows per call of a model with dynamic rows that was not tuned for throughput."""


def open_model(path: str | os.PathLike[str], *, engine: Any = (), threads: int | None = None, **options: Any) -> XRTModule:
    """Open a bundle, or an ONNX file on ``engine``; ``options`` are those of `xrt.load` or XRTModule."""
    keywords: dict[str, Any] = options if threads is None else {"threads": threads, **options}
    if is_bundle(path):
        return load(path, engine=engine, **keywords)
    return XRTModule(os.fspath(path), engine or None, **keywords)


def stamp_model(path: str | os.PathLike[str]) -> Stamp:
    """Return a value that changes when the model's file changes. Empty if there is no file, which `open_model` reports."""
    try:
        return make_stamp(Path(path).stat())
    except OSError:
        return ()


def choose_batch(module: XRTModule) -> int:
    """Choose the rows per call: the model's fixed batch, else its tuned batch, else `DEFAULT_BATCH`."""
    tuned = module.serving
    tuned_batch = tuned.batch if tuned is not None and tuned.dim else None  # without a dim, requests are not batched
    return find_fixed_batch(module.inputs) or tuned_batch or DEFAULT_BATCH


class RowModel:
    """Calls a module with columns and returns its outputs, together with the columns that fill no input.

    ``columns`` maps inputs to columns if their names differ; ``outputs`` names the outputs to return or maps them to columns.
    ``keep`` lists the columns to pass on. Rows are grouped by shape for the calls, and the results are in the order of the rows.
    With ``on_error="column"`` rows that fail have no outputs and a reason in the column ``error``. Raises OptionError for a name
    that the model does not have.
    """

    def __init__(
        self,
        module: XRTModule,
        *,
        columns: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | Sequence[str] | None = None,
        keep: Sequence[str] | None = None,
        batch: int | None = None,
        on_error: OnError = "raise",
    ) -> None:
        if on_error not in ("raise", "column"):
            raise OptionError(
                f"on_error must be 'raise' or 'column'; got {on_error!r}.{did_you_mean(on_error, ('raise', 'column'))}"
            )
        if batch is not None and (not isinstance(batch, int) or batch < 1):
            raise OptionError(f"batch must be a positive number of rows; got {batch!r}")
        self.module = module
        self.inputs = match_columns(module.inputs, columns)
        self._fixed = find_fixed_batch(module.inputs)
        if self._fixed and batch and batch != self._fixed:
            raise OptionError(f"batch is {batch}, and the model takes {self._fixed} rows in each call; leave batch out")
        self.batch = self._fixed or batch
        self._names = _name_outputs(module.outputs, outputs)
        self._keep, self._on_error = keep, on_error
        self._has_independent_rows = batch == 1
        """Whether `_check_independence` has passed; with one row per call there is nothing to check."""

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The returned outputs, named like their columns."""
        return tuple(Value(self._names[value.name], value.type) for value in self.module.outputs if value.name in self._names)

    def __call__(self, columns: Mapping[str, Array]) -> dict[str, Array]:
        """Compute the outputs; return the outputs and the columns to pass on, by name. Errors name the row that failed."""
        results, errors = self.predict(columns)
        count = len(next(iter(columns.values()))) if columns else 0
        passed_columns = {name: columns[name] for name in self.list_passed_columns(list(columns))}
        columns_by_name = {**passed_columns, **results}
        if self._on_error == "column":
            columns_by_name[ERROR] = as_objects([errors.get(row) for row in range(count)])
        return columns_by_name

    def list_passed_columns(self, columns: Sequence[str]) -> list[str]:
        """List which of ``columns`` to pass on; raises OptionError for one that is missing or has the name of an output."""
        used = {row_input.column for row_input in self.inputs}
        passed_columns = [name for name in columns if name not in used] if self._keep is None else list(self._keep)
        result_names = set(self._names.values())
        if self._on_error == "column":
            result_names.add(ERROR)
        for name in passed_columns:
            if name not in columns:
                raise OptionError(f"keep names {name!r}; the rows have {', '.join(columns)}.{did_you_mean(name, columns)}")
            if name in result_names:
                raise OptionError(
                    f"{name!r} is a column of the rows and of the results; give the output another name: "
                    f"outputs={{{name!r}: ...}}, or list the columns to keep without it"
                )
        return passed_columns

    def predict(self, columns: Mapping[str, Array]) -> tuple[dict[str, Array], dict[int, str]]:
        """Compute the outputs; return columns by name, and the reasons why rows failed by row number."""
        rows, errors = gather_rows(self.inputs, columns)
        if errors and self._on_error == "raise":
            row = min(errors)
            raise InputError(f"row {row}: {errors[row]}; with on_error='column' the other rows are computed")
        count = len(next(iter(columns.values()))) if columns else 0
        results: list[tuple[Array, list[Array]]] = []
        for group in group_rows(rows, dict(errors), count):
            for part in group.split(self.batch):
                self._run(part, results, errors)
        computed = {}
        for index, value in enumerate(self.outputs):
            parts = [(row_numbers, arrays[index]) for row_numbers, arrays in results]
            computed[value.name] = collect_column(value, parts, count)
        return computed, errors

    def _run(self, group: RowGroup, results: list[tuple[Array, list[Array]]], errors: dict[int, str]) -> None:
        """Run a group, and append its row numbers and outputs to ``results``, or the reasons of failed rows to ``errors``."""
        try:
            outputs = self._call(group)
            if not self._has_independent_rows:
                self._check_independence(group, outputs)
            results.append((group.indices, outputs))
        except (InputError, EngineError) as error:
            if self._on_error == "raise":
                if len(group.indices) == 1:  # in a larger group, any row may have failed
                    error.add_note(f"in row {group.indices[0]}")
                raise
            if len(group.indices) == 1:
                errors[int(group.indices[0])] = str(error)
                return
            for part in group.split((len(group.indices) + 1) // 2):  # halve until the failing rows are isolated
                self._run(part, results, errors)

    def _check_independence(self, group: RowGroup, together: Sequence[Array]) -> None:
        """Raise OptionError if the first or the last row alone gives another result than together with the other rows.

        The results of such a model would depend on batch and part sizes. If all rows are equal, the next call is checked instead.
        """
        count = len(group.indices)
        if count == 1 or not any((array[1:] != array[:1]).any() for array in group.values.values()):
            return
        for row in (0, count - 1):
            try:
                outputs = zip(self.outputs, self._call(group.select([row])), together, strict=True)
                reasons = [_find_difference(value, alone, array[[row]]) for value, alone, array in outputs]
            except (InputError, EngineError) as error:
                reasons = [f"alone it fails: {error}"]
            if reason := "; ".join(filter(None, reasons)):
                remedy = "export it with a dynamic batch size" if self._fixed else "pass batch=1 (--batch 1)"
                raise OptionError(
                    f"the rows of a call change each other: row {group.indices[row]} alone and with {count - 1} others, "
                    f"{reason}; {remedy}, so that each call has one row"
                )
        self._has_independent_rows = True

    def _call(self, group: RowGroup) -> list[Array]:
        """Run the module on the rows of a group, padded to the fixed batch size if there is one.

        Return the selected outputs, one item per row. Raises OptionError if an output has another number of items than rows.
        """
        count = len(group.indices)
        call_rows = self._fixed or count
        values = [group.values[row_input.name] for row_input in self.inputs]
        if call_rows > count:  # fill a fixed batch with copies of the last row
            values = [np.concatenate([array, np.repeat(array[-1:], call_rows - count, axis=0)]) for array in values]
        returned = self.module(*values)
        results = returned if isinstance(returned, tuple) else (returned,)
        selected = []
        for value, result in zip(self.module.outputs, results, strict=True):
            if value.name not in self._names:
                continue
            output = to_host(result)
            array = as_objects(output) if isinstance(output, list) else output
            if getattr(array, "ndim", 0) == 0 or len(array) != call_rows:
                shape = f"{list(output.shape)}" if isinstance(output, np.ndarray) else f"{type(output).__name__}"
                raise OptionError(
                    f"output {value.name!r} has no item for each row: {shape} for {call_rows} rows; name the outputs to keep"
                )
            selected.append(array[:count] if call_rows > count else array)
        return selected


def _name_outputs(declared: Sequence[Value], columns: Mapping[str, str] | Sequence[str] | None) -> dict[str, str]:
    """Map each returned output to its column; raises OptionError for an unknown output, or two outputs in one column."""
    names = [value.name for value in declared]
    if not isinstance(columns, Mapping):
        columns = {name: name for name in (names if columns is None else columns)}
    mapping = dict(columns)
    for name in mapping:
        if name not in names:
            raise OptionError(f"outputs names {name!r}; the model's outputs are {', '.join(names)}.{did_you_mean(name, names)}")
    if len(set(mapping.values())) < len(mapping):
        raise OptionError(f"outputs maps two outputs to one column: {', '.join(mapping.values())}; use different columns")
    return mapping


def _find_difference(value: Value, alone: Array, together: Array) -> str:
    """Describe how the output of a row alone differs from its output in a batch; empty if it is within the tolerance."""
    if isinstance(value.type, TensorType):
        return compare(alone, together, tolerance_for(together.dtype, "network"), name=value.name).message
    return compare(alone.tolist(), together.tolist(), name=value.name).message
