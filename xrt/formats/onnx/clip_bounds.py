"""The bounds of a Clip that takes them as attributes, which it did below opset 11."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from xrt.graph.node import Node, read_attributes

__all__ = ["BOUNDS_ARE_INPUTS", "add_clip_bounds", "read_clip_bounds"]

BOUNDS_ARE_INPUTS = 11
"""The first opset in which they are. There one that is left out bounds nothing, as in the operator's own function body."""

MOST = float(np.finfo(np.float32).max)
"""What ONNX's schema of version 6 has for a bound that is left out, in every element type: it makes a number of an infinity, but
in float16, where it is one.
"""


def read_clip_bounds(node: Node) -> tuple[float, float]:
    """Return the lower and the upper bound."""
    return float(node.attr("min", -MOST)), float(node.attr("max", MOST))


def add_clip_bounds(node: Node) -> Node:
    """Return the Clip with both of its attributes; itself where it has them."""
    if node.attr("min") is not None and node.attr("max") is not None:
        return node
    low, high = read_clip_bounds(node)
    return replace(node, attributes=read_attributes({"min": low, "max": high}))
