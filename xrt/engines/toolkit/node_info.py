"""Compile nodes to kernels: the node and its Function, its bodies, and the values that are dead after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from xrt.errors import CompileRefused
from xrt.graph import DType, Function, Node, TensorType, Value


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node and its Function, passed to the factory of its kernel."""

    node: Node
    function: Function

    @property
    def version(self) -> int:
        """The opset version of the node's domain."""
        return self.function.opset(self.node.domain)

    @property
    def n_outputs(self) -> int:
        """The number of outputs, absent ones before a present one included."""
        return len(self.node.outputs)

    def attr(self, name: str, default: Any = None) -> Any:
        return self.node.attr(name, default)

    def input_dtype(self, index: int) -> DType | None:
        """The element type of the input at this position; None if the input is absent or its type unknown."""
        name = self.node.inputs[index] if index < len(self.node.inputs) else ""
        type_ = self.function.get_type(name) if name else None
        return type_.dtype if isinstance(type_, TensorType) else None

    def wants(self, index: int) -> bool:
        """Whether the output at this position is present."""
        return index < len(self.node.outputs) and bool(self.node.outputs[index])

    def refuse(self, why: str) -> CompileRefused:
        """The error to raise if the node cannot be computed."""
        return CompileRefused(f"{self.node.op} {why}")


@dataclass(frozen=True, slots=True)
class CompiledBody:
    """A compiled body: a branch of an If, the body of a Loop or a Scan."""

    function: Function
    """The closed body: its inputs, followed by its captures."""
    compute: Callable[[Sequence[Any]], list[Any]]
    picks: tuple[int, ...]
    """Indices of the node's captures that the body reads, in the order of the body."""

    def __call__(self, inputs: Sequence[Any], captured: Sequence[Any]) -> list[Any]:
        """Compute the body's outputs from its inputs and all captures of the node."""
        return self.compute([*inputs, *(captured[i] for i in self.picks)])

    def find_unstacked_type(self, output: int, inputs: Sequence[Any], captured: Sequence[Any]) -> tuple[DType, list[int]]:
        """Element type and shape of an output if the loop has no iterations.

        Named dims get their sizes from ``inputs`` (None if absent) and captures; a dim that no input has is 0. Raises ValueError
        if the body does not declare a tensor type.
        """
        declared = self.function.outputs[output].type
        if not isinstance(declared, TensorType):
            raise ValueError(f"output {output} of body {self.function.name!r} was never computed, and its type is not declared")
        # Named dims of inputs bind the named dims of outputs.
        sizes: dict[str, int] = {}
        for value, operand in zip(self.function.inputs, [*inputs, *(captured[i] for i in self.picks)], strict=True):
            if isinstance(value.type, TensorType) and hasattr(operand, "shape"):
                pairs = zip(value.type.shape or (), operand.shape, strict=False)
                sizes.update((dim, size) for dim, size in pairs if isinstance(dim, str))
        extents = [
            dim if isinstance(dim, int) else sizes.get(dim, 0) if isinstance(dim, str) else 0 for dim in declared.shape or ()
        ]
        return declared.dtype, extents

    @classmethod
    def compile(
        cls, context: NodeInfo, attribute: str, compiler: Callable[[Function], Callable[[Sequence[Any]], list[Any]]]
    ) -> CompiledBody:
        """Compile the body in an attribute of a node with a compiler of closed Functions."""
        function = context.node.attr(attribute)
        captures = context.node.captures
        # A node with two bodies captures the union of both; each body reads a part of it.
        picks = tuple(captures.index(name) for name in function.captures)
        closed = close_over(function, context.function)
        return cls(closed, compiler(closed), picks)


def close_over(body: Function, outer: Function) -> Function:
    """Append the captures of a body to its inputs, with their types in the outer Function."""
    return body.replace(inputs=(*body.inputs, *(Value(name, outer.get_type(name)) for name in body.captures)))


def list_last_uses(function: Function) -> list[list[str]]:
    """Per node, the values that are dead after it: read for the last time or never read. Linear time."""
    # Outputs and constants never die.
    permanent = {value.name for value in function.outputs} | set(function.constants)
    seen = set(permanent)
    dying: list[list[str]] = []
    for node in reversed(function.nodes):
        names = dict.fromkeys((*node.uses, *node.defines))
        dying.append([name for name in names if name not in seen])
        seen.update(names)
    return dying[::-1]
