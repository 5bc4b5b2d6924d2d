"""Fuse chains of elementwise operators into nodes that a native kernel evaluates tile by tile in vector registers.

Every group of connected elementwise nodes with one shape becomes one node ``xrt.Elementwise``. The groups are convex: no path
leaves one and returns. Results do not change: each operator still rounds to its own type.
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
SINGLE = FLOATS - {DType.FLOAT64}
"""Types of the transcendental functions. In float64 NumPy's are fast, and the machine's polynomials only have the precision of
float32."""
INTEGERS = frozenset({DType.INT32, DType.INT64})
NUMBERS = FLOATS | INTEGERS
BOOL = frozenset({DType.BOOL})
BYTES = frozenset({DType.UINT8, DType.INT8})
"""Types that only a Cast reads."""
BROADCASTING = 7
"""First opset in which binary operators broadcast as NumPy does."""


@dataclass(frozen=True, slots=True)
class OpcodeStep:
    """One instruction of the elementwise machine."""

    operator: str
    arguments: tuple[str | int, ...]
    """Values by name, or earlier steps of the same node by index."""
    dtype: DType
    """Result type."""
    parameters: tuple[float, float] = (0.0, 0.0)


Steps = tuple[OpcodeStep, ...]
Write = Callable[[Node, Sequence[DType]], Steps | None]
"""Writes the steps of a node from the types of its inputs; None if it is not supported."""


@dataclass(frozen=True, slots=True)
class OpcodeRule:
    """How an operator is lowered, and for which types and opsets."""

    write: Write
    dtypes: frozenset[DType]
    """Supported types of all inputs except conditions."""
    since: int = 1


def lower_to_opcodes(node: Node, function: Function) -> Steps | None:
    """Lower a node to steps of the machine; None if it is not supported."""
    row = ROWS.get(node.op_type) if not node.domain else None
    if row is None or function.opset() < row.since:
        return None
    types = [function.get_type(name) for name in node.inputs if name]
    dtypes = [type_.dtype for type_ in types if isinstance(type_, TensorType)]
    if not dtypes or len(dtypes) < len(types) or not row.dtypes.issuperset(dtypes):
        return None
    return row.write(node, dtypes)


def _write_step(node: Node, dtypes: Sequence[DType], *, result: DType | None = None) -> Steps | None:
    """One step with the name of the operator."""
    # The machine reads all operands of an opcode as one type.
    if len(set(dtypes)) > 1:
        return None
    return (OpcodeStep(node.op_type, node.inputs, result or dtypes[0]),)


def _write_parameters(node: Node, dtypes: Sequence[DType], *, defaults: Sequence[tuple[str, float]]) -> Steps:
    """One step with the name of the operator and attributes as parameters."""
    # ONNX stores attributes in float32; the defaults are rounded likewise.
    values = [float(np.float32(node.attr(name, default))) for name, default in defaults]
    return (OpcodeStep(node.op_type, node.inputs, dtypes[0], (values[0], values[1] if len(values) > 1 else 0.0)),)


def _fold(node: Node, dtypes: Sequence[DType], *, operator: str, mean: bool = False) -> Steps | None:
    """Fold any number of tensors from left to right."""
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
    """Bounds are inputs since opset 11, attributes before. If they cross, the upper one wins, hence Max before Min."""
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
    if target not in NUMBERS or (target in NARROW and source not in SINGLE | BOOL | BYTES):
        return None  # the machine converts through float32, which would round a wider type twice
    return (OpcodeStep("Cast", node.inputs, target),)


def _is_inf(node: Node, dtypes: Sequence[DType]) -> Steps:
    parameters = (float(node.attr("detect_negative", 1)), float(node.attr("detect_positive", 1)))
    return (OpcodeStep("IsInf", node.inputs, DType.BOOL, parameters),)


ATTRIBUTES = {
    "HardSigmoid": (FLOATS, (("alpha", 0.2), ("beta", 0.5))),
    "LeakyRelu": (FLOATS, (("alpha", 0.01),)),
    "Shrink": (FLOATS - NARROW, (("bias", 0.0), ("lambd", 0.5))),
    "ThresholdedRelu": (FLOATS, (("alpha", 1.0),)),
    "Celu": (SINGLE, (("alpha", 1.0),)),
    "Elu": (SINGLE, (("alpha", 1.0),)),
    "Selu": (SINGLE, (("alpha", 1.67326319217681884765625), ("gamma", 1.05070102214813232421875))),
    "Swish": (SINGLE, (("alpha", 1.0),)),
}
"""Operators with numeric attributes: supported types, attributes and their defaults."""


def _make_rows() -> dict[str, OpcodeRule]:
    predicate = partial(_write_step, result=DType.BOOL)
    comparisons = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    exact = ("Ceil", "Floor", "HardSwish", "Reciprocal", "Round", "Softsign", "Sqrt")
    curves = ("Erf", "Exp", "Log", "Mish", "Sigmoid", "Softplus", "Tanh")
    return {
        **{op: OpcodeRule(_write_step, NUMBERS, BROADCASTING) for op in ("Add", "Div", "Mul", "PRelu", "Sub")},
        **{op: OpcodeRule(predicate, NUMBERS, BROADCASTING) for op in comparisons},
        **{op: OpcodeRule(_write_step, BOOL, BROADCASTING) for op in ("And", "Or", "Xor")},
        **{op: OpcodeRule(_write_step, INTEGERS) for op in ("BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor")},
        **{op: OpcodeRule(_write_step, NUMBERS) for op in ("Abs", "Neg", "Relu", "Sign")},
        **{op: OpcodeRule(_write_step, FLOATS) for op in exact},
        **{op: OpcodeRule(_write_step, SINGLE) for op in curves},
        **{op: OpcodeRule(partial(_write_parameters, defaults=d), types) for op, (types, d) in ATTRIBUTES.items()},
        "Cast": OpcodeRule(_cast, NUMBERS | BOOL | BYTES, 6),
        "Clip": OpcodeRule(_clip, NUMBERS, 6),
        "Equal": OpcodeRule(predicate, NUMBERS | BOOL, BROADCASTING),
        "Gelu": OpcodeRule(_gelu, SINGLE),
        "IsInf": OpcodeRule(_is_inf, FLOATS),
        "IsNaN": OpcodeRule(predicate, FLOATS),
        "Max": OpcodeRule(partial(_fold, operator="Max"), NUMBERS),
        "Mean": OpcodeRule(partial(_fold, operator="Add", mean=True), FLOATS),
        "Min": OpcodeRule(partial(_fold, operator="Min"), NUMBERS),
        "Not": OpcodeRule(_write_step, BOOL),
        "Pow": OpcodeRule(_write_step, SINGLE, BROADCASTING),
        "Sum": OpcodeRule(partial(_fold, operator="Add"), FLOATS),
        "Where": OpcodeRule(_where, NUMBERS | BOOL),
    }


ROWS = _make_rows()
DOMAIN, ELEMENTWISE = "xrt", "Elementwise"
LONGEST = 128
"""Limit on nodes per chain: longer chains keep more values in the cache at a time."""
HIGHEST_RANK = 16
"""``XRT_MAX_RANK`` of kernel.h."""


def fuse_elementwise(function: Function, is_eligible: Callable[[Node], bool] = lambda node: True) -> Function:
    """Fuse the elementwise nodes of a Function, including single ones; return the same Function if there are none.

    Skips nodes that ``is_eligible`` rejects, that have unknown types or shapes or control edges, or that the native kernel does
    not support. Linear.
    """
    original = function
    if any(function.get_type(name) is None for node in function.nodes for name in node.defines):
        function = infer_shapes(function)
    groups = _group_candidates(function, _find_candidates(function, is_eligible))
    if not groups:
        return original
    chains = [_make_chain(function, group) for group in groups]
    fused = {index for group in groups for index in group}
    rest = [node for index, node in enumerate(function.nodes) if index not in fused]
    # Function restores the topological order.
    return function.replace(nodes=(*rest, *chains), opsets={**function.opsets, DOMAIN: 1})


def _find_candidates(function: Function, is_eligible: Callable[[Node], bool]) -> dict[int, Shape]:
    """Nodes that may be fused, by index, with the shape of their iteration space."""
    ordering = {name for node in function.nodes for name in node.control}
    shapes_by_node = {}
    for index, node in enumerate(function.nodes):
        # A chain is one node: it cannot keep the order of its nodes and others.
        if node.control or node.name in ordering or node.device.partition(":")[0] not in ("", "cpu"):
            continue
        shape = _find_space(function, node)
        if shape is not None and lower_to_opcodes(node, function) is not None and is_eligible(node):
            shapes_by_node[index] = shape
    return shapes_by_node


def _find_space(function: Function, node: Node) -> Shape | None:
    """The shape of the node's only output if all inputs are known to broadcast to it."""
    if len(node.outputs) != 1:
        return None
    shapes = [_find_shape(function, name) for name in (*node.outputs, *filter(None, node.inputs))]
    out = shapes[0]
    if out is None or len(out) > HIGHEST_RANK or not all(s is not None and _broadcasts(s, out) for s in shapes):
        return None
    return out


def _find_shape(function: Function, name: str) -> Shape | None:
    type_ = function.get_type(name)
    if not isinstance(type_, TensorType) or type_.shape is None or None in type_.shape:
        return None
    return type_.shape


def _broadcasts(shape: Shape, out: Shape) -> bool:
    """Whether the shape is known to broadcast to ``out``; equal symbols are equal extents."""
    return len(shape) <= len(out) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(out), strict=False))


def _group_candidates(function: Function, shapes: dict[int, Shape]) -> list[list[int]]:
    """Group candidates so that each group is connected, has one shape, and is convex.

    Stages never decrease along an edge, and increase along every edge that cannot be fused. Joined nodes of one stage form a
    group. A path that leaves the group therefore reaches a higher stage and cannot return.
    """
    if not shapes:
        return []
    edges = list(_iter_edges(function, shapes))
    stage = [0] * len(function.nodes)
    for edge in edges:
        stage[edge.target] = max(stage[edge.target], stage[edge.source] + (not edge.joins))
    leader = list(range(len(function.nodes)))
    for edge in edges:
        if edge.joins and stage[edge.source] == stage[edge.target]:
            leader[_find_root(leader, edge.target)] = _find_root(leader, edge.source)
    groups: dict[int, list[int]] = {}
    for index in shapes:
        groups.setdefault(_find_root(leader, index), []).append(index)
    # A group is in topological order, so that its parts can run one after the other.
    return [group[i : i + LONGEST] for group in groups.values() for i in range(0, len(group), LONGEST)]


@dataclass(frozen=True, slots=True)
class _Edge:
    source: int
    target: int
    joins: bool
    """Whether both ends may be fused."""


def _iter_edges(function: Function, shapes: dict[int, Shape]) -> Iterator[_Edge]:
    """Yield the edges between nodes, ordered by reader."""
    index = {node.name: i for i, node in enumerate(function.nodes)}
    for target, node in enumerate(function.nodes):
        for name in dict.fromkeys(node.uses):
            source = function.position(name)
            if source is not None:
                joins = source in shapes and target in shapes and shapes[source] == shapes[target]
                yield _Edge(source, target, joins)
        for name in node.control:
            yield _Edge(index[name], target, False)


def _find_root(leader: list[int], index: int) -> int:
    while leader[index] != index:
        # Path halving keeps the search almost constant in time.
        leader[index] = leader[leader[index]]
        index = leader[index]
    return index


@dataclass(slots=True)
class _ChainWriter:
    """Collects the steps of a chain and numbers its values, inputs first."""

    number: dict[str, int]
    operators: list[str] = field(default_factory=list)
    arguments: list[int] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    parameters: list[float] = field(default_factory=list)

    def add(self, node: Node, steps: Sequence[OpcodeStep], inputs: int) -> None:
        """Append the steps of a node."""
        first = inputs + len(self.operators)
        for step in steps:
            self.operators.append(step.operator)
            self.arguments += [self.number[a] if isinstance(a, str) else first + a for a in step.arguments]
            self.types.append(step.dtype.onnx)
            self.parameters += step.parameters
        self.number[node.outputs[0]] = inputs + len(self.operators) - 1


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
        Attribute.of("results", [writer.number[name] for name in outputs], AttrKind.INTS),
        Attribute.of("types", writer.types, AttrKind.INTS),
    )
    name = nodes[0].name if len(nodes) == 1 else f"{nodes[0].name}..{nodes[-1].name}"
    return Node(ELEMENTWISE, inputs, outputs, attributes, DOMAIN, name)


def _list_outputs(function: Function, nodes: Sequence[Node]) -> tuple[str, ...]:
    """Values of a chain that are read outside it; the last one if there are none."""
    names, output_names = {node.name for node in nodes}, {value.name for value in function.outputs}
    read = (
        node.outputs[0]
        for node in nodes
        if node.outputs[0] in output_names or any(use.node.name not in names for use in function.users(node.outputs[0]))
    )
    return tuple(read) or nodes[-1].outputs
