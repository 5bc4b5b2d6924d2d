"""Requests that share a call: whether they may, by shapes and by a trial, and how they are joined and cut again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from xrt.comparison import compare, tolerance_for
from xrt.errors import XRTError
from xrt.graph import Function, TensorType, Value
from xrt.graph.sample_inputs import sample_inputs
from xrt.graph.types import Dim
from xrt.serve.tensors import Array

__all__ = ["Values", "count_joinable_rows", "explain_mixed_rows", "find_reason_against_batches", "join_and_split", "run_batch"]

Values = tuple[Array, ...]
"""The inputs or the outputs of a call, in order."""

_EXTENTS = (1, 8, 64, 224)
"""What is tried for extents that requests decide, the first axis excepted."""


def find_reason_against_batches(inputs: Sequence[Value], outputs: Sequence[Value]) -> str:
    """Return why requests cannot be joined along the first axis, by the declared shapes; empty where they can."""
    if not inputs or not outputs:
        return "it has no inputs, or no outputs"
    leading = {}
    for value in (*inputs, *outputs):
        shape = value.type.shape if isinstance(value.type, TensorType) else None
        if not shape or isinstance(shape[0], int):
            return f"the first axis of {value.name!r} ({value.type}) is not open"
        leading[value.name] = shape[0]
    named = {dim for dim in leading.values() if dim is not None}
    declared = {leading[value.name] for value in inputs}
    if len(declared) > 1 or len(named) > 1:
        return f"its first axes differ: {', '.join(f'{name!r} has {dim}' for name, dim in leading.items())}"
    return ""


def count_joinable_rows(values: Values) -> int:
    """The rows of a request whose inputs all have as many; 0 where they differ, so that the request runs alone.

    A model may broadcast an input of one row over another input's rows: joined with other requests, it would meet their rows.
    """
    rows = {array.shape[0] if array.ndim else 0 for array in values}
    return rows.pop() if len(rows) == 1 else 0


def explain_mixed_rows(call: Callable[..., Values], inputs: Sequence[Value], sizes: Sequence[int], *, rounds_up: bool) -> str:
    """Explain why the rows of a batch are not independent, from a trial with random requests; empty where they are.

    The two requests have different numbers of rows; in a second round the other one is full of NaN. The trial also compiles: for
    each size of a list.
    """
    tried = ""
    for extent in _EXTENTS:
        try:
            for size in sizes if rounds_up else (max(sizes),):
                if reason := _compare_batch(call, inputs, extent, size, (size,) if rounds_up else ()):
                    return reason
        except (XRTError, ValueError) as error:
            tried = str(error)
        else:
            return ""
    return f"requests cannot be joined, since the trial of a batch failed: {tried}; leave batch out"


def _compare_batch(call: Callable[..., Values], inputs: Sequence[Value], extent: int, size: int, padded: tuple[int, ...]) -> str:
    rows = (1, 2) if size > 2 else (1,) * size
    requests = [_sample(inputs, seed, extent, count) for seed, count in enumerate(rows)]
    expected = [call(*values) for values in requests]
    reason = _compare(expected, join_and_split(call, requests, rows, padded))
    if reason or size == 1:
        return reason
    spoiled = tuple(np.full_like(array, np.nan) if array.dtype.kind == "f" else array for array in requests[1])
    try:
        return _compare(expected[:1], join_and_split(call, [requests[0], spoiled], rows, padded))
    except (XRTError, ValueError):  # a call that fails for one request is repeated for each alone: nothing is mixed
        return ""


def _compare(expected: Sequence[Values], together: Sequence[Values]) -> str:
    for alone, result in zip(expected, together, strict=False):
        for before, after in zip(alone, result, strict=True):
            if not (found := compare(after, before, tolerance_for(before.dtype, "network"))):
                return f"the rows of a batch change each other: alone and together, {found.message}; leave batch out"
    return ""


def _sample(inputs: Sequence[Value], seed: int, extent: int, rows: int) -> Values:
    types = {value.name: value.type for value in inputs if isinstance(value.type, TensorType) and value.type.shape}
    leading = {type_.shape[0] for type_ in types.values() if type_.shape}

    def choose(dim: Dim) -> int:
        return dim if isinstance(dim, int) else rows if dim is not None and dim in leading else extent

    sized = [Value(name, type_.with_shape((rows, *map(choose, type_.shape[1:])))) for name, type_ in types.items() if type_.shape]
    return tuple(sample_inputs(Function(tuple(sized), ()), seed).values())


# ---------------------------------------------------------------------- on a thread of the pool


def run_batch(
    call: Callable[..., Values], requests: Sequence[Values], rows: Sequence[int], sizes: Sequence[int] = ()
) -> list[Values | BaseException]:
    """Return what the call gives for each request, or what it raised for it alone.

    Several requests become one call along the first axis, with the last row repeated up to the next of ``sizes``. Where that
    fails each request has a call of its own, so that one request cannot fail another.
    """
    if len(requests) > 1 or (sizes and rows[0] not in sizes and rows[0] < max(sizes)):
        with suppress(Exception):  # each is tried alone, and its own error is its answer
            return list(join_and_split(call, requests, rows, sizes))
    return [_try(call, values) for values in requests]


def _try(call: Callable[..., Values], values: Values) -> Values | BaseException:
    try:
        return call(*values)
    except Exception as error:  # noqa: BLE001  # it is the answer of this request
        return error


def join_and_split(
    call: Callable[..., Values], requests: Sequence[Values], rows: Sequence[int], sizes: Sequence[int] = ()
) -> list[Values]:
    """Return what one call gives for all requests, cut at their rows; raises ValueError where the outputs have other rows."""
    count = sum(rows)
    padding = min((size for size in sizes if size >= count), default=count) - count
    joined = tuple(_join([values[place] for values in requests], padding) for place in range(len(requests[0])))
    results = call(*joined)
    ends = np.cumsum(rows)
    if any(array.ndim == 0 or array.shape[0] != count + padding for array in results):
        raise ValueError("the outputs do not have the rows of the inputs")
    return [tuple(array[end - size : end] for array in results) for end, size in zip(ends, rows, strict=True)]


def _join(arrays: Sequence[Array], padding: int) -> Array:
    last = arrays[-1][-1:]
    return np.concatenate([*arrays, *([np.repeat(last, padding, axis=0)] if padding else [])])
