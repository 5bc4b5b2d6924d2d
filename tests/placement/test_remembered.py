"""What a search keeps, and what another makes of it: decisions, costs, and damage."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.module.test_faults import X, chain
from tests.placement.searching import PAIR, SLOW_COS, SLOW_EXP, TOY, tuned
from xrt.cache.signature import CODE_UNKNOWN, hash_sources
from xrt.engines import CompileContext, ExecutionOptions
from xrt.errors import CacheWarning
from xrt.partition import ClusteringOptions
from xrt.placement import CostStore, TuningBudget, records
from xrt.placement.result import PlacementRequest
from xrt.testing.fault_injection import FaultyEngine

pytestmark = [pytest.mark.filterwarnings("ignore::xrt.errors.NativeWarning"), pytest.mark.sample(3)]


@pytest.mark.full
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


@pytest.mark.full
def test_no_decision_is_kept_of_an_engine_whose_code_is_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "hash_sources", lambda module: CODE_UNKNOWN)
    assert [tuned(chain("Exp"), TOY, store=CostStore(tmp_path)).how for _ in range(2)] == ["measured", "measured"]


@pytest.mark.slow
def test_the_code_of_an_engine_is_reported_before_it_is_imported() -> None:
    asked = (
        "import sys; from xrt.cache.signature import hash_sources; print(hash_sources('xrt.engines.tvm'), 'tvm' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [hash_sources("xrt.engines.tvm"), "False"]


@pytest.mark.slow
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
    assert [(one.how, one.is_explicit, one.plan) for one in later] == [("remembered", True, first.plan)] * 2
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


@pytest.mark.slow
@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b'{"kind": "xrt placement"}', b"\xff\x00", b"[" * 100_000])
@pytest.mark.usefixtures("here")
def test_a_damaged_decision_is_a_warning_and_is_measured_again(text: bytes, tmp_path: Path) -> None:
    tuned(chain("Exp"), TOY, store=CostStore(tmp_path))
    (path,) = tmp_path.rglob("decisions/*.json")
    path.write_bytes(text)
    with pytest.warns(CacheWarning, match="could not serve"):
        assert tuned(chain("Exp"), TOY, store=CostStore(tmp_path)).how == "measured"
    assert tuned(chain("Exp"), TOY, store=CostStore(tmp_path)).how == "remembered"


UNFIT = [
    (lambda f: f["search"].update(spent=10**400), "search.spent: number out of range"),
    (lambda f: f["search"].update(rounds=-1), "search.rounds: expected `int` >= 0; it is -1"),
    (lambda f: f["search"].update(declined=[{"engine": "x", "nodes": [], "reason": ""}]), "search.declined: an engine or a node"),
    (lambda f: f["search"].update(declined=[{"engine": "toy", "nodes": [7], "reason": ""}]), "search.declined: an engine or a"),
    (lambda f: f.pop("search"), "it has no section 'search', so it is no decision"),
    (lambda f: f.pop("candidates"), "candidates: none has won, so it holds no decision"),
    (lambda f: f["candidates"][0].update(verdict="lost"), "candidates: none has won, so it holds no decision"),
    (lambda f: f["candidates"][0].pop("ranges"), "0 of 1 nodes are placed, and not 'n0'"),
    (lambda f: f["candidates"][0]["ranges"][0].update(engine="x"), "it is no plan any more: node 'n0' is assigned to 'x'"),
]


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_a_decision_with_a_long_note_can_be_read() -> None:
    found = replace(tuned(chain("Exp"), TOY), notes=("a page of a library's " * 1000,))
    request = PlacementRequest(chain("Exp"), (TOY,), CompileContext(threads=1))
    again = records.read_result(records.make_decision(found, request), request)
    assert again.notes == (found.notes[0][:2000],)


@pytest.mark.full
def test_a_contender_of_which_less_is_known_prints_too() -> None:
    assert str(replace(tuned(chain("Exp"), TOY).race.contenders[0], ratio_low=None)).startswith("chosen: toy")


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_a_damaged_table_is_a_warning_and_is_measured_again(tmp_path: Path) -> None:
    tuned(chain("Exp"), TOY, store=CostStore(tmp_path))
    for path in (*tmp_path.rglob("costs/*.json"), *tmp_path.rglob("decisions/*.json")):
        path.unlink() if "decisions" in str(path) else path.write_text('{"format": 99}')
    with pytest.warns(CacheWarning, match="could not serve"):
        assert tuned(chain("Exp"), TOY, store=CostStore(tmp_path)).measurements == 1


@pytest.mark.slow
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


@pytest.mark.full
@pytest.mark.usefixtures("here")
def test_random_values_stand_in_for_inputs_and_those_given_are_not_changed() -> None:
    assert tuned(chain("Exp"), TOY, inputs=None).how == "measured"
    given = X.copy()
    tuned(chain("Exp"), FaultyEngine(how="write_input"), TOY, inputs=[given], bounds=TuningBudget(limit=0.05))
    np.testing.assert_array_equal(given, X)
