"""The suite for torch."""

from __future__ import annotations

import pytest

from xrt.testing.suite import EngineSuite


@pytest.mark.slow
@pytest.mark.sample(24, plain=2)
class TestTorch(EngineSuite):
    engine = "torch"
    test_conformance = None  # run in tests/conformance
