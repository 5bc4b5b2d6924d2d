"""Memory that an executable keeps or uses, without the constants of its Function, which XRT keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xrt.graph import Function

__all__ = ["MemoryUse", "peak_of_values"]


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """One use of memory, with the reason for it."""

    name: str
    """What it is, in a word or two: ``"packed weights"``, ``"workspace"``."""
    nbytes: int | None
    """How much; None where the library does not tell."""
    why: str
    """Why it is needed, as one sentence for a person."""
    per_call: bool = False
    """Whether each call takes it while it runs; otherwise it is held from the compile to the close."""
    shared: bool = False
    """Whether it is in a mapped file, whose pages all processes of the host share, and which the system may drop."""


def peak_of_values(function: Function) -> int | None:
    """Return the most bytes that values computed inside of a Function take at once; None where an extent is not known.

    Each is alive from the node that makes it to the last that reads it; outputs, inputs and constants do not count,
    and what is inside of bodies neither. Linear.
    """
    from xrt.graph.memory_forecast import estimate_peak

    return estimate_peak(function, {value.name for value in function.outputs})
