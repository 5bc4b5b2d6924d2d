"""What a kernel knows of the environment of its run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from xrt.engines.toy.primitives import ArrayPrimitives
from xrt.graph import Function, Node, Value

__all__ = ["Body", "KernelContext", "close_over"]


@dataclass(frozen=True, slots=True)
class Body:
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
class KernelContext:
    """The surroundings of one node, for the factory of its kernel."""

    xp: Any
    """The array module: NumPy, or that of the device, CuPy; kernels take from it what both have."""
    node: Node
    function: Function
    """The Function that holds the node."""
    compile: Callable[[Function], Callable[[Sequence[Any]], list[Any]]]
    """Makes a closed Function callable; `body` is the way for a node's own bodies."""

    @property
    def primitives(self) -> ArrayPrimitives:
        """What the shared kernels leave to the engine."""
        return ArrayPrimitives(self.xp)

    @property
    def version(self) -> int:
        """The opset version of the node's domain."""
        return self.function.opset(self.node.domain)

    @property
    def n_outputs(self) -> int:
        """How many outputs the node lists, left-out ones in front of a present one included."""
        return len(self.node.outputs)

    def wants(self, index: int) -> bool:
        """Whether the node has an output in that place."""
        return index < len(self.node.outputs) and bool(self.node.outputs[index])

    def body(self, attribute: str) -> Body:
        """Return the body that an attribute holds, compiled."""
        function = self.node.attr(attribute)
        captures = self.node.captures
        picks = tuple(captures.index(name) for name in function.captures)
        return Body(function, self.compile(close_over(function, self.function)), picks)


def close_over(body: Function, outer: Function) -> Function:
    """Return the body with what it captures from outside as further inputs, typed as they are there."""
    return body.replace(inputs=(*body.inputs, *(Value(name, outer.get_type(name)) for name in body.captures)))
