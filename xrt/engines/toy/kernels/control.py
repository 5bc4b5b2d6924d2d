"""Control flow: bodies run by the same machinery, once per call, branch or iteration."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.toy.table import Array, Run, ops
from xrt.graph import Node

if TYPE_CHECKING:
    from xrt.engines.toolkit.node_info import CompiledBody
    from xrt.engines.toy.kernel_context import KernelContext

__all__: list[str] = []


@ops("If", host=(0,))
def if_(node: Node, env: KernelContext) -> Run:
    then, otherwise = env.body("then_branch"), env.body("else_branch")

    def run(condition: Array, *captured: Any) -> tuple[Any, ...]:
        return tuple((then if condition.reshape(()) else otherwise)([], captured))

    return run


@ops("Loop", host=(0, 1))
def loop(node: Node, env: KernelContext) -> Run:
    """Run the body while its condition holds, at most M times; what is carried comes back last, what is scanned stacked."""
    body, given = env.body("body"), len(node.inputs)
    carried_count = max(0, given - 2)

    def run(trips: Array | None = None, condition: Array | None = None, *rest: Any) -> tuple[Any, ...]:
        carried, captured = list(rest[:carried_count]), rest[carried_count:]
        scanned: list[list[Any]] = [[] for _ in body.function.outputs[1 + carried_count :]]
        proceed = True if condition is None else bool(condition.reshape(()))
        for trip in count() if trips is None else range(int(trips.reshape(()))):
            if not proceed:
                break
            flag, *results = body([np.array(trip, dtype=np.int64), np.array(True), *carried], captured)
            carried, proceed = results[:carried_count], bool(flag.reshape(()))
            for column, value in zip(scanned, results[carried_count:], strict=True):
                column.append(value)
        turn = [None, None, *carried]
        stacks = (_stacked(env.xp, column, body, 1 + carried_count + i, turn, captured) for i, column in enumerate(scanned))
        return *carried, *stacks

    return run


def _stacked(
    xp: Any, values: Sequence[Array], body: CompiledBody, output: int, turn: Sequence[Any], captured: Sequence[Any]
) -> Array:
    """Stack the values of a scanned output. Without any, the result is empty and has the shape that a turn would give."""
    if values:
        return xp.stack(values)
    dtype, extents = body.find_unstacked_type(output, turn, captured)
    return xp.empty((0, *extents), dtype=dtype.numpy)


def _scan(
    xp: Any, body: CompiledBody, states: Sequence[Any], scanned: Sequence[Array], captured: Sequence[Any], n_outputs: int
) -> list[Any]:
    """Run the body once per index of the first axis; return the last states, then one list per scanned output."""
    states = list(states)
    columns: list[list[Array]] = [[] for _ in range(n_outputs)]
    for values in zip(*scanned, strict=True):
        results = body([*states, *map(xp.asarray, values)], captured)
        states, emitted = results[: len(states)], results[len(states) :]
        for column, value in zip(columns, emitted, strict=True):
            column.append(value)
    return [*states, *columns]


def _front(xp: Any, x: Array, axis: int, backwards: bool) -> Array:
    moved = xp.moveaxis(x, axis, 0)
    return moved[::-1] if backwards else moved


@ops("Scan", since=9)
def scan(node: Node, env: KernelContext) -> Run:
    xp, body, m = env.xp, env.body("body"), node.attr("num_scan_inputs")
    n_states = len(node.inputs) - m
    k = len(body.function.outputs) - n_states
    in_axes, out_axes = node.attr("scan_input_axes") or (0,) * m, node.attr("scan_output_axes") or (0,) * k
    in_back, out_back = node.attr("scan_input_directions") or (0,) * m, node.attr("scan_output_directions") or (0,) * k

    def run(*values: Any) -> tuple[Any, ...]:
        states, captured = values[:n_states], values[n_states + m :]
        scanned = [_front(xp, x, a, b) for x, a, b in zip(values[n_states : n_states + m], in_axes, in_back, strict=True)]
        results = _scan(xp, body, states, scanned, captured, k)
        turn = [*states, *(xp.empty(x.shape[1:]) for x in scanned)]
        stacks = [_stacked(xp, column, body, n_states + i, turn, captured) for i, column in enumerate(results[n_states:])]
        outputs = (xp.moveaxis(s[::-1] if b else s, 0, a) for s, a, b in zip(stacks, out_axes, out_back, strict=True))
        return *results[:n_states], *outputs

    return run


@ops("Scan", until=8, host=(0,))
def scan_batched(node: Node, env: KernelContext) -> Run:
    """Version 8 has a batch axis in front, of sequences of given lengths, padded with zeros."""
    xp, body, m = env.xp, env.body("body"), node.attr("num_scan_inputs")
    n_states = len(node.inputs) - 1 - m
    k = len(body.function.outputs) - n_states
    backwards = node.attr("directions") or (0,) * m

    def one(states: Sequence[Array], scanned: Sequence[Array], length: int, captured: Sequence[Any]) -> list[Array]:
        parts = [_front(xp, x[:length], 0, bool(b)) for x, b in zip(scanned, backwards, strict=True)]
        results = _scan(xp, body, states, parts, captured, k)
        turn = [*states, *(xp.empty(x.shape[1:]) for x in parts)]
        stacks = [_stacked(xp, column, body, n_states + i, turn, captured) for i, column in enumerate(results[n_states:])]
        missing = len(scanned[0]) - length
        return [*results[:n_states], *(xp.concatenate([s, xp.zeros((missing, *s.shape[1:]), s.dtype)]) for s in stacks)]

    def run(lengths: Array | None, *values: Any) -> tuple[Any, ...]:
        states, scanned, captured = values[:n_states], values[n_states : n_states + m], values[n_states + m :]
        batch = len(scanned[0])
        each = [scanned[0].shape[1]] * batch if lengths is None else lengths.tolist()
        rows = [one([s[i] for s in map(xp.asarray, states)], [x[i] for x in scanned], each[i], captured) for i in range(batch)]
        return tuple(xp.stack(column) for column in zip(*rows, strict=True))

    return run
