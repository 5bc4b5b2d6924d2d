"""Convert a ModelProto to a Function: check operators, inline model-local functions, read graphs and attributes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    helper,
    inliner,
)

from xrt.errors import ModelError, did_you_mean
from xrt.formats.onnx.messages import (
    check_texts,
    read_boundary_value,
    read_graph_metadata,
    read_node_metadata,
    read_props,
    read_sparse,
    read_tensor,
    read_type,
    read_value,
    summarize_error,
    text,
)
from xrt.graph import Attribute, AttrKind, Constant, DType, Function, Node, TensorType, Type, Value, find_schema
from xrt.graph.attributes import decode_text
from xrt.graph.function import pause_gc
from xrt.graph.schemas import format_domain, latest_version, why_unknown
from xrt.operators import NodeWriter

if TYPE_CHECKING:
    from xrt.formats.onnx.messages import ExternalData


LAYER, SIMPLIFIED = "LayerNormalization", "SimplifiedLayerNormalization"
LAYER_OPSET = 17
MAX_RANK = 64  # NumPy's limit on the rank of an array


def is_fused_normalization(domain: str, op_type: str, opset: int) -> bool:
    """Whether ONNX Runtime's optimizer wrote this operator, which ONNX does not have at the opset."""
    return not domain and (op_type == SIMPLIFIED or (op_type == LAYER and 0 < opset < LAYER_OPSET))


def expand_normalization(
    node: Node, opset: int, constants: Mapping[str, Constant], dtype: DType | None
) -> tuple[list[Node], dict[str, Constant]]:
    """Decompose a fused normalization into ONNX operators; also return the constants that these need.

    ``constants`` are those of the graph, ``dtype`` is the element type of the scale if it is declared.
    """
    scale, is_centered = node.inputs[1], node.op_type == LAYER
    axis, epsilon = node.attr("axis", -1), node.attr("epsilon", 1e-5)
    # onnx has no schema for this operator, so its attributes were not checked before.
    if not isinstance(axis, int) or axis < -MAX_RANK or not isinstance(epsilon, float):
        raise ModelError(f"{node.op_type} {node.outputs[0]!r} has no valid axis or epsilon: {axis!r:.80} and {epsilon!r:.80}")
    if axis >= 0 and scale not in constants:
        raise ModelError(f"the axes of {node.op_type} {node.outputs[0]!r} are not known: its scale is not an initialiser")
    axes = range(axis if axis < 0 else -len(constants[scale].shape), 0)
    _, mean, inverse = (*node.outputs, "", "")[:3]
    if not is_centered:
        mean, inverse = "", mean or inverse  # without a mean, the second output may be the deviation
    half_dtype = dtype if dtype in (DType.FLOAT16, DType.BFLOAT16) else None
    number = np.float64 if dtype is DType.FLOAT64 else np.float32

    w = NodeWriter(node, Function((), (), opsets={"": opset}))
    x = w.cast(w.x, DType.FLOAT32) if half_dtype else w.x  # as stash_type demands
    if is_centered:
        x = w.op("Sub", x, w.reduce("ReduceMean", x, axes, output=mean))
    squares = w.reduce("ReduceMean", w.op("Pow", x, w.constant(2, number)), axes)
    deviation = w.op("Sqrt", w.op("Add", squares, w.constant(epsilon, number)))
    if inverse:
        w.op("Reciprocal", deviation, output=inverse)
    x = w.op("Div", x, deviation)
    x = w.op("Mul", w.cast(x, half_dtype) if half_dtype else x, scale)
    w.define(w.op("Add", x, node.inputs[2]) if w.has_input(2) else x)
    # The node's own name, which errors and pins by name refer to, stays recognizable.
    return [replace(part, name=f"{node.name}/{part.op.lower()}_{k}") for k, part in enumerate(w.nodes)], w.constants


# Inlining may give the first number of nodes, or the second number times the nodes of the model if that is more.
MIN_NODE_LIMIT = 100_000
MAX_NODE_RATIO = 100
MAX_NESTED_CALLS = 200  # nested calls; the inliner is recursive
Key: TypeAlias = tuple[str, str, str]
"""Domain, name and overload of a function."""


def check_calls(model: ModelProto) -> None:
    """Raise ModelError if functions are recursive, nested too deeply, or too large after inlining.

    Linear in the size of the model.
    """
    bodies = {_get_key(function): [*nodes_inside(function.node)] for function in model.functions}
    calls = {key: Counter(call for call in map(make_call_key, nodes) if call in bodies) for key, nodes in bodies.items()}
    prefix = "its model-local functions cannot be inlined: "
    try:
        order = tuple(TopologicalSorter(calls).static_order())
    except CycleError as error:
        cycle: list[Key] = error.args[1]
        raise ModelError(f"{prefix}{_format_key(cycle[0])} is recursive, through {len(cycle) - 1} function(s)") from None
    sizes: dict[Key, int] = {}
    depths: dict[Key, int] = {}
    for key in order:  # callees first
        sizes[key] = len(bodies[key]) + sum(count * (sizes[call] - 1) for call, count in calls[key].items())
        depths[key] = 1 + max((depths[call] for call in calls[key]), default=0)
        if depths[key] > MAX_NESTED_CALLS:
            raise ModelError(f"{prefix}calls are nested more than {MAX_NESTED_CALLS} deep, from {_format_key(key)} on")
    main = [make_call_key(node) for node in nodes_inside(model.graph.node)]
    total = sum(sizes.get(call, 1) for call in main)
    stored = len(main) + sum(map(len, bodies.values()))
    if total > max(MIN_NODE_LIMIT, MAX_NODE_RATIO * stored):
        raise ModelError(
            f"{prefix}they would make {total} nodes of the {stored} that the model holds; "
            f"at most {MAX_NODE_RATIO} times as many are allowed"
        )


def _format_key(key: Key) -> str:
    return ".".join(filter(None, key))


def make_call_key(node: NodeProto) -> Key:
    """Key of the function that the node calls, if it calls one."""
    return node.domain, node.op_type, node.overload


def nodes_inside(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield the nodes and those in their bodies."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from nodes_inside(graph.node)


# The inliner copies the model, so larger initializers are passed to it without data.
SMALL_BYTES = 1024


def inline(model: ModelProto) -> ModelProto:
    """Inline model-local functions; returns the model unchanged if there are none.

    The inliner copies a serialized model, so large initializers are removed first. It ignores (as of onnx 1.23) attribute
    defaults of functions and domains imported only by functions, so these are added before. Raises ModelError for a recursive
    function, or one with another opset that cannot be converted.
    """
    if not model.functions:
        return model
    check_calls(model)
    copy = ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if tensor.ByteSize() > SMALL_BYTES:
            tensor.CopyFrom(TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims))
    imported = {entry.domain for entry in model.opset_import}
    for entry in (entry for function in model.functions for entry in function.opset_import):
        if entry.domain not in imported:
            imported.add(entry.domain)
            copy.opset_import.append(entry)
    _add_defaults(copy)
    try:
        inlined = inliner.inline_local_functions(copy, convert_version=True)
    except Exception as error:  # the inliner's C++ raises many types
        raise ModelError(f"its model-local functions cannot be inlined: {summarize_error(error)}") from error
    if inlined.functions:
        names = ", ".join(f"{f.domain}.{f.name}" for f in inlined.functions)
        raise ModelError(f"its model-local functions {names} cannot be inlined: they import other opsets than the model")
    # Put back the data that the inliner was not shown.
    del inlined.graph.initializer[:]
    inlined.graph.initializer.extend(model.graph.initializer)
    return inlined


def _add_defaults(model: ModelProto) -> None:
    """Add default attributes to calls of local functions. Modifies the model."""
    defaults = {_get_key(function): function.attribute_proto for function in model.functions if function.attribute_proto}
    for nodes in (model.graph.node, *(function.node for function in model.functions)) if defaults else ():
        for node in nodes_inside(nodes):
            present = {attribute.name for attribute in node.attribute}
            missing = defaults.get(make_call_key(node), ())
            node.attribute.extend(attribute for attribute in missing if attribute.name not in present)


def _get_key(function: FunctionProto) -> Key:
    return function.domain, function.name, function.overload


# Searching for a similar name takes too long in larger graphs.
MAX_SEARCHED_NODES = 10_000


def read_function(model: ModelProto, external: ExternalData) -> Function:
    """Convert a model to a Function.

    Model-local functions are inlined and sparse tensors become dense. An initializer that is also an input becomes a constant,
    regardless of the IR version: XRT does not have inputs with defaults. Training information, quantization annotations and
    denotations are dropped. Raises ModelError if the model violates ONNX's structure.
    """
    _check_header(model)
    model = inline(model)
    reader = _Reader(_read_opsets(model), external)
    with pause_gc(len(model.graph.node)):
        function = reader.function(model.graph, doc=model.doc_string, props=read_props(model))
    if function.captures:
        name = function.captures[0]
        use = next(_find_readers(function, name, f"graph {function.name!r}"))
        hint = did_you_mean(name, function.value_names()) if len(function.nodes) <= MAX_SEARCHED_NODES else ""
        raise ModelError(f"{use} value {name!r}, which no input, initialiser or node defines.{hint}")
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


def _read_opsets(model: ModelProto) -> dict[str, int]:
    """The version of each domain; ``ai.onnx`` is normalized to the empty string."""
    opsets: dict[str, int] = {}
    for entry in model.opset_import:
        domain = text("" if entry.domain == "ai.onnx" else entry.domain, "the domain of an opset import")
        if opsets.setdefault(domain, entry.version) != entry.version:
            raise ModelError(f"it imports domain {domain or 'ai.onnx'!r} twice, at versions {opsets[domain]} and {entry.version}")
    if not opsets and model.ir_version < 3:
        return {"": 1}  # opset imports came with IR version 3
    return opsets


def _find_dtype(name: str, constants: dict[str, Constant], graph: GraphProto) -> DType | None:
    """Element type of a constant or declared value; None if the graph does not declare it."""
    if name in constants:
        return constants[name].dtype
    declared = next((proto for proto in (*graph.input, *graph.value_info) if proto.name == name), None)
    type_ = None if declared is None else read_boundary_value(declared).type
    return type_.dtype if isinstance(type_, TensorType) else None


class _Reader:
    """Reads the graphs of one model, which share opsets and external data."""

    def __init__(self, opsets: dict[str, int], external: ExternalData) -> None:
        self.opsets = opsets
        self.external = external
        self.operators: set[tuple[str, str]] = set()
        """(domain, operator) pairs already checked."""

    def function(self, graph: GraphProto, doc: str = "", props: dict[str, str] | None = None) -> Function:
        """Convert a graph; ``doc`` and ``props`` are those of the model for its main graph."""
        constants = self.constants(graph)
        nodes = [node for proto in graph.node for node in self.nodes(proto, constants, graph)]
        check_texts((name for node in nodes for name in (node.name, *node.inputs, *node.outputs)), "the name of a value or node")
        inputs = tuple(read_boundary_value(proto) for proto in graph.input if proto.name not in constants)
        outputs = tuple(read_boundary_value(proto) for proto in graph.output)
        if any(not value.name for value in (*inputs, *outputs)):
            raise ModelError(f"graph {graph.name!r} has an input or output without a name")
        output_names = {value.name for value in outputs}
        types = _read_inner_types(graph, nodes, {*constants, *(v.name for v in inputs)}) if graph.value_info else {}
        name, aliases, metadata = read_graph_metadata(graph)
        return Function(
            inputs=inputs,
            outputs=tuple(Value(v.name, types.get(v.name)) if v.type is None else v for v in outputs),
            nodes=tuple(nodes),
            constants=constants,
            opsets=self.opsets,
            aliases=aliases,
            types={n: t for n, t in types.items() if n not in output_names},
            name=name,
            doc=text(graph.doc_string or doc, "the documentation"),
            metadata={**metadata, **(props or {})},
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
            add(sparse.values.name, read_sparse(sparse, self.external, f"initialiser {sparse.values.name!r}"))
        return constants

    def nodes(self, proto: NodeProto, constants: dict[str, Constant], graph: GraphProto) -> list[Node]:
        """Convert a node. A normalization fused by ONNX Runtime's optimizer becomes several nodes and adds constants."""
        domain, opset = "" if proto.domain == "ai.onnx" else proto.domain, self.opsets.get("", 0)
        is_fused = is_fused_normalization(domain, proto.op_type, opset)
        if not is_fused and (domain, proto.op_type) not in self.operators:
            self.check_operator(domain, proto)
        node = Node(
            proto.op_type,
            tuple(proto.input),
            tuple(proto.output),
            self.attributes(proto) if proto.attribute else (),
            domain,
            proto.name,
            *(read_node_metadata(proto) if proto.metadata_props else ()),
        )
        if not is_fused:
            return [node]
        if len(node.inputs) < 2 or not any(node.outputs):
            raise ModelError(f"node {_describe_node(proto)} needs two inputs and an output")
        nodes, added = expand_normalization(node, opset, constants, _find_dtype(node.inputs[1], constants, graph))
        constants.update(added)
        return nodes

    def check_operator(self, domain: str, proto: NodeProto) -> None:
        """Raise ModelError if the operator does not exist. Operators of domains unknown to onnx pass."""
        node, op_type, version = _describe_node(proto), proto.op_type, self.opsets.get(domain)
        check_texts((domain, op_type), f"the operator or domain of node {node}")
        if not op_type:
            raise ModelError(f"node {node} has no operator")
        if version is None:
            imported = ", ".join(f"{format_domain(d)} {v}" for d, v in self.opsets.items()) or "none"
            problem = f"is of domain {format_domain(domain)}, whose opset the model does not import (it imports: {imported})"
            raise ModelError(f"node {node} {problem}")
        if newest := latest_version(domain):
            if version > newest:
                raise ModelError(
                    f"it uses opset {version} of {format_domain(domain)}, but the installed onnx {onnx.__version__} knows "
                    f"{newest} at most; upgrade onnx, or export the model for an older opset"
                )
            if version < 1:
                raise ModelError(f"it uses opset {version} of {format_domain(domain)}; versions start at 1")
            if find_schema(op_type, version, domain) is None:
                raise ModelError(f"node {node}: {why_unknown(op_type, version, domain)}")
        self.operators.add((domain, op_type))

    def attributes(self, node: NodeProto) -> tuple[Attribute, ...]:
        attributes: dict[str, Attribute] = {}
        for proto in node.attribute:
            check_texts([proto.name], f"the name of an attribute of node {_describe_node(node)}")
            attribute = self.attribute(proto, f"attribute {proto.name!r} of node {_describe_node(node)}")
            if attribute.name in attributes:
                raise ModelError(f"node {_describe_node(node)} has two attributes named {attribute.name!r}")
            attributes[attribute.name] = attribute
        return tuple(attributes[name] for name in sorted(attributes))

    def attribute(self, proto: AttributeProto, subject: str) -> Attribute:
        kind_number, name = proto.type, proto.name
        # The most frequent kinds first: a tree ensemble has hundreds of thousands of numbers.
        if kind_number == AttributeProto.INT:
            return Attribute(name, AttrKind.INT, proto.i)
        if kind_number == AttributeProto.INTS:
            return Attribute(name, AttrKind.INTS, tuple(proto.ints))
        if not kind_number or proto.ref_attr_name:
            raise ModelError(f"{subject} {'refers to an attribute of a function' if kind_number else 'has no kind'}")
        stored: Any = helper.get_attribute_value(proto)
        if kind_number == AttributeProto.SPARSE_TENSOR:
            # Only Constant has one, as `sparse_value`; its dense form is called `value`.
            name, kind_number = "value" if name == "sparse_value" else name, AttributeProto.TENSOR
        kind = AttrKind.TENSORS if kind_number == AttributeProto.SPARSE_TENSORS else AttrKind(kind_number)
        if kind.is_list:
            return Attribute(name, kind, tuple(self.element(item, kind.element, subject) for item in stored))
        return Attribute(name, kind, self.element(stored, kind, subject))

    def element(self, stored: Any, kind: AttrKind, subject: str) -> Any:
        """Convert one element of an attribute."""
        if kind is AttrKind.FLOAT:
            return stored if stored == stored else math.nan  # the same NaN object, so that tuples compare equal
        if kind is AttrKind.STRING:
            return decode_text(stored)
        if isinstance(stored, SparseTensorProto):
            return read_sparse(stored, self.external, subject)
        if kind is AttrKind.TENSOR:
            return read_tensor(stored, self.external, subject)
        if kind is AttrKind.GRAPH:
            return self.function(stored)
        type_ = read_type(stored)
        if type_ is None:
            raise ModelError(f"{subject} is a type without an element type")
        return type_


def _describe_node(node: NodeProto) -> str:
    """Name a node in an error, by its first output if it has no name."""
    name = node.name or next((output for output in node.output if output), "")
    return f"{name!r} ({node.op_type})"


def _read_inner_types(graph: GraphProto, nodes: Sequence[Node], excluded: Set[str]) -> dict[str, Type]:
    """Types in ``value_info`` for values that nodes define or capture, except values with their own type.

    Entries for values that do not exist are common after optimization passes; they are dropped.
    """
    defined = {name for node in nodes for name in node.outputs}
    values = [value for value in map(read_value, graph.value_info) if value.type is not None and value.name not in excluded]
    if any(value.name not in defined for value in values):
        defined.update(name for node in nodes for name in node.uses)
    return {value.name: value.type for value in values if value.type is not None and value.name in defined}


def _find_readers(function: Function, name: str, graph_label: str) -> Iterator[str]:
    """Yield descriptions of the readers of an undefined value, including those in bodies."""
    for node in function.nodes:
        if name in node.inputs:
            yield f"node {node.name!r} ({node.op}) reads"
        for body in node.bodies:
            if name in body.captures:
                yield from _find_readers(body, name, f"body {body.name!r} of node {node.name!r} ({node.op})")
    yield f"{graph_label} returns"
