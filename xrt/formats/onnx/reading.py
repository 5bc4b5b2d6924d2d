"""Convert a ModelProto to a Function: inline model-local functions, check operators, read graphs and attributes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, helper, inliner

from xrt.errors import ModelError, did_you_mean
from xrt.formats.onnx.messages import (
    check_text,
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
)
from xrt.graph import Attribute, AttrKind, Constant, DType, Function, Node, TensorType, Type, Value, find_schema
from xrt.graph.attributes import decode_text
from xrt.graph.function import pause_gc
from xrt.graph.schemas import format_domain, latest_version, why_unknown
from xrt.operators import NodeWriter

if TYPE_CHECKING:
    from xrt.formats.onnx.messages import ExternalData


# Operators that ONNX Runtime's optimizer writes in the domain of ONNX, the first also at opsets that do not have it.
LAYER_NORMALIZATION, RMS_NORMALIZATION = "LayerNormalization", "SimplifiedLayerNormalization"
LAYER_NORMALIZATION_OPSET = 17
MAX_RANK = 64  # NumPy's limit on the rank of an array


def expand_normalization(
    node: Node, opset: int, constants: Mapping[str, Constant], dtype: DType | None
) -> tuple[list[Node], dict[str, Constant]]:
    """Decompose a normalization that ONNX does not have into ONNX operators; return the nodes and the constants that they read.

    ``constants`` are the constants of the graph. ``dtype`` is the element type of the scale, or None if it is not declared.
    """
    scale = node.inputs[1]
    is_centered = node.op_type == LAYER_NORMALIZATION
    axis, epsilon = node.attr("axis", -1), node.attr("epsilon", 1e-5)
    # onnx has no schema for this operator, so its attributes were not checked before.
    if not isinstance(axis, int) or axis < -MAX_RANK or not isinstance(epsilon, float):
        raise ModelError(f"{node.op_type} {node.outputs[0]!r} has no valid axis or epsilon: {axis!r:.80} and {epsilon!r:.80}")
    if axis >= 0 and scale not in constants:
        raise ModelError(f"the axes of {node.op_type} {node.outputs[0]!r} are not known: its scale is not an initialiser")
    # The scale has the normalized axes, which are the last ones of the input.
    axes = range(axis if axis < 0 else -len(constants[scale].shape), 0)
    # Optional outputs: the mean, and 1 / deviation, which is output 1 of a normalization that does not compute a mean.
    _, mean, inverse = (*node.outputs, "", "")[:3]
    if not is_centered:
        mean, inverse = "", mean or inverse
    half_dtype = dtype if dtype in (DType.FLOAT16, DType.BFLOAT16) else None
    number = np.float64 if dtype is DType.FLOAT64 else np.float32

    w = NodeWriter(node, Function((), (), opsets={"": opset}))
    x = w.cast(w.x, DType.FLOAT32) if half_dtype else w.x  # the default of the attribute stash_type
    if is_centered:
        x = w.op("Sub", x, w.reduce("ReduceMean", x, axes, output=mean))
    squares = w.reduce("ReduceMean", w.op("Pow", x, w.constant(2, number)), axes)
    deviation = w.op("Sqrt", w.op("Add", squares, w.constant(epsilon, number)))
    if inverse:
        w.op("Reciprocal", deviation, output=inverse)
    x = w.op("Div", x, deviation)
    x = w.op("Mul", w.cast(x, half_dtype) if half_dtype else x, scale)
    w.define(w.op("Add", x, node.inputs[2]) if w.has_input(2) else x)
    # The name of the node stays recognizable, for errors and pins by name.
    return [replace(part, name=f"{node.name}/{part.op.lower()}_{k}") for k, part in enumerate(w.nodes)], w.constants


# After inlining, a model may have MIN_NODE_LIMIT nodes, or MAX_NODE_RATIO times its stored nodes if that is more.
MIN_NODE_LIMIT = 100_000
MAX_NODE_RATIO = 100
MAX_NESTED_CALLS = 200  # the inliner is recursive
Key: TypeAlias = tuple[str, str, str]
"""Domain, name and overload of a function."""


def check_calls(model: ModelProto) -> None:
    """Raise ModelError if model-local functions are recursive, nested too deeply, or too large after inlining. Linear time."""
    bodies = {_get_key(function): [*iter_nodes(function.node)] for function in model.functions}
    # For each function, how often it calls each of the others.
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
        # Inlining replaces a call, which is one node, by the nodes of the callee.
        sizes[key] = len(bodies[key]) + sum(count * (sizes[call] - 1) for call, count in calls[key].items())
        depths[key] = 1 + max((depths[call] for call in calls[key]), default=0)
        if depths[key] > MAX_NESTED_CALLS:
            raise ModelError(f"{prefix}calls are nested more than {MAX_NESTED_CALLS} deep, from {_format_key(key)} on")
    main_calls = [make_call_key(node) for node in iter_nodes(model.graph.node)]
    total = sum(sizes.get(call, 1) for call in main_calls)
    stored = len(main_calls) + sum(map(len, bodies.values()))
    if total > max(MIN_NODE_LIMIT, MAX_NODE_RATIO * stored):
        raise ModelError(
            f"{prefix}they would make {total} nodes of the {stored} that the model holds; "
            f"at most {MAX_NODE_RATIO} times as many are allowed"
        )


def _format_key(key: Key) -> str:
    return ".".join(filter(None, key))


def make_call_key(node: NodeProto) -> Key:
    """Make the key of the model-local function that a node calls, if its operator is one."""
    return node.domain, node.op_type, node.overload


def iter_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from iter_nodes(graph.node)


# The inliner copies the model, so larger initializers are passed to it without data.
MAX_INLINER_BYTES = 1024


def inline_functions(model: ModelProto) -> ModelProto:
    """Inline model-local functions with onnx; return the model unchanged if there are none.

    onnx's inliner (as of 1.23) ignores attribute defaults of functions, and domains that only functions import, so both are added
    to the model first. Raises ModelError for a recursive function, and for a function whose opset cannot be converted.
    """
    if not model.functions:
        return model
    check_calls(model)
    copy = ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if tensor.ByteSize() > MAX_INLINER_BYTES:
            tensor.CopyFrom(TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims))
    imported = {entry.domain for entry in model.opset_import}
    for function in model.functions:
        for entry in function.opset_import:
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
    # Restore the data of large initializers.
    del inlined.graph.initializer[:]
    inlined.graph.initializer.extend(model.graph.initializer)
    return inlined


def _add_defaults(model: ModelProto) -> None:
    """Add default attributes to calls of model-local functions, in place."""
    defaults = {_get_key(function): function.attribute_proto for function in model.functions if function.attribute_proto}
    if not defaults:
        return
    for nodes in (model.graph.node, *(function.node for function in model.functions)):
        for node in iter_nodes(nodes):
            present = {attribute.name for attribute in node.attribute}
            node_defaults = defaults.get(make_call_key(node), ())
            node.attribute.extend(attribute for attribute in node_defaults if attribute.name not in present)


def _get_key(function: FunctionProto) -> Key:
    return function.domain, function.name, function.overload


# In a larger graph, searching for a similar name takes too long.
MAX_SEARCHED_NODES = 10_000


def read_function(model: ModelProto, external: ExternalData) -> Function:
    """Convert a model to a Function. Raises ModelError if the model violates ONNX's structure.

    Model-local functions are inlined. Sparse tensors become dense. An initializer that is also an input becomes a constant,
    because XRT does not support inputs with defaults. Training information, quantization annotations and denotations are dropped.
    """
    _check_header(model)
    model = inline_functions(model)
    reader = _Reader(_read_opsets(model), external)
    with pause_gc(len(model.graph.node)):
        function = reader.read_graph(model.graph, doc=model.doc_string, props=read_props(model))
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
    """Read the version of each domain; ``ai.onnx`` is normalized to the empty string."""
    opsets: dict[str, int] = {}
    for entry in model.opset_import:
        domain = check_text("" if entry.domain == "ai.onnx" else entry.domain, "the domain of an opset import")
        if opsets.setdefault(domain, entry.version) != entry.version:
            raise ModelError(f"it imports domain {domain or 'ai.onnx'!r} twice, at versions {opsets[domain]} and {entry.version}")
    # IR version 3 introduced opset imports.
    return {"": 1} if not opsets and model.ir_version < 3 else opsets


def _find_dtype(name: str, constants: dict[str, Constant], graph: GraphProto) -> DType | None:
    """Find the element type of a constant or declared value; None if the graph does not declare it."""
    if name in constants:
        return constants[name].dtype
    declared = next((proto for proto in (*graph.input, *graph.value_info) if proto.name == name), None)
    type_ = None if declared is None else read_boundary_value(declared).type
    return type_.dtype if isinstance(type_, TensorType) else None


class _Reader:
    """Converts the graphs of one model, which share opsets and external data."""

    def __init__(self, opsets: dict[str, int], external: ExternalData) -> None:
        self.opsets = opsets
        self.external = external
        self.operators: set[tuple[str, str]] = set()
        """(domain, operator) pairs already checked."""

    def read_graph(self, graph: GraphProto, doc: str = "", props: dict[str, str] | None = None) -> Function:
        """Convert a graph. ``doc`` and ``props`` are the documentation and metadata of the model, for its main graph."""
        constants = self.read_constants(graph)
        nodes = [node for proto in graph.node for node in self.read_node(proto, constants, graph)]
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
            doc=check_text(graph.doc_string or doc, "the documentation"),
            metadata={**metadata, **(props or {})},
        )

    def read_constants(self, graph: GraphProto) -> dict[str, Constant]:
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

    def read_node(self, proto: NodeProto, constants: dict[str, Constant], graph: GraphProto) -> list[Node]:
        """Convert a node. A normalization that ONNX does not have becomes several nodes, and adds to ``constants``."""
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        opset = self.opsets.get("", 0)
        is_early = proto.op_type == LAYER_NORMALIZATION and 0 < opset < LAYER_NORMALIZATION_OPSET
        needs_expansion = not domain and (is_early or proto.op_type == RMS_NORMALIZATION)
        if not needs_expansion and (domain, proto.op_type) not in self.operators:
            self.check_operator(domain, proto)
        inputs, outputs = tuple(proto.input), tuple(proto.output)
        attributes = self.read_attributes(proto) if proto.attribute else ()
        control, device = read_node_metadata(proto) if proto.metadata_props else ((), "")
        node = Node(proto.op_type, inputs, outputs, attributes, domain, proto.name, control, device)
        if not needs_expansion:
            return [node]
        if len(node.inputs) < 2 or not any(node.outputs):
            raise ModelError(f"node {_describe_node(proto)} needs two inputs and an output")
        nodes, added = expand_normalization(node, opset, constants, _find_dtype(node.inputs[1], constants, graph))
        constants.update(added)
        return nodes

    def check_operator(self, domain: str, proto: NodeProto) -> None:
        """Raise ModelError if the operator does not exist. Operators of domains that onnx does not know are accepted."""
        node, op_type = _describe_node(proto), proto.op_type
        version = self.opsets.get(domain)
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

    def read_attributes(self, node: NodeProto) -> tuple[Attribute, ...]:
        attributes: dict[str, Attribute] = {}
        for proto in node.attribute:
            check_texts([proto.name], f"the name of an attribute of node {_describe_node(node)}")
            attribute = self.read_attribute(proto, f"attribute {proto.name!r} of node {_describe_node(node)}")
            if attribute.name in attributes:
                raise ModelError(f"node {_describe_node(node)} has two attributes named {attribute.name!r}")
            attributes[attribute.name] = attribute
        return tuple(attributes[name] for name in sorted(attributes))

    def read_attribute(self, proto: AttributeProto, subject: str) -> Attribute:
        kind_number, name = proto.type, proto.name
        # Fast path for frequent kinds: a tree ensemble has hundreds of thousands of numbers.
        if kind_number == AttributeProto.INT:
            return Attribute(name, AttrKind.INT, proto.i)
        if kind_number == AttributeProto.INTS:
            return Attribute(name, AttrKind.INTS, tuple(proto.ints))
        if not kind_number:
            raise ModelError(f"{subject} has no kind")
        if proto.ref_attr_name:
            raise ModelError(f"{subject} refers to an attribute of a function")
        stored: Any = helper.get_attribute_value(proto)
        if kind_number == AttributeProto.SPARSE_TENSOR:
            # Only Constant has a sparse attribute, `sparse_value`. It becomes the dense attribute `value`.
            name = "value" if name == "sparse_value" else name
            kind_number = AttributeProto.TENSOR
        kind = AttrKind.TENSORS if kind_number == AttributeProto.SPARSE_TENSORS else AttrKind(kind_number)
        if kind.is_list:
            return Attribute(name, kind, tuple(self.read_element(item, kind.element, subject) for item in stored))
        return Attribute(name, kind, self.read_element(stored, kind, subject))

    def read_element(self, stored: Any, kind: AttrKind, subject: str) -> Any:
        if kind is AttrKind.FLOAT:
            return math.nan if math.isnan(stored) else stored  # always the same NaN object, so that tuples compare equal
        if kind is AttrKind.STRING:
            return decode_text(stored)
        if isinstance(stored, SparseTensorProto):
            return read_sparse(stored, self.external, subject)
        if kind is AttrKind.TENSOR:
            return read_tensor(stored, self.external, subject)
        if kind is AttrKind.GRAPH:
            return self.read_graph(stored)
        type_ = read_type(stored)
        if type_ is None:
            raise ModelError(f"{subject} is a type without an element type")
        return type_


def _describe_node(node: NodeProto) -> str:
    """Describe a node for an error: its name, or its first output if it has no name, and its operator."""
    name = node.name or next((output for output in node.output if output), "")
    return f"{name!r} ({node.op_type})"


def _read_inner_types(graph: GraphProto, nodes: Sequence[Node], excluded: Set[str]) -> dict[str, Type]:
    """Read the types in ``value_info`` of values that nodes compute or read, except the names in ``excluded``.

    Optimization passes often leave entries of values that no longer exist; they are dropped.
    """
    names = {name for node in nodes for name in node.outputs}
    values = [value for value in map(read_value, graph.value_info) if value.type is not None and value.name not in excluded]
    # Captured values may have types too; collecting them takes longer, and is rarely needed.
    if any(value.name not in names for value in values):
        names.update(name for node in nodes for name in node.uses)
    return {value.name: value.type for value in values if value.type is not None and value.name in names}


def _find_readers(function: Function, name: str, graph_label: str) -> Iterator[str]:
    """Yield a description of each reader of an undefined value, in bodies too."""
    for node in function.nodes:
        if name in node.inputs:
            yield f"node {node.name!r} ({node.op}) reads"
        for body in node.bodies:
            if name in body.captures:
                yield from _find_readers(body, name, f"body {body.name!r} of node {node.name!r} ({node.op})")
    yield f"{graph_label} returns"
