"""Where OpenVINO 2026.4 converts an operator and computes something else, or fails late: declined, each row with its evidence.

Where a size decides and is not known, the row applies: a node declined in vain runs elsewhere, one accepted in vain gives
wrong numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from xrt.engines.openvino.library import LIBRARY
from xrt.engines.openvino.negative_pads import NEGATIVE_PADS
from xrt.engines.toolkit.fourier_precision import AXIS_IS_INPUT, Transform
from xrt.engines.toolkit.known_issues import KnownIssue, Test, always, attribute_is, match_known_issue
from xrt.formats.onnx.clip_bounds import BOUNDS_ARE_INPUTS, add_clip_bounds
from xrt.graph import Constant, Dim, DType, Function, Node, Shape, TensorType, is_training, since_version

__all__ = ["DEFECTS", "find_known_issue", "transform_error"]


def _has(node: Node, index: int) -> bool:
    """Whether the node is given that input."""
    return index < len(node.inputs) and bool(node.inputs[index])


def _shape(node: Node, index: int, function: Function) -> Shape | None:
    type_ = function.get_type(node.inputs[index]) if _has(node, index) else None
    return type_.shape if isinstance(type_, TensorType) else None


def _dtype(node: Node, index: int, function: Function) -> DType | None:
    type_ = function.get_type(node.inputs[index]) if _has(node, index) else None
    return type_.dtype if isinstance(type_, TensorType) else None


def _constant(node: Node, index: int, function: Function) -> Constant | None:
    return function.constants.get(node.inputs[index]) if _has(node, index) else None


def _varies(index: int) -> Test:
    return lambda node, function: _has(node, index) and _constant(node, index, function) is None


def _has_window(node: Node, function: Function) -> bool:
    return (since_version(node, function) or 0) >= 25


def _result(node: Node, function: Function) -> DType | None:
    type_ = function.get_type(node.outputs[0])
    return type_.dtype if isinstance(type_, TensorType) else None


def _flattens(node: Node, function: Function) -> bool:
    """Whether more than one axis is flattened, or may be."""
    shape = _shape(node, 0, function)
    if (since_version(node, function) or 0) >= 13:
        return False
    return shape is None or any(extent != 1 for extent in shape[node.attr("axis", 1) :][1:])


def _is_causal_after_past(node: Node, function: Function) -> bool:
    return node.attr("is_causal", 0) == 1 and _has(node, 4)


def _is_strided_point_with_padding(node: Node, function: Function) -> bool:
    kernel = (_shape(node, 1, function) or (None, None, None))[2:]
    pads = any(node.attr("pads", ())) or node.attr("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")
    return pads and any(stride > 1 for stride in node.attr("strides", ())) and all(extent in (1, None) for extent in kernel)


def _scales_by_a_fraction(node: Node, function: Function) -> bool:
    """Whether corners are aligned in a size that is given by scales and is not whole, or may not be."""
    if node.attr("coordinate_transformation_mode") not in ("align_corners", "pytorch_half_pixel"):
        return False
    scales, shape = _constant(node, 2, function), _shape(node, 0, function)
    if not _has(node, 2) or _has(node, 3):
        return False
    if scales is None or shape is None:
        return True
    axes = node.attr("axes") or range(len(shape))
    return not all(_is_whole(shape[axis], float(scale)) for axis, scale in zip(axes, scales.array, strict=False))


def _is_whole(extent: Dim, scale: float) -> bool:
    """Whether the extent times its scale is whole. Of an extent that is not known, a whole scale makes a whole one."""
    return scale.is_integer() or (isinstance(extent, int) and (extent * scale).is_integer())


def _rounds_up_too_far(reaches: Callable[[_Axis], bool]) -> Test:
    """Return whether the size of a pooling is rounded up so that its last window reaches too far, or may."""

    def applies(node: Node, function: Function) -> bool:
        if not node.attr("ceil_mode", 0):
            return False
        extents, kernel = (_shape(node, 0, function) or ())[2:], node.attr("kernel_shape")
        known = [extent for extent in extents if isinstance(extent, int)]
        if not known or len(known) < len(extents) or node.attr("auto_pad", "NOTSET") != "NOTSET":
            return True
        rank = len(known)
        pads, ones = node.attr("pads", (0,) * 2 * rank), (1,) * rank
        strides, dilations = (node.attr(name, ones) for name in ("strides", "dilations"))
        return any(reaches(_Axis(*axis)) for axis in zip(known, kernel, strides, dilations, pads, pads[rank:], strict=False))

    return applies


class _Axis(NamedTuple):
    """An axis of a pooling that rounds its size up."""

    extent: int
    kernel: int
    stride: int
    dilation: int
    before: int
    behind: int

    @property
    def size(self) -> int:
        """Extent with padding."""
        return self.extent + self.before + self.behind

    @property
    def reach(self) -> int:
        """Of a window, from its first element to its last."""
        return self.dilation * (self.kernel - 1)

    @property
    def last(self) -> int:
        """Where the last window begins."""
        return -(-(self.size - self.reach - 1) // self.stride) * self.stride


def _begins_in_padding(axis: _Axis) -> bool:
    return axis.last >= axis.extent + axis.before


def _ends_behind_padding(axis: _Axis) -> bool:
    return axis.last + axis.reach >= axis.size


def _counts_what_is_not_there(node: Node, function: Function) -> bool:
    counts = node.op_type == "LpPool" or bool(node.attr("count_include_pad", 0))
    return counts and _rounds_up_too_far(_ends_behind_padding)(node, function)


def _splits_an_open_extent(node: Node, function: Function) -> bool:
    """Whether a Split by a number of parts, as opset 18 has it, cuts an extent that only the run shows."""
    if not node.attr("num_outputs"):
        return False
    shape, axis = _shape(node, 0, function), node.attr("axis", 0)
    return shape is None or not isinstance(shape[axis], int)


def _gathers_from_another_shape(node: Node, function: Function) -> bool:
    """Whether a GatherElements has fewer indices than elements along another axis than its own, or may have."""
    data, indices = _shape(node, 0, function), _shape(node, 1, function)
    if data is None or indices is None or len(data) != len(indices):
        return True
    others = set(range(len(data))) - {node.attr("axis", 0) % max(1, len(data))}
    return any(data[i] is None or data[i] != indices[i] for i in others)


def _lacks_a_bound(node: Node, function: Function) -> bool:
    """Whether a Clip of floats is not given both of its bounds."""
    if (since_version(node, function) or 0) < BOUNDS_ARE_INPUTS:
        return add_clip_bounds(node) is not node
    dtype = _dtype(node, 0, function)
    return not (_has(node, 1) and _has(node, 2)) and (dtype is None or dtype.is_float)


def _has_slopes_of_channels(node: Node, function: Function) -> bool:
    """Whether there are as many slopes, along one axis, as channels, and these are not the last axis."""
    shape, slopes = _shape(node, 0, function), _shape(node, 1, function)
    if shape is None or slopes is None:
        return True
    return len(slopes) == 1 and len(shape) > 2 and (slopes[0] == shape[1] or not isinstance(shape[1], int))


def _has_infinite_slopes(node: Node, function: Function) -> bool:
    """Whether slopes are or may be infinite: those that are constants are looked at."""
    slopes = _constant(node, 1, function)
    return slopes is None or not np.isfinite(slopes.array.astype(np.float32)).all()


def _is_bounded_by_nan(node: Node, function: Function) -> bool:
    bounds = [bound.array for place in (1, 2) if (bound := _constant(node, place, function)) is not None]
    attributes = [node.attr(name, 0.0) for name in ("min", "max")]
    return any(np.isnan(np.asarray(bound, np.float64)).any() for bound in (*bounds, *attributes))


def _may_be_empty_at_run_time(node: Node, function: Function) -> bool:
    """Whether a shape, or axes, or pads, that are known only at run time have no elements, or may have none."""
    if not _varies(1)(node, function):
        return False
    shape = _shape(node, 1, function)
    return shape is None or not (len(shape) == 1 and isinstance(shape[0], int) and shape[0] > 0)


def transform_error(node: Node, function: Function) -> float:
    """Return by how much a transform may be off, as a share of its largest element."""
    opset = function.opsets.get("", 0)
    return Transform(
        node, opset, lambda place: _shape(node, place, function), lambda place: _constant(node, place, function)
    ).error()


def _transforms_another_axis(node: Node, function: Function) -> bool:
    """Whether the axis is counted from the end, or is an input, and not the one that the attribute has by default."""
    if (since_version(node, function) or 0) < AXIS_IS_INPUT:
        return bool(node.attr("axis", 1) < 0)
    rank, axis = len(_shape(node, 0, function) or ()), _constant(node, 2, function)
    if _has(node, 2) and axis is None:
        return True
    return (int(axis.array) if axis is not None else -2) % max(rank, 1) != 1


DEFECTS: tuple[KnownIssue, ...] = (
    KnownIssue(
        ("Shrink", "ThresholdedRelu"),
        always,
        "multiplies by zero what is not above the threshold, which makes NaN of it where it is none or is infinite",
        ("chosen_not_multiplied of the corpus",),
    ),
    KnownIssue(
        ("ReduceLogSumExp",),
        lambda node, function: 0 not in (_shape(node, 0, function) or ()),
        "takes an infinity away from itself in a ReduceLogSumExp, which makes NaN of it",
        ("logarithm_of_an_infinite_sum of the corpus",),
    ),
    KnownIssue(
        ("Clip",),
        _lacks_a_bound,
        "takes the largest finite number for a bound of Clip that is left out, and makes it of an infinity; below opset 11 none",
        ("clipped_on_one_side of the corpus", "clipped_on_one_side_by_attributes of the corpus"),
    ),
    KnownIssue(
        ("Clip",),
        _is_bounded_by_nan,
        "fails to compile a Clip with a bound that is not a number",
        ("compiled with a constant bound of NaN",),
    ),
    KnownIssue(
        ("PRelu",),
        _has_slopes_of_channels,
        "takes the slopes of a PRelu for those of its channels where they are those of the last axis, and as many",
        ("slopes_along_the_last_axis of the corpus",),
    ),
    KnownIssue(
        ("PRelu",),
        _has_infinite_slopes,
        "adds slope * min(x, 0) to max(x, 0) for a PRelu where the processor has no AVX-512: NaN for an infinite slope",
        ("measured on a processor with AVX2",),
    ),
    KnownIssue(
        ("Tile",),
        _varies(1),
        "leaves the memory as it was where the repeats of Tile are known only at run time",
        ("test_tile",),
    ),
    KnownIssue(
        ("Expand",),
        lambda node, function: _shape(node, 0, function) in ((), None) and _may_be_empty_at_run_time(node, function),
        "ends the process where a shape that is known only at run time expands a number to a number",
        ("expanded_to_its_own_rank_0 of the corpus", "expanded_to_a_given_rank_0 of the corpus: fails when run"),
    ),
    KnownIssue(
        ("Pad", "Unsqueeze"),
        _may_be_empty_at_run_time,
        "does not convert this where there are no axes and that is known only at run time",
        ("unsqueezed_by_no_axes of the corpus: refused when compiled, with the whole region",),
    ),
    NEGATIVE_PADS,
    KnownIssue(
        ("Split",),
        _splits_an_open_extent,
        "refuses at run time to split an extent that is no multiple of the number of parts, and this one is known only then",
        ("split_unevenly_at_an_open_extent of the corpus",),
    ),
    KnownIssue(
        ("GatherElements",),
        _gathers_from_another_shape,
        "takes a GatherElements only where data and indices have equal extents along the other axes",
        ("gather_elements_of_an_open_shape of the corpus",),
    ),
    KnownIssue(
        ("DFT",),
        _transforms_another_axis,
        "transforms another axis than a DFT says where that is counted from the end, or is an input",
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
        lambda node, function: _has(node, 7),
        "ignores the peepholes of LSTM",
        ("test_lstm_with_peepholes",),
    ),
    KnownIssue(
        ("Cast", "CastLike"),
        lambda node, function: DType.FLOAT64 in (_dtype(node, 0, function), _result(node, function)),
        "makes the largest finite number of an infinity that it casts to or from float64",
        ("test_cast_FLOAT_to_DOUBLE, with native arithmetic",),
    ),
    KnownIssue(
        ("Softmax", "LogSoftmax", "Hardmax"),
        _flattens,
        "takes Softmax before opset 13 for one along a single axis, where it is one along all axes from there",
        ("softmax_before_opset_13 of the corpus",),
    ),
    KnownIssue(
        ("Attention",),
        _has_window,
        "knows Attention up to opset 24, which has no windows",
        ("test_attention_local_window", "test_attention_bidirectional_window"),
    ),
    KnownIssue(
        ("Attention",),
        _is_causal_after_past,
        "lets the queries of a causal Attention with past keys see other keys than ONNX does",
        ("test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal",),
    ),
    KnownIssue(
        ("LRN",),
        lambda node, function: node.attr("size", 1) % 2 == 0,
        "sums one channel too many in an LRN over an even number of channels",
        ("lrn_of_an_even_size of the corpus",),
    ),
    KnownIssue(
        ("MaxPool", "AveragePool", "LpPool"),
        _rounds_up_too_far(_begins_in_padding),
        "counts a window of a pooling with ceil_mode=1 that lies in the padding alone",
        ("test_maxpool_2d_ceil_output_size_reduce_by_one",),
    ),
    KnownIssue(
        ("AveragePool", "LpPool"),
        _counts_what_is_not_there,
        "counts what a window of a pooling with ceil_mode=1 would hold behind the padding",
        ("compared with the reference: float32[1,2,8] by 3, strides 3, pads 2, dilations 2, count_include_pad=1",),
    ),
    KnownIssue(
        ("Conv",),
        _is_strided_point_with_padding,
        "moves the strides of a Conv of size 1 before its padding where they belong behind it",
        ("strided_point_with_padding of the corpus",),
    ),
    KnownIssue(
        ("Resize",),
        _scales_by_a_fraction,
        "places pixels by the rounded size, ONNX by the exact one, and these scales may give a size that is not whole",
        ("test_resize_downsample_scales_linear_align_corners", "test_resize_downsample_scales_cubic_align_corners"),
    ),
    KnownIssue(
        ("Resize",),
        attribute_is("antialias", 1, 0),
        "ignores the antialias of Resize",
        ("test_resize_downsample_scales_cubic_antialias", "test_resize_downsample_sizes_linear_antialias"),
    ),
    KnownIssue(
        ("Resize",),
        attribute_is("exclude_outside", 1, 0),
        "ignores the exclude_outside of Resize",
        ("test_resize_upsample_scales_cubic_A_n0p5_exclude_outside",),
    ),
    KnownIssue(
        ("Resize",),
        lambda node, function: node.attr("keep_aspect_ratio_policy", "stretch") != "stretch",
        "ignores the keep_aspect_ratio_policy of Resize",
        ("test_resize_upsample_sizes_nearest_not_larger", "test_resize_upsample_sizes_nearest_not_smaller"),
    ),
    KnownIssue(
        ("RoiAlign",),
        attribute_is("mode", "max", "avg"),
        "takes the largest sample of a RoiAlign of mode max where ONNX takes the largest weighted corner",
        ("test_roialign_mode_max",),
    ),
)
"""Every known defect, of OpenVINO 2026.4."""


def find_known_issue(node: Node, function: Function) -> str | None:
    """Return the reason of the first defect that the node falls under; None when it falls under none."""
    reason = match_known_issue(DEFECTS, node, function)
    return reason and f"{LIBRARY} {reason}"
