"""Control flow: lower bodies to XLA's conditionals and loops, or inline them where the condition is known at trace time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from xrt.engines.xla.kernels import Operand, lowers

if TYPE_CHECKING:
    from xrt.engines.xla.export import LoweringContext

UNROLLED = 8
"""Up to this many iterations a loop is unrolled, so that shapes may change between iterations."""


@lowers("If")
def if_(at: LoweringContext, condition: Operand) -> tuple[Operand, ...]:
    then, otherwise = at.body("then_branch"), at.body("else_branch")
    if isinstance(condition, np.ndarray):
        return tuple((then if condition.reshape(()) else otherwise)([]))
    branches = (lambda: tuple(map(jnp.asarray, then([]))), lambda: tuple(map(jnp.asarray, otherwise([]))))
    return tuple(jax.lax.cond(condition.reshape(()), *branches))


# ---------------------------------------------------------------------- Loop


class _UndecidedError(Exception):
    """Raised when a loop's condition is known only at run time."""


@lowers("Loop")
def loop(at: LoweringContext, trips: Operand = None, condition: Operand = None, *carried: Operand) -> tuple[Operand, ...]:
    """Run the body while its condition holds, at most ``trips`` times: final carried values, then stacked scan outputs."""
    iterate = _Iteration(at, len(carried))
    if isinstance(condition, np.ndarray) and not condition.reshape(()):
        trips, condition = np.array(0), None
    if isinstance(trips, np.ndarray) and (condition is None or isinstance(condition, np.ndarray)):
        try:
            return iterate.trace_counted(int(trips.reshape(())), carried)
        except _UndecidedError:
            pass
    return iterate.trace_while(trips, condition, carried)


class _Iteration:
    """A loop body that can be unrolled, scanned, or run as a while loop."""

    def __init__(self, at: LoweringContext, n_carried: int) -> None:
        self._at = at
        self._body: Callable[[Sequence[Operand]], list[Operand]] = at.body("body")
        self._n = n_carried

    def trace_counted(self, trips: int, carried: Sequence[Operand]) -> tuple[Operand, ...]:
        """Trace a loop with a known trip count; raises _UndecidedError if the body's condition may end it earlier."""
        if 0 < trips <= UNROLLED:
            return self._unroll(trips, list(carried))
        last, stacks = jax.lax.scan(self._step, tuple(map(jnp.asarray, carried)), jnp.arange(trips), length=max(trips, 0))
        return *last, *stacks

    def _step(self, carried: tuple[Operand, ...], trip: Operand) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
        flag, *results = self._body([trip, np.array(True), *carried])
        if not isinstance(flag, np.ndarray) or not flag.reshape(()):
            raise _UndecidedError
        arrays = tuple(map(jnp.asarray, results))
        return arrays[: self._n], arrays[self._n :]

    def _unroll(self, trips: int, carried: list[Operand]) -> tuple[Operand, ...]:
        rows: list[list[Operand]] = []
        for trip in range(trips):
            flag, *results = self._body([np.array(trip, np.int64), np.array(True), *carried])
            carried = results[: self._n]
            rows.append(results[self._n :])
            if not isinstance(flag, np.ndarray):
                raise _UndecidedError
            if not flag.reshape(()):
                break
        return *carried, *(jnp.stack(column) for column in zip(*rows, strict=True))

    def trace_while(self, trips: Operand, condition: Operand, carried: Sequence[Operand]) -> tuple[Operand, ...]:
        """Trace a while loop whose trip count is known only at run time. Raises CompileRefused if it has scan outputs."""
        n_scanned = len(self._at.attr("body").outputs) - 1 - self._n
        if n_scanned:
            raise self._at.refuse("scans as many results as only the run shows, and XLA has no such shape")
        bound = np.iinfo(np.int64).max if trips is None else jnp.asarray(trips).reshape(()).astype(jnp.int64)
        enters = jnp.asarray(True if condition is None else condition).reshape(())

        def has_next(state: tuple[Any, ...]) -> Operand:
            return (state[0] < bound) & state[1]

        def advance(state: tuple[Any, ...]) -> tuple[Any, ...]:
            trip, flag, *values = state
            proceed, *results = self._body([trip, flag, *values])
            return trip + 1, jnp.asarray(proceed).reshape(()), *map(jnp.asarray, results)

        first = (jnp.zeros((), jnp.int64), enters, *map(jnp.asarray, carried))
        return tuple(jax.lax.while_loop(has_next, advance, first)[2:])


# ---------------------------------------------------------------------- Scan


@lowers("Scan", since=9)
def scan(at: LoweringContext, *values: Operand) -> tuple[Operand, ...]:
    body, m = at.body("body"), at.attr("num_scan_inputs")
    n = len(values) - m
    k = len(at.attr("body").outputs) - n
    in_axes, out_axes = at.attr("scan_input_axes") or (0,) * m, at.attr("scan_output_axes") or (0,) * k
    in_back, out_back = at.attr("scan_input_directions") or (0,) * m, at.attr("scan_output_directions") or (0,) * k
    rows = tuple(_move_to_front(x, axis, back) for x, axis, back in zip(values[n:], in_axes, in_back, strict=True))

    def step(states: tuple[Operand, ...], row: tuple[Operand, ...]) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
        results = tuple(map(jnp.asarray, body([*states, *row])))
        return results[:n], results[n:]

    last, stacks = jax.lax.scan(step, tuple(map(jnp.asarray, values[:n])), rows)
    outputs = (jnp.moveaxis(s[::-1] if back else s, 0, axis) for s, axis, back in zip(stacks, out_axes, out_back, strict=True))
    return *last, *outputs


def _move_to_front(x: Operand, axis: int, backwards: int) -> Operand:
    moved = jnp.moveaxis(jnp.asarray(x), axis, 0)
    return moved[::-1] if backwards else moved
