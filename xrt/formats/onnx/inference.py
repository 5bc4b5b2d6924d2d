"""What ``onnx`` infers about the types of a Function's values, without its weights."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import onnx
from onnx import GraphProto, NodeProto, TensorProto, shape_inference

from xrt.formats.onnx.tensors import write_tensor
from xrt.formats.onnx.types import read_type
from xrt.formats.onnx.writing import Style, write_model
from xrt.graph import Constant, Function, Node, TensorType, Type

__all__ = ["POOLS", "InferredTypes", "can_propagate", "infer_types", "spell_out_pool"]

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
