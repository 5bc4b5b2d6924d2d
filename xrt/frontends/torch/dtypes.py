"""Convert element types and share memory between PyTorch tensors and NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from xrt.errors import InputError, ModelError
from xrt.graph import DType

_NAMES = {
    "float8e4m3fn": "float8_e4m3fn",
    "float8e5m2": "float8_e5m2",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2fnuz": "float8_e5m2fnuz",
}
_TO_TORCH: dict[DType, torch.dtype] = {
    dtype: getattr(torch, _NAMES.get(dtype.text, dtype.text))
    for dtype in DType
    if isinstance(getattr(torch, _NAMES.get(dtype.text, dtype.text), None), torch.dtype) and dtype.bits >= 8
}
_FROM_TORCH = {other: dtype for dtype, other in _TO_TORCH.items()}
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_UNSIGNED_TYPES = {1: torch.uint8, 2: torch.uint16}
"""Unsigned types by item size in bytes. Types that NumPy lacks, such as bfloat16, are viewed as these and back."""


def from_torch_dtype(dtype: torch.dtype) -> DType:
    """The DType of a torch.dtype; raises ModelError if ONNX has none."""
    try:
        return _FROM_TORCH[dtype]
    except KeyError:
        raise ModelError(f"{dtype} has no ONNX element type; convert the module or its inputs to another one") from None


def to_torch_dtype(dtype: DType) -> torch.dtype:
    """The torch.dtype of a DType; raises ModelError if PyTorch has none."""
    try:
        return _TO_TORCH[dtype]
    except KeyError:
        raise ModelError(f"PyTorch has no type for {dtype}") from None


def share_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Convert a tensor to an array that shares its memory; only lazily conjugated or negated tensors are copied.

    Raises InputError for a tensor that is not dense or not on the CPU.
    """
    if type(tensor) not in _PLAIN:
        # The __torch_function__ of a subclass may compute anything.
        with torch._C.DisableTorchFunctionSubclass():
            tensor = tensor.as_subclass(torch.Tensor)
    if tensor.requires_grad:
        tensor = tensor.detach()
    try:
        # Not DLPack, which ignores the bit of lazily negated tensors.
        return tensor.numpy()  # type: ignore[no-any-return]  # untyped here
    except (RuntimeError, TypeError):
        return _share_uncommon(tensor)


def _share_uncommon(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Like `share_array`, for tensors that `Tensor.numpy` refuses: lazily conjugated or negated, or of types that NumPy lacks."""
    if tensor.device.type != "cpu":
        raise InputError(f"a tensor on {tensor.device} was given; modules of PyTorch run on the CPU: pass tensor.cpu()")
    if tensor.layout is not torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        raise InputError(f"a tensor of layout {layout} was given; modules of PyTorch run on dense ones: pass tensor.to_dense()")
    # numpy() refuses tensors that are conjugated or negated lazily: compute them.
    tensor = tensor.resolve_conj().resolve_neg()
    dtype = from_torch_dtype(tensor.dtype)
    if dtype.numpy.isbuiltin == 1:
        return tensor.numpy()  # type: ignore[no-any-return]  # untyped here
    return tensor.view(_UNSIGNED_TYPES[dtype.numpy.itemsize]).numpy().view(dtype.numpy)  # type: ignore[no-any-return]  # untyped here


def is_shared(value: Any) -> bool:
    """Whether `share_array` or `share_tensor` shares the memory of this value, so that updates in place reach the caller."""
    if isinstance(value, torch.Tensor):
        return not value.is_neg() and not value.is_conj()
    return bool(value.flags.writeable) and all(stride >= 0 for stride in value.strides)


def share_tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Convert an array to a tensor that shares its memory; arrays that are read-only or have negative strides are copied."""
    if type(array) is np.ndarray and array.flags.writeable:
        try:
            return torch.from_numpy(array)
        except (TypeError, ValueError):  # an element type that NumPy lacks, or a negative stride
            pass
    return _share_uncommon_array(array)


def _share_uncommon_array(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Like `share_tensor`, for arrays that PyTorch refuses: read-only ones, negative strides, and types that NumPy lacks."""
    array = np.asarray(array)
    if not is_shared(array):
        array = array.copy()
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    dtype = DType.of(array)
    bits = np.dtype(f"u{dtype.numpy.itemsize}")
    return torch.from_numpy(array.view(bits)).view(to_torch_dtype(dtype))
