"""Open devices by name, once each, on first use; import arrays of other libraries through DLPack."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import ml_dtypes
import numpy as np

from xrt.forking import renew_after_fork
from xrt.graph.device_names import normalize_device, parse_device_index, parse_device_kind
from xrt.runtime.devices.interface import Device, Stream

DLPACK_HOST_CODES = (1, 3, 11)
"""DLPack codes of memory that the host can read: CPU, CUDA pinned and ROCm pinned."""
_DLPACK_KINDS = {2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm", 13: "cuda", 14: "oneapi"}


def is_on_host(array: Any) -> bool:
    """Whether the host can read another library's array; True also if the array does not report a device."""
    device = getattr(array, "__dlpack_device__", None)
    return device is None or int(device()[0]) in DLPACK_HOST_CODES


def find_array_device(array: Any) -> str:
    """Return XRT's name for the device of another library's array, such as ``cuda:0``."""
    kind, index = array.__dlpack_device__()
    return f"{_DLPACK_KINDS.get(int(kind), f'device type {int(kind)} of DLPack')}:{int(index)}"


def from_dlpack(source: Any) -> np.ndarray[Any, Any]:
    """Import an array without a copy; raises BufferError, TypeError, ValueError or RuntimeError on failure."""
    try:
        return np.from_dlpack(source)
    except (BufferError, RuntimeError, TypeError) as error:
        array = _read_small_floats(source)
        if array is None:
            raise error
        return array


def _read_small_floats(source: Any) -> np.ndarray[Any, Any] | None:
    """Import an array of bfloat16 or float8, which `np.from_dlpack` rejects; None for other types."""
    dtype = getattr(ml_dtypes, str(getattr(source, "dtype", "")).rpartition(".")[2], None)
    if dtype is None:
        return None
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(source, torch.Tensor):
        bits = torch.int16 if source.element_size() == 2 else torch.uint8
        return np.from_dlpack(source.detach().view(bits)).view(dtype)  # type: ignore[no-any-return]  # ml_dtypes has no types
    array = np.asarray(source)  # JAX's arrays know ml_dtypes
    return array if array.dtype == dtype else None


DeviceOpener = Callable[[int], Device]
"""A function that opens the device with an index; raises DeviceError if it does not exist."""


def _open_cuda(index: int) -> Device:
    from xrt.runtime.devices.cuda import CudaDevice  # loads CuPy

    return CudaDevice(index)


_openers: dict[str, DeviceOpener] = {"cuda": _open_cuda}
_opener_paths: dict[str, str] = {}
"""For each kind of device whose opener was replaced: the import path of a function that returns the new opener."""
_opened: dict[str, Device] = {}
_lock = renew_after_fork(threading.Lock())


def device(name: str) -> Device:
    """Get a device by name; it is opened on first use. Raises DeviceError, with the reason, if it is unavailable."""
    name = normalize_device(name)
    with _lock:
        # Under the lock, so that two threads do not open the same device.
        if name not in _opened:
            _opened[name] = _openers[parse_device_kind(name)](parse_device_index(name))
        return _opened[name]


def to_host(value: Any) -> Any:
    """Copy device arrays, in lists too, to the host and wait; other values are unchanged."""
    if isinstance(value, list):
        return [to_host(item) for item in value]
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack_device__"):
        return value
    with use_array_device(value):
        return device(find_array_device(value)).download(value)


def use_array_device(value: Any) -> AbstractContextManager[object]:
    """Return a context in which the device of an array is active, with its current stream. For host values it does nothing."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack_device__"):
        return nullcontext()
    accelerator = device(find_array_device(value))
    return accelerator.activate(accelerator.current_stream())


def list_device_factories() -> dict[str, str]:
    """Return a dict from device kind to the import path with which a worker process calls `register_device`."""
    return dict(_opener_paths)


def register_device(kind: str, origin: str) -> None:
    """Open the devices of a kind by the function that ``origin`` (``module:function``) returns, until the process ends."""
    with _lock:
        if _opener_paths.get(kind) != origin:
            module, _, name = origin.partition(":")
            _openers[kind], _opener_paths[kind] = getattr(importlib.import_module(module), name)(), origin


@contextmanager
def override_devices(kind: str, opener: DeviceOpener, origin: str = "") -> Iterator[None]:
    """Within a ``with`` block, open the devices of a kind by another function, for example as simulated devices.

    ``origin`` is the import path with which worker processes do the same: see `register_device`.
    """
    with _lock:
        # Devices that are open stay valid, but `device` does not return them until the block ends.
        outer_opener, outer_origin = _openers[kind], _opener_paths.get(kind)
        opened = {name: _opened.pop(name) for name in list(_opened) if parse_device_kind(name) == kind}
        _openers[kind], _opener_paths[kind] = opener, origin
    try:
        yield
    finally:
        with _lock:
            _openers[kind] = outer_opener
            del _opener_paths[kind]
            if outer_origin is not None:  # of an enclosing `override_devices`, or of `register_device`
                _opener_paths[kind] = outer_origin
            for name in [name for name in _opened if parse_device_kind(name) == kind]:
                del _opened[name]
            _opened.update(opened)


class Streams(dict[str, Stream]):
    """The streams of a module, by device name: created on first use, and shared by all its programs."""

    def __missing__(self, name: str) -> Stream:
        # Two threads that create the stream of a device at once both use the first.
        return self.setdefault(name, device(name).new_stream())
