"""What torch computes wrongly, or refuses late: declined, each row with its evidence."""

from __future__ import annotations

from xrt.engines.toolkit.known_issues import KnownIssue, match_known_issue
from xrt.graph import Function, Node

__all__ = ["GAPS", "find_known_issue"]


def find_known_issue(node: Node, function: Function) -> str | None:
    """Return the reason of the first gap that the node falls under; None when it falls under none."""
    return match_known_issue(GAPS, node, function)


GAPS: tuple[KnownIssue, ...] = ()
