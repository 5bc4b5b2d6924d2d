"""Operators that make contents of types, or take elements to other places."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from xrt.graph import DType, TensorType
from xrt.passes.data_propagation.contents import MOST_ELEMENTS, Contents, Elements, PropagationCase, Rule

__all__ = ["MOVES"]


# ---------------------------------------------------------------------- from types


def _shape(case: PropagationCase) -> Sequence[Contents | None]:
    (type_,) = case.types
    if not isinstance(type_, TensorType) or type_.shape is None:
        return [None]
    extents = type_.shape[case.node.attr("start", 0) : case.node.attr("end")]
    return [Contents(DType.INT64, _objects(extents))]


def _size(case: PropagationCase) -> Sequence[Contents | None]:
    (type_,) = case.types
    if not isinstance(type_, TensorType) or not type_.is_static:
        return [None]
    return [Contents(DType.INT64, _objects(math.prod(d for d in type_.shape or () if isinstance(d, int))))]


def _objects(values: Any) -> Elements:
    found = np.empty(len(values) if isinstance(values, tuple) else (), object)
    found[...] = values
    return found


# ---------------------------------------------------------------------- moved


def _same(case: PropagationCase) -> Sequence[Contents | None]:
    return [case.known(0)]


def _moved(change: Callable[[PropagationCase, Elements], Elements | None]) -> Rule:
    """Return the rule of an operator that takes elements of its first input to other places."""

    def rule(case: PropagationCase) -> Sequence[Contents | None]:
        given = case.known(0)
        elements = None if given is None else change(case, given.elements)
        return [None if given is None or elements is None else Contents(given.dtype, np.asarray(elements, object))]

    return rule


def _gather(case: PropagationCase, elements: Elements) -> Elements | None:
    indices = case.known(1)
    if indices is None or not indices.is_known:
        return None
    return np.asarray(np.take(elements, indices.elements.astype(np.int64), case.node.attr("axis", 0)), object)


def _slice(case: PropagationCase, elements: Elements) -> Elements | None:
    starts, ends = case.integers(1, "starts"), case.integers(2, "ends")
    axes = case.integers(3, "axes") if case.has(3) or case.node.attr("axes") is not None else None
    steps = case.integers(4) if case.has(4) else None
    if starts is None or ends is None or (case.has(3) and axes is None) or (case.has(4) and steps is None):
        return None
    found = elements
    for k, axis in enumerate(range(len(starts)) if axes is None else axes):
        step = 1 if steps is None else steps[k]
        extent = elements.shape[axis]
        first, last = (n + extent if n < 0 else n for n in (starts[k], ends[k]))
        first = min(max(first, 0), extent if step > 0 else extent - 1)
        last = min(max(last, 0 if step > 0 else -1), extent)
        chosen = range(first, last, step)
        found = np.take(found, list(chosen), axis) if chosen else np.delete(found, range(extent), axis)
    return found


def _squeeze(case: PropagationCase, elements: Elements) -> Elements | None:
    given = case.has(1) or case.node.attr("axes") is not None
    axes = case.integers(1, "axes")
    if given and axes is None:
        return None
    return elements.squeeze(tuple(axes)) if axes is not None else elements.squeeze()


def _unsqueeze(case: PropagationCase, elements: Elements) -> Elements | None:
    axes = case.integers(1, "axes")
    return None if axes is None else np.expand_dims(elements, tuple(axes))


def _reshape(case: PropagationCase, elements: Elements) -> Elements | None:
    shape = case.integers(1, "shape")
    if shape is None:
        return None
    if not case.node.attr("allowzero", 0):
        shape = [elements.shape[k] if extent == 0 else extent for k, extent in enumerate(shape)]
    return elements.reshape(shape)


def _expand(case: PropagationCase, elements: Elements) -> Elements | None:
    shape = case.integers(1)
    if shape is None or math.prod(shape) > MOST_ELEMENTS:
        return None
    return np.broadcast_to(elements, np.broadcast_shapes(elements.shape, tuple(shape)))


def _transpose(case: PropagationCase, elements: Elements) -> Elements:
    return elements.transpose(case.node.attr("perm"))


def _tile(case: PropagationCase, elements: Elements) -> Elements | None:
    repeats = case.integers(1)
    if repeats is None or len(repeats) != elements.ndim or elements.size * math.prod(repeats) > MOST_ELEMENTS:
        return None
    return np.tile(elements, repeats)


def _concat(case: PropagationCase) -> Sequence[Contents | None]:
    parts = case.spread()
    if parts is None:
        return [None]
    return [Contents(parts[0].dtype, np.concatenate([one.elements for one in parts], case.node.attr("axis", 0)))]


def _split(case: PropagationCase) -> Sequence[Contents | None]:
    given, count = case.known(0), len(case.node.outputs)
    sizes = case.integers(1, "split")
    if given is None or (sizes is None and case.has(1)):
        return [None] * count
    axis = case.node.attr("axis", 0)
    if sizes is None:
        each = -(-given.elements.shape[axis] // count)
        sizes = [each] * count
    ends = np.cumsum(sizes)[:-1].tolist()
    return [Contents(given.dtype, part) for part in np.split(given.elements, ends, axis)]


MOVES: Mapping[str, Rule] = {
    "Shape": _shape,
    "Size": _size,
    "Identity": _same,
    "Gather": _moved(_gather),
    "Slice": _moved(_slice),
    "Squeeze": _moved(_squeeze),
    "Unsqueeze": _moved(_unsqueeze),
    "Reshape": _moved(_reshape),
    "Expand": _moved(_expand),
    "Transpose": _moved(_transpose),
    "Tile": _moved(_tile),
    "Concat": _concat,
    "Split": _split,
}
