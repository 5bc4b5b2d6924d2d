"""Calls over fixed arrays of a device, and calls that are recorded once and replayed."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import xrt
from tests.devices.models import Counter, Forked, Sums, numbers
from tests.devices.worlds import TOY, World, same, traffic, world
from xrt.errors import InputError, OptionError

X, W = numbers(3, 4), numbers(4, 5, seed=1)
ONE = np.ones((3, 4), "float32")
CPU = xrt.XRTModule(Sums(), TOY)
GRAPHS = pytest.mark.parametrize("graph", [False, True], ids=["played", "recorded"])
BOUND = pytest.mark.parametrize("bound", [False, True], ids=["called", "bound"])


def put(world: World, target: Any, array: np.ndarray[Any, Any]) -> None:
    """Write to an array of a device, as a caller does on its current stream."""
    target[...] = world.up(array)


@GRAPHS
def test_it_reads_what_the_inputs_hold_and_writes_the_same_outputs(world: World, graph: bool) -> None:
    m, x, w = world.module(Sums(), cuda_graph=graph), world.up(X), world.up(W)
    bound = m.bind(x, w)
    assert bound.inputs == (x, w) and all(world.device().owns(value) for value in bound.outputs)
    first = bound()
    for seed in range(4):
        data = numbers(3, 4, seed=seed)
        put(world, x, data)
        results = bound()
        assert all(a is b for a, b in zip(results, first, strict=True))
        same(world, results, CPU(data, W))
    assert (traffic(m).copies_in, traffic(m).copies_out, traffic(m).waits) == (0, 0, 0)


@GRAPHS
def test_inputs_of_the_host_are_copied_by_each_call(world: World, graph: bool) -> None:
    m, x, w = world.module(Sums(), cuda_graph=graph), X.copy(), world.up(W)
    bound = m.bind(x, w)
    for seed in range(4):
        x[...] = numbers(3, 4, seed=seed)
        results = bound()
        x[...] = np.nan  # the call has read it by then
        same(world, results, CPU(numbers(3, 4, seed=seed), W))
    assert traffic(m).copies_in == 4 and traffic(m).waits == 0


@GRAPHS
@BOUND
def test_buffers_of_the_caller(world: World, graph: bool, bound: bool) -> None:
    m, p = world.module(Sums(), cuda_graph=graph), world.up(np.zeros((3, 5), "float32"))
    call = m.bind(X, W, out=[p, None]) if bound else partial(m, X, W, out=[p, None])
    for _ in range(3):
        results = call()
        assert results[0] is p and world.device().owns(results[1])
        same(world, results, CPU(X, W))


def test_it_runs_next_to_other_calls_and_outlives_its_module(world: World) -> None:
    m, x = world.module(Sums(), cuda_graph=True), world.up(X)
    with m.bind(x, W) as context, m.bind(world.up(X * 2), W) as other:
        for _ in range(3):
            same(world, context(), CPU(X, W))
            same(world, m(X + 1, W), CPU(X + 1, W))
            same(world, other(), CPU(X * 2, W))
        m.close()
        same(world, context(), CPU(X, W))
    with pytest.raises(InputError, match=r"^the bound call is closed; bind the module's inputs again$"):
        context()


@GRAPHS
@BOUND
def test_a_call_returns_before_its_work_is_done(graph: bool, bound: bool) -> None:
    with world("late") as devices:
        m, inputs = devices.module(Sums(), cuda_graph=graph), (devices.up(X), devices.up(W))
        call = m.bind(*inputs) if bound else partial(m, *inputs)
        call()
        devices.down(call()[0])
        waits, results = devices.machine.waits, call()
        assert devices.machine.waits == waits
        same(devices, results, CPU(X, W))


def test_updates_of_arrays_of_the_device_and_of_the_host(world: World) -> None:
    m = world.module(Counter(), cuda_graph=True)  # which no recording can have, and so it is played
    state, expected = world.up(X), X
    bound = m.bind(state, world.up(ONE))
    for _ in range(3):
        expected = expected + ONE
        same(world, bound(), [expected * expected, expected])
        same(world, state, expected)
    here = X.copy()
    on_host = m.bind(here, ONE)
    on_host()
    on_host()
    np.testing.assert_array_equal(here, X + ONE + ONE)


def test_an_input_that_does_not_lie_in_one_piece(world: World) -> None:
    x = world.up(np.ascontiguousarray(X.T)).transpose()
    text = r"^input 'x' is not C-contiguous; a bound input is read in place: bind a C-contiguous copy of it, and write to it$"
    with pytest.raises(InputError, match=text):
        world.module(Sums()).bind(x, W)


@BOUND
def test_a_call_is_recorded_once_and_then_only_replayed(bound: bool) -> None:
    with world("late") as devices:
        m, inputs = devices.module(Sums(), cuda_graph=True), (devices.up(X), devices.up(W))
        call = m.bind(*inputs) if bound else partial(m, *inputs)
        call()  # looks at the types of what comes out, and so is played
        call()
        del devices.machine.kernels[:]
        call()
        assert devices.machine.kernels.count("graph") == 1
        others = set(devices.machine.kernels) - {"graph"}
        assert others == (set() if bound else {"setitem"}), "inputs and outputs are copied, and nothing else is launched"


def test_arrays_of_the_device_and_of_the_host_are_taken_in_turns(world: World) -> None:
    m, x, w = world.module(Sums(), cuda_graph=True), world.up(X), world.up(W)
    for _ in range(2):
        same(world, m(x, w), CPU(X, W))
        same(world, m(X, W), CPU(X, W))
    assert traffic(m).copies_in == 4 and traffic(m).waits == 0


class Grows(xrt.Graph):
    def build(self, x: Any) -> Any:
        return xrt.ops.NonZero(x)


class Looks(xrt.Graph):
    """The power of integers looks whether an exponent is negative, which a recording cannot."""

    def build(self, x: Any, e: Any) -> Any:
        return xrt.ops.Pow(x, e)


WHOLE = np.arange(6).reshape(2, 3)
REASONS = [
    (Counter(), (X, X), {}, "no graph: it updates inputs in place, or returns constants"),
    (Grows(), (X,), {}, "whose size may change"),
    (Looks(), (WHOLE, WHOLE % 3), {}, "no graph: recording a call failed: "),
    (Forked(), (X,), {"engine": [TOY, "ort"], "devices": {"ort": "cpu"}, "pins": ["Exp=ort"], "strict": True}, "_0 runs on cpu"),
]


@pytest.mark.parametrize(("model", "given", "options", "reason"), REASONS, ids=["updates", "grows", "looks", "mixed"])
def test_what_cannot_be_recorded_is_played_and_the_reason_reported(
    world: World, model: Any, given: Any, options: Any, reason: str
) -> None:
    m = world.module(model, **{"engine": TOY, "cuda_graph": True} | options)
    state = [x.copy() for x in given]
    for _ in range(2):
        results = m(*state)
    assert world.down(results) is not None
    output = next(line for line in str(m.explain()).splitlines() if line.startswith("no graph: "))
    assert reason.replace("_0", "") in output or reason in output


def test_a_graph_of_the_cpu_is_refused() -> None:
    with pytest.raises(OptionError, match=r"^cuda_graph=True records the work of a device, and the module runs on cpu"):
        xrt.XRTModule(Sums(), engine="toy", cuda_graph=True)
