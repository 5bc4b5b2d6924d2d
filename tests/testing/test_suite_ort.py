"""The suite for ort."""

from __future__ import annotations

from xrt.testing.suite import EngineSuite


class TestOrt(EngineSuite):
    engine = "ort"
    passes_at_least = 1440
