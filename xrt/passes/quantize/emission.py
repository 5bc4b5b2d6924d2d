"""Quantized nodes as they are written: pairs of QuantizeLinear and DequantizeLinear, and the constants that they read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from xrt.errors import ModelError, OptionError
from xrt.formats.onnx.names import FreshNames
from xrt.graph import Constant, DType, Function, Node, TensorType, Type
from xrt.passes.dead_code_elimination import drop_dead_nodes
from xrt.passes.opset_upgrade import upgrade_opset
from xrt.passes.quantize.parameters import Parameters
from xrt.passes.quantize.weights import QuantizedWeight

__all__ = ["Emission", "require_opset"]

PER_CHANNEL_OPSET, BLOCKS_OPSET = 13, 21
"""Opsets from which on DequantizeLinear has an axis, and blocks and integers of 4 bits."""


def require_opset(function: Function, *, blocks: bool = False) -> Function:
    """Return the Function at an opset that has the operators; raises OptionError where it cannot be converted."""
    opset = BLOCKS_OPSET if blocks else PER_CHANNEL_OPSET
    try:
        return upgrade_opset(function, opset)
    except ModelError as error:
        raise OptionError(f"quantization needs opset {opset} of ai.onnx: {error}") from error


class Emission:
    """A Function under change: values get quantized forms, each once, and nodes read these."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.nodes: list[Node] = []
        self.constants: dict[str, Constant] = dict(function.constants)
        self.types: dict[str, Type] = dict(function.types)
        self._names = FreshNames(function)
        self._pairs: dict[str, str] = {}
        self._shielded: dict[str, str] = {}
        self._weights: dict[tuple[object, ...], str] = {}
        self._dynamic: dict[str, tuple[str, str, str]] = {}
        self._matrices: dict[tuple[str, bool], tuple[str, str, str]] = {}

    def add_constant(self, name: str, array: Any) -> str:
        """Add a constant under a name like that one, and return its name."""
        fresh = self._names.take(name)
        self.constants[fresh] = Constant(np.ascontiguousarray(array) if array.ndim else array)
        return fresh

    def quantize(self, value: str, parameters: Parameters) -> str:
        """Return the value quantized and dequantized, by one pair of nodes however often it is asked for."""
        if value not in self._pairs:
            dtype, shape = DType.of(parameters.zero_point), getattr(self.function.get_type(value), "shape", None)
            terms = (
                self.add_constant(f"{value}_scale", parameters.scale),
                self.add_constant(f"{value}_zero_point", parameters.zero_point),
            )
            integers = self.define(f"{value}_quantized", "QuantizeLinear", (value, *terms), TensorType(dtype, shape))
            floats = TensorType(DType.FLOAT32, shape)
            self._pairs[value] = self.define(f"{value}_dequantized", "DequantizeLinear", (integers, *terms), floats)
        return self._pairs[value]

    def dequantize(self, name: str, weight: QuantizedWeight, key: tuple[object, ...]) -> str:
        """Return a constant that is stored as integers, dequantized; equal keys share it."""
        if key not in self._weights:
            found, attributes = weight.parameters, {} if weight.axis is None else {"axis": weight.axis}
            if weight.block:
                attributes["block_size"] = weight.block
            terms = [self.add_constant(f"{name}_quantized", weight.integers), self.add_constant(f"{name}_scale", found.scale)]
            if weight.integers.dtype != np.int32:  # a bias; it has no zero point
                terms.append(self.add_constant(f"{name}_zero_point", found.zero_point))
            type_ = TensorType(DType.FLOAT32, weight.integers.shape)
            self._weights[key] = self.define(f"{name}_dequantized", "DequantizeLinear", tuple(terms), type_, attributes)
        return self._weights[key]

    def shield(self, value: str) -> str:
        """Return the same value, of an operator that no library takes for a part of a quantized one."""
        if value not in self._shielded:
            self._shielded[value] = self.define(f"{value}_float", "Max", (value,), self.types[value])
        return self._shielded[value]

    def finish(self, nodes: Iterable[Node]) -> Function:
        """Return the Function with these nodes in place of its own, without what nothing reads any more."""
        made = self.function.replace(nodes=(*nodes, *self.nodes), constants=self.constants, types=self.types)
        return drop_dead_nodes(made)

    def define(
        self, name: str, op: str, inputs: tuple[str, ...], type_: Type | DType, attributes: dict[str, int] | None = None
    ) -> str:
        """Return the result of a new node; a dtype alone leaves the shape to be inferred."""
        fresh = self._names.take(name)
        node = Node(op, inputs, (fresh,))
        self.nodes.append(replace(node.with_attributes(**attributes) if attributes else node, name=fresh))
        self.types[fresh] = TensorType(type_, None) if isinstance(type_, DType) else type_
        return fresh

    def quantize_in_call(self, value: str) -> tuple[str, str, str]:
        """Return the value as bytes, their scale and zero point, by one DynamicQuantizeLinear however often it is asked for."""
        if value not in self._dynamic:
            names = tuple(self._names.take(f"{value}_{part}") for part in ("bytes", "byte_scale", "byte_zero_point"))
            self.nodes.append(Node("DynamicQuantizeLinear", (value,), names, name=names[0]))
            shape = getattr(self.function.get_type(value), "shape", None)
            own = TensorType(DType.UINT8, shape), TensorType(DType.FLOAT32, ()), TensorType(DType.UINT8, ())
            self.types.update(zip(names, own, strict=True))
            self._dynamic[value] = names[0], names[1], names[2]
        return self._dynamic[value]

    def store_matrix(self, name: str, integers: Any, found: Parameters, *, is_turned: bool) -> tuple[str, str, str]:
        """Return the constants of a matrix as integers, its scales and zero points, each once."""
        if (name, is_turned) not in self._matrices:
            terms = {"integers": integers, "integer_scale": found.scale, "integer_zero_point": found.zero_point}
            first, second, third = (self.add_constant(f"{name}_{part}", array) for part, array in terms.items())
            self._matrices[name, is_turned] = first, second, third
        return self._matrices[name, is_turned]
