"""Symbolic sizes: their names in types, and the tensors that hold them at run time."""

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
    """A Python number computed from input sizes; it becomes a tensor when it is used as a value."""

    expression: Any
    """A SymPy expression."""
    symbols: Symbols

    @property
    def row(self) -> Tensor:
        """The number as a tensor of shape (1,): int64, float64, or bool for comparisons."""
        return self.symbols.make_row(self.expression)

    @property
    def scalar(self) -> Tensor:
        """The number as a 0-d tensor."""
        return self.symbols.make_scalar(self.expression)


Size: TypeAlias = int | SymbolicNumber


@dataclass(slots=True)
class Symbols:
    """The symbolic sizes of a captured graph, and the tensors that hold them at run time.

    ``names`` maps PyTorch's symbols to the user's names. ``sources`` maps an expression to a tensor and its axis of that size.
    ``rows`` and ``scalars`` map the expressions emitted so far to tensors of shape (1,) and to 0-d tensors.
    """

    names: Mapping[str, str]
    rows: dict[Any, Tensor] = field(default_factory=dict)
    scalars: dict[Any, Tensor] = field(default_factory=dict)
    sources: dict[Any, tuple[Tensor, int]] = field(default_factory=dict)

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Context manager for a body: forget values computed inside at its end, because the outer graph cannot read them."""
        tables: tuple[dict[Any, Any], ...] = (self.rows, self.scalars, self.sources)
        before = [dict(table) for table in tables]
        try:
            yield
        finally:
            for table, old in zip(tables, before, strict=True):
                table.clear()
                table.update(old)

    def record_shape(self, tensor: Tensor, shape: Sequence[Any]) -> None:
        """Record that the symbolic sizes in ``shape`` can be read from the shape of ``tensor``."""
        for axis, size in enumerate(shape):
            if not isinstance(size, int):
                self.sources.setdefault(size.node.expr, (tensor, axis))

    def record_value(self, expression: Any, scalar: Tensor) -> None:
        """Record that ``scalar``, a 0-d tensor, holds the value of an expression."""
        self.scalars[expression] = scalar
        self.rows[expression] = emit("Reshape", scalar, np.array([1], np.int64))

    def name(self, size: Any) -> Dim:
        """Convert a size to a dim: an int, or the expression as a string with the user's names."""
        if isinstance(size, int):
            return size
        expression = size.node.expr
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            return self.names.get(str(expression), str(expression))
        renamed = {symbol: self.names.get(str(symbol), str(symbol)) for symbol in expression.free_symbols}
        return str(expression.xreplace({symbol: type(symbol)(name, integer=True) for symbol, name in renamed.items()}))

    def name_shape(self, shape: Sequence[Any]) -> Shape:
        """Convert sizes to a Shape, see `name`."""
        return tuple(map(self.name, shape))

    def number(self, value: Any) -> Any:
        """Convert a symbolic number to a Python number if constant, else a `SymbolicNumber`."""
        expression = value.node.expr
        if expression.is_Boolean and not expression.args:
            return bool(expression)
        if expression.is_number:
            return int(expression) if expression.is_integer else float(expression)
        return SymbolicNumber(expression, self)

    def make_scalar(self, expression: Any) -> Tensor:
        """Emit the expression as a 0-d tensor."""
        if expression not in self.scalars:
            self.scalars[expression] = set_shape(emit("Squeeze", self.make_row(expression), np.array([0], np.int64)), ())
        return self.scalars[expression]

    def make_row(self, expression: Any) -> Tensor:
        """Emit the expression as a tensor of shape (1,); raises ModelError if it cannot be computed."""
        if expression not in self.rows:
            self.rows[expression] = set_shape(self._compute(expression), (1,))
        return self.rows[expression]

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
        if name in ("Pow", "PowByNatural") and arguments[1].is_Integer and 0 < arguments[1] <= MOST_FACTORS:
            return _RULES["Mul"]([self.make_row(arguments[0])] * int(arguments[1]))
        rule = _RULES.get(name)
        if rule is None:
            raise ModelError(f"the number {expression} of the module cannot be computed from the sizes of its inputs")
        return rule([self.make_row(argument) for argument in arguments])


def set_shape(tensor: Tensor, shape: Shape) -> Tensor:
    """Set the known shape of a tensor that was just recorded."""
    if tensor.name in tensor.builder.types:
        tensor.type = tensor.builder.types[tensor.name] = TensorType(tensor.dtype, shape)
    return tensor


MOST_FACTORS = 8
"""Powers with exponents up to this are emitted as products, because not every engine supports integer Pow."""


def _fold(combine: Callable[[Tensor, Tensor], Tensor]) -> Callable[[list[Tensor]], Tensor]:
    """Make a rule that combines operands from left to right. ``combine`` promotes mixed int64 and float64 operands."""
    return lambda rows: reduce(combine, rows)


def _to_float(row: Tensor) -> Tensor:
    return row if row.dtype.is_float else emit("Cast", row, to=DType.FLOAT64)


def _extreme(op_type: str) -> Callable[[Tensor, Tensor], Tensor]:
    # Tensors have no operator for Max and Min, so mixed types are promoted here.
    return lambda a, b: emit(op_type, a, b) if a.dtype is b.dtype else emit(op_type, _to_float(a), _to_float(b))


def _to_integer(op_type: str) -> Callable[[list[Tensor]], Tensor]:
    return lambda rows: emit("Cast", emit(op_type, rows[0]), to=DType.INT64)


_RULES: dict[str, Callable[[list[Tensor]], Tensor]] = {
    "Add": _fold(operator.add),
    "Mul": _fold(operator.mul),
    "Max": _fold(_extreme("Max")),
    "Min": _fold(_extreme("Min")),
    **dict.fromkeys(("Pow", "PowByNatural", "FloatPow"), _fold(operator.pow)),
    **dict.fromkeys(("FloorDiv", "CleanDiv"), _fold(operator.floordiv)),
    **dict.fromkeys(("IntTrueDiv", "FloatTrueDiv"), _fold(operator.truediv)),
    **dict.fromkeys(("Mod", "PythonMod"), _fold(operator.mod)),
    "CeilToInt": _to_integer("Ceil"),
    "FloorToInt": _to_integer("Floor"),
    "RoundToInt": _to_integer("Round"),
    "TruncToInt": lambda rows: emit("Cast", rows[0], to=DType.INT64),
    "ToFloat": lambda rows: _to_float(rows[0]),
    "Equality": _fold(operator.eq),
    "Unequality": _fold(operator.ne),
    "StrictGreaterThan": _fold(operator.gt),
    "GreaterThan": _fold(operator.ge),
    "StrictLessThan": _fold(operator.lt),
    "LessThan": _fold(operator.le),
    "Not": lambda rows: ~rows[0],
    "And": _fold(operator.and_),
    "Or": _fold(operator.or_),
    "OpaqueUnaryFn_sqrt": lambda rows: emit("Sqrt", _to_float(rows[0])),
}
"""Maps the name of a function of SymPy, or of PyTorch's extension of SymPy, to a rule that combines the emitted arguments."""


def make_shape(sizes: Sequence[Any]) -> Any:
    """Combine ints, symbolic numbers and one-element tensors into an int64 vector: an array if all are ints, else a tensor."""
    if all(isinstance(size, int) for size in sizes):
        return np.array(sizes, np.int64)
    parts: list[Any] = []
    for size in sizes:
        if not isinstance(size, int):
            parts.append(size.row if isinstance(size, SymbolicNumber) else emit("Reshape", size, np.array([1], np.int64)))
        # Adjacent numbers form one constant.
        elif parts and isinstance(parts[-1], list):
            parts[-1].append(size)
        else:
            parts.append([size])
    operands = [np.array(part, np.int64) if isinstance(part, list) else part for part in parts]
    return operands[0] if len(operands) == 1 else emit("Concat", *operands, axis=0)
