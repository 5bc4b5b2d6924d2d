"""What every kernel knows of its node, whichever library it computes with, and the bodies of such a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from xrt.errors import CompileRefused
from xrt.graph import DType, Function, Node, TensorType, Value

__all__ = ["CompiledBody", "NodeInfo", "close_over", "list_last_uses"]


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node and the Function that holds it, for the factory of its kernel."""

    node: Node
    function: Function
    """The Function that holds the node."""

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

    def refuse(self, why: str) -> CompileRefused:
        """Return the error to raise where the node cannot be computed."""
        return CompileRefused(f"{self.node.op} {why}")


@dataclass(frozen=True, slots=True)
class CompiledBody:
    """A body Function ready to run: the branch of an If, the body of a Loop."""

    function: Function
    """The closed body: its inputs, then the values that it captures."""
    compute: Callable[[Sequence[Any]], list[Any]]
    picks: tuple[int, ...]
    """Which of the node's captures the body reads, in the body's order."""

    def __call__(self, inputs: Sequence[Any], captured: Sequence[Any]) -> list[Any]:
        """Return the body's outputs from its inputs and from all that the node captures."""
        return self.compute([*inputs, *(captured[i] for i in self.picks)])

    def find_unstacked_type(self, output: int, inputs: Sequence[Any], captured: Sequence[Any]) -> tuple[DType, list[int]]:
        """Element type and shape of an output that no turn has computed.

        Extents that the body declares by name are those of such inputs, of which a left-out one is None; an extent that no
        input has is 0. Raises ValueError where the body does not declare a tensor.
        """
        declared = self.function.outputs[output].type
        if not isinstance(declared, TensorType):
            raise ValueError(f"output {output} of body {self.function.name!r} was never computed, and its type is not declared")
        sizes: dict[str, int] = {}
        for value, given in zip(self.function.inputs, [*inputs, *(captured[i] for i in self.picks)], strict=True):
            if isinstance(value.type, TensorType) and hasattr(given, "shape"):
                pairs = zip(value.type.shape or (), given.shape, strict=False)
                sizes.update((dim, size) for dim, size in pairs if isinstance(dim, str))
        extents = [
            dim if isinstance(dim, int) else sizes.get(dim, 0) if isinstance(dim, str) else 0 for dim in declared.shape or ()
        ]
        return declared.dtype, extents

    @classmethod
    def compile(
        cls, context: NodeInfo, attribute: str, compiler: Callable[[Function], Callable[[Sequence[Any]], list[Any]]]
    ) -> CompiledBody:
        """Return the body that an attribute of a node holds, made callable by a compiler of closed Functions."""
        function = context.node.attr(attribute)
        captures = context.node.captures
        picks = tuple(captures.index(name) for name in function.captures)
        closed = close_over(function, context.function)
        return cls(closed, compiler(closed), picks)


def close_over(body: Function, outer: Function) -> Function:
    """Return the body with what it captures from outside as further inputs, typed as they are there."""
    return body.replace(inputs=(*body.inputs, *(Value(name, outer.get_type(name)) for name in body.captures)))


def list_last_uses(function: Function) -> list[list[str]]:
    """Return, per node, the values that are dead after it: read for the last time, or never read at all. Linear."""
    kept = {value.name for value in function.outputs} | set(function.constants)
    seen = set(kept)
    dying: list[list[str]] = []
    for node in reversed(function.nodes):
        names = dict.fromkeys((*node.uses, *node.defines))
        dying.append([name for name in names if name not in seen])
        seen.update(names)
    return dying[::-1]
