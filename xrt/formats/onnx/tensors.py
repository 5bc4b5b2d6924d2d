"""Tensors: between ONNX's messages and Constants.

A tensor's header announces a size; nothing is allocated before the announced size is compared with the available data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import SparseTensorProto, TensorProto, numpy_helper

from xrt.errors import ModelError
from xrt.graph import Constant, DType, TensorType

if TYPE_CHECKING:
    from xrt.formats.onnx.external_data import ExternalData

__all__ = [
    "LARGEST_DENSE",
    "DenseLimit",
    "encode_bytes",
    "encode_data",
    "external_tensor",
    "read_sparse",
    "read_tensor",
    "write_tensor",
]

LARGEST_DENSE = 1 << 30
"""Bytes that a sparse tensor may take once dense: its header alone decides that size, so it is not taken at its word."""
DENSE_FREE = 1 << 24
"""Bytes that the sparse tensors of one model may take once dense, however little they hold."""
DENSE_RATIO = 1000
"""How many times what it holds a sparse tensor may take once dense, if it takes more than is free."""

_FIELD = {
    DType.FLOAT32: "float_data",
    DType.COMPLEX64: "float_data",
    DType.FLOAT64: "double_data",
    DType.COMPLEX128: "double_data",
    DType.INT64: "int64_data",
    DType.UINT32: "uint64_data",
    DType.UINT64: "uint64_data",
    DType.STRING: "string_data",
}
"""The field with an element type's data when it is not in ``raw_data``; all others are in ``int32_data``."""

_UNPACKED_IN_FIELD = (DType.FLOAT6E2M3, DType.FLOAT6E3M2)
"""Types under a byte that ``int32_data`` holds one to an entry."""


def encode_bytes(dtype: DType, count: int) -> int:
    """Return how many bytes ONNX stores that many elements in; types narrower than a byte are packed."""
    return (dtype.bits * count + 7) // 8


def read_tensor(tensor: TensorProto, external: ExternalData, what: str) -> Constant:
    """Return the tensor; ``raw_data`` and external data are not copied.

    Two kinds are copied: types narrower than a byte, to unpack them, and data at an address that is unaligned for its type, so
    that it is copied once here and not by each of its users.

    ``what`` names the tensor in an error. Raises ModelError when the data does not fit the header.
    """
    if tensor.HasField("segment"):
        raise ModelError(f"{what} is a segment of a larger tensor, which ONNX has never defined how to join")
    dtype = _dtype(tensor, what)
    shape = _shape(tensor.dims, what)
    if tensor.data_location == TensorProto.EXTERNAL:
        return Constant(_from_bytes(external.view(tensor, what), dtype, shape, what))
    if tensor.HasField("raw_data"):
        return Constant(_from_bytes(tensor.raw_data, dtype, shape, what))
    return Constant(_from_field(tensor, dtype, shape, what))


def _dtype(tensor: TensorProto, what: str) -> DType:
    if not tensor.data_type:
        raise ModelError(f"{what} has no element type")
    try:
        return DType.from_onnx(tensor.data_type)
    except ModelError as error:
        raise ModelError(f"{what}: {error}") from None


def _shape(dims: Sequence[int], what: str) -> tuple[int, ...]:
    shape = tuple(dims)
    if any(dim < 0 for dim in shape):
        raise ModelError(f"{what} has a negative extent in its shape {list(shape)}")
    return shape


def _from_bytes(data: bytes | memoryview, dtype: DType, shape: tuple[int, ...], what: str) -> np.ndarray[Any, Any]:
    if dtype is DType.STRING:
        raise ModelError(f"{what} holds strings as raw bytes; ONNX stores them in string_data only")
    needed, given = encode_bytes(dtype, math.prod(shape)), len(data)
    if needed != given:
        raise ModelError(f"{what} is {TensorType(dtype, shape)}, which takes {needed} bytes, but its data is {given} bytes")
    if dtype.bits < 8:
        packed = TensorProto(data_type=dtype.onnx, dims=shape, raw_data=bytes(data))
        return np.asarray(numpy_helper.to_array(packed))
    array = np.frombuffer(data, dtype.numpy.newbyteorder("<"))
    return _reshaped(array if array.flags.aligned else array.copy(), shape, what)


def _from_field(tensor: TensorProto, dtype: DType, shape: tuple[int, ...], what: str) -> np.ndarray[Any, Any]:
    field = getattr(tensor, _FIELD.get(dtype, "int32_data"))
    needed = _entries(dtype, math.prod(shape))
    if needed != len(field):
        raise ModelError(
            f"{what} is {TensorType(dtype, shape)}, which takes {needed} entries, but its data is {len(field)} entries"
        )
    if dtype is DType.STRING:
        out = np.empty(len(field), dtype=object)
        out[:] = list(field)
        return _reshaped(out, shape, what)
    if not needed:
        return _reshaped(np.empty(0, dtype.numpy), shape, what)
    return np.asarray(numpy_helper.to_array(tensor))


def _entries(dtype: DType, count: int) -> int:
    """Return how many entries of its typed field that many elements take."""
    if dtype in (DType.COMPLEX64, DType.COMPLEX128):
        return 2 * count
    if 0 < dtype.bits < 8 and dtype not in _UNPACKED_IN_FIELD:
        return encode_bytes(dtype, count)
    return count


def _reshaped(array: np.ndarray[Any, Any], shape: tuple[int, ...], what: str) -> np.ndarray[Any, Any]:
    try:
        return array.reshape(shape)
    except ValueError as error:  # an extent of 0 next to one that no array can have
        raise ModelError(f"{what} has the shape {list(shape)}, which no array can have: {error}") from None


class DenseLimit:
    """How much the sparse tensors of one model may still take once dense: what their headers say must be in proportion."""

    def __init__(self) -> None:
        self._free = DENSE_FREE

    def take(self, size: int, held: int, what: str) -> None:
        """Take the room for a tensor that holds so many bytes; raises ModelError where there is not so much."""
        earned = min(held * DENSE_RATIO, LARGEST_DENSE)
        allowed = max(earned, self._free)
        if size > allowed:
            raise ModelError(f"{what} is sparse and would take {size} bytes as a dense tensor; at most {allowed} are allowed")
        self._free -= max(size - earned, 0)


def read_sparse(sparse: SparseTensorProto, external: ExternalData, what: str, room: DenseLimit) -> Constant:
    """Return the tensor with its zeros filled in; raises ModelError when there is no room for that."""
    values = read_tensor(sparse.values, external, what)
    shape = _shape(sparse.dims, what)
    room.take(math.prod(shape) * values.dtype.numpy.itemsize, values.nbytes, what)
    dense = np.full(math.prod(shape), "" if values.dtype is DType.STRING else values.dtype.numpy.type(0), values.dtype.numpy)
    if values.array.size:
        dense[_positions(sparse, external, values.array.size, shape, what)] = values.array.reshape(-1)
    return Constant(_reshaped(dense, shape, what))


def _positions(
    sparse: SparseTensorProto, external: ExternalData, count: int, shape: tuple[int, ...], what: str
) -> np.ndarray[Any, Any]:
    """Return where the values stand in the flattened tensor, from either of ONNX's two forms of index."""
    indices = read_tensor(sparse.indices, external, f"the indices of {what}").array
    if indices.dtype != np.int64 or indices.shape not in ((count,), (count, len(shape))):
        raise ModelError(
            f"{what} is sparse with {count} values of rank {len(shape)}; its indices must be int64[{count}] or "
            f"int64[{count},{len(shape)}], not {TensorType(DType.of(indices), indices.shape)}"
        )
    extents = np.array(shape if indices.ndim == 2 else (math.prod(shape),), np.int64)
    if ((indices < 0) | (indices >= (extents if indices.ndim == 2 else extents[0]))).any():
        raise ModelError(f"{what} is sparse, and one of its indices lies outside of its shape {list(shape)}")
    return np.ravel_multi_index(tuple(indices.T), shape) if indices.ndim == 2 else indices


def write_tensor(constant: Constant, name: str = "") -> TensorProto:
    """Return the message, with the data as ``raw_data`` (strings apart). Copies the data."""
    tensor = TensorProto(data_type=constant.dtype.onnx, dims=constant.shape, name=name)
    if constant.dtype is DType.STRING:
        tensor.string_data.extend(text.encode("utf-8", "surrogateescape") for text in constant.array.flat)
    else:
        tensor.raw_data = bytes(encode_data(constant))
    return tensor


def encode_data(constant: Constant) -> memoryview:
    """Return the bytes that ONNX stores for a constant that is not of strings; a view of the array where it is stored so."""
    if constant.dtype.bits < 8:
        return memoryview(numpy_helper.from_array(constant.array).raw_data)
    array = constant.array.astype(constant.dtype.numpy.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def external_tensor(constant: Constant, name: str, location: str, offset: int) -> TensorProto:
    """Return the message of a tensor whose data is in an external file."""
    tensor = TensorProto(name=name, data_type=constant.dtype.onnx, dims=constant.shape, data_location=TensorProto.EXTERNAL)
    length = encode_bytes(constant.dtype, constant.array.size)
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    return tensor
