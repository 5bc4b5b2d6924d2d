"""`xrt.Graph`: graphs written in Python, with ONNX's own shape inference while they are traced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from xrt import builder
from xrt.formats.onnx.node_inference import node_types

if TYPE_CHECKING:
    from xrt.graph import Constant, Node, Type

__all__ = ["Graph"]


class Graph(builder.GraphBase):
    """A graph as a class: derive from it and write ``build``.

    >>> from xrt import ops
    >>> from xrt.graph import DType, TensorType
    >>> class Affine(Graph):
    ...     def build(self, x):
    ...         return ops.Relu(x * 2 + 1)
    >>> print(Affine().trace(TensorType(DType.FLOAT32, ("N", 3))).outputs[0])
    relu_1: float32[N,3]

    The names of `build`'s parameters are the names of the inputs. It returns a tensor, a tuple or list of tensors, or a
    dictionary from output names to tensors. Tensors know their shapes as far as ONNX can infer them.
    """

    def infer(
        self, node: Node, types: Mapping[str, Type], constants: Mapping[str, Constant], opsets: Mapping[str, int]
    ) -> Sequence[Type | None]:
        return node_types(node, types, constants, opsets)
