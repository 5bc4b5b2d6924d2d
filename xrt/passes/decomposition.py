"""Decompose a node into simpler operators, by XRT's rule for its operator or by ONNX's function body."""

from __future__ import annotations

from functools import lru_cache

from xrt.errors import ModelError
from xrt.formats.onnx import expand_definition
from xrt.graph import Function, Node, Value
from xrt.operators import as_function, rewrite_nodes
from xrt.operators.decompositions import write_decomposition
from xrt.passes.shape_inference import infer_shapes


def find_decomposition(node: Node, function: Function) -> Function | None:
    """Decompose one node; return None for a node with bodies or control edges, and if no decomposition is known.

    Inputs and outputs are named as in `as_function`, and types are inferred. A rule of `xrt.operators` is preferred to ONNX's
    function body, which may use another opset. Nodes of the body may have function bodies themselves, which are not expanded.
    """
    return None if node.bodies or node.control else _decompose(as_function(node, function))


@lru_cache(maxsize=1024)  # models repeat equal nodes
def _decompose(isolated: Function) -> Function | None:
    try:
        body = rewrite_nodes(isolated, write_decomposition)
        # Without a rule, `rewrite_nodes` returns its input. With a rule, types are inferred anew.
        decomposed = _expand(isolated) if body is isolated else body.replace(types={})
        return None if decomposed is None else infer_shapes(decomposed)
    except (ModelError, ValueError, IndexError, TypeError, KeyError):  # inconsistent attributes
        return None


def _expand(isolated: Function) -> Function | None:
    # Some bodies depend on the types of all operands, but onnx only sees the types of inputs: make constants inputs.
    constants = isolated.constants
    constant_inputs = (Value(name, constant.type) for name, constant in constants.items())
    body = expand_definition(isolated.replace(inputs=(*isolated.inputs, *constant_inputs), constants={}))
    if body is None:
        return None
    inputs = tuple(value for value in body.inputs if value.name not in constants)
    return body.replace(inputs=inputs, constants={**body.constants, **constants})
