"""The Builder, which records nodes, constants and names, and converts them to a Function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import Token
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from xrt.builder.record_op import (
    CONTROL_FLOW,
    STRONG,
    Symbol,
    choose_natural_dtype,
    choose_weak_dtype,
    infer_operand_dtype,
    is_weak,
    make_weak_array,
    recording,
)
from xrt.builder.tensor import Tensor
from xrt.errors import ModelError, did_you_mean
from xrt.graph.attributes import Attribute, AttrKind
from xrt.graph.constants import Constant
from xrt.graph.function import Function
from xrt.graph.node import FreshNames, Node, list_definitions, rename_function, rename_node
from xrt.graph.schemas import DTYPE_ATTRIBUTES, Inference, bind_types, format_domain, infer_output_types, latest_version
from xrt.graph.state import State, declare_states
from xrt.graph.types import DType, MapType, OptionalType, SequenceType, TensorType, Value, may_equal

if TYPE_CHECKING:
    from xrt.builder.record_op import Operand, TracedBodies
    from xrt.graph.schemas import Operator
    from xrt.graph.types import Type


def finalize(builder: Builder) -> Function:
    """Convert a builder to a Function. Call it only once per builder, because it may record Identity nodes for the outputs."""
    computed = {name for node in builder.nodes for name in node.outputs}
    renames: dict[str, str] = {}
    outputs: list[Value] = []
    for tensor, requested_name in builder.outputs:
        name = requested_name if requested_name is not None else renames.get(tensor.name, tensor.name)
        if name != tensor.name and requested_name is not None:
            if not name or name in builder.names:
                raise ModelError(
                    f"an output cannot be named {name!r}, the name of another value of the graph; choose another name"
                )
            builder.names.reserve(name)
        if _can_be_output(builder, tensor, name, computed, renames):
            renames[tensor.name] = name
        else:
            name = _copy_output(builder, tensor, requested_name)
        outputs.append(Value(name, tensor.type))
    # The next value of an updated input is an output too. It is added unless it is an output already.
    aliases: dict[str, str] = {}
    for target, tensor in builder.updates.items():
        name = renames.get(tensor.name, tensor.name)
        is_output = any(value.name == name for value in outputs)
        # A session returns an output and stores the next value of a state, so the two must not share a buffer.
        must_copy = target in builder.states and is_output
        if must_copy or not _can_be_output(builder, tensor, name, computed, renames):
            name = _copy_output(builder, tensor, None)
            is_output = False
        else:
            renames[tensor.name] = name
        aliases[target] = name
        if not is_output:
            outputs.append(Value(name, tensor.type))
    function = _make_function(builder, tuple(outputs), {old: new for old, new in renames.items() if old != new})
    return _declare_updates(builder, function, aliases)


def _declare_updates(builder: Builder, function: Function, aliases: Mapping[str, str]) -> Function:
    """Declare the aliases and states of a Function; raises ModelError for a state that is never updated."""
    for name in builder.states:
        if name not in aliases:
            raise ModelError(f"state {name!r} of graph {builder.name!r} has no next value; call self.update({name}, value)")
    if not aliases:
        return function
    updated = function.replace(aliases=tuple((name, value) for name, value in aliases.items() if name not in builder.states))
    if not builder.states:
        return updated
    return declare_states(updated, (State(name, aliases[name], fill) for name, fill in builder.states.items()))


def _can_be_output(builder: Builder, tensor: Tensor, name: str, computed: set[str], renames: Mapping[str, str]) -> bool:
    """Whether a value can be the output ``name`` without an Identity node.

    ONNX runtimes expect that each output of a body is computed inside the body, and listed only once.
    """
    # The value is an output already: listing it again under the same name needs no copy, except in a body.
    if tensor.name in renames:
        return builder.outer is None and renames[tensor.name] == name
    if tensor.builder is builder and tensor.name in computed:
        return True
    return builder.outer is None and tensor.name == name


def _copy_output(builder: Builder, tensor: Tensor, requested_name: str | None) -> str:
    name = requested_name if requested_name is not None else builder.names.take(f"{tensor.name}_copy")
    builder.record(Node("Identity", (tensor.name,), (name,), name=name), [tensor.type])
    return name


def _make_function(builder: Builder, outputs: tuple[Value, ...], renames: Mapping[str, str]) -> Function:
    """Build the Function of the recorded nodes, with values renamed by ``renames``, and without unused constants."""
    # The graph may have imported another domain after its bodies were traced.
    nodes = tuple(node.map_bodies(lambda body: _align_opsets(body, builder.opsets)) for node in builder.nodes)
    if renames:
        nodes = tuple(rename_node(node, renames, {}) for node in nodes)
    types = {renames.get(name, name): type_ for name, type_ in builder.types.items()}
    output_names = {value.name for value in outputs}
    # Drop constants that no node reads: tracing also records those that only type inference needed.
    used = output_names.union(*(node.uses for node in nodes))
    return Function(
        inputs=tuple(Value(tensor.name, tensor.type) for tensor in builder.inputs),
        outputs=outputs,
        nodes=nodes,
        constants={name: constant for name, constant in builder.constants.items() if name in used},
        opsets=dict(builder.opsets),
        types={name: type_ for name, type_ in types.items() if name not in output_names},
        name=builder.name,
    )


def _align_opsets(body: Function, opsets: Mapping[str, int]) -> Function:
    if body.opsets == opsets:
        return body
    nodes = tuple(node.map_bodies(lambda inner: _align_opsets(inner, opsets)) for node in body.nodes)
    return body.replace(opsets=dict(opsets), nodes=nodes)


def prepare_body(builder: Builder, title: str, function: Function, count: int) -> Function:
    """Prepare a Function to be the body of an operator that passes ``count`` inputs; ``title`` describes it in errors.

    Values that the Function captures must be visible in the graph. Values that it defines are renamed if the graph already uses
    their names.
    """
    if len(function.inputs) != count:
        raise ModelError(f"{title} is function {function.name!r} with {len(function.inputs)} inputs; the operator passes {count}")
    _check_opsets(builder, function)
    visible = {name for outer in builder.lineage() for name in outer.list_values()}
    for name in function.captures:
        if name not in visible:
            raise ModelError(f"{title} reads {name!r}, which neither it nor the graph defines.{did_you_mean(name, visible)}")
    # ONNX forbids that a body defines a name that the graph around it uses.
    new_names = {name: builder.names.take(name) for name in list_definitions(function)}
    changed_names = {old: new for old, new in new_names.items() if old != new}
    return rename_function(function, changed_names, {}).replace(opsets=dict(builder.opsets))


def record_function(
    builder: Builder, function: Function, inputs: Sequence[Tensor], outer: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Record the nodes of a Function with other inputs; return all values of the Function by name.

    The names of the recorded nodes start with the name of the Function. ``outer`` maps the values that the Function captures to
    tensors.
    """
    tensors = {name: outer[name] for name in function.captures}
    tensors.update((name, builder.constant(constant)) for name, constant in function.constants.items())
    tensors.update((value.name, tensor) for value, tensor in zip(function.inputs, inputs, strict=True))
    values = {name: tensor.name for name, tensor in tensors.items()}
    with builder.scope(function.name):
        values.update((name, builder.fresh(name)) for name in list_definitions(function) if name not in values)
        # A node that has the name of its output gets the output's new name.
        nodes = {node.name: values.get(node.name) or builder.fresh(node.name) for node in function.nodes}
    for node in function.nodes:
        types = [function.get_type(name) if name else None for name in node.outputs]
        results = builder.record(builder.add_placement(rename_node(node, values, nodes)), types)
        tensors.update(zip(node.outputs, results, strict=True))
    return tensors


def _check_opsets(builder: Builder, function: Function) -> None:
    for domain, version in function.opsets.items():
        builder.import_domain(domain, version, f"function {function.name!r}")


DEFAULT_OPSET = min(26, latest_version())
"""Default ai.onnx version of a traced graph: the newest that released engines and the installed ``onnx`` support.

From 27 on, common operators (Cast, Range, Mod) have versions for which no released engine has a kernel.
"""
MAX_SHARED_ELEMENTS = 64
"""Equal constants of up to this many elements are shared. Finding equal larger constants would take too long: it hashes them."""


class Builder:
    """Records the operations on its tensors while it is active, and converts them to a Function.

    >>> from xrt.graph import DType, TensorType
    >>> with Builder("double") as b:
    ...     x = b.input("x", TensorType(DType.FLOAT32, ("N",)))
    ...     b.output(x + x, "y")
    >>> b.function().outputs[0].name
    'y'

    ``opsets`` is the ai.onnx version, or a mapping from domains to versions. ``inference`` infers output types; without it,
    only the element types of outputs are known.
    """

    def __init__(
        self,
        name: str = "main",
        *,
        opsets: int | Mapping[str, int] = DEFAULT_OPSET,
        inference: Inference | None = None,
        outer: Builder | None = None,
    ) -> None:
        self.name = name
        versions = {"": opsets} if isinstance(opsets, int) else {"": DEFAULT_OPSET, **opsets}
        # A body shares opsets and names with the graph around it.
        self.opsets: dict[str, int] = outer.opsets if outer else versions
        self.inference = inference
        self.outer = outer
        self.names: FreshNames = outer.names if outer else FreshNames()
        self.scope_names: FreshNames = outer.scope_names if outer else FreshNames()
        self.inputs: list[Tensor] = []
        self.nodes: list[Node] = []
        self.constants: dict[str, Constant] = {}
        self.types: dict[str, Type] = {}
        self.outputs: list[tuple[Tensor, str | None]] = []
        self.updates: dict[str, Tensor] = {}
        self.states: dict[str, float] = {}
        self._hints: dict[int, str] = outer._hints if outer else {}
        self._shared: dict[object, tuple[Tensor, object]] = {}
        self._prefix: str = outer._prefix if outer else ""
        self._device: str = outer._device if outer else ""
        self._function: Function | None = None
        self._tokens: list[Token[Builder | None]] = []

    # ------------------------------------------------------------------ recording

    def __enter__(self) -> Self:
        self._tokens.append(recording.set(self))
        return self

    def __exit__(self, *exception: object) -> None:
        recording.reset(self._tokens.pop())

    def version(self, domain: str) -> int:
        """The opset version of a domain; a new domain is imported at its newest known version."""
        if domain not in self.opsets:
            self.opsets[domain] = latest_version(domain)
        return self.opsets[domain]

    def import_domain(self, domain: str, version: int, user: str = "the operator") -> None:
        """Import a domain for ``user``; raises ModelError if the graph already imports it at another version."""
        if self.opsets.setdefault(domain, version) != version:
            conflict = f"{user} imports {format_domain(domain)} at version {version}, the graph at {self.opsets[domain]}"
            raise ModelError(f"{conflict}; use the same version for both")

    def apply(
        self,
        operator: Operator,
        inputs: Sequence[Operand | None],
        attributes: Mapping[str, Any],
        outputs: int | None = None,
        name: str | None = None,
    ) -> Tensor | tuple[Tensor, ...]:
        """Convert and check the operands, trace the bodies, and record the node; see `xrt.builder.record_op.apply`."""
        operands, attributes = _place_inputs(operator, inputs, attributes)
        if "num_outputs" in operator.attributes and outputs is not None and len(operands) == operator.min_inputs:
            attributes.setdefault("num_outputs", outputs)  # Split without sizes needs the count as an attribute too
        _check_attribute_names(operator, attributes)
        symbols, bound = _convert_operands(self, operator, operands)
        bodies = CONTROL_FLOW[operator.name](self, symbols, attributes) if operator.name in CONTROL_FLOW else None
        traced_functions = bodies.functions if bodies else {}
        node_attributes = _make_attributes(operator, {**attributes, **traced_functions})
        count = _count_outputs(operator, bodies, symbols, attributes, outputs, self)
        # Names of outputs after the first end in a name of the schema, such as ``dropout_1_mask``, or in a number.
        labels = []
        for index in range(count):
            formal = operator.formal_output(index)
            labels.append(str(index + 1) if formal.is_variadic else formal.name.lower())
        node = self.new_node(operator.name, symbols, count, node_attributes, domain=operator.domain, name=name, labels=labels)
        types = bodies.outputs if bodies else _infer_types(self, operator, node, symbols, bound)
        results = self.record(node, types)
        is_single = bodies.is_single if bodies else operator.max_outputs is not None and count == 1
        return results[0] if is_single and outputs is None else results

    def new_node(
        self,
        op_type: str,
        inputs: Sequence[Symbol | None],
        count: int,
        attributes: tuple[Attribute, ...],
        *,
        domain: str = "",
        name: str | None = None,
        labels: Sequence[str] = (),
    ) -> Node:
        """Create a node with ``count`` outputs. ``name`` is for node and output 0, ``labels[i]`` the suffix of output i > 0."""
        first = self._reserve_explicit(name) if name is not None else self.names.take_numbered(self._prefix + op_type.lower())
        outputs = (first, *(self.names.take(f"{first}_{label}") for label in labels[1:count]))
        input_names = tuple("" if symbol is None else symbol.name for symbol in inputs)
        return self.add_placement(Node(op_type, input_names, outputs, attributes, domain, first))

    def add_placement(self, node: Node) -> Node:
        """Return the node with the device of the current scope, unless it has one."""
        return node if node.device or not self._device else replace(node, device=self._device)

    def fresh(self, name: str) -> str:
        """Reserve and return a free name: the prefix of the current scope, ``name``, and a number if needed."""
        return self.names.take(self._prefix + name)

    def _reserve_explicit(self, name: str) -> str:
        full_name = self._prefix + name
        if not name or full_name in self.names:
            problem = "a name is empty" if not name else f"another value of the graph has the name {full_name!r}"
            raise ModelError(f"{problem}; choose another name, or use scope(...) to prefix the names of a part of the graph")
        return self.names.reserve(full_name)

    def record(self, node: Node, types: Sequence[Type | None]) -> tuple[Tensor, ...]:
        """Append a node and return its outputs; raises ModelError if the graph is already finalized."""
        if self._function is not None:
            raise ModelError(f"the graph {self.name!r} is already a Function; no node can be added")
        self.nodes.append(node)
        self.types.update({name: t for name, t in zip(node.outputs, types, strict=True) if t is not None})
        return tuple(Tensor(self, name, t) for name, t in zip(node.outputs, types, strict=True))

    # ------------------------------------------------------------------ values

    def input(self, name: str, type_: Type | None = None) -> Tensor:
        """Add an input with exactly this name; raises ModelError if the name is in use."""
        if name in self.names:
            raise ModelError(f"the graph has a value named {name!r} already; choose another name for the input")
        return self._input(self.names.reserve(name), type_)

    def _input(self, name: str, type_: Type | None) -> Tensor:
        tensor = Tensor(self, name, type_)
        self.inputs.append(tensor)
        return tensor

    def make_inputs(self, bound: inspect.BoundArguments) -> None:
        """Replace types and arrays among the arguments of `build` by inputs; other arguments stay unchanged."""
        for name, argument in bound.arguments.items():
            kind = bound.signature.parameters[name].kind
            # A Function has no lists of inputs: number the inputs from *args, and name the inputs from **kwargs by their keys.
            if kind is inspect.Parameter.VAR_POSITIONAL:
                bound.arguments[name] = tuple(self._make_input(f"{name}_{i}", item) for i, item in enumerate(argument, 1))
            elif kind is inspect.Parameter.VAR_KEYWORD:
                bound.arguments[name] = {key: self._make_input(key, item) for key, item in argument.items()}
            else:
                bound.arguments[name] = self._make_input(name, argument)

    def _make_input(self, name: str, argument: Any) -> Any:
        """Add an input for a type, a Value or an array; return any other argument unchanged."""
        if isinstance(argument, TensorType | SequenceType | OptionalType | MapType):
            return self.input(name, argument)
        if isinstance(argument, Value):
            return self.input(name, argument.type)
        if isinstance(argument, np.ndarray | np.generic | Constant):
            constant = argument if isinstance(argument, Constant) else Constant(argument)
            return self.input(name, constant.type)
        return argument

    def constant(self, value: Any, name: str | None = None) -> Tensor:
        """Create a constant tensor from an array, a Constant or a Python number.

        Writeable arrays are copied; read-only arrays and Constants are shared. Equal small constants become one value.
        """
        if is_weak(value):
            value = make_weak_array(value, choose_natural_dtype(value))
        if not isinstance(value, STRONG) or isinstance(value, Symbol):
            raise ModelError(f"a constant must be an array or a number; got {type(value).__name__} {value!r}")
        # One array object used several times becomes one constant.
        if name is None and id(value) in self._shared:
            shared, _ = self._shared[id(value)]
            return shared
        is_writable = isinstance(value, np.ndarray) and value.flags.writeable
        constant = value if isinstance(value, Constant) else Constant(value.copy() if is_writable else value)
        # Named constants are not shared, so that each keeps its name.
        is_small = name is None and constant.array.size <= MAX_SHARED_ELEMENTS and id(value) not in self._hints
        key: object = constant if is_small else id(value)
        if is_small and key in self._shared:
            shared, _ = self._shared[key]
            return shared
        if name is not None:
            full_name = self._reserve_explicit(name)
        elif (hint := self._hints.get(id(value))) is not None:
            full_name = self.names.take(hint)
        else:
            full_name = self.names.take_numbered(f"{self._prefix}constant")
        self.constants[full_name] = constant
        tensor = Tensor(self, full_name, constant.type)
        if name is None:
            self._shared[key] = (tensor, value)  # keep the value alive, so that its id is not reused
        return tensor

    def register_names(self, graph: object) -> None:
        """Name the arrays among the attributes of a graph, in case they become constants."""
        for name, value in vars(graph).items():
            if isinstance(value, np.ndarray | Constant):
                self._hints.setdefault(id(value), self._prefix + name)

    def symbol(self, item: Any) -> Tensor:
        """Convert an operand to a tensor of this graph or an enclosing one; raises ModelError for a tensor of another graph."""
        if not isinstance(item, Symbol):
            return self.constant(item)
        if not any(item.builder is builder for builder in self.lineage()):
            owner = "a body that has ended, or another graph" if item.builder.names is self.names else "another graph"
            raise ModelError(
                f"value {item.name!r} belongs to {owner} ({item.builder.name!r}) and cannot be used in {self.name!r}"
            )
        return item  # type: ignore[return-value]  # builders create only Tensors

    def find_constant(self, symbol: Symbol) -> Constant | None:
        """Find the Constant of a tensor; None for a computed value or an input."""
        return symbol.builder.constants.get(symbol.name)

    def list_values(self) -> Iterator[str]:
        """Yield the names of the inputs, constants and computed values."""
        yield from (tensor.name for tensor in self.inputs)
        yield from self.constants
        yield from (name for node in self.nodes for name in node.defined_names)

    def lineage(self) -> Iterator[Builder]:
        """Yield this builder, then the enclosing ones, innermost first."""
        builder: Builder | None = self
        while builder is not None:
            yield builder
            builder = builder.outer

    # ------------------------------------------------------------------ outputs and aliases

    def output(self, value: Any, name: str | None = None) -> None:
        """Add an output; ``name`` defaults to the name of the value."""
        self.outputs.append((self.symbol(value), name))

    def update(self, target: Symbol, value: Any) -> Tensor:
        """Store ``value`` in the buffer of an input after each call. The value becomes an output if it is not one already.

        Reads of the input inside the graph still see the value passed by the caller. Raises ModelError unless ``target`` is an
        input of this graph, is updated only once, and has the type of ``value``.
        """
        if self.outer is not None:
            raise ModelError(f"an input can be updated only in the graph itself, not in the body {self.name!r}")
        if all(target is not symbol for symbol in self.inputs):
            names = ", ".join(symbol.name for symbol in self.inputs)
            raise ModelError(f"only an input can be updated; {target!r} is not an input (the inputs are: {names or 'none'})")
        if target.name in self.updates:
            raise ModelError(f"input {target.name!r} is updated twice; a buffer can hold one value after a call")
        new_value = self.symbol(value)
        if new_value.type is not None and target.type is not None and not may_equal(new_value.type, target.type):
            raise ModelError(f"input {target.value} cannot be updated with {new_value.value}; their types differ")
        self.updates[target.name] = new_value
        return new_value

    def state(self, name: str, type_: Type, fill: float = 0) -> Tensor:
        """Add an input that a session stores between calls. Set its next value with `update`; ``fill`` is its initial value.

        Raises ModelError in a body, for a name in use, and for a type that is not a numeric tensor with a shape.
        """
        if self.outer is not None:
            raise ModelError(f"state {name!r} can be declared only in the graph itself, not in the body {self.name!r}")
        if not isinstance(type_, TensorType) or type_.shape is None or type_.dtype is DType.STRING:
            raise ModelError(f"state {name!r} is declared as {type_!r}; it must be a TensorType of numbers with a shape")
        tensor = self.input(name, type_)
        self.states[name] = fill
        return tensor

    def function(self) -> Function:
        """Finalize the graph; nothing can be recorded afterwards. Raises ModelError if the graph is invalid."""
        if self._function is None:
            self._function = finalize(self)
        return self._function

    # ------------------------------------------------------------------ how nodes are recorded

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix the names of recorded nodes with ``name/``."""
        # The prefix is read when the scope is entered, which may be inside another scope.
        with self._set_temporarily(_prefix=f"{self._prefix}{name}/"):
            yield

    def device(self, device: str) -> AbstractContextManager[None]:
        """Place recorded nodes on a device: ``"cpu"``, ``"cuda:1"``."""
        return self._set_temporarily(_device=device)

    @contextmanager
    def _set_temporarily(self, **fields: Any) -> Iterator[None]:
        before = {name: getattr(self, name) for name in fields}
        self.__dict__.update(fields)
        try:
            yield
        finally:
            self.__dict__.update(before)

    # ------------------------------------------------------------------ bodies and sub-functions

    def body(
        self, title: str, body: Callable[..., Any] | Function, inputs: Sequence[tuple[str, Type | None]]
    ) -> tuple[Function, bool]:
        """Trace a callable, or prepare a Function, as a body; also return whether its result is one tensor instead of a tuple.

        ``inputs`` has the default name and the type of each input of the body; ``title`` describes the body in errors.
        """
        if isinstance(body, Function):
            return prepare_body(self, title, body, len(inputs)), len(body.outputs) == 1
        if not callable(body):
            raise ModelError(f"{title} must be a callable or a Function; got {type(body).__name__} {body!r}")
        hints = _name_parameters(title, body, inputs)
        child = Builder(title, inference=self.inference, outer=self)
        with child:
            types = [type_ for _, type_ in inputs]
            parameters = [child._input(self.names.take(hint), type_) for hint, type_ in zip(hints, types, strict=True)]
            result = body(*parameters)
            is_single = not isinstance(result, tuple | list)
            results = [result] if is_single else result
            for value in results:
                child.output(value)
        return child.function(), is_single

    def inline(self, function: Function, *inputs: Any) -> tuple[Tensor, ...]:
        """Record the nodes of a Function on other inputs and return its outputs; names get the Function's name as prefix."""
        if len(inputs) != len(function.inputs):
            names = ", ".join(value.name for value in function.inputs) or "none"
            raise ModelError(f"function {function.name!r} takes {len(function.inputs)} inputs ({names}); got {len(inputs)}")
        if function.aliases or function.captures:
            obstacle = "updates its inputs" if function.aliases else f"reads {function.captures[0]!r} from outside"
            raise ModelError(f"function {function.name!r} {obstacle}, so its nodes cannot be recorded in another graph")
        _check_opsets(self, function)
        values = record_function(self, function, [self.symbol(item) for item in inputs], {})
        return tuple(values[value.name] for value in function.outputs)


def _name_parameters(title: str, body: Callable[..., Any], inputs: Sequence[tuple[str, Type | None]]) -> list[str]:
    """Name the inputs of a body after the parameters of the callable; without a signature, use the names in ``inputs``."""
    defaults = [name for name, _ in inputs]
    try:
        signature = inspect.signature(body)
    except (TypeError, ValueError):
        return defaults
    try:
        bound = signature.bind(*defaults)
    except TypeError as error:
        names = ", ".join(defaults) or "none"
        raise ModelError(f"{title} is called with {len(defaults)} arguments ({names}): {error}") from error
    # Inputs that are passed as *args keep their default names.
    parameters = [k for k in bound.arguments if signature.parameters[k].kind is not inspect.Parameter.VAR_POSITIONAL]
    return [*parameters, *defaults[len(parameters) :]]


# ---------------------------------------------------------------------- operands and attributes of a node


def _place_inputs(
    operator: Operator, inputs: Sequence[Operand | None], attributes: Mapping[str, Any]
) -> tuple[list[Operand | None], dict[str, Any]]:
    """Insert the inputs that are passed by name at their indices; return all inputs and the remaining attributes."""
    operands = list(inputs)
    remaining = dict(attributes)
    for index, formal in enumerate(operator.inputs):
        if formal.name not in remaining:
            continue
        if index < len(operands):
            raise ModelError(f"input {formal.name!r} is passed twice: as input {index + 1} and by name")
        if formal.is_variadic:
            raise ModelError(f"input {formal.name!r} is any number of tensors; pass them by position, not by name")
        operands.extend([None] * (index - len(operands)))
        operands.append(remaining.pop(formal.name))
    # Drop trailing omitted inputs.
    while operands and operands[-1] is None and len(operands) > operator.min_inputs:
        operands.pop()
    return operands, remaining


def _convert_operands(
    builder: Builder, operator: Operator, operands: Sequence[Operand | None]
) -> tuple[list[Symbol | None], dict[str, str]]:
    """Convert the inputs to tensors of the graph; also return the types that are bound to type variables (see `bind_types`)."""
    _check_inputs(operator, operands)
    # Tensors first: they determine the types that Python numbers adopt.
    symbols: list[Symbol | None] = [builder.symbol(item) if isinstance(item, STRONG) else None for item in operands]
    bound = bind_types(operator, [None if symbol is None else symbol.type for symbol in symbols])
    for index, item in enumerate(operands):
        if item is None or symbols[index] is not None:
            continue
        formal = operator.formal_input(index)
        if not is_weak(item):
            raise ModelError(f"input {formal.name!r} is a {type(item).__name__}, {item!r}; it must be a tensor")
        same_type_values = _select_same_type(operator, operands, index)
        symbols[index] = builder.symbol(make_weak_array(item, choose_weak_dtype(formal, bound, same_type_values)))
    return symbols, bind_types(operator, [None if symbol is None else symbol.type for symbol in symbols])


def _select_same_type(operator: Operator, operands: Sequence[Operand | None], index: int) -> list[Operand | None]:
    """Select the weak inputs that share the type variable of input ``index``, including that input."""
    formal = operator.formal_input(index)
    if formal.is_variadic and not formal.is_homogeneous:
        return [operands[index]]
    variables = [operator.formal_input(position).variable for position in range(len(operands))]
    return [item for item, variable in zip(operands, variables, strict=True) if is_weak(item) and variable == formal.variable]


def _check_inputs(operator: Operator, operands: Sequence[Operand | None]) -> None:
    if not operator.allows_inputs(len(operands)):
        names = []
        for formal in operator.inputs:
            variadic_name = f"*{formal.name}" if formal.is_variadic else formal.name
            names.append(f"[{formal.name}]" if formal.is_optional else variadic_name)
        raise ModelError(f"takes {operator.input_count} input(s): {', '.join(names) or 'none'}; got {len(operands)}")
    for index, item in enumerate(operands):
        formal = operator.formal_input(index)
        if item is None and not formal.is_optional:
            raise ModelError(f"input {formal.name!r} is required; got None")


def _check_attribute_names(operator: Operator, attributes: Mapping[str, Any]) -> None:
    for name in attributes:
        if name not in operator.attributes:
            candidates = (*operator.attributes, *(formal.name for formal in operator.inputs))
            names = ", ".join(operator.attributes) or "none"
            raise ModelError(f"has no attribute {name!r}; its attributes are: {names}.{did_you_mean(name, candidates)}")
    missing = sorted(name for name in operator.required if attributes.get(name) is None)
    if missing:
        kind = operator.attributes[missing[0]].kind.name.lower()
        raise ModelError(f"needs the attribute {missing[0]!r} ({kind}); it is missing")


def _make_attributes(operator: Operator, attributes: Mapping[str, Any]) -> tuple[Attribute, ...]:
    """Convert keyword arguments to attributes, sorted by name; None omits an attribute."""
    node_attributes = []
    for name, value in sorted(attributes.items()):
        if value is not None:
            kind = operator.attributes[name].kind
            node_attributes.append(Attribute.create(name, _convert_value(name, value, kind), kind))
    return tuple(node_attributes)


def _convert_value(name: str, value: Any, kind: AttrKind) -> Any:
    """Convert a value for `Attribute.create`: an element type to its number in ONNX, a Python number or list to an array."""
    is_dtype = isinstance(value, DType | np.dtype | type) or (isinstance(value, str) and name in DTYPE_ATTRIBUTES)
    if kind is AttrKind.INT and is_dtype:
        return infer_operand_dtype(value).onnx
    if kind is AttrKind.TENSOR and is_weak(value):
        return make_weak_array(value, choose_natural_dtype(value))
    return value


# ---------------------------------------------------------------------- outputs of a node


def _count_outputs(
    operator: Operator,
    bodies: TracedBodies | None,
    symbols: Sequence[Symbol | None],
    attributes: Mapping[str, Any],
    requested: int | None,
    builder: Builder,
) -> int:
    """Count the outputs of a node: the requested number, or the number that follows from bodies, attributes and inputs."""
    implied = len(bodies.outputs) if bodies else _infer_count(operator, symbols, attributes, builder)
    count: object = implied if requested is None else requested
    if count is None:
        raise ModelError("the number of its outputs does not follow from the arguments; pass outputs=")
    if not isinstance(count, int) or not operator.allows_outputs(count):
        raise ModelError(f"has {operator.output_count} outputs; got outputs={requested!r}")
    if bodies and count != implied:
        raise ModelError(f"got outputs={requested}, but the body has {implied}")
    return count


def _infer_count(
    operator: Operator, symbols: Sequence[Symbol | None], attributes: Mapping[str, Any], builder: Builder
) -> int | None:
    """Count the required outputs, or all outputs if none is required. None for a Split of an unknown number of parts."""
    if operator.max_outputs is not None:
        return sum(not formal.is_optional for formal in operator.outputs) or len(operator.outputs)
    if attributes.get("num_outputs") is not None:
        return int(attributes["num_outputs"])
    if attributes.get("split") is not None:  # Split before version 13
        return len(attributes["split"])
    # From version 13 on, Split reads the sizes from an input.
    sizes = symbols[1] if len(symbols) > 1 else None
    constant = None if sizes is None else builder.find_constant(sizes)
    return None if constant is None else constant.array.size


def _infer_types(
    builder: Builder, operator: Operator, node: Node, symbols: Sequence[Symbol | None], bound: Mapping[str, str]
) -> Sequence[Type | None]:
    """Infer the types of the outputs; an output whose type cannot be inferred gets the type that the schema declares."""
    declared = infer_output_types(operator, node, bound)
    if builder.inference is None:
        return declared
    inputs = [symbol for symbol in symbols if symbol is not None]
    input_types = {symbol.name: symbol.type for symbol in inputs if symbol.type is not None}
    constants = {symbol.name: constant for symbol in inputs if (constant := builder.find_constant(symbol)) is not None}
    try:
        inferred = builder.inference(node, input_types, constants, builder.opsets)
    except ModelError as error:
        shown = ", ".join("None" if s is None else str(s.value) for s in symbols)
        raise ModelError(f"{error} (its inputs are {shown or 'none'})") from error
    pairs = zip(inferred, declared, strict=True)
    return [declared_type if inferred_type is None else inferred_type for inferred_type, declared_type in pairs]
