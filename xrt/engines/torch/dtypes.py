"""Representation of ONNX element types in tensors of PyTorch.

Types that PyTorch computes in share memory with NumPy arrays. Others have a wider or coded form: unsigned integers of 16 and 32
bits are the next wider signed ones, uint64 is int64 with the same bits, integers under 8 bits are int8 and uint8, and small
floats are uint8 codes, which only conversions decode.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from xrt.engines.toolkit.libraries import shorten
from xrt.engines.toolkit.memory import make_writable_alias
from xrt.graph import DType

DIRECT = {
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
"""Types that only opaque calls of PyTorch compute in."""
_WIDENED = {
    DType.UINT16: torch.int32,
    DType.UINT32: torch.int64,
    DType.INT4: torch.int8,
    DType.INT2: torch.int8,
    DType.UINT4: torch.uint8,
    DType.UINT2: torch.uint8,
}
MASKS = {DType.UINT16: 0xFFFF, DType.UINT32: 0xFFFFFFFF}
"""Bits of a result, for types that are represented by wider ones."""
_NUMPY: dict[DType, np.dtype[Any]] = {
    dtype: np.dtype(str(kind).removeprefix("torch."))
    for dtype, kind in {**DIRECT, **_WIDENED}.items()
    if dtype is not DType.BFLOAT16
}


def get_torch_dtype(dtype: DType) -> torch.dtype:
    """The torch.dtype that represents an element type; raises KeyError if there is none."""
    # PyTorch's uint64 has few kernels.
    if dtype is DType.UINT64:
        return torch.int64
    return DIRECT.get(dtype) or COMPLEX.get(dtype) or _WIDENED.get(dtype) or _CODES[dtype]


_CODES = {dtype: torch.uint8 for dtype in DType if dtype.is_float and dtype.bits <= 8}


def from_numpy(dtype: DType) -> Callable[[np.ndarray[Any, Any]], torch.Tensor]:
    """Make the function that converts arrays of an element type to tensors.

    A tensor shares the memory of its array, even of a read-only one, unless a wider type represents the element type.
    """
    if dtype in _WIDENED:
        wider = _NUMPY[dtype]
        return lambda array: torch.from_numpy(array.astype(wider))
    # NumPy's bfloat16 is of ml_dtypes, which `torch.from_numpy` does not know: share the bits.
    if dtype is DType.BFLOAT16:
        return lambda array: _share(array.view(np.int16)).view(torch.bfloat16)
    if dtype is DType.UINT64:
        return lambda array: _share(array.view(np.int64))
    if dtype in _CODES:
        return lambda array: _share(array.view(np.uint8))
    return _share


def _share(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """View an array as a tensor; copy if strides are negative or no multiple of the item size."""
    # PyTorch counts strides in elements, and has no negative ones.
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        return torch.from_numpy(array.copy())
    if not array.flags.writeable:
        array = make_writable_alias(array)  # no kernel writes to its arguments
    return torch.from_numpy(array)


def to_numpy(dtype: DType) -> Callable[[torch.Tensor], np.ndarray[Any, Any]]:
    """Make the function that converts tensors that represent an element type to arrays; they share memory as in `from_numpy`."""
    if dtype in _WIDENED:
        return lambda tensor: tensor.numpy().astype(dtype.numpy)
    if dtype is DType.BFLOAT16:
        return lambda tensor: tensor.view(torch.int16).numpy().view(dtype.numpy)
    if dtype is DType.UINT64 or dtype in _CODES:
        return lambda tensor: tensor.numpy().view(dtype.numpy)
    return lambda tensor: tensor.numpy()


@lru_cache(maxsize=16)
def decode_table(dtype: DType) -> torch.Tensor:
    """The float32 values of the codes of a small float type."""
    return torch.from_numpy(np.arange(256, dtype=np.uint8).view(dtype.numpy).astype(np.float32))


LONGEST = 160


def summarize_error(cause: BaseException) -> str:
    """The first nonempty line of an error of PyTorch, shortened."""
    lines = [line.strip() for line in str(cause).splitlines()]
    text = next((line for line in lines if line), "")
    return shorten(re.sub(r"\s+", " ", text).rstrip(" .:"), LONGEST) or type(cause).__name__
