"""Which values are constants, and which of those stand in the text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.passes import find_constant

if TYPE_CHECKING:
    from xrt.graph import Constant, Function

__all__ = ["INLINE", "find_node_constant"]

INLINE = 64
"""Constants of at most this many elements are literals: shapes, axes and scales, which decide what code is made."""


def find_node_constant(name: str, function: Function) -> Constant | None:
    """Return the constant that a value will be, None where it is known only at run time."""
    producer = function.producer(name)
    return function.constants.get(name) if producer is None else find_constant(producer, function)
