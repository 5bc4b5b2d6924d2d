"""The arena: one block of memory for the values that cross regions, each at an offset that was planned once.

Which values are alive together is known before the first call, because launches run in a fixed order. So each value gets an
offset at which it overlaps no value that is alive with it. Memory of dead values is used again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.toolkit.memory_planner import LiveRange, assign_offsets
from xrt.graph.aligned_arrays import make_aligned_block

if TYPE_CHECKING:
    from xrt.graph import TensorType

__all__ = ["Arena", "ArenaPlan", "Lifetime", "plan_arena"]


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
class ArenaPlan:
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

    values: tuple[ArenaPlan, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of one block; each call that runs at the same time has a block of its own."""
        return max((placed.end for placed in self.values), default=0)

    def views(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return a fresh block's arrays by the name of the value; the block lives as long as they do."""
        block = make_aligned_block(self.nbytes)
        return {placed.value.name: placed.view(block) for placed in self.values}


def plan_arena(values: Sequence[Lifetime]) -> Arena:
    """Return places at which no two values that are alive together overlap, but for those that take over another's memory.

    How and at what cost: `placed`.
    """
    chains = _chains(values)
    spans = [LiveRange(max(v.nbytes for v in chain), chain[0].first, chain[-1].last) for chain in chains]
    assign_offsets(spans)
    offsets = {value.name: span.offset for chain, span in zip(chains, spans, strict=True) for value in chain}
    return Arena(tuple(ArenaPlan(value, offsets[value.name]) for value in values))


def _chains(values: Sequence[Lifetime]) -> list[list[Lifetime]]:
    """Chain each value to the one whose memory it takes over, if that value is dead by then and its memory is not taken yet."""
    by_last: dict[str, list[Lifetime]] = {}
    for value in values:
        chain = by_last.get(value.over)
        if chain is not None and _fits_over(chain[-1], value):
            del by_last[value.over]
            chain.append(value)
        else:
            chain = [value]
        by_last[value.name] = chain
    return list(by_last.values())


def _fits_over(dead: Lifetime, value: Lifetime) -> bool:
    return dead.first < value.first == dead.last and dead.type == value.type
