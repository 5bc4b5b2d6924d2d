"""What ``onnx`` infers about the types of a Function's values, without its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx
from onnx import GraphProto, NodeProto, TensorProto, shape_inference

from xrt.formats.onnx.tensors import write_tensor
from xrt.formats.onnx.types import read_type
from xrt.formats.onnx.writing import Style, model_of
from xrt.graph import Constant, Function, Type

__all__ = ["Inferred", "infer_types"]

SMALL_BYTES = 1024
"""Constants up to this size keep their values, which shapes are computed from; of the others only the type is told."""


@dataclass(frozen=True, slots=True)
class Inferred:
    """What is inferred of the values of one Function, inputs and outputs included."""

    types: Mapping[str, Type]
    bodies: Mapping[str, tuple[Inferred, ...]]
    """By node name, in the order of the node's bodies."""


def infer_types(function: Function, symbols: frozenset[str]) -> Inferred | None:
    """Return what onnx infers, values propagated through shape computations; None where it cannot read the Function at all.

    What the Function already says of a value is taken as true. Extents of other names than the symbols are made up
    by onnx, which is to say unknown.
    """
    style = Style(constants=_type_only, inner=_type_only, carries=False)
    model = model_of(function, function.opsets, onnx.IR_VERSION, style)
    try:
        result = shape_inference.infer_shapes(model, data_prop=True)
        return _read(result.graph, function, symbols)
    except Exception:  # noqa: BLE001  # whatever it cannot read, it cannot say anything about
        return None


def _type_only(constant: Constant, name: str) -> TensorProto:
    if constant.nbytes <= SMALL_BYTES:
        return write_tensor(constant, name)
    return TensorProto(name=name, data_type=constant.dtype.onnx, dims=constant.shape)


def _read(graph: GraphProto, function: Function, symbols: frozenset[str]) -> Inferred:
    read = (
        (proto.name, read_type(proto.type, symbols)) for part in (graph.value_info, graph.output, graph.input) for proto in part
    )
    types = {name: type_ for name, type_ in read if type_ is not None}
    bodies = {
        node.name: tuple(_read(inner, body, symbols) for inner, body in zip(_graphs(graph.node[k]), node.bodies, strict=True))
        for k, node in enumerate(function.nodes)
        if node.bodies
    }
    return Inferred(types, bodies)


def _graphs(proto: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs among a node's attributes; they stand in the order in which the node has its bodies."""
    for attribute in proto.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
