"""The conditions under which ONNX Runtime goes wrong: of a node, and what is known of its inputs.

Each is the second field of a row in `gaps`, which has the reason and the evidence. Where a size decides and is not known, the
condition holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xrt.engines.toolkit.fourier_precision import Transform
from xrt.graph import Constant, Dim, DType, Function, Node, Shape, TensorType, Type

__all__ = [
    "Condition",
    "Scope",
    "broadcasts_an_empty_product",
    "dequantises_signed_without_zero_point",
    "gives_capped_scores",
    "gives_masked_scores",
    "has_even_size",
    "has_odd_mask",
    "has_output_shape",
    "is_batch_major",
    "is_fused_with_relu",
    "is_half",
    "is_over_the_greatest",
    "is_resized_to_unknown_rank",
    "is_single",
    "is_wider_than_single",
    "may_have_many_zero_points",
    "may_reduce_no_booleans",
    "may_round_resized",
    "pads_dilated_to_same",
    "pads_less_than_nothing",
    "reduces_nothing_from_the_end",
    "rounds_valid_up",
    "scales_what_it_adds_to_nothing",
    "sums_no_products",
    "transform_error",
    "transposes_to_gaps",
]


@dataclass(frozen=True, slots=True)
class Scope:
    """What a predicate may read in addition to the node."""

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


Condition = Callable[[Node, Scope], bool]


def has_input(node: Node, index: int) -> bool:
    """Whether the node is given that input."""
    return index < len(node.inputs) and bool(node.inputs[index])


def has_output(node: Node, index: int) -> bool:
    """Whether anybody asks for that output of the node."""
    return index < len(node.outputs) and bool(node.outputs[index])


def is_single(node: Node, scope: Scope) -> bool:
    """Whether the first input is float32."""
    return scope.dtype(node, 0) is DType.FLOAT32


def is_wider_than_single(node: Node, scope: Scope) -> bool:
    """Whether the first input has numbers that float32 does not hold."""
    return scope.dtype(node, 0) in (DType.FLOAT64, DType.INT32, DType.INT64, DType.UINT32, DType.UINT64)


def is_half(node: Node, scope: Scope) -> bool:
    """Whether the first input is float16."""
    return scope.dtype(node, 0) is DType.FLOAT16


def is_batch_major(node: Node, scope: Scope) -> bool:
    """Whether the batches of a recurrent operator come first."""
    return bool(node.attr("layout", 0))


def is_over_the_greatest(node: Node, scope: Scope) -> bool:
    """Whether a Normalizer divides by the greatest element, which it does by default."""
    return node.attr("norm", "MAX") in ("MAX", b"MAX")


def has_output_shape(node: Node, scope: Scope) -> bool:
    """Whether a MaxUnpool is given its output shape."""
    return has_input(node, 2)


def is_long_integer(node: Node, scope: Scope) -> bool:
    """Whether the first operand is int64, of which a double has only the numbers up to 2^53."""
    return scope.dtype(node, 0) is DType.INT64


def may_reduce_no_booleans(node: Node, scope: Scope) -> bool:
    """Whether truth values are reduced that may be none."""
    if scope.dtype(node, 0) is not DType.BOOL:
        return False
    shape = scope.shape(node, 0)
    return shape is None or not all(isinstance(dim, int) and dim > 0 for dim in shape)


def reduces_nothing_from_the_end(node: Node, scope: Scope) -> bool:
    """Whether an extent is zero, or may be (a symbolic one counts as a size), and an axis is counted from the end, or may be."""
    shape = scope.shape(node, 0)
    if shape is not None and 0 not in shape and not _is_sized_by_data(node, 0, scope):
        return False
    axes, given = scope.constant(node, 1), node.attr("axes", ())
    return (has_input(node, 1) and axes is None) or min([node.attr("axis", 0), *given, *(axes.array.flat if axes else ())]) < 0


def wraps_nothing(node: Node, scope: Scope) -> bool:
    """Whether the edges of a Pad continue at the other end of a tensor that has no elements, or may have none."""
    shape = scope.shape(node, 0)
    return node.attr("mode", "constant") == "wrap" and (shape is None or 0 in shape or _is_sized_by_data(node, 0, scope))


def is_fused_with_relu(node: Node, scope: Scope) -> bool:
    """Whether what is clipped comes from a Relu and is of a type that their fusion has not."""
    maker = scope.function.producer(node.inputs[0])
    return maker is not None and maker.op_type == "Relu" and scope.dtype(node, 0) not in (DType.FLOAT32, DType.FLOAT16)


_SIZED_BY_DATA = ("Compress", "NonMaxSuppression", "NonZero", "Unique")


def _is_sized_by_data(node: Node, index: int, scope: Scope) -> bool:
    """Whether the input comes from an operator that decides by what it reads how much it gives, which may be nothing."""
    maker = scope.function.producer(node.inputs[index])
    return maker is not None and maker.op_type in _SIZED_BY_DATA


def broadcasts_an_empty_product(node: Node, scope: Scope) -> bool:
    """Whether an extent is zero, or may be because the data decide it, and an operand is a vector or the stacks differ."""
    left, right = (scope.shape(node, index) or () for index in (0, 1))
    sized_by_data = any(_is_sized_by_data(node, index, scope) for index in (0, 1))
    if min(len(left), len(right)) == 1:
        return sized_by_data or 0 in (*left, *right)
    return (sized_by_data or 0 in (*left[:-2], *right[:-2])) and left[:-2] != right[:-2]


def sums_no_products(node: Node, scope: Scope) -> bool:
    """Whether the first input has no elements along its last axis."""
    return (scope.shape(node, 0) or (None,))[-1] == 0


def scales_what_it_adds_to_nothing(node: Node, scope: Scope) -> bool:
    """Whether no products are summed, so that a scaled bias is all there is."""
    inner = (scope.shape(node, 0) or (None, None))[0 if node.attr("transA", 0) else 1]
    return inner == 0 and has_input(node, 2) and node.attr("beta", 1.0) != 1.0


def dequantises_signed_without_zero_point(node: Node, scope: Scope) -> bool:
    """Whether int8 numbers are dequantized without a zero point."""
    return not has_input(node, 2) and scope.dtype(node, 0) is DType.INT8


def may_have_many_zero_points(node: Node, scope: Scope) -> bool:
    """Whether the weights of a ConvInteger may have a zero point for each channel."""
    return has_input(node, 3) and scope.shape(node, 3) not in ((), (1,))


def may_round_resized(node: Node, scope: Scope) -> bool:
    """Whether the coordinates depend on sizes that are given by scales and may not be whole."""
    mode = node.attr("coordinate_transformation_mode")
    if mode not in ("align_corners", "pytorch_half_pixel") or not has_input(node, 2) or has_input(node, 3):
        return False
    scaled = _scaled_extents(node, scope)
    if mode == "align_corners":
        return scaled is None or not all(_is_whole(*pair) for pair in scaled)
    sizes = (extent * scale for extent, scale in scaled or () if isinstance(extent, int))
    return any(1 < size < 2 for size in sizes)  # where it asks whether the size is more than 1


def is_resized_to_unknown_rank(node: Node, scope: Scope) -> bool:
    """Whether the number of the scales or sizes of a Resize is not known."""
    shapes = [scope.shape(node, index) for index in (2, 3) if has_input(node, index)]
    return any(not shape or not isinstance(shape[0], int) for shape in shapes)


def _scaled_extents(node: Node, scope: Scope) -> list[tuple[Dim, float]] | None:
    """Return each extent of a Resize by scales that is scaled, with its scale; None where they are not known."""
    scales, shape = scope.constant(node, 2), scope.shape(node, 0)
    if scales is None or shape is None:
        return None
    axes = node.attr("axes", range(len(shape)))
    return [(shape[axis], float(scale)) for axis, scale in zip(axes, scales.array, strict=False)]


def _is_whole(extent: Dim, scale: float) -> bool:
    """Whether the extent times its scale is whole. Of an extent that is not known, a whole scale makes a whole one."""
    return scale.is_integer() or (isinstance(extent, int) and (extent * scale).is_integer())


def transform_error(node: Node, scope: Scope) -> float:
    """Return by how much a transform may be off, as a share of its largest element."""
    opset = scope.function.opsets.get("", 0)
    return Transform(node, opset, lambda place: scope.shape(node, place), lambda place: scope.constant(node, place)).error()


def _pads_to_same(node: Node) -> bool:
    return node.attr("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")


def pads_dilated_to_same(node: Node, scope: Scope) -> bool:
    """Whether dilated windows are padded so that the size stays."""
    return _pads_to_same(node) and any(dilation > 1 for dilation in node.attr("dilations", ()))


def pads_less_than_nothing(node: Node, scope: Scope) -> bool:
    """Whether windows lie apart, so that the size may want less padding than none; only SAME asks for that."""
    kernel = node.attr("kernel_shape", ())
    return _pads_to_same(node) and any(k < stride for k, stride in zip(kernel, node.attr("strides", ()), strict=False))


def transposes_to_gaps(node: Node, scope: Scope) -> bool:
    """Whether a ConvTranspose to the SAME size leaves gaps between windows."""
    weights = scope.shape(node, 1)
    kernel = node.attr("kernel_shape") or (weights[2:] if weights else ())
    count = len(kernel)
    strides, dilations, added = (node.attr(n, (d,) * count) for n, d in (("strides", 1), ("dilations", 1), ("output_padding", 0)))
    windows = zip(kernel, strides, dilations, added, strict=True)
    return _pads_to_same(node) and any(not isinstance(k, int) or (k - 1) * d + 1 + a < s for k, s, d, a in windows)


def rounds_valid_up(node: Node, scope: Scope) -> bool:
    """Whether the size of a pooling without padding is rounded up."""
    return bool(node.attr("auto_pad") == "VALID" and node.attr("ceil_mode", 0))


def has_even_size(node: Node, scope: Scope) -> bool:
    """Whether LRN is over an even number of channels."""
    return bool(node.attr("size", 1) % 2 == 0)


def gives_masked_scores(node: Node, scope: Scope) -> bool:
    """Whether an Attention gives its scores with a mask."""
    masks = node.attr("is_causal", 0) == 1 or scope.dtype(node, 3) is DType.BOOL or has_input(node, 6)
    return _gives_scores(node, 2) and masks


def gives_capped_scores(node: Node, scope: Scope) -> bool:
    """Whether an Attention gives its scores with the cap."""
    return _gives_scores(node, 0) and node.attr("softcap", 0.0) != 0.0


def _gives_scores(node: Node, mode: int) -> bool:
    return has_output(node, 3) and node.attr("qk_matmul_output_mode", 0) == mode


def has_odd_mask(node: Node, scope: Scope) -> bool:
    """Whether the mask's last two extents are not those of the scores (queries by keys, past ones included), where known."""
    mask, queries, keys = (scope.shape(node, index) for index in (3, 0, 1))
    if not mask or len(mask) < 2 or not queries or not keys:
        return False
    past = (scope.shape(node, 4) or (None, None)) if has_input(node, 4) else (0, 0)
    return _differ(mask[-2], queries[-2]) or _differ(mask[-1], _sum(keys[-2], past[-2]))


def _differ(one: Dim, other: Dim) -> bool:
    """Whether two extents are not the same: two numbers, or two names, of which nothing says that they are equal."""
    return type(one) is type(other) and one is not None and one != other


def _sum(one: Dim, other: Dim) -> Dim:
    if other == 0:
        return one
    return one + other if isinstance(one, int) and isinstance(other, int) else None
