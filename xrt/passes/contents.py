"""Propagate the partly known contents of small integer tensors, so that computed shapes are known element by element."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import numpy as np

from xrt.graph import Constant, Dim, DType, Node, Shape, TensorType, Type
from xrt.passes.extents import Extent

MOST_ELEMENTS = 128
"""Maximum number of elements of a tracked tensor; shapes, pads and slice bounds have fewer."""
FOLLOWED = frozenset({DType.INT64, DType.INT32, DType.BOOL, DType.FLOAT32, DType.FLOAT64})
"""Element types that are tracked: those in which models compute shapes."""
INVALID_NODE = (IndexError, KeyError, ValueError, TypeError, AttributeError, ArithmeticError)
"""Errors of rules for a node that violates its operator. Its types stay unknown; the engine that runs it reports the error."""
Elements: TypeAlias = "np.ndarray[Any, np.dtype[np.object_]]"
"""Each element is a number, an Extent if it is an integer that depends on dims, or None if it is unknown."""


@dataclass(frozen=True, slots=True)
class Contents:
    """A tensor of known shape, of which some elements are known."""

    dtype: DType
    elements: Elements

    @classmethod
    def of(cls, constant: Constant) -> Contents | None:
        """The contents of a constant; None if it is too large or of a type that is not tracked."""
        if constant.dtype not in FOLLOWED or constant.array.size > MOST_ELEMENTS:
            return None
        return cls(constant.dtype, constant.array.astype(object))

    @property
    def is_known(self) -> bool:
        return all(isinstance(element, int | float) for element in self.elements.flat)

    def constant(self) -> Constant | None:
        """The tensor as a Constant if every element is a number, else None."""
        return Constant(self.elements.astype(self.dtype.numpy)) if self.is_known else None

    def integers(self) -> list[int] | None:
        """The elements as a flat list, or None if any is unknown."""
        return [int(element) for element in self.elements.flat] if self.is_known else None


@dataclass(frozen=True, slots=True)
class PropagationCase:
    """A node with the known contents and types of its inputs."""

    node: Node
    inputs: Sequence[Contents | None]
    types: Sequence[Type | None]
    trusts_names: bool = False
    """Whether equal dim names mean equal sizes, as in padding.

    False in shape inference: a declared name may be wrong, and then a number computed from it would be wrong, too.
    """

    def contents(self, index: int) -> Contents | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def integers(self, index: int, attribute: str = "") -> list[int] | None:
        """The elements of input ``index``, or of ``attribute``, which older opsets have instead; None if any is unknown."""
        if attribute and (value := self.node.attr(attribute)) is not None:
            return list(value)
        contents = self.contents(index)
        return None if contents is None else contents.integers()

    def extents(self, index: int) -> list[Dim] | None:
        """The elements of a 1-d input that contains extents: numbers, dim names, or None. None if no element is known."""
        contents = self.contents(index)
        return None if contents is None or contents.elements.ndim != 1 else [_make_dim(element) for element in contents.elements]

    def shape(self, index: int) -> Shape | None:
        type_ = self.types[index] if index < len(self.types) else None
        return type_.shape if isinstance(type_, TensorType) else None

    def has(self, index: int) -> bool:
        return index < len(self.node.inputs) and bool(self.node.inputs[index])

    def spread(self) -> list[Contents] | None:
        """The contents of all inputs, with unknown elements as None.

        Return None if the shape of an input is unknown, or if nothing is known about any input.
        """
        parts = [contents or _make_unknown(type_) for contents, type_ in zip(self.inputs, self.types, strict=True)]
        present = [contents for contents in parts if contents is not None]
        return present if len(present) == len(parts) and any(contents is not None for contents in self.inputs) else None


def _make_dim(element: Any) -> Dim:
    """Convert an element to an extent of a shape: a number or dim name is kept, any other Extent becomes None."""
    return element.name if isinstance(element, Extent) else element


def _make_unknown(type_: Type | None) -> Contents | None:
    """Contents of known shape with all elements unknown."""
    if not isinstance(type_, TensorType) or not type_.is_static or type_.dtype not in FOLLOWED:
        return None
    shape = tuple(d for d in type_.shape or () if isinstance(d, int))
    return Contents(type_.dtype, np.full(shape, None, object)) if math.prod(shape) <= MOST_ELEMENTS else None


Rule: TypeAlias = Callable[[PropagationCase], Sequence[Contents | None]]
"""Computes the contents of the outputs of a node; None for an output without known elements."""
Array: TypeAlias = np.ndarray[Any, Any]
_WITH_UNKNOWN = (np.logical_and, np.logical_or)
"""Operations whose result may be known although an operand is unknown: ``False and x``, ``True or x``."""
# ---------------------------------------------------------------------- operators that compute elements


def _elementwise(compute: Callable[..., Any], rule: Callable[..., Any] | None = None, to: DType | None = None) -> Rule:
    """Make the rule of an elementwise operator.

    ``compute`` works on arrays of numbers, ``rule`` on elements if any is an Extent or unknown. ``to`` is the result's dtype.
    """

    def apply(case: PropagationCase) -> Sequence[Contents | None]:
        operands = case.spread()
        if operands is None:
            return [None]
        dtype = operands[0].dtype
        # Usually a constant, such as a bias, and an activation without known elements: no element of the result is known.
        if None in case.inputs and compute not in _WITH_UNKNOWN:
            shape = np.broadcast_shapes(*(operand.elements.shape for operand in operands))
            return [Contents(to or dtype, np.full(shape, None, object)) if math.prod(shape) <= MOST_ELEMENTS else None]
        # All numbers: one NumPy call instead of a loop over elements.
        if all(operand.is_known for operand in operands):
            array = _compute(compute, [operand.elements.astype(operand.dtype.numpy) for operand in operands])
            return [None if array is None else Contents(to or dtype, array.astype(object))]
        elements = [operand.elements for operand in operands]
        if math.prod(np.broadcast_shapes(*(array.shape for array in elements))) > MOST_ELEMENTS:
            return [None]
        # A result of one Extent and numbers does not rely on equal names being equal sizes.
        most_extents = 2 if case.trusts_names else 1

        def compute_element(*each: Any) -> Any:
            can_compute = _count_extents(each) <= most_extents
            return _compute_element(each, dtype, compute, rule) if can_compute else None

        return [Contents(to or dtype, _map_elements(compute_element, *elements))]

    return apply


def _map_elements(change: Callable[..., Any], *operands: Elements) -> Elements:
    """Apply a function to the elements of tensors, which are broadcast."""
    result = np.empty(np.broadcast_shapes(*(operand.shape for operand in operands)), object)
    with np.errstate(all="ignore"):  # NumPy warns of comparisons with NaN
        result[...] = np.frompyfunc(change, len(operands), 1)(*operands)
    return result


def _compute(compute: Callable[..., Any], arrays: Sequence[Array]) -> Array | None:
    with np.errstate(all="ignore"):
        array = compute(*arrays)
    return None if array is None else np.asarray(array)


def _compute_element(elements: Sequence[Any], dtype: DType, compute: Callable[..., Any], rule: Callable[..., Any] | None) -> Any:
    if all(isinstance(element, int | float) for element in elements):
        array = _compute(compute, [np.array(element, dtype.numpy) for element in elements])
        return None if array is None else array.item()
    if rule is None or len(elements) > 2 or (None in elements and compute not in _WITH_UNKNOWN):
        return None
    return _simplify(rule(*elements))


def _count_extents(elements: Iterable[Any]) -> int:
    return sum(isinstance(element, Extent) for element in elements)


def _simplify(element: Any) -> Any:
    """Replace an Extent that is a number by the number."""
    return element.number if isinstance(element, Extent) and element.number is not None else element


def _divide(a: Any, b: Any) -> Any:
    """Divide; integers are rounded towards zero. Return None if any integer divisor is zero."""
    if not np.issubdtype(a.dtype, np.integer):
        return np.divide(a, b)
    if not np.all(b):
        return None
    floor = np.floor_divide(a, b)
    return floor + ((floor * b != a) & ((a < 0) != (b < 0)))  # ONNX truncates towards zero


def _bound_difference(a: Any, b: Any) -> tuple[float, float]:
    """Compute a lower and an upper bound of ``a - b``."""
    return Extent.of(a - b).bounds


def _find_larger(a: Any, b: Any) -> Any:
    low, high = _bound_difference(a, b)
    return a if low >= 0 else b if high <= 0 else None


def _find_smaller(a: Any, b: Any) -> Any:
    low, high = _bound_difference(a, b)
    return a if high <= 0 else b if low >= 0 else None


def _are_equal(a: Any, b: Any) -> bool | None:
    low, high = _bound_difference(a, b)
    return False if low > 0 or high < 0 else True if low == high == 0 else None


def _is_less(a: Any, b: Any) -> bool | None:
    low, high = _bound_difference(a, b)
    return True if high < 0 else False if low >= 0 else None


def _is_less_or_equal(a: Any, b: Any) -> bool | None:
    low, high = _bound_difference(a, b)
    return True if high <= 0 else False if low > 0 else None


def _mod(case: PropagationCase) -> Sequence[Contents | None]:
    def compute(a: Any, b: Any) -> Any:
        if not np.all(b):
            return None
        return np.fmod(a, b) if case.node.attr("fmod", 0) else np.mod(a, b)

    rule: Rule = _elementwise(compute)
    return rule(case)


def _cast(case: PropagationCase) -> Sequence[Contents | None]:
    contents, dtype = case.contents(0), DType.from_onnx(case.node.attr("to"))
    if contents is None or dtype not in FOLLOWED:
        return [None]
    if contents.dtype is DType.INT64 and dtype is DType.INT64:
        return [contents]
    with np.errstate(all="ignore"):
        return [Contents(dtype, _map_elements(lambda e: _cast_element(e, contents.dtype, dtype), contents.elements))]


def _cast_element(element: Any, source: DType, dtype: DType) -> Any:
    if isinstance(element, Extent) or element is None:
        # A symbolic extent is assumed to fit 32 bits.
        return element if dtype in (DType.INT64, DType.INT32) else None
    # Casting a float out of range is undefined in C, and engines differ.
    if isinstance(element, float) and not (math.isfinite(element) and abs(element) < 2**31):
        return None
    return np.array(element, source.numpy).astype(dtype.numpy).item()


def _where(case: PropagationCase) -> Sequence[Contents | None]:
    operands = case.spread()
    if operands is None:
        return [None]

    def choose(flag: Any, x: Any, y: Any) -> Any:
        # With an unknown condition the result is known if both branches agree.
        return (x if flag else y) if isinstance(flag, int) else x if x == y and type(x) is type(y) else None

    return [Contents(operands[1].dtype, _map_elements(choose, *(operand.elements for operand in operands)))]


def _reduction(compute: Callable[..., Any]) -> Rule:
    def rule(case: PropagationCase) -> Sequence[Contents | None]:
        contents, axes = case.contents(0), case.integers(1, "axes")
        if contents is None or (axes is None and case.has(1)):
            return [None]
        if not case.trusts_names and _count_extents(contents.elements.flat) > 1:
            return [None]
        if not axes and case.node.attr("noop_with_empty_axes", 0):
            return [contents]
        # NumPy reduces objects by Python's operators. Extents do not support all; then TypeError makes the result unknown.
        dtype = contents.dtype.numpy if contents.is_known else object
        reduced = compute(
            contents.elements.astype(dtype), axis=tuple(axes) if axes else None, keepdims=bool(case.node.attr("keepdims", 1))
        )
        return [Contents(contents.dtype, _map_elements(_simplify, np.asarray(reduced, dtype).astype(object)))]

    return rule


ARITHMETIC: Mapping[str, Rule] = {
    "Cast": _cast,
    "Where": _where,
    "Add": _elementwise(np.add, operator.add),
    "Sub": _elementwise(np.subtract, operator.sub),
    "Mul": _elementwise(np.multiply, operator.mul),
    "Div": _elementwise(_divide, lambda a, b: Extent.of(a).divide(b)),
    "Mod": _mod,
    "Min": _elementwise(lambda *arrays: reduce(np.minimum, arrays), _find_smaller),
    "Max": _elementwise(lambda *arrays: reduce(np.maximum, arrays), _find_larger),
    "Neg": _elementwise(np.negative, operator.neg),
    "Abs": _elementwise(np.abs),
    "Not": _elementwise(np.logical_not),
    "Floor": _elementwise(np.floor),
    "Ceil": _elementwise(np.ceil),
    "And": _elementwise(np.logical_and, lambda a, b: False if a is False or b is False else None),
    "Or": _elementwise(np.logical_or, lambda a, b: True if a is True or b is True else None),
    "Equal": _elementwise(np.equal, _are_equal, DType.BOOL),
    "Less": _elementwise(np.less, _is_less, DType.BOOL),
    "Greater": _elementwise(np.greater, lambda a, b: _is_less(b, a), DType.BOOL),
    "LessOrEqual": _elementwise(np.less_equal, _is_less_or_equal, DType.BOOL),
    "GreaterOrEqual": _elementwise(np.greater_equal, lambda a, b: _is_less_or_equal(b, a), DType.BOOL),
    "ReduceProd": _reduction(np.prod),
    "ReduceSum": _reduction(np.sum),
    "ReduceMax": _reduction(np.max),
    "ReduceMin": _reduction(np.min),
}
# ---------------------------------------------------------------------- operators that read types


def _shape(case: PropagationCase) -> Sequence[Contents | None]:
    shape = case.shape(0)
    if shape is None:
        return [None]
    extents = [Extent.of(dim) if isinstance(dim, str) else dim for dim in shape]
    return [Contents(DType.INT64, np.array(extents, object)[case.node.attr("start", 0) : case.node.attr("end")])]


def _size(case: PropagationCase) -> Sequence[Contents | None]:
    (type_,) = case.types
    if not isinstance(type_, TensorType) or not type_.is_static:
        return [None]
    return [Contents(DType.INT64, np.array(math.prod(d for d in type_.shape or () if isinstance(d, int)), object))]


def _constant_of_shape(case: PropagationCase) -> Sequence[Contents | None]:
    shape, value = case.integers(0), case.node.attr("value", Constant(np.zeros(1, np.float32)))
    if shape is None or value.dtype not in FOLLOWED or math.prod(shape) > MOST_ELEMENTS:
        return [None]
    return [Contents(value.dtype, np.full(shape, value.array.item(), object))]


# ---------------------------------------------------------------------- operators that move elements


def _move_elements(change: Callable[[PropagationCase, Elements], Elements | None]) -> Rule:
    """Make the rule of an operator that only moves elements of input 0; ``change`` returns the elements of the output."""

    def rule(case: PropagationCase) -> Sequence[Contents | None]:
        contents = case.contents(0)
        elements = None if contents is None else change(case, contents.elements)
        return [None if contents is None or elements is None else Contents(contents.dtype, np.asarray(elements, object))]

    return rule


def _gather(case: PropagationCase, elements: Elements) -> Elements | None:
    indices = case.contents(1)
    if indices is None or not indices.is_known:
        return None
    return np.asarray(np.take(elements, indices.elements.astype(np.int64), case.node.attr("axis", 0)), object)


def _slice(case: PropagationCase, elements: Elements) -> Elements | None:
    starts, ends = case.integers(1, "starts"), case.integers(2, "ends")
    axes = case.integers(3, "axes") if case.has(3) or case.node.attr("axes") is not None else None
    steps = case.integers(4) if case.has(4) else None
    if starts is None or ends is None or (case.has(3) and axes is None) or (case.has(4) and steps is None):
        return None
    selected = elements
    for k, axis in enumerate(range(len(starts)) if axes is None else axes):
        positive_axis = axis % elements.ndim
        selection = make_slice(starts[k], ends[k], 1 if steps is None else steps[k], elements.shape[positive_axis])
        selected = selected[(slice(None),) * positive_axis + (selection,)]
    return selected


def make_slice(start: int, end: int, step: int, extent: int) -> slice:
    """Make the Python slice that selects the same elements as ONNX's Slice along an axis."""
    # ONNX clamps a start before the axis to element 0. Python does the same only for positive steps; else it selects nothing.
    return slice(max(start, -extent) if step < 0 else start, end, step)


def _squeeze(case: PropagationCase, elements: Elements) -> Elements | None:
    has_axes = case.has(1) or case.node.attr("axes") is not None
    axes = case.integers(1, "axes")
    if has_axes and axes is None:
        return None
    return elements.squeeze(tuple(axes)) if axes is not None else elements.squeeze()


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


def _tile(case: PropagationCase, elements: Elements) -> Elements | None:
    repeats = case.integers(1)
    if repeats is None or len(repeats) != elements.ndim or elements.size * math.prod(repeats) > MOST_ELEMENTS:
        return None
    return np.tile(elements, repeats)


def _concat(case: PropagationCase) -> Sequence[Contents | None]:
    parts = case.spread()
    if parts is None:
        return [None]
    return [Contents(parts[0].dtype, np.concatenate([part.elements for part in parts], case.node.attr("axis", 0)))]


def _split(case: PropagationCase) -> Sequence[Contents | None]:
    contents, count = case.contents(0), len(case.node.outputs)
    sizes = case.integers(1, "split")
    if contents is None or (sizes is None and case.has(1)):
        return [None] * count
    axis = case.node.attr("axis", 0)
    if sizes is None:
        # Round up: the last part is smaller if the extent does not divide evenly.
        part_size = -(-contents.elements.shape[axis] // count)
        sizes = [part_size] * count
    ends = np.cumsum(sizes)[:-1].tolist()
    return [Contents(contents.dtype, part) for part in np.split(contents.elements, ends, axis)]


MOVES: Mapping[str, Rule] = {
    "Shape": _shape,
    "Size": _size,
    "ConstantOfShape": _constant_of_shape,
    "Identity": lambda case: [case.contents(0)],
    "Gather": _move_elements(_gather),
    "Slice": _move_elements(_slice),
    "Squeeze": _move_elements(_squeeze),
    "Unsqueeze": _move_elements(
        lambda case, elements: None if (axes := case.integers(1, "axes")) is None else np.expand_dims(elements, tuple(axes))
    ),
    "Reshape": _move_elements(_reshape),
    "Expand": _move_elements(_expand),
    "Transpose": _move_elements(lambda case, elements: elements.transpose(case.node.attr("perm"))),
    "Tile": _move_elements(_tile),
    "Concat": _concat,
    "Split": _split,
}
_RULES: Mapping[str, Rule] = {**MOVES, **ARITHMETIC}
PROPAGATED = frozenset(_RULES)
"""Operators of ai.onnx with a propagation rule."""


def propagate(
    node: Node, inputs: Sequence[Contents | None], types: Sequence[Type | None], *, trusts_names: bool = False
) -> Sequence[Contents | None] | None:
    """Compute the contents of the outputs of a node in `PROPAGATED` from the contents and types of its inputs.

    Return None if the node violates its operator. With ``trusts_names``, equal dim names mean equal sizes: n - n is 0.
    """
    rule = _RULES[node.op_type]
    try:
        outputs = rule(PropagationCase(node, inputs, types, trusts_names))
    except INVALID_NODE:
        return None
    return [contents if contents is None or contents.elements.size <= MOST_ELEMENTS else None for contents in outputs]


# ---------------------------------------------------------------------- shapes


def _shape_of_reshape(case: PropagationCase) -> Shape | None:
    data, target = case.shape(0), case.extents(1)
    if target is None:
        return None
    copies = not case.node.attr("allowzero", 0)
    extents = [(data[k] if data is not None else None) if extent == 0 and copies else extent for k, extent in enumerate(target)]
    if extents.count(-1) != 1:
        return _clear_negative(extents)
    inferred = extents.index(-1)
    extents[inferred] = None
    if data is not None:
        # A name may be 0 at run time, and then copies: (1, n, 4) to [n, -1] is (n, 4), but for n = 0 it is (1, 0).
        may_copy = [k for k, extent in enumerate(target[: len(data)]) if isinstance(extent, str) and extent != data[k]]
        extents[inferred] = None if copies and may_copy else _infer_rest(data, extents[:inferred] + extents[inferred + 1 :])
    return tuple(extents)


def _clear_negative(extents: Sequence[Dim]) -> Shape:
    return tuple(None if isinstance(extent, int) and extent < 0 else extent for extent in extents)


def _infer_rest(data: Shape, others: Sequence[Dim]) -> Dim:
    """Infer the extent of -1 in a Reshape: the elements of ``data``, divided by the other extents. Equal symbols cancel."""
    symbols, numbers = [d for d in data if not isinstance(d, int)], math.prod(d for d in data if isinstance(d, int))
    for extent in others:
        if not isinstance(extent, int):
            if extent is None or extent not in symbols:
                return None
            symbols.remove(extent)
    divisor = math.prod(d for d in others if isinstance(d, int))
    if not divisor or numbers % divisor:
        return None
    factor = numbers // divisor
    if not symbols:
        return factor
    return symbols[0] if len(symbols) == 1 and factor == 1 else None


def _shape_of_expand(case: PropagationCase) -> Shape | None:
    data, target = case.shape(0), case.extents(1)
    if data is None or target is None:
        return None
    rank = max(len(data), len(target))
    ones: list[Dim] = [1] * rank
    pairs = zip((ones + list(data))[-rank:], (ones + target)[-rank:], strict=True) if rank else ()
    return tuple(_broadcast(a, b) for a, b in pairs)


def _broadcast(a: Dim, b: Dim) -> Dim:
    # An extent other than 1 decides: in a valid model the other one is equal or 1.
    if a == 1 or (isinstance(b, int) and b != 1):
        return b
    if b == 1 or (isinstance(a, int) and a != 1):
        return a
    return a if a == b else None


def _shape_of_tile(case: PropagationCase) -> Shape | None:
    data, repeats = case.shape(0), case.extents(1)
    if data is None or repeats is None:
        return None
    return tuple(_calculate(int.__mul__, extent, count, 1) for extent, count in zip(data, repeats, strict=True))


def _calculate(compute: Callable[[int, int], int], a: Dim, b: Dim, neutral: int) -> Dim:
    """Add or multiply two extents; ``neutral`` is the extent that does not change the other one."""
    if isinstance(a, int) and isinstance(b, int):
        return compute(a, b)
    return a if b == neutral else b if a == neutral else None


def _shape_of_slice(case: PropagationCase) -> Shape | None:
    data = case.shape(0)
    if data is None or len(case.inputs) < 3:  # before opset 10 the bounds are attributes, which onnx handles
        return None
    starts, ends = case.extents(1), case.extents(2)
    axes = case.integers(3) if case.has(3) else list(range(len(starts or ends or data)))
    if axes is None:
        return (None,) * len(data)
    steps = (case.extents(4) or [None] * len(axes)) if case.has(4) else [1] * len(axes)
    shape = list(data)
    for k, axis in enumerate(axes):
        start, end = (None if extents is None else extents[k] for extents in (starts, ends))
        shape[axis] = _count_selected(data[axis], start, end, steps[k])
    return tuple(shape)


def _count_selected(extent: Dim, start: Dim, end: Dim, step: Dim) -> Dim:
    """Count the elements that a Slice selects along an axis; None if unknown."""
    # Exporters write the largest int32, or more, as the end to mean "to the end of the axis".
    if start == 0 and step == 1 and ((isinstance(end, int) and end >= 2**31 - 1) or (isinstance(end, str) and end == extent)):
        return extent
    if not (isinstance(extent, int) and isinstance(start, int) and isinstance(end, int) and isinstance(step, int)) or not step:
        return None
    return len(range(*make_slice(start, end, step, extent).indices(extent)))


def _shape_of_pad(case: PropagationCase) -> Shape | None:
    data, pads = case.shape(0), case.extents(1)
    if data is None or len(case.inputs) < 2:
        return None
    axes = case.integers(3) if case.has(3) else list(range(len(data)))
    if axes is None or pads is None or len(pads) != 2 * len(axes):
        return (None,) * len(data)
    shape = list(data)
    for k, axis in enumerate(axes):
        for pad in (pads[k], pads[k + len(axes)]):
            shape[axis] = _calculate(int.__add__, shape[axis], pad, 0)
    return tuple(shape)


def _shape_of_range(case: PropagationCase) -> Shape | None:
    """Infer the length of a Range also from tensors of one element, which models use; onnx infers it only from scalars."""
    start, limit, step = (None if operand is None else _make_dim(operand.elements.item()) for operand in case.inputs)
    if start == 0 and step == 1 and isinstance(limit, str):
        return (limit,)
    if isinstance(start, int) and isinstance(limit, int) and isinstance(step, int) and step:
        return (len(range(start, limit, step)),)
    return None


def _shape_of_resize(case: PropagationCase) -> Shape | None:
    data, sizes, scales = case.shape(0), case.extents(3), case.contents(2)
    if data is None or case.node.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    axes, shape = case.node.attr("axes") or range(len(data)), list(data)
    if sizes is not None:
        extents = sizes
    elif scales is not None and scales.elements.size:
        extents = [data[axis] if scale == 1 else None for axis, scale in zip(axes, scales.elements, strict=True)]  # onnx rounds
    else:
        return None
    for axis, extent in zip(axes, extents, strict=True):
        shape[axis] = extent
    return tuple(shape)


_SHAPES: Mapping[str, Callable[[PropagationCase], Shape | None]] = {
    "ConstantOfShape": lambda case: None if (extents := case.extents(0)) is None else _clear_negative(extents),
    "Expand": _shape_of_expand,
    "Pad": _shape_of_pad,
    "Range": _shape_of_range,
    "Reshape": _shape_of_reshape,
    "Resize": _shape_of_resize,
    "Slice": _shape_of_slice,
    "Tile": _shape_of_tile,
}
SHAPED = frozenset(_SHAPES)
"""Operators of ai.onnx whose output shape depends on the contents of an input."""


def infer_shape(node: Node, inputs: Sequence[Contents | None], types: Sequence[Type | None]) -> Shape | None:
    """Infer the shape of output 0 of a node in `SHAPED` from the contents and types of its inputs; None if unknown."""
    try:
        return _SHAPES[node.op_type](PropagationCase(node, inputs, types))
    except INVALID_NODE:
        return None
