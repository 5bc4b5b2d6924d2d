"""The tests of onnx: each operator on each engine, and other numbers; a sample in `make test`."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.conformance.sample import cases_of_operators, count_shown, list_models, run_operators, run_together
from tools.conformance_record import ENGINES
from tools.known_failures import list_known_failures
from xrt.engines.contract import registry
from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.testing import ConformanceCase, ConformanceReport, ResultWord, conform, node_cases, run_case, settle
from xrt.testing.conformance import run_single
from xrt.verify.execution import run_alone

SUPPORTED = {"toy": 199, "ort": 185, "tvm": 130, "openvino": 160, "xla": 120, "iree": 120, "torch": 185}
"""How many of the operators each engine supports at least: an engine that declines what it supported loses no test otherwise."""
CASES = {"toy": 4, "ort": 4, "torch": 4}
"""Cases of each operator where a compile is quick; elsewhere one."""
TOGETHER = ("iree",)
"""Engines that start a process for each compile, which have most operators in the models of pairs."""


@pytest.mark.slow
@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine not in TOGETHER])
def test_each_operator_is_right(engine: str) -> None:
    outcomes = run_operators(registry.create(engine), CASES.get(engine, 1))
    cases = {outcome.case: outcome for group in outcomes.values() for outcome in group}
    report = settle(ConformanceReport(engine, tuple(cases.values())), list_known_failures([engine]), complete=False)
    assert report.ok, str(report)
    assert len(outcomes) >= SUPPORTED[engine], f"{engine} now declines {sorted(cases_of_operators().keys() - outcomes.keys())}"


@pytest.mark.slow
@pytest.mark.parametrize("engine", TOGETHER)
def test_each_operator_is_right_in_a_model_of_several(engine: str, pytestconfig: pytest.Config) -> None:
    compiler = registry.create(engine)
    others = (2 * ENGINES.index(engine) % len(ENGINES), len(ENGINES))  # of no pair in test_pairs.py that puts them on the engine
    models = list(list_models((compiler,), (0, 1) if pytestconfig.option.full else others, with_vectors=True))
    outcomes = [outcome for cases in models for outcome in run_together(compiler, cases)]
    assert [str(outcome) for outcome in outcomes if outcome.word is ResultWord.FAILED] == []
    passed = sum(outcome.word is ResultWord.PASSED for outcome in outcomes)
    assert passed >= SUPPORTED[engine] // (1 if pytestconfig.option.full else len(ENGINES))


@pytest.mark.slow
def test_nearly_every_operator_has_a_case_that_shows_each_fault() -> None:
    results = [count_shown(cases[0]) for cases in cases_of_operators().values()]
    assert sum(count >= 2 for count in results) >= 0.9 * len(results)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "toy"])  # toy: the last test
def test_every_case_is_right(engine: str) -> None:
    report = conform(engine, gaps=list_known_failures([engine]))
    assert report.ok, str(report)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_every_node_test_is_right_with_symbolic_dims(engine: str) -> None:
    compiler = registry.create(engine)
    if compiler.supports_dynamic_shapes:
        report = conform(compiler, groups=["node"], opening="every", gaps=list_known_failures([engine]))
        assert report.ok, str(report)


def redraw(case: ConformanceCase) -> ConformanceCase | None:
    """The case with new floats within the range of each input, and the reference's results; None if it has no floats."""
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))

    def draw(place: int, value: Any) -> Any:
        is_float = isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size > 1 and np.isfinite(value).all()
        if not is_float or (place and value.ndim < 2):  # a vector behind the data may be the scales of a Resize
            return value
        return rng.uniform(value.min(), value.max(), value.shape).astype(value.dtype)

    inputs = tuple(draw(place, value) for place, value in enumerate(case.inputs))
    if all(new is old for new, old in zip(inputs, case.inputs, strict=True)):
        return None
    with np.errstate(all="ignore"):
        expected = run_alone(registry.create(REFERENCE), case.function, list(inputs))
    return replace(case, inputs=inputs, expected=tuple(expected))


@pytest.mark.slow
def test_the_reference_agrees_with_onnx_runtime() -> None:
    make = run_single(registry.create("ort"))
    # ONNX does not say how a float is rounded to a type below a byte.
    cases = [case for case in node_cases() if not case.is_random and not re.search("_U?INT[24](_|$)", case.name)]
    redrawn = [new for case in cases if (new := redraw(case))]
    report = settle(
        ConformanceReport("ort", tuple(run_case(case, make) for case in redrawn)),
        list_known_failures(["ort"]),
        complete=False,
        alone=False,
    )
    assert report.ok, str(report)
    passed = Counter(operator for outcome in report.list_outcomes(ResultWord.PASSED) for operator in outcome.operators)
    assert len(passed) > 120


@pytest.mark.full
@pytest.mark.parametrize("engine", [REFERENCE, "toy"])
def test_all_that_is_deterministic_passes(engine: str):
    report = conform(engine)
    assert report.ok, str(report)
    passed = {outcome.case for outcome in report.list_outcomes(ResultWord.PASSED)}
    needs_pillow = {case.name for case in node_cases("image_decoder*")}
    missing = {case.name for case in node_cases() if not case.is_random} - passed - needs_pillow
    assert not missing
