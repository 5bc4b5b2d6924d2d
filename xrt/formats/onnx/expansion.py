"""Operators that ONNX defines by others, replaced by these."""

from __future__ import annotations

from onnx import inliner

from xrt.errors import ModelError
from xrt.formats.onnx.files import load
from xrt.formats.onnx.reasons import reason_of
from xrt.formats.onnx.writing import to_model
from xrt.graph import Function, schema_of

__all__ = ["expanded"]


def expanded(function: Function) -> Function | None:
    """Return what ONNX defines the operator of a Function of one node by; None where it gives no definition.

    Only the node itself is replaced: the nodes of its definition may have definitions too. Some definitions depend on the types
    of the inputs, so these should be known. Raises ModelError where ``onnx`` cannot apply the definition.
    """
    (node,) = function.nodes
    schema = schema_of(node.op_type, function.opset(node.domain), node.domain)
    if schema is None or not (schema.has_function or schema.has_context_dependent_function):
        return None
    try:
        inlined = inliner.inline_selected_functions(
            to_model(function), [(node.domain, node.op_type)], inline_schema_functions=True
        )
    except Exception as error:  # the inliner raises whatever its C++ does
        raise ModelError(f"the definition of {node.op} cannot be applied: {reason_of(error)}") from error
    meaning = load(inlined)
    return None if any(inner.op == node.op for inner in meaning.nodes) else meaning
