"""The engine's table of kernels, and what a kernel is.

A kernel is called once, while its node is traced: with a `LoweringContext`, which tells it of the node, and with the node's
inputs in order, None where one is left out. It returns the one output, or a tuple of outputs. An operand is either traced, which
has a shape and an element type and no content, or *known*: a NumPy array, because it is a small constant or was computed from
such, or from shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from xrt.engines.contract.op_table import Kernel, OpTable
from xrt.engines.kernels import ops as shared
from xrt.engines.kernels.table import Factory

__all__ = ["Lowering", "Operand", "either", "factories", "is_either", "ops", "register_factories"]

Operand: TypeAlias = Any
"""A traced array of JAX's, or a NumPy array, which is known."""
Lowering: TypeAlias = Callable[..., Any]
"""Writes a node in operations of JAX."""

ops: OpTable[Lowering] = OpTable("xla")
"""Filled by the modules of `xrt.engines.xla.kernels`, one per family of operators."""

factories: OpTable[Factory] = shared.extend("xla")
"""Kernels in the form that engines share; `register_factories` puts them into `ops`."""

BY_NUMPY = frozenset(
    {
        *("Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitwiseAnd", "BitwiseNot", "BitwiseOr"),
        *("BitwiseXor", "Ceil", "Concat", "Cos", "Cosh", "Div", "Equal", "Exp", "Flatten", "Floor", "Greater", "GreaterOrEqual"),
        *("Identity", "IsNaN", "Less", "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Reciprocal"),
        *("ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Round", "Sign", "Sin", "Sinh", "Slice", "Split"),
        *("Sqrt", "Squeeze", "Sub", "Sum", "Tan", "Tanh", "Transpose", "Unsqueeze", "Where", "Xor"),
    }
)
"""Operators of the shared kernels that NumPy computes where all operands are known: those of which models make shapes."""

SINCE = {"GRU": 7, "Gemm": 7, "LSTM": 7, "RNN": 7, "Split": 2}
"""The first version that the engine serves, where the shared kernels serve earlier ones too."""

_EITHER: set[Lowering] = set()


def either(kernel: Lowering) -> Lowering:
    """Mark a kernel as written in what ``numpy`` and ``jax.numpy`` share, so that NumPy computes it where all operands are known.

    So the shapes that a model computes from shapes are numbers when the operators that want them are traced.
    """
    _EITHER.add(kernel)
    return kernel


def is_either(kernel: Lowering) -> bool:
    """Whether NumPy may run the kernel as well."""
    return kernel in _EITHER


def register_factories() -> None:
    """Put the kernels of `factories` into `ops`. What such a kernel reads on the host must be known while its node is traced."""
    for row in factories:
        since = max(row.since, SINCE.get(row.op_type, 1))
        if row.until is not None and row.until < since:
            continue
        lowering = _adapt(row)
        ops(row.op_type, domain=row.domain, since=since, until=row.until, train=row.train)(lowering)
        if row.op_type in BY_NUMPY:
            either(lowering)


def _adapt(row: Kernel[Factory]) -> Lowering:
    def lower(at: Any, *operands: Operand) -> Any:
        given = (at.get_constant(x, i) if i in row.host and x is not None else x for i, x in enumerate(operands))
        return row.code(at.node, at)(*given)

    return lower
