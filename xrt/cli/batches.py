"""Batches of a model's inputs, from the files of a folder or from one file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from xrt.errors import InputError, did_you_mean
from xrt.formats.arrays import read_npy, read_npz
from xrt.graph import Function, TensorType, Value

__all__ = ["read_batches"]

Batch: TypeAlias = dict[str, np.ndarray[Any, Any]]

WANTED, MOST_ROWS = 10, 16
"""Into how many batches the rows of a symbolic dim are divided, and how many rows a batch has at most."""


def read_batches(path: Path, function: Function) -> list[Batch]:
    """Return batches of arrays by input name, from a file or the files of a folder, in the order of their names.

    An ``.npz`` has an array per input; an ``.npy`` is for a model of one input. Arrays of many examples are cut along their first
    axis: into arrays of the declared extent, or of a few rows where it is symbolic. An array with one axis more than its input
    has a batch in each row. Raises InputError for files that do not fit.
    """
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in (".npy", ".npz"))
        if not files:
            raise InputError(f"there is no .npy or .npz file in {path}; write one with numpy.savez, an array for each input")
    else:
        files = [path]
    return [batch for file in files for batch in _cut(_read(file, function), function, file)]


def _read(path: Path, function: Function) -> Batch:
    names = [value.name for value in function.inputs]
    if path.suffix == ".npy":
        if len(names) != 1:
            raise InputError(
                f"{path} has one array, and the model takes {', '.join(names)}; write an .npz with an array for each"
            )
        return {names[0]: read_npy(path)}
    found = read_npz(path)
    for name in found:
        if name not in names:
            raise InputError(
                f"{path} has an array {name!r}, which is no input.{did_you_mean(name, names)} Inputs: {', '.join(names)}"
            )
    if missing := [name for name in names if name not in found]:
        raise InputError(f"{path} has no array for input{'s' * (len(missing) != 1)} {', '.join(missing)}")
    return found


def _cut(arrays: Batch, function: Function, path: Path) -> Iterator[Batch]:
    """Yield the batches of one file."""
    cut = {value.name: _cut_array(arrays[value.name], value) for value in function.inputs}
    counts = {name: len(found) for name, found in cut.items() if isinstance(found, list)}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise InputError(f"the arrays of {path} have different numbers of batches: {listed}")
    for place in range(next(iter(counts.values()), 1)):
        yield {name: found[place] if isinstance(found, list) else found for name, found in cut.items()}


def _cut_array(array: np.ndarray[Any, Any], value: Value) -> Any:
    """Return the arrays of each batch; the array itself where the same one is for all."""
    type_ = value.type
    if not isinstance(type_, TensorType) or type_.shape is None:
        return [array]
    if array.ndim == len(type_.shape) + 1:
        return list(array)
    if array.ndim != len(type_.shape) or not array.ndim:
        return array if not array.ndim else [array]  # a call says what does not fit
    extent, rows = type_.shape[0], array.shape[0]
    size = extent if isinstance(extent, int) else min(MOST_ROWS, max(1, math.ceil(rows / WANTED)))
    if not size or (rows % size and isinstance(extent, int)):
        return [array]
    return [array[at : at + size] for at in range(0, rows, size)]
