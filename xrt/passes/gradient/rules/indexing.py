"""Gradients of operators that move elements. An element that is read several times gets the sum of the gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import emit
from xrt.passes.gradient.table import (
    Gradients,
    RuleContext,
    add_axes,
    count_up_to,
    flatten,
    get_extent,
    get_shape,
    join_extents,
    make_vector,
    make_zeros,
    reduce_sum,
    reshape,
    reshape_to,
    rule,
    split,
    sum_to,
    transpose,
    zeros_like,
)

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor


@rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape_back(ctx: RuleContext) -> Gradients:
    """Reshape the gradient to the input."""
    return (reshape_to(ctx.g, ctx.x),)


@rule("Transpose")
def transpose_back(ctx: RuleContext) -> Gradients:
    """Apply the inverse permutation."""
    order = ctx.attr("perm")
    return (emit("Transpose", ctx.g) if order is None else transpose(ctx.g, np.argsort(order).tolist()),)


@rule("Expand")
def sum_copies(ctx: RuleContext) -> Gradients:
    """Sum over the broadcast copies."""
    return (sum_to(ctx.g, ctx.x),)


@rule("Tile")
def sum_tiles(ctx: RuleContext) -> Gradients:
    """Sum over the tiles, after a reshape to (r1, d1, r2, d2, ...)."""
    rank = ctx.rank(ctx.x)
    if rank == 0:
        return (ctx.g,)
    repeats, shape = ctx.input(1), ctx.builder.symbol(get_shape(ctx.x))
    interleaved = emit("Concat", add_axes(repeats, 1), add_axes(shape, 1), axis=1)
    tiles = emit("Reshape", ctx.g, flatten(interleaved), allowzero=1)
    return (reshape_to(reduce_sum(tiles, range(0, 2 * rank, 2)), ctx.x),)


@rule("Concat")
def split_gradient(ctx: RuleContext) -> Gradients:
    """Split the gradient."""
    axis, operands = ctx.attr("axis"), [ctx.input(i) for i in range(len(ctx.node.inputs))]
    return split(ctx.g, join_extents(*(get_extent(operand, axis) for operand in operands)), axis, len(operands))


@rule("Split")
def concatenate_gradients(ctx: RuleContext) -> Gradients:
    """Concatenate the gradients."""
    if "" in ctx.node.outputs:
        ctx.refuse("it omits an output, and the rule needs all of them")
    parts = [ctx.gradient(index) for index in range(len(ctx.node.outputs))]
    return (parts[0] if len(parts) == 1 else emit("Concat", *parts, axis=ctx.attr("axis", 0)),)


@rule("Pad")
def cut_padding(ctx: RuleContext) -> Gradients:
    """Crop the gradient with negated pads; the gradient of the pad value is the sum of the rest.

    In the other modes the padding repeats elements, and the gradient is the sum over the copies.
    """
    pads, value, axes = ctx.input(1), ctx.optional(2), ctx.optional(3)
    optional_axes = () if axes is None else (axes,)
    if ctx.attr("mode", "constant") != "constant":
        return (_sum_sources(ctx, lambda indices: emit("Pad", indices, pads, None, *optional_axes, mode=ctx.attr("mode"))),)
    cropped = emit("Pad", ctx.g, emit("Neg", pads), None, *optional_axes)
    if value is None or not ctx.wants(2):
        return (cropped,)
    # All elements outside of the crop are copies of the pad value. The difference of two sums needs no mask.
    value_gradient = emit("ReduceSum", ctx.g, keepdims=0) - emit("ReduceSum", cropped, keepdims=0)
    return cropped, None, reshape_to(value_gradient, value)


@rule("Slice")
def pad_slice(ctx: RuleContext) -> Gradients:
    """Zero-pad the gradient to the input."""
    pads = _find_static_pads(ctx)
    if pads is not None:
        return (emit("Pad", ctx.g, make_vector(*pads)),)
    # If bounds are not constant, or steps are not 1, a scatter is needed.
    bounds = [ctx.optional(i) for i in range(1, len(ctx.node.inputs))]
    return (_sum_sources(ctx, lambda indices: emit("Slice", indices, *bounds)),)


def _find_static_pads(ctx: RuleContext) -> list[int] | None:
    """Count the elements before and after the slice per axis. None unless bounds and extents are constant and steps are 1."""
    shape, starts, ends = ctx.x.tensor_type.shape, ctx.constant(1), ctx.constant(2)
    if shape is None or starts is None or ends is None:
        return None
    axes, steps = ctx.constant(3), ctx.constant(4)
    has_computed_axes = ctx.optional(3) is not None and axes is None
    has_computed_steps = ctx.optional(4) is not None and steps is None
    if has_computed_axes or has_computed_steps:
        return None
    before, after = [0] * len(shape), [0] * len(shape)
    axis_list = range(len(starts)) if axes is None else axes.tolist()
    step_list = [1] * len(starts) if steps is None else steps.tolist()
    for axis, start, end, step in zip(axis_list, starts.tolist(), ends.tolist(), step_list, strict=True):
        size = shape[axis]
        if step != 1 or not isinstance(size, int):
            return None
        first, last, _ = slice(start, end).indices(size)
        # An empty slice may have last < first.
        before[axis], after[axis] = first, size - max(first, last)
    return [*before, *after]


@rule("DepthToSpace")
def blocks_to_depth(ctx: RuleContext) -> Gradients:
    """SpaceToDepth inverts mode DCR; for CRD, scatter to the source positions."""
    if ctx.attr("mode", "DCR") == "DCR":
        return (emit("SpaceToDepth", ctx.g, blocksize=ctx.attr("blocksize")),)
    options = {"blocksize": ctx.attr("blocksize"), "mode": ctx.attr("mode")}
    return (_sum_sources(ctx, lambda indices: emit("DepthToSpace", indices, **options)),)


@rule("SpaceToDepth")
def depth_to_blocks(ctx: RuleContext) -> Gradients:
    """The inverse is DepthToSpace."""
    return (emit("DepthToSpace", ctx.g, blocksize=ctx.attr("blocksize"), mode="DCR"),)


@rule("ReverseSequence")
def reverse_back(ctx: RuleContext) -> Gradients:
    """The operator is its own inverse."""
    axes = {"batch_axis": ctx.attr("batch_axis", 1), "time_axis": ctx.attr("time_axis", 0)}
    return (emit("ReverseSequence", ctx.g, ctx.input(1), **axes),)


@rule("Trilu")
def keep_triangle(ctx: RuleContext) -> Gradients:
    """Keep the same triangle of the gradient."""
    diagonal = ctx.optional(1)
    operands = (ctx.g,) if diagonal is None else (ctx.g, diagonal)
    return (emit("Trilu", *operands, upper=ctx.attr("upper", 1)),)


@rule("Compress")
def scatter_compressed(ctx: RuleContext) -> Gradients:
    """Scatter the gradient to the positions of the kept elements."""
    axis = ctx.attr("axis")
    return (_sum_sources(ctx, lambda indices: emit("Compress", indices, ctx.input(1), axis=axis)),)


def _sum_sources(ctx: RuleContext, move: Any) -> Tensor:
    """Sum the gradients of all copies of each input element, for an operator that only moves elements.

    ``move(x)`` applies the operator. Applied to the linear indices of the input, it returns the source index of each output
    element.
    """
    return sum_at_indices(ctx.g, move(make_linear_indices(ctx.x)), ctx.x)


def make_linear_indices(x: Tensor) -> Tensor:
    """Create the linear indices 0, 1, ... in the shape of `x`."""
    shape = get_shape(x)
    size = np.asarray(np.prod(shape, dtype=np.int64)) if isinstance(shape, np.ndarray) else emit("Size", x)
    return reshape(count_up_to(size), shape)


def sum_at_indices(g: Tensor, indices: Tensor, like: Tensor) -> Tensor:
    """Scatter-add the gradients to zeros of the shape of ``like``, at linear indices."""
    base = flatten(zeros_like(like))
    return reshape_to(emit("ScatterElements", base, flatten(indices), flatten(g), axis=0, reduction="add"), like)


@rule("Gather")
def gather(ctx: RuleContext) -> Gradients:
    """Scatter-add the gradient of each row; the gathered axis is moved to the front for ScatterND.

    Constant indices need no scatter: invert a permutation, or zero-pad a single row.
    """
    rank, index_rank = ctx.rank(ctx.x), ctx.rank(ctx.input(1))
    axis = ctx.attr("axis", 0) % rank
    gradient = _invert_constant_gather(ctx, axis)
    if gradient is not None:
        return (gradient,)
    index_axes = range(axis, axis + index_rank)
    # From the axes (*before, *indices, *after) to (*indices, *before, *after).
    rows = transpose(ctx.g, [*index_axes, *range(axis), *range(axis + index_rank, index_rank + rank - 1)])
    order = [axis, *(other for other in range(rank) if other != axis)]  # the input axes in the order of `base`
    shape = get_shape(ctx.x)
    moved = shape[order] if isinstance(shape, np.ndarray) else emit("Gather", shape, np.asarray(order, np.int64))
    base = make_zeros(moved, ctx.x.dtype)
    scattered = emit("ScatterND", base, add_axes(ctx.input(1).astype("int64"), index_rank), rows, reduction="add")
    return (transpose(scattered, np.argsort(order).tolist()),)  # the inverse of ``order``


def _invert_constant_gather(ctx: RuleContext, axis: int) -> Tensor | None:
    """Compute the gradient for a constant permutation or a single constant index; None for other indices."""
    constant, shape = ctx.constant(1), ctx.x.tensor_type.shape
    size = None if shape is None else shape[axis]
    if constant is None or not isinstance(size, int) or size == 0 or constant.ndim > 1:
        return None
    indices = constant.reshape(-1) % size
    # A scalar index removes the axis from the result.
    g = ctx.g if constant.ndim else add_axes(ctx.g, axis)
    # A permutation: the inverse gather is cheaper than a scatter.
    if len(indices) == size and np.array_equal(np.sort(indices), np.arange(size)):
        return g if size == 1 else emit("Gather", g, make_vector(*np.argsort(indices).tolist()), axis=axis)
    # A single row, as in x[:, 0]: zeros around it are cheaper than a scatter.
    if len(indices) != 1:
        return None
    index = int(indices[0])
    return emit("Pad", g, make_vector(index, size - 1 - index), None, make_vector(axis))


@rule("GatherElements")
def gather_elements(ctx: RuleContext) -> Gradients:
    """Scatter-add the gradients of the elements."""
    axis = ctx.attr("axis", 0)
    return (emit("ScatterElements", zeros_like(ctx.x), ctx.input(1), ctx.g, axis=axis, reduction="add"),)


@rule("GatherND")
def gather_slices(ctx: RuleContext) -> Gradients:
    """Scatter-add the gradients of the slices."""
    batch = ctx.attr("batch_dims", 0)
    if batch == 0:
        return (emit("ScatterND", zeros_like(ctx.x), ctx.input(1), ctx.g, reduction="add"),)
    sources = emit("GatherND", make_linear_indices(ctx.x), ctx.input(1), batch_dims=batch)
    return (sum_at_indices(ctx.g, sources, ctx.x),)


@rule("ScatterElements", "ScatterND")
def gather_updates(ctx: RuleContext) -> Gradients:
    """Overwritten data has no gradient; updates gather theirs. With ``add`` both have one.

    Duplicate indices are undefined without a reduction, so an overwritten update is not considered.
    """
    mode, indices = ctx.attr("reduction", "none"), ctx.input(1)
    if mode not in ("none", "add"):
        ctx.refuse(f"its reduction is {mode!r}, and the rule is for 'none' and 'add'")
    is_elementwise = ctx.node.op == "ScatterElements"
    options = {"axis": ctx.attr("axis", 0)} if is_elementwise else {}
    data = ctx.g if mode == "add" else emit(ctx.node.op, ctx.g, indices, zeros_like(ctx.input(2)), **options)
    return data, None, emit("GatherElements" if is_elementwise else "GatherND", ctx.g, indices, **options)


@rule("OneHot")
def choose_values(ctx: RuleContext) -> Gradients:
    """The on-value gets the sum of the gradients at the selected positions, the off-value the rest."""
    mask_values = np.asarray([0, 1], ctx.input(2).dtype.numpy)
    mask = emit("OneHot", ctx.input(0), ctx.input(1), mask_values, axis=ctx.attr("axis", -1))
    axes = range(ctx.rank(ctx.y))
    on = reduce_sum(ctx.g * mask, axes)
    off = reduce_sum(ctx.g, axes) - on
    return None, None, emit("Concat", add_axes(off, 0), add_axes(on, 0), axis=0)


@rule("Range")
def count_up(ctx: RuleContext) -> Gradients:
    """y_i = start + i delta: start gets the sum of the gradients, delta the sum weighted by i."""
    indices = count_up_to(emit("Size", ctx.y)).astype(ctx.g.dtype)
    return reduce_sum(ctx.g, [0]), None, reduce_sum(ctx.g * indices, [0])


_RESIZE_ATTRIBUTES = (
    *("antialias", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside", "mode", "nearest_mode"),
    "keep_aspect_ratio_policy",
)


@rule("Resize")
def resize(ctx: RuleContext) -> Gradients:
    """Rule for y = A x B' ... with one matrix per axis: dx = A' g B ..."""
    if ctx.attr("coordinate_transformation_mode") == "tf_crop_and_resize":
        ctx.refuse("it resizes a crop (tf_crop_and_resize), for which there is no rule; cut the crop out by Slice")
    if ctx.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        ctx.refuse("it keeps the aspect ratio (keep_aspect_ratio_policy); pass the resulting sizes with the policy 'stretch'")
    rank = ctx.rank(ctx.x)
    shape, target = ctx.x.tensor_type.shape, ctx.y.tensor_type.shape
    axes = [axis % rank for axis in ctx.attr("axes") or range(rank)]
    scales, sizes = ctx.constant(2), ctx.constant(3)
    gradient = ctx.g
    for index, axis in enumerate(axes):
        size, result = (None if dims is None else dims[axis] for dims in (shape, target))
        if not isinstance(size, int) or not isinstance(result, int) or (scales is None and sizes is None):
            ctx.refuse("its extents are not known; bind the symbolic ones first")
        scale = None if scales is None or scales.size == 0 else scales.tolist()[index]
        if size == result and scale in (None, 1):
            continue
        # Multiply this axis of the gradient by the transposed matrix. MatMul multiplies the last axis, so move it there.
        order = [*(other for other in range(rank) if other != axis), axis]
        product = emit("MatMul", transpose(gradient, order), _compute_weights(ctx, size, result, scale))
        gradient = transpose(product, np.argsort(order).tolist())  # the inverse of ``order``
    return (gradient,)


def _compute_weights(ctx: RuleContext, size: int, result: int, scale: float | None) -> Tensor:
    """Compute the matrix (result, size) of one axis. Resize is linear, so the matrix is its result for the identity."""
    identity = np.eye(size, dtype=ctx.x.dtype.numpy)
    options: dict[str, Any] = {name: value for name in _RESIZE_ATTRIBUTES if (value := ctx.attr(name)) is not None}
    if scale is None:
        return emit("Resize", identity, None, None, make_vector(result, size), **options)
    return emit("Resize", identity, None, np.asarray([scale, 1], np.float32), **options)
