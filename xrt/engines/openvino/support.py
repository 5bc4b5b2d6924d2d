"""Why OpenVINO cannot take a node: what it computes (`support`), where it goes wrong (`defects`), and a trial (`trial`)."""

from __future__ import annotations

from dataclasses import dataclass

from xrt.engines.openvino.bit_encoding import encode, has_codes
from xrt.engines.openvino.conversion_check import check_conversion
from xrt.engines.openvino.dtype_support import HALVES, list_data_inputs, why_not_computed
from xrt.engines.openvino.export import NEWEST_OPSET
from xrt.engines.openvino.half_precision import find_growing_halves
from xrt.engines.openvino.integer_ranges import input_limits, is_wide_integer
from xrt.engines.openvino.known_issues import find_known_issue, transform_error
from xrt.engines.openvino.library import LIBRARY
from xrt.engines.openvino.open_issues import find_open_issue
from xrt.engines.openvino.operator_definitions import decompose, find_decomposition
from xrt.engines.openvino.values import why_not_carried
from xrt.engines.toolkit.node_rewrite import as_function
from xrt.formats.onnx import why_not_downgradable
from xrt.graph import Function, Node, TensorType, Value, since_version

__all__ = ["Terms", "decompose_if_supported", "why_not"]


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms a node is asked for."""

    native: bool = False
    """Whether the library's own arithmetic will do."""
    float_tolerance: float = 1e-4
    """By how much it may be off by rounding, as a share of the largest element."""


def why_not(node: Node, function: Function, terms: Terms) -> str | None:
    """Return why OpenVINO does not support the node; None when it does.

    A node that is unsupported in its own form is accepted if its decomposition into other nodes (`meaning`) is supported.
    """
    if (reason := find_open_issue(node, function)) is not None:
        return reason
    if has_codes(node, function):
        return _why_not_on_codes(node, function, terms)
    reason = _why_not_as_it_stands(node, function, terms)
    if reason is None or _why_not_known_types(node, function):
        return reason
    meaning = find_decomposition(node, function)
    if meaning is None:
        return reason
    return _why_not_said(meaning, terms) and reason


def _why_not_on_codes(node: Node, function: Function, terms: Terms) -> str | None:
    said = None if node.bodies or node.control else encode(as_function(node, function))
    if said is not None:
        return _why_not_said(said, terms)
    return f"{LIBRARY} is handed float8 and what is narrower than a byte as codes, on which {node.op} cannot be said"


def decompose_if_supported(function: Function, terms: Terms) -> Function:
    """Return the Function with the nodes that OpenVINO takes by their meaning only in the words of it."""
    return decompose(function, lambda node, holder: _is_taken_said(node, holder, terms))


def _is_taken_said(node: Node, function: Function, terms: Terms) -> bool:
    """Whether the node is supported, but only in decomposed form."""
    refused = _why_not_as_it_stands(node, function, terms) is not None
    return refused and why_not(node, function, terms) is None


def _why_not_said(meaning: Function, terms: Terms) -> str | None:
    reason = next((text for node in meaning.nodes if (text := why_not(node, meaning, terms))), None)
    if reason is None and not terms.native and input_limits(meaning, lambda node: list_data_inputs(node, meaning)) is None:
        return f"{LIBRARY} computes wide integers in int32, and what is computed here is not known to fit"
    return reason


def _why_not_as_it_stands(node: Node, function: Function, terms: Terms) -> str | None:
    reason = (
        _why_not_known(node, function)
        or _why_not_crossing(node, function)
        or why_not_computed(node, function, native=terms.native)
        or find_known_issue(node, function)
        or _why_inexact(node, function, terms)
    )
    if reason is None and node.bodies:
        return _why_not_inside(node, function, terms)
    return reason or check_conversion(node, function)


def _why_inexact(node: Node, function: Function, terms: Terms) -> str | None:
    if node.op_type not in ("DFT", "STFT") or transform_error(node, function) <= terms.float_tolerance:
        return None
    return f"{LIBRARY} computes the angles of this transform in float32, so that its error is beyond float_tolerance"


def _why_not_inside(node: Node, function: Function, terms: Terms) -> str | None:
    """Return why not for the nodes of its bodies. There, nothing bounds what wide integers grow to."""
    if node.op_type == "Scan" and (made := [n for body in node.bodies for n in body.captures if function.producer(n)]):
        return f"{LIBRARY} cannot read a Scan whose body reads what a node outside computes, as {made[0]!r} is"
    for body in node.bodies:
        closed = _closed(body, function)
        for inner in closed.nodes:
            reason = (
                find_open_issue(inner, closed)
                or _why_not_as_it_stands(inner, closed, terms)
                or (None if terms.native else _why_not_rounded(inner, closed))
            )
            if (
                reason is None
                and not terms.native
                and any(is_wide_integer(name, closed) for name in list_data_inputs(inner, closed))
            ):
                reason = f"{LIBRARY} computes wide integers in int32, and in a body nothing bounds them"
            if reason:
                return f"in its body, node {inner.name!r} ({inner.op}): {reason}"
    return None


def _why_not_rounded(node: Node, function: Function) -> str | None:
    """Return that the node of a body may need a rounding or a limit, which XRT puts into the main model only."""
    types = {name: function.get_type(name) for name in (*node.uses, *node.defines)}
    halves = [name for name, type_ in types.items() if isinstance(type_, TensorType) and type_.dtype in HALVES]
    if not halves or not (node.op_type in ("Cast", "CastLike") or find_growing_halves(function, (node,))):
        return None
    return f"{LIBRARY} computes {types[halves[0]]} in float32, and in a body nothing rounds it"


def _closed(body: Function, outer: Function) -> Function:
    """Return the body with what it captures as inputs and constants of its own."""
    captured = [name for name in body.captures if name not in outer.constants]
    return body.replace(
        inputs=(*body.inputs, *(Value(name, outer.get_type(name)) for name in captured)),
        constants={**body.constants, **{name: outer.constants[name] for name in body.captures if name in outer.constants}},
    )


def _why_not_known(node: Node, function: Function) -> str | None:
    if node.domain:
        return f"XRT hands {LIBRARY} operators of ai.onnx only, and this one is of {node.domain!r}"
    if since_version(node, function) is None:
        return f"{node.op} is not an operator of opset {function.opsets.get('')}"
    if reason := why_not_downgradable(node, function, NEWEST_OPSET):
        return f"{LIBRARY} knows operators up to opset {NEWEST_OPSET}: {reason}"
    return None


def _why_not_crossing(node: Node, function: Function) -> str | None:
    """Return why a value of the node cannot enter or leave, as it must where the node is a region of its own."""
    return _why_not_known_types(node, function) or _why_empty(node, function)


def _why_not_known_types(node: Node, function: Function) -> str | None:
    for name in (*node.uses, *_typed(node, function)):
        type_ = function.get_type(name)
        if reason := why_not_carried(name, type_):
            return reason
        if not isinstance(type_, TensorType):
            return f"the type of {name!r} is not known before the run"
    return None


def _typed(node: Node, function: Function) -> list[str]:
    """Return the results whose types must be known: all but an unread mask of a Dropout, which is often not inferred.

    Results that an operator does not have are of no type either, and the library ends the process if it gets them.
    """
    if node.op_type != "Dropout" or len(node.outputs) != 2 or not node.outputs[1]:
        return list(node.defines)
    mask = node.outputs[1]
    is_read = function.users(mask) or mask in {value.name for value in function.outputs}
    return list(node.defines) if is_read else [node.outputs[0]]


_WITH_NOTHING = {f"Reduce{kind}" for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Min", "Prod", "Sum", "SumSquare")}
"""Operators that were tried on tensors without elements, and agreed. A Slice or Compress that leaves none ends the process."""


def _why_empty(node: Node, function: Function) -> str | None:
    if node.op_type in _WITH_NOTHING:
        return None
    for name in list_data_inputs(node, function):
        type_ = function.get_type(name)
        if isinstance(type_, TensorType) and type_.shape and 0 in type_.shape:
            return f"{name!r} is {type_}, which has no elements, and {LIBRARY} computes such in part of its operators only"
    return None
