"""What ``onnx`` infers about the types of a Function's values, without its weights."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import onnx
from onnx import GraphProto, NodeProto, OperatorSetIdProto, TensorProto, TypeProto, defs, shape_inference
from onnx.checker import ValidationError

from xrt.errors import ModelError
from xrt.formats.onnx.tensors import read_type, write_tensor, write_type
from xrt.formats.onnx.writing import Style, node_message, write_model
from xrt.graph import AttrKind, Constant, DType, Function, Node, TensorType, Type, find_schema

__all__ = ["POOLS", "InferredTypes", "can_propagate", "infer_types", "node_types", "spell_out_pool"]

SMALL_BYTES = 1024
"""Constants up to this size keep their values, from which shapes are computed; of the others only the type is passed."""
NOTHING: Mapping[str, Type] = MappingProxyType({})
POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})
LONGEST_PROPAGATED = 1 << 20
"""With a tensor of rank 1 that is longer than this, values are not propagated: it would take seconds and gigabytes."""


@dataclass(frozen=True, slots=True)
class InferredTypes:
    """What is inferred of the values of one Function, inputs and outputs included."""

    types: Mapping[str, Type]
    bodies: Mapping[str, tuple[InferredTypes, ...]]
    """By node name, in the order of the node's bodies."""


def infer_types(function: Function, symbols: frozenset[str]) -> InferredTypes | None:
    """Return what onnx infers, values propagated through shape computations; None where it cannot read the Function at all.

    The Function must obey the rules of `xrt.graph.verify`: given a node that does not, onnx's C++ may end the process.

    What the Function already says of a value is taken as true. Extents of other names than the symbols are made up
    by onnx, which is to say unknown.
    """
    found = _infer(function, symbols)
    if found is None or not _rounds_up(function):
        return found
    # The padding of a pool follows from the extents of its input, which an earlier pool decides.
    spelled = function
    while found is not None and (following := _spell_out_pools(function, found)) != spelled:
        spelled, found = following, _infer(following, symbols)
    return found


def _infer(function: Function, symbols: frozenset[str]) -> InferredTypes | None:
    style = Style(constants=_type_only, inner=_type_only, carries=False)
    model = write_model(function, function.opsets, onnx.IR_VERSION, style)
    try:
        result = shape_inference.infer_shapes(model, data_prop=can_propagate(function))
        return _read(result.graph, function, symbols)
    except Exception:  # noqa: BLE001  # whatever it cannot read, it cannot say anything about
        return None


def _rounds_up(function: Function) -> bool:
    """Whether the Function, or a body in it, has a pool with ``ceil_mode``."""
    return any(_is_rounded_pool(node) or any(map(_rounds_up, node.bodies)) for node in function.nodes)


def _is_rounded_pool(node: Node) -> bool:
    return node.op in POOLS and bool(node.attr("ceil_mode", 0))


def _spell_out_pools(function: Function, known: InferredTypes, outer: Mapping[str, Type] = NOTHING) -> Function:
    nodes, types = [], ChainMap(dict(known.types), dict(outer))
    for node in function.nodes:
        if node.bodies:
            bodies = iter(known.bodies[node.name])
            node = node.map_bodies(lambda body: _spell_out_pools(body, next(bodies), types))  # noqa: PLW2901, B023  # at once
        elif _is_rounded_pool(node):
            node = spell_out_pool(node, types.get(node.inputs[0]))  # noqa: PLW2901
        nodes.append(node)
    return function.replace(nodes=tuple(nodes))


def spell_out_pool(node: Node, type_: Type | None) -> Node:
    """Replace ``ceil_mode`` of a pool by the padding that its windows read.

    Below opset 22, ONNX's inference counts a window that begins in the padding behind the input. No library does, and
    PyTorch's exporter declares the results without it.
    """
    kernel = node.attr("kernel_shape")
    shape = type_.shape if isinstance(type_, TensorType) else None
    if not _is_rounded_pool(node) or kernel is None or shape is None or len(shape) != len(kernel) + 2:
        return node
    if node.attr("auto_pad", "NOTSET") != "NOTSET":
        return node.with_attributes(ceil_mode=0)
    rank = len(kernel)
    strides, dilations = node.attr("strides") or (1,) * rank, node.attr("dilations") or (1,) * rank
    pads = list(node.attr("pads") or (0,) * (2 * rank))
    for axis, extent in enumerate(shape[2:]):
        if isinstance(extent, int):
            begin, stride, span = pads[axis], strides[axis], (kernel[axis] - 1) * dilations[axis] + 1
            last = -(-(extent + begin + pads[rank + axis] - span) // stride) * stride  # where the last window begins
            if last >= extent + begin:
                last -= stride
            pads[rank + axis] = max(pads[rank + axis], last + span - extent - begin)
    return node.with_attributes(ceil_mode=0, pads=tuple(pads))


def can_propagate(function: Function) -> bool:
    """Whether onnx can propagate values: for that it makes an object of every element of each tensor of rank 1."""
    return all(_is_short(type_) for type_ in _known_types(function))


def _is_short(type_: Type | None) -> bool:
    if not isinstance(type_, TensorType) or type_.shape is None or len(type_.shape) != 1:
        return True
    (extent,) = type_.shape
    return not isinstance(extent, int) or extent <= LONGEST_PROPAGATED


def _known_types(function: Function) -> Iterator[Type | None]:
    yield from (value.type for value in (*function.inputs, *function.outputs))
    yield from function.types.values()
    yield from (constant.type for constant in function.constants.values())
    for node in function.nodes:
        for body in node.bodies:
            yield from _known_types(body)


def _type_only(constant: Constant, name: str) -> TensorProto:
    if constant.nbytes <= SMALL_BYTES:
        return write_tensor(constant, name)
    return TensorProto(name=name, data_type=constant.dtype.onnx, dims=constant.shape)


def _read(graph: GraphProto, function: Function, symbols: frozenset[str]) -> InferredTypes:
    read = (
        (proto.name, read_type(proto.type, symbols)) for part in (graph.value_info, graph.output, graph.input) for proto in part
    )
    types = {name: type_ for name, type_ in read if type_ is not None}
    bodies = {
        node.name: tuple(_read(inner, body, symbols) for inner, body in zip(_graphs(graph.node[k]), node.bodies, strict=True))
        for k, node in enumerate(function.nodes)
        if node.bodies
    }
    return InferredTypes(types, bodies)


def _graphs(proto: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs among a node's attributes; they stand in the order in which the node has its bodies."""
    for attribute in proto.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


SMALL = 1024
"""Constants of at most this many elements are shown to the inference: shapes, axes and the like."""


def node_types(
    node: Node, types: Mapping[str, Type], constants: Mapping[str, Constant], opsets: Mapping[str, int]
) -> Sequence[Type | None]:
    """Return the types of the node's outputs, None where ONNX cannot say.

    ``types`` and ``constants`` are those of its inputs, as far as they are known. Raises ModelError, with ONNX's own words,
    where the node or its inputs contradict the operator. Nodes with bodies are not for this function.
    """
    schema = find_schema(node.op_type, opsets.get(node.domain, 0), node.domain)
    if schema is None or not schema.has_type_and_shape_inference_function:
        return [None] * len(node.outputs)
    if node.op_type in POOLS and not node.domain:
        node = spell_out_pool(node, types.get(node.inputs[0]))
    kind = _kind_of(node, types, constants, opsets)
    known = None if kind is None else _known.get(kind)
    if known is None:
        known = _inferred(schema, node, types, constants, opsets)
        if kind is not None:
            _remember(kind, known)
    return known


def _inferred(
    schema: defs.OpSchema, node: Node, types: Mapping[str, Type], constants: Mapping[str, Constant], opsets: Mapping[str, int]
) -> Sequence[Type | None]:
    try:
        inferred = shape_inference.infer_node_outputs(
            schema,
            node_message(node),
            {name: _type_message(type_) for name, type_ in types.items()},
            {name: write_tensor(c, name) for name, c in constants.items() if c.array.size <= SMALL},
            opset_imports=[OperatorSetIdProto(domain=domain, version=version) for domain, version in opsets.items()],
        )
    except (shape_inference.InferenceError, ValidationError) as error:
        raise ModelError(_reason(str(error))) from error
    return tuple(read_type(inferred[name]) if name in inferred else None for name in node.outputs)


# ---------------------------------------------------------------------- nodes that are alike

_known: dict[object, Sequence[Type | None]] = {}
"""The types that were inferred in this process, by all that decides them: layers of a model ask the same again and again."""
KNOWN = 8192
"""Kinds of nodes whose types are kept."""
_NUMBERS = frozenset({AttrKind.FLOAT, AttrKind.INT, AttrKind.STRING, AttrKind.FLOATS, AttrKind.INTS, AttrKind.STRINGS})


def _content(constant: Constant) -> bytes | str:
    return repr(constant.array.tolist()) if constant.dtype is DType.STRING else constant.array.tobytes()


def _remember(kind: object, types: Sequence[Type | None]) -> None:
    if len(_known) >= KNOWN:
        _known.clear()
    _known[kind] = types


def _kind_of(
    node: Node, types: Mapping[str, Type], constants: Mapping[str, Constant], opsets: Mapping[str, int]
) -> tuple[object, ...] | None:
    """Return all that the inference sees of a node but for names; None where that is too much to compare."""
    if any(attribute.kind not in _NUMBERS for attribute in node.attributes):
        return None
    small = ((at, constants[name]) for at, name in enumerate(node.inputs) if name in constants)
    return (
        node.op_type,
        node.domain,
        tuple(opsets.items()),
        tuple((a.name, a.kind, repr(a.value)) for a in node.attributes),  # as text: True, 1 and 1.0 are equal
        tuple(types.get(name) if name else None for name in node.inputs),
        tuple((at, c.dtype, c.shape, _content(c)) for at, c in small if c.array.size <= SMALL),
        tuple(map(bool, node.inputs)),
        tuple(map(bool, node.outputs)),
    )


def _type_message(type_: Type) -> TypeProto:
    proto = TypeProto()
    write_type(type_, proto)
    return proto


def _reason(text: str) -> str:
    """Return ONNX's message without the tags that it puts in front, one per level of its own."""
    return text.rpartition("[ShapeInferenceError] ")[2].rpartition("[TypeInferenceError] ")[2].strip()
