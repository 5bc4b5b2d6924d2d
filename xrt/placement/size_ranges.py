"""Placements of a model with symbolic dims: one for each range of sizes, measured at sizes that represent it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from xrt.errors import OptionError
from xrt.graph import FrozenDict, TensorType, Value
from xrt.graph.types import LARGEST_EXTENT
from xrt.placement.result import TuningResult

__all__ = [
    "MOST_COMBINATIONS",
    "SizeRange",
    "SizeRanges",
    "Sizes",
    "format_sizes",
    "list_open_axes",
    "parse_sizes",
    "read_sizes",
    "resize_values",
    "sort_by_distance",
]

Sizes: TypeAlias = Mapping[str, int]
"""Symbolic dim to size; an extent without a name is called by its input and axis, ``x[0]``."""

MOST_COMBINATIONS = 64
"""Sets of sizes at which a placement may be asked for."""


def parse_sizes(asked: Any, option: str = "sizes") -> Mapping[str, tuple[int, ...]]:
    """Return an option of sizes: by symbolic dim, ascending. Raises OptionError for another value."""
    if asked is None:
        return FrozenDict()
    if not isinstance(asked, Mapping):
        raise OptionError(f'{option} must map symbolic dims to sizes, such as {option}={{"s": [16, 128]}}; got {asked!r}')
    found = {}
    for name, given in asked.items():
        several = list(given) if isinstance(given, list | tuple | range) else [given]
        if not several or not all(type(size) is int and 0 < size <= LARGEST_EXTENT for size in several):
            raise OptionError(f"{option}[{name!r}] must be a positive integer or several; got {given!r}")
        found[str(name)] = tuple(sorted(set(several)))
    if option == "sizes" and (count := math.prod(map(len, found.values()))) > MOST_COMBINATIONS:
        raise OptionError(f"sizes gives {count} combinations, each of which is measured; at most {MOST_COMBINATIONS} can be")
    return FrozenDict(found)


def format_sizes(sizes: Sizes) -> str:
    """Return sizes as text.

    >>> format_sizes({"batch": 1, "s": 128})
    'batch=1, s=128'
    """
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def list_open_axes(inputs: Sequence[Value]) -> Iterator[tuple[int, int, str]]:
    """Yield input, axis and name of each extent that is not a number."""
    for place, value in enumerate(inputs):
        if isinstance(value.type, TensorType):
            for axis, dim in enumerate(value.type.shape or ()):
                if not isinstance(dim, int):
                    yield place, axis, dim or f"{value.name}[{axis}]"


def name_open_axes(inputs: Sequence[Value]) -> list[str]:
    """Return the name of each extent of the inputs that is not a number, in their order; a name may occur repeatedly."""
    return [name for _, _, name in list_open_axes(inputs)]


def read_sizes(inputs: Sequence[Value], values: Sequence[Any]) -> Sizes:
    """Return the sizes that the values of a call give to the symbolic dims of these inputs."""
    return FrozenDict({name: values[place].shape[axis] for place, axis, name in list_open_axes(inputs)})


def resize_values(inputs: Sequence[Value], values: Sequence[Any], sizes: Sizes) -> list[Any]:
    """Return the values of a call cut or repeated to other sizes of the symbolic dims, so that they stay plausible."""
    found = list(values)
    for place, axis, name in list_open_axes(inputs):
        have, want = found[place].shape[axis], sizes[name]
        if have != want:
            found[place] = (
                np.take(found[place], np.arange(want) % have, axis=axis)
                if have
                else np.zeros((*found[place].shape[:axis], want, *found[place].shape[axis + 1 :]), found[place].dtype)
            )
    return found


@dataclass(frozen=True, slots=True)
class SizeRange:
    """A measured placement, and the sizes that it was measured at."""

    sizes: Sizes
    tuned: TuningResult


class SizeRanges:
    """The measured placements of one model.

    A dim with asked sizes has a range around each: from the geometric mean with the next smaller one on. The ranges of another
    dim are octaves: 1, 2 to 3, 4 to 7, and so on.
    """

    def __init__(self, asked: Mapping[str, tuple[int, ...]]) -> None:
        self.asked = asked
        self._found: dict[tuple[int, ...], SizeRange] = {}

    def __iter__(self) -> Iterator[SizeRange]:
        return iter(list(self._found.values()))

    def get_key(self, sizes: Sizes) -> tuple[int, ...]:
        """Return the number of each dim's range."""
        return tuple(self._number(name, size) for name, size in sizes.items())

    def _number(self, name: str, size: int) -> int:
        near = self._nearest(name, size)
        return near if near is not None else size.bit_length()

    def _nearest(self, name: str, size: int) -> int | None:
        """Return the asked size that represents another; of two equally near ones the larger."""
        asked = self.asked.get(name)
        return None if not asked else min(reversed(asked), key=lambda one: _distance(one, size))

    def list_representatives(self, sizes: Sizes) -> list[Sizes]:
        """Return all combinations of the asked sizes, the one whose range these are in first; others keep the given size."""
        choices = [self.asked.get(name) or (size,) for name, size in sizes.items()]
        first = tuple(near if (near := self._nearest(name, size)) is not None else size for name, size in sizes.items())
        return [FrozenDict(zip(sizes, one, strict=True)) for one in dict.fromkeys((first, *product(*choices)))]

    def add(self, sizes: Sizes, tuned: TuningResult) -> None:
        """Keep a placement that was measured at these sizes, for their range."""
        self._found[self.get_key(sizes)] = SizeRange(sizes, tuned)

    def find(self, sizes: Sizes) -> SizeRange | None:
        """Return the placement of these sizes' range, or else of the nearest one; None where none is known."""
        own = self._found.get(self.get_key(sizes))
        if own is not None or not self._found:
            return own
        return min(self, key=lambda one: _sum_distances(one.sizes, sizes))

    def is_measured(self, sizes: Sizes) -> bool:
        """Whether the range of these sizes has a placement of its own."""
        return self.get_key(sizes) in self._found


def sort_by_distance(several: Sequence[Sizes], sizes: Sizes) -> list[Sizes]:
    """Return sets of sizes, those nearest to the given ones first."""
    return sorted(several, key=lambda one: _sum_distances(one, sizes))


def _sum_distances(one: Sizes, other: Sizes) -> float:
    return sum(_distance(one[name], size) for name, size in other.items())


def _distance(one: int, other: int) -> float:
    return abs(math.log2(one + 0.5) - math.log2(other + 0.5))
