"""Bring a bias into the product before it, so that libraries compute both in integers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from xrt.formats.onnx.names import FreshNames
from xrt.graph import Constant, DType, Function, Node, Shape, TensorType, Type

__all__ = ["fuse_biases"]

BROADCASTING_OPSET = 8
"""Since this opset Add, Sum and Gemm broadcast as they do now."""


def fuse_biases(function: Function) -> Function:
    """Return the Function with each MatMul by a constant matrix and the Add of a constant bias behind it as a Gemm.

    Operands of more than two axes are reshaped to rows, once for all that reads them; of their extents, one may be unknown. A Sum
    of two operands becomes an Add. ONNX Runtime makes the same Gemm, but has an integer kernel of it only where the bias is an
    integer too. Results are those of the Function up to the order of the sum. Types must be known: infer shapes first; the
    function itself is returned where nothing changes. Linear.
    """
    return function if function.opset() < BROADCASTING_OPSET else _Fusion(function).run()


class _Fusion:
    def __init__(self, function: Function) -> None:
        self.function = function
        self.names = FreshNames(function)
        self.constants: dict[str, Constant] = dict(function.constants)
        self.types: dict[str, Type] = dict(function.types)
        self.rows: dict[str, str] = {}
        self.awaited = {name for node in function.nodes for name in node.control}
        self.outputs = {value.name for value in function.outputs}

    def run(self) -> Function:
        nodes: list[Node] = []
        fused: set[str] = set()
        for given in self.function.nodes:
            node = replace(given, op_type="Add") if given.op == "Sum" and len(given.inputs) == 2 else given
            product = self.find_product(node)
            if product is None:
                nodes.append(node)
            else:
                fused.add(product.outputs[0])
                nodes += self.fuse(product, node)
        if nodes == list(self.function.nodes):
            return self.function
        nodes = [node for node in nodes if node.outputs[0] not in fused]
        read = {name for node in nodes for name in node.uses} | self.outputs
        constants = {name: constant for name, constant in self.constants.items() if name in read}
        types = {name: type_ for name, type_ in self.types.items() if name not in fused}
        return self.function.replace(nodes=nodes, constants=constants, types=types)

    def fuse(self, product: Node, node: Node) -> list[Node]:
        """Return the nodes in place of a product and the Add of its bias."""
        shape = _get_shape(product.inputs[0], self.function) or ()
        name = next(one for one in node.inputs if one != product.outputs[0])
        bias = self.add_constant(f"{product.name}_bias", self.function.constants[name].array.reshape(-1))
        gemm = replace(product, op_type="Gemm", inputs=(product.inputs[0], product.inputs[1], bias), outputs=node.outputs)
        return [gemm] if len(shape) == 2 else self.reshape(gemm, node, shape[:-1])

    def reshape(self, gemm: Node, node: Node, outer: Shape) -> list[Node]:
        """Return the product of rows, with the Reshape to them, unless there is one, and the one back in place of the Add."""
        made: list[Node] = []
        value, columns = gemm.inputs[0], self.function.constants[gemm.inputs[1]].shape[1]
        whole = [dim if isinstance(dim, int) else -1 for dim in outer]
        rows = None if -1 in whole else math.prod(whole)
        if value not in self.rows:
            inner = self.function.constants[gemm.inputs[1]].shape[0]
            self.rows[value] = self.add_value(f"{value}_rows", rows, inner)
            target = self.add_constant(f"{value}_rows_shape", np.array([-1, inner]))
            made = [Node("Reshape", (value, target), (self.rows[value],))]
        flat = self.add_value(f"{gemm.name}_rows", rows, columns)
        target = self.add_constant(f"{gemm.name}_shape", np.array([*whole, columns]))
        gemm = replace(gemm, inputs=(self.rows[value], *gemm.inputs[1:]), outputs=(flat,))
        return [*made, gemm, replace(node, op_type="Reshape", inputs=(flat, target))]

    def find_product(self, node: Node) -> Node | None:
        """Return the MatMul that only an Add of a constant bias reads; None where there is none."""
        if node.op != "Add" or node.control or node.name in self.awaited:
            return None
        for value, other in (node.inputs, node.inputs[::-1]):
            product, bias = self.function.producer(value), self.function.constants.get(other)
            if product is not None and bias is not None and self.can_fuse(product, bias):
                return product
        return None

    def can_fuse(self, product: Node, bias: Constant) -> bool:
        if product.op != "MatMul" or product.control or len(self.function.users(product.outputs[0])) != 1:
            return False
        weight, shape = self.function.constants.get(product.inputs[1]), _get_shape(product.inputs[0], self.function)
        if weight is None or weight.dtype is not DType.FLOAT32 or len(weight.shape) != 2 or product.outputs[0] in self.outputs:
            return False
        if bias.shape != (*[1] * (len(bias.shape) - 1), weight.shape[1]) or shape is None or len(shape) < 2:
            return False
        unknown = sum(not isinstance(dim, int) for dim in shape[:-1])
        return len(bias.shape) <= len(shape) and (len(shape) == 2 or (unknown <= 1 and 0 not in shape))

    def add_constant(self, name: str, array: np.ndarray) -> str:
        fresh = self.names.take(name)
        self.constants[fresh] = Constant(array)
        return fresh

    def add_value(self, name: str, rows: int | None, columns: int) -> str:
        fresh = self.names.take(name)
        self.types[fresh] = TensorType(DType.FLOAT32, (rows, columns))
        return fresh


def _get_shape(name: str, function: Function) -> Shape | None:
    type_ = function.get_type(name)
    return type_.shape if isinstance(type_, TensorType) and type_.dtype is DType.FLOAT32 else None
