"""Types and contents, node by node: what is known of the inputs of a node says more of its outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from xrt.errors import ModelError
from xrt.formats.onnx.node_inference import node_types
from xrt.graph import Constant, DType, Function, Node, TensorType, Type, Value
from xrt.graph.type_strings import join_types
from xrt.passes.data_propagation import PROPAGATED, Contents, propagate
from xrt.passes.inference import combine, infer_by_onnx
from xrt.passes.operator_types import OPERATOR_TYPES, Operands
from xrt.passes.shape_rules import SHAPED, shape_from_contents

__all__ = ["Knowledge", "propagate_types"]

_EXACT = frozenset({DType.INT64, DType.INT32, DType.BOOL})
"""Types whose arithmetic leaves no choice; floats are left to the evaluator."""

_FROM_TYPES = frozenset({"Shape", "Size"})


def propagate_types(function: Function, known: Knowledge) -> Function:
    """Return the Function with the types that follow, in bodies too; the function itself where none is new. Linear."""
    nodes = []
    for node in function.nodes:
        known.infer(node)
        if node.bodies:
            node = known.refine_bodies(node)  # noqa: PLW2901  # the same node, better known
            node = node.map_bodies(lambda body: propagate_types(body, Knowledge(body, known)))  # noqa: PLW2901
            known.infer_from_bodies(node)
        nodes.append(node)
    same = all(new is old for new, old in zip(nodes, function.nodes, strict=True))
    return known.add_types(function, None if same else nodes)


def symbols_given(function: Function) -> frozenset[str]:
    """Return the names of extents of the inputs."""
    types = [value.type for value in function.inputs]
    return frozenset(d for type_ in types if isinstance(type_, TensorType) for d in type_.shape or () if isinstance(d, str))


def _is_full(type_: TensorType, symbols: frozenset[str]) -> bool:
    return type_.shape is not None and all(type(dim) is int or dim in symbols for dim in type_.shape)


class Knowledge:
    """What is known of the values of one Function, while its nodes are visited in order.

    What was not known when types were inferred of the whole is news; only what reads news is inferred again.
    """

    def __init__(
        self,
        function: Function,
        outer: Knowledge | None = None,
        constants: Mapping[str, Constant] | None = None,
        types: dict[str, Type] | None = None,
    ) -> None:
        """``constants`` and ``types`` are those that grow while the Function is changed; ``outer`` is of the Function around."""
        self.function = function
        self.outer = outer
        self.constants = function.constants if constants is None else constants
        self.types: dict[str, Type] = {} if types is None else types
        """Of values of which more is known than the Function says."""
        self._contents: dict[str, Contents] = {}
        self._news: set[str] = set()
        self._opset = function.opsets.get("", 0)
        self._symbols: frozenset[str] = symbols_given(function) if outer is None else outer._symbols

    # ------------------------------------------------------------------ what is known of a value

    def get_type(self, name: str) -> Type | None:
        if (type_ := self.types.get(name)) is not None:
            return type_
        if (constant := self.constants.get(name)) is not None:
            return constant.type
        if self.outer is None or self.function.defines(name):
            return self.function.get_type(name)
        return self.outer.get_type(name)

    def find_constant(self, name: str) -> Constant | None:
        if (constant := self.constants.get(name)) is not None:
            return constant
        hidden = self.outer is None or name in self.types or self.function.defines(name)
        return None if hidden or self.outer is None else self.outer.find_constant(name)

    def find_contents(self, name: str) -> Contents | None:
        """Return what is known of the elements of a value; None for nothing."""
        if not name:
            return None
        if (contents := self._contents.get(name)) is not None:
            return contents
        if (constant := self.constants.get(name)) is not None:
            return self._remember(name, Contents.of(constant))
        hidden = self.outer is None or name in self.types or self.function.defines(name)
        return None if hidden or self.outer is None else self.outer.find_contents(name)

    def _remember(self, name: str, contents: Contents | None) -> Contents | None:
        if contents is not None:
            self._contents[name] = contents
        return contents

    @property
    def has_news(self) -> bool:
        return bool(self._news) or (self.outer is not None and self.outer.has_news)

    def is_news(self, name: str) -> bool:
        if name in self._news:
            return True
        hidden = self.outer is None or name in self.types or self.function.defines(name)
        return not hidden and self.outer is not None and self.outer.is_news(name)

    def value(self, name: str) -> Value:
        return Value(name, self.get_type(name))

    def add_news(self, names: Iterable[str]) -> None:
        """Take note of values that are known better now: constants that were computed."""
        self._news.update(names)

    # ------------------------------------------------------------------ one node

    def infer(self, node: Node, *, again: bool = False) -> None:
        """Take note of what the node's inputs say of its outputs; ``again``: whether they are news or not."""
        if node.op == "Constant" and isinstance(value := node.attr("value"), Constant):
            self._remember(node.outputs[0], Contents.of(value))
        elif node.op_type in PROPAGATED and not node.domain:
            self._follow(node)
        elif not (again or node.domain or self.has_news or node.op_type in SHAPED):
            return
        if not self._is_settled(node):
            for name, type_ in zip(node.outputs, self._inferred(node, again), strict=False):
                self._learn(name, type_)

    def _is_settled(self, node: Node) -> bool:
        """Whether no more can be known of the outputs: each extent is a number, or a name that an input gives it."""
        for name in node.outputs:
            type_ = self.get_type(name) if name else None
            if name and (not isinstance(type_, TensorType) or not _is_full(type_, self._symbols)):
                return False
        return True

    def _is_static(self, name: str) -> bool:
        type_ = self.get_type(name)
        return isinstance(type_, TensorType) and type_.is_static

    def _learn(self, name: str, type_: Type | None) -> None:
        old = self.get_type(name)
        new = combine(type_, old)
        if name and new is not None and new != old:
            self.types[name] = new
            self._news.add(name)

    def _inferred(self, node: Node, again: bool) -> Sequence[Type | None]:
        rule = OPERATOR_TYPES.get(node.domain, {}).get(node.op_type) if node.domain else None
        if rule is not None:
            return rule(Operands(node, [self._input_type(name) for name in node.inputs], self._small(node), self._opset))
        shape = self._shape(node)
        if not again and not any(map(self.is_news, node.uses)):
            found: Sequence[Type | None] = ()
        elif node.bodies:
            return ()
        else:
            found = self._asked(node)
        return found if shape is None else self._with_shape(node, found, shape)

    def _input_type(self, name: str) -> Type | None:
        return self.get_type(name) if name else None

    def _small(self, node: Node) -> dict[str, Constant]:
        found = ((name, self.find_constant(name)) for name in node.inputs if name)
        return {name: constant for name, constant in found if constant is not None}

    def _asked(self, node: Node) -> Sequence[Type | None]:
        """Return what onnx says of this node alone."""
        types = {name: type_ for name in node.inputs if name and (type_ := self.get_type(name)) is not None}
        try:
            return node_types(node, types, self._small(node), self.function.opsets)
        except ModelError:
            return ()  # the inputs contradict each other: `verify_types` and the engine that runs the node will say so

    def _shape(self, node: Node) -> Any:
        """Return the shape that follows from partly known contents of inputs."""
        if node.domain or node.op_type not in SHAPED:
            return None
        known = [self.find_contents(name) for name in node.inputs]
        if all(one is None for one in known):
            return None
        return shape_from_contents(node, [self._input_type(name) for name in node.inputs], known)

    def _with_shape(self, node: Node, found: Sequence[Type | None], shape: Any) -> Sequence[Type | None]:
        type_ = (found[0] if found else None) or self.get_type(node.outputs[0])
        if type_ is None and node.op_type != "ConstantOfShape":
            type_ = self.get_type(node.inputs[0])  # all the others give what they are given
        if not isinstance(type_, TensorType):
            return found
        if not found and self.get_type(node.outputs[0]) is None:
            return [TensorType(type_.dtype, shape)]
        return [combine(type_, TensorType(type_.dtype, shape)), *found[1:]]

    def _follow(self, node: Node) -> None:
        """Take note of what the outputs hold."""
        known = [self.find_contents(name) for name in node.inputs]
        if node.op_type not in _FROM_TYPES and not any(one is not None for one in known):
            return
        found = propagate(node, known, [self._input_type(name) for name in node.inputs]) or ()
        for name, contents in zip(node.outputs, found, strict=False):
            if name and contents is not None:
                self._contents[name] = contents
                if not self._is_static(name):
                    self._learn(name, TensorType(contents.dtype, contents.elements.shape))

    # ------------------------------------------------------------------ nodes with bodies

    def refine_bodies(self, node: Node) -> Node:
        """Return a Loop or a Scan whose body has the types that follow from what goes in, where that is news."""
        if node.op_type not in ("Loop", "Scan", "SequenceMap") or not any(map(self.is_news, node.uses)):
            return node
        inferred = infer_by_onnx(self.alone(node))
        for value in inferred.outputs:
            self._learn(value.name, value.type)
        return inferred.nodes[0]

    def infer_from_bodies(self, node: Node) -> None:
        """Take note of what the branches of an If say of its outputs."""
        if node.op != "If" or self._is_settled(node):
            return
        branches = [(body, Knowledge(body, self)) for body in node.bodies]
        types = [[known.get_type(value.name) for value in body.outputs] for body, known in branches]
        for name, found in zip(node.outputs, zip(*types, strict=False), strict=False):
            self._learn(name, join_types(*found) if None not in found and len(found) == 2 else None)

    def alone(self, node: Node) -> Function:
        """Return the node as a Function of its own, whose inputs are all that it reads and that is no constant."""
        names = dict.fromkeys(node.uses)
        constants = {name: constant for name in names if (constant := self.find_constant(name)) is not None}
        return Function(
            inputs=tuple(self.value(name) for name in names if name not in constants),
            outputs=tuple(self.value(name) for name in dict.fromkeys(node.defines)),
            nodes=(node,),
            constants=constants,
            opsets=self.function.opsets,
            name=node.name,
        )

    # ------------------------------------------------------------------ all of them

    def list_known_integers(self, node: Node) -> dict[str, Constant] | None:
        """Return the node's outputs where they are integers or flags all of which are known; None elsewhere."""
        if node.outputs[0] not in self._contents:
            return None
        found = {}
        for name in node.defines:
            contents = self._contents.get(name)
            constant = contents.constant() if contents is not None and contents.dtype in _EXACT else None
            if constant is None:
                return None
            found[name] = constant
        return found

    def add_types(self, function: Function, nodes: Sequence[Node] | None = None) -> Function:
        """Return the Function with what is known of its values, and those nodes; itself where it says all that."""
        if not self.types and nodes is None:
            return function
        outputs = [Value(v.name, self.types.get(v.name, v.type)) for v in function.outputs]
        own = {value.name for value in function.outputs}
        inner = {name: type_ for name, type_ in self.types.items() if name not in own}
        return function.with_types({**function.types, **inner}, outputs, nodes)
