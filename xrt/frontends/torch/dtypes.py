"""Convert element types and share memory between PyTorch tensors and NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from xrt.errors import InputError, ModelError
from xrt.graph import DType

_TO_TORCH: dict[DType, torch.dtype] = {}
for _dtype in DType:
    # PyTorch writes float8_e4m3fn, and has no arithmetic for types of less than a byte.
    _torch_dtype = getattr(torch, _dtype.text.replace("float8e", "float8_e"), None)
    if isinstance(_torch_dtype, torch.dtype) and _dtype.bits >= 8:
        _TO_TORCH[_dtype] = _torch_dtype
_FROM_TORCH = {torch_dtype: dtype for dtype, torch_dtype in _TO_TORCH.items()}
_UNSIGNED_TYPES = {1: torch.uint8, 2: torch.uint16}
"""Unsigned types by item size in bytes. Types that NumPy lacks, such as bfloat16, are viewed as these and back."""


def from_torch_dtype(dtype: torch.dtype) -> DType:
    """Convert a torch.dtype to a DType; raises ModelError if ONNX has no such element type."""
    try:
        return _FROM_TORCH[dtype]
    except KeyError:
        raise ModelError(f"{dtype} has no ONNX element type; convert the module or its inputs to another one") from None


def to_torch_dtype(dtype: DType) -> torch.dtype:
    """Convert a DType to a torch.dtype; raises ModelError if PyTorch has no such type."""
    try:
        return _TO_TORCH[dtype]
    except KeyError:
        raise ModelError(f"PyTorch has no type for {dtype}") from None


def share_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Convert a tensor to an array that shares its memory; only lazily conjugated or negated tensors are copied.

    Raises InputError for a tensor that is not dense or not on the CPU.
    """
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        # The __torch_function__ of a subclass could change the result.
        with torch._C.DisableTorchFunctionSubclass():
            tensor = tensor.as_subclass(torch.Tensor)
    if tensor.requires_grad:
        tensor = tensor.detach()
    try:
        # Not DLPack, which ignores that a tensor is lazily negated.
        return tensor.numpy()  # type: ignore[no-any-return]  # untyped here
    except (RuntimeError, TypeError):
        pass  # lazily conjugated or negated, of a type that NumPy lacks, or unsupported
    if tensor.device.type != "cpu":
        raise InputError(f"a tensor on {tensor.device} was given; modules of PyTorch run on the CPU: pass tensor.cpu()")
    if tensor.layout is not torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        raise InputError(f"a tensor of layout {layout} was given; modules of PyTorch run on dense ones: pass tensor.to_dense()")
    # Compute the conjugate or the negation.
    tensor = tensor.resolve_conj().resolve_neg()
    dtype = from_torch_dtype(tensor.dtype)
    if dtype.numpy.isbuiltin == 1:
        return tensor.numpy()  # type: ignore[no-any-return]  # untyped here
    return tensor.view(_UNSIGNED_TYPES[dtype.numpy.itemsize]).numpy().view(dtype.numpy)  # type: ignore[no-any-return]  # untyped here


def is_shared(value: Any) -> bool:
    """Whether `share_array` or `share_tensor` shares the memory of this tensor or array instead of copying it."""
    if isinstance(value, torch.Tensor):
        return not value.is_neg() and not value.is_conj()
    return bool(value.flags.writeable) and all(stride >= 0 for stride in value.strides)


def share_tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Convert an array to a tensor that shares its memory; arrays that are read-only or have negative strides are copied."""
    if type(array) is np.ndarray and array.flags.writeable:
        try:
            return torch.from_numpy(array)
        except (TypeError, ValueError):
            pass  # an element type that PyTorch does not know from NumPy, or a negative stride
    array = np.asarray(array)
    if not is_shared(array):
        array = array.copy()
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    dtype = DType.from_array(array)
    unsigned_dtype = np.dtype(f"u{dtype.numpy.itemsize}")
    return torch.from_numpy(array.view(unsigned_dtype)).view(to_torch_dtype(dtype))
