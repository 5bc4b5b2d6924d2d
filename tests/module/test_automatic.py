"""``engine="auto"`` in a module: who takes part, when it measures, what it tells, and what happens afterwards."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt
from tests.module.small_models import relu
from tests.module.test_faults import X, chain
from tests.placement.uneven import Uneven
from tests.verify.wrong import Wrong
from xrt.engines.contract import registry
from xrt.engines.contract.registry import EngineStatus
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.errors import EngineUnavailable, FallbackWarning, InputError, OptionError, PlacementWarning, UnknownEngine
from xrt.graph import DType, Function, TensorType, Value
from xrt.partition.partitioner import map_nodes_to_engines
from xrt.testing.corpus.entry import graph

pytestmark = [pytest.mark.usefixtures("here"), pytest.mark.sample(3)]

SLOW_EXP, SLOW_COS = Uneven(slow="Exp"), Uneven(slow="Cos")
PAIR = chain("Exp", "Cos")
RIGHT = np.cos(np.exp(X))
TYPE = "float32[2,3]"


def automatic(cache: Path, *engines: Any, function: Function = PAIR, **options: Any) -> xrt.XRTModule:
    return xrt.XRTModule(function, engine=[*engines, "auto"], cache=cache, **{"budget": 30, "threads": 1, **options})


def test_the_budget_covers_the_constructor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((0.0, 5.0))
    monkeypatch.setattr("xrt.module.programs.perf_counter", lambda: next(times))
    with automatic(tmp_path, "toy") as m:
        m(X)
        assert m.tuned is not None and m.tuned.record.spent >= 5.0


def test_a_wrong_engine_is_not_served_where_there_was_no_time_to_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference computes nothing before the search ends."""
    has_ended = threading.Event()

    def evaluate(*_: Any, **__: Any) -> Any:
        has_ended.wait(60)
        raise RuntimeError("too late")

    monkeypatch.setattr("xrt.placement.auto.evaluate", evaluate)
    with automatic(tmp_path, Wrong(), "toy", function=chain("Atan"), budget=1) as m:
        with pytest.warns(FallbackWarning, match="engine 'wrong' computed .* wrongly"):
            np.testing.assert_allclose(m(X), np.arctan(X), rtol=1e-5)
        has_ended.set()
        assert not m.tuned.record.is_checked
        assert "no result was compared with the reference by the search; the first call is" in str(m.explain())
        np.testing.assert_allclose(m(X), np.arctan(X), rtol=1e-5)


def wait_in_vain(has_ended: threading.Event, *_: Any, **__: Any) -> Any:
    has_ended.wait(60)
    raise RuntimeError("too late")


def test_a_reference_that_is_too_slow_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_ended, calls = threading.Event(), []

    def wait(function: Function, *_: Any, **__: Any) -> Any:
        calls.append(function)
        return wait_in_vain(has_ended)

    monkeypatch.setattr("xrt.placement.auto.evaluate", partial(wait_in_vain, has_ended))
    monkeypatch.setattr("xrt.engines.toolkit.reference_evaluator.evaluate", wait)
    monkeypatch.setattr("xrt.module.dispatch.REFERENCE_TIMEOUT_SECONDS", 0.1)
    with automatic(tmp_path, "ort", function=relu(("N", 3)), budget=1) as m:
        for rows in (2, 3, 4):
            np.testing.assert_array_equal(m(np.ones((rows, 3), "float32")), np.ones((rows, 3)))
        has_ended.set()
        assert len(calls) == 1
        assert not m.tuned.record.is_checked


def test_one_comparison_serves_all_sizes_and_later_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search ends before the reference has computed anything; the first call does the comparison."""
    has_ended, compared = threading.Event(), []

    def compare(function: Function, inputs: Any, **named: Any) -> Any:
        compared.append(function)
        return evaluate(function, inputs, **named)

    monkeypatch.setattr("xrt.placement.auto.evaluate", partial(wait_in_vain, has_ended))
    monkeypatch.setattr("xrt.engines.toolkit.reference_evaluator.evaluate", compare)
    function = relu(("N", 3))
    x = np.ones((2, 3), "float32")
    with automatic(tmp_path, "ort", function=function, budget=1) as m:
        m(x)
        has_ended.set()
        assert not m.tuned.record.is_checked
        calls = len(compared)
        assert calls > 0
        for rows in (3, 4, 5):
            m(np.ones((rows, 3), "float32"))
        assert len(compared) == calls
    with automatic(tmp_path, "ort", function=function, budget=1) as m:
        m(x)
        assert m.tuned.record.is_checked
        assert len(compared) == calls


@pytest.mark.full
def test_the_first_call_measures_and_a_later_module_does_not(tmp_path: Path) -> None:
    with automatic(tmp_path, SLOW_EXP, SLOW_COS) as m:
        np.testing.assert_allclose(m(X), RIGHT, rtol=1e-5)
        assert m.tuned.how == "measured"
        assert map_nodes_to_engines(m.plan) == {"n0": SLOW_COS.spec, "n1": SLOW_EXP.spec}
        output = str(m.explain()).splitlines()
        assert f"placed by measurement: {SLOW_COS.spec} + {SLOW_EXP.spec}" in output
        assert any(line.startswith("  chosen: ") for line in output)
        assert f"  1 node not on {SLOW_EXP.spec}: placed by measurement" in output
        first = m.plan
    with automatic(tmp_path, SLOW_EXP, SLOW_COS) as m:
        assert (m.plan, m.tuned and m.tuned.how, m.tuned and m.tuned.measurements) == (first, "remembered", 0)
        np.testing.assert_allclose(m(X), RIGHT, rtol=1e-5)
        assert "placed by an earlier measurement" in str(m.explain())


@pytest.mark.slow
def test_tune_places_a_module_of_a_fixed_list(tmp_path: Path) -> None:
    with xrt.XRTModule(PAIR, engine=[SLOW_EXP, SLOW_COS], cache=tmp_path, threads=1) as m:
        assert m(X) is not None
        assert (len(m.plan.launches), m.tuned) == (1, None)
        m.tune(X, budget=30)
        assert len(m.plan.launches) == 2
        np.testing.assert_allclose(m(X), RIGHT, rtol=1e-5)


@pytest.mark.slow
def test_one_search_places_all_sizes_of_an_open_extent(tmp_path: Path) -> None:
    open_ended = TensorType(DType.FLOAT32, ("n", 3))
    function = PAIR.replace(inputs=(Value("x", open_ended),), outputs=(Value("y", open_ended),))
    with automatic(tmp_path, "toy", function=function) as m:
        assert (m.tuned.how, m.tuned.notes) == (
            "priority",
            ("input 'x' has symbolic dims; a call of the module, which gives their sizes, measures",),
        )
        with pytest.raises(InputError, match=r"^compile\(\) needs example inputs: .*; pass m.compile\(x, ...\)$"):
            m.compile()
        for rows in (2, 4):
            x = np.zeros((rows, 3), np.float32)
            np.testing.assert_allclose(m(x), np.cos(np.exp(x)), rtol=1e-5)
            assert m.tuned.how == "measured"
            assert m.tuned.notes == (() if rows == 2 else ("placed as it was measured for n=2",))
            assert m.plan.function.inputs[0].type == (open_ended if rows == 4 else TensorType(DType.FLOAT32, (rows, 3)))


@pytest.mark.slow
def test_what_is_fetched_is_computed_where_it_is_without(tmp_path: Path) -> None:
    with automatic(tmp_path, SLOW_EXP, SLOW_COS) as m:
        np.testing.assert_allclose(m(X, fetch=["v1"])["v1"], np.exp(X), rtol=1e-5)
        assert m.tuned.how == "measured"


@pytest.mark.slow
@pytest.mark.parametrize("outputs", [("x",), ("c",), ("x", "c")])
def test_a_function_without_nodes_needs_no_measurement(outputs: tuple[str, ...], tmp_path: Path) -> None:
    values = {"x": X, "c": np.ones_like(X)}
    function = graph({"x": TYPE}, dict.fromkeys(outputs, TYPE), constants={"c": values["c"]})
    with automatic(tmp_path, SLOW_EXP, SLOW_COS, function=function) as m:
        results = m(X)
        for result, name in zip(results if len(outputs) > 1 else (results,), outputs, strict=True):
            np.testing.assert_array_equal(result, values[name])
        assert (m.tuned and m.tuned.how, len(m.plan.launches)) == ("priority", 0)


@pytest.mark.full
def test_isolation_and_checks_combine_with_it(tmp_path: Path) -> None:
    with automatic(tmp_path, "toy", function=chain("Exp"), isolate=xrt.Isolation(run=True), check="first") as m:
        np.testing.assert_allclose(m(X), np.exp(X), rtol=1e-5)
        text = str(m.explain())
    assert "compiles and runs in a process of its own" in text
    assert "1 call so far" in text


def unavailable(monkeypatch: pytest.MonkeyPatch, name: str, state: str) -> str:
    """Let an engine be missing or broken, and return what is said of it."""
    output = f"engine {name!r} needs what is not there" if state == "missing" else f"engine {name!r} is broken: so it is"
    create, probe = registry.create, registry.probe

    def refused(engine: Any) -> Any:
        if engine == name:
            raise EngineUnavailable(output)
        return create(engine)

    monkeypatch.setattr(registry, "create", refused)
    monkeypatch.setattr(
        registry, "probe", lambda one: EngineStatus(one, state, "xrt", cause=output) if one == name else probe(one)
    )  # type: ignore[arg-type]
    monkeypatch.setattr(registry, "names", lambda: ("ort", "toy"))
    return output


@pytest.mark.parametrize("state", ["missing", "broken"])
def test_an_engine_of_the_list_that_is_not_there_is_left_out(state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = unavailable(monkeypatch, "ort", state)
    with pytest.warns(PlacementWarning) as caught, automatic(tmp_path, "ort", "toy") as m:
        assert m.engines == ("toy",)
        assert f"engine 'ort' is left out: {output}" in m.explain().left_out
    assert [str(warning.message) for warning in caught] == [f"engine 'ort' is left out: {output}"]
    with pytest.raises(EngineUnavailable, match=f"^{output}$"):
        automatic(tmp_path, "ort", "toy", strict=True)
    with pytest.raises(EngineUnavailable, match=f"^{output}$"), pytest.warns(PlacementWarning):
        automatic(tmp_path, "ort")


@pytest.mark.full
def test_what_is_not_installed_is_no_surprise_but_what_is_broken_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        unavailable(patch, "ort", "missing")
        with xrt.XRTModule(PAIR, engine="auto", cache=tmp_path, strict=True) as m:
            assert m.engines == ("toy",)
    output = unavailable(monkeypatch, "ort", "broken")
    other = tmp_path / "other"
    for _ in range(2):
        with pytest.warns(PlacementWarning, match=output), xrt.XRTModule(PAIR, engine="auto", cache=other):
            pass
    with pytest.raises(EngineUnavailable, match=output):
        xrt.XRTModule(PAIR, engine="auto", cache=other, strict=True)


@pytest.mark.slow
def test_a_library_is_not_imported_before_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "names", lambda: ("ort", "toy"))
    with xrt.XRTModule(PAIR, engine="auto", cache=tmp_path, threads=1, pins=["*=toy"]) as m:
        m(X)
        plan = m.plan
    created = []
    create = registry.create
    monkeypatch.setattr(registry, "create", lambda one: created.append(str(one)) or create(one))
    with xrt.XRTModule(PAIR, engine="auto", cache=tmp_path, threads=1, pins=["*=toy"]) as m:
        assert m.plan == plan
        np.testing.assert_allclose(m(X), RIGHT, rtol=1e-5)
        assert m.engines == ("ort", "toy")
    assert "ort" not in created


@pytest.mark.slow
def test_a_lower_precision_that_no_engine_has_leaves_float32(tmp_path: Path) -> None:
    with xrt.XRTModule(PAIR, engine=["toy", "auto"], cache=tmp_path, threads=1, precision="bf16") as m:
        np.testing.assert_allclose(m(X), RIGHT, rtol=1e-5)
        assert "no engine of the list computes in bf16 here: all are placed in fp32" in str(m.explain())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"engine": ["orr", "auto"]}, UnknownEngine, r"^no engine is named 'orr'. Did you mean 'ort'\?"),
        ({"engine": ["toy", 3, "auto"]}, OptionError, r"^an engine is a name, a spec or a GraphCompiler instance; got int 3$"),
        ({"engine": "auto", "budget": 0}, OptionError, r"^budget must be a positive number of seconds; got 0$"),
        ({"engine": "toy", "budget": 5}, OptionError, r"^budget= is the time of a search; pass engine='auto', or"),
        ({"engine": ["toy", "toy", "auto"]}, OptionError, r"^engine 'toy' is twice in the list"),
    ],
)
def test_mistakes_are_reported(options: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        xrt.XRTModule(PAIR, **options)


SECOND = """
import sys
import xrt
from tests.module.small_models import relu
from tests.module.test_faults import chain
with xrt.XRTModule(chain("Exp", "Cos"), engine=["ort", "toy", "auto"], cache=sys.argv[1], budget=600) as m:
    plan = m.plan
    print(m.tuned.how, m.tuned.measurements, [x.engine for x in plan.launches])
"""


@pytest.mark.slow
def test_a_second_process_plans_without_measuring(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", SECOND, str(tmp_path)]
    first, second = (subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert first.startswith("measured ")
    assert second.split()[:2] == ["remembered", "0"]
    assert second.split()[2:] == first.split()[2:]
