"""The types of one node's outputs, by ONNX's own inference: what a graph that is being traced asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import OperatorSetIdProto, TypeProto, shape_inference
from onnx.checker import ValidationError

from xrt.errors import ModelError
from xrt.formats.onnx.tensors import write_tensor
from xrt.formats.onnx.types import read_type, write_type
from xrt.formats.onnx.writing import node_message
from xrt.graph import Constant, Node, Type, schema_of

__all__ = ["node_types"]

SMALL = 1024
"""Constants of at most this many elements are shown to the inference: shapes, axes and the like."""


def node_types(
    node: Node, types: Mapping[str, Type], constants: Mapping[str, Constant], opsets: Mapping[str, int]
) -> Sequence[Type | None]:
    """Return the types of the node's outputs, None where ONNX cannot say.

    ``types`` and ``constants`` are those of its inputs, as far as they are known. Raises ModelError, with ONNX's own words,
    where the node or its inputs contradict the operator. Nodes with bodies are not for this function.
    """
    schema = schema_of(node.op_type, opsets.get(node.domain, 0), node.domain)
    if schema is None or not schema.has_type_and_shape_inference_function:
        return [None] * len(node.outputs)
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
    return [read_type(inferred[name]) if name in inferred else None for name in node.outputs]


def _type_message(type_: Type) -> TypeProto:
    proto = TypeProto()
    write_type(type_, proto)
    return proto


def _reason(text: str) -> str:
    """Return ONNX's message without the tags that it puts in front, one per level of its own."""
    return text.rpartition("[ShapeInferenceError] ")[2].rpartition("[TypeInferenceError] ")[2].strip()
