"""Generated graphs, engines that take given operators, and a runner whose values are terms: equal terms, equal results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from xrt.engines import CompileContext, Executable, GraphCompiler
from xrt.errors import CompileRefused
from xrt.graph import Attribute, AttrKind, Constant, DType, Function, Node, TensorType, Value
from xrt.partition import ClusteringOptions, Plan

F32 = TensorType(DType.FLOAT32, (4,))
OPERATORS = ("Red", "Green", "Blue", "White")


def engine(name: str, *operators: str, devices: tuple[str, ...] = ("cpu", "cuda"), spec: str | None = None) -> GraphCompiler:
    """Return an engine that takes those operators; without any, all."""

    @dataclass(frozen=True)
    class Mock(GraphCompiler):
        asked: ClassVar[list[str]] = []

        def why_not(self, node: Node, function: Function) -> str | None:
            self.asked.append(node.name)
            return None if not operators or node.op_type in operators else f"no kernel for {node.op}"

        def compile(self, function: Function, context: CompileContext) -> Executable:
            raise CompileRefused("it only says what it would take")

        @property
        def spec(self) -> str:
            return spec or name

    Mock.name = name
    Mock.devices = devices
    return Mock()


def palette() -> list[GraphCompiler]:
    """Three engines, the last of which takes all."""
    return [engine("red", "Red"), engine("green", "Green", "Red"), engine("all")]


def function(nodes: Iterable[Node], outputs: str, inputs: str = "x", **more: Any) -> Function:
    """Return a Function over float vectors; names of inputs and outputs are separated by spaces."""
    named = tuple(nodes)
    types = {name: F32 for node in named for name in node.defined_names}
    values = [tuple(Value(name, F32) for name in names.split()) for names in (inputs, outputs)]
    return Function(values[0], values[1], named, types=types, opsets={"": 20}, **more)


def node(op: str, reads: str, makes: str, **more: Any) -> Node:
    """Return a node; a left-out input is a dash."""
    return Node(op, tuple("" if name == "-" else name for name in reads.split()), tuple(makes.split()), **more)


def chain(operators: str) -> Function:
    """Return a chain of operators by their first letters, such as ``"RRGB"``."""
    full = {op[0]: op for op in OPERATORS}
    nodes = [node(full[letter], f"v{i}", f"v{i + 1}", name=f"n{i}") for i, letter in enumerate(operators)]
    return function(nodes, f"v{len(operators)}", "v0")


@st.composite
def graphs(draw: st.DrawFn, most: int = 9, *, dead: bool = True) -> Function:
    """Return Functions with values read twice, several or no outputs read, captures, control edges, devices and aliases."""
    values = ["x", "y", "c"]
    nodes: list[Node] = []
    for i in range(draw(st.integers(1, most))):
        pick = st.sampled_from(values[-6:] if i % 2 else values)
        reads = tuple(draw(st.lists(st.one_of(pick, st.just("")), min_size=0, max_size=3)))
        makes = tuple(f"v{i}_{k}" for k in range(draw(st.integers(1, 2))))
        control = tuple(sorted(draw(st.sets(st.sampled_from([n.name for n in nodes]), max_size=1)))) if nodes else ()
        attributes = draw(st.sampled_from([(), (), ("body",)])) and (Attribute("body", AttrKind.GRAPH, _body(draw(pick), i)),)
        device = draw(st.sampled_from(["", "", "", "cuda:0", "cuda:1"]))
        op = draw(st.sampled_from(OPERATORS))
        nodes.append(Node(op, reads, makes, attributes, "", f"n{i}", control, device))
        values += makes
    return _closed(draw, nodes, dead)


def _body(captured: str, number: int) -> Function:
    inner = Node("Inner", (captured,), (f"b{number}",), name="inner")
    return Function((), (Value(f"b{number}"),), (inner,), opsets={"": 20})


def _closed(draw: st.DrawFn, nodes: Sequence[Node], dead: bool) -> Function:
    """Return the Function with outputs, each value that nobody reads among them unless dead nodes may be."""
    defined = [name for n in nodes for name in n.defined_names]
    read = {name for n in nodes for name in n.uses}
    ends = [name for name in defined if name not in read] if not dead else []
    ends += draw(st.lists(st.sampled_from([*defined, "x", "c"]), min_size=not ends, max_size=3, unique=True).map(list))
    ends = list(dict.fromkeys(ends))
    aliases = [
        (before, after) for before, after in zip(("x", "y"), ends, strict=False) if after in defined and draw(st.booleans())
    ]
    return Function(
        (Value("x", F32), Value("y", F32)),
        tuple(Value(name, F32 if name in ("x", "c") else None) for name in ends),
        tuple(nodes),
        constants={"c": Constant(np.zeros(4, np.float32))},
        opsets={"": 20},
        aliases=tuple(aliases),
    )


@st.composite
def options(draw: st.DrawFn) -> ClusteringOptions:
    """Return options of every sort, pins apart."""
    least = draw(st.integers(1, 3))
    most = draw(st.one_of(st.none(), st.integers(least, 5)))
    return ClusteringOptions(least, most)


def run(function_: Function, inputs: dict[str, Any]) -> list[Any]:
    """Return the outputs as terms: nested tuples that say how each was made, the launch nodes looked through."""
    values: dict[str, Any] = {"": None, **inputs, **{name: ("constant", name) for name in function_.constants}}
    for n in function_.nodes:
        values.update(zip(n.outputs, _results(n, values), strict=True))
    return [values[v.name] for v in function_.outputs]


def _results(n: Node, values: dict[str, Any]) -> list[Any]:
    if n.op == "xrt.Launch":
        body = n.attr("body")
        assert not body.captures, "a region must be closed"
        return run(body, {v.name: values[v.name] for v in body.inputs})
    captured = [run(body, {name: values[name] for name in body.captures}) for body in n.bodies]
    term = (n.op, tuple(values[name] for name in n.inputs), repr(captured))
    return [(k, term) for k in range(len(n.outputs))]


def regions(plan: Plan) -> frozenset[tuple[str, frozenset[str]]]:
    """Return the plan's regions as sets of node names with their engines."""
    return frozenset((launch.engine, frozenset(launch.nodes)) for launch in plan.launches)


def quotient(function_: Function, plan: Plan) -> nx.DiGraph:
    """Return the graph between regions, from the original Function's own edges."""
    home = {name: launch.name for launch in plan.launches for name in launch.nodes}
    graph = nx.DiGraph()
    graph.add_nodes_from(home.values())
    for n in function_.nodes:
        before = [producer.name for name in n.uses if (producer := function_.producer(name))]
        graph.add_edges_from((home[b], home[n.name]) for b in [*before, *n.control] if home[b] != home[n.name])
    return graph
