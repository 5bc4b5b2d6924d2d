"""Conformance by measurement: every case is searched in this process, and what is wrong does not get through."""

from __future__ import annotations

import numpy as np
import pytest

from tests.module.test_faults import X, chain
from xrt.engines.contract import registry
from xrt.errors import OptionError, UnknownEngine
from xrt.testing import ConformanceReport, KnownFailure, Outcome, ResultWord, conform
from xrt.testing.conformance import engines_for, make_auto_program
from xrt.testing.fault_injection import FaultyEngine, RecordingEngine

pytestmark = pytest.mark.filterwarnings("ignore::xrt.errors.NativeWarning")

LIAR = FaultyEngine(how="value", mark="liar")


def outcome_of(*engines: object, pattern: str = "relu", gaps: tuple[KnownFailure, ...] = ()) -> Outcome:
    [outcome] = conform([*engines, "auto"], pattern, gaps=gaps).outcomes  # type: ignore[list-item]
    return outcome


@pytest.mark.slow
def test_cases_pass_on_engines_that_a_search_has_chosen() -> None:
    report = conform(["toy", "ort", "auto"], "relu,abs,sequence_model1,celu_expanded,castlike_FLOAT_to_STRING")
    assert report.engine == "toy,ort,auto"
    assert {outcome.word for outcome in report.outcomes} == {ResultWord.PASSED}, str(report)
    assert {engine for outcome in report.outcomes for engine in outcome.engines} <= {"toy", "ort"}
    assert all(outcome.placed for outcome in report.outcomes)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["relu", "abs", "test_matmul_2d", "celu_expanded", "test_exp_example"])
def test_an_engine_with_wrong_results_is_kept_out(case: str) -> None:
    """Whoever comes first in the search: that differs from case to case."""
    outcome = outcome_of(LIAR, "toy", pattern=case)
    assert (outcome.word, outcome.engines) == (ResultWord.PASSED, ("toy",))
    assert LIAR.journal.count("run")


@pytest.mark.parametrize("first", [LIAR, "toy"])
def test_an_engine_that_raises_is_kept_out(first: object) -> None:
    other = FaultyEngine(how="raise") if first is LIAR else FaultyEngine(where="compile")
    assert outcome_of(*((other, "toy") if first is LIAR else ("toy", other))).engines == ("toy",)


def test_what_no_engine_has_right_fails() -> None:
    outcome = outcome_of(LIAR)
    assert (outcome.word, outcome.engines) == (ResultWord.FAILED, ("faulty",))


def test_what_no_engine_takes_is_declined() -> None:
    outcome = outcome_of(RecordingEngine(takes="Abs"))
    assert outcome.word is ResultWord.DECLINED
    assert "no engine of the list" in outcome.reason


@pytest.mark.parametrize(("everywhere", "word"), [(True, ResultWord.FAILED), (False, ResultWord.GAP)])
def test_known_failures_excuse_roundings_alone(everywhere: bool, word: ResultWord) -> None:
    gap = KnownFailure("test_relu", "never", "a reason long enough to be one", "https://example.org", everywhere)
    report = conform([LIAR, "auto"], "relu", gaps=[gap])
    assert report.outcomes[0].word is word
    assert not report.stale


@pytest.mark.slow
def test_a_gap_that_a_search_has_kept_out_is_not_stale() -> None:
    gap = KnownFailure("test_relu", "never", "a reason long enough to be one", "https://example.org", everywhere=False)
    report = conform([LIAR, "toy", "auto"], "relu", gaps=[gap])
    assert (report.ok, report.outcomes[0].word) == (True, ResultWord.PASSED)


@pytest.mark.slow
def test_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xrt.placement.autotune.choose_runner", None)
    program = make_auto_program(chain("Exp", "Cos"), [X], [registry.create("toy")])
    assert np.allclose(program.run([X])[0], np.cos(np.exp(X)))


def test_auto_means_all_that_are_ready() -> None:
    ready = {name for name in registry.names() if registry.probe(name).state == "ready"}
    assert {engine.name for engine in engines_for(["auto"])} == ready >= {"toy", "ort"}
    assert [engine.name for engine in engines_for(["ort", "auto", "toy"])] == ["ort", "toy"]


def test_who_is_listed_must_be_there() -> None:
    with pytest.raises(UnknownEngine, match="nobody"):
        engines_for(["nobody", "auto"])


def test_nodes_that_alternate_are_not_placed() -> None:
    with pytest.raises(OptionError, match="list the engines without 'auto'"):
        conform(["ort", "toy", "auto"], "relu", alternate=True)


@pytest.mark.slow
def test_a_report_counts_where_cases_ran() -> None:
    report = conform(["toy", "auto"], "relu,abs")
    assert report.placements() == {"Abs": {"toy": 1}, "Relu": {"toy": 1}}
    assert ConformanceReport.from_dict(report.to_dict()).placements() == report.placements()
