"""The caller's own output buffers, checked before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xrt.errors import InputError
from xrt.graph import TensorType, Value

__all__ = ["check_buffers"]


def check_buffers(out: Any, outputs: Sequence[Value], inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return one buffer or None per output.

    Raises InputError naming the buffer that is not a writeable, C-contiguous array of the output's type and shape, or
    that overlaps an input or another buffer. Symbolic extents are checked when the output is there.
    """
    buffers = tuple(out) if isinstance(out, list | tuple) else (out,)
    if len(buffers) != len(outputs):
        raise InputError(f"out has {len(buffers)} buffers; the model has {len(outputs)} outputs: give one, or None, for each")
    seen = [(f"input {i}", x) for i, x in enumerate(inputs) if isinstance(x, np.ndarray)]
    for index, (buffer, value) in enumerate(zip(buffers, outputs, strict=True)):
        if buffer is not None:
            _check(f"out[{index}] for output {value.name!r}", buffer, value)
            _check_overlap(f"out[{index}]", buffer, seen)
            seen.append((f"out[{index}]", buffer))
    return buffers


def _check(what: str, buffer: Any, value: Value) -> None:
    if not isinstance(buffer, np.ndarray):
        raise InputError(f"{what} must be a NumPy array; got {type(buffer).__name__}")
    if not buffer.flags.writeable or not buffer.flags.c_contiguous:
        fault = "read-only" if not buffer.flags.writeable else "not C-contiguous"
        raise InputError(f"{what} is {fault}; a buffer must be a writeable, C-contiguous array")
    type_ = value.type
    if not isinstance(type_, TensorType):
        return
    fits = type_.shape is None or (
        len(type_.shape) == buffer.ndim
        and all(not isinstance(d, int) or d == n for d, n in zip(type_.shape, buffer.shape, strict=True))
    )
    if buffer.dtype != type_.dtype.numpy or not fits:
        raise InputError(f"{what} must be {type_}; got {buffer.dtype}{list(buffer.shape)}")


def _check_overlap(what: str, buffer: np.ndarray[Any, Any], seen: Sequence[tuple[str, np.ndarray[Any, Any]]]) -> None:
    for other, array in seen:
        if np.shares_memory(buffer, array):
            raise InputError(f"{what} overlaps {other}; give a buffer of its own")
