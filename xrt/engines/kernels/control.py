"""Control flow (If, Loop, Scan), sequences and optionals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.kernels.arrays import split_axis
from xrt.engines.kernels.table import Array, CompiledBody, KernelContext, Run, eager as ops

if TYPE_CHECKING:
    from xrt.graph import Node


@ops("If", host=(0,))
def if_(node: Node, ctx: KernelContext) -> Run:
    then, otherwise = ctx.compile_body("then_branch"), ctx.compile_body("else_branch")

    def run(condition: Array, *captured: Any) -> tuple[Any, ...]:
        branch = then if condition.reshape(()) else otherwise
        return tuple(branch([], captured))

    return run


@ops("Loop", host=(0, 1))
def loop(node: Node, ctx: KernelContext) -> Run:
    """Run the body while its condition holds, at most M times. The outputs are the carried values, then the scan outputs."""
    xp, body = ctx.xp, ctx.compile_body("body")
    # Inputs: M, the condition, carried values. Outputs of the body: the condition, carried values, elements of the scan outputs.
    carried_count = max(0, len(node.inputs) - 2)

    def run(max_trips: Array | None = None, condition: Array | None = None, *operands: Any) -> tuple[Any, ...]:
        carried, captured = list(operands[:carried_count]), operands[carried_count:]
        scan_values: list[list[Any]] = [[] for _ in body.function.outputs[1 + carried_count :]]
        proceed = True if condition is None else bool(condition.reshape(()))
        trips = count() if max_trips is None else range(int(max_trips.reshape(())))
        for trip in trips:
            if not proceed:
                break
            # The body reads the number of the iteration, the condition and the carried values.
            flag, *results = body([xp.asarray(trip, dtype=np.int64), xp.asarray(True), *carried], captured)
            proceed, carried = bool(flag.reshape(())), results[:carried_count]
            for iteration_values, value in zip(scan_values, results[carried_count:], strict=True):
                iteration_values.append(value)
        # If no iteration ran, the shapes of the scan outputs follow from the inputs of a first iteration.
        iteration_inputs = [None, None, *carried]
        stacks = (
            _stack_outputs(xp, iteration_values, body, 1 + carried_count + i, iteration_inputs, captured)
            for i, iteration_values in enumerate(scan_values)
        )
        return *carried, *stacks

    return run


def _stack_outputs(
    xp: Any, values: Sequence[Array], body: CompiledBody, index: int, iteration_inputs: Sequence[Any], captured: Sequence[Any]
) -> Array:
    """Stack the ``values`` of output ``index`` of the body. If no iteration ran, ``iteration_inputs`` determine their shape."""
    if values:
        return xp.stack(values)
    dtype, extents = body.find_unstacked_type(index, iteration_inputs, captured)
    return xp.empty((0, *extents), dtype=dtype.numpy)


def _scan_first_axis(
    xp: Any, body: CompiledBody, states: Sequence[Any], scanned: Sequence[Array], captured: Sequence[Any], n_outputs: int
) -> list[Any]:
    """Run the body once per index of the first axis of ``scanned``; return the last states, then the scan outputs."""
    states = list(states)
    n_states = len(states)
    scan_values: list[list[Array]] = [[] for _ in range(n_outputs)]
    for elements in zip(*scanned, strict=True):
        results = body([*states, *map(xp.asarray, elements)], captured)
        states = results[:n_states]
        for iteration_values, value in zip(scan_values, results[n_states:], strict=True):
            iteration_values.append(value)
    iteration_inputs = [*states, *(xp.empty(x.shape[1:]) for x in scanned)]  # only their shapes are read
    stacks = (_stack_outputs(xp, v, body, n_states + i, iteration_inputs, captured) for i, v in enumerate(scan_values))
    return [*states, *stacks]


@ops("Scan", since=9)
def scan(node: Node, ctx: KernelContext) -> Run:
    """Scan along an axis of some inputs. The inputs are states, scanned inputs, captures; the outputs last states, stacks."""
    xp, body, n_scanned = ctx.xp, ctx.compile_body("body"), node.attr("num_scan_inputs")
    n_states = len(node.inputs) - n_scanned
    n_stacks = len(body.function.outputs) - n_states
    # Each scanned input and each stack has a time axis, and a direction, of which 1 is backwards.
    in_axes = node.attr("scan_input_axes") or (0,) * n_scanned
    out_axes = node.attr("scan_output_axes") or (0,) * n_stacks
    in_directions = node.attr("scan_input_directions") or (0,) * n_scanned
    out_directions = node.attr("scan_output_directions") or (0,) * n_stacks

    def run(*values: Any) -> tuple[Any, ...]:
        states, rest = values[:n_states], values[n_states:]
        inputs, captured = rest[:n_scanned], rest[n_scanned:]
        scanned = []
        for x, axis, direction in zip(inputs, in_axes, in_directions, strict=True):
            time_first = xp.moveaxis(x, axis, 0)
            scanned.append(xp.flip(time_first, 0) if direction == 1 else time_first)
        results = _scan_first_axis(xp, body, states, scanned, captured, n_stacks)
        outputs = results[:n_states]
        for stack, axis, direction in zip(results[n_states:], out_axes, out_directions, strict=True):
            ordered = xp.flip(stack, 0) if direction == 1 else stack
            outputs.append(xp.moveaxis(ordered, 0, axis))
        return tuple(outputs)

    return run


@ops("Scan", until=8, host=(0,))
def scan_batched(node: Node, ctx: KernelContext) -> Run:
    """Version 8 scans each entry of a batch (the first axis) up to its length, and pads its results with zeros."""
    xp, body, n_scanned = ctx.xp, ctx.compile_body("body"), node.attr("num_scan_inputs")
    # The inputs are the lengths, states (batch, ...), scanned inputs (batch, time, ...).
    n_states = len(node.inputs) - 1 - n_scanned
    n_stacks = len(body.function.outputs) - n_states
    backwards = node.attr("directions") or (0,) * n_scanned

    def scan_entry(states: Sequence[Array], scanned: Sequence[Array], length: int, captured: Sequence[Any]) -> list[Array]:
        sequences = [
            xp.flip(x[:length], 0) if is_backwards else x[:length] for x, is_backwards in zip(scanned, backwards, strict=True)
        ]
        results = _scan_first_axis(xp, body, states, sequences, captured, n_stacks)
        # The results of all entries are stacked, so pad those of a shorter sequence to the full length.
        missing_steps = len(scanned[0]) - length
        padded = (xp.concatenate([s, xp.zeros((missing_steps, *s.shape[1:]), dtype=s.dtype)]) for s in results[n_states:])
        return [*results[:n_states], *padded]

    def run(lengths: Array | None, *values: Any) -> tuple[Any, ...]:
        states, rest = values[:n_states], values[n_states:]
        scanned, captured = rest[:n_scanned], rest[n_scanned:]
        batch_size, step_count = scanned[0].shape[:2]
        length_list = [step_count] * batch_size if lengths is None else lengths.tolist()
        entries = [
            scan_entry([xp.asarray(s)[i] for s in states], [x[i] for x in scanned], length, captured)
            for i, length in enumerate(length_list)
        ]
        return tuple(xp.stack(results) for results in zip(*entries, strict=True))

    return run


@ops("SequenceConstruct", "SequenceEmpty")
def sequence_construct(node: Node, ctx: KernelContext) -> Run:
    return lambda *values: list(values)


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
    """Split into chunks of one size (the last may be smaller), of the sizes in a vector, or, without ``split``, of size 1."""
    xp, axis, keep = ctx.xp, node.attr("axis", 0), node.attr("keepdims", 1)

    def run(x: Array, split: Array | None = None) -> list[Array]:
        extent = x.shape[axis]
        if split is None:
            parts = list(split_axis(x, [1] * extent, axis))
            return parts if keep else [xp.squeeze(part, axis=axis) for part in parts]  # ONNX ignores `keepdims` otherwise
        if split.ndim:
            return list(split_axis(x, split.tolist(), axis))
        limits = [*range(0, extent, int(split)), extent]
        return list(split_axis(x, [end - start for start, end in pairwise(limits)], axis))

    return run


@ops("SequenceMap")
def sequence_map(node: Node, ctx: KernelContext) -> Run:
    """Run the body on each element of the sequences. Inputs that are tensors are passed to every call."""
    body, n_inputs = ctx.compile_body("body"), len(node.inputs)

    def run(*values: Any) -> tuple[list[Any], ...]:
        inputs, captured = values[:n_inputs], values[n_inputs:]

        def call_body(index: int) -> list[Any]:
            return body([x[index] if isinstance(x, list) else x for x in inputs], captured)

        results = [call_body(index) for index in range(len(inputs[0]))]  # the first input is a sequence
        return tuple([outputs[i] for outputs in results] for i in range(ctx.n_outputs))

    return run


@ops("Optional", "OptionalGetElement")
def optional(node: Node, ctx: KernelContext) -> Run:
    return lambda value=None: value


@ops("OptionalHasElement")
def optional_has_element(node: Node, ctx: KernelContext) -> Run:
    return lambda value=None: ctx.xp.asarray(value is not None)
