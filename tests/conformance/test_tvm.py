"""Every node test of onnx on tvm, strictly; and a share of them on tvm with ort and toy behind."""

from __future__ import annotations

import pytest

from xrt.testing import Word, conform

pytestmark = pytest.mark.slow


def test_tvm_strictly():
    report = conform("tvm")
    assert report.ok, str(report)
    assert report.counts[Word.PASSED] >= 700


def test_nothing_is_lost_with_ort_and_toy_behind():
    """Every eighth case: the whole of it is `xrt conform tvm,ort,toy`."""
    report, toy = conform(["tvm", "ort", "toy"], shard=(3, 8)), conform("toy", shard=(3, 8))
    assert report.ok, str(report)
    known = {outcome.case for outcome in report.of(Word.GAP)}
    assert set(report.lost(toy.outcomes)) <= known
