"""The state of a padding pass: symbolic extents, masks, and added nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np

from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes
from xrt.graph.node import FreshNames
from xrt.operators import find_value
from xrt.passes.extents import Extent, Quotient

Axis: TypeAlias = tuple[Extent, ...]
"""The extents that form an axis, outermost first; several if a reshape merged a padded extent with others."""
ONE: Axis = (Extent.of(1),)


@dataclass(frozen=True, slots=True)
class PaddedTensor:
    """A tensor whose leading part, along each padded axis, is the result without padding.

    The rest is undefined, which is why reductions over such an axis need a mask.
    """

    axes: tuple[Axis, ...]
    zeros: frozenset[int] = frozenset()
    """Axes whose padding is known to be zero."""


@dataclass(frozen=True, slots=True)
class PaddingRefusal:
    """Why dims cannot be padded."""

    node: str
    op: str
    reason: str
    dims: frozenset[str]

    def __str__(self) -> str:
        return f"node {self.node!r} ({self.op}): {self.reason}" if self.node else self.reason


class Unpaddable(Exception):  # internal to this package
    """Raised by rules: an operator cannot be padded along ``dims``; if empty, along any dim of its inputs."""

    def __init__(self, reason: str, dims: frozenset[str] = frozenset()) -> None:
        super().__init__(reason)
        self.reason, self.dims = reason, dims


class _Size:
    """State of an integer tensor that holds sizes: its elements are known as Extents, and padding changes them."""

    def __repr__(self) -> str:
        return "SIZE"


SIZE = _Size()
State: TypeAlias = PaddedTensor | PaddingRefusal | _Size
"""State of a value affected by padding; a value without a state is the same with and without padding."""
Contents: TypeAlias = "np.ndarray[Any, Any]"
"""Elements of a small integer tensor: an Extent each, or None if unknown."""
Rule: TypeAlias = "Callable[[Padder, Node], Node | None]"
"""Records the outputs of a node and returns its replacement; raises Unpaddable if padding changes the result."""
RULES: dict[str, Rule] = {}
"""Padding rules by qualified operator name, as in `Node.op`."""
_Rule = TypeVar("_Rule", bound=Callable[..., Any])


def rule(*operators: str) -> Callable[[_Rule], _Rule]:
    """Decorator: register a padding rule for operators, in place of an earlier one."""

    def register(function: _Rule) -> _Rule:
        RULES.update(dict.fromkeys(operators, function))
        return function

    return register


SIZE_INPUT = "xrt.size."
"""Prefix of the inputs that hold true sizes."""
MOST_ELEMENTS = 64
"""Maximum elements of an integer tensor that may be a shape and is tracked."""
OPSET = 11
"""Lowest opset of the operators in masks."""


class Padder:
    """Collects the padded version of a Function: the states of its values, and the nodes and constants that rules add."""

    def __init__(self, function: Function, dims: frozenset[str]) -> None:
        self.function = function
        self.dims = dims
        self.states: dict[str, State] = {}
        self.nodes: list[Node] = []
        self.constants: dict[str, Constant] = {}
        self.rules: dict[str, Rule] = {}
        """Rules for single nodes, by node name."""
        self.conditions: dict[Extent, None] = {}
        """Extents that must not be negative, with and without padding."""
        self.fed: dict[str, str] = {}
        """Input that holds the true size, by dim."""
        self._contents: dict[str, Contents] = {}
        self._emitted: dict[object, str] = {}
        self._unaffected: dict[str, tuple[Axis, ...]] = {}
        """Extents of values that padding does not affect."""
        self._types: dict[str, TensorType] = {}
        """Types of added values."""
        self._names = FreshNames(function.value_names())
        self._input_atoms: set[str] = set()
        """Dynamic extents of the inputs, which are known before a call."""
        self._sources: dict[str, tuple[str, int]] = {}
        """Value and axis where an extent without padding can be read, by name."""

    # ------------------------------------------------------------------ known extents

    def is_padded(self, axis: Axis | Extent) -> bool:
        parts = axis if isinstance(axis, tuple) else (axis,)
        return any(part.atoms & self.dims for part in parts)

    def refuse(self, reason: str, *axes: Axis | Extent) -> Unpaddable:
        """Make the exception that refuses the padded dims of these axes; the caller raises it."""
        parts = [part for axis in axes for part in (axis if isinstance(axis, tuple) else (axis,))]
        return Unpaddable(reason, frozenset().union(*(part.atoms for part in parts)) & self.dims)

    def only(self, axis: Axis) -> Extent:
        """The single extent of an axis; raises Unpaddable if a reshape merged several."""
        if len(axis) != 1:
            raise self.refuse("the padded axis is merged with others", axis)
        return axis[0]

    def match(self, *shapes: Sequence[Axis], skip: int | None = None) -> None:
        """Raise Unpaddable if operands have different extents along a padded axis; the axis `skip` is not compared."""
        for number, axes in enumerate(zip(*shapes, strict=True)):
            if number != skip and len(set(axes)) > 1 and any(map(self.is_padded, axes)):
                raise self.refuse(f"its operands differ along axis {number}", *axes)

    def check_parameters(self, node: Node) -> None:
        """Raise Unpaddable if padding affects an input other than the first."""
        if any(name in self.states for name in node.inputs[1:]):
            raise Unpaddable("a parameter is padded")

    def open_input(self, value: Value) -> None:
        """Register an input. The caller pads its dims with zeros."""
        if not isinstance(value.type, TensorType) or value.type.shape is None:
            return
        axes = self._list_declared_axes(value.name, value.type)
        for number, (extent,) in enumerate(axes):
            for atom in extent.atoms:
                self._sources.setdefault(atom, (value.name, number))
                self._input_atoms.add(atom)
        self.set(value.name, axes, (n for n, axis in enumerate(axes) if self.is_padded(axis)))

    def _list_declared_axes(self, name: str, type_: TensorType) -> tuple[Axis, ...]:
        return tuple((Extent.of(f"{name}[{n}]" if dim is None else dim),) for n, dim in enumerate(type_.shape or ()))

    def axes(self, name: str) -> tuple[Axis, ...]:
        """The extents of a value; raises Unpaddable if its rank is unknown."""
        state = self.states.get(name)
        if isinstance(state, PaddedTensor):
            return state.axes
        # Extents derived by rules are more precise than the declared type.
        if name in self._unaffected:
            return self._unaffected[name]
        type_ = self._types.get(name) or self.function.get_type(name)
        if not isinstance(type_, TensorType) or type_.shape is None:
            raise Unpaddable(f"the rank of {name!r} is not known")
        axes = self._list_declared_axes(name, type_)
        if any(self.is_padded(axis) for axis in axes):
            raise self.refuse(f"{name!r} is {type_}, and does not come from a padded input", *axes)
        for number, (extent,) in enumerate(axes):
            if extent.number is None:
                self._sources.setdefault(next(iter(extent.atoms)), (name, number))
        return axes

    def dtype(self, name: str) -> DType:
        """The element type; raises Unpaddable if it is unknown."""
        type_ = self._types.get(name) or self.function.get_type(name)
        if not isinstance(type_, TensorType):
            raise Unpaddable(f"the element type of {name!r} is not known")
        return type_.dtype

    def zeros(self, name: str) -> frozenset[int]:
        """Axes whose padding is known to be zero."""
        state = self.states.get(name)
        return state.zeros if isinstance(state, PaddedTensor) else frozenset()

    def set(self, name: str, axes: Iterable[Axis], zeros: Iterable[int] = ()) -> None:
        """Record the extents of an output, and the axes whose padding is zero. An omitted output ("") is skipped."""
        if not name:
            return
        extents = tuple(axes)
        type_ = self._types.get(name) or self.function.get_type(name)
        shape = type_.shape if isinstance(type_, TensorType) else None
        if shape is not None and len(shape) == len(extents):
            # A static extent of the declared type is more precise than a symbol.
            pairs = zip(extents, shape, strict=True)
            extents = tuple((Extent.of(d),) if isinstance(d, int) and not self.is_padded(axis) else axis for axis, d in pairs)
        if any(map(self.is_padded, extents)):
            self.states[name] = PaddedTensor(extents, frozenset(zeros))
        else:
            self._unaffected[name] = extents

    def unknown(self, name: str, axis: int) -> Axis:
        """Make a new symbol for the unknown extent of an output axis that is not padded."""
        atom = f"{name}[{axis}]"
        self._sources[atom] = (name, axis)
        return (Extent.of(atom),)

    def require(self, extent: Extent) -> None:
        """Add the condition that this extent is not negative, with and without padding."""
        if extent.bounds[0] >= 0:
            return
        if self.is_known(extent):
            self.conditions[extent] = None
        # Padding does not change other extents: a node that needs them fails without it, too.
        elif self.is_padded(extent):
            raise self.refuse(f"the extent {extent} is known only in a call", extent)

    def is_known(self, extent: Extent) -> bool:
        """Whether the extent is determined by the input shapes."""
        return extent.atoms <= self._input_atoms

    # ------------------------------------------------------------------ contents

    def contents(self, name: str) -> Contents | None:
        """Known elements of an integer tensor, or None."""
        if name in self._contents:
            return self._contents[name]
        constant = find_value(name, self.function)
        if constant is None or constant.array.size > MOST_ELEMENTS or constant.array.dtype.kind not in "iub":
            return None
        return self.set_contents(name, constant.array.tolist())

    def set_contents(self, name: str, elements: Any) -> Contents:
        """Record the elements of a tensor: numbers, extents, or None if unknown."""
        array = np.array(elements, object) if not isinstance(elements, np.ndarray) else elements
        extents = np.empty(array.shape, object)
        for index in np.ndindex(array.shape):
            extents[index] = Extent.of(int(array[index])) if isinstance(array[index], int) else array[index]
        self._contents[name] = extents
        if any(isinstance(extent, Extent) and self.is_padded(extent) for extent in extents.flat):
            # Padding changes this size; uses as a value need the true one.
            self.states[name] = SIZE
        return extents

    def elements(self, name: str) -> list[Extent | None] | None:
        """Elements of a vector or scalar, or None."""
        contents = self.contents(name) if name else None
        return None if contents is None or contents.ndim > 1 else list(contents.reshape(-1))

    def extents(self, name: str, title: str) -> list[Extent]:
        """Elements of a vector or scalar, which the refusal calls ``title``; raises Unpaddable unless all are known."""
        elements = self.elements(name)
        if elements is None or None in elements:
            raise Unpaddable(f"its {title}, {name!r}, is not known")
        return [extent for extent in elements if extent is not None]

    def integers(self, node: Node, slot: int, attribute: str = "") -> list[int] | None:
        """Integers of an attribute, or else of a constant input; None if both are absent. Raises Unpaddable for other inputs."""
        value = node.attr(attribute) if attribute else None
        if value is not None:
            return list(value) if isinstance(value, list | tuple) else [value]
        name = node.inputs[slot] if 0 <= slot < len(node.inputs) else ""
        if not name:
            return None
        numbers = [None if extent is None else extent.number for extent in self.elements(name) or [None]]
        if None in numbers:
            raise Unpaddable(f"input {slot} is no constant")
        return [number for number in numbers if number is not None]

    # ------------------------------------------------------------------ new nodes

    def constant(self, value: Any) -> str:
        """Add a constant, unless there is an equal one, and return its name."""
        constant = Constant(np.asarray(value))
        key = (constant.dtype, constant.shape, constant.digest)
        if key not in self._emitted:
            self._emitted[key] = self._names.number("xrt.constant")
            self.constants[self._emitted[key]] = constant
        return self._emitted[key]

    def node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node, unless there is an equal one, and return its output."""
        key = (op_type, inputs, tuple(sorted(attributes.items())))
        if key not in self._emitted:
            self._emitted[key] = self._names.number(f"xrt.{op_type.lower()}")
            self.nodes.append(Node(op_type, inputs, (self._emitted[key],), read_attributes(attributes)))
        return self._emitted[key]

    def value(self, extent: Extent) -> str:
        """Emit the true value of an extent, without padding, as an int64 scalar."""
        total = ""
        for monomial, factor in extent.terms:
            names = [self._emit_atom(atom) for atom in monomial]
            product = self.constant(np.int64(factor)) if factor != 1 or not names else names.pop()
            for name in names:
                product = self.node("Mul", product, name)
            total = self.node("Add", total, product) if total else product
        return total or self.constant(np.int64(0))

    def _emit_atom(self, atom: str | Quotient) -> str:
        if isinstance(atom, Quotient):
            # ONNX's Div rounds towards zero, which is the floor here: extents are not negative.
            return self.node("Div", self.value(atom.dividend), self.constant(np.int64(atom.divisor)))
        if atom in self.dims:
            return self.fed.setdefault(atom, SIZE_INPUT + atom)
        if atom not in self._sources:
            raise Unpaddable(f"no value has the extent {atom!r}")
        return self.length(*self._sources[atom])

    def length(self, name: str, axis: int) -> str:
        """Emit the extent of a tensor as it is in the call, padding included, as an int64 scalar."""
        return self.node("Gather", self.node("Shape", name), self.constant(np.int64(axis)), axis=0)

    def vector(self, elements: Iterable[Extent]) -> str:
        """Emit the true values of extents, without padding, as an int64 vector."""
        parts = [self.node("Reshape", self.value(extent), self.constant(np.array([1], np.int64))) for extent in elements]
        return self.node("Concat", *parts, axis=0)

    def exact(self, name: str) -> str:
        """Emit the true values of the sizes that `name` holds; raises Unpaddable if some are unknown."""
        extents = self._contents[name]
        if any(extent is None for extent in extents.flat):
            raise Unpaddable(f"{name!r} holds sizes that are known in part")
        return self.emit_sizes(name, extents.flat)

    def emit_sizes(self, name: str, sizes: Iterable[Extent]) -> str:
        """Emit the true values of `sizes` in the shape and element type of the tensor `name`."""
        shape, dtype = self._contents[name].shape, self.dtype(name)
        emitted = self.node("Reshape", self.vector(sizes), self.constant(np.array(shape, np.int64)))
        emitted = emitted if dtype is DType.INT64 else self.node("Cast", emitted, to=dtype.onnx)
        self._types[emitted] = TensorType(dtype, shape)
        return emitted

    def count_up(self, count: str) -> str:
        """Emit the int64 numbers 0, 1, ... below an int64 scalar."""
        return self.node("Range", self.constant(np.int64(0)), count, self.constant(np.int64(1)))

    def positions(self, start: Extent, count: Extent) -> str:
        """Emit `count` consecutive int64 numbers from `start` on; both are true values, without padding."""
        return self.node("Add", self.count_up(self.value(count)), self.value(start))

    def shape_operand(self, name: str) -> str:
        """The shape operand of an operator whose result is padded: by default the sizes that the model computes."""
        return name

    # ------------------------------------------------------------------ masks

    def find_valid(self, name: str, axis: int) -> str:
        """Emit the boolean vector that is true for the valid part of an axis."""
        if (opset := self.function.opsets.get("", 0)) < OPSET:
            raise Unpaddable(f"a mask needs opset {OPSET}, and the model has {opset}")
        extent = self.only(self.axes(name)[axis])
        # Equal extents share one mask.
        key = ("valid", extent)
        if key not in self._emitted:
            self._emitted[key] = self.node("Less", self.count_up(self.length(name, axis)), self.value(extent))
        return self._emitted[key]

    def mask(self, name: str, axis: int, fill: Any) -> str:
        """Replace the padding of an axis by `fill`."""
        if fill == 0 and axis in self.zeros(name):
            return name
        shape = [1] * len(self.axes(name))
        shape[axis] = -1
        flags = self.node("Reshape", self.find_valid(name, axis), self.constant(np.array(shape, np.int64)))
        # Where, not Mul by zero: the padding may hold NaN or infinities.
        number = self.constant(np.asarray(fill).astype(self.dtype(name).numpy))
        masked = self.node("Where", flags, name, number)
        state = self.states[name]
        assert isinstance(state, PaddedTensor)  # its axis is padded
        self.states[masked] = replace(state, zeros=state.zeros | {axis} if fill == 0 else state.zeros - {axis})
        self._types[masked] = TensorType(self.dtype(name))
        return masked

    def mask_all(self, name: str, axes: Iterable[int], fill: Any) -> str:
        """Replace the padding of these axes by `fill`."""
        for axis in axes:
            if self.is_padded(self.axes(name)[axis]):
                name = self.mask(name, axis, fill)
        return name
