"""Which values are constants, and which of those stand in the text."""

from __future__ import annotations

from xrt.graph import Constant, Function
from xrt.passes import known_value

__all__ = ["INLINE", "constant_of"]

INLINE = 64
"""Constants of at most this many elements are literals: shapes, axes and scales, which decide what code is made."""


def constant_of(name: str, function: Function) -> Constant | None:
    """Return the constant that a value will be, None where it is known only at run time."""
    producer = function.producer(name)
    return function.constants.get(name) if producer is None else known_value(producer, function)
