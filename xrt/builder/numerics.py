"""Python's operators on tensors, with NumPy semantics.

``ufunc.resolve_dtypes`` decides the type to compute in; operands are cast to it. ONNX operators are chosen so that the
results match: for example, ONNX's ``Div`` of integers truncates, while Python's ``//`` floors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import STRONG, DTypeLike, Operand, emit, get_builder, infer_operand_dtype, is_weak, make_weak_array
from xrt.errors import ModelError
from xrt.graph.types import DType

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor


MINIMUM_OPSET = 13
"""The operators of earlier opsets broadcast and pass axes differently, which is not implemented."""
Rule = Callable[["Tensor", "Tensor", DType], "Tensor"]


def is_operand(value: object) -> bool:
    """Whether the value can be an operand; for other values Python's operators return NotImplemented."""
    return isinstance(value, STRONG) or is_weak(value)


def cast(x: Tensor, dtype: DTypeLike) -> Tensor:
    """Convert to an element type; returns ``x`` if it already has that type."""
    target = infer_operand_dtype(dtype)
    return x if x.dtype is target else emit("Cast", x, to=target.onnx)


def apply_binary(symbol: str, left: Operand, right: Operand) -> Tensor:
    """Record ``left symbol right``; at least one operand is a tensor of the graph."""
    _check_opset(symbol)
    ufunc, rule = _BINARY[symbol]
    a, b, dtype = _cast_to_common(symbol, ufunc, left, right)
    return rule(a, b, dtype)


def _check_opset(symbol: str) -> None:
    version = get_builder(f"the operator {symbol}").version("")
    if version < MINIMUM_OPSET:
        raise ModelError(
            f"the operator {symbol} on tensors needs opset {MINIMUM_OPSET} or newer; the graph is at {version}. "
            f"Raise the graph's opset, or use xrt.ops"
        )


def _cast_to_common(symbol: str, ufunc: np.ufunc, left: Operand, right: Operand) -> tuple[Tensor, Tensor, DType]:
    """Cast the operands to the types in which NumPy computes; return both tensors and the type of the left one."""
    first, second = _find_operand_types(symbol, ufunc, left, right)
    # NumPy compares a number out of range exactly: uint8 < 300 is true, not an overflow.
    if symbol in _COMPARISONS and (_is_too_large(left, first) or _is_too_large(right, second)):
        first = second = DType.INT64
    return _convert(left, first), _convert(right, second), first


_COMPARISONS = frozenset(("==", "!=", "<", "<=", ">", ">="))


def _is_too_large(value: Operand, dtype: DType) -> bool:
    """Whether a Python int is out of range for an integer type of less than 64 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or not dtype.is_integer or dtype.bits == 64:
        return False
    info = np.iinfo(dtype.numpy)
    return not info.min <= value <= info.max


def _find_operand_types(symbol: str, ufunc: np.ufunc, left: Operand, right: Operand) -> tuple[DType, DType]:
    """Find the element types to which NumPy casts the operands; raises ModelError if NumPy does not support them."""
    a = _get_resolvable(left, right)
    b = _get_resolvable(right, left)
    # NumPy stores strings as objects, and would accept every operator on them.
    if DType.STRING.numpy in (a, b):
        if symbol not in ("==", "!="):
            operation = f"{_describe(left)} {symbol} {_describe(right)}"
            raise ModelError(f"ONNX has no {operation} of strings; only == and != compare them")
        return DType.STRING, DType.STRING
    try:
        left_dtype, right_dtype, _ = ufunc.resolve_dtypes((a, b, None))
    except TypeError as error:
        raise ModelError(f"NumPy has no {_describe(left)} {symbol} {_describe(right)}: {error}") from error
    return infer_operand_dtype(left_dtype), infer_operand_dtype(right_dtype)


def _get_resolvable(value: Operand, other: Operand) -> Any:
    """Convert an operand to an argument of `ufunc.resolve_dtypes`: a dtype, or the Python type of a number.

    A number that the type of the other operand can represent gets that type, because types of ``ml_dtypes`` do not support
    Python numbers.
    """
    if isinstance(value, STRONG):
        return _get_dtype(value).numpy
    if isinstance(value, str):
        return DType.STRING.numpy
    if isinstance(value, list | tuple):
        return np.asarray(value).dtype
    if isinstance(value, bool):
        return np.dtype(bool)
    if isinstance(value, complex):
        return complex
    other_dtype = _get_dtype(other)
    can_adopt_other = other_dtype.is_float or (isinstance(value, int) and other_dtype.is_integer)
    return other_dtype.numpy if can_adopt_other else type(value)


def _get_dtype(value: Any) -> DType:
    return DType.from_array(np.asarray(value)) if isinstance(value, np.ndarray | np.generic) else value.dtype


def _describe(value: Operand) -> str:
    return str(_get_dtype(value)) if isinstance(value, STRONG) else repr(value)


def _convert(value: Operand, dtype: DType) -> Tensor:
    """Convert the operand to a tensor of an element type; constants are converted immediately."""
    builder = get_builder("a constant")
    if is_weak(value):
        return builder.symbol(make_weak_array(value, dtype))
    if isinstance(value, np.ndarray | np.generic) and _get_dtype(value) is not dtype:
        value = np.asarray(value).astype(dtype.numpy)
    return cast(builder.symbol(value), dtype)


def _make_rule(op_type: str, for_bool: str | None = None) -> Rule:
    """Make the rule that applies ``op_type``, or ``for_bool`` if the operands are booleans."""

    def rule(a: Tensor, b: Tensor, dtype: DType) -> Tensor:
        if for_bool is not None and dtype is DType.BOOL:
            return emit(for_bool, a, b)
        return emit(op_type, a, b)

    return rule


def _make_zero(like: Tensor) -> Tensor:
    return get_builder("a constant").symbol(make_weak_array(0, like.dtype))


def _is_unsigned(dtype: DType) -> bool:
    return dtype.text.startswith("uint")


def _floor_divide(a: Tensor, b: Tensor, dtype: DType) -> Tensor:
    if dtype.is_float:
        return _float_floor_divide(a, b)
    quotient = emit("Div", a, b)
    if _is_unsigned(dtype):
        return quotient
    # ONNX truncates: subtract 1 from the quotients that truncation rounded up. No step can overflow.
    return emit("Sub", quotient, cast(_was_rounded_up(emit("Mul", quotient, b), a, b), dtype))


def _was_rounded_up(product: Tensor, dividend: Tensor, divisor: Tensor) -> Tensor:
    """Whether a truncated quotient is above the exact quotient; ``product`` is the truncated quotient times the divisor."""
    # If a constant divisor has only one sign, one comparison is enough.
    constant = get_builder("//").find_constant(divisor)
    if constant is not None and bool((constant.array > 0).all()):
        return emit("Greater", product, dividend)
    if constant is not None and bool((constant.array < 0).all()):
        return emit("Less", product, dividend)
    above = emit("And", emit("Greater", divisor, _make_zero(divisor)), emit("Greater", product, dividend))
    below = emit("And", emit("Less", divisor, _make_zero(divisor)), emit("Less", product, dividend))
    return emit("Or", above, below)


def _float_floor_divide(a: Tensor, b: Tensor) -> Tensor:
    """Floor the exact quotient, as Python does, and not the rounded quotient: ``1.0 // 0.1`` is 9."""
    remainder = emit("Mod", a, b, fmod=1)
    quotient = emit("Div", emit("Sub", a, remainder), b)
    floor = emit("Sub", quotient, cast(_signs_differ(remainder, b), a.dtype))
    # Division by zero gives inf or nan. Round removes the rounding error of the division.
    return emit("Where", emit("Equal", b, _make_zero(b)), emit("Div", a, b), emit("Round", floor))


def _signs_differ(remainder: Tensor, divisor: Tensor) -> Tensor:
    """Whether the remainder is nonzero and its sign differs from the divisor's."""
    opposite = emit("Xor", emit("Less", remainder, _make_zero(remainder)), emit("Less", divisor, _make_zero(divisor)))
    return emit("And", opposite, emit("Not", emit("Equal", remainder, _make_zero(remainder))))


def _remainder(a: Tensor, b: Tensor, dtype: DType) -> Tensor:
    if not dtype.is_float:
        return emit("Mod", a, b)
    remainder = emit("Mod", a, b, fmod=1)
    # The result of fmod has the sign of the dividend; the result of Python's % has the sign of the divisor.
    return emit("Where", _signs_differ(remainder, b), emit("Add", remainder, b), remainder)


def _power(a: Tensor, b: Tensor, dtype: DType) -> Tensor:
    exponent = get_builder("**").find_constant(b)
    if dtype.is_integer and exponent is not None and bool((exponent.array < 0).any()):
        raise ModelError("integers to negative integer powers are not integers; convert the base with .astype('float32')")
    return emit("Pow", a, b)


def _make_comparison(op_type: str) -> Rule:
    """Make the rule of <, <=, > or >=. Booleans are compared as uint8, because ONNX does not order them."""

    def rule(a: Tensor, b: Tensor, dtype: DType) -> Tensor:
        if dtype is DType.BOOL:
            a, b = cast(a, DType.UINT8), cast(b, DType.UINT8)
        return emit(op_type, a, b)

    return rule


_UNSIGNED = {DType.INT8: DType.UINT8, DType.INT16: DType.UINT16, DType.INT32: DType.UINT32, DType.INT64: DType.UINT64}


def _shift_left(a: Tensor, b: Tensor, dtype: DType) -> Tensor:
    unsigned = _UNSIGNED.get(dtype, dtype)  # ONNX shifts only unsigned integers; the cast preserves the bits
    return cast(emit("BitShift", cast(a, unsigned), cast(b, unsigned), direction="LEFT"), dtype)


def _shift_right(a: Tensor, b: Tensor, dtype: DType) -> Tensor:
    if dtype not in _UNSIGNED:
        return emit("BitShift", a, b, direction="RIGHT")
    unsigned = _UNSIGNED[dtype]
    # An arithmetic shift, for which -1 >> n is -1: shift the complement of negative numbers.
    is_negative = emit("Less", a, _make_zero(a))
    nonnegative = emit("Where", is_negative, emit("BitwiseNot", a), a)
    shifted = cast(emit("BitShift", cast(nonnegative, unsigned), cast(b, unsigned), direction="RIGHT"), dtype)
    return emit("Where", is_negative, emit("BitwiseNot", shifted), shifted)


_BINARY: dict[str, tuple[np.ufunc, Rule]] = {
    "+": (np.add, _make_rule("Add", for_bool="Or")),
    "-": (np.subtract, _make_rule("Sub")),
    "*": (np.multiply, _make_rule("Mul", for_bool="And")),
    "/": (np.true_divide, _make_rule("Div")),
    "//": (np.floor_divide, _floor_divide),
    "%": (np.remainder, _remainder),
    "**": (np.power, _power),
    "@": (np.matmul, _make_rule("MatMul")),
    "==": (np.equal, _make_rule("Equal")),
    "!=": (np.not_equal, lambda a, b, dtype: emit("Not", emit("Equal", a, b))),
    "<": (np.less, _make_comparison("Less")),
    "<=": (np.less_equal, _make_comparison("LessOrEqual")),
    ">": (np.greater, _make_comparison("Greater")),
    ">=": (np.greater_equal, _make_comparison("GreaterOrEqual")),
    "&": (np.bitwise_and, _make_rule("BitwiseAnd", for_bool="And")),
    "|": (np.bitwise_or, _make_rule("BitwiseOr", for_bool="Or")),
    "^": (np.bitwise_xor, _make_rule("BitwiseXor", for_bool="Xor")),
    "<<": (np.left_shift, _shift_left),
    ">>": (np.right_shift, _shift_right),
}


def negative(x: Tensor) -> Tensor:
    """``-x``; raises ModelError for booleans, as NumPy does."""
    _check_opset("-")
    if x.dtype is DType.BOOL:
        raise ModelError("NumPy has no - of bool; use ~x")
    # ONNX has no Neg of unsigned integers; NumPy wraps around.
    return emit("Sub", _make_zero(x), x) if _is_unsigned(x.dtype) else emit("Neg", x)


def absolute(x: Tensor) -> Tensor:
    """``abs(x)``; booleans are returned unchanged."""
    return x if x.dtype is DType.BOOL else emit("Abs", x)


def invert(x: Tensor) -> Tensor:
    """``~x``: logical not for booleans, bitwise not for integers."""
    if not (x.dtype is DType.BOOL or x.dtype.is_integer):
        raise ModelError(f"NumPy has no ~ of {x.dtype}; it is for bool and integers")
    return emit("Not" if x.dtype is DType.BOOL else "BitwiseNot", x)
