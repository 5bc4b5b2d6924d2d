"""Control flow: kernels that run compiled bodies once per call, branch or iteration."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.kernels.arrays import split_axis
from xrt.engines.kernels.table import Array, Run, eager as ops

if TYPE_CHECKING:
    from xrt.engines.kernels.table import CompiledBody, KernelContext
    from xrt.graph import Node


@ops("If", host=(0,))
def if_(node: Node, env: KernelContext) -> Run:
    then, otherwise = env.body("then_branch"), env.body("else_branch")

    def run(condition: Array, *captured: Any) -> tuple[Any, ...]:
        return tuple((then if condition.reshape(()) else otherwise)([], captured))

    return run


@ops("Loop", host=(0, 1))
def loop(node: Node, env: KernelContext) -> Run:
    """Run the body while its condition holds, at most M times; outputs are the carried values, then the stacked scan outputs."""
    xp, body = env.xp, env.body("body")
    carried_count = max(0, len(node.inputs) - 2)

    def run(trips: Array | None = None, condition: Array | None = None, *rest: Any) -> tuple[Any, ...]:
        carried, captured = list(rest[:carried_count]), rest[carried_count:]
        scanned: list[list[Any]] = [[] for _ in body.function.outputs[1 + carried_count :]]
        proceed = True if condition is None else bool(condition.reshape(()))
        for trip in count() if trips is None else range(int(trips.reshape(()))):
            if not proceed:
                break
            flag, *results = body([xp.asarray(trip, dtype=np.int64), xp.asarray(True), *carried], captured)
            carried, proceed = results[:carried_count], bool(flag.reshape(()))
            for column, value in zip(scanned, results[carried_count:], strict=True):
                column.append(value)
        # The inputs of an iteration, for the shape of scan outputs if there was none.
        iteration_inputs = [None, None, *carried]
        stacks = (
            _stack_outputs(xp, column, body, 1 + carried_count + i, iteration_inputs, captured)
            for i, column in enumerate(scanned)
        )
        return *carried, *stacks

    return run


def _stack_outputs(
    xp: Any, values: Sequence[Array], body: CompiledBody, output: int, iteration_inputs: Sequence[Any], captured: Sequence[Any]
) -> Array:
    """Stack the values of a scan output. Without iterations the result is empty and has the shape of an iteration's value."""
    if values:
        return xp.stack(values)
    dtype, extents = body.find_unstacked_type(output, iteration_inputs, captured)
    return xp.empty((0, *extents), dtype=dtype.numpy)


def _scan(
    xp: Any, body: CompiledBody, states: Sequence[Any], scanned: Sequence[Array], captured: Sequence[Any], n_outputs: int
) -> list[Any]:
    """Run the body once per index of the first axis; return the last states, then the stacked scan outputs."""
    states, count = list(states), len(states)
    columns: list[list[Array]] = [[] for _ in range(n_outputs)]
    for values in zip(*scanned, strict=True):
        results = body([*states, *map(xp.asarray, values)], captured)
        states = results[:count]
        for column, value in zip(columns, results[count:], strict=True):
            column.append(value)
    iteration_inputs = [*states, *(xp.empty(x.shape[1:]) for x in scanned)]
    stacks = (_stack_outputs(xp, column, body, count + i, iteration_inputs, captured) for i, column in enumerate(columns))
    return [*states, *stacks]


def _move_to_front(xp: Any, x: Array, axis: int, backwards: bool) -> Array:
    moved = xp.moveaxis(x, axis, 0)
    return xp.flip(moved, 0) if backwards else moved


@ops("Scan", since=9)
def scan(node: Node, env: KernelContext) -> Run:
    xp, body, n_scanned = env.xp, env.body("body"), node.attr("num_scan_inputs")
    n_states = len(node.inputs) - n_scanned
    n_stacks = len(body.function.outputs) - n_states
    in_axes, in_directions = (node.attr(f"scan_input_{name}") or (0,) * n_scanned for name in ("axes", "directions"))
    out_axes, out_directions = (node.attr(f"scan_output_{name}") or (0,) * n_stacks for name in ("axes", "directions"))

    def run(*values: Any) -> tuple[Any, ...]:
        states, inputs, captured = values[:n_states], values[n_states : n_states + n_scanned], values[n_states + n_scanned :]
        scanned = [_move_to_front(xp, *scan_input) for scan_input in zip(inputs, in_axes, in_directions, strict=True)]
        results = _scan(xp, body, states, scanned, captured, n_stacks)
        stacks = zip(results[n_states:], out_axes, out_directions, strict=True)
        return *results[:n_states], *(xp.moveaxis(xp.flip(y, 0) if flips else y, 0, axis) for y, axis, flips in stacks)

    return run


@ops("Scan", until=8, host=(0,))
def scan_batched(node: Node, env: KernelContext) -> Run:
    """Version 8: the first axis is the batch; each entry is scanned up to its length, and its results are padded with zeros."""
    xp, body, n_scanned = env.xp, env.body("body"), node.attr("num_scan_inputs")
    n_states = len(node.inputs) - 1 - n_scanned
    n_stacks = len(body.function.outputs) - n_states
    backwards = node.attr("directions") or (0,) * n_scanned

    def unroll(states: Sequence[Array], scanned: Sequence[Array], length: int, captured: Sequence[Any]) -> list[Array]:
        parts = [_move_to_front(xp, x[:length], 0, bool(b)) for x, b in zip(scanned, backwards, strict=True)]
        results = _scan(xp, body, states, parts, captured, n_stacks)
        # All batch entries are stacked, so that shorter sequences are padded to the full length.
        missing = len(scanned[0]) - length
        padded = (xp.concatenate([s, xp.zeros((missing, *s.shape[1:]), dtype=s.dtype)]) for s in results[n_states:])
        return [*results[:n_states], *padded]

    def run(lengths: Array | None, *values: Any) -> tuple[Any, ...]:
        states, scanned, captured = values[:n_states], values[n_states : n_states + n_scanned], values[n_states + n_scanned :]
        sizes = [scanned[0].shape[1]] * len(scanned[0]) if lengths is None else lengths.tolist()
        rows = [unroll([xp.asarray(s)[i] for s in states], [x[i] for x in scanned], n, captured) for i, n in enumerate(sizes)]
        return tuple(xp.stack(column) for column in zip(*rows, strict=True))

    return run


@ops("SequenceConstruct")
def sequence_construct(node: Node, env: KernelContext) -> Run:
    return lambda *values: list(values)


@ops("SequenceEmpty")
def sequence_empty(node: Node, env: KernelContext) -> Run:
    return list


@ops("SequenceAt", host=(1,))
def sequence_at(node: Node, env: KernelContext) -> Run:
    return lambda sequence, position: sequence[_normalize_position(position, len(sequence))]


@ops("SequenceErase", host=(1,))
def sequence_erase(node: Node, env: KernelContext) -> Run:
    def run(sequence: list[Any], position: Array | None = None) -> list[Any]:
        place = _normalize_position(position, len(sequence))
        # A new list: other nodes may read the sequence.
        return [*sequence[:place], *sequence[place + 1 :]]

    return run


@ops("SequenceInsert", host=(2,))
def sequence_insert(node: Node, env: KernelContext) -> Run:
    def run(sequence: list[Any], value: Any, position: Array | None = None) -> list[Any]:
        place = len(sequence) if position is None else _normalize_position(position, len(sequence), insert=True)
        return [*sequence[:place], value, *sequence[place:]]

    return run


def _normalize_position(position: Array | None, length: int, *, insert: bool = False) -> int:
    """Normalize a sequence position to count from the front; by default the last element."""
    place = -1 if position is None else int(position.reshape(()))
    end = length if insert else length - 1
    if not -length <= place <= end:
        raise IndexError(f"position {place} is outside of a sequence of {length}; it must be from {-length} to {end}")
    return place + length if place < 0 else place


@ops("SequenceLength")
def sequence_length(node: Node, env: KernelContext) -> Run:
    return lambda sequence: env.xp.sizes(len(sequence))


@ops("ConcatFromSequence")
def concat_from_sequence(node: Node, env: KernelContext) -> Run:
    join = env.xp.stack if node.attr("new_axis", 0) else env.xp.concatenate
    axis = node.attr("axis")
    return lambda sequence: join(sequence, axis=axis)


@ops("SplitToSequence", host=(1,))
def split_to_sequence(node: Node, env: KernelContext) -> Run:
    """Split into chunks of one size (the last may be smaller), chunks of given sizes, or single elements."""
    xp, axis, keep = env.xp, node.attr("axis", 0), node.attr("keepdims", 1)

    def run(x: Array, split: Array | None = None) -> list[Array]:
        extent = x.shape[axis]
        if split is None:
            parts = list(split_axis(x, [1] * extent, axis))
            return parts if keep else [xp.squeeze(part, axis=axis) for part in parts]
        if split.ndim:
            return list(split_axis(x, split.tolist(), axis))
        ends = [*range(0, extent, int(split)), extent]
        return list(split_axis(x, [end - start for start, end in pairwise(ends)], axis))

    return run


@ops("SequenceMap")
def sequence_map(node: Node, env: KernelContext) -> Run:
    """Run the body on each element of the sequences; tensor inputs are passed to every call."""
    body, n_inputs = env.body("body"), len(node.inputs)

    def run(*values: Any) -> tuple[list[Any], ...]:
        inputs, captured = values[:n_inputs], values[n_inputs:]
        rows = [
            body([value[i] if isinstance(value, list) else value for value in inputs], captured) for i in range(len(inputs[0]))
        ]
        return tuple([row[i] for row in rows] for i in range(env.n_outputs))

    return run


@ops("Optional")
def optional(node: Node, env: KernelContext) -> Run:
    return lambda value=None: value


@ops("OptionalHasElement")
def optional_has_element(node: Node, env: KernelContext) -> Run:
    return lambda value=None: env.xp.asarray(value is not None)


@ops("OptionalGetElement")
def optional_get_element(node: Node, env: KernelContext) -> Run:
    return lambda x: x
