"""Plan the memory of values: offsets in an arena, the peak, updates in place, and writable views of read-only arrays."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate
from typing import Any

import numpy as np

from xrt.graph import Function, TensorType
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


def assign_offsets(ranges: Sequence[LiveRange]) -> int:
    """Set offsets so that buffers that are needed at the same step do not overlap. Returns the size of the arena in bytes.

    Buffers are placed in order of their first step, the largest first, each in the smallest gap that is large enough (best fit).
    Time O(n log n), plus a search through the gaps for each buffer.
    """
    gaps: list[tuple[int, int]] = []  # (start, stop), sorted; adjacent gaps are merged
    end = 0
    live: list[tuple[int, int, int]] = []  # (last step, start, stop), a heap
    for buffer in sorted(ranges, key=lambda buffer: (buffer.first, -buffer.nbytes)):
        # Free the buffers that are no longer needed.
        while live and live[0][0] < buffer.first:
            _, start, stop = heappop(live)
            _free(gaps, start, stop)
        size = -(-buffer.nbytes // ALIGNMENT) * ALIGNMENT  # rounded up
        large_gaps = [(stop - start, start) for start, stop in gaps if stop - start >= size]
        if large_gaps:
            gap_size, buffer.offset = min(large_gaps)
            gap_stop = buffer.offset + gap_size
            gaps.remove((buffer.offset, gap_stop))
            _free(gaps, buffer.offset + size, gap_stop)
        else:
            # If there is a gap at the end of the arena, extend it.
            buffer.offset = gaps.pop()[0] if gaps and gaps[-1][1] == end else end
            end = buffer.offset + size
        heappush(live, (buffer.last, buffer.offset, buffer.offset + size))
    return end


def _free(gaps: list[tuple[int, int]], start: int, stop: int) -> None:
    """Add a block to the sorted gaps, and merge it with adjacent gaps."""
    if start == stop:
        return
    index = bisect_left(gaps, (start, start))
    if index < len(gaps) and gaps[index][0] == stop:
        _, stop = gaps.pop(index)
    if index and gaps[index - 1][1] == start:
        index -= 1
        start, _ = gaps.pop(index)
    gaps.insert(index, (start, stop))


def compute_peak_of_values(function: Function) -> int | None:
    """Compute the peak size in bytes of the intermediate values of a Function; None if a dim is unknown.

    A value needs memory from the node that computes it to its last reader. Inputs, outputs, constants and the values of bodies do
    not count. Linear time.
    """
    outputs = {value.name for value in function.outputs}
    last_use: dict[str, int] = {}
    for i, node in enumerate(function.nodes):
        last_use.update(dict.fromkeys((*node.defined_names, *node.uses), i))
    # The change of the total at each node: a size is added at the definition, and subtracted after the last use.
    change = [0] * (len(function.nodes) + 1)
    for i, node in enumerate(function.nodes):
        for name in node.defined_names:
            type_ = function.get_type(name)
            size = type_.nbytes if isinstance(type_, TensorType) else None
            if size is None:
                return None
            if name not in outputs:
                change[i] += size
                change[last_use[name] + 1] -= size
    return max(accumulate(change), default=0)


def find_inplace_outputs(function: Function) -> dict[int, int]:
    """Find the inputs that a scatter may update in place. Map the index of the input to that of the Function's output.

    No other node reads such an input. For engines whose scatter does not copy the input if it has the memory of the output.
    """
    outputs = [value.name for value in function.outputs]
    pairs = {}
    for index, value in enumerate(function.inputs):
        uses = function.users(value.name)
        # Other readers need the elements before the update, and so does an output that is the input itself.
        if len(uses) != 1 or value.name in outputs or not isinstance(value.type, TensorType):
            continue
        node = uses[0].node
        if has_trait(node, Trait.UPDATES) and node.inputs[0] == value.name and node.outputs[0] in outputs:
            pairs[index] = outputs.index(node.outputs[0])
    return pairs


class _WritableMemory:
    """Describes the memory of an array to NumPy as writable. Keeps the owner of the memory alive."""

    def __init__(self, array: np.ndarray[Any, Any], owner: Any) -> None:
        self._owner = owner
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def make_writable_alias(array: np.ndarray[Any, Any], owner: Any = None) -> np.ndarray[Any, Any]:
    """Make a writable view of a read-only array, without a copy.

    No other code may rely on the elements. The view keeps ``owner`` alive, by default the array.
    """
    memory_owner = array if owner is None else owner
    # The array interface cannot describe the types of ml_dtypes, so view these as integers of the same size.
    if array.dtype.isbuiltin == 1:
        return np.asarray(_WritableMemory(array, memory_owner))
    return np.asarray(_WritableMemory(array.view(f"u{array.itemsize}"), memory_owner)).view(array.dtype)
