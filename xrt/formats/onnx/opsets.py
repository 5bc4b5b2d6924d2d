"""Conversion of Functions to the opset and IR version of an engine, one operator at a time, and expansion of ONNX's functions."""

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
    BOUNDS_ARE_INPUTS,
    PLAIN,
    GraphWriter,
    lowest_ir,
    lowest_opsets,
    newest_nodes,
    read_clip_bounds,
    to_model,
    write_model,
)
from xrt.graph import Constant, FrozenDict, Function, Node, TensorType, Type, find_schema, latest_opset, since_version
from xrt.graph.node import FreshNames, rename_function
from xrt.graph.schemas import find_operator, format_onnx_type, require_operator
from xrt.operators import as_function, inline_function, separate_outputs

# Before this opset, Softmax flattened the tensor from its axis on.
PER_AXIS_OPSET = 13
# Since this opset, revisions of If, Loop and Scan only added types.
_MIN_CONTROL_FLOW_OPSET = 11


def convert_function(function: Function, max_opset: int) -> Function:
    """Convert to an equivalent Function whose operators all exist at an ai.onnx opset, including bodies.

    Returns the Function unchanged if they already do. Raises ModelError with the first operator that cannot be converted, and
    the reason.
    """
    if next(newest_nodes(function, max_opset), None) is None:
        return function
    return _convert_nodes(function, function, min(max_opset, function.opset()))


def upgrade_opset(function: Function, opset: int) -> Function:
    """Convert to at least this ai.onnx opset, including bodies; return the Function unchanged if it is new enough.

    A Function without ai.onnx imports it. Types must be inferred first. Raises ModelError, which names the node, if a node
    cannot be converted. Equal nodes are converted once.
    """
    return function if function.opsets.get("", 0) >= opset else _convert_nodes(function, function, opset)


def _convert_nodes(function: Function, scope: Function, opset: int) -> Function:
    """Convert the nodes to an opset. ``scope`` is the Function with the types and constants of its captures added."""
    nodes: list[Node] = []
    constants, types = dict(function.constants), dict(function.types)
    for node in function.nodes:
        converted = _convert_node(node, scope, opset)
        # Bodies keep their place in a node that is valid as it is; a converted node has none.
        if converted is None:
            nodes.append(node.map_bodies(lambda body: _convert_nodes(body, _add_captures(body, scope), opset)))
        else:
            nodes += inline_function(converted, node, constants, types)
    return function.replace(nodes=tuple(nodes), constants=constants, types=types, opsets={**function.opsets, "": opset})


def _add_captures(body: Function, scope: Function) -> Function:
    """Add the types and constants of captured values to a body, so that its nodes can be converted one by one."""
    types = {name: type_ for name in body.captures if (type_ := scope.get_type(name)) is not None}
    constants = {name: scope.constants[name] for name in body.captures if name in scope.constants}
    return body.replace(types={**types, **body.types}, constants={**constants, **body.constants})


def _convert_node(node: Node, scope: Function, opset: int) -> Function | None:
    """Convert a node to an older or newer opset; None if it is valid there as it is.

    Inputs and outputs are named as by `as_function`. Raises ModelError if conversion is impossible.
    """
    # An operator that did not change in between needs no conversion, even if it has a body or unknown types.
    since, definition = since_version(node, scope), find_schema(node.op_type, opset)
    if node.domain or (definition is not None and definition.since_version == since):
        return None
    is_older, result = opset < scope.opset(), None
    # An unknown operator stays as it is, except that a newer opset may give its name a meaning.
    if since is None and opset <= scope.opset():
        return None
    if node.op == "Clip" and not is_older and scope.opset() < BOUNDS_ARE_INPUTS:
        low, high = read_clip_bounds(node)  # onnx's converter drops the defaults
        node = node.with_attributes(min=low, max=high)
    if not node.bodies:
        # Equal nodes, which `as_function` names equally, are converted once.
        result, reason = _convert(as_function(node, scope).replace(opsets={"": scope.opset()}), opset)
    else:
        reason = _why_not_older_control(node, scope, opset) if is_older else "it has a body"
    if reason and is_older:
        raise ModelError(
            f"node {node.name!r} ({node.op}) took its meaning at opset {since}; the limit is {opset}, "
            f"and it cannot be converted: {reason}"
        )
    if reason:
        raise ModelError(f"node {node.name!r} ({node.op}) cannot be brought from opset {scope.opset()} to {opset}: {reason}")
    return result


def _why_not_convertible(node: Node, scope: Function, opset: int) -> str | None:
    """Explain why the node, or one in its bodies, cannot be converted, or return None."""
    try:
        _convert_node(node, scope, opset)
    except ModelError as error:
        return str(error)
    inner = ((part, _add_captures(body, scope)) for body in node.bodies for part in body.nodes)
    reasons = (_why_not_convertible(part, holder, opset) for part, holder in inner)
    return next(filter(None, reasons), None)


def _why_not_older_control(node: Node, scope: Function, max_opset: int) -> str:
    """Explain why a node with bodies is not valid at an older opset, or return an empty string."""
    older = find_operator(node.op_type, max_opset)
    if older is None or older.since_version < _MIN_CONTROL_FLOW_OPSET:
        return f"opset {max_opset} lacks this operator, or defines it differently"
    allowed = frozenset().union(*(formal.types for formal in (*older.inputs, *older.outputs)))
    for name in (*node.inputs, *node.outputs):
        type_ = scope.get_type(name) if name else None
        text = None if type_ is None else format_onnx_type(type_)
        if text is not None and text not in allowed:
            return f"opset {max_opset} does not take {text}"
    return ""


@lru_cache(maxsize=1024)
def _convert(function: Function, max_opset: int) -> tuple[Function | None, str]:
    """Convert a one-node Function. Return it with an empty reason, or None with the reason why it cannot be converted."""
    if any(value.type is None for value in function.inputs):
        return None, "the types of its inputs are not known; infer shapes first"
    if not can_propagate(function):
        return None, "its inputs are too long for onnx's converter"
    if max_opset < PER_AXIS_OPSET <= function.opset() and _is_per_axis(function):
        return None, f"before opset {PER_AXIS_OPSET} it takes all axes from the given one on together"
    model = write_model(function, function.opsets, lowest_ir(function.opsets), PLAIN)
    try:
        # Converted models are checked: the converter leaves some attributes or operators as they were.
        converted = version_converter.convert_version(model, max_opset)
        shape_inference.infer_shapes(converted, check_type=True, strict_mode=True)
        result = read_function(converted, ExternalData())
    except Exception as error:  # noqa: BLE001  # the converter's C++ raises many types
        return None, summarize_error(error)
    if [v.name for v in result.outputs] != [v.name for v in function.outputs]:
        return None, "onnx's converter changes its outputs"
    if newest := next(newest_nodes(result, max_opset), None):
        return None, f"onnx's converter leaves {newest[1].op}"
    return result, ""


def _is_per_axis(function: Function) -> bool:
    """Whether the only node is a Softmax over an axis other than the last, which onnx's converter changes incorrectly."""
    node, type_ = function.nodes[0], function.inputs[0].type if function.inputs else None
    if node.op_type not in ("Softmax", "LogSoftmax"):
        return False
    rank = type_.rank if isinstance(type_, TensorType) else None
    return rank is None or node.attr("axis", -1) not in (-1, rank - 1)


def _inline_constant_nodes(function: Function) -> Function:
    """Replace large Constant nodes by constants, except those that compute an output or have a control edge."""
    # An output must be a value of its graph, and a control edge needs the node.
    output_names = {value.name for value in function.outputs}
    control_predecessors = {name for node in function.nodes for name in node.control}
    candidates = (x for x in function.nodes if x.op == "Constant" and not x.control and x.name not in control_predecessors)
    values = {x.outputs[0]: x.attr("value") for x in candidates if x.outputs[0] not in output_names}
    large = {name: value for name, value in values.items() if isinstance(value, Constant) and is_large(value)}
    if not large:
        return function
    nodes = tuple(node for node in function.nodes if node.op != "Constant" or node.outputs[0] not in large)
    types = {name: type_ for name, type_ in function.types.items() if name not in large}
    return function.replace(nodes=nodes, constants={**function.constants, **large}, types=types)


def _find_identity_opset(type_: Type | None) -> int:
    """The first ai.onnx opset whose Identity supports the type; 1 if the type is unknown."""
    text = None if type_ is None else format_onnx_type(type_)
    versions = range(1, latest_opset() + 1)
    return next((v for v in versions if text in require_operator("Identity", v).inputs[0].types), 1)


def lowest_model(
    function: Function,
    max_opset: int | None = None,
    max_ir: int | None = None,
    locations: Mapping[str, str] = FrozenDict(),
    least_opset: int = 1,
) -> ModelProto:
    """Write a model at the lowest opset and IR version that preserve the semantics of every operator.

    For example, Relu of an opset 28 model is written at 14, which introduced its current semantics. Operators newer than
    ``max_opset`` (of ai.onnx) are converted if onnx can do it. Docs, metadata, devices and control edges are omitted. Identity
    nodes are inserted where ONNX requires them: for repeated outputs, and bodies that return captured values. Inputs and outputs
    keep their names and order.

    ``locations`` maps large constants of the main graph to files: they become references to external data at the start of a file,
    which is not written; pass the arrays of `external_weights` instead. Constants in bodies and Constant nodes stay inline unless
    `externalize_weights` moves them first.

    The opset is at least ``least_opset`` if the Function's is: for libraries that insert operators of that opset. ``max_ir``
    overrides the IR version that belongs to the opset.

    Raises ModelError with the reason if an operator cannot be converted to ``max_opset``.
    """
    if max_opset is not None:
        function = convert_function(function, max_opset)
    opsets = lowest_opsets(function)
    function = separate_outputs(function)
    identities = (holder.get_type(node.outputs[0]) for holder, node in function.walk() if node.op == "Identity")
    opsets[""] = max(opsets[""], *map(_find_identity_opset, identities), min(least_opset, function.opsets.get("", 1)))

    def write_constant(constant: Constant, name: str) -> TensorProto:
        if name not in locations:
            return write_tensor(constant, name)
        return write_reference(lambda _: (locations[name], 0), constant, name)

    writer = GraphWriter(write_constant, with_metadata=False)
    return write_model(function, opsets, lowest_ir(opsets, ceiling=max_ir), writer)


def lowest_opset(node: Node, function: Function) -> int:
    """The lowest ai.onnx opset that preserves the semantics of a node and its bodies; 1 without operators of ai.onnx."""
    nodes = ((function, node), *(pair for body in node.bodies for pair in body.walk()))
    return max((since_version(inner, holder) or 1 for holder, inner in nodes if not inner.domain), default=1)


def why_not_downgradable(node: Node, function: Function, max_opset: int) -> str | None:
    """Explain why `lowest_model` cannot write this node at ``max_opset``, or return None.

    Never raises, and is fast: conversion is tried once per kind of node, and only if it is too new. Infer types first, since
    conversion needs the input types.
    """
    if lowest_opset(node, function) <= max_opset:
        return None
    return _why_not_convertible(node, function, max_opset)


def why_not_upgradable(node: Node, function: Function, opset: int) -> str | None:
    """Explain why `upgrade_opset` cannot convert this node to ``opset``, or return None. Never raises."""
    return None if function.opsets.get("", 0) >= opset else _why_not_convertible(node, function, opset)


def externalize_weights(function: Function) -> Function:
    """Move large constants of bodies and Constant nodes, except outputs, to the constants of the Function.

    Bodies capture them under new names. Returns the Function unchanged if nothing moves.
    """
    function = _inline_constant_nodes(function)
    fresh, hoisted = FreshNames.for_function(function), dict[str, Constant]()

    def hoist(body: Function) -> Function:
        """Move the large constants of a body, and of its bodies, to ``hoisted``."""
        body = _inline_constant_nodes(body)
        nodes = tuple(node.map_bodies(hoist) for node in body.nodes)
        output_names = {value.name for value in body.outputs}
        large = {name: c for name, c in body.constants.items() if name not in output_names and is_large(c)}
        if not large and all(new is old for new, old in zip(nodes, body.nodes, strict=True)):
            return body
        names = {name: fresh.take_numbered(name) for name in large}
        hoisted.update((names[name], constant) for name, constant in large.items())
        small = {name: constant for name, constant in body.constants.items() if name not in large}
        types = {name: type_ for name, type_ in body.types.items() if name not in large}
        return rename_function(body.replace(nodes=nodes, constants=small, types=types), names, {})

    nodes = tuple(node.map_bodies(hoist) for node in function.nodes)
    return function.replace(nodes=nodes, constants={**function.constants, **hoisted}) if hoisted else function


def external_weights(function: Function) -> dict[str, np.ndarray[Any, Any]]:
    """Map names of constants that `lowest_model` can write as references to their arrays.

    They share memory with the constants, except types narrower than a byte, which ONNX packs: these are packed copies.
    """
    large = {name: constant for name, constant in function.constants.items() if is_large(constant)}
    return {name: c.array if c.dtype.bits >= 8 else np.frombuffer(encode_data(c), np.uint8) for name, c in large.items()}


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
        definition = _find_definition(schema, model, version)
    except Exception as error:  # onnx raises whatever its C++ does
        raise ModelError(f"the definition of {node.op} cannot be applied: {summarize_error(error)}") from error
    if definition is None or any((inner.domain, inner.op_type) == (node.domain, node.op_type) for inner in definition.node):
        return None
    # onnx resolves a reference to a missing attribute to nothing, not to its default.
    (call,) = model.graph.node
    missing = set(definition.attribute) - {attribute.name for attribute in call.attribute}
    defaults = (schema.attributes[name].default_value for name in sorted(missing) if name in schema.attributes)
    call.attribute.extend(default for default in defaults if default.type)
    definition.domain = call.domain = DOMAIN
    model.functions.append(definition)
    model.opset_import.add(domain=DOMAIN, version=1)
    return load(model)


def _find_definition(schema: defs.OpSchema, model: ModelProto, version: int) -> FunctionProto | None:
    """Find ONNX's newest definition of the model's single node that its opset allows; None if there is none."""
    output_names = [candidate for candidate in schema.function_opset_versions if candidate <= version]
    if output_names:
        return FunctionProto.FromString(schema.get_function_with_opset_version(max(output_names)))
    dependent = [candidate for candidate in schema.context_dependent_function_opset_versions if candidate <= version]
    if not dependent:
        return None
    (node,) = model.graph.node
    types = {value.name: value.type for value in model.graph.input}
    input_types = [types.get(name, TypeProto()).SerializeToString() for name in node.input]
    text = schema.get_context_dependent_function_with_opset_version(max(dependent), node.SerializeToString(), input_types)
    return FunctionProto.FromString(text)
