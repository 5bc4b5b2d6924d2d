"""Known defects of libraries as table rows: a predicate on nodes to decline, the reason and the evidence."""

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
    """A set of nodes that a library computes wrongly: those of ``ops`` for which ``applies`` holds."""

    ops: tuple[str, ...]
    applies: Test
    reason: str
    """The defect, in one sentence."""
    evidence: tuple[str, ...]
    """Names of failing ``onnx`` node tests, entries of XRT's corpus, chains of casts, or a description of the comparison."""


def match_known_issue(defects: Iterable[KnownIssue], node: Node, function: Function) -> str | None:
    """The reason of the first issue that matches the node; None if none does."""
    return next((d.reason for d in defects if node.op_type in d.ops and _applies(d, node, function)), None)


def _applies(defect: KnownIssue, node: Node, function: Function) -> bool:
    """Whether the issue matches. A malformed node matches none: `why_not` declines it elsewhere."""
    try:
        return defect.applies(node, function)
    except (LookupError, TypeError, ValueError):
        return False


def always(node: Node, function: Function) -> bool:
    """A predicate that matches every node."""
    return True


def attribute_is(name: str, value: object, default: object = None) -> Test:
    """A predicate: the attribute, or ``default`` if it is absent, equals ``value``."""
    return lambda node, function: node.attr(name, default) == value


AXIS_IS_INPUT = 20
"""The first opset in which DFT reads its axis from an input."""


@dataclass(frozen=True, slots=True)
class Transform:
    """A DFT or STFT with the known shapes and constants of its inputs."""

    node: Node
    opset: int
    shape: Callable[[int], Shape | None]
    """The shape of the input at a position; None if absent or unknown."""
    constant: Callable[[int], Constant | None]
    """The constant at an input position; None if it is computed or absent."""

    def error(self) -> float:
        """Estimate the error of the result relative to its largest element; infinite if the length is unknown.

        Lengths that are powers of two use radix-2 FFT. Others are sums over float32 angles, which lose accuracy with the length.
        Measured on ort and openvino: at most 1e-6 for powers of two up to 4,096; 2e-7 times the length for others (60 to 5,000).
        """
        return max(map(_error_of_length, self._lengths()), default=math.inf)

    def _lengths(self) -> Shape:
        """Possible transform lengths; empty if unknown."""
        is_short_time = self.node.op_type == "STFT"
        place = 3 if is_short_time else 1
        given = self.constant(place)
        if given is not None:
            return (int(given.array),)
        if is_short_time:  # without a length the window determines it, else the signal bounds it
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
    # 1.5 times the measured error of 2e-7 per element.
    return 1e-6 if length & (length - 1) == 0 else 3e-7 * length
