"""Normalizations as the optimizer of ONNX Runtime writes them: in the default domain, at opsets that do not have them.

`LayerNormalization` below opset 17 and `SimplifiedLayerNormalization`, which is RMSNormalization, at any. Here they become the
operators that the optimizer fused, which libraries fuse again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from xrt.errors import ModelError
from xrt.graph import Constant, DType, Node, read_attributes

__all__ = ["FusedNormalization", "is_fused_normalization"]

LAYER, SIMPLIFIED = "LayerNormalization", "SimplifiedLayerNormalization"
LAYER_OPSET, AXES_ARE_INPUT = 17, 18


def is_fused_normalization(domain: str, op_type: str, opset: int) -> bool:
    """Whether ONNX has no such operator at the opset, and ONNX Runtime's optimizer writes it."""
    return not domain and (op_type == SIMPLIFIED or (op_type == LAYER and 0 < opset < LAYER_OPSET))


@dataclass
class FusedNormalization:
    """Writes one of these nodes in operators of ONNX."""

    node: Node
    opset: int
    constants: Mapping[str, Constant]
    """Those of the graph."""
    dtype: DType | None
    """Element type of the scale; None if it is not declared."""

    def expand(self) -> tuple[list[Node], dict[str, Constant]]:
        """Return the nodes, and the constants that they read in addition."""
        self.nodes: list[Node] = []
        self.added: dict[str, Constant] = {}
        node, outputs = self.node, (*self.node.outputs, "", "")
        half = self.dtype if self.dtype in (DType.FLOAT16, DType.BFLOAT16) else None
        dtype = np.float64 if self.dtype is DType.FLOAT64 else np.float32
        x = self._write("Cast", node.inputs[0], to=DType.FLOAT32.onnx) if half else node.inputs[0]  # as stash_type says
        if node.op_type == LAYER:
            x = self._write("Sub", x, self._mean(x, outputs[1]))
        squares = self._mean(self._write("Pow", x, self._constant("two", np.array(2, dtype))))
        epsilon = self._constant("epsilon", np.array(node.attr("epsilon", 1e-5), dtype))
        deviation = self._write("Sqrt", self._write("Add", squares, epsilon))
        inverse = outputs[2] if node.op_type == LAYER else outputs[1] or outputs[2]
        if inverse:
            self._write("Reciprocal", deviation, output=inverse)
        result = self._write("Div", x, deviation)
        result = self._write("Cast", result, to=half.onnx) if half else result
        has_bias = len(node.inputs) > 2 and node.inputs[2]
        result = self._write("Mul", result, node.inputs[1], output="" if has_bias else outputs[0])
        if has_bias:
            self._write("Add", result, node.inputs[2], output=outputs[0])
        return self.nodes, self.added

    def _mean(self, x: str, output: str = "") -> str:
        axes = list(range(-self._count_axes(), 0))
        if self.opset < AXES_ARE_INPUT:
            return self._write("ReduceMean", x, output=output, axes=axes)
        return self._write("ReduceMean", x, self._constant("axes", np.array(axes)), output=output)

    def _count_axes(self) -> int:
        axis, scale = self.node.attr("axis", -1), self.constants.get(self.node.inputs[1])
        if axis < 0:
            return -int(axis)
        if scale is None:
            raise ModelError(
                f"the axes of {self.node.op_type} {self.node.outputs[0]!r} are not known: its scale is no initialiser"
            )
        return len(scale.shape)

    def _constant(self, name: str, array: np.ndarray) -> str:
        full = f"{self.node.outputs[0]}/{name}"
        self.added[full] = Constant(array)
        return full

    def _write(self, op: str, *inputs: str, output: str = "", **attributes: object) -> str:
        output = output or f"{self.node.outputs[0]}/{op.lower()}_{len(self.nodes)}"
        name = self.node.name and f"{self.node.name}/{op.lower()}_{len(self.nodes)}"
        self.nodes.append(Node(op, inputs, (output,), read_attributes(attributes), name=name))
        return output
