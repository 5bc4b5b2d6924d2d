"""Padding rules of convolutions, pooling, attention, recurrent layers and resize."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from xrt.graph import DType, Node
from xrt.operators.windows import Window, make_window
from xrt.passes.extents import Extent
from xrt.passes.padding.padder import ONE, Axis, Padder, Unpaddable, rule


def _read_window(p: Padder, node: Node, kernel: Sequence[int]) -> Window:
    """Read a node's window and convert `auto_pad` to explicit padding. Raises Unpaddable if that depends on a padded extent."""
    window = make_window(node, kernel)
    axes = p.get_axes(node.inputs[0])[2:]
    if window.auto_pad == "NOTSET":
        return window
    if not window.auto_pad.startswith("SAME"):  # VALID
        zeros = (0,) * len(axes)
        return replace(window, begins=zeros, ends=zeros, auto_pad="NOTSET")
    for axis, stride in zip(axes, window.strides, strict=True):
        if stride != 1 and p.is_padded(axis):
            raise p.refuse("the padding that auto_pad adds depends on the size", axis)
    # The node keeps its auto_pad. With this padding each axis has ceil(extent / stride) positions, as with SAME.
    smaller = tuple((span - 1) // 2 for span in window.spans)
    larger = tuple(span // 2 for span in window.spans)
    begins, ends = (smaller, larger) if window.auto_pad == "SAME_UPPER" else (larger, smaller)
    return replace(window, begins=begins, ends=ends, auto_pad="NOTSET")


def _slide_window(p: Padder, name: str, window: Window, fill: float) -> tuple[str, list[Axis]]:
    """Mask the input ``name`` with `fill` along axes where windows extend over its end.

    Return the name of the masked input and the spatial axes of the output. Raises Unpaddable if the channels are padded.
    """
    axes = p.get_axes(name)
    if p.is_padded(axes[1]):
        raise p.refuse("its channels are padded", axes[1])
    spatial: list[Axis] = []
    steps = zip(axes[2:], window.begins, window.ends, window.spans, window.strides, strict=True)
    for axis_index, (axis, begin, end, span, stride) in enumerate(steps, 2):
        last_start = p.get_single_extent(axis) + (begin + end - span)
        p.require_nonnegative(last_start)
        spatial.append((last_start // stride + 1,))
        # Without padding at the end, the windows of valid outputs contain only valid elements.
        if end > 0:
            name = p.mask(name, [axis_index], fill)
    return name, spatial


def _read_kernel(p: Padder, node: Node) -> list[int]:
    """Read the spatial extents of a convolution's kernel. Raises Unpaddable if its weights are padded or of unknown shape."""
    kernel = node.attr("kernel_shape") or [axis[0].number for axis in p.get_axes(node.inputs[1])[2:]]
    if None in kernel or any(name in p.states for name in node.inputs[1:]):
        raise Unpaddable("its weights are padded, or of unknown shape")
    return list(kernel)


@rule("Conv")
def apply_conv(p: Padder, node: Node) -> Node:
    """A window that extends over the end of the input must read zeros, so padding is masked with zeros."""
    data, weight = node.inputs[:2]
    window = _read_window(p, node, _read_kernel(p, node))
    masked, spatial = _slide_window(p, data, window, 0)
    p.set_axes(node.outputs[0], [p.get_axes(data)[0], p.get_axes(weight)[0], *spatial])
    return replace(node, inputs=(masked, *node.inputs[1:]))


def _read_pool_window(p: Padder, node: Node) -> Window:
    """Read the window of a pool. Raises Unpaddable for modes whose result depends on the size of the input."""
    has_spatial_padding = any(map(p.is_padded, p.get_axes(node.inputs[0])[2:]))
    if has_spatial_padding and (node.attr("ceil_mode", 0) or len(node.outputs) > 1):
        raise p.refuse("it rounds up (ceil_mode) or returns indices", *p.get_axes(node.inputs[0])[2:])
    if node.attr("ceil_mode", 0):
        raise Unpaddable("it rounds up (ceil_mode)")
    return _read_window(p, node, node.attr("kernel_shape"))


@rule("MaxPool")
def apply_max_pool(p: Padder, node: Node) -> Node:
    """Like Conv, but padding is masked with minus infinity."""
    (data,) = node.inputs
    if not p.get_dtype(data).is_float:
        raise Unpaddable("it pools integers")
    masked, spatial = _slide_window(p, data, _read_pool_window(p, node), -np.inf)
    p.set_axes(node.outputs[0], [*p.get_axes(data)[:2], *spatial])
    return replace(node, inputs=(masked,))


@rule("AveragePool", "LpPool")
def apply_average_pool(p: Padder, node: Node) -> Node:
    """Like Conv. An average is supported if all windows have the same divisor."""
    (data,) = node.inputs
    window = _read_pool_window(p, node)
    is_padding_counted = node.op_type == "LpPool" or node.attr("count_include_pad", 0)
    for axis, end in zip(p.get_axes(data)[2:], window.ends, strict=True):
        if end and not is_padding_counted and p.is_padded(axis):
            raise p.refuse("windows at the end divide by fewer elements", axis)
    masked, spatial = _slide_window(p, data, window, 0)
    p.set_axes(node.outputs[0], [*p.get_axes(data)[:2], *spatial])
    return replace(node, inputs=(masked,))


@rule("ConvTranspose")
def apply_conv_transpose(p: Padder, node: Node) -> Node:
    """Each input element is added to a window of the output, so padding is masked with zeros."""
    data, weight = node.inputs[:2]
    if node.attr("output_shape") or node.attr("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise Unpaddable("its output size is fixed by output_shape or auto_pad")
    window, axes = _read_window(p, node, _read_kernel(p, node)), p.get_axes(data)
    ones = (1,) * len(window.kernel)
    output_pads = node.attr("output_padding") or [0] * len(ones)
    # A window with padding at the end makes `_slide_window` mask the input.
    masked, _ = _slide_window(p, data, Window(ones, ones, ones, begins=(0,) * len(ones), ends=ones), 0)
    spatial: list[Axis] = []
    steps = zip(axes[2:], window.strides, window.spans, output_pads, window.begins, window.ends, strict=True)
    for axis, stride, span, output_pad, begin, end in steps:
        size = (axis[0] - 1) * stride + (span + output_pad - begin - end)
        p.require_nonnegative(size)
        spatial.append((size,))
    p.set_axes(node.outputs[0], [axes[0], (p.get_axes(weight)[1][0] * node.attr("group", 1),), *spatial])
    return replace(node, inputs=(masked, *node.inputs[1:]))


@rule("Resize")
def apply_resize(p: Padder, node: Node) -> None:
    """A padded axis must be resized by nearest neighbor and an integer factor, or keep its size."""
    data = node.inputs[0]
    scales = p.function.constants.get(node.inputs[2]) if len(node.inputs) > 2 else None  # inputs: data, region, scales, sizes
    axes = p.get_axes(data)
    if scales is None or scales.array.size != len(axes) or node.attr("axes"):
        raise Unpaddable("its scales are not constants for all axes")
    modes = node.attr("coordinate_transformation_mode", "half_pixel"), node.attr("nearest_mode", "round_prefer_floor")
    is_nearest = node.attr("mode", "nearest") == "nearest" and modes in _NEAREST
    resized: list[Axis] = []
    for index, (axis, scale) in enumerate(zip(axes, scales.array.tolist(), strict=True)):
        repeats_elements = is_nearest and scale == int(scale) >= 1
        is_unchanged = scale == 1 and len(axis) == 1
        if p.is_padded(axis) and not is_unchanged and not repeats_elements:
            raise p.refuse("it interpolates, or its scale is not an integer", axis)
        if scale == int(scale) and len(axis) == 1:
            resized.append((axis[0] * int(scale),))
        else:
            resized.append(axis if scale == 1 else p.make_symbol(node.outputs[0], index))
    p.set_axes(node.outputs[0], resized)


_NEAREST = {("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "round_prefer_ceil")}
"""Combinations of coordinate and rounding modes that map each output element to the input element it covers."""
_Q, _K, _V, _MASK = range(4)


@rule("Attention")
def apply_attention(p: Padder, node: Node) -> Node:
    """Queries may be padded. Padded keys are hidden by the mask, and padded keys and values are set to zero."""
    names = [*node.inputs, *[""] * (7 - len(node.inputs))]  # Q, K, V, mask, past keys, past values, lengths
    if any(names[4:]) or any(node.outputs[1:]):
        raise Unpaddable("it has past keys or more than one output")
    query, key, value = (p.get_axes(name) for name in names[:3])
    is_flat = len(query) == 3  # (batch, length, width) instead of (batch, heads, length, width)
    sequence = len(query) - 2  # index of the axis of the length
    for axes in (query, key, value):
        if any(map(p.is_padded, (*axes[1:sequence], *axes[sequence + 1 :]))):
            raise p.refuse("its heads or widths are padded", *axes)
    if query[0] != key[0] or key[0] != value[0] or key[sequence] != value[sequence]:
        raise p.refuse("keys, values and queries differ in batch or length", *query, *key, *value)
    if names[_MASK] and any(map(p.is_padded, (*query, *key))):
        *_, rows, columns = (ONE, *p.get_axes(names[_MASK]))  # a vector is one row
        if rows not in (query[sequence], ONE) or columns != key[sequence]:
            raise p.refuse("its mask differs in extent from the queries or keys", *p.get_axes(names[_MASK]))
    if p.is_padded(key[sequence]):
        names[_MASK] = _hide_padded_keys(p, names[_K], sequence, names[_MASK])
        # The mask is added to the products, so that NaN in the padding of keys or values would remain.
        names[_K:_MASK] = [p.mask(name, [sequence], 0) for name in names[_K:_MASK]]
    width = p.make_symbol(node.outputs[0], 2) if is_flat else value[-1]
    p.set_axes(node.outputs[0], [*query[:-1], width])
    return replace(node, inputs=tuple(names[:4] if names[_MASK] else names[:3]))


def _hide_padded_keys(p: Padder, key: str, axis: int, mask: str) -> str:
    """Extend an attention mask to hide padded keys; return the new mask. ``mask`` is empty if the node has none."""
    flags = p.emit_valid_flags(key, axis)
    if not mask:
        return p.emit_reshape(flags, [1, -1])
    dtype = p.get_dtype(mask)
    hidden = np.zeros((), bool) if not dtype.is_float else np.asarray(-np.inf).astype(dtype.numpy)
    return p.add_node("Where", flags, mask, p.add_constant(hidden))


@rule("LSTM", "GRU", "RNN")
def apply_recurrent(p: Padder, node: Node) -> Node:
    """The batch may be padded in all inputs. If results depend on a padded time axis, its length is passed as sequence_lens."""
    names = [*node.inputs, *[""] * (8 - len(node.inputs))]  # X, W, R, B, sequence_lens, initial_h, initial_c, P
    time, batch, width = p.get_axes(names[0])
    weights = (*names[1:4], names[7])
    if node.attr("layout", 0) or p.is_padded(width) or any(name in p.states for name in weights if name):
        raise p.refuse("its weights or widths are padded, or its layout is 1", time, batch, width)
    directions = 2 if node.attr("direction", "forward") == "bidirectional" else 1
    for name in filter(None, names[4:7]):
        if p.is_padded(batch) and batch not in p.get_axes(name):
            raise p.refuse("an input is not padded along the batch", batch)
    # Outputs of valid steps depend on later steps only in a backward layer. The last states depend on all steps.
    function_outputs = {value.name for value in p.function.outputs}
    has_last_state = any(name and (name in function_outputs or p.function.users(name)) for name in node.outputs[1:])
    if p.is_padded(time) and not names[4] and (has_last_state or node.attr("direction", "forward") != "forward"):
        length = p.add_node("Cast", p.emit_extent(p.get_single_extent(time)), to=DType.INT32.onnx)
        names[4] = p.add_node("Expand", length, p.emit_reshape(p.emit_length(names[0], 1), [1]))
    hidden: Axis = (Extent.of(node.attr("hidden_size")),)
    outputs = [*node.outputs, "", "", ""]
    p.set_axes(outputs[0], [time, (Extent.of(directions),), batch, hidden])
    for name in outputs[1:3]:  # the last states
        p.set_axes(name, [(Extent.of(directions),), batch, hidden])
    while not names[-1]:
        names.pop()
    return replace(node, inputs=tuple(names))


@rule("RotaryEmbedding")
def apply_rotary(p: Padder, node: Node) -> Node:
    """Each position is rotated independently. Padded position indices are set to 0, which is in range."""
    names = list(node.inputs)  # data, table of cosines, table of sines, positions
    axes = p.get_axes(names[0])
    sequence = axes[-2] if len(axes) == 4 else axes[1]  # (batch, heads, length, width) or (batch, length, width)
    if len(names) > 3 and names[3]:
        if p.get_axes(names[3]) != (axes[0], sequence) or any(name in p.states for name in names[1:3]):
            raise p.refuse("its positions and its input are padded differently", axes[0], sequence)
        names[3] = p.mask(names[3], (0, 1), 0)
    elif any(p.get_axes(name)[:2] != (axes[0], sequence) for name in names[1:3]):
        raise p.refuse("its tables and its input are padded differently", axes[0], sequence)
    if any(map(p.is_padded, [axis for axis in axes if axis not in (axes[0], sequence)])):
        raise p.refuse("its heads or widths are padded", *axes)
    p.set_axes(node.outputs[0], axes)
    return replace(node, inputs=tuple(names))
