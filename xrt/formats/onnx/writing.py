"""Convert a Function to a ModelProto."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from xrt.formats.onnx import metadata
from xrt.formats.onnx.tensors import write_tensor, write_type, write_value
from xrt.formats.onnx.versions import check_same_meaning, lowest_ir
from xrt.graph import Attribute, AttrKind, Constant, Function, Node, Type

__all__ = ["Style", "TensorWriter", "node_message", "to_model", "write_model", "write_styled_model"]

TensorWriter = Callable[[Constant, str], TensorProto]
"""Creates the message of a constant with a name."""


@dataclass(frozen=True, slots=True)
class Style:
    """Options for writing a Function."""

    constants: TensorWriter = write_tensor
    """Writes constants of the main graph."""
    inner: TensorWriter = write_tensor
    """Writes constants of bodies, and tensors among attributes."""
    carries: bool = True
    """Include docs, metadata, and properties without an ONNX equivalent; engines do not need them."""


def to_model(function: Function, *, opset: Mapping[str, int] | None = None, ir_version: int | None = None) -> ModelProto:
    """Convert to a model that `load` converts back to an equal Function.

    The opsets are those of the Function, overridden by ``opset`` (by domain), at which every operator must have the same
    semantics: raises ModelError otherwise. The default IR version is the lowest that can represent the contents. Constants are
    copied into the model; if they exceed 2 GB it cannot be serialized: use `save`.
    """
    return write_styled_model(function, Style(), opset, ir_version)


def write_styled_model(
    function: Function, style: Style, opset: Mapping[str, int] | None = None, ir_version: int | None = None
) -> ModelProto:
    """Like `to_model`, with the options of ``style``."""
    opsets = {**function.opsets, **(opset or {})}
    if opset:
        check_same_meaning(function, opsets)
    floor = metadata.METADATA_IR if metadata.needs_metadata(function) else 0
    return write_model(function, opsets, ir_version or lowest_ir(function, opsets, floor=floor), style)


def write_model(function: Function, opsets: Mapping[str, int], ir_version: int, style: Style) -> ModelProto:
    """Write a model at exactly these versions, which are not checked."""
    model = ModelProto(ir_version=ir_version, producer_name="xrt")
    for domain in sorted(opsets):
        model.opset_import.add(domain=domain, version=opsets[domain])
    if style.carries:
        metadata.write_props(function.metadata, model)
    _Writer(style).graph(function, model.graph, style.constants, is_body=False)
    return model


def node_message(node: Node) -> NodeProto:
    """Convert one node, without properties that ONNX cannot express."""
    graph = GraphProto()
    _Writer(Style(carries=False)).node(node, graph.node)
    return graph.node[0]


class _Writer:
    """Writes the graphs of one model."""

    def __init__(self, style: Style) -> None:
        self.style = style

    def graph(self, function: Function, proto: GraphProto, constants: TensorWriter, *, is_body: bool) -> None:
        proto.name = function.name or "main"
        for value in function.inputs:
            write_value(value.name, value.type, proto.input.add())
        for value in function.outputs:
            write_value(value.name, value.type, proto.output.add())
        for name, type_ in function.types.items():
            write_value(name, type_, proto.value_info.add())
        for name, constant in function.constants.items():
            proto.initializer.append(constants(constant, name))
        for node in function.nodes:
            self.node(node, proto.node)
        if self.style.carries:
            proto.doc_string = function.doc
            metadata.write_graph(function, proto, with_metadata=is_body)

    def node(self, node: Node, nodes: Any) -> None:
        proto: NodeProto = nodes.add(op_type=node.op_type, input=node.inputs, output=node.outputs, name=node.name)
        if node.domain:
            proto.domain = node.domain
        for attribute in node.attributes:
            self.attribute(attribute, proto.attribute.add(name=attribute.name, type=attribute.kind.value))
        if self.style.carries and (node.control or node.device):
            metadata.write_node(node, proto)

    def attribute(self, attribute: Attribute, proto: AttributeProto) -> None:
        _ATTRIBUTE_WRITERS[attribute.kind](self, attribute.value, proto)

    def body(self, function: Function, proto: GraphProto) -> None:
        self.graph(function, proto, self.style.inner, is_body=True)

    def bodies(self, functions: tuple[Function, ...], proto: AttributeProto) -> None:
        for function in functions:
            self.body(function, proto.graphs.add())


def _write_types(types: tuple[Type, ...], proto: AttributeProto) -> None:
    for type_ in types:
        write_type(type_, proto.type_protos.add())


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8")


_ATTRIBUTE_WRITERS: dict[AttrKind, Callable[[_Writer, Any, AttributeProto], Any]] = {
    AttrKind.FLOAT: lambda _, value, proto: setattr(proto, "f", value),
    AttrKind.INT: lambda _, value, proto: setattr(proto, "i", value),
    AttrKind.STRING: lambda _, value, proto: setattr(proto, "s", _bytes(value)),
    AttrKind.TENSOR: lambda writer, value, proto: proto.t.CopyFrom(writer.style.inner(value, "")),
    AttrKind.GRAPH: lambda writer, value, proto: writer.body(value, proto.g),
    AttrKind.TYPE: lambda _, value, proto: write_type(value, proto.tp),
    AttrKind.FLOATS: lambda _, value, proto: proto.floats.extend(value),
    AttrKind.INTS: lambda _, value, proto: proto.ints.extend(value),
    AttrKind.STRINGS: lambda _, value, proto: proto.strings.extend(map(_bytes, value)),
    AttrKind.TENSORS: lambda writer, value, proto: proto.tensors.extend(writer.style.inner(item, "") for item in value),
    AttrKind.GRAPHS: lambda writer, value, proto: writer.bodies(value, proto),
    AttrKind.TYPES: lambda _, value, proto: _write_types(value, proto),
}
