"""Padding rules of operators that move elements: shapes, concatenation, gather, scatter, slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from xrt.graph import DType, Node
from xrt.passes.contents import make_slice
from xrt.passes.extents import Extent, multiply
from xrt.passes.padding.padder import ONE, Axis, Padder, Unpaddable, rule


@rule("Transpose")
def apply_transpose(p: Padder, node: Node) -> None:
    """Permute the axes, and which of them have zero padding."""
    axes, zeros = p.axes(node.inputs[0]), p.zeros(node.inputs[0])
    order = list(node.attr("perm") or reversed(range(len(axes))))
    p.set(node.outputs[0], [axes[axis] for axis in order], [index for index, axis in enumerate(order) if axis in zeros])


@rule("Unsqueeze")
def apply_unsqueeze(p: Padder, node: Node) -> None:
    """Insert axes of extent 1."""
    axes, inserted = list(p.axes(node.inputs[0])), p.read_integers(node, 1, "axes") or []
    old, rank = iter(enumerate(axes)), len(axes) + len(inserted)
    new = {axis % rank for axis in inserted}
    order = [(-1, ONE) if index in new else next(old) for index in range(rank)]
    zeros = p.zeros(node.inputs[0])
    p.set(node.outputs[0], [axis for _, axis in order], [index for index, (n, _) in enumerate(order) if n in zeros])


@rule("Squeeze")
def apply_squeeze(p: Padder, node: Node) -> None:
    """Drop axes of extent 1; a padded axis cannot be dropped."""
    axes, squeezed = p.axes(node.inputs[0]), p.read_integers(node, 1, "axes")
    dropped = {n % len(axes) for n in squeezed} if squeezed else {n for n, axis in enumerate(axes) if axis == ONE}
    if squeezed is None and any(p.is_padded(axis) or axis[0].number is None for axis in axes):
        raise Unpaddable("it drops all axes of extent 1, and some extents are dynamic")
    if any(map(p.is_padded, padded := [axes[n] for n in dropped])):
        raise p.refuse("it drops a padded axis", *padded)
    p.set(node.outputs[0], [axis for n, axis in enumerate(axes) if n not in dropped])


@rule("Concat")
def apply_concat(p: Padder, node: Node) -> None:
    """Only the last input may be padded along the concatenated axis; otherwise padding would lie between the parts."""
    shapes = [p.axes(name) for name in node.inputs]
    rank = len(shapes[0])
    joined = node.attr("axis") % rank
    for shape in shapes[:-1]:
        if p.is_padded(shape[joined]):
            raise p.refuse("it concatenates behind a padded axis, so padding would lie between the parts", shape[joined])
    axes: list[Axis] = []
    for number in range(rank):
        distinct = list(dict.fromkeys(shape[number] for shape in shapes))
        if number == joined:
            parts = [shape[joined] for shape in shapes]
            axes.append(parts[0] if len(parts) == 1 else (sum(map(p.single_extent, parts), Extent.of(0)),))
        elif len(distinct) > 1 and any(map(p.is_padded, distinct)):
            raise p.refuse(f"its inputs have different extents along axis {number}", *distinct)
        else:
            axes.append(next((axis for axis in distinct if axis[0].number is not None), distinct[0]))
    # Only the last input is padded along the concatenated axis, so there the padding of the result is that of this input.
    zeros = frozenset.intersection(*(p.zeros(name) for name in node.inputs)) | (p.zeros(node.inputs[-1]) & {joined})
    p.set(node.outputs[0], axes, zeros)


@rule("Split")
def apply_split(p: Padder, node: Node) -> None:
    """Any axis except the split one may be padded."""
    axes = list(p.axes(node.inputs[0]))
    axis = node.attr("axis", 0) % len(axes)
    if p.is_padded(axes[axis]):
        raise p.refuse("it splits the padded axis", axes[axis])
    zeros = p.zeros(node.inputs[0])
    sizes = p.read_integers(node, 1, "split")
    for index, name in enumerate(node.outputs):
        if name:
            size: Axis = (Extent.of(sizes[index]),) if sizes else p.new_symbol(name, axis)
            p.set(name, [*axes[:axis], size, *axes[axis + 1 :]], zeros)


@rule("Expand")
def apply_expand(p: Padder, node: Node) -> None:
    """Axes of extent 1 may expand to padded ones."""
    axes, extents = p.axes(node.inputs[0]), p.known_extents(node.inputs[1], "shape")
    rank = max(len(axes), len(extents))
    source = [ONE] * (rank - len(axes)) + list(axes)
    target = [ONE] * (rank - len(extents)) + [(extent,) for extent in extents]
    expanded: list[Axis] = []
    for axis, other in zip(source, target, strict=True):
        if axis != ONE and other not in (ONE, (multiply(axis),)) and (p.is_padded(axis) or p.is_padded(other)):
            raise p.refuse(f"an axis of {multiply(axis)} expands to {other[0]}", axis, other)
        expanded.append(other if axis == ONE or (other != ONE and axis[0].number is None and not p.is_padded(axis)) else axis)
    shift = rank - len(axes)
    p.set(node.outputs[0], expanded, {n + shift for n in p.zeros(node.inputs[0])})


@rule("Tile")
def apply_tile(p: Padder, node: Node) -> None:
    """Only unpadded axes may be repeated."""
    tiled: list[Axis] = []
    for axis, count in zip(p.axes(node.inputs[0]), p.known_extents(node.inputs[1], "number of repeats"), strict=True):
        if (count.number != 1 and p.is_padded(axis)) or (p.is_padded(count) and axis != ONE):
            raise p.refuse("it repeats a padded axis", axis, count)
        tiled.append(axis if count.number == 1 else (multiply((count, *axis)),))
    p.set(node.outputs[0], tiled, p.zeros(node.inputs[0]))


@rule("Pad")
def apply_pad(p: Padder, node: Node) -> Node:
    """Along a padded axis, elements that Pad adds at the end must directly follow the valid part, not the padding."""
    data, axes = node.inputs[0], p.axes(node.inputs[0])
    pads = p.read_integers(node, 1, "pads") or []
    indices = p.read_integers(node, 3) or list(range(len(axes)))
    padded = list(axes)
    for number, axis in enumerate(n % len(axes) for n in indices):
        begin, end = pads[number], pads[number + len(indices)]
        if not begin and not end:
            continue
        if p.is_padded(axes[axis]):
            data = _pad_axis(p, node, data, axis, begin, end)
        padded[axis] = (axes[axis][0] + Extent.of(begin + end),)
    p.set(node.outputs[0], padded)
    return replace(node, inputs=(data, *node.inputs[1:]))


def _pad_axis(p: Padder, node: Node, data: str, axis_index: int, begin: int, end: int) -> str:
    """Set the padding of an axis to Pad's fill value, so the fill directly follows the valid part; return the new data's name."""
    axis = p.axes(data)[axis_index]
    if len(axis) != 1 or begin < 0 or end < 0 or (end and node.attr("mode", "constant") != "constant"):
        raise p.refuse("it removes or repeats elements at the end of the padded axis", axis)
    if node.attr("mode", "constant") == "wrap":
        raise p.refuse("it repeats elements at the end of the padded axis", axis)
    # Reflection reads begin + 1 valid elements.
    p.require_nonnegative(axis[0] - Extent.of(begin + 1 if node.attr("mode", "constant") == "reflect" else 0))
    if not end:
        return data
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    fill = p.function.constants.get(name)
    if name and fill is None:
        raise p.refuse("its fill value is not a constant", axis)
    number = node.attr("value", 0) if fill is None else fill.array.reshape(-1)[0]
    return p.mask(data, axis_index, number)


@rule("Range")
def apply_range(p: Padder, node: Node) -> Node | None:
    """A padded limit only adds numbers behind the valid ones; a padded start is replaced by the unpadded one."""
    (start,), (limit,), (step,) = (p.known_extents(name, "start, limit or step") for name in node.inputs)
    if step.number is None or step.number < 1:
        raise Unpaddable("its step is not a positive constant")
    count = (limit - start + Extent.of(step.number - 1)) // step.number
    p.require_nonnegative(limit - start)
    p.set(node.outputs[0], [(count,)])
    if not p.is_padded(start):
        return None
    if p.is_padded(count) or step.number != 1 or p.dtype(node.outputs[0]) is not DType.INT64:
        raise p.refuse("it starts at a size that padding changes", start)
    # Range must start at the unpadded size.
    return replace(node, op_type="Add", inputs=(p.emit_positions(Extent.of(0), count), p.emit_extent(start)))


@rule("ConstantOfShape")
def apply_fill(p: Padder, node: Node) -> None:
    """All elements are equal, so the padding is zero if the fill value is."""
    value = node.attr("value")
    is_zero = value is None or not np.any(value.array)
    axes: list[Axis] = [(extent,) for extent in p.known_extents(node.inputs[0], "shape")]
    p.set(node.outputs[0], axes, {n for n, axis in enumerate(axes) if p.is_padded(axis)} if is_zero else ())


@rule("OneHot")
def apply_one_hot(p: Padder, node: Node) -> None:
    """Insert an unpadded axis; the axes of the indices may be padded."""
    axes = list(p.axes(node.inputs[0]))
    p.check_parameters(node)
    axis = node.attr("axis", -1) % (len(axes) + 1)
    p.set(node.outputs[0], [*axes[:axis], p.new_symbol(node.outputs[0], axis), *axes[axis:]])


@rule("DepthToSpace")
def apply_depth_to_space(p: Padder, node: Node) -> None:
    """Spatial extents grow by the block size; the channels must not be padded."""
    batch, channels, *spatial = p.axes(node.inputs[0])
    if p.is_padded(channels) or any(len(axis) != 1 for axis in spatial):
        raise p.refuse("its channels are padded", channels)
    size = node.attr("blocksize")
    depth = channels[0].divide(Extent.of(size * size))
    if depth is None:
        raise Unpaddable("its channels are not known")
    p.set(node.outputs[0], [batch, (depth,), *((axis[0] * Extent.of(size),) for axis in spatial)])


Target: TypeAlias = Sequence["Extent | None"]
"""The new shape of a Reshape, one Extent per axis; None for the axis to infer (-1)."""


class _Parts:
    """The input extents of a Reshape that are not yet matched to output extents, outermost first."""

    def __init__(self, p: Padder, axes: Sequence[Axis]) -> None:
        self._p = p
        self.remaining = _merge_unpadded(p, [part for axis in axes for part in axis])

    def take(self, extent: Extent, *, last: bool) -> Axis:
        """Remove the input extents that form an output extent from the front (or back) of `remaining`; return them as an axis."""
        matched: list[Extent] = []
        while extent != ONE[0]:
            if not self.remaining:
                raise self._p.refuse(f"the new shape has an extent {extent} that the old one has not in this order", extent)
            part = self.remaining.pop(-1 if last else 0)
            # A part may be split over several output extents.
            extent, used = self._match(part, extent, last)
            matched.insert(0 if last else len(matched), used)
        return _merge(self._p, matched)

    def _match(self, part: Extent, extent: Extent, last: bool) -> tuple[Extent, Extent]:
        """Match an input extent ``part`` with an output extent; return the output extent still to match and the matched extent.

        The unmatched factor of the part goes back to `remaining`. Raises Unpaddable if a padded extent would be split such that
        padding lies between its valid elements.
        """
        if (unmatched := extent.divide(part)) is not None:
            return unmatched, part
        rest_of_part = part.divide(extent)
        inner = extent if last else rest_of_part
        if rest_of_part is None or (self._p.is_padded(part) and (inner is None or self._p.is_padded(inner))):
            raise self._p.refuse(
                f"the new shape has {extent} where the old one has {part}; a size that is a constant there, or in "
                "another order, would be wrong with padding",
                part,
                extent,
            )
        self.remaining.insert(len(self.remaining) if last else 0, rest_of_part)
        return ONE[0], extent

    def rest(self) -> Axis:
        """The remaining extents, merged to one axis."""
        return _merge(self._p, self.remaining)


def _merge_unpadded(p: Padder, parts: Sequence[Extent]) -> list[Extent]:
    """Merge adjacent extents without padding, and drop extents of 1."""
    joined: list[Extent] = []
    for part in parts:
        if part == ONE[0]:
            continue
        if joined and not p.is_padded(part) and not p.is_padded(joined[-1]):
            part *= joined.pop()  # noqa: PLW2901  # merge with the previous part
        joined.append(part)
    return joined


def _merge(p: Padder, parts: Sequence[Extent]) -> Axis:
    """Merge extents to one axis. The axis is a single Extent if its valid elements still precede all padding."""
    joined = _merge_unpadded(p, parts)
    # Padding of the outermost extent alone follows all valid elements.
    if not any(map(p.is_padded, joined[1:])):
        return (multiply(tuple(joined)),)
    return tuple(joined)


@rule("Reshape")
def apply_reshape(p: Padder, node: Node) -> None:
    """A padded extent must stay whole or merge with its neighbors."""
    axes, target = p.axes(node.inputs[0]), []
    for number, extent in enumerate(p.known_extents(node.inputs[1], "shape")):
        is_copied = extent.number == 0 and not node.attr("allowzero", 0)
        target.append(None if extent.number == -1 else multiply(axes[number]) if is_copied else extent)
    _reshape(p, node, target)


def _reshape(p: Padder, node: Node, target: Target) -> None:
    """Record the output axes of a reshape to ``target``: match its extents with those of the input, the inferred one last."""
    parts = _Parts(p, p.axes(node.inputs[0]))
    inferred = target.index(None) if None in target else len(target)
    front = [parts.take(extent, last=False) for extent in target[:inferred] if extent is not None]
    back = [parts.take(extent, last=True) for extent in reversed(target[inferred + 1 :]) if extent is not None]
    if inferred == len(target) and parts.remaining:
        raise p.refuse("the new shape has fewer elements", *parts.remaining)
    middle = [parts.rest()] if inferred < len(target) else []
    axes = [*front, *middle, *reversed(back)]
    p.set(node.outputs[0], axes, _find_zero_padded_axes(p, node.inputs[0], axes))


def _find_zero_padded_axes(p: Padder, data: str, axes: Sequence[Axis]) -> list[int]:
    """Find the indices of the output axes that are known to be padded with zeros, by their extents.

    If an input axis with undefined padding has the same extents, the match is ambiguous and the axis is left out.
    """
    zeros = p.zeros(data)
    old = [axis for n, axis in enumerate(p.axes(data)) if p.is_padded(axis) and n not in zeros]
    zero_padded = [p.axes(data)[n] for n in zeros]
    return [n for n, axis in enumerate(axes) if axis in zero_padded and axis not in old]


@rule("Flatten")
def apply_flatten(p: Padder, node: Node) -> None:
    """Merge the axes before attribute `axis` to one, and those from it on to another."""
    axes = p.axes(node.inputs[0])
    first = node.attr("axis", 1)
    first += len(axes) if first < 0 else 0
    halves = axes[:first], axes[first:]
    p.set(node.outputs[0], [_merge(p, [part for axis in half for part in axis]) for half in halves])


_TO_END = 2**31 - 1
"""Exporters write this (or more) as the end of a Slice to mean "to the end of the axis"."""


def _count_from_start(p: Padder, indices: str, extent: Extent) -> str:
    """Convert negative indices to count from the start of an axis of this extent; known indices must be in range."""
    contents = p.contents(indices)
    if contents is not None and all(isinstance(index, Extent) and (index.number or 0) >= 0 for index in contents.flat):
        for index in contents.flat:
            p.require_nonnegative(extent - index - Extent.of(1))
        return indices
    for index in contents.flat if contents is not None else ():
        if isinstance(index, Extent):
            p.require_nonnegative(extent + index)
    return _add_where_negative(p, indices, p.emit_extent(extent))


def _add_where_negative(p: Padder, indices: str, size: str) -> str:
    """Add nodes that compute ``indices + size`` where an index is negative, and the index elsewhere; return the result's name."""
    dtype = p.dtype(indices)
    is_negative = p.node("Less", indices, p.constant(np.zeros((), dtype.numpy)))
    counted = p.node("Add", indices, p.node("Cast", size, to=dtype.onnx))
    return p.node("Where", is_negative, counted, indices)


def _prepare_indices(p: Padder, data: str, axis: int, indices: str) -> str:
    """Make all indices valid: set their padding to 0, and convert negative ones to count from the start. Returns the new name."""
    indices = p.mask_all(indices, range(len(p.axes(indices))), 0) if indices in p.states else indices
    extents = p.axes(data)[axis]
    return _count_from_start(p, indices, p.single_extent(extents)) if p.is_padded(extents) else indices


@rule("Gather")
def apply_gather(p: Padder, node: Node) -> Node:
    """Set padding of the indices to 0, which is always in range; negative indices count from the unpadded end."""
    data, indices = node.inputs
    axes = p.axes(data)
    axis = node.attr("axis", 0) % len(axes)
    positions, index_axes = _prepare_indices(p, data, axis, indices), p.axes(indices)
    zeros = [n if n < axis else n + len(index_axes) - 1 for n in p.zeros(data) if n != axis]
    p.set(node.outputs[0], [*axes[:axis], *index_axes, *axes[axis + 1 :]], zeros)
    return replace(node, inputs=(data, positions))


@rule("GatherElements")
def apply_gather_elements(p: Padder, node: Node) -> Node:
    """Like Gather; the other axes must have equal padding in data and indices."""
    data, indices = node.inputs
    axes, index_axes = p.axes(data), p.axes(indices)
    axis = node.attr("axis", 0) % len(axes)
    p.check_equal_extents(axes, index_axes, skip=axis)
    positions = _prepare_indices(p, data, axis, indices)
    p.set(node.outputs[0], index_axes)
    return replace(node, inputs=(data, positions))


@rule("GatherND")
def apply_gather_nd(p: Padder, node: Node) -> Node:
    """Like Gather, for positions along several axes."""
    data, indices = node.inputs
    axes, index_axes = p.axes(data), p.axes(indices)
    depth = index_axes[-1][0].number
    if depth is None or node.attr("batch_dims", 0):
        raise p.refuse("it has batch_dims, or indices of unknown depth", *axes, *index_axes)
    positions = p.mask_all(indices, range(len(index_axes)), 0) if indices in p.states else indices
    if any(map(p.is_padded, axes[:depth])):
        positions = _add_where_negative(p, positions, p.emit_vector(map(p.single_extent, axes[:depth])))
    p.set(node.outputs[0], [*index_axes[:-1], *axes[depth:]])
    return replace(node, inputs=(data, positions))


@rule("ScatterElements")
def apply_scatter_elements(p: Padder, node: Node) -> Node:
    """Padded updates repeat the last valid update at its own index, so the padding writes the same value again.

    Along the other axes all operands must have equal padding.
    """
    data, indices, updates = node.inputs
    axes, index_axes = p.axes(data), p.axes(indices)
    axis = node.attr("axis", 0) % len(axes)
    p.check_equal_extents(axes, index_axes, skip=axis)
    p.check_equal_extents(index_axes, p.axes(updates))
    positions = p.mask_all(indices, (n for n in range(len(axes)) if n != axis), 0) if indices in p.states else indices
    if p.is_padded(axes[axis]):
        positions = _count_from_start(p, positions, p.single_extent(axes[axis]))
    if p.is_padded(index_axes[axis]):
        if (reduction := node.attr("reduction", "none")) in ("add", "mul"):
            raise p.refuse(f"an entry that is written twice counts twice in reduction {reduction!r}", index_axes[axis])
        clamped_positions = _repeat_last(p, indices, axis)
        positions, updates = (p.node("Gather", name, clamped_positions, axis=axis) for name in (positions, updates))
    p.set(node.outputs[0], axes)
    return replace(node, inputs=(data, positions, updates))


@rule("TensorScatter")
def apply_tensor_scatter(p: Padder, node: Node) -> Node | None:
    """Use a ScatterElements if the update is padded; its padding writes the last valid entry again."""
    past, update, *optional = node.inputs
    axes, update_axes = p.axes(past), p.axes(update)
    axis = node.attr("axis", -2) % len(axes)
    if p.is_padded(axes[axis]) or (optional and optional[0] in p.states):
        raise p.refuse("its cache is padded along the written axis, or its write_indices are padded", *axes)
    p.check_equal_extents(axes, update_axes, skip=axis)
    p.set(node.outputs[0], axes)
    if not p.is_padded(update_axes[axis]):
        return None
    if node.attr("mode", "linear") != "linear":
        raise p.refuse("it writes to a circular buffer", update_axes[axis])
    # Writing the same entry again at its own position changes nothing.
    clamped_positions = _repeat_last(p, update, axis)
    along = [-1 if n == axis else 1 for n in range(len(axes))]
    positions = p.node("Reshape", clamped_positions, p.constant(np.array(along, np.int64)))
    if optional and optional[0]:
        by_batch = p.constant(np.array([-1] + [1] * (len(axes) - 1), np.int64))
        positions = p.node("Add", positions, p.node("Reshape", optional[0], by_batch))
    positions = p.node("Expand", positions, p.node("Shape", update))
    operands = past, positions, p.node("Gather", update, clamped_positions, axis=axis)
    return replace(node, op_type="ScatterElements", inputs=operands, attributes=()).with_attributes(axis=axis)


def _repeat_last(p: Padder, name: str, axis: int) -> str:
    """Add nodes that compute the positions along an axis, with the last valid position in place of padding; return their name."""
    valid, (extent,) = p.emit_valid_flags(name, axis), p.axes(name)[axis]
    p.require_nonnegative(extent - Extent.of(1))
    last = p.node("Sub", p.emit_extent(extent), p.constant(np.int64(1)))
    return p.node("Where", valid, p.emit_range(p.emit_length(name, axis)), last)


@rule("TopK")
def apply_top_k(p: Padder, node: Node) -> None:
    """Any axis except the sorted one may be padded."""
    axes = list(p.axes(node.inputs[0]))
    axis = node.attr("axis", -1) % len(axes)
    if p.is_padded(axes[axis]):
        raise p.refuse("it sorts the padded axis", axes[axis])
    for name in filter(None, node.outputs):
        p.set(name, [*axes[:axis], p.new_symbol(name, axis), *axes[axis + 1 :]])


@rule("Slice")
def apply_slice(p: Padder, node: Node) -> Node | None:
    """A slice with a fixed start is unchanged; one that starts at a padded size becomes a Gather at computed positions."""
    axes = list(p.axes(node.inputs[0]))
    starts, ends = (_read_bounds(p, node, slot, name) for slot, name in ((1, "starts"), (2, "ends")))
    sliced_axes = [n % len(axes) for n in p.read_integers(node, 3, "axes") or range(len(starts))]
    steps = p.read_integers(node, 4) or [1] * len(starts)
    moved: Extent | None = None
    for start, end, axis, step in zip(starts, ends, sliced_axes, steps, strict=True):
        # Padding does not affect this axis: the slice is the same with and without it.
        if not p.is_padded(axes[axis]) and not _is_size(p, start) and not _is_size(p, end):
            axes[axis] = _slice_unpadded(p, node, axes[axis], axis, (start, end, step))
            continue
        start, end = _count_bounds(p, axes[axis], start, end, step)  # noqa: PLW2901  # resolved to non-negative
        axes[axis] = ((end - start + Extent.of(step - 1)) // step,)
        if p.is_padded(start):
            if len(sliced_axes) > 1:
                raise p.refuse("it slices several axes, one from a start that depends on a padded size", start)
            if step != 1 or p.is_padded(axes[axis]):
                raise p.refuse("its start depends on a padded size", start)
            moved = start
    p.set(node.outputs[0], axes, () if moved else p.zeros(node.inputs[0]))
    if moved is None:
        return None
    positions = p.emit_positions(moved, axes[sliced_axes[0]][0])
    return replace(node, op_type="Gather", inputs=(node.inputs[0], positions), attributes=()).with_attributes(axis=sliced_axes[0])


def _read_bounds(p: Padder, node: Node, input_index: int, attribute: str) -> list[Extent | None]:
    """Read the starts or ends of a Slice from an attribute or an input; None for a bound that is not known."""
    value = node.attr(attribute)
    if value is not None:
        return [Extent.of(bound) for bound in value]
    elements = p.elements(node.inputs[input_index])
    if elements is None:
        ((extent,),) = p.axes(node.inputs[input_index])
        if extent.number is None:
            raise Unpaddable(f"input {node.inputs[input_index]!r} is not known")
        return [None] * extent.number
    return elements


def _is_size(p: Padder, extent: Extent | None) -> bool:
    return extent is not None and p.is_padded(extent)


def _slice_unpadded(
    p: Padder, node: Node, axis: Axis, axis_index: int, bounds_and_step: tuple[Extent | None, Extent | None, int]
) -> Axis:
    start, end = (None if bound is None else bound.number for bound in bounds_and_step[:2])
    extent = axis[0].number
    if extent is not None and start is not None and end is not None:
        return (Extent.of(len(range(*make_slice(start, end, bounds_and_step[2], extent).indices(extent)))),)
    return p.new_symbol(node.outputs[0], axis_index)


def _count_bounds(p: Padder, axis: Axis, start: Extent | None, end: Extent | None, step: int) -> tuple[Extent, Extent]:
    """Convert slice bounds to non-negative offsets; require that they lie within the axis, both unpadded and padded."""
    if len(axis) != 1 or start is None or end is None or step < 1:
        raise p.refuse("its bounds are not known, or its step is negative", axis)
    (extent,) = axis
    if start.number is not None and start.number < 0:
        start += extent
    if end.number is not None:
        end = extent if end.number >= _TO_END else extent + end if end.number < 0 else end
    for bound in (start, extent - end, end - start):
        p.require_nonnegative(bound)
        # A Slice clamps its bounds without an error, so that all of them must be checked before a call.
        if bound.bounds[0] < 0 and not p.is_known(bound):
            raise p.refuse("its bounds are known only in a call", axis)
    return start, end
