"""Type and shape inference: onnx's inference for the whole Function, then node by node with known shape contents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from xrt.errors import InputError, ModelError, did_you_mean
from xrt.formats.onnx.inference import InferredTypes, infer_types, node_types
from xrt.graph import (
    Constant,
    Dim,
    DType,
    Function,
    MapType,
    Node,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    Value,
    is_static,
    since_version,
)
from xrt.graph.function import pause_gc
from xrt.graph.schemas import join_types
from xrt.graph.types import LARGEST_EXTENT
from xrt.passes.contents import PROPAGATED, SHAPED, Contents, infer_shape, propagate
from xrt.passes.operator_types import OPERATOR_TYPES, Operands


def map_dims(type_: Type, change: Callable[[Dim], Dim]) -> Type:
    """Apply `change` to each extent of a type; return the type itself if none changes."""
    if isinstance(type_, TensorType):
        if type_.shape is None:
            return type_
        shape = tuple(map(change, type_.shape))
        return type_ if shape == type_.shape else TensorType(type_.dtype, shape)
    if isinstance(type_, MapType):
        return replace(type_, value=map_dims(type_.value, change))
    return replace(type_, element=map_dims(type_.element, change))


def map_types(function: Function, change: Callable[[Type], Type]) -> Function:
    """Apply `change` to the type of each value, in nested bodies too; constants keep their types."""

    def change_value(value: Value) -> Value:
        return value if value.type is None else Value(value.name, change(value.type))

    return function.replace(
        inputs=tuple(map(change_value, function.inputs)),
        outputs=tuple(map(change_value, function.outputs)),
        nodes=tuple(node.map_bodies(lambda body: map_types(body, change)) for node in function.nodes),
        types={name: change(type_) for name, type_ in function.types.items()},
    )


def list_symbols(function: Function) -> Iterator[str]:
    """Yield every symbolic extent, bodies included, once per occurrence."""
    types = [*(v.type for v in (*function.inputs, *function.outputs)), *function.types.values()]
    for type_ in types:
        if type_ is not None:
            yield from _symbols(type_)
    for node in function.nodes:
        for body in node.bodies:
            yield from list_symbols(body)


def _symbols(type_: Type) -> Iterator[str]:
    if isinstance(type_, TensorType):
        yield from (dim for dim in type_.shape or () if isinstance(dim, str))
    elif isinstance(type_, MapType):
        yield from _symbols(type_.value)
    elif isinstance(type_, SequenceType | OptionalType):
        yield from _symbols(type_.element)


def infer_by_onnx(function: Function) -> Function:
    """Add the types that onnx infers; `infer_shapes` documents the precedence of declarations. Linear time."""
    # Symbols outside this set were invented by onnx.
    symbols = frozenset(list_symbols(function))
    inferred = infer_types(_drop_claims(function), symbols)
    if inferred is None:
        return function
    merged = _merge_types(function, inferred)
    if _declares_more(function, inferred):
        # A declaration added types that the operators do not imply: infer again from these.
        again = infer_types(merged, symbols)
        merged = merged if again is None else _merge_types(merged, again)
    return merged


def _drop_claims(function: Function) -> Function:
    """Drop the declared types of values that onnx can infer, so that a wrong declaration does not win."""
    types = {name: type_ for name, type_ in function.types.items() if not _has_schema(name, function)}
    outputs = [Value(v.name) if _has_schema(v.name, function) else _as_defined(v, function) for v in function.outputs]
    return function.with_types(types, outputs, [node.map_bodies(_drop_claims) for node in function.nodes])


def _as_defined(value: Value, function: Function) -> Value:
    """Type an output that is an input or a constant: of two declarations onnx uses the last one."""
    if value.name in function.constants:
        return Value(value.name, function.constants[value.name].type)
    return next((input_ for input_ in function.inputs if input_.name == value.name), value)


def _has_schema(name: str, function: Function) -> bool:
    """Whether the value is produced by an operator with an ONNX schema."""
    node = function.producer(name)
    return node is not None and since_version(node, function) is not None


def _merge_types(function: Function, inferred: InferredTypes) -> Function:
    """Merge the inferred types into the outputs, inner values and bodies."""
    output_names = {value.name for value in function.outputs}
    types = dict(function.types)
    for node in function.nodes:
        for name in node.defines:
            if name not in output_names and (type_ := combine(inferred.types.get(name), types.get(name))) is not None:
                types[name] = type_
    outputs = [_merge_value(value, inferred) for value in function.outputs]
    return function.with_types(types, outputs, [_merge_bodies(node, inferred) for node in function.nodes])


def _merge_value(value: Value, inferred: InferredTypes) -> Value:
    return Value(value.name, combine(inferred.types.get(value.name), value.type))


def _merge_bodies(node: Node, inferred: InferredTypes) -> Node:
    if not node.attributes:
        return node
    bodies = iter(inferred.bodies.get(node.name, ()))
    return node.map_bodies(lambda body: _merge_body(body, next(bodies)))


def _merge_body(body: Function, inferred: InferredTypes) -> Function:
    """Merge a body, inputs included: the enclosing node determines their types."""
    inputs = tuple(_merge_value(value, inferred) for value in body.inputs)
    merged = _merge_types(body, inferred)
    return merged if inputs == body.inputs else merged.replace(inputs=inputs)


def _declares_more(function: Function, inferred: InferredTypes) -> bool:
    """Whether a declared type of an inner value, in bodies too, is more precise than the inferred one."""
    for name, declared in function.types.items():
        type_ = inferred.types.get(name)
        if _has_schema(name, function) and combine(type_, declared) != type_:
            return True
    return any(
        _declares_more(body, inner)
        for node in function.nodes
        if node.bodies
        for body, inner in zip(node.bodies, inferred.bodies[node.name], strict=True)
    )


def combine(inferred: Type | None, declared: Type | None) -> Type | None:
    """Merge two types of one value; on a contradiction `inferred` wins."""
    if inferred is None or inferred == declared:
        return declared  # the same object, because comparing identical objects is fast
    if declared is None:
        return inferred
    if isinstance(inferred, TensorType) and isinstance(declared, TensorType):
        return _combine_tensors(inferred, declared)
    if isinstance(inferred, SequenceType | OptionalType) and type(inferred) is type(declared):
        element = combine(inferred.element, declared.element)
        return inferred if element is None else replace(inferred, element=element)
    return inferred


def _combine_tensors(inferred: TensorType, declared: TensorType) -> TensorType:
    if inferred.dtype is not declared.dtype or declared.shape is None:
        return inferred
    if inferred.shape is None:
        return declared
    if len(inferred.shape) != len(declared.shape):
        return inferred
    pairs = zip(inferred.shape, declared.shape, strict=True)
    return TensorType(inferred.dtype, tuple(new if isinstance(new, int) or old is None else old for new, old in pairs))


_EXACT = frozenset({DType.INT64, DType.INT32, DType.BOOL})
"""Types with exact arithmetic; floats are left to the evaluator."""
_FROM_TYPES = frozenset({"Shape", "Size"})


def propagate_types(function: Function, knowledge: Knowledge) -> Function:
    """Add types that follow from known contents, in bodies too; return `function` itself if none is new. Linear time."""
    nodes = []
    for node in function.nodes:
        knowledge.infer(node)
        if node.bodies:
            node = knowledge.refine_bodies(node)  # noqa: PLW2901  # the same node with more precise types
            node = node.map_bodies(lambda body: propagate_types(body, Knowledge(body, knowledge)))  # noqa: PLW2901
            knowledge.infer_from_bodies(node)
        nodes.append(node)
    return knowledge.add_types(function, nodes)


class Knowledge:
    """Known types, constants and contents of the values of a Function, updated while its nodes are visited in order.

    Values that became known after onnx's inference are news; only nodes that read news are inferred again.
    """

    def __init__(
        self,
        function: Function,
        outer: Knowledge | None = None,
        constants: Mapping[str, Constant] | None = None,
        types: dict[str, Type] | None = None,
    ) -> None:
        """`constants` and `types` are live dicts of a Function being rewritten; `outer` belongs to the enclosing one."""
        self.function = function
        self.outer = outer
        self.constants = function.constants if constants is None else constants
        self.types: dict[str, Type] = {} if types is None else types
        """Types more precise than those in the Function."""
        self._contents: dict[str, Contents] = {}
        self._news: set[str] = set()
        self._opset = function.opsets.get("", 0)
        inputs = [value.type for value in function.inputs if value.type is not None]
        self._symbols: frozenset[str] = outer._symbols if outer is not None else frozenset(d for t in inputs for d in _symbols(t))

    # ------------------------------------------------------------------ types, constants and contents of a value

    def get_type(self, name: str) -> Type | None:
        if (type_ := self.types.get(name)) is not None:
            return type_
        if (constant := self.constants.get(name)) is not None:
            return constant.type
        if self.outer is None or self.function.defines(name):
            return self.function.get_type(name)
        return self.outer.get_type(name)

    def _is_local(self, name: str) -> bool:
        """Whether the value belongs to this Function, not to an enclosing one."""
        return name in self.types or self.function.defines(name)

    def find_constant(self, name: str) -> Constant | None:
        if (constant := self.constants.get(name)) is not None:
            return constant
        return None if self.outer is None or self._is_local(name) else self.outer.find_constant(name)

    def find_contents(self, name: str) -> Contents | None:
        """Known elements of a value, or None."""
        if not name:
            return None
        if (contents := self._contents.get(name)) is not None:
            return contents
        if (constant := self.constants.get(name)) is not None:
            return self._remember(name, Contents.of(constant))
        return None if self.outer is None or self._is_local(name) else self.outer.find_contents(name)

    def _remember(self, name: str, contents: Contents | None) -> Contents | None:
        if contents is not None:
            self._contents[name] = contents
        return contents

    @property
    def has_news(self) -> bool:
        return bool(self._news) or (self.outer is not None and self.outer.has_news)

    def is_news(self, name: str) -> bool:
        return name in self._news or (self.outer is not None and not self._is_local(name) and self.outer.is_news(name))

    def add_news(self, names: Iterable[str]) -> None:
        """Mark values as news, for example folded constants."""
        self._news.update(names)

    # ------------------------------------------------------------------ one node

    def infer(self, node: Node, *, again: bool = False) -> None:
        """Infer the outputs of a node from its inputs; `again` forces it even if no input is news."""
        if node.op == "Constant" and isinstance(value := node.attr("value"), Constant):
            self._remember(node.outputs[0], Contents.of(value))
        elif node.op_type in PROPAGATED and not node.domain:
            self._propagate_contents(node)
        # Otherwise onnx has inferred this node already, from the same facts.
        elif not (again or node.domain or self.has_news or node.op_type in SHAPED):
            return
        # For some operators of ai.onnx.ml onnx infers complete types that are wrong: the rules here correct them.
        if node.domain == "ai.onnx.ml" or not self._is_settled(node):
            for name, type_ in zip(node.outputs, self._infer_outputs(node, again), strict=False):
                self._learn(name, type_)

    def _is_settled(self, node: Node) -> bool:
        """Whether the output types are complete: each extent is a number or a symbol of an input."""
        for name in node.defines:
            type_ = self.get_type(name)
            if not isinstance(type_, TensorType) or type_.shape is None:
                return False
            if not all(type(dim) is int or dim in self._symbols for dim in type_.shape):
                return False
        return True

    def _learn(self, name: str, type_: Type | None) -> None:
        old = self.get_type(name)
        new = combine(type_, old)
        if name and new is not None and new != old:
            self.types[name] = new
            self._news.add(name)

    def _infer_outputs(self, node: Node, again: bool) -> Sequence[Type | None]:
        rule = OPERATOR_TYPES.get(node.domain, {}).get(node.op_type) if node.domain else None
        if rule is not None:
            return rule(Operands(node, [self._input_type(name) for name in node.inputs], self._find_constants(node), self._opset))
        shape = self._infer_shape(node)
        if not again and not any(map(self.is_news, node.uses)):
            types: Sequence[Type | None] = ()
        elif node.bodies:
            return ()
        else:
            # Bodies are left to `refine_bodies` and `infer_from_bodies`.
            types = self._infer_by_onnx(node)
        return types if shape is None else self._with_shape(node, types, shape)

    def _input_type(self, name: str) -> Type | None:
        return self.get_type(name) if name else None

    def _find_constants(self, node: Node) -> dict[str, Constant]:
        pairs = ((name, self.find_constant(name)) for name in node.inputs if name)
        return {name: constant for name, constant in pairs if constant is not None}

    def _infer_by_onnx(self, node: Node) -> Sequence[Type | None]:
        """Run ONNX's inference for this node alone."""
        types = {name: type_ for name in node.inputs if name and (type_ := self.get_type(name)) is not None}
        try:
            return node_types(node, types, self._find_constants(node), self.function.opsets)
        except ModelError:
            return ()  # the inputs contradict each other: `verify_types` and the engine that runs the node will say so

    def _infer_shape(self, node: Node) -> Any:
        """The output shape implied by the partly known contents of inputs."""
        if node.domain or node.op_type not in SHAPED:
            return None
        contents = [self.find_contents(name) for name in node.inputs]
        if all(operand is None for operand in contents):
            return None
        return infer_shape(node, contents, [self._input_type(name) for name in node.inputs])

    def _with_shape(self, node: Node, types: Sequence[Type | None], shape: Any) -> Sequence[Type | None]:
        type_ = (types[0] if types else None) or self.get_type(node.outputs[0])
        if type_ is None and node.op_type != "ConstantOfShape":
            type_ = self.get_type(node.inputs[0])  # the other operators keep the input's element type
        if not isinstance(type_, TensorType):
            return types
        if not types and self.get_type(node.outputs[0]) is None:
            return [TensorType(type_.dtype, shape)]
        return [combine(type_, TensorType(type_.dtype, shape)), *types[1:]]

    def _propagate_contents(self, node: Node) -> None:
        """Propagate the contents of the inputs to the outputs."""
        inputs = [self.find_contents(name) for name in node.inputs]
        if node.op_type not in _FROM_TYPES and not any(operand is not None for operand in inputs):
            return
        outputs = propagate(node, inputs, [self._input_type(name) for name in node.inputs]) or ()
        for name, contents in zip(node.outputs, outputs, strict=False):
            if name and contents is not None:
                self._contents[name] = contents
                if not is_static(self.get_type(name)):
                    self._learn(name, TensorType(contents.dtype, contents.elements.shape))

    # ------------------------------------------------------------------ nodes with bodies

    def refine_bodies(self, node: Node) -> Node:
        """Infer the body of a Loop, Scan or SequenceMap again if an input's type or content became known."""
        if node.op_type not in ("Loop", "Scan", "SequenceMap") or not any(map(self.is_news, node.uses)):
            return node
        inferred = infer_by_onnx(self.alone(node))
        for value in inferred.outputs:
            self._learn(value.name, value.type)
        return inferred.nodes[0]

    def infer_from_bodies(self, node: Node) -> None:
        """Infer the outputs of an If from its branches."""
        if node.op != "If" or self._is_settled(node):
            return
        branches = [(body, Knowledge(body, self)) for body in node.bodies]
        types = [[knowledge.get_type(value.name) for value in body.outputs] for body, knowledge in branches]
        for name, branch_types in zip(node.outputs, zip(*types, strict=False), strict=False):
            self._learn(name, join_types(*branch_types) if None not in branch_types and len(branch_types) == 2 else None)

    def alone(self, node: Node) -> Function:
        """The node as a Function whose inputs are the non-constant values that it reads."""
        names = dict.fromkeys(node.uses)
        constants = {name: constant for name in names if (constant := self.find_constant(name)) is not None}
        return Function(
            inputs=tuple(Value(name, self.get_type(name)) for name in names if name not in constants),
            outputs=tuple(Value(name, self.get_type(name)) for name in dict.fromkeys(node.defines)),
            nodes=(node,),
            constants=constants,
            opsets=self.function.opsets,
            name=node.name,
        )

    # ------------------------------------------------------------------ all of them

    def list_known_integers(self, node: Node) -> dict[str, Constant] | None:
        """The node's outputs as constants if they are integers or booleans and fully known; else None."""
        if node.outputs[0] not in self._contents:
            return None
        integers = {}
        for name in node.defines:
            contents = self._contents.get(name)
            constant = contents.constant() if contents is not None and contents.dtype in _EXACT else None
            if constant is None:
                return None
            integers[name] = constant
        return integers

    def add_types(self, function: Function, nodes: Sequence[Node]) -> Function:
        """The Function with the known types and the given nodes; `function` itself if nothing changes."""
        outputs = [Value(v.name, self.types.get(v.name, v.type)) for v in function.outputs]
        output_names = {value.name for value in function.outputs}
        inner = {name: type_ for name, type_ in self.types.items() if name not in output_names}
        return function.with_types({**function.types, **inner}, outputs, nodes)


def infer_shapes(function: Function) -> Function:
    """Infer the types of all values, in nested bodies too.

    Where inference and declaration differ, a number wins over a symbol and a symbol over an unknown extent; of two symbols the
    declared one stays. If both are numbers, or element types or ranks differ, the inferred type wins, for outputs too, because a
    declaration does not change the result. Types of the main inputs belong to the caller and stay. Symbols that onnx invents
    (``unk__0``) become None.

    Contents of computed shapes are tracked element by element, and com.microsoft and ai.onnx.ml have rules of their operator
    documentation. The Function must satisfy `xrt.graph.verify`. A value that cannot be inferred keeps its declared type. Return
    `function` itself if nothing changes. Weights are not copied. Linear time.
    """
    with pause_gc(function.size):
        inferred = infer_by_onnx(function)
        # Static models without bodies are complete after onnx's inference.
        return inferred if _is_settled(inferred) else propagate_types(inferred, Knowledge(inferred))


def _is_settled(function: Function) -> bool:
    """Whether every value is a tensor of static shape, and no node has a body or types that a rule of ai.onnx.ml may correct."""
    if any(node.bodies or node.domain == "ai.onnx.ml" for node in function.nodes) or not all(is_static(value.type) for value in function.outputs):
        return False
    return all(is_static(function.get_type(name)) for node in function.nodes for name in node.defines)


def specialize(function: Function, shapes: Mapping[str, tuple[int, ...]]) -> Function:
    """Fix the shapes of the named inputs and infer all types again.

    A symbolic extent is replaced wherever it occurs, so other inputs may become static too; unknown extents stay unknown. Raises
    InputError for an unknown or non-tensor input, a shape that contradicts the declared one, and two sizes for one symbol.
    """
    inputs = {value.name: value for value in function.inputs}
    bound: dict[str, int] = {}
    for name, shape in shapes.items():
        if name not in inputs:
            raise InputError(f"function {function.name!r} has no input {name!r}.{did_you_mean(name, inputs)}")
        _bind(inputs[name], shape, bound)
        inputs[name] = _with_shape(inputs[name], shape)
    return infer_shapes(_substitute(function.replace(inputs=tuple(inputs.values())), bound))


def bind_dims(function: Function, sizes: Mapping[str, int]) -> Function:
    """Replace symbolic extents by numbers wherever they occur, and infer all types again.

    Raises InputError for a size that is negative or too large.
    """
    for name, size in sizes.items():
        if not 0 <= size <= LARGEST_EXTENT:
            raise InputError(f"dimension {name!r} cannot be {size}: an extent is at least 0 and at most {LARGEST_EXTENT}")
    return infer_shapes(_substitute(function, sizes))


def _bind(value: Value, shape: tuple[int, ...], bound: dict[str, int]) -> None:
    """Record the sizes that the shape assigns to the input's symbolic extents."""
    type_ = value.type
    if type_ is not None and not isinstance(type_, TensorType):
        raise InputError(f"input {value.name!r} is {type_}, which has no shape; the shape {list(shape)} was given for it")
    if type_ is None or type_.shape is None:
        return
    if len(shape) != len(type_.shape):
        raise InputError(f"input {value.name!r} is {type_}; a shape of rank {len(shape)}, {list(shape)}, was given for it")
    for axis, (dim, size) in enumerate(zip(type_.shape, shape, strict=True)):
        fixed = bound.setdefault(dim, size) if isinstance(dim, str) else dim
        if fixed is not None and fixed != size:
            raise InputError(
                f"input {value.name!r} is {type_}; axis {axis} was given as {size}, but must be {fixed}"
                + (f", as {dim!r} is elsewhere" if isinstance(dim, str) else "")
            )


def _with_shape(value: Value, shape: tuple[int, ...]) -> Value:
    return Value(value.name, value.type.with_shape(shape)) if isinstance(value.type, TensorType) else value


def _substitute(function: Function, bound: Mapping[str, int]) -> Function:
    if not bound:
        return function
    return map_types(function, lambda type_: map_dims(type_, lambda dim: bound.get(dim, dim) if isinstance(dim, str) else dim))
