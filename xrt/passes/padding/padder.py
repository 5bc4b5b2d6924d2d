"""The state of a padding pass: symbolic extents, masks, and added nodes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np

from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes
from xrt.graph.node import FreshNames
from xrt.operators import find_value


@dataclass(frozen=True, slots=True)
class Quotient:
    """Floor division of an extent by a number."""

    dividend: Extent
    divisor: int

    def __str__(self) -> str:
        return f"(({self.dividend}) // {self.divisor})"


Atom: TypeAlias = str | Quotient
Monomial: TypeAlias = tuple[Atom, ...]


@dataclass(frozen=True, slots=True)
class Extent:
    """A symbolic size: a polynomial with integer coefficients over dim names and quotients, in normal form.

    The normal form makes equal polynomials compare equal, so that extents can be keys.

    >>> s = Extent.of("s")
    >>> str((s + Extent.of(3)) * Extent.of(2) - s)
    's + 6'
    """

    terms: tuple[tuple[Monomial, int], ...]

    @classmethod
    def of(cls, value: int | Atom) -> Extent:
        """The extent of a number, a dim name or a quotient."""
        return cls._sum({(): value}) if isinstance(value, int) else cls._sum({(value,): 1})

    @classmethod
    def _sum(cls, factors: Mapping[Monomial, int]) -> Extent:
        terms = [(monomial, factor) for monomial, factor in factors.items() if factor]
        return cls(tuple(sorted(terms, key=lambda term: (-len(term[0]), str(term[0])))))

    def __add__(self, other: Extent) -> Extent:
        factors: Counter[Monomial] = Counter(dict(self.terms))
        for monomial, factor in other.terms:
            factors[monomial] += factor
        return self._sum(factors)

    def __sub__(self, other: Extent) -> Extent:
        return self + other * Extent.of(-1)

    def __mul__(self, other: Extent) -> Extent:
        factors: Counter[Monomial] = Counter()
        for monomial, factor in self.terms:
            for other_monomial, other_factor in other.terms:
                factors[tuple(sorted((*monomial, *other_monomial), key=str))] += factor * other_factor
        return self._sum(factors)

    def __floordiv__(self, divisor: int) -> Extent:
        """Floor division by a positive number."""
        exact = self.divide(Extent.of(divisor))
        return exact if exact is not None else Extent.of(Quotient(self, divisor))

    def divide(self, other: Extent) -> Extent | None:
        """Divide exactly; None unless the division is provably exact and divisor or quotient has a single term."""
        if not other.terms:
            return None
        if len(other.terms) == 1:
            parts = [_divide_term(term, other.terms[0]) for term in self.terms]
            return None if None in parts else self._sum(dict(part for part in parts if part is not None))
        for term in self.terms:
            part = _divide_term(term, other.terms[0])
            if part is not None and (quotient := self._sum(dict([part]))) * other == self:
                return quotient
        return None

    @property
    def number(self) -> int | None:
        """The value as a number; None if it depends on a dim."""
        if not self.terms:
            return 0
        (monomial, factor), *others = self.terms
        return None if monomial or others else factor

    @property
    def atoms(self) -> frozenset[str]:
        """Names of the dims that it depends on."""
        names: set[str] = set()
        for monomial, _ in self.terms:
            for atom in monomial:
                names |= {atom} if isinstance(atom, str) else atom.dividend.atoms
        return frozenset(names)

    def at(self, sizes: Mapping[str, int]) -> int:
        """The number for these sizes of the dims; raises KeyError for a missing dim."""
        return sum(factor * math.prod(_evaluate(atom, sizes) for atom in monomial) for monomial, factor in self.terms)

    def substitute(self, change: Callable[[str], Extent | None]) -> Extent:
        """Replace each dim for which `change` returns an extent."""
        total = Extent.of(0)
        for monomial, factor in self.terms:
            product = Extent.of(factor)
            for atom in monomial:
                product *= _substitute(atom, change)
            total += product
        return total

    def __str__(self) -> str:
        shown = " + ".join("*".join([*([str(factor)] if factor != 1 or not m else []), *map(str, m)]) for m, factor in self.terms)
        return shown.replace("+ -1*", "- ").replace("+ -", "- ") or "0"


Axis: TypeAlias = tuple[Extent, ...]
"""The extents that form an axis, outermost first; several if a reshape merged a padded extent with others."""
ONE: Axis = (Extent.of(1),)


def multiply(axis: Sequence[Extent]) -> Extent:
    """Product of extents, such as those of an axis."""
    product = Extent.of(1)
    for part in axis:
        product *= part
    return product


def _evaluate(atom: Atom, sizes: Mapping[str, int]) -> int:
    return sizes[atom] if isinstance(atom, str) else atom.dividend.at(sizes) // atom.divisor


def _substitute(atom: Atom, change: Callable[[str], Extent | None]) -> Extent:
    if isinstance(atom, Quotient):
        return atom.dividend.substitute(change) // atom.divisor
    replacement = change(atom)
    return Extent.of(atom) if replacement is None else replacement


def _divide_term(term: tuple[Monomial, int], other: tuple[Monomial, int]) -> tuple[Monomial, int] | None:
    """Divide one term by another; None if that is not exact."""
    remaining, (atoms, divisor) = list(term[0]), other
    if divisor == 0 or term[1] % divisor:
        return None
    for atom in atoms:
        if atom not in remaining:
            return None
        remaining.remove(atom)
    return tuple(remaining), term[1] // divisor


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
"""Larger integer tensors are not tracked, because they are not shapes."""
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
        if not self.is_padded(extent):
            return  # padding does not change it
        if not self.is_known(extent):
            raise self.refuse(f"the extent {extent} is known only in a call", extent)
        self.conditions[extent] = None

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
