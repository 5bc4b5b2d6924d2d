"""What padding makes of a value, and why an operator cannot be padded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from xrt.passes.padding.extents import Axis

__all__ = ["SIZE", "Padded", "PaddingRefusal", "Refused", "State"]


@dataclass(frozen=True, slots=True)
class Padded:
    """A tensor whose leading part, along each padded extent, is what the model gives without padding.

    What is behind that part is anything: the reason why most operators that reduce over such an axis need a mask.
    """

    axes: tuple[Axis, ...]
    zeros: frozenset[int] = frozenset()
    """Axes along which what is behind is known to be zero."""


@dataclass(frozen=True, slots=True)
class PaddingRefusal:
    """Why dims cannot be padded."""

    node: str
    op: str
    reason: str
    dims: frozenset[str]

    def __str__(self) -> str:
        return f"node {self.node!r} ({self.op}): {self.reason}" if self.node else self.reason


class Refused(Exception):  # it never leaves the package
    """An operator cannot be padded; ``dims`` are those that it fails for, all of its inputs where there are none."""

    def __init__(self, reason: str, dims: frozenset[str] = frozenset()) -> None:
        super().__init__(reason)
        self.reason, self.dims = reason, dims


class _Size:
    """The state of integers that are sizes: their contents are known, and padding changes them."""

    def __repr__(self) -> str:
        return "SIZE"


SIZE = _Size()

State: TypeAlias = Padded | PaddingRefusal | _Size
"""What is known of a value that padding changes; a value without a state is the same with and without padding."""
