"""Each operator on each engine that supports it, by the tests of onnx: a sample in `make test`, all in `make test-full`."""

from __future__ import annotations

import pytest

from tests.conformance.sample import cases_of_operators, count_shown, list_models, run_operators, run_together
from tools.conformance_record import ENGINES
from tools.known_failures import list_known_failures
from xrt.engines.contract import registry
from xrt.testing import ConformanceReport, ResultWord, conform, settle

pytestmark = pytest.mark.slow

SUPPORTED = {"toy": 199, "ort": 185, "tvm": 130, "openvino": 160, "xla": 120, "iree": 120, "torch": 185}
"""How many of the operators each engine supports at least: an engine that declines what it supported loses no test otherwise."""
CASES = {"toy": 4, "ort": 4, "torch": 4}
"""Cases of each operator where a compile is quick; elsewhere one."""
TOGETHER = ("iree",)
"""Engines that start a process for each compile, which have most operators in the models of pairs."""


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine not in TOGETHER])
def test_each_operator_is_right(engine: str) -> None:
    outcomes = run_operators(registry.create(engine), CASES.get(engine, 1))
    cases = {outcome.case: outcome for group in outcomes.values() for outcome in group}
    report = settle(ConformanceReport(engine, tuple(cases.values())), list_known_failures([engine]), complete=False)
    assert report.ok, str(report)
    assert len(outcomes) >= SUPPORTED[engine], f"{engine} now declines {sorted(cases_of_operators().keys() - outcomes.keys())}"


@pytest.mark.parametrize("engine", TOGETHER)
def test_each_operator_is_right_in_a_model_of_several(engine: str, pytestconfig: pytest.Config) -> None:
    made = registry.create(engine)
    others = (2 * ENGINES.index(engine) % len(ENGINES), len(ENGINES))  # of no pair in test_pairs.py that puts them on the engine
    models = list(list_models((made,), (0, 1) if pytestconfig.option.full else others, with_vectors=True))
    outcomes = [outcome for cases in models for outcome in run_together(made, cases)]
    assert [str(outcome) for outcome in outcomes if outcome.word is ResultWord.FAILED] == []
    passed = sum(outcome.word is ResultWord.PASSED for outcome in outcomes)
    assert passed >= SUPPORTED[engine] // (1 if pytestconfig.option.full else len(ENGINES))


def test_nearly_every_operator_has_a_case_that_shows_each_fault() -> None:
    shown = [count_shown(cases[0]) for cases in cases_of_operators().values()]
    assert sum(count >= 2 for count in shown) >= 0.9 * len(shown)


@pytest.mark.full
@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "toy"])  # which has test_toy.py
def test_every_case_is_right(engine: str) -> None:
    report = conform(engine, gaps=list_known_failures([engine]))
    assert report.ok, str(report)


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_every_node_test_is_right_with_symbolic_dims(engine: str) -> None:
    made = registry.create(engine)
    if made.supports_dynamic_shapes:
        report = conform(made, groups=["node"], opening="every", gaps=list_known_failures([engine]))
        assert report.ok, str(report)
