"""Decide whether OpenVINO supports a node: first by tables, then by a trial conversion of the single node.

The frontend accepts any opset and silently ignores unknown inputs and attributes. Comparing the inputs and outputs of the
converted model with those of the node reveals some of that.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from xrt.engines.openvino.executable import convert_type, why_not_passable
from xrt.engines.openvino.export import NEWEST_OPSET, read_model
from xrt.engines.openvino.library import LIBRARY
from xrt.engines.openvino.lowering import find_decomposition
from xrt.engines.openvino.tables import list_data_inputs, why_known_issue, why_not_computed
from xrt.engines.toolkit.libraries import summarize_error
from xrt.engines.toolkit.support import LibrarySupport, NodeQuery, explain_disagreement, list_used_outputs, why_not_defined
from xrt.formats.onnx import why_not_downgradable
from xrt.graph import Function, Node, TensorType, Value, since_version
from xrt.operators import decompose_nodes


def why_not(node: Node, function: Function) -> str | None:
    """Explain why OpenVINO supports neither the node nor its decomposition; None if it supports the node or the decomposition."""
    reason = _SUPPORT.why_not(node, function)
    # A decomposition does not help if OpenVINO does not support the type of an input or output.
    if reason is None or _SUPPORT.why_not_types(node, function):
        return reason
    decomposition = find_decomposition(node, function)
    if decomposition is None or any(why_not(inner, decomposition) for inner in decomposition.nodes):
        return reason
    return None


def lower(function: Function) -> Function:
    """Decompose the nodes that OpenVINO supports only in decomposed form."""

    def decompose(node: Node, outer: Function) -> Function | None:
        needs_decomposition = _SUPPORT.why_not(node, outer) is not None and why_not(node, outer) is None
        return find_decomposition(node, outer) if needs_decomposition else None

    return decompose_nodes(function, decompose)


def _why_not_scan(node: Node, function: Function) -> str | None:
    """Decline a Scan whose body captures the result of a node. Captured inputs and constants can be converted."""
    captures = [name for body in node.bodies for name in body.captures if function.producer(name)]
    if node.op_type == "Scan" and captures:
        return f"{LIBRARY} cannot convert a Scan whose body uses {captures[0]!r}, which a node outside the body computes"
    return None


def _close_body(body: Function, outer: Function) -> Function:
    """Make a Function of a body without captures: captured values become its constants, or else additional inputs."""
    captured = [name for name in body.captures if name not in outer.constants]
    return body.replace(
        inputs=(*body.inputs, *(Value(name, outer.get_type(name)) for name in captured)),
        constants={**body.constants, **{name: outer.constants[name] for name in body.captures if name in outer.constants}},
    )


def _why_not_operator(node: Node, function: Function) -> str | None:
    if node.domain:
        return f"XRT exports only operators of ai.onnx to {LIBRARY}, and this one is from domain {node.domain!r}"
    if reason := why_not_defined(node, function):
        return reason
    if reason := why_not_downgradable(node, function, NEWEST_OPSET):
        return f"{LIBRARY} supports operators up to opset {NEWEST_OPSET}: {reason}"
    return None


def _list_typed_outputs(node: Node, function: Function) -> list[str]:
    """List the outputs whose types must be known: all except an unused mask of a Dropout, whose type is often not inferred.

    A node with more outputs than its operator defines is unsupported, because their types are unknown. OpenVINO would crash.
    """
    if node.op_type == "Dropout" and len(node.outputs) == 2 and node.outputs[1] not in list_used_outputs(node, function):
        return [node.outputs[0]]
    return list(node.defined_names)


_SUPPORTING_EMPTY = {f"Reduce{kind}" for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Min", "Prod", "Sum", "SumSquare")}
"""Operators whose results match the reference on empty tensors. Others are declined there, as some even crash the process."""


def _why_not_empty(node: Node, function: Function) -> str | None:
    if node.op_type in _SUPPORTING_EMPTY:
        return None
    data = list_data_inputs(node, function)
    for name in (*node.uses, *node.defined_names):
        type_ = function.get_type(name)
        if name in data and isinstance(type_, TensorType) and type_.shape and 0 in type_.shape:
            return f"{name!r} is {type_}, which has no elements, and only some operators of {LIBRARY} support that"
    return None


MAX_CACHED_CONVERSIONS = 8192
"""Size of the cache of results of trial conversions."""
_INPUTS_MAY_BE_DROPPED = frozenset({"CastLike", "Dropout", "EyeLike", "ConstantOfShape"})
"""Operators with an input that the frontend may drop, because only the type or shape of the input matters."""


def why_not_converted(node: Node, function: Function) -> str | None:
    """Explain why the frontend fails to convert the single node, or converts it wrongly; None if it converts the node.

    The types of the inputs must be known. Takes about a millisecond; equal nodes are cached.
    """
    tensors = [name for name in node.outputs if isinstance(function.get_type(name) if name else None, TensorType)]
    # The operator's version, not the model's opset: nodes with the same definition share a cache entry.
    version = since_version(node, function) or function.opsets[""]
    return _try_conversion(NodeQuery.from_node(node, function, version=version, outputs=tensors))


@lru_cache(maxsize=MAX_CACHED_CONVERSIONS)
def _try_conversion(query: NodeQuery) -> str | None:
    isolated = query.to_function()
    try:
        model = read_model(isolated)
    except (RuntimeError, ValueError, TypeError) as error:
        return f"{LIBRARY} does not convert this {query.op_type}: {summarize_error(error)}"
    results = [convert_type(port.element_type, port.partial_shape) or port.element_type.get_type_name() for port in model.outputs]
    return _why_input_ignored(query, isolated, model) or explain_disagreement(
        LIBRARY, query.op_type, results, query.required_types
    )


def _why_input_ignored(query: NodeQuery, isolated: Function, model: Any) -> str | None:
    """Explain that the frontend dropped an input whose value matters; None if it did not."""
    used_count = len(model.get_parameters())
    # An input without elements may be dropped.
    empty_count = sum(1 for value in isolated.inputs if isinstance(value.type, TensorType) and value.type.nbytes == 0)
    if used_count >= len(isolated.inputs) - empty_count or query.op_type in _INPUTS_MAY_BE_DROPPED:
        return None
    return f"{LIBRARY} ignores an input of this {query.op_type}: it uses {used_count} of {len(isolated.inputs)}"


_SUPPORT = LibrarySupport(
    operator=(_why_not_operator,),
    why_not_type=lambda node, name, type_: why_not_passable(name, type_),
    outputs=_list_typed_outputs,
    tables=(_why_not_empty, why_not_computed, why_known_issue, _why_not_scan),
    query=why_not_converted,
    close_body=_close_body,
)
