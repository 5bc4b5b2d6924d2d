"""What decides whether a library takes a node: the key under which its answer is kept, and the Function that it is shown."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Self, TypeAlias

from xrt.graph import Attribute, Constant, Function, Node, TensorType, Type, Value

__all__ = ["FindConstant", "NodeQuery"]

FindConstant: TypeAlias = Callable[[str, Function], Constant | None]
"""Returns the constant of that name which the answer may depend on; None for other values, and for large constants."""


@dataclass(frozen=True, slots=True)
class NodeQuery:
    """All of a node that decides whether a library takes it, so that equal nodes are asked about once."""

    op_type: str
    version: int
    """The opset that the Function of the query has."""
    attributes: tuple[Attribute, ...]
    inputs: tuple[TensorType | Constant | None, ...]
    """Constants that the answer may depend on stand as they are, other inputs as their types; None for one that is left out."""
    outputs: tuple[tuple[Type | None] | None, ...]
    """The type of each output that is asked for, as a tuple of one; None for the others."""

    @classmethod
    def of(cls, node: Node, function: Function, version: int, find_constant: FindConstant, asked: Collection[str]) -> Self:
        """Return the query about a node without bodies; ``asked`` are the names of the outputs that the library must have."""
        inputs = tuple(_find_input(name, function, find_constant) if name else None for name in node.inputs)
        outputs = tuple((function.get_type(name),) if name in asked else None for name in node.outputs)
        return cls(node.op_type, version, node.attributes, inputs, outputs)

    @property
    def asked(self) -> tuple[Type | None, ...]:
        """The types of the outputs that are asked for."""
        return tuple(output[0] for output in self.outputs if output is not None)

    def to_function(self) -> Function:
        """Return the node as a Function: inputs i0, i1, ... and outputs o0, o1, ..., by their places."""
        inputs = {f"i{k}": given for k, given in enumerate(self.inputs) if given is not None}
        outputs = {f"o{k}": output[0] for k, output in enumerate(self.outputs) if output is not None}
        read, written = (
            tuple(f"{letter}{k}" if f"{letter}{k}" in names else "" for k in range(count))
            for letter, names, count in (("i", inputs, len(self.inputs)), ("o", outputs, len(self.outputs)))
        )
        return Function(
            inputs=tuple(Value(name, given) for name, given in inputs.items() if isinstance(given, TensorType)),
            outputs=tuple(Value(name, type_) for name, type_ in outputs.items()),
            nodes=(Node(self.op_type, read, written, self.attributes),),
            constants={name: given for name, given in inputs.items() if isinstance(given, Constant)},
            opsets={"": self.version},
        )


def _find_input(name: str, function: Function, find_constant: FindConstant) -> TensorType | Constant | None:
    constant, type_ = find_constant(name, function), function.get_type(name)
    if constant is not None:
        return constant
    return type_ if isinstance(type_, TensorType) else None
