"""A Function as the planner sees it: nodes and values as bits of integers, asked once what every engine takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from xrt.graph import Function, TensorType, Type, shape_key
from xrt.partition.dependencies import DependencyGraph
from xrt.partition.device_map import DeviceMap
from xrt.partition.eligible_engines import EligibleEngines
from xrt.partition.subgraph import extract_subgraph

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.placement.profiling.candidate_subgraphs import Subgraph

__all__ = ["BitsetGraph", "iter_bits", "to_mask"]

UNKNOWN_DIM = 32
"""What an extent that is known only at run time is taken to be."""

UNKNOWN_BYTES = 4096
"""The size of a value of which not even the rank is known, where nothing is known of any other either."""


_KEYS: WeakKeyDictionary[Function, dict[int, str]] = WeakKeyDictionary()
"""Keys of subgraphs by Function, as long as it lives: a tuning session calls the planner many times for one Function."""


def to_mask(places: Sequence[int]) -> int:
    """Return the set of those places as an integer."""
    mask = 0
    for place in places:
        mask |= 1 << place
    return mask


def iter_bits(mask: int) -> Iterator[int]:
    """Yield the places in a set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@dataclass(frozen=True)
class BitsetGraph:
    """What does not depend on costs: dependencies, capabilities, sizes of values, and the names of equal parts."""

    function: Function
    engines: tuple[str, ...]
    """Specs, by priority."""
    takes: tuple[int, ...]
    """For each engine the set of nodes that it takes."""
    _keys: dict[int, str] = field(default_factory=dict, repr=False)
    """Shape keys that have been computed, for whatever ground of the Function; they do not change."""
    parts: list[Subgraph] = field(default_factory=list, repr=False)
    """What `enumerate_subgraphs` found."""
    _asked: dict[int, str] = field(default_factory=dict, repr=False)
    """Those of them that have been asked for since the ground was made or `unasked`."""

    @classmethod
    def of(cls, function: Function, engines: Sequence[GraphCompiler], device: str | DeviceMap = "cpu") -> BitsetGraph:
        """Ask the engines about the nodes. Linear in nodes and edges."""
        homes = DeviceMap.at(device)
        choices = EligibleEngines.of(function, engines, (), (), [homes.of(engine.spec) for engine in engines])
        takes = [0] * len(engines)
        for place, willing in enumerate(choices.candidates()):
            for engine in willing:
                takes[engine] |= 1 << place
        return cls(function, choices.engines, tuple(takes), _KEYS.setdefault(function, {}))

    def __len__(self) -> int:
        return len(self.function.nodes)

    @property
    def whole(self) -> int:
        """The set of all nodes."""
        return (1 << len(self)) - 1

    @cached_property
    def graph(self) -> DependencyGraph:
        """Who must run before whom."""
        return DependencyGraph.of(self.function)

    @cached_property
    def devices(self) -> dict[str, int]:
        """For each device that nodes name the set of those nodes."""
        found: dict[str, int] = {}
        for place, node in enumerate(self.function.nodes):
            if node.device:
                found[node.device] = found.get(node.device, 0) | 1 << place
        return found

    def holds(self, engine: int, mask: int) -> bool:
        """Whether an engine takes all of some nodes, and they are of one device."""
        return not mask & ~self.takes[engine] and sum(1 for device in self.devices.values() if device & mask) < 2

    # ------------------------------------------------------------------ values

    @cached_property
    def values(self) -> dict[str, int]:
        """The values that nodes make, numbered."""
        return {name: number for number, name in enumerate(n for node in self.function.nodes for n in node.defines)}

    @cached_property
    def makes(self) -> tuple[int, ...]:
        """For each node the set of values that it makes."""
        return tuple(to_mask([self.values[name] for name in node.defines]) for node in self.function.nodes)

    @cached_property
    def reads(self) -> tuple[int, ...]:
        """For each node the set of values that it reads and another node makes."""
        known = self.values
        return tuple(to_mask([known[name] for name in node.uses if name in known]) for node in self.function.nodes)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """For each value its bytes, estimated where they are not known."""
        types = [self.function.get_type(name) for name in self.values]
        known = [type_.nbytes for type_ in types if isinstance(type_, TensorType) and type_.nbytes is not None]
        usual = int(median(known)) if known else UNKNOWN_BYTES
        return tuple(_bytes(type_, usual) for type_ in types)

    # ------------------------------------------------------------------ parts

    def part(self, mask: int, name: str = "part") -> Function:
        """Return those nodes as a Function of their own."""
        return extract_subgraph(self.function, tuple(iter_bits(mask)), name)

    def key(self, mask: int) -> str:
        """Return the shape key of those nodes, computed once. Linear in them, some 25 us for each."""
        key = self._asked.get(mask)
        if key is None:
            key = self._asked[mask] = self._key(mask)
        return key

    def know(self, mask: int, key: str) -> None:
        """Take the shape key of those nodes from who has it."""
        self._keys[mask] = key

    def _key(self, mask: int) -> str:
        key = self._keys.get(mask)
        if key is None:
            key = self._keys[mask] = shape_key(self.part(mask))
        return key

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """For each node the shape key of it alone: equal for nodes that cost the same."""
        return tuple(self._key(1 << place) for place in range(len(self)))

    def list_known(self) -> dict[int, str]:
        """Return the parts whose keys have been asked for, with the keys: what the shares are fitted to."""
        return self._asked

    def forget_keys(self) -> BitsetGraph:
        """Return the same ground as if no key had been asked for: what is found then does not depend on what was found before."""
        other = copy(self)
        object.__setattr__(other, "_asked", {})
        return other


def _bytes(type_: Type | None, usual: int) -> int:
    """Return the bytes of a value; each extent that is not known counts as `UNKNOWN_DIM`."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        return usual
    count: int = max(type_.dtype.numpy.itemsize, 1)
    for dim in type_.shape:
        count *= dim if isinstance(dim, int) else UNKNOWN_DIM
    return count
