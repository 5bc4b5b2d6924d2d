"""Results of a call in a file, from a worker to the comparison: the arrays are constants of an ONNX model, not a pickle."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xrt.formats.onnx import load, to_model
from xrt.graph import Constant, Function, Value

__all__ = ["read_outputs", "write_outputs"]

_FORM = "form"


def write_outputs(path: Path, results: Sequence[Any]) -> None:
    """Write results: arrays, lists of them, and None where an optional one is absent."""
    arrays = [Constant(array) for array in _arrays(results)]
    constants = {str(place): constant for place, constant in enumerate(arrays)}
    outputs = tuple(Value(name, constant.type) for name, constant in constants.items())
    metadata = {_FORM: json.dumps(_form(results, iter(range(len(arrays)))))}
    path.write_bytes(to_model(Function((), outputs, (), constants, {"": 1}, metadata=metadata)).SerializeToString())


def read_outputs(path: Path) -> list[Any]:
    """Return the results that a file holds."""
    held = load(path)
    return list(_filled(json.loads(held.metadata[_FORM]), held))


def _arrays(value: Any) -> Iterator[np.ndarray[Any, Any]]:
    if isinstance(value, np.ndarray):
        yield value
    elif value is not None:
        for item in value:
            yield from _arrays(item)


def _form(value: Any, places: Iterator[int]) -> Any:
    """Return the value with the place of each array instead of it."""
    if isinstance(value, np.ndarray):
        return next(places)
    return None if value is None else [_form(item, places) for item in value]


def _filled(form: Any, held: Function) -> Any:
    if isinstance(form, int):
        return held.constants[str(form)].array
    return None if form is None else [_filled(item, held) for item in form]
