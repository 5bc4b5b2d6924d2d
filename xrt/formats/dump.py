"""Debugging output of Functions: files with text, ONNX and DOT."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path

from xrt.errors import ModelError
from xrt.formats.onnx import save
from xrt.formats.output import replace_file
from xrt.graph import Attribute, AttrKind, Function, Node, Value

_LONGEST = 60  # characters shown of an attribute value


def to_dot(function: Function) -> str:
    """Convert to the DOT language: operators as boxes, inputs and outputs as ellipses, values as edges.

    Boxes list constants, attributes and the names of bodies. Captures are dashed edges, control dependencies dotted ones. The
    output is deterministic.
    """
    return "\n".join(["digraph {", *(f"  {line}" for line in _statements(function)), "}"]) + "\n"


def _statements(function: Function) -> Iterator[str]:
    yield f"label={_quote([function.name])}; labelloc=t"
    yield "node [shape=box, fontname=Helvetica]; edge [fontname=Helvetica, fontsize=10]"
    numbers = count()
    ends: dict[tuple[str, str], str] = {}
    for kind, values in (("input", function.inputs), ("output", function.outputs)):
        for value in dict.fromkeys(values):
            box = ends[kind, value.name] = f"{kind}{next(numbers)}"
            yield f"{box} [shape=ellipse, label={_quote(_value_lines(value, function))}]"
    boxes = {node.name: f"node{index}" for index, node in enumerate(function.nodes)}
    for node in function.nodes:
        yield f"{boxes[node.name]} [label={_quote(_node_lines(node, function))}]"
    # Constants are listed in the boxes that read them, so no edge starts at one.
    origins = {value.name: ends["input", value.name] for value in function.inputs}
    origins |= {name: boxes[node.name] for node in function.nodes for name in node.defines}

    def draw_edge(name: str, target: str, style: str = "") -> str:
        return f"{origins[name]} -> {target} [label={_quote([name, str(function.get_type(name) or '')])}{style}]"

    for node in function.nodes:
        # `uses` lists the inputs, then the captures.
        input_count = len(node.uses) - len(node.captures)
        for slot, name in enumerate(node.uses):
            if name in origins:
                yield draw_edge(name, boxes[node.name], "" if slot < input_count else ", style=dashed")
        yield from (f'{boxes[before]} -> {boxes[node.name]} [label="", style=dotted]' for before in node.control)
    yield from (draw_edge(value.name, ends["output", value.name]) for value in function.outputs if value.name in origins)


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
        yield f"{attribute.name}={_describe_attribute(attribute)}"
    if node.device:
        yield f"on {node.device}"


def _describe_attribute(attribute: Attribute) -> str:
    if attribute.kind in (AttrKind.GRAPH, AttrKind.GRAPHS):
        return ", ".join(f"{body.name} ({len(body.nodes)} nodes)" for body in attribute.bodies())
    text = str(list(attribute.value)) if attribute.kind.is_list else str(attribute.value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _quote(lines: Iterable[str]) -> str:
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
            # The directory shows why a file is missing, for example for opaque operators.
            _write_text(stem.with_name(stem.name + ".onnx.why-not"), f"{error}\n")


def _write_text(path: Path, text: str) -> None:
    data = text.encode("utf-8", "backslashreplace")
    replace_file(path, lambda file: file.write(data))
