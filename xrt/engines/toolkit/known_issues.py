"""What a library gets wrong, as rows of a table: each a set of nodes to decline, with its evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from xrt.graph import Function, Node

if TYPE_CHECKING:
    from xrt.graph import Constant, Dim, Shape

__all__ = ["AXIS_IS_INPUT", "KnownIssue", "Test", "Transform", "always", "attribute_is", "match_known_issue"]

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


AXIS_IS_INPUT = 20
"""The first opset in which DFT reads its axis from an input."""


@dataclass(frozen=True, slots=True)
class Transform:
    """A DFT or STFT, and what is known of its inputs."""

    node: Node
    opset: int
    shape: Callable[[int], Shape | None]
    """Returns the shape of an input by its place; None where it is left out or not known."""
    constant: Callable[[int], Constant | None]
    """Returns the constant that an input is; None where it is none."""

    def error(self) -> float:
        """Return by how much the result may be off, as a share of its largest element; infinite where nothing says.

        Lengths that are powers of two are computed by halves. Others are sums over angles, and a float32 angle is the less exact
        the longer the transform. Measured on ort and openvino: 1e-6 at most up to 4,096; 2e-7 times the length (60 to 5,000).
        """
        return max(map(_error_of_length, self._lengths()), default=math.inf)

    def _lengths(self) -> Shape:
        """Return how many elements may be transformed together; nothing where that is not known."""
        is_short_time = self.node.op_type == "STFT"
        place = 3 if is_short_time else 1
        given = self.constant(place)
        if given is not None:
            return (int(given.array),)
        if is_short_time:  # frames are as long as the window, and no longer than the signal
            return (self.shape(2) or (self.shape(0) or ())[1:2])[:1]
        shape = self.shape(0) or ()
        if self._has(place) or not shape:
            return ()
        if not self._has(2):
            return (shape[self.node.attr("axis", 1) if self.opset < AXIS_IS_INPUT else -2],)
        axis = self.constant(2)
        return shape[:-1] if axis is None else (shape[int(axis.array)],)

    def _has(self, place: int) -> bool:
        return place < len(self.node.inputs) and bool(self.node.inputs[place])


def _error_of_length(length: Dim) -> float:
    if not isinstance(length, int):
        return math.inf
    return 1e-6 if length & (length - 1) == 0 else 3e-7 * length
