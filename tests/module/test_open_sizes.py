"""Models with symbolic dims, placed by measurement. Searches are simulated: nothing is timed."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import xrt
from tests.module.small_models import relu
from xrt.cache import CompileCache
from xrt.engines import CompileContext, Executable
from xrt.errors import LockError, SignatureWarning
from xrt.formats.placement_file import SearchRecord, dumps, loads
from xrt.graph import Function
from xrt.module.lockfile import lock_module
from xrt.partition.partitioner import map_nodes_to_engines, plan_from_assignment
from xrt.placement import TuningResult
from xrt.placement.race import make_candidate
from xrt.placement.result import PlacementRequest
from xrt.processes.background import start_in_background
from xrt.testing.corpus.entry import graph, node
from xrt.testing.fault_injection import RecordingEngine

PATIENCE = 60.0
MODEL = relu(("N", 3))


@dataclass(frozen=True)
class Static(RecordingEngine):
    """The reference, for one size at a time; a compile waits until it may go on."""

    name: ClassVar[str] = "static"
    may_compile: ClassVar[threading.Event] = threading.Event()

    def compile(self, function: Function, context: CompileContext) -> Executable:
        assert self.may_compile.wait(PATIENCE)
        return super().compile(function, context)


@dataclass(frozen=True)
class Dynamic(Static):
    """The same with one executable for all sizes."""

    name: ClassVar[str] = "dynamic"
    supports_dynamic_shapes: ClassVar[bool] = True


SMALL, LARGE, DYNAMIC = Static(), Static(mark="large"), Dynamic()


@dataclass
class Searches:
    """What was searched for; each search decides for the large engine from 32 rows on."""

    rows: list[int] = field(default_factory=list)
    budgets: list[float] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    may_end: threading.Event = field(default_factory=threading.Event)
    ended: list[str] = field(default_factory=list)

    def tune(
        self, request: PlacementRequest, *, inputs: Sequence[Any], progress: Callable[[Any], object], **_: Any
    ) -> TuningResult:
        (rows, _) = request.function.inputs[0].type.shape
        assert inputs[0].shape == (rows, 3)
        self.rows.append(rows)
        self.budgets.append(request.budget)
        self.inputs.append(inputs[0])
        try:
            while not self.may_end.wait(0.01):
                progress(None)
        except KeyboardInterrupt:
            self.ended.append("interrupted")
        first = SMALL.spec if rows < 32 else LARGE.spec
        specs = sorted((engine.spec for engine in request.engines if engine.spec != request.implicit), key=lambda x: x != first)
        names = [node.name for node in request.function.nodes]
        plans = [plan_from_assignment(request.function, request.engines, dict.fromkeys(names, spec)) for spec in specs]
        candidates = tuple(make_candidate(plan, "lost" if number else "won") for number, plan in enumerate(plans))
        return TuningResult(plans[0], SearchRecord(candidates=candidates, budget=request.budget))


def simulate_searches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Searches]:
    """Yield what is searched for; searches end at once unless the test says otherwise."""
    result = Searches()
    result.may_end.set()
    monkeypatch.setattr("xrt.placement.auto.tune", result.tune)
    monkeypatch.setattr(Static, "may_compile", threading.Event())
    Static.may_compile.set()
    yield result
    result.may_end.set()
    Static.may_compile.set()


def make(*engines: Any, **options: Any) -> xrt.XRTModule:
    listed = [*(engines or (SMALL, LARGE)), "auto"]
    return xrt.XRTModule(MODEL, listed, **{"cache": CompileCache(), "budget": 30, "progress": False, **options})


def call(module: xrt.XRTModule, rows: int) -> str:
    """Call the module and return the engine that it was on."""
    values = np.arange(rows * 3, dtype="float32").reshape(rows, 3) - 7
    np.testing.assert_array_equal(module(values), np.maximum(values, 0))
    (engine,) = set(map_nodes_to_engines(module.plan).values())
    return engine


pytestmark = pytest.mark.filterwarnings("ignore::xrt.errors.SignatureWarning")


@pytest.fixture(autouse=True)
def searches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Searches]:
    yield from simulate_searches(monkeypatch)


def test_one_search_serves_all_sizes(searches: Searches) -> None:
    with make() as module:
        assert call(module, 5) == SMALL.spec
        assert module.tuned.notes == ()
        assert {call(module, rows) for rows in (1, 6, 500, 5)} == {SMALL.spec}
        call(module, 500)
        assert "  placed as it was measured for N=5" in str(module.explain()).splitlines()
    assert (searches.rows, searches.budgets) == ([5], [30])


def test_other_sizes_share_a_program(searches: Searches) -> None:
    with make(SMALL, DYNAMIC) as module:
        assert {rows: call(module, rows) for rows in (5, 6, 500, 5)} == {5: SMALL.spec, 6: DYNAMIC.spec, 500: DYNAMIC.spec}
        assert module.inputs == MODEL.inputs
    assert searches.rows == [5]


def test_a_program_for_each_size_if_that_is_asked_for(searches: Searches) -> None:
    with make(SMALL, DYNAMIC, shapes="each") as module:
        assert {call(module, rows) for rows in (5, 6, 500, 5)} == {SMALL.spec}


@pytest.mark.parametrize(
    ("engines", "options", "warned"),
    [
        (
            (SMALL, LARGE),
            {},
            "engine 'static' needs every extent fixed. Pass shapes=xrt.Buckets(), or an engine that has one program",
        ),
        ((SMALL, LARGE), {"shapes": "each"}, ""),
        ((SMALL, LARGE), {"shapes": xrt.Buckets({"N": [8]})}, ""),
        ((SMALL, DYNAMIC), {}, ""),
    ],
)
def test_calls_that_wait_again_and_again_are_told_of_once(engines: Any, options: Any, warned: str) -> None:
    with make(*engines, **options) as module, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rows in (5, 6, 5, 6):
            call(module, rows)
        assert not caught
        for rows in (7, 8, 9, 10):
            call(module, rows)
    texts = [str(warning.message) for warning in caught if warning.category is SignatureWarning]
    assert len(texts) == bool(warned)
    assert all(warned in text and text.startswith("3 calls of this module have waited for a compile") for text in texts)


def test_tune_decides_for_all_sizes(searches: Searches) -> None:
    with make() as module:
        assert {call(module, rows) for rows in (5, 40, 41)} == {SMALL.spec}
        module.tune(np.ones((40, 3), "float32"))
        assert {rows: call(module, rows) for rows in (40, 41, 6)} == dict.fromkeys((40, 41, 6), LARGE.spec)
    assert searches.rows == [5, 40]


def test_other_threads_call_during_a_search(searches: Searches) -> None:
    with make() as module:
        call(module, 5)
        searches.may_end.clear()
        tuning = start_in_background(lambda: module.tune(np.ones((40, 3), "float32")))
        while len(searches.rows) < 2:
            pass
        values = np.ones((5, 3), "float32")
        assert module(values, options=xrt.RunOptions()).shape == (5, 3)
        assert module(x=values).shape == (5, 3)
        searches.may_end.set()
        assert tuning.result(PATIENCE).how == "measured"


@pytest.mark.parametrize("names", [("a", "b"), ("a", "a")])
def test_several_dims(names: tuple[str, str], searches: Searches) -> None:
    inputs = {name: f"float32[{dim},3]" for name, dim in zip("xy", names, strict=True)}
    outputs = {f"{name}_out": type_ for name, type_ in inputs.items()}
    function = graph(inputs, outputs, node("Relu", "x", "x_out"), node("Relu", "y", "y_out"))
    with xrt.XRTModule(function, [SMALL, LARGE, "auto"], cache=CompileCache()) as module:
        for more in (0, 3):
            first, other = (np.ones((rows + more, 3), "float32") for rows in (7, 7 if names == ("a", "a") else 9))
            assert [result.shape for result in module(first, other)] == [first.shape, other.shape]
    assert [x.shape for x in searches.inputs] == [(7, 3)]


@pytest.mark.slow
def test_decisions_are_found_by_later_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the search itself: what it stores is found again, by the sizes that it was stored for."""
    monkeypatch.undo()
    Static.may_compile.set()
    keywords: dict[str, Any] = {"cache": tmp_path, "budget": 20, "threads": 1, "progress": False}
    with xrt.XRTModule(MODEL, ["toy", "auto"], **keywords) as module:
        call(module, 5)
        assert module.tuned.how == "measured"
    with xrt.XRTModule(MODEL, ["toy", "auto"], **keywords) as module:
        for rows in (9, 5, 300):
            call(module, rows)
            assert module.tuned.how == "remembered"
            assert module.tuned.notes == ("placed as it was measured for N=5",)


def test_a_lock_holds_for_all_sizes(searches: Searches) -> None:
    with make() as module:
        written = lock_module(module, [np.ones((5, 3), "float32")], {}, 0.1)
    assert loads(dumps(written)) == written
    searches.rows.clear()
    with make(lock=written, strict=True) as module:
        assert {call(module, rows) for rows in (5, 64, 900, 5)} == {SMALL.spec}
        call(module, 64)
        assert (module.tuned.how, module.tuned.notes) == ("locked", ("placed as it was measured for N=5",))
    assert searches.rows == []


def test_a_lock_of_another_model_does_not_hold() -> None:
    with make() as module:
        written = lock_module(module, [np.ones((5, 3), "float32")], {}, 0.1)
    other = MODEL.replace(nodes=(node("Relu", "x", "z"), node("Relu", "z", "y")))
    module = xrt.XRTModule(other, [SMALL, LARGE, "auto"], cache=CompileCache(), lock=written, strict=True)
    with module, pytest.raises(LockError, match=r"does not hold: .*the number of nodes was 1 and is 2"):
        module(np.ones((5, 3), "float32"))
