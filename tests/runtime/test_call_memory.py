"""The most memory that a profiled call takes at once, against sizes that are known."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

import xrt
from xrt import ops, training
from xrt.errors import InputError
from xrt.runtime.call_frame import CallMemory, ValueCounter

if TYPE_CHECKING:
    from xrt.runtime.call_frame import CallFrame
    from xrt.runtime.memory_plan import ValueTable

ONE, OTHER = "toy{native=off}", "toy"
X = np.linspace(0, 1, 64 * 16, dtype="float32").reshape(64, 16)
SIZE = X.nbytes
PROFILED = xrt.RunOptions(profile=True)


class Chain(xrt.Graph):
    """Four operators; the first value is read by the last as well."""

    def build(self, x: Any) -> Any:
        first = ops.Exp(x)
        return {"y": ops.Neg(ops.Tanh(first)) + first}


def measure(graph: xrt.Graph, engine: Any, *args: Any, **options: Any) -> CallMemory:
    with xrt.XRTModule(graph.trace(X), engine, **options) as m:
        for _ in range(2):
            m(X, *args, options=PROFILED)
        found = m.profile().memory
        assert found is not None
        return found


def test_values_between_regions_are_counted_as_they_live() -> None:
    found = measure(Chain(), ONE, maximum_nodes=1)
    # At the third launch: what Exp made, which Add reads, with the results of Tanh and Neg; at the fourth: Exp, Neg and Add.
    assert (found.peak, found.values, found.workspace, found.expected, found.untold) == (3 * SIZE, 3 * SIZE, 0, 3 * SIZE, ())
    assert found.launch in ("xrt_toy_2", "xrt_toy_3")


def test_what_is_inside_of_a_region_is_what_its_engine_reports() -> None:
    found = measure(Chain(), ONE)
    # Inside: Exp with Tanh and then Neg; the result in addition.
    assert found == CallMemory(4 * SIZE, "xrt_toy_0", SIZE, 3 * SIZE, 3 * SIZE)
    assert str(found) == (
        "values take at most 16,384 bytes at once, in xrt_toy_0 (4,096 in arrays of the call, 12,288 inside of the region); "
        "the plan expects 12,288"
    )


def test_memory_that_values_share_is_counted_once_and_that_of_inputs_not() -> None:
    made = X + 1
    writes = [made], [made[1:]], [X.T, [made[:2], X + 2]]  # an array, a view of it, and a list with a view and an array
    table = SimpleNamespace(
        steps=[SimpleNamespace(writes=(n + 1,)) for n in range(3)], constants={}, last_uses=lambda: [(), (1,), (2, 3)]
    )
    slots: list[Any] = [X, None, None, None]
    counter = ValueCounter(cast("ValueTable", table), cast("CallFrame", SimpleNamespace(slots=slots, initial=())), [X], None, 100)
    for number, value in enumerate(writes):
        slots[number + 1] = value
        counter.add(number)
    assert counter.held == [100 + SIZE, 100 + SIZE, 100 + 2 * SIZE]
    assert counter.nbytes == 100
    assert counter.count_results([X, made, made[1:]]) == 100 + SIZE


@pytest.mark.slow
def test_buffers_of_the_caller_and_the_arena() -> None:
    buffer = np.empty_like(X)
    with xrt.XRTModule(Chain().trace(X), ONE) as m:
        m(X, options=xrt.RunOptions(out=(buffer,), profile=True))
        kept = m.profile().memory
    assert kept is not None and kept.values <= SIZE  # a result that the engine makes itself is copied to the buffer
    with xrt.XRTModule(Chain().trace(X), ["ort", OTHER], pins=["Exp|Neg=ort", "Tanh|Add=toy"]) as m:
        m(X, options=PROFILED)
        found = m.profile().memory
    assert found is not None and found.values > 0
    assert found.untold == tuple(launch.name for launch in m.plan.launches if launch.engine == "ort")
    assert "; not known: what is inside of xrt_ort_" in str(found)


def test_the_profile_prints_it_and_gives_it_as_json() -> None:
    with xrt.XRTModule(Chain().trace(X), ONE, threads=1) as m:
        m(X)
        assert m.profile().memory is None
        m(X, options=PROFILED)
        profile = m.profile()
    assert str(profile).splitlines()[-1] == str(profile.memory)
    facts = json.loads(json.dumps(profile.to_dict()))
    assert facts["memory"] == {
        "peak": 4 * SIZE,
        "launch": "xrt_toy_0",
        "values": SIZE,
        "workspace": 3 * SIZE,
        "expected": 3 * SIZE,
        "untold": [],
    }
    assert [launch["calls"] for launch in facts["launches"]] == [1] and facts["copies"] == []


class Layers(xrt.Graph):
    def __init__(self) -> None:
        for i in range(8):
            setattr(self, f"w{i}", np.eye(16, dtype="float32") / 2)

    def build(self, x: Any) -> Any:
        for i in range(8):
            x = ops.Tanh(x @ getattr(self, f"w{i}"))
        return {"loss": ops.ReduceSum(x * x, keepdims=0)}


def test_a_step_takes_what_its_plan_expects() -> None:
    with xrt.TrainModule(Layers().trace(X), ONE, loss="loss", optimizer=training.Adam()) as trained:
        trained(X, options=PROFILED)
        profile, expected = trained.profile(), trained.module.plan.estimate_peak()
    memory = profile.memory
    assert memory is not None and expected is not None
    assert memory.expected == expected
    copied = sum(copy.nbytes for copy in profile.copies)  # state that this engine does not update in place
    assert (memory.values, memory.peak) == (4 + copied, expected + copied)


def test_a_session_takes_no_buffers() -> None:
    with xrt.TrainModule(Layers().trace(X), ONE, loss="loss") as trained, pytest.raises(InputError) as caught:
        trained(X, options=xrt.RunOptions(out=(None,)))
    assert str(caught.value) == "a session keeps some of the outputs: options.out must be None; copy what the call returns"
