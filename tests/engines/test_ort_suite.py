"""The suite for ort."""

from __future__ import annotations

import pytest

from xrt.testing.suite import EngineSuite


@pytest.mark.proof("engine ort", share=12)
class TestOrt(EngineSuite):
    engine = "ort"
    test_conformance = None  # run in tests/conformance
