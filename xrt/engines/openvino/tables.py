"""Tables of the openvino engine: supported operators with their element types, and known issues.

Each row of ISSUES and DYNAMIC_SHAPE_ISSUES makes some nodes unsupported, with a reason and evidence. If the condition of a row
depends on a size that is unknown, the row applies: a node that is declined without need runs on another engine, but a node that
is accepted by mistake gives wrong results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from xrt.engines.openvino.library import LIBRARY
from xrt.engines.toolkit.known_issues import (
    DFT_AXIS_INPUT_OPSET,
    KnownIssue,
    Predicate,
    always,
    attribute_is,
    find_cast,
    find_constant_input,
    find_dtype,
    find_shape,
    has_input,
    is_whole,
    match_known_issue,
    may_be_inexact_transform,
)
from xrt.engines.toolkit.support import has_symbolic_dims
from xrt.graph import DType, Function, Node, TensorType, find_schema, since_version
from xrt.operators import is_training

# Indices of inputs.
_ATTN_MASK = 3
_PAST_KEY = 4
_NONPAD_KV_SEQLEN = 6
_LSTM_PEEPHOLES = 7

FLOAT16S = frozenset({DType.FLOAT16, DType.BFLOAT16})
FLOATS = FLOAT16S | {DType.FLOAT32}
BOOL = frozenset({DType.BOOL})
INT8S = frozenset({DType.INT8, DType.UINT8})
INT16S = frozenset({DType.INT16, DType.UINT16})
INT32S_INT64S = frozenset({DType.INT32, DType.INT64, DType.UINT32, DType.UINT64})
"""OpenVINO computes these types in int32. Overflow is declared as a deviation of the engine."""
INTEGERS = INT8S | INT16S | INT32S_INT64S
ANY = FLOATS | BOOL | INTEGERS


def _make_rows(
    operators: str, dtypes: frozenset[DType], input_index: int = 0
) -> Iterator[tuple[str, tuple[frozenset[DType], int]]]:
    """Make one row of `EXPORTED` per operator. ``input_index`` is the index of the input that must have one of the types."""
    return ((operator, (dtypes, input_index)) for operator in operators.split())


EXPORTED: Mapping[str, tuple[frozenset[DType], int]] = dict(
    [
        # elements moved unchanged, or not read
        *_make_rows("Cast CastLike Constant EyeLike If NonZero Scan Shape Size", ANY),
        *_make_rows("CenterCropPad Concat DepthToSpace Expand Flatten Gather GatherElements GatherND Identity Reshape", ANY),
        *_make_rows("Pad Scatter ScatterElements ScatterND Slice SpaceToDepth Split Squeeze Tile Transpose Trilu Unsqueeze", ANY),
        *_make_rows("Where", ANY, input_index=1),
        *_make_rows("Loop", ANY, input_index=2),
        *_make_rows("Col2Im", FLOATS - {DType.BFLOAT16} | BOOL | INT8S | INT16S | {DType.INT32}),
        *_make_rows("ReverseSequence", ANY - {DType.BFLOAT16}),
        *_make_rows("ConstantOfShape", frozenset({DType.INT64})),
        *_make_rows("Range", frozenset({DType.FLOAT32, DType.INT16}) | INT32S_INT64S),
        *_make_rows("OneHot", INTEGERS),
        *_make_rows("Unique", frozenset({DType.FLOAT32}) | INT16S | INT32S_INT64S),
        # elementwise
        *_make_rows("Add Mul Sub Neg", FLOATS | INT32S_INT64S),
        *_make_rows("Max Min", FLOATS | INTEGERS),
        *_make_rows("Abs", FLOATS | {DType.UINT8} | INT32S_INT64S),
        *_make_rows("Div", FLOATS | INTEGERS),
        *_make_rows("Mod", INTEGERS),
        *_make_rows("Relu", FLOATS | {DType.INT8, DType.INT16}),
        *_make_rows("Clip Sign", FLOATS | INTEGERS),
        *_make_rows("Equal", FLOATS | BOOL | INTEGERS),
        *_make_rows("Greater GreaterOrEqual Less LessOrEqual", FLOATS | INTEGERS),
        *_make_rows("And Not Or Xor", BOOL),
        *_make_rows("BitShift", frozenset({DType.UINT16})),
        *_make_rows("BitwiseAnd BitwiseNot BitwiseOr BitwiseXor", INT8S | INT16S | {DType.INT32}),
        *_make_rows("Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Dropout Elu Erf Exp Floor Gelu HardSigmoid", FLOATS),
        *_make_rows("HardSwish IsInf IsNaN LeakyRelu Log Mean Mish PRelu Pow Reciprocal Round Selu Shrink Sigmoid", FLOATS),
        *_make_rows("Sin Sinh Softplus Softsign Sqrt Sum Swish Tan Tanh ThresholdedRelu", FLOATS),
        # along axes and in windows
        *_make_rows("Attention LRN LayerNormalization LpNormalization MeanVarianceNormalization RMSNormalization", FLOATS),
        *_make_rows("BatchNormalization GroupNormalization InstanceNormalization RotaryEmbedding", FLOATS),
        *_make_rows("AveragePool Conv ConvTranspose GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool", FLOATS),
        *_make_rows("MaxPool", FLOATS | INT8S),
        *_make_rows("NonMaxSuppression", frozenset({DType.FLOAT32})),
        *_make_rows("AffineGrid GridSample Resize RoiAlign Upsample", FLOATS),
        *_make_rows("Einsum Gemm MatMul GRU LSTM RNN", FLOATS),
        *_make_rows("Hardmax LogSoftmax NegativeLogLikelihoodLoss Softmax SoftmaxCrossEntropyLoss", FLOATS),
        *_make_rows("ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean ReduceSumSquare", FLOATS),
        *_make_rows("ReduceProd ReduceSum", FLOATS | INT32S_INT64S),
        *_make_rows("ReduceMax ReduceMin", FLOATS | BOOL | INT8S | INT32S_INT64S),
        *_make_rows("ArgMax ArgMin", FLOATS | INTEGERS),
        *_make_rows("CumSum", FLOATS | INT32S_INT64S),
        *_make_rows("DFT STFT", frozenset({DType.FLOAT32})),
        *_make_rows("BlackmanWindow HammingWindow HannWindow", frozenset({DType.INT32, DType.INT64})),
        *_make_rows("TopK", FLOATS | INTEGERS),
        # quantized numbers
        *_make_rows("ConvInteger MatMulInteger QLinearConv QLinearMatMul", INT8S),
        *_make_rows("DequantizeLinear", INT8S | INT16S | {DType.INT32}),
        *_make_rows("QuantizeLinear", FLOATS),
        *_make_rows("DynamicQuantizeLinear", frozenset({DType.FLOAT32})),
    ]
)
"""For each supported operator of OpenVINO 2026.4: the element types for which its results match the reference on ordinary
values, and the index of the input that must have one of these types.

The types were determined by tests, because the plugin accepts every type, but computes only in float32, int32, int8, uint8 and
bool. Sums of int8 and uint8 saturate, so Add does not list these types."""


def why_not_computed(node: Node, function: Function) -> str | None:
    """Explain that `EXPORTED` lacks the operator, or this element type for it; None if it contains both."""
    if node.op_type not in EXPORTED:
        return f"{LIBRARY} does not support {node.op}, or computes it differently from ONNX"
    dtypes, _ = EXPORTED[node.op_type]
    data = list_data_inputs(node, function)
    for name in dict.fromkeys((*node.uses, *node.defined_names)):
        type_ = function.get_type(name)
        if not isinstance(type_, TensorType):
            continue
        # float64 silently loses precision, even in operators that only move values.
        if type_.dtype is DType.FLOAT64:
            return f"{name!r} is float64, and {LIBRARY} computes float64 in float32"
        if name in data and type_.dtype not in dtypes:
            return f"{LIBRARY} computes {node.op} in {', '.join(sorted(map(str, dtypes)))}, and {name!r} is {type_.dtype}"
    return None


def list_data_inputs(node: Node, function: Function) -> frozenset[str]:
    """List the inputs and outputs that have the element type of the operator's row in `EXPORTED`, by name.

    In ONNX's schema they share the type variable of the input that the row names. Others are, for example, indices and sizes.
    """
    schema = find_schema(node.op_type, since_version(node, function) or 1)
    if node.op_type not in EXPORTED or schema is None or not schema.inputs:
        return frozenset(node.uses)
    _, input_index = EXPORTED[node.op_type]
    main = schema.inputs[min(input_index, len(schema.inputs) - 1)]
    names = set()
    for formals, actual_names in ((schema.inputs, node.inputs), (schema.outputs, node.outputs)):
        for index, name in enumerate(actual_names):
            # The last formal parameter also describes the variadic values.
            if name and formals and formals[min(index, len(formals) - 1)].type_str == main.type_str:
                names.add(name)
    return frozenset(names)


def _is_computed(index: int) -> Predicate:
    """Make a predicate: whether the node has input ``index``, and it is not a constant."""
    return lambda node, function: has_input(node, index) and find_constant_input(node, index, function) is None


def _flattens_axes(node: Node, function: Function) -> bool:
    """Whether a Softmax before opset 13, which flattens all axes from ``axis`` on, may flatten several larger than 1."""
    if (since_version(node, function) or 0) >= 13:
        return False
    shape = find_shape(node, 0, function)
    if shape is None:
        return True
    flattened = shape[node.attr("axis", 1) :]
    return any(extent != 1 for extent in flattened[1:])


def may_mask_all_keys(node: Node, function: Function) -> bool:
    """Whether an Attention may mask all keys of a query: it has a boolean mask, or lengths of padded keys.

    In ONNX the result of such a query is zero, which OpenVINO's own Attention computes for static shapes. ONNX's decomposition
    would give wrong results: it expects a maximum of -inf, and OpenVINO's ReduceMax returns the lowest finite number instead.
    """
    return has_input(node, _NONPAD_KV_SEQLEN) or find_dtype(node, _ATTN_MASK, function) is DType.BOOL


def _multiplies_vector_by_scaled_weights(node: Node, function: Function) -> bool:
    """Whether a MatMul may have a vector as an operand, and weights that are dequantized with several scales."""
    shapes = [find_shape(node, index, function) for index in (0, 1)]
    if all(shape is not None and len(shape) != 1 for shape in shapes):
        return False
    # OpenVINO 2026.4.1 moves scales through operators such as Transpose, Mul, Gather and Pad, so search the producers of their
    # inputs. It does not move scales through another product, so stop there.
    seen = {""}  # absent inputs have the name ""
    remaining = list(node.inputs)
    while remaining:
        name = remaining.pop()
        producer = None if name in seen else function.producer(name)
        seen.add(name)
        if producer is not None and producer.op_type == "DequantizeLinear":
            if _may_have_several_scales(producer, function):
                return True
        elif producer is not None and producer.op_type not in ("Conv", "Gemm", "MatMul"):
            remaining += producer.inputs
    return False


def _may_have_several_scales(node: Node, function: Function) -> bool:
    """Whether a (De)QuantizeLinear may have more than one scale."""
    return find_shape(node, 1, function) != ()


def _is_strided_pointwise_with_padding(node: Node, function: Function) -> bool:
    """Whether a Conv may have kernel size 1, and has strides and padding."""
    kernel = (find_shape(node, 1, function) or (None, None, None))[2:]
    has_padding = any(node.attr("pads", ())) or node.attr("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")
    has_strides = any(stride > 1 for stride in node.attr("strides", ()))
    return has_padding and has_strides and all(extent in (1, None) for extent in kernel)


def _may_resize_to_fraction(node: Node, function: Function) -> bool:
    """Whether an output size of a Resize by scales, ``extent * scale``, may be a fraction in a mode that depends on the size."""
    if node.attr("coordinate_transformation_mode") not in ("align_corners", "pytorch_half_pixel"):
        return False
    scales, shape = find_constant_input(node, 2, function), find_shape(node, 0, function)
    if not has_input(node, 2) or has_input(node, 3):
        return False
    if scales is None or shape is None:
        return True
    axes = node.attr("axes") or range(len(shape))
    return not all(is_whole(shape[axis], float(scale)) for axis, scale in zip(axes, scales.array, strict=False))


def _adds_pooling_window(reaches: Callable[[int, int, int, int], bool]) -> Predicate:
    """Make a predicate: whether the last window of a pooling with ``ceil_mode`` satisfies, or may satisfy, ``reaches``.

    The arguments of ``reaches`` are four positions along one axis, counted from the start of the padding: the first and the last
    element of the window, the end of the data, and the end of the padding.
    """

    def applies(node: Node, function: Function) -> bool:
        if not node.attr("ceil_mode", 0):
            return False
        extents = (find_shape(node, 0, function) or ())[2:]
        # Without all sizes, assume that the condition holds.
        if not extents or not all(isinstance(e, int) for e in extents) or node.attr("auto_pad", "NOTSET") != "NOTSET":
            return True
        rank = len(extents)
        kernel = node.attr("kernel_shape")
        pads = node.attr("pads", (0,) * 2 * rank)
        ones = (1,) * rank
        strides, dilations = (node.attr(name, ones) for name in ("strides", "dilations"))
        for extent, size, stride, dilation, pad_before, pad_after in zip(
            extents, kernel, strides, dilations, pads, pads[rank:], strict=False
        ):
            data_end = pad_before + extent
            reach = dilation * (size - 1)  # from the first to the last element of a window
            # There are ceil((length - reach - 1) / stride) + 1 windows, and the last one begins here. -(-a // b) rounds up.
            first = -(-(data_end + pad_after - reach - 1) // stride) * stride
            if reaches(first, first + reach, data_end, data_end + pad_after):
                return True
        return False

    return applies


def _counts_beyond_padding(node: Node, function: Function) -> bool:
    """Whether a pooling divides by the size of its windows, and one may end after the padding."""
    counts = node.op_type == "LpPool" or bool(node.attr("count_include_pad", 0))
    return counts and _adds_pooling_window(lambda first, last, data_end, padding_end: last >= padding_end)(node, function)


def _splits_symbolic_extent(node: Node, function: Function) -> bool:
    """Whether a Split with ``num_outputs`` (opset 18) divides an axis whose extent is unknown before the run."""
    if not node.attr("num_outputs"):
        return False
    shape, axis = find_shape(node, 0, function), node.attr("axis", 0)
    return shape is None or not isinstance(shape[axis], int)


def _gathers_from_larger_data(node: Node, function: Function) -> bool:
    """Whether data and indices of a GatherElements may have different extents along an axis other than ``axis``."""
    data, indices = find_shape(node, 0, function), find_shape(node, 1, function)
    if data is None or indices is None or len(data) != len(indices):
        return True
    other_axes = set(range(len(data))) - {node.attr("axis", 0) % max(1, len(data))}
    return any(data[axis] is None or data[axis] != indices[axis] for axis in other_axes)


def _has_ambiguous_slopes(node: Node, function: Function) -> bool:
    """Whether a vector of slopes of a PRelu may fit axis 1, where OpenVINO applies it, and the last axis, where ONNX does."""
    shape, slopes = find_shape(node, 0, function), find_shape(node, 1, function)
    if shape is None or slopes is None:
        return True
    if len(slopes) != 1 or len(shape) <= 2:
        return False
    num_slopes, channels = slopes[0], shape[1]
    return num_slopes == channels or not (isinstance(num_slopes, int) and isinstance(channels, int))


def _may_be_empty_at_run_time(node: Node, function: Function) -> bool:
    """Whether the second input (a shape, axes or pads) is computed, and may be empty."""
    if not _is_computed(1)(node, function):
        return False
    shape = find_shape(node, 1, function)
    return shape is None or not (len(shape) == 1 and isinstance(shape[0], int) and shape[0] > 0)


def _is_constant_expression(node: Node, function: Function) -> bool:
    """Whether OpenVINO folds the node at compile time, because it depends neither on an input nor on a node with bodies."""
    seen = {""}  # absent inputs have the name ""
    remaining = list(node.inputs)
    while remaining:
        name = remaining.pop()
        if name in seen or name in function.constants:
            continue
        seen.add(name)
        producer = function.producer(name)
        if producer is None or producer.bodies:
            return False
        remaining += producer.inputs
    return True


def _is_empty_range(node: Node, function: Function) -> bool:
    """Whether a Range of constants steps away from its limit, and so is empty."""
    values = [find_constant_input(node, index, function) for index in range(3)]
    if None in values:
        return False
    start, limit, step = (constant.array.item() for constant in values if constant is not None)
    return bool((limit - start) * step < 0)


def _transforms_another_axis(node: Node, function: Function) -> bool:
    """Whether OpenVINO transforms another axis than a DFT specifies.

    Before opset 20 the axis is an attribute, and OpenVINO is wrong for a negative one. Since opset 20 the axis is an input, and
    OpenVINO transforms axis 1.
    """
    if (since_version(node, function) or 0) < DFT_AXIS_INPUT_OPSET:
        return bool(node.attr("axis", 1) < 0)
    constant = find_constant_input(node, 2, function)
    if has_input(node, 2) and constant is None:
        return True
    axis = -2 if constant is None else int(constant.array)  # the default, before the axis of real and imaginary parts
    rank = len(find_shape(node, 0, function) or ())
    return axis % max(rank, 1) != 1


def _may_crop_whole_axis(node: Node, function: Function) -> bool:
    """Whether the negative amounts of a Pad may crop more elements than an axis has."""
    constant = find_constant_input(node, 1, function)
    if constant is None and has_input(node, 1):
        return True  # computed amounts may be negative
    pads = node.attr("pads", ()) if constant is None else constant.array.reshape(-1).tolist()
    if min(pads, default=0) >= 0:
        return False
    shape = find_shape(node, 0, function)
    axes = find_constant_input(node, 3, function)
    if shape is None or (has_input(node, 3) and axes is None):
        return True
    extents = shape if axes is None else [shape[axis] for axis in axes.array.reshape(-1).tolist()]
    # The amounts before each axis come first, then the amounts after each axis.
    count = len(pads) // 2
    for extent, begin, end in zip(extents, pads[:count], pads[count:], strict=True):
        cropped = max(0, -begin) + max(0, -end)
        if cropped and (not isinstance(extent, int) or cropped > extent):
            return True
    return False


def _truncates_inside_region(node: Node, function: Function) -> bool:
    """Whether a cast to a 16-bit integer may truncate, and a node of the region reads the result: it gets the whole number."""
    source, target = find_cast(node, function)
    may_truncate = target in INT16S and source not in INT8S | BOOL | {target}
    return may_truncate and bool(function.users(node.outputs[0]))


def _may_stack_unknown_empty_rows(node: Node, function: Function) -> bool:
    """Whether a Loop may run no iteration, and has a scan output whose shape its body does not declare completely."""
    trip_count, condition = (find_constant_input(node, index, function) for index in (0, 1))
    has_trips = trip_count is not None and trip_count.array.item() > 0
    if has_trips and (not has_input(node, 1) or (condition is not None and condition.array.item())):
        return False
    # Inputs: the trip count, the condition, the loop-carried values. Outputs of the body: the condition, the loop-carried values,
    # the scan outputs.
    num_carried = len(node.inputs) - 2
    scan_types = [value.type for body in node.bodies for value in body.outputs[1 + num_carried :]]
    return not all(isinstance(type_, TensorType) and type_.is_static for type_ in scan_types)


ISSUES: tuple[KnownIssue, ...] = (
    KnownIssue(
        ("PRelu",),
        _has_ambiguous_slopes,
        "applies the slopes of a PRelu along the channels instead of the last axis if their number fits both",
        ("slopes_along_the_last_axis of the corpus",),
    ),
    KnownIssue(
        ("Tile",),
        _is_computed(1),
        "returns uninitialized memory for a Tile with computed repeats",
        ("test_tile",),
    ),
    KnownIssue(
        ("Expand",),
        lambda node, function: find_shape(node, 0, function) in ((), None) and _may_be_empty_at_run_time(node, function),
        "crashes the process when an Expand with a computed shape expands a scalar to a scalar",
        ("expanded_to_its_own_rank_0 of the corpus", "expanded_to_a_given_rank_0 of the corpus: fails when run"),
    ),
    KnownIssue(
        ("Pad", "Unsqueeze"),
        _may_be_empty_at_run_time,
        "does not convert this operator if its computed axes or pads may be empty",
        ("unsqueezed_by_no_axes of the corpus: refused when compiled, with the whole region",),
    ),
    KnownIssue(
        ("Pad",),
        _may_crop_whole_axis,
        "writes out of bounds and crashes the process when a negative pad crops more elements than the axis has",
        (
            "cut_off_more_than_there_is of the corpus: ends the process",
            "cut_off_more_at_run_time of the corpus: ends the process",
        ),
    ),
    KnownIssue(
        ("Div",),
        lambda node, function: find_dtype(node, 0, function) in INTEGERS and _is_constant_expression(node, function),
        "rounds the quotient of constant integers down",
        ("quotients_of_constants of the corpus: -7 / 2 is -4",),
    ),
    KnownIssue(
        ("Add", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Div", "Mod", "Mul", "Sub"),
        lambda node, function: find_dtype(node, 0, function) in (DType.UINT32, DType.UINT64),
        "computes unsigned integers of 32 and 64 bits in int32",
        ("hash_of_unsigned_integers of the corpus: with OpenVINO's own numbers the masks of a Dropout are empty",),
    ),
    KnownIssue(
        ("Abs",),
        lambda node, function: find_dtype(node, 0, function) in FLOAT16S and _is_constant_expression(node, function),
        "does not remove the sign when Abs reads a constant of 16 bits",
        ("absolute_value_of_constants of the corpus",),
    ),
    KnownIssue(
        ("Range",),
        _is_empty_range,
        "counts the steps of a Range that lead away from its limit",
        ("compared with the reference: from 5 to 0 by 1 gives five elements",),
    ),
    KnownIssue(
        ("MaxPool",),
        lambda node, function: node.attr("storage_order", 0) == 1 and len(node.outputs) > 1,
        "returns row-major Indices for a MaxPool with storage_order=1",
        ("indices_by_columns of the corpus",),
    ),
    KnownIssue(
        ("DFT", "STFT"),
        may_be_inexact_transform,
        "computes the angles of this transform in float32, so that its error is beyond 1e-4 of the largest element",
        ("compared with NumPy: a length of 1,000 leaves 1.5e-4, one of 1,024 3e-7",),
    ),
    KnownIssue(
        ("Split",),
        _splits_symbolic_extent,
        "fails at run time to split an extent that is not a multiple of the number of parts, and is not known earlier",
        ("split_unevenly_at_an_open_extent of the corpus",),
    ),
    KnownIssue(
        ("GatherElements",),
        _gathers_from_larger_data,
        "supports a GatherElements only if data and indices have equal extents along the other axes",
        ("gather_elements_of_an_open_shape of the corpus",),
    ),
    KnownIssue(
        ("DFT",),
        _transforms_another_axis,
        "transforms another axis than a DFT specifies if that axis is negative or an input",
        ("test_dft_axis", "test_dft_inverse", "compared with NumPy: axis=-2 of float32[2,1024,1]"),
    ),
    KnownIssue(
        ("Dropout", "BatchNormalization"),
        is_training,
        "has no training mode",
        ("refused by the frontend",),
    ),
    KnownIssue(
        ("GRU", "LSTM", "RNN"),
        attribute_is("layout", 1, 0),
        "ignores the layout of recurrent operators",
        ("test_gru_batchwise", "test_lstm_batchwise", "test_simple_rnn_batchwise"),
    ),
    KnownIssue(
        ("LSTM",),
        lambda node, function: has_input(node, _LSTM_PEEPHOLES),
        "ignores the peepholes of LSTM",
        ("test_lstm_with_peepholes",),
    ),
    KnownIssue(
        ("Softmax", "LogSoftmax", "Hardmax"),
        _flattens_axes,
        "computes a Softmax before opset 13 along one axis, where ONNX flattens all axes from that one on",
        ("softmax_before_opset_13 of the corpus",),
    ),
    KnownIssue(
        ("Attention",),
        lambda node, function: (since_version(node, function) or 0) >= 25,
        "supports Attention up to opset 24, which has no windows",
        ("test_attention_local_window", "test_attention_bidirectional_window"),
    ),
    KnownIssue(
        ("Attention",),
        lambda node, function: node.attr("is_causal", 0) == 1 and has_input(node, _PAST_KEY),
        "masks other keys than ONNX in a causal Attention with past keys",
        ("test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal",),
    ),
    KnownIssue(
        ("MatMul",),
        _multiplies_vector_by_scaled_weights,
        "returns one axis too many for the product of a quantized vector and weights with several scales",
        ("compared with the reference: float32[4] by int8[4,3] with three scales gives [1,3]",),
    ),
    KnownIssue(
        ("LRN",),
        lambda node, function: node.attr("size", 1) % 2 == 0,
        "sums one channel too many in an LRN with an even size",
        ("lrn_of_an_even_size of the corpus",),
    ),
    KnownIssue(
        ("MaxPool", "AveragePool", "LpPool"),
        _adds_pooling_window(lambda first, last, data_end, padding_end: first >= data_end),
        "includes a window of a pooling with ceil_mode=1 that lies entirely in the padding",
        ("test_maxpool_2d_ceil_output_size_reduce_by_one",),
    ),
    KnownIssue(
        ("AveragePool", "LpPool"),
        _counts_beyond_padding,
        "counts the elements beyond the padding of a pooling with ceil_mode=1",
        ("compared with the reference: float32[1,2,8] by 3, strides 3, pads 2, dilations 2, count_include_pad=1",),
    ),
    KnownIssue(
        ("Conv",),
        _is_strided_pointwise_with_padding,
        "applies the strides of a Conv of size 1 before its padding instead of after it",
        ("strided_point_with_padding of the corpus",),
    ),
    KnownIssue(
        ("Resize",),
        _may_resize_to_fraction,
        "computes coordinates from the rounded size, ONNX from the exact one, which these scales may make a fraction",
        ("test_resize_downsample_scales_linear_align_corners", "test_resize_downsample_scales_cubic_align_corners"),
    ),
    KnownIssue(
        ("Resize",),
        lambda node, function: (
            bool(node.attr("antialias", 0) or node.attr("exclude_outside", 0))
            or node.attr("keep_aspect_ratio_policy", "stretch") != "stretch"
        ),
        "ignores antialias, exclude_outside and keep_aspect_ratio_policy of Resize",
        (
            *("test_resize_downsample_scales_cubic_antialias", "test_resize_upsample_scales_cubic_A_n0p5_exclude_outside"),
            "test_resize_upsample_sizes_nearest_not_larger",
        ),
    ),
    KnownIssue(
        ("RoiAlign",),
        attribute_is("mode", "max", "avg"),
        "computes the maximum of the interpolated samples of a RoiAlign with mode=max, where ONNX uses the weighted corners",
        ("test_roialign_mode_max",),
    ),
    KnownIssue(
        ("Cast", "CastLike"),
        _truncates_inside_region,
        "does not truncate a number that is cast to 16 bits inside a region",
        ("short_integers_in_the_middle of the corpus, with the reference behind: 70000 for 4464",),
    ),
    KnownIssue(
        ("Loop",),
        _may_stack_unknown_empty_rows,
        "returns extents of 0 for the stacked outputs of a Loop without iterations if its body does not declare them",
        ("loop_of_no_turns_over_open_extents of the corpus: the Concat behind it fails when run",),
    ),
)
"""Known issues of OpenVINO 2026.4 that do not depend on dynamic shapes."""


def _may_resize_channels(node: Node, function: Function) -> bool:
    """Whether a Resize has ``sizes``, and may resize the batch or channel axis, whose extent is unknown."""
    shape = find_shape(node, 0, function) or (None,)
    return has_input(node, 3) and not all(isinstance(extent, int) for extent in shape[:2])


DYNAMIC_SHAPE_ISSUES: tuple[KnownIssue, ...] = (
    KnownIssue(
        ("Div",),
        lambda node, function: not getattr(find_dtype(node, 0, function), "is_float", False),
        "rounds integer quotients wrongly",
        ("large_unsigned_numbers of the corpus", "test_div_uint8", "test_div_int8"),
    ),
    KnownIssue(
        ("Attention",),
        may_mask_all_keys,
        "returns NaN for a query whose keys are all masked",
        ("test_attention_causal_boolmask_nan_robustness", "test_attention_4d_causal_padded_kv_bf16"),
    ),
    KnownIssue(
        ("Attention",),
        always,
        "returns wrong results for an Attention with past keys, and fails for one with grouped queries",
        ("test_attention_4d_with_past_and_present at sizes of 1", "test_attention_4d_gqa"),
    ),
    KnownIssue(
        ("GRU", "LSTM", "RNN"),
        always,
        "fails when a recurrent operator runs at another size",
        ("test_gru_defaults", "test_lstm_reverse", "test_simple_rnn_bidirectional"),
    ),
    KnownIssue(
        ("Resize", "Upsample"),
        _may_resize_channels,
        "fails when a Resize with sizes runs with an unknown batch or channel dim",
        ("nearest_of_two_as_near of the corpus",),
    ),
    KnownIssue(
        ("ScatterND",),
        lambda node, function: node.attr("reduction") in ("max", "min"),
        "fails when a ScatterND with reduction max or min runs",
        ("test_scatternd_max_with_element_indices", "test_scatternd_min_with_element_indices"),
    ),
    KnownIssue(
        ("DequantizeLinear", "QuantizeLinear"),
        _may_have_several_scales,
        "fails when it quantizes or dequantizes with several scales",
        ("test_dequantizelinear_axis", "test_quantizelinear_axis"),
    ),
)
"""Known issues of nodes with symbolic dims only."""


def why_known_issue(node: Node, function: Function) -> str | None:
    """Explain the first known issue that the node has; None if it has none."""
    if (reason := match_known_issue(DYNAMIC_SHAPE_ISSUES, node, function)) and has_symbolic_dims(node, function):
        return f"{LIBRARY} {reason}, if sizes are known only at run time"
    reason = match_known_issue(ISSUES, node, function)
    return reason and f"{LIBRARY} {reason}"
