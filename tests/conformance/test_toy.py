"""Every test of onnx on toy with native kernels and on toy as the reference."""

from __future__ import annotations

import pytest

from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.testing import ResultWord, conform, node_cases

pytestmark = pytest.mark.full


@pytest.mark.parametrize("engine", [REFERENCE, "toy"])
def test_all_that_is_deterministic_passes(engine: str):
    report = conform(engine)
    assert report.ok, str(report)
    passed = {outcome.case for outcome in report.of(ResultWord.PASSED)}
    needs_pillow = {case.name for case in node_cases("image_decoder*")}
    missing = {case.name for case in node_cases() if not case.is_random} - passed - needs_pillow
    assert not missing
