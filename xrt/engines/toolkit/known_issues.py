"""Known defects of libraries as table rows: a predicate on nodes to decline, the reason and the evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from xrt.graph import DType, Function, Node, TensorType

if TYPE_CHECKING:
    from xrt.graph import Constant, Dim, Shape


Test: TypeAlias = Callable[[Node, Function], bool]


@dataclass(frozen=True, slots=True)
class KnownIssue:
    """Nodes that a library computes incorrectly: nodes of the operators ``ops`` for which ``applies`` returns True.

    Operators of other domains are written with their domain, as in ``ai.onnx.ml.Scaler``.
    """

    ops: tuple[str, ...]
    applies: Test
    reason: str
    """The defect, in one sentence."""
    evidence: tuple[str, ...]
    """Names of failing ``onnx`` node tests, entries of XRT's corpus, chains of casts, or a description of the comparison."""
    upstream: str = ""
    """Address of the library's issue, or of the text that decides who is right; empty if it is not reported."""


def match_known_issue(issues: Iterable[KnownIssue], node: Node, function: Function) -> str | None:
    """Return the reason of the first issue that matches the node; None if none does."""
    return next((issue.reason for issue in issues if node.op in issue.ops and _is_match(issue, node, function)), None)


def _is_match(issue: KnownIssue, node: Node, function: Function) -> bool:
    """Whether the issue matches. A malformed node matches none: `why_not` declines it elsewhere."""
    try:
        return issue.applies(node, function)
    except (LookupError, TypeError, ValueError):
        return False


def always(node: Node, function: Function) -> bool:
    """A predicate that matches every node."""
    return True


def attribute_is(name: str, value: object, default: object = None) -> Test:
    """Return a predicate that matches nodes whose attribute, or ``default`` if it is absent, equals ``value``."""
    return lambda node, function: node.attr(name, default) == value


def has_input(node: Node, index: int) -> bool:
    """Whether this input is present."""
    return index < len(node.inputs) and bool(node.inputs[index])


def find_input_type(node: Node, index: int, function: Function) -> TensorType | None:
    """The type of an input; None if absent, not a tensor, or unknown."""
    type_ = function.get_type(node.inputs[index]) if has_input(node, index) else None
    return type_ if isinstance(type_, TensorType) else None


def find_shape(node: Node, index: int, function: Function) -> Shape | None:
    """The shape of an input; None if absent, not a tensor, or of unknown rank."""
    type_ = find_input_type(node, index, function)
    return None if type_ is None else type_.shape


def find_dtype(node: Node, index: int, function: Function) -> DType | None:
    """The element type of an input; None if absent, not a tensor, or unknown."""
    type_ = find_input_type(node, index, function)
    return None if type_ is None else type_.dtype


def find_cast(node: Node, function: Function) -> tuple[DType | None, DType | None]:
    """Find the element types of the first input and the first output; each is None if unknown."""
    result = function.get_type(node.outputs[0])
    return find_dtype(node, 0, function), result.dtype if isinstance(result, TensorType) else None


def casts_bfloat16(node: Node, function: Function) -> bool:
    """Whether a Cast converts from or to bfloat16. Libraries that compute in float32 skip its rounding."""
    types = find_cast(node, function)
    return DType.BFLOAT16 in types and types[0] is not types[1]


def find_input(node: Node, index: int, function: Function) -> Constant | None:
    """The constant at an input; None if it is computed or absent."""
    return function.constants.get(node.inputs[index]) if has_input(node, index) else None


def is_whole(extent: Dim, scale: float) -> bool:
    """Whether ``extent * scale`` is an integer. For an extent that is not a number, whether it is for every extent."""
    return scale.is_integer() or (isinstance(extent, int) and (extent * scale).is_integer())


AXIS_IS_INPUT = 20
"""The first opset in which DFT reads its axis from an input."""


def estimate_transform_error(node: Node, function: Function) -> float:
    """Estimate the error of a DFT or STFT in float32 relative to its largest element; infinite if the length is unknown.

    Lengths that are powers of two use radix-2 FFT. Others are sums over float32 angles, which lose accuracy with the length.
    Measured on ort and openvino: at most 1e-6 for powers of two up to 4,096; 2e-7 times the length for others (60 to 5,000).
    """
    return max(map(_estimate_length_error, _list_dft_lengths(node, function)), default=math.inf)


def _list_dft_lengths(node: Node, function: Function) -> tuple[Dim, ...]:
    """List the lengths that a DFT or STFT may have at run time. Empty if they are unknown."""
    is_short_time = node.op_type == "STFT"
    # STFT has the operands signal, frame step, window and frame length; DFT has signal, length and axis.
    length_index = 3 if is_short_time else 1
    length = find_input(node, length_index, function)
    if length is not None:
        return (int(length.array),)
    shape = find_shape(node, 0, function) or ()
    if is_short_time:  # without a length the window determines it, else the signal bounds it
        return (find_shape(node, 2, function) or shape[1:2])[:1]
    if has_input(node, length_index) or not shape:
        return ()
    if not has_input(node, 2):
        return (shape[node.attr("axis", 1) if function.opsets.get("", 0) < AXIS_IS_INPUT else -2],)
    axis = find_input(node, 2, function)
    return shape[:-1] if axis is None else (shape[int(axis.array)],)


def _estimate_length_error(length: Dim) -> float:
    if not isinstance(length, int):
        return math.inf
    # Powers of two: the measured bound. Other lengths: 1.5 times the measured 2e-7 per element.
    return 1e-6 if length & (length - 1) == 0 else 3e-7 * length
