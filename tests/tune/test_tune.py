"""Tuning as a whole, on engines whose costs are far apart: who wins, what harms nobody, what is remembered."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.module.test_faults import X, chain
from tests.tune.uneven import Uneven
from xrt.cache import CompileCache
from xrt.cache.signature import CODE_UNKNOWN, code_of
from xrt.engines import CompileContext, ExecutionOptions, GraphCompiler, registry
from xrt.errors import CacheWarning, OptionError, PlacementWarning
from xrt.graph import Function, shape_key
from xrt.module.reference import evaluate
from xrt.partition import ClusteringOptions, Pin
from xrt.partition.assigned import assigned, homes_of
from xrt.partition.costs import CostTable, Measured
from xrt.partition.devices import Homes
from xrt.testing.faulty import Faulty
from xrt.tune import Bounds, CostStore, Tuned, decision, tune
from xrt.tune.search import Search
from xrt.tune.walls import Here

pytestmark = pytest.mark.filterwarnings("ignore::xrt.errors.NativeWarning")

TOY = registry.create("toy")
PAIR = chain("Exp", "Cos")
SLOW_EXP, SLOW_COS = Uneven(slow="Exp"), Uneven(slow="Cos")


def tuned(function: Function, *engines: GraphCompiler, **options: Any) -> Tuned:
    bounds = Bounds(calibration=0.0)
    options = {
        "budget": 60.0,
        "bounds": bounds,
        "inputs": [X],
        "context": CompileContext(threads=1),
        "cache": CompileCache(),
    } | options
    return tune(function, engines, reference=evaluate, **options)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure in this process: the start of a worker takes longer than all that is measured."""
    monkeypatch.setattr("xrt.tune.search.way_of", lambda engine, limits: Here(engine))


def verdicts(found: Tuned) -> dict[str, str]:
    return {one.title: one.verdict for one in found.race.contenders}


# ---------------------------------------------------------------------- who wins


def test_a_mixture_wins_where_each_engine_is_slow_at_something() -> None:
    found = tuned(PAIR, SLOW_EXP, SLOW_COS)
    assert homes_of(found.plan) == {"n0": SLOW_COS.spec, "n1": SLOW_EXP.spec}
    assert (found.race.contenders[0].is_single, found.race.contenders[0].verdict) == (False, "won")
    assert found.race.baseline is not None
    assert found.race.contenders[found.race.baseline].is_single
    assert len(found.race.contenders[0].regions) == 2
    assert found.how == "measured"
    assert found.spent < found.budget


@pytest.mark.usefixtures("here")
def test_the_quicker_engine_wins_where_none_mixes_well() -> None:
    found = tuned(PAIR, Uneven(slow="Exp|Cos"), TOY)
    assert (found.plan.launches[0].engine, len(found.plan.launches)) == ("toy", 1)
    assert "the baseline" in str(found)


@pytest.mark.parametrize(("seconds", "is_out"), [(0.004, True), (0.0012, False)])
def test_a_mixture_whose_regions_are_far_slower_than_the_best_engine_does_not_race(seconds: float, is_out: bool) -> None:
    context, options = CompileContext(threads=1), ClusteringOptions()
    search = Search(
        PAIR, [SLOW_EXP, TOY], context, [X], evaluate, CompileCache(), options, None, 1.0, Bounds(), lambda told: None
    )
    mixture, single = (
        assigned(PAIR, [SLOW_EXP, TOY], {"n0": spec, "n1": TOY.spec}, device="cpu") for spec in (SLOW_EXP.spec, TOY.spec)
    )
    for launch, cost in zip((*mixture.launches, *single.launches), (seconds, 0.001, 0.001), strict=True):
        search.table = search.table.with_region(shape_key(launch.function), launch.engine, Measured.exactly(cost))
    search.proposals = (mixture, single)
    found = search._hopeless(mixture)
    assert (found is not None) is is_out
    if found is not None:
        assert (found.verdict, found.seconds, found.ratio) == ("lost", pytest.approx(0.005), None)
        assert found.note == "its regions were measured one by one, and not held against the others"
    assert search._hopeless(single) is None


@pytest.mark.usefixtures("here")
def test_a_search_that_has_time_left_goes_on() -> None:
    """By a clock that goes on when it is looked at: the first survey ends before all is known, and another race follows."""
    told, ticks = [], itertools.count()
    bounds = Bounds(survey=0.004, slice=1e-5, calibration=0.0)
    found = tuned(
        PAIR,
        SLOW_EXP,
        SLOW_COS,
        budget=1000.0,
        bounds=bounds,
        clock=lambda: float(next(ticks)),
        progress=lambda x: told.append(x.stage),
    )
    races = [number for number, stage in enumerate(told) if stage.endswith("round 1")]
    assert len(races) >= 2
    assert any(stage.startswith("measuring 1 node") for stage in told[races[0] : races[-1]])
    titles = [one.title for one in found.race.contenders]
    assert any(" + " in title for title in titles)
    assert {SLOW_EXP.spec, SLOW_COS.spec} < set(titles)
    assert len(titles) == len(set(titles))


@pytest.mark.usefixtures("here")
def test_pins_hold() -> None:
    pins = ClusteringOptions(pins=(Pin.parse(f"name:n0={SLOW_EXP.spec}"),))
    found = tuned(PAIR, SLOW_EXP, TOY, options=pins)
    assert {homes_of(one.plan)["n0"] for one in found.race.contenders} == {SLOW_EXP.spec}


@pytest.mark.usefixtures("here")
def test_the_same_table_gives_the_same_proposals() -> None:
    table = tuned(PAIR, SLOW_EXP, SLOW_COS).table
    context = CompileContext(threads=1)

    def proposals() -> list[str]:
        engines = [SLOW_EXP, SLOW_COS]
        search = Search(
            PAIR, engines, context, [X], evaluate, CompileCache(), ClusteringOptions(), None, 1.0, Bounds(), lambda told: None
        )
        search.table = table
        return [str(plan) for plan in search._proposed()]

    assert proposals() == proposals()
    assert len(proposals()) >= 3


@pytest.mark.usefixtures("here")
def test_launches_and_boundaries_are_measured_once(tmp_path: Path) -> None:
    store, native = CostStore(tmp_path), registry.create("toy{native=off}")
    found = tuned(PAIR, TOY, native, store=store, bounds=Bounds(far=1e9))
    assert set(found.table.launches) == {"toy", "toy{native=off}"}
    assert set(found.table.boundaries) == {("toy", "toy{native=off}"), ("toy{native=off}", "toy")}
    again = tuned(chain("Abs", "Neg"), TOY, native, store=store, bounds=Bounds(far=1e9))
    assert (again.table.launches, again.table.boundaries) == (found.table.launches, found.table.boundaries)


# ---------------------------------------------------------------------- what harms nobody


FAULTS = {
    "hang": (Faulty(how="hang"), "failed", "it gave no answer within 2 s, and its process was killed"),
    "kill": (Faulty(how="kill"), "failed", "its process was ended by SIGKILL"),
    "raise": (Faulty(where="compile"), "failed", "the faulty engine was told to fail in compile"),
    "refuse": (Faulty(where="compile", how="refuse"), "failed", "refused: the faulty engine was told to refuse"),
    "value": (Faulty(how="value"), "wrong", "wrong: "),
    "missing": (Faulty(how="missing"), "wrong", "there are 0 outputs; 1 were expected"),
}


HOWS = [how if how in ("kill", "value") else pytest.param(how, marks=pytest.mark.slow) for how in FAULTS]


@pytest.mark.parametrize("how", HOWS)
def test_what_hangs_crashes_or_is_wrong_is_not_in_the_race_and_is_remembered(how: str, tmp_path: Path) -> None:
    engine, verdict, text = FAULTS[how]
    store = CostStore(tmp_path)
    found = tuned(chain("Exp"), engine, TOY, budget=40.0, bounds=Bounds(limit=0.05, calibration=0.0), store=store)
    assert verdicts(found) == {"toy": "won", engine.spec: verdict}
    (other,) = (one for one in found.race.contenders if one.title == engine.spec)
    assert text in other.note
    again = tuned(chain("Exp"), engine, TOY, budget=50.0, store=store)
    assert (again.measurements, verdicts(again)) == (0, verdicts(found))


@pytest.mark.slow
def test_an_engine_that_hangs_is_not_asked_for_ever() -> None:
    found = tuned(
        chain("Exp", "Cos", "Exp", "Cos"), Faulty(how="hang"), TOY, budget=60.0, bounds=Bounds(limit=0.02, calibration=0.0)
    )
    hung = [cost for (_, spec), cost in found.table.regions.items() if spec.startswith("faulty")]
    assert 1 <= len(hung) <= 2
    assert found.plan.launches[0].engine == "toy"


@pytest.mark.slow
def test_a_run_that_is_far_slower_than_anothers_is_cut_off_before_its_limit() -> None:
    found = tuned(chain("Exp"), TOY, Faulty(how="hang"), budget=60.0, bounds=Bounds(limit=0.5, calibration=0.0))
    (other,) = (one for one in found.race.contenders if one.title != "toy")
    assert "it gave no answer within 2 s" in other.note
    assert found.spent < 0.5 * 60.0


@pytest.mark.usefixtures("here")
def test_a_call_that_raises_in_the_race_costs_the_plan_its_place() -> None:
    found = tuned(chain("Exp"), Faulty(nth=2_000), TOY)
    assert verdicts(found)["toy"] == "won"


# ---------------------------------------------------------------------- the budget


@pytest.mark.usefixtures("here")
def test_a_budget_too_small_for_one_measurement_says_so_and_goes_by_priority() -> None:
    with pytest.warns(PlacementWarning) as caught:
        found = tuned(PAIR, SLOW_EXP, TOY, budget=1e-6)
    (line,) = (str(one.message) for one in caught)
    assert line == (
        "'main' was not placed by measurement: budget=1e-06 s is too small for one measurement. The engines are used in the "
        f"order of the list ({SLOW_EXP.spec}, toy); give more time, such as budget=20"
    )
    assert (found.how, found.measurements, homes_of(found.plan)) == ("priority", 0, dict.fromkeys(("n0", "n1"), SLOW_EXP.spec))
    assert str(found) == f"placed by the order of the list, without a measurement: {SLOW_EXP.spec}"


def test_without_a_measurement_nothing_known_to_be_wrong_is_chosen() -> None:
    liar = Faulty(how="value")
    given = (
        CompileContext(threads=1),
        [X],
        evaluate,
        CompileCache(),
        ClusteringOptions(),
        None,
        1.0,
        Bounds(),
        lambda told: None,
    )
    search = Search(PAIR, [liar, TOY], *given)
    assert search.tuned("measured").plan.launches[0].engine == liar.spec
    search.table = CostTable().with_region(shape_key(search.priority.launches[0].function), liar.spec, "wrong: by one")
    found = search.tuned("measured")
    assert (found.how, {launch.engine for launch in found.plan.launches}) == ("priority", {"toy"})


@pytest.mark.parametrize("budget", [0, -1, float("inf"), float("nan"), True, "60s"])
def test_a_budget_is_a_positive_number(budget: Any) -> None:
    with pytest.raises(OptionError, match=rf"^budget must be a positive number of seconds; got {budget!r}$"):
        tuned(PAIR, TOY, budget=budget)


@pytest.mark.usefixtures("here")
def test_the_search_ends_with_its_budget() -> None:
    """By a clock that jumps whenever it is looked at: what is measured is not what counts, but that nothing new is begun."""
    ticks = iter(range(10_000))
    found = tuned(PAIR, SLOW_EXP, SLOW_COS, TOY, budget=12.0, clock=lambda: float(next(ticks)))
    assert next(ticks) < 60
    assert found.plan.launches


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("stage", ["computing what is right", "measuring 1 node", "planning", "compiling", "racing"])
def test_an_interrupt_gives_the_best_found(stage: str) -> None:
    told = []

    def interrupts(progress: Any) -> None:
        told.append(progress)
        if progress.stage.startswith(stage):
            raise KeyboardInterrupt

    if stage == "computing what is right":
        with pytest.warns(PlacementWarning, match="interrupted before anything was measured"):
            found = tuned(PAIR, SLOW_EXP, SLOW_COS, progress=interrupts)
        assert found.how == "priority"
        return
    found = tuned(PAIR, SLOW_EXP, SLOW_COS, progress=interrupts)
    assert found.how == "interrupted"
    assert found.table.regions
    assert str(found).startswith("placed by measurement, which was interrupted: ")
    assert told[-1].best
    assert told[-1].seconds is not None


INTERRUPTED = """
import sys
from tests.tune.test_tune import PAIR, SLOW_COS, SLOW_EXP, tuned
seen = lambda progress: print(progress.stage, flush=True)
print(tuned(PAIR, SLOW_EXP, SLOW_COS, budget=500.0, progress=seen).how)
"""


def test_control_c_ends_a_search_in_a_process() -> None:
    command = [sys.executable, "-W", "ignore", "-c", INTERRUPTED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("planning"):
                os.kill(process.pid, signal.SIGINT)
                break
        assert process.stdout.read().splitlines()[-1] == "interrupted"
    assert process.returncode == 0


# ---------------------------------------------------------------------- what is remembered


@pytest.mark.usefixtures("here")
def test_what_was_decided_is_not_measured_again(tmp_path: Path) -> None:
    store = CostStore(tmp_path)
    first = tuned(PAIR, SLOW_EXP, SLOW_COS, store=store)
    second = tuned(PAIR, SLOW_EXP, SLOW_COS, store=CostStore(tmp_path))
    assert (second.how, second.measurements) == ("remembered", 0)
    assert second.plan == first.plan
    assert second.race == first.race
    renamed = PAIR.replace(nodes=tuple(replace(node, name=f"other_{node.name}") for node in PAIR.nodes))
    assert tuned(renamed, SLOW_EXP, SLOW_COS, store=store).how == "remembered"


def test_no_decision_is_kept_of_an_engine_whose_code_is_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, "code_of", lambda module: CODE_UNKNOWN)
    assert [tuned(chain("Exp"), TOY, store=CostStore(tmp_path)).how for _ in range(2)] == ["measured", "measured"]


def test_the_code_of_an_engine_is_told_before_it_is_imported() -> None:
    asked = "import sys; from xrt.cache.signature import code_of; print(code_of('xrt.engines.tvm'), 'tvm' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [code_of("xrt.engines.tvm"), "False"]


@pytest.mark.usefixtures("here")
def test_a_larger_budget_searches_again_with_what_is_known(tmp_path: Path) -> None:
    store = CostStore(tmp_path)
    tuned(PAIR, SLOW_EXP, SLOW_COS, store=store, budget=50.0)
    again = tuned(PAIR, SLOW_EXP, SLOW_COS, store=store, budget=60.0)
    assert (again.how, again.measurements) == ("measured", 0)
    assert tuned(PAIR, SLOW_EXP, SLOW_COS, store=store, budget=60.0, anew=True).how == "measured"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("change", ["threads", "precision", "engines", "pins", "model", "code"])
def test_a_decision_is_an_answer_to_one_question(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, engines, function, options = CostStore(tmp_path), [TOY], chain("Exp"), {}
    tuned(function, *engines, store=store)
    match change:
        case "threads":
            options = {"context": CompileContext(threads=2)}
        case "precision":
            options = {"context": CompileContext(ExecutionOptions(precision="bf16"), threads=1)}
        case "engines":
            engines = [SLOW_EXP, TOY]
        case "pins":
            options = {"options": ClusteringOptions(maximum_nodes=3)}
        case "model":
            function = chain("Cos")
        case "code":
            monkeypatch.setattr(decision, "code_of", lambda module: "another")
    assert tuned(function, *engines, store=store, **options).how == "measured"


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[1]", b'{"format": 2}', b"\xff\x00", b"[" * 100_000, b'{"format": 1, "engines": 3}']
)
@pytest.mark.usefixtures("here")
def test_a_damaged_decision_is_a_warning_and_is_measured_again(text: bytes, tmp_path: Path) -> None:
    tuned(chain("Exp"), TOY, store=CostStore(tmp_path))
    (path,) = tmp_path.rglob("decisions/*.json")
    path.write_bytes(text)
    with pytest.warns(CacheWarning, match="the store of costs could not serve"):
        assert tuned(chain("Exp"), TOY, store=CostStore(tmp_path)).how == "measured"
    assert tuned(chain("Exp"), TOY, store=CostStore(tmp_path)).how == "remembered"


@pytest.mark.parametrize(("name", "value"), [("spent", 10**400), ("rounds", -1), ("baseline", 10**30), ("declined", [])])
@pytest.mark.usefixtures("here")
def test_a_decision_with_a_number_that_cannot_be_is_measured_again(name: str, value: object, tmp_path: Path) -> None:
    tuned(chain("Exp"), TOY, store=CostStore(tmp_path))
    (path,) = tmp_path.rglob("decisions/*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    with pytest.warns(CacheWarning, match="holds no decision that can be used"):
        assert tuned(chain("Exp"), TOY, store=CostStore(tmp_path)).how == "measured"


@pytest.mark.usefixtures("here")
def test_a_decision_with_a_long_note_can_be_read() -> None:
    found = replace(tuned(chain("Exp"), TOY), notes=("a page of a library's " * 1000,))
    again = decision.parse(decision.to_text(found, chain("Exp"), [TOY], Homes()).encode(), chain("Exp"), [TOY], Homes(), None)
    assert again.notes == (found.notes[0][:2000],)


def test_a_contender_of_which_less_is_known_prints_too() -> None:
    assert str(replace(tuned(chain("Exp"), TOY).race.contenders[0], ratio_low=None)).startswith("won: toy")


@pytest.mark.usefixtures("here")
def test_a_damaged_table_is_a_warning_and_is_measured_again(tmp_path: Path) -> None:
    tuned(chain("Exp"), TOY, store=CostStore(tmp_path))
    for path in (*tmp_path.rglob("costs/*.json"), *tmp_path.rglob("decisions/*.json")):
        path.unlink() if "decisions" in str(path) else path.write_text('{"format": 99}')
    with pytest.warns(CacheWarning, match="the store of costs could not serve"):
        assert tuned(chain("Exp"), TOY, store=CostStore(tmp_path)).measurements == 1


@pytest.mark.usefixtures("here")
def test_threads_that_keep_costs_at_once_lose_none(tmp_path: Path) -> None:
    parts = [tuned(chain(op), TOY).table for op in ("Exp", "Cos", "Abs", "Neg")]
    context = CompileContext(threads=1)
    threads = [threading.Thread(target=CostStore(tmp_path).keep, args=(part, [TOY], context)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(CostStore(tmp_path).table([TOY], context).regions) == 4
    assert not CostStore(tmp_path).table([TOY], CompileContext(threads=2)).regions


@pytest.mark.usefixtures("here")
def test_random_values_stand_in_for_inputs_and_those_given_are_not_changed() -> None:
    assert tuned(chain("Exp"), TOY, inputs=None).how == "measured"
    given = X.copy()
    tuned(chain("Exp"), Faulty(how="write_input"), TOY, inputs=[given], bounds=Bounds(limit=0.05, calibration=0.0))
    np.testing.assert_array_equal(given, X)
