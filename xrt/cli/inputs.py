"""Inputs of a model from files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xrt.errors import OptionError
from xrt.formats.arrays import read_npy, read_npz
from xrt.graph import Function

__all__ = ["from_files"]


def from_files(files: Sequence[str], function: Function) -> dict[str, Any]:
    """Return values by input name from texts such as ``x=x.npy`` and ``all.npz``.

    Raises OptionError for a text that does not say which input it is, InputError for a file that cannot be read.
    """
    values: dict[str, Any] = {}
    for text in files:
        name, equals, path = text.partition("=")
        if equals and not Path(text).exists():
            values[name] = read_npy(Path(path))
        elif text.endswith(".npz"):
            values.update(read_npz(Path(text)))
        elif len(function.inputs) == 1:
            values[function.inputs[0].name] = read_npy(Path(text))
        else:
            raise OptionError(f"--input {text!r} does not say which input it is; write NAME=FILE.npy, or give an .npz")
    return values
