"""Operators that compute elements: on numbers, and on names of extents as far as the result needs no more than the name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, TypeAlias

import numpy as np

from xrt.graph import Constant, DType
from xrt.passes.data_propagation.contents import FOLLOWED, MOST_ELEMENTS, Contents, Elements, PropagationCase, Rule

__all__ = ["ARITHMETIC"]

Array: TypeAlias = np.ndarray[Any, Any]


# ---------------------------------------------------------------------- computed


def _computed(compute: Callable[..., Any], rule: Callable[..., Any] | None = None, gives: DType | None = None) -> Rule:
    """Return the rule of an elementwise operator.

    ``compute`` is of arrays of numbers, in their own type; ``rule`` of two elements of which one is no number.
    """

    def apply(case: PropagationCase) -> Sequence[Contents | None]:
        known = case.spread()
        if known is None:
            return [None]
        dtype = known[0].dtype
        if all(one.is_known for one in known):
            found = _compute(compute, [one.elements.astype(one.dtype.numpy) for one in known])
            return [None if found is None else Contents(gives or dtype, found.astype(object))]
        result = np.empty(np.broadcast_shapes(*(one.elements.shape for one in known)), object)
        if result.size > MOST_ELEMENTS:
            return [None]
        spread = [np.broadcast_to(one.elements, result.shape) for one in known]
        for index in np.ndindex(result.shape):
            elements = [one[index] for one in spread]
            result[index] = _element(elements, dtype, compute, rule)
        return [Contents(gives or dtype, result)]

    return apply


def _compute(compute: Callable[..., Any], arrays: Sequence[Array]) -> Array | None:
    with np.errstate(all="ignore"):
        found = compute(*arrays)
    return None if found is None else np.asarray(found)


def _element(elements: Sequence[Any], dtype: DType, compute: Callable[..., Any], rule: Callable[..., Any] | None) -> Any:
    if all(not isinstance(element, str) and element is not None for element in elements):
        found = _compute(compute, [np.array(element, dtype.numpy) for element in elements])
        return None if found is None else found.item()
    return None if rule is None or len(elements) != 2 else rule(*elements)


def _quotient(a: Any, b: Any) -> Any:
    if not np.issubdtype(a.dtype, np.integer):
        return np.divide(a, b)
    if not np.all(b):
        return None
    floor = np.floor_divide(a, b)
    return floor + ((floor * b != a) & ((a < 0) != (b < 0)))  # ONNX cuts off what is behind the point


def _added(a: Any, b: Any) -> Any:
    return _neutral(a, b, 0) if a == 0 or b == 0 else None


def _subtracted(a: Any, b: Any) -> Any:
    return a if b == 0 else None


def _multiplied(a: Any, b: Any) -> Any:
    return _neutral(a, b, 1)


def _divided(a: Any, b: Any) -> Any:
    return a if b == 1 else None


def _neutral(a: Any, b: Any, neutral: int) -> Any:
    return a if b == neutral else b if a == neutral else None


def _larger(a: Any, b: Any) -> Any:
    """No extent is negative."""
    number, name = (b, a) if isinstance(a, str) else (a, b)
    return name if isinstance(name, str) and _is_at_most(number, 0) else None


def _smaller(a: Any, b: Any) -> Any:
    number, name = (b, a) if isinstance(a, str) else (a, b)
    return number if isinstance(name, str) and _is_at_most(number, 0) else None


def _is_at_most(number: Any, limit: int) -> bool:
    return not isinstance(number, str) and number is not None and number <= limit


def _equal(a: Any, b: Any) -> Any:
    number, name = (b, a) if isinstance(a, str) else (a, b)
    return False if isinstance(name, str) and _is_at_most(number, -1) else None


def _less(a: Any, b: Any) -> Any:
    if isinstance(a, str) and _is_at_most(b, 0):
        return False
    return True if isinstance(b, str) and _is_at_most(a, -1) else None


def _less_or_equal(a: Any, b: Any) -> Any:
    if isinstance(a, str) and _is_at_most(b, -1):
        return False
    return True if isinstance(b, str) and _is_at_most(a, 0) else None


def _both(a: Any, b: Any) -> Any:
    return False if a is False or b is False else None


def _either(a: Any, b: Any) -> Any:
    return True if a is True or b is True else None


def _swapped(rule: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: rule(b, a)


def _mod(case: PropagationCase) -> Sequence[Contents | None]:
    def compute(a: Any, b: Any) -> Any:
        if not np.all(b):
            return None
        return np.fmod(a, b) if case.node.attr("fmod", 0) else np.mod(a, b)

    rule: Rule = _computed(compute)
    return rule(case)


def _cast(case: PropagationCase) -> Sequence[Contents | None]:
    given, dtype = case.known(0), DType.from_onnx(case.node.attr("to"))
    if given is None or dtype not in FOLLOWED:
        return [None]
    if given.dtype is DType.INT64 and dtype is DType.INT64:
        return [given]
    with np.errstate(all="ignore"):
        return [Contents(dtype, _objects_like(given.elements, lambda e: _cast_element(e, given.dtype, dtype)))]


def _objects_like(elements: Elements, change: Callable[[Any], Any]) -> Elements:
    result = np.empty(elements.shape, object)
    for index in np.ndindex(elements.shape):
        result[index] = change(elements[index])
    return result


def _cast_element(element: Any, given: DType, dtype: DType) -> Any:
    if isinstance(element, str) or element is None:
        # An extent may not fit 32 bits; as an extent of a type it does.
        return element if isinstance(element, str) and dtype in (DType.INT64, DType.INT32) else None
    if isinstance(element, float) and not (math.isfinite(element) and abs(element) < 2**31):
        return None
    return np.array(element, given.numpy).astype(dtype.numpy).item()


def _where(case: PropagationCase) -> Sequence[Contents | None]:
    given = case.spread()
    if given is None:
        return [None]
    condition, a, b = given
    shape = np.broadcast_shapes(condition.elements.shape, a.elements.shape, b.elements.shape)
    result = np.empty(shape, object)
    spread = [np.broadcast_to(one.elements, shape) for one in (condition, a, b)]
    for index in np.ndindex(shape):
        flag, x, y = (one[index] for one in spread)
        result[index] = (x if flag else y) if flag is not None else x if x == y and type(x) is type(y) else None
    return [Contents(a.dtype, result)]


def _reduced(compute: Callable[..., Any]) -> Rule:
    def rule(case: PropagationCase) -> Sequence[Contents | None]:
        given, constant = case.known(0), None
        given_axes = case.has(1) or case.node.attr("axes") is not None
        axes = case.integers(1, "axes")
        if given is None or (constant := given.constant()) is None or (given_axes and axes is None):
            return [None]
        if not axes and case.node.attr("noop_with_empty_axes", 0):
            return [given]
        keep = bool(case.node.attr("keepdims", 1))
        found = compute(constant.array, axis=tuple(axes) if axes else None, keepdims=keep)
        return [Contents.of(Constant(np.asarray(found, given.dtype.numpy)))]

    return rule


ARITHMETIC: Mapping[str, Rule] = {
    "Cast": _cast,
    "Where": _where,
    "Add": _computed(np.add, _added),
    "Sub": _computed(np.subtract, _subtracted),
    "Mul": _computed(np.multiply, _multiplied),
    "Div": _computed(_quotient, _divided),
    "Mod": _mod,
    "Min": _computed(lambda *given: reduce(np.minimum, given), _smaller),
    "Max": _computed(lambda *given: reduce(np.maximum, given), _larger),
    "Neg": _computed(np.negative),
    "Abs": _computed(np.abs),
    "Not": _computed(np.logical_not),
    "Floor": _computed(np.floor),
    "Ceil": _computed(np.ceil),
    "And": _computed(np.logical_and, _both),
    "Or": _computed(np.logical_or, _either),
    "Equal": _computed(np.equal, _equal, DType.BOOL),
    "Less": _computed(np.less, _less, DType.BOOL),
    "Greater": _computed(np.greater, _swapped(_less), DType.BOOL),
    "LessOrEqual": _computed(np.less_equal, _less_or_equal, DType.BOOL),
    "GreaterOrEqual": _computed(np.greater_equal, _swapped(_less_or_equal), DType.BOOL),
    "ReduceProd": _reduced(np.prod),
    "ReduceSum": _reduced(np.sum),
    "ReduceMax": _reduced(np.max),
    "ReduceMin": _reduced(np.min),
}
