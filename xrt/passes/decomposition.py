"""Decompose a node into simpler operators, by XRT's rule for its operator or by ONNX's function body."""

from __future__ import annotations

from functools import lru_cache

from xrt.errors import ModelError
from xrt.formats.onnx import expand
from xrt.graph import Function, Node
from xrt.operators import as_function, learned_models, rewrite_nodes  # noqa: F401  # its rules register themselves
from xrt.operators.decompositions import write_decomposition
from xrt.passes.shape_inference import infer_shapes

__all__ = ["find_decomposition"]

REMEMBERED = 1024
"""Cached decompositions; equal nodes share one."""


def find_decomposition(node: Node, function: Function) -> Function | None:
    """Decompose one node, with inferred types and the value names of `as_function`; None if no decomposition is known.

    A rule of `xrt.operators` precedes ONNX's body. That is one level deep: its nodes may have bodies too. Its opset may differ.
    """
    return None if node.bodies or node.control else _decompose(as_function(node, function))


@lru_cache(maxsize=REMEMBERED)
def _decompose(alone: Function) -> Function | None:
    try:
        body = rewrite_nodes(alone, write_decomposition)
        lowered = expand(alone) if body is alone else body.replace(types={})
        return None if lowered is None else infer_shapes(lowered)
    except (ModelError, ValueError, IndexError, TypeError, KeyError):  # inconsistent attributes
        return None
