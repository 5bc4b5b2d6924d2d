"""What a kernel knows of the environment of its run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from xrt.engines.toolkit.node_query import CompiledBody, NodeInfo
from xrt.engines.toy.primitives import ArrayPrimitives
from xrt.graph import Function

__all__ = ["KernelContext"]


@dataclass(frozen=True, slots=True)
class KernelContext(NodeInfo):
    """The surroundings of one node, for the factory of its kernel."""

    xp: Any
    """The array module: NumPy, or that of the device, CuPy; kernels take from it what both have."""
    compile: Callable[[Function], Callable[[Sequence[Any]], list[Any]]]
    """Makes a closed Function callable; `body` is the way for a node's own bodies."""

    @property
    def primitives(self) -> ArrayPrimitives:
        """What the shared kernels leave to the engine."""
        return ArrayPrimitives(self.xp)

    def body(self, attribute: str) -> CompiledBody:
        """Return the body that an attribute holds, compiled."""
        return CompiledBody.compile(self, attribute, self.compile)
