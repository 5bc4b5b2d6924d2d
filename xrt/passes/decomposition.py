"""Decompose a node into simpler operators, by XRT's rule for its operator or by ONNX's function body."""

from __future__ import annotations

from functools import lru_cache

from xrt.errors import ModelError
from xrt.formats.onnx import expand
from xrt.graph import Function, Node, Value
from xrt.operators import as_function, rewrite_nodes
from xrt.operators.decompositions import write_decomposition
from xrt.passes.shape_inference import infer_shapes

CACHE_SIZE = 1024
"""Maximum number of cached decompositions; equal nodes share one."""


def find_decomposition(node: Node, function: Function) -> Function | None:
    """Decompose one node; return None for a node with bodies or control edges, and if no decomposition is known.

    The types are inferred, and values are named as in `as_function`. A rule of `xrt.operators` is preferred to ONNX's function
    body. Such a body may use another opset, and its nodes may have function bodies themselves, which are not expanded.
    """
    return None if node.bodies or node.control else _decompose(as_function(node, function))


@lru_cache(maxsize=CACHE_SIZE)
def _decompose(isolated: Function) -> Function | None:
    try:
        body = rewrite_nodes(isolated, write_decomposition)
        # Declared types belong to the node that was replaced; those of its parts are inferred.
        lowered = _expand(isolated) if body is isolated else body.replace(types={})
        return None if lowered is None else infer_shapes(lowered)
    except (ModelError, ValueError, IndexError, TypeError, KeyError):  # inconsistent attributes
        return None


def _expand(isolated: Function) -> Function | None:
    """Replace the operator by ONNX's function body; None if it has none."""
    # To choose some bodies onnx needs the types of all operands, but sees only those of inputs: make constants inputs.
    constants = isolated.constants
    lifted = isolated.replace(inputs=(*isolated.inputs, *(Value(name, c.type) for name, c in constants.items())), constants={})
    body = expand(lifted)
    if body is None:
        return None
    inputs = tuple(value for value in body.inputs if value.name not in constants)
    return body.replace(inputs=inputs, constants={**body.constants, **constants})
