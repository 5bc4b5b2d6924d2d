"""Placement by ranges of sizes, its options and locks. Searches are simulated: nothing is timed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt
from tests.hanging import wait_until
from tests.module.searching import LARGE, MODEL, PATIENCE, SMALL, Searches, Static, call, make, simulate_searches
from tests.module.small_models import relu
from xrt.cache import CompileCache
from xrt.errors import LockError, OptionError
from xrt.formats.placement_file import PlacementFile, dumps, loads
from xrt.graph import DType, Function, Node, TensorType, Value
from xrt.module.lockfile import lock_module
from xrt.placement.time_limit import begin


@pytest.fixture(autouse=True)
def searches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Searches]:
    yield from simulate_searches(monkeypatch)


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


@pytest.mark.slow
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
