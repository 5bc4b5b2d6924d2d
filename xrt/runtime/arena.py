"""The arena: one block of memory for the values that cross regions, each at an offset that was planned once.

Which values are alive together is known before the first call, because launches run in a fixed order. So each gets an
offset at which it overlaps nobody who is alive with it, and memory of the dead is used again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xrt.graph import TensorType

__all__ = ["ALIGNMENT", "Arena", "Lifetime", "Placed", "place"]

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector; TVM takes memory without a copy only at such addresses."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A value of known size, and the steps during which its memory is needed."""

    name: str
    type: TensorType
    first: int
    """The step that writes it."""
    last: int
    """The last step that reads it, or reads what may be a view of it; at least `first`."""
    over: str = ""
    """The value whose memory it may take over: one that dies in the step that writes this one. Empty: none."""

    @property
    def nbytes(self) -> int:
        return self.type.nbytes or 0


@dataclass(frozen=True, slots=True)
class Placed:
    """A value with its place in the arena."""

    value: Lifetime
    offset: int
    """Bytes from the beginning, a multiple of `ALIGNMENT`."""

    @property
    def end(self) -> int:
        return self.offset + self.value.nbytes

    def view(self, block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the value's array over its bytes of the block."""
        type_ = self.value.type
        array: np.ndarray[Any, Any] = block[self.offset : self.end].view(type_.dtype.numpy).reshape(type_.shape)
        return array


@dataclass(frozen=True, slots=True)
class Arena:
    """The planned places of values, in the order in which they are written."""

    values: tuple[Placed, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of one block; each call that runs at the same time has a block of its own."""
        return max((placed.end for placed in self.values), default=0)

    @property
    def unshared(self) -> int:
        """Bytes that the values would take if none used another's memory again."""
        return sum(_rounded(placed.value.nbytes) for placed in self.values)

    def views(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return a fresh block's arrays by the name of the value; the block lives as long as they do."""
        block = _aligned(self.nbytes)
        return {placed.value.name: placed.view(block) for placed in self.values}


def place(values: Sequence[Lifetime]) -> Arena:
    """Return places at which no two values that are alive together overlap, but for those that take over another's memory.

    Largest first, each in the smallest gap that its contemporaries leave: "greedy by size" of Pisarchyk and Lee, Efficient
    Memory Management for Deep Neural Net Inference (2020), arXiv:2001.03288. Cost: for each value, those alive with it.
    """
    blocks = _blocks(values)
    at_step: dict[int, list[_Block]] = defaultdict(list)
    for block in sorted(blocks, key=lambda block: (-block.nbytes, block.first)):
        contemporaries = {id(other): other for step in block.steps for other in at_step[step]}
        block.offset = _gap(sorted(contemporaries.values(), key=lambda other: other.offset), block.nbytes)
        for step in block.steps:
            at_step[step].append(block)
    offsets = {value.name: block.offset for block in blocks for value in block.values}
    return Arena(tuple(Placed(value, offsets[value.name]) for value in values))


@dataclass(slots=True, eq=False)
class _Block:
    """Values that lie at one offset, each over the one before it."""

    values: list[Lifetime]
    offset: int = 0

    @property
    def nbytes(self) -> int:
        return _rounded(max(value.nbytes for value in self.values))

    @property
    def first(self) -> int:
        return self.values[0].first

    @property
    def steps(self) -> range:
        return range(self.first, self.values[-1].last + 1)


def _blocks(values: Sequence[Lifetime]) -> list[_Block]:
    """Chain each value to the one whose memory it takes over, if that is dead by then and nobody else has taken it."""
    by_last: dict[str, _Block] = {}
    for value in values:
        block = by_last.get(value.over)
        if block is not None and _fits_over(block.values[-1], value):
            del by_last[value.over]
            block.values.append(value)
        else:
            block = _Block([value])
        by_last[value.name] = block
    return list(by_last.values())


def _fits_over(dead: Lifetime, value: Lifetime) -> bool:
    return dead.first < value.first == dead.last and dead.type == value.type


def _gap(placed: Sequence[_Block], nbytes: int) -> int:
    """Return the offset of the smallest gap between placed blocks that holds so many bytes, or where the last one ends."""
    best: tuple[int, int] | None = None
    end = 0
    for other in placed:
        room = other.offset - end
        if room >= nbytes and (best is None or room < best[0]):
            best = room, end
        end = max(end, other.offset + other.nbytes)
    return end if best is None else best[1]


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _aligned(nbytes: int) -> np.ndarray[Any, Any]:
    """Return so many bytes that begin at a multiple of `ALIGNMENT`, where NumPy promises only 16."""
    block = np.empty(nbytes + ALIGNMENT, np.uint8)
    skip = -block.ctypes.data % ALIGNMENT
    return block[skip : skip + nbytes]
