"""Inputs of a model from files."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xrt.errors import InputError, OptionError
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
            values[name] = _array(Path(path))
        elif text.endswith(".npz"):
            values.update(_arrays(Path(text)))
        elif len(function.inputs) == 1:
            values[function.inputs[0].name] = _array(Path(text))
        else:
            raise OptionError(f"--input {text!r} does not say which input it is; write NAME=FILE.npy, or give an .npz")
    return values


def _array(path: Path) -> np.ndarray[Any, Any]:
    loaded = _loaded(path)
    if not isinstance(loaded, np.ndarray):
        raise InputError(f"{path} holds several arrays; give it without NAME=, and each goes to the input of its name")
    return loaded


def _arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    loaded = _loaded(path)
    if isinstance(loaded, np.ndarray):
        raise InputError(f"{path} holds one array, not an archive of several; write NAME={path}")
    with loaded:
        return {name: loaded[name] for name in loaded.files}


def _loaded(path: Path) -> Any:
    """Read a .npy or .npz file; never a pickle."""
    try:
        return np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"there is no input file {path}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is not a .npy or .npz file of numbers; write one with numpy.save or numpy.savez") from error
