"""Tables of the iree engine: operators that are decomposed, supported symbolic dims, and known issues."""

from __future__ import annotations

from xrt.engines.toolkit.known_issues import (
    KnownIssue,
    Predicate,
    always,
    casts_bfloat16,
    find_cast,
    find_dtype,
    find_shape,
    has_input,
)
from xrt.graph import DType, Function, Node
from xrt.operators import NodeWriter, find_constant
from xrt.operators.decompositions import write_decomposition

LOWERED = frozenset(
    {
        *("CastLike", "DepthToSpace", "Dropout", "Gelu", "LpNormalization", "Pad", "Pow", "RMSNormalization"),
        *("ReduceLogSumExp", "Softsign", "Swish"),
    }
)
"""Operators that IREE imports only for some types or attributes. XRT decomposes them if a decomposition is known."""
EXPANDED_BY_ONNX = frozenset({"Attention", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"})
"""Operators that IREE does not import. They are replaced by ONNX's function bodies."""
_SIZE_INDEPENDENT_NAMES = (
    "Abs Add And Cast Ceil Clip Concat Div Elu Equal Erf Exp Flatten Floor Gather Gelu Gemm Greater GreaterOrEqual HardSigmoid "
    "Identity LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax MatMul Max Min Mul Neg Not Or Pow Reciprocal "
    "ReduceMax ReduceMean ReduceMin ReduceSum Relu Reshape Round Selu Sigmoid Sign Slice Softmax Softplus Softsign "
    "Split Sqrt Squeeze Sub Swish Tanh Transpose Unsqueeze Where Xor"
)
SIZE_INDEPENDENT = frozenset(_SIZE_INDEPENDENT_NAMES.split())
"""Operators that, compiled once with symbolic dims, matched the reference at every tested size."""


def _has_dtype(*dtypes: DType) -> Predicate:
    return lambda node, function: find_dtype(node, 0, function) in dtypes


def _may_crop(node: Node, function: Function) -> bool:
    """Whether an amount of a Pad may be negative. Before opset 11 the amounts are attributes."""
    if not has_input(node, 1):
        return any(pad < 0 for pad in node.attr("pads", ()))
    pads = find_constant(node.inputs[1], function)
    return pads is None or bool((pads.array < 0).any())


def _may_step_backwards(node: Node, function: Function) -> bool:
    if not has_input(node, 4):
        return False
    steps = find_constant(node.inputs[4], function)
    return steps is None or bool((steps.array < 0).any())


def _returns_indices_of_several_planes(node: Node, function: Function) -> bool:
    """Whether a MaxPool returns indices, and its input may have more than one plane (a channel of an image)."""
    shape = find_shape(node, 0, function)
    returns_indices = len(node.outputs) > 1 and bool(node.outputs[1])
    return returns_indices and (shape is None or any(extent != 1 for extent in shape[:2]))


_SUMMING_OPS = (
    *("AveragePool", "CumSum", "Einsum", "GlobalAveragePool", "LogSoftmax", "LpNormalization", "LpPool"),
    *("MeanVarianceNormalization", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceSum"),
    "ReduceSumSquare",
)

ISSUES: tuple[KnownIssue, ...] = (
    KnownIssue(
        ("Cast", "CastLike"),
        casts_bfloat16,
        "IREE computes values between casts to and from bfloat16 in a wider type",
        (
            "compared with the reference: the casts float32_bfloat16_float32_Mul",
            "compared with the reference: the casts float16_bfloat16_float16",
        ),
    ),
    KnownIssue(
        ("Cast", "CastLike"),
        lambda node, function: find_cast(node, function) == (DType.FLOAT64, DType.FLOAT16),
        "IREE's cast of float64 to float16 turns numbers below the normal float16 range into zero",
        ("compared with the reference: the casts float64_float16_float64",),
    ),
    KnownIssue(
        ("Neg",),
        lambda node, function: not (find_dtype(node, 0, function) or DType.INT64).is_float,  # also if the type is unknown
        "IREE's Neg of integers goes through float32",
        ("opposite_of_the_lowest_integer of the corpus",),
    ),
    KnownIssue(
        _SUMMING_OPS,
        _has_dtype(DType.FLOAT16, DType.BFLOAT16),
        "IREE adds and squares float16 and bfloat16 in that type, so sums of some hundred numbers have errors of several percent",
        (
            "sum_of_many_halves of the corpus",
            "compared with toy: LogSoftmax and ReduceMean of 5,000 numbers are 9 and 57 % off, CumSum 16 %",
            "length_of_halves of the corpus",
            "length_of_small_halves of the corpus",
            "unit_length_of_halves of the corpus",
            "pool_of_lengths_of_halves of the corpus",
            "compared with toy: MeanVarianceNormalization of numbers up to 0.001 is infinite, ReduceSumSquare of them zero",
        ),
    ),
    KnownIssue(
        ("Slice",),
        _may_step_backwards,
        "IREE's Slice with a negative step returns no elements",
        ("slice_backwards of the corpus",),
    ),
    KnownIssue(
        ("AveragePool",),
        lambda node, function: bool(node.attr("ceil_mode", 0)),
        "IREE's AveragePool with ceil_mode counts elements beyond the padding, or returns sums if all windows fit",
        (
            "test_averagepool_3d_dilations_large_count_include_pad_is_1_ceil_mode_is_True",
            "mean_of_windows_that_fit of the corpus",
        ),
    ),
    KnownIssue(
        ("AveragePool",),
        lambda node, function: any(dilation != 1 for dilation in node.attr("dilations", ())),
        "IREE does not divide the sums of a dilated AveragePool",
        ("test_averagepool_2d_dilations", "test_averagepool_3d_dilations_small"),
    ),
    KnownIssue(
        ("GridSample",),
        always,
        "IREE's GridSample rounds to another element than ONNX, and reads outside of its input",
        ("test_gridsample_nearest", "test_gridsample_zeros_padding"),
    ),
    KnownIssue(
        ("Det",),
        always,
        "IREE's Det divides by pivots that are zero or small",
        ("test_det_2d",),
    ),
    KnownIssue(
        ("GRU", "LSTM", "RNN"),
        lambda node, function: has_input(node, 4),
        "IREE ignores the lengths of sequences",
        ("lengths_of_sequences of the corpus",),
    ),
    KnownIssue(
        ("LSTM",),
        lambda node, function: has_input(node, 7),
        "IREE ignores the peepholes of LSTM",
        ("test_lstm_with_peepholes",),
    ),
    KnownIssue(
        ("Acos", "Asin", "Atan", "Erf", "Gelu", "Mish", "Tanh"),
        _has_dtype(DType.FLOAT64),
        "IREE has no tanh, error function or inverse trigonometric functions of float64",
        (
            "error_function_of_float64 of the corpus",
            "gelu_of_float64 of the corpus: refused when compiled, with the whole region",
            "functions_of_float64 of the corpus: undefined symbols tanh, acos, asin, atan",
        ),
    ),
    KnownIssue(
        ("GRU", "LSTM", "RNN"),
        lambda node, function: _has_dtype(DType.FLOAT64)(node, function) and "Tanh" in node.attr("activations", ("Tanh",)),
        "IREE has no tanh of float64",
        ("recurrence_of_float64 of the corpus: undefined symbol tanh",),
    ),
    KnownIssue(
        ("LpNormalization", "ReduceL2"),
        _has_dtype(DType.FLOAT64),
        "IREE computes norms of float64 in float32",
        ("float64_of_constants of the corpus",),
    ),
    KnownIssue(
        ("Selu",),
        _has_dtype(DType.FLOAT64),
        "IREE's factors of Selu have only six digits",
        ("compared with the reference: float64 numbers differ by 1e-6",),
    ),
    KnownIssue(
        ("QLinearMatMul",),
        lambda node, function: len(find_shape(node, 0, function) or ()) != 2,
        "IREE's QLinearMatMul of stacks of matrices reads the wrong matrices",
        ("test_qlinearmatmul_3D_int8_float32",),
    ),
    KnownIssue(
        ("Resize", "Upsample"),
        lambda node, function: node.attr("coordinate_transformation_mode") == "align_corners" and not has_input(node, 3),
        "IREE aligns corners by the ratio of the rounded sizes, where ONNX aligns them by the scales",
        ("test_resize_downsample_scales_linear_align_corners", "test_resize_downsample_scales_cubic_align_corners"),
    ),
    KnownIssue(
        ("MaxPool",),
        _returns_indices_of_several_planes,
        "IREE's indices of MaxPool count from the start of each plane, ONNX's from the start of the tensor",
        ("indices_of_several_planes of the corpus",),
    ),
    KnownIssue(
        ("SpaceToDepth",),
        lambda node, function: node.attr("mode", "DCR") != "DCR",
        "IREE ignores the mode of SpaceToDepth",
        ("test_spacetodepth_crd_mode_example",),
    ),
    KnownIssue(
        ("Sin", "Cos", "Tan"),
        always,
        "IREE's sine loses a digit with each factor of ten in its argument, and is infinite for very large numbers",
        ("sine_of_large_numbers of the corpus",),
    ),
    KnownIssue(
        ("Asinh", "Acosh"),
        always,
        "IREE's inverse hyperbolic functions are infinite for large numbers",
        ("inverse_hyperbolic_of_large_numbers of the corpus",),
    ),
    KnownIssue(
        ("Sinh", "Cosh"),
        always,
        "IREE's hyperbolic functions are infinite from 88.7 on, although float32 could represent their values",
        ("hyperbolic_near_the_end of the corpus",),
    ),
    KnownIssue(
        ("Pow",),
        lambda node, function: write_decomposition(NodeWriter(node, function)) is None,
        "IREE computes powers by exponentials of logarithms, which are NaN for negative numbers",
        ("test_pow", "test_pow_bcast_array"),
    ),
    KnownIssue(
        ("Scatter", "RoiAlign", "MaxRoiPool", "MaxUnpool"),
        always,
        "IREE's code does not check indices, and reads or writes out of bounds",
        ("test_scatter_with_axis", "test_roialign_aligned_false"),
    ),
    KnownIssue(
        ("LRN",),
        lambda node, function: node.attr("size", 1) % 2 == 0,
        "IREE's LRN over an even number of channels sums other channels than ONNX's",
        ("lrn_of_an_even_size of the corpus",),
    ),
    KnownIssue(
        ("Pad",),
        _may_crop,
        "IREE's Pad treats a negative pad as an extent",
        ("negative_pad of the corpus",),
    ),
    KnownIssue(
        ("Div", "Mod", "Clip", "Abs", "MaxPool", "TopK", "ReduceMean", "AveragePool", "Neg"),
        lambda node, function: str(find_dtype(node, 0, function)).startswith("uint"),
        "IREE treats large unsigned numbers as negative in this operator",
        ("large_unsigned_numbers of the corpus",),
    ),
)


def list_fused_topk(function: Function) -> list[str]:
    """List the TopK nodes that IREE would fuse with an earlier TopK of equal axis and input type (two_topk of the corpus)."""
    seen = set()
    fused = []
    for node in function.nodes:
        if node.op == "TopK" and len(node.outputs) > 1:
            key = str(function.get_type(node.inputs[0])), node.attr("axis", -1)
            if key in seen:
                fused.append(node.name)
            seen.add(key)
    return fused
