"""Padding rules of operators that move elements: shapes, concatenation, gather, scatter, slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from xrt.graph import DType, Node
from xrt.passes.contents import make_slice
from xrt.passes.extents import Extent, multiply
from xrt.passes.padding.padder import ONE, Axis, Padder, Unpaddable, rule


@rule("Transpose")
def apply_transpose(p: Padder, node: Node) -> None:
    axes, zeros = p.get_axes(node.inputs[0]), p.get_zero_axes(node.inputs[0])
    order = list(node.attr("perm") or reversed(range(len(axes))))
    p.set_axes(node.outputs[0], [axes[axis] for axis in order], [index for index, axis in enumerate(order) if axis in zeros])


@rule("Unsqueeze")
def apply_unsqueeze(p: Padder, node: Node) -> None:
    old_axes, zeros = p.get_axes(node.inputs[0]), p.get_zero_axes(node.inputs[0])
    inserted = p.read_integers(node, 1, "axes") or []
    rank = len(old_axes) + len(inserted)
    inserted_indices = {axis % rank for axis in inserted}
    # The index in the output of each input axis, in order.
    new_indices = [index for index in range(rank) if index not in inserted_indices]
    axes = [ONE] * rank
    for index, axis in zip(new_indices, old_axes, strict=True):
        axes[index] = axis
    p.set_axes(node.outputs[0], axes, [new_indices[n] for n in zeros])


@rule("Squeeze")
def apply_squeeze(p: Padder, node: Node) -> None:
    """Drop axes of extent 1; a padded axis cannot be dropped."""
    axes, squeezed = p.get_axes(node.inputs[0]), p.read_integers(node, 1, "axes")
    if squeezed is None and any(p.is_padded(axis) or axis[0].number is None for axis in axes):
        raise Unpaddable("it drops all axes of extent 1, and some extents are dynamic")
    dropped = {n % len(axes) for n in squeezed} if squeezed else {n for n, axis in enumerate(axes) if axis == ONE}
    for n in dropped:
        if p.is_padded(axes[n]):
            raise p.refuse("it drops a padded axis", axes[n])
    p.set_axes(node.outputs[0], [axis for n, axis in enumerate(axes) if n not in dropped])


@rule("Concat")
def apply_concat(p: Padder, node: Node) -> None:
    """Only the last input may be padded along the concatenated axis; otherwise padding would lie between the parts."""
    shapes = [p.get_axes(name) for name in node.inputs]
    concatenated = node.attr("axis") % len(shapes[0])
    axes: list[Axis] = []
    for index, operand_axes in enumerate(zip(*shapes, strict=True)):
        distinct = list(dict.fromkeys(operand_axes))
        if index == concatenated:
            for axis in operand_axes[:-1]:
                if p.is_padded(axis):
                    raise p.refuse("it concatenates behind a padded axis, so padding would lie between the parts", axis)
            extents = map(p.get_single_extent, operand_axes)
            axes.append(operand_axes[0] if len(operand_axes) == 1 else (sum(extents, Extent.of(0)),))
        elif len(distinct) > 1 and any(map(p.is_padded, distinct)):
            raise p.refuse(f"its inputs have different extents along axis {index}", *distinct)
        else:
            # The extent may be known as a number for some of the inputs only.
            axes.append(next((axis for axis in distinct if axis[0].number is not None), distinct[0]))
    zeros = frozenset.intersection(*map(p.get_zero_axes, node.inputs))
    # Along the concatenated axis the padding of the result is that of the last input.
    zeros |= p.get_zero_axes(node.inputs[-1]) & {concatenated}
    p.set_axes(node.outputs[0], axes, zeros)


@rule("Split")
def apply_split(p: Padder, node: Node) -> None:
    """Any axis except the split one may be padded."""
    axes = list(p.get_axes(node.inputs[0]))
    axis = node.attr("axis", 0) % len(axes)
    if p.is_padded(axes[axis]):
        raise p.refuse("it splits the padded axis", axes[axis])
    zeros = p.get_zero_axes(node.inputs[0])
    sizes = p.read_integers(node, 1, "split")
    for index, name in enumerate(node.outputs):
        if name:
            size: Axis = (Extent.of(sizes[index]),) if sizes else p.make_symbol(name, axis)
            p.set_axes(name, [*axes[:axis], size, *axes[axis + 1 :]], zeros)


@rule("Expand")
def apply_expand(p: Padder, node: Node) -> None:
    """Axes of extent 1 may expand to padded ones."""
    axes, extents = p.get_axes(node.inputs[0]), p.read_extents(node.inputs[1], "shape")
    rank = max(len(axes), len(extents))
    source = [ONE] * (rank - len(axes)) + list(axes)
    target = [ONE] * (rank - len(extents)) + [(extent,) for extent in extents]
    expanded: list[Axis] = []
    for axis, new_axis in zip(source, target, strict=True):
        is_padded = p.is_padded(axis) or p.is_padded(new_axis)
        if is_padded and axis != ONE and new_axis not in (ONE, (multiply(axis),)):
            raise p.refuse(f"an axis of {multiply(axis)} expands to {new_axis[0]}", axis, new_axis)
        # An unknown extent of the input, which may be 1, is replaced by that of the shape operand.
        is_unknown = axis[0].number is None and not p.is_padded(axis)
        expanded.append(new_axis if axis == ONE or (is_unknown and new_axis != ONE) else axis)
    shift = rank - len(axes)
    p.set_axes(node.outputs[0], expanded, {n + shift for n in p.get_zero_axes(node.inputs[0])})


@rule("Tile")
def apply_tile(p: Padder, node: Node) -> None:
    """Only unpadded axes may be repeated."""
    tiled: list[Axis] = []
    for axis, count in zip(p.get_axes(node.inputs[0]), p.read_extents(node.inputs[1], "number of repeats"), strict=True):
        if (count.number != 1 and p.is_padded(axis)) or (p.is_padded(count) and axis != ONE):
            raise p.refuse("it repeats a padded axis", axis, count)
        tiled.append(axis if count.number == 1 else (multiply((count, *axis)),))
    p.set_axes(node.outputs[0], tiled, p.get_zero_axes(node.inputs[0]))


@rule("Pad")
def apply_pad(p: Padder, node: Node) -> Node:
    """Along a padded axis, elements that Pad adds at the end must directly follow the valid part, not the padding."""
    data, axes = node.inputs[0], p.get_axes(node.inputs[0])
    pads = p.read_integers(node, 1, "pads") or []
    indices = p.read_integers(node, 3) or list(range(len(axes)))  # input 3 lists the axes to pad
    padded = list(axes)
    for position, axis in enumerate(n % len(axes) for n in indices):
        begin, end = pads[position], pads[position + len(indices)]  # all begins come first, then all ends
        if not begin and not end:
            continue
        if p.is_padded(axes[axis]):
            data = _pad_axis(p, node, data, axis, begin, end)
        padded[axis] = (axes[axis][0] + (begin + end),)
    p.set_axes(node.outputs[0], padded)
    return replace(node, inputs=(data, *node.inputs[1:]))


def _pad_axis(p: Padder, node: Node, data: str, axis_index: int, begin: int, end: int) -> str:
    """Set the padding of an axis to Pad's fill value, so that this directly follows the valid part; return the masked data."""
    axis, mode = p.get_axes(data)[axis_index], node.attr("mode", "constant")
    if len(axis) != 1 or begin < 0 or end < 0 or (end and mode != "constant"):
        raise p.refuse("it removes or repeats elements at the end of the padded axis", axis)
    if mode == "wrap":
        raise p.refuse("it repeats elements at the end of the padded axis", axis)
    if mode == "reflect":
        # Reflection reads begin + 1 valid elements.
        p.require_nonnegative(axis[0] - (begin + 1))
    if not end:
        return data
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    fill = p.function.constants.get(name)
    if name and fill is None:
        raise p.refuse("its fill value is not a constant", axis)
    fill_value = node.attr("value", 0) if fill is None else fill.array.reshape(-1)[0]
    return p.mask(data, [axis_index], fill_value)


@rule("Range")
def apply_range(p: Padder, node: Node) -> Node | None:
    """A padded limit only appends numbers to the valid ones. A padded start is replaced by the unpadded start."""
    (start,), (limit,), (step,) = (p.read_extents(name, "start, limit or step") for name in node.inputs)
    if step.number is None or step.number < 1:
        raise Unpaddable("its step is not a positive constant")
    count = (limit - start + (step.number - 1)) // step.number
    p.require_nonnegative(limit - start)
    p.set_axes(node.outputs[0], [(count,)])
    if not p.is_padded(start):
        return None
    if p.is_padded(count) or step.number != 1 or p.get_dtype(node.outputs[0]) is not DType.INT64:
        raise p.refuse("it starts at a size that padding changes", start)
    return replace(node, op_type="Add", inputs=(p.emit_range(p.emit_extent(count)), p.emit_extent(start)))


@rule("ConstantOfShape")
def apply_fill(p: Padder, node: Node) -> None:
    """All elements are equal, so the padding is zero if the fill value is."""
    value = node.attr("value")
    is_zero = value is None or not np.any(value.array)
    axes: list[Axis] = [(extent,) for extent in p.read_extents(node.inputs[0], "shape")]
    p.set_axes(node.outputs[0], axes, {n for n, axis in enumerate(axes) if p.is_padded(axis)} if is_zero else ())


@rule("OneHot")
def apply_one_hot(p: Padder, node: Node) -> None:
    """Insert an unpadded axis; the axes of the indices may be padded."""
    axes = list(p.get_axes(node.inputs[0]))
    p.check_parameters(node)
    axis = node.attr("axis", -1) % (len(axes) + 1)
    p.set_axes(node.outputs[0], [*axes[:axis], p.make_symbol(node.outputs[0], axis), *axes[axis:]])


@rule("DepthToSpace")
def apply_depth_to_space(p: Padder, node: Node) -> None:
    """Spatial extents grow by the block size; the channels must not be padded."""
    batch, channels, *spatial = p.get_axes(node.inputs[0])
    if p.is_padded(channels) or any(len(axis) != 1 for axis in spatial):
        raise p.refuse("its channels are padded", channels)
    size = node.attr("blocksize")
    depth = channels[0].divide(size * size)
    if depth is None:
        raise Unpaddable("its channels are not known")
    p.set_axes(node.outputs[0], [batch, (depth,), *((axis[0] * size,) for axis in spatial)])


class _UnmatchedExtents:
    """The input extents of a Reshape that are not matched to output extents yet, outermost first."""

    def __init__(self, p: Padder, axes: Sequence[Axis]) -> None:
        self._p = p
        self.remaining = _merge_unpadded(p, [part for axis in axes for part in axis])

    def take(self, extent: Extent, *, last: bool) -> Axis:
        """Remove the extents whose product is ``extent`` from the front (or back) of `remaining`; return them as an axis."""
        matched: list[Extent] = []
        while extent != ONE[0]:
            if not self.remaining:
                raise self._p.refuse(f"its input has no axes left for the extent {extent} of the new shape", extent)
            part = self.remaining.pop(-1 if last else 0)
            # A part may be split over several output extents.
            extent, used = self._match(part, extent, last)
            matched.insert(0 if last else len(matched), used)
        return _merge(self._p, matched)

    def _match(self, part: Extent, extent: Extent, last: bool) -> tuple[Extent, Extent]:
        """Match an input extent, ``part``, with an output extent; return the factor of it still to match, and the matched extent.

        If the part is larger, its other factor is added to `remaining`. Raises Unpaddable if a padded extent would be split such
        that padding lies between its valid elements.
        """
        unmatched = extent.divide(part)
        if unmatched is not None:
            return unmatched, part
        rest_of_part = part.divide(extent)
        # Of the two factors of the part, the inner one must not be padded if the part is.
        inner = extent if last else rest_of_part
        if rest_of_part is None or inner is None or (self._p.is_padded(part) and self._p.is_padded(inner)):
            reason = "a size that is a constant there, or in another order, would be wrong with padding"
            raise self._p.refuse(f"the new shape has {extent} where the old one has {part}; {reason}", part, extent)
        self.remaining.insert(len(self.remaining) if last else 0, rest_of_part)
        return ONE[0], extent


def _merge_unpadded(p: Padder, parts: Sequence[Extent]) -> list[Extent]:
    """Merge adjacent extents without padding, and drop extents of 1."""
    merged: list[Extent] = []
    for part in parts:
        if part == ONE[0]:
            continue
        if merged and not p.is_padded(part) and not p.is_padded(merged[-1]):
            merged[-1] *= part
        else:
            merged.append(part)
    return merged


def _merge(p: Padder, parts: Sequence[Extent]) -> Axis:
    """Merge extents to one axis. The axis is a single Extent if all of its valid elements precede the padding."""
    merged = _merge_unpadded(p, parts)
    # That is the case if only the outermost extent is padded.
    has_inner_padding = any(map(p.is_padded, merged[1:]))
    return tuple(merged) if has_inner_padding else (multiply(tuple(merged)),)


@rule("Reshape")
def apply_reshape(p: Padder, node: Node) -> None:
    """A padded extent must stay whole or merge with its neighbors."""
    axes = p.get_axes(node.inputs[0])
    # Match the new extents with the old ones from both ends. The extent to infer (-1) consists of the old ones that remain.
    unmatched = _UnmatchedExtents(p, axes)
    target = p.read_extents(node.inputs[1], "shape")
    if not node.attr("allowzero", 0):
        target = [multiply(axes[index]) if extent.number == 0 else extent for index, extent in enumerate(target)]
    inferred = next((index for index, extent in enumerate(target) if extent.number == -1), len(target))
    front = [unmatched.take(extent, last=False) for extent in target[:inferred]]
    back = [unmatched.take(extent, last=True) for extent in reversed(target[inferred + 1 :])]
    if inferred < len(target):
        front.append(_merge(p, unmatched.remaining))
    elif unmatched.remaining:
        raise p.refuse("the new shape has fewer elements", *unmatched.remaining)
    new_axes = [*front, *reversed(back)]
    p.set_axes(node.outputs[0], new_axes, _find_zero_padded_axes(p, node.inputs[0], new_axes))


def _find_zero_padded_axes(p: Padder, data: str, axes: Sequence[Axis]) -> list[int]:
    """Find the indices of the output axes that are padded with zeros: those with the extents of such an input axis.

    If an input axis with undefined padding has the same extents, the output axis is omitted, because the match is ambiguous.
    """
    zeros = p.get_zero_axes(data)
    zero_padded = [p.get_axes(data)[n] for n in zeros]
    undefined = [axis for n, axis in enumerate(p.get_axes(data)) if p.is_padded(axis) and n not in zeros]
    return [n for n, axis in enumerate(axes) if axis in zero_padded and axis not in undefined]


@rule("Flatten")
def apply_flatten(p: Padder, node: Node) -> None:
    """Merge the axes before attribute `axis` to one, and those from it on to another."""
    axes = p.get_axes(node.inputs[0])
    first = node.attr("axis", 1)
    if first < 0:
        first += len(axes)
    halves = axes[:first], axes[first:]
    p.set_axes(node.outputs[0], [_merge(p, [part for axis in half for part in axis]) for half in halves])


MIN_OPEN_END = 2**31 - 1
"""Exporters write this (or more) as the end of a Slice to mean "to the end of the axis"."""


def _count_from_start(p: Padder, indices: str, extent: Extent) -> str:
    """Convert negative indices to count from the start of an axis of this extent. Known indices must be in range."""
    contents = p.find_contents(indices)
    known_indices: list[Extent] = [] if contents is None else [index for index in contents.flat if index is not None]
    # A symbolic index counts from the start.
    has_negative = any(index.number is not None and index.number < 0 for index in known_indices)
    if contents is not None and len(known_indices) == contents.size and not has_negative:
        for index in known_indices:
            p.require_nonnegative(extent - index - 1)
        return indices
    for index in known_indices:
        p.require_nonnegative(extent + index)
    return _add_where_negative(p, indices, p.emit_extent(extent))


def _add_where_negative(p: Padder, indices: str, size: str) -> str:
    """Add nodes that compute ``indices + size`` where an index is negative, and the index elsewhere; return the result's name."""
    dtype = p.get_dtype(indices)
    is_negative = p.add_node("Less", indices, p.add_constant(np.zeros((), dtype.numpy)))
    counted = p.add_node("Add", indices, p.add_node("Cast", size, to=dtype.onnx))
    return p.add_node("Where", is_negative, counted, indices)


def _prepare_indices(p: Padder, data: str, axis: int, indices: str) -> str:
    """Make all indices valid: set their padding to 0, and convert negative ones to count from the start. Return the new name."""
    masked = p.mask(indices, range(len(p.get_axes(indices))), 0)
    indexed = p.get_axes(data)[axis]
    return _count_from_start(p, masked, p.get_single_extent(indexed)) if p.is_padded(indexed) else masked


@rule("Gather")
def apply_gather(p: Padder, node: Node) -> Node:
    """Padding of the indices is set to 0, which is always in range. Negative indices count from the unpadded end."""
    data, indices = node.inputs
    axes = p.get_axes(data)
    axis = node.attr("axis", 0) % len(axes)
    positions, index_axes = _prepare_indices(p, data, axis, indices), p.get_axes(indices)
    # The axes of the indices replace the gathered axis, so the axes after it move.
    zeros = [n if n < axis else n + len(index_axes) - 1 for n in p.get_zero_axes(data) if n != axis]
    p.set_axes(node.outputs[0], [*axes[:axis], *index_axes, *axes[axis + 1 :]], zeros)
    return replace(node, inputs=(data, positions))


@rule("GatherElements")
def apply_gather_elements(p: Padder, node: Node) -> Node:
    """Like Gather; the other axes must have equal padding in data and indices."""
    data, indices = node.inputs
    axes, index_axes = p.get_axes(data), p.get_axes(indices)
    axis = node.attr("axis", 0) % len(axes)
    p.check_equal_extents(axes, index_axes, skip=axis)
    positions = _prepare_indices(p, data, axis, indices)
    p.set_axes(node.outputs[0], index_axes)
    return replace(node, inputs=(data, positions))


@rule("GatherND")
def apply_gather_nd(p: Padder, node: Node) -> Node:
    """Like Gather, for positions along several axes."""
    data, indices = node.inputs
    axes, index_axes = p.get_axes(data), p.get_axes(indices)
    depth = index_axes[-1][0].number  # each position has an index for this many leading axes of the data
    if depth is None or node.attr("batch_dims", 0):
        raise p.refuse("it has batch_dims, or indices of unknown depth", *axes, *index_axes)
    positions = p.mask(indices, range(len(index_axes)), 0)
    if any(map(p.is_padded, axes[:depth])):
        positions = _add_where_negative(p, positions, p.emit_vector(map(p.get_single_extent, axes[:depth])))
    p.set_axes(node.outputs[0], [*index_axes[:-1], *axes[depth:]])
    return replace(node, inputs=(data, positions))


@rule("ScatterElements")
def apply_scatter_elements(p: Padder, node: Node) -> Node:
    """Padded updates repeat the last valid update at its own index, so the padding writes the same value again.

    Along the other axes all operands must have equal padding.
    """
    data, indices, updates = node.inputs
    axes, index_axes = p.get_axes(data), p.get_axes(indices)
    axis = node.attr("axis", 0) % len(axes)
    p.check_equal_extents(axes, index_axes, skip=axis)
    p.check_equal_extents(index_axes, p.get_axes(updates))
    positions = p.mask(indices, [n for n in range(len(axes)) if n != axis], 0)
    if p.is_padded(axes[axis]):
        positions = _count_from_start(p, positions, p.get_single_extent(axes[axis]))
    if p.is_padded(index_axes[axis]):
        reduction = node.attr("reduction", "none")
        if reduction in ("add", "mul"):
            raise p.refuse(f"an entry that is written twice counts twice in reduction {reduction!r}", index_axes[axis])
        clamped_positions = _repeat_last(p, indices, axis)
        positions, updates = (p.add_node("Gather", name, clamped_positions, axis=axis) for name in (positions, updates))
    p.set_axes(node.outputs[0], axes)
    return replace(node, inputs=(data, positions, updates))


@rule("TensorScatter")
def apply_tensor_scatter(p: Padder, node: Node) -> Node | None:
    """Use a ScatterElements if the update is padded; its padding writes the last valid entry again."""
    past, update, *optional = node.inputs
    axes, update_axes = p.get_axes(past), p.get_axes(update)
    axis = node.attr("axis", -2) % len(axes)
    if p.is_padded(axes[axis]) or (optional and optional[0] in p.states):
        raise p.refuse("its cache is padded along the written axis, or its write_indices are padded", *axes)
    p.check_equal_extents(axes, update_axes, skip=axis)
    p.set_axes(node.outputs[0], axes)
    if not p.is_padded(update_axes[axis]):
        return None
    if node.attr("mode", "linear") != "linear":
        raise p.refuse("it writes to a circular buffer", update_axes[axis])
    # Writing the same entry again at its own position changes nothing.
    clamped_positions = _repeat_last(p, update, axis)
    along = [-1 if n == axis else 1 for n in range(len(axes))]  # a shape that broadcasts along the written axis
    positions = p.emit_reshape(clamped_positions, along)
    if optional and optional[0]:
        positions = p.add_node("Add", positions, p.emit_reshape(optional[0], [-1] + [1] * (len(axes) - 1)))
    positions = p.add_node("Expand", positions, p.add_node("Shape", update))
    operands = past, positions, p.add_node("Gather", update, clamped_positions, axis=axis)
    return replace(node, op_type="ScatterElements", inputs=operands, attributes=()).with_attributes(axis=axis)


def _repeat_last(p: Padder, name: str, axis: int) -> str:
    """Add nodes that compute the positions along an axis, in padding the last valid one; return the name of the vector."""
    valid = p.emit_valid_flags(name, axis)
    (extent,) = p.get_axes(name)[axis]
    p.require_nonnegative(extent - 1)
    last = p.add_node("Sub", p.emit_extent(extent), p.add_constant(np.int64(1)))
    return p.add_node("Where", valid, p.emit_range(p.emit_length(name, axis)), last)


@rule("TopK")
def apply_top_k(p: Padder, node: Node) -> None:
    """Any axis except the sorted one may be padded."""
    axes = list(p.get_axes(node.inputs[0]))
    axis = node.attr("axis", -1) % len(axes)
    if p.is_padded(axes[axis]):
        raise p.refuse("it sorts the padded axis", axes[axis])
    for name in filter(None, node.outputs):
        p.set_axes(name, [*axes[:axis], p.make_symbol(name, axis), *axes[axis + 1 :]])


@rule("Slice")
def apply_slice(p: Padder, node: Node) -> Node | None:
    """A slice that starts at a padded size becomes a Gather at computed positions. Other slices are unchanged."""
    axes = list(p.get_axes(node.inputs[0]))
    starts, ends = (_read_bounds(p, node, slot, name) for slot, name in ((1, "starts"), (2, "ends")))
    sliced_axes = [n % len(axes) for n in p.read_integers(node, 3, "axes") or range(len(starts))]
    steps = p.read_integers(node, 4) or [1] * len(starts)
    padded_start: Extent | None = None
    for start, end, axis, step in zip(starts, ends, sliced_axes, steps, strict=True):
        if not any(p.is_padded(extent) for extent in (axes[axis], start, end) if extent is not None):
            # Padding does not affect this axis: the slice is the same with and without it.
            length = _count_slice_elements(axes[axis], start, end, step)
            axes[axis] = p.make_symbol(node.outputs[0], axis) if length is None else (Extent.of(length),)
            continue
        start, end = _count_bounds(p, axes[axis], start, end, step)  # noqa: PLW2901  # resolved to non-negative
        axes[axis] = ((end - start + (step - 1)) // step,)
        if p.is_padded(start):
            if len(sliced_axes) > 1:
                raise p.refuse("it slices several axes, one from a start that depends on a padded size", start)
            if step != 1 or p.is_padded(axes[axis]):
                raise p.refuse("its start depends on a padded size", start)
            padded_start = start
    p.set_axes(node.outputs[0], axes, () if padded_start else p.get_zero_axes(node.inputs[0]))
    if padded_start is None:
        return None
    positions = p.emit_positions(padded_start, axes[sliced_axes[0]][0])
    return replace(node, op_type="Gather", inputs=(node.inputs[0], positions), attributes=()).with_attributes(axis=sliced_axes[0])


def _read_bounds(p: Padder, node: Node, input_index: int, attribute: str) -> list[Extent | None]:
    """Read the starts or ends of a Slice from an attribute or an input; None for a bound that is not known."""
    value = node.attr(attribute)
    if value is not None:
        return [Extent.of(bound) for bound in value]
    elements = p.find_elements(node.inputs[input_index])
    if elements is None:
        ((extent,),) = p.get_axes(node.inputs[input_index])
        if extent.number is None:
            raise Unpaddable(f"input {node.inputs[input_index]!r} is not known")
        return [None] * extent.number
    return elements


def _count_slice_elements(axis: Axis, start: Extent | None, end: Extent | None, step: int) -> int | None:
    """Count the elements that a Slice selects along an axis; None if the extent or a bound is not a known number."""
    extent, first, last = (None if size is None else size.number for size in (axis[0], start, end))
    if extent is None or first is None or last is None:
        return None
    return len(range(*make_slice(first, last, step, extent).indices(extent)))


def _count_bounds(p: Padder, axis: Axis, start: Extent | None, end: Extent | None, step: int) -> tuple[Extent, Extent]:
    """Convert slice bounds to indices from the start of the axis, and require that they are in range with and without padding."""
    if len(axis) != 1 or start is None or end is None or step < 1:
        raise p.refuse("its bounds are not known, or its step is negative", axis)
    (extent,) = axis
    if start.number is not None and start.number < 0:
        start += extent
    if end.number is not None and end.number >= MIN_OPEN_END:
        end = extent
    elif end.number is not None and end.number < 0:
        end += extent
    for bound in (start, extent - end, end - start):
        p.require_nonnegative(bound)
        # A Slice clamps its bounds without an error, so that all of them must be checked before a call.
        if bound.bounds[0] < 0 and not p.is_known(bound):
            raise p.refuse("its bounds are known only in a call", axis)
    return start, end
