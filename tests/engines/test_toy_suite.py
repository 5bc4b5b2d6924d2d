"""The suite for toy, the reference engine: it must be right on every entry, and bit for bit the same however it is cut."""

from __future__ import annotations

from typing import ClassVar

from xrt.compare import BIT_EQUAL, Tolerance
from xrt.testing.suite import EngineSuite


class TestToy(EngineSuite):
    engine = "toy"
    tolerance: ClassVar[Tolerance] = BIT_EQUAL
    test_conformance = None  # run in tests/conformance
