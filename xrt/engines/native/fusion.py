"""Chains of elementwise operators, each folded into one node that a native kernel evaluates tile by tile in registers.

A Function goes in, a Function comes out in which every group of elementwise nodes over one shape is one node
``xrt.Elementwise``. The groups are convex: no path leaves one and comes back. Nothing is computed otherwise than before:
each operator still rounds to its own type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from xrt.formats.onnx.writing import read_clip_bounds
from xrt.graph import Attribute, AttrKind, DType, Function, Node, Shape, TensorType
from xrt.passes import infer_shapes

__all__ = ["DOMAIN", "ELEMENTWISE", "OpcodeStep", "fuse_elementwise", "lower_to_opcodes"]

FLOATS = frozenset({DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16})
NARROW = frozenset({DType.FLOAT16, DType.BFLOAT16})
SINGLE = FLOATS - {DType.FLOAT64}
"""Types of the transcendental functions: NumPy's own are quick and more exact than float32 in float64."""
INTEGERS = frozenset({DType.INT32, DType.INT64})
NUMBERS = FLOATS | INTEGERS
BOOL = frozenset({DType.BOOL})
BYTES = frozenset({DType.UINT8, DType.INT8})
"""Types that are only read, by a Cast."""
BROADCASTING = 7
"""The first version in which operators of several tensors broadcast as NumPy does."""


@dataclass(frozen=True, slots=True)
class OpcodeStep:
    """One operation of the machine."""

    operator: str
    arguments: tuple[str | int, ...]
    """Values by name, or earlier steps of the same node by number."""
    dtype: DType
    """Of the result."""
    parameters: tuple[float, float] = (0.0, 0.0)


Steps = tuple[OpcodeStep, ...]
Write = Callable[[Node, Sequence[DType]], Steps | None]
"""Returns a node's steps from the types of its inputs; None where it is not served."""


@dataclass(frozen=True, slots=True)
class OpcodeRule:
    """How an operator is written, and when."""

    write: Write
    dtypes: frozenset[DType]
    """Of every input, but for conditions."""
    since: int = 1


def lower_to_opcodes(node: Node, function: Function) -> Steps | None:
    """Return the steps that compute the node's output; None where the machine does not serve the node."""
    row = ROWS.get(node.op_type) if not node.domain else None
    if row is None or function.opset() < row.since:
        return None
    types = [function.get_type(name) for name in node.inputs if name]
    dtypes = [type_.dtype for type_ in types if isinstance(type_, TensorType)]
    if not dtypes or len(dtypes) < len(types) or not row.dtypes.issuperset(dtypes):
        return None
    return row.write(node, dtypes)


# ---------------------------------------------------------------------- the usual ways


def _plain(node: Node, dtypes: Sequence[DType], *, gives: DType | None = None) -> Steps | None:
    """One step of the operator's own name."""
    if len(set(dtypes)) > 1:
        return None
    return (OpcodeStep(node.op_type, node.inputs, gives or dtypes[0]),)


def _with_attributes(node: Node, dtypes: Sequence[DType], *, defaults: Sequence[tuple[str, float]]) -> Steps:
    """One step of the operator's own name with attributes as its parameters."""
    values = [float(np.float32(node.attr(name, default))) for name, default in defaults]
    return (OpcodeStep(node.op_type, node.inputs, dtypes[0], (values[0], values[1] if len(values) > 1 else 0.0)),)


def _folded(node: Node, dtypes: Sequence[DType], *, operator: str, mean: bool = False) -> Steps | None:
    """Any number of tensors, from left to right."""
    if len(set(dtypes)) > 1 or len(node.inputs) < 2:
        return None
    steps = [OpcodeStep(operator, node.inputs[:2], dtypes[0])]
    steps += [OpcodeStep(operator, (i, name), dtypes[0]) for i, name in enumerate(node.inputs[2:])]
    if mean:
        # A narrow type is divided in itself, by a count that it holds exactly.
        steps.append(OpcodeStep("DivideBy", (len(steps) - 1,), dtypes[0], (float(len(node.inputs)), 0.0)))
    return tuple(steps)


# ---------------------------------------------------------------------- single operators


def _where(node: Node, dtypes: Sequence[DType]) -> Steps | None:
    condition, yes, no = dtypes
    if condition is not DType.BOOL or yes is not no:
        return None
    return (OpcodeStep("Where", node.inputs, yes),)


def _clip(node: Node, dtypes: Sequence[DType]) -> Steps | None:
    """Bounds are inputs since version 11, and attributes before; the upper one wins where they cross."""
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
    to, own = node.attr("to"), dtypes[0]
    if not isinstance(to, int):
        return None
    target = DType.from_onnx(to)
    if target is DType.BOOL:
        return (OpcodeStep("Truth", node.inputs, target),) if own in NUMBERS else None
    if target not in NUMBERS or (target in NARROW and own not in SINGLE | BOOL | BYTES):
        return None  # from wider types to narrow floats by way of float32 would round twice
    return (OpcodeStep("Cast", node.inputs, target),)


def _is_inf(node: Node, dtypes: Sequence[DType]) -> Steps:
    wanted = (float(node.attr("detect_negative", 1)), float(node.attr("detect_positive", 1)))
    return (OpcodeStep("IsInf", node.inputs, DType.BOOL, wanted),)


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
"""Operators that take numbers as attributes: their types, and each attribute with its default."""


def _rows() -> dict[str, OpcodeRule]:
    predicate = partial(_plain, gives=DType.BOOL)
    comparisons = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    exact = ("Ceil", "Floor", "HardSwish", "Reciprocal", "Round", "Softsign", "Sqrt")
    curves = ("Erf", "Exp", "Log", "Mish", "Sigmoid", "Softplus", "Tanh")
    return {
        **{op: OpcodeRule(_plain, NUMBERS, BROADCASTING) for op in ("Add", "Div", "Mul", "PRelu", "Sub")},
        **{op: OpcodeRule(predicate, NUMBERS, BROADCASTING) for op in comparisons},
        **{op: OpcodeRule(_plain, BOOL, BROADCASTING) for op in ("And", "Or", "Xor")},
        **{op: OpcodeRule(_plain, INTEGERS) for op in ("BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor")},
        **{op: OpcodeRule(_plain, NUMBERS) for op in ("Abs", "Neg", "Relu", "Sign")},
        **{op: OpcodeRule(_plain, FLOATS) for op in exact},
        **{op: OpcodeRule(_plain, SINGLE) for op in curves},
        **{op: OpcodeRule(partial(_with_attributes, defaults=d), types) for op, (types, d) in ATTRIBUTES.items()},
        "Cast": OpcodeRule(_cast, NUMBERS | BOOL | BYTES, 6),
        "Clip": OpcodeRule(_clip, NUMBERS, 6),
        "Equal": OpcodeRule(predicate, NUMBERS | BOOL, BROADCASTING),
        "Gelu": OpcodeRule(_gelu, SINGLE),
        "IsInf": OpcodeRule(_is_inf, FLOATS),
        "IsNaN": OpcodeRule(predicate, FLOATS),
        "Max": OpcodeRule(partial(_folded, operator="Max"), NUMBERS),
        "Mean": OpcodeRule(partial(_folded, operator="Add", mean=True), FLOATS),
        "Min": OpcodeRule(partial(_folded, operator="Min"), NUMBERS),
        "Not": OpcodeRule(_plain, BOOL),
        "Pow": OpcodeRule(_plain, SINGLE, BROADCASTING),
        "Sum": OpcodeRule(partial(_folded, operator="Add"), FLOATS),
        "Where": OpcodeRule(_where, NUMBERS | BOOL),
    }


ROWS = _rows()
DOMAIN, ELEMENTWISE = "xrt", "Elementwise"
LONGEST = 128
"""Nodes in one chain: the more, the more values may have to lie in the cache at a time."""
HIGHEST_RANK = 16
"""``XRT_MAX_RANK`` of kernel.h."""


def fuse_elementwise(function: Function, may: Callable[[Node], bool] = lambda node: True) -> Function:
    """Return the Function with its elementwise nodes in chains, single ones too; the Function itself where it has none.

    What is left alone: nodes that ``may`` not be taken, whose types or shapes are not known, that order others (control
    edges), or of types and versions that the native kernel does not serve. Linear.
    """
    given = function
    if any(function.get_type(name) is None for node in function.nodes for name in node.defines):
        function = infer_shapes(function)
    groups = _groups(function, _candidates(function, may))
    if not groups:
        return given
    chains = [_chain(function, group) for group in groups]
    taken = {index for group in groups for index in group}
    rest = [node for index, node in enumerate(function.nodes) if index not in taken]
    return function.replace(nodes=(*rest, *chains), opsets={**function.opsets, DOMAIN: 1})


# ---------------------------------------------------------------------- which nodes


def _candidates(function: Function, may: Callable[[Node], bool]) -> dict[int, Shape]:
    """Return the nodes that may stand in a chain, by index, with the shape over which each runs."""
    ordering = {name for node in function.nodes for name in node.control}
    found = {}
    for index, node in enumerate(function.nodes):
        if node.control or node.name in ordering or node.device.partition(":")[0] not in ("", "cpu"):
            continue
        shape = _shape(function, node)
        if shape is not None and lower_to_opcodes(node, function) is not None and may(node):
            found[index] = shape
    return found


def _shape(function: Function, node: Node) -> Shape | None:
    """Return the shape of the node's one output if all inputs certainly broadcast to it."""
    if len(node.outputs) != 1:
        return None
    shapes = [_shape_of(function, name) for name in (*node.outputs, *filter(None, node.inputs))]
    out = shapes[0]
    if out is None or len(out) > HIGHEST_RANK or not all(s is not None and _broadcasts(s, out) for s in shapes):
        return None
    return out


def _shape_of(function: Function, name: str) -> Shape | None:
    type_ = function.get_type(name)
    if not isinstance(type_, TensorType) or type_.shape is None or None in type_.shape:
        return None
    return type_.shape


def _broadcasts(own: Shape, out: Shape) -> bool:
    """Whether the shape surely stretches to the other; equal names are equal extents."""
    return len(own) <= len(out) and all(a in (1, b) for a, b in zip(reversed(own), reversed(out), strict=False))


# ---------------------------------------------------------------------- which together


def _groups(function: Function, shapes: dict[int, Shape]) -> list[list[int]]:
    """Return groups of candidates, each connected, over one shape, and convex.

    Every node gets a stage that never falls along an edge, and rises along every edge that no chain holds; joined nodes
    of one stage are a group. So no path between two of a group leaves it: it would rise and never come back.
    """
    if not shapes:
        return []
    edges = list(_edges(function, shapes))
    stage = _stages(len(function.nodes), edges)
    leader = list(range(len(function.nodes)))
    for edge in edges:
        if edge.joins and stage[edge.source] == stage[edge.target]:
            leader[_root(leader, edge.target)] = _root(leader, edge.source)
    groups: dict[int, list[int]] = {}
    for index in shapes:
        groups.setdefault(_root(leader, index), []).append(index)
    return [group[i : i + LONGEST] for group in groups.values() for i in range(0, len(group), LONGEST)]


@dataclass(frozen=True, slots=True)
class _Edge:
    source: int
    target: int
    joins: bool
    """Whether both ends may stand in one chain."""


def _edges(function: Function, shapes: dict[int, Shape]) -> Iterator[_Edge]:
    """Yield the edges between nodes, by the index of the reader."""
    index = {node.name: i for i, node in enumerate(function.nodes)}
    for target, node in enumerate(function.nodes):
        for name in dict.fromkeys(node.uses):
            source = function.position(name)
            if source is not None:
                joins = source in shapes and target in shapes and shapes[source] == shapes[target]
                yield _Edge(source, target, joins)
        for name in node.control:
            yield _Edge(index[name], target, False)


def _stages(count: int, edges: Sequence[_Edge]) -> list[int]:
    """Return each node's stage: as early as can be, then moved to the first stage at which a chain waits for it."""
    stage = [0] * count
    for edge in edges:
        stage[edge.target] = max(stage[edge.target], stage[edge.source] + (not edge.joins))
    readers: list[list[_Edge]] = [[] for _ in range(count)]
    for edge in edges:
        readers[edge.source].append(edge)
    for index in reversed(range(count)):
        latest = min((stage[edge.target] - (not edge.joins) for edge in readers[index]), default=0)
        if any(edge.joins and stage[edge.target] == latest for edge in readers[index]):
            stage[index] = max(stage[index], latest)
    return stage


def _root(leader: list[int], index: int) -> int:
    while leader[index] != index:
        leader[index] = leader[leader[index]]
        index = leader[index]
    return index


# ---------------------------------------------------------------------- one node of many


@dataclass(slots=True)
class _Writer:
    """Numbers values and collects the steps of a chain; the numbers of inputs come first, so they must be known first."""

    number: dict[str, int]
    operators: list[str] = field(default_factory=list)
    arguments: list[int] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    parameters: list[float] = field(default_factory=list)

    def add(self, node: Node, steps: Sequence[OpcodeStep], inputs: int) -> None:
        """Append a node's steps; their arguments are names of values, or the number of an earlier step of the same node."""
        first = inputs + len(self.operators)
        for step in steps:
            self.operators.append(step.operator)
            self.arguments += [self.number[a] if isinstance(a, str) else first + a for a in step.arguments]
            self.types.append(step.dtype.onnx)
            self.parameters += step.parameters
        self.number[node.outputs[0]] = inputs + len(self.operators) - 1


def _chain(function: Function, group: Sequence[int]) -> Node:
    nodes = [function.nodes[index] for index in group]
    own = {node.outputs[0] for node in nodes}
    inputs = tuple(dict.fromkeys(name for node in nodes for name in node.inputs if name and name not in own))
    writer = _Writer({name: i for i, name in enumerate(inputs)})
    for node in nodes:
        writer.add(node, lower_to_opcodes(node, function) or (), len(inputs))
    outputs = _read_outside(function, nodes)
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


def _read_outside(function: Function, nodes: Sequence[Node]) -> tuple[str, ...]:
    """Return the values that a chain must give out; for a chain without readers, the last."""
    names, asked = {node.name for node in nodes}, {value.name for value in function.outputs}
    read = (
        node.outputs[0]
        for node in nodes
        if node.outputs[0] in asked or any(use.node.name not in names for use in function.users(node.outputs[0]))
    )
    return tuple(read) or nodes[-1].outputs
