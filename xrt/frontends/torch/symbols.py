"""Symbolic sizes of a captured graph: their names in types, and the tensors that hold them at run time."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from xrt.builder.record_op import emit
from xrt.errors import ModelError
from xrt.graph import DType, TensorType

if TYPE_CHECKING:
    from xrt.builder import Tensor
    from xrt.graph import Dim, Shape


@dataclass(frozen=True, slots=True)
class SymbolicNumber:
    """A number that the module computes from input sizes. Rules convert it to a tensor where an operator needs one."""

    expression: Any
    symbols: Symbols

    @property
    def vector(self) -> Tensor:
        """The number as a tensor of shape (1,): int64, float64, or bool for comparisons."""
        return self.symbols.make_vector(self.expression)

    @property
    def scalar(self) -> Tensor:
        return self.symbols.make_scalar(self.expression)


Size: TypeAlias = int | SymbolicNumber


@dataclass(slots=True)
class Symbols:
    names: Mapping[str, str]
    vectors: dict[Any, Tensor] = field(default_factory=dict)
    """Maps the expressions that are emitted so far to tensors of shape (1,)."""
    scalars: dict[Any, Tensor] = field(default_factory=dict)
    """Maps the expressions that are emitted so far to 0-d tensors."""
    sources: dict[Any, tuple[Tensor, int]] = field(default_factory=dict)
    """Maps an expression to a tensor and the axis that has this size."""

    @contextmanager
    def enter_body(self) -> Iterator[None]:
        """Context manager for a body: at its end, forget the tensors recorded in it, which the outer graph cannot read."""
        outer = dict(self.vectors), dict(self.scalars), dict(self.sources)
        try:
            yield
        finally:
            self.vectors, self.scalars, self.sources = outer

    def record_shape(self, tensor: Tensor, shape: Sequence[Any]) -> None:
        """Record that the symbolic sizes in ``shape`` can be read from the shape of ``tensor``."""
        for axis, size in enumerate(shape):
            if not isinstance(size, int):
                self.sources.setdefault(size.node.expr, (tensor, axis))

    def record_value(self, expression: Any, scalar: Tensor) -> None:
        self.scalars[expression] = scalar
        self.vectors[expression] = emit("Reshape", scalar, np.array([1], np.int64))

    def make_dim(self, size: Any) -> Dim:
        """Convert a captured size to an int, or to its expression as text with the user's names."""
        if isinstance(size, int):
            return size
        expression = size.node.expr
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            return self.names.get(str(expression), str(expression))
        renamed = {symbol: self.names.get(str(symbol), str(symbol)) for symbol in expression.free_symbols}
        return str(expression.xreplace({symbol: type(symbol)(name, integer=True) for symbol, name in renamed.items()}))

    def make_number(self, value: Any) -> Any:
        """Convert a symbolic number of PyTorch to a Python number if it is constant, else to a `SymbolicNumber`."""
        expression = value.node.expr
        if expression.is_Boolean and not expression.args:
            return bool(expression)
        if expression.is_number:
            return int(expression) if expression.is_integer else float(expression)
        return SymbolicNumber(expression, self)

    def make_scalar(self, expression: Any) -> Tensor:
        if expression not in self.scalars:
            self.scalars[expression] = set_shape(emit("Squeeze", self.make_vector(expression), np.array([0], np.int64)), ())
        return self.scalars[expression]

    def make_vector(self, expression: Any) -> Tensor:
        """Emit the expression as a tensor of shape (1,); raises ModelError if it cannot be computed."""
        if expression not in self.vectors:
            self.vectors[expression] = set_shape(self._compute(expression), (1,))
        return self.vectors[expression]

    def _compute(self, expression: Any) -> Tensor:
        """Emit an expression as a tensor of shape (1,): read it from a tensor's shape, or apply a rule to its arguments."""
        if expression in self.sources:
            tensor, axis = self.sources[expression]
            return emit("Shape", tensor, start=axis, end=axis + 1)
        if expression.is_number:
            value: Any = np.array([int(expression)], np.int64) if expression.is_integer else np.array([float(expression)])
            return emit("Identity", value)
        name, arguments = expression.func.__name__, expression.args
        # SymPy writes products of equal sizes as powers.
        if name in ("Pow", "PowByNatural") and arguments[1].is_Integer and 0 < arguments[1] <= MAX_FACTORS:
            return _RULES["Mul"]([self.make_vector(arguments[0])] * int(arguments[1]))
        rule = _RULES.get(name)
        if rule is None:
            raise ModelError(f"the number {expression} of the module cannot be computed from the sizes of its inputs")
        return rule([self.make_vector(argument) for argument in arguments])


def set_shape(tensor: Tensor, shape: Shape) -> Tensor:
    """Set the shape of a tensor that was just recorded. The shape of a constant is known and not changed."""
    if tensor.name in tensor.builder.types:
        tensor.type = tensor.builder.types[tensor.name] = TensorType(tensor.dtype, shape)
    return tensor


MAX_FACTORS = 8
"""Powers with exponents up to this are emitted as products, because not every engine supports integer Pow."""


def _fold(combine: Callable[[Tensor, Tensor], Tensor]) -> Callable[[list[Tensor]], Tensor]:
    """Make a rule that combines operands from left to right. ``combine`` promotes mixed int64 and float64 operands."""
    return lambda operands: reduce(combine, operands)


def _to_float(operand: Tensor) -> Tensor:
    return operand if operand.dtype.is_float else emit("Cast", operand, to=DType.FLOAT64)


def _make_extreme(op_type: str) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda a, b: emit(op_type, a, b) if a.dtype is b.dtype else emit(op_type, _to_float(a), _to_float(b))


def _make_rounding(op_type: str) -> Callable[[list[Tensor]], Tensor]:
    return lambda operands: emit("Cast", emit(op_type, operands[0]), to=DType.INT64)


_RULES: dict[str, Callable[[list[Tensor]], Tensor]] = {
    "Add": _fold(operator.add),
    "Mul": _fold(operator.mul),
    "Max": _fold(_make_extreme("Max")),
    "Min": _fold(_make_extreme("Min")),
    **dict.fromkeys(("Pow", "PowByNatural", "FloatPow"), _fold(operator.pow)),
    **dict.fromkeys(("FloorDiv", "CleanDiv"), _fold(operator.floordiv)),
    **dict.fromkeys(("IntTrueDiv", "FloatTrueDiv"), _fold(operator.truediv)),
    **dict.fromkeys(("Mod", "PythonMod"), _fold(operator.mod)),
    "CeilToInt": _make_rounding("Ceil"),
    "FloorToInt": _make_rounding("Floor"),
    "RoundToInt": _make_rounding("Round"),
    "TruncToInt": lambda operands: emit("Cast", operands[0], to=DType.INT64),
    "ToFloat": lambda operands: _to_float(operands[0]),
    "Equality": _fold(operator.eq),
    "Unequality": _fold(operator.ne),
    "StrictGreaterThan": _fold(operator.gt),
    "GreaterThan": _fold(operator.ge),
    "StrictLessThan": _fold(operator.lt),
    "LessThan": _fold(operator.le),
    "Not": lambda operands: ~operands[0],
    "And": _fold(operator.and_),
    "Or": _fold(operator.or_),
    "OpaqueUnaryFn_sqrt": lambda operands: emit("Sqrt", _to_float(operands[0])),
}
"""Maps the name of a function of SymPy, or of PyTorch's extension of SymPy, to a rule that combines the emitted arguments."""


def make_shape(sizes: Sequence[Any]) -> Any:
    """Combine ints, symbolic numbers and one-element tensors to an int64 vector: an array if all are ints, else a tensor."""
    if all(isinstance(size, int) for size in sizes):
        return np.array(sizes, np.int64)
    # A list stands for a constant of adjacent numbers.
    groups: list[Any] = []
    for size in sizes:
        if not isinstance(size, int):
            groups.append(size.vector if isinstance(size, SymbolicNumber) else emit("Reshape", size, np.array([1], np.int64)))
        elif groups and isinstance(groups[-1], list):
            groups[-1].append(size)
        else:
            groups.append([size])
    operands = [np.array(group, np.int64) if isinstance(group, list) else group for group in groups]
    return operands[0] if len(operands) == 1 else emit("Concat", *operands, axis=0)
