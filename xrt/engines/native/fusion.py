"""Fuse chains of elementwise operators into nodes that a native kernel evaluates tile by tile in vector registers.

Each group of connected elementwise nodes of one shape becomes one node ``xrt.Elementwise``, a program for the kernel's small
"elementwise machine". No path leaves a group and returns to it. Each operator still rounds to its type, so results do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from xrt.formats.onnx.writing import read_clip_bounds
from xrt.graph import Attribute, AttrKind, DType, Function, Node, Shape, TensorType
from xrt.passes import infer_shapes

FLOATS = frozenset({DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16})
NARROW = frozenset({DType.FLOAT16, DType.BFLOAT16})
FLOATS_TO_32_BITS = FLOATS - {DType.FLOAT64}
"""Types for which transcendental functions are fused. The machine's polynomials have only the precision of float32."""
INTEGERS = frozenset({DType.INT32, DType.INT64})
NUMBERS = FLOATS | INTEGERS
BOOL = frozenset({DType.BOOL})
CAST_SOURCES = frozenset({DType.UINT8, DType.INT8})
"""Types that are supported only as the input of a Cast."""
FIRST_BROADCASTING_OPSET = 7
"""The first opset in which binary operators broadcast as NumPy does."""


@dataclass(frozen=True, slots=True)
class OpcodeStep:
    """An instruction of the elementwise machine."""

    operator: str
    arguments: tuple[str | int, ...]
    """Each a name of a value, or an index of an earlier step of the same node."""
    dtype: DType
    """Type of the result."""
    parameters: tuple[float, float] = (0.0, 0.0)


Steps = tuple[OpcodeStep, ...]
Write = Callable[[Node, Sequence[DType]], Steps | None]
"""``f(node, dtypes)`` writes the steps of a node from the types of its inputs. None if it does not support these."""


@dataclass(frozen=True, slots=True)
class OpcodeRule:
    """How an operator is converted to steps, and for which types and opsets."""

    write: Write
    dtypes: frozenset[DType]
    """Types that inputs may have."""
    since: int = 1
    """The first opset that is supported."""


def lower_to_opcodes(node: Node, function: Function) -> Steps | None:
    """Convert a node to steps of the elementwise machine; None if the machine does not support it."""
    rule = OPCODE_RULES.get(node.op_type) if not node.domain else None
    if rule is None or function.opset() < rule.since:
        return None
    types = [function.get_type(name) for name in node.inputs if name]
    dtypes = [type_.dtype for type_ in types if isinstance(type_, TensorType)]
    if not dtypes or len(dtypes) < len(types) or not rule.dtypes.issuperset(dtypes):
        return None
    return rule.write(node, dtypes)


def _write_step(node: Node, dtypes: Sequence[DType], *, result: DType | None = None) -> Steps | None:
    """Write one step with the name of the operator."""
    # All operands of a step must have the same type.
    if len(set(dtypes)) > 1:
        return None
    return (OpcodeStep(node.op_type, node.inputs, result or dtypes[0]),)


def _write_parameters(node: Node, dtypes: Sequence[DType], *, defaults: Sequence[tuple[str, float]]) -> Steps:
    """Write one step with the name of the operator, and its attributes as parameters. ``defaults`` are those of ONNX."""
    # ONNX stores attributes in float32, so round the defaults too.
    values = [float(np.float32(node.attr(name, default))) for name, default in defaults]
    return (OpcodeStep(node.op_type, node.inputs, dtypes[0], (values[0], values[1] if len(values) > 1 else 0.0)),)


def _write_fold(node: Node, dtypes: Sequence[DType], *, operator: str, mean: bool = False) -> Steps | None:
    """Write steps that combine any number of inputs from left to right, and with ``mean`` divide by their number."""
    if len(set(dtypes)) > 1 or len(node.inputs) < 2:
        return None
    steps = [OpcodeStep(operator, node.inputs[:2], dtypes[0])]
    steps += [OpcodeStep(operator, (i, name), dtypes[0]) for i, name in enumerate(node.inputs[2:])]
    if mean:
        # Divide in the narrow type itself, which represents the count exactly.
        steps.append(OpcodeStep("DivideBy", (len(steps) - 1,), dtypes[0], (float(len(node.inputs)), 0.0)))
    return tuple(steps)


def _where(node: Node, dtypes: Sequence[DType]) -> Steps | None:
    condition, yes, no = dtypes
    if condition is not DType.BOOL or yes is not no:
        return None
    return (OpcodeStep("Where", node.inputs, yes),)


def _clip(node: Node, dtypes: Sequence[DType]) -> Steps | None:
    """Bounds are inputs since opset 11, attributes before. If they cross, the result is the upper bound: Max comes first."""
    if len(set(dtypes)) > 1:
        return None
    if len(node.inputs) == 1 and dtypes[0] in FLOATS:
        return (OpcodeStep("Clip", node.inputs, dtypes[0], read_clip_bounds(node)),)
    steps: list[OpcodeStep] = []
    for operator, bound in zip(("Max", "Min"), node.inputs[1:], strict=False):
        if bound:
            steps.append(OpcodeStep(operator, (len(steps) - 1 if steps else node.inputs[0], bound), dtypes[0]))
    return tuple(steps) or None


def _gelu(node: Node, dtypes: Sequence[DType]) -> Steps:
    operator = "GeluTanh" if node.attr("approximate", "none") == "tanh" else "Gelu"
    return (OpcodeStep(operator, node.inputs, dtypes[0]),)


def _cast(node: Node, dtypes: Sequence[DType]) -> Steps | None:
    to, source = node.attr("to"), dtypes[0]
    if not isinstance(to, int):
        return None
    target = DType.from_onnx(to)
    if target is DType.BOOL:
        return (OpcodeStep("Truth", node.inputs, target),) if source in NUMBERS else None
    if target not in NUMBERS or (target in NARROW and source not in FLOATS_TO_32_BITS | BOOL | CAST_SOURCES):
        return None  # the machine would convert to float32 first, and so round a wider type twice
    return (OpcodeStep("Cast", node.inputs, target),)


def _is_inf(node: Node, dtypes: Sequence[DType]) -> Steps:
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
"""By operator with numeric attributes: the supported types, and the attributes with their defaults."""


def _make_rules() -> dict[str, OpcodeRule]:
    predicate = partial(_write_step, result=DType.BOOL)
    comparisons = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    exact = ("Ceil", "Floor", "HardSwish", "Reciprocal", "Round", "Softsign", "Sqrt")
    curves = ("Erf", "Exp", "Log", "Mish", "Sigmoid", "Softplus", "Tanh")
    return {
        **{op: OpcodeRule(_write_step, NUMBERS, FIRST_BROADCASTING_OPSET) for op in ("Add", "Div", "Mul", "PRelu", "Sub")},
        **{op: OpcodeRule(predicate, NUMBERS, FIRST_BROADCASTING_OPSET) for op in comparisons},
        **{op: OpcodeRule(_write_step, BOOL, FIRST_BROADCASTING_OPSET) for op in ("And", "Or", "Xor")},
        **{op: OpcodeRule(_write_step, INTEGERS) for op in ("BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor")},
        **{op: OpcodeRule(_write_step, NUMBERS) for op in ("Abs", "Neg", "Relu", "Sign")},
        **{op: OpcodeRule(_write_step, FLOATS) for op in exact},
        **{op: OpcodeRule(_write_step, FLOATS_TO_32_BITS) for op in curves},
        **{op: OpcodeRule(partial(_write_parameters, defaults=d), types) for op, (types, d) in ATTRIBUTE_OPS.items()},
        "Cast": OpcodeRule(_cast, NUMBERS | BOOL | CAST_SOURCES, 6),
        "Clip": OpcodeRule(_clip, NUMBERS, 6),
        "Equal": OpcodeRule(predicate, NUMBERS | BOOL, FIRST_BROADCASTING_OPSET),
        "Gelu": OpcodeRule(_gelu, FLOATS_TO_32_BITS),
        "IsInf": OpcodeRule(_is_inf, FLOATS),
        "IsNaN": OpcodeRule(predicate, FLOATS),
        "Max": OpcodeRule(partial(_write_fold, operator="Max"), NUMBERS),
        "Mean": OpcodeRule(partial(_write_fold, operator="Add", mean=True), FLOATS),
        "Min": OpcodeRule(partial(_write_fold, operator="Min"), NUMBERS),
        "Not": OpcodeRule(_write_step, BOOL),
        "Pow": OpcodeRule(_write_step, FLOATS_TO_32_BITS, FIRST_BROADCASTING_OPSET),
        "Sum": OpcodeRule(partial(_write_fold, operator="Add"), FLOATS),
        "Where": OpcodeRule(_where, NUMBERS | BOOL),
    }


OPCODE_RULES = _make_rules()
DOMAIN, ELEMENTWISE = "xrt", "Elementwise"
MAX_CHAIN_NODES = 128
"""Maximum number of nodes per chain, because the values of a longer chain may not fit in the cache."""
MAX_RANK = 16
"""``XRT_MAX_RANK`` of kernel.h."""


def fuse_elementwise(function: Function, is_eligible: Callable[[Node], bool] = lambda node: True) -> Function:
    """Fuse the elementwise nodes of a Function, in linear time. A single node is a chain of one.

    Nodes are not fused if ``is_eligible(node)`` is False, if types or shapes are unknown, if there are control edges, or if the
    elementwise machine does not support them. If no node is fused, the same Function is returned.
    """
    original = function
    if any(function.get_type(name) is None for node in function.nodes for name in node.defines):
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
    """Find the nodes that may be fused. Return the shape of the output by index of the node."""
    ordering = {name for node in function.nodes for name in node.control}
    shapes_by_node = {}
    for index, node in enumerate(function.nodes):
        # A chain is a single node, so it cannot preserve a control edge between one of its nodes and another node.
        if node.control or node.name in ordering or node.device.partition(":")[0] not in ("", "cpu"):
            continue
        shape = _find_iteration_shape(function, node)
        if shape is not None and lower_to_opcodes(node, function) is not None and is_eligible(node):
            shapes_by_node[index] = shape
    return shapes_by_node


def _find_iteration_shape(function: Function, node: Node) -> Shape | None:
    """Find the shape of the node's output; None if it has several, or if an input may not broadcast to it."""
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
    """Whether a shape is known to broadcast to the shape ``out``. Dims with the same symbol are equal."""
    return len(shape) <= len(out) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(out), strict=False))


def _group_candidates(function: Function, shapes: dict[int, Shape]) -> list[list[int]]:
    """Group the candidates (``shapes`` by index of the node). Return the node indices of each group.

    A group is connected, has one shape, and no path leaves it and returns. To ensure the latter each node gets a stage, which
    never decreases along an edge, and increases along every edge that cannot be fused. Connected nodes of one stage form a group,
    so a path that leaves it reaches a higher stage.
    """
    if not shapes:
        return []
    edges = list(_iter_edges(function, shapes))
    stage = [0] * len(function.nodes)
    for edge in edges:
        stage[edge.target] = max(stage[edge.target], stage[edge.source] + (not edge.can_fuse))
    leader = list(range(len(function.nodes)))
    for edge in edges:
        if edge.can_fuse and stage[edge.source] == stage[edge.target]:
            leader[_find_root(leader, edge.target)] = _find_root(leader, edge.source)
    groups: dict[int, list[int]] = {}
    for index in shapes:
        groups.setdefault(_find_root(leader, index), []).append(index)
    # Groups are in topological order, so parts of a long one can run one after the other.
    return [group[i : i + MAX_CHAIN_NODES] for group in groups.values() for i in range(0, len(group), MAX_CHAIN_NODES)]


@dataclass(frozen=True, slots=True)
class _Edge:
    source: int
    target: int
    can_fuse: bool
    """Whether both ends are candidates of the same shape."""


def _iter_edges(function: Function, shapes: dict[int, Shape]) -> Iterator[_Edge]:
    """Yield the edges between nodes, ordered by their target."""
    index = {node.name: i for i, node in enumerate(function.nodes)}
    for target, node in enumerate(function.nodes):
        for name in dict.fromkeys(node.uses):
            source = function.position(name)
            if source is not None:
                can_fuse = source in shapes and target in shapes and shapes[source] == shapes[target]
                yield _Edge(source, target, can_fuse)
        for name in node.control:
            yield _Edge(index[name], target, False)


def _find_root(leader: list[int], index: int) -> int:
    """Find the representative of a node's group in a union-find forest."""
    while leader[index] != index:
        # Path halving, which makes later searches shorter.
        leader[index] = leader[leader[index]]
        index = leader[index]
    return index


@dataclass(slots=True)
class _ChainWriter:
    """Collects the steps of a chain."""

    indices: dict[str, int]
    """Index of each value by name: first the inputs of the chain, then the results of steps."""
    operators: list[str] = field(default_factory=list)
    arguments: list[int] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    parameters: list[float] = field(default_factory=list)

    def add(self, node: Node, steps: Sequence[OpcodeStep], inputs: int) -> None:
        """Append the steps of a node. ``inputs`` is the number of inputs of the chain."""
        first = inputs + len(self.operators)
        for step in steps:
            self.operators.append(step.operator)
            self.arguments += [self.indices[a] if isinstance(a, str) else first + a for a in step.arguments]
            self.types.append(step.dtype.onnx)
            self.parameters += step.parameters
        self.indices[node.outputs[0]] = inputs + len(self.operators) - 1


def _make_chain(function: Function, group: Sequence[int]) -> Node:
    nodes = [function.nodes[index] for index in group]
    inner = {node.outputs[0] for node in nodes}
    inputs = tuple(dict.fromkeys(name for node in nodes for name in node.inputs if name and name not in inner))
    writer = _ChainWriter({name: i for i, name in enumerate(inputs)})
    for node in nodes:
        writer.add(node, lower_to_opcodes(node, function) or (), len(inputs))
    outputs = _list_outputs(function, nodes)
    attributes = (
        Attribute.of("arguments", writer.arguments, AttrKind.INTS),
        Attribute.of("nodes", [node.name for node in nodes], AttrKind.STRINGS),
        Attribute.of("operators", writer.operators, AttrKind.STRINGS),
        Attribute.of("parameters", writer.parameters, AttrKind.FLOATS),
        Attribute.of("results", [writer.indices[name] for name in outputs], AttrKind.INTS),
        Attribute.of("types", writer.types, AttrKind.INTS),
    )
    name = nodes[0].name if len(nodes) == 1 else f"{nodes[0].name}..{nodes[-1].name}"
    return Node(ELEMENTWISE, inputs, outputs, attributes, DOMAIN, name)


def _list_outputs(function: Function, nodes: Sequence[Node]) -> tuple[str, ...]:
    """List the values of a chain that other nodes or outputs use; the last one if there are none."""
    names, output_names = {node.name for node in nodes}, {value.name for value in function.outputs}
    used = (
        node.outputs[0]
        for node in nodes
        if node.outputs[0] in output_names or any(use.node.name not in names for use in function.users(node.outputs[0]))
    )
    return tuple(used) or nodes[-1].outputs
