"""Tables of the xla engine: supported element types, and operators that NumPy computes while JAX traces a Function."""

from __future__ import annotations

from xrt.graph import DType

_FLOATS = {DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64}
_INTEGERS = {DType.INT8, DType.INT16, DType.INT32, DType.INT64, DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64}
DTYPES = _FLOATS | _INTEGERS | {DType.BOOL}
_SMALL_FLOATS = {DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ, DType.FLOAT4E2M1}
SMALL_DTYPES = _SMALL_FLOATS | {DType.INT4, DType.UINT4, DType.INT2, DType.UINT2}
"""Types that only the operators in `SMALL_DTYPE_OPS` support."""
SMALL_DTYPE_OPS = frozenset(
    {
        *("Cast", "CastLike", "QuantizeLinear", "DequantizeLinear", "Constant", "Identity"),
        *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Concat", "Split", "Slice"),
    }
)
NUMPY_OPS = frozenset(
    {
        *("Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitwiseAnd", "BitwiseNot", "BitwiseOr"),
        *("BitwiseXor", "Cast", "CastLike", "Ceil", "Concat", "Cos", "Cosh", "Div", "Equal", "Exp", "Flatten", "Floor", "Gather"),
        *("Greater", "GreaterOrEqual", "Identity", "IsNaN", "Less", "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul"),
        *("Neg", "Not", "Or", "Reciprocal", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Round", "Sign"),
        *("Sin", "Sinh", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tan", "Tanh", "Transpose", "Unsqueeze"),
        *("Where", "Xor"),
    }
)
"""Operators that NumPy computes during tracing if all operands are known. Models compute shapes with these operators, and
operators such as Reshape need known shapes."""
