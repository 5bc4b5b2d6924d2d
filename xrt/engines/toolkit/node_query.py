"""Query a library's support for a node: cache key, test Function, rules for symbolic dims. Also compiles bodies of nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self, TypeAlias

from xrt.errors import CompileRefused
from xrt.graph import Attribute, Constant, Dim, DType, Function, Node, Shape, TensorType, Type, Value
from xrt.operators import Trait, find_value, list_operators
from xrt.passes import infer_shapes

FindConstant: TypeAlias = Callable[[str, Function], Constant | None]
"""Looks up a constant on which support may depend; None for other values and for large constants."""


@dataclass(frozen=True, slots=True)
class NodeQuery:
    """Everything about a node on which a library's support depends, as a cache key."""

    op_type: str
    version: int
    """The opset of ai.onnx in the query's Function."""
    attributes: tuple[Attribute, ...]
    inputs: tuple[Type | Constant | None, ...]
    """A constant on which support may depend, else the type; None for an absent input."""
    outputs: tuple[tuple[Type | None] | None, ...]
    """The type of each required output in a tuple of one; None for the others."""
    domain: tuple[str, int] | None = None
    """Name and opset of the node's domain if it is not ai.onnx."""

    @classmethod
    def of(cls, node: Node, function: Function, version: int, find_constant: FindConstant, asked: Collection[str]) -> Self:
        """The query for a node without bodies; ``asked`` names the outputs that the library must compute."""
        inputs = tuple(_find_input(name, function, find_constant) if name else None for name in node.inputs)
        outputs = tuple((function.get_type(name),) if name in asked else None for name in node.outputs)
        domain = (node.domain, function.opset(node.domain)) if node.domain else None
        return cls(node.op_type, version, node.attributes, inputs, outputs, domain)

    @property
    def asked(self) -> tuple[Type | None, ...]:
        """The types of the required outputs."""
        return tuple(output[0] for output in self.outputs if output is not None)

    def to_function(self) -> Function:
        """Build a Function of the node alone: inputs i0, i1, ... and outputs o0, o1, ... by position."""
        inputs = {f"i{k}": given for k, given in enumerate(self.inputs) if given is not None}
        outputs = {f"o{k}": output[0] for k, output in enumerate(self.outputs) if output is not None}
        read, written = (
            tuple(f"{letter}{k}" if f"{letter}{k}" in names else "" for k in range(count))
            for letter, names, count in (("i", inputs, len(self.inputs)), ("o", outputs, len(self.outputs)))
        )
        return Function(
            inputs=tuple(Value(name, given) for name, given in inputs.items() if not isinstance(given, Constant)),
            outputs=tuple(Value(name, type_) for name, type_ in outputs.items()),
            nodes=(Node(self.op_type, read, written, self.attributes, self.domain[0] if self.domain else ""),),
            constants={name: given for name, given in inputs.items() if isinstance(given, Constant)},
            opsets=dict([("", self.version), *([self.domain] if self.domain else [])]),
        )


def _find_input(name: str, function: Function, find_constant: FindConstant) -> Type | Constant | None:
    constant = find_constant(name, function)
    return function.get_type(name) if constant is None else constant


def find_small_constant(name: str, function: Function) -> Constant | None:
    """A constant of the Function that may be axes or a shape; None for other values."""
    constant = function.constants.get(name)
    return constant if constant is not None and constant.array.size <= SMALL else None


SMALL = 64
"""Constants up to this many elements are axes, shapes or scales, not weights."""
ELEMENTWISE = list_operators(Trait.ELEMENTWISE)
"""Elementwise operators with broadcasting."""


def has_symbolic_dims(node: Node, function: Function) -> bool:
    """Whether an input or a captured value has a symbolic dim."""
    types = [function.get_type(name) for name in node.uses]
    return any(isinstance(type_, TensorType) and not type_.is_static for type_ in types)


def why_not_at_every_size(node: Node, function: Function, taken: Collection[str]) -> str | None:
    """Explain why a node with symbolic dims is not in ``taken`` or may behave differently at other sizes; None if neither."""
    if node.op not in taken or not (node.op_type in ELEMENTWISE or node.op_type in _RULES):
        return f"{node.op} is not computed with symbolic dims"
    given = [_shape(name, function) for name in node.inputs]
    made = [_shape(name, function) for name in node.outputs if name]
    known = {dim for shape in given for dim in shape or () if isinstance(dim, str)}
    for shape in (*given, *made):
        if shape is None or any(not isinstance(dim, int) and dim not in known for dim in shape):
            return f"an extent of this {node.op} is known only when it is computed"
    # A declared shape that cannot be inferred might be violated at another size.
    if made != list(_infer(NodeQuery.of(node, function, function.opset(), _find_small, [name for name in node.outputs if name]))):
        return f"the extents that the model declares for this {node.op} do not follow from those of its inputs"
    shapes = [shape or () for shape in given]
    rule = _RULES.get(node.op_type, _broadcasts)
    try:
        fits = rule(node, function, shapes)
    except (IndexError, ValueError, TypeError):  # a malformed node
        fits = False
    return None if fits else f"symbolic dims decide what this {node.op} computes, or it is not known that they are equal"


@lru_cache(maxsize=4096)
def _infer(query: NodeQuery) -> tuple[Shape | None, ...]:
    """Infer the output shapes from the inputs only."""
    alone = query.to_function()
    try:
        found = infer_shapes(alone.replace(outputs=tuple(Value(value.name) for value in alone.outputs)))
    except ValueError:  # a malformed node
        return ()
    return tuple(_shape(value.name, found) for value in alone.outputs)


def _find_small(name: str, function: Function) -> Constant | None:
    """A constant that may be axes or a shape; None for other values."""
    constant = find_value(name, function)
    return constant if constant is not None and constant.array.size <= SMALL else None


def _shape(name: str, function: Function) -> Shape | None:
    """The shape of a value, () for an absent one; None if the rank is unknown."""
    if not name:
        return ()
    type_ = function.get_type(name)
    return type_.shape if isinstance(type_, TensorType) else None


def _constant(node: Node, place: int, function: Function) -> Constant | None:
    return _find_small(node.inputs[place], function) if place < len(node.inputs) and node.inputs[place] else None


def _broadcasts(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    """Whether aligned dims are equal, by number or by name, or 1."""
    rank = max(len(shape) for shape in shapes)
    filled = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return all(len({dim for dim in dims if dim != 1}) <= 1 for dims in zip(*filled, strict=True))


def _alone(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    """Whether all inputs but the first have fixed shapes."""
    return all(isinstance(dim, int) for shape in shapes[1:] for dim in shape)


def _products(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    """Whether both operands have equal batch dims or the second is a plain matrix."""
    a, b = shapes[:2]
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        return False
    return a[:-2] == b[:-2] or len(b) == 2


def _gemm(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    (m, inner), (other, n) = (
        _turned(shape, node.attr(name, 0)) for shape, name in zip(shapes, ("transA", "transB"), strict=False)
    )
    return inner == other and (len(shapes) < 3 or _broadcasts(node, function, ((m, n), shapes[2])))


def _turned(shape: Shape, turn: int) -> tuple[Dim, Dim]:
    rows, columns = shape
    return (columns, rows) if turn else (rows, columns)


def _concat(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    axis = node.attr("axis", 1)
    axis += len(shapes[0]) * (axis < 0)
    if not all(isinstance(shape[axis], int) for shape in shapes):
        return False
    return len({(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}) == 1


def _reduces(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    """Whether the axes are constant."""
    return len(node.inputs) < 2 or not node.inputs[1] or _constant(node, 1, function) is not None


def _reshapes(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    """Whether the target shape is constant and keeps the order of the symbolic dims."""
    if _constant(node, 1, function) is None:
        return False
    result = _shape(node.outputs[0], function) or ()
    return [dim for dim in shapes[0] if isinstance(dim, str)] == [dim for dim in result if isinstance(dim, str)]


def _normalizes_last(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    axis = node.attr("axis", -1)
    return _alone(node, function, shapes) and all(isinstance(dim, int) for dim in shapes[0][axis:])


def _slices(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    """Whether starts, ends and axes are constant and the sliced dims fixed."""
    starts, axes = _constant(node, 1, function), _constant(node, 3, function)
    if starts is None or any(
        _constant(node, place, function) is None for place in range(2, len(node.inputs)) if node.inputs[place]
    ):
        return False
    along = range(starts.array.size) if axes is None else axes.array.tolist()
    return all(isinstance(shapes[0][axis], int) for axis in along)


def _splits(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    is_known = len(node.inputs) < 2 or not node.inputs[1] or _constant(node, 1, function) is not None
    return is_known and isinstance(shapes[0][node.attr("axis", 0)], int)


def _of_batches(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    """Whether only the batch dim is symbolic."""
    return _alone(node, function, shapes) and all(isinstance(dim, int) for dim in shapes[0][1:])


def _along_one_axis(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    return function.opset() >= 13  # earlier versions flatten axes


def _always(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    return True


_RULES: Mapping[str, Callable[[Node, Function, Sequence[Shape]], bool]] = {
    "Concat": _concat,
    "Flatten": _always,
    "Gather": lambda node, function, shapes: isinstance(shapes[0][node.attr("axis", 0)], int),
    "Gemm": _gemm,
    "LayerNormalization": _normalizes_last,
    "RMSNormalization": _normalizes_last,
    "MatMul": _products,
    "Reshape": _reshapes,
    "Slice": _slices,
    "Split": _splits,
    "Transpose": _always,
    **dict.fromkeys(("LogSoftmax", "Softmax"), _along_one_axis),
    **dict.fromkeys(("Squeeze", "Unsqueeze"), _reduces),
    **{f"Reduce{kind}": _reduces for kind in ("L1", "L2", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")},
    **dict.fromkeys(("AveragePool", "BatchNormalization", "Conv", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"), _of_batches),
}
"""Per operator: whether symbolic dims cannot change the computation."""
EVERY = ELEMENTWISE.union(_RULES)
"""All operators that may be supported with symbolic dims."""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node and its Function, passed to the factory of its kernel."""

    node: Node
    function: Function

    @property
    def version(self) -> int:
        """The opset version of the node's domain."""
        return self.function.opset(self.node.domain)

    @property
    def n_outputs(self) -> int:
        """The number of outputs, absent ones before a present one included."""
        return len(self.node.outputs)

    def attr(self, name: str, default: Any = None) -> Any:
        return self.node.attr(name, default)

    def input_dtype(self, index: int) -> DType | None:
        """The element type of the input at this position; None if the input is absent or its type unknown."""
        name = self.node.inputs[index] if index < len(self.node.inputs) else ""
        type_ = self.function.get_type(name) if name else None
        return type_.dtype if isinstance(type_, TensorType) else None

    def wants(self, index: int) -> bool:
        """Whether the output at this position is present."""
        return index < len(self.node.outputs) and bool(self.node.outputs[index])

    def refuse(self, why: str) -> CompileRefused:
        """The error to raise if the node cannot be computed."""
        return CompileRefused(f"{self.node.op} {why}")


@dataclass(frozen=True, slots=True)
class CompiledBody:
    """A compiled body: a branch of an If, the body of a Loop or a Scan."""

    function: Function
    """The closed body: its inputs, followed by its captures."""
    compute: Callable[[Sequence[Any]], list[Any]]
    picks: tuple[int, ...]
    """Indices of the node's captures that the body reads, in the order of the body."""

    def __call__(self, inputs: Sequence[Any], captured: Sequence[Any]) -> list[Any]:
        """Compute the body's outputs from its inputs and all captures of the node."""
        return self.compute([*inputs, *(captured[i] for i in self.picks)])

    def find_unstacked_type(self, output: int, inputs: Sequence[Any], captured: Sequence[Any]) -> tuple[DType, list[int]]:
        """Element type and shape of an output if the loop has no iterations.

        Named dims get their sizes from ``inputs`` (None if absent) and captures; a dim that no input has is 0. Raises ValueError
        if the body does not declare a tensor type.
        """
        declared = self.function.outputs[output].type
        if not isinstance(declared, TensorType):
            raise ValueError(f"output {output} of body {self.function.name!r} was never computed, and its type is not declared")
        # Named dims of inputs bind the named dims of outputs.
        sizes: dict[str, int] = {}
        for value, given in zip(self.function.inputs, [*inputs, *(captured[i] for i in self.picks)], strict=True):
            if isinstance(value.type, TensorType) and hasattr(given, "shape"):
                pairs = zip(value.type.shape or (), given.shape, strict=False)
                sizes.update((dim, size) for dim, size in pairs if isinstance(dim, str))
        extents = [
            dim if isinstance(dim, int) else sizes.get(dim, 0) if isinstance(dim, str) else 0 for dim in declared.shape or ()
        ]
        return declared.dtype, extents

    @classmethod
    def compile(
        cls, context: NodeInfo, attribute: str, compiler: Callable[[Function], Callable[[Sequence[Any]], list[Any]]]
    ) -> CompiledBody:
        """Compile the body in an attribute of a node with a compiler of closed Functions."""
        function = context.node.attr(attribute)
        captures = context.node.captures
        # A node with two bodies captures the union of both; each body reads a part of it.
        picks = tuple(captures.index(name) for name in function.captures)
        closed = close_over(function, context.function)
        return cls(closed, compiler(closed), picks)


def close_over(body: Function, outer: Function) -> Function:
    """Append the captures of a body to its inputs, with their types in the outer Function."""
    return body.replace(inputs=(*body.inputs, *(Value(name, outer.get_type(name)) for name in body.captures)))


def list_last_uses(function: Function) -> list[list[str]]:
    """Per node, the values that are dead after it: read for the last time or never read. Linear time."""
    # Outputs and constants never die.
    kept = {value.name for value in function.outputs} | set(function.constants)
    seen = set(kept)
    dying: list[list[str]] = []
    for node in reversed(function.nodes):
        names = dict.fromkeys((*node.uses, *node.defines))
        dying.append([name for name in names if name not in seen])
        seen.update(names)
    return dying[::-1]
