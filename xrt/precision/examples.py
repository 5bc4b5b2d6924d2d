"""Examples that a caller gives: batches of inputs as calls take them, checked, and cut to the sizes of a signature."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from xrt.errors import CalibrationError, InputError
from xrt.graph import Function, TensorType, Value
from xrt.precision.budget import ErrorBudget, check_labels
from xrt.runtime import to_host
from xrt.runtime.inputs import bind, check, normalize

__all__ = ["ExampleInputs", "Examples", "read_examples"]

MOST_ITEMS = 512
"""Examples that are made of the rows of batches, at most."""


@dataclass(frozen=True, slots=True)
class ExampleInputs:
    """One example."""

    given: Any
    """As the caller gave it: what a metric receives."""
    batch: int
    """The number of the batch that it is of."""
    values: tuple[Any, ...]
    """The inputs, in the order of the model."""


@dataclass(frozen=True)
class Examples:
    """The examples of one purpose."""

    purpose: str
    """``calibrate`` or ``validate``."""
    items: tuple[ExampleInputs, ...] = ()
    _digest: list[str] = field(default_factory=list, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def digest(self) -> str:
        """A hash of types, shapes and numbers."""
        if not self._digest:
            found = hashlib.sha256()
            for item in self.items:
                for value in item.values:
                    array = np.ascontiguousarray(value)
                    found.update(f"{array.dtype}{array.shape}".encode())
                    found.update(array.reshape(-1).view(np.uint8).data)
            self._digest.append(found.hexdigest())
        return self._digest[0]

    def split(self) -> tuple[Examples, Examples]:
        """Return the first four fifths, and the last fifth for validation: at least one of each."""
        held_out = max(1, len(self) // 5)
        return Examples(self.purpose, self.items[:-held_out]), Examples("validate", self.items[-held_out:])

    def fit(self, function: Function, declared: Sequence[Value]) -> Examples:
        """Return the examples for a Function whose extents are known: those of symbolic dims are cut or repeated.

        A batch of more rows than the Function's becomes several examples. Raises InputError where another extent differs.
        """
        if all(_matches(value, array) for item in self.items for value, array in zip(function.inputs, item.values, strict=True)):
            return self
        fitted = islice((made for item in self.items for made in _fit(item, function, declared, self.purpose)), MOST_ITEMS)
        return Examples(self.purpose, tuple(fitted))


def read_examples(given: Any, purpose: str, inputs: Sequence[Value], budget: ErrorBudget | None = None) -> Examples:
    """Return the examples that a caller gave: a list of what calls take; None for none.

    Raises CalibrationError for one array or a text in place of a list, for an empty list, and for NaN; InputError for what is no
    call of the model.
    """
    if given is None:
        return Examples(purpose)
    if isinstance(given, Mapping | np.ndarray | str | bytes) or not isinstance(given, Iterable):
        kind = type(given).__name__
        raise CalibrationError(f"{purpose}= takes a list of batches, each what a call takes; got one {kind}: pass [x]")
    items = tuple(_read_example(one, purpose, number, inputs, budget) for number, one in enumerate(given))
    if not items:
        raise CalibrationError(f"{purpose}= has no batches; pass at least two, as a list of what calls take")
    return Examples(purpose, items)


def _read_example(given: Any, purpose: str, number: int, inputs: Sequence[Value], budget: ErrorBudget | None) -> ExampleInputs:
    names = [value.name for value in inputs]
    if isinstance(given, Mapping):
        check_labels(given, names, budget)
        args, named = (), {name: given[name] for name in names if name in given}
    else:
        args, named = (tuple(given) if isinstance(given, list | tuple) else (given,)), {}
    try:
        bound = bind(tuple(inputs), args, named)
        values = tuple(to_host([normalize(value, one) for value, one in zip(inputs, bound, strict=True)]))
        check(inputs, values)
    except InputError as error:
        raise InputError(f"batch {number + 1} of {purpose}=: {error}") from error
    for name, array in zip(names, values, strict=True):
        if isinstance(array, np.ndarray) and array.dtype.kind == "f" and not np.isfinite(array).all():
            nans = int(np.isnan(array).sum())
            raise CalibrationError(
                f"input {name!r} of batch {number + 1} of {purpose}= has {nans} NaN and {int(np.isinf(array).sum())} infinities "
                f"among its {array.size} numbers; give examples of finite numbers"
            )
    return ExampleInputs(given, number, values)


# ---------------------------------------------------------------------- other sizes


def _matches(value: Value, array: Any) -> bool:
    return not isinstance(value.type, TensorType) or value.type.shape is None or tuple(array.shape) == tuple(value.type.shape)


def _fit(item: ExampleInputs, function: Function, declared: Sequence[Value], purpose: str) -> Iterator[ExampleInputs]:
    rows = _count_rows(item, function, declared)
    for row in range(rows):
        triples = zip(item.values, function.inputs, declared, strict=True)
        values = [_fit_array(array, value, open_, row, rows) for array, value, open_ in triples]
        for value, array in zip(function.inputs, values, strict=True):
            if not _matches(value, array):
                raise InputError(
                    f"an example of {purpose}= has shape {list(array.shape)} for input {value.name!r}, "
                    f"and the call has {value.type}"
                )
        yield ExampleInputs(item.given, item.batch, tuple(values))


def _open_extents(value: Value) -> tuple[bool, ...]:
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    return () if shape is None else tuple(not isinstance(extent, int) for extent in shape)


def _count_rows(item: ExampleInputs, function: Function, declared: Sequence[Value]) -> int:
    """Return how many examples of the Function's rows a batch holds, where all inputs have rows; else 1."""
    counts = set()
    for array, value, open_ in zip(item.values, function.inputs, declared, strict=True):
        wanted = value.type.shape[0] if isinstance(value.type, TensorType) and value.type.shape else None
        if _open_extents(open_)[:1] != (True,) or not isinstance(wanted, int) or not wanted or not array.ndim:
            return 1
        counts.add(array.shape[0] // wanted)
    return max(1, counts.pop()) if len(counts) == 1 else 1


def _fit_array(array: Any, value: Value, declared: Value, row: int, rows: int) -> Any:
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    if shape is None or array.ndim != len(shape):
        return array
    for axis, (want, is_open) in enumerate(zip(shape, _open_extents(declared), strict=False)):
        have = array.shape[axis]
        if not is_open or not have or not isinstance(want, int):
            continue
        begin = row * want if axis == 0 and rows > 1 else 0
        if have != want:
            array = np.take(array, np.arange(begin, begin + want) % have, axis=axis)
    return np.ascontiguousarray(array)
