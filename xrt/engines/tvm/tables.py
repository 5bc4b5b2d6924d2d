"""Tables of the tvm engine: element types, decomposed operators, operators that support symbolic dims, and known issues."""

from __future__ import annotations

from fractions import Fraction

from xrt.engines.toolkit.known_issues import KnownIssue, always, attribute_is, casts_bfloat16, find_cast, find_dtype, find_shape
from xrt.engines.toolkit.support import ELEMENTWISE
from xrt.graph import DType, Function, Node, TensorType, since_version
from xrt.operators import Trait, find_constant, has_trait, is_training, list_operators

_FLOATS = {DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64}
_INTEGERS = {DType.INT8, DType.INT16, DType.INT32, DType.INT64, DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64}
DTYPES = _FLOATS | _INTEGERS | {DType.BOOL}
LOWERED = frozenset(
    ["Celu", "Equal", "LayerNormalization", "Max", "Mean", "MeanVarianceNormalization", "Min", "Mish", "Softplus", "Sum"]
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


def _has_inexact_ties(node: Node, function: Function) -> bool:
    """Whether a nearest-neighbor resize reads at the boundary between two elements, at a position that float32 cannot represent.

    TVM multiplies by a rounded ratio, so the computed position may be on either side of the boundary.
    """
    before, after = (function.get_type(name) for name in (node.inputs[0], node.outputs[0]))
    shapes = [type_.shape for type_ in (before, after) if isinstance(type_, TensorType) and type_.shape is not None]
    if node.attr("mode", "nearest") != "nearest" or len(shapes) != 2:
        return False
    # Before opset 11 there is only one mode: position = index * ratio, rounded down.
    has_fixed_coordinates = node.op_type == "Upsample" or (since_version(node, function) or 0) < 11
    coordinates = "asymmetric" if has_fixed_coordinates else node.attr("coordinate_transformation_mode", "half_pixel")
    rounding = "floor" if has_fixed_coordinates else node.attr("nearest_mode", "round_prefer_floor")
    # Rounding selects another element from each half on, floor and ceil from each integer on.
    boundary = Fraction(1, 2) if rounding.startswith("round") else Fraction(0)
    resized = ((a, b) for a, b in zip(*shapes, strict=True) if isinstance(a, int) and isinstance(b, int) and a != b)
    return any(_reads_at_boundary(source, target, coordinates, boundary) for source, target in resized)


def _reads_at_boundary(source: int, target: int, coordinates: str, boundary: Fraction) -> bool:
    """Whether resizing a dim from ``source`` to ``target`` elements reads an inexact position at an integer plus ``boundary``."""
    # The position of element i in the source is (i + offset) * ratio - offset. Aligned corners have the ratio of sizes minus 1.
    reduction = 1 if coordinates == "align_corners" else 0
    ratio = Fraction(source - reduction, max(target - reduction, 1))
    if ratio.denominator & (ratio.denominator - 1) == 0:  # a power of two: all positions are exact in binary
        return False
    offset = Fraction(1, 2) if coordinates in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel") else Fraction(0)
    # Without an offset the first position is 0, which is exact.
    positions = ((index + offset) * ratio - offset for index in range(0 if offset else 1, target))
    return any((position - boundary).denominator == 1 for position in positions)


def _widens_wrapped_integers(node: Node, function: Function) -> bool:
    """Whether a Cast widens an int32 that was computed by arithmetic, and so may have wrapped around."""
    if find_cast(node, function) not in ((DType.INT32, DType.INT64), (DType.INT32, DType.UINT64)):
        return False
    producer = function.producer(node.inputs[0])
    while producer is not None and has_trait(producer, Trait.SELECTS):
        producer = function.producer(producer.inputs[0])
    return producer is not None and producer.op_type not in _NEVER_WRAP


_NEVER_WRAP = {"ArgMax", "ArgMin", "Cast", "Clip", "Constant", "ConstantOfShape", "Max", "Min", "Mod", "Sign", "Where"}
"""Operators whose result cannot exceed the range of its integer type."""
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
        ("Cast", "CastLike"),
        _widens_wrapped_integers,
        "TVM computes an int32 that is later cast to 64 bits in 64 bits from the start, so it does not wrap around",
        (
            "compared with the reference: the casts Mul_int32_int64",
            "compared with the reference: the casts int64_int32_int64_Mul",
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
        _has_inexact_ties,
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
        ("RoiAlign",),
        lambda node, function: (
            function.opset() >= 16  # earlier opsets have no half-pixel offset
            and node.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel"
            and node.attr("spatial_scale", 1.0) != 1.0
        ),
        "TVM's RoiAlign also multiplies the half-pixel offset by spatial_scale",
        ("regions_of_a_scaled_image of the corpus",),
    ),
    KnownIssue(
        ("RoiAlign",),
        attribute_is("mode", "max"),
        "TVM's RoiAlign with mode=max selects the largest sample, where ONNX selects the largest weighted corner",
        ("test_roialign_mode_max",),
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
        ("Attention",),
        always,
        "TVM's importer treats Attention as the operator of the same name in com.microsoft",
        ("test_attention_4d",),
    ),
)
