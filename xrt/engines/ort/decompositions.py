"""What ONNX Runtime computes wrong in one form and right in another.

A Clip of floats with one bound clips at the largest finite number on the other side, infinities too. A product of a transposed
matrix with a vector, which its optimizer fuses, takes the matrix as not transposed.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from xrt.formats.onnx.clip_bounds import BOUNDS_ARE_INPUTS
from xrt.graph import Constant, DType, Function, Node, TensorType

__all__ = ["add_clip_bounds", "write_vectors_as_columns"]


def add_clip_bounds(function: Function) -> Function:
    """Return the Function with an infinity for each bound that a Clip is not given, in bodies too; itself if all are given.

    The infinities are constants of the Function, and bodies read them from there: no name is used for two values.
    """
    if function.opsets.get("", 0) < BOUNDS_ARE_INPUTS:
        return function
    added: dict[str, Constant] = {}
    bounded = _within((function,), added)
    return bounded.replace(constants={**bounded.constants, **added}) if added else function


def _within(scope: tuple[Function, ...], added: dict[str, Constant]) -> Function:
    """Return the first of the Functions, which is a body of the next, and so on, with both bounds; itself where all are."""
    nodes = tuple(_bounded(node.map_bodies(lambda body: _within((body, *scope), added)), scope, added) for node in scope[0].nodes)
    unchanged = all(new is old for new, old in zip(nodes, scope[0].nodes, strict=True))
    return scope[0] if unchanged else scope[0].replace(nodes=nodes)


def _bounded(node: Node, scope: tuple[Function, ...], added: dict[str, Constant]) -> Node:
    if node.op != "Clip":
        return node
    x, low, high = (*node.inputs, "", "")[:3]
    dtype = _dtype(node, scope)
    if (low and high) or dtype is None or not dtype.is_float:
        return node
    low, high = low or _infinity(-math.inf, dtype, added), high or _infinity(math.inf, dtype, added)
    return replace(node, inputs=(x, low, high))


def _dtype(node: Node, scope: tuple[Function, ...]) -> DType | None:
    """Return the element type that all values of a Clip have; None where it is known of none."""
    names = filter(None, (*node.inputs, *node.outputs))
    types = (function.get_type(name) for name in names for function in scope)
    return next((type_.dtype for type_ in types if isinstance(type_, TensorType)), None)


def _infinity(value: float, dtype: DType, added: dict[str, Constant]) -> str:
    """Return the name of a constant that is one infinity."""
    name = f"xrt/clip/{dtype}/{value}"
    added[name] = Constant(np.array(value, dtype.numpy))
    return name


# ---------------------------------------------------------------------- products with a vector

_COLUMN = "xrt/matmul/column"


def write_vectors_as_columns(function: Function) -> Function:
    """Return the Function with each MatMul of a computed tensor and a vector as one with a column, in bodies too.

    Not only one of a Transpose itself: the library moves these over other nodes. Itself if there are none.
    """
    nodes: list[Node] = []
    added: dict[str, Constant] = {}
    for node in function.nodes:
        rank = _find_rank(node, function)
        if rank is None:
            nodes.append(node.map_bodies(write_vectors_as_columns))
            continue
        column, product = f"{node.outputs[0]}/column", f"{node.outputs[0]}/product"
        shape = f"xrt/matmul/{rank}"
        added |= {_COLUMN: Constant(np.array([-1, 1])), shape: Constant(np.zeros(rank - 1, np.int64))}
        nodes += [
            Node("Reshape", (node.inputs[1], _COLUMN), (column,)),
            replace(node, inputs=(node.inputs[0], column), outputs=(product,)),
            Node("Reshape", (product, shape), node.outputs),
        ]
    unchanged = len(nodes) == len(function.nodes) and all(new is old for new, old in zip(nodes, function.nodes, strict=True))
    return function if unchanged else function.replace(nodes=tuple(nodes), constants={**function.constants, **added})


def _find_rank(node: Node, function: Function) -> int | None:
    """Return the rank of a computed tensor that is multiplied with a vector, None for other nodes."""
    if node.op != "MatMul" or not function.computes(node.inputs[0]):
        return None
    types = [function.get_type(name) for name in node.inputs]
    ranks = [type_.rank if isinstance(type_, TensorType) else None for type_ in types]
    return ranks[0] if ranks[1] == 1 and (ranks[0] or 0) > 1 else None
