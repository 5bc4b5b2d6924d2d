"""Operators that ONNX defines by others, replaced by these."""

from __future__ import annotations

from onnx import FunctionProto, ModelProto, TypeProto, defs

from xrt.errors import ModelError
from xrt.formats.onnx.files import load
from xrt.formats.onnx.names import summarize_error
from xrt.formats.onnx.writing import to_model
from xrt.graph import Function, find_schema

__all__ = ["expand"]

DOMAIN = "xrt.definition"
"""The domain of a definition while it is a function of a model."""


def expand(function: Function) -> Function | None:
    """Return what ONNX defines the operator of a Function of one node by; None where it gives no definition.

    Only the node itself is replaced: the nodes of its definition may have definitions too. Some definitions depend on the types
    of the inputs, which then must be known. Raises ModelError where ``onnx`` cannot apply the definition.
    """
    (node,) = function.nodes
    version = function.opset(node.domain)
    schema = find_schema(node.op_type, version, node.domain)
    if schema is None:
        return None
    model = to_model(function)
    try:
        definition = _definition(schema, model, version)
    except Exception as error:  # onnx raises whatever its C++ does
        raise ModelError(f"the definition of {node.op} cannot be applied: {summarize_error(error)}") from error
    if definition is None or any((inner.domain, inner.op_type) == (node.domain, node.op_type) for inner in definition.node):
        return None
    _write_defaults(definition, schema, model)
    definition.domain = model.graph.node[0].domain = DOMAIN
    model.functions.append(definition)
    model.opset_import.add(domain=DOMAIN, version=1)
    return load(model)


def _write_defaults(definition: FunctionProto, schema: defs.OpSchema, model: ModelProto) -> None:
    """Give the node the defaults of the attributes that its definition refers to: a reference to nothing is nothing."""
    (node,) = model.graph.node
    missing = set(definition.attribute) - {attribute.name for attribute in node.attribute}
    known = (schema.attributes[name].default_value for name in sorted(missing) if name in schema.attributes)
    node.attribute.extend(default for default in known if default.type)


def _definition(schema: defs.OpSchema, model: ModelProto, version: int) -> FunctionProto | None:
    """Return the newest definition of a model's one node that the model's opset allows."""
    fixed = [known for known in schema.function_opset_versions if known <= version]
    if fixed:
        return FunctionProto.FromString(schema.get_function_with_opset_version(max(fixed)))
    dependent = [known for known in schema.context_dependent_function_opset_versions if known <= version]
    if not dependent:
        return None
    (node,) = model.graph.node
    types = {value.name: value.type for value in model.graph.input}
    given = [types.get(name, TypeProto()).SerializeToString() for name in node.input]
    text = schema.get_context_dependent_function_with_opset_version(max(dependent), node.SerializeToString(), given)
    return FunctionProto.FromString(text)
