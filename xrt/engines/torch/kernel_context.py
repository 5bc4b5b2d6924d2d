"""What a kernel knows of the node that it computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from xrt.engines.contract.op_table import OpTable
from xrt.engines.toolkit.node_query import CompiledBody, NodeInfo
from xrt.engines.torch.dtypes import get_torch_dtype
from xrt.graph import DType, Function, Node, TensorType
from xrt.passes import find_constant

if TYPE_CHECKING:
    from xrt.graph import Constant

__all__ = ["Factory", "Run", "Tensor", "TorchKernelContext", "find_known", "ops"]


@dataclass(frozen=True, slots=True)
class TorchKernelContext(NodeInfo):
    """A node and its surroundings, for the factory of its kernel."""

    compile: Callable[[Function], Callable[[Sequence[Any]], list[Any]]]
    """Makes a closed Function callable; `body` is the way for a node's own bodies."""
    packed: list[Tensor] = field(default_factory=list)
    """Copies of constants in another order, to which a kernel adds its own; an executable counts their memory."""

    def input_dtype(self, index: int) -> DType | None:
        """Return the element type of the input in that place; None where it is left out or not known."""
        return _dtype(self.function, self.node.inputs[index]) if index < len(self.node.inputs) else None

    def attribute_dtype(self, name: str) -> DType | None:
        """Return the element type that an attribute tells by ONNX's number; None where it tells none."""
        number = self.attr(name) or 0
        return DType.from_onnx(number) if number else None

    def attribute_torch_dtype(self, name: str) -> torch.dtype | None:
        """Return the type of the tensors of the element type that an attribute tells; None where it tells none."""
        dtype = self.attribute_dtype(name)
        return None if dtype is None else get_torch_dtype(dtype)

    def read_numbers(self, index: int) -> Callable[[Tensor], list[Any]]:
        """Return what reads the numbers of the input in that place: once where they are constant, else at each call.

        It returns a flat list, which is empty for an input that is left out.
        """
        known = find_known(self.node, self.function, index)
        if known is not None:
            listed = known.array.reshape(-1).tolist()
            return lambda tensor: listed
        return lambda tensor: [] if tensor is None else tensor.reshape(-1).tolist()

    def body(self, attribute: str) -> CompiledBody:
        """Return the body that an attribute holds, compiled."""
        return CompiledBody.compile(self, attribute, self.compile)


def find_known(node: Node, function: Function, index: int) -> Constant | None:
    """Return the constant that the input in that place is; None where it is left out or known to a call only."""
    name = node.inputs[index] if index < len(node.inputs) else ""
    if not name:
        return None
    producer = function.producer(name)
    return function.constants.get(name) if producer is None else find_constant(producer, function)


def _dtype(function: Function, name: str) -> DType | None:
    type_ = function.get_type(name) if name else None
    return type_.dtype if isinstance(type_, TensorType) else None


Tensor: TypeAlias = Any
"""A tensor of torch's."""
Run: TypeAlias = Callable[..., Any]
"""What a factory returns."""
Factory: TypeAlias = "Callable[[TorchKernelContext], Run]"
ops: OpTable[Factory] = OpTable("torch")
"""Filled by the modules of `xrt.engines.torch.kernels`, one per family of operators."""
