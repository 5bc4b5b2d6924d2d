"""Plan the memory of a program: where each value is stored, how each launch is called, and which inputs are updated in place.

A launch is *bound* if its engine supports fixed arrays and everything that it reads and writes has a fixed address: the call
then passes no arrays. It is *aimed* if only its outputs are fixed. All others are *plain*: arrays in, arrays out. To bind more
launches, small values are copied to a fixed address; large ones are in the arena only if their engine computes them there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from xrt.engines.toolkit.memory import LiveRange, assign_offsets
from xrt.graph import DType, TensorType, Type
from xrt.graph.constants import make_aligned_block

if TYPE_CHECKING:
    from xrt.engines import Executable
    from xrt.partition import Launch, Plan


@dataclass(frozen=True, slots=True)
class Update:
    """An alias of a program: an input whose array holds the value of an output after a call."""

    input: str
    output: str
    source: int
    """Slot of the output; ``target`` is the slot of the input."""
    target: int
    step: int | None
    """Index of the step that writes the output; None if the output is an input or a constant."""
    reason: str
    """Why the output is copied to the input; empty if it is computed in place."""

    def __str__(self) -> str:
        return f"{self.input} <- {self.output}: " + (f"copied, since {self.reason}" if self.reason else "in place")


@dataclass(frozen=True, slots=True)
class UpdateCopy:
    """How often, and why, one alias was copied over all calls of a program."""

    input: str
    output: str
    calls: int
    nbytes: int
    reason: str

    def __str__(self) -> str:
        return f"{self.input} <- {self.output}: {self.nbytes:,} bytes copied in {self.calls} calls, since {self.reason}"


def find_updates(table: ValueTable) -> tuple[Update, ...]:
    """Decide for each alias whether its output is computed in the input's array, or copied to it at the end of a call.

    It is computed there if the engine can write to an array that it is passed, and if no later step reads the input. The step
    that writes the output may read the input itself only if its engine supports that.
    """
    updates: list[Update] = []
    pairs: dict[int, frozenset[tuple[int, int]]] = {}
    seen: set[int] = set()
    for output_index, target in table.aliases:
        source = table.outputs[output_index]
        step = table.writer.get(source)
        reason = "another input is updated with it too" if source in seen else _why_copied(table, source, target, step, pairs)
        # An output can be computed in place of one input only.
        seen.add(source)
        updates.append(Update(table.names[target], table.names[source], source, target, step, reason))
    return tuple(updates)


def _why_copied(
    table: ValueTable, source: int, target: int, step_index: int | None, pairs_by_step: dict[int, frozenset[tuple[int, int]]]
) -> str:
    """Explain why output slot ``source`` is copied to input slot ``target``; empty if its step computes it in place."""
    if step_index is None:
        return "no engine computes it"
    if target in table.outputs:
        return "the model returns the input too"
    step, last = table.steps[step_index], table.last.get(target, -1)
    if last > step_index or (target in step.reads and not step.executable.outputs_are_fresh):
        return f"{table.steps[max(last, step_index)].launch.name} may read it after {step.launch.name} has written it"
    position, engine = step.writes.index(source), step.launch.engine
    if target not in step.reads:
        # Whether the engine computes this output into a given array.
        min_bytes = dict(enumerate(step.executable.output_buffer_threshold())).get(position)
        nbytes = getattr(table.types.get(source), "nbytes", None)
        fills = min_bytes is not None and (nbytes is None or nbytes >= min_bytes)
        return "" if fills else f"engine {engine!r} writes {step.launch.name} elsewhere"
    if step_index not in pairs_by_step:
        pairs_by_step[step_index] = frozenset(step.executable.inplace_pairs())
    if step.reads.count(target) == 1 and (step.reads.index(target), position) in pairs_by_step[step_index]:
        return ""
    return f"engine {engine!r} cannot write it in place in {step.launch.name}"


def may_overlap(targets: Iterable[int], inputs: Sequence[Any]) -> bool:
    """Whether an input that is updated shares memory with another one or is not C-contiguous; ``targets`` are their indices."""
    updated = frozenset(targets)
    if any(not inputs[index].flags.c_contiguous for index in updated):
        return True
    spans = sorted(((*span, index in updated) for index, value in enumerate(inputs) for span in _spans(value)), key=itemgetter(0))
    end, written = -1, False
    for low, high, is_updated in spans:
        # The spans are sorted, so an overlap involves the span that reaches furthest so far.
        if low < end and (is_updated or written):
            return True
        if high > end:
            end, written = high, is_updated
    return False


def _spans(value: Any) -> Iterator[tuple[int, int]]:
    """Yield start and end address of the memory of an array, or of each array in a list."""
    if isinstance(value, list):
        for item in value:
            yield from _spans(item)
    elif isinstance(value, np.ndarray) and value.nbytes:
        if value.flags.c_contiguous:
            start = value.__array_interface__["data"][0]
            yield start, start + value.nbytes
        else:
            yield np.lib.array_utils.byte_bounds(value)


SMALL = 8 * 1024
"""Values up to this many bytes are copied to a fixed address to bind a launch: the copy takes 0.2 to 0.6 us, and a bound call of
ONNX Runtime saves 1.3 us over a plain one.
"""


@dataclass(frozen=True, slots=True)
class Step:
    """A launch with its executable. ``reads`` and ``writes`` are the slots of its inputs and outputs in a frame."""

    launch: Launch
    executable: Executable
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    returns: tuple[tuple[int, int], ...]
    """Index pairs (launch output, program output): the engine can be passed the caller's buffer for these outputs."""


class ValueTable:
    """Assigns a slot to each value of a plan: inputs first, then constants, then launch outputs."""

    def __init__(self, plan: Plan, executables: Sequence[Executable]) -> None:
        function = plan.function
        self.names = tuple(dict.fromkeys(function.value_names()))
        slot_of = {name: slot for slot, name in enumerate(self.names)}
        self.constants = {slot_of[name]: constant.array for name, constant in function.constants.items()}
        self.inputs = range(len(function.inputs))
        self.outputs = tuple(slot_of[v.name] for v in function.outputs)
        output_indices = {v.name: i for i, v in reversed(list(enumerate(function.outputs)))}  # the first of equal outputs
        inputs = {v.name: i for i, v in enumerate(function.inputs)}
        self.aliases = tuple((output_indices[after], inputs[before]) for before, after in function.aliases)
        self.steps = tuple(
            Step(
                launch,
                executable,
                tuple(slot_of[name] for name in launch.inputs),
                tuple(slot_of[name] for name in launch.outputs),
                tuple((i, output_indices[name]) for i, name in enumerate(launch.outputs) if name in output_indices),
            )
            for launch, executable in zip(plan.launches, executables, strict=True)
        )
        # The regions have the most precise types.
        values = [*function.inputs, *(value for launch in plan.launches for value in launch.function.outputs)]
        self.types = {slot_of[value.name]: value.type for value in values}
        self.writer = {slot: step_index for step_index, step in enumerate(self.steps) for slot in step.writes}
        self.last = self._last_uses()
        self.updates = find_updates(self)
        self.inplace = {update.source: update.target for update in self.updates if not update.reason}
        """For each output slot that is computed in place, the input slot whose array it uses."""

    def _last_uses(self) -> dict[int, int]:
        """Map each slot to the last step that needs it. A slot of which a result may be a view is needed until the last step."""
        last: dict[int, int] = {}
        for step_index, step in enumerate(self.steps):
            # A result that may be a view keeps the inputs of its step alive.
            shares = not step.executable.outputs_are_fresh
            last.update(dict.fromkeys(step.writes, step_index))
            last.update(dict.fromkeys(step.reads, len(self.steps) - 1 if shares else step_index))
        return last

    def last_uses(self) -> list[tuple[int, ...]]:
        """List for each step the slots whose values are released after it. Outputs and constants are never released."""
        permanent = {*self.outputs, *self.constants}
        last_step: dict[int, int] = {}
        for step_index, step in enumerate(self.steps):
            written = (self.inplace[slot] for slot in step.writes if slot in self.inplace)
            last_step.update(dict.fromkeys((*step.reads, *step.writes, *written), step_index))
        freed: list[list[int]] = [[] for _ in self.steps]
        for slot, step_index in last_step.items():
            if slot not in permanent:
                freed[step_index].append(slot)
        return [tuple(slots) for slots in freed]

    def maybe_aliased(self) -> frozenset[int]:
        """Indices of program outputs that may share memory with another value: not allocated by a launch, or returned twice."""
        fresh = {slot for step in self.steps if step.executable.outputs_are_fresh for slot in step.writes}
        return frozenset(i for i, slot in enumerate(self.outputs) if slot not in fresh or slot in self.outputs[:i])


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where the values of a program are stored, and how its launches are called."""

    arena: Arena
    places: Mapping[int, str]
    """Slots of inner values in the arena, to their names in the arena."""
    # Indices of bound and of aimed launches, as the docstring of the module defines them.
    bound: frozenset[int]
    aimed: frozenset[int]
    entering: tuple[tuple[int, str], ...]
    """Slots of inputs that are copied into the arena at the start of a call, with their names in the arena."""


def plan_memory(
    slots: ValueTable, fixed: Mapping[int, object] | None = None, types: Mapping[int, Type | None] | None = None
) -> MemoryPlan:
    """Plan the memory of a program. For a bound call, ``fixed`` has the caller's arrays and ``types`` its types, both by slot."""
    return _MemoryPlanner(slots, fixed or {}, {**slots.types, **(types or {})}).layout()


class _MemoryPlanner:
    """Plans all steps in one pass, then drops the copies that no bound launch reads."""

    def __init__(self, slots: ValueTable, caller_arrays: Mapping[int, object], types: Mapping[int, Type | None]) -> None:
        self.slots, self.caller_arrays = slots, caller_arrays
        self.outputs = frozenset(slots.outputs)
        self.types = {slot: type_ for slot, type_ in types.items() if is_sized_tensor(type_)}
        # A bound call reads the caller's arrays in place.
        self.copied = set() if caller_arrays else {slot for slot in slots.inputs if self._is_small(slot)}
        self.stored: set[int] = set()
        self.bound: set[int] = set()
        self.aimed: set[int] = set()
        for step_index, step in enumerate(slots.steps):
            self._plan_step(step_index, step)
        # A copy pays off only if a bound launch reads it.
        self.copied &= {slot for step_index in self.bound for slot in slots.steps[step_index].reads}

    def _plan_step(self, step_index: int, step: Step) -> None:
        """Decide whether the launch is bound, aimed or plain, and which results are stored in the arena or copied to it."""
        can_bind = step.executable.supports_io_binding()
        if (can_bind or (step.writes and self.caller_arrays.keys() >= set(step.writes))) and all(map(self._may_fix, step.writes)):
            # Slots with the same address in every call of a frame.
            fixed = self.caller_arrays, self.copied, self.stored, self.slots.constants
            is_bound = all(any(slot in slots for slots in fixed) for slot in step.reads)
            (self.bound if is_bound else self.aimed).add(step_index)
            self.stored.update(slot for slot in step.writes if slot not in self.caller_arrays)
            return
        inner = [slot for slot in step.writes if slot not in self.outputs]
        self.copied.update(slot for slot in inner if self._is_small(slot))
        if not can_bind:  # an engine with binding is slower at writing to given buffers
            thresholds = dict(zip(step.writes, step.executable.output_buffer_threshold(), strict=False))
            pairs = [(slot, thresholds.get(slot)) for slot in inner if slot in self.types]
            self.stored.update(slot for slot, least in pairs if least is not None and self._nbytes(slot) >= least)

    def _may_fix(self, slot: int) -> bool:
        """Whether a launch may write the slot at a fixed address. An output must be small, because it is copied from there."""
        if slot in self.caller_arrays or slot in self.slots.inplace:
            return slot in self.caller_arrays
        return slot in self.types and (slot not in self.outputs or self._is_small(slot))

    def _is_small(self, slot: int) -> bool:
        return slot in self.types and self._nbytes(slot) <= SMALL

    def _nbytes(self, slot: int) -> int:
        return self.types[slot].nbytes or 0

    # ------------------------------------------------------------------ the arena

    def layout(self) -> MemoryPlan:
        live = self.copied | self.stored
        values = sorted((self._place(slot) for slot in live), key=lambda value: (value.span.first, value.name))
        names = {slot: self.slots.names[slot] for slot in live}
        entering = tuple((slot, names[slot]) for slot in self.slots.inputs if slot in live)
        inner_names = {slot: name for slot, name in names.items() if slot not in self.slots.inputs}
        return MemoryPlan(plan_arena(values), inner_names, frozenset(self.bound), frozenset(self.aimed), entering)

    def _place(self, slot: int) -> ArenaValue:
        first = self.slots.writer.get(slot, 0)  # inputs are written before the first step
        # Outputs are copied at the end of the call.
        last = len(self.slots.steps) - 1 if slot in self.outputs else max(self.slots.last.get(slot, first), first)
        return ArenaValue(self.slots.names[slot], self.types[slot], LiveRange(self._nbytes(slot), first, last))


def is_sized_tensor(type_: Type | None) -> TypeGuard[TensorType]:
    """Whether the type is a numeric tensor of known, nonzero size."""
    return isinstance(type_, TensorType) and type_.dtype is not DType.STRING and bool(type_.nbytes)


@dataclass(frozen=True, slots=True)
class ArenaValue:
    """A value of known size, stored in the arena."""

    name: str
    type: TensorType
    span: LiveRange
    """Its bytes and offset, and its lifetime: from the step that writes it to the last that reads it or a view of it."""

    def view(self, block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """View the part of an arena block where the value is stored as an array of its type."""
        start = self.span.offset
        array: np.ndarray[Any, Any] = block[start : start + self.span.nbytes].view(self.type.dtype.numpy).reshape(self.type.shape)
        return array


@dataclass(frozen=True, slots=True)
class Arena:
    """The layout of one memory block: its values, in the order in which they are written."""

    values: tuple[ArenaValue, ...] = ()

    @property
    def nbytes(self) -> int:
        """Size of the block in bytes; each concurrent call has its own block."""
        return max((value.span.offset + value.span.nbytes for value in self.values), default=0)

    def views(self) -> dict[str, np.ndarray[Any, Any]]:
        """Allocate a block, and return a view of it for each value, by name."""
        block = make_aligned_block(self.nbytes)
        return {value.name: value.view(block) for value in self.values}


def plan_arena(values: Sequence[ArenaValue]) -> Arena:
    """Assign offsets such that values that are live at the same step never overlap."""
    assign_offsets([value.span for value in values])
    return Arena(tuple(values))
