"""Inputs of a model from files, and random ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xrt import passes
from xrt.errors import OptionError
from xrt.formats.arrays import read_npy, read_npz
from xrt.graph import Function, TensorType
from xrt.models import sample_inputs

__all__ = ["all_inputs", "from_files", "list_input_files", "set_shapes"]


def all_inputs(files: Sequence[str], function: Function, seed: int) -> dict[str, Any]:
    """Return a value for each input: from files, and else a random one, of the extents that those of the files say."""
    given = from_files(files, function)
    return sample_inputs(set_shapes(function, given), seed) | given


def set_shapes(function: Function, given: Mapping[str, Any]) -> Function:
    """Return the function for the shapes of those arrays; raises InputError for one that does not fit."""
    tensors = {value.name for value in function.inputs if isinstance(value.type, TensorType)}
    shapes = {name: array.shape for name, array in given.items() if name in tensors and isinstance(array, np.ndarray)}
    return passes.specialize(function, shapes) if shapes else function


def from_files(files: Sequence[str], function: Function) -> dict[str, Any]:
    """Return values by input name from texts such as ``x=x.npy`` and ``all.npz``.

    Raises OptionError for a text that does not say which input it is, InputError for a file that cannot be read.
    """
    values: dict[str, Any] = {}
    for name, path in _named(files, function):
        values |= {name: read_npy(path)} if name is not None else read_npz(path)
    return values


def list_input_files(files: Sequence[str], function: Function) -> dict[str, Path]:
    """Return for each input that `from_files` finds the file that it is in; raises what that does."""
    found: dict[str, Path] = {}
    for name, path in _named(files, function):
        found |= dict.fromkeys([name] if name is not None else read_npz(path), path)
    return found


def _named(files: Sequence[str], function: Function) -> list[tuple[str | None, Path]]:
    """Return the files, each with the input that it is of; None for one that says so itself."""
    return [_file(text, function) for text in files]


def _file(text: str, function: Function) -> tuple[str | None, Path]:
    name, equals, path = text.partition("=")
    if equals and not Path(text).exists():
        return name, Path(path)
    if text.endswith(".npz"):
        return None, Path(text)
    if len(function.inputs) != 1:
        raise OptionError(f"--input {text!r} does not say which input it is; write NAME=FILE.npy, or give an .npz")
    return function.inputs[0].name, Path(text)
