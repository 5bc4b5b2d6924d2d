"""A call recorded once and replayed: CUDA graphs, and what stands for them on a simulated device."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import xrt
from tests.devices.models import Counter, Forked, Net, numbers
from tests.devices.worlds import TOY, World, same, traffic, world
from xrt.errors import OptionError

X, W = numbers(3, 4), numbers(4, 5, seed=1)
CPU = xrt.XRTModule(Net(), TOY)


def test_calls_are_replayed_and_right(world: World) -> None:
    m = world.module(Net(), cuda_graph=True)
    kept = [(x, m(x, W)) for x in (numbers(3, 4, seed=seed) for seed in range(4))]
    for x, results in kept:
        same(world, results, CPU(x, W))
    assert "\na graph of the device" in str(m.explain())


def test_a_call_is_recorded_once_and_then_only_replayed() -> None:
    with world("late") as found:
        m = found.module(Net(), cuda_graph=True)
        m(X, W)  # looks at the types of what comes out, and so is played
        m(X, W)
        del found.machine.kernels[:]
        m(X, W)
        assert found.machine.kernels.count("graph") == 1
        others = set(found.machine.kernels) - {"graph"}
        assert others == {"setitem"}, "inputs and outputs are copied, and nothing else is launched"


def test_arrays_of_the_device_and_of_the_host_are_taken_in_turns(world: World) -> None:
    m, x, w = world.module(Net(), cuda_graph=True), world.up(X), world.up(W)
    for _ in range(2):
        same(world, m(x, w), CPU(X, W))
        same(world, m(X, W), CPU(X, W))
    assert traffic(m).copies_in == 4 and traffic(m).waits == 0


def test_threads_share_a_recording(world: World) -> None:
    m, wrong = world.module(Net(), cuda_graph=True), []

    def call(seed: int) -> None:
        x = numbers(3, 4, seed=seed)
        for _ in range(4):
            try:
                same(world, m(x, W), CPU(x, W))
            except Exception as error:  # noqa: BLE001
                wrong.append(error)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert wrong == []


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
    told = next(line for line in str(m.explain()).splitlines() if line.startswith("no graph: "))
    assert reason.replace("_0", "") in told or reason in told


def test_a_graph_of_the_cpu_is_refused() -> None:
    with pytest.raises(OptionError, match=r"^cuda_graph=True records the work of a device, and the module runs on cpu"):
        xrt.XRTModule(Net(), engine="toy", cuda_graph=True)
