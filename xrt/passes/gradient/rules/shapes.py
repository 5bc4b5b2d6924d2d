"""Operators that change shapes and move whole parts: the gradient is moved back, and summed where parts were repeated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import emit
from xrt.passes.gradient.table import RuleContext, rule
from xrt.passes.gradient.tensors import (
    add_axes,
    extent,
    flatten,
    get_shape,
    integers,
    reduce_sum,
    reshape_to,
    split,
    sum_to,
    transpose,
    zeros_like,
)

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor

Gradients = Sequence["Tensor | None"]


@rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape_back(at: RuleContext) -> Gradients:
    """The gradient in the shape of the input."""
    return (reshape_to(at.g, at.x),)


@rule("Transpose")
def transpose_back(at: RuleContext) -> Gradients:
    """The gradient with its axes in the inverse order."""
    order = at.attr("perm")
    return (emit("Transpose", at.g) if order is None else transpose(at.g, np.argsort(order).tolist()),)


@rule("Expand")
def sum_copies(at: RuleContext) -> Gradients:
    """The sum over the copies."""
    return (sum_to(at.g, at.x),)


@rule("Tile")
def sum_tiles(at: RuleContext) -> Gradients:
    """The sum over the tiles, which are axes of their own in the shape (r1, d1, r2, d2, ...)."""
    rank = at.rank(at.x)
    if rank == 0:
        return (at.g,)
    repeats, shape = at.input(1), at.builder.symbol(get_shape(at.x))
    interleaved = emit("Concat", add_axes(repeats, 1), add_axes(shape, 1), axis=1)
    tiles = emit("Reshape", at.g, flatten(interleaved), allowzero=1)
    return (reshape_to(reduce_sum(tiles, range(0, 2 * rank, 2)), at.x),)


@rule("Concat")
def cut_apart(at: RuleContext) -> Gradients:
    """The part of the gradient that belongs to each operand."""
    axis, operands = at.attr("axis"), [at.input(i) for i in range(len(at.node.inputs))]
    sizes = [extent(operand, axis) for operand in operands]
    if all(isinstance(size, np.ndarray) for size in sizes):
        return split(at.g, np.concatenate(sizes), axis, len(operands))
    return split(at.g, emit("Concat", *sizes, axis=0), axis, len(operands))


@rule("Split")
def put_together(at: RuleContext) -> Gradients:
    """The gradients of the parts in their places."""
    parts = [at.gradient(index) if name else at.refuse("an output is left out") for index, name in enumerate(at.node.outputs)]
    return (parts[0] if len(parts) == 1 else emit("Concat", *parts, axis=at.attr("axis", 0)),)


@rule("Pad")
def cut_padding(at: RuleContext) -> Gradients:
    """The gradient without what was added, by the opposite padding; the value that was added has the sum of the rest.

    In the other modes an element is repeated in the padding, and its gradient is the sum over its copies.
    """
    if at.attr("mode", "constant") != "constant":
        return (_sum_sources(at, lambda places: emit("Pad", places, *_pads(at), mode=at.attr("mode"))),)
    pads, axes = at.input(1), at.optional(3)
    inner = emit("Pad", at.g, emit("Neg", pads), None, *(() if axes is None else (axes,)))
    value = at.optional(2)
    rest = (
        None if value is None or not at.wants(2) else emit("ReduceSum", at.g, keepdims=0) - emit("ReduceSum", inner, keepdims=0)
    )
    return inner if at.wants(0) else None, None, None if rest is None or value is None else reshape_to(rest, value)


def _pads(at: RuleContext) -> tuple[Any, ...]:
    axes = at.optional(3)
    return (at.input(1),) if axes is None else (at.input(1), None, axes)


@rule("Slice")
def put_back(at: RuleContext) -> Gradients:
    """The gradient among zeros, in the places that the slice was taken from."""
    pads = _known_pads(at)
    if pads is not None:
        return (emit("Pad", at.g, integers(*pads)),)
    rest = [at.optional(i) for i in range(1, len(at.node.inputs))]
    return (_sum_sources(at, lambda places: emit("Slice", places, *rest)),)


def _known_pads(at: RuleContext) -> list[int] | None:
    """Return the zeros before and after a slice whose bounds are known, on each axis; None for other slices."""
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
        before[axis], after[axis] = first, size - max(first, last)
    return [*before, *after]


@rule("DepthToSpace")
def blocks_to_depth(at: RuleContext) -> Gradients:
    """SpaceToDepth is the inverse of the mode DCR; elements of CRD go back to the places that they come from."""
    if at.attr("mode", "DCR") == "DCR":
        return (emit("SpaceToDepth", at.g, blocksize=at.attr("blocksize")),)
    options = {"blocksize": at.attr("blocksize"), "mode": at.attr("mode")}
    return (_sum_sources(at, lambda places: emit("DepthToSpace", places, **options)),)


@rule("SpaceToDepth")
def depth_to_blocks(at: RuleContext) -> Gradients:
    """DepthToSpace is the inverse."""
    return (emit("DepthToSpace", at.g, blocksize=at.attr("blocksize"), mode="DCR"),)


@rule("ReverseSequence")
def reverse_back(at: RuleContext) -> Gradients:
    """The operator is its own inverse."""
    axes = {"batch_axis": at.attr("batch_axis", 1), "time_axis": at.attr("time_axis", 0)}
    return (emit("ReverseSequence", at.g, at.input(1), **axes),)


@rule("Trilu")
def keep_triangle(at: RuleContext) -> Gradients:
    """The gradient of the triangle that is kept."""
    diagonal = at.optional(1)
    return (emit("Trilu", at.g, *(() if diagonal is None else (diagonal,)), upper=at.attr("upper", 1)),)


@rule("Compress")
def fill_gaps(at: RuleContext) -> Gradients:
    """The gradient of each kept element in its place."""
    axis = at.attr("axis")
    return (_sum_sources(at, lambda places: emit("Compress", places, at.input(1), axis=axis)),)


def _sum_sources(at: RuleContext, move: Any) -> Tensor:
    """Return, for each element of the input, the sum of the gradients of its copies in the output.

    What the operator does to elements it does to their places too, so their places say where the gradients go.
    """
    return sum_at_places(at.g, move(list_places(at.x)), at.x)


def list_places(x: Tensor) -> Tensor:
    """Return the places 0, 1, ... of the elements in the tensor's shape."""
    known = x.tensor_type.is_static
    size = np.asarray(np.prod(get_shape(x), dtype=np.int64)) if known else emit("Size", x)
    row = emit("Range", np.asarray(0, np.int64), size, np.asarray(1, np.int64))
    return emit("Reshape", row, get_shape(x), allowzero=None if known and 0 not in x.shape else 1)


def sum_at_places(g: Tensor, places: Tensor, like: Tensor) -> Tensor:
    """Return a tensor of the shape of ``like`` with the sums of the gradients that go to each place of its elements."""
    base = flatten(zeros_like(like))
    return reshape_to(emit("ScatterElements", base, flatten(places), flatten(g), axis=0, reduction="add"), like)
