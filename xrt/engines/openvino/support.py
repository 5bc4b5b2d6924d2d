"""Decide whether OpenVINO supports a node: first by tables, then by a trial conversion of the single node.

The frontend accepts any opset and silently ignores unknown inputs and attributes. Comparing the inputs and outputs of the
converted model with those of the node reveals some of that.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from xrt.engines.openvino.executable import convert_type, why_not_passable
from xrt.engines.openvino.export import NEWEST_OPSET, read_model
from xrt.engines.openvino.library import LIBRARY, summarize_error
from xrt.engines.openvino.lowering import decompose, find_decomposition
from xrt.engines.openvino.tables import list_data_inputs, why_known_issue, why_not_computed
from xrt.engines.toolkit.support import LibrarySupport, NodeQuery, explain_disagreement, list_used_outputs, why_not_defined
from xrt.formats.onnx import why_not_downgradable
from xrt.graph import Function, Node, TensorType, Value, since_version


def why_not(node: Node, function: Function) -> str | None:
    """Explain why OpenVINO supports neither the node nor its decomposition; None if it supports one of them."""
    reason = _SUPPORT.why_not(node, function)
    # A decomposition does not help if OpenVINO does not support the type of an input or output.
    if reason is None or _SUPPORT.why_not_types(node, function):
        return reason
    lowered = find_decomposition(node, function)
    is_supported = lowered is not None and all(why_not(part, lowered) is None for part in lowered.nodes)
    return None if is_supported else reason


def lower(function: Function) -> Function:
    """Decompose those nodes that OpenVINO does not support, but whose decomposition it supports."""
    return decompose(function, lambda node, holder: _SUPPORT.why_not(node, holder) is not None and why_not(node, holder) is None)


def _why_not_scan(node: Node, function: Function) -> str | None:
    if node.op_type == "Scan" and (outer := [n for body in node.bodies for n in body.captures if function.producer(n)]):
        return f"{LIBRARY} cannot convert a Scan whose body uses {outer[0]!r}, which a node outside the body computes"
    return None


def _close_body(body: Function, outer: Function) -> Function:
    """Turn the values that a body captures from ``outer`` into constants or additional inputs of the body."""
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

    An output that the operator does not define has no type, so it makes the node unsupported. OpenVINO would crash on it.
    """
    if node.op_type != "Dropout" or len(node.outputs) != 2 or not node.outputs[1]:
        return list(node.defines)
    mask = node.outputs[1]
    return list(node.defines) if mask in list_used_outputs(node, function) else [node.outputs[0]]


_SUPPORTING_EMPTY = {f"Reduce{kind}" for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Min", "Prod", "Sum", "SumSquare")}
"""Operators whose results match the reference on empty tensors. A Slice or Compress with an empty result crashes the process."""


def _why_not_empty(node: Node, function: Function) -> str | None:
    if node.op_type in _SUPPORTING_EMPTY:
        return None
    data = list_data_inputs(node, function)
    for name in filter(data.__contains__, (*node.uses, *node.defines)):
        type_ = function.get_type(name)
        if isinstance(type_, TensorType) and type_.shape and 0 in type_.shape:
            return f"{name!r} is {type_}, which has no elements, and only some operators of {LIBRARY} support that"
    return None


MAX_CACHED_CONVERSIONS = 8192
"""Size of the cache of results of trial conversions."""

_INPUTS_MAY_BE_DROPPED = frozenset({"CastLike", "Dropout", "EyeLike", "ConstantOfShape"})
"""Operators of which the frontend may drop an input: only the input's type or shape matters, which is known."""


def why_not_converted(node: Node, function: Function) -> str | None:
    """Explain why the frontend fails to convert the single node, or converts it wrongly; None if neither.

    Takes about a millisecond, except for a node equal to an earlier one. The types of the inputs must be known.
    """
    tensors = [name for name in node.outputs if isinstance(function.get_type(name) if name else None, TensorType)]
    # The operator's version, not the model's opset: nodes with the same definition share a cache entry.
    version = since_version(node, function) or function.opsets[""]
    return _try_conversion(NodeQuery.of(node, function, version=version, outputs=tensors))


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
    count = len(model.get_parameters())
    # An input without elements may be dropped.
    empty_inputs = sum(1 for value in isolated.inputs if isinstance(value.type, TensorType) and value.type.nbytes == 0)
    if count >= len(isolated.inputs) - empty_inputs or query.op_type in _INPUTS_MAY_BE_DROPPED:
        return None
    return f"{LIBRARY} ignores an input of this {query.op_type}: it uses {count} of {len(isolated.inputs)}"


_SUPPORT = LibrarySupport(
    operator=(_why_not_operator,),
    why_not_type=lambda node, name, type_: why_not_passable(name, type_),
    outputs=_list_typed_outputs,
    tables=(_why_not_empty, why_not_computed, why_known_issue, _why_not_scan),
    answer=why_not_converted,
    close_body=_close_body,
)
