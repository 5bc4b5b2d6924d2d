"""Control flow: bodies run by the same machinery, once per call, branch or iteration."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

import torch

from xrt.engines.torch.dtypes import get_torch_dtype
from xrt.engines.torch.kernel_context import Run, Tensor, ops

if TYPE_CHECKING:
    from xrt.engines.toolkit.node_query import CompiledBody
    from xrt.engines.torch.kernel_context import TorchKernelContext


@ops("If")
def if_(at: TorchKernelContext) -> Run:
    then, otherwise = at.body("then_branch"), at.body("else_branch")
    return lambda condition, *captured: tuple((then if bool(condition) else otherwise)([], captured))


@ops("Loop")
def loop(at: TorchKernelContext) -> Run:
    """Run the body while its condition holds, at most M times; what is carried comes back first, what is scanned stacked."""
    body, carried_count = at.body("body"), max(0, len(at.node.inputs) - 2)
    scanned_count = len(body.function.outputs) - 1 - carried_count

    def run(trips: Tensor = None, condition: Tensor = None, *rest: Any) -> tuple[Any, ...]:
        carried, captured = list(rest[:carried_count]), rest[carried_count:]
        scanned: list[list[Any]] = [[] for _ in range(scanned_count)]
        proceed = True if condition is None else bool(condition)
        for trip in count() if trips is None else range(int(trips)):
            if not proceed:
                break
            flag, *results = body([torch.tensor(trip), torch.tensor(True), *carried], captured)
            carried, proceed = results[:carried_count], bool(flag)
            for column, value in zip(scanned, results[carried_count:], strict=True):
                column.append(value)
        turn = [None, None, *carried]
        return *carried, *(_stack(column, body, 1 + carried_count + i, turn, captured) for i, column in enumerate(scanned))

    return run


def _stack(values: Sequence[Tensor], body: CompiledBody, output: int, turn: Sequence[Any], captured: Sequence[Any]) -> Tensor:
    """Stack the values of a scanned output. Without any, the result is empty and has the shape that a turn would give."""
    if values:
        return torch.stack(list(values))
    dtype, extents = body.find_unstacked_type(output, turn, captured)
    return torch.empty((0, *extents), dtype=get_torch_dtype(dtype))


def _scan(
    body: CompiledBody, states: Sequence[Any], scanned: Sequence[Tensor], captured: Sequence[Any], n_outputs: int
) -> list[Any]:
    """Run the body once per index of the first axis; return the last states, then one list per scanned output."""
    states = list(states)
    columns: list[list[Tensor]] = [[] for _ in range(n_outputs)]
    for values in zip(*(x.unbind() for x in scanned), strict=True):
        results = body([*states, *values], captured)
        states, emitted = results[: len(states)], results[len(states) :]
        for column, value in zip(columns, emitted, strict=True):
            column.append(value)
    return [*states, *columns]


def _front(x: Tensor, axis: int, backwards: int) -> Tensor:
    moved = x.movedim(axis, 0)
    return moved.flip(0) if backwards else moved


@ops("Scan", since=9)
def scan(at: TorchKernelContext) -> Run:
    body, m = at.body("body"), at.attr("num_scan_inputs")
    n_states = len(at.node.inputs) - m
    k = len(body.function.outputs) - n_states
    in_axes, out_axes = at.attr("scan_input_axes") or (0,) * m, at.attr("scan_output_axes") or (0,) * k
    in_back, out_back = at.attr("scan_input_directions") or (0,) * m, at.attr("scan_output_directions") or (0,) * k

    def run(*values: Any) -> tuple[Any, ...]:
        states, captured = values[:n_states], values[n_states + m :]
        scanned = [_front(x, a, b) for x, a, b in zip(values[n_states : n_states + m], in_axes, in_back, strict=True)]
        results = _scan(body, states, scanned, captured, k)
        turn = [*states, *(x.new_empty(x.shape[1:]) for x in scanned)]
        stacks = [_stack(column, body, n_states + i, turn, captured) for i, column in enumerate(results[n_states:])]
        outputs = ((s.flip(0) if b else s).movedim(0, a) for s, a, b in zip(stacks, out_axes, out_back, strict=True))
        return *results[:n_states], *outputs

    return run


@ops("Scan", until=8)
def scan_batched(at: TorchKernelContext) -> Run:
    """Version 8 has a batch axis in front, of sequences of given lengths, padded with zeros."""
    body, m = at.body("body"), at.attr("num_scan_inputs")
    n_states = len(at.node.inputs) - 1 - m
    k = len(body.function.outputs) - n_states
    backwards = at.attr("directions") or (0,) * m

    def one(states: Sequence[Tensor], scanned: Sequence[Tensor], length: int, captured: Sequence[Any]) -> list[Tensor]:
        parts = [_front(x[:length], 0, b) for x, b in zip(scanned, backwards, strict=True)]
        results = _scan(body, states, parts, captured, k)
        turn = [*states, *(x.new_empty(x.shape[1:]) for x in parts)]
        stacks = [_stack(column, body, n_states + i, turn, captured) for i, column in enumerate(results[n_states:])]
        missing = len(scanned[0]) - length
        return [*results[:n_states], *(torch.cat([s, s.new_zeros((missing, *s.shape[1:]))]) for s in stacks)]

    def run(lengths: Tensor, *values: Any) -> tuple[Any, ...]:
        states, scanned, captured = values[:n_states], values[n_states : n_states + m], values[n_states + m :]
        batch = len(scanned[0])
        each = [scanned[0].shape[1]] * batch if lengths is None else lengths.tolist()
        rows = [one([s[i] for s in states], [x[i] for x in scanned], each[i], captured) for i in range(batch)]
        return tuple(torch.stack(column) for column in zip(*rows, strict=True))

    return run


ops("SequenceConstruct")(lambda at: lambda *values: list(values))
ops("SequenceEmpty")(lambda at: list)
ops("SequenceLength")(lambda at: lambda sequence: torch.tensor(len(sequence)))
ops("Optional")(lambda at: lambda value=None: value)
ops("OptionalHasElement")(lambda at: lambda value=None: torch.tensor(value is not None))


@ops("OptionalGetElement")
def optional_get_element(at: TorchKernelContext) -> Run:
    def run(value: Any) -> Any:
        if value is None:
            raise ValueError("the optional has no element")
        return value

    return run


@ops("SequenceAt")
def sequence_at(at: TorchKernelContext) -> Run:
    return lambda sequence, position: sequence[_place(position, len(sequence))]


@ops("SequenceErase")
def sequence_erase(at: TorchKernelContext) -> Run:
    def run(sequence: list[Any], position: Tensor = None) -> list[Any]:
        place = _place(position, len(sequence))
        return [*sequence[:place], *sequence[place + 1 :]]

    return run


@ops("SequenceInsert")
def sequence_insert(at: TorchKernelContext) -> Run:
    def run(sequence: list[Any], value: Any, position: Tensor = None) -> list[Any]:
        place = len(sequence) if position is None else _place(position, len(sequence), insert=True)
        return [*sequence[:place], value, *sequence[place:]]

    return run


def _place(position: Tensor, length: int, *, insert: bool = False) -> int:
    """Return an index counted from the front, by default of the last element."""
    place = -1 if position is None else int(position)
    end = length if insert else length - 1
    if not -length <= place <= end:
        raise IndexError(f"position {place} is outside of a sequence of {length}; it must be from {-length} to {end}")
    return place + length if place < 0 else place


@ops("ConcatFromSequence")
def concat_from_sequence(at: TorchKernelContext) -> Run:
    join, axis = torch.stack if at.attr("new_axis", 0) else torch.cat, at.attr("axis")
    return lambda sequence: join(sequence, axis)


@ops("SplitToSequence")
def split_to_sequence(at: TorchKernelContext) -> Run:
    """Parts of one size (the last may be smaller), of given sizes, or single elements whose axis may be dropped."""
    axis, keep = at.attr("axis", 0), at.attr("keepdims", 1)

    def run(x: Tensor, split: Tensor = None) -> list[Tensor]:
        if split is None:
            return list(x.split(1, axis) if keep else x.unbind(axis))
        if split.ndim == 0:
            ends = [*range(0, x.shape[axis], int(split)), x.shape[axis]]
            return [x.narrow(axis, start, end - start) for start, end in pairwise(ends)]
        return list(x.split(split.tolist(), axis))

    return run


@ops("SequenceMap")
def sequence_map(at: TorchKernelContext) -> Run:
    """Run the body on each element; inputs that are tensors are the same for all."""
    body, given, n_outputs = at.body("body"), len(at.node.inputs), at.n_outputs

    def run(*values: Any) -> tuple[list[Any], ...]:
        inputs, captured = values[:given], values[given:]
        rows = [
            body([value[i] if isinstance(value, list) else value for value in inputs], captured) for i in range(len(inputs[0]))
        ]
        return tuple([row[i] for row in rows] for i in range(n_outputs))

    return run
