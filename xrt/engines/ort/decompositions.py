"""A Clip of floats with one bound, which ONNX Runtime clips at the largest finite number on the other side, infinities too."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from xrt.formats.onnx.clip_bounds import BOUNDS_ARE_INPUTS
from xrt.graph import Constant, DType, Function, Node, TensorType

__all__ = ["add_clip_bounds"]


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
