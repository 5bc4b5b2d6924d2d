"""Element types that the library is handed as codes."""

from __future__ import annotations

from xrt.graph import DType, TensorType, Type

__all__ = ["CODED", "FLOATS", "INTEGERS", "is_encoded"]

INTEGERS = frozenset({DType.INT2, DType.UINT2, DType.INT4, DType.UINT4})
FLOATS = frozenset(
    {DType.FLOAT4E2M1, DType.FLOAT6E2M3, DType.FLOAT6E3M2}
    | {DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ}
)
"""What can be computed of other numbers; FLOAT8E8M0 is only looked up."""
CODED = INTEGERS | FLOATS | {DType.FLOAT8E8M0}


def is_encoded(type_: Type | None) -> bool:
    """Whether a value of the type is held as codes."""
    return isinstance(type_, TensorType) and type_.dtype in CODED
