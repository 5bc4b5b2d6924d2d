"""Sizes as values: what integers hold that come from the shapes of padded tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from xrt.graph import Constant, DType, Node
from xrt.passes.padding.extents import Extent, multiply
from xrt.passes.padding.padder import MOST_ELEMENTS, Contents, Padder
from xrt.passes.padding.states import SIZE, Refused

__all__ = ["follow"]


def follow(p: Padder, node: Node) -> bool:
    """Take note of what integers a node computes from sizes, and say whether that tells all that there is to know of it."""
    rule = _CONTENTS.get(node.op_type) if not node.domain else None
    if rule is None:
        return False
    try:
        found = rule(p, node)
    except (Refused, IndexError, ValueError, TypeError, AttributeError):
        return False
    if found is None or found.size > MOST_ELEMENTS or all(one is None for one in found.flat):
        return False
    p.set_contents(node.outputs[0], found)
    if any(one is None for one in found.flat) and any(name in p.states for name in node.inputs):
        p.states[node.outputs[0]] = SIZE  # what is not known may be what padding changes
    return True


def _lift(compute: Callable[..., Extent | None]) -> Callable[..., Contents]:
    """Return the function for arrays of extents; what depends on an unknown one is unknown."""
    several = np.frompyfunc(lambda *given: None if None in given else compute(*given), compute.__code__.co_argcount, 1)
    return lambda *given: _array(several(*given))


def _array(found: Any) -> Contents:
    return found if isinstance(found, np.ndarray) else np.array(found, object)


def _given(p: Padder, node: Node, slot: int) -> Contents:
    found = p.contents(node.inputs[slot])
    if found is None:
        raise Refused("it is not known")
    return found


def _shape(p: Padder, node: Node) -> Contents:
    extents = [multiply(axis) for axis in p.axes(node.inputs[0])]
    return np.array(extents[slice(node.attr("start", 0), node.attr("end"))] or [], object)


def _size(p: Padder, node: Node) -> Contents:
    return np.array(multiply(tuple(multiply(axis) for axis in p.axes(node.inputs[0]))), object)


def _constant(p: Padder, node: Node) -> Contents | None:
    numbers = node.attr("value_int"), node.attr("value_ints")
    if isinstance(node.attr("value"), Constant):
        return p.contents(node.outputs[0])
    return next((np.array(_extents(one), object) for one in numbers if one is not None), None)


def _extents(numbers: Any) -> Any:
    return [Extent.of(n) for n in numbers] if isinstance(numbers, list | tuple) else Extent.of(numbers)


def _cast(p: Padder, node: Node) -> Contents | None:
    return _given(p, node, 0) if DType.from_onnx(node.attr("to")) in (DType.INT64, DType.INT32) else None


def _gather(p: Padder, node: Node) -> Contents:
    places = _numbers(_given(p, node, 1))
    return _array(np.take(_given(p, node, 0), places, axis=node.attr("axis", 0)))


def _numbers(found: Contents) -> Any:
    """Return the contents as numbers; raises TypeError where one depends on a dim."""
    return np.vectorize(lambda one: int(one.number), otypes=[np.int64])(found) if found.size else found.astype(np.int64)


def _slice(p: Padder, node: Node) -> Contents:
    starts, ends = (p.integers(node, slot, name) or [] for slot, name in ((1, "starts"), (2, "ends")))
    axes, steps = p.integers(node, 3, "axes") or [0], p.integers(node, 4) or [1]
    if axes not in ([0], [-1]):
        raise Refused("it cuts other axes")
    return _given(p, node, 0)[slice(starts[0], ends[0], steps[0])]


def _concat(p: Padder, node: Node) -> Contents:
    parts = [p.contents(name) for name in node.inputs]
    if all(part is None for part in parts):
        raise Refused("no part is known")
    return np.concatenate([_unknown(p, name) if one is None else one for name, one in zip(node.inputs, parts, strict=True)])


def _unknown(p: Padder, name: str) -> Contents:
    """Return a vector of which no element is known."""
    if name in p.states:
        raise Refused("padding changes it")
    ((extent,),) = p.axes(name)
    return np.full(int(extent.number), None, object)  # type: ignore[arg-type]  # a TypeError says that it is no number


def _reshape(p: Padder, node: Node) -> Contents:
    return _given(p, node, 0).reshape(p.integers(node, 1) or ())


def _squeeze(p: Padder, node: Node) -> Contents:
    axes = p.integers(node, 1, "axes")
    return _array(np.squeeze(_given(p, node, 0), tuple(axes) if axes else None))


def _unsqueeze(p: Padder, node: Node) -> Contents:
    return np.expand_dims(_given(p, node, 0), tuple(p.integers(node, 1, "axes") or ()))


def _constant_of_shape(p: Padder, node: Node) -> Contents:
    value = node.attr("value")
    if not isinstance(value, Constant) or value.array.dtype.kind not in "iub":
        raise Refused("it is no integer")
    return np.full(tuple(p.integers(node, 0) or ()), Extent.of(int(value.array.reshape(-1)[0])), object)


def _reduce(combine: Callable[[tuple[Extent, ...]], Extent]) -> Callable[[Padder, Node], Contents]:
    def reduce(p: Padder, node: Node) -> Contents:
        given = _given(p, node, 0)
        if given.ndim > 1:
            raise Refused("it is no vector")
        found = np.array(combine(tuple(given.reshape(-1))), object)
        return found.reshape((1,) * given.ndim) if node.attr("keepdims", 1) else found

    return reduce


def _sum(parts: tuple[Extent, ...]) -> Extent:
    total = Extent.of(0)
    for part in parts:
        total += part
    return total


def _divide(p: Padder, node: Node) -> Contents:
    def divide(one: Extent, other: Extent) -> Extent | None:
        if (exact := one.divide(other)) is not None:
            return exact
        if other.number is None or other.number < 1:
            return None
        p.require(one)  # operators round to zero, quotients down
        return one // other.number

    return _lift(divide)(_given(p, node, 0), _given(p, node, 1))


def _is_equal(one: Extent, other: Extent) -> Extent | None:
    difference = one - other
    if difference.number is not None:
        return Extent.of(int(difference.number == 0))
    signs = {factor > 0 for _, factor in difference.terms}
    return Extent.of(0) if len(signs) == 1 and () in dict(difference.terms) else None


def _choose(flag: Extent, one: Extent, other: Extent) -> Extent | None:
    return None if flag.number is None else one if flag.number else other


def _where(p: Padder, node: Node) -> Contents:
    return _lift(_choose)(*(_given(p, node, slot) for slot in range(3)))


def _binary(compute: Callable[[Extent, Extent], Extent | None]) -> Callable[[Padder, Node], Contents]:
    return lambda p, node: _lift(compute)(_given(p, node, 0), _given(p, node, 1))


_CONTENTS: Mapping[str, Callable[[Padder, Node], Contents | None]] = {
    "Add": _binary(lambda a, b: a + b),
    "Cast": _cast,
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Div": _divide,
    "Equal": _binary(_is_equal),
    "Gather": _gather,
    "Identity": lambda p, node: _given(p, node, 0),
    "Mul": _binary(lambda a, b: a * b),
    "Neg": lambda p, node: _lift(lambda a: a * Extent.of(-1))(_given(p, node, 0)),
    "ReduceProd": _reduce(multiply),
    "ReduceSum": _reduce(_sum),
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Sub": _binary(lambda a, b: a - b),
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}
"""What operators make of sizes: each gives what the output holds, None for what is not known."""
