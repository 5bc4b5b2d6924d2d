"""Files of a session's state: named arrays, with the fingerprint of the model that they are of, in one container."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from xrt.errors import BundleError, InputError, ModelError
from xrt.formats.container import Container, ContainerWriter
from xrt.formats.output import replace_file
from xrt.graph import DType

__all__ = ["read_session", "write_session"]

Array: TypeAlias = np.ndarray[Any, Any]

KIND = "session"
_LIST = "arrays"


def write_session(path: str | os.PathLike[str], model: str, arrays: Mapping[str, Array]) -> None:
    """Write the arrays, whole or not at all; ``model`` is the fingerprint. Raises InputError where the file cannot be written."""
    listed = [[name, str(DType.of(array)), list(array.shape)] for name, array in arrays.items()]

    def fill(file: BinaryIO) -> None:
        writer = ContainerWriter(file, KIND)
        writer.add(_LIST, json.dumps({"model": model, "arrays": listed}, ensure_ascii=False).encode())
        for place, array in enumerate(arrays.values()):
            writer.add(str(place), np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        writer.finish()

    try:
        replace_file(Path(path), fill)
    except OSError as error:
        raise InputError(f"cannot write {os.fspath(path)!r}: {error.strerror}") from error


def read_session(path: str | os.PathLike[str]) -> tuple[str, dict[str, Array]]:
    """Return the model's fingerprint and the arrays, which are copies; raises InputError for a file that is none of these."""
    try:
        container = Container.open(Path(path), KIND)
        found = json.loads(bytes(container.section(_LIST)))
        arrays = {
            name: _array(container.section(str(place)), dtype, shape)
            for place, (name, dtype, shape) in enumerate(found["arrays"])
        }
        return str(found["model"]), arrays
    except (BundleError, ModelError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        why = (error.strerror or error) if isinstance(error, OSError) else error
        raise InputError(f"cannot read the state of a session from {os.fspath(path)!r}: {why}") from error


def _array(data: memoryview, dtype: str, shape: list[int]) -> Array:
    kind = np.dtype(DType.parse(dtype).numpy)
    if not all(isinstance(size, int) and size >= 0 for size in shape) or math.prod(shape) * kind.itemsize != len(data):
        raise ValueError(f"an array of {dtype}{shape} has another size than {len(data)} bytes")
    array: Array = np.frombuffer(data, np.uint8).copy().view(kind)
    return array.reshape(shape)
