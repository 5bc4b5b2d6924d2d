"""Where TVM imports an operator and computes something else: declined, each row with the evidence for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xrt.graph import Function, Node

__all__ = ["known_defect"]


@dataclass(frozen=True, slots=True)
class Defect:
    """One describable set of nodes on which TVM 0.27 is wrong."""

    ops: tuple[str, ...]
    applies: Callable[[Node, Function], bool]
    reason: str
    evidence: str
    """Node tests of ``onnx`` that show it."""


DEFECTS: tuple[Defect, ...] = ()


def known_defect(node: Node, function: Function) -> str | None:
    """Return the reason of the first defect that the node falls under; None when it falls under none."""
    return next((d.reason for d in DEFECTS if node.op_type in d.ops and d.applies(node, function)), None)
