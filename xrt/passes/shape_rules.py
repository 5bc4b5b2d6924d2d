"""Shapes that follow from partly known contents: what ONNX's own inference does not say where a shape is no constant."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from xrt.graph import Dim, Node, Shape, TensorType, Type
from xrt.passes.data_propagation import Contents

__all__ = ["SHAPED", "shape_from_contents"]

_ALL = 2**31 - 1
"""From here on the end of a Slice means all there is, as exporters write it."""

Known: TypeAlias = Sequence[Contents | None]


def shape_from_contents(node: Node, types: Sequence[Type | None], known: Known) -> Shape | None:
    """Return the shape of the first output of one of the `SHAPED`, from what is known of its inputs; None where nothing is."""
    try:
        return SHAPED[node.op_type](node, types, known)
    except (IndexError, ValueError, TypeError):
        return None  # inputs that do not fit the operator: the engine that runs the node will say so


def _shape(types: Sequence[Type | None], index: int) -> Shape | None:
    type_ = types[index] if index < len(types) else None
    return type_.shape if isinstance(type_, TensorType) else None


def _at(known: Known, index: int) -> Contents | None:
    return known[index] if index < len(known) else None


def _extents(known: Known, index: int) -> list[Dim] | None:
    """Return the elements of an input of extents: numbers, names, None for each unknown one; None where it is unknown."""
    found = _at(known, index)
    return None if found is None or found.elements.ndim != 1 else list(found.elements)


def _integers(known: Known, index: int) -> list[int] | None:
    found = _at(known, index)
    return None if found is None else found.integers()


def _reshape(node: Node, types: Sequence[Type | None], known: Known) -> Shape | None:
    data, target = _shape(types, 0), _extents(known, 1)
    if target is None:
        return None
    copies = not node.attr("allowzero", 0)
    wanted = [(data[k] if data is not None else None) if extent == 0 and copies else extent for k, extent in enumerate(target)]
    if wanted.count(-1) != 1:
        return tuple(None if _is_negative(extent) else extent for extent in wanted)
    place = wanted.index(-1)
    others = wanted[:place] + wanted[place + 1 :]
    wanted[place] = None if data is None else _rest(data, others)
    return tuple(wanted)


def _is_negative(extent: Dim) -> bool:
    return isinstance(extent, int) and extent < 0


def _rest(data: Shape, others: Sequence[Dim]) -> Dim:
    """Return what is left of a shape when other extents are divided out: each name once for each time that it occurs."""
    left, numbers = [d for d in data if not isinstance(d, int)], math.prod(d for d in data if isinstance(d, int))
    for extent in others:
        if not isinstance(extent, int):
            if extent is None or extent not in left:
                return None
            left.remove(extent)
    divisor = math.prod(d for d in others if isinstance(d, int))
    if not divisor or numbers % divisor:
        return None
    factor = numbers // divisor
    if not left:
        return factor
    return left[0] if len(left) == 1 and factor == 1 else None


def _expand(node: Node, types: Sequence[Type | None], known: Known) -> Shape | None:
    data, target = _shape(types, 0), _extents(known, 1)
    if data is None or target is None:
        return None
    rank = max(len(data), len(target))
    ones: list[Dim] = [1] * rank
    pairs = zip((ones + list(data))[-rank:], (ones + target)[-rank:], strict=True) if rank else ()
    return tuple(_broadcast(a, b) for a, b in pairs)


def _broadcast(a: Dim, b: Dim) -> Dim:
    if a == 1 or (isinstance(b, int) and b != 1):
        return b
    if b == 1 or (isinstance(a, int) and a != 1):
        return a
    return a if a == b else None


def _constant_of_shape(node: Node, types: Sequence[Type | None], known: Known) -> Shape | None:
    target = _extents(known, 0)
    return None if target is None else tuple(None if _is_negative(extent) else extent for extent in target)


def _tile(node: Node, types: Sequence[Type | None], known: Known) -> Shape | None:
    data, repeats = _shape(types, 0), _extents(known, 1)
    if data is None or repeats is None or len(data) != len(repeats):
        return None
    return tuple(_times(extent, count) for extent, count in zip(data, repeats, strict=True))


def _times(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return a if b == 1 else b if a == 1 else None


def _slice(node: Node, types: Sequence[Type | None], known: Known) -> Shape | None:
    data = _shape(types, 0)
    if data is None or len(node.inputs) < 3:  # before opset 10 the bounds are attributes, of which ONNX knows
        return None
    starts, ends = (_extents(known, index) for index in (1, 2))
    optional = [len(node.inputs) > index and bool(node.inputs[index]) for index in (3, 4)]
    axes = _integers(known, 3) if optional[0] else list(range(len(starts or ends or data)))
    if axes is None:
        return (None,) * len(data)
    steps = (_extents(known, 4) or [None] * len(axes)) if optional[1] else [1] * len(axes)
    shape = list(data)
    for k, axis in enumerate(axes):
        bounds = [None if one is None else one[k] for one in (starts, ends)]
        shape[axis] = _span(data[axis], bounds[0], bounds[1], steps[k])
    return tuple(shape)


def _span(extent: Dim, start: Dim, end: Dim, step: Dim) -> Dim:
    """Return how many elements of an axis a Slice takes."""
    if start == 0 and step == 1 and ((isinstance(end, int) and end >= _ALL) or (isinstance(end, str) and end == extent)):
        return extent
    if not (isinstance(extent, int) and isinstance(start, int) and isinstance(end, int) and isinstance(step, int)) or not step:
        return None
    first, last = (n + extent if n < 0 else n for n in (start, end))
    first = min(max(first, 0), extent if step > 0 else extent - 1)
    last = min(max(last, 0 if step > 0 else -1), extent)
    return len(range(first, last, step))


def _pad(node: Node, types: Sequence[Type | None], known: Known) -> Shape | None:
    data, pads = _shape(types, 0), _extents(known, 1)
    has_axes = len(node.inputs) > 3 and bool(node.inputs[3])
    if data is None or len(node.inputs) < 2:
        return None
    axes = _integers(known, 3) if has_axes else list(range(len(data)))
    if axes is None or pads is None or len(pads) != 2 * len(axes):
        return (None,) * len(data)
    shape = list(data)
    for k, axis in enumerate(axes):
        shape[axis] = _plus(_plus(data[axis], pads[k]), pads[k + len(axes)])
    return tuple(shape)


def _plus(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return a if b == 0 else b if a == 0 else None


def _range(node: Node, types: Sequence[Type | None], known: Known) -> Shape | None:
    """ONNX says it of scalars; models, its own definition of AffineGrid too, have tensors of one element there."""
    start, limit, step = (None if one is None else one.elements.item() for one in known)
    if start == 0 and step == 1 and isinstance(limit, str):
        return (limit,)
    if isinstance(start, int) and isinstance(limit, int) and isinstance(step, int) and step:
        return (len(range(start, limit, step)),)
    return None


def _resize(node: Node, types: Sequence[Type | None], known: Known) -> Shape | None:
    data, sizes = _shape(types, 0), _extents(known, 3)
    if data is None or node.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    shape, scales = list(data), _at(known, 2)
    if sizes is None and scales is not None and scales.elements.size:
        for axis, scale in zip(node.attr("axes") or range(len(data)), scales.elements, strict=True):
            shape[axis] = shape[axis] if scale == 1 else None  # numbers are ONNX's to round
        return tuple(shape)
    if sizes is None:
        return None
    for axis, extent in zip(node.attr("axes") or range(len(data)), sizes, strict=True):
        shape[axis] = extent
    return tuple(shape)


SHAPED: Mapping[str, Callable[[Node, Sequence[Type | None], Known], Shape | None]] = {
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Resize": _resize,
    "Slice": _slice,
    "Tile": _tile,
}
"""Operators of ai.onnx whose output has a shape that their inputs hold."""
