"""The suite for xla."""

from __future__ import annotations

import pytest

from xrt.testing.suite import EngineSuite


@pytest.mark.slow
@pytest.mark.proof("engine xla", share=24, laws=2)
class TestXla(EngineSuite):
    engine = "xla"
    test_conformance = None  # run in tests/conformance
