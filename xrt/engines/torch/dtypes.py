"""How tensors of PyTorch represent ONNX's element types.

For types that PyTorch computes in, tensors have the same type and share memory with NumPy arrays. The other types:

- Widened: uint16 and uint32 are represented by int32 and int64, and integers of 2 and 4 bits by int8 or uint8.
- uint64 is represented by int64 with the same bits.
- Coded: floats of at most 8 bits are represented by their bits in uint8. Only conversions decode them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from xrt.engines.toolkit.memory import make_writable_alias
from xrt.graph import DType

NATIVE = {
    DType.BOOL: torch.bool,
    DType.UINT8: torch.uint8,
    DType.INT8: torch.int8,
    DType.INT16: torch.int16,
    DType.INT32: torch.int32,
    DType.INT64: torch.int64,
    DType.FLOAT16: torch.float16,
    DType.BFLOAT16: torch.bfloat16,
    DType.FLOAT32: torch.float32,
    DType.FLOAT64: torch.float64,
}
"""Types that PyTorch computes in."""
COMPLEX = {DType.COMPLEX64: torch.complex64, DType.COMPLEX128: torch.complex128}
"""Types that only nodes of the domain ``aten`` support."""
_WIDENED = {
    DType.UINT16: torch.int32,
    DType.UINT32: torch.int64,
    DType.INT4: torch.int8,
    DType.INT2: torch.int8,
    DType.UINT4: torch.uint8,
    DType.UINT2: torch.uint8,
}
CODED = {dtype: torch.uint8 for dtype in DType if dtype.is_float and dtype.bits <= 8}
"""Floats of at most 8 bits, which are represented by their bits."""
BIT_MASKS = {DType.UINT16: 0xFFFF, DType.UINT32: 0xFFFFFFFF}
"""Bits to keep of results in widened types, so that they wrap around as in the type that they represent."""
_NUMPY_DTYPES: dict[DType, np.dtype[Any]] = {
    dtype: np.dtype(str(kind).removeprefix("torch."))
    for dtype, kind in {**NATIVE, **_WIDENED}.items()
    if dtype is not DType.BFLOAT16
}


def get_torch_dtype(dtype: DType) -> torch.dtype:
    """Get the torch.dtype that represents an element type; raises KeyError for strings."""
    # PyTorch has a type uint64, but few kernels for it.
    if dtype is DType.UINT64:
        return torch.int64
    return NATIVE.get(dtype) or COMPLEX.get(dtype) or _WIDENED.get(dtype) or CODED[dtype]


def make_from_numpy(dtype: DType) -> Callable[[np.ndarray[Any, Any]], torch.Tensor]:
    """Make a function that converts arrays of an element type to tensors. They share memory unless the type is widened."""
    if dtype in _WIDENED:
        wider = _NUMPY_DTYPES[dtype]
        return lambda array: torch.from_numpy(array.astype(wider))
    # `torch.from_numpy` does not support the bfloat16 of ml_dtypes, so pass the bits as int16.
    if dtype is DType.BFLOAT16:
        return lambda array: _share(array.view(np.int16)).view(torch.bfloat16)
    if dtype is DType.UINT64:
        return lambda array: _share(array.view(np.int64))
    if dtype in CODED:
        return lambda array: _share(array.view(np.uint8))
    return _share


def _share(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """View an array as a tensor. It is copied if PyTorch cannot represent its strides."""
    # PyTorch counts strides in elements, and does not support negative ones.
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        return torch.from_numpy(array.copy())
    if not array.flags.writeable:
        array = make_writable_alias(array)  # no kernel writes to its arguments
    return torch.from_numpy(array)


def make_to_numpy(dtype: DType) -> Callable[[torch.Tensor], np.ndarray[Any, Any]]:
    """Make a function that converts tensors to arrays of an element type. They share memory unless the type is widened."""
    if dtype in _WIDENED:
        return lambda tensor: tensor.numpy().astype(dtype.numpy)
    if dtype is DType.BFLOAT16:
        return lambda tensor: tensor.view(torch.int16).numpy().view(dtype.numpy)
    if dtype is DType.UINT64 or dtype in CODED:
        return lambda tensor: tensor.numpy().view(dtype.numpy)
    return lambda tensor: tensor.numpy()


@lru_cache(maxsize=16)
def get_decoded_values(dtype: DType) -> torch.Tensor:
    """Get the float32 value of each of the 256 uint8 codes of a coded type."""
    return torch.from_numpy(np.arange(256, dtype=np.uint8).view(dtype.numpy).astype(np.float32))
