"""Control flow: bodies run by the same machinery, once per call, branch or iteration."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import torch

from xrt.engines.torch.dtypes import get_torch_dtype
from xrt.engines.torch.table import Run, Tensor, ops

if TYPE_CHECKING:
    from xrt.engines.toolkit.node_info import CompiledBody
    from xrt.engines.torch.kernel_context import TorchKernelContext

__all__: list[str] = []


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
