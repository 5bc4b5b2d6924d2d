"""Compiling a plan: regions at once within the budget, equal ones once, outcomes in the plan's order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import xrt
from tests.hanging import PATIENCE, wait_until
from xrt.cache import CompileCache
from xrt.engines import CompileContext, Executable, GraphCompiler, RunOptions
from xrt.errors import CompileFailed, CompileRefused
from xrt.graph import Constant, DType, Function, Node, TensorType, Value
from xrt.partition import Plan, partition
from xrt.runtime import Program, Refusal, compile_plan

F32 = TensorType(DType.FLOAT32, (3,))


class Adding(Executable):
    """Adds what its region adds: the constants, one after the other."""

    def __init__(self, function: Function) -> None:
        self.amount = sum(constant.array for constant in function.constants.values())
        self.closed = 0

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        return [inputs[0] + self.amount]

    def close(self) -> None:
        self.closed += 1


class Journal:
    """What the engine of a test was asked to compile, and what then happens."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.under_way = self.most = 0
        self.lock = threading.Lock()
        self.then: Callable[[Function], object] = lambda function: None
        self.made: list[Adding] = []

    def compile(self, function: Function) -> Executable:
        with self.lock:
            self.compiled.append(function.name)
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        try:
            self.then(function)
        finally:
            with self.lock:
                self.under_way -= 1
        self.made.append(Adding(function))
        return self.made[-1]


JOURNAL = Journal()


@pytest.fixture(autouse=True)
def journal() -> Journal:
    JOURNAL.__init__()  # type: ignore[misc]  # the engines below, frozen as they are, all write here
    return JOURNAL


@dataclass(frozen=True)
class Free(GraphCompiler):
    name: ClassVar[str] = "free"
    takes: ClassVar[str] = ""

    def why_not(self, node: Node, function: Function) -> str | None:
        return None if node.domain == self.takes else f"takes the nodes of {self.takes!r}"

    def compile(self, function: Function, context: CompileContext) -> Executable:
        return JOURNAL.compile(function)


@dataclass(frozen=True)
class OneAtATime(Free):
    name: ClassVar[str] = "one_at_a_time"
    takes: ClassVar[str] = "other"
    compiles_in_parallel: ClassVar[bool] = False


def planned(*amounts: float, of: Sequence[GraphCompiler] = (Free(), OneAtATime())) -> Plan:
    """Additions in a row, on the two engines in turn: as many regions as amounts."""
    names = ["x", *(f"some_{i}_{amount}" for i, amount in enumerate(amounts))]
    nodes = [
        Node("Add", (names[i], f"w{i}"), (names[i + 1],), domain="other" if i % 2 else "", name=f"n{i}")
        for i in range(len(amounts))
    ]
    weights = {f"w{i}": Constant(np.full(3, amount, "float32")) for i, amount in enumerate(amounts)}
    types = dict.fromkeys(names[1:-1], F32)
    function = Function((Value("x", F32),), (Value(names[-1], F32),), tuple(nodes), weights, {"": 20, "other": 1}, types=types)
    return partition(function, of)


ENGINES: dict[str, GraphCompiler] = {"free": Free(), "one_at_a_time": OneAtATime()}


def compiled(plan: Plan, threads: int = 2, **options: Any) -> Any:
    return compile_plan(plan, ENGINES, CompileContext(threads=threads), options.pop("cache", CompileCache()), **options)


@pytest.mark.slow
def test_regions_compile_at_once_within_the_budget(journal: Journal) -> None:
    meeting = threading.Barrier(2, timeout=300)
    journal.then = lambda function: meeting.wait() if function.name in ("xrt_free_0", "xrt_free_2") else None
    program = compiled(planned(1, 2, 3, 4))
    assert isinstance(program, Program)
    assert journal.most == 2
    np.testing.assert_array_equal(program.run([np.zeros(3, "float32")])[0], np.full(3, 10))


def test_a_budget_of_one_compiles_in_the_plans_order(journal: Journal) -> None:
    assert isinstance(compiled(planned(1, 2, 3, 4), threads=1), Program)
    assert journal.most == 1
    assert journal.compiled == ["xrt_free_0", "xrt_one_at_a_time_1", "xrt_free_2", "xrt_one_at_a_time_3"]


def test_an_engine_that_compiles_one_at_a_time_is_asked_so_by_every_module(journal: Journal) -> None:
    plans = [planned(*range(n, n + 6), of=(OneAtATime(), Free())) for n in (0, 10)]
    alone = [0, 0]

    def then(function: Function) -> None:
        if function.name.startswith("xrt_one"):
            with journal.lock:
                alone[0] += 1
                alone[1] = max(alone)
            threading.Event().wait(0.002)
            with journal.lock:
                alone[0] -= 1

    journal.then = then
    threads = [threading.Thread(target=compiled, args=(plan, 3)) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(set(journal.compiled)) == sorted(launch.name for launch in plans[0].launches)
    assert alone[1] == 1


@pytest.mark.parametrize("threads", [1, 4])
def test_equal_regions_compile_once_whatever_their_values_are_called(journal: Journal, threads: int) -> None:
    cache = CompileCache()
    for _ in range(2):
        program = compiled(planned(5, 1, 5, 1, 5), threads, cache=cache)
        assert len(journal.compiled) == 2
    np.testing.assert_array_equal(program.run([np.zeros(3, "float32")])[0], np.full(3, 17))
    assert cache.statistics.size == 2


def test_regions_that_differ_in_a_weight_are_not_equal(journal: Journal) -> None:
    assert isinstance(compiled(planned(5, 1, 6, 1)), Program)
    assert len(journal.compiled) == 3


@pytest.mark.slow
def test_refusals_come_in_the_plans_order_and_each_names_its_own_nodes(journal: Journal) -> None:
    def refuse(function: Function) -> None:
        if function.name == "xrt_free_0":
            threading.Event().wait(0.05)  # the first in the plan is the last to be known
        if function.name in ("xrt_free_0", "xrt_one_at_a_time_3", "xrt_free_4"):
            raise CompileRefused(f"not {function.name}", nodes=[function.nodes[0].name])

    journal.then = refuse
    cache = CompileCache()
    found = compiled(planned(1, 2, 3, 4, 1), 4, cache=cache)
    assert [(r.launch.name, r.nodes, str(r.error)) for r in found if isinstance(r, Refusal)] == [
        ("xrt_free_0", ("n0",), "not xrt_free_0"),
        ("xrt_one_at_a_time_3", ("n3",), "not xrt_one_at_a_time_3"),
        ("xrt_free_4", ("n4",), "not xrt_free_4"),
    ]
    cache.clear()
    assert [one.closed for one in journal.made] == [1, 1]


def test_what_an_engine_raises_is_a_failure_of_its_region(journal: Journal) -> None:
    def crash(function: Function) -> None:
        if function.name == "xrt_free_2":
            raise ZeroDivisionError("inside")

    journal.then = crash
    (refusal,) = compiled(planned(1, 2, 3))
    assert isinstance(refusal.error, CompileFailed)
    assert str(refusal.error) == "engine 'free' failed to compile xrt_free_2 (1 nodes): ZeroDivisionError: inside"


def test_an_interrupt_leaves_no_lease_behind(journal: Journal) -> None:
    def interrupt(function: Function) -> None:
        if function.name == "xrt_free_2":
            raise KeyboardInterrupt

    journal.then = interrupt
    cache = CompileCache()
    with pytest.raises(KeyboardInterrupt):
        compiled(planned(1, 2, 3), cache=cache)
    cache.clear()
    assert all(one.closed == 1 for one in journal.made)


def test_ctrl_c_does_not_wait_for_regions_in_progress(journal: Journal) -> None:
    both_compile, released = threading.Barrier(2, timeout=PATIENCE), threading.Event()

    def press_and_hang(function: Function) -> None:
        if both_compile.wait() == 0:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        released.wait(PATIENCE)

    journal.then = press_and_hang
    cache, told = CompileCache(), list[tuple[int, int]]()
    with pytest.raises(KeyboardInterrupt):
        compiled(planned(1, 2), cache=cache, progress=lambda *step: told.append(step))
    assert (journal.under_way, told) == (2, [])
    released.set()
    # The next compile waits for the compiles that go on and uses their results.
    program = compiled(planned(1, 2), cache=cache)
    assert len(journal.compiled) == 2
    np.testing.assert_array_equal(program.run([np.zeros(3, "float32")])[0], np.full(3, 3))
    program.close()
    cache.clear()
    wait_until(lambda: [one.closed for one in journal.made] == [1, 1])


@pytest.mark.parametrize("threads", [1, 3])
def test_progress_counts_the_regions(threads: int) -> None:
    told: list[tuple[int, int]] = []
    compiled(planned(1, 2, 1, 4), threads, progress=lambda done, count: told.append((done, count)))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_a_module_tells_its_progress() -> None:
    told: list[tuple[int, int]] = []
    relu = Function((Value("x", F32),), (Value("y", F32),), (Node("Relu", ("x",), ("y",)),), opsets={"": 20})
    with xrt.XRTModule(relu, engine="toy", cache=CompileCache(), progress=lambda *step: told.append(step)) as module:
        module(np.ones(3, "float32"))
        module(np.ones(3, "float32"))
    assert told == [(1, 1)]
    with pytest.raises(xrt.errors.OptionError, match="progress must be a function of two numbers, or True, False or None; got 3"):
        xrt.XRTModule(relu, engine="toy", progress=3)


def test_an_executable_that_cannot_be_prepared_is_closed(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Executable) -> None:
        raise ValueError("no such luck")

    monkeypatch.setattr(Adding, "prepare", fail, raising=False)
    (refusal,) = compiled(planned(1))
    assert refusal.reason == "engine 'free' failed to compile xrt_free_0 (1 nodes): ValueError: no such luck"
    assert [one.closed for one in journal.made] == [1]
