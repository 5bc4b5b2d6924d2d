"""What the values of a call take: counted while a profiled call runs, from the arrays that it holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from xrt.engines import Executable
    from xrt.partition import Launch
    from xrt.runtime.call_frame import CallFrame
    from xrt.runtime.memory_plan import ValueTable

__all__ = ["CallMemory", "ValueCounter", "find_peak"]

AT_END = ""
"""In place of a launch: the end of a call, when results that lie in the arena are copied out of it."""


@dataclass(frozen=True, slots=True)
class CallMemory:
    """The most bytes that the values of one profiled call took at once, and what the plan expected."""

    peak: int
    """``values + workspace`` of the launch at which this is most."""
    launch: str
    """That launch; empty for the end of the call."""
    values: int
    """Bytes of arrays that the call held then: values between regions and results, and the whole arena where there is one.
    Arrays of the caller (inputs, state, buffers for results) and constants are not counted, and memory that several values
    share is counted once."""
    workspace: int
    """Bytes that the engine reports for inner values of the region and to compute; 0 where it does not. They are added in full,
    although some engines free inner values before they make the last result."""
    expected: int | None
    """`Plan.estimate_peak`: the values alone, in the order of the nodes; None where a size is not known."""
    untold: tuple[str, ...] = ()
    """Launches whose engines do not say what they take inside."""

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as plain values for JSON."""
        return {**asdict(self), "untold": list(self.untold)}

    def __str__(self) -> str:
        where = f"in {self.launch}" if self.launch else "at the end"
        parts = (
            f"{self.values:,} in arrays of the call, {self.workspace:,} inside of the region" if self.launch else "results too"
        )
        expected = "" if self.expected is None else f"; the plan expects {self.expected:,}"
        untold = f"; not known: what is inside of {', '.join(self.untold)}" if self.untold else ""
        return f"values take at most {self.peak:,} bytes at once, {where} ({parts}){expected}{untold}"


class ValueCounter:
    """The bytes of the arrays that one call holds, launch by launch. Constant time for each value."""

    def __init__(self, table: ValueTable, frame: CallFrame, inputs: Sequence[Any], out: Sequence[Any] | None, arena: int) -> None:
        self._slots = frame.slots
        self._steps = table.steps
        self._freed = table.last_uses()
        others = (*inputs, *table.constants.values(), *(out or ()), *frame.initial)
        self._others = {key for value in others for key, _ in _list_memory(value)}
        self._alive: dict[int, int] = {}
        """How many slots refer to a block of memory, by its key."""
        self._keys: dict[int, list[tuple[int, int]]] = {}
        """The blocks of a slot, with their bytes."""
        self.nbytes = arena
        self.held: list[int] = []
        """By launch the bytes at its end, before anything was freed."""

    def add(self, number: int) -> None:
        """Count what a step that has just run has written, and then what it was the last to read."""
        for slot in self._steps[number].writes:
            self._keys[slot] = [(key, size) for key, size in _list_memory(self._slots[slot]) if key not in self._others]
            for key, size in self._keys[slot]:
                self.nbytes += 0 if self._alive.get(key) else size
                self._alive[key] = self._alive.get(key, 0) + 1
        self.held.append(self.nbytes)
        for slot in self._freed[number]:
            for key, size in self._keys.pop(slot, ()):
                self._alive[key] -= 1
                self.nbytes -= 0 if self._alive[key] else size

    def count_results(self, results: Iterable[Any]) -> int:
        """Return the bytes at the end of the call, with the results that are copies."""
        found = {key: size for value in results for key, size in _list_memory(value)}
        return self.nbytes + sum(size for key, size in found.items() if key not in self._others and not self._alive.get(key))


def _list_memory(value: Any) -> Iterator[tuple[int, int]]:
    """Yield a key and the bytes of each block of memory that a value refers to: that of the array whose view it is."""
    if isinstance(value, np.ndarray):
        while isinstance(value.base, np.ndarray):
            value = value.base
        yield id(value if value.base is None else value.base), value.nbytes
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _list_memory(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _list_memory(item)


def find_peak(
    held: Sequence[int], at_end: int, launches: Sequence[Launch], executables: Sequence[Executable], expected: int | None
) -> CallMemory:
    """Return the peak over launches, from the bytes of arrays at each of them and what their engines take inside."""
    uses = [executable.memory() for executable in executables]
    inner = [[None] if own is None else [use.nbytes for use in own if use.per_call] for own in uses]
    untold = tuple(launch.name for launch, sizes in zip(launches, inner, strict=True) if None in sizes)
    rows = [(one.name, values, sum(n or 0 for n in sizes)) for one, values, sizes in zip(launches, held, inner, strict=True)]
    name, values, workspace = max([*rows, (AT_END, at_end, 0)], key=lambda row: row[1] + row[2])
    return CallMemory(values + workspace, name, values, workspace, expected, untold)
