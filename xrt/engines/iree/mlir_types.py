"""Element types as MLIR spells them, and as IREE's runtime numbers them."""

from __future__ import annotations

from dataclasses import dataclass

from iree.runtime import HalElementType

from xrt.graph import DType, TensorType, Type

__all__ = ["ELEMENTS", "MlirType", "builtin_type", "literal_type", "storage_type", "value_type"]


@dataclass(frozen=True, slots=True)
class MlirType:
    """One element type."""

    torch: str
    """In torch-mlir's types and literals, where integers have signs."""
    builtin: str
    """In MLIR's own tensors as IREE computes with them, where they have none."""
    hal: int
    """What the runtime checks a buffer for."""


def _integer(bits: int, hal: int) -> tuple[MlirType, MlirType]:
    return MlirType(f"si{bits}", f"i{bits}", hal), MlirType(f"ui{bits}", f"i{bits}", hal)


_INT8, _UINT8 = _integer(8, int(HalElementType.INT_8))
_INT16, _UINT16 = _integer(16, int(HalElementType.INT_16))
_INT32, _UINT32 = _integer(32, int(HalElementType.INT_32))
_INT64, _UINT64 = _integer(64, int(HalElementType.INT_64))

ELEMENTS = {
    DType.FLOAT32: MlirType("f32", "f32", int(HalElementType.FLOAT_32)),
    DType.FLOAT64: MlirType("f64", "f64", int(HalElementType.FLOAT_64)),
    DType.FLOAT16: MlirType("f16", "f16", int(HalElementType.FLOAT_16)),
    DType.BFLOAT16: MlirType("bf16", "bf16", int(HalElementType.BFLOAT_16)),
    DType.INT8: _INT8,
    DType.INT16: _INT16,
    DType.INT32: _INT32,
    DType.INT64: _INT64,
    DType.UINT8: _UINT8,
    DType.UINT16: _UINT16,
    DType.UINT32: _UINT32,
    DType.UINT64: _UINT64,
    DType.BOOL: MlirType("i1", "i1", int(HalElementType.BOOL_8)),
}


def value_type(type_: Type | None) -> str:
    """Return the type of a value in torch-mlir; raises ValueError for what has none there."""
    shape, element = _parts(type_)
    return f"!torch.vtensor<[{','.join(shape)}],{element.torch}>"


def storage_type(type_: Type | None) -> str:
    """Return the type of memory that a value is written to."""
    return value_type(type_).replace("!torch.vtensor", "!torch.tensor")


def builtin_type(type_: Type | None) -> str:
    """Return the type of a tensor as IREE computes with it."""
    shape, element = _parts(type_)
    return f"tensor<{'x'.join([*shape, element.builtin])}>"


def literal_type(type_: Type | None) -> str:
    """Return the type of a literal, whose integers have signs."""
    shape, element = _parts(type_)
    return f"tensor<{'x'.join([*shape, element.torch])}>"


def _parts(type_: Type | None) -> tuple[list[str], MlirType]:
    if not isinstance(type_, TensorType) or type_.shape is None or type_.dtype not in ELEMENTS:
        raise ValueError(f"a value of type {type_} has no type in MLIR that IREE computes with")
    return [str(extent) if isinstance(extent, int) else "?" for extent in type_.shape], ELEMENTS[type_.dtype]
