"""What ONNX Runtime is known to get wrong, beyond what its kernels and schemas tell: declined, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from xrt.graph import Function, Node, Type

__all__ = ["GAPS", "Gap", "known_gap"]


@dataclass(frozen=True, slots=True)
class Gap:
    """A describable set of nodes that the library refuses late or computes wrongly."""

    op_types: tuple[str, ...]
    applies: Callable[[Node, Callable[[str], Type | None]], bool]
    reason: str
    evidence: str
    domain: str = ""


GAPS: tuple[Gap, ...] = ()

_BY_OP: Mapping[tuple[str, str], tuple[Gap, ...]] = {}


def known_gap(node: Node, type_of: Callable[[str], Type | None]) -> str | None:
    """Return the reason of the first gap that the node falls into; None when it falls into none."""
    for gap in _BY_OP.get((node.domain, node.op_type), ()):
        if gap.applies(node, type_of):
            return gap.reason
    return None
