"""Padding of operators that compute each element from those at its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xrt.graph import Node
from xrt.passes.padding.extents import ONE, Axis
from xrt.passes.padding.padder import Padder

__all__ = ["ELEMENTWISE", "KEEPING_ZERO", "apply_elementwise", "apply_first", "apply_integer_division", "broadcast"]

KEEPING_ZERO = frozenset(
    {"Abs", "Cast", "Ceil", "Floor", "Identity", "LeakyRelu", "Neg", "Relu", "Round", "Sign", "ThresholdedRelu"}
)
"""Operators that give zero for zero, on every engine."""
ELEMENTWISE = KEEPING_ZERO | frozenset(
    {
        *("Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr"),
        *("BitwiseXor", "Celu", "Clip", "Cos", "Cosh", "Elu", "Equal", "Erf", "Exp", "Gelu", "Greater", "GreaterOrEqual"),
        *("HardSigmoid", "HardSwish", "IsInf", "IsNaN", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mul"),
        *("Not", "Or", "PRelu", "Pow", "Reciprocal", "Selu", "Shrink", "Sigmoid", "Sin", "Sinh", "Softplus", "Softsign"),
        *("Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh", "Where", "Xor"),
    }
)
"""Operators of ai.onnx whose output at a place depends on their inputs at that place alone."""


def apply_elementwise(p: Padder, node: Node) -> None:
    """The output is padded where the inputs are; an axis that is padded in one is padded in all, or broadcast."""
    keeps = node.op_type in KEEPING_ZERO
    p.set(node.outputs[0], broadcast(p, node), p.zeros(node.inputs[0]) if keeps else ())


def apply_integer_division(p: Padder, node: Node) -> Node:
    """As elementwise; integers are divided by 1 where the divisor is padded: a division by zero may end the process."""
    apply_elementwise(p, node)
    given, divisor = node.inputs
    if not p.dtype(given).is_float:
        divisor = p.mask_all(divisor, range(len(p.axes(divisor))), 1)
    return replace(node, inputs=(given, divisor))


def apply_first(p: Padder, node: Node) -> None:
    """The first output is padded as the first input is; other inputs are numbers, and other outputs are not there."""
    if any(name in p.states for name in node.inputs[1:] if name):
        raise p.refuse("a parameter is padded", *(axis for name in node.inputs[1:] if name for axis in p.axes(name)))
    p.set(node.outputs[0], p.axes(node.inputs[0]))
    for name in filter(None, node.outputs[1:]):
        p.set(name, p.axes(node.inputs[0]))


def broadcast(p: Padder, node: Node, skip: int = 0) -> list[Axis]:
    """Return the axes of what the inputs of a node broadcast to, but for the last ones."""
    shapes = [p.axes(name) for name in node.inputs if name]
    shapes = [shape[: len(shape) - skip] if skip else shape for shape in shapes]
    rank = max(map(len, shapes), default=0)
    return [_join(p, node, n, [shape[n - rank] for shape in shapes if n - rank >= -len(shape)]) for n in range(rank)]


def _join(p: Padder, node: Node, number: int, axes: Sequence[Axis]) -> Axis:
    """Return the axis that several broadcast to."""
    found = list(dict.fromkeys(axis for axis in axes if axis != ONE))
    if len(found) < 2:
        return found[0] if found else ONE
    if any(map(p.is_padded, found)):
        shown = " and ".join("*".join(map(str, axis)) for axis in found)
        raise p.refuse(f"its inputs have the extents {shown} along one axis, which padding would make unequal", *found)
    return next((axis for axis in found if axis[0].number is not None), p.unknown(node.outputs[0], number))
