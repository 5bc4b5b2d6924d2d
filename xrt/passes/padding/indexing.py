"""Padding of what selects by position: positions stay in range, and those that count from the end are counted again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from xrt.graph import Node
from xrt.passes.padding.extents import Axis, Extent
from xrt.passes.padding.padder import Padder
from xrt.passes.padding.states import Refused

__all__ = [
    "apply_gather",
    "apply_gather_elements",
    "apply_gather_nd",
    "apply_scatter_elements",
    "apply_slice",
    "apply_tensor_scatter",
    "apply_top_k",
]

_ALL = 2**31 - 1
"""From here on the end of a Slice means all there is, as exporters write it."""


def _count_from_start(p: Padder, indices: str, extent: Extent) -> str:
    """Return the indices with the extent added where they are negative: they count from the end without padding."""
    known = p.contents(indices)
    if known is not None and all(isinstance(one, Extent) and (one.number or 0) >= 0 for one in known.flat):
        for one in known.flat:
            p.require(extent - one - Extent.of(1))
        return indices
    for one in known.flat if known is not None else ():
        if isinstance(one, Extent):
            p.require(extent + one)
    return _add_where_negative(p, indices, p.value(extent))


def _add_where_negative(p: Padder, indices: str, size: str) -> str:
    dtype = p.dtype(indices)
    is_negative = p.node("Less", indices, p.constant(np.zeros((), dtype.numpy)))
    counted = p.node("Add", indices, p.node("Cast", size, to=dtype.onnx))
    return p.node("Where", is_negative, counted, indices)


def _prepare(p: Padder, data: str, axis: int, indices: str) -> str:
    """Return indices that are in range behind their valid part too."""
    indices = p.mask_all(indices, range(len(p.axes(indices))), 0) if indices in p.states else indices
    extents = p.axes(data)[axis]
    if not p.is_padded(extents):
        return indices
    if len(extents) != 1:
        raise p.refuse("the padded axis is merged with others", extents)
    return _count_from_start(p, indices, extents[0])


def apply_gather(p: Padder, node: Node) -> Node:
    """Indices behind their valid part are zero, which is in range; negative ones count from the end without padding."""
    data, indices = node.inputs
    axes = p.axes(data)
    axis = node.attr("axis", 0) % len(axes)
    made, places = _prepare(p, data, axis, indices), p.axes(indices)
    zeros = [n if n < axis else n + len(places) - 1 for n in p.zeros(data) if n != axis]
    p.set(node.outputs[0], [*axes[:axis], *places, *axes[axis + 1 :]], zeros)
    return replace(node, inputs=(data, made))


def apply_gather_elements(p: Padder, node: Node) -> Node:
    """As Gather; the other axes are padded in both, or in none."""
    data, indices = node.inputs
    axes, places = p.axes(data), p.axes(indices)
    axis = node.attr("axis", 0) % len(axes)
    for number, (one, other) in enumerate(zip(axes, places, strict=True)):
        if number != axis and one != other and (p.is_padded(one) or p.is_padded(other)):
            raise p.refuse(f"data and indices differ along axis {number}", one, other)
    made = _prepare(p, data, axis, indices)
    p.set(node.outputs[0], places)
    return replace(node, inputs=(data, made))


def apply_gather_nd(p: Padder, node: Node) -> Node:
    """As Gather, with a position along several axes."""
    data, indices = node.inputs
    axes, places = p.axes(data), p.axes(indices)
    depth = places[-1][0].number
    if depth is None or node.attr("batch_dims", 0):
        raise p.refuse("it has batch_dims, or indices of unknown depth", *axes, *places)
    made = p.mask_all(indices, range(len(places)), 0) if indices in p.states else indices
    if any(map(p.is_padded, axes[:depth])):
        if any(len(axis) != 1 for axis in axes[:depth]):
            raise p.refuse("the padded axis is merged with others", *axes[:depth])
        made = _add_where_negative(p, made, p.vector(axis[0] for axis in axes[:depth]))
    p.set(node.outputs[0], [*places[:-1], *axes[depth:]])
    return replace(node, inputs=(data, made))


def apply_scatter_elements(p: Padder, node: Node) -> Node:
    """What is behind the valid part of its own axis is replaced by the last valid entry, which is written once more.

    The other axes are padded in all operands, or in none.
    """
    data, indices, updates = node.inputs
    axes, places = p.axes(data), p.axes(indices)
    axis = node.attr("axis", 0) % len(axes)
    for number, extents in enumerate(zip(axes, places, p.axes(updates), strict=True)):
        chosen = extents[1:] if number == axis else extents
        if any(one != chosen[0] for one in chosen) and any(map(p.is_padded, chosen)):
            raise p.refuse(f"its operands differ along axis {number}", *chosen)
    made = p.mask_all(indices, (number for number in range(len(axes)) if number != axis), 0) if indices in p.states else indices
    if p.is_padded(axes[axis]):
        if len(axes[axis]) != 1:
            raise p.refuse("the padded axis is merged with others", axes[axis])
        made = _count_from_start(p, made, axes[axis][0])
    if p.is_padded(places[axis]):
        if (reduction := node.attr("reduction", "none")) in ("add", "mul"):
            raise p.refuse(f"an entry that is written twice counts twice in reduction {reduction!r}", places[axis])
        last = _repeat_last(p, indices, axis)
        made, updates = (p.node("Gather", name, last, axis=axis) for name in (made, updates))
    p.set(node.outputs[0], axes)
    return replace(node, inputs=(data, made, updates))


def apply_tensor_scatter(p: Padder, node: Node) -> Node | None:
    """What is written is as long as without padding: entries one by one, the last valid one in place of all behind it."""
    past, update, *rest = node.inputs
    axes, places = p.axes(past), p.axes(update)
    axis = node.attr("axis", -2) % len(axes)
    if p.is_padded(axes[axis]) or (rest and rest[0] in p.states):
        raise p.refuse("it writes along an axis of the past that is padded, or to padded places", *axes)
    for number, (one, other) in enumerate(zip(axes, places, strict=True)):
        if number != axis and one != other and (p.is_padded(one) or p.is_padded(other)):
            raise p.refuse(f"its operands differ along axis {number}", one, other)
    p.set(node.outputs[0], axes)
    if not p.is_padded(places[axis]):
        return None
    if node.attr("mode", "linear") != "linear":
        raise p.refuse("it writes in a circle", places[axis])
    last = _repeat_last(p, update, axis)
    along = [-1 if number == axis else 1 for number in range(len(axes))]
    found = p.node("Reshape", last, p.constant(np.array(along, np.int64)))
    if rest and rest[0]:
        by_batch = p.constant(np.array([-1] + [1] * (len(axes) - 1), np.int64))
        found = p.node("Add", found, p.node("Reshape", rest[0], by_batch))
    found = p.node("Expand", found, p.node("Shape", update))
    operands = past, found, p.node("Gather", update, last, axis=axis)
    return replace(node, op_type="ScatterElements", inputs=operands, attributes=()).with_attributes(axis=axis)


def _repeat_last(p: Padder, name: str, axis: int) -> str:
    """Return the positions along an axis, the last valid one in place of all that is behind it."""
    valid, (extent,) = p.find_valid(name, axis), p.axes(name)[axis]
    p.require(extent - Extent.of(1))
    zero, one = p.constant(np.int64(0)), p.constant(np.int64(1))
    return p.node("Where", valid, p.node("Range", zero, p.length(name, axis), one), p.node("Sub", p.value(extent), one))


def apply_top_k(p: Padder, node: Node) -> None:
    """Other axes than its own may be padded."""
    axes = list(p.axes(node.inputs[0]))
    axis = node.attr("axis", -1) % len(axes)
    if p.is_padded(axes[axis]):
        raise p.refuse("it sorts the padded axis", axes[axis])
    for name in filter(None, node.outputs):
        p.set(name, [*axes[:axis], p.unknown(name, axis), *axes[axis + 1 :]])


def apply_slice(p: Padder, node: Node) -> Node | None:
    """What begins at a fixed place is cut as without padding; what counts from the end is gathered where it is then."""
    axes = list(p.axes(node.inputs[0]))
    starts, ends = (_read(p, node, slot, name) for slot, name in ((1, "starts"), (2, "ends")))
    places = [n % len(axes) for n in p.integers(node, 3, "axes") or range(len(starts))]
    steps = p.integers(node, 4) or [1] * len(starts)
    moved: dict[int, tuple[int, Extent]] = {}
    for number, (start, end, place, step) in enumerate(zip(starts, ends, places, steps, strict=True)):
        if not p.is_padded(axes[place]) and not _is_size(p, start) and not _is_size(p, end):
            axes[place] = _cut_clean(p, node, axes[place], place, (start, end, step))
            continue
        start, end = _count_bounds(p, axes[place], start, end, step)  # noqa: PLW2901  # the same places
        axes[place] = ((end - start + Extent.of(step - 1)) // step,)
        if p.is_padded(start):
            if step != 1 or p.is_padded(axes[place]):
                raise p.refuse("it begins at a place that depends on the size", start)
            moved[number] = place, start
    p.set(node.outputs[0], axes, () if moved else p.zeros(node.inputs[0]))
    return _gather_moved(p, node, places, axes, moved) if moved else None


def _gather_moved(
    p: Padder, node: Node, places: Sequence[int], axes: Sequence[Axis], moved: Mapping[int, tuple[int, Extent]]
) -> Node:
    """Return the last of the nodes that cut where places are fixed, and gather elsewhere."""
    given, kept = node.inputs[0], [number for number in range(len(places)) if number not in moved]
    if kept:
        if len(node.inputs) < 3:
            raise Refused("its bounds are attributes")
        chosen = p.constant(np.array(kept, np.int64))
        bounds = [p.node("Gather", name, chosen, axis=0) for name in node.inputs[1:3]]
        steps = [(p.integers(node, 4) or [1] * len(places))[number] for number in kept]
        along = p.constant(np.array([places[number] for number in kept], np.int64))
        given = p.node("Slice", given, *bounds, along, p.constant(np.array(steps, np.int64)))
    *first, (last_place, last_start) = moved.values()
    for place, start in first:
        given = p.node("Gather", given, p.positions(start, axes[place][0]), axis=place)
    at = p.positions(last_start, axes[last_place][0])
    return replace(node, op_type="Gather", inputs=(given, at), attributes=()).with_attributes(axis=last_place)


def _read(p: Padder, node: Node, slot: int, attribute: str) -> list[Extent | None]:
    given = node.attr(attribute)
    if given is not None:
        return [Extent.of(number) for number in given]
    found = p.elements(node.inputs[slot])
    if found is None:
        ((extent,),) = p.axes(node.inputs[slot])
        if extent.number is None:
            raise Refused(f"input {node.inputs[slot]!r} is not known")
        return [None] * extent.number
    return found


def _is_size(p: Padder, extent: Extent | None) -> bool:
    return extent is not None and p.is_padded(extent)


def _cut_clean(p: Padder, node: Node, axis: Axis, place: int, cut: tuple[Extent | None, Extent | None, int]) -> Axis:
    start, end = (None if one is None else one.number for one in cut[:2])
    if axis[0].number is not None and start is not None and end is not None:
        return (Extent.of(len(range(*slice(start, end, cut[2]).indices(axis[0].number)))),)
    return p.unknown(node.outputs[0], place)


def _count_bounds(p: Padder, axis: Axis, start: Extent | None, end: Extent | None, step: int) -> tuple[Extent, Extent]:
    """Return the bounds of a slice counted from the start, which must be within the axis with padding and without."""
    if len(axis) != 1 or start is None or end is None or step < 1:
        raise p.refuse("it cuts at places that are not known, or backwards", axis)
    (extent,) = axis
    if start.number is not None and start.number < 0:
        start += extent
    if end.number is not None:
        end = extent if end.number >= _ALL else extent + end if end.number < 0 else end
    for bound in (start, extent - end, end - start):
        p.require(bound)
    return start, end
