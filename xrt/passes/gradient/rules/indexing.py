"""Gradients of operators that move elements: reshape, slice, gather, scatter, pad, resize.

An element that is read several times gets the sum of the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import emit
from xrt.passes.gradient.table import (
    RuleContext,
    add_axes,
    extent,
    flatten,
    get_shape,
    integers,
    join,
    reduce_sum,
    reshape,
    reshape_to,
    rule,
    split,
    sum_to,
    transpose,
    zeros,
    zeros_like,
)

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor

Gradients = Sequence["Tensor | None"]


@rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape_back(at: RuleContext) -> Gradients:
    """Reshape the gradient to the input."""
    return (reshape_to(at.g, at.x),)


@rule("Transpose")
def transpose_back(at: RuleContext) -> Gradients:
    """Apply the inverse permutation."""
    order = at.attr("perm")
    return (emit("Transpose", at.g) if order is None else transpose(at.g, np.argsort(order).tolist()),)


@rule("Expand")
def sum_copies(at: RuleContext) -> Gradients:
    """Sum over the broadcast copies."""
    return (sum_to(at.g, at.x),)


@rule("Tile")
def sum_tiles(at: RuleContext) -> Gradients:
    """Sum over the tiles, after a reshape to (r1, d1, r2, d2, ...)."""
    rank = at.rank(at.x)
    if rank == 0:
        return (at.g,)
    repeats, shape = at.input(1), at.builder.symbol(get_shape(at.x))
    interleaved = emit("Concat", add_axes(repeats, 1), add_axes(shape, 1), axis=1)
    tiles = emit("Reshape", at.g, flatten(interleaved), allowzero=1)
    return (reshape_to(reduce_sum(tiles, range(0, 2 * rank, 2)), at.x),)


@rule("Concat")
def split_gradient(at: RuleContext) -> Gradients:
    """Split the gradient."""
    axis, operands = at.attr("axis"), [at.input(i) for i in range(len(at.node.inputs))]
    return split(at.g, join(*(extent(operand, axis) for operand in operands)), axis, len(operands))


@rule("Split")
def concatenate_gradients(at: RuleContext) -> Gradients:
    """Concatenate the gradients."""
    parts = [at.gradient(index) if name else at.refuse("an output is left out") for index, name in enumerate(at.node.outputs)]
    return (parts[0] if len(parts) == 1 else emit("Concat", *parts, axis=at.attr("axis", 0)),)


@rule("Pad")
def cut_padding(at: RuleContext) -> Gradients:
    """Crop the gradient with negated pads; the gradient of the pad value is the sum of the rest.

    In the other modes the padding repeats elements, and the gradient is the sum over the copies.
    """
    pads, axes = at.input(1), at.optional(3)
    if at.attr("mode", "constant") != "constant":
        operands = (pads,) if axes is None else (pads, None, axes)
        return (_sum_sources(at, lambda places: emit("Pad", places, *operands, mode=at.attr("mode"))),)
    inner = emit("Pad", at.g, emit("Neg", pads), None, *(() if axes is None else (axes,)))
    value = at.optional(2)
    # The copies of the pad value are all elements outside of the crop: the difference of two sums needs no mask.
    rest = (
        None if value is None or not at.wants(2) else emit("ReduceSum", at.g, keepdims=0) - emit("ReduceSum", inner, keepdims=0)
    )
    return inner if at.wants(0) else None, None, None if rest is None or value is None else reshape_to(rest, value)


@rule("Slice")
def pad_slice(at: RuleContext) -> Gradients:
    """Zero-pad the gradient to the input."""
    # One Pad undoes a slice with known bounds and steps of 1; others need a scatter.
    pads = _find_static_pads(at)
    if pads is not None:
        return (emit("Pad", at.g, integers(*pads)),)
    rest = [at.optional(i) for i in range(1, len(at.node.inputs))]
    return (_sum_sources(at, lambda places: emit("Slice", places, *rest)),)


def _find_static_pads(at: RuleContext) -> list[int] | None:
    """Number of elements before and behind the slice, per axis; None unless bounds and extents are constant and steps are 1."""
    shape, bounds = at.x.tensor_type.shape, [at.constant(i) for i in (1, 2)]
    if shape is None or bounds[0] is None or bounds[1] is None:
        return None
    axes, steps = at.constant(3), at.constant(4)
    if (at.optional(3) is not None and axes is None) or (at.optional(4) is not None and steps is None):
        return None
    before, after = [0] * len(shape), [0] * len(shape)
    names = range(len(bounds[0])) if axes is None else axes.tolist()
    strides = [1] * len(bounds[0]) if steps is None else steps.tolist()
    for axis, start, end, step in zip(names, bounds[0].tolist(), bounds[1].tolist(), strides, strict=True):
        size = shape[axis]
        if step != 1 or not isinstance(size, int):
            return None
        first, last, _ = slice(start, end).indices(size)
        # An empty slice may have last < first.
        before[axis], after[axis] = first, size - max(first, last)
    return [*before, *after]


@rule("DepthToSpace")
def blocks_to_depth(at: RuleContext) -> Gradients:
    """SpaceToDepth inverts mode DCR; for CRD, scatter to the source positions."""
    if at.attr("mode", "DCR") == "DCR":
        return (emit("SpaceToDepth", at.g, blocksize=at.attr("blocksize")),)
    options = {"blocksize": at.attr("blocksize"), "mode": at.attr("mode")}
    return (_sum_sources(at, lambda places: emit("DepthToSpace", places, **options)),)


@rule("SpaceToDepth")
def depth_to_blocks(at: RuleContext) -> Gradients:
    """The inverse is DepthToSpace."""
    return (emit("DepthToSpace", at.g, blocksize=at.attr("blocksize"), mode="DCR"),)


@rule("ReverseSequence")
def reverse_back(at: RuleContext) -> Gradients:
    """The operator is its own inverse."""
    axes = {"batch_axis": at.attr("batch_axis", 1), "time_axis": at.attr("time_axis", 0)}
    return (emit("ReverseSequence", at.g, at.input(1), **axes),)


@rule("Trilu")
def keep_triangle(at: RuleContext) -> Gradients:
    """Keep the same triangle of the gradient."""
    diagonal = at.optional(1)
    return (emit("Trilu", at.g, *(() if diagonal is None else (diagonal,)), upper=at.attr("upper", 1)),)


@rule("Compress")
def scatter_compressed(at: RuleContext) -> Gradients:
    """Scatter the gradient to the positions of the kept elements."""
    axis = at.attr("axis")
    return (_sum_sources(at, lambda places: emit("Compress", places, at.input(1), axis=axis)),)


def _sum_sources(at: RuleContext, move: Any) -> Tensor:
    """Sum the gradients of all copies of each input element, for an operator that only moves elements.

    `move` applies the operator to the linear indices of the input: it returns, per output element, the index of its source.
    """
    return sum_at_places(at.g, move(list_places(at.x)), at.x)


def list_places(x: Tensor) -> Tensor:
    """Linear indices 0, 1, ... in the shape of `x`."""
    shape = get_shape(x)
    size = np.asarray(np.prod(shape, dtype=np.int64)) if isinstance(shape, np.ndarray) else emit("Size", x)
    return reshape(emit("Range", np.asarray(0, np.int64), size, np.asarray(1, np.int64)), shape)


def sum_at_places(g: Tensor, places: Tensor, like: Tensor) -> Tensor:
    """Scatter-add the gradients to linear indices of a tensor shaped like ``like``."""
    base = flatten(zeros_like(like))
    return reshape_to(emit("ScatterElements", base, flatten(places), flatten(g), axis=0, reduction="add"), like)


@rule("Gather")
def gather(at: RuleContext) -> Gradients:
    """Scatter-add the gradient of each row; the gathered axis is moved to the front for ScatterND.

    Constant indices need no scatter: invert a permutation, or zero-pad a single row.
    """
    rank, axes = at.rank(at.x), at.rank(at.input(1))
    axis = at.attr("axis", 0) % rank
    gradient = _invert_constant_gather(at, axis)
    if gradient is not None:
        return (gradient,)
    rows = transpose(at.g, [*range(axis, axis + axes), *range(axis), *range(axis + axes, axes + rank - 1)])
    order = [axis, *(other for other in range(rank) if other != axis)]
    shape = get_shape(at.x)
    moved = shape[order] if isinstance(shape, np.ndarray) else emit("Gather", shape, np.asarray(order, np.int64))
    base = zeros(moved, at.x.dtype)
    scattered = emit("ScatterND", base, add_axes(at.input(1).astype("int64"), axes), rows, reduction="add")
    return (transpose(scattered, np.argsort(order).tolist()),)


def _invert_constant_gather(at: RuleContext, axis: int) -> Tensor | None:
    """The gradient for a constant permutation or a single constant index; None for other indices."""
    rows, shape = at.constant(1), at.x.tensor_type.shape
    size = None if shape is None else shape[axis]
    if rows is None or not isinstance(size, int) or size == 0 or rows.ndim > 1:
        return None
    places = rows.reshape(-1) % size
    # A permutation: the inverse gather is cheaper than a scatter.
    if len(places) == size and np.array_equal(np.sort(places), np.arange(size)):
        back = integers(*np.argsort(places).tolist())
        return emit("Gather", at.g, back, axis=axis) if rows.ndim else add_axes(at.g, axis)
    # A single row, as in x[:, 0]: zeros around it are cheaper than a scatter.
    if len(places) != 1:
        return None
    first = int(places[0])
    ends = integers(first, size - 1 - first)
    return emit("Pad", at.g if rows.ndim else add_axes(at.g, axis), ends, None, integers(axis))


@rule("GatherElements")
def gather_elements(at: RuleContext) -> Gradients:
    """Scatter-add the gradients of the elements."""
    axis = at.attr("axis", 0)
    return (emit("ScatterElements", zeros_like(at.x), at.input(1), at.g, axis=axis, reduction="add"),)


@rule("GatherND")
def gather_slices(at: RuleContext) -> Gradients:
    """Scatter-add the gradients of the slices."""
    batch = at.attr("batch_dims", 0)
    if batch == 0:
        return (emit("ScatterND", zeros_like(at.x), at.input(1), at.g, reduction="add"),)
    places = emit("GatherND", list_places(at.x), at.input(1), batch_dims=batch)
    return (sum_at_places(at.g, places, at.x),)


@rule("ScatterElements")
def scatter_elements(at: RuleContext) -> Gradients:
    """Overwritten data has no gradient; updates gather theirs. With ``add`` both have one.

    Duplicate indices are undefined without a reduction, so an overwritten update is not considered.
    """
    axis, mode = at.attr("axis", 0), at.attr("reduction", "none")
    if mode not in ("none", "add"):
        at.refuse(f"its reduction is {mode!r}, and the rule is for 'none' and 'add'")
    data = at.g
    if mode == "none" and at.wants(0):
        data = emit("ScatterElements", at.g, at.input(1), zeros_like(at.input(2)), axis=axis)
    updates = emit("GatherElements", at.g, at.input(1), axis=axis) if at.wants(2) else None
    return data, None, updates


@rule("ScatterND")
def scatter_slices(at: RuleContext) -> Gradients:
    """Like ScatterElements, for slices."""
    mode = at.attr("reduction", "none")
    if mode not in ("none", "add"):
        at.refuse(f"its reduction is {mode!r}, and the rule is for 'none' and 'add'")
    data = at.g
    if mode == "none" and at.wants(0):
        data = emit("ScatterND", at.g, at.input(1), zeros_like(at.input(2)))
    return data, None, emit("GatherND", at.g, at.input(1)) if at.wants(2) else None


@rule("OneHot")
def choose_values(at: RuleContext) -> Gradients:
    """The on-value gets the sum of the gradients at the selected positions, the off-value the rest."""
    values = at.input(2)
    pair = np.asarray([0, 1], values.dtype.numpy)
    mask = emit("OneHot", at.input(0), at.input(1), pair, axis=at.attr("axis", -1))
    axes = range(at.rank(at.y))
    on = reduce_sum(at.g * mask, axes)
    rest = reduce_sum(at.g, axes) - on
    return None, None, emit("Concat", add_axes(rest, 0), add_axes(on, 0), axis=0)


@rule("Range")
def count_up(at: RuleContext) -> Gradients:
    """y_i = start + i delta: start gets the sum of the gradients, delta the sum weighted by i."""
    step = at.input(2)
    first = reduce_sum(at.g, [0]) if at.wants(0) else None
    if not at.wants(2):
        return (first,)
    length = emit("Reshape", emit("Shape", at.y), np.asarray([], np.int64))
    places = emit("Range", np.asarray(0, np.int64), length, np.asarray(1, np.int64))
    return first, None, reduce_sum(at.g * places.astype(step.dtype), [0])


_OPTIONS = (
    *("antialias", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside", "mode", "nearest_mode"),
    "keep_aspect_ratio_policy",
)


@rule("Resize")
def resize(at: RuleContext) -> Gradients:
    """Rule for y = A x B' ... with one matrix per axis: dx = A' g B ..."""
    if at.attr("coordinate_transformation_mode") == "tf_crop_and_resize":
        at.refuse("it resizes a crop (tf_crop_and_resize), for which there is no rule; cut the crop out by Slice")
    if at.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        at.refuse("it keeps the aspect ratio; give it the sizes that follow from that")
    rank, (shape, target) = at.rank(at.x), (at.x.tensor_type.shape, at.y.tensor_type.shape)
    axes = [axis % rank for axis in at.attr("axes") or range(rank)]
    scales, sizes = at.constant(2), at.constant(3)
    gradient = at.g
    for place, axis in enumerate(axes):
        size, result = (None if dims is None else dims[axis] for dims in (shape, target))
        if not isinstance(size, int) or not isinstance(result, int) or (scales is None and sizes is None):
            at.refuse("its extents are not known; bind the symbolic ones first")
        scale = None if scales is None or scales.size == 0 else scales.tolist()[place]
        if size == result and scale in (None, 1):
            continue
        gradient = _apply_transposed(gradient, _compute_weights(at, size, result, scale), axis)
    return (gradient,)


def _compute_weights(at: RuleContext, size: int, result: int, scale: float | None) -> Tensor:
    """Matrix (result, size) of one axis: Resize applied to the identity."""
    # Resize is linear, so its matrix is its value at the identity.
    identity = np.eye(size, dtype=at.x.dtype.numpy)
    options: dict[str, Any] = {name: value for name in _OPTIONS if (value := at.attr(name)) is not None}
    if scale is None:
        return emit("Resize", identity, None, None, integers(result, size), **options)
    return emit("Resize", identity, None, np.asarray([scale, 1], np.float32), **options)


def _apply_transposed(g: Tensor, weights: Tensor, axis: int) -> Tensor:
    """Multiply an axis of the gradient by the transposed matrix."""
    rank = g.ndim
    order = [*(other for other in range(rank) if other != axis), axis]
    product = emit("MatMul", transpose(g, order), weights)
    return transpose(product, np.argsort(order).tolist())
