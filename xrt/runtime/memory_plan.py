"""Plan the memory of a program: where each value is stored, how each launch is called, and which inputs are updated in place.

There are three forms of a launch. *Bound*: its inputs and outputs have fixed addresses, and a call passes no arrays. *Output-
bound*: only its outputs have fixed addresses. *Plain*: a call passes arrays and returns arrays. The first two need an engine that
supports fixed addresses. To bind more launches, small values are copied to a fixed address. Large values are stored in the arena
only if their engine computes them there.
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
    """An input that a call updates: after the call, its array has the value of an output."""

    input: str
    output: str
    source: int
    target: int
    step: int | None
    """Index of the step that writes the output; None if the output is an input or a constant."""
    reason: str
    """Why the output is copied to the input; empty if it is computed in the input's array."""

    def __str__(self) -> str:
        return f"{self.input} <- {self.output}: " + (f"copied, since {self.reason}" if self.reason else "in place")


@dataclass(frozen=True, slots=True)
class UpdateCopy:
    """The copies of an output to an input, over all calls of a program."""

    input: str
    output: str
    calls: int
    nbytes: int
    reason: str

    def __str__(self) -> str:
        return f"{self.input} <- {self.output}: {self.nbytes:,} bytes copied in {self.calls} calls, since {self.reason}"


def find_updates(table: ValueTable) -> tuple[Update, ...]:
    """Decide for each updated input whether the output is computed in its array, or copied to it at the end of a call.

    It is computed there if the engine can write to a given array and no later step reads the input. If the step that writes the
    output also reads the input, its engine must support that.
    """
    updates: list[Update] = []
    pairs: dict[int, frozenset[tuple[int, int]]] = {}
    seen: set[int] = set()
    for output_index, target in table.aliases:
        source = table.outputs[output_index]
        step = table.writer.get(source)
        reason = "it also updates another input" if source in seen else _why_copied(table, source, target, step, pairs)
        # An output can be computed in place of one input only.
        seen.add(source)
        updates.append(Update(table.names[target], table.names[source], source, target, step, reason))
    return tuple(updates)


def _why_copied(
    table: ValueTable, source: int, target: int, step_index: int | None, pairs_by_step: dict[int, frozenset[tuple[int, int]]]
) -> str:
    """Explain why output slot ``source`` is copied to input slot ``target``; empty if its step computes it in place.

    ``step_index`` is the step that writes ``source``; None if it is an input or a constant. ``pairs_by_step`` caches the (input,
    output) index pairs that a step's engine computes in place.
    """
    if step_index is None:
        return "no engine computes it"
    if target in table.outputs:
        return "the model returns the input too"
    step, last_reader = table.steps[step_index], table.last_steps.get(target, -1)
    # Outputs that are not fresh may be views of the input, and would change with it.
    if last_reader > step_index or (target in step.reads and not step.executable.outputs_are_fresh):
        return f"{table.steps[max(last_reader, step_index)].launch.name} may read it after {step.launch.name} has written it"
    position, engine = step.writes.index(source), step.launch.engine
    if target not in step.reads:
        # The engine must compute this output into a given array. It need not report a threshold for every output.
        thresholds = dict(enumerate(step.executable.output_buffer_threshold()))
        min_bytes = thresholds.get(position)
        nbytes = getattr(table.types.get(source), "nbytes", None)
        fills = min_bytes is not None and (nbytes is None or nbytes >= min_bytes)
        return "" if fills else f"engine {engine!r} writes {step.launch.name} elsewhere"
    # The step also reads the input, so its engine must support this pair, and read the input only there.
    if step_index not in pairs_by_step:
        pairs_by_step[step_index] = frozenset(step.executable.inplace_pairs())
    if step.reads.count(target) == 1 and (step.reads.index(target), position) in pairs_by_step[step_index]:
        return ""
    return f"engine {engine!r} cannot write it in place in {step.launch.name}"


def may_overlap(targets: Iterable[int], inputs: Sequence[Any]) -> bool:
    """Whether an updated input shares memory with another input or is not C-contiguous. ``targets`` has the updated indices."""
    updated = frozenset(targets)
    if any(not inputs[index].flags.c_contiguous for index in updated):
        return True
    spans: list[tuple[int, int, bool]] = []  # (start, end, whether it is updated), in bytes
    for index, value in enumerate(inputs):
        spans += [(low, high, index in updated) for low, high in _list_memory_ranges(value)]
    spans.sort(key=itemgetter(0))
    highest_end, highest_is_updated = -1, False
    for low, high, is_updated in spans:
        # The ranges are sorted by start, so an overlap involves the range with the highest end so far.
        if low < highest_end and (is_updated or highest_is_updated):
            return True
        if high > highest_end:
            highest_end, highest_is_updated = high, is_updated
    return False


def _list_memory_ranges(value: Any) -> Iterator[tuple[int, int]]:
    """Yield the start and end address of the memory of an array, or of each array in a list."""
    if isinstance(value, list):
        for item in value:
            yield from _list_memory_ranges(item)
    elif isinstance(value, np.ndarray) and value.nbytes:
        if value.flags.c_contiguous:
            start = value.__array_interface__["data"][0]
            yield start, start + value.nbytes
        else:
            yield np.lib.array_utils.byte_bounds(value)


MAX_COPIED_BYTES = 8 * 1024
"""Values up to this many bytes are copied to a fixed address to bind a launch: the copy takes 0.2 to 0.6 us, and a bound call of
ONNX Runtime saves 1.3 us over a plain one.
"""


@dataclass(frozen=True, slots=True)
class Step:
    launch: Launch
    executable: Executable
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    returns: tuple[tuple[int, int], ...]
    """Index pairs (launch output, program output) of the outputs that a call returns."""


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
        self.aliases = tuple((output_indices[after], inputs[before]) for before, after in function.aliases)  # (output, input)
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
        # The types of the regions' outputs are more precise than those of the plan's function.
        values = [*function.inputs, *(value for launch in plan.launches for value in launch.function.outputs)]
        self.types = {slot_of[value.name]: value.type for value in values}
        self.writer = {slot: step_index for step_index, step in enumerate(self.steps) for slot in step.writes}
        self.last_steps = self._find_last_steps()
        self.updates = find_updates(self)
        self.inplace = {update.source: update.target for update in self.updates if not update.reason}
        """For each output slot that is computed in place, the input slot whose array it uses."""

    def _find_last_steps(self) -> dict[int, int]:
        """Map each slot to the index of the last step that needs its memory."""
        last_steps: dict[int, int] = {}
        for step_index, step in enumerate(self.steps):
            last_steps.update(dict.fromkeys(step.writes, step_index))
            # A result may be a view of an input, whose memory is then needed to the end.
            may_return_views = not step.executable.outputs_are_fresh
            last_steps.update(dict.fromkeys(step.reads, len(self.steps) - 1 if may_return_views else step_index))
        return last_steps

    def list_released_slots(self) -> list[tuple[int, ...]]:
        """List for each step the slots to release after it. Outputs and constants are not released."""
        permanent = {*self.outputs, *self.constants}
        last_step: dict[int, int] = {}
        for step_index, step in enumerate(self.steps):
            updated = (self.inplace[slot] for slot in step.writes if slot in self.inplace)
            last_step.update(dict.fromkeys((*step.reads, *step.writes, *updated), step_index))
        freed: list[list[int]] = [[] for _ in self.steps]
        for slot, step_index in last_step.items():
            if slot not in permanent:
                freed[step_index].append(slot)
        return [tuple(slots) for slots in freed]

    def find_shared_outputs(self) -> frozenset[int]:
        """Find the program outputs, by index, that may share memory with an input, a constant or another output."""
        fresh = {slot for step in self.steps if step.executable.outputs_are_fresh for slot in step.writes}
        return frozenset(i for i, slot in enumerate(self.outputs) if slot not in fresh or slot in self.outputs[:i])


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where the values of a program are stored, and how its launches are called."""

    arena: Arena
    arena_names: Mapping[int, str]
    """Names in the arena by slot, of the values that launches write."""
    bound: frozenset[int]
    """Indices of the bound launches, as the docstring of this module defines them."""
    output_bound: frozenset[int]
    entering_inputs: tuple[tuple[int, str], ...]
    """(slot, name in the arena) of each input that is copied into the arena at the start of a call."""
    arena_outputs: tuple[int, ...] = ()
    """Indices of the program outputs in the arena, which are copied from it at the end of a call."""


def plan_memory(
    slots: ValueTable, fixed: Mapping[int, object] | None = None, types: Mapping[int, Type | None] | None = None
) -> MemoryPlan:
    """Plan the memory of a program. For a bound call, ``fixed`` has the caller's arrays and ``types`` their types, by slot."""
    return _MemoryPlanner(slots, fixed or {}, {**slots.types, **(types or {})}).make_plan()


class _MemoryPlanner:
    """Decides for each step in order how it is called. Then it drops the copies that no bound launch reads."""

    def __init__(self, slots: ValueTable, caller_arrays: Mapping[int, object], types: Mapping[int, Type | None]) -> None:
        self.slots, self.caller_arrays = slots, caller_arrays
        self.outputs = frozenset(slots.outputs)
        self.types = {slot: type_ for slot, type_ in types.items() if is_sized_tensor(type_)}
        # Slots whose values are copied to the arena. A bound call reads the caller's arrays in place.
        self.copied = set() if caller_arrays else {slot for slot in slots.inputs if self._is_small(slot)}
        self.stored: set[int] = set()  # slots that launches write directly into the arena
        self.bound: set[int] = set()  # step indices, as in `output_bound`
        self.output_bound: set[int] = set()
        for step_index, step in enumerate(slots.steps):
            self._plan_step(step_index, step)
        # A copy pays off only if a bound launch reads it.
        self.copied &= {slot for step_index in self.bound for slot in slots.steps[step_index].reads}

    def _plan_step(self, step_index: int, step: Step) -> None:
        """Choose the form of a launch, and which of its results are computed in the arena or copied to it."""
        can_bind = step.executable.supports_io_binding()
        writes_to_caller = bool(step.writes) and self.caller_arrays.keys() >= set(step.writes)
        if (can_bind or writes_to_caller) and all(map(self._may_fix, step.writes)):
            # The launch can be bound if each input has the same address in every call. Otherwise only its outputs are bound.
            fixed = self.caller_arrays, self.copied, self.stored, self.slots.constants
            is_bound = all(any(slot in slots for slots in fixed) for slot in step.reads)
            (self.bound if is_bound else self.output_bound).add(step_index)
            self.stored.update(slot for slot in step.writes if slot not in self.caller_arrays)
            return
        inner = [slot for slot in step.writes if slot not in self.outputs]
        self.copied.update(slot for slot in inner if self._is_small(slot))
        if not can_bind:  # engines that support binding are slower at writing to buffers that a call passes
            thresholds = dict(zip(step.writes, step.executable.output_buffer_threshold(), strict=False))
            for slot in inner:
                min_bytes = thresholds.get(slot)
                if slot in self.types and min_bytes is not None and self._nbytes(slot) >= min_bytes:
                    self.stored.add(slot)

    def _may_fix(self, slot: int) -> bool:
        """Whether a launch may write the slot at a fixed address. A program output must be small, as it is copied from there."""
        if slot in self.caller_arrays:
            return True
        if slot in self.slots.inplace:  # it is written to the array of an input, which each call passes
            return False
        return slot in self.types and (slot not in self.outputs or self._is_small(slot))

    def _is_small(self, slot: int) -> bool:
        return slot in self.types and self._nbytes(slot) <= MAX_COPIED_BYTES

    def _nbytes(self, slot: int) -> int:
        return self.types[slot].nbytes or 0

    def make_plan(self) -> MemoryPlan:
        live = self.copied | self.stored
        values = sorted((self._make_arena_value(slot) for slot in live), key=lambda value: (value.span.first, value.name))
        names = {slot: self.slots.names[slot] for slot in live}
        entering_inputs = tuple((slot, names[slot]) for slot in self.slots.inputs if slot in live)
        inner_names = {slot: name for slot, name in names.items() if slot not in self.slots.inputs}
        arena_outputs = tuple(index for index, slot in enumerate(self.slots.outputs) if slot in inner_names)
        bound, output_bound = frozenset(self.bound), frozenset(self.output_bound)
        return MemoryPlan(plan_arena(values), inner_names, bound, output_bound, entering_inputs, arena_outputs)

    def _make_arena_value(self, slot: int) -> ArenaValue:
        first = self.slots.writer.get(slot, 0)  # inputs are written before the first step
        last = max(self.slots.last_steps.get(slot, first), first)
        if slot in self.outputs:  # copied at the end of the call
            last = len(self.slots.steps) - 1
        return ArenaValue(self.slots.names[slot], self.types[slot], LiveRange(self._nbytes(slot), first, last))


def is_sized_tensor(type_: Type | None) -> TypeGuard[TensorType]:
    """Whether the type is a numeric tensor of known, nonzero size."""
    return isinstance(type_, TensorType) and type_.dtype is not DType.STRING and bool(type_.nbytes)


@dataclass(frozen=True, slots=True)
class ArenaValue:
    name: str
    type: TensorType
    span: LiveRange
    """Its size and offset in bytes, and the first and last step at which its memory is in use."""

    def view(self, block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Make an array of the value's type over its part of an arena block."""
        start = self.span.offset
        array: np.ndarray[Any, Any] = block[start : start + self.span.nbytes].view(self.type.dtype.numpy).reshape(self.type.shape)
        return array


@dataclass(frozen=True, slots=True)
class Arena:
    """The layout of a memory block. The values are in the order in which they are written."""

    values: tuple[ArenaValue, ...] = ()

    @property
    def nbytes(self) -> int:
        """Size of the block in bytes. Each concurrent call has a separate block."""
        return max((value.span.offset + value.span.nbytes for value in self.values), default=0)

    def views(self) -> dict[str, np.ndarray[Any, Any]]:
        """Allocate a block, and return an array over it for each value, by name."""
        block = make_aligned_block(self.nbytes)
        return {value.name: value.view(block) for value in self.values}


def plan_arena(values: Sequence[ArenaValue]) -> Arena:
    """Assign offsets so that values that are in use at the same step never overlap."""
    assign_offsets([value.span for value in values])
    return Arena(tuple(values))
