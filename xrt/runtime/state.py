"""Updates in place: where the output of an alias is written, and what is copied where it cannot be the input's own array."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.graph import TensorType

if TYPE_CHECKING:
    from xrt.graph import Type
    from xrt.runtime.memory_plan import Step, ValueTable

__all__ = ["Update", "UpdateCopy", "find_updates", "may_overlap"]


@dataclass(frozen=True, slots=True)
class Update:
    """One alias of a program: an input whose array holds an output after the call."""

    input: str
    output: str
    source: int
    """The slot of the output."""
    target: int
    """The slot of the input."""
    step: int | None
    """The step that writes the output; None where it is an input or a constant."""
    reason: str
    """Why the output is copied into the input's array; empty where it is computed there."""

    def __str__(self) -> str:
        return f"{self.input} <- {self.output}: " + (f"copied, since {self.reason}" if self.reason else "in place")


@dataclass(frozen=True, slots=True)
class UpdateCopy:
    """What was copied for one alias over the calls of a program."""

    input: str
    output: str
    calls: int
    """The calls that copied it."""
    nbytes: int
    """Bytes copied in all calls together."""
    reason: str

    def __str__(self) -> str:
        return f"{self.input} <- {self.output}: {self.nbytes:,} bytes copied in {self.calls} calls, since {self.reason}"


def find_updates(table: ValueTable) -> tuple[Update, ...]:
    """Return the aliases of a program, each with whether its output is computed in the input's array.

    It is where the engine writes to arrays it is given, and nothing reads the input after the step that writes; that step itself
    may, where its engine allows it.
    """
    found: list[Update] = []
    pairs: dict[int, frozenset[tuple[int, int]]] = {}
    taken: set[int] = set()
    for place, target in table.aliases:
        source = table.outputs[place]
        step = table.writer.get(source)
        reason = "another input is updated with it too" if source in taken else _why_copied(table, source, target, step, pairs)
        taken.add(source)
        found.append(Update(table.names[target], table.names[source], source, target, step, reason))
    return tuple(found)


def _why_copied(
    table: ValueTable, source: int, target: int, number: int | None, known: dict[int, frozenset[tuple[int, int]]]
) -> str:
    """Return why an alias is copied; ``known`` remembers the pairs that executables propose, by step."""
    if number is None:
        return "no engine computes it"
    if target in table.outputs:
        return "the model returns the input too"
    step, last = table.steps[number], table.last.get(target, -1)
    if last > number or (target in step.reads and not step.executable.outputs_are_fresh):
        return f"{table.steps[max(last, number)].launch.name} may read it after {step.launch.name} has written it"
    mine, engine = step.writes.index(source), step.launch.engine
    if target not in step.reads:
        return "" if _fills(step, mine, table.types.get(source)) else f"engine {engine!r} writes {step.launch.name} elsewhere"
    pairs = known.get(number)
    if pairs is None:
        pairs = known[number] = frozenset(step.executable.inplace_pairs())
    if step.reads.count(target) == 1 and (step.reads.index(target), mine) in pairs:
        return ""
    return f"engine {engine!r} cannot write it in place in {step.launch.name}"


def _fills(step: Step, place: int, type_: Type | None) -> bool:
    """Whether the launch's engine computes that output into an array that it is given."""
    thresholds = step.executable.output_buffer_threshold()
    least = thresholds[place] if place < len(thresholds) else None
    nbytes = type_.nbytes if isinstance(type_, TensorType) else None
    return least is not None and (nbytes is None or nbytes >= least)


def may_overlap(targets: Iterable[int], inputs: Sequence[Any]) -> bool:
    """Whether an input that is updated shares memory with another input, or cannot be given to an engine to write to."""
    updated = frozenset(targets)
    if any(not inputs[place].flags.c_contiguous for place in updated):
        return True
    spans = sorted(((*span, place in updated) for place, value in enumerate(inputs) for span in _spans(value)), key=itemgetter(0))
    end, written = -1, False
    for low, high, is_updated in spans:
        if low < end and (is_updated or written):
            return True
        if high > end:
            end, written = high, is_updated
    return False


def _spans(value: Any) -> Iterator[tuple[int, int]]:
    """Yield the first address of an array's memory and the one behind its last."""
    if isinstance(value, list):
        for item in value:
            yield from _spans(item)
    elif isinstance(value, np.ndarray) and value.nbytes:
        if value.flags.c_contiguous:
            start = value.__array_interface__["data"][0]
            yield start, start + value.nbytes
        else:
            yield np.lib.array_utils.byte_bounds(value)
