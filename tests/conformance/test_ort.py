"""Every node test of onnx on ort, strictly; and on ort with toy behind, where nothing may be lost that toy passes."""

from __future__ import annotations

import pytest

from xrt.testing import Word, conform

pytestmark = pytest.mark.slow


def test_ort_strictly():
    report = conform("ort")
    assert report.ok, str(report)
    assert report.counts[Word.PASSED] >= 1440


def test_nothing_is_lost_with_toy_behind():
    """Whatever ort's ledger does not know to be its library's own passes, as it does on toy."""
    report, toy = conform(["ort", "toy"]), conform("toy")
    assert report.ok, str(report)
    known = {outcome.case for outcome in report.of(Word.GAP)}
    assert set(report.lost(toy.outcomes)) <= known
