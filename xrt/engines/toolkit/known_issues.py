"""What a library gets wrong, as rows of a table: each a set of nodes to decline, with its evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from xrt.graph import Function, Node

__all__ = ["KnownIssue", "Test", "always", "attribute_is", "match_known_issue"]

Test: TypeAlias = Callable[[Node, Function], bool]


@dataclass(frozen=True, slots=True)
class KnownIssue:
    """A describable set of nodes on which a library is wrong: those of the operators for which the predicate holds."""

    ops: tuple[str, ...]
    applies: Test
    reason: str
    """What the library does or fails to do, for a person."""
    evidence: tuple[str, ...]
    """Node tests of ``onnx`` that fail without the row, entries of XRT's corpus, chains of casts, or what was compared."""


def match_known_issue(defects: Iterable[KnownIssue], node: Node, function: Function) -> str | None:
    """Return the reason of the first defect that the node falls under; None when it falls under none."""
    return next((d.reason for d in defects if node.op_type in d.ops and _applies(d, node, function)), None)


def _applies(defect: KnownIssue, node: Node, function: Function) -> bool:
    """Whether the node falls under the defect. One that breaks its operator's own rules falls under none: it is refused."""
    try:
        return defect.applies(node, function)
    except (LookupError, TypeError, ValueError):
        return False


def always(node: Node, function: Function) -> bool:
    """Hold of every node."""
    return True


def attribute_is(name: str, value: object, default: object = None) -> Test:
    """Return a predicate: the node's attribute has that value; where it is left out, `default` is its value."""
    return lambda node, function: node.attr(name, default) == value
