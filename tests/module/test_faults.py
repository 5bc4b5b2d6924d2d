"""What an engine does wrong, in every place and with every engine behind it: right results and one line, or one error."""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import xrt
from tests.module.small_models import chain
from xrt.cache import CompileCache
from xrt.errors import FallbackWarning, OptionError, RunFailed
from xrt.graph import Function
from xrt.testing.corpus.entry import graph, node
from xrt.testing.fault_injection import FaultyEngine, RecordingEngine

pytestmark = pytest.mark.sample(4)

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
OPS = ("Abs", "Neg", "Exp", "Cos", "Sqrt")
RIGHT = np.sqrt(np.cos(np.exp(-np.abs(X))))
PLACES = ("Abs", "Exp", "Sqrt", "*")
"""The first region, one in the middle, the last, and all in one region."""


def module(*engines: Any, function: Function | None = None, **options: Any) -> xrt.XRTModule:
    options = {"cache": CompileCache()} | options
    return xrt.XRTModule(function or chain(*OPS), engine=list(engines), **options)


def lines(caught: Any) -> list[str]:
    return [str(warning.message) for warning in caught if warning.category is FallbackWarning]


FAULTS = [
    ({"where": "compile"}, None, "set to fail in compile"),
    ({"how": "raise"}, None, "set to fail in run"),
    ({"how": "shape"}, None, r"float32\[1, 2, 3\]"),
    ({"how": "dtype"}, None, r"float64\[2, 3\]"),
    ({"how": "missing"}, None, "returned 0 outputs"),
    ({"how": "scalar"}, None, r"returned a numpy.float32, not an array \(use numpy.asarray\)"),
    ({"how": "nan"}, "first", "wrongly"),
    ({"how": "value"}, "first", "wrongly"),
    ({"how": "value"}, 0.5, "wrongly"),
]


BEHIND = ["ort", "toy", pytest.param("tvm", marks=[pytest.mark.full])]


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("told", "check", "text"), FAULTS)
def test_the_call_completes_and_one_line_tells(told: Any, check: Any, text: str, place: str, behind: str) -> None:
    engine = FaultyEngine(takes=place, **told)
    with module(engine, behind, check=check) as m, pytest.warns(FallbackWarning) as caught:
        for _ in range(3):
            np.testing.assert_allclose(m(X), RIGHT, rtol=1e-5)
        assert m.plan.used_engines == (behind,)
        assert text.replace("\\", "") in str(m.explain())
    (line,) = lines(caught)
    assert "xrt_faulty_" in line
    assert "placed on another engine" in line
    assert "\n" not in line


@pytest.mark.slow
@pytest.mark.parametrize(("told", "check", "text"), FAULTS)
@pytest.mark.parametrize("place", PLACES)
def test_a_strict_module_raises_one_error(told: Any, check: Any, text: str, place: str) -> None:
    engine = FaultyEngine(takes=place, **told)
    with module(engine, "ort", check=check, strict=True) as m, pytest.raises(xrt.errors.EngineError, match=text) as caught:
        m(X)
    assert "'faulty" in str(caught.value)
    assert "xrt_faulty_" in str(caught.value)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("nth", [2, 3])
def test_a_prepared_call_that_fails_is_made_again_and_the_next_goes_straight_on(place: str, nth: int) -> None:
    engine = FaultyEngine(takes=place, nth=nth)
    with module(engine, "ort") as m:
        for number in range(1, 6):
            if number == nth:
                with pytest.warns(FallbackWarning):
                    result = m(X)
            else:
                result = m(X)
            np.testing.assert_allclose(result, RIGHT, rtol=1e-5)
    assert engine.journal.count("run") == nth


def test_what_fails_everywhere_is_not_blamed_on_an_engine() -> None:
    gather = graph({"x": "float32[2,3]", "i": "int64[1]"}, {"y": "float32[1,3]"}, node("Gather", "x i", "y"))
    with module("ort", "toy", function=gather) as m:
        for _ in range(2):
            with pytest.raises(RunFailed, match="xrt_ort_0") as caught:
                m(X, np.array([7]))
            assert caught.value.region == "xrt_ort_0"
            assert "placed elsewhere, it failed too: " in caught.value.__notes__[0]
            assert m(X, np.array([1])).tolist() == [X[1].tolist()]
        assert m.plan.used_engines == ("ort",)


def test_threads_that_fail_at_once_plan_again_once() -> None:
    engine, behind = FaultyEngine(takes="Exp"), RecordingEngine(inner="ort")
    start = threading.Barrier(6)
    with module(engine, behind) as m, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        m.compile()

        def call(_: int) -> Any:
            start.wait()
            return m(X)

        with ThreadPoolExecutor(6) as pool:
            for result in pool.map(call, range(6)):
                np.testing.assert_allclose(result, RIGHT, rtol=1e-5)
        assert m.plan.used_engines == ("recording{inner=ort}",)
    assert len(lines(caught)) == 1
    assert behind.journal.count("compile") == 3  # two regions around the failing one, and then the whole


def test_equal_regions_are_given_up_together() -> None:
    engine = FaultyEngine(takes="Exp")
    with module(engine, "ort", function=chain("Exp", "Abs", "Exp")) as m, pytest.warns(FallbackWarning) as caught:
        m(X)
    assert engine.journal.count("run") == 1
    (line,) = lines(caught)
    assert "node 'n0' and 1 more placed" in line


def updating() -> tuple[Function, np.ndarray[Any, Any]]:
    return chain("Abs", "Exp", aliases=(("x", "y"),)), X.copy()


def test_a_call_is_not_repeated_on_inputs_that_a_failed_update_may_have_touched() -> None:
    function, state = updating()
    with module(FaultyEngine(), "toy", function=function) as m:
        with pytest.raises(RunFailed, match="the call is not repeated, since it may have partially updated 'x'"):
            m(state)
        state[...] = X
        np.testing.assert_allclose(m(state), np.exp(np.abs(X)), rtol=1e-6)


@pytest.mark.parametrize(("engine", "check"), [(FaultyEngine(takes="Abs"), None), (FaultyEngine(how="value"), "first")])
def test_a_call_that_fails_before_the_update_or_is_checked_is_repeated(engine: FaultyEngine, check: Any) -> None:
    function, state = updating()
    with module(engine, "toy", function=function, check=check) as m, pytest.warns(FallbackWarning):
        m(state)
    np.testing.assert_allclose(state, np.exp(np.abs(X)), rtol=1e-6)


@pytest.mark.parametrize(("check", "runs", "checked"), [("first", 8, 1), (0.25, 8, 3), (1, 4, 4)])
def test_as_many_calls_are_checked_as_asked(check: Any, runs: int, checked: int) -> None:
    with module("ort", check=check) as m:
        for _ in range(runs):
            m(X)
        assert m.explain().checks.endswith(f"; {checked} call{'s' * (checked != 1)} so far")


@pytest.mark.parametrize("check", ["never", 0, 1.5, True, -0.1])
def test_a_check_that_is_none_is_refused(check: Any) -> None:
    with pytest.raises(OptionError, match=r"^check must be 'first', a fraction of the calls"):
        module("toy", check=check)


def test_what_does_not_give_the_same_twice_is_not_checked() -> None:
    random = graph({"x": "float32[2,3]"}, {"y": "float32[2,3]"}, node("RandomNormalLike", "x", "y", name="r"))
    with module("toy", function=random, check="first") as m:
        m(X)
        assert "not checked: node 'r' (RandomNormalLike) is not deterministic" in str(m.explain())


def test_a_bound_call_raises_what_fails() -> None:
    with module(FaultyEngine(), "ort") as m, m.bind(X.copy()) as bound, pytest.raises(RunFailed, match="'faulty"):
        bound()
