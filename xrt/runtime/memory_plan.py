"""The memory of each value of a program, and the way each launch is called: decided once, for every call.

A launch is *bound* if its engine can fix arrays once and for all, and all that it reads and writes has a fixed address. Such a
call passes no arrays. It is *aimed* if that is true of what it writes. Every other launch is *plain*: arrays in, arrays out. To
bind more launches, small values are copied to a fixed address; large ones are in the arena if their engine computes them there by
itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.toolkit.memory_planner import LiveRange, assign_offsets
from xrt.graph import DType, TensorType, Type
from xrt.graph.constants import make_aligned_block

if TYPE_CHECKING:
    from xrt.engines import Executable
    from xrt.partition import Launch, Plan

__all__ = [
    "Arena",
    "ArenaPlan",
    "Lifetime",
    "MemoryPlan",
    "Step",
    "Update",
    "UpdateCopy",
    "ValueTable",
    "find_updates",
    "is_known",
    "may_overlap",
    "plan_arena",
    "plan_memory",
]


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


SMALL = 8 * 1024
"""Bytes up to which a copy (0.2 to 0.6 us) costs less than a bound call saves (1.3 us against ONNX Runtime's plain one)."""


@dataclass(frozen=True, slots=True)
class Step:
    """One launch over the slots of a frame."""

    launch: Launch
    executable: Executable
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    returns: tuple[tuple[int, int], ...]
    """(output of the launch, output of the program) pairs: where a caller's buffer may be handed down."""


class ValueTable:
    """The numbering of a plan's values: inputs first, then constants, then what launches define."""

    def __init__(self, plan: Plan, executables: Sequence[Executable]) -> None:
        function = plan.function
        self.names = tuple(dict.fromkeys(function.value_names()))
        index = {name: i for i, name in enumerate(self.names)}
        self.constants = {index[name]: constant.array for name, constant in function.constants.items()}
        self.inputs = range(len(function.inputs))
        self.outputs = tuple(index[v.name] for v in function.outputs)
        self._places = {v.name: i for i, v in reversed(list(enumerate(function.outputs)))}
        inputs = {v.name: i for i, v in enumerate(function.inputs)}
        self.aliases = tuple((self._places[o], inputs[i]) for i, o in function.aliases)
        self._index = index
        self.steps = tuple(self._step(*pair) for pair in zip(plan.launches, executables, strict=True))
        self.types = self._types(plan)
        self.writer = {slot: number for number, step in enumerate(self.steps) for slot in step.writes}
        self.last = self._last_uses()
        self.updates = find_updates(self)
        self.inplace = {update.source: update.target for update in self.updates if not update.reason}
        """By output the input in whose array it is computed."""

    def _step(self, launch: Launch, executable: Executable) -> Step:
        returns = tuple((i, self._places[name]) for i, name in enumerate(launch.outputs) if name in self._places)
        reads, writes = (tuple(self._index[name] for name in names) for names in (launch.inputs, launch.outputs))
        return Step(launch, executable, reads, writes, returns)

    def _types(self, plan: Plan) -> dict[int, Type | None]:
        """Return the types of inputs and of what launches write; regions know theirs best."""
        values = [*plan.function.inputs, *(value for launch in plan.launches for value in launch.function.outputs)]
        return {self._index[value.name]: value.type for value in values}

    def _last_uses(self) -> dict[int, int]:
        """Return the last step that touches each slot. What a result may be a view of counts as used until the end."""
        last: dict[int, int] = {}
        for number, step in enumerate(self.steps):
            shares = not step.executable.outputs_are_fresh
            last.update(dict.fromkeys(step.writes, number))
            last.update(dict.fromkeys(step.reads, len(self.steps) - 1 if shares else number))
        return last

    def last_uses(self) -> list[tuple[int, ...]]:
        """Return, per step, the slots that it is the last to touch and that are neither outputs nor constants."""
        kept = {*self.outputs, *self.constants}
        touched: dict[int, int] = {}
        for number, step in enumerate(self.steps):
            written = (self.inplace[slot] for slot in step.writes if slot in self.inplace)
            touched.update(dict.fromkeys((*step.reads, *step.writes, *written), number))
        freed: list[list[int]] = [[] for _ in self.steps]
        for slot, number in touched.items():
            if slot not in kept:
                freed[number].append(slot)
        return [tuple(slots) for slots in freed]

    def maybe_aliased(self) -> frozenset[int]:
        """Return the program outputs that may share memory: those not freshly made by a launch, and repeated ones."""
        fresh = {slot for step in self.steps if step.executable.outputs_are_fresh for slot in step.writes}
        return frozenset(i for i, slot in enumerate(self.outputs) if slot not in fresh or slot in self.outputs[:i])


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The decisions."""

    arena: Arena
    places: Mapping[int, str]
    """The slots that live in the arena, with the name of their place."""
    bound: frozenset[int]
    """The steps that are bound."""
    aimed: frozenset[int]
    """The steps that are aimed."""
    entering: tuple[tuple[int, str], ...]
    """Inputs that are copied to a place of the arena when a call begins."""


def plan_memory(
    slots: ValueTable, fixed: Mapping[int, object] | None = None, types: Mapping[int, Type | None] | None = None
) -> MemoryPlan:
    """Decide for a program's slots. ``fixed`` slots hold the caller's own arrays in every call; ``types`` may know more."""
    return _Decisions(slots, fixed or {}, {**slots.types, **(types or {})}).layout()


class _Decisions:
    """One pass over the steps in their order, then away with copies that no bound launch reads."""

    def __init__(self, slots: ValueTable, own: Mapping[int, object], types: Mapping[int, Type | None]) -> None:
        self.slots = slots
        self.own = own
        self.outputs = frozenset(slots.outputs)
        self.types = {slot: type_ for slot, type_ in types.items() if is_known(type_)}
        small = () if own else (slot for slot in slots.inputs if self._is_small(slot))
        self.copied: set[int] = set(small)
        self.stored: set[int] = set()
        self.bound: set[int] = set()
        self.aimed: set[int] = set()
        for number, step in enumerate(slots.steps):
            self._decide(number, step)
        read = {slot for number in self.bound for slot in slots.steps[number].reads}
        self.copied &= read

    def _decide(self, number: int, step: Step) -> None:
        if self._can_aim(step):
            (self.bound if all(self._is_fixed(slot) for slot in step.reads) else self.aimed).add(number)
            self.stored.update(slot for slot in step.writes if slot not in self.own)
            return
        inner = [slot for slot in step.writes if slot not in self.outputs]
        self.copied.update(slot for slot in inner if self._is_small(slot))
        self.stored.update(slot for slot in self._filled(step) if slot in inner)

    def _can_aim(self, step: Step) -> bool:
        """Whether all that the launch writes may have a fixed address, and its engine can be given that address."""
        if not step.executable.supports_io_binding() and not (step.writes and all(slot in self.own for slot in step.writes)):
            return False
        return all(self._may_be_fixed(slot) for slot in step.writes)

    def _is_fixed(self, slot: int) -> bool:
        """Whether the slot's array has one address in every call of a frame."""
        return slot in self.own or slot in self.copied or slot in self.stored or slot in self.slots.constants

    def _may_be_fixed(self, slot: int) -> bool:
        """Whether a bound launch may write the slot: what the caller gets is fresh, so an output is copied and must be small."""
        if slot in self.own or slot in self.slots.inplace:
            return slot in self.own
        return slot in self.types and (slot not in self.outputs or self._is_small(slot))

    def _filled(self, step: Step) -> list[int]:
        """Return the slots that a plain launch's engine better computes into a given buffer; one that binds is slower at that."""
        if step.executable.supports_io_binding():
            return []
        pairs = zip(step.writes, step.executable.output_buffer_threshold(), strict=False)
        return [slot for slot, least in pairs if least is not None and slot in self.types and self._nbytes(slot) >= least]

    def _is_small(self, slot: int) -> bool:
        return slot in self.types and self._nbytes(slot) <= SMALL

    def _nbytes(self, slot: int) -> int:
        return self._tensor(slot).nbytes or 0

    def _tensor(self, slot: int) -> TensorType:
        type_ = self.types[slot]
        assert isinstance(type_, TensorType)  # `is_known` let no other in
        return type_

    # ------------------------------------------------------------------ the arena

    def layout(self) -> MemoryPlan:

        live = self.copied | self.stored
        arena = plan_arena(sorted((self._lifetime(slot, live) for slot in live), key=lambda value: (value.first, value.name)))
        names = {slot: self.slots.names[slot] for slot in live}
        entering = tuple((slot, names[slot]) for slot in self.slots.inputs if slot in live)
        kept = {slot: name for slot, name in names.items() if slot not in self.slots.inputs}
        return MemoryPlan(arena, kept, frozenset(self.bound), frozenset(self.aimed), entering)

    def _lifetime(self, slot: int, live: set[int]) -> Lifetime:

        first = self._writer(slot)
        ends = slot in self.outputs
        last = len(self.slots.steps) - 1 if ends else max(self.slots.last.get(slot, first), first)
        return Lifetime(self.slots.names[slot], self._tensor(slot), first, last, self._over(slot, first, live))

    def _writer(self, slot: int) -> int:
        """Return the step that writes the slot; inputs are there from the first on."""
        return self.slots.writer.get(slot, 0)

    def _over(self, slot: int, first: int, live: set[int]) -> str:
        """Return the input of its launch whose memory the slot may take over: proposed by the engine, and dead afterwards."""
        if slot not in self.stored:
            return ""
        step = self.slots.steps[first]
        for source, target in step.executable.inplace_pairs():
            given = step.reads[source]
            if step.writes[target] == slot and given in live and given not in self.outputs and self._dies(given, first):
                return self.slots.names[given]
        return ""

    def _dies(self, slot: int, step: int) -> bool:
        return self.slots.last.get(slot) == step


def is_known(type_: Type | None) -> bool:
    """Whether it is a tensor of numbers whose bytes are known before the run, and not none."""
    return isinstance(type_, TensorType) and type_.dtype is not DType.STRING and bool(type_.nbytes)


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
