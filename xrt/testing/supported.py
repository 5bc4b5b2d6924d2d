"""Which generated graphs an engine takes, by its own answers: so that a proof is not spent on what it declines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xrt.passes import infer_shapes

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.graph import Function

__all__ = ["SupportFilter"]


@dataclass(frozen=True, slots=True)
class SupportFilter:
    """Whether an engine takes every node of a Function whose values all have types, those in bodies apart; for `Form.takes`."""

    engine: GraphCompiler

    def __call__(self, function: Function) -> bool:
        typed = infer_shapes(function) if any(node.bodies for node in function.nodes) else function
        return all(self.engine.why_not(node, typed) is None for node in typed.nodes)
