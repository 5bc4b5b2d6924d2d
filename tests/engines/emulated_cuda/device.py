"""The emulated device as XRT sees it: arrays of the host that DLPack says are CUDA's."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from xrt.engines.contract.graph_compiler import Accelerator

__all__ = ["DeviceArray", "EmulatedDevice", "empty"]

_CUDA = 2
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class DeviceArray(np.ndarray):
    """An array that goes by DLPack as CuPy's does, and only to who waits for no stream."""

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        assert stream == -1, "any other stream would be made to wait, and a recording would end"
        capsule = np.asarray(self).__dlpack__()
        where = _pointer(capsule, b"dltensor")
        assert where is not None
        ctypes.c_int32.from_address(where + ctypes.sizeof(ctypes.c_void_p)).value = _CUDA
        return capsule


def empty(shape: Sequence[int], dtype: Any, gap: int = 0) -> DeviceArray:
    """Return an array of NaN at a multiple of 512 bytes, as CuPy's pool has them, or so many bytes behind one."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    raw = np.full(nbytes + 1024, 0xFF, np.uint8)
    start = -raw.ctypes.data % 512 + gap
    return raw[start : start + nbytes].view(dtype).reshape(tuple(shape)).view(DeviceArray)


class EmulatedDevice(Accelerator):
    name, hardware, architecture, has_addresses = "cuda:0", "emulated", "sm_90", True
    xp = SimpleNamespace(empty=empty)

    def __init__(self) -> None:
        self.waits = 0

    def address(self, value: Any) -> int:
        return int(value.ctypes.data) if isinstance(value, np.ndarray) else int(value)

    def view_memory(self, address: int, shape: Sequence[int], dtype: np.dtype[Any], owner: object) -> Any:
        raise NotImplementedError

    def upload(self, array: np.ndarray[Any, Any], gap: int = 0) -> DeviceArray:
        result = empty(array.shape, array.dtype, gap)
        result[...] = array
        return result

    def download(self, array: Any) -> np.ndarray[Any, Any]:
        return np.array(array)

    def new_stream(self) -> int:
        return 77

    @contextmanager
    def activate(self, stream: Any) -> Iterator[None]:
        yield

    def follow(self, later: Any, earlier: Any) -> None:
        return

    def wait(self, streams: Sequence[Any]) -> None:
        self.waits += 1
