"""Types and named values: between ONNX's messages and XRT's."""

from __future__ import annotations

from functools import lru_cache

from onnx import TensorShapeProto, TypeProto, ValueInfoProto

from xrt.errors import ModelError
from xrt.formats.onnx.string_checks import text
from xrt.graph import Dim, DType, MapType, OptionalType, SequenceType, TensorType, Type, Value

__all__ = ["read_border_value", "read_type", "read_value", "write_type", "write_value"]

UNKNOWN = -1
"""What exporters write for an extent that they do not know."""


def read_type(proto: TypeProto, symbols: frozenset[str] | None = None) -> Type | None:
    """Return the type, None where the message says nothing definite (no element type; an opaque type).

    A sparse tensor becomes a dense one, as its data does. Where the symbols are given, an extent of any other name becomes
    None. Raises ModelError for an element type that ONNX has not. Equal messages give the same object: a model has
    far fewer types than values.
    """
    return _parsed(proto.SerializeToString(), symbols)


@lru_cache(maxsize=4096)
def _parsed(serialised: bytes, symbols: frozenset[str] | None) -> Type | None:
    return _read(TypeProto.FromString(serialised), symbols)


def _read(proto: TypeProto, symbols: frozenset[str] | None) -> Type | None:
    kind = proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        return _read_tensor_type(getattr(proto, kind), symbols)
    if kind == "sequence_type":
        element = _read(proto.sequence_type.elem_type, symbols)
        return None if element is None else SequenceType(element)
    if kind == "optional_type":
        element = _read(proto.optional_type.elem_type, symbols)
        return None if element is None else OptionalType(element)
    if kind == "map_type" and proto.map_type.key_type:
        element = _read(proto.map_type.value_type, symbols)
        return None if element is None else MapType(DType.from_onnx(proto.map_type.key_type), element)
    return None


def _read_tensor_type(proto: TypeProto.Tensor | TypeProto.SparseTensor, symbols: frozenset[str] | None) -> TensorType | None:
    if not proto.elem_type:
        return None
    shape = tuple(_read_dim(dim, symbols) for dim in proto.shape.dim) if proto.HasField("shape") else None
    return TensorType(DType.from_onnx(proto.elem_type), shape)


def _read_dim(dim: TensorShapeProto.Dimension, symbols: frozenset[str] | None) -> Dim:
    if dim.dim_param:
        name = text(dim.dim_param, "the name of an extent")
        return name if symbols is None or name in symbols else None
    if dim.HasField("dim_value") and dim.dim_value >= 0:  # UNKNOWN, or in the middle of a graph nonsense
        size: int = dim.dim_value
        return size
    return None


def read_value(proto: ValueInfoProto) -> Value:
    """Return the name with its type."""
    return Value(text(proto.name, "the name of a value"), read_type(proto.type) if proto.HasField("type") else None)


def read_border_value(proto: ValueInfoProto) -> Value:
    """Return an input or output of a graph; raises ModelError for an extent that no array has."""
    for kind in ("tensor_type", "sparse_tensor_type"):
        if proto.type.HasField(kind):
            for axis, dim in enumerate(getattr(proto.type, kind).shape.dim):
                if dim.HasField("dim_value") and dim.dim_value < UNKNOWN:
                    said = f"axis {axis} of {proto.name!r} has a negative extent, {dim.dim_value}"
                    raise ModelError(f"{said}; only {UNKNOWN} stands for one that is not known")
    return read_value(proto)


def write_type(type_: Type, proto: TypeProto) -> None:
    """Fill in the message."""
    if isinstance(type_, TensorType):
        _write_tensor_type(type_, proto.tensor_type)
    elif isinstance(type_, SequenceType):
        write_type(type_.element, proto.sequence_type.elem_type)
    elif isinstance(type_, OptionalType):
        write_type(type_.element, proto.optional_type.elem_type)
    else:
        proto.map_type.key_type = type_.key.onnx
        write_type(type_.value, proto.map_type.value_type)


def _write_tensor_type(type_: TensorType, proto: TypeProto.Tensor) -> None:
    proto.elem_type = type_.dtype.onnx
    if type_.shape is None:
        return
    proto.shape.SetInParent()
    for dim in type_.shape:
        if isinstance(dim, int):
            proto.shape.dim.add(dim_value=dim)
        elif dim is None:
            proto.shape.dim.add()
        else:
            proto.shape.dim.add(dim_param=dim)


def write_value(name: str, type_: Type | None, proto: ValueInfoProto) -> None:
    """Fill in the message; a value of which nothing is known gets no type."""
    proto.name = name
    if type_ is not None:
        write_type(type_, proto.type)
