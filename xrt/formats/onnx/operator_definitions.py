"""Expansion of operators that ONNX defines as functions of other operators."""

from __future__ import annotations

from onnx import FunctionProto, ModelProto, TypeProto, defs

from xrt.errors import ModelError
from xrt.formats.onnx.files import load
from xrt.formats.onnx.names import summarize_error
from xrt.formats.onnx.writing import to_model
from xrt.graph import Function, find_schema

__all__ = ["expand"]

# Domain of the definition while it is a model-local function.
DOMAIN = "xrt.definition"


def expand(function: Function) -> Function | None:
    """Replace the operator of a one-node Function by its definition in ONNX; None if it has none.

    Expands one level: the nodes of the definition may have definitions too. Some definitions depend on input types, which must
    then be known. Raises ModelError if ``onnx`` cannot apply the definition.
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
    """Add default attributes that the definition refers to: onnx resolves a reference to a missing attribute to nothing."""
    (node,) = model.graph.node
    missing = set(definition.attribute) - {attribute.name for attribute in node.attribute}
    known = (schema.attributes[name].default_value for name in sorted(missing) if name in schema.attributes)
    node.attribute.extend(default for default in known if default.type)


def _definition(schema: defs.OpSchema, model: ModelProto, version: int) -> FunctionProto | None:
    """The newest definition of the model's single node that its opset allows."""
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
