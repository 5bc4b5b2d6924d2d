"""The types of one node's outputs, by ONNX's own inference: what a graph that is being traced asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import OperatorSetIdProto, TypeProto, defs, shape_inference
from onnx.checker import ValidationError

from xrt.errors import ModelError
from xrt.formats.onnx.inference import POOLS, spell_out_pool
from xrt.formats.onnx.tensors import write_tensor
from xrt.formats.onnx.types import read_type, write_type
from xrt.formats.onnx.writing import node_message
from xrt.graph import AttrKind, Constant, DType, Node, Type, find_schema

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
