"""Reading by indices: the gradient is added up at the places that were read, as often as they were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from xrt.builder.record_op import emit
from xrt.passes.gradient.rules.shapes import list_places, sum_at_places
from xrt.passes.gradient.table import RuleContext, rule
from xrt.passes.gradient.tensors import add_axes, get_shape, integers, reduce_sum, transpose, zeros, zeros_like

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor

Gradients = Sequence["Tensor | None"]


@rule("Gather")
def gather(at: RuleContext) -> Gradients:
    """The gradient of each row that was read is added to that row; the axis that is read is brought to the front for it.

    Where the rows are known, those of a permutation are put back in order, and one row gets zeros around it.
    """
    rank, axes = at.rank(at.x), at.rank(at.input(1))
    axis = at.attr("axis", 0) % rank
    known = _put_back(at, axis)
    if known is not None:
        return (known,)
    rows = transpose(at.g, [*range(axis, axis + axes), *range(axis), *range(axis + axes, axes + rank - 1)])
    order = [axis, *(other for other in range(rank) if other != axis)]
    shape = get_shape(at.x)
    moved = shape[order] if isinstance(shape, np.ndarray) else emit("Gather", shape, np.asarray(order, np.int64))
    base = zeros(moved, at.x.dtype)
    found = emit("ScatterND", base, add_axes(at.input(1).astype("int64"), axes), rows, reduction="add")
    return (transpose(found, np.argsort(order).tolist()),)


def _put_back(at: RuleContext, axis: int) -> Tensor | None:
    """Return the gradient of rows that are known to be one row, or each row once; None for others."""
    rows, shape = at.constant(1), at.x.tensor_type.shape
    size = None if shape is None else shape[axis]
    if rows is None or not isinstance(size, int) or size == 0 or rows.ndim > 1:
        return None
    places = rows.reshape(-1) % size
    if len(places) == size and np.array_equal(np.sort(places), np.arange(size)):
        back = integers(*np.argsort(places).tolist())
        return emit("Gather", at.g, back, axis=axis) if rows.ndim else add_axes(at.g, axis)
    if len(places) != 1:
        return None
    first = int(places[0])
    ends = integers(first, size - 1 - first)
    return emit("Pad", at.g if rows.ndim else add_axes(at.g, axis), ends, None, integers(axis))


@rule("GatherElements")
def gather_elements(at: RuleContext) -> Gradients:
    """The gradient of each element that was read is added to it."""
    axis = at.attr("axis", 0)
    return (emit("ScatterElements", zeros_like(at.x), at.input(1), at.g, axis=axis, reduction="add"),)


@rule("GatherND")
def gather_slices(at: RuleContext) -> Gradients:
    """The gradient of each slice that was read is added to it."""
    batch = at.attr("batch_dims", 0)
    if batch == 0:
        return (emit("ScatterND", zeros_like(at.x), at.input(1), at.g, reduction="add"),)
    places = emit("GatherND", list_places(at.x), at.input(1), batch_dims=batch)
    return (sum_at_places(at.g, places, at.x),)


@rule("ScatterElements")
def scatter_elements(at: RuleContext) -> Gradients:
    """What is overwritten has no gradient, and an update has that of its place; with ``add`` both have it.

    An update that another one overwrites would have none: where indices occur twice, the operator is not defined.
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
    """As for ScatterElements, with slices."""
    mode = at.attr("reduction", "none")
    if mode not in ("none", "add"):
        at.refuse(f"its reduction is {mode!r}, and the rule is for 'none' and 'add'")
    data = at.g
    if mode == "none" and at.wants(0):
        data = emit("ScatterND", at.g, at.input(1), zeros_like(at.input(2)))
    return data, None, emit("GatherND", at.g, at.input(1)) if at.wants(2) else None


@rule("TensorScatter")
def update_cache(at: RuleContext) -> Gradients:
    """What is overwritten has no gradient, and an update has that of its place."""
    past, update = at.input(0), at.input(1)
    options = {"axis": at.attr("axis", -2), "mode": at.attr("mode", "linear")}
    indices = () if at.optional(2) is None else (at.input(2),)
    data = emit("TensorScatter", at.g, zeros_like(update), *indices, **options) if at.wants(0) else None
    if not at.wants(1):
        return (data,)
    # The places of the updates are found by writing their numbers, counted from 1, and zeros elsewhere.
    numbers = emit(
        "TensorScatter",
        emit("ConstantOfShape", get_shape(past), value=np.zeros(1, np.int64)),
        list_places(update) + 1,
        *indices,
        **options,
    )
    order = numbers.reshape(-1)
    base = zeros(emit("Add", emit("Reshape", emit("Size", update), [1]), np.asarray([1])), at.g.dtype)
    found = emit("ScatterElements", base, order, at.g.reshape(-1), axis=0, reduction="add")
    tail = emit("Slice", found, np.asarray([1]), np.asarray([np.iinfo(np.int64).max]))
    return data, emit("Reshape", tail, get_shape(update))


@rule("OneHot")
def choose_values(at: RuleContext) -> Gradients:
    """The value for the chosen places has the sum of the gradients there, the other one the sum of the rest."""
    values = at.input(2)
    pair = np.asarray([0, 1], values.dtype.numpy)
    mask = emit("OneHot", at.input(0), at.input(1), pair, axis=at.attr("axis", -1))
    axes = range(at.rank(at.y))
    on = reduce_sum(at.g * mask, axes)
    rest = reduce_sum(at.g, axes) - on
    return None, None, emit("Concat", add_axes(rest, 0), add_axes(on, 0), axis=0)


@rule("Range")
def count_up(at: RuleContext) -> Gradients:
    """The function start + i delta: the start has the sum of the gradients, delta their sum weighted by i."""
    step = at.input(2)
    first = reduce_sum(at.g, [0]) if at.wants(0) else None
    if not at.wants(2):
        return (first,)
    length = emit("Reshape", emit("Shape", at.y), np.asarray([], np.int64))
    places = emit("Range", np.asarray(0, np.int64), length, np.asarray(1, np.int64))
    return first, None, reduce_sum(at.g * places.astype(step.dtype), [0])
