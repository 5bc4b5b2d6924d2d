"""What a kernel knows of the node that it computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from xrt.engines.torch.dtypes import get_torch_dtype
from xrt.errors import CompileRefused
from xrt.graph import DType, Function, Node, TensorType, Value
from xrt.passes import find_constant

if TYPE_CHECKING:
    from xrt.engines.torch.table import Tensor
    from xrt.graph import Constant

__all__ = ["TorchBody", "TorchKernelContext", "close_over", "find_known"]


@dataclass(frozen=True, slots=True)
class TorchBody:
    """A body Function ready to run: the branch of an If, the body of a Loop."""

    function: Function
    compute: Callable[[Sequence[Any]], list[Any]]
    """Takes the closed Function's inputs: its own, then what it captures."""
    picks: tuple[int, ...]
    """Which of the node's captures the body reads, in the body's order."""

    def __call__(self, inputs: Sequence[Any], captured: Sequence[Any]) -> list[Any]:
        """Return the body's outputs from its inputs and from all that the node captures."""
        return self.compute([*inputs, *(captured[i] for i in self.picks)])


@dataclass(frozen=True, slots=True)
class TorchKernelContext:
    """A node and its surroundings, for the factory of its kernel."""

    node: Node
    function: Function
    """The Function that holds the node."""
    compile: Callable[[Function], Callable[[Sequence[Any]], list[Any]]]
    """Makes a closed Function callable; `body` is the way for a node's own bodies."""

    @property
    def version(self) -> int:
        """The opset version of the node's domain."""
        return self.function.opset(self.node.domain)

    @property
    def n_outputs(self) -> int:
        """How many outputs the node lists, left-out ones in front of a present one included."""
        return len(self.node.outputs)

    def attr(self, name: str, default: Any = None) -> Any:
        """Return the node's attribute, or the default where it does not carry it."""
        return self.node.attr(name, default)

    def wants(self, index: int) -> bool:
        """Whether the node has an output in that place."""
        return index < len(self.node.outputs) and bool(self.node.outputs[index])

    def input_dtype(self, index: int) -> DType | None:
        """Return the element type of the input in that place; None where it is left out or not known."""
        return _dtype(self.function, self.node.inputs[index]) if index < len(self.node.inputs) else None

    def result_dtype(self, index: int = 0) -> DType | None:
        """Return the element type of the output in that place, where it is known."""
        return _dtype(self.function, self.node.outputs[index])

    def attribute_dtype(self, name: str) -> DType | None:
        """Return the element type that an attribute tells by ONNX's number; None where it tells none."""
        number = self.attr(name) or 0
        return DType.from_onnx(number) if number else None

    def attribute_torch_dtype(self, name: str) -> torch.dtype | None:
        """Return the type of the tensors of the element type that an attribute tells; None where it tells none."""
        told = self.attribute_dtype(name)
        return None if told is None else get_torch_dtype(told)

    def read_numbers(self, index: int) -> Callable[[Tensor], list[Any]]:
        """Return what reads the numbers of the input in that place: once where they are constant, else at each call.

        It returns a flat list, which is empty for an input that is left out.
        """
        known = find_known(self.node, self.function, index)
        if known is not None:
            listed = known.array.reshape(-1).tolist()
            return lambda tensor: listed
        return lambda tensor: [] if tensor is None else tensor.reshape(-1).tolist()

    def refuse(self, why: str) -> CompileRefused:
        """Return the error to raise where the node cannot be computed."""
        return CompileRefused(f"{self.node.op} {why}")

    def body(self, attribute: str) -> TorchBody:
        """Return the body that an attribute holds, compiled."""
        function = self.node.attr(attribute)
        captures = self.node.captures
        picks = tuple(captures.index(name) for name in function.captures)
        return TorchBody(function, self.compile(close_over(function, self.function)), picks)


def close_over(body: Function, outer: Function) -> Function:
    """Return the body with what it captures from outside as further inputs, typed as they are there."""
    return body.replace(inputs=(*body.inputs, *(Value(name, outer.get_type(name)) for name in body.captures)))


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
