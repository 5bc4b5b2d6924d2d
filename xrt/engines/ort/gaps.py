"""What ONNX Runtime refuses late or computes wrongly, though its kernels and schemas say nothing of it.

Each row names a describable set of nodes, which `why_not` then declines with the reason, and the evidence for it: node
tests of the onnx package, entries of XRT's corpus, and upstream issues. A row goes when its tests pass without it. Where a
size decides and is not known, the row applies: a node declined in vain runs elsewhere, one accepted in vain gives wrong
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from xrt.engines.ort.names import LIBRARY
from xrt.graph import Constant, Dim, DType, Function, Node, Shape, TensorType, Type

__all__ = ["GAPS", "Gap", "Scope", "known_gap"]


@dataclass(frozen=True, slots=True)
class Scope:
    """What a predicate may look at beside the node."""

    function: Function
    type_of: Callable[[str], Type | None]

    def shape(self, node: Node, index: int) -> Shape | None:
        """Return the shape of the node's input; None where it is left out, not a tensor, or its rank is not known."""
        type_ = self.type_of(node.inputs[index]) if has_input(node, index) else None
        return type_.shape if isinstance(type_, TensorType) else None

    def dtype(self, node: Node, index: int) -> DType | None:
        """Return the element type of the node's input; None where it is left out, not a tensor, or not known."""
        type_ = self.type_of(node.inputs[index]) if has_input(node, index) else None
        return type_.dtype if isinstance(type_, TensorType) else None

    def constant(self, node: Node, index: int) -> Constant | None:
        """Return the constant that the node reads there; None where it is not one."""
        return self.function.constants.get(node.inputs[index]) if has_input(node, index) else None


@dataclass(frozen=True, slots=True)
class Gap:
    """A set of nodes to decline: those of the operators for which the predicate holds."""

    op_types: tuple[str, ...]
    applies: Callable[[Node, Scope], bool]
    reason: str
    """What the library does or fails to do, for a person; it follows on the library's name."""
    evidence: tuple[str, ...]
    domain: str = ""


def has_input(node: Node, index: int) -> bool:
    """Whether the node is given that input."""
    return index < len(node.inputs) and bool(node.inputs[index])


def has_output(node: Node, index: int) -> bool:
    """Whether anybody asks for that output of the node."""
    return index < len(node.outputs) and bool(node.outputs[index])


def _is_single(node: Node, scope: Scope) -> bool:
    return scope.dtype(node, 0) is DType.FLOAT32


def _is_half(node: Node, scope: Scope) -> bool:
    return scope.dtype(node, 0) is DType.FLOAT16


def _is_batch_major(node: Node, scope: Scope) -> bool:
    return bool(node.attr("layout", 0))


def _has_output_shape(node: Node, scope: Scope) -> bool:
    return has_input(node, 2)


def _may_reduce_no_booleans(node: Node, scope: Scope) -> bool:
    if scope.dtype(node, 0) is not DType.BOOL:
        return False
    shape = scope.shape(node, 0)
    return shape is None or not all(isinstance(dim, int) and dim > 0 for dim in shape)


def _reduces_nothing_from_the_end(node: Node, scope: Scope) -> bool:
    """Whether an extent is zero, or may be (a symbolic one counts as a size), and an axis is counted from the end, or may be."""
    shape = scope.shape(node, 0)
    if shape is not None and 0 not in shape and not _is_sized_by_data(node, 0, scope):
        return False
    axes, given = scope.constant(node, 1), node.attr("axes", ())
    return (has_input(node, 1) and axes is None) or min([node.attr("axis", 0), *given, *(axes.array.flat if axes else ())]) < 0


def _is_fused_with_relu(node: Node, scope: Scope) -> bool:
    """Whether what is clipped comes from a Relu and is of a type that their fusion has not."""
    maker = scope.function.producer(node.inputs[0])
    return maker is not None and maker.op_type == "Relu" and scope.dtype(node, 0) not in (DType.FLOAT32, DType.FLOAT16)


_SIZED_BY_DATA = ("Compress", "NonMaxSuppression", "NonZero", "Unique")


def _is_sized_by_data(node: Node, index: int, scope: Scope) -> bool:
    """Whether the input comes from an operator that decides by what it reads how much it gives, which may be nothing."""
    maker = scope.function.producer(node.inputs[index])
    return maker is not None and maker.op_type in _SIZED_BY_DATA


def _broadcasts_an_empty_product(node: Node, scope: Scope) -> bool:
    """Whether an extent is zero, or may be because the data decide it, and an operand is a vector or the stacks differ."""
    left, right = (scope.shape(node, index) or () for index in (0, 1))
    sized_by_data = any(_is_sized_by_data(node, index, scope) for index in (0, 1))
    if min(len(left), len(right)) == 1:
        return sized_by_data or 0 in (*left, *right)
    return (sized_by_data or 0 in (*left[:-2], *right[:-2])) and left[:-2] != right[:-2]


def _sums_no_products(node: Node, scope: Scope) -> bool:
    return (scope.shape(node, 0) or (None,))[-1] == 0


def _scales_what_it_adds_to_nothing(node: Node, scope: Scope) -> bool:
    """Whether no products are summed, so that a scaled bias is all there is."""
    inner = (scope.shape(node, 0) or (None, None))[0 if node.attr("transA", 0) else 1]
    return inner == 0 and has_input(node, 2) and node.attr("beta", 1.0) != 1.0


def _dequantises_signed_without_zero_point(node: Node, scope: Scope) -> bool:
    return not has_input(node, 2) and scope.dtype(node, 0) is DType.INT8


def _may_have_many_zero_points(node: Node, scope: Scope) -> bool:
    return has_input(node, 3) and scope.shape(node, 3) not in ((), (1,))


def _may_round_resized(node: Node, scope: Scope) -> bool:
    """Whether the coordinates depend on sizes that are given by scales and may not be whole."""
    mode = node.attr("coordinate_transformation_mode")
    if mode not in ("align_corners", "pytorch_half_pixel") or not has_input(node, 2) or has_input(node, 3):
        return False
    sizes = _exact_sizes(node, scope)
    if mode == "align_corners":
        return sizes is None or any(size != round(size) for size in sizes)
    return sizes is not None and any(1 < size < 2 for size in sizes)  # where it asks whether the size is more than 1


def _exact_sizes(node: Node, scope: Scope) -> list[float] | None:
    """Return the extents of a Resize by scales before they are rounded; None where they are not known."""
    scales, shape = scope.constant(node, 2), scope.shape(node, 0)
    if scales is None or shape is None:
        return None
    axes = node.attr("axes", range(len(shape)))
    extents = [shape[axis] for axis in axes]
    if not all(isinstance(extent, int) for extent in extents):
        return None
    return [extent * float(scale) for extent, scale in zip(extents, scales.array, strict=False) if isinstance(extent, int)]


def _pads_to_same(node: Node) -> bool:
    return node.attr("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")


def _pads_dilated_to_same(node: Node, scope: Scope) -> bool:
    return _pads_to_same(node) and any(dilation > 1 for dilation in node.attr("dilations", ()))


def _pads_less_than_nothing(node: Node, scope: Scope) -> bool:
    """Whether windows lie apart, so that the size may want less padding than none; only SAME asks for that."""
    kernel = node.attr("kernel_shape", ())
    return _pads_to_same(node) and any(k < stride for k, stride in zip(kernel, node.attr("strides", ()), strict=False))


def _transposes_to_gaps(node: Node, scope: Scope) -> bool:
    """Whether a ConvTranspose to the SAME size leaves gaps between windows."""
    weights = scope.shape(node, 1)
    kernel = node.attr("kernel_shape") or (weights[2:] if weights else ())
    count = len(kernel)
    strides, dilations, added = (node.attr(n, (d,) * count) for n, d in (("strides", 1), ("dilations", 1), ("output_padding", 0)))
    windows = zip(kernel, strides, dilations, added, strict=True)
    return _pads_to_same(node) and any(not isinstance(k, int) or (k - 1) * d + 1 + a < s for k, s, d, a in windows)


def _rounds_valid_up(node: Node, scope: Scope) -> bool:
    return bool(node.attr("auto_pad") == "VALID" and node.attr("ceil_mode", 0))


def _has_even_size(node: Node, scope: Scope) -> bool:
    return bool(node.attr("size", 1) % 2 == 0)


def _gives_masked_scores(node: Node, scope: Scope) -> bool:
    masks = node.attr("is_causal", 0) == 1 or scope.dtype(node, 3) is DType.BOOL or has_input(node, 6)
    return _gives_scores(node, 2) and masks


def _gives_capped_scores(node: Node, scope: Scope) -> bool:
    return _gives_scores(node, 0) and node.attr("softcap", 0.0) != 0.0


def _gives_scores(node: Node, mode: int) -> bool:
    return has_output(node, 3) and node.attr("qk_matmul_output_mode", 0) == mode


def _has_odd_mask(node: Node, scope: Scope) -> bool:
    """Whether the mask's last two extents are not those of the scores (queries by keys, past ones included), where known."""
    mask, queries, keys = (scope.shape(node, index) for index in (3, 0, 1))
    if not mask or len(mask) < 2 or not queries or not keys:
        return False
    past = (scope.shape(node, 4) or (None, None)) if has_input(node, 4) else (0, 0)
    return _differ(mask[-2], queries[-2]) or _differ(mask[-1], _sum(keys[-2], past[-2]))


def _differ(one: Dim, other: Dim) -> bool:
    return isinstance(one, int) and isinstance(other, int) and one != other


def _sum(one: Dim, other: Dim) -> Dim:
    return one + other if isinstance(one, int) and isinstance(other, int) else None


_REDUCED = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_REDUCTIONS = ("ArgMax", "ArgMin", *(f"Reduce{word}" for word in _REDUCED))

GAPS: tuple[Gap, ...] = (
    Gap(
        ("RNN", "GRU", "LSTM"),
        _is_batch_major,
        "has no batch-major recurrent operators (layout=1)",
        (
            "test_simple_rnn_batchwise, test_gru_batchwise, test_lstm_batchwise: refused by the kernel's constructor",
            "https://github.com/opencv/opencv/issues/26456 quotes the error",
        ),
    ),
    Gap(
        ("MaxUnpool",),
        _has_output_shape,
        "places values of MaxUnpool by output_shape where ONNX places them by the shape inferred without it",
        (
            "test_maxunpool_export_with_output_shape",
            "https://github.com/microsoft/onnxruntime/pull/2193 explains the other reading",
        ),
    ),
    Gap(
        ("ReduceMax", "ReduceMin"),
        _may_reduce_no_booleans,
        "cannot reduce an empty set of booleans, which this may be",
        ("test_reduce_max_empty_set_bool: refused when run",),
    ),
    Gap(
        _REDUCTIONS,
        _reduces_nothing_from_the_end,
        "overlooks negative axes when it reduces an empty tensor, and gives another shape",
        ("compared with the definition: ReduceSum of float32[2,0,3] over axis -1 gives shape (2,0,3) instead of (2,0)",),
    ),
    Gap(
        ("MatMul",),
        _broadcasts_an_empty_product,
        "fails to multiply an empty tensor by a vector or by another stack, or leaves the products as the memory was",
        (
            "empty_stack_times_vector of the corpus: refused when run",
            "compared with the definition: float32[1,2,3] by [0,3,2] is refused when run, and so is [0,2,2,3] by [1,2,3,2]",
            "compared with the definition: float32[2,3,0] by [0] gives other numbers at each call instead of zeros",
        ),
    ),
    Gap(
        ("Clip",),
        _is_fused_with_relu,
        "fails to fuse a Clip of this type with the Relu before it",
        ("clipped_relu_in_float64 of the corpus: refused by the optimiser",),
    ),
    Gap(
        ("MatMulInteger",),
        _sums_no_products,
        "leaves the products of MatMulInteger as the memory was where none are summed",
        ("compared with the definition: uint8[3,4,0] by [0,3] gives other numbers at each call instead of zeros",),
    ),
    Gap(
        ("Gemm",),
        _scales_what_it_adds_to_nothing,
        "does not scale what Gemm adds (beta) where no products are summed",
        ("scaled_bias_of_no_products of the corpus: the bias is added once",),
    ),
    Gap(
        ("DequantizeLinear",),
        _dequantises_signed_without_zero_point,
        "moves an int8 DequantizeLinear without zero point behind the operator that reads it, and takes it for unsigned there",
        ("signed_dequantised_then_moved of the corpus: -0.25 comes out as 0",),
    ),
    Gap(
        ("ConvInteger",),
        _may_have_many_zero_points,
        "computes ConvInteger with one zero point for all weights only",
        ("test_convinteger_with_padding: refused when run",),
    ),
    Gap(
        ("Resize",),
        _may_round_resized,
        "places pixels by the rounded size, ONNX by the exact one, and these scales may give a size that is not whole",
        (
            "test_resize_downsample_scales_linear_align_corners, test_resize_downsample_scales_cubic_align_corners",
            "https://github.com/onnx/onnx/issues/2462 has both sides",
        ),
    ),
    Gap(
        ("Conv", "ConvInteger", "QLinearConv", "MaxPool", "AveragePool", "LpPool"),
        _pads_dilated_to_same,
        "does not pad to the same size (auto_pad) where there are dilations: it fails, or gives another size",
        (
            "compared with onnx.reference: MaxPool of 9 by kernel 3, stride 2, dilation 2 gives 4 instead of 5",
            "compared with onnx.reference: Conv is refused when run",
        ),
    ),
    Gap(
        ("MaxPool",),
        _pads_less_than_nothing,
        "refuses to pad MaxPool to the same size (auto_pad) where a stride is longer than the kernel",
        ("compared with onnx.reference: MaxPool of 8 by kernel 1, stride 2 is refused when run",),
    ),
    Gap(
        ("ConvTranspose",),
        _transposes_to_gaps,
        "gives ConvTranspose another size than the same one (auto_pad) where a stride is longer than the kernel",
        ("compared with onnx.reference: 6 by kernel 1, stride 3 gives 16 instead of 18",),
    ),
    Gap(
        ("MaxPool", "AveragePool", "LpPool"),
        _rounds_valid_up,
        "rounds the size of a pooling without padding (auto_pad=VALID, ceil_mode=1) up where ONNX rounds it down",
        (
            "compared with the formula: 9 by kernel 2, stride 2 gives 5 instead of 4",
            "https://onnx.ai/onnx/operators/onnx__MaxPool.html has the formula",
        ),
    ),
    Gap(
        ("LRN",),
        _has_even_size,
        "computes LRN over an odd number of channels only",
        ("refused by the kernel's constructor",),
    ),
    Gap(
        ("Attention",),
        _gives_masked_scores,
        "gives the lowest number for a masked score (qk_matmul_output_mode=2) where ONNX gives minus infinity",
        (
            "test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal",
            "test_attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal",
        ),
    ),
    Gap(
        ("Attention",),
        _gives_capped_scores,
        "caps the scores that it gives before the cap (qk_matmul_output_mode=0 with a softcap)",
        ("compared with onnx.reference: https://onnx.ai/onnx/operators/onnx__Attention.html has the order of the stages",),
    ),
    Gap(
        ("Attention",),
        _has_odd_mask,
        "neither broadcasts nor pads the last two extents of an attention mask",
        ("test_attention_4d_diff_heads_mask4d_padded_kv: refused when run",),
    ),
    Gap(
        ("DFT", "STFT"),
        _is_single,
        "sums a transform in float32, which leaves 1e-5 of the largest element where the exact result is zero",
        (
            "test_dft, test_dft_axis, test_dft_inverse, test_dft_rfft, test_stft, test_stft_with_window",
            "https://github.com/onnx/onnx/issues/4798",
        ),
    ),
    Gap(
        ("Attention",),
        _is_half,
        "rounds attention to float16 after each stage, which adds up to more than one rounding at the end",
        ("test_attention_4d_causal_fp16",),
    ),
)
"""Every known gap, of ONNX Runtime 1.31."""

_BY_OP: Mapping[tuple[str, str], tuple[Gap, ...]] = {
    (gap.domain, op): tuple(g for g in GAPS if g.domain == gap.domain and op in g.op_types) for gap in GAPS for op in gap.op_types
}


def known_gap(node: Node, function: Function, type_of: Callable[[str], Type | None]) -> str | None:
    """Return the reason of the first gap that the node falls into; None when it falls into none."""
    gaps = _BY_OP.get((node.domain, node.op_type))
    if not gaps:
        return None
    scope = Scope(function, type_of)
    return next((f"{LIBRARY} {gap.reason}" for gap in gaps if _applies(gap, node, scope)), None)


def _applies(gap: Gap, node: Node, scope: Scope) -> bool:
    """Whether the node falls into the gap. One that breaks its operator's own rules falls into none: the library refuses it."""
    try:
        return gap.applies(node, scope)
    except (LookupError, TypeError, ValueError):
        return False
