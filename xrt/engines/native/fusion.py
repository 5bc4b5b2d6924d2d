"""Fuse chains of elementwise operators into nodes that a native kernel evaluates tile by tile in vector registers.

Each group of connected elementwise nodes of one shape (a chain) becomes one node ``xrt.Elementwise``. Its attributes are a
program for the "elementwise machine" of the native kernel. Each operator still rounds to its type, so results do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from xrt.formats.onnx.writing import read_clip_bounds
from xrt.graph import Attribute, AttrKind, DType, Function, Node, Shape, TensorType
from xrt.passes import infer_shapes

FLOATS = frozenset({DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16})
NARROW = frozenset({DType.FLOAT16, DType.BFLOAT16})
FLOATS_TO_32_BITS = FLOATS - {DType.FLOAT64}
"""The types of transcendental functions, because the machine computes these with the precision of float32."""
INTEGERS = frozenset({DType.INT32, DType.INT64})
NUMBERS = FLOATS | INTEGERS
BOOL = frozenset({DType.BOOL})
CAST_SOURCES = frozenset({DType.UINT8, DType.INT8})
"""Types that are supported only as the input of a Cast."""
FIRST_BROADCASTING_OPSET = 7
"""The first opset in which binary operators broadcast like NumPy's."""


@dataclass(frozen=True, slots=True)
class OpcodeStep:
    """An instruction of the elementwise machine."""

    operator: str
    arguments: tuple[str | int, ...]
    """For each argument the name of a value, or the index of an earlier step of the same node."""
    dtype: DType
    parameters: tuple[float, float] = (0.0, 0.0)


Steps = tuple[OpcodeStep, ...]
MakeSteps = Callable[[Node, Sequence[DType]], Steps | None]
"""``f(node, dtypes)`` makes the steps of a node whose inputs have these types; None if it does not support the types."""


@dataclass(frozen=True, slots=True)
class OpcodeRule:
    """The conversion of an operator to steps, and the types and opsets that it supports."""

    make_steps: MakeSteps
    dtypes: frozenset[DType]
    since: int = 1


def convert_to_opcodes(node: Node, function: Function) -> Steps | None:
    """Convert a node to steps of the elementwise machine; None if the machine does not support it."""
    rule = OPCODE_RULES.get(node.op_type) if not node.domain else None
    if rule is None or function.opset() < rule.since:
        return None
    types = [function.get_type(name) for name in node.inputs if name]
    dtypes = [type_.dtype for type_ in types if isinstance(type_, TensorType)]
    # The dtypes are fewer if a type is unknown or is not that of a tensor.
    if not dtypes or len(dtypes) < len(types) or not rule.dtypes.issuperset(dtypes):
        return None
    return rule.make_steps(node, dtypes)


def _make_step(node: Node, dtypes: Sequence[DType], *, result: DType | None = None) -> Steps | None:
    """Make one step that has the name of the operator. All inputs must have the same type."""
    if len(set(dtypes)) > 1:
        return None
    return (OpcodeStep(node.op_type, node.inputs, result or dtypes[0]),)


def _make_parametric_step(node: Node, dtypes: Sequence[DType], *, defaults: Sequence[tuple[str, float]]) -> Steps:
    """Make one step that has the name of the operator, with its attributes as parameters. ``defaults`` are those of ONNX."""
    # Attributes are stored in float32, so round the defaults to float32 too.
    values = [float(np.float32(node.attr(name, default))) for name, default in defaults]
    second = values[1] if len(values) > 1 else 0.0
    return (OpcodeStep(node.op_type, node.inputs, dtypes[0], (values[0], second)),)


def _make_fold(node: Node, dtypes: Sequence[DType], *, operator: str, mean: bool = False) -> Steps | None:
    """Make steps that combine two or more inputs from left to right. With ``mean``, divide the result by their number."""
    if len(set(dtypes)) > 1 or len(node.inputs) < 2:
        return None
    steps = [OpcodeStep(operator, node.inputs[:2], dtypes[0])]
    for previous_step, name in enumerate(node.inputs[2:]):
        steps.append(OpcodeStep(operator, (previous_step, name), dtypes[0]))
    if mean:
        steps.append(OpcodeStep("DivideBy", (len(steps) - 1,), dtypes[0], (float(len(node.inputs)), 0.0)))
    return tuple(steps)


def _make_where(node: Node, dtypes: Sequence[DType]) -> Steps | None:
    condition, yes, no = dtypes
    if condition is not DType.BOOL or yes is not no:
        return None
    return (OpcodeStep("Where", node.inputs, yes),)


def _make_clip(node: Node, dtypes: Sequence[DType]) -> Steps | None:
    """Before opset 11, the bounds are attributes."""
    if len(set(dtypes)) > 1:
        return None
    if len(node.inputs) == 1 and dtypes[0] in FLOATS:
        return (OpcodeStep("Clip", node.inputs, dtypes[0], read_clip_bounds(node)),)
    steps: list[OpcodeStep] = []
    # Max is first: if the lower bound exceeds the upper one, the result is the upper one.
    for operator, bound in zip(("Max", "Min"), node.inputs[1:], strict=False):
        if bound:
            source = len(steps) - 1 if steps else node.inputs[0]  # the result of Max, or the input
            steps.append(OpcodeStep(operator, (source, bound), dtypes[0]))
    return tuple(steps) or None


def _make_gelu(node: Node, dtypes: Sequence[DType]) -> Steps:
    operator = "GeluTanh" if node.attr("approximate", "none") == "tanh" else "Gelu"
    return (OpcodeStep(operator, node.inputs, dtypes[0]),)


def _make_cast(node: Node, dtypes: Sequence[DType]) -> Steps | None:
    to, source = node.attr("to"), dtypes[0]
    if not isinstance(to, int):
        return None
    target = DType.from_onnx(to)
    if target is DType.BOOL:
        return (OpcodeStep("Truth", node.inputs, target),) if source in NUMBERS else None
    # For a narrow target the machine converts to float32 first, so it would round a wider source twice.
    rounds_twice = target in NARROW and source not in FLOATS_TO_32_BITS | BOOL | CAST_SOURCES
    if target not in NUMBERS or rounds_twice:
        return None
    return (OpcodeStep("Cast", node.inputs, target),)


def _make_is_inf(node: Node, dtypes: Sequence[DType]) -> Steps:
    parameters = (float(node.attr("detect_negative", 1)), float(node.attr("detect_positive", 1)))
    return (OpcodeStep("IsInf", node.inputs, DType.BOOL, parameters),)


ATTRIBUTE_OPS = {
    "HardSigmoid": (FLOATS, (("alpha", 0.2), ("beta", 0.5))),
    "LeakyRelu": (FLOATS, (("alpha", 0.01),)),
    "Shrink": (FLOATS - NARROW, (("bias", 0.0), ("lambd", 0.5))),
    "ThresholdedRelu": (FLOATS, (("alpha", 1.0),)),
    "Celu": (FLOATS_TO_32_BITS, (("alpha", 1.0),)),
    "Elu": (FLOATS_TO_32_BITS, (("alpha", 1.0),)),
    "Selu": (FLOATS_TO_32_BITS, (("alpha", 1.67326319217681884765625), ("gamma", 1.05070102214813232421875))),
    "Swish": (FLOATS_TO_32_BITS, (("alpha", 1.0),)),
}
"""For each operator with numeric attributes, the supported types, and the attributes with their defaults."""


def _make_rules() -> dict[str, OpcodeRule]:
    predicate = partial(_make_step, result=DType.BOOL)
    comparisons = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    algebraic = ("Ceil", "Floor", "HardSwish", "Reciprocal", "Round", "Softsign", "Sqrt")
    transcendental = ("Erf", "Exp", "Log", "Mish", "Sigmoid", "Softplus", "Tanh")
    return {
        **{op: OpcodeRule(_make_step, NUMBERS, FIRST_BROADCASTING_OPSET) for op in ("Add", "Div", "Mul", "PRelu", "Sub")},
        **{op: OpcodeRule(predicate, NUMBERS, FIRST_BROADCASTING_OPSET) for op in comparisons},
        **{op: OpcodeRule(_make_step, BOOL, FIRST_BROADCASTING_OPSET) for op in ("And", "Or", "Xor")},
        **{op: OpcodeRule(_make_step, INTEGERS) for op in ("BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor")},
        **{op: OpcodeRule(_make_step, NUMBERS) for op in ("Abs", "Neg", "Relu", "Sign")},
        **{op: OpcodeRule(_make_step, FLOATS) for op in algebraic},
        **{op: OpcodeRule(_make_step, FLOATS_TO_32_BITS) for op in transcendental},
        **{
            op: OpcodeRule(partial(_make_parametric_step, defaults=defaults), types)
            for op, (types, defaults) in ATTRIBUTE_OPS.items()
        },
        "Cast": OpcodeRule(_make_cast, NUMBERS | BOOL | CAST_SOURCES, 6),
        "Clip": OpcodeRule(_make_clip, NUMBERS, 6),
        "Equal": OpcodeRule(predicate, NUMBERS | BOOL, FIRST_BROADCASTING_OPSET),
        "Gelu": OpcodeRule(_make_gelu, FLOATS_TO_32_BITS),
        "IsInf": OpcodeRule(_make_is_inf, FLOATS),
        "IsNaN": OpcodeRule(predicate, FLOATS),
        "Max": OpcodeRule(partial(_make_fold, operator="Max"), NUMBERS),
        "Mean": OpcodeRule(partial(_make_fold, operator="Add", mean=True), FLOATS),
        "Min": OpcodeRule(partial(_make_fold, operator="Min"), NUMBERS),
        "Not": OpcodeRule(_make_step, BOOL),
        "Pow": OpcodeRule(_make_step, FLOATS_TO_32_BITS, FIRST_BROADCASTING_OPSET),
        "Sum": OpcodeRule(partial(_make_fold, operator="Add"), FLOATS),
        "Where": OpcodeRule(_make_where, NUMBERS | BOOL),
    }


OPCODE_RULES = _make_rules()
DOMAIN, ELEMENTWISE = "xrt", "Elementwise"
MAX_CHAIN_NODES = 128
"""Maximum number of nodes per chain: the values of a longer chain may not fit in the cache."""
MAX_RANK = 16
"""``XRT_MAX_RANK`` of kernel.h."""


def fuse_elementwise(function: Function, is_eligible: Callable[[Node], bool] = lambda node: True) -> Function:
    """Fuse the elementwise nodes of a Function to chains, in linear time. A chain may be a single node.

    A node is not fused if ``is_eligible(node)`` is False, if its types or shapes are unknown, if it has control edges, or if the
    elementwise machine does not support it.
    """
    original = function  # returned if nothing is fused, without the inferred types
    if any(function.get_type(name) is None for node in function.nodes for name in node.defined_names):
        function = infer_shapes(function)
    groups = _group_candidates(function, _find_candidates(function, is_eligible))
    if not groups:
        return original
    chains = [_make_chain(function, group) for group in groups]
    fused = {index for group in groups for index in group}
    other_nodes = [node for index, node in enumerate(function.nodes) if index not in fused]
    # The constructor of Function sorts the nodes.
    return function.replace(nodes=(*other_nodes, *chains), opsets={**function.opsets, DOMAIN: 1})


def _find_candidates(function: Function, is_eligible: Callable[[Node], bool]) -> dict[int, Shape]:
    """Find the nodes that may be fused. Returns their output shapes by node index."""
    control_sources = {name for node in function.nodes for name in node.control}
    shapes_by_node = {}
    for index, node in enumerate(function.nodes):
        # In a chain, a control edge of one node would apply to all of its nodes.
        if node.control or node.name in control_sources or node.device.partition(":")[0] not in ("", "cpu"):
            continue
        shape = _find_iteration_shape(function, node)
        if shape is not None and convert_to_opcodes(node, function) is not None and is_eligible(node):
            shapes_by_node[index] = shape
    return shapes_by_node


def _find_iteration_shape(function: Function, node: Node) -> Shape | None:
    """Find the shape of the node's only output; None if it is unknown, or if an input may not broadcast to it."""
    if len(node.outputs) != 1:
        return None
    shapes = [_get_known_shape(function, name) for name in (*node.outputs, *filter(None, node.inputs))]
    out = shapes[0]
    if out is None or len(out) > MAX_RANK or not all(s is not None and _broadcasts(s, out) for s in shapes):
        return None
    return out


def _get_known_shape(function: Function, name: str) -> Shape | None:
    type_ = function.get_type(name)
    if not isinstance(type_, TensorType) or type_.shape is None or None in type_.shape:
        return None
    return type_.shape


def _broadcasts(shape: Shape, out: Shape) -> bool:
    """Whether a shape broadcasts to the shape ``out`` for all values of symbolic dims."""
    return len(shape) <= len(out) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(out), strict=False))


def _group_candidates(function: Function, shapes: dict[int, Shape]) -> list[list[int]]:
    """Group connected candidates of the same shape. ``shapes`` has the candidates by node index; returns indices by group.

    No path may leave a group and return to it, because the group becomes one node. To ensure this, each node gets a stage. The
    stage never decreases along an edge, and increases along each edge that cannot be fused. The nodes of a group have the same
    stage, so a path that leaves the group reaches a higher stage and cannot return.
    """
    if not shapes:
        return []
    edges = list(_iter_edges(function, shapes))
    stage = [0] * len(function.nodes)
    for edge in edges:
        increase = 0 if edge.can_fuse else 1
        stage[edge.target] = max(stage[edge.target], stage[edge.source] + increase)
    leader = list(range(len(function.nodes)))
    for edge in edges:
        if edge.can_fuse and stage[edge.source] == stage[edge.target]:
            leader[_find_root(leader, edge.target)] = _find_root(leader, edge.source)
    groups: dict[int, list[int]] = {}
    for index in shapes:
        groups.setdefault(_find_root(leader, index), []).append(index)
    parts = []
    for group in groups.values():
        # The nodes of a group are in topological order, so a long group can be split.
        parts += [group[i : i + MAX_CHAIN_NODES] for i in range(0, len(group), MAX_CHAIN_NODES)]
    return parts


@dataclass(frozen=True, slots=True)
class _Edge:
    source: int
    target: int
    can_fuse: bool
    """Whether source and target are candidates of the same shape."""


def _iter_edges(function: Function, shapes: dict[int, Shape]) -> Iterator[_Edge]:
    """Yield the edges between nodes, ordered by their target."""
    index = {node.name: i for i, node in enumerate(function.nodes)}
    for target, node in enumerate(function.nodes):
        for name in dict.fromkeys(node.uses):
            source = function.producer_index(name)
            if source is not None:
                can_fuse = source in shapes and target in shapes and shapes[source] == shapes[target]
                yield _Edge(source, target, can_fuse)
        for name in node.control:
            yield _Edge(index[name], target, False)


def _find_root(leader: list[int], index: int) -> int:
    """Find the representative of a node's group in a union-find forest. ``leader`` has the parent of each node."""
    while leader[index] != index:
        # Path halving: shortens the path for later searches.
        leader[index] = leader[leader[index]]
        index = leader[index]
    return index


def _make_chain(function: Function, group: Sequence[int]) -> Node:
    """Make the node that computes a group of nodes. Its attributes are the steps of the chain (see ``elementwise.cc``)."""
    nodes = [function.nodes[index] for index in group]
    computed = {node.outputs[0] for node in nodes}
    inputs = tuple(dict.fromkeys(name for node in nodes for name in node.inputs if name and name not in computed))
    # Values are identified by index: first the inputs of the chain, then the results of its steps.
    indices = {name: index for index, name in enumerate(inputs)}
    steps: list[OpcodeStep] = []
    arguments: list[int] = []
    for node in nodes:
        first_step = len(inputs) + len(steps)
        # An argument is the name of a value, or the index of an earlier step of this node.
        for step in convert_to_opcodes(node, function) or ():
            arguments += [indices[x] if isinstance(x, str) else first_step + x for x in step.arguments]
            steps.append(step)
        indices[node.outputs[0]] = len(inputs) + len(steps) - 1
    outputs = _list_outputs(function, nodes)
    attributes = (
        Attribute.create("arguments", arguments, AttrKind.INTS),
        Attribute.create("nodes", [node.name for node in nodes], AttrKind.STRINGS),
        Attribute.create("operators", [step.operator for step in steps], AttrKind.STRINGS),
        Attribute.create("parameters", [parameter for step in steps for parameter in step.parameters], AttrKind.FLOATS),
        Attribute.create("results", [indices[name] for name in outputs], AttrKind.INTS),
        Attribute.create("types", [step.dtype.onnx for step in steps], AttrKind.INTS),
    )
    name = nodes[0].name if len(nodes) == 1 else f"{nodes[0].name}..{nodes[-1].name}"
    return Node(ELEMENTWISE, inputs, outputs, attributes, DOMAIN, name)


def _list_outputs(function: Function, nodes: Sequence[Node]) -> tuple[str, ...]:
    """List the values of a chain that are outputs of the Function or inputs of other nodes; if there are none, the last value."""
    chain_names = {node.name for node in nodes}
    output_names = {value.name for value in function.outputs}
    outputs = []
    for node in nodes:
        value = node.outputs[0]
        if value in output_names or any(use.node.name not in chain_names for use in function.users(value)):
            outputs.append(value)
    return tuple(outputs) or nodes[-1].outputs
