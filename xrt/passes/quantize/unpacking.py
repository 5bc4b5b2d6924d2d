"""Products with packed weights as products of floats, for engines without the operator: what ONNX Runtime's MatMulNBits means.

The weights are constants of a quarter or an eighth of their size in float32, which they take here. The other operand stays as it
is: what an accuracy level rounds it to is left to who runs the packed operator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from xrt.graph import Attribute, Constant, DType, Function, Node, TensorType
from xrt.graph.rename import Names
from xrt.passes.quantize.packed import BIAS, DOMAIN

__all__ = ["unpack_weights"]

Array: TypeAlias = np.ndarray[Any, Any]

ZERO_POINTS, GROUPS = 3, 4
"""Inputs of MatMulNBits that may be left out: the zero point of each block, and the block of each row."""


def unpack_weights(function: Function) -> Function:
    """Return the Function with MatMulNBits of constant weights as MatMul, Cast and Add; other nodes stay, and bodies do."""
    packed = {node.name for node in function.nodes if _is_packed(node, function)}
    if not packed:
        return function
    names = Names()
    for name in (*function.value_names(), *(node.name for node in function.nodes)):
        names.take(name)
    constants = dict(function.constants)
    nodes = tuple(
        made
        for node in function.nodes
        for made in (_unpack(node, function, names, constants) if node.name in packed else (node,))
    )
    return function.replace(nodes=nodes, constants=constants)


def _is_packed(node: Node, function: Function) -> bool:
    if node.domain != DOMAIN or node.op_type != "MatMulNBits":
        return False
    # Blocks of rows are deprecated. With zero points ONNX Runtime computes something else than its description says.
    if all(node.inputs[ZERO_POINTS : GROUPS + 1]) and len(node.inputs) > GROUPS:
        return False
    return all(name in function.constants for name in node.inputs[1 : GROUPS + 1] if name)


def _unpack(node: Node, function: Function, names: Names, constants: dict[str, Constant]) -> Iterator[Node]:
    """Yield the nodes of a product: the last one has its name, and makes its output."""
    given = [*node.inputs, *("",) * (BIAS + 1 - len(node.inputs))]
    optional = [function.constants[name].array if name else None for name in given[ZERO_POINTS : GROUPS + 1]]
    weights = _compute_weights(node, function.constants[given[1]].array, function.constants[given[2]].array, *optional)
    constants[matrix := names.plain(f"{node.name}/weights")] = Constant(weights)
    steps: list[tuple[str, tuple[str, ...], tuple[Attribute, ...]]] = []
    type_ = function.get_type(given[0])
    narrow = type_.dtype if isinstance(type_, TensorType) and type_.dtype is not DType.FLOAT32 else None
    if narrow is not None:
        steps.append(("Cast", (given[0],), (Attribute.of("to", DType.FLOAT32.onnx),)))
    steps.append(("MatMul", (given[0], matrix), ()))
    if narrow is not None:
        steps.append(("Cast", ("",), (Attribute.of("to", narrow.onnx),)))
    if given[BIAS]:
        steps.append(("Add", ("", given[BIAS]), ()))
    before = ""
    for at, (op, inputs, attributes) in enumerate(steps):
        read = (before, *inputs[1:]) if before else inputs
        if at + 1 == len(steps):
            yield replace(node, op_type=op, domain="", inputs=read, attributes=attributes)
            return
        before = names.plain(f"{node.name}/{op.lower()}")
        yield Node(op, read, (before,), attributes, name=before, control=node.control)


def _compute_weights(node: Node, packed: Array, scales: Array, zeros: Array | None, groups: Array | None) -> Array:
    """Return the matrix in float32, a column for each row of the packed weights."""
    bits, block = int(node.attr("bits", 4)), int(node.attr("block_size"))
    inner, columns = int(node.attr("K")), int(node.attr("N"))
    count = -(-inner // block)
    integers = _split_bytes(packed.reshape(columns, count, -1), bits)[..., :block].reshape(columns, count * block)[:, :inner]
    scale = scales.reshape(columns, count).astype(np.float32)
    if zeros is None:
        zero: Any = np.full((columns, count), 1 << (bits - 1), np.float32)
    elif zeros.dtype == np.uint8:
        zero = _split_bytes(zeros.reshape(columns, -1), bits)[:, :count].astype(np.float32)
    else:  # as they are, in the type of the scales
        zero = zeros.reshape(columns, count).astype(np.float32)
    at = np.arange(inner) // block if groups is None else groups[:inner].astype(np.intp)
    return np.ascontiguousarray(((integers.astype(np.float32) - zero[:, at]) * scale[:, at]).T)


def _split_bytes(array: Array, bits: int) -> Array:
    """Return the numbers of so many bits in bytes, the first in the lowest bits."""
    mask = (1 << bits) - 1
    parts = [(array.astype(np.uint8) >> shift) & mask for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(*array.shape[:-1], -1)
