"""State: values that persist from one call of a Function to the next.

A state is an (input, output) pair: the output becomes the input of the next call. An alias is such a pair with a fixed-size
array that is updated in place. Pairs that cannot be aliases, for example a growing cache, are listed in the metadata
``xrt.state`` as JSON: ``[["past", "present"], ["best", "best_next", -1]]``. The third entry is the initial fill value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from xrt.errors import ModelError, did_you_mean
from xrt.graph.types import TensorType, may_equal

if TYPE_CHECKING:
    from xrt.graph.function import Function


STATE_KEY, CAPACITY_KEY = "xrt.state", "xrt.capacity"
"""Metadata keys of the states and of the `Capacity`."""


@dataclass(frozen=True, slots=True)
class State:
    """One persistent value."""

    input: str
    output: str
    """The output that becomes the input of the next call."""
    fill: float = 0
    """Initial value of every element."""

    def __str__(self) -> str:
        return f"{self.input} <- {self.output}" + (f", at first {self.fill}" if self.fill else "")


def list_states(function: Function) -> tuple[State, ...]:
    """List the states in the order of the inputs: those in the metadata or, without such metadata, the aliases.

    Raises ModelError for malformed metadata and for anything `find_violations` reports.
    """
    states = _read_states(function)
    if (violation := next(find_violations(function), None)) is not None:
        raise ModelError(f"function {function.name!r} is not valid: {violation}")
    index_of = {value.name: index for index, value in enumerate(function.inputs)}
    return tuple(sorted(states, key=lambda state: index_of[state.input]))


def declare_states(function: Function, states: Iterable[State]) -> Function:
    """Return a copy of the Function with exactly these states; a state of static shape also becomes an alias.

    Raises ModelError for an invalid state, as `list_states` does.
    """
    declared_states = tuple(states)
    pairs = [[s.input, s.output, s.fill] if s.fill else [s.input, s.output] for s in declared_states]
    declared = function.replace(metadata={**function.metadata, STATE_KEY: json.dumps(pairs, ensure_ascii=False)})
    list_states(declared)
    # A session updates an alias in place, which needs an array that keeps its size; other states are replaced by each call.
    aliased = {before for before, _ in function.aliases}
    added = tuple((s.input, s.output) for s in declared_states if s.input not in aliased and _has_fixed_type(function, s))
    return declared.replace(aliases=(*function.aliases, *added)) if added else declared


def _has_fixed_type(function: Function, state: State) -> bool:
    """Whether input and output have the same static type, so that the array can be updated in place."""
    before, after = function.get_type(state.input), function.get_type(state.output)
    return before == after and isinstance(before, TensorType) and before.shape is not None and None not in before.shape


def _read_states(function: Function) -> tuple[State, ...]:
    stored = function.metadata.get(STATE_KEY)
    if stored is None:
        return tuple(State(before, after) for before, after in function.aliases)
    try:
        # RecursionError: deeply nested JSON.
        pairs = json.loads(stored)
    except (ValueError, RecursionError):
        pairs = None
    if not isinstance(pairs, list) or not all(_is_pair(pair) for pair in pairs):
        raise ModelError(
            f"metadata {STATE_KEY!r} of function {function.name!r} is {stored[:80]!r}; it must be a list of pairs such as "
            '["input", "output"], each with an optional number as third entry: the initial fill value'
        )
    return tuple(State(*pair) for pair in pairs)


def _is_pair(pair: object) -> bool:
    if not isinstance(pair, list) or not 2 <= len(pair) <= 3 or not all(isinstance(name, str) for name in pair[:2]):
        return False
    fill = pair[2] if len(pair) == 3 else 0
    return isinstance(fill, int | float) and not isinstance(fill, bool)  # JSON's true is an int in Python


def find_violations(function: Function) -> Iterator[str]:
    """Yield a message for each error in the states that the metadata declares. Raises ModelError for malformed metadata."""
    if STATE_KEY not in function.metadata:
        return
    inputs = [value.name for value in function.inputs]
    outputs = [value.name for value in function.outputs]
    seen: set[str] = set()
    for state in _read_states(function):
        name = f"state {state.input!r}"
        if state.input not in inputs:
            yield f"{name} is not an input.{did_you_mean(state.input, inputs)}"
        elif state.output not in outputs:
            yield f"{name}: its next value {state.output!r} is not an output.{did_you_mean(state.output, outputs)}"
        elif repeated := {state.input, state.output} & seen:
            yield f"{min(repeated)!r} belongs to two states; each state needs a different input and output"
        else:
            yield from _check_types(function, state)
        seen |= {state.input, state.output}


def _check_types(function: Function, state: State) -> Iterator[str]:
    before, after = function.get_type(state.input), function.get_type(state.output)
    if before is None or after is None:
        return
    if not isinstance(before, TensorType) or not isinstance(after, TensorType):
        yield f"state {state.input!r} is {before}, but its next value {state.output!r} is {after}; use tensors"
    elif not may_equal(before, after):
        yield f"state {state.input!r} is {before}, but its next value {state.output!r} is {after}; both must have one type"


@dataclass(frozen=True, slots=True)
class Capacity:
    """The maximum size of a Function's state, for example the tokens of a KV cache."""

    length: str
    """The state of integers that counts the entries; the largest integer is the current size."""
    input: str
    axis: int
    size: int
    """The maximum number of entries."""
    dim: str = ""
    """Symbolic extent of the states that a session enlarges as needed; empty if all are allocated at full size."""


def declare_capacity(function: Function, capacity: Capacity) -> Function:
    """Return a copy of the Function with this capacity; a session rejects calls that would exceed it."""
    return function.replace(metadata={**function.metadata, CAPACITY_KEY: json.dumps(asdict(capacity), ensure_ascii=False)})


def find_capacity(function: Function) -> Capacity | None:
    """Read the declared capacity; None if none is declared. Raises ModelError for malformed metadata."""
    stored = function.metadata.get(CAPACITY_KEY)
    if stored is None:
        return None
    try:
        fields = json.loads(stored)
        capacity = Capacity(**fields)  # a dataclass checks the names of the fields, not their types
        has_inputs = {capacity.length, capacity.input} <= {value.name for value in function.inputs}
        has_extents = all(isinstance(extent, int) and extent >= 0 for extent in (capacity.axis, capacity.size))
        if not has_inputs or not has_extents or not isinstance(capacity.dim, str):
            raise ValueError
    except (ValueError, TypeError, RecursionError):
        problem = f"metadata {CAPACITY_KEY!r} of function {function.name!r} is {stored[:80]!r}"
        raise ModelError(f"{problem}; it must name a state (length), an input, its axis and a size") from None
    return capacity
