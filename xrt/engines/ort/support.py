"""Decide whether ONNX Runtime supports a node: by its types, known issues (`tables`), and a session of the node alone."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

from xrt.engines.ort.executable import why_not_passable
from xrt.engines.ort.export import export_model
from xrt.engines.ort.session import LIBRARY, NEWEST_OPSET, registered_operators, why_not_opened
from xrt.engines.ort.tables import find_known_issue
from xrt.engines.toolkit.support import LibrarySupport, NodeQuery, close_over
from xrt.formats.onnx import why_not_downgradable
from xrt.graph import Function, Node, OptionalType, SequenceType, TensorType


def why_not(node: Node, function: Function, providers: tuple[str, ...]) -> str | None:
    """Explain why ONNX Runtime does not support the node with these execution providers; None if it does."""
    return _make_support(providers).why_not(node, function)


@lru_cache(maxsize=16)
def _make_support(providers: tuple[str, ...]) -> LibrarySupport:
    return LibrarySupport(
        operator=(_why_not_operator,),
        why_not_type=lambda node, name, type_: why_not_passable(name, type_),
        known_types="none",
        outputs=lambda node, function: tuple(node.defined_names),
        tables=(find_known_issue,),
        query=lambda node, function: why_not_convertible(node, function, providers),
        close_body=close_over,
    )


def _why_not_operator(node: Node, function: Function) -> str | None:
    if node.domain not in function.opsets:
        return f"the function imports no opset for domain {node.domain!r}"
    if reason := why_not_downgradable(node, function, NEWEST_OPSET):
        return f"{LIBRARY} reads opsets up to {NEWEST_OPSET}: {reason}"
    return None if (node.domain, node.op_type) in registered_operators() else f"{LIBRARY} does not know {node.op}"


def why_not_convertible(node: Node, function: Function, providers: tuple[str, ...]) -> str | None:
    """Explain why the library cannot open a session for the node in isolation; None if it can, or if an input type is unknown.

    This takes 0.5 ms for the first node of a kind. The library's list of kernels is not sufficient: for a type without a kernel,
    it may expand the operator or insert a cast.
    """
    if any(function.get_type(name) is None for name in node.uses):
        return None
    query = NodeQuery.from_node(node, function, version=function.opsets.get("", NEWEST_OPSET))
    inputs = tuple(map(_erase_extents, query.inputs))
    outputs = tuple(None if output is None else (_erase_extents(output[0]),) for output in query.outputs)
    return _query_library(replace(query, inputs=inputs, outputs=outputs), providers)


@lru_cache(maxsize=4096)
def _query_library(query: NodeQuery, providers: tuple[str, ...]) -> str | None:
    try:
        model = export_model(query.to_function())
    except ValueError as error:  # ModelError, or an attribute that is not valid UTF-8
        return str(error)
    reason = why_not_opened(model, providers)
    # The library does not mention the types in its error, so add them.
    missing = re.search(r"implementation for ([\w.]+)\(\d+\)|Type Error: .* of operator \((\w+)\)", reason or "")
    if missing is None:
        return reason
    types = ", ".join(str(getattr(operand, "dtype", operand)) for operand in query.inputs if operand is not None)
    # The operator in the error: the node's, or one of the function to which the library expands it.
    missing_op = missing[1] or missing[2]
    expansion = "" if missing_op == query.op_type else f", which it expands to {missing_op}"
    return f"{LIBRARY} has no kernel for {query.op_type} of {types or 'no inputs'}{expansion}"


def _erase_extents(type_: Any) -> Any:
    """Replace the dims of a type by None, so that nodes that differ only in their sizes share a result of `_query_library`.

    Vectors are unchanged, because the number of axes, scales or sizes may affect support, and so are constants.
    """
    if isinstance(type_, TensorType):
        return type_ if type_.shape is None or len(type_.shape) == 1 else type_.with_shape((None,) * len(type_.shape))
    if isinstance(type_, SequenceType | OptionalType):
        return type(type_)(_erase_extents(type_.element))
    return type_
