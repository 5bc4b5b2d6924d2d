"""How much memory the values of a Function take, by the order of its nodes."""

from __future__ import annotations

from collections.abc import Collection
from itertools import accumulate
from typing import TYPE_CHECKING

from xrt.graph.types import TensorType

if TYPE_CHECKING:
    from xrt.graph.function import Function

__all__ = ["estimate_peak"]


def estimate_peak(function: Function, elsewhere: Collection[str] | None = None) -> int | None:
    """Return the most bytes that computed values take at once, in the Function's order; None where a size is not known.

    Each counts from the node that makes it to the last that reads it, an output to the end. Values that are ``elsewhere``, in
    the memory of an input or of the caller, do not count; None means the outputs of the Function's aliases. What is inside of
    bodies and launches does not count either. Linear.
    """
    elsewhere = {after for _, after in function.aliases} if elsewhere is None else elsewhere
    end = len(function.nodes)
    last = {name: i for i, node in enumerate(function.nodes) for name in (*node.defines, *node.uses)}
    last.update((value.name, end) for value in function.outputs)
    change = [0] * (end + 2)
    for i, node in enumerate(function.nodes):
        for name in node.defines:
            type_ = function.get_type(name)
            size = type_.nbytes if isinstance(type_, TensorType) else None
            if size is None:
                return None
            if name not in elsewhere:
                change[i] += size
                change[last[name] + 1] -= size
    return max(accumulate(change), default=0)
