"""Propagate the known elements of small tensors, so that shapes that a model computes are known element by element."""

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

MAX_ELEMENTS = 128
"""Maximum number of elements of a tracked tensor; shapes, pads and slice bounds have fewer."""
TRACKED_DTYPES = frozenset({DType.INT64, DType.INT32, DType.BOOL, DType.FLOAT32, DType.FLOAT64})
"""Element types in which models compute shapes."""
INVALID_NODE = (IndexError, KeyError, ValueError, TypeError, AttributeError, ArithmeticError)
"""Errors that a rule raises for an invalid node. Its types stay unknown, and the engine that runs it reports the error."""
Elements: TypeAlias = "np.ndarray[Any, np.dtype[np.object_]]"
"""Array in which each element is a number, an Extent (an integer that depends on symbolic dims), or None (unknown)."""


@dataclass(frozen=True, slots=True)
class Contents:
    """A tensor of known shape, of which some elements are known."""

    dtype: DType
    elements: Elements

    @classmethod
    def of(cls, constant: Constant) -> Contents | None:
        """Return the contents of a constant; None if the constant is too large or its type is not tracked."""
        if constant.dtype not in TRACKED_DTYPES or constant.array.size > MAX_ELEMENTS:
            return None
        return cls(constant.dtype, constant.array.astype(object))

    @property
    def is_known(self) -> bool:
        return all(isinstance(element, int | float) for element in self.elements.flat)

    def to_constant(self) -> Constant | None:
        """Convert to a Constant; None unless every element is a number."""
        return Constant(self.elements.astype(self.dtype.numpy)) if self.is_known else None

    def to_integers(self) -> list[int] | None:
        """Convert to a flat list; None unless every element is a number."""
        return [int(element) for element in self.elements.flat] if self.is_known else None


@dataclass(frozen=True, slots=True)
class PropagationCase:
    """A node with the known contents and types of its inputs."""

    node: Node
    inputs: Sequence[Contents | None]
    types: Sequence[Type | None]
    trusts_names: bool = False
    """Whether equal dim names mean equal sizes, as in padding. In shape inference, a declared name may be wrong."""

    def get_contents(self, index: int) -> Contents | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def get_integers(self, index: int, attribute: str = "") -> list[int] | None:
        """Return the elements of input ``index``, or of the attribute that older opsets have instead; None if any is unknown."""
        if attribute and (value := self.node.attr(attribute)) is not None:
            return list(value)
        contents = self.get_contents(index)
        return None if contents is None else contents.to_integers()

    def get_extents(self, index: int) -> list[Dim] | None:
        """Return the elements of a 1-d input that is a shape: numbers, dim names, or None. None for an input without contents."""
        contents = self.get_contents(index)
        if contents is None or contents.elements.ndim != 1:
            return None
        return [_make_dim(element) for element in contents.elements]

    def get_shape(self, index: int) -> Shape | None:
        type_ = self.types[index] if index < len(self.types) else None
        return type_.shape if isinstance(type_, TensorType) else None

    def has_input(self, index: int) -> bool:
        return index < len(self.node.inputs) and bool(self.node.inputs[index])

    def list_operands(self) -> list[Contents] | None:
        """List the contents of all inputs, some with unknown elements. None if no input has contents, or a shape is unknown."""
        if all(contents is None for contents in self.inputs):
            return None
        operands = [contents or _make_unknown(type_) for contents, type_ in zip(self.inputs, self.types, strict=True)]
        with_shape = [operand for operand in operands if operand is not None]
        return with_shape if len(with_shape) == len(operands) else None


def _make_dim(element: Any) -> Dim:
    """Convert an element to an extent of a shape: an Extent becomes its dim name, or None if it is not a single dim."""
    return element.name if isinstance(element, Extent) else element


def _make_unknown(type_: Type | None) -> Contents | None:
    """Make contents with unknown elements; None if the shape is unknown, too large, or the type is not tracked."""
    if not isinstance(type_, TensorType) or not type_.is_static or type_.dtype not in TRACKED_DTYPES:
        return None
    shape = tuple(dim for dim in type_.shape or () if isinstance(dim, int))
    return Contents(type_.dtype, np.full(shape, None, object)) if math.prod(shape) <= MAX_ELEMENTS else None


Rule: TypeAlias = Callable[[PropagationCase], Sequence[Contents | None]]
"""Computes the contents of a node's outputs; None for an output without known elements."""
Array: TypeAlias = np.ndarray[Any, Any]
Compute: TypeAlias = Callable[..., Any]
_SHORT_CIRCUIT = (np.logical_and, np.logical_or)
"""Operations whose result may be known although an operand is unknown: ``False and x``, ``True or x``."""


def _make_elementwise_rule(compute: Compute, compute_symbolic: Compute | None = None, to: DType | None = None) -> Rule:
    """Make the rule of an elementwise operator.

    ``compute`` gets NumPy arrays. ``compute_symbolic`` gets two elements of which one is an Extent or unknown; without it, the
    result is then unknown. ``to`` is the dtype of the result, if it is not the dtype of the first operand.
    """

    def apply(case: PropagationCase) -> Sequence[Contents | None]:
        operands = case.list_operands()
        if operands is None:
            return [None]
        dtype = operands[0].dtype
        # Usually a constant, such as a bias, and an activation without contents: no element of the result is known.
        if None in case.inputs and compute not in _SHORT_CIRCUIT:
            shape = np.broadcast_shapes(*(operand.elements.shape for operand in operands))
            return [Contents(to or dtype, np.full(shape, None, object)) if math.prod(shape) <= MAX_ELEMENTS else None]
        # All numbers: one NumPy call instead of a loop over elements.
        if all(operand.is_known for operand in operands):
            array = _compute(compute, [operand.elements.astype(operand.dtype.numpy) for operand in operands])
            return [None if array is None else Contents(to or dtype, array.astype(object))]
        elements = [operand.elements for operand in operands]
        if math.prod(np.broadcast_shapes(*(array.shape for array in elements))) > MAX_ELEMENTS:
            return [None]
        # With a single Extent, the result does not depend on whether equal names mean equal sizes.
        max_extents = 2 if case.trusts_names else 1

        def compute_element(*values: Any) -> Any:
            can_compute = _count_extents(values) <= max_extents
            return _compute_element(values, dtype, compute, compute_symbolic) if can_compute else None

        return [Contents(to or dtype, _map_elements(compute_element, *elements))]

    return apply


def _map_elements(change: Callable[..., Any], *operands: Elements) -> Elements:
    """Apply a function to each tuple of corresponding elements of the operands, which are broadcast."""
    result = np.empty(np.broadcast_shapes(*(operand.shape for operand in operands)), object)
    with np.errstate(all="ignore"):  # NumPy warns of comparisons with NaN
        result[...] = np.frompyfunc(change, len(operands), 1)(*operands)
    return result


def _compute(compute: Compute, arrays: Sequence[Array]) -> Array | None:
    with np.errstate(all="ignore"):
        array = compute(*arrays)
    return None if array is None else np.asarray(array)


def _compute_element(elements: Sequence[Any], dtype: DType, compute: Compute, compute_symbolic: Compute | None) -> Any:
    """Compute one element of the result of an elementwise operator; None if unknown."""
    if all(isinstance(element, int | float) for element in elements):
        array = _compute(compute, [np.array(element, dtype.numpy) for element in elements])
        return None if array is None else array.item()
    if compute_symbolic is None or len(elements) > 2 or (None in elements and compute not in _SHORT_CIRCUIT):
        return None
    return _simplify(compute_symbolic(*elements))


def _count_extents(elements: Iterable[Any]) -> int:
    return sum(isinstance(element, Extent) for element in elements)


def _simplify(element: Any) -> Any:
    return element.number if isinstance(element, Extent) and element.number is not None else element


def _divide(a: Any, b: Any) -> Any:
    """Divide as ONNX does: integers are rounded towards zero. Return None if an integer divisor is zero."""
    if not np.issubdtype(a.dtype, np.integer):
        return np.divide(a, b)
    if not np.all(b):
        return None
    floor = np.floor_divide(a, b)
    is_inexact, is_negative = floor * b != a, (a < 0) != (b < 0)
    # An inexact negative quotient is rounded up instead of down.
    return np.where(is_inexact & is_negative, floor + 1, floor)


def _is_less(a: Any, b: Any) -> bool | None:
    """Compare two Extents; None if the result depends on the sizes of dims."""
    low, high = Extent.of(a - b).bounds
    if high < 0:
        return True
    return False if low >= 0 else None


def _is_less_or_equal(a: Any, b: Any) -> bool | None:
    is_greater = _is_less(b, a)
    return None if is_greater is None else not is_greater


def _are_equal(a: Any, b: Any) -> bool | None:
    low, high = Extent.of(a - b).bounds
    if low > 0 or high < 0:
        return False
    return True if low == high == 0 else None


def _find_smaller(a: Any, b: Any) -> Any:
    if _is_less_or_equal(a, b):
        return a
    return b if _is_less_or_equal(b, a) else None


def _find_larger(a: Any, b: Any) -> Any:
    smaller = _find_smaller(a, b)
    if smaller is None:
        return None
    return b if smaller is a else a


def _mod(case: PropagationCase) -> Sequence[Contents | None]:
    def compute(a: Any, b: Any) -> Any:
        if not np.all(b):
            return None
        return np.fmod(a, b) if case.node.attr("fmod", 0) else np.mod(a, b)

    rule: Rule = _make_elementwise_rule(compute)
    return rule(case)


def _cast(case: PropagationCase) -> Sequence[Contents | None]:
    contents, dtype = case.get_contents(0), DType.from_onnx(case.node.attr("to"))
    if contents is None or dtype not in TRACKED_DTYPES:
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
    operands = case.list_operands()
    if operands is None:
        return [None]

    def choose(flag: Any, x: Any, y: Any) -> Any:
        if isinstance(flag, int):
            return x if flag else y
        # With an unknown condition, the result is known if both operands are equal.
        return x if x == y and type(x) is type(y) else None

    return [Contents(operands[1].dtype, _map_elements(choose, *(operand.elements for operand in operands)))]


def _make_reduction_rule(compute: Compute) -> Rule:
    """Make the rule of a reduction by a NumPy function. The axes are input 1, or an attribute in older opsets."""

    def rule(case: PropagationCase) -> Sequence[Contents | None]:
        contents, axes = case.get_contents(0), case.get_integers(1, "axes")
        if contents is None or (axes is None and case.has_input(1)):
            return [None]
        if not case.trusts_names and _count_extents(contents.elements.flat) > 1:
            return [None]  # equal names may mean different sizes
        if not axes and case.node.attr("noop_with_empty_axes", 0):
            return [contents]
        # NumPy reduces objects with Python's operators. Extents do not support all; a TypeError makes the result unknown.
        dtype = contents.dtype.numpy if contents.is_known else object
        keepdims = bool(case.node.attr("keepdims", 1))
        reduced = compute(contents.elements.astype(dtype), axis=tuple(axes) if axes else None, keepdims=keepdims)
        return [Contents(contents.dtype, _map_elements(_simplify, np.asarray(reduced, dtype).astype(object)))]

    return rule


ARITHMETIC: Mapping[str, Rule] = {
    "Cast": _cast,
    "Where": _where,
    "Add": _make_elementwise_rule(np.add, operator.add),
    "Sub": _make_elementwise_rule(np.subtract, operator.sub),
    "Mul": _make_elementwise_rule(np.multiply, operator.mul),
    "Div": _make_elementwise_rule(_divide, lambda a, b: Extent.of(a).divide(b)),
    "Mod": _mod,
    "Min": _make_elementwise_rule(lambda *arrays: reduce(np.minimum, arrays), _find_smaller),
    "Max": _make_elementwise_rule(lambda *arrays: reduce(np.maximum, arrays), _find_larger),
    "Neg": _make_elementwise_rule(np.negative, operator.neg),
    "Abs": _make_elementwise_rule(np.abs),
    "Not": _make_elementwise_rule(np.logical_not),
    "Floor": _make_elementwise_rule(np.floor),
    "Ceil": _make_elementwise_rule(np.ceil),
    "And": _make_elementwise_rule(np.logical_and, lambda a, b: False if a is False or b is False else None),
    "Or": _make_elementwise_rule(np.logical_or, lambda a, b: True if a is True or b is True else None),
    "Equal": _make_elementwise_rule(np.equal, _are_equal, DType.BOOL),
    "Less": _make_elementwise_rule(np.less, _is_less, DType.BOOL),
    "Greater": _make_elementwise_rule(np.greater, lambda a, b: _is_less(b, a), DType.BOOL),
    "LessOrEqual": _make_elementwise_rule(np.less_equal, _is_less_or_equal, DType.BOOL),
    "GreaterOrEqual": _make_elementwise_rule(np.greater_equal, lambda a, b: _is_less_or_equal(b, a), DType.BOOL),
    "ReduceProd": _make_reduction_rule(np.prod),
    "ReduceSum": _make_reduction_rule(np.sum),
    "ReduceMax": _make_reduction_rule(np.max),
    "ReduceMin": _make_reduction_rule(np.min),
}


def _shape(case: PropagationCase) -> Sequence[Contents | None]:
    shape = case.get_shape(0)
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
    shape, value = case.get_integers(0), case.node.attr("value", Constant(np.zeros(1, np.float32)))
    if shape is None or value.dtype not in TRACKED_DTYPES or math.prod(shape) > MAX_ELEMENTS:
        return [None]
    return [Contents(value.dtype, np.full(shape, value.array.item(), object))]


def _make_move_rule(move: Callable[[PropagationCase, Elements], Elements | None]) -> Rule:
    """Make the rule of an operator that only moves elements of input 0; ``move`` returns the elements of the output."""

    def rule(case: PropagationCase) -> Sequence[Contents | None]:
        contents = case.get_contents(0)
        if contents is None or (elements := move(case, contents.elements)) is None:
            return [None]
        return [Contents(contents.dtype, np.asarray(elements, object))]

    return rule


def _gather(case: PropagationCase, elements: Elements) -> Elements | None:
    indices = case.get_contents(1)
    if indices is None or not indices.is_known:
        return None
    return np.asarray(np.take(elements, indices.elements.astype(np.int64), case.node.attr("axis", 0)), object)


def _slice(case: PropagationCase, elements: Elements) -> Elements | None:
    starts, ends = case.get_integers(1, "starts"), case.get_integers(2, "ends")  # inputs: data, starts, ends, axes, steps
    if starts is None or ends is None:
        return None
    has_axes = case.has_input(3) or case.node.attr("axes") is not None
    axes = case.get_integers(3, "axes") if has_axes else list(range(len(starts)))
    steps = case.get_integers(4) if case.has_input(4) else [1] * len(starts)
    if axes is None or steps is None:
        return None
    selected = elements
    for k, axis in enumerate(axes):
        positive_axis = axis % elements.ndim
        selection = make_slice(starts[k], ends[k], steps[k], elements.shape[positive_axis])
        selected = selected[(slice(None),) * positive_axis + (selection,)]
    return selected


def make_slice(start: int, end: int, step: int, extent: int) -> slice:
    """Make the Python slice that selects the same elements as ONNX's Slice along an axis."""
    # ONNX clamps a start before the axis to element 0. Python does so only for positive steps, and otherwise selects nothing.
    return slice(max(start, -extent) if step < 0 else start, end, step)


def _squeeze(case: PropagationCase, elements: Elements) -> Elements | None:
    has_axes = case.has_input(1) or case.node.attr("axes") is not None
    axes = case.get_integers(1, "axes")
    if has_axes and axes is None:
        return None
    return elements.squeeze(tuple(axes)) if axes is not None else elements.squeeze()


def _reshape(case: PropagationCase, elements: Elements) -> Elements | None:
    shape = case.get_integers(1, "shape")
    if shape is None:
        return None
    if not case.node.attr("allowzero", 0):
        shape = [elements.shape[k] if extent == 0 else extent for k, extent in enumerate(shape)]
    return elements.reshape(shape)


def _expand(case: PropagationCase, elements: Elements) -> Elements | None:
    shape = case.get_integers(1)
    if shape is None or math.prod(shape) > MAX_ELEMENTS:
        return None
    return np.broadcast_to(elements, np.broadcast_shapes(elements.shape, tuple(shape)))


def _tile(case: PropagationCase, elements: Elements) -> Elements | None:
    repeats = case.get_integers(1)
    if repeats is None or len(repeats) != elements.ndim or elements.size * math.prod(repeats) > MAX_ELEMENTS:
        return None
    return np.tile(elements, repeats)


def _concat(case: PropagationCase) -> Sequence[Contents | None]:
    parts = case.list_operands()
    if parts is None:
        return [None]
    return [Contents(parts[0].dtype, np.concatenate([part.elements for part in parts], case.node.attr("axis", 0)))]


def _split(case: PropagationCase) -> Sequence[Contents | None]:
    contents, count = case.get_contents(0), len(case.node.outputs)
    sizes = case.get_integers(1, "split")
    if contents is None or (sizes is None and case.has_input(1)):
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
    "Identity": lambda case: [case.get_contents(0)],
    "Gather": _make_move_rule(_gather),
    "Slice": _make_move_rule(_slice),
    "Squeeze": _make_move_rule(_squeeze),
    "Unsqueeze": _make_move_rule(
        lambda case, elements: None if (axes := case.get_integers(1, "axes")) is None else np.expand_dims(elements, tuple(axes))
    ),
    "Reshape": _make_move_rule(_reshape),
    "Expand": _make_move_rule(_expand),
    "Transpose": _make_move_rule(lambda case, elements: elements.transpose(case.node.attr("perm"))),
    "Tile": _make_move_rule(_tile),
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

    Return None for an invalid node. With ``trusts_names``, equal dim names mean equal sizes, so that n - n is 0.
    """
    rule = _RULES[node.op_type]
    try:
        outputs = rule(PropagationCase(node, inputs, types, trusts_names))
    except INVALID_NODE:
        return None
    return [contents if contents is None or contents.elements.size <= MAX_ELEMENTS else None for contents in outputs]


def _shape_of_reshape(case: PropagationCase) -> Shape | None:
    data, target = case.get_shape(0), case.get_extents(1)
    if target is None:
        return None
    zero_copies = not case.node.attr("allowzero", 0)
    extents = list(target)
    for axis, extent in enumerate(target):
        if extent == 0 and zero_copies:
            extents[axis] = None if data is None else data[axis]
    if extents.count(-1) != 1:
        return _clear_negative(extents)
    inferred_axis = extents.index(-1)
    extents[inferred_axis] = None
    if data is None:
        return tuple(extents)
    # A dim may be 0 at run time, and then copies: (1, n, 4) to [n, -1] is (n, 4), but for n = 0 it is (1, 0).
    may_copy = zero_copies and any(isinstance(a, str) and a != b for a, b in zip(target, data, strict=False))
    if not may_copy:
        extents[inferred_axis] = _infer_remaining_extent(data, extents[:inferred_axis] + extents[inferred_axis + 1 :])
    return tuple(extents)


def _clear_negative(extents: Sequence[Dim]) -> Shape:
    return tuple(None if isinstance(extent, int) and extent < 0 else extent for extent in extents)


def _infer_remaining_extent(data: Shape, target: Sequence[Dim]) -> Dim:
    """Infer the extent of -1 in a Reshape: the product of ``data`` divided by the product of ``target``, the other extents."""
    symbols = [dim for dim in data if not isinstance(dim, int)]
    for dim in target:
        if not isinstance(dim, int):
            # Equal symbols cancel.
            if dim is None or dim not in symbols:
                return None
            symbols.remove(dim)
    dividend = math.prod(dim for dim in data if isinstance(dim, int))
    divisor = math.prod(dim for dim in target if isinstance(dim, int))
    if not divisor or dividend % divisor:
        return None
    quotient = dividend // divisor
    if not symbols:
        return quotient
    return symbols[0] if len(symbols) == 1 and quotient == 1 else None


def _shape_of_expand(case: PropagationCase) -> Shape | None:
    data, target = case.get_shape(0), case.get_extents(1)
    if data is None or target is None:
        return None
    rank = max(len(data), len(target))
    aligned_data = [1] * (rank - len(data)) + list(data)
    aligned_target = [1] * (rank - len(target)) + target
    return tuple(map(_broadcast, aligned_data, aligned_target))


def _broadcast(a: Dim, b: Dim) -> Dim:
    # In a valid model, two extents are equal or one of them is 1. So a number other than 1 is the result.
    if a == 1 or (isinstance(b, int) and b != 1):
        return b
    if b == 1 or (isinstance(a, int) and a != 1):
        return a
    return a if a == b else None


def _shape_of_tile(case: PropagationCase) -> Shape | None:
    data, repeats = case.get_shape(0), case.get_extents(1)
    if data is None or repeats is None:
        return None
    return tuple(_calculate(int.__mul__, extent, count, 1) for extent, count in zip(data, repeats, strict=True))


def _calculate(compute: Callable[[int, int], int], a: Dim, b: Dim, neutral: int) -> Dim:
    """Add or multiply two extents. ``neutral`` is the neutral element: 0 or 1."""
    if isinstance(a, int) and isinstance(b, int):
        return compute(a, b)
    if b == neutral:
        return a
    return b if a == neutral else None


def _shape_of_slice(case: PropagationCase) -> Shape | None:
    data = case.get_shape(0)
    if data is None or len(case.inputs) < 3:  # before opset 10 the bounds are attributes, which onnx supports
        return None
    starts, ends = case.get_extents(1), case.get_extents(2)  # inputs: data, starts, ends, axes, steps
    axes = case.get_integers(3) if case.has_input(3) else list(range(len(starts or ends or data)))
    if axes is None:
        return (None,) * len(data)  # any axis may be sliced
    steps = (case.get_extents(4) or [None] * len(axes)) if case.has_input(4) else [1] * len(axes)
    shape = list(data)
    for k, axis in enumerate(axes):
        start, end = (None if extents is None else extents[k] for extents in (starts, ends))
        shape[axis] = _count_selected(data[axis], start, end, steps[k])
    return tuple(shape)


def _count_selected(extent: Dim, start: Dim, end: Dim, step: Dim) -> Dim:
    """Count the elements that a Slice selects along an axis; None if unknown."""
    # Exporters write the largest int32, or more, as the end to mean "to the end of the axis".
    is_open = isinstance(end, int) and end >= 2**31 - 1
    if start == 0 and step == 1 and (is_open or (isinstance(end, str) and end == extent)):
        return extent
    if not (isinstance(extent, int) and isinstance(start, int) and isinstance(end, int) and isinstance(step, int)) or not step:
        return None
    return len(range(*make_slice(start, end, step, extent).indices(extent)))


def _shape_of_pad(case: PropagationCase) -> Shape | None:
    data, pads = case.get_shape(0), case.get_extents(1)
    if data is None or len(case.inputs) < 2:
        return None
    axes = case.get_integers(3) if case.has_input(3) else list(range(len(data)))
    if axes is None or pads is None or len(pads) != 2 * len(axes):
        return (None,) * len(data)
    shape = list(data)
    for k, axis in enumerate(axes):
        for pad in (pads[k], pads[k + len(axes)]):  # all begins come first, then all ends
            shape[axis] = _calculate(int.__add__, shape[axis], pad, 0)
    return tuple(shape)


def _shape_of_range(case: PropagationCase) -> Shape | None:
    """Infer the length of a Range. onnx does so only for scalar inputs, but models also use tensors of one element."""
    start, limit, step = (None if operand is None else _make_dim(operand.elements.item()) for operand in case.inputs)
    if start == 0 and step == 1 and isinstance(limit, str):
        return (limit,)
    if isinstance(start, int) and isinstance(limit, int) and isinstance(step, int) and step:
        return (len(range(start, limit, step)),)
    return None


def _shape_of_resize(case: PropagationCase) -> Shape | None:
    data, sizes, scales = case.get_shape(0), case.get_extents(3), case.get_contents(2)  # inputs: data, region, scales, sizes
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
    "ConstantOfShape": lambda case: None if (extents := case.get_extents(0)) is None else _clear_negative(extents),
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
