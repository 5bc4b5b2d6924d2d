"""Where a product or a convolution has quantized operands, which a library may compute with as integers."""

from __future__ import annotations

from collections.abc import Iterator

from xrt.graph import DType, Function, Node, TensorType

__all__ = ["has_quantized_readers", "list_readers"]

BYTES = frozenset({DType.INT8, DType.UINT8})
_BOUNDS = frozenset({"Clip", "Relu"})
"""What a library takes into the quantization behind it."""


def list_readers(node: Node, function: Function) -> list[Node]:
    """Return the nodes that read the first result; empty where it is also a result of the Function."""
    if any(value.name == node.outputs[0] for value in function.outputs):
        return []
    return [use.node for use in function.users(node.outputs[0])]


def has_quantized_readers(node: Node, function: Function) -> bool:
    """Whether all that reads the result of a DequantizeLinear are products, and convolutions, whose first operand is dequantized.

    That operand is no constant, and was of bytes. The result of a convolution is quantized again, maybe after Relu or Clip.
    """
    readers = list_readers(node, function)
    return bool(readers) and all(_has_quantized_operand(reader, function) for reader in readers)


def _has_quantized_operand(reader: Node, function: Function) -> bool:
    if reader.op not in {"Conv", "Gemm", "MatMul"}:
        return False
    producer = function.producer(reader.inputs[0])
    if producer is None or producer.op != "DequantizeLinear" or producer.inputs[0] in function.constants:
        return False
    type_ = function.get_type(producer.inputs[0])
    if not isinstance(type_, TensorType) or type_.dtype not in BYTES:
        return False
    return reader.op != "Conv" or all(last.op == "QuantizeLinear" for last in _iter_ends(reader, function))


def _iter_ends(node: Node, function: Function) -> Iterator[Node]:
    """Yield what reads the node's result, behind operators that only bound it; the node itself where nothing does."""
    readers = list_readers(node, function)
    if not readers:
        yield node
    for reader in readers:
        if reader.op in _BOUNDS and reader.inputs[0] == node.outputs[0]:
            yield from _iter_ends(reader, function)
        else:
            yield reader
