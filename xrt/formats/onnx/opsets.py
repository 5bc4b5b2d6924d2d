"""Conversion of Functions to other opsets and IR versions, node by node, and expansion of operators by ONNX's definitions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from onnx import FunctionProto, ModelProto, TensorProto, TypeProto, defs, shape_inference, version_converter

from xrt.errors import ModelError
from xrt.formats.onnx.files import load
from xrt.formats.onnx.inference import can_propagate
from xrt.formats.onnx.messages import ExternalData, encode_data, is_large, summarize_error, write_reference, write_tensor
from xrt.formats.onnx.reading import read_function
from xrt.formats.onnx.writing import (
    CLIP_BOUND_INPUTS_OPSET,
    WITHOUT_METADATA,
    GraphWriter,
    find_ir_version,
    find_lowest_opsets,
    find_newer_node,
    make_model,
    read_clip_bounds,
    to_model,
)
from xrt.graph import Constant, FrozenDict, Function, Node, TensorType, Type, find_schema, latest_opset, since_version
from xrt.graph.node import FreshNames, rename_function
from xrt.graph.schemas import find_operator, format_onnx_type, require_operator
from xrt.operators import as_function, inline_function, separate_outputs

# Before this opset, Softmax normalized over all axes from its axis on together.
SOFTMAX_PER_AXIS_OPSET = 13
# Since this opset, new versions of If, Loop and Scan only added types.
_MIN_CONTROL_FLOW_OPSET = 11


def convert_function(function: Function, max_opset: int) -> Function:
    """Convert to an equivalent Function whose nodes, including bodies, are valid at an ai.onnx opset.

    Raises ModelError with the first node that cannot be converted, and the reason.
    """
    is_old_enough = find_newer_node(function, max_opset) is None
    return function if is_old_enough else _convert_nodes(function, function, min(max_opset, function.opset()))


def upgrade_opset(function: Function, opset: int) -> Function:
    """Convert to at least this ai.onnx opset, including bodies. A Function without ai.onnx imports it.

    Infer types first. Raises ModelError with the first node that cannot be converted, and the reason.
    """
    return function if function.opsets.get("", 0) >= opset else _convert_nodes(function, function, opset)


def _convert_nodes(function: Function, scope: Function, opset: int) -> Function:
    """Convert the nodes of a Function or body. ``scope`` is ``function`` plus the types and constants of captured values."""
    nodes: list[Node] = []
    constants, types = dict(function.constants), dict(function.types)
    for node in function.nodes:
        converted = _convert_node(node, scope, opset)
        # A node with bodies is never converted itself, only its bodies are.
        if converted is None:
            nodes.append(node.map_bodies(lambda body: _convert_nodes(body, _add_captures(body, scope), opset)))
        else:
            nodes += inline_function(converted, node, constants, types)
    return function.replace(nodes=tuple(nodes), constants=constants, types=types, opsets={**function.opsets, "": opset})


def _add_captures(body: Function, scope: Function) -> Function:
    """Add the types and constants of captured values to a body, so that its nodes can be converted in isolation."""
    types = {name: type_ for name in body.captures if (type_ := scope.get_type(name)) is not None}
    constants = {name: scope.constants[name] for name in body.captures if name in scope.constants}
    return body.replace(types={**types, **body.types}, constants={**constants, **body.constants})


def _convert_node(node: Node, scope: Function, opset: int) -> Function | None:
    """Convert a node to another opset; return None if the node is valid there without conversion.

    Inputs and outputs are named as by `as_function`. Raises ModelError if conversion is impossible.
    """
    since = since_version(node, scope)
    schema = find_schema(node.op_type, opset)
    # An operator that did not change in between needs no conversion, even if it has a body or unknown types.
    if node.domain or (schema is not None and schema.since_version == since):
        return None
    # An operator without a schema needs no conversion, unless a newer opset defines an operator of this name.
    if since is None and opset <= scope.opset():
        return None
    is_downgrade = opset < scope.opset()
    if node.op == "Clip" and not is_downgrade and scope.opset() < CLIP_BOUND_INPUTS_OPSET:
        low, high = read_clip_bounds(node)  # onnx's converter drops the default bounds
        node = node.with_attributes(min=low, max=high)
    result = None
    if node.bodies:
        reason = _why_not_older_control(node, scope, opset) if is_downgrade else "it has a body"
    else:
        # `as_function` gives equal nodes equal names, so that `_convert` converts them once.
        result, reason = _convert(as_function(node, scope).replace(opsets={"": scope.opset()}), opset)
    if reason and is_downgrade:
        problem = f"needs opset {since}; the limit is {opset}, and it cannot be converted: {reason}"
        raise ModelError(f"node {node.name!r} ({node.op}) {problem}")
    if reason:
        raise ModelError(f"node {node.name!r} ({node.op}) cannot be converted from opset {scope.opset()} to {opset}: {reason}")
    return result


def _why_not_convertible(node: Node, scope: Function, opset: int) -> str | None:
    """Explain why a node or a node of its bodies cannot be converted, or return None."""
    try:
        _convert_node(node, scope, opset)
    except ModelError as error:
        return str(error)
    for body in node.bodies:
        inner_scope = _add_captures(body, scope)
        for inner in body.nodes:
            if reason := _why_not_convertible(inner, inner_scope, opset):
                return reason
    return None


def _why_not_older_control(node: Node, scope: Function, max_opset: int) -> str:
    """Explain why a node with bodies is not valid at an older opset, or return an empty string."""
    operator = find_operator(node.op_type, max_opset)
    if operator is None or operator.since_version < _MIN_CONTROL_FLOW_OPSET:
        return f"opset {max_opset} lacks this operator, or defines it differently"
    allowed_types = frozenset().union(*(formal.types for formal in (*operator.inputs, *operator.outputs)))
    for type_ in map(scope.get_type, (*node.inputs, *node.outputs)):
        text = None if type_ is None else format_onnx_type(type_)
        if text is not None and text not in allowed_types:
            return f"opset {max_opset} does not take {text}"
    return ""


@lru_cache(maxsize=1024)
def _convert(function: Function, max_opset: int) -> tuple[Function | None, str]:
    """Convert a one-node Function with onnx. Return the result and an empty reason, or None and the reason why that fails."""
    if any(value.type is None for value in function.inputs):
        return None, "the types of its inputs are not known; infer shapes first"
    if not can_propagate(function):
        return None, "its inputs are too long for onnx's converter"
    if max_opset < SOFTMAX_PER_AXIS_OPSET <= function.opset() and _is_per_axis(function):
        return None, f"before opset {SOFTMAX_PER_AXIS_OPSET} it takes all axes from the given one on together"
    model = make_model(function, function.opsets, find_ir_version(function.opsets), WITHOUT_METADATA)
    try:
        # Check the result, because the converter leaves some attributes and operators unchanged that it should convert.
        converted = version_converter.convert_version(model, max_opset)
        shape_inference.infer_shapes(converted, check_type=True, strict_mode=True)
        result = read_function(converted, ExternalData())
    except Exception as error:  # noqa: BLE001  # the converter's C++ raises many types
        return None, summarize_error(error)
    if [v.name for v in result.outputs] != [v.name for v in function.outputs]:
        return None, "onnx's converter changes its outputs"
    if newer := find_newer_node(result, max_opset):
        return None, f"onnx's converter leaves {newer.op}"
    return result, ""


def _is_per_axis(function: Function) -> bool:
    """Whether the only node is a Softmax over an axis other than the last, which onnx's converter converts incorrectly."""
    (node,) = function.nodes
    type_ = function.inputs[0].type if function.inputs else None
    if node.op_type not in ("Softmax", "LogSoftmax"):
        return False
    rank = type_.rank if isinstance(type_, TensorType) else None
    return rank is None or node.attr("axis", -1) not in (-1, rank - 1)


def _inline_constant_nodes(function: Function) -> Function:
    """Replace Constant nodes of large tensors by constants, except nodes that compute an output or have a control edge."""
    output_names = {value.name for value in function.outputs}
    control_predecessors = {name for node in function.nodes for name in node.control}
    large: dict[str, Constant] = {}
    for node in function.nodes:
        if node.op != "Constant" or node.control or node.name in control_predecessors or node.outputs[0] in output_names:
            continue
        value = node.attr("value")
        if isinstance(value, Constant) and is_large(value):
            large[node.outputs[0]] = value
    if not large:
        return function
    nodes = tuple(node for node in function.nodes if node.op != "Constant" or node.outputs[0] not in large)
    types = {name: type_ for name, type_ in function.types.items() if name not in large}
    return function.replace(nodes=nodes, constants={**function.constants, **large}, types=types)


def _find_identity_opset(type_: Type | None) -> int:
    """Find the first ai.onnx opset whose Identity supports the type; 1 if the type is unknown."""
    text = None if type_ is None else format_onnx_type(type_)
    for opset in range(1, latest_opset() + 1):
        (operand,) = require_operator("Identity", opset).inputs
        if text in operand.types:
            return opset
    return 1


def to_lowest_model(
    function: Function,
    max_opset: int | None = None,
    locations: Mapping[str, str] = FrozenDict(),
    min_opset: int = 1,
) -> ModelProto:
    """Write a model at the lowest opset and IR version that preserve the semantics of every operator.

    For example, the Relu of an opset 28 model is written at opset 14, which introduced its current semantics. Docs, metadata,
    devices and control edges are omitted. Identity nodes are inserted where ONNX requires them: for repeated outputs, and bodies
    that return captured values. Inputs and outputs keep their names and order.

    Nodes that need a newer ai.onnx opset than ``max_opset`` are converted; raises ModelError with the reason if onnx cannot. For
    libraries that insert operators of ``min_opset``, the opset of the model is at least ``min_opset``, or that of the Function if
    it is lower. The IR version is the one that was released with the opset.

    ``locations`` maps names of large constants of the main graph to names of files. The constants become references to external
    data at offset 0 of these files, which are not written: pass the arrays of `collect_external_weights` to the library. Call
    `externalize_weights` first to include the constants in bodies and Constant nodes.
    """
    if max_opset is not None:
        function = convert_function(function, max_opset)
    opsets = find_lowest_opsets(function)
    function = separate_outputs(function)
    copied_types = (holder.get_type(node.outputs[0]) for holder, node in function.walk() if node.op == "Identity")
    lower_bound = min(min_opset, function.opsets.get("", 1))
    opsets[""] = max(opsets[""], lower_bound, *map(_find_identity_opset, copied_types))

    def write_constant(constant: Constant, name: str) -> TensorProto:
        if name not in locations:
            return write_tensor(constant, name)
        return write_reference(lambda _: (locations[name], 0), constant, name)

    writer = GraphWriter(write_constant, with_metadata=False)
    return make_model(function, opsets, find_ir_version(opsets), writer)


def find_lowest_opset(node: Node, function: Function) -> int:
    """Find the lowest ai.onnx opset that preserves the semantics of a node and its bodies; 1 without operators of ai.onnx."""
    lowest = 1
    for holder, inner in ((function, node), *(pair for body in node.bodies for pair in body.walk())):
        since = None if inner.domain else since_version(inner, holder)
        if since is not None:
            lowest = max(lowest, since)
    return lowest


def why_not_downgradable(node: Node, function: Function, max_opset: int) -> str | None:
    """Explain why `to_lowest_model` cannot write this node at ``max_opset``, or return None. Never raises. Infer types first.

    Fast: conversion is only tried for a node that needs a newer opset, and once for equal nodes.
    """
    if find_lowest_opset(node, function) <= max_opset:
        return None
    return _why_not_convertible(node, function, max_opset)


def why_not_upgradable(node: Node, function: Function, opset: int) -> str | None:
    """Explain why `upgrade_opset` cannot convert this node to ``opset``, or return None. Never raises."""
    return None if function.opsets.get("", 0) >= opset else _why_not_convertible(node, function, opset)


def externalize_weights(function: Function) -> Function:
    """Move large constants of bodies and Constant nodes, except outputs, to the constants of the Function.

    Bodies capture the constants under new names.
    """
    function = _inline_constant_nodes(function)
    fresh = FreshNames.for_function(function)
    hoisted: dict[str, Constant] = {}

    def hoist(body: Function) -> Function:
        """Move the large constants of a body, and of the bodies in it, to `hoisted`; return the body that captures them."""
        body = _inline_constant_nodes(body)
        nodes = tuple(node.map_bodies(hoist) for node in body.nodes)
        output_names = {value.name for value in body.outputs}
        large = {n: constant for n, constant in body.constants.items() if n not in output_names and is_large(constant)}
        if not large and all(new is old for new, old in zip(nodes, body.nodes, strict=True)):
            return body
        new_names = {name: fresh.take_numbered(name) for name in large}
        hoisted.update((new_names[name], constant) for name, constant in large.items())
        small = {name: constant for name, constant in body.constants.items() if name not in large}
        types = {name: type_ for name, type_ in body.types.items() if name not in large}
        return rename_function(body.replace(nodes=nodes, constants=small, types=types), new_names, {})

    nodes = tuple(node.map_bodies(hoist) for node in function.nodes)
    return function.replace(nodes=nodes, constants={**function.constants, **hoisted}) if hoisted else function


def collect_external_weights(function: Function) -> dict[str, np.ndarray[Any, Any]]:
    """Collect the large constants, which `to_lowest_model` can write as references to external data: name to array.

    An array is the constant's own, except for types narrower than a byte, which ONNX packs: then it is a packed copy, as uint8.
    """
    arrays = {}
    for name, constant in function.constants.items():
        if is_large(constant):
            is_packed = constant.dtype.bits < 8
            arrays[name] = np.frombuffer(encode_data(constant), np.uint8) if is_packed else constant.array
    return arrays


# Domain of an operator's definition while it is a model-local function of the model that `expand_definition` loads.
DEFINITION_DOMAIN = "xrt.definition"


def expand_definition(function: Function) -> Function | None:
    """Replace the operator of a one-node Function by ONNX's definition of it (a function body); None if there is none.

    The nodes of the result may have definitions themselves, which are not expanded. Some definitions depend on the input types.
    Raises ModelError if onnx cannot apply the definition.
    """
    (node,) = function.nodes
    version = function.opset(node.domain)
    schema = find_schema(node.op_type, version, node.domain)
    if schema is None:
        return None
    model = to_model(function)
    try:
        definition = _find_definition(schema, model, version)
    except Exception as error:  # onnx raises whatever its C++ does
        raise ModelError(f"the definition of {node.op} cannot be applied: {summarize_error(error)}") from error
    if definition is None or any((inner.domain, inner.op_type) == (node.domain, node.op_type) for inner in definition.node):
        return None
    # Add default attributes to the node: onnx's inliner replaces a reference to a missing attribute by nothing.
    (call,) = model.graph.node
    missing = set(definition.attribute) - {attribute.name for attribute in call.attribute}
    defaults = (schema.attributes[name].default_value for name in sorted(missing) if name in schema.attributes)
    call.attribute.extend(default for default in defaults if default.type)
    # Turn the definition into a model-local function that the node calls; `load` inlines it.
    definition.domain = call.domain = DEFINITION_DOMAIN
    model.functions.append(definition)
    model.opset_import.add(domain=DEFINITION_DOMAIN, version=1)
    return load(model)


def _find_definition(schema: defs.OpSchema, model: ModelProto, version: int) -> FunctionProto | None:
    """Find the definition of the model's single node for the newest opset up to ``version``; None if there is none."""
    opsets = [opset for opset in schema.function_opset_versions if opset <= version]
    if opsets:
        return FunctionProto.FromString(schema.get_function_with_opset_version(max(opsets)))
    # The other definitions depend on the attributes and the input types.
    opsets = [opset for opset in schema.context_dependent_function_opset_versions if opset <= version]
    if not opsets:
        return None
    (node,) = model.graph.node
    types = {value.name: value.type for value in model.graph.input}
    input_types = [types.get(name, TypeProto()).SerializeToString() for name in node.input]
    data = schema.get_context_dependent_function_with_opset_version(max(opsets), node.SerializeToString(), input_types)
    return FunctionProto.FromString(data)
