"""The caller's own output buffers, checked before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from xrt.errors import DeviceError, InputError
from xrt.graph import TensorType, Type, Value

__all__ = ["check_buffers", "why_not_fixed"]

Array: TypeAlias = np.ndarray[Any, Any]


def check_buffers(out: Any, outputs: Sequence[Value], inputs: Sequence[Value], values: Sequence[Any]) -> tuple[Any, ...]:
    """Return one buffer or None per output.

    Raises InputError naming the buffer that is not a writeable, C-contiguous array of the output's type and shape, or
    that overlaps an input or another buffer; DeviceError for one on another device. Symbolic extents are checked when
    the output is there.
    """
    buffers = tuple(out) if isinstance(out, list | tuple) else (out,)
    if len(buffers) != len(outputs):
        many = f"{len(buffers)} buffer{'s' * (len(buffers) != 1)}; the model has {len(outputs)} output{'s' * (len(outputs) != 1)}"
        raise InputError(f"out has {many} ({', '.join(v.name for v in outputs)}): give one, or None, for each")
    seen = list(values)
    for index, (buffer, value) in enumerate(zip(buffers, outputs, strict=True)):
        if buffer is not None:
            if place := _elsewhere(buffer):
                raise DeviceError(f"out[{index}] for output {value.name!r} lies on {place}, {_RUNS_ON_CPU}")
            if reason := _why_not(buffer, value.type) or _why_overlapping(buffer, seen, inputs):
                raise InputError(f"out[{index}] for output {value.name!r} {reason}")
        seen.append(buffer)
    return buffers


def _why_not(buffer: Any, type_: Type | None) -> str | None:
    """Return why the buffer cannot hold the output, as the rest of a sentence about it; None when it can."""
    if not isinstance(buffer, np.ndarray):
        return f"must be a NumPy array; got {type(buffer).__name__}"
    if reason := why_not_fixed(buffer):
        return f"is {reason}; a buffer must be a writeable, C-contiguous array"
    if type_ is None:
        return None
    if not isinstance(type_, TensorType):
        return f"is given, but the output is {type_}, which no buffer holds; pass None in its place"
    if buffer.dtype != type_.dtype.numpy or not _fits(type_, buffer):
        return f"must be {type_}; got {buffer.dtype}{list(buffer.shape)}"
    return None


def why_not_fixed(buffer: Array) -> str | None:
    """Return why an array cannot be written to as one block of memory; None when it can."""
    flags = buffer.flags
    if not flags.writeable:
        return "read-only"
    if not flags.c_contiguous:
        return "not C-contiguous"
    return None if flags.aligned else "not aligned to its element type"


_HOST = 1
_DEVICES = {2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm", 14: "oneapi"}
"""DLPack's numbers of devices."""
_RUNS_ON_CPU = "and the module runs on cpu; give a NumPy array"


def _elsewhere(buffer: Any) -> str | None:
    """Return the device of another library's array that does not lie in host memory; None for everything else."""
    device = None if isinstance(buffer, np.ndarray) else getattr(buffer, "__dlpack_device__", None)
    kind, index = (_HOST, 0) if device is None else device()
    return None if int(kind) == _HOST else f"{_DEVICES.get(int(kind), f'device type {int(kind)} of DLPack')}:{index}"


def _fits(type_: TensorType, buffer: Array) -> bool:
    if type_.shape is None:
        return True
    if len(type_.shape) != buffer.ndim:
        return False
    return all(not isinstance(dim, int) or dim == size for dim, size in zip(type_.shape, buffer.shape, strict=True))


def _why_overlapping(buffer: Array, seen: Sequence[Any], inputs: Sequence[Value]) -> str | None:
    """Return which input, or which buffer before it, it shares memory with; ``seen`` holds these in that order."""
    for place, other in enumerate(seen):
        if _shares(buffer, other):
            name = f"input {inputs[place].name!r}" if place < len(inputs) else f"out[{place - len(inputs)}]"
            return f"overlaps {name}; give a buffer of its own"
    return None


def _shares(buffer: Array, other: Any) -> bool:
    if isinstance(other, list):
        return any(_shares(buffer, item) for item in other)
    return isinstance(other, np.ndarray) and np.may_share_memory(buffer, other) and np.shares_memory(buffer, other)
