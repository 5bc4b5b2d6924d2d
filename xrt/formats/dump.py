"""Debugging output of Functions: files with text, ONNX and DOT."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from xrt.errors import ModelError
from xrt.formats.onnx import save
from xrt.formats.output import replace_file
from xrt.graph import Attribute, AttrKind, Function, Node, Value

_LONGEST = 60  # characters shown of an attribute value


def _edges(function: Function) -> Iterator[tuple[object, object, str, str]]:
    """Yield an edge per read of a non-constant value, per control predecessor, and per output.

    An edge is the keys of its ends (a node's name, ``("input", name)`` or ``("output", name)``), the value, and its style.
    """
    inputs = {value.name for value in function.inputs}

    def source(value: str) -> object:
        producer = function.producer(value)
        return producer.name if producer else ("input", value) if value in inputs else None

    for node in function.nodes:
        # `uses` lists the inputs, then the captures.
        own = len(node.uses) - len(node.captures)
        for slot, value in enumerate(node.uses):
            if (origin := source(value)) is not None:
                yield origin, node.name, value, "" if slot < own else ", style=dashed"
        for before in node.control:
            yield before, node.name, "", ", style=dotted"
    for output in function.outputs:
        if (origin := source(output.name)) is not None:
            yield origin, ("output", output.name), output.name, ""


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
    for source, target, name, style in _edges(function):
        label = [name, str(function.get_type(name) or "")] if name else []
        yield f"{ids[source]} -> {ids[target]} [label={_quoted(label)}{style}]"


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
