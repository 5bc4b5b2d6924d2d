"""How large int64, uint64 and uint32 values may be so that all that is made of them fits in int32, which OpenVINO computes in.

The library wraps what is larger without a word. So what a region is given is compared with a limit at each call, and the
limit is such that nothing inside can grow beyond int32; where it cannot be known how large a value gets, the node is declined.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from xrt.engines.openvino.library import LIBRARY
from xrt.graph import Constant, DType, Function, Node, TensorType, Type

__all__ = ["LARGEST", "input_limits", "is_wide_integer", "why_unbounded"]

LARGEST = (1 << 31) - 1
"""The lowest int32 is one further from zero: it fits as well, until its sign changes."""
LIMITS = (LARGEST, 1 << 24, 1 << 23, 1 << 15, 1 << 7)
"""What is tried as the limit of a region's inputs, the largest first."""
MOST_ELEMENTS = 1 << 30
"""How many elements a tensor of unknown size may have; more are beyond memory, and beyond what the library counts."""

Rule = Callable[[Sequence[int]], int]
Known = Callable[[str], int | None]

_COUNTS = frozenset({"ArgMax", "ArgMin", "EyeLike", "MaxPool", "NonMaxSuppression", "NonZero", "Shape", "Size", "TopK", "Unique"})
"""Operators whose wide results count elements, or number them, or are among the elements that they are given."""

_WIDE = frozenset({DType.INT64, DType.UINT32, DType.UINT64})
_UNSIGNED = frozenset({DType.UINT32, DType.UINT64})
_SIGNING = frozenset({"Cast", "CastLike", "Neg", "Sub"})
"""Operators that may give what is less than nothing."""

_IN_FLOAT32 = frozenset({"Div", "Mod", "Pad", "ReduceMax", "ReduceMin", "ReverseSequence", "Trilu"})
"""Operators whose integers go through float32."""
EXACT_IN_FLOAT32 = 1 << 24
_COMPARING = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
"""Comparisons, which the library makes in float32 too, whatever integers are compared."""

_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(["Abs", "CenterCropPad", "Compress", "DepthToSpace", "Expand", "Flatten", "Gather"], lambda b: b[0]),
    **dict.fromkeys(["GatherElements", "GatherND", "Identity", "Neg", "Reshape", "ReverseSequence", "Slice"], lambda b: b[0]),
    **dict.fromkeys(["SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze"], lambda b: b[0]),
    **dict.fromkeys(["ReduceMax", "ReduceMin"], lambda b: b[0]),
    **dict.fromkeys(["Clip", "Concat", "Max", "Min", "Pad", "ScatterElements", "ScatterND"], max),
    "Where": lambda b: max(b[1:]),
    "Add": sum,
    "Sub": sum,
    "Range": lambda b: max(b[0], b[1]) + b[2],
    "Mul": math.prod,
    "Div": lambda b: b[0],
    "Mod": sum,  # of whole quotients, before they are taken off
    "Sign": lambda b: 1,
}
"""The largest magnitude of a result, from those of the inputs."""
_CHANGING_SIGN = frozenset({"Abs", "Add", "Div", "Mod", "Mul", "Neg", "Range", "Sub"})
"""Operators that may make the opposite of the lowest int32, which is no int32."""


def why_unbounded(node: Node, function: Function) -> str | None:
    """Return that the wide values of a node may not fit, however small those are that it is given; None where they do."""

    def known(name: str) -> int | None:
        return _constant_bound(function.constants.get(name)) or (
            LIMITS[-1] if is_wide_integer(name, function) else _by_type(name, function)
        )

    bound = _bound(node, function, known)
    if bound is not None and _fits(node, bound):
        return None
    return f"{LIBRARY} computes int64, uint64 and uint32 in int32, and what this {node.op_type} gives is not known to fit"


def input_limits(function: Function, data: Callable[[Node], frozenset[str]]) -> Mapping[int, int] | None:
    """Return, by place, the limits of those inputs whose values are computed with; None where no limit is small enough.

    ``data`` says which values a node computes with; the others are places and sizes. An int32 input has a limit only where
    what is made of it in a wide type would not fit else.
    """
    used, growing = frozenset().union(*map(data, function.nodes)), _growing(function)
    wide, narrow = (
        [place for place, value in enumerate(function.inputs) if value.name in used and is_kind(value.name, function)]
        for is_kind in (is_wide_integer, _is_int32)
    )
    for limited in (wide, [*wide, *narrow]):
        decisive = {function.inputs[place].name for place in limited} & growing
        for limit in LIMITS:
            if _all_fit(function, limit, decisive):
                deciding = {place for place in limited if function.inputs[place].name in decisive}
                return {place: limit if place in deciding else LARGEST for place in limited if place in {*wide, *deciding}}
    return None


def _growing(function: Function) -> frozenset[str]:
    """Return the values whose magnitudes decide how large wide values become: that of a comparison's operand does not."""
    found = {name for node in function.nodes for name in node.defines if is_wide_integer(name, function)}

    def known(name: str) -> int | None:
        found = _constant_bound(function.constants.get(name))
        return _by_type(name, function) if found is None else found

    found.update(name for node in function.nodes if not _is_exact(node, function, known) for name in node.inputs)
    for node in reversed(function.nodes):
        if not found.isdisjoint(node.defines):
            found.update(name for name in node.uses if is_wide_integer(name, function) or _by_type(name, function) is not None)
    return frozenset(found)


def _all_fit(function: Function, limit: int, limited: Collection[str]) -> bool:
    """Whether all that is made in wide types fits, where those inputs are within the limit, and others what their types hold."""
    bounds: dict[str, int] = {
        value.name: limit for value in function.inputs if value.name in limited or is_wide_integer(value.name, function)
    }

    def known(name: str) -> int | None:
        found = bounds.get(name, _constant_bound(function.constants.get(name)))
        return _by_type(name, function) if found is None else found

    for node in function.nodes:
        wide = [name for name in node.defines if is_wide_integer(name, function)]
        bound = _bound(node, function, known) if wide else 0
        if bound is None or not _fits(node, bound) or not _is_exact(node, function, known):
            return False
        if _tests_the_lowest(node, function, known):
            return False
        bounds.update(dict.fromkeys(wide, bound))
        bounds.update(_narrow_bounds(node, function, known) if not wide else {})
    return True


def _fits(node: Node, bound: int) -> bool:
    """Whether results of at most that magnitude are int32; of the one beyond them, only the negative is, and only kept."""
    return bound <= LARGEST or (bound == LARGEST + 1 and node.op_type not in _CHANGING_SIGN)


def _is_exact(node: Node, function: Function, known: Known) -> bool:
    """Whether a comparison or Clip of integers of 32 bits and more is exact in float32.

    It is where all numbers are, and where those are that others are compared with: rounding moves no number past them.
    """
    is_clip = node.op_type == "Clip"
    if not is_clip and node.op_type not in _COMPARING:
        return True
    if not (is_wide_integer(node.inputs[0], function) or _is_int32(node.inputs[0], function)):
        return True
    bounds = [LARGEST + 1 if (bound := known(name)) is None else bound for name in node.inputs if name]
    if max(bounds) <= EXACT_IN_FLOAT32:
        return True
    if is_clip:
        return len(bounds) == 3 and max(bounds[1:]) < EXACT_IN_FLOAT32
    return min(bounds) < EXACT_IN_FLOAT32


def _tests_the_lowest(node: Node, function: Function, known: Known) -> bool:
    """Whether the node casts to a truth value what may be the lowest int32, which the library takes for false."""
    if node.op_type not in ("Cast", "CastLike") or _dtype(node.outputs[0], function) is not DType.BOOL:
        return False
    return is_wide_integer(node.inputs[0], function) and (known(node.inputs[0]) or 0) > LARGEST


def _narrow_bounds(node: Node, function: Function, known: Known) -> dict[str, int]:
    """Return the largest magnitudes of the node's results of int32 and less, where they are known to be less than the type's."""
    results = {name: most for name in node.defines if (most := _by_type(name, function)) is not None}
    may_wrap = node.op_type in _SIGNING and any(str(_dtype(name, function)).startswith("uint") for name in results)
    if not results or may_wrap or node.op_type in _COUNTS:  # these give elements, in a type that is not wide
        return {}
    bound = _rule_bound(node, function, known)
    return {} if bound is None else {name: bound for name, most in results.items() if bound < most}


def _bound(node: Node, function: Function, known: Known) -> int | None:
    """Return the largest magnitude of the node's wide results, given those of its wide inputs; None where nothing says."""
    if not any(is_wide_integer(name, function) for name in node.defines):
        return max((known(name) or 0 for name in node.uses if is_wide_integer(name, function)), default=0)
    if node.op_type in _SIGNING and _dtype(node.outputs[0], function) in _UNSIGNED:
        return None
    return _rule_bound(node, function, known)


def _rule_bound(node: Node, function: Function, known: Known) -> int | None:
    """Return the largest magnitude of the node's integer results by the rule of its operator; None without one."""
    if node.op_type in _COUNTS:
        return _counted(node, function, known)
    inputs = [known(name) for name in node.inputs if name]
    if node.op_type in ("Cast", "CastLike"):
        return inputs[0]
    if node.op_type == "CumSum":
        return None if inputs[0] is None else inputs[0] * _longest(node.inputs[0], function)
    rule = _RULES.get(node.op_type)
    if rule is None:
        return None
    magnitudes = [LARGEST + 1 if bound is None else bound for bound in inputs]
    result = rule(magnitudes)
    return None if node.op_type in _IN_FLOAT32 and max(*magnitudes, result) > EXACT_IN_FLOAT32 else result


def _longest(name: str, function: Function) -> int:
    """Return the largest extent of a value: along no axis more elements are added up."""
    type_ = function.get_type(name)
    extents = type_.shape if isinstance(type_, TensorType) and type_.shape is not None else (None,)
    return max((extent if isinstance(extent, int) else MOST_ELEMENTS for extent in extents), default=1)


def _counted(node: Node, function: Function, known: Known) -> int:
    """Return the largest number or count of an element of an input, or one of its elements where these are wide."""
    given = [name for name in node.inputs if name]
    counts = [_elements(function.get_type(name)) for name in given]
    element = (known(given[0]) or LARGEST) if is_wide_integer(given[0], function) else 0
    return min(LARGEST, max(element, *(MOST_ELEMENTS if count is None else count for count in counts)))


def _elements(type_: Type | None) -> int | None:
    """Return the number of elements, no extent being taken for less than one; None where one is not known."""
    if not isinstance(type_, TensorType) or not type_.is_static:
        return None
    return math.prod(max(1, int(dim)) for dim in type_.shape or ())  # type: ignore[arg-type]  # static: no names among them


def _by_type(name: str, function: Function) -> int | None:
    """Return the largest magnitude that the value's type holds; None of a wide one, and of what is no integer."""
    return _BY_TYPE.get(_dtype(name, function))


_BY_TYPE: Mapping[DType | None, int] = {
    DType.BOOL: 1,
    DType.INT8: 1 << 7,
    DType.UINT8: (1 << 8) - 1,
    DType.INT16: 1 << 15,
    DType.UINT16: (1 << 16) - 1,
    DType.INT32: LARGEST + 1,
}


def _constant_bound(constant: Constant | None) -> int | None:
    if constant is None or constant.array.dtype.kind not in "biuf":
        return None
    array = constant.array if constant.array.dtype.kind in "iuf" else constant.array.astype(np.int8)
    if not array.size:
        return 0
    low, high = array.min(), array.max()
    return max(abs(int(low)), abs(int(high))) if np.isfinite(low) and np.isfinite(high) else None


def is_wide_integer(name: str, function: Function) -> bool:
    """Whether the value is of an integer type that OpenVINO narrows to int32."""
    return _dtype(name, function) in _WIDE


def _is_int32(name: str, function: Function) -> bool:
    return _dtype(name, function) is DType.INT32


def _dtype(name: str, function: Function) -> DType | None:
    type_ = function.get_type(name)
    return type_.dtype if isinstance(type_, TensorType) else None
