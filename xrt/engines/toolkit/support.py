"""Why an engine does not support a node: one procedure for all engines, by types, tables and the library's own answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Self, TypeAlias

from xrt.graph import Attribute, Constant, Function, Node, Shape, TensorType, Type, Value, since_version
from xrt.operators import Trait, find_value, list_operators
from xrt.passes import infer_shapes

Check: TypeAlias = Callable[[Node, Function], str | None]
"""Explains why a node is not supported; None if this check has no objection."""


def list_used_outputs(node: Node, function: Function) -> list[str]:
    """The outputs of a node that another node reads or that are outputs of the Function."""
    return [name for name in node.outputs if name and (function.users(name) or any(v.name == name for v in function.outputs))]


@dataclass(frozen=True, slots=True)
class LibrarySupport:
    """Explains why a library does not support a node: operator, types of its values, tables, then the library's own answer."""

    why_not_type: Callable[[Node, str, Type], str | None]
    """Explains why a value of the node cannot have this type."""
    tables: tuple[Check, ...]
    """Cheap checks by rules and tables, in order."""
    answer: Check
    """The library's own answer for the node alone. It may be slow for the first node of a kind."""
    operator: tuple[Check, ...]
    """Checks of domain and opset, before any type is read."""
    typed: Literal["all", "inputs", "none"] = "all"
    """The values that must have a type."""
    outputs: Callable[[Node, Function], Sequence[str]] = list_used_outputs
    """The outputs whose types matter."""
    close_body: Callable[[Function, Function], Function] | None = None
    """Makes captures of a body inputs, to check its nodes one by one; None if `answer` decides on the bodies too."""

    def why_not(self, node: Node, function: Function) -> str | None:
        """Explain why the node is not supported; None if it is."""
        if reason := self.why_not_by_rules(node, function):
            return reason
        if node.bodies and self.close_body is not None:
            return why_not_bodies(node, function, self.why_not, self.close_body)
        return self.answer(node, function)

    def why_not_by_rules(self, node: Node, function: Function) -> str | None:
        """Explain why the node is not supported without querying the library; None if the library decides."""
        try:
            checks = (*self.operator, self.why_not_types, *self.tables)
            return next((reason for check in checks if (reason := check(node, function))), None)
        except (IndexError, ValueError) as error:  # a node without inputs or attributes that its operator needs
            return f"{node.op} lacks what its operator needs: {error}"

    def why_not_types(self, node: Node, function: Function) -> str | None:
        """Explain which value of the node has a type that the library does not support; None if there is none."""
        inputs = node.uses
        for name in (*inputs, *self.outputs(node, function)):
            type_ = function.get_type(name)
            if type_ is not None:
                if reason := self.why_not_type(node, name, type_):
                    return reason
            elif self.typed == "all" or (self.typed == "inputs" and name in inputs):
                return f"the type of {name!r} is not known before the run"
        return None


def why_not_defined(node: Node, function: Function) -> str | None:
    """Explain that the opset of the Function does not define the operator; None if it does."""
    if since_version(node, function) is not None:
        return None
    return f"{node.op} is not an operator of opset {function.opsets.get(node.domain)}"


def close_over(body: Function, outer: Function) -> Function:
    """Append the captures of a body to its inputs, with their types in the outer Function."""
    return body.replace(inputs=(*body.inputs, *(Value(name, outer.get_type(name)) for name in body.captures)))


def why_not_bodies(
    node: Node, function: Function, why_not: Check, close: Callable[[Function, Function], Function] = close_over
) -> str | None:
    """Explain which node of the node's bodies is not supported; None if all are."""
    for body in node.bodies:
        closed = close(body, function)
        for inner in closed.nodes:
            if reason := why_not(inner, closed):
                return f"its body {body.name!r} holds node {inner.name!r} ({inner.op}): {reason}"
    return None


def explain_disagreement(
    library: str, op: str, results: Sequence[TensorType | str], declared: Sequence[Type | None]
) -> str | None:
    """Explain that a library infers another type than ONNX for a result; None if the types agree.

    A difference reveals that the library ignores an input or an attribute. A string names an element type that XRT lacks.
    """
    for actual, expected in zip(results, declared, strict=True):
        if isinstance(expected, TensorType) and (isinstance(actual, str) or not actual.is_compatible(expected)):
            return f"{library} takes the result of this {op} for {actual}, where ONNX says {expected}"
    return None


# ---------------------------------------------------------------------- one node as a query

SMALL = 64
"""Constants up to this many elements are axes, shapes or scales, not weights."""


@dataclass(frozen=True, slots=True)
class NodeQuery:
    """Everything about a node on which a library's support depends, as a cache key."""

    op_type: str
    version: int
    """The opset of ai.onnx in the query's Function."""
    attributes: tuple[Attribute, ...]
    inputs: tuple[Type | Constant | None, ...]
    """Per input: a small constant, on which support may depend, else the type; None if absent. Captured values follow."""
    outputs: tuple[tuple[Type | None] | None, ...]
    """The type of each required output in a tuple of one; None for the others."""
    domain: tuple[str, int] | None = None
    """Name and opset of the node's domain if it is not ai.onnx."""
    captures: tuple[str, ...] = ()
    """Names of the values that the node's bodies read."""

    @classmethod
    def of(
        cls,
        node: Node,
        function: Function,
        *,
        limit: int = SMALL,
        version: int | None = None,
        outputs: Collection[str] | None = None,
    ) -> Self:
        """The query for a node: with constants of up to ``limit`` elements and the ``outputs`` that the library must compute."""
        required = node.outputs if outputs is None else outputs
        return cls(
            node.op_type,
            version or function.opsets.get("", 1),
            node.attributes,
            tuple(
                find_small_constant(name, function, limit) or function.get_type(name) if name else None
                for name in (*node.inputs, *node.captures)
            ),
            tuple((function.get_type(name),) if name and name in required else None for name in node.outputs),
            (node.domain, function.opset(node.domain)) if node.domain else None,
            node.captures,
        )

    @property
    def required_types(self) -> tuple[Type | None, ...]:
        """The types of the required outputs."""
        return tuple(output[0] for output in self.outputs if output is not None)

    def to_function(self) -> Function:
        """Build a Function of the node alone, with inputs ..i0, ..i1 and outputs ..o0, ..o1; captured values keep their names."""
        count = len(self.inputs) - len(self.captures)
        prefix = max(self.captures, key=len, default="")  # makes every other name longer than the captured ones
        names = (*(f"{prefix}i{k}" for k in range(count)), *self.captures)
        inputs = {name: value for name, value in zip(names, self.inputs, strict=True) if value is not None}
        read = tuple(name if name in inputs else "" for name in names[:count])
        outputs = {f"{prefix}o{k}": output[0] for k, output in enumerate(self.outputs) if output is not None}
        written = tuple(name if name in outputs else "" for name in (f"{prefix}o{k}" for k in range(len(self.outputs))))
        return Function(
            inputs=tuple(Value(name, value) for name, value in inputs.items() if not isinstance(value, Constant)),
            outputs=tuple(Value(name, type_) for name, type_ in outputs.items()),
            nodes=(Node(self.op_type, read, written, self.attributes, self.domain[0] if self.domain else ""),),
            constants={name: value for name, value in inputs.items() if isinstance(value, Constant)},
            opsets=dict([("", self.version), *([self.domain] if self.domain else [])]),
        )


def find_small_constant(name: str, function: Function, limit: int = SMALL) -> Constant | None:
    """The constant that a value is known to be, if it has at most ``limit`` elements; None for other values."""
    constant = find_value(name, function)
    return constant if constant is not None and constant.array.size <= limit else None


# ---------------------------------------------------------------------- symbolic dims

ELEMENTWISE = list_operators(Trait.ELEMENTWISE)
"""Elementwise operators with broadcasting."""


def has_symbolic_dims(node: Node, function: Function) -> bool:
    """Whether an input or a captured value has a symbolic dim."""
    types = [function.get_type(name) for name in node.uses]
    return any(isinstance(type_, TensorType) and not type_.is_static for type_ in types)


def why_not_at_every_size(node: Node, function: Function, operators: Collection[str]) -> str | None:
    """Explain why a node with symbolic dims is not in ``operators`` or may behave differently at other sizes; None if neither."""
    if node.op not in operators or not (node.op_type in ELEMENTWISE or node.op_type in _RULES):
        return f"{node.op} is not computed with symbolic dims"
    input_shapes = [_find_shape(name, function) for name in node.inputs]
    output_shapes = [_find_shape(name, function) for name in node.outputs if name]
    input_dims = {dim for shape in input_shapes for dim in shape or () if isinstance(dim, str)}
    for shape in (*input_shapes, *output_shapes):
        if shape is None or any(not isinstance(dim, int) and dim not in input_dims for dim in shape):
            return f"an extent of this {node.op} is known only when it is computed"
    # A declared shape that cannot be inferred might be violated at another size.
    if output_shapes != list(_infer_shapes(NodeQuery.of(node, function))):
        return f"the extents that the model declares for this {node.op} do not follow from those of its inputs"
    shapes = [shape or () for shape in input_shapes]
    rule = _RULES.get(node.op_type, _broadcasts)
    try:
        fits = rule(node, function, shapes)
    except (IndexError, ValueError, TypeError):  # a malformed node
        fits = False
    return None if fits else f"symbolic dims decide what this {node.op} computes, or it is not known that they are equal"


@lru_cache(maxsize=4096)
def _infer_shapes(query: NodeQuery) -> tuple[Shape | None, ...]:
    """Infer the output shapes from the inputs only."""
    isolated = query.to_function()
    try:
        inferred = infer_shapes(isolated.replace(outputs=tuple(Value(value.name) for value in isolated.outputs)))
    except ValueError:  # a malformed node
        return ()
    return tuple(_find_shape(value.name, inferred) for value in isolated.outputs)


def _find_shape(name: str, function: Function) -> Shape | None:
    """The shape of a value, () for an absent one; None if the rank is unknown."""
    if not name:
        return ()
    type_ = function.get_type(name)
    return type_.shape if isinstance(type_, TensorType) else None


def _get_constant(node: Node, place: int, function: Function) -> Constant | None:
    return find_small_constant(node.inputs[place], function) if place < len(node.inputs) and node.inputs[place] else None


def _are_fixed(*shapes: Shape) -> bool:
    return all(isinstance(dim, int) for shape in shapes for dim in shape)


def _broadcasts(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    """Whether aligned dims are equal, by number or by name, or 1."""
    rank = max(len(shape) for shape in shapes)
    filled = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return all(len({dim for dim in dims if dim != 1}) <= 1 for dims in zip(*filled, strict=True))


def _fits_product(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    """Whether both operands have equal batch dims or the second is a plain matrix."""
    a, b = shapes[:2]
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        return False
    return a[:-2] == b[:-2] or len(b) == 2


def _fits_gemm(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    (m, inner), (other, n) = (
        shape[::-1] if node.attr(name, 0) else shape for shape, name in zip(shapes, ("transA", "transB"), strict=False)
    )
    return inner == other and (len(shapes) < 3 or _broadcasts(node, function, ((m, n), shapes[2])))


def _fits_concat(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    axis = node.attr("axis", 1)
    axis += len(shapes[0]) * (axis < 0)
    if not all(isinstance(shape[axis], int) for shape in shapes):
        return False
    return len({(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}) == 1


def _reshapes(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    """Whether the target shape is constant and keeps the order of the symbolic dims."""
    if _get_constant(node, 1, function) is None:
        return False
    result = _find_shape(node.outputs[0], function) or ()
    return [dim for dim in shapes[0] if isinstance(dim, str)] == [dim for dim in result if isinstance(dim, str)]


def _slices(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    """Whether starts, ends and axes are constant and the sliced dims fixed."""
    starts, axes = _get_constant(node, 1, function), _get_constant(node, 3, function)
    if starts is None or any(
        _get_constant(node, place, function) is None for place in range(2, len(node.inputs)) if node.inputs[place]
    ):
        return False
    along = range(starts.array.size) if axes is None else axes.array.tolist()
    return all(isinstance(shapes[0][axis], int) for axis in along)


_RULES: Mapping[str, Callable[[Node, Function, Sequence[Shape]], bool]] = {
    "Concat": _fits_concat,
    "Gather": lambda node, function, shapes: isinstance(shapes[0][node.attr("axis", 0)], int),
    "Gemm": _fits_gemm,
    "MatMul": _fits_product,
    "Reshape": _reshapes,
    "Slice": _slices,
    # Only dims before the normalized ones, or only the batch dim, may be symbolic.
    **dict.fromkeys(
        ("LayerNormalization", "RMSNormalization"),
        lambda node, function, shapes: _are_fixed(shapes[0][node.attr("axis", -1) :], *shapes[1:]),
    ),
    **dict.fromkeys(
        ("AveragePool", "BatchNormalization", "Conv", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"),
        lambda node, function, shapes: _are_fixed(shapes[0][1:], *shapes[1:]),
    ),
    # Earlier versions flatten axes.
    **dict.fromkeys(("LogSoftmax", "Softmax"), lambda node, function, shapes: function.opset() >= 13),
    # Where axes or sizes are computed, the inferred shapes are unknown, which is checked before.
    **dict.fromkeys(("Flatten", "Split", "Squeeze", "Transpose", "Unsqueeze"), lambda node, function, shapes: True),
    **{
        f"Reduce{kind}": lambda node, function, shapes: True
        for kind in ("L1", "L2", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
    },
}
"""Per operator: whether symbolic dims cannot change the computation."""
EVERY = ELEMENTWISE.union(_RULES)
"""All operators that may be supported with symbolic dims."""


def support_every_size(operators: Collection[str]) -> Check:
    """A check of nodes with symbolic dims: they need one of these operators and must pass `why_not_at_every_size`."""
    return lambda node, function: why_not_at_every_size(node, function, operators) if has_symbolic_dims(node, function) else None
