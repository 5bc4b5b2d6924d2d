"""Peak memory of the values of a Function, given the order of its nodes."""

from __future__ import annotations

from collections.abc import Collection
from itertools import accumulate
from typing import TYPE_CHECKING

from xrt.graph.types import TensorType

if TYPE_CHECKING:
    from xrt.graph.function import Function

__all__ = ["estimate_peak"]


def estimate_peak(function: Function, elsewhere: Collection[str] | None = None) -> int | None:
    """Estimate the peak bytes of simultaneously live computed values; None if any size is unknown.

    A value is live from the node that defines it to its last reader; outputs are live to the end. Values in ``elsewhere`` are
    stored in memory of an input or of the caller and are not counted; the default is the outputs of the Function's aliases.
    Memory used inside bodies and launches is not counted either. Linear.
    """
    elsewhere = {after for _, after in function.aliases} if elsewhere is None else elsewhere
    end = len(function.nodes)
    last = {name: i for i, node in enumerate(function.nodes) for name in (*node.defines, *node.uses)}
    last.update((value.name, end) for value in function.outputs)
    # Difference array over the node index: add a size at its definition, subtract it after its last use.
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
