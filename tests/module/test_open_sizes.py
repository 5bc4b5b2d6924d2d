"""Placement by ranges of sizes, and calls that do not wait for their own programs. Searches are simulated: nothing is timed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import xrt
from tests.hanging import wait_until
from tests.module.small_models import relu
from xrt.cache import CompileCache
from xrt.cache.memory import LEAST_BYTES
from xrt.engines import CompileContext, Executable, GraphCompiler
from xrt.engines.contract import registry
from xrt.errors import FallbackWarning, InputError, LockError, OptionError
from xrt.formats.placement_file import PlacementFile, dumps, loads
from xrt.graph import DType, Function, Node, TensorType, Value
from xrt.module.lockfile import lock_module
from xrt.module.options import REFERENCE
from xrt.partition.explicit import map_nodes_to_engines, plan_from_assignment
from xrt.placement import TuningResult
from xrt.placement.background import BackgroundWork
from xrt.placement.request import PlacementRequest
from xrt.placement.time_limit import begin

PATIENCE = 60.0
MODEL = relu(("N", 3))


@dataclass(frozen=True)
class Static(GraphCompiler):
    """The reference, for one size at a time; a compile waits until it may go on."""

    name: ClassVar[str] = "static"
    may_compile: ClassVar[threading.Event] = threading.Event()

    label: str = "small"
    fails: bool = False

    def why_not(self, node: Node, function: Function) -> str | None:
        return registry.create(REFERENCE).why_not(node, function)

    def version(self) -> str:
        return "1"

    def compile(self, function: Function, context: CompileContext) -> Executable:
        assert self.may_compile.wait(PATIENCE)
        if self.fails:
            raise RuntimeError("no memory left for it")
        return registry.create(REFERENCE).compile(function, context)


SMALL, LARGE = Static("small"), Static("large")


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
        spec = SMALL.spec if rows < 32 else LARGE.spec
        plan = plan_from_assignment(
            request.function, request.engines, dict.fromkeys((node.name for node in request.function.nodes), spec)
        )
        return TuningResult(plan, how="measured", budget=request.budget)

    def search_in_worker(
        self, request: PlacementRequest, work: BackgroundWork, *, inputs: Sequence[Any], **_: Any
    ) -> TuningResult:
        return self.tune(request, inputs=inputs, progress=work)


@pytest.fixture(autouse=True)
def searches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Searches]:
    """Return what is searched for; searches end at once unless the test says otherwise."""
    found = Searches()
    found.may_end.set()
    monkeypatch.setattr("xrt.placement.auto.tune", found.tune)
    monkeypatch.setattr("xrt.placement.auto.search_in_worker", found.search_in_worker)
    monkeypatch.setattr(Static, "may_compile", threading.Event())
    Static.may_compile.set()
    yield found
    found.may_end.set()
    Static.may_compile.set()


def make(*engines: Any, **options: Any) -> xrt.XRTModule:
    listed = [*(engines or (SMALL, LARGE)), "auto"]
    return xrt.XRTModule(
        MODEL, listed, **{"cache": CompileCache(), "budget": 30, "first": "wanted", "progress": False, **options}
    )


def call(module: xrt.XRTModule, rows: int) -> str:
    """Call the module and return the engine that it was on."""
    values = np.arange(rows * 3, dtype="float32").reshape(rows, 3) - 7
    np.testing.assert_array_equal(module(values), np.maximum(values, 0))
    (engine,) = set(map_nodes_to_engines(module.plan).values())
    return engine


# ---------------------------------------------------------------------- ranges


def test_one_search_serves_all_sizes(searches: Searches) -> None:
    with make() as module:
        assert call(module, 5) == SMALL.spec
        assert module.tuned is not None
        assert module.tuned.notes == ()
        assert {call(module, rows) for rows in (1, 6, 500, 5)} == {SMALL.spec}
        call(module, 500)
        assert "  placed as it was measured for N=5" in str(module.explain()).splitlines()
    assert (searches.rows, searches.budgets) == ([5], [30])


def test_asked_sizes_share_the_budget_and_serve_what_is_near(searches: Searches) -> None:
    with make(sizes={"N": [64, 4]}) as module:
        assert call(module, 5) == SMALL.spec
        assert (searches.rows, searches.budgets) == ([4, 64], [15, 15])
        values = np.arange(15, dtype="float32").reshape(5, 3) - 7
        np.testing.assert_array_equal(searches.inputs[0], values[:4])
        np.testing.assert_array_equal(searches.inputs[1], np.resize(values, (64, 3)))
        engines = {rows: call(module, rows) for rows in (1, 4, 15, 17, 64, 9000)}
        assert engines == {1: SMALL.spec, 4: SMALL.spec, 15: SMALL.spec, 17: LARGE.spec, 64: LARGE.spec, 9000: LARGE.spec}
    assert searches.rows == [4, 64]


def test_further_ranges_are_measured_in_the_background(searches: Searches) -> None:
    with make(background=True) as module:
        assert call(module, 5) == SMALL.spec
        searches.may_end.clear()
        assert {call(module, rows) for rows in (7, 40, 41, 5, 40)} == {SMALL.spec}  # 40 takes the nearest decision meanwhile
        searches.may_end.set()
        module.settle(PATIENCE)
        assert {rows: call(module, rows) for rows in (5, 40, 41, 63, 7)} == {
            **dict.fromkeys((5, 7), SMALL.spec),
            **dict.fromkeys((40, 41, 63), LARGE.spec),
        }
        module.settle(PATIENCE)
    assert (searches.rows, searches.budgets) == ([5, 40], [30, 30])


def test_a_plan_that_is_found_during_a_compile_serves_the_next_call(searches: Searches) -> None:
    with make(background=True) as module, ThreadPoolExecutor(1) as pool:
        call(module, 5)
        Static.may_compile.clear()
        waiting = pool.submit(call, module, 40)
        wait_until(lambda: searches.rows == [5, 40])
        module.settle(PATIENCE)
        Static.may_compile.set()
        waiting.result(PATIENCE)
        assert call(module, 40) == LARGE.spec


def test_asked_sizes_are_measured_in_the_background_when_they_are_met(searches: Searches) -> None:
    with make(background=True, sizes={"N": (4, 64)}) as module:
        call(module, 3)
        assert searches.rows == [4]
        call(module, 50)
        module.settle(PATIENCE)
        assert call(module, 50) == LARGE.spec
    assert (searches.rows, searches.budgets) == ([4, 64], [30, 30])


def test_tune_decides_for_the_range(searches: Searches) -> None:
    with make() as module:
        assert {call(module, rows) for rows in (5, 40, 41)} == {SMALL.spec}
        module.tune(np.ones((40, 3), "float32"))
        assert {rows: call(module, rows) for rows in (40, 41, 50, 64, 5)} == {
            **dict.fromkeys((40, 41, 50, 64), LARGE.spec),
            5: SMALL.spec,
        }
    assert searches.rows == [5, 40]


def test_other_threads_call_during_a_search(searches: Searches) -> None:
    with make() as module:
        call(module, 5)
        searches.may_end.clear()
        tuning = begin(lambda: module.tune(np.ones((40, 3), "float32")))
        while len(searches.rows) < 2:
            pass
        values = np.ones((5, 3), "float32")
        assert module(values, options=xrt.RunOptions()).shape == (5, 3)
        assert module(x=values).shape == (5, 3)
        searches.may_end.set()
        assert tuning.result(PATIENCE).how == "measured"


@pytest.mark.parametrize("names", [("a", "b"), ("a", "a")])
def test_several_dims(names: tuple[str, str], searches: Searches) -> None:
    inputs = tuple(Value(name, TensorType(DType.FLOAT32, (dim, 3))) for name, dim in zip("xy", names, strict=True))
    nodes = tuple(Node("Relu", (name,), (f"{name}_out",)) for name in "xy")
    function = Function(inputs, (Value("x_out"), Value("y_out")), nodes, opsets={"": 20})
    with xrt.XRTModule(function, [SMALL, LARGE, "auto"], cache=CompileCache(), first="wanted", sizes={"a": [8, 64]}) as module:
        one, other = (np.ones((rows, 3), "float32") for rows in (7, 7 if names == ("a", "a") else 9))
        assert [result.shape for result in module(one, other)] == [one.shape, other.shape]
    assert [x.shape for x in searches.inputs] == [(8, 3), (64, 3)]


def test_decisions_are_found_by_later_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the search itself: what it stores is found again, by the sizes that it was stored for."""
    monkeypatch.undo()
    Static.may_compile.set()
    keywords: dict[str, Any] = {"cache": tmp_path, "budget": 20, "first": "wanted", "threads": 1, "progress": False}
    with xrt.XRTModule(MODEL, ["toy", "auto"], **keywords) as module:
        call(module, 5)
        assert module.tuned is not None
        assert module.tuned.how == "measured"
    with xrt.XRTModule(MODEL, ["toy", "auto"], **keywords) as module:
        for rows in (9, 5, 300):
            call(module, rows)
            assert module.tuned.how == "remembered"
            assert module.tuned.notes == (() if rows == 5 else ("placed as it was measured for N=5",))


# ---------------------------------------------------------------------- tiers


def test_the_first_calls_do_not_wait_for_the_search(searches: Searches) -> None:
    """A size has a program of its own from its second call on: one that is met once is not worth a compile."""
    searches.may_end.clear()
    with make(SMALL, LARGE, "ort", first=None) as module:
        assert {call(module, rows) for rows in (5, 5, 6, 40)} == {"ort"}
        waiting = "served by a program for all sizes on ort, while the wanted one is made in the background"
        assert waiting in str(module.explain()).splitlines()
        searches.may_end.set()
        module.settle(PATIENCE)
        assert [call(module, rows) for rows in (5, 6, 41)] == [SMALL.spec, "ort", "ort"]
        module.settle(PATIENCE)
        assert [call(module, rows) for rows in (5, 6, 41)] == [SMALL.spec, SMALL.spec, "ort"]
        call(module, 5)
        assert "7 earlier calls were served by a program for all sizes" in str(module.explain()).splitlines()
        profile = module.profile()
        assert profile.stand_in_calls == 7
        assert "7 calls were served by a program for all sizes while their own was made" in str(profile)
    assert searches.rows == [5]


def test_engines_of_a_list_compile_in_the_background() -> None:
    Static.may_compile.clear()
    with xrt.XRTModule(MODEL, [SMALL], first="quickest", cache=CompileCache()) as module:
        assert {call(module, rows) for rows in (5, 6, 6, 7)} == {"toy"}
        Static.may_compile.set()
        module.settle(PATIENCE)
        assert [call(module, rows) for rows in (5, 6, 7)] == [SMALL.spec, SMALL.spec, "toy"]


def test_a_size_that_is_met_during_its_search_does_not_displace_another(searches: Searches) -> None:
    searches.may_end.clear()
    with make(SMALL, LARGE, "ort", first=None) as module:
        assert call(module, 5) == "ort"
        while not searches.rows:  # the search for 5 has begun
            time.sleep(0.001)
        assert call(module, 5) == "ort"
        searches.may_end.set()
        module.settle(PATIENCE)
        assert [call(module, rows) for rows in (6, 6)] == ["ort", "ort"]
        module.settle(PATIENCE)
        assert call(module, 6) == SMALL.spec


def test_sizes_that_are_met_more_often_have_the_places() -> None:
    sizes = [2, 9, 3, 2, 3, 4, 5, 6, 7, 8, 2, 3, 4, 5, 6, 7, 8, 2, 3]
    limits = {"max_specialization_bytes": 3 * LEAST_BYTES}
    SMALL.may_compile.clear()
    with xrt.XRTModule(MODEL, SMALL, first="quickest", **limits) as m:
        for n in sizes:
            m(np.ones((n, 3), np.float32))
        SMALL.may_compile.set()
        m.settle(PATIENCE)
        served = m.profile().stand_in_calls
        assert served == len(sizes)
        for n in (2, 3):
            m(np.ones((n, 3), np.float32))
        assert m.profile().stand_in_calls == served
        for n in (7, 7, 7):  # its count is beyond that of the least recently used in the end
            m(np.ones((n, 3), np.float32))
            m.settle(PATIENCE)
        served = m.profile().stand_in_calls
        m(np.ones((7, 3), np.float32))
        assert m.profile().stand_in_calls == served


def test_engines_with_symbolic_dims_have_no_tiers() -> None:
    with xrt.XRTModule(MODEL, ["ort", "toy"], first="quickest", cache=CompileCache()) as module:
        assert {call(module, rows) for rows in (5, 6)} == {"ort"}
        assert module.profile().stand_in_calls == 0


def test_a_model_of_fixed_sizes_can_have_tiers_too() -> None:
    Static.may_compile.clear()
    with xrt.XRTModule(relu((2, 3)), [SMALL], first="quickest", cache=CompileCache()) as module:
        assert call(module, 2) == "toy"
        Static.may_compile.set()
        module.settle(PATIENCE)
        assert call(module, 2) == SMALL.spec


def test_without_a_program_for_all_sizes_calls_wait() -> None:
    with xrt.XRTModule(MODEL, [SMALL], first="quickest", strict=True, cache=CompileCache()) as module:
        assert call(module, 5) == SMALL.spec
        assert module.profile().stand_in_calls == 0


def test_what_fails_in_the_background_is_raised_by_the_next_call() -> None:
    broken = Static(fails=True)
    with xrt.XRTModule(MODEL, [broken, "ort"], first="quickest", strict=True, cache=CompileCache()) as module:
        call(module, 5)
        module.settle(PATIENCE)
        with pytest.raises(xrt.XRTError, match="no memory left for it"):
            call(module, 5)
    module = xrt.XRTModule(MODEL, [broken], first="quickest", cache=CompileCache())
    with module, pytest.warns(FallbackWarning, match="no memory left for it"):
        assert call(module, 5) == "toy"
        module.settle(PATIENCE)
        assert call(module, 5) == "toy"


def test_bound_calls_fetches_and_compile_wait_for_their_own_program() -> None:
    with xrt.XRTModule(MODEL, [SMALL], first="quickest", cache=CompileCache()) as module:
        values = np.ones((5, 3), "float32")
        assert set(map_nodes_to_engines(module.compile(values)).values()) == {SMALL.spec}
        assert call(module, 5) == SMALL.spec
        assert module.bind(np.ones((6, 3), "float32"))().shape == (6, 3)
        assert list(module(np.ones((8, 3), "float32"), fetch=["y"])) == ["y"]
        assert module.profile().stand_in_calls == 0


def test_to_close_a_module_ends_its_search(searches: Searches) -> None:
    searches.may_end.clear()
    module = make(SMALL, LARGE, "toy", first=None)
    call(module, 5)
    while not searches.rows:
        pass
    module.close()
    module.settle(PATIENCE)
    assert searches.ended == ["interrupted"]
    with pytest.raises(InputError, match=r"^the module is closed; make a new XRTModule$"):
        call(module, 5)


def test_threads_see_right_results_while_programs_change(searches: Searches) -> None:
    failures: list[BaseException] = []

    def work(module: xrt.XRTModule, seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for rows in rng.integers(1, 40, 60):
                values = rng.standard_normal((rows, 3)).astype("float32")
                np.testing.assert_array_equal(module(values), np.maximum(values, 0))
        except BaseException as error:  # noqa: BLE001  # shown below
            failures.append(error)

    with make(SMALL, LARGE, "toy", first=None, background=True) as module:
        threads = [threading.Thread(target=work, args=(module, seed)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        module.settle(PATIENCE)
        assert not failures
        assert len(searches.rows) == len({rows.bit_length() for rows in searches.rows}) > 3


# ---------------------------------------------------------------------- options

TRACED = type("Traced", (xrt.Graph,), {"build": lambda self, x: xrt.ops.Relu(x)})


@pytest.mark.parametrize(
    ("model", "engine", "options", "text"),
    [
        (MODEL, "toy", {"sizes": {"N": 4}}, "sizes= is of placement by measurement; pass engine='auto', or a list"),
        (MODEL, "toy", {"background": True}, "background= is of placement by measurement; pass engine='auto'"),
        (relu(), ["toy", "auto"], {"background": True}, "background= is of symbolic dims, and the inputs of the model have none"),
        (MODEL, ["toy", "auto"], {"sizes": {"M": 4}}, "sizes names 'M', which is no symbolic dim of the inputs"),
        (MODEL, ["toy", "auto"], {"sizes": {"N": []}}, r"sizes\['N'\] must be a positive integer or several; got \[\]"),
        (MODEL, ["toy", "auto"], {"sizes": {"N": [0]}}, r"sizes\['N'\] must be a positive integer or several; got \[0\]"),
        (MODEL, ["toy", "auto"], {"sizes": [4]}, r"sizes must map symbolic dims to sizes, such as sizes=.*; got \[4\]"),
        (
            MODEL,
            ["toy", "auto"],
            {"sizes": {"N": range(1, 66)}},
            "sizes gives 65 combinations, each of which is measured; at most 64",
        ),
        (MODEL, ["toy", "auto"], {"background": 1}, "background must be True or False; got 1"),
        (
            MODEL,
            ["toy", "auto"],
            {"background": True, "lock": PlacementFile()},
            "background=True measures, and lock= gives a plan without measuring",
        ),
        (MODEL, "toy", {"first": "soon"}, "first must be 'wanted', 'quickest' or None; got 'soon'"),
        (
            TRACED(),
            "toy",
            {"first": "quickest"},
            "first='quickest' needs one program for all sizes, and there is none for a module",
        ),
    ],
)
def test_options_that_mean_nothing(model: Any, engine: Any, options: Any, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        xrt.XRTModule(model, engine, **options)


# ---------------------------------------------------------------------- locks


def test_a_lock_holds_ranges(searches: Searches, tmp_path: Path) -> None:
    values = np.ones((5, 3), "float32")
    with make(sizes={"N": [4, 64]}) as module:
        written = lock_module(module, [values], {}, 0.1)
    assert [(dict(one.sizes), [run.engine for run in one.plan]) for one in written.ranges] == [
        ({"N": 4}, [SMALL.spec]),
        ({"N": 64}, [LARGE.spec]),
    ]
    assert loads(dumps(written)) == written
    searches.rows.clear()
    with make(lock=written) as module:
        assert {rows: call(module, rows) for rows in (3, 4, 17, 64, 900)} == {
            **dict.fromkeys((3, 4), SMALL.spec),
            **dict.fromkeys((17, 64, 900), LARGE.spec),
        }
        assert module.tuned is not None
        assert (module.tuned.how, module.tuned.notes) == ("locked", ("placed as it was measured for N=64",))
    assert searches.rows == []


def test_a_lock_of_another_model_does_not_hold(searches: Searches) -> None:
    with make(sizes={"N": [4, 64]}) as module:
        written = lock_module(module, [np.ones((5, 3), "float32")], {}, 0.1)
    other = Function(MODEL.inputs, (Value("y"),), (Node("Relu", ("x",), ("z",)), Node("Relu", ("z",), ("y",))), opsets={"": 14})
    module = xrt.XRTModule(other, [SMALL, LARGE, "auto"], cache=CompileCache(), first="wanted", lock=written, strict=True)
    with module, pytest.raises(LockError, match=r"does not hold: .*the number of nodes was 1 and is 2"):
        module(np.ones((5, 3), "float32"))
