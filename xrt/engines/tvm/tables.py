"""Tables of the tvm engine: element types, decomposed operators, operators that support symbolic dims, and known issues."""

from __future__ import annotations

from fractions import Fraction

from xrt.engines.toolkit.known_issues import KnownIssue, always, attribute_is, casts_bfloat16, find_dtype, find_shape
from xrt.engines.toolkit.support import ELEMENTWISE
from xrt.graph import DType, Function, Node, TensorType
from xrt.operators import NodeWriter, Trait, find_constant, is_training, list_operators
from xrt.operators.decompositions import write_decomposition

_FLOATS = {DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64}
_INTEGERS = {DType.INT8, DType.INT16, DType.INT32, DType.INT64, DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64}
DTYPES = _FLOATS | _INTEGERS | {DType.BOOL}
LOWERED = frozenset(
    ["Celu", "Equal", "LayerNormalization", "Max", "Mean", "MeanVarianceNormalization", "Min", "Mish", "Pow", "Softplus", "Sum"]
)
"""Operators that TVM's importer makes wrong or slow. XRT decomposes them before the import, if a decomposition is known."""
STATIC_SCHEDULES = frozenset(
    ["Gemm", "LayerNormalization", "LogSoftmax", "MatMul", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Softmax"]
)
"""Operators that are two to three times as fast with static shapes."""
SIZE_INDEPENDENT = ELEMENTWISE.union(list_operators(Trait.REARRANGES), STATIC_SCHEDULES, ["Concat"])
"""Operators that, compiled once with symbolic dims, matched the reference at every tested size."""
CONSTANT_OPERANDS = {"CumSum": (1,), "OneHot": (2,), "Pad": (2,), "Resize": (1,), "Trilu": (1,)}
"""Indices of inputs that TVM's importer needs as constants, in addition to those of `list_shape_operands`."""


def _has_negative_axis_and_indices(node: Node, function: Function) -> bool:
    """Whether the axis of a Gather is negative, but not the first axis (``-rank``), and its indices may be negative too."""
    axis, rank = node.attr("axis", 0), len(find_shape(node, 0, function) or ())
    if axis >= 0 or axis == -rank:
        return False
    indices = find_constant(node.inputs[1], function)
    return indices is None or bool((indices.array < 0).any())


_SORTABLE_DTYPES = {DType.FLOAT16, DType.FLOAT32, DType.FLOAT64, DType.INT8, DType.UINT8, DType.INT32, DType.INT64}
"""Element types that TVM's TopK supports."""


def _scales_by_a_fraction(node: Node, function: Function) -> bool:
    """Whether a dim times its scale is not an integer. TVM would resize by the ratio of the rounded sizes instead."""
    # Upsample, and Resize before opset 11, have the inputs X and scales; later ones have X, roi, scales and sizes.
    scales = find_constant(node.inputs[2 if len(node.inputs) > 2 else -1], function)
    shape = find_shape(node, 0, function)
    if scales is None or not scales.array.size or shape is None:
        return False
    axes = node.attr("axes") or range(len(shape))
    products = [shape[axis] * float(scale) for axis, scale in zip(axes, scales.array, strict=False)]
    return any(product != round(product) for product in products)


def _has_inexact_positions(node: Node, function: Function) -> bool:
    """Whether a nearest-neighbor resize reads at positions that are not exact in binary.

    TVM multiplies by a rounded ratio, so a position at the boundary of two elements may be computed on either side of it.
    """
    types = [function.get_type(name) for name in (node.inputs[0], node.outputs[0])]
    shapes = [type_.shape for type_ in types if isinstance(type_, TensorType) and type_.shape is not None]
    if node.attr("mode", "nearest") != "nearest" or len(shapes) != 2:
        return False
    # Aligned corners have the ratio of sizes minus 1.
    reduction = 1 if node.attr("coordinate_transformation_mode") == "align_corners" else 0
    resized = ((a, b) for a, b in zip(*shapes, strict=True) if isinstance(a, int) and isinstance(b, int) and a != b)
    denominators = (Fraction(source - reduction, max(target - reduction, 1)).denominator for source, target in resized)
    return any(denominator & (denominator - 1) for denominator in denominators)  # not a power of two


def _may_shift_out(node: Node, function: Function) -> bool:
    """Whether a BitShift may shift by the width of its type or more, or by a negative amount."""
    amount, dtype = find_constant(node.inputs[1], function), find_dtype(node, 0, function)
    return amount is None or dtype is None or bool(((amount.array < 0) | (amount.array >= dtype.bits)).any())


ISSUES: tuple[KnownIssue, ...] = (
    KnownIssue(
        ("Cast", "CastLike"),
        casts_bfloat16,
        "TVM computes bfloat16 in float32, and drops the rounding of a cast",
        (
            "compared with the reference: the casts float32_bfloat16_float32",
            "compared with the reference: the casts Mul_bfloat16_float32",
        ),
    ),
    KnownIssue(
        ("InstanceNormalization", "LpPool", "MeanVarianceNormalization", "ReduceL2", "ReduceSumSquare"),
        lambda node, function: find_dtype(node, 0, function) is DType.FLOAT16,
        "TVM squares float16 in float16, where 256 squared is infinite and 0.0001 squared is zero",
        (
            "length_of_halves of the corpus",
            "length_of_small_halves of the corpus",
            "pool_of_lengths_of_halves of the corpus",
            "compared with toy: InstanceNormalization of numbers from -300 to 300 is one",
        ),
    ),
    KnownIssue(
        ("BatchNormalization", "Dropout"),
        is_training,
        "TVM's importer ignores the training mode",
        ("test_batchnorm_example_training_mode", "test_training_dropout"),
    ),
    KnownIssue(
        ("Resize", "Upsample"),
        _scales_by_a_fraction,
        "TVM resizes by the ratio of the rounded sizes, where ONNX resizes by the scales",
        ("test_resize_downsample_scales_linear", "test_resize_downsample_scales_cubic"),
    ),
    KnownIssue(
        ("Resize", "Upsample"),
        _has_inexact_positions,
        "TVM rounds the position of the nearest element, so that ties depend on the processor",
        ("test_resize_upsample_sizes_nearest with constant sizes, with tvm{mcpu=haswell}",),
    ),
    KnownIssue(
        ("Resize",),
        attribute_is("antialias", 1),
        "TVM's importer ignores antialias",
        ("test_resize_downsample_sizes_linear_antialias",),
    ),
    KnownIssue(
        ("LeakyRelu", "HardSigmoid"),
        lambda node, function: find_dtype(node, 0, function) is DType.FLOAT64 and node.attr("alpha") is None,
        "TVM's importer uses a float64 default of alpha, where an ONNX attribute is float32",
        ("slope_by_default_in_float64 of the corpus",),
    ),
    KnownIssue(
        ("TopK",),
        lambda node, function: find_dtype(node, 0, function) not in _SORTABLE_DTYPES,
        "TVM's TopK fails at run time for elements of this type",
        ("test_top_k_uint64",),
    ),
    KnownIssue(
        ("MaxRoiPool", "RoiAlign"),
        always,
        "TVM does not check the boxes and batch indices of this operator, and reads out of bounds",
        (
            "compared with the reference: a batch index of 10**9, and boxes with infinite corners",
            "regions_of_a_scaled_image of the corpus",
            "test_roialign_mode_max",
        ),
    ),
    KnownIssue(
        ("IsInf",),
        lambda node, function: not (node.attr("detect_negative", 1) and node.attr("detect_positive", 1)),
        "TVM's importer ignores the attributes of IsInf",
        ("test_isinf_negative", "test_isinf_positive"),
    ),
    KnownIssue(
        ("BitShift",),
        _may_shift_out,
        "TVM's result of a shift by the width of the type or more depends on the processor",
        ("compared with the reference: int32 shifted by 32, 99 and -1",),
        upstream="https://onnx.ai/onnx/operators/onnx__BitShift.html",
    ),
    KnownIssue(
        ("SpaceToDepth",),
        lambda node, function: node.attr("mode", "DCR") != "DCR",
        "TVM's importer ignores the mode of SpaceToDepth",
        ("test_spacetodepth_crd_mode_example",),
    ),
    KnownIssue(
        ("NonMaxSuppression",),
        always,
        "the number of boxes that NonMaxSuppression returns depends on the data, and TVM returns the maximum number",
        ("test_nonmaxsuppression_single_box", "test_nonmaxsuppression_suppress_by_IOU"),
    ),
    KnownIssue(
        ("Pow",),
        lambda node, function: find_dtype(node, 0, function) not in _FLOATS,
        "TVM has no Pow of integers",
        ("test_pow_types_int32_int32",),
    ),
    KnownIssue(
        ("Pow",),
        lambda node, function: (
            find_dtype(node, 0, function) is not find_dtype(node, 1, function)
            and write_decomposition(NodeWriter(node, function)) is None
        ),
        "TVM's importer does not support a base and an exponent of different types",
        ("test_pow_types_float32_int64",),
    ),
    KnownIssue(
        ("RMSNormalization",),
        lambda node, function: node.attr("axis", -1) in (0, -len(find_shape(node, 0, function) or ())),
        "TVM's RMSNormalization over every axis has no loops",
        ("test_rms_normalization_4d_axis0", "test_rms_normalization_2d_axis_negative_2"),
    ),
    KnownIssue(
        ("Gather",),
        _has_negative_axis_and_indices,
        "TVM counts a negative index of Gather from the end of the first axis, where the axis itself is counted from the end",
        ("gathered_from_both_ends of the corpus",),
    ),
    KnownIssue(
        ("Tile",),
        lambda node, function: node.device.partition(":")[0] in ("", "cpu"),
        "LLVM 22 vectorizes TVM's loops for some Tiles wrongly",
        ("compared with the reference: 3 of 90 random Tiles with AVX-512; float32[3,4,5] by (6,4,2)",),
    ),
    KnownIssue(
        ("Attention",),
        always,
        "TVM's importer treats Attention as the operator of the same name in com.microsoft",
        ("test_attention_4d",),
    ),
)
