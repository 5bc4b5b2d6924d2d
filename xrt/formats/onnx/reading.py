"""From a ModelProto to a Function."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from typing import TYPE_CHECKING, Any

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TypeProto

from xrt.errors import ModelError, did_you_mean
from xrt.formats.onnx import metadata
from xrt.formats.onnx.fused_normalization import FusedNormalization, is_fused_normalization
from xrt.formats.onnx.inlining import inline
from xrt.formats.onnx.operators import OperatorRules
from xrt.formats.onnx.string_checks import check_texts, text
from xrt.formats.onnx.tensors import DenseLimit, read_sparse, read_tensor
from xrt.formats.onnx.types import read_border_value, read_type, read_value
from xrt.graph import Attribute, AttrKind, Constant, DType, Function, Node, TensorType, Type, Value
from xrt.graph.gc_pause import pause_gc

if TYPE_CHECKING:
    from xrt.formats.onnx.external_data import ExternalData

__all__ = ["read_function"]

LARGEST_SEARCHED = 10_000
"""Nodes up to which the nearest name is looked for, which takes time."""


def read_function(model: ModelProto, external: ExternalData) -> Function:
    """Return the model as a Function.

    Model-local functions are inlined, sparse tensors become dense. An initialiser that is also an input is a constant
    and no input, whatever the IR version: XRT has no inputs with defaults. Training information, quantisation
    annotations and denotations are left out. Raises ModelError for whatever breaks a rule of ONNX's structure.
    """
    _check_header(model)
    model = inline(model)
    reader = _Reader(_opsets(model), external)
    with pause_gc(len(model.graph.node)):
        function = reader.function(model.graph, doc=model.doc_string, props=metadata.read_props(model))
    if function.captures:
        raise _undefined(function)
    return function


def _check_header(model: ModelProto) -> None:
    if not model.ir_version or not model.HasField("graph"):
        missing = "graph" if model.ir_version else "IR version"
        raise ModelError(f"it is not an ONNX model: it has no {missing}")
    if model.ir_version > onnx.IR_VERSION:
        raise ModelError(
            f"it has IR version {model.ir_version}, but the installed onnx {onnx.__version__} knows {onnx.IR_VERSION} at most; "
            "upgrade onnx, or export the model with an older version"
        )


def _opsets(model: ModelProto) -> dict[str, int]:
    """Return the version of each domain; ``ai.onnx`` is the empty string's other name."""
    opsets: dict[str, int] = {}
    for entry in model.opset_import:
        domain = text("" if entry.domain == "ai.onnx" else entry.domain, "the domain of an opset import")
        if opsets.setdefault(domain, entry.version) != entry.version:
            raise ModelError(f"it imports domain {domain or 'ai.onnx'!r} twice, at versions {opsets[domain]} and {entry.version}")
    if not opsets and model.ir_version < 3:
        return {"": 1}  # opset imports came with IR version 3
    return opsets


def _find_dtype(name: str, constants: dict[str, Constant], graph: GraphProto) -> DType | None:
    """Return the element type of a constant or declared value; None if the graph does not declare it."""
    if name in constants:
        return constants[name].dtype
    declared = next((proto for proto in (*graph.input, *graph.value_info) if proto.name == name), None)
    type_ = None if declared is None else read_border_value(declared).type
    return type_.dtype if isinstance(type_, TensorType) else None


class _Reader:
    """Reads the graphs of one model: they share its opsets and its external data."""

    def __init__(self, opsets: dict[str, int], external: ExternalData) -> None:
        self.opsets = opsets
        self.external = external
        self.rules = OperatorRules(opsets)
        self.room = DenseLimit()

    def function(self, graph: GraphProto, doc: str = "", props: dict[str, str] | None = None) -> Function:
        """Return the graph as a Function; doc and props are what the model says about its main graph."""
        constants = self.constants(graph)
        nodes = [node for proto in graph.node for node in self.nodes(proto, constants, graph)]
        check_texts((name for node in nodes for name in (node.name, *node.inputs, *node.outputs)), "the name of a value or node")
        inputs = tuple(read_border_value(proto) for proto in graph.input if proto.name not in constants)
        outputs = tuple(read_border_value(proto) for proto in graph.output)
        _check_named(graph, (*inputs, *outputs))
        given = {value.name for value in outputs}
        types = _inner_types(graph, nodes, {*constants, *(v.name for v in inputs)}) if graph.value_info else {}
        name, aliases, own = metadata.read_graph(graph)
        return Function(
            inputs=inputs,
            outputs=tuple(Value(v.name, types.get(v.name)) if v.type is None else v for v in outputs),
            nodes=tuple(nodes),
            constants=constants,
            opsets=self.opsets,
            aliases=aliases,
            types={n: t for n, t in types.items() if n not in given},
            name=name,
            doc=text(graph.doc_string or doc, "the documentation"),
            metadata={**own, **(props or {})},
        )

    def constants(self, graph: GraphProto) -> dict[str, Constant]:
        constants: dict[str, Constant] = {}

        def add(name: str, constant: Constant) -> None:
            check_texts([name], "the name of an initialiser")
            if not name:
                raise ModelError(f"graph {graph.name!r} has an initialiser without a name")
            if name in constants:
                raise ModelError(f"graph {graph.name!r} has two initialisers named {name!r}")
            constants[name] = constant

        for tensor in graph.initializer:
            add(tensor.name, read_tensor(tensor, self.external, f"initialiser {tensor.name!r}"))
        for sparse in graph.sparse_initializer:
            add(sparse.values.name, read_sparse(sparse, self.external, f"initialiser {sparse.values.name!r}", self.room))
        return constants

    def nodes(self, proto: NodeProto, constants: dict[str, Constant], graph: GraphProto) -> list[Node]:
        """Read a node; a normalization that ONNX Runtime's optimizer fused becomes several, and adds constants."""
        domain, opset = "" if proto.domain == "ai.onnx" else proto.domain, self.opsets.get("", 0)
        if not is_fused_normalization(domain, proto.op_type, opset):
            return [self.node(proto)]
        self.rules.known.add((domain, proto.op_type))
        node = self.node(proto)
        nodes, added = FusedNormalization(node, opset, constants, _find_dtype(node.inputs[1], constants, graph)).expand()
        constants.update(added)
        return nodes

    def node(self, proto: NodeProto) -> Node:
        domain = proto.domain
        if domain == "ai.onnx":
            domain = ""
        if (domain, proto.op_type) not in self.rules.known:
            self.rules.check(domain, proto.op_type, _name_of(proto))
        control, device = metadata.read_node(proto) if proto.metadata_props else ((), "")
        return Node(
            proto.op_type,
            tuple(proto.input),
            tuple(proto.output),
            self.attributes(proto) if proto.attribute else (),
            domain,
            proto.name,
            control,
            device,
        )

    def attributes(self, node: NodeProto) -> tuple[Attribute, ...]:
        found: dict[str, Attribute] = {}
        for proto in node.attribute:
            check_texts([proto.name], f"the name of an attribute of node {_name_of(node)}")
            attribute = self.attribute(proto, f"attribute {proto.name!r} of node {_name_of(node)}")
            if attribute.name in found:
                raise ModelError(f"node {_name_of(node)} has two attributes named {attribute.name!r}")
            found[attribute.name] = attribute
        return tuple(found[name] for name in sorted(found))

    def attribute(self, proto: AttributeProto, what: str) -> Attribute:
        number = proto.type or _kind_by_content(proto, what)
        if number == AttributeProto.INT:
            return Attribute(proto.name, AttrKind.INT, proto.i)
        if number == AttributeProto.INTS:
            return Attribute(proto.name, AttrKind.INTS, tuple(proto.ints))
        if number == AttributeProto.SPARSE_TENSOR:
            # Only Constant has one, as `sparse_value`; its dense form is called `value`.
            name = "value" if proto.name == "sparse_value" else proto.name
            return Attribute(name, AttrKind.TENSOR, read_sparse(proto.sparse_tensor, self.external, what, self.room))
        if number == AttributeProto.SPARSE_TENSORS:
            dense = tuple(read_sparse(sparse, self.external, what, self.room) for sparse in proto.sparse_tensors)
            return Attribute(proto.name, AttrKind.TENSORS, dense)
        kind = AttrKind(number)
        stored = getattr(proto, _FIELD[kind])
        if kind.is_list:
            return Attribute(proto.name, kind, tuple(self.element(item, kind.element, what) for item in stored))
        return Attribute(proto.name, kind, self.element(stored, kind, what))

    def element(self, stored: Any, kind: AttrKind, what: str) -> Any:
        """Return one element of an attribute as the Attribute holds it."""
        if kind is AttrKind.FLOAT:
            return stored if stored == stored else math.nan  # the one NaN that equals itself inside a tuple
        if kind is AttrKind.STRING:
            return _text(stored)
        if kind is AttrKind.TENSOR:
            return read_tensor(stored, self.external, what)
        if kind is AttrKind.GRAPH:
            return self.function(stored)
        return _definite_type(stored, what)


_FIELD = {
    AttrKind.FLOAT: "f",
    AttrKind.STRING: "s",
    AttrKind.TENSOR: "t",
    AttrKind.GRAPH: "g",
    AttrKind.TYPE: "tp",
    AttrKind.FLOATS: "floats",
    AttrKind.STRINGS: "strings",
    AttrKind.TENSORS: "tensors",
    AttrKind.GRAPHS: "graphs",
    AttrKind.TYPES: "type_protos",
}

_BY_CONTENT = {
    "f": AttributeProto.FLOAT,
    "i": AttributeProto.INT,
    "s": AttributeProto.STRING,
    "t": AttributeProto.TENSOR,
    "g": AttributeProto.GRAPH,
    "tp": AttributeProto.TYPE_PROTO,
    "sparse_tensor": AttributeProto.SPARSE_TENSOR,
    "floats": AttributeProto.FLOATS,
    "ints": AttributeProto.INTS,
    "strings": AttributeProto.STRINGS,
    "tensors": AttributeProto.TENSORS,
    "graphs": AttributeProto.GRAPHS,
    "type_protos": AttributeProto.TYPE_PROTOS,
    "sparse_tensors": AttributeProto.SPARSE_TENSORS,
}


def _kind_by_content(proto: AttributeProto, what: str) -> Any:
    """Return the kind of an attribute that does not say it: models before IR version 2 did not."""
    for field, _ in proto.ListFields():
        if field.name in _BY_CONTENT:
            return _BY_CONTENT[field.name]
    raise ModelError(f"{what} has neither a kind nor a value")


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw


def _definite_type(proto: TypeProto, what: str) -> Type:
    type_ = read_type(proto)
    if type_ is None:
        raise ModelError(f"{what} is a type without an element type")
    return type_


def _name_of(node: NodeProto) -> str:
    """Return what to call a node in an error: many have no name, so the first output serves."""
    name = node.name or next((output for output in node.output if output), "")
    return f"{name!r} ({node.op_type})"


def _check_named(graph: GraphProto, values: Sequence[Value]) -> None:
    if any(not value.name for value in values):
        raise ModelError(f"graph {graph.name!r} has an input or output without a name")


def _inner_types(graph: GraphProto, nodes: Sequence[Node], elsewhere: Set[str]) -> dict[str, Type]:
    """Return what ``value_info`` says of the values that nodes define or capture, without those that carry their own type.

    Entries about values that are nowhere in the graph are common after optimisation passes; they are left out.
    """
    defined = {name for node in nodes for name in node.outputs}
    values = [value for value in map(read_value, graph.value_info) if value.type is not None and value.name not in elsewhere]
    if any(value.name not in defined for value in values):
        defined.update(name for node in nodes for name in node.uses)
    return {value.name: value.type for value in values if value.type is not None and value.name in defined}


def _undefined(function: Function) -> ModelError:
    name = function.captures[0]
    reader = next(_readers(function, name, f"graph {function.name!r}"))
    near = did_you_mean(name, function.value_names()) if len(function.nodes) <= LARGEST_SEARCHED else ""
    return ModelError(f"{reader} value {name!r}, which no input, initialiser or node defines.{near}")


def _readers(function: Function, name: str, title: str) -> Iterator[str]:
    """Yield who reads a value that comes from outside of the function, bodies included."""
    for node in function.nodes:
        if name in node.inputs:
            yield f"node {node.name!r} ({node.op}) reads"
        for body in node.bodies:
            if name in body.captures:
                yield from _readers(body, name, f"body {body.name!r} of node {node.name!r} ({node.op})")
    yield f"{title} returns"
