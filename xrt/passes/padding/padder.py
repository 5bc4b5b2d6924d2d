"""The class `Padder`, with which padding rules read the extents of a node's inputs, add masks and record the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np

from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes
from xrt.graph.node import FreshNames
from xrt.operators import find_constant
from xrt.passes.extents import Extent, Quotient

Axis: TypeAlias = tuple[Extent, ...]
"""The extents whose product is the length of an axis, outermost first. There are several if a reshape merged a padded extent."""
ONE: Axis = (Extent.of(1),)


@dataclass(frozen=True, slots=True)
class PaddedTensor:
    """A tensor whose leading part, along each padded axis, is the result without padding.

    The other elements are undefined, so a reduction over a padded axis needs a mask.
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
    """Raised by a rule if an operator cannot be padded along ``dims``. If these are empty, along no padded dim of its inputs."""

    def __init__(self, reason: str, dims: frozenset[str] = frozenset()) -> None:
        super().__init__(reason)
        self.reason, self.dims = reason, dims


SIZE: Literal["size"] = "size"
"""State of an integer tensor whose elements are sizes that padding changes; `Padder.find_contents` returns them as Extents."""
State: TypeAlias = PaddedTensor | PaddingRefusal | Literal["size"]
"""State of a value affected by padding; a value without a state is the same with and without padding."""
Contents: TypeAlias = "np.ndarray[Any, Any]"
"""Elements of a small integer tensor, as an object array of Extents; None for an unknown element."""
Rule: TypeAlias = "Callable[[Padder, Node], Node | None]"
"""Records the axes of a node's outputs; returns the node to use instead, or None to keep it. Raises Unpaddable if padding would
change the result."""
RULES: dict[str, Rule] = {}
"""Padding rules by qualified operator name, as in `Node.op`."""
_Rule = TypeVar("_Rule", bound=Callable[..., Any])


def rule(*operators: str) -> Callable[[_Rule], _Rule]:
    """Decorate a function to register it as the padding rule of operators. It replaces earlier rules."""

    def register(function: _Rule) -> _Rule:
        RULES.update(dict.fromkeys(operators, function))
        return function

    return register


SIZE_INPUT = "xrt.size."
"""Prefix of the added inputs that hold unpadded sizes."""
MAX_TRACKED_ELEMENTS = 64
"""Integer tensors with more elements are not shapes, so their contents are not tracked."""
MASK_OPSET = 11
"""Lowest opset with the operators that masks consist of."""


class Padder:
    """The padded version of a Function under construction: the states of its values, and the nodes and constants so far."""

    def __init__(self, function: Function, dims: frozenset[str]) -> None:
        self.function = function
        self.dims = dims
        self.states: dict[str, State] = {}
        self.nodes: list[Node] = []
        self.constants: dict[str, Constant] = {}
        self.rules: dict[str, Rule] = {}
        """Rules for single nodes, by node name."""
        self.conditions: dict[Extent, None] = {}
        """Extents that must not be negative, for unpadded and for padded sizes. The keys of an ordered set."""
        self.fed: dict[str, str] = {}
        """Padded dim to the name of the added input with its unpadded size, for the dims that nodes need."""
        self._contents: dict[str, Contents] = {}
        self._emitted: dict[object, str] = {}
        """The value of each added node and constant, by its content, so that equal ones are shared."""
        self._unaffected: dict[str, tuple[Axis, ...]] = {}
        """Axes of values that padding does not affect, as far as rules have derived them."""
        self._types: dict[str, TensorType] = {}  # of added values
        self._names = FreshNames(function.value_names())
        self._input_atoms: set[str] = set()
        """Symbols of the input shapes; extents made of them can be computed before a call."""
        self._sources: dict[str, tuple[str, int]] = {}
        """Symbol of an unpadded extent to the (value, axis) whose length it is."""

    def find_padded_dims(self, *axes: Axis | Extent) -> frozenset[str]:
        """Find the padded dims that these axes or extents depend on."""
        atoms: set[str] = set()
        for axis in axes:
            for extent in axis if isinstance(axis, tuple) else (axis,):
                atoms |= extent.atoms
        return self.dims & atoms

    def is_padded(self, axis: Axis | Extent) -> bool:
        return bool(self.find_padded_dims(axis))

    def refuse(self, reason: str, *axes: Axis | Extent) -> Unpaddable:
        """Create the Unpaddable for the padded dims of these axes; the caller raises it."""
        return Unpaddable(reason, self.find_padded_dims(*axes))

    def get_single_extent(self, axis: Axis) -> Extent:
        """Get the extent of an axis. Raises Unpaddable if a reshape merged several."""
        if len(axis) != 1:
            raise self.refuse("the padded axis is merged with others", axis)
        return axis[0]

    def check_equal_extents(self, *shapes: Sequence[Axis], skip: int | None = None) -> None:
        """Raise Unpaddable if operands have different extents along a padded axis. The axis `skip` is not compared."""
        for index, axes in enumerate(zip(*shapes, strict=True)):
            if index != skip and len(set(axes)) > 1 and any(map(self.is_padded, axes)):
                raise self.refuse(f"its operands differ along axis {index}", *axes)

    def check_parameters(self, node: Node) -> None:
        """Raise Unpaddable if padding affects an input other than the first."""
        if any(name in self.states for name in node.inputs[1:]):
            raise Unpaddable("a parameter is padded")

    def add_input(self, value: Value) -> None:
        """Record the extents of an input. Its padding is zero: the caller pads inputs with zeros."""
        if not isinstance(value.type, TensorType) or value.type.shape is None:
            return
        axes = self._list_declared_axes(value.name, value.type)
        for axis, (extent,) in enumerate(axes):
            for atom in extent.atoms:
                self._sources.setdefault(atom, (value.name, axis))
                self._input_atoms.add(atom)
        self.set_axes(value.name, axes, (n for n, parts in enumerate(axes) if self.is_padded(parts)))

    def _list_declared_axes(self, name: str, type_: TensorType) -> tuple[Axis, ...]:
        return tuple((Extent.of(f"{name}[{n}]" if dim is None else dim),) for n, dim in enumerate(type_.shape or ()))

    def get_axes(self, name: str) -> tuple[Axis, ...]:
        """Get the axes of a value as extents. Raises Unpaddable if its rank is unknown."""
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
        for index, (extent,) in enumerate(axes):
            if extent.number is None:
                self._sources.setdefault(next(iter(extent.atoms)), (name, index))
        return axes

    def get_dtype(self, name: str) -> DType:
        type_ = self._types.get(name) or self.function.get_type(name)
        if not isinstance(type_, TensorType):
            raise Unpaddable(f"the element type of {name!r} is not known")
        return type_.dtype

    def get_zero_axes(self, name: str) -> frozenset[int]:
        """Get the axes of a value whose padding is known to be zero."""
        state = self.states.get(name)
        return state.zeros if isinstance(state, PaddedTensor) else frozenset()

    def set_axes(self, name: str, axes: Iterable[Axis], zeros: Iterable[int] = ()) -> None:
        """Record the axes of an output, and with ``zeros`` the axes whose padding is zero. An omitted output ("") is skipped."""
        if not name:
            return
        recorded = tuple(axes)
        type_ = self._types.get(name) or self.function.get_type(name)
        shape = type_.shape if isinstance(type_, TensorType) else None
        if shape is not None and len(shape) == len(recorded):
            # A static extent of the declared type is more precise than a symbol.
            pairs = zip(recorded, shape, strict=True)
            recorded = tuple((Extent.of(d),) if isinstance(d, int) and not self.is_padded(axis) else axis for axis, d in pairs)
        if any(map(self.is_padded, recorded)):
            self.states[name] = PaddedTensor(recorded, frozenset(zeros))
        else:
            self._unaffected[name] = recorded

    def make_symbol(self, name: str, axis: int) -> Axis:
        """Create a symbol for the unknown extent of an output axis without padding."""
        atom = f"{name}[{axis}]"
        self._sources[atom] = (name, axis)
        return (Extent.of(atom),)

    def require_nonnegative(self, extent: Extent) -> None:
        """Add the condition extent >= 0, for unpadded and padded sizes. Raises Unpaddable if it can be checked only in a call."""
        if extent.bounds[0] >= 0:
            return
        if self.is_known(extent):
            self.conditions[extent] = None
        # Padding does not change other extents: a node that needs them fails without it, too.
        elif self.is_padded(extent):
            raise self.refuse(f"the extent {extent} is known only in a call", extent)

    def is_known(self, extent: Extent) -> bool:
        """Whether the extent can be computed from the input shapes."""
        return extent.atoms <= self._input_atoms

    def find_contents(self, name: str) -> Contents | None:
        """Find the elements of an integer tensor. None for other tensors, large ones, and those that are not tracked."""
        if name in self._contents:
            return self._contents[name]
        constant = find_constant(name, self.function)
        if constant is None or constant.array.size > MAX_TRACKED_ELEMENTS or constant.array.dtype.kind not in "iub":
            return None
        return self.set_contents(name, constant.array.tolist())

    def set_contents(self, name: str, elements: Any) -> Contents:
        """Record the elements of an integer tensor, each an int, an Extent, or None if unknown; return them as Extents."""
        array = np.array(elements, object) if not isinstance(elements, np.ndarray) else elements
        extents = np.empty(array.shape, object)
        for index in np.ndindex(array.shape):
            extents[index] = Extent.of(int(array[index])) if isinstance(array[index], int) else array[index]
        self._contents[name] = extents
        if any(isinstance(extent, Extent) and self.is_padded(extent) for extent in extents.flat):
            # Padding changes this size, so a node that uses it as a value must get the unpadded size (`emit_sizes`).
            self.states[name] = SIZE
        return extents

    def find_elements(self, name: str) -> list[Extent | None] | None:
        """Find the elements of an integer vector or scalar as a list. None if they are not tracked, or for a higher rank."""
        contents = self.find_contents(name) if name else None
        return None if contents is None or contents.ndim > 1 else list(contents.reshape(-1))

    def read_extents(self, name: str, label: str) -> list[Extent]:
        """Find the elements of a vector or scalar. Raises Unpaddable, which names the ``label``, if one is unknown."""
        elements = self.find_elements(name)
        if elements is None or None in elements:
            raise Unpaddable(f"its {label}, {name!r}, is not known")
        return [extent for extent in elements if extent is not None]

    def read_integers(self, node: Node, input_index: int, attribute: str = "") -> list[int] | None:
        """Read integers from an attribute, or else from an input. None if both are absent.

        Raises Unpaddable if the input is not constant.
        """
        value = node.attr(attribute) if attribute else None
        if value is not None:
            return list(value) if isinstance(value, list | tuple) else [value]
        name = node.inputs[input_index] if input_index < len(node.inputs) else ""
        if not name:
            return None
        elements = self.find_elements(name) or []
        numbers = [extent.number for extent in elements if extent is not None]
        if not elements or None in numbers or len(numbers) < len(elements):
            raise Unpaddable(f"input {input_index} is not a constant")
        return [number for number in numbers if number is not None]

    def add_constant(self, value: Any) -> str:
        """Add a constant, unless there is an equal one, and return its name."""
        constant = Constant(np.asarray(value))
        key = (constant.dtype, constant.shape, constant.digest)
        if key not in self._emitted:
            self._emitted[key] = self._names.take_numbered("xrt.constant")
            self.constants[self._emitted[key]] = constant
        return self._emitted[key]

    def add_node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node, unless there is an equal one, and return its output."""
        key = (op_type, inputs, tuple(sorted(attributes.items())))
        if key not in self._emitted:
            self._emitted[key] = self._names.take_numbered(f"xrt.{op_type.lower()}")
            self.nodes.append(Node(op_type, inputs, (self._emitted[key],), read_attributes(attributes)))
        return self._emitted[key]

    def emit_reshape(self, name: str, shape: Sequence[int]) -> str:
        return self.add_node("Reshape", name, self.add_constant(np.array(shape, np.int64)))

    def emit_extent(self, extent: Extent) -> str:
        """Add nodes that compute the unpadded value of an extent; return the name of the int64 scalar."""
        total = ""
        for monomial, factor in extent.terms:
            names = [self._emit_atom(atom) for atom in monomial]
            # The factor 1 is omitted, except in the empty product.
            product = self.add_constant(np.int64(factor)) if factor != 1 or not names else names.pop()
            for name in names:
                product = self.add_node("Mul", product, name)
            total = self.add_node("Add", total, product) if total else product
        return total or self.add_constant(np.int64(0))

    def _emit_atom(self, atom: str | Quotient) -> str:
        if isinstance(atom, Quotient):
            # ONNX's Div rounds towards zero, which is the floor here: extents are not negative.
            return self.add_node("Div", self.emit_extent(atom.dividend), self.add_constant(np.int64(atom.divisor)))
        if atom in self.dims:
            return self.fed.setdefault(atom, SIZE_INPUT + atom)
        if atom not in self._sources:
            raise Unpaddable(f"no value has the extent {atom!r}")
        return self.emit_length(*self._sources[atom])

    def emit_length(self, name: str, axis: int) -> str:
        """Add nodes that read the length of an axis at run time, including padding; return the name of the int64 scalar."""
        return self.add_node("Gather", self.add_node("Shape", name), self.add_constant(np.int64(axis)), axis=0)

    def emit_vector(self, extents: Iterable[Extent]) -> str:
        """Add nodes that compute the unpadded values of extents; return the name of the int64 vector."""
        return self.add_node("Concat", *(self.emit_reshape(self.emit_extent(extent), [1]) for extent in extents), axis=0)

    def emit_sizes(self, name: str, sizes: Sequence[Extent] | None = None) -> str:
        """Add nodes that compute the unpadded `sizes`, as a tensor with the shape and element type of tensor `name`.

        By default the sizes are those in the tensor. Raises Unpaddable if one of these is unknown.
        """
        if sizes is None:
            sizes = list(self._contents[name].flat)
        if None in sizes:
            raise Unpaddable(f"{name!r} holds sizes, some of which are unknown")
        shape, dtype = self._contents[name].shape, self.get_dtype(name)
        emitted = self.emit_reshape(self.emit_vector(sizes), shape)
        emitted = emitted if dtype is DType.INT64 else self.add_node("Cast", emitted, to=dtype.onnx)
        self._types[emitted] = TensorType(dtype, shape)
        return emitted

    def emit_range(self, count: str) -> str:
        """Add a node that computes the int64 vector 0, 1, ..., count - 1; ``count`` names an int64 scalar."""
        return self.add_node("Range", self.add_constant(np.int64(0)), count, self.add_constant(np.int64(1)))

    def emit_positions(self, start: Extent, count: Extent) -> str:
        """Add nodes that compute the int64 vector start, ..., start + count - 1 of unpadded `start` and `count`."""
        return self.add_node("Add", self.emit_range(self.emit_extent(count)), self.emit_extent(start))

    def get_shape_operand(self, name: str) -> str:
        """Get the name of the shape operand to use for an operator with a padded result: that of the model."""
        return name

    def emit_valid_flags(self, name: str, axis: int) -> str:
        """Add nodes that compute a boolean vector along an axis: True for valid elements, False for padding."""
        if (opset := self.function.opsets.get("", 0)) < MASK_OPSET:
            raise Unpaddable(f"a mask needs opset {MASK_OPSET}, and the model has {opset}")
        extent = self.get_single_extent(self.get_axes(name)[axis])
        # Equal extents share one mask.
        key = ("valid", extent)
        if key not in self._emitted:
            self._emitted[key] = self.add_node("Less", self.emit_range(self.emit_length(name, axis)), self.emit_extent(extent))
        return self._emitted[key]

    def mask(self, name: str, axes: Iterable[int], fill: Any) -> str:
        """Replace the padding of axes by `fill`; return the name of the masked tensor. Axes without padding are skipped."""
        for axis in axes:
            if self.is_padded(self.get_axes(name)[axis]) and not (fill == 0 and axis in self.get_zero_axes(name)):
                name = self._mask_axis(name, axis, fill)
        return name

    def _mask_axis(self, name: str, axis: int, fill: Any) -> str:
        shape = [1] * len(self.get_axes(name))
        shape[axis] = -1
        flags = self.emit_reshape(self.emit_valid_flags(name, axis), shape)
        # Where, not Mul by zero: the padding may hold NaN or infinities.
        number = self.add_constant(np.asarray(fill).astype(self.get_dtype(name).numpy))
        masked = self.add_node("Where", flags, name, number)
        state = self.states[name]
        assert isinstance(state, PaddedTensor)  # its axis is padded
        self.states[masked] = replace(state, zeros=state.zeros | {axis} if fill == 0 else state.zeros - {axis})
        self._types[masked] = TensorType(self.get_dtype(name))
        return masked
