"""Tables of the tvm engine: element types, operators that are decomposed, supported symbolic dims, and known issues."""

from __future__ import annotations

from fractions import Fraction

from xrt.engines.toolkit.known_issues import KnownIssue, always, attribute_is, casts_bfloat16, find_cast, find_dtype, find_shape
from xrt.engines.toolkit.support import ELEMENTWISE
from xrt.graph import DType, Function, Node, TensorType, since_version
from xrt.operators import Trait, find_value, has_trait, is_training, list_operators, list_shape_operands

_FLOATS = {DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64}
_INTEGERS = {DType.INT8, DType.INT16, DType.INT32, DType.INT64, DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64}
DTYPES = _FLOATS | _INTEGERS | {DType.BOOL}


LOWERED = frozenset(
    {
        *("Celu", "Equal", "LayerNormalization", "Max", "Mean", "MeanVarianceNormalization", "Min", "Mish", "Softplus", "Sum"),
    }
)
"""Operators that are wrong or slow as TVM imports them: decomposed where possible."""
STATIC_SCHEDULES = frozenset(
    ["Gemm", "LayerNormalization", "LogSoftmax", "MatMul", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Softmax"]
)
"""Operators whose schedules need static sizes."""
AT_EVERY_SIZE = ELEMENTWISE.union(list_operators(Trait.REARRANGES), STATIC_SCHEDULES, ["Concat"])
"""Operators that matched the reference at every size when compiled with symbolic dims."""
_READ_AT_IMPORT = {"CumSum": (1,), "OneHot": (2,), "Pad": (2,), "Resize": (1,), "Trilu": (1,)}
"""Positions of inputs that the importer needs as constants, in addition to shape operands."""


def positions_read_at_import(op_type: str) -> tuple[int, ...]:
    """Positions of inputs that the importer needs as constants."""
    return (*list_shape_operands(op_type), *_READ_AT_IMPORT.get(op_type, ()))


def _is_integer(node: Node, function: Function) -> bool:
    dtype = find_dtype(node, 0, function)
    return dtype is None or not dtype.is_float


def _gathers_from_both_ends(node: Node, function: Function) -> bool:
    """Whether the axis is negative and not the first, and indices may be negative too."""
    rank, indices = len(find_shape(node, 0, function) or ()), find_value(node.inputs[1], function)
    return -rank != node.attr("axis", 0) < 0 and (indices is None or bool((indices.array < 0).any()))


_SORTABLE = {DType.FLOAT16, DType.FLOAT32, DType.FLOAT64, DType.INT8, DType.UINT8, DType.INT32, DType.INT64}


def _scales_by_a_fraction(node: Node, function: Function) -> bool:
    """Whether an extent times its scale is not whole; TVM then scales by the rounded size instead."""
    scales = find_value(node.inputs[-1 if len(node.inputs) < 3 else 2], function)
    shape = find_shape(node, 0, function)
    if scales is None or not scales.array.size or shape is None:
        return False
    axes = node.attr("axes") or range(len(shape))
    products = [shape[axis] * float(scale) for axis, scale in zip(axes, scales.array, strict=False)]
    return any(product != round(product) for product in products)


def _has_inexact_ties(node: Node, function: Function) -> bool:
    """Whether a nearest-neighbor position is a tie, and the ratio of the extents is not a power of two.

    The library multiplies by a rounded ratio, so that the position may fall on either side.
    """
    before, after = (function.get_type(name) for name in (node.inputs[0], node.outputs[0]))
    shapes = [type_.shape for type_ in (before, after) if isinstance(type_, TensorType) and type_.shape is not None]
    if node.attr("mode", "nearest") != "nearest" or len(shapes) != 2:
        return False
    has_fixed_coordinates = node.op_type == "Upsample" or (since_version(node, function) or 0) < 11
    coordinates = "asymmetric" if has_fixed_coordinates else node.attr("coordinate_transformation_mode", "half_pixel")
    nearest = "floor" if has_fixed_coordinates else node.attr("nearest_mode", "round_prefer_floor")
    extents = ((a, b) for a, b in zip(*shapes, strict=True) if isinstance(a, int) and isinstance(b, int) and a != b)
    return any(_meets_tie(a, b, coordinates, is_rounded=nearest.startswith("round")) for a, b in extents)


def _meets_tie(extent: int, target: int, coordinates: str, *, is_rounded: bool) -> bool:
    """Whether a Resize samples on a boundary: ``(i + c) * extent / target - c`` is an integer, or with ``is_rounded`` a half."""
    is_aligned, centre = coordinates == "align_corners", int(coordinates in _CENTRED)
    ratio = Fraction(extent - is_aligned, max(target - is_aligned, 1))
    p, q = ratio.numerator, ratio.denominator
    if q & (q - 1) == 0:  # exact in binary, as are its multiples
        return False
    first = 1 - centre  # position 0 is exact without an offset
    return any(((2 * i + centre) * p - (centre + is_rounded) * q) % (2 * q) == 0 for i in range(first, target))


_CENTRED = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")


def _widens_wrapped_integers(node: Node, function: Function) -> bool:
    """Whether an int32 result of arithmetic, which may have wrapped around, is cast to a wider integer."""
    if find_cast(node, function) not in ((DType.INT32, DType.INT64), (DType.INT32, DType.UINT64)):
        return False
    producer = function.producer(node.inputs[0])
    while producer is not None and has_trait(producer, Trait.SELECTS):
        producer = function.producer(producer.inputs[0])
    return producer is not None and producer.op_type not in _NEVER_WRAP


_NEVER_WRAP = {"ArgMax", "ArgMin", "Cast", "Clip", "Constant", "ConstantOfShape", "Max", "Min", "Mod", "Sign", "Where"}
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
        "TVM computes an int32 that is cast to 64 bits in 64 bits from the start, where nothing wraps around",
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
        "TVM's importer takes the default of alpha as a float64 number, where an ONNX attribute is a float32 one",
        ("slope_by_default_in_float64 of the corpus",),
    ),
    KnownIssue(
        ("TopK",),
        lambda node, function: find_dtype(node, 0, function) not in _SORTABLE,
        "TVM's TopK fails at run time for elements of this type",
        ("test_top_k_uint64",),
    ),
    KnownIssue(
        ("RoiAlign",),
        lambda node, function: (
            function.opset() >= 16  # where half pixels came
            and node.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel"
            and node.attr("spatial_scale", 1.0) != 1.0
        ),
        "TVM scales the half pixel of a RoiAlign too",
        ("regions_of_a_scaled_image of the corpus",),
    ),
    KnownIssue(
        ("RoiAlign",),
        attribute_is("mode", "max"),
        "TVM's RoiAlign of mode max takes the largest sample where ONNX takes the largest weighted corner",
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
        "how many boxes NonMaxSuppression returns depends on the data, and TVM returns the most there could be",
        ("test_nonmaxsuppression_single_box", "test_nonmaxsuppression_suppress_by_IOU"),
    ),
    KnownIssue(
        ("Pow",),
        _is_integer,
        "TVM has no power of integers",
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
        _gathers_from_both_ends,
        "TVM counts a negative index of Gather from the end of the first axis, where the axis itself is counted from the end",
        ("gathered_from_both_ends of the corpus",),
    ),
    KnownIssue(
        ("Attention",),
        always,
        "TVM's importer takes Attention for the operator of that name in com.microsoft",
        ("test_attention_4d",),
    ),
)
