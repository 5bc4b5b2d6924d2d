"""Tuning as a whole, on engines whose costs are far apart: who wins, what harms nobody, and what is kept."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.hanging import Announcing, end_limits_at_hangs
from tests.module.test_faults import X, chain
from tests.placement.uneven import CALL, PAIR, SLOW_COS, SLOW_EXP, TOY, Uneven, simulate_time, tuned, verdicts
from xrt.cache.signature import CODE_UNKNOWN, hash_sources
from xrt.engines import CompileContext, ExecutionOptions
from xrt.errors import CacheWarning, OptionError, PlacementWarning
from xrt.formats.placement_file import dumps, loads
from xrt.graph import shape_key
from xrt.partition import ClusteringOptions, Pin, partition
from xrt.partition.cost_table import LAUNCH, CostTable
from xrt.partition.partitioner import map_nodes_to_engines
from xrt.placement import CostStore, TuningBudget, records
from xrt.placement.result import PlacementRequest
from xrt.testing.fault_injection import FaultyEngine

pytestmark = [pytest.mark.slow, pytest.mark.sample(3)]


@pytest.mark.full
@pytest.mark.usefixtures("here")
def test_a_mixture_wins_where_each_engine_is_slow_at_something(monkeypatch: pytest.MonkeyPatch) -> None:
    result = tuned(PAIR, SLOW_EXP, SLOW_COS, clock=simulate_time(monkeypatch))
    assert map_nodes_to_engines(result.plan) == {"n0": SLOW_COS.spec, "n1": SLOW_EXP.spec}
    won = result.record.candidates[0]
    assert (won.verdict, len(won.plan.used_engines), len(won.regions)) == ("won", 2, 2)
    assert [len(candidate.plan.used_engines) for candidate in result.record.candidates if candidate.is_baseline] == [1]
    assert won.seconds == pytest.approx(2 * CALL, rel=0.05)
    assert result.how == "measured"
    assert result.record.spent < result.record.budget


@pytest.mark.usefixtures("here")
def test_a_search_ends_when_nothing_left_can_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """It used its whole budget on every model, although one engine was the fastest of most."""
    slow, quick = Uneven(slow="Exp|Cos"), Uneven(slow="Neg")
    result = tuned(PAIR, slow, quick, budget=60.0, clock=simulate_time(monkeypatch))
    assert result.record.spent < 6.0
    assert verdicts(result) == {quick.spec: "won", slow.spec: "lost"}
    (other,) = (candidate for candidate in result.record.candidates if candidate.title == slow.spec)
    assert (other.ratio, other.note) == (None, "measured alone, and not compared with the others")
    assert "the best single engine" in str(result)


@pytest.mark.usefixtures("here")
def test_a_slow_engine_without_a_rival_runs_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six rounds, which had nothing to decide, took all of a budget."""
    slow, quick = Uneven(slow="Exp|Cos", seconds=3.0), Uneven(slow="Exp", seconds=1.0)
    result = tuned(chain("Exp"), slow, quick, budget=60.0, clock=simulate_time(monkeypatch))
    assert verdicts(result) == {quick.spec: "won", slow.spec: "lost"}
    assert (result.record.rounds, result.record.is_provisional) == (1, False)


@pytest.mark.usefixtures("here")
def test_no_mixture_is_looked_for_where_two_launches_take_longer_than_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[str] = []
    monkeypatch.setattr("tests.placement.uneven.CALL", LAUNCH)
    quick = Uneven(slow="Neg"), Uneven(slow="Abs")
    result = tuned(PAIR, *quick, clock=simulate_time(monkeypatch), progress=lambda told: results.append(told.stage))
    assert (result.measurements, len(result.plan.launches)) == (2, 1)
    assert "planning" not in results


@pytest.mark.usefixtures("here")
def test_what_a_search_measured_is_not_measured_again_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CostStore(tmp_path)
    first = tuned(PAIR, SLOW_EXP, SLOW_COS, store=store, clock=simulate_time(monkeypatch))
    again = tuned(PAIR, SLOW_EXP, SLOW_COS, store=store, retune=True, clock=simulate_time(monkeypatch))
    assert (first.measurements > 0, again.measurements, again.plan) == (True, 0, first.plan)


@pytest.mark.full
@pytest.mark.usefixtures("here")
def test_pins_hold() -> None:
    pins = ClusteringOptions(pins=(Pin.parse(f"name:n0={SLOW_EXP.spec}"),))
    result = tuned(PAIR, SLOW_EXP, TOY, clustering=pins)
    assert {map_nodes_to_engines(candidate.plan)["n0"] for candidate in result.record.candidates} == {SLOW_EXP.spec}


AMPLE = 4000.0
"""Seconds of a budget that ends no search here: all is known long before, however busy the machine is."""
FAULTS = {
    "hang": (Announcing(how="hang"), "failed", "it gave no answer within 200 s, and its process was killed"),
    "kill": (FaultyEngine(how="kill"), "failed", "its process was ended by SIGKILL"),
    "raise": (FaultyEngine(where="compile"), "failed", "the faulty engine is set to fail in compile"),
    "refuse": (FaultyEngine(where="compile", how="refuse"), "failed", "refused: the faulty engine is set to refuse"),
    "value": (FaultyEngine(how="value"), "wrong", "wrong: "),
    "missing": (FaultyEngine(how="missing"), "wrong", "there are 0 outputs; 1 were expected"),
}
HOWS = [how if how in ("kill", "value") else pytest.param(how, marks=[pytest.mark.full]) for how in FAULTS]


@pytest.mark.parametrize("how", HOWS)
def test_what_hangs_crashes_or_is_wrong_is_not_in_the_race_and_is_remembered(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit, a part of the budget, is one that no worker needs to start in; it ends when the engine hangs."""
    end_limits_at_hangs(monkeypatch, tmp_path)
    engine, verdict, text = FAULTS[how]
    store = CostStore(tmp_path / "store")
    result = tuned(chain("Exp"), engine, TOY, budget=AMPLE, bounds=TuningBudget(limit=0.05), store=store)
    assert verdicts(result) == {"toy": "won", engine.spec: verdict}
    (other,) = (candidate for candidate in result.record.candidates if candidate.title == engine.spec)
    assert text in other.note
    again = tuned(chain("Exp"), engine, TOY, budget=AMPLE + 10, store=store)
    assert (again.measurements, verdicts(again)) == (0, verdicts(result))


@pytest.mark.full
def test_an_engine_that_hangs_is_not_asked_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end_limits_at_hangs(monkeypatch, tmp_path)
    engine = Announcing(how="hang")
    result = tuned(chain("Exp", "Cos", "Exp", "Cos"), engine, TOY, budget=AMPLE)
    hung = [cost for (_, spec), cost in result.table.regions.items() if spec.startswith("faulty")]
    assert 1 <= len(hung) <= 2
    assert result.plan.launches[0].engine == "toy"


@pytest.mark.full
def test_a_run_far_slower_than_anothers_is_cut_off_before_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it may take follows from what toy took, which is less than a second on any machine: two seconds and ten times that."""
    end_limits_at_hangs(monkeypatch, tmp_path)
    result = tuned(chain("Exp"), TOY, Announcing(how="hang"), budget=AMPLE, bounds=TuningBudget(limit=0.4))
    (other,) = (candidate for candidate in result.record.candidates if candidate.title != "toy")
    seconds = re.search(r"it gave no answer within (\S+) s", other.note)
    assert seconds is not None and 2 <= float(seconds[1]) < 12


@pytest.mark.full
@pytest.mark.usefixtures("here")
def test_without_a_measurement_nothing_known_to_be_wrong_is_chosen(tmp_path: Path) -> None:
    liar, store = FaultyEngine(how="value"), CostStore(tmp_path)

    def interrupt(progress: Any) -> None:
        if progress.stage.startswith("measuring"):
            raise KeyboardInterrupt

    def choose() -> tuple[str, ...]:
        with pytest.warns(PlacementWarning, match="interrupted before anything was measured"):
            result = tuned(PAIR, liar, TOY, store=store, progress=interrupt)
        assert result.how == "priority"
        return result.plan.used_engines

    assert choose() == (liar.spec,)
    (launch,) = partition(PAIR, [liar]).launches
    costs = CostTable().with_region(shape_key(launch.function), liar.spec, "wrong: by one")
    store.store_costs(costs, [liar], CompileContext(threads=1))
    assert choose() == ("toy",)


@pytest.mark.parametrize("budget", [0, -1, float("inf"), float("nan"), True, "60s"])
def test_a_budget_is_a_positive_number(budget: Any) -> None:
    with pytest.raises(OptionError, match=rf"^budget must be a positive number of seconds; got {budget!r}$"):
        tuned(PAIR, TOY, budget=budget)


@pytest.mark.full
@pytest.mark.usefixtures("here")
def test_the_search_ends_with_its_budget() -> None:
    """By a clock that jumps whenever it is looked at: what is measured is not what counts, but that nothing new is begun."""
    ticks = iter(range(10_000))
    result = tuned(PAIR, SLOW_EXP, SLOW_COS, TOY, budget=12.0, clock=lambda: float(next(ticks)))
    assert next(ticks) < 60
    assert result.plan.launches


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("stage", ["computing the expected results", "measuring 1 node", "planning", "compiling", "timing"])
def test_an_interrupt_gives_the_best_found(stage: str) -> None:
    results = []

    def interrupts(progress: Any) -> None:
        results.append(progress)
        if progress.stage.startswith(stage):
            raise KeyboardInterrupt

    if stage == "computing the expected results":
        with pytest.warns(PlacementWarning, match="interrupted before anything was measured"):
            result = tuned(PAIR, SLOW_EXP, SLOW_COS, progress=interrupts)
        assert result.how == "priority"
        return
    result = tuned(PAIR, SLOW_EXP, SLOW_COS, progress=interrupts)
    assert result.how == "interrupted" and "failed" not in verdicts(result).values()
    assert result.table.regions
    assert str(result).startswith("placed by measurement, which was interrupted: ")
    assert results[-1].best
    assert "budget ended" not in str(result) and "give more time" not in str(result)
    assert results[-1].seconds is not None


@pytest.mark.full
@pytest.mark.usefixtures("here")
def test_what_was_decided_is_not_measured_again(tmp_path: Path) -> None:
    store = CostStore(tmp_path)
    first = tuned(PAIR, SLOW_EXP, SLOW_COS, store=store)
    second = tuned(PAIR, SLOW_EXP, SLOW_COS, store=CostStore(tmp_path))
    assert (second.how, second.measurements) == ("remembered", 0)
    assert second.plan == first.plan
    assert second.record == first.record
    renamed = PAIR.replace(nodes=tuple(replace(node, name=f"other_{node.name}") for node in PAIR.nodes))
    assert tuned(renamed, SLOW_EXP, SLOW_COS, store=store).how == "remembered"


@pytest.mark.full
def test_no_decision_is_kept_of_an_engine_whose_code_is_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "hash_sources", lambda module: CODE_UNKNOWN)
    assert [tuned(chain("Exp"), TOY, store=CostStore(tmp_path)).how for _ in range(2)] == ["measured", "measured"]


def test_the_code_of_an_engine_is_reported_before_it_is_imported() -> None:
    requests = (
        "import sys; from xrt.cache.signature import hash_sources; print(hash_sources('xrt.engines.tvm'), 'tvm' in sys.modules)"
    )
    completed = subprocess.run([sys.executable, "-c", requests], capture_output=True, text=True, check=True)
    assert completed.stdout.split() == [hash_sources("xrt.engines.tvm"), "False"]


@pytest.mark.usefixtures("here")
def test_a_larger_budget_searches_again_with_what_is_known(tmp_path: Path) -> None:
    store = CostStore(tmp_path)
    tuned(PAIR, SLOW_EXP, SLOW_COS, store=store, budget=50.0)
    again = tuned(PAIR, SLOW_EXP, SLOW_COS, store=store, budget=60.0)
    assert (again.how, again.measurements) == ("measured", 0)
    assert tuned(PAIR, SLOW_EXP, SLOW_COS, store=store, budget=60.0, retune=True).how == "measured"


@pytest.mark.full
@pytest.mark.usefixtures("here")
def test_an_explicit_search_decides_for_every_budget(tmp_path: Path) -> None:
    """``xrt tune --budget 5s`` promised that its result is used, and a module with its 20 seconds searched again."""
    store = CostStore(tmp_path)
    first = tuned(PAIR, SLOW_EXP, SLOW_COS, store=store, budget=50.0, retune=True)
    later = [tuned(PAIR, SLOW_EXP, SLOW_COS, store=CostStore(tmp_path), budget=budget) for budget in (20.0, 500.0)]
    assert [(item.how, item.record.is_explicit, item.plan) for item in later] == [("remembered", True, first.plan)] * 2
    assert tuned(PAIR, SLOW_EXP, SLOW_COS, store=store, budget=60.0, retune=True).how == "measured"


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
            options = {"clustering": ClusteringOptions(maximum_nodes=3)}
        case "model":
            function = chain("Cos")
        case "code":
            monkeypatch.setattr(records, "hash_sources", lambda module: "another")
    assert tuned(function, *engines, store=store, **options).how == "measured"


UNFIT = [
    (lambda f: f["search"].update(spent=10**400), "search.spent: number out of range"),
    (lambda f: f["search"].update(rounds=-1), "search.rounds: expected `int` >= 0"),
    (lambda f: f.update(declined=[{"engine": "x", "nodes": [], "reason": ""}]), "declined: an engine or a node"),
    (lambda f: f.update(declined=[{"engine": "toy", "nodes": [7], "reason": ""}]), "declined: an engine or a"),
    (lambda f: f.pop("search"), "search.candidates: none has won, so it is not a decision"),
    (lambda f: f["search"]["candidates"][0].update(verdict="lost"), "search.candidates: none has won, so it is not a decision"),
    (lambda f: f["search"]["candidates"][0].pop("plan"), "only 0 of 1 nodes are placed; the first missing one is 'n0'"),
    (lambda f: f["search"]["candidates"][0]["plan"][0].update(engine="x"), "the plan is impossible now: node 'n0' is assigned"),
]


@pytest.mark.parametrize(("change", "told"), UNFIT, ids=[told for _, told in UNFIT])
@pytest.mark.usefixtures("here")
def test_a_decision_that_does_not_fit_is_measured_again(change: Any, told: str, tmp_path: Path) -> None:
    tuned(chain("Exp"), TOY, store=CostStore(tmp_path))
    (path,) = tmp_path.rglob("decisions/*.json")
    facts = json.loads(path.read_text())
    change(facts)
    path.write_text(json.dumps(facts))
    with pytest.warns(CacheWarning, match=re.escape(told)):
        assert tuned(chain("Exp"), TOY, store=CostStore(tmp_path)).how == "measured"


@pytest.mark.usefixtures("here")
def test_a_decision_with_a_long_note_can_be_read() -> None:
    result = tuned(chain("Exp"), TOY).with_record(notes=("a page of a library's " * 1000,))
    request = PlacementRequest(chain("Exp"), (TOY,), CompileContext(threads=1))
    again = records.read_decision(loads(dumps(records.make_decision(result, request))), request)
    assert again.notes == result.notes


@pytest.mark.usefixtures("here")
def test_threads_that_keep_costs_at_once_lose_none(tmp_path: Path) -> None:
    parts = [tuned(chain(op), TOY).table for op in ("Exp", "Cos", "Abs", "Neg")]
    context = CompileContext(threads=1)
    with ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(lambda part: CostStore(tmp_path).store_costs(part, [TOY], context), parts))
    assert len(CostStore(tmp_path).read_costs([TOY], context).regions) == 4
    assert not CostStore(tmp_path).read_costs([TOY], CompileContext(threads=2)).regions


@pytest.mark.full
@pytest.mark.usefixtures("here")
def test_random_values_stand_in_for_inputs_and_those_given_are_not_changed() -> None:
    assert tuned(chain("Exp"), TOY, inputs=None).how == "measured"
    data = X.copy()
    tuned(chain("Exp"), FaultyEngine(how="write_input"), TOY, inputs=[data], bounds=TuningBudget(limit=0.05))
    np.testing.assert_array_equal(data, X)
