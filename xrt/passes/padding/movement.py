"""Padding of operators that move elements: a padded axis goes along, or is cut where both sizes give the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from xrt.graph import DType, Node
from xrt.passes.padding.extents import ONE, Axis, Extent, multiply
from xrt.passes.padding.padder import Padder
from xrt.passes.padding.states import Refused

__all__ = [
    "apply_concat",
    "apply_depth_to_space",
    "apply_expand",
    "apply_fill",
    "apply_one_hot",
    "apply_pad",
    "apply_range",
    "apply_split",
    "apply_squeeze",
    "apply_tile",
    "apply_transpose",
    "apply_unsqueeze",
]


def apply_transpose(p: Padder, node: Node) -> None:
    """Axes in another order."""
    axes, zeros = p.axes(node.inputs[0]), p.zeros(node.inputs[0])
    order = list(node.attr("perm") or reversed(range(len(axes))))
    p.set(node.outputs[0], [axes[n] for n in order], [place for place, n in enumerate(order) if n in zeros])


def apply_unsqueeze(p: Padder, node: Node) -> None:
    """New axes of one element."""
    axes, asked = list(p.axes(node.inputs[0])), p.integers(node, 1, "axes") or []
    old, rank = iter(enumerate(axes)), len(axes) + len(asked)
    new = {axis % rank for axis in asked}
    order = [(-1, ONE) if place in new else next(old) for place in range(rank)]
    zeros = p.zeros(node.inputs[0])
    p.set(node.outputs[0], [axis for _, axis in order], [place for place, (n, _) in enumerate(order) if n in zeros])


def apply_squeeze(p: Padder, node: Node) -> None:
    """Axes of one element go."""
    axes, asked = p.axes(node.inputs[0]), p.integers(node, 1, "axes")
    gone = {n % len(axes) for n in asked} if asked else {n for n, axis in enumerate(axes) if axis == ONE}
    if asked is None and any(p.is_padded(axis) or axis[0].number is None for axis in axes):
        raise Refused("it drops all axes of one element, and some extents are open")
    if any(map(p.is_padded, padded := [axes[n] for n in gone])):
        raise p.refuse("it drops a padded axis", *padded)
    p.set(node.outputs[0], [axis for n, axis in enumerate(axes) if n not in gone])


def apply_concat(p: Padder, node: Node) -> None:
    """Other axes may be padded; along its own only the last input, or there is padding between the parts."""
    shapes = [p.axes(name) for name in node.inputs]
    rank = len(shapes[0])
    place = node.attr("axis") % rank
    for shape in shapes[:-1]:
        if p.is_padded(shape[place]):
            raise p.refuse("it joins something behind a padded axis, so there is padding between the parts", shape[place])
    axes: list[Axis] = []
    for number in range(rank):
        found = list(dict.fromkeys(shape[number] for shape in shapes))
        if number == place:
            axes.append(_add(p, node, [shape[place] for shape in shapes]))
        elif len(found) > 1 and any(map(p.is_padded, found)):
            raise p.refuse(f"its inputs have different extents along axis {number}", *found)
        else:
            axes.append(next((axis for axis in found if axis[0].number is not None), found[0]))
    zeros = frozenset.intersection(*(p.zeros(name) for name in node.inputs)) | (p.zeros(node.inputs[-1]) & {place})
    p.set(node.outputs[0], axes, zeros)


def _add(p: Padder, node: Node, parts: Sequence[Axis]) -> Axis:
    if len(parts) > 1 and any(len(part) != 1 for part in parts):
        raise p.refuse("the padded axis is merged with others", *parts)
    total = parts[0][0]
    for part in parts[1:]:
        total += part[0]
    return parts[0] if len(parts) == 1 else (total,)


def apply_split(p: Padder, node: Node) -> None:
    """Other axes than its own may be padded."""
    axes = list(p.axes(node.inputs[0]))
    place = node.attr("axis", 0) % len(axes)
    if p.is_padded(axes[place]):
        raise p.refuse("it splits the padded axis", axes[place])
    zeros = p.zeros(node.inputs[0])
    sizes = p.integers(node, 1, "split")
    for number, name in enumerate(node.outputs):
        if name:
            size: Axis = (Extent.of(sizes[number]),) if sizes else p.unknown(name, place)
            known = p.function.get_type(name)
            shape = getattr(known, "shape", None)
            if shape is not None and isinstance(shape[place], int):
                size = (Extent.of(shape[place]),)
            p.set(name, [*axes[:place], size, *axes[place + 1 :]], zeros)


def apply_expand(p: Padder, node: Node) -> None:
    """Axes of one element may become padded ones."""
    axes, wanted = p.axes(node.inputs[0]), p.elements(node.inputs[1])
    if wanted is None or None in wanted:
        raise Refused(f"its shape {node.inputs[1]!r} is not known")
    rank = max(len(axes), len(wanted))
    own = [ONE] * (rank - len(axes)) + list(axes)
    target = [ONE] * (rank - len(wanted)) + [(extent,) for extent in wanted if extent is not None]
    found: list[Axis] = []
    for axis, other in zip(own, target, strict=True):
        if axis != ONE and other not in (ONE, (multiply(axis),)) and (p.is_padded(axis) or p.is_padded(other)):
            raise p.refuse(f"an axis of {multiply(axis)} expands to {other[0]}", axis, other)
        found.append(other if axis == ONE or (other != ONE and axis[0].number is None and not p.is_padded(axis)) else axis)
    shift = rank - len(axes)
    p.set(node.outputs[0], found, {n + shift for n in p.zeros(node.inputs[0])})


def apply_tile(p: Padder, node: Node) -> None:
    """Axes that are not padded may be repeated."""
    axes, repeats = p.axes(node.inputs[0]), p.elements(node.inputs[1])
    if repeats is None or None in repeats:
        raise Refused(f"its repeats {node.inputs[1]!r} are not known")
    found: list[Axis] = []
    for axis, count in zip(axes, repeats, strict=True):
        if count is None or (count.number != 1 and p.is_padded(axis)) or (p.is_padded(count) and axis != ONE):
            raise p.refuse("it repeats a padded axis", axis, *([count] if count else []))
        found.append(axis if count.number == 1 else (multiply((count, *axis)),))
    p.set(node.outputs[0], found, p.zeros(node.inputs[0]))


def apply_pad(p: Padder, node: Node) -> Node:
    """What is added behind a padded axis takes the place of what is there."""
    given, axes = node.inputs[0], p.axes(node.inputs[0])
    pads = p.integers(node, 1, "pads") or []
    places = p.integers(node, 3) or list(range(len(axes)))
    found = list(axes)
    for number, place in enumerate(n % len(axes) for n in places):
        begin, end = pads[number], pads[number + len(places)]
        if not begin and not end:
            continue
        if p.is_padded(axes[place]):
            given = _pad_axis(p, node, given, place, begin, end)
        found[place] = (axes[place][0] + Extent.of(begin + end),)
    p.set(node.outputs[0], found)
    return replace(node, inputs=(given, *node.inputs[1:]))


def _pad_axis(p: Padder, node: Node, given: str, place: int, begin: int, end: int) -> str:
    axis = p.axes(given)[place]
    if len(axis) != 1 or begin < 0 or end < 0 or (end and node.attr("mode", "constant") != "constant"):
        raise p.refuse("it cuts, or repeats what is at the end of the padded axis", axis)
    if node.attr("mode", "constant") == "wrap":
        raise p.refuse("it repeats what is at the end of the padded axis", axis)
    p.require(axis[0] - Extent.of(begin + 1 if node.attr("mode", "constant") == "reflect" else 0))
    if not end:
        return given
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    fill = p.function.constants.get(name)
    if name and fill is None:
        raise p.refuse("the number that it adds is no constant", axis)
    number = node.attr("value", 0) if fill is None else fill.array.reshape(-1)[0]
    return p.mask(given, place, number)


def apply_range(p: Padder, node: Node) -> Node | None:
    """Numbers up to a padded one: what is behind are further numbers."""
    found = [p.elements(name) for name in node.inputs]
    start, limit, step = (one[0] if one else None for one in found)
    if start is None or limit is None or step is None or step.number is None or step.number < 1:
        raise Refused("its start or its step is no constant")
    count = (limit - start + Extent.of(step.number - 1)) // step.number
    p.require(limit - start)
    p.set(node.outputs[0], [(count,)])
    if not p.is_padded(start):
        return None
    if p.is_padded(count) or step.number != 1 or p.dtype(node.outputs[0]) is not DType.INT64:
        raise p.refuse("it starts at a size that padding changes", start)
    return replace(node, op_type="Add", inputs=(p.positions(Extent.of(0), count), p.value(start)))


def apply_fill(p: Padder, node: Node) -> None:
    """One number everywhere."""
    extents = p.elements(node.inputs[0])
    if extents is None or None in extents:
        raise Refused(f"its shape {node.inputs[0]!r} is not known")
    value = node.attr("value")
    is_zero = value is None or not np.any(value.array)
    axes: list[Axis] = [(extent,) for extent in extents if extent is not None]
    p.set(node.outputs[0], axes, {n for n, axis in enumerate(axes) if p.is_padded(axis)} if is_zero else ())


def apply_one_hot(p: Padder, node: Node) -> None:
    """A new axis; the other ones may be padded."""
    axes = list(p.axes(node.inputs[0]))
    if any(name in p.states for name in node.inputs[1:]):
        raise Refused("a parameter is padded")
    place = node.attr("axis", -1) % (len(axes) + 1)
    p.set(node.outputs[0], [*axes[:place], p.unknown(node.outputs[0], place), *axes[place:]])


def apply_depth_to_space(p: Padder, node: Node) -> None:
    """Channels become neighbors, so each element becomes a block."""
    batch, channels, *spatial = p.axes(node.inputs[0])
    if p.is_padded(channels) or any(len(axis) != 1 for axis in spatial):
        raise p.refuse("its channels are padded", channels)
    size = node.attr("blocksize")
    rest = channels[0].divide(Extent.of(size * size))
    if rest is None:
        raise Refused("its channels are not known")
    p.set(node.outputs[0], [batch, (rest,), *((axis[0] * Extent.of(size),) for axis in spatial)])
