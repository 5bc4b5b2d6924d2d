"""Control flow (If, Loop, Scan), sequences and optionals."""

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
def if_(node: Node, ctx: KernelContext) -> Run:
    then, otherwise = ctx.compile_body("then_branch"), ctx.compile_body("else_branch")

    def run(condition: Array, *captured: Any) -> tuple[Any, ...]:
        return tuple((then if condition.reshape(()) else otherwise)([], captured))

    return run


@ops("Loop", host=(0, 1))
def loop(node: Node, ctx: KernelContext) -> Run:
    """Run the body while its condition holds, at most M times. The outputs are the carried values, then the scan outputs."""
    xp, body = ctx.xp, ctx.compile_body("body")
    # The first two inputs are M and the condition.
    carried_count = max(0, len(node.inputs) - 2)

    def run(trips: Array | None = None, condition: Array | None = None, *rest: Any) -> tuple[Any, ...]:
        carried = list(rest[:carried_count])
        captured = rest[carried_count:]
        scanned: list[list[Any]] = [[] for _ in body.function.outputs[1 + carried_count :]]
        proceed = True if condition is None else bool(condition.reshape(()))
        for trip in count() if trips is None else range(int(trips.reshape(()))):
            if not proceed:
                break
            flag, *results = body([xp.asarray(trip, dtype=np.int64), xp.asarray(True), *carried], captured)
            carried = results[:carried_count]
            proceed = bool(flag.reshape(()))
            for column, value in zip(scanned, results[carried_count:], strict=True):
                column.append(value)
        # If no iteration ran, the shapes of the scan outputs follow from the inputs that one would have had.
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
    """Stack the ``values`` of output ``output`` of the body. Without iterations their shape follows from ``iteration_inputs``."""
    if values:
        return xp.stack(values)
    dtype, extents = body.find_unstacked_type(output, iteration_inputs, captured)
    return xp.empty((0, *extents), dtype=dtype.numpy)


def _scan_first_axis(
    xp: Any, body: CompiledBody, states: Sequence[Any], scanned: Sequence[Array], captured: Sequence[Any], n_outputs: int
) -> list[Any]:
    """Run the body once per index of the first axis of ``scanned``; return the last states, then the scan outputs."""
    states = list(states)
    count = len(states)
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
    """Move an axis to the front, and reverse it if ``backwards`` is set."""
    moved = xp.moveaxis(x, axis, 0)
    return xp.flip(moved, 0) if backwards else moved


@ops("Scan", since=9)
def scan(node: Node, ctx: KernelContext) -> Run:
    xp, body, n_scanned = ctx.xp, ctx.compile_body("body"), node.attr("num_scan_inputs")
    n_states = len(node.inputs) - n_scanned
    n_stacks = len(body.function.outputs) - n_states
    in_axes, in_directions = (node.attr(f"scan_input_{name}") or (0,) * n_scanned for name in ("axes", "directions"))
    out_axes, out_directions = (node.attr(f"scan_output_{name}") or (0,) * n_stacks for name in ("axes", "directions"))

    def run(*values: Any) -> tuple[Any, ...]:
        states, inputs, captured = values[:n_states], values[n_states : n_states + n_scanned], values[n_states + n_scanned :]
        scanned = [_move_to_front(xp, *scan_input) for scan_input in zip(inputs, in_axes, in_directions, strict=True)]
        results = _scan_first_axis(xp, body, states, scanned, captured, n_stacks)
        stacks = zip(results[n_states:], out_axes, out_directions, strict=True)
        return *results[:n_states], *(xp.moveaxis(xp.flip(y, 0) if flips else y, 0, axis) for y, axis, flips in stacks)

    return run


@ops("Scan", until=8, host=(0,))
def scan_batched(node: Node, ctx: KernelContext) -> Run:
    """Version 8 scans each entry of a batch (the first axis) up to its length, and pads its results with zeros."""
    xp, body, n_scanned = ctx.xp, ctx.compile_body("body"), node.attr("num_scan_inputs")
    # The first input has the lengths.
    n_states = len(node.inputs) - 1 - n_scanned
    n_stacks = len(body.function.outputs) - n_states
    backwards = node.attr("directions") or (0,) * n_scanned

    def scan_entry(states: Sequence[Array], scanned: Sequence[Array], length: int, captured: Sequence[Any]) -> list[Array]:
        parts = [_move_to_front(xp, x[:length], 0, bool(b)) for x, b in zip(scanned, backwards, strict=True)]
        results = _scan_first_axis(xp, body, states, parts, captured, n_stacks)
        # The results of all entries are stacked, so those of shorter sequences must be padded to the full length.
        missing = len(scanned[0]) - length
        padded = (xp.concatenate([s, xp.zeros((missing, *s.shape[1:]), dtype=s.dtype)]) for s in results[n_states:])
        return [*results[:n_states], *padded]

    def run(lengths: Array | None, *values: Any) -> tuple[Any, ...]:
        states, scanned, captured = values[:n_states], values[n_states : n_states + n_scanned], values[n_states + n_scanned :]
        sizes = [scanned[0].shape[1]] * len(scanned[0]) if lengths is None else lengths.tolist()
        rows = [scan_entry([xp.asarray(s)[i] for s in states], [x[i] for x in scanned], n, captured) for i, n in enumerate(sizes)]
        return tuple(xp.stack(column) for column in zip(*rows, strict=True))

    return run


@ops("SequenceConstruct")
def sequence_construct(node: Node, ctx: KernelContext) -> Run:
    return lambda *values: list(values)


@ops("SequenceEmpty")
def sequence_empty(node: Node, ctx: KernelContext) -> Run:
    return list


@ops("SequenceAt", host=(1,))
def sequence_at(node: Node, ctx: KernelContext) -> Run:
    return lambda sequence, position: sequence[_to_index(position, len(sequence))]


@ops("SequenceErase", host=(1,))
def sequence_erase(node: Node, ctx: KernelContext) -> Run:
    def run(sequence: list[Any], position: Array | None = None) -> list[Any]:
        index = _to_index(position, len(sequence))
        # A new list, because other nodes may read the sequence.
        return [*sequence[:index], *sequence[index + 1 :]]

    return run


@ops("SequenceInsert", host=(2,))
def sequence_insert(node: Node, ctx: KernelContext) -> Run:
    def run(sequence: list[Any], value: Any, position: Array | None = None) -> list[Any]:
        index = len(sequence) if position is None else _to_index(position, len(sequence), insert=True)
        return [*sequence[:index], value, *sequence[index:]]

    return run


def _to_index(position: Array | None, length: int, *, insert: bool = False) -> int:
    """Convert a position in a sequence, which may be negative, to an index. None means the last element.

    With ``insert`` the position may also be the length. Raises IndexError if it is out of range.
    """
    index = -1 if position is None else int(position.reshape(()))
    end = length if insert else length - 1
    if not -length <= index <= end:
        raise IndexError(f"position {index} is outside of a sequence of {length}; it must be from {-length} to {end}")
    return index + length if index < 0 else index


@ops("SequenceLength")
def sequence_length(node: Node, ctx: KernelContext) -> Run:
    return lambda sequence: ctx.xp.make_sizes(len(sequence))


@ops("ConcatFromSequence")
def concat_from_sequence(node: Node, ctx: KernelContext) -> Run:
    join = ctx.xp.stack if node.attr("new_axis", 0) else ctx.xp.concatenate
    axis = node.attr("axis")
    return lambda sequence: join(sequence, axis=axis)


@ops("SplitToSequence", host=(1,))
def split_to_sequence(node: Node, ctx: KernelContext) -> Run:
    """Split into chunks of one size (the last may be smaller), of the sizes in a list, or, without ``split``, of size 1."""
    xp, axis, keep = ctx.xp, node.attr("axis", 0), node.attr("keepdims", 1)

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
def sequence_map(node: Node, ctx: KernelContext) -> Run:
    """Run the body on each element of the sequences. Inputs that are tensors are passed to every call."""
    body, n_inputs = ctx.compile_body("body"), len(node.inputs)

    def run(*values: Any) -> tuple[list[Any], ...]:
        inputs, captured = values[:n_inputs], values[n_inputs:]
        rows = [
            body([value[i] if isinstance(value, list) else value for value in inputs], captured) for i in range(len(inputs[0]))
        ]
        return tuple([row[i] for row in rows] for i in range(ctx.n_outputs))

    return run


@ops("Optional")
def optional(node: Node, ctx: KernelContext) -> Run:
    return lambda value=None: value


@ops("OptionalHasElement")
def optional_has_element(node: Node, ctx: KernelContext) -> Run:
    return lambda value=None: ctx.xp.asarray(value is not None)


@ops("OptionalGetElement")
def optional_get_element(node: Node, ctx: KernelContext) -> Run:
    return lambda x: x
