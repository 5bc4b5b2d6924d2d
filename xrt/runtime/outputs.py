"""The caller's own output buffers, checked before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from xrt.errors import DeviceError, InputError
from xrt.graph import TensorType, Type, Value

__all__ = ["check_buffers", "why_not_fixed"]

Array: TypeAlias = np.ndarray[Any, Any]
Seen: TypeAlias = list[tuple[str, Array]]


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
    seen: Seen = [(f"input {v.name!r}", x) for v, x in zip(inputs, values, strict=True) if isinstance(x, np.ndarray)]
    for index, (buffer, value) in enumerate(zip(buffers, outputs, strict=True)):
        if buffer is not None:
            what = f"out[{index}] for output {value.name!r}"
            _check(what, buffer, value.type)
            _check_overlap(what, buffer, seen)
            seen.append((f"out[{index}]", buffer))
    return buffers


def _check(what: str, buffer: Any, type_: Type | None) -> None:
    if not isinstance(buffer, np.ndarray):
        _check_device(what, buffer)
        raise InputError(f"{what} must be a NumPy array; got {type(buffer).__name__}")
    if reason := why_not_fixed(buffer):
        raise InputError(f"{what} is {reason}; a buffer must be a writeable, C-contiguous array")
    if type_ is None:
        return
    if not isinstance(type_, TensorType):
        raise InputError(f"{what} is given, but the output is {type_}, which no buffer holds; pass None in its place")
    if buffer.dtype != type_.dtype.numpy or not _fits(type_, buffer):
        raise InputError(f"{what} must be {type_}; got {buffer.dtype}{list(buffer.shape)}")


def why_not_fixed(buffer: Array) -> str | None:
    """Return why an array cannot be written to as one block of memory; None when it can."""
    flags = buffer.flags
    if not flags.writeable:
        return "read-only"
    if not flags.c_contiguous:
        return "not C-contiguous"
    return None if flags.aligned else "not aligned to its element type"


def _check_device(what: str, buffer: Any) -> None:
    """Raise DeviceError for an array of another library that does not lie in host memory."""
    device = getattr(buffer, "__dlpack_device__", None)
    kind, index = device() if device is not None else (_HOST, 0)
    if int(kind) != _HOST:
        name = _DEVICES.get(int(kind), f"device type {int(kind)} of DLPack")
        raise DeviceError(f"{what} lies on {name}:{index}, and the module runs on cpu; give a NumPy array")


_HOST = 1
_DEVICES = {2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm", 14: "oneapi"}
"""DLPack's numbers of devices."""


def _fits(type_: TensorType, buffer: Array) -> bool:
    if type_.shape is None:
        return True
    if len(type_.shape) != buffer.ndim:
        return False
    return all(not isinstance(dim, int) or dim == size for dim, size in zip(type_.shape, buffer.shape, strict=True))


def _check_overlap(what: str, buffer: Array, seen: Seen) -> None:
    for other, array in seen:
        if np.may_share_memory(buffer, array) and np.shares_memory(buffer, array):
            raise InputError(f"{what} overlaps {other}; give a buffer of its own")
