"""Known issues of ONNX Runtime on ordinary values, and the dequantizations that it fuses.

Each row of ISSUES declines nodes, with a reason and evidence: node tests of onnx, entries of XRT's corpus, upstream issues.
Delete a row when its tests pass without it. If a predicate depends on an unknown size, it returns True: a node that is declined
without need runs on another engine, but a node that is accepted by mistake returns wrong results.
"""

from __future__ import annotations

from collections.abc import Sequence

from xrt.engines.ort.session import LIBRARY
from xrt.engines.toolkit.known_issues import (
    KnownIssue,
    always,
    find_constant_input,
    find_dtype,
    find_shape,
    has_input,
    is_whole,
    match_known_issue,
    may_be_inexact_transform,
)
from xrt.engines.toolkit.rewrites import has_quantized_readers, list_readers
from xrt.graph import Dim, DType, Function, Node, TensorType
from xrt.operators import Trait, has_trait


def is_wider_than_single(node: Node, function: Function) -> bool:
    """Whether the first input has values that float32 cannot represent."""
    return find_dtype(node, 0, function) in (DType.FLOAT64, DType.INT32, DType.INT64, DType.UINT32, DType.UINT64)


def may_reduce_empty_booleans(node: Node, function: Function) -> bool:
    """Whether the input of a reduction is boolean and may be empty."""
    if find_dtype(node, 0, function) is not DType.BOOL:
        return False
    shape = find_shape(node, 0, function)
    return shape is None or not all(isinstance(dim, int) and dim > 0 for dim in shape)


def may_reduce_empty_from_end(node: Node, function: Function) -> bool:
    """Whether the input of a reduction may be empty and an axis may be negative. Symbolic dims are assumed not to be 0."""
    shape = find_shape(node, 0, function)
    if shape is not None and 0 not in shape and not _is_sized_by_data(node, 0, function):
        return False
    axes_input = find_constant_input(node, 1, function)
    if has_input(node, 1) and axes_input is None:
        return True
    # The axes are an input, the attribute ``axes``, or the attribute ``axis`` of ArgMax and ArgMin.
    axes = [] if axes_input is None else axes_input.array.reshape(-1).tolist()
    return any(axis < 0 for axis in (node.attr("axis", 0), *node.attr("axes", ()), *axes))


def may_wrap_empty_tensor(node: Node, function: Function) -> bool:
    """Whether the node is a Pad with mode=wrap of a tensor that may be empty."""
    shape = find_shape(node, 0, function)
    return node.attr("mode", "constant") == "wrap" and (shape is None or 0 in shape or _is_sized_by_data(node, 0, function))


def is_fused_with_relu(node: Node, function: Function) -> bool:
    """Whether a Clip reads the result of a Relu, and the library's fusion of the two does not support the type."""
    source = function.producer(node.inputs[0])
    return source is not None and source.op_type == "Relu" and find_dtype(node, 0, function) not in (DType.FLOAT32, DType.FLOAT16)


def _is_sized_by_data(node: Node, index: int, function: Function) -> bool:
    """Whether the size of the input depends on data, such as the result of a NonZero, so that it may be empty."""
    source = function.producer(node.inputs[index])
    return source is not None and has_trait(source, Trait.SIZED_BY_DATA)


def broadcasts_an_empty_product(node: Node, function: Function) -> bool:
    """Whether an operand of a MatMul may be empty, and one is a vector or their batch dims (all but the last two) differ."""
    left, right = (find_shape(node, index, function) or () for index in (0, 1))
    is_sized_by_data = any(_is_sized_by_data(node, index, function) for index in (0, 1))
    if min(len(left), len(right)) == 1:
        return is_sized_by_data or 0 in (*left, *right)
    left_batch, right_batch = left[:-2], right[:-2]
    return left_batch != right_batch and (is_sized_by_data or 0 in (*left_batch, *right_batch))


def scales_bias_of_empty_product(node: Node, function: Function) -> bool:
    """Whether a Gemm, ``alpha * A @ B + beta * C``, adds up no products (the inner dim of A is 0) and has a beta other than 1."""
    shape = find_shape(node, 0, function)
    inner = None if shape is None else shape[0 if node.attr("transA", 0) else 1]
    return inner == 0 and has_input(node, 2) and node.attr("beta", 1.0) != 1.0


def may_round_resized(node: Node, function: Function) -> bool:
    """Whether a Resize by scales computes coordinates from an output size that may be fractional."""
    mode = node.attr("coordinate_transformation_mode")
    if mode not in ("align_corners", "pytorch_half_pixel") or not has_input(node, 2) or has_input(node, 3):
        return False
    scaled = _list_scaled_extents(node, function)
    # align_corners divides by the output size minus 1, so every fraction matters. Unknown scales may give one.
    if mode == "align_corners":
        return scaled is None or not all(is_whole(extent, scale) for extent, scale in scaled)
    # pytorch_half_pixel only tests whether the size is larger than 1: a size between 1 and 2 is, and rounded down it is not.
    sizes = (extent * scale for extent, scale in scaled or () if isinstance(extent, int))
    return any(1 < size < 2 for size in sizes)


def is_resized_to_unknown_rank(node: Node, function: Function) -> bool:
    """Whether the number of scales or sizes of a Resize is unknown."""
    shapes = [find_shape(node, index, function) for index in (2, 3) if has_input(node, index)]
    return any(not shape or not isinstance(shape[0], int) for shape in shapes)


def _list_scaled_extents(node: Node, function: Function) -> list[tuple[Dim, float]] | None:
    """List (dim, scale) for each axis that a Resize scales; None if the scales or the shape are unknown."""
    scales, shape = find_constant_input(node, 2, function), find_shape(node, 0, function)
    if scales is None or shape is None:
        return None
    axes = node.attr("axes", range(len(shape)))
    return [(shape[axis], float(scale)) for axis, scale in zip(axes, scales.array, strict=False)]


def _pads_to_same(node: Node) -> bool:
    return node.attr("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")


def pads_dilated_to_same(node: Node, function: Function) -> bool:
    return _pads_to_same(node) and any(dilation > 1 for dilation in node.attr("dilations", ()))


def may_pad_negatively(node: Node, function: Function) -> bool:
    """Whether the padding for auto_pad=SAME may be negative, because a stride is longer than the kernel."""
    pairs = zip(node.attr("kernel_shape", ()), node.attr("strides", ()), strict=False)
    return _pads_to_same(node) and any(extent < stride for extent, stride in pairs)


def leaves_gaps_between_windows(node: Node, function: Function) -> bool:
    """Whether a ConvTranspose with auto_pad=SAME may have a stride that is longer than the window, so that gaps remain."""
    if not _pads_to_same(node):
        return False
    weights = find_shape(node, 1, function)
    kernel = node.attr("kernel_shape") or (weights[2:] if weights else ())
    ones = (1,) * len(kernel)
    strides, dilations = node.attr("strides", ones), node.attr("dilations", ones)
    output_padding = node.attr("output_padding", (0,) * len(kernel))
    for extent, stride, dilation, padding in zip(kernel, strides, dilations, output_padding, strict=True):
        # A dilated window spans (extent - 1) * dilation + 1 elements.
        if not isinstance(extent, int) or (extent - 1) * dilation + 1 + padding < stride:
            return True
    return False


def returns_capped_scores(node: Node, function: Function) -> bool:
    """Whether an Attention with a softcap must return the scores before the softcap. ONNX Runtime returns those after it."""
    has_scores = len(node.outputs) > 3 and bool(node.outputs[3])
    return has_scores and node.attr("qk_matmul_output_mode", 0) == 0 and node.attr("softcap", 0.0) != 0.0


def has_mismatched_mask(node: Node, function: Function) -> bool:
    """Whether an attention mask is known not to have the last two dims of the scores: (queries, past keys + keys)."""
    mask, queries, keys = (find_shape(node, index, function) for index in (3, 0, 1))  # attn_mask, Q, K
    if not mask or len(mask) < 2 or not queries or not keys:
        return False
    past_length: Dim = 0
    if has_input(node, 4):  # past_key; the length is the second to last axis of keys and queries
        past_key = find_shape(node, 4, function)
        past_length = past_key[-2] if past_key else None
    return _differ(mask[-2], queries[-2]) or _differ(mask[-1], _sum(keys[-2], past_length))


def _differ(first: Dim, second: Dim) -> bool:
    """Whether two dims are different numbers or different symbols."""
    return type(first) is type(second) and first is not None and first != second


def _sum(first: Dim, second: Dim) -> Dim:
    if second == 0:
        return first
    return first + second if isinstance(first, int) and isinstance(second, int) else None


def list_labels(node: Node) -> Sequence[object]:
    """List the class labels of a classifier, which are in one of three attributes."""
    names = ("classlabels_ints", "classlabels_int64s", "classlabels_strings")
    return next(filter(None, (node.attr(name, ()) for name in names)), ())


def is_transformed_decision(node: Node, function: Function) -> bool:
    """Whether an SVMClassifier with two classes and without probabilities transforms its decision value."""
    has_one_decision = len(node.attr("vectors_per_class", ())) == 2 and not node.attr("prob_a", ())
    return node.attr("post_transform", "NONE") in ("SOFTMAX", "SOFTMAX_ZERO", "PROBIT") and has_one_decision


def has_positive_weights_to_transform(node: Node, function: Function) -> bool:
    """Whether a TreeEnsembleClassifier with two classes transforms scores, and no weight is negative."""
    are_positive = all(weight >= 0 for weight in node.attr("class_weights", ()))
    return len(list_labels(node)) == 2 and node.attr("post_transform", "NONE") not in ("NONE", "PROBIT") and are_positive


_REDUCED = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_REDUCTIONS = ("ArgMax", "ArgMin", *(f"Reduce{word}" for word in _REDUCED))

ISSUES: tuple[KnownIssue, ...] = (
    KnownIssue(
        ("RNN", "GRU", "LSTM"),
        lambda node, function: bool(node.attr("layout", 0)),
        "has no batch-major recurrent operators (layout=1)",
        ("test_simple_rnn_batchwise, test_gru_batchwise, test_lstm_batchwise: refused by the kernel's constructor",),
        upstream="https://github.com/opencv/opencv/issues/26456",
    ),
    KnownIssue(
        ("MaxUnpool",),
        lambda node, function: has_input(node, 2),
        "computes the positions of MaxUnpool from output_shape, where ONNX uses the shape that is inferred without it",
        ("test_maxunpool_export_with_output_shape",),
        upstream="https://github.com/microsoft/onnxruntime/pull/2193",
    ),
    KnownIssue(
        ("ReduceMax", "ReduceMin"),
        may_reduce_empty_booleans,
        "cannot reduce an empty tensor of booleans, and this one may be empty",
        ("test_reduce_max_empty_set_bool: refused when run",),
    ),
    KnownIssue(
        _REDUCTIONS,
        may_reduce_empty_from_end,
        "ignores negative axes when it reduces an empty tensor, so that the result has a wrong shape",
        ("compared with the definition: ReduceSum of float32[2,0,3] over axis -1 gives shape (2,0,3) instead of (2,0)",),
    ),
    KnownIssue(
        ("ReduceMean",),
        lambda node, function: 0 in (find_shape(node, 0, function) or ()),
        "returns 0 for the mean of an empty tensor, where ONNX returns NaN",
        ("mean_of_nothing of the corpus: 0",),
    ),
    KnownIssue(
        ("MatMul",),
        broadcasts_an_empty_product,
        "fails or returns uninitialized memory for a product of an empty tensor with a vector or with other batch dims",
        (
            "empty_stack_times_vector of the corpus: refused when run",
            "compared with the definition: float32[1,2,3] by [0,3,2] is refused when run, and so is [0,2,2,3] by [1,2,3,2]",
            "compared with the definition: float32[2,3,0] by [0] gives other numbers at each call instead of zeros",
        ),
    ),
    KnownIssue(
        ("Pad",),
        may_wrap_empty_tensor,
        "fails to pad an empty tensor with mode=wrap, and this one may be empty",
        ("wrapped_around_nothing of the corpus: refused when run",),
    ),
    KnownIssue(
        ("Clip",),
        is_fused_with_relu,
        "fails to fuse a Clip of this type with the Relu before it",
        ("clipped_relu_in_float64 of the corpus: refused by the optimiser",),
    ),
    KnownIssue(("Shrink",), is_wider_than_single, "computes Shrink in float32", ("shrink_keeps_every_digit of the corpus",)),
    KnownIssue(
        ("MatMulInteger",),
        lambda node, function: (find_shape(node, 0, function) or (None,))[-1] == 0,
        "returns uninitialized memory for a MatMulInteger with an empty inner dim",
        ("compared with the definition: uint8[3,4,0] by [0,3] gives other numbers at each call instead of zeros",),
    ),
    KnownIssue(
        ("Gemm",),
        scales_bias_of_empty_product,
        "does not scale the bias of a Gemm by beta if the inner dim is empty",
        ("scaled_bias_of_no_products of the corpus: the bias is added once",),
    ),
    KnownIssue(
        ("DequantizeLinear",),
        lambda node, function: not has_input(node, 2) and find_dtype(node, 0, function) is DType.INT8,
        "moves an int8 DequantizeLinear without zero point past its reader, and reads the data as unsigned there",
        ("signed_dequantised_then_moved of the corpus: -0.25 comes out as 0",),
    ),
    KnownIssue(
        ("ConvInteger",),
        lambda node, function: has_input(node, 3) and find_shape(node, 3, function) not in ((), (1,)),
        "supports only one zero point for all weights of a ConvInteger",
        ("test_convinteger_with_padding: refused when run",),
    ),
    KnownIssue(
        ("Resize",),
        may_round_resized,
        "places pixels by the rounded size, ONNX by the exact one, and these scales may give a size that is not whole",
        ("test_resize_downsample_scales_linear_align_corners, test_resize_downsample_scales_cubic_align_corners",),
        upstream="https://github.com/onnx/onnx/issues/2462",
    ),
    KnownIssue(
        ("Resize",),
        is_resized_to_unknown_rank,
        "rejects a Resize whose number of scales or sizes is unknown",
        ("refused by the session where the sizes are int64[N]: it counts none",),
    ),
    KnownIssue(
        ("Conv", "ConvInteger", "QLinearConv", "MaxPool", "AveragePool", "LpPool"),
        pads_dilated_to_same,
        "fails or returns a wrong size for auto_pad=SAME with dilations",
        (
            "compared with onnx.reference: MaxPool of 9 by kernel 3, stride 2, dilation 2 gives 4 instead of 5",
            "compared with onnx.reference: Conv is refused when run",
        ),
    ),
    KnownIssue(
        ("MaxPool",),
        may_pad_negatively,
        "fails for a MaxPool with auto_pad=SAME and a stride larger than the kernel",
        ("compared with onnx.reference: MaxPool of 8 by kernel 1, stride 2 is refused when run",),
    ),
    KnownIssue(
        ("ConvTranspose",),
        leaves_gaps_between_windows,
        "returns a wrong size for a ConvTranspose with auto_pad=SAME and a stride larger than the kernel",
        ("compared with onnx.reference: 6 by kernel 1, stride 3 gives 16 instead of 18",),
    ),
    KnownIssue(
        ("MaxPool", "AveragePool", "LpPool"),
        lambda node, function: bool(node.attr("auto_pad") == "VALID" and node.attr("ceil_mode", 0)),
        "rounds the output size of a pooling with auto_pad=VALID and ceil_mode=1 up, where ONNX rounds it down",
        ("compared with the formula: 9 by kernel 2, stride 2 gives 5 instead of 4",),
        upstream="https://onnx.ai/onnx/operators/onnx__MaxPool.html",
    ),
    KnownIssue(
        ("LRN",),
        lambda node, function: node.attr("size", 1) % 2 == 0,
        "supports LRN only with an odd size",
        ("refused by the kernel's constructor",),
    ),
    KnownIssue(
        ("Attention",),
        returns_capped_scores,
        "returns the scores of an Attention after the softcap, where qk_matmul_output_mode=0 means before it",
        ("compared with onnx.reference: the order of the stages",),
        upstream="https://onnx.ai/onnx/operators/onnx__Attention.html",
    ),
    KnownIssue(
        ("Attention",),
        has_mismatched_mask,
        "neither broadcasts nor pads the last two dims of an attention mask",
        ("test_attention_4d_diff_heads_mask4d_padded_kv: refused when run",),
    ),
    KnownIssue(
        ("DFT", "STFT"),
        lambda node, function: find_dtype(node, 0, function) is DType.FLOAT32 and may_be_inexact_transform(node, function),
        "computes the angles of this transform in float32, so that its error is beyond 1e-4 of the largest element",
        ("compared with NumPy: 1,000 random numbers, 1.9e-4 of the largest element; 5,000, 9e-4; 1,024, 6e-7",),
        upstream="https://github.com/onnx/onnx/issues/4798",
    ),
    KnownIssue(
        ("MeanVarianceNormalization",),
        always,
        "divides by zero in MeanVarianceNormalization where all elements are equal",
        ("compared with the definition: NaN for a constant image",),
    ),
    KnownIssue(
        ("ai.onnx.ml.SVMRegressor",),
        lambda node, function: node.attr("post_transform", "NONE") != "NONE",
        "ignores the post_transform of SVMRegressor",
        ("compared with onnx.reference",),
    ),
    KnownIssue(
        ("ai.onnx.ml.SVMClassifier",),
        is_transformed_decision,
        "does not apply post_transform to the decision value of an SVMClassifier with two classes",
        ("compared with onnx.reference",),
    ),
    KnownIssue(
        ("ai.onnx.ml.SVMClassifier",),
        lambda node, function: not node.attr("vectors_per_class", ()) and len(list_labels(node)) < 3,
        "selects the class of a linear two-class SVMClassifier by the sign of one score, not by the larger score",
        ("compared with onnx.reference",),
    ),
    KnownIssue(
        ("ai.onnx.ml.TreeEnsembleClassifier",),
        lambda node, function: len(list_labels(node)) == len(set(node.attr("class_ids", ()))) == 2,
        "returns 0 and 1 instead of the labels if the leaves of a two-class TreeEnsembleClassifier have votes for both",
        ("compared with onnx.reference",),
    ),
    KnownIssue(
        ("ai.onnx.ml.TreeEnsembleClassifier",),
        has_positive_weights_to_transform,
        "treats positive weights of a TreeEnsembleClassifier as probabilities, and does not apply post_transform",
        ("compared with onnx.reference",),
    ),
    KnownIssue(
        ("ai.onnx.ml.Normalizer",),
        lambda node, function: node.attr("norm", "MAX") == "MAX",
        "divides by the largest element of a row, where scikit-learn and the reference of onnx use the largest magnitude",
        ("rows_over_their_norms of the corpus; ONNX's text says max(X), its reference and scikit-learn take the magnitude",),
    ),
)
"""Known issues of ONNX Runtime 1.31."""


def find_known_issue(node: Node, function: Function) -> str | None:
    """Explain the first known issue that affects the node; None if there is none."""
    reason = match_known_issue(ISSUES, node, function)
    return reason and f"{LIBRARY} {reason}"


QUANTIZING = frozenset({"Add", "Conv", "Mul"})
"""Operators that the library computes in integers only if their result is quantized: as QLinearAdd, QLinearConv, QLinearMul."""
FOUR_BIT = frozenset({DType.INT4, DType.UINT4})
MIN_BLOCK_SIZE = 16
"""The smallest block size of 4-bit weights that the library's product supports. Larger sizes must be powers of two."""


def is_fused(node: Node, function: Function) -> bool:
    """Whether the library fuses a DequantizeLinear of a constant with all nodes that read it.

    It fuses 8-bit weights and biases if the other operand is quantized too, operands of Add and Mul if also the result is
    quantized, and 4-bit block-quantized weights that are the right operand of MatMuls (and not also the left one).
    """
    if not node.attr("block_size", 0):
        return has_quantized_readers(node, function, quantizing=QUANTIZING)
    weights, readers = node.outputs[0], list_readers(node, function)
    are_products = all(reader.op == "MatMul" and reader.inputs[1] == weights != reader.inputs[0] for reader in readers)
    return bool(readers) and are_products and _has_blocks(node, function)


def _has_blocks(node: Node, function: Function) -> bool:
    """Whether the node dequantizes a 4-bit matrix with blocks of a supported size along axis 0, over which a MatMul sums."""
    type_, size = function.get_type(node.inputs[0]), node.attr("block_size", 0)
    if not isinstance(type_, TensorType) or type_.dtype not in FOUR_BIT or type_.shape is None:
        return False
    is_supported = size >= MIN_BLOCK_SIZE and size & (size - 1) == 0  # a power of two
    return is_supported and len(type_.shape) == 2 and node.attr("axis", 1) in (0, -2)


def has_vector_products(function: Function) -> bool:
    """Whether a MatMul in the Function or its bodies multiplies a tensor by a vector from the right.

    MatmulTransposeFusion of ONNX Runtime 1.31 is wrong for it: it ignores a transpose if the other operand is a vector.
    """
    for holder, node in function.walk():
        if node.op == "MatMul":
            types = [holder.get_type(name) for name in node.inputs]
            left, right = (type_.rank if isinstance(type_, TensorType) else None for type_ in types)
            if right == 1 and left != 1:
                return True
    return False


_REQUANTIZED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


def has_exact_weights(function: Function) -> bool:
    """Whether a product in the Function or its bodies has a dequantized first operand and floating-point weights.

    WeightBiasQuantization of ONNX Runtime 1.31 would quantize these weights. It first folds constants and moves dequantizations.
    """

    def is_dequantized(name: str, holder: Function) -> bool:
        source = holder.producer(name)
        # The library moves a dequantization behind these operators.
        while source is not None and (source.op in ("Dropout", "Pad") or has_trait(source, Trait.SELECTS)):
            source = holder.producer(source.inputs[0])
        return source is not None and source.op == "DequantizeLinear"

    def is_exact_constant(name: str, holder: Function) -> bool:
        source = holder.producer(name)
        # Follow the first inputs: a chain of operators on a constant, whose other inputs are constants, is folded to a constant.
        while source is not None and source.op != "DequantizeLinear":
            other_inputs = {operand for operand in source.inputs[1:] if operand}
            if not other_inputs <= holder.constants.keys():
                return False
            name = source.inputs[0] if source.inputs else ""
            source = holder.producer(name)
        return source is None and name not in {value.name for value in holder.inputs}

    products = ((holder, node.inputs) for holder, node in function.walk() if node.op in _REQUANTIZED)
    return any(is_dequantized(inputs[0], holder) and is_exact_constant(inputs[1], holder) for holder, inputs in products)
