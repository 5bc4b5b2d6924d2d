"""Chains of elementwise operators, each folded into one node that a native kernel evaluates tile by tile in registers.

A Function goes in, a Function comes out in which every group of elementwise nodes over one shape is one node
``xrt.Elementwise``. The groups are convex: no path leaves one and comes back. Nothing is computed otherwise than before:
each operator still rounds to its own type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from xrt.engines.native.opcodes import OpcodeStep, lower_to_opcodes
from xrt.graph import Attribute, AttrKind, Function, Node, Shape, TensorType
from xrt.passes import infer_shapes

__all__ = ["DOMAIN", "ELEMENTWISE", "fuse_elementwise"]

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
