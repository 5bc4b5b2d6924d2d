"""Compiling a plan: regions at once within the budget, equal ones once, outcomes in order, and the nodes to blame."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, strategies as st

import xrt
from tests.hanging import PATIENCE, wait_until
from tests.module.test_faults import X, chain
from xrt.cache import CompileCache
from xrt.engines import CompileContext, Executable, GraphCompiler
from xrt.errors import CompileFailed, CompileRefused, FallbackWarning
from xrt.graph import Function
from xrt.partition import Plan, partition
from xrt.partition.partitioner import map_nodes_to_engines
from xrt.runtime import Program, Refusal, compile_plan
from xrt.runtime.compile import MAX_TRIALS, find_culprits
from xrt.testing.corpus.entry import graph, node, tensor
from xrt.testing.fault_injection import ObservedExecutable, RecordingEngine

F32 = tensor("float32[3]")


class Compiles:
    """The compiles of a test, and what happens in them."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.under_way = self.most = 0
        self.lock = threading.Lock()
        self.then: Callable[[Function], object] = lambda function: None

    @contextmanager
    def track(self, function: Function) -> Iterator[None]:
        with self.lock:
            self.names.append(function.name)
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        try:
            self.then(function)
            yield
        finally:
            with self.lock:
                self.under_way -= 1


COMPILES = Compiles()


@dataclass(frozen=True)
class Free(RecordingEngine):
    name: ClassVar[str] = "free"
    takes: str = "Add"

    def compile(self, function: Function, context: CompileContext) -> Executable:
        with COMPILES.track(function):
            return super().compile(function, context)


@dataclass(frozen=True)
class OneAtATime(Free):
    name: ClassVar[str] = "one_at_a_time"
    takes: str = "Sum"
    compiles_in_parallel: ClassVar[bool] = False


ENGINES = {engine.spec: engine for engine in (Free(), OneAtATime())}


@pytest.fixture(autouse=True)
def compiles() -> Compiles:
    COMPILES.__init__()  # type: ignore[misc]  # the engines, frozen as they are, all write here
    for engine in ENGINES.values():
        engine.journal.clear()
    return COMPILES


def count_closed() -> int:
    return sum(engine.journal.count("close") for engine in ENGINES.values())


def planned(*amounts: float, of: Sequence[GraphCompiler] = tuple(ENGINES.values())) -> Plan:
    """Additions in a row, on the two engines in turn: as many regions as amounts."""
    names = ["x", *(f"some_{i}_{amount}" for i, amount in enumerate(amounts))]
    nodes = [node("Sum" if i % 2 else "Add", f"{names[i]} w{i}", names[i + 1], name=f"n{i}") for i in range(len(amounts))]
    weights = {f"w{i}": np.full(3, amount, "float32") for i, amount in enumerate(amounts)}
    function = graph({"x": F32}, {names[-1]: F32}, *nodes, constants=weights)
    return partition(function.replace(types=dict.fromkeys(names[1:-1], F32)), of)


def compiled(plan: Plan, threads: int = 2, **options: Any) -> Any:
    return compile_plan(plan, ENGINES, CompileContext(threads=threads), options.pop("cache", CompileCache()), **options)


@pytest.mark.slow
def test_regions_compile_at_once_within_the_budget(compiles: Compiles) -> None:
    meeting = threading.Barrier(2, timeout=300)
    compiles.then = lambda function: meeting.wait() if function.name in ("xrt_free_0", "xrt_free_2") else None
    program = compiled(planned(1, 2, 3, 4))
    assert isinstance(program, Program)
    assert compiles.most == 2
    np.testing.assert_array_equal(program.run([np.zeros(3, "float32")])[0], np.full(3, 10))


def test_a_budget_of_one_compiles_in_the_plans_order(compiles: Compiles) -> None:
    assert isinstance(compiled(planned(1, 2, 3, 4), threads=1), Program)
    assert compiles.most == 1
    assert compiles.names == ["xrt_free_0", "xrt_one_at_a_time_1", "xrt_free_2", "xrt_one_at_a_time_3"]


def test_an_engine_that_compiles_one_at_a_time_is_asked_so_by_every_module(compiles: Compiles) -> None:
    plans = [planned(*range(n, n + 6), of=(*reversed(ENGINES.values()),)) for n in (0, 10)]
    alone = [0, 0]

    def then(function: Function) -> None:
        if function.name.startswith("xrt_one"):
            with compiles.lock:
                alone[0] += 1
                alone[1] = max(alone)
            threading.Event().wait(0.002)
            with compiles.lock:
                alone[0] -= 1

    compiles.then = then
    with ThreadPoolExecutor(2) as pool:
        assert all(isinstance(program, Program) for program in pool.map(lambda plan: compiled(plan, 3), plans))
    assert sorted(set(compiles.names)) == sorted(launch.name for launch in plans[0].launches)
    assert alone[1] == 1


@pytest.mark.parametrize("threads", [1, 4])
def test_equal_regions_compile_once_whatever_their_values_are_called(compiles: Compiles, threads: int) -> None:
    cache = CompileCache()
    for _ in range(2):
        program = compiled(planned(5, 1, 5, 1, 5), threads, cache=cache)
        assert len(compiles.names) == 2
    np.testing.assert_array_equal(program.run([np.zeros(3, "float32")])[0], np.full(3, 17))
    assert cache.statistics.size == 2


def test_regions_that_differ_in_a_weight_are_not_equal(compiles: Compiles) -> None:
    assert isinstance(compiled(planned(5, 1, 6, 1)), Program)
    assert len(compiles.names) == 3


@pytest.mark.slow
def test_refusals_come_in_the_plans_order_and_each_names_its_own_nodes(compiles: Compiles) -> None:
    def refuse(function: Function) -> None:
        if function.name == "xrt_free_0":
            threading.Event().wait(0.05)  # the first in the plan is the last to be known
        if function.name in ("xrt_free_0", "xrt_one_at_a_time_3", "xrt_free_4"):
            raise CompileRefused(f"not {function.name}", nodes=[function.nodes[0].name])

    compiles.then = refuse
    cache = CompileCache()
    result = compiled(planned(1, 2, 3, 4, 1), 4, cache=cache)
    assert [(r.launch.name, r.nodes, str(r.error)) for r in result if isinstance(r, Refusal)] == [
        ("xrt_free_0", ("n0",), "not xrt_free_0"),
        ("xrt_one_at_a_time_3", ("n3",), "not xrt_one_at_a_time_3"),
        ("xrt_free_4", ("n4",), "not xrt_free_4"),
    ]
    cache.clear()
    assert count_closed() == 2


def test_what_an_engine_raises_is_a_failure_of_its_region(compiles: Compiles) -> None:
    def crash(function: Function) -> None:
        if function.name == "xrt_free_2":
            raise ZeroDivisionError("inside")

    compiles.then = crash
    (refusal,) = compiled(planned(1, 2, 3))
    assert isinstance(refusal.error, CompileFailed)
    assert str(refusal.error) == "engine 'free' failed to compile xrt_free_2 (1 nodes): ZeroDivisionError: inside"


def test_an_interrupt_leaves_no_lease_behind(compiles: Compiles) -> None:
    def interrupt(function: Function) -> None:
        if function.name == "xrt_free_2":
            raise KeyboardInterrupt

    compiles.then = interrupt
    cache = CompileCache()
    with pytest.raises(KeyboardInterrupt):
        compiled(planned(1, 2, 3), cache=cache)
    cache.clear()
    assert count_closed() == sum(len(engine.journal.compiled) for engine in ENGINES.values())


@pytest.mark.usefixtures("without_finalizers")
def test_ctrl_c_does_not_wait_for_regions_in_progress(compiles: Compiles) -> None:
    both_compile, released = threading.Barrier(2, timeout=PATIENCE), threading.Event()

    def press_and_hang(function: Function) -> None:
        if both_compile.wait() == 0:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        released.wait(PATIENCE)

    compiles.then = press_and_hang
    cache, output = CompileCache(), list[tuple[int, int]]()
    with pytest.raises(KeyboardInterrupt):
        compiled(planned(1, 2), cache=cache, progress=lambda *step: output.append(step))
    assert (compiles.under_way, output) == (2, [])
    released.set()
    # The next compile waits for the compiles that go on and uses their results.
    program = compiled(planned(1, 2), cache=cache)
    assert len(compiles.names) == 2
    np.testing.assert_array_equal(program.run([np.zeros(3, "float32")])[0], np.full(3, 3))
    program.close()
    cache.clear()
    wait_until(lambda: count_closed() == 2)


@pytest.mark.parametrize("threads", [1, 3])
def test_progress_counts_the_regions(threads: int) -> None:
    results: list[tuple[int, int]] = []
    compiled(planned(1, 2, 1, 4), threads, progress=lambda done, count: results.append((done, count)))
    assert results == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_a_module_tells_its_progress() -> None:
    results: list[tuple[int, int]] = []
    relu = graph({"x": F32}, {"y": F32}, node("Relu", "x", "y"))
    with xrt.XRTModule(relu, engine="toy", cache=CompileCache(), progress=lambda *step: results.append(step)) as module:
        module(np.ones(3, "float32"))
        module(np.ones(3, "float32"))
    assert results == [(1, 1)]
    with pytest.raises(xrt.errors.OptionError, match="progress must be a function of two numbers, or True, False or None; got 3"):
        xrt.XRTModule(relu, engine="toy", progress=3)


def test_an_executable_that_cannot_be_prepared_is_closed(compiles: Compiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Executable) -> None:
        raise ValueError("no such luck")

    monkeypatch.setattr(ObservedExecutable, "prepare", fail)
    (refusal,) = compiled(planned(1))
    assert refusal.reason == "engine 'free' failed to compile xrt_free_0 (1 nodes): ValueError: no such luck"
    assert count_closed() == 1


OPS = ("Abs", "Relu", "Exp", "Neg", "Tanh", "Cos", "Sqrt", "Sin")
RIGHT = np.sin(np.sqrt(np.cos(np.tanh(-np.exp(np.abs(X))))))


def placed(
    engine: GraphCompiler, ops: tuple[str, ...] = OPS, **options: Any
) -> tuple[dict[str, str], list[str], np.ndarray[Any, Any]]:
    """Return where the nodes went, the warnings, and the result."""
    with pytest.warns(FallbackWarning) as caught, xrt.XRTModule(chain(*ops), engine=[engine, "toy"], threads=1, **options) as m:
        result = m(X)
        return map_nodes_to_engines(m.plan), [str(warning.message) for warning in caught], result


def test_one_node_is_to_blame() -> None:
    engine = RecordingEngine(refuses="Tanh")
    homes, output, result = placed(engine, cache=CompileCache())
    assert [name for name, spec in homes.items() if spec == "toy"] == ["n4"]
    assert output == ["the recording engine is set to refuse Tanh; node 'n4' placed on another engine"]
    np.testing.assert_allclose(result, RIGHT, rtol=1e-5)


def test_of_two_that_must_not_meet_one_leaves() -> None:
    homes, _, result = placed(RecordingEngine(refuses="Relu+Cos"), cache=CompileCache())
    assert [name for name, spec in homes.items() if spec == "toy"] == ["n5"]
    np.testing.assert_allclose(result, RIGHT, rtol=1e-5)


@dataclass(frozen=True)
class NoCosOfRelu(RecordingEngine):
    """Refuses regions in which a Cos reads a Relu."""

    name: ClassVar[str] = "no_cos_of_relu"

    def compile(self, function: Function, context: CompileContext) -> Executable:
        pairs = ((function.producer(node.inputs[0]), node) for node in function.nodes)
        if any(producer is not None and (producer.op, node.op) == ("Relu", "Cos") for producer, node in pairs):
            raise CompileRefused("no Cos of Relu")
        return super().compile(function, context)


def test_equal_nodes_between_other_neighbors_stay() -> None:
    ops = ("Cos", "Relu", "Cos", "Exp", "Cos", "Relu", "Cos", "Exp", "Cos")
    homes, _, _ = placed(NoCosOfRelu(), ops, cache=CompileCache())
    assert [name for name, spec in homes.items() if spec == "toy"] == ["n2", "n6"]


def test_the_explanation_says_what_was_left_out_and_why() -> None:
    with (
        pytest.warns(FallbackWarning),
        xrt.XRTModule(chain(*OPS), engine=[RecordingEngine(refuses="Tanh"), "toy"], cache=CompileCache()) as m,
    ):
        m(X)
        line = "  n4 (Tanh) not on recording{refuses=Tanh}: refused at compile: the recording engine is set to refuse Tanh"
        assert [item for item in str(m.explain()).splitlines() if "not on recording" in item] == [line]


def test_it_is_found_out_once(tmp_path: Path) -> None:
    first, second = RecordingEngine(refuses="Relu+Cos"), RecordingEngine(refuses="Relu+Cos")
    homes, _, _ = placed(first, cache=tmp_path)
    assert first.journal.count("compile") <= MAX_TRIALS + 3
    again, output, _ = placed(second, cache=tmp_path)
    assert again == homes
    assert second.journal.count("compile") <= 2  # the regions that were not refused
    assert output[0].startswith("the recording engine is set to refuse Relu+Cos (as at an earlier compile")


def test_equal_regions_are_looked_into_once() -> None:
    """Eight blocks with a node between them that only toy takes: the regions of the engine are equal."""
    engine = RecordingEngine(refuses="Tanh", takes="Exp|Tanh|Abs")
    homes, _, _ = placed(engine, ("Exp", "Tanh", "Abs", "Sin") * 8, cache=CompileCache())
    assert sum(spec == engine.spec for spec in homes.values()) == 16
    assert engine.journal.count("compile") <= 8 + MAX_TRIALS + 16


@pytest.mark.slow
@given(st.data())
def test_what_is_left_compiles_and_little_is_left_out(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 80))
    bad = data.draw(st.sets(st.frozensets(st.integers(0, count - 1), min_size=1, max_size=2), min_size=1, max_size=2))
    asked = 0

    def compiles(places: Any) -> bool:
        nonlocal asked
        asked += 1
        assert list(places) == sorted(set(places))
        return not any(some <= set(places) for some in bad)

    blamed = find_culprits(list(range(count)), compiles)
    assert asked <= MAX_TRIALS
    results = set(range(count)) - set(blamed)
    assert not any(some <= results for some in bad)
    if len(bad) == 1:
        assert len(blamed) == 1


def test_equal_blocks_give_up_the_same_node() -> None:
    """Twelve blocks of five, each with a pair that must not meet: one by one they would take a hundred compiles."""
    patterns = [place % 5 for place in range(60)]
    results = []

    def compiles(places: Any) -> bool:
        results.append(places)
        return not any({5 * block + 1, 5 * block + 2} <= set(places) for block in range(12))

    assert find_culprits(patterns, compiles) == tuple(range(2, 60, 5))
    assert len(results) <= MAX_TRIALS


def test_where_too_many_are_to_blame_what_is_known_to_compile_stays() -> None:
    blamed = find_culprits(list(range(64)), lambda places: not any(place >= 32 for place in places))
    assert set(range(32, 64)) <= set(blamed)
    assert len(blamed) < 64
