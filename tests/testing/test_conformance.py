"""The conformance run: what it calls passed, declined and failed, how it counts, and groups of tests."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from tools.known_failures import MIXTURES, list_known_failures, load_known_failures
from xrt.engines.contract import registry
from xrt.errors import OptionError, UnknownEngine
from xrt.formats.onnx import to_model
from xrt.testing import (
    GROUPS,
    ConformanceCase,
    ConformanceReport,
    KnownFailure,
    Outcome,
    ResultWord,
    conform,
    group_cases,
    node_cases,
    run_case,
    settle,
)
from xrt.testing.cases import may_name_a_match
from xrt.testing.conformance import run_list, run_single
from xrt.testing.corpus.entry import graph, node
from xrt.testing.fault_injection import FaultyEngine, RecordingEngine

RELU = "test_relu"


def outcome_of(engine, pattern: str = RELU) -> Outcome:
    [outcome] = conform(engine, pattern).outcomes
    return outcome


def test_every_node_test_of_onnx_is_a_case():
    cases = node_cases()
    assert len(cases) > 1800
    assert [case.name for case in cases] == sorted({case.name for case in cases})
    assert {case.name for case in node_cases("relu, test_abs")} == {"test_relu", "test_abs"}
    assert {case.group for case in group_cases(pattern="sequence_model1,light_vgg19,relu,*Conv1d,operator_mm")} == set(GROUPS)


def test_cases_hold_values_as_engines_take_them():
    allowed = (np.ndarray, list, type(None))
    for case in node_cases():
        assert all(isinstance(value, allowed) for value in (*case.inputs, *case.expected)), case.name
        assert len(case.inputs) == len(case.model.graph.input), case.name


def test_random_cases_are_found_by_their_schemas():
    random = {case.name for case in node_cases("*bernoulli*,*dropout*,*random*,*affine_grid*") if case.is_random}
    assert "test_bernoulli_seed_expanded" in random
    assert "test_training_dropout_default" in random
    assert "test_dropout_default" not in random, "it draws in training only"
    assert not any("affine_grid" in name for name in random), "it is declared random, and draws nothing"


def test_of_a_random_case_type_and_shape_count():
    case = next(case for case in node_cases("test_bernoulli"))
    assert case.judge([1 - case.expected[0]])
    assert not case.judge([case.expected[0][:1]])
    assert not case.judge([case.expected[0].astype(np.float32)])


def test_bfloat16_is_granted_two_roundings():
    case = next(
        case for case in node_cases("*") if any(getattr(e, "dtype", None) == ml_dtypes.bfloat16 and e.size for e in case.expected)
    )
    near = [(e.astype(np.float32) * np.float32(1 + 2**-7)).astype(e.dtype) for e in case.expected]
    assert case.judge(near)


@pytest.mark.parametrize(
    ("where", "reason"),
    [("why_not", "Relu: the faulty engine is set to decline"), ("compile", "the faulty engine is set to refuse")],
)
def test_what_is_said_before_the_run_is_declined_or_goes_to_the_next_of_a_list(where, reason):
    engine = FaultyEngine(where=where, how="refuse")
    outcome = outcome_of(engine)
    assert (outcome.word, outcome.reason) == (ResultWord.DECLINED, reason)
    assert outcome_of([engine, "toy"]).word is ResultWord.PASSED


@pytest.mark.parametrize("where", ["why_not", "compile", "prepare", "run", "close"])
def test_every_other_error_has_failed(where):
    outcome = outcome_of(FaultyEngine(where=where))
    assert outcome.word is ResultWord.FAILED
    assert outcome.reason.endswith(f"RuntimeError: the faulty engine is set to fail in {where}")
    assert outcome.reason.startswith("at run" if where in ("run", "close") else "at compile")


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("dtype", "y is of type float64; float32 was expected"),
        ("shape", "y has shape (1, 3, 4, 5); (3, 4, 5) was expected"),
        ("nan", "y differs in 60 of 60 elements"),
        ("value", "y differs in 60 of 60 elements"),
        ("missing", "there are 0 outputs; 1 were expected"),
        ("scalar", "y is a float32; it must be an array"),
        ("write_input", "input 0 differs in 1 of 60 elements"),
    ],
)
def test_a_wrong_result_has_failed(how, reason):
    outcome = outcome_of(FaultyEngine(how=how))
    assert outcome.word is ResultWord.FAILED
    assert outcome.reason.startswith(reason)


def test_a_model_that_cannot_be_read_has_failed():
    case = next(iter(node_cases(RELU)))
    broken = ConformanceCase("broken", type(case.model)(), case.inputs, case.expected, 0, 0)
    outcome = run_case(broken, run_single(registry.create("toy")))
    assert outcome.word is ResultWord.FAILED
    assert "ModelError" in outcome.reason


def test_a_list_runs_as_one_plan():
    first, seen = RecordingEngine(takes="Relu"), []
    report = conform([first, "toy"], "relu,abs", progress=lambda done, count, outcome: seen.append((done, count, outcome.case)))
    assert seen == [(1, 2, "test_abs"), (2, 2, "test_relu")]
    assert [(outcome.word, outcome.reason) for outcome in report.outcomes] == [(ResultWord.PASSED, "")] * 2
    assert [outcome.operators for outcome in report.outcomes] == [("Abs",), ("Relu",)]
    assert report.engine == f"{first.spec},toy"
    assert first.journal.count("run") == 1
    with pytest.raises(UnknownEngine):
        conform(["nobody", "toy"], RELU)


def test_a_list_that_nobody_completes_declines():
    outcome = outcome_of([RecordingEngine(takes="Abs"), RecordingEngine(takes="Neg")])
    assert outcome.word is ResultWord.DECLINED
    assert "takes 1 of 1 node" in outcome.reason


def test_a_failure_to_compile_is_no_refusal_even_in_a_list():
    outcome = outcome_of([FaultyEngine(where="compile"), RecordingEngine(takes="Neg")])
    assert (outcome.word, "CompileFailed" in outcome.reason) == (ResultWord.FAILED, True)


@pytest.mark.parametrize("make", [run_single, lambda engine: run_list([engine])], ids=["alone", "list"])
def test_constant_parts_are_computed_beforehand_unless_nothing_is_left(make):
    engine = RecordingEngine()
    expanded = next(case for case in node_cases("test_softmax_default_axis_expanded_ver18"))
    constant = next(case for case in node_cases("test_constant"))
    assert run_case(expanded, make(engine)).word is ResultWord.PASSED
    assert len(engine.journal.compiled[0].nodes) < len(expanded.function.nodes)
    assert run_case(constant, make(engine)).word is ResultWord.PASSED
    assert len(engine.journal.compiled[1].nodes) == 1


def gap(cases: str, **fields) -> KnownFailure:
    return KnownFailure(cases, "not upstream", "the library rounds down", "https://example.org/1", **fields)


def made(*words: ResultWord) -> ConformanceReport:
    return ConformanceReport(
        "mine", tuple(Outcome(f"test_{number}", word, "why", ("Relu",)) for number, word in enumerate(words))
    )


@pytest.mark.parametrize("word", [ResultWord.PASSED, ResultWord.DECLINED])
def test_a_known_failure_is_a_gap_and_its_entry_stale_where_a_case_does_not_fail(word):
    report = settle(made(ResultWord.FAILED), [gap("test_*")])
    assert report.ok
    assert (report.outcomes[0].word, report.outcomes[0].reason) == (ResultWord.GAP, "not upstream: the library rounds down [why]")
    report = settle(made(ResultWord.FAILED, word), [gap("test_*")])
    assert not report.ok
    assert report.stale == (f"test_* (not upstream: the library rounds down): test_1 {word}; narrow or delete the entry",)


PASSED, FAILED = ResultWord.PASSED, ResultWord.FAILED


@pytest.mark.parametrize(
    ("words", "gaps", "options", "is_ok"),
    [
        ((PASSED,), [gap("test_0", everywhere=False)], {}, True),  # it fails only on some processors
        ((PASSED,), [gap("test_9")], {}, False),
        ((PASSED,), [gap("test_9")], {"complete": False}, True),
        ((PASSED, FAILED), [gap("test_*")], {"alone": False}, True),  # another engine of a list may pass
        ((FAILED,), [], {}, False),
    ],
)
def test_a_run_is_right_if_what_failed_and_only_that_was_known(words, gaps, options, is_ok):
    report = settle(made(*words), gaps, **options)
    assert report.ok == is_ok
    if words == (FAILED,):
        assert str(report).splitlines() == ["mine: 0 passed, 0 declined, 1 failed, 0 gap of 1", "  failed test_0: why"]
    elif not is_ok:
        assert report.stale == ("test_9 (not upstream: the library rounds down) matches no case; delete the entry",)


@pytest.mark.parametrize("engine", ["toy", "ort", "tvm", "openvino", "xla", "iree", "torch", MIXTURES])
def test_known_failures_give_reasons_and_links(engine):
    for entry in load_known_failures(engine):
        assert len(entry.reason) > 20
        assert entry.link.startswith("https://")
    assert load_known_failures(f"{engine}{{x=1}}") == load_known_failures(engine)
    assert load_known_failures("stranger") == ()


def test_what_only_a_mixture_fails_is_listed_for_several_engines() -> None:
    mixture = load_known_failures(MIXTURES)
    assert mixture and list_known_failures(["xla", "toy"]) == mixture
    assert list_known_failures(["tvm"]) == load_known_failures("tvm") != ()


def test_reports_survive_json():
    report = conform("toy", "relu*,abs*")
    assert ConformanceReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report


STORED = ("simple", "pytorch-operator", "pytorch-converted", "light")


@pytest.mark.parametrize("groups", [("nodes",), ("node", "ligth")])
def test_an_unknown_group_is_an_error(groups):
    with pytest.raises(OptionError, match=r"there is no group '(nodes|ligth)'\. Did you mean '(node|light)'"):
        group_cases(groups)


def test_stored_sequences_are_lists():
    [case] = group_cases(("simple",), "sequence_model1")
    assert all(isinstance(value, np.ndarray) for value in case.inputs)
    assert conform("toy", "sequence_model*", groups=["simple"]).counts[ResultWord.PASSED] == 8


def test_a_light_network_comes_twice():
    plain, random = group_cases(("light",), "light_shufflenet*")
    assert (plain.name, random.name) == ("light_shufflenet", "light_shufflenet_random")
    assert np.ptp(plain.truth[0]) < 1e-6, "as it comes, all outputs are one number"
    assert random.truth[0].std() > 1e-4
    assert random.judge(random.truth)
    assert not random.judge([random.truth[0][:, ::-1].copy()])
    assert not plain.judge(random.truth)


def test_groups_are_counted():
    report = conform("toy", "single_relu_model,operator_mm,Linear", groups=STORED)
    assert {group: counts[ResultWord.PASSED] for group, counts in report.count_by_group().items()} == {
        "simple": 1,
        "pytorch-operator": 1,
        "pytorch-converted": 1,
    }
    assert report.count_placements()["Relu"] == {"toy": 1}


def argmax_case() -> ConformanceCase:
    """y = ArgMax(Sqrt(x)): two places whose values are as good as equal."""
    nodes = node("Sqrt", "x", "h"), node("ArgMax", "h", "y", axis=0, keepdims=0)
    model = to_model(graph({"x": "float32[3]"}, {"y": "int64[]"}, *nodes))
    array = np.array([1.0, 1.0 + 1e-6, 0.5], np.float32)
    return ConformanceCase("argmax", model, (array,), (np.array(1),), 1e-3, 1e-7)


def test_a_tie_counts_where_it_is_admitted_and_a_wrong_place_never():
    case = argmax_case()
    tie, wrong = [np.array(0)], [np.array(2)]
    assert not case.judge(tie)
    assert case.judge(tie, admit_ties=True)
    assert not case.judge(wrong, admit_ties=True)


@pytest.mark.parametrize("pattern", ["abs", "test_abs_ver*", "relu, a?s", "*", "test_*"])
def test_a_module_may_name_what_its_source_begins_with(pattern: str):
    assert may_name_a_match("onnx.backend.test.case.node.abs", pattern)
    assert may_name_a_match("onnx.backend.test.case.node.relu", pattern) != (pattern in ("abs", "test_abs_ver*"))
