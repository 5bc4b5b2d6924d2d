"""Values that say how large others are: what a Function computes of shapes alone, a few numbers each."""

from __future__ import annotations

from xrt.graph import Constant, Function, Node

__all__ = ["SHAPES", "find_shape_values"]

FEW = 64
"""The most elements of a constant that is taken for sizes."""

SHAPES = frozenset({"Shape", "Size"})
"""Operators that read a shape, and no data."""

STEPS = frozenset(
    [
        *("Abs", "Add", "And", "Cast", "Ceil", "Concat", "Div", "Equal"),
        *("Floor", "Gather", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max"),
        *("Min", "Mod", "Mul", "Neg", "Not", "Or", "ReduceMax", "ReduceMin"),
        *("ReduceProd", "ReduceSum", "Reshape", "Slice", "Split", "Sqrt", "Squeeze", "Sub"),
        *("Unsqueeze", "Where"),
    ]
)
"""Operators that of few numbers make few."""


def find_shape_values(function: Function) -> frozenset[str]:
    """Return the values that are few numbers by themselves, or are computed of such, or of shapes. Linear."""
    found: set[str] = set()
    for node in function.nodes:
        if not node.domain and _makes_sizes(node, function, found):
            found.update(node.defines)
    return frozenset(found)


def _makes_sizes(node: Node, function: Function, found: set[str]) -> bool:
    if node.op_type in SHAPES:
        return True
    if node.op_type == "Constant":
        return all(_is_few(attribute.value) for attribute in node.attributes)
    reads = [name for name in node.inputs if name]
    if node.op_type not in STEPS or not any(name in found for name in reads):
        return False
    return all(name in found or _is_small(function.constants.get(name)) for name in reads)


def _is_few(value: object) -> bool:
    """Whether a Constant node's attribute is few numbers."""
    if isinstance(value, Constant):
        return _is_small(value)
    few = value if isinstance(value, tuple) else (value,)
    return len(few) <= FEW and all(isinstance(one, int | float) for one in few)


def _is_small(constant: Constant | None) -> bool:
    return constant is not None and constant.array.size <= FEW and constant.array.dtype.kind in "biuf"
