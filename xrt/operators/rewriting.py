"""Replace nodes by other nodes: a writer for the replacement of one node, and passes that rewrite a Function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from xrt.graph import Attribute, Constant, DType, Function, Node, TensorType, Type, Value, read_attributes
from xrt.graph.node import FreshNames, rename_node


def find_constant(name: str, function: Function) -> Constant | None:
    """Find the constant of a value: an initializer, a Constant node, or the Shape of a static tensor. None for other values."""
    producer = function.producer(name)
    return function.constants.get(name) if producer is None else find_node_constant(producer, function)


def find_node_constant(node: Node, function: Function) -> Constant | None:
    """Find the output of a Constant node, or of the Shape of a static tensor; None for other nodes."""
    if node.op == "Constant":
        return _read_value(node)
    type_ = function.get_type(node.inputs[0]) if node.op == "Shape" else None
    if not isinstance(type_, TensorType) or not type_.is_static:
        return None
    extents = (type_.shape or ())[node.attr("start", 0) : node.attr("end")]
    return Constant(np.array(extents, np.int64))


_PLAIN_VALUES = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}
"""Attributes of a Constant node that are Python numbers or lists, with the element type of the output."""


def _read_value(node: Node) -> Constant | None:
    for name, dtype in _PLAIN_VALUES.items():
        if (value := node.attr(name)) is not None:
            return Constant(np.array(value, dtype))
    value = node.attr("value")
    return value if isinstance(value, Constant) else None


@dataclass(slots=True)
class NodeWriter:
    """Collects the nodes and constants that replace one node. A method that adds a node or constant returns its value's name."""

    node: Node
    function: Function
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)

    def op(self, op_type: str, *inputs: str, output: str = "", attributes: Iterable[Attribute] = (), **more: Any) -> str:
        """Add a node with one result and return the result's name.

        ``attributes`` are copied from a node; ``more`` are further attributes by name.
        """
        name = output or f"{self._prefix}/replaced/{len(self.nodes)}"
        self.nodes.append(Node(op_type, inputs, (name,), (*attributes, *read_attributes(more)), name=name))
        return name

    def constant(self, value: Any, dtype: Any = None) -> str:
        name = f"{self._prefix}/replaced/constant/{len(self.constants)}"
        self.constants[name] = Constant(np.array(value, dtype))
        return name

    def integers(self, values: Iterable[int]) -> str:
        return self.constant(list(values), np.int64)

    def number(self, value: float) -> str:
        """Add a scalar constant of the first input's type and return its name."""
        return self.constant(value, self.dtype(self.x).numpy)

    def cast(self, name: str, dtype: DType) -> str:
        return self.op("Cast", name, to=dtype.onnx)

    def reduce(self, op_type: str, name: str, axes: Sequence[int], keepdims: int = 1, output: str = "") -> str:
        """Add a reduction over these axes and return the name of its result."""
        first_opset = SUM_AXES_OPSET if op_type == "ReduceSum" else AXES_OPSET
        if self.opset < first_opset:
            return self.op(op_type, name, axes=tuple(axes), keepdims=keepdims, output=output)
        return self.op(op_type, name, self.integers(axes), keepdims=keepdims, output=output)

    def has_input(self, index: int) -> bool:
        return index < len(self.node.inputs) and bool(self.node.inputs[index])

    def get_input(self, index: int) -> str:
        return self.node.inputs[index] if self.has_input(index) else ""

    def attr(self, name: str, default: Any = None) -> Any:
        return self.node.attr(name, default)

    def find_constant(self, name: str) -> Constant | None:
        """Look up a constant, in the Function or added here; None for other values."""
        return self.constants.get(name) or find_constant(name, self.function)

    def find_input(self, index: int) -> np.ndarray[Any, Any] | None:
        """The elements of a constant input; None if it is computed or absent."""
        constant = self.find_constant(self.node.inputs[index]) if self.has_input(index) else None
        return None if constant is None else constant.array

    def find_type(self, name: str) -> TensorType | None:
        """The type of a tensor of the Function; None if it is unknown or not a tensor."""
        type_ = self.function.get_type(name) if name else None
        return type_ if isinstance(type_, TensorType) else None

    def dtype(self, name: str) -> DType:
        """The element type of a tensor of the Function; raises ValueError if unknown or not a tensor."""
        type_ = self.find_type(name)
        if type_ is None:
            raise ValueError(f"{name!r} has the type {self.function.get_type(name)}")
        return type_.dtype

    def rank(self, name: str) -> int:
        return len(self.extents(name))

    def extents(self, name: str) -> tuple[int, ...]:
        """The extents of a tensor of the Function, 0 for unknown extents; raises ValueError if the rank is unknown."""
        type_ = self.find_type(name)
        if type_ is None or type_.shape is None:
            raise ValueError(f"the rank of {name!r} is unknown")
        return tuple(extent if isinstance(extent, int) else 0 for extent in type_.shape)

    @property
    def _prefix(self) -> str:
        return next(iter(self.node.defined_names))

    @property
    def opset(self) -> int:
        return self.function.opset()

    @property
    def x(self) -> str:
        return self.node.inputs[0]

    def define(self, results: str | Sequence[str]) -> None:
        """Make values the results of the node, by position: nodes that read the node's outputs then read these values."""
        names = [results] if isinstance(results, str) else results
        for name, output in zip(names, self.node.outputs, strict=False):
            if not output or name == output:
                continue
            is_last_result = len(names) == 1 and self.nodes and self.nodes[-1].outputs == (name,)
            if is_last_result and name not in self.node.outputs:
                # Rename the result of the last node instead of adding an Identity.
                self.nodes[-1] = replace(self.nodes[-1], outputs=(output,))
            else:
                self.op("Identity", name, output=output)


AXES_OPSET = 18
"""The first opset in which all reductions read their axes from an input."""
SUM_AXES_OPSET = 13
"""The first opset in which ReduceSum reads its axes from an input."""

WriteReplacement: TypeAlias = Callable[[NodeWriter], "str | Sequence[str] | None"]
"""Adds the replacement of a node to the writer and returns the names of its results, or None to keep the node."""


def _has_same_nodes(nodes: Sequence[Node], function: Function) -> bool:
    return len(nodes) == len(function.nodes) and all(new is old for new, old in zip(nodes, function.nodes, strict=True))


def rewrite_nodes(function: Function, write: WriteReplacement) -> Function:
    """Replace each node for which ``write`` returns results; return the same Function if there is none. Linear."""
    nodes: list[Node] = []
    constants: dict[str, Constant] = {}
    for node in function.nodes:
        writer = NodeWriter(node, function)
        results = write(writer)
        if results is None:
            nodes.append(node)
            continue
        writer.define(results)
        # The last new node has the name, control edges and device of the original node.
        nodes += [*writer.nodes[:-1], replace(writer.nodes[-1], name=node.name, control=node.control, device=node.device)]
        constants |= writer.constants
    # Return the same object, so that callers can detect that nothing was rewritten.
    if _has_same_nodes(nodes, function):
        return function
    return function.replace(nodes=tuple(nodes), constants={**function.constants, **constants})


Decompose: TypeAlias = Callable[[Node, Function], Function | None]
"""Decomposes a node into a Function with inputs and outputs named as in `as_function`, or returns None to keep the node."""
MAX_SHAPE_ELEMENTS = 64
"""Constants of up to this many elements are axes, shapes or scales. A decomposition can depend on their values."""


def as_function(node: Node, function: Function) -> Function:
    """Build a Function of one node with canonical names: equal nodes of any Function give equal Functions.

    Inputs are i0, i1, ... in the order of distinct values that the node reads, outputs o0, o1, ... in the order of the node.
    """
    names = _make_canonical_names(node)
    inputs = list(dict.fromkeys(filter(None, node.inputs)))
    # Large constants become inputs, so that nodes with different weights share a cache entry.
    constants = {}
    for name in inputs:
        constant = find_constant(name, function)
        if constant is not None and constant.array.size <= MAX_SHAPE_ELEMENTS:
            constants[names[name]] = constant
    # Without name, control edges and device, which do not change the result, equal layers become equal Functions.
    new_inputs = tuple(names[name] for name in node.inputs)
    new_outputs = tuple(names[name] for name in node.outputs)
    single = replace(node, inputs=new_inputs, outputs=new_outputs, name="it", control=(), device="")
    return Function(
        inputs=tuple(Value(names[name], function.get_type(name)) for name in inputs if names[name] not in constants),
        outputs=tuple(Value(names[name], function.get_type(name)) for name in node.outputs if name),
        nodes=(single,),
        constants=constants,
        opsets=function.opsets,
    )


def _make_canonical_names(node: Node) -> dict[str, str]:
    inputs = {name: f"i{index}" for index, name in enumerate(dict.fromkeys(filter(None, node.inputs)))}
    outputs = {name: f"o{index}" for index, name in enumerate(node.outputs) if name}
    return {**inputs, **outputs, "": ""}  # the empty name of an omitted input or output stays empty


def decompose_nodes(function: Function, decompose: Decompose) -> Function:
    """Replace each node by the nodes of its decomposition, recursively, if ``decompose`` returns one of the same opset.

    Returns the same Function if no node is replaced.
    """
    nodes: list[Node] = []
    constants, types = dict(function.constants), dict(function.types)
    for node in function.nodes:
        body = decompose(node, function)
        # A body in ONNX's newer opset cannot be mixed with the other nodes.
        if body is None or body.opset() != function.opset():
            nodes.append(node)
        else:
            nodes += inline_function(decompose_nodes(body, decompose), node, constants, types)
    if _has_same_nodes(nodes, function):
        return function
    return function.replace(nodes=tuple(nodes), constants=constants, types=types)


def inline_function(body: Function, node: Node, constants: dict[str, Constant], types: dict[str, Type]) -> list[Node]:
    """Return the nodes of ``body``, a decomposition of ``node``, renamed for the Function of ``node``.

    Adds the constants and types of the body to the two dicts. All nodes get the control edges of ``node``. The node that computes
    the first result gets its name, so that control edges to that name stay valid.
    """
    first_output = next(node.defined_names)
    # Names of inputs and outputs map to values of the Function; all others get new names.
    names = {canonical: name for name, canonical in _make_canonical_names(node).items()}
    boundary = set(names)

    def get_outer_name(name: str) -> str:
        return names.setdefault(name, f"{first_output}/replaced/{name}")

    constants |= {get_outer_name(name): constant for name, constant in body.constants.items() if name not in boundary}
    types |= {get_outer_name(name): type_ for name, type_ in body.types.items() if name not in boundary}
    nodes = []
    for inner in body.nodes:
        renamed = rename_node(inner, {name: get_outer_name(name) for name in (*inner.uses, *inner.defined_names)}, {})
        name = node.name if first_output in renamed.outputs else ""
        nodes.append(replace(renamed, name=name, control=node.control, device=node.device))
    return nodes


IDENTITY_OPSET = 13
"""Opset of the inserted Identity nodes in a Function that does not import ai.onnx."""


def separate_outputs(function: Function, reserved: Iterable[str] = (), names: FreshNames | None = None) -> Function:
    """Insert Identity nodes, so that no output is listed twice or has a ``reserved`` name and no body returns a captured value.

    Outputs keep their order; the first of repeated outputs keeps its name. Returns the same Function if nothing is inserted. The
    names of new values come from ``names``, which bodies share with the Function around them.
    """
    names = names or FreshNames.for_function(function)
    nodes = [node.map_bodies(lambda body: separate_outputs(body, body.captures, names)) for node in function.nodes]
    used_names, outputs = set(reserved), []
    for value in function.outputs:
        name = value.name
        if name in used_names:
            name = names.take_numbered(value.name)
            nodes.append(Node("Identity", (value.name,), (name,)))  # without a name, which a control edge could refer to
        used_names.add(name)
        outputs.append(Value(name, value.type or function.get_type(value.name)))
    if _has_same_nodes(nodes, function):
        return function
    opsets = {"": IDENTITY_OPSET, **function.opsets}
    return function.replace(nodes=tuple(nodes), outputs=tuple(outputs), opsets=opsets, aliases=())


def ensure_computed_outputs(function: Function) -> Function:
    """Insert Identity nodes, so that each output is computed by a node: some libraries cannot return inputs or constants.

    Regions of a plan need none; a Function that is compiled alone may. Returns the same Function if nothing is inserted.
    """
    return separate_outputs(function, (*(value.name for value in function.inputs), *function.constants))
