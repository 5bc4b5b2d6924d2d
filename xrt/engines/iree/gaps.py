"""What IREE's compiler lowers and then computes wrongly, or refuses late: declined, each row with its evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xrt.graph import Function, Node

__all__ = ["GAPS", "Gap", "known_gap"]


@dataclass(frozen=True, slots=True)
class Gap:
    """One describable set of nodes on which IREE is wrong."""

    ops: tuple[str, ...]
    applies: Callable[[Node, Function], bool]
    reason: str
    evidence: tuple[str, ...]
    """Node tests of ``onnx`` that fail without the row, or entries of XRT's corpus."""


def known_gap(node: Node, function: Function) -> str | None:
    """Return the reason of the first gap that the node falls under; None when it falls under none."""
    return next((g.reason for g in GAPS if node.op_type in g.ops and g.applies(node, function)), None)


GAPS: tuple[Gap, ...] = ()
