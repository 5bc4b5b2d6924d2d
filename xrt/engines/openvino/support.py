"""Whether OpenVINO supports a node: first the tables, then a test conversion by the frontend.

The frontend accepts any opset and silently ignores unknown inputs and attributes. The inputs and outputs of the converted model
reveal some of that.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from xrt.engines.openvino.executable import type_from, why_not_passable
from xrt.engines.openvino.export import NEWEST_OPSET, read_model
from xrt.engines.openvino.library import LIBRARY, summarize_error
from xrt.engines.openvino.lowering import decompose, find_decomposition
from xrt.engines.openvino.tables import find_issue, list_data_inputs, why_not_computed
from xrt.engines.toolkit.support import LibrarySupport, NodeQuery, explain_disagreement, list_used_outputs, why_not_defined
from xrt.formats.onnx import why_not_downgradable
from xrt.graph import Function, Node, TensorType, Value, since_version


def why_not(node: Node, function: Function) -> str | None:
    """Explain why OpenVINO does not support the node; None if it supports the node or its decomposition."""
    reason = _SUPPORT.why_not(node, function)
    # A decomposition does not help if a value itself cannot be passed.
    if reason is None or _SUPPORT.why_not_types(node, function):
        return reason
    lowered = find_decomposition(node, function)
    is_supported = lowered is not None and all(why_not(part, lowered) is None for part in lowered.nodes)
    return None if is_supported else reason


def lower(function: Function) -> Function:
    """Decompose the nodes that OpenVINO supports only in decomposed form."""
    return decompose(function, lambda node, holder: _SUPPORT.why_not(node, holder) is not None and why_not(node, holder) is None)


def _why_not_scan(node: Node, function: Function) -> str | None:
    if node.op_type == "Scan" and (outer := [n for body in node.bodies for n in body.captures if function.producer(n)]):
        return f"{LIBRARY} cannot read a Scan whose body reads what a node outside computes, as {outer[0]!r} is"
    return None


def _close_body(body: Function, outer: Function) -> Function:
    """The body with its captures as inputs or constants."""
    captured = [name for name in body.captures if name not in outer.constants]
    return body.replace(
        inputs=(*body.inputs, *(Value(name, outer.get_type(name)) for name in captured)),
        constants={**body.constants, **{name: outer.constants[name] for name in body.captures if name in outer.constants}},
    )


def _why_not_operator(node: Node, function: Function) -> str | None:
    if node.domain:
        return f"XRT exports only operators of ai.onnx to {LIBRARY}, and this one is of {node.domain!r}"
    if reason := why_not_defined(node, function):
        return reason
    if reason := why_not_downgradable(node, function, NEWEST_OPSET):
        return f"{LIBRARY} knows operators up to opset {NEWEST_OPSET}: {reason}"
    return None


def _list_typed_outputs(node: Node, function: Function) -> list[str]:
    """Results whose types must be known: all but an unused mask of a Dropout, which is often not inferred.

    This also declines results that the operator does not have, on which the library crashes.
    """
    if node.op_type != "Dropout" or len(node.outputs) != 2 or not node.outputs[1]:
        return list(node.defines)
    mask = node.outputs[1]
    return list(node.defines) if mask in list_used_outputs(node, function) else [node.outputs[0]]


_SUPPORTING_EMPTY = {f"Reduce{kind}" for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Min", "Prod", "Sum", "SumSquare")}
"""Operators that match the reference on empty tensors. A Slice or Compress with an empty result crashes the process."""


def _why_not_empty(node: Node, function: Function) -> str | None:
    if node.op_type in _SUPPORTING_EMPTY:
        return None
    data = list_data_inputs(node, function)
    for name in filter(data.__contains__, (*node.uses, *node.defines)):
        type_ = function.get_type(name)
        if isinstance(type_, TensorType) and type_.shape and 0 in type_.shape:
            return f"{name!r} is {type_}, which has no elements, and {LIBRARY} computes such in part of its operators only"
    return None


# ---------------------------------------------------------------------- the frontend's answer

REMEMBERED = 8192
"""Number of cached answers."""

_IMMATERIAL = frozenset({"CastLike", "Dropout", "EyeLike", "ConstantOfShape"})
"""Operators with inputs whose values do not matter, only their types or shapes."""


def check_conversion(node: Node, function: Function) -> str | None:
    """Explain why the frontend cannot convert the node in isolation or converts it wrongly; None if it can.

    Takes about a millisecond for the first node of a kind. The types of inputs must be known.
    """
    tensors = [name for name in node.outputs if isinstance(function.get_type(name) if name else None, TensorType)]
    # Equal definitions share a cache entry, whatever the opset of the model.
    version = since_version(node, function) or function.opsets[""]
    return _answer(NodeQuery.of(node, function, version=version, outputs=tensors))


@lru_cache(maxsize=REMEMBERED)
def _answer(query: NodeQuery) -> str | None:
    isolated = query.to_function()
    try:
        model = read_model(isolated)
    except (RuntimeError, ValueError, TypeError) as error:
        return f"{LIBRARY} does not convert this {query.op_type}: {summarize_error(error)}"
    results = [type_from(port.element_type, port.partial_shape) or port.element_type.get_type_name() for port in model.outputs]
    return _why_ignored(query, isolated, model) or explain_disagreement(LIBRARY, query.op_type, results, query.required_types)


def _why_ignored(query: NodeQuery, isolated: Function, model: Any) -> str | None:
    """Explain that the frontend dropped an input that matters; None if it did not."""
    count = len(model.get_parameters())
    # Dropped inputs without elements do not matter.
    empty_inputs = sum(1 for value in isolated.inputs if isinstance(value.type, TensorType) and value.type.nbytes == 0)
    if count >= len(isolated.inputs) - empty_inputs or query.op_type in _IMMATERIAL:
        return None
    return f"{LIBRARY} ignores an input of this {query.op_type}: it keeps {count} of {len(isolated.inputs)}"


_SUPPORT = LibrarySupport(
    operator=(_why_not_operator,),
    why_not_type=lambda node, name, type_: why_not_passable(name, type_),
    outputs=_list_typed_outputs,
    tables=(_why_not_empty, why_not_computed, find_issue, _why_not_scan),
    answer=check_conversion,
    close_body=_close_body,
)
