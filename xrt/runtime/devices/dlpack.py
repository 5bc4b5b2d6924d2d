"""Import host arrays of other libraries through DLPack, including types that NumPy's own importer lacks."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np

HOST_KINDS = (1, 3, 11)
"""DLPack codes of CPU, CUDA pinned and ROCm pinned memory, all readable by the host."""
_KINDS = {2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm", 13: "cuda", 14: "oneapi"}


def on_host(array: Any) -> bool:
    """Whether another library's array is readable by the host; assumed if the array has no such information."""
    device = getattr(array, "__dlpack_device__", None)
    return device is None or int(device()[0]) in HOST_KINDS


def find_array_device(array: Any) -> str:
    """XRT's name for the device of another library's array."""
    kind, index = array.__dlpack_device__()
    return f"{_KINDS.get(int(kind), f'device type {int(kind)} of DLPack')}:{int(index)}"


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
    """Import bfloat16 and float8, which NumPy's importer lacks; None for other types. ``ml_dtypes`` has NumPy types for them."""
    dtype = getattr(ml_dtypes, str(getattr(source, "dtype", "")).rpartition(".")[2], None)
    if dtype is None:
        return None
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(source, torch.Tensor):
        bits = torch.int16 if source.element_size() == 2 else torch.uint8
        return np.from_dlpack(source.detach().view(bits)).view(dtype)  # type: ignore[no-any-return]  # ml_dtypes has no types
    array = np.asarray(source)  # JAX's arrays know ml_dtypes
    return array if array.dtype == dtype else None
