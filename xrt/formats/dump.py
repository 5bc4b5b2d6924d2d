"""Debugging output of Functions: files with text, ONNX and DOT, and networkx graphs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from xrt.errors import ModelError
from xrt.formats.onnx import save
from xrt.formats.output import replace_file
from xrt.graph import Attribute, AttrKind, Function, Node, Value

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["to_dot", "to_networkx", "write"]

_LONGEST = 60  # characters shown of an attribute value


@dataclass(frozen=True, slots=True)
class _Edge:
    """A graph edge between keys: a node name, ``("input", name)`` or ``("output", name)``."""

    source: object
    target: object
    value: str
    """The name of the value; empty for a control edge."""
    slot: int
    """Index in `Node.uses` of the target."""
    kind: Literal["value", "capture", "control"]


def _edges(function: Function) -> Iterator[_Edge]:
    """Yield an edge per read of a non-constant value, per control predecessor, and per output."""
    inputs = {value.name for value in function.inputs}

    def source(value: str) -> object:
        producer = function.producer(value)
        return producer.name if producer else ("input", value) if value in inputs else None

    for node in function.nodes:
        # `uses` lists the inputs, then the captures.
        own = len(node.uses) - len(node.captures)
        for slot, value in enumerate(node.uses):
            if (origin := source(value)) is not None:
                yield _Edge(origin, node.name, value, slot, "value" if slot < own else "capture")
        for slot, before in enumerate(node.control):
            yield _Edge(before, node.name, "", slot, "control")
    for slot, output in enumerate(function.outputs):
        if (origin := source(output.name)) is not None:
            yield _Edge(origin, ("output", output.name), output.name, slot, "value")


# ---------------------------------------------------------------------- networkx


def to_networkx(function: Function) -> nx.MultiDiGraph:
    """Convert to a networkx graph with one edge per read, so a value that a node reads twice has two edges.

    Graph nodes are the names of the Function's nodes (attribute ``node``), ``("input", name)`` and ``("output", name)``
    (attribute ``value``). Edges have the attributes ``value``, ``slot`` and ``kind``: value, capture or control. Constants are
    omitted.
    """
    import networkx as nx

    graph = nx.MultiDiGraph(name=function.name)
    graph.add_nodes_from((("input", value.name), {"value": value}) for value in function.inputs)
    graph.add_nodes_from((node.name, {"node": node}) for node in function.nodes)
    graph.add_nodes_from((("output", value.name), {"value": value}) for value in function.outputs)
    for edge in _edges(function):
        graph.add_edge(edge.source, edge.target, value=edge.value, slot=edge.slot, kind=edge.kind)
    return graph


# ---------------------------------------------------------------------- DOT

_STYLES = {"value": "", "capture": ", style=dashed", "control": ", style=dotted"}


def to_dot(function: Function) -> str:
    """Convert to the DOT language: operators as boxes, inputs and outputs as ellipses, values as edges.

    Boxes list constants, attributes and the names of bodies. Captures are dashed edges, control dependencies dotted ones. The
    output is deterministic.
    """
    return "\n".join(["digraph {", *(f"  {line}" for line in _statements(function)), "}"]) + "\n"


def _statements(function: Function) -> Iterator[str]:
    yield f"label={_quoted([function.name])}; labelloc=t"
    yield "node [shape=box, fontname=Helvetica]; edge [fontname=Helvetica, fontsize=10]"
    ids: dict[object, str] = {}
    for kind, values in (("input", function.inputs), ("output", function.outputs)):
        for value in dict.fromkeys(values):
            ids[kind, value.name] = f"{kind}{len(ids)}"
            yield f"{ids[kind, value.name]} [shape=ellipse, label={_quoted(_value_lines(value, function))}]"
    for index, node in enumerate(function.nodes):
        ids[node.name] = f"node{index}"
        yield f"node{index} [label={_quoted(_node_lines(node, function))}]"
    for edge in _edges(function):
        label = [edge.value, str(function.get_type(edge.value) or "")] if edge.value else []
        yield f"{ids[edge.source]} -> {ids[edge.target]} [label={_quoted(label)}{_STYLES[edge.kind]}]"


def _value_lines(value: Value, function: Function) -> Iterator[str]:
    yield value.name
    if value.type is not None:
        yield str(value.type)
    if value.name in function.constants:
        yield "constant"


def _node_lines(node: Node, function: Function) -> Iterator[str]:
    yield node.op
    yield node.name
    for name in dict.fromkeys(node.uses):
        if name in function.constants:
            yield f"{name}: {function.constants[name].type}"
    for attribute in node.attributes:
        yield f"{attribute.name}={_shown(attribute)}"
    if node.device:
        yield f"on {node.device}"


def _shown(attribute: Attribute) -> str:
    if attribute.kind in (AttrKind.GRAPH, AttrKind.GRAPHS):
        return ", ".join(f"{body.name} ({len(body.nodes)} nodes)" for body in attribute.bodies())
    text = str(list(attribute.value)) if attribute.kind.is_list else str(attribute.value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _quoted(lines: Iterable[str]) -> str:
    """Format lines as a quoted DOT string, escaping quotes and backslashes."""
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for line in lines if line)
    return '"' + "\\n".join(escaped) + '"'


def write(stages: Mapping[str, Function], directory: Path) -> None:
    """Write each Function as ``<stage>.txt``, ``.dot`` and, if ONNX can express it, ``.onnx``. Creates the directory.

    The text abbreviates large constants; the ONNX file contains them.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for stage, function in stages.items():
        stem = directory / re.sub(r"[^\w.-]", "_", stage)
        _write_text(stem.with_name(stem.name + ".txt"), str(function))
        _write_text(stem.with_name(stem.name + ".dot"), to_dot(function))
        try:
            save(function, stem.with_name(stem.name + ".onnx"))
        except ModelError as error:
            _write_text(stem.with_name(stem.name + ".onnx.why-not"), f"{error}\n")


def _write_text(path: Path, text: str) -> None:
    data = text.encode("utf-8", "backslashreplace")
    replace_file(path, lambda file: file.write(data))
