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
    """Explains why a library does not support a node.

    Checks the operator first, then the types of the node's values, then tables, and last queries the library.
    """

    why_not_type: Callable[[Node, str, Type], str | None]
    """Explains why a value of the node cannot have this type."""
    tables: tuple[Check, ...]
    """Cheap checks by rules and tables, in order."""
    answer: Check
    """Queries the library about the node in isolation. It may be slow for the first node of a kind."""
    operator: tuple[Check, ...]
    """Checks of domain and opset, before any type is read."""
    typed: Literal["all", "inputs", "none"] = "all"
    """The values of the node whose types must be known."""
    outputs: Callable[[Node, Function], Sequence[str]] = list_used_outputs
    """The outputs whose types matter."""
    close_body: Callable[[Function, Function], Function] | None = None
    """Turns captures of a body into inputs, so that its nodes can be checked one by one. None if `answer` checks bodies too."""

    def why_not(self, node: Node, function: Function) -> str | None:
        """Explain why the node is not supported; None if it is."""
        if reason := self.why_not_by_rules(node, function):
            return reason
        # The library is queried about each node of the bodies instead of the node as a whole.
        if node.bodies and self.close_body is not None:
            return why_not_bodies(node, function, self.why_not, self.close_body)
        return self.answer(node, function)

    def why_not_by_rules(self, node: Node, function: Function) -> str | None:
        """Explain why the node is not supported without querying the library; None if the library decides."""
        try:
            checks = (*self.operator, self.why_not_types, *self.tables)
            return next((reason for check in checks if (reason := check(node, function))), None)
        except (IndexError, ValueError) as error:  # a node without inputs or attributes that its operator needs
            return f"{node.op} lacks an input or attribute that its operator needs: {error}"

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
    """Explain why the node is invalid: the opset of the Function does not define the operator. None if it does."""
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
    """Explain which type a library inferred for an output that differs from the declared one, or return None.

    A difference shows that the library ignores an input or an attribute. A string in ``results`` names a type that XRT lacks.
    """
    for actual, expected in zip(results, declared, strict=True):
        if isinstance(expected, TensorType) and (isinstance(actual, str) or not actual.is_compatible(expected)):
            return f"{library} takes the result of this {op} for {actual}, where ONNX says {expected}"
    return None


# ---------------------------------------------------------------------- one node as a query

MAX_CONSTANT_ELEMENTS = 64
"""Constants of at most this many elements are considered axes, shapes or scales, not weights."""


@dataclass(frozen=True, slots=True)
class NodeQuery:
    """All properties of a node that decide whether a library supports it. Hashable, for caches."""

    op_type: str
    version: int
    """The opset of ai.onnx in the query's Function."""
    attributes: tuple[Attribute, ...]
    inputs: tuple[Type | Constant | None, ...]
    """For each input its value, if it is a small constant, or its type; None for an absent input. Captured values follow."""
    outputs: tuple[tuple[Type | None] | None, ...]
    """For each output ``(type,)``, where the type may be None for unknown, or None if the output is not required."""
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
        limit: int = MAX_CONSTANT_ELEMENTS,
        version: int | None = None,
        outputs: Collection[str] | None = None,
    ) -> Self:
        """Make the query for a node. Constants have at most ``limit`` elements; ``outputs`` are required, by default all."""
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
        input_names = tuple(name if name in inputs else "" for name in names[:count])
        outputs = {f"{prefix}o{k}": output[0] for k, output in enumerate(self.outputs) if output is not None}
        output_names = tuple(name if name in outputs else "" for name in (f"{prefix}o{k}" for k in range(len(self.outputs))))
        return Function(
            inputs=tuple(Value(name, value) for name, value in inputs.items() if not isinstance(value, Constant)),
            outputs=tuple(Value(name, type_) for name, type_ in outputs.items()),
            nodes=(Node(self.op_type, input_names, output_names, self.attributes, self.domain[0] if self.domain else ""),),
            constants={name: value for name, value in inputs.items() if isinstance(value, Constant)},
            opsets=dict([("", self.version), *([self.domain] if self.domain else [])]),
        )


def find_small_constant(name: str, function: Function, limit: int = MAX_CONSTANT_ELEMENTS) -> Constant | None:
    """Find the constant value of ``name`` if it is known and has at most ``limit`` elements."""
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
    """Explain why a node with symbolic dims is not supported, or return None.

    It must be in ``operators`` and compute the same at every size.
    """
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


def _get_constant(node: Node, index: int, function: Function) -> Constant | None:
    return find_small_constant(node.inputs[index], function) if index < len(node.inputs) and node.inputs[index] else None


def _are_fixed(*shapes: Shape) -> bool:
    return all(isinstance(dim, int) for shape in shapes for dim in shape)


def _broadcasts(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    """Whether the shapes broadcast at every size: right-aligned dims are 1, or equal as numbers or names."""
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return all(len({dim for dim in dims if dim != 1}) <= 1 for dims in zip(*padded, strict=True))


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


def _keeps_symbolic_dims(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    """Whether the target shape is constant and keeps the order of the symbolic dims."""
    if _get_constant(node, 1, function) is None:
        return False
    result = _find_shape(node.outputs[0], function) or ()
    return [dim for dim in shapes[0] if isinstance(dim, str)] == [dim for dim in result if isinstance(dim, str)]


def _is_fixed_slice(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    """Whether starts, ends and axes are constant and the sliced dims fixed."""
    starts, axes = _get_constant(node, 1, function), _get_constant(node, 3, function)
    if starts is None or any(
        _get_constant(node, index, function) is None for index in range(2, len(node.inputs)) if node.inputs[index]
    ):
        return False
    sliced_axes = range(starts.array.size) if axes is None else axes.array.tolist()
    return all(isinstance(shapes[0][axis], int) for axis in sliced_axes)


_RULES: Mapping[str, Callable[[Node, Function, Sequence[Shape]], bool]] = {
    "Concat": _fits_concat,
    "Gather": lambda node, function, shapes: isinstance(shapes[0][node.attr("axis", 0)], int),
    "Gemm": _fits_gemm,
    "MatMul": _fits_product,
    "Reshape": _keeps_symbolic_dims,
    "Slice": _is_fixed_slice,
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
"""For each operator, a predicate that is True if symbolic dims cannot change the computation."""
EVERY = ELEMENTWISE.union(_RULES)
"""All operators that may be supported with symbolic dims."""


def support_every_size(operators: Collection[str]) -> Check:
    """Return a check that passes a node without symbolic dims, or if `why_not_at_every_size` returns None."""
    return lambda node, function: why_not_at_every_size(node, function, operators) if has_symbolic_dims(node, function) else None
