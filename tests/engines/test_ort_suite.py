"""The suite for ort."""

from __future__ import annotations

from xrt.testing.suite import EngineSuite


class TestOrt(EngineSuite):
    engine = "ort"
    test_conformance = None  # run in tests/conformance
