"""A model as a function of columns: what an actor, a task or a thread of a batch job calls."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from xrt.comparison import compare, tolerance_for
from xrt.errors import EngineError, InputError, OptionError, did_you_mean
from xrt.formats.bundle import is_bundle
from xrt.graph import TensorType, Value
from xrt.graph.memory_map import Stamp, make_stamp
from xrt.integrations.batch.results import ERROR, ResultRows, add_errors, split_outputs
from xrt.integrations.batch.rows import RowGroup, find_fixed_batch, gather_rows, match_columns
from xrt.module import XRTModule, load

__all__ = ["OnError", "RowModel", "choose_batch", "open_model", "stamp_model"]

Array: TypeAlias = "np.ndarray[Any, Any]"
OnError: TypeAlias = Literal["raise", "column"]

USUAL_BATCH = 32
"""Rows of a call of a model that was not tuned for throughput."""


def open_model(path: str | os.PathLike[str], *, engine: Any = (), threads: int | None = None, **options: Any) -> XRTModule:
    """Open a bundle, or an ONNX file on ``engine``; ``options`` are those of `xrt.load` or XRTModule."""
    given: dict[str, Any] = options if threads is None else {"threads": threads, **options}
    if is_bundle(path):
        return load(path, engine=engine, **given)
    return XRTModule(os.fspath(path), engine or None, **given)


def stamp_model(path: str | os.PathLike[str]) -> Stamp:
    """Return what tells a model's file from itself after a change; nothing where it is missing, which `open_model` says."""
    try:
        return make_stamp(Path(path).stat())
    except OSError:
        return ()


def choose_batch(module: XRTModule) -> int:
    """Return the rows of a call: the batch that the model declares, or was tuned for, or `USUAL_BATCH`."""
    fixed = find_fixed_batch(module.inputs)
    tuned = module.serving
    return fixed or (tuned.batch if tuned is not None and tuned.dim else USUAL_BATCH)


class RowModel:
    """A module that is called with columns, and returns columns: its outputs, and the columns that are no input.

    ``columns`` maps inputs to columns where the names differ; ``outputs`` names the outputs to return, or maps them to columns.
    ``keep`` lists the columns that are passed on. Rows of different sizes run in groups of equal ones, and return in their order.
    With ``on_error="column"`` a row that cannot be run has no outputs and a reason in the column ``error``.
    Raises OptionError for a name that the model does not have.
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
            raise OptionError(f"batch must be a number of rows from 1 on; got {batch!r}")
        self.module = module
        self.inputs = match_columns(module.inputs, columns)
        self._fixed = find_fixed_batch(module.inputs)
        if self._fixed and batch and batch != self._fixed:
            raise OptionError(f"batch is {batch}, and the model takes {self._fixed} rows in each call; leave batch out")
        self.batch = self._fixed or batch
        self._names = _name_outputs(module.outputs, outputs)
        self._keep, self._on_error = keep, on_error
        self._has_independent_rows = batch == 1
        """True once a call has shown it; calls of one row need no proof."""

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The outputs that become columns, under the columns' names."""
        return tuple(Value(self._names[value.name], value.type) for value in self.module.outputs if value.name in self._names)

    def __call__(self, columns: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs as columns, after those that are kept. Raises InputError and EngineError, which name the row."""
        results, errors = self.predict(columns)
        count = len(next(iter(columns.values()))) if columns else 0
        kept = {name: columns[name] for name in self.list_kept(list(columns))}
        return {**kept, **(add_errors(results, errors, count) if self._on_error == "column" else results)}

    def list_kept(self, columns: Sequence[str]) -> list[str]:
        """Return the columns that are passed on; raises OptionError for one that is missing, or named as an output."""
        used = {one.column for one in self.inputs}
        kept = [name for name in columns if name not in used] if self._keep is None else list(self._keep)
        made = {*self._names.values(), *((ERROR,) if self._on_error == "column" else ())}
        for name in kept:
            if name not in columns:
                raise OptionError(f"keep names {name!r}; the rows have {', '.join(columns)}.{did_you_mean(name, columns)}")
            if name in made:
                raise OptionError(
                    f"{name!r} is a column of the rows and of the results; give the output another name: "
                    f"outputs={{{name!r}: ...}}, or list the columns to keep without it"
                )
        return kept

    def predict(self, columns: Mapping[str, Array]) -> tuple[dict[str, Array], dict[int, str]]:
        """Return the outputs as columns, and by row why it has none."""
        rows = gather_rows(self.inputs, columns)
        if rows.errors and self._on_error == "raise":
            row = min(rows.errors)
            raise InputError(f"row {row}: {rows.errors[row]}; on_error='column' keeps such rows apart")
        errors = dict(rows.errors)
        results = ResultRows(self.outputs, rows.count)
        for group in rows.group():
            for part in _slice(group, self.batch):
                self._run(part, results, errors)
        return results.collect(), errors

    def _run(self, group: RowGroup, results: ResultRows, errors: dict[int, str]) -> None:
        try:
            found = self._call(group)
            if not self._has_independent_rows:
                self._check_independence(group, found)
            results.add(group.indices, found)
        except (InputError, EngineError) as error:
            if self._on_error == "raise":
                if len(group.indices) == 1:
                    error.add_note(f"in row {group.indices[0]}")
                raise
            if len(group.indices) == 1:
                errors[int(group.indices[0])] = str(error)
                return
            for part in _slice(group, (len(group.indices) + 1) // 2):  # until the rows are known that cannot be run
                self._run(part, results, errors)

    def _check_independence(self, group: RowGroup, together: Sequence[Array]) -> None:
        """Run the first and the last row of a call alone; raises OptionError where another result comes out.

        The results would depend on the sizes of calls and parts. Equal rows prove nothing, so that the next call is checked.
        """
        count = len(group.indices)
        if count == 1 or not any((array[1:] != array[:1]).any() for array in group.values.values()):
            return
        for place in (0, count - 1):
            row = RowGroup(group.indices[[place]], {name: array[[place]] for name, array in group.values.items()})
            try:
                alone = self._call(row)
                reason = next(filter(None, map(_find_difference, self.outputs, alone, [all_[[place]] for all_ in together])), "")
            except (InputError, EngineError) as error:
                reason = f"alone it fails: {error}"
            if reason:
                cure = "write a model with an open batch" if self._fixed else "pass batch=1 (--batch 1)"
                raise OptionError(
                    f"the rows of a call change each other: row {group.indices[place]} alone and with {count - 1} others, "
                    f"{reason}; {cure}, so that each row has a call of its own"
                )
        self._has_independent_rows = True

    def _call(self, group: RowGroup) -> list[Array]:
        rows = len(group.indices)
        missing = (self._fixed or rows) - rows
        values = [group.values[one.name] for one in self.inputs]
        if missing:
            values = [_repeat_last(array, missing) for array in values]
        found = split_outputs(self.module.outputs, self.module(*values), rows + missing)
        chosen = [array for value, array in zip(self.module.outputs, found, strict=True) if value.name in self._names]
        return [array[:rows] for array in chosen] if missing else chosen


def _name_outputs(declared: Sequence[Value], asked: Mapping[str, str] | Sequence[str] | None) -> dict[str, str]:
    names = [value.name for value in declared]
    chosen = dict(asked) if isinstance(asked, Mapping) else {name: name for name in (names if asked is None else asked)}
    for name in chosen:
        if name not in names:
            raise OptionError(f"outputs names {name!r}; the model's outputs are {', '.join(names)}.{did_you_mean(name, names)}")
    if len(set(chosen.values())) < len(chosen):
        raise OptionError(f"outputs gives two outputs one column: {', '.join(chosen.values())}; give each its own")
    return chosen


def _find_difference(value: Value, alone: Array, together: Array) -> str:
    if isinstance(value.type, TensorType):
        return compare(alone, together, tolerance_for(together.dtype, "network"), name=value.name).message
    return compare(alone.tolist(), together.tolist(), name=value.name).message


def _slice(group: RowGroup, size: int | None) -> Iterator[RowGroup]:
    """Yield a group in parts of at most so many rows, which share its memory."""
    count = len(group.indices)
    if size is None or count <= size:
        yield group
        return
    for start in range(0, count, size):
        part = slice(start, start + size)
        yield RowGroup(group.indices[part], {name: array[part] for name, array in group.values.items()})


def _repeat_last(array: Array, more: int) -> Array:
    """Return the rows with the last one several times more, for a model that takes a fixed number of them."""
    return np.concatenate([array, np.repeat(array[-1:], more, axis=0)])
