"""Padding of operators with windows: what a window reads behind the end is what it reads there without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from xrt.graph import Node
from xrt.passes.padding.extents import Axis, Extent
from xrt.passes.padding.padder import Padder
from xrt.passes.padding.states import Refused

__all__ = ["apply_average_pool", "apply_conv", "apply_conv_transpose", "apply_max_pool", "apply_resize"]


@dataclass(frozen=True, slots=True)
class _Window:
    """What a node has of one spatial axis."""

    reach: int
    """From the first to the last element that the window reads, both included."""
    stride: int
    begin: int
    end: int
    """Elements that it adds in front and behind."""

    def count(self, extent: Extent) -> Extent:
        """Return how often the window fits."""
        return (extent + Extent.of(self.begin + self.end - self.reach)) // self.stride + Extent.of(1)


def _read_windows(p: Padder, node: Node, kernel: Sequence[int]) -> list[_Window]:
    count = len(kernel)
    strides, dilations = (node.attr(name) or [1] * count for name in ("strides", "dilations"))
    pads, auto = node.attr("pads") or [0] * 2 * count, node.attr("auto_pad", "NOTSET")
    found = []
    for n, size in enumerate(kernel):
        reach = (size - 1) * dilations[n] + 1
        begin, end = pads[n], pads[n + count]
        if auto == "VALID":
            begin = end = 0
        elif auto != "NOTSET":
            begin, end = _same(p, node, n, reach, strides[n])
        found.append(_Window(reach, strides[n], begin, end))
    return found


def _same(p: Padder, node: Node, number: int, reach: int, stride: int) -> tuple[int, int]:
    """Return what SAME adds, which is the same for all sizes where the stride is 1."""
    axis = p.axes(node.inputs[0])[2 + number]
    if stride != 1 and p.is_padded(axis):
        raise p.refuse("what auto_pad adds depends on the size", axis)
    less, more = (reach - 1) // 2, reach // 2
    return (less, more) if node.attr("auto_pad") == "SAME_UPPER" else (more, less)


def _slide(p: Padder, name: str, windows: Sequence[_Window], fill: float) -> tuple[str, list[Axis]]:
    """Return the input, masked where windows read behind its end, and the axes of the output."""
    axes = p.axes(name)
    if p.is_padded(axes[1]):
        raise p.refuse("its channels are padded", axes[1])
    spatial: list[Axis] = []
    for number, (axis, window) in enumerate(zip(axes[2:], windows, strict=True), 2):
        if len(axis) != 1:
            raise p.refuse("the padded axis is merged with others", axis)
        p.require(axis[0] + Extent.of(window.begin + window.end - window.reach))
        spatial.append((window.count(axis[0]),))
        if window.end > 0 and p.is_padded(axis):
            name = p.mask(name, number, fill)
    return name, spatial


def apply_conv(p: Padder, node: Node) -> Node:
    """A window that reads behind the end reads zeros there, so what is behind is masked where a window reaches it."""
    given, weight = node.inputs[:2]
    kernel = node.attr("kernel_shape") or [axis[0].number for axis in p.axes(weight)[2:]]
    if None in kernel or any(name in p.states for name in node.inputs[1:]):
        raise Refused("its weights are padded, or of unknown shape")
    masked, spatial = _slide(p, given, _read_windows(p, node, kernel), 0)
    p.set(node.outputs[0], [p.axes(given)[0], p.axes(weight)[0], *spatial])
    return replace(node, inputs=(masked, *node.inputs[1:]))


def _check_pool(p: Padder, node: Node) -> list[_Window]:
    is_spatial = any(map(p.is_padded, p.axes(node.inputs[0])[2:]))
    if is_spatial and (node.attr("ceil_mode", 0) or len(node.outputs) > 1):
        raise p.refuse("it rounds up (ceil_mode), or gives indices", *p.axes(node.inputs[0])[2:])
    if node.attr("ceil_mode", 0):
        raise Refused("it rounds up (ceil_mode)")
    return _read_windows(p, node, node.attr("kernel_shape"))


def apply_max_pool(p: Padder, node: Node) -> Node:
    """As Conv; what is behind the end is the least number."""
    (given,) = node.inputs
    if not p.dtype(given).is_float:
        raise Refused("it is of integers")
    masked, spatial = _slide(p, given, _check_pool(p, node), -np.inf)
    p.set(node.outputs[0], [*p.axes(given)[:2], *spatial])
    return replace(node, inputs=(masked,))


def apply_average_pool(p: Padder, node: Node) -> Node:
    """As Conv where each window divides by the same number; LpPool divides by none."""
    (given,) = node.inputs
    windows = _check_pool(p, node)
    counts_all = node.op_type == "LpPool" or node.attr("count_include_pad", 0)
    for axis, window in zip(p.axes(given)[2:], windows, strict=True):
        if window.end and not counts_all and p.is_padded(axis):
            raise p.refuse("windows at the end divide by fewer elements", axis)
    masked, spatial = _slide(p, given, windows, 0)
    p.set(node.outputs[0], [*p.axes(given)[:2], *spatial])
    return replace(node, inputs=(masked,))


def apply_conv_transpose(p: Padder, node: Node) -> Node:
    """Each element of the input adds to a window of the output, so those behind the end are zero."""
    given, weight = node.inputs[:2]
    if node.attr("output_shape") or node.attr("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise Refused("its output has a given size")
    kernel = node.attr("kernel_shape") or [axis[0].number for axis in p.axes(weight)[2:]]
    if None in kernel or any(name in p.states for name in node.inputs[1:]):
        raise Refused("its weights are padded, or of unknown shape")
    windows, axes = _read_windows(p, node, kernel), p.axes(given)
    more = node.attr("output_padding") or [0] * len(windows)
    masked, _ = _slide(p, given, [_Window(1, 1, 0, 1)] * len(windows), 0)
    spatial: list[Axis] = []
    for axis, window, extra in zip(axes[2:], windows, more, strict=True):
        size = (axis[0] - Extent.of(1)) * Extent.of(window.stride) + Extent.of(window.reach + extra - window.begin - window.end)
        p.require(size)
        spatial.append((size,))
    p.set(node.outputs[0], [axes[0], (p.axes(weight)[1][0] * Extent.of(node.attr("group", 1)),), *spatial])
    return replace(node, inputs=(masked, *node.inputs[1:]))


def apply_resize(p: Padder, node: Node) -> None:
    """The nearest element, a whole number of times along a padded axis."""
    given = node.inputs[0]
    scales = p.function.constants.get(node.inputs[2]) if len(node.inputs) > 2 else None
    axes = p.axes(given)
    if scales is None or scales.array.size != len(axes) or node.attr("axes"):
        raise Refused("its scales are no constant for all axes")
    way = node.attr("coordinate_transformation_mode", "half_pixel"), node.attr("nearest_mode", "round_prefer_floor")
    is_nearest = node.attr("mode", "nearest") == "nearest" and way in _NEAREST
    found: list[Axis] = []
    for number, (axis, scale) in enumerate(zip(axes, scales.array.tolist(), strict=True)):
        if p.is_padded(axis) and (len(axis) != 1 or scale != 1) and not (is_nearest and scale == int(scale) >= 1):
            raise p.refuse("it interpolates, or scales by no whole number", axis)
        if scale == int(scale) and len(axis) == 1:
            found.append((axis[0] * Extent.of(int(scale)),))
        else:
            found.append(axis if scale == 1 else p.unknown(node.outputs[0], number))
    p.set(node.outputs[0], found)


_NEAREST = {("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "round_prefer_ceil")}
"""How places and roundings may be combined: each element of the output is of the one that it covers."""
