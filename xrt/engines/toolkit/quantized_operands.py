"""Where a product or a convolution has quantized operands, which a library may compute with as integers."""

from __future__ import annotations

from collections.abc import Iterator

from xrt.graph import DType, Function, Node, TensorType

__all__ = ["has_quantized_readers", "list_readers"]

BYTES = frozenset({DType.INT8, DType.UINT8})
_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})
_BOUNDS = frozenset({"Clip", "Relu"})
"""What a library takes into the quantization behind it."""
_MOVES = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""What libraries exchange with a dequantization before it."""


def list_readers(node: Node, function: Function) -> list[Node]:
    """Return the nodes that read the first result; empty where it is also a result of the Function."""
    if any(value.name == node.outputs[0] for value in function.outputs):
        return []
    return [use.node for use in function.users(node.outputs[0])]


def has_quantized_readers(node: Node, function: Function, *, quantizing: frozenset[str] = frozenset()) -> bool:
    """Whether all that reads the result of a DequantizeLinear are products, and convolutions, whose first operand is dequantized.

    That operand is no constant, and was of bytes. Where ``quantizing`` names the operator, its result is quantized again, maybe
    after Relu or Clip; and it names further ones by element, whose other operand is such, where the constant has one scale. Of
    what reads a single number some are enough: tools give one to all that read the same.
    """
    found = [_has_quantized_operand(one, name, function, quantizing) for one, name in _iter_readers(node, function)]
    constant = function.constants.get(node.inputs[0])
    is_number = constant is not None and constant.array.size == 1
    return any(found) if is_number else bool(found) and all(found)


def _iter_readers(node: Node, function: Function) -> Iterator[tuple[Node, str]]:
    """Yield what reads the result, maybe moved before, with the value that it reads."""
    for reader in list_readers(node, function):
        if reader.op in _MOVES and reader.inputs[0] == node.outputs[0]:
            yield from _iter_readers(reader, function)
        else:
            yield reader, node.outputs[0]


def _has_quantized_operand(reader: Node, constant: str, function: Function, quantizing: frozenset[str]) -> bool:
    is_product = reader.op in _PRODUCTS
    if not is_product and reader.op not in quantizing:
        return False
    others = [reader.inputs[0]] if is_product else [name for name in reader.inputs if name != constant]
    if len(others) != 1 or not _is_dequantized(others[0], function):
        return False
    if not is_product and not _has_one_scale(constant, function):
        return False
    return reader.op not in quantizing or all(last.op == "QuantizeLinear" for last in _iter_ends(reader, function))


def _has_one_scale(name: str, function: Function) -> bool:
    """Whether a value is dequantized by one scale, and not one per channel."""
    producer = function.producer(name)
    while producer is not None and producer.op in _MOVES:
        producer = function.producer(producer.inputs[0])
    scale = None if producer is None else function.constants.get(producer.inputs[1])
    return scale is not None and scale.array.size == 1


def _is_dequantized(name: str, function: Function) -> bool:
    """Whether a value is dequantized from bytes that are computed, maybe moved since."""
    producer = function.producer(name)
    while producer is not None and producer.op in _MOVES:
        producer = function.producer(producer.inputs[0])
    if producer is None or producer.op != "DequantizeLinear" or producer.inputs[0] in function.constants:
        return False
    type_ = function.get_type(producer.inputs[0])
    return isinstance(type_, TensorType) and type_.dtype in BYTES


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
