"""Tables of known defects of libraries. A row has a predicate for the nodes to decline, the reason and the evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from xrt.graph import Constant, Dim, DType, Function, Node, Shape, TensorType

Predicate: TypeAlias = Callable[[Node, Function], bool]


@dataclass(frozen=True, slots=True)
class KnownIssue:
    """A defect of a library, and the nodes that the library computes incorrectly because of it."""

    ops: tuple[str, ...]
    """The operators of the nodes, with their domain if it is not ai.onnx, as in ``ai.onnx.ml.Scaler``."""
    applies: Predicate
    reason: str
    evidence: tuple[str, ...]
    """Names of failing ``onnx`` node tests or corpus entries, or a description of a comparison with the expected result."""
    upstream: str = ""
    """URL of the library's issue, or of the specification that it violates; empty if the defect is not reported."""


def match_known_issue(issues: Iterable[KnownIssue], node: Node, function: Function) -> str | None:
    """Return the reason of the first issue that applies to the node; None if there is none."""
    for issue in issues:
        # A predicate may fail for a malformed node. Other checks decline such nodes.
        with suppress(LookupError, TypeError, ValueError):
            if node.op in issue.ops and issue.applies(node, function):
                return issue.reason
    return None


def always(node: Node, function: Function) -> bool:
    return True


def attribute_is(name: str, value: object, default: object = None) -> Predicate:
    """Make a predicate: whether the attribute ``name`` of a node, or ``default`` if it is absent, equals ``value``."""
    return lambda node, function: node.attr(name, default) == value


def has_input(node: Node, index: int) -> bool:
    """Whether the node has an input at this index. Optional inputs may be left out."""
    return index < len(node.inputs) and bool(node.inputs[index])


def _find_input_type(node: Node, index: int, function: Function) -> TensorType | None:
    type_ = function.get_type(node.inputs[index]) if has_input(node, index) else None
    return type_ if isinstance(type_, TensorType) else None


def find_shape(node: Node, index: int, function: Function) -> Shape | None:
    """Find the shape of an input; None if it is absent, not a tensor, or of unknown rank."""
    type_ = _find_input_type(node, index, function)
    return None if type_ is None else type_.shape


def find_dtype(node: Node, index: int, function: Function) -> DType | None:
    """Find the element type of an input; None if it is absent, not a tensor, or unknown."""
    type_ = _find_input_type(node, index, function)
    return None if type_ is None else type_.dtype


def find_cast(node: Node, function: Function) -> tuple[DType | None, DType | None]:
    """Find the element types of the first input and the first output. An unknown type is None."""
    result = function.get_type(node.outputs[0])
    return find_dtype(node, 0, function), result.dtype if isinstance(result, TensorType) else None


def casts_bfloat16(node: Node, function: Function) -> bool:
    """Whether a Cast converts from or to bfloat16. Libraries that compute in float32 skip the rounding to bfloat16."""
    source, target = find_cast(node, function)
    return DType.BFLOAT16 in (source, target) and source is not target


def find_constant_input(node: Node, index: int, function: Function) -> Constant | None:
    """Find the constant that is an input of the node; None if the input is absent or not constant."""
    return function.constants.get(node.inputs[index]) if has_input(node, index) else None


def is_whole(extent: Dim, scale: float) -> bool:
    """Whether ``extent * scale`` is an integer. If the extent is unknown, whether this holds for every extent."""
    return scale.is_integer() or (isinstance(extent, int) and (extent * scale).is_integer())


DFT_AXIS_INPUT_OPSET = 20
"""The first opset in which the axis of DFT is an input. Before it is an attribute."""


MAX_EXACT_LENGTH = 333
"""Maximum length of a transform whose length is not a power of two. For such lengths, libraries sum products with float32 angles.
Measured on ort and openvino from 60 to 5,000, the error is 2e-7 times the length; 1.5 times that is 1e-4 at this length. For
powers of two it is at most 1e-6."""


def may_be_inexact_transform(node: Node, function: Function) -> bool:
    """Whether a DFT or STFT in float32 may have an error of more than 1e-4 of its largest element."""
    lengths = _list_dft_lengths(node, function)
    # A power of two has one bit.
    return not lengths or any(
        not isinstance(length, int) or (length.bit_count() > 1 and length > MAX_EXACT_LENGTH) for length in lengths
    )


def _list_dft_lengths(node: Node, function: Function) -> tuple[Dim, ...]:
    """List the lengths that a DFT or STFT may have at run time. Empty if they are unknown."""
    is_short_time = node.op_type == "STFT"
    # The inputs of STFT are signal, frame step, window and frame length; those of DFT are signal, length and axis.
    length_index = 3 if is_short_time else 1
    length = find_constant_input(node, length_index, function)
    if length is not None:
        return (int(length.array),)
    shape = find_shape(node, 0, function) or ()
    if is_short_time:
        # The window has the length of a frame. Without a window, a frame is at most as long as the signal.
        window_shape = find_shape(node, 2, function)
        return window_shape[:1] if window_shape else shape[1:2]
    has_computed_length = has_input(node, length_index)
    if has_computed_length or not shape:
        return ()
    if has_input(node, 2):
        axis = find_constant_input(node, 2, function)
        # If the axis is computed at run time, it may be any except the last one.
        return shape[:-1] if axis is None else (shape[int(axis.array)],)
    is_attribute = function.opsets.get("", 0) < DFT_AXIS_INPUT_OPSET
    axis_index = node.attr("axis", 1) if is_attribute else -2
    return (shape[axis_index],)
