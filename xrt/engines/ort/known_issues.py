"""What ONNX Runtime refuses late or computes wrongly, though its kernels and schemas say nothing of it.

Each row names a describable set of nodes, which `why_not` then declines with the reason, and the evidence for it: node
tests of the onnx package, entries of XRT's corpus, and upstream issues. A row goes when its tests pass without it. Where a
size decides and is not known, the row applies: a node declined in vain runs elsewhere, one accepted in vain gives wrong
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xrt.engines.ort import conditions as when
from xrt.engines.ort.errors import LIBRARY

if TYPE_CHECKING:
    from xrt.graph import Function, Node, Type

__all__ = ["GAPS", "OrtKnownIssue", "find_known_issue"]


@dataclass(frozen=True, slots=True)
class OrtKnownIssue:
    """A set of nodes to decline: those of the operators for which the predicate holds."""

    op_types: tuple[str, ...]
    applies: when.Condition
    reason: str
    """What the library does or fails to do, for a person; it follows on the library's name."""
    evidence: tuple[str, ...]
    domain: str = ""
    error: Callable[[Node, when.Scope], float] | None = None
    """By how much the library may be off, as a share of the largest element; None where that is no question of rounding."""


_REDUCED = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_REDUCTIONS = ("ArgMax", "ArgMin", *(f"Reduce{word}" for word in _REDUCED))

GAPS: tuple[OrtKnownIssue, ...] = (
    OrtKnownIssue(
        ("RNN", "GRU", "LSTM"),
        when.is_batch_major,
        "has no batch-major recurrent operators (layout=1)",
        (
            "test_simple_rnn_batchwise, test_gru_batchwise, test_lstm_batchwise: refused by the kernel's constructor",
            "https://github.com/opencv/opencv/issues/26456 quotes the error",
        ),
    ),
    OrtKnownIssue(
        ("MaxUnpool",),
        when.has_output_shape,
        "places values of MaxUnpool by output_shape where ONNX places them by the shape inferred without it",
        (
            "test_maxunpool_export_with_output_shape",
            "https://github.com/microsoft/onnxruntime/pull/2193 explains the other reading",
        ),
    ),
    OrtKnownIssue(
        ("ReduceMax", "ReduceMin"),
        when.may_reduce_no_booleans,
        "cannot reduce an empty set of booleans, which this may be",
        ("test_reduce_max_empty_set_bool: refused when run",),
    ),
    OrtKnownIssue(
        _REDUCTIONS,
        when.reduces_nothing_from_the_end,
        "overlooks negative axes when it reduces an empty tensor, and gives another shape",
        ("compared with the definition: ReduceSum of float32[2,0,3] over axis -1 gives shape (2,0,3) instead of (2,0)",),
    ),
    OrtKnownIssue(
        ("MatMul",),
        when.broadcasts_an_empty_product,
        "fails to multiply an empty tensor by a vector or by another stack, or leaves the products as the memory was",
        (
            "empty_stack_times_vector of the corpus: refused when run",
            "compared with the definition: float32[1,2,3] by [0,3,2] is refused when run, and so is [0,2,2,3] by [1,2,3,2]",
            "compared with the definition: float32[2,3,0] by [0] gives other numbers at each call instead of zeros",
        ),
    ),
    OrtKnownIssue(
        ("Pow",),
        when.is_long_integer,
        "computes powers of int64 as doubles, which lose the last digits of numbers from 2^53",
        ("powers_of_great_integers of the corpus: 3 to the 39th, for which it gives 4052555153018976256 instead of ...267",),
    ),
    OrtKnownIssue(
        ("Pad",),
        when.wraps_nothing,
        "fails to pad a tensor without elements from its other end, which this may be",
        ("wrapped_around_nothing of the corpus: refused when run",),
    ),
    OrtKnownIssue(
        ("Clip",),
        when.is_fused_with_relu,
        "fails to fuse a Clip of this type with the Relu before it",
        ("clipped_relu_in_float64 of the corpus: refused by the optimiser",),
    ),
    OrtKnownIssue(
        ("Shrink",),
        when.is_wider_than_single,
        "computes Shrink in float32",
        ("shrink_keeps_every_digit of the corpus",),
    ),
    OrtKnownIssue(
        ("MatMulInteger",),
        when.sums_no_products,
        "leaves the products of MatMulInteger as the memory was where none are summed",
        ("compared with the definition: uint8[3,4,0] by [0,3] gives other numbers at each call instead of zeros",),
    ),
    OrtKnownIssue(
        ("Gemm",),
        when.scales_what_it_adds_to_nothing,
        "does not scale what Gemm adds (beta) where no products are summed",
        ("scaled_bias_of_no_products of the corpus: the bias is added once",),
    ),
    OrtKnownIssue(
        ("DequantizeLinear",),
        when.dequantises_signed_without_zero_point,
        "moves an int8 DequantizeLinear without zero point behind the operator that reads it, and takes it for unsigned there",
        ("signed_dequantised_then_moved of the corpus: -0.25 comes out as 0",),
    ),
    OrtKnownIssue(
        ("ConvInteger",),
        when.may_have_many_zero_points,
        "computes ConvInteger with one zero point for all weights only",
        ("test_convinteger_with_padding: refused when run",),
    ),
    OrtKnownIssue(
        ("Resize",),
        when.may_round_resized,
        "places pixels by the rounded size, ONNX by the exact one, and these scales may give a size that is not whole",
        (
            "test_resize_downsample_scales_linear_align_corners, test_resize_downsample_scales_cubic_align_corners",
            "https://github.com/onnx/onnx/issues/2462 has both sides",
        ),
    ),
    OrtKnownIssue(
        ("Resize",),
        when.is_resized_to_unknown_rank,
        "takes scales and sizes of which the number is not known for none, and refuses the model",
        ("refused by the session where the sizes are int64[N]: it counts none",),
    ),
    OrtKnownIssue(
        ("Conv", "ConvInteger", "QLinearConv", "MaxPool", "AveragePool", "LpPool"),
        when.pads_dilated_to_same,
        "does not pad to the same size (auto_pad) where there are dilations: it fails, or gives another size",
        (
            "compared with onnx.reference: MaxPool of 9 by kernel 3, stride 2, dilation 2 gives 4 instead of 5",
            "compared with onnx.reference: Conv is refused when run",
        ),
    ),
    OrtKnownIssue(
        ("MaxPool",),
        when.pads_less_than_nothing,
        "refuses to pad MaxPool to the same size (auto_pad) where a stride is longer than the kernel",
        ("compared with onnx.reference: MaxPool of 8 by kernel 1, stride 2 is refused when run",),
    ),
    OrtKnownIssue(
        ("ConvTranspose",),
        when.transposes_to_gaps,
        "gives ConvTranspose another size than the same one (auto_pad) where a stride is longer than the kernel",
        ("compared with onnx.reference: 6 by kernel 1, stride 3 gives 16 instead of 18",),
    ),
    OrtKnownIssue(
        ("MaxPool", "AveragePool", "LpPool"),
        when.rounds_valid_up,
        "rounds the size of a pooling without padding (auto_pad=VALID, ceil_mode=1) up where ONNX rounds it down",
        (
            "compared with the formula: 9 by kernel 2, stride 2 gives 5 instead of 4",
            "https://onnx.ai/onnx/operators/onnx__MaxPool.html has the formula",
        ),
    ),
    OrtKnownIssue(
        ("LRN",),
        when.has_even_size,
        "computes LRN over an odd number of channels only",
        ("refused by the kernel's constructor",),
    ),
    OrtKnownIssue(
        ("Attention",),
        when.gives_masked_scores,
        "gives the lowest number for a masked score (qk_matmul_output_mode=2) where ONNX gives minus infinity",
        (
            "test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal",
            "test_attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal",
        ),
    ),
    OrtKnownIssue(
        ("Attention",),
        when.gives_capped_scores,
        "caps the scores that it gives before the cap (qk_matmul_output_mode=0 with a softcap)",
        ("compared with onnx.reference: https://onnx.ai/onnx/operators/onnx__Attention.html has the order of the stages",),
    ),
    OrtKnownIssue(
        ("Attention",),
        when.has_odd_mask,
        "neither broadcasts nor pads the last two extents of an attention mask",
        ("test_attention_4d_diff_heads_mask4d_padded_kv: refused when run",),
    ),
    OrtKnownIssue(
        ("DFT", "STFT"),
        when.is_single,
        "computes the angles of this transform in float32, so that its error is beyond float_tolerance",
        (
            "compared with NumPy: 1,000 random numbers, 1.9e-4 of the largest element; 5,000, 9e-4; 1,024, 6e-7",
            "https://github.com/onnx/onnx/issues/4798",
        ),
        error=when.transform_error,
    ),
    OrtKnownIssue(
        ("Attention",),
        when.is_half,
        "rounds attention to float16 after each stage, which adds up to more than one rounding at the end",
        ("test_attention_4d_causal_fp16",),
    ),
    OrtKnownIssue(
        ("Normalizer",),
        when.is_over_the_greatest,
        "divides by the greatest element of a row, where scikit-learn and the reference of onnx take the greatest magnitude",
        ("rows_over_their_norms of the corpus; ONNX's text says max(X), its reference and scikit-learn take the magnitude",),
        domain="ai.onnx.ml",
    ),
)
"""Every known gap, of ONNX Runtime 1.31."""

_BY_OP: Mapping[tuple[str, str], tuple[OrtKnownIssue, ...]] = {
    (gap.domain, op): tuple(g for g in GAPS if g.domain == gap.domain and op in g.op_types) for gap in GAPS for op in gap.op_types
}


def find_known_issue(node: Node, function: Function, type_of: Callable[[str], Type | None], float_tolerance: float) -> str | None:
    """Return the reason of the first gap that the node falls into; None when it falls into none.

    A gap of rounding counts where it may leave more than the tolerance, which is a share of the largest element.
    """
    gaps = _BY_OP.get((node.domain, node.op_type))
    if not gaps:
        return None
    scope = when.Scope(function, type_of)
    return next((f"{LIBRARY} {gap.reason}" for gap in gaps if _applies(gap, node, scope, float_tolerance)), None)


def _applies(gap: OrtKnownIssue, node: Node, scope: when.Scope, float_tolerance: float) -> bool:
    """Whether the node falls into the gap. One that breaks its operator's own rules falls into none: the library refuses it."""
    try:
        return gap.applies(node, scope) and (gap.error is None or gap.error(node, scope) > float_tolerance)
    except (LookupError, TypeError, ValueError):
        return False
