"""Memory of values: offsets in one arena by live ranges, the peak, updates in place, and writable views."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate
from typing import Any

import numpy as np

from xrt.graph import Function, Node, TensorType
from xrt.graph.constants import ALIGNMENT
from xrt.operators import Trait, has_trait


@dataclass(slots=True)
class LiveRange:
    """A buffer that is needed from step ``first`` to step ``last``, inclusive."""

    nbytes: int
    first: int
    last: int
    offset: int = 0
    """Set by `assign_offsets`."""


def assign_offsets(spans: Sequence[LiveRange]) -> int:
    """Set offsets so that ranges that are live at the same step do not overlap; return the arena size in bytes.

    Ranges are placed in order of their first step, the largest first, each in the smallest gap that it fits in (best fit).
    O(n log n), plus a search through the gaps for each range.
    """
    gaps: list[tuple[int, int]] = []  # (start, size), none adjacent to another
    end = 0
    live: list[tuple[int, int, int]] = []  # (last step, start, size)
    for span in sorted(spans, key=lambda span: (span.first, -span.nbytes)):
        # Free buffers whose last reader is done before placing the next ones.
        while live and live[0][0] < span.first:
            _, start, size = heappop(live)
            _free(gaps, start, size)
        size = -(-span.nbytes // ALIGNMENT) * ALIGNMENT
        # The smallest gap first: compare (size, start).
        gap = min((gap for gap in gaps if gap[1] >= size), key=lambda gap: gap[::-1], default=None)
        if gap is None:
            # Extend a gap at the end of the arena instead of leaving it unused.
            span.offset = gaps.pop()[0] if gaps and sum(gaps[-1]) == end else end
            end = span.offset + size
        else:
            span.offset = gap[0]
            gaps.remove(gap)
            _free(gaps, gap[0] + size, gap[1] - size)
        heappush(live, (span.last, span.offset, size))
    return end


def _free(gaps: list[tuple[int, int]], start: int, size: int) -> None:
    """Add a block to the sorted gaps, merged with adjacent ones."""
    if not size:
        return
    index = bisect_left(gaps, (start, 0))
    if index < len(gaps) and gaps[index][0] == start + size:
        size += gaps.pop(index)[1]
    if index and sum(gaps[index - 1]) == start:
        index -= 1
        start, previous_size = gaps.pop(index)
        size += previous_size
    gaps.insert(index, (start, size))


def peak_of_values(function: Function) -> int | None:
    """Compute the peak size in bytes of the intermediate values of a Function; None if a dim is unknown.

    A value lives from the node that computes it to its last reader. Outputs, inputs, constants and values inside bodies do not
    count. Linear time.
    """
    outputs = {value.name for value in function.outputs}
    last = {name: i for i, node in enumerate(function.nodes) for name in (*node.defines, *node.uses)}
    # Difference array over the node index: add a size at its definition, subtract it after its last use.
    change = [0] * (len(function.nodes) + 1)
    for i, node in enumerate(function.nodes):
        for name in node.defines:
            type_ = function.get_type(name)
            size = type_.nbytes if isinstance(type_, TensorType) else None
            if size is None:
                return None
            if name not in outputs:
                change[i] += size
                change[last[name] + 1] -= size
    return max(accumulate(change), default=0)


# ---------------------------------------------------------------------- updates in place


def find_inplace_outputs(function: Function) -> dict[int, int]:
    """Map the index of each input that a scatter may update in place to the index of the scatter's output.

    No other node reads such an input. The engine's kernels must skip the copy if input and output are one buffer.
    """
    outputs = [value.name for value in function.outputs]
    pairs = {}
    for index, value in enumerate(function.inputs):
        uses = function.users(value.name)
        # Another reader, or an output with the old contents, would observe the update.
        if len(uses) != 1 or value.name in outputs or not isinstance(value.type, TensorType):
            continue
        node = uses[0].node
        if has_trait(node, Trait.UPDATES) and node.inputs[0] == value.name and node.outputs[0] in outputs:
            pairs[index] = outputs.index(node.outputs[0])
    return pairs


def list_scattered_inputs(node: Node) -> tuple[int, ...]:
    """List the indices of inputs that an engine with in-place scatters can overwrite with the node's result."""
    return (0,) if has_trait(node, Trait.UPDATES) else ()


class _WritableMemory:
    """An array interface without the read-only flag. Keeps the owner of the memory alive."""

    def __init__(self, array: np.ndarray[Any, Any], owner: Any) -> None:
        self._owner = owner
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def make_writable_alias(array: np.ndarray[Any, Any], owner: Any = None) -> np.ndarray[Any, Any]:
    """Make a writable view of a read-only array, without a copy.

    The caller guarantees that no other code relies on the contents. The result keeps ``owner`` alive, by default the array.
    Arrays of ml_dtypes are supported, although the array interface cannot describe their types.
    """
    memory_owner = array if owner is None else owner
    # ml_dtypes registers its types as user types: alias integers of their size instead, and view the result.
    if array.dtype.isbuiltin == 1:
        return np.asarray(_WritableMemory(array, memory_owner))
    return np.asarray(_WritableMemory(array.view(f"u{array.itemsize}"), memory_owner)).view(array.dtype)
