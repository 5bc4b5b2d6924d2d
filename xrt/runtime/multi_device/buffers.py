"""The caller's own output buffers on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xrt.errors import DeviceError, InputError
from xrt.graph import TensorType, Type, Value
from xrt.runtime.devices.registry import device

if TYPE_CHECKING:
    from xrt.runtime.devices.interface import Device

__all__ = ["check_placed_buffers"]


def check_placed_buffers(
    name: str, out: Any, outputs: Sequence[Value], inputs: Sequence[Value], values: Sequence[Any]
) -> tuple[Any, ...]:
    """Return one buffer or None per output, another library's as an array of its own device.

    Raises InputError naming the buffer that is not a C-contiguous array of the output's type and shape, or that is an input or
    another buffer; DeviceError for one on another device.
    """
    buffers = tuple(out) if isinstance(out, list | tuple) else (out,)
    if len(buffers) != len(outputs):
        raise InputError(f"out has {len(buffers)} buffers; the model has {len(outputs)} outputs: give one, or None, for each")
    seen, found = {id(value) for value in values}, []
    for index, (buffer, value) in enumerate(zip(buffers, outputs, strict=True)):
        array = None if buffer is None else _array(device(name), f"out[{index}] for output {value.name!r}", buffer)
        if array is not None:
            reason = _why_not(array, value.type) or ("is an input or another buffer" if id(buffer) in seen else "")
            if reason:
                raise InputError(f"out[{index}] for output {value.name!r} {reason}")
            seen.add(id(buffer))
        found.append(array)
    return tuple(found)


def _array(where: Device, what: str, buffer: Any) -> Any:
    if where.owns(buffer):
        return buffer
    if not hasattr(buffer, "__dlpack__") or int(buffer.__dlpack_device__()[0]) == 1:
        raise DeviceError(f"{what} does not lie on {where.name}, where the module runs; give an array of that device")
    return where.adopt(buffer)


def _why_not(array: Any, type_: Type | None) -> str | None:
    if type_ is None:
        return None
    if not isinstance(type_, TensorType):
        return f"is given, but the output is {type_}, which no buffer holds; pass None in its place"
    shape = array.shape if type_.shape is None else type_.shape
    fits = len(shape) == array.ndim and all(not isinstance(d, int) or d == n for d, n in zip(shape, array.shape, strict=False))
    if array.dtype != type_.dtype.numpy or not fits:
        return f"must be {type_}; got {array.dtype}{list(array.shape)}"
    return None if array.flags.c_contiguous else "is not C-contiguous; a buffer must be a C-contiguous array"
