"""Every test of onnx on toy, beside the evaluator of onnx in the same run, and held against the record."""

from __future__ import annotations

import functools

import pytest

from tests.conformance.against import differences
from xrt.testing import Report, Word, conform, node_cases

pytestmark = pytest.mark.slow


@functools.cache
def report() -> Report:
    return conform("toy", reference=True)


def test_nothing_fails():
    assert report().ok, str(report())


def test_the_record_says_the_same():
    assert differences("toy", report()) == []


def test_nothing_is_lost_that_the_evaluator_of_onnx_passes():
    assert not report().lost(report().reference)
    passed = sum(outcome.word is Word.PASSED for outcome in report().reference)
    assert passed > 1900, "the evaluator did not run"


def test_all_that_is_deterministic_passes():
    passed = {outcome.case for outcome in report().of(Word.PASSED)}
    needs_pillow = {case.name for case in node_cases("image_decoder*")}
    missing = {case.name for case in node_cases() if not case.is_random} - passed - needs_pillow
    assert not missing
