"""Calls that do not wait for their own programs: one for all sizes serves until they are ready."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

import xrt
from tests.module.searching import LARGE, MODEL, PATIENCE, SMALL, Searches, Static, call, make, simulate_searches
from tests.module.small_models import relu
from xrt.cache import CompileCache
from xrt.cache.memory import LEAST_BYTES
from xrt.errors import FallbackWarning, InputError
from xrt.partition.explicit import map_nodes_to_engines


@pytest.fixture(autouse=True)
def searches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Searches]:
    yield from simulate_searches(monkeypatch)


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


@pytest.mark.slow
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
