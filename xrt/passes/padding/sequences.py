"""Padding of operators over sequences: attention, recurrent networks, rotary positions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from xrt.graph import Node
from xrt.passes.padding.extents import ONE, Axis, Extent
from xrt.passes.padding.padder import Padder
from xrt.passes.padding.states import Refused

__all__ = ["apply_attention", "apply_recurrent", "apply_rotary"]

_Q, _K, _V, _MASK = range(4)


def apply_attention(p: Padder, node: Node) -> Node:
    """Queries may be padded; keys behind the valid part are hidden by the mask, and their values are zero."""
    names = [*node.inputs, *[""] * (7 - len(node.inputs))]
    if any(names[4:]) or any(node.outputs[1:]):
        raise Refused("it has past keys, or gives more than one output")
    query, key, value = (p.axes(name) for name in names[:3])
    is_flat = len(query) == 3
    sequence = len(query) - 2
    for axes in (query, key, value):
        if any(map(p.is_padded, (*axes[1:sequence], *axes[sequence + 1 :]))):
            raise p.refuse("its heads or widths are padded", *axes)
    if query[0] != key[0] or key[0] != value[0] or key[sequence] != value[sequence]:
        raise p.refuse("keys, values and queries differ in batch or length", *query, *key, *value)
    if names[_MASK] and any(map(p.is_padded, (*query, *key))):
        _check_mask(p, names[_MASK], query[sequence], key[sequence])
    if p.is_padded(key[sequence]):
        names[_MASK] = _hide(p, names[_K], sequence, names[_MASK])
        names[_K:_MASK] = [p.mask(name, sequence, 0) for name in names[_K:_MASK]]  # a mask is added: NaN would stay
    width = p.unknown(node.outputs[0], 2) if is_flat else value[-1]
    p.set(node.outputs[0], [*query[:-1], width])
    return replace(node, inputs=tuple(names[:4] if names[_MASK] else names[:3]))


def _check_mask(p: Padder, mask: str, query: Axis, key: Axis) -> None:
    if any(axis not in (query, ONE) for axis in p.axes(mask)[-2:-1]) or any(axis != key for axis in p.axes(mask)[-1:]):
        raise p.refuse("its mask has another extent than queries or keys", *p.axes(mask))


def _hide(p: Padder, key: str, axis: int, mask: str) -> str:
    """Return the mask that also hides what is behind the valid part of the keys."""
    flags = p.find_valid(key, axis)
    if not mask:
        return p.node("Reshape", flags, p.constant(np.array([1, -1], np.int64)))
    dtype = p.dtype(mask)
    hidden = np.zeros((), bool) if not dtype.is_float else np.asarray(-np.inf).astype(dtype.numpy)
    return p.node("Where", flags, mask, p.constant(hidden))


def apply_recurrent(p: Padder, node: Node) -> Node:
    """The batch may be padded in all inputs; the length is an input of the network where it has none yet."""
    names = [*node.inputs, *[""] * (8 - len(node.inputs))]
    time, batch, width = p.axes(names[0])
    if node.attr("layout", 0) or p.is_padded(width) or any(name in p.states for name in (*names[1:4], names[7]) if name):
        raise p.refuse("its weights or widths are padded, or its layout is 1", time, batch, width)
    directions = 2 if node.attr("direction", "forward") == "bidirectional" else 1
    for name in filter(None, names[4:7]):
        if p.is_padded(batch) and batch not in p.axes(name):
            raise p.refuse("an input is not padded along the batch", batch)
    if p.is_padded(time) and not names[4] and (_reads_end(p, node) or node.attr("direction", "forward") != "forward"):
        names[4] = _feed_length(p, names[0], time)
    hidden: Axis = (Extent.of(node.attr("hidden_size")),)
    outputs = [*node.outputs, "", "", ""]
    p.set(outputs[0], [time, (Extent.of(directions),), batch, hidden])
    for name in outputs[1:3]:
        p.set(name, [(Extent.of(directions),), batch, hidden])
    while not names[-1]:
        names.pop()
    return replace(node, inputs=tuple(names))


def _reads_end(p: Padder, node: Node) -> bool:
    """Whether anything reads what the network remembers at the end."""
    ends = {value.name for value in p.function.outputs}
    return any(name and (name in ends or p.function.users(name)) for name in node.outputs[1:])


def _feed_length(p: Padder, given: str, time: Axis) -> str:
    """Return the length without padding, for each sequence of the batch."""
    if len(time) != 1:
        raise p.refuse("the padded axis is merged with others", time)
    one = p.constant(np.array([1], np.int64))
    count = p.node("Reshape", p.length(given, 1), one)
    return p.node("Expand", p.node("Cast", p.value(time[0]), to=_INT32), count)


_INT32 = 6


def apply_rotary(p: Padder, node: Node) -> Node:
    """Each position is turned by itself; indices behind the valid part are zero."""
    names = list(node.inputs)
    axes = p.axes(names[0])
    sequence = axes[-2] if len(axes) == 4 else axes[1]
    if len(names) > 3 and names[3]:
        if p.axes(names[3]) != (axes[0], sequence) or any(name in p.states for name in names[1:3]):
            raise p.refuse("its positions are padded otherwise than its input", axes[0], sequence)
        names[3] = p.mask_all(names[3], (0, 1), 0)
    elif any(p.axes(name)[:2] != (axes[0], sequence) for name in names[1:3]):
        raise p.refuse("its tables are padded otherwise than its input", axes[0], sequence)
    if any(map(p.is_padded, [axis for axis in axes if axis not in (axes[0], sequence)])):
        raise p.refuse("its heads or widths are padded", *axes)
    p.set(node.outputs[0], axes)
    return replace(node, inputs=tuple(names))
