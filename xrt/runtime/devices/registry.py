"""Open devices by name, once each, on first use; import arrays of other libraries through DLPack."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from xrt.errors import DeviceError, did_you_mean
from xrt.forking import renew_after_fork
from xrt.graph.device_names import KINDS, is_device, normalize_device, parse_device_index, parse_device_kind
from xrt.runtime.devices.interface import Device

if TYPE_CHECKING:
    from xrt.runtime.devices.interface import Stream

HOST_KINDS = (1, 3, 11)
"""DLPack codes of CPU, CUDA pinned and ROCm pinned memory, all readable by the host."""
_KINDS = {2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm", 13: "cuda", 14: "oneapi"}


def on_host(array: Any) -> bool:
    """Whether the host can read another library's array. Also True if the array does not report its device."""
    device = getattr(array, "__dlpack_device__", None)
    return device is None or int(device()[0]) in HOST_KINDS


def find_array_device(array: Any) -> str:
    """The device of another library's array, by its name in XRT, such as ``cuda:0``."""
    kind, index = array.__dlpack_device__()
    return f"{_KINDS.get(int(kind), f'device type {int(kind)} of DLPack')}:{int(index)}"


def from_dlpack(source: Any) -> np.ndarray[Any, Any]:
    """Import an array without a copy; raises BufferError, TypeError, ValueError or RuntimeError on failure."""
    try:
        return np.from_dlpack(source)
    except (BufferError, RuntimeError, TypeError) as error:
        array = _read_small_floats(source)
        # NumPy's error explains more than that the type is unknown.
        if array is None:
            raise error
        return array


def _read_small_floats(source: Any) -> np.ndarray[Any, Any] | None:
    """Import arrays of types that ``ml_dtypes`` adds to NumPy (bfloat16, float8), which `np.from_dlpack` rejects; else None."""
    dtype = getattr(ml_dtypes, str(getattr(source, "dtype", "")).rpartition(".")[2], None)
    if dtype is None:
        return None
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(source, torch.Tensor):
        bits = torch.int16 if source.element_size() == 2 else torch.uint8
        return np.from_dlpack(source.detach().view(bits)).view(dtype)  # type: ignore[no-any-return]  # ml_dtypes has no types
    array = np.asarray(source)  # JAX's arrays know ml_dtypes
    return array if array.dtype == dtype else None


_OTHER_NAMES = {"gpu": "cuda", "nvidia": "cuda", "host": "cpu"}
"""Names of device kinds in other libraries, for error hints."""


def check_device(device: object) -> str:
    """Validate a device name: ``cpu``, ``cuda`` or ``cuda:N``; raises DeviceError otherwise."""
    if not isinstance(device, str) or not is_device(device) or device.startswith("cpu:"):
        kind = str(device).partition(":")[0].lower()
        hint = did_you_mean(_OTHER_NAMES.get(kind, kind), KINDS)
        raise DeviceError(f"unknown device {device!r}; a device is 'cpu', 'cuda' or 'cuda:N'.{hint}")
    return device


Maker = Callable[[int], Device]
"""Opens the device with an index; raises DeviceError if it does not exist."""


def _open_cuda(index: int) -> Device:
    from xrt.runtime.devices.cuda import CudaDevice  # loads CuPy

    return CudaDevice(index)


_makers: dict[str, Maker] = {"cuda": _open_cuda}
_origins: dict[str, str] = {}
"""Kind of device to the import path of a function that returns its replaced maker; worker processes import it too."""
_opened: dict[str, Device] = {}
_lock = renew_after_fork(threading.Lock())


def device(name: str) -> Device:
    """The accelerator of that name, opened on first use; raises DeviceError, with the reason, if it is unavailable."""
    name = normalize_device(name)
    with _lock:
        # Under the lock, so that concurrent first uses open the device once.
        if name not in _opened:
            _opened[name] = _makers[parse_device_kind(name)](parse_device_index(name))
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
    """Activate the device of an array with its current stream; a null context for host values."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack_device__"):
        return nullcontext()
    accelerator = device(find_array_device(value))
    return accelerator.activate(accelerator.current_stream())


def list_device_factories() -> dict[str, str]:
    """List the device kinds whose maker was replaced, with the import path that worker processes pass to `register_device`."""
    return dict(_origins)


def register_device(kind: str, origin: str) -> None:
    """Open devices of a kind with the function that ``origin`` (``module:function``) returns, for the rest of the process."""
    with _lock:
        if _origins.get(kind) != origin:
            module, _, name = origin.partition(":")
            _makers[kind], _origins[kind] = getattr(importlib.import_module(module), name)(), origin


@contextmanager
def override_devices(kind: str, maker: Maker, origin: str = "") -> Iterator[None]:
    """Context manager: replace the maker of a kind, for example by a simulated device.

    ``origin`` is the import path with which worker processes do the same: see `register_device`.
    """
    with _lock:
        # Devices that are open stay valid, but are hidden until the context ends.
        outer_maker, outer_origin = _makers[kind], _origins.get(kind)
        opened = {name: _opened.pop(name) for name in list(_opened) if parse_device_kind(name) == kind}
        _makers[kind], _origins[kind] = maker, origin
    try:
        yield
    finally:
        with _lock:
            _makers[kind] = outer_maker
            del _origins[kind]
            if outer_origin is not None:  # of an enclosing `override_devices`, or of `register_device`
                _origins[kind] = outer_origin
            for name in [name for name in _opened if parse_device_kind(name) == kind]:
                del _opened[name]
            _opened.update(opened)


class Streams:
    """One stream per device, created on first use and shared by all programs of a module."""

    def __init__(self) -> None:
        self._by_device: dict[str, Stream] = {}
        self._lock = renew_after_fork(threading.Lock())

    def get(self, name: str) -> Stream | None:
        """The stream of a device, or None if not created yet."""
        return self._by_device.get(name)

    def on(self, name: str) -> Stream:
        """The stream of a device, created on first use."""
        # Without the lock at first, because every call of a program gets its streams here.
        stream = self._by_device.get(name)
        if stream is None:
            with self._lock:
                stream = self._by_device.setdefault(name, device(name).new_stream())
        return stream
