"""Where OpenVINO 2026.4 goes wrong as soon as an extent is known only at run time: declined, each row with its evidence."""

from __future__ import annotations

from xrt.engines.openvino.library import LIBRARY
from xrt.engines.toolkit.known_issues import KnownIssue, always, match_known_issue
from xrt.engines.toolkit.open_shapes import has_symbolic_dims
from xrt.graph import Function, Node, TensorType

__all__ = ["OPEN_ISSUES", "find_open_issue"]


def find_open_issue(node: Node, function: Function) -> str | None:
    """Return the reason of the first defect that a node with open extents falls under, however it is decomposed; else None."""
    if node.op_type not in _NAMES or not has_symbolic_dims(node, function):
        return None
    reason = match_known_issue(OPEN_ISSUES, node, function)
    return reason and f"{LIBRARY} {reason}, where extents are known only at run time"


def _is_of_integers(node: Node, function: Function) -> bool:
    type_ = function.get_type(node.inputs[0])
    return not (isinstance(type_, TensorType) and type_.dtype.is_float)


def _may_resize_channels(node: Node, function: Function) -> bool:
    """Whether sizes are given, and the number of images or of channels is not known."""
    type_ = function.get_type(node.inputs[0])
    shape = (type_.shape or (None,)) if isinstance(type_, TensorType) else (None,)
    return len(node.inputs) > 3 and bool(node.inputs[3]) and not all(isinstance(extent, int) for extent in shape[:2])


def _scatters_extremes(node: Node, function: Function) -> bool:
    return node.attr("reduction") in ("max", "min", b"max", b"min")


def _has_many_scales(node: Node, function: Function) -> bool:
    """Whether there is a scale for each part of an axis, or may be."""
    type_ = function.get_type(node.inputs[1])
    return not (isinstance(type_, TensorType) and type_.shape == ())


OPEN_ISSUES: tuple[KnownIssue, ...] = (
    KnownIssue(
        ("Div",),
        _is_of_integers,
        "rounds the quotients of integers",
        ("large_unsigned_numbers of the corpus", "test_div_uint8", "test_div_int8"),
    ),
    KnownIssue(
        ("Attention",),
        always,
        "computes other numbers in an Attention with past keys, and fails when it runs one with grouped queries",
        ("test_attention_4d_with_past_and_present at sizes of 1", "test_attention_4d_gqa"),
    ),
    KnownIssue(
        ("GRU", "LSTM", "RNN"),
        always,
        "fails when it runs a recurrent operator at another size",
        ("test_gru_defaults", "test_lstm_reverse", "test_simple_rnn_bidirectional"),
    ),
    KnownIssue(
        ("DynamicQuantizeLinear",),
        always,
        "gives the scale 0 for nothing but zeros",
        ("test_dynamicquantizelinear at size 1",),
    ),
    KnownIssue(
        ("Resize", "Upsample"),
        _may_resize_channels,
        "fails when it runs a Resize to sizes whose scales are not known for images and channels",
        ("nearest_of_two_as_near of the corpus",),
    ),
    KnownIssue(
        ("ScatterND",),
        _scatters_extremes,
        "fails when it runs a ScatterND that keeps the largest or the smallest element",
        ("test_scatternd_max_with_element_indices", "test_scatternd_min_with_element_indices"),
    ),
    KnownIssue(
        ("DequantizeLinear",),
        _has_many_scales,
        "fails when it runs a DequantizeLinear with several scales",
        ("test_dequantizelinear_axis",),
    ),
)
"""Every known defect with open extents."""
_NAMES = frozenset(name for issue in OPEN_ISSUES for name in issue.ops)
