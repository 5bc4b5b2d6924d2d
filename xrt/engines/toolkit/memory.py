"""Memory of values: offsets in one arena by live ranges, updates in place, and writable views."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xrt.graph import Function, Node, TensorType
from xrt.graph.constants import ALIGNMENT
from xrt.operators import Trait, has_trait, list_operators


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

    In order of time, each range gets the smallest gap that fits (best fit); of those that begin together the largest goes first.
    O(n log n), plus insertion into one sorted list of gaps.
    """
    gaps = _Gaps()
    ends: dict[int, list[LiveRange]] = defaultdict(list)
    step = -1
    for span in sorted(spans, key=lambda span: (span.first, -span.nbytes)):
        # Free buffers whose last reader is done before placing the next ones.
        while step < span.first - 1:
            step += 1
            for dead in ends.pop(step, ()):
                gaps.free(dead.offset, _align(dead.nbytes))
        span.offset = gaps.allocate(_align(span.nbytes))
        ends[span.last].append(span)
    return gaps.end


class _Gaps:
    """Free memory below `end` as gaps, none adjacent to another."""

    def __init__(self) -> None:
        self.end = 0
        self._by_size: list[tuple[int, int]] = []
        self._size_at: dict[int, int] = {}
        self._start_of: dict[int, int] = {}

    def allocate(self, nbytes: int) -> int:
        """Allocate bytes in the smallest gap that fits, else at the end, including a gap that ends there."""
        index = bisect_left(self._by_size, (nbytes, 0))
        if index < len(self._by_size):
            size, start = self._by_size[index]
            self._remove(start)
            if size > nbytes:
                self._add(start + nbytes, size - nbytes)
            return start
        # Extend a gap at the end of the arena instead of leaving it unused.
        start = self._start_of.get(self.end, self.end)
        if start != self.end:
            self._remove(start)
        self.end = start + nbytes
        return start

    def free(self, start: int, nbytes: int) -> None:
        """Free a block and merge it with adjacent gaps."""
        if not nbytes:
            return
        if start in self._start_of:
            before = self._start_of[start]
            nbytes += self._remove(before)
            start = before
        if start + nbytes in self._size_at:
            nbytes += self._remove(start + nbytes)
        self._add(start, nbytes)

    def _add(self, start: int, nbytes: int) -> None:
        insort(self._by_size, (nbytes, start))
        self._size_at[start] = nbytes
        self._start_of[start + nbytes] = start

    def _remove(self, start: int) -> int:
        nbytes = self._size_at.pop(start)
        del self._start_of[start + nbytes]
        del self._by_size[bisect_left(self._by_size, (nbytes, start))]
        return nbytes


def _align(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


# ---------------------------------------------------------------------- updates in place

SCATTERS = list_operators(Trait.UPDATES)
"""Operators that update parts of their first input."""


def find_inplace_outputs(function: Function) -> dict[int, int]:
    """Map each input that is read by a single scatter only to the output of that scatter, by position.

    The engine's kernels must skip the copy if input and output are one buffer. No other reader can observe the update.
    """
    outputs = [value.name for value in function.outputs]
    pairs = {}
    for place, value in enumerate(function.inputs):
        uses = function.users(value.name)
        # Another reader, or an output with the old contents, would observe the update.
        if len(uses) != 1 or value.name in outputs or not isinstance(value.type, TensorType):
            continue
        node = uses[0].node
        if has_trait(node, Trait.UPDATES) and node.inputs[0] == value.name and node.outputs[0] in outputs:
            pairs[place] = outputs.index(node.outputs[0])
    return pairs


def list_scattered_inputs(node: Node) -> tuple[int, ...]:
    """Positions of inputs over which such an engine can write the node's result."""
    return (0,) if has_trait(node, Trait.UPDATES) else ()


class _WritableMemory:
    """An array interface without the read-only flag. Keeps the owner of the memory alive."""

    def __init__(self, array: np.ndarray[Any, Any], owner: Any) -> None:
        self._owner = owner
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def make_writable_alias(array: np.ndarray[Any, Any], owner: Any = None) -> np.ndarray[Any, Any]:
    """A writable view of a read-only array; nothing is copied.

    The caller guarantees that no other code relies on the contents. The result keeps ``owner`` alive, by default the array. Types
    of ml_dtypes, which the array interface cannot describe, are viewed as integers of their size in between.
    """
    memory_owner = array if owner is None else owner
    # ml_dtypes register their types as user types.
    if array.dtype.isbuiltin == 1:
        return np.asarray(_WritableMemory(array, memory_owner))
    return np.asarray(_WritableMemory(array.view(f"u{array.itemsize}"), memory_owner)).view(array.dtype)
