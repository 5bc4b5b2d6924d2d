"""The suite for torch."""

from __future__ import annotations

import pytest

from xrt.testing.suite import EngineSuite


@pytest.mark.slow
@pytest.mark.proof("engine torch", share=24, laws=2)
class TestTorch(EngineSuite):
    engine = "torch"
    test_conformance = None  # run in tests/conformance
