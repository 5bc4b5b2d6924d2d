"""What a rule is given of a node, and the words that most rules are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from xrt.errors import ModelError
from xrt.formats.onnx.node_inference import node_types
from xrt.graph import Constant, Dim, DType, Node, Shape, TensorType, Type, read_attributes

__all__ = ["Operands", "Rule", "as_first", "like", "make_type", "of_dtype"]


@dataclass(frozen=True, slots=True)
class Operands:
    """A node, and what is known of its inputs."""

    node: Node
    types: Sequence[Type | None]
    constants: Mapping[str, Constant]
    """Those of the inputs that are constants, by value name."""
    opset: int
    """The version of ai.onnx."""

    def attr(self, name: str, default: Any = None) -> Any:
        return self.node.attr(name, default)

    def has(self, index: int) -> bool:
        return index < len(self.node.inputs) and bool(self.node.inputs[index])

    def tensor(self, index: int) -> TensorType | None:
        type_ = self.types[index] if index < len(self.types) else None
        return type_ if isinstance(type_, TensorType) else None

    def dtype(self, index: int) -> DType | None:
        type_ = self.tensor(index)
        return None if type_ is None else type_.dtype

    def shape(self, index: int) -> Shape | None:
        type_ = self.tensor(index)
        return None if type_ is None else type_.shape

    def dim(self, index: int, axis: int) -> Dim:
        shape = self.shape(index)
        return None if shape is None or not -len(shape) <= axis < len(shape) else shape[axis]

    def like(self, op: str, inputs: Sequence[int], *attributes: str, **given: Any) -> Shape | None:
        """Return the shape that an operator of ai.onnx gives for some of the inputs, taken for float32, and some attributes."""
        types = [self.tensor(index) for index in inputs]
        if None in types:
            return None
        names = [f"i{index}" for index in inputs]
        kept = {name: value for name in attributes if (value := self.attr(name)) is not None} | given
        floats = {name: TensorType(DType.FLOAT32, t.shape) for name, t in zip(names, types, strict=True) if t is not None}
        try:
            (type_,) = node_types(Node(op, tuple(names), ("o",), read_attributes(kept)), floats, {}, {"": self.opset})
        except ModelError:
            return None  # the inputs contradict each other: the engine that runs the node will say so
        return type_.shape if isinstance(type_, TensorType) else None


Rule: TypeAlias = Callable[[Operands], Sequence[Type | None]]
"""Says the types of the node's outputs; there may be fewer of them than outputs."""


def make_type(dtype: DType | None, shape: Shape | None) -> Type | None:
    """Return the tensor type, None where the element type is not known."""
    return None if dtype is None else TensorType(dtype, shape)


def as_first(*, also: int = 1, dtype: int = 0) -> Rule:
    """Return the rule of operators whose first outputs are of the first input's shape, and of the element type of an input."""
    return lambda o: [make_type(o.dtype(dtype), o.shape(0))] * also


def of_dtype(dtype: int | DType) -> Rule:
    """Return the rule of operators of which only the element type is known: an input's, or always the same."""
    return lambda o: [make_type(o.dtype(dtype) if isinstance(dtype, int) else dtype, None)]


def like(op: str, inputs: Sequence[int], *attributes: str, dtype: int = 0, **given: Any) -> Rule:
    """Return the rule of operators that are one of ai.onnx with another element type or an activation behind."""
    return lambda o: [make_type(o.dtype(dtype), o.like(op, inputs, *attributes, **given))]
