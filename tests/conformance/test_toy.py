"""Every test of onnx on toy with native kernels and on toy as the reference, beside the evaluator of onnx in the same run."""

from __future__ import annotations

import functools

import pytest

from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.testing import ConformanceReport, ResultWord, conform, node_cases

pytestmark = pytest.mark.full


@functools.cache
def report(engine: str) -> ConformanceReport:
    return conform(engine, reference=engine == REFERENCE)


@pytest.mark.parametrize("engine", [REFERENCE, "toy"])
def test_nothing_fails(engine: str):
    assert report(engine).ok, str(report(engine))


def test_nothing_is_lost_that_the_evaluator_of_onnx_passes():
    assert not report(REFERENCE).lost(report(REFERENCE).reference)
    passed = sum(outcome.word is ResultWord.PASSED for outcome in report(REFERENCE).reference)
    assert passed > 1900, "the evaluator did not run"


def test_all_that_is_deterministic_passes():
    passed = {outcome.case for outcome in report(REFERENCE).of(ResultWord.PASSED)}
    needs_pillow = {case.name for case in node_cases("image_decoder*")}
    missing = {case.name for case in node_cases() if not case.is_random} - passed - needs_pillow
    assert not missing
