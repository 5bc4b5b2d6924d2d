"""Decide whether a library supports a node: by its operator and types, by tables, and by a query of the library."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Self, TypeAlias

from xrt.engines.toolkit.known_issues import has_input
from xrt.graph import Attribute, Constant, Function, Node, Shape, TensorType, Type, Value, may_equal, since_version
from xrt.operators import Trait, find_constant, list_operators
from xrt.passes import infer_shapes

Check: TypeAlias = Callable[[Node, Function], str | None]
"""Explains why a node is not supported; None if this check finds no reason."""


def list_used_outputs(node: Node, function: Function) -> list[str]:
    """List the outputs of a node that another node reads or that are outputs of the Function."""
    output_names = {value.name for value in function.outputs}
    return [name for name in node.outputs if name and (function.users(name) or name in output_names)]


@dataclass(frozen=True, slots=True)
class LibrarySupport:
    """Decides whether a library supports a node: by its operator, the types of its values, tables, and a query, in this order."""

    why_not_type: Callable[[Node, str, Type], str | None]
    """Explains why a value of the node, given by name, cannot have this type."""
    tables: tuple[Check, ...]
    """Fast checks by rules and tables, in order."""
    query: Check
    """Asks the library about the node in isolation, which may be slow."""
    operator: tuple[Check, ...]
    """Checks of the domain and the opset, in order."""
    known_types: Literal["all", "inputs", "none"] = "all"
    """The values of the node whose types must be known."""
    outputs: Callable[[Node, Function], Sequence[str]] = list_used_outputs
    """Lists the outputs whose types are checked."""
    close_body: Callable[[Function, Function], Function] | None = None
    """``f(body, outer)`` makes the captures of a body its inputs, so that its nodes can be checked one by one. None if `query`
    checks bodies."""

    def why_not(self, node: Node, function: Function) -> str | None:
        if reason := self.why_not_by_rules(node, function):
            return reason
        if node.bodies and self.close_body is not None:
            return why_not_bodies(node, function, self.why_not, self.close_body)
        return self.query(node, function)

    def why_not_by_rules(self, node: Node, function: Function) -> str | None:
        """Explain why the node is not supported without a query of the library; None if only a query can decide."""
        try:
            for check in (*self.operator, self.why_not_types, *self.tables):
                if reason := check(node, function):
                    return reason
        except (IndexError, ValueError) as error:  # a malformed node
            return f"{node.op} lacks an input or attribute that its operator needs: {error}"
        return None

    def why_not_types(self, node: Node, function: Function) -> str | None:
        """Explain which value of the node has an unknown or unsupported type; None if there is no such value."""
        inputs = node.uses
        for name in (*inputs, *self.outputs(node, function)):
            type_ = function.get_type(name)
            if type_ is not None:
                if reason := self.why_not_type(node, name, type_):
                    return reason
            elif self.known_types == "all" or (self.known_types == "inputs" and name in inputs):
                return f"the type of {name!r} is not known before the run"
        return None


def why_not_defined(node: Node, function: Function) -> str | None:
    """Explain why the node is invalid if the opset of the Function does not define its operator; None if it does."""
    if since_version(node, function) is not None:
        return None
    return f"{node.op} is not an operator of opset {function.opsets.get(node.domain)}"


def close_over(body: Function, outer: Function) -> Function:
    """Append the values that a body captures from the outer Function to its inputs."""
    captures = [Value(name, outer.get_type(name)) for name in body.captures]
    return body.replace(inputs=(*body.inputs, *captures))


def why_not_bodies(
    node: Node, function: Function, why_not: Check, close: Callable[[Function, Function], Function] = close_over
) -> str | None:
    """Explain which node in a body is not supported; None if all are. ``close(body, function)`` makes captures inputs."""
    for body in node.bodies:
        closed = close(body, function)
        for inner in closed.nodes:
            if reason := why_not(inner, closed):
                return f"its body {body.name!r} holds node {inner.name!r} ({inner.op}): {reason}"
    return None


def explain_disagreement(
    library: str, op: str, results: Sequence[TensorType | str], declared: Sequence[Type | None]
) -> str | None:
    """Explain how the types that a library inferred for the outputs differ from the declared ones; None if they agree.

    A difference shows that the library ignores an input or an attribute. A string in ``results`` is a type that XRT does not
    have.
    """
    for actual, expected in zip(results, declared, strict=True):
        if isinstance(expected, TensorType) and (isinstance(actual, str) or not may_equal(actual, expected)):
            return f"{library} takes the result of this {op} for {actual}, where ONNX says {expected}"
    return None


MAX_CONSTANT_ELEMENTS = 64
"""Constants of at most this many elements may be axes, shapes or scales, which a library must know to support a node."""


@dataclass(frozen=True, slots=True)
class NodeQuery:
    """The properties of a node that decide whether a library supports it. Equal queries have the same result."""

    op_type: str
    version: int
    """The opset of ai.onnx."""
    attributes: tuple[Attribute, ...]
    inputs: tuple[Type | Constant | None, ...]
    """For each input, and then for each captured value, a small constant or the type; None for an absent input."""
    outputs: tuple[tuple[Type | None] | None, ...]
    """For each output ``(type,)``, or None if the output is not required. An unknown type is None."""
    domain: tuple[str, int] | None = None
    """Name and opset of the node's domain; None for ai.onnx."""
    captures: tuple[str, ...] = ()
    """Names of the values that the node's bodies read."""

    @classmethod
    def from_node(
        cls, node: Node, function: Function, *, version: int | None = None, outputs: Collection[str] | None = None
    ) -> Self:
        """Make the query. ``outputs`` are the required outputs, by default all."""
        required = node.outputs if outputs is None else outputs
        inputs = [
            (find_small_constant(name, function) or function.get_type(name)) if name else None
            for name in (*node.inputs, *node.captures)
        ]
        return cls(
            node.op_type,
            version or function.opsets.get("", 1),
            node.attributes,
            tuple(inputs),
            tuple((function.get_type(name),) if name and name in required else None for name in node.outputs),
            (node.domain, function.opset(node.domain)) if node.domain else None,
            node.captures,
        )

    @property
    def required_types(self) -> tuple[Type | None, ...]:
        return tuple(output[0] for output in self.outputs if output is not None)

    def to_function(self) -> Function:
        """Build a Function of the node alone. Its inputs are i0, i1, ..., its outputs o0, o1, ...; captures keep their names."""
        # With this prefix no name can be equal to that of a capture, because it is longer.
        prefix = max(self.captures, key=len, default="")
        num_inputs = len(self.inputs) - len(self.captures)
        input_names = [f"{prefix}i{k}" if self.inputs[k] is not None else "" for k in range(num_inputs)]
        output_names = [f"{prefix}o{k}" if output is not None else "" for k, output in enumerate(self.outputs)]
        names = (*input_names, *self.captures)
        values = {name: value for name, value in zip(names, self.inputs, strict=True) if value is not None}
        domain, opsets = "", {"": self.version}
        if self.domain is not None:
            domain = self.domain[0]
            opsets[domain] = self.domain[1]
        return Function(
            inputs=tuple(Value(name, value) for name, value in values.items() if not isinstance(value, Constant)),
            outputs=tuple(Value(name, output[0]) for name, output in zip(output_names, self.outputs, strict=True) if output),
            nodes=(Node(self.op_type, tuple(input_names), tuple(output_names), self.attributes, domain),),
            constants={name: value for name, value in values.items() if isinstance(value, Constant)},
            opsets=opsets,
        )


def find_small_constant(name: str, function: Function) -> Constant | None:
    """Find the constant of a value, also if constant nodes compute it; None if it exceeds `MAX_CONSTANT_ELEMENTS`."""
    constant = find_constant(name, function)
    return constant if constant is not None and constant.array.size <= MAX_CONSTANT_ELEMENTS else None


ELEMENTWISE = list_operators(Trait.ELEMENTWISE)


def has_symbolic_dims(node: Node, function: Function) -> bool:
    types = [function.get_type(name) for name in node.uses]
    return any(isinstance(type_, TensorType) and not type_.is_static for type_ in types)


def why_not_symbolic(node: Node, function: Function, operators: Collection[str]) -> str | None:
    """Explain why one compiled node cannot be used for all sizes of its symbolic dims; None if it can.

    Only the operators in ``operators`` are supported. The sizes must not change which computation the node performs.
    """
    if node.op not in operators or not (node.op_type in ELEMENTWISE or node.op_type in _RULES):
        return f"{node.op} is not computed with symbolic dims"
    input_shapes = [_find_shape(name, function) for name in node.inputs]
    output_shapes = [_find_shape(name, function) for name in node.outputs if name]
    input_dims = {dim for shape in input_shapes for dim in shape or () if isinstance(dim, str)}
    for shape in (*input_shapes, *output_shapes):
        if shape is None or any(not isinstance(dim, int) and dim not in input_dims for dim in shape):
            return f"an extent of this {node.op} is known only when it is computed"
    # If a declared shape cannot be inferred, it may be wrong for other sizes.
    if output_shapes != list(_infer_shapes(NodeQuery.from_node(node, function))):
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
    """Infer the output shapes from the inputs, without the declared types of outputs."""
    isolated = query.to_function()
    untyped_outputs = tuple(Value(value.name) for value in isolated.outputs)
    try:
        inferred = infer_shapes(isolated.replace(outputs=untyped_outputs))
    except ValueError:  # a malformed node
        return ()
    return tuple(_find_shape(value.name, inferred) for value in isolated.outputs)


def _find_shape(name: str, function: Function) -> Shape | None:
    """Find the shape of a value; () if the value is absent, None if the rank is unknown."""
    if not name:
        return ()
    type_ = function.get_type(name)
    return type_.shape if isinstance(type_, TensorType) else None


def _get_constant(node: Node, index: int, function: Function) -> Constant | None:
    return find_small_constant(node.inputs[index], function) if has_input(node, index) else None


def _are_fixed(*shapes: Shape) -> bool:
    return all(isinstance(dim, int) for shape in shapes for dim in shape)


def _broadcasts(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    """Whether the shapes broadcast for all sizes: along each axis, the dims that are not 1 are equal numbers or equal symbols."""
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    dims_by_axis = [set(dims) - {1} for dims in zip(*padded, strict=True)]
    return all(len(dims) <= 1 for dims in dims_by_axis)


def _fits_product(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    """Whether the operands of a MatMul have equal batch dims, or the second one is a matrix without batch dims."""
    a, b = shapes[:2]
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        return False
    return a[:-2] == b[:-2] or len(b) == 2


def _fits_gemm(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    """Whether the inner dims of A (m, k) and B (k, n) are equal after transposition, and C broadcasts with (m, n)."""
    m, left_k = shapes[0][::-1] if node.attr("transA", 0) else shapes[0]
    right_k, n = shapes[1][::-1] if node.attr("transB", 0) else shapes[1]
    bias_fits = len(shapes) < 3 or _broadcasts(node, function, ((m, n), shapes[2]))
    return left_k == right_k and bias_fits


def _fits_concat(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    """Whether the dims along the axis are not symbolic, and the other dims of all inputs are equal."""
    axis = node.attr("axis", 1) % len(shapes[0])
    dims_of_other_axes = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    return all(isinstance(shape[axis], int) for shape in shapes) and len(dims_of_other_axes) == 1


def _keeps_symbolic_dims(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    """Whether a Reshape has a constant target shape and does not change the order of symbolic dims."""
    if _get_constant(node, 1, function) is None:
        return False
    result = _find_shape(node.outputs[0], function) or ()
    return [dim for dim in shapes[0] if isinstance(dim, str)] == [dim for dim in result if isinstance(dim, str)]


def _is_fixed_slice(node: Node, function: Function, shapes: Sequence[Shape]) -> bool:
    """Whether starts, ends, axes and steps are constant, and the sliced dims are not symbolic."""
    present = [index for index in range(1, len(node.inputs)) if node.inputs[index]]
    starts, axes = _get_constant(node, 1, function), _get_constant(node, 3, function)
    if starts is None or any(_get_constant(node, index, function) is None for index in present):
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
    # The dims of normalized axes must not be symbolic.
    **dict.fromkeys(
        ("LayerNormalization", "RMSNormalization"),
        lambda node, function, shapes: _are_fixed(shapes[0][node.attr("axis", -1) :], *shapes[1:]),
    ),
    # Only the batch dim may be symbolic.
    **dict.fromkeys(
        ("AveragePool", "BatchNormalization", "Conv", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"),
        lambda node, function, shapes: _are_fixed(shapes[0][1:], *shapes[1:]),
    ),
    # Before version 13 they flatten axes.
    **dict.fromkeys(("LogSoftmax", "Softmax"), lambda node, function, shapes: function.opset() >= 13),
    # If axes or sizes are computed, shape inference fails, which is checked before.
    **dict.fromkeys(("Flatten", "Split", "Squeeze", "Transpose", "Unsqueeze"), lambda node, function, shapes: True),
    **{
        f"Reduce{kind}": lambda node, function, shapes: True
        for kind in ("L1", "L2", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
    },
}
"""For each operator, a predicate that is True if symbolic dims do not change which computation a node performs."""
SYMBOLIC_OPERATORS = ELEMENTWISE.union(_RULES)
"""All operators for which `why_not_symbolic` may return None."""


def check_symbolic_dims(operators: Collection[str]) -> Check:
    """Make a check that declines nodes with symbolic dims for which `why_not_symbolic` finds a reason."""
    return lambda node, function: why_not_symbolic(node, function, operators) if has_symbolic_dims(node, function) else None
