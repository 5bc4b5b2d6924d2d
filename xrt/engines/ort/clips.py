"""A Clip of floats with one bound, which ONNX Runtime clips at the largest finite number on the other side, infinities too."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from xrt.graph import Constant, DType, Function, Node, TensorType

__all__ = ["with_both_bounds"]

BOUNDS_ARE_INPUTS = 11
"""The first opset in which they are; before, what is left out is the largest finite number by ONNX's own word."""


def with_both_bounds(function: Function) -> Function:
    """Return the Function with an infinity for each bound that a Clip is not given, in bodies too; itself where all are."""
    if function.opsets.get("", 0) < BOUNDS_ARE_INPUTS:
        return function
    added: dict[str, Constant] = {}
    nodes = tuple(_bounded(node.map_bodies(with_both_bounds), function, added) for node in function.nodes)
    if all(new is old for new, old in zip(nodes, function.nodes, strict=True)):
        return function
    return function.replace(nodes=nodes, constants={**function.constants, **added})


def _bounded(node: Node, function: Function, added: dict[str, Constant]) -> Node:
    type_ = function.type_of(node.inputs[0]) if node.op == "Clip" else None
    if not isinstance(type_, TensorType) or not type_.dtype.is_float:
        return node
    x, low, high = (*node.inputs, "", "")[:3]
    if low and high:
        return node
    low, high = low or _infinity(-math.inf, type_.dtype, added), high or _infinity(math.inf, type_.dtype, added)
    return replace(node, inputs=(x, low, high))


def _infinity(value: float, dtype: DType, added: dict[str, Constant]) -> str:
    """Return the name of a constant that is one infinity."""
    name = f"xrt/clip/{dtype}/{value}"
    added[name] = Constant(np.array(value, dtype.numpy))
    return name
