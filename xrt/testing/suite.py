"""The suite that proves an engine: subclass it in a test file, name the engine, and pytest runs the contract and the laws.

    from xrt.testing.suite import EngineSuite

    class TestMine(EngineSuite):
        engine = "mine"

Every test asks the engine by its contract, or through a module that has it in its list. What the engine declines is no
failure; what it accepts and gets wrong is, unless `gaps` knows it. This module needs pytest and hypothesis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pytest

from xrt.testing.conformance import conform
from xrt.testing.contract import Contract
from xrt.testing.laws import Laws
from xrt.testing.report import ResultWord
from xrt.testing.suite_base import FORM, bounded
from xrt.worker.isolated_engine import why_not_isolated

if TYPE_CHECKING:
    from xrt.testing.known_failures import KnownFailure

__all__ = ["FORM", "EngineSuite", "bounded"]


class EngineSuite(Contract, Laws):
    """The contract, the laws and the node tests for one engine; see the module's text, and `SuiteBase` for what one declares."""

    passes_at_least: ClassVar[int] = 0
    """How many of the node tests must pass."""
    conformance_gaps: ClassVar[tuple[KnownFailure, ...]] = ()
    """Node tests that the engine fails, and why. One that passes again is a failure."""

    @pytest.mark.slow
    def test_conformance(self) -> None:
        engine = self.made()
        report = conform(engine, isolate=why_not_isolated(engine) is None, gaps=self.conformance_gaps)
        assert report.ok, str(report)
        passed = report.counts[ResultWord.PASSED]
        assert passed >= self.passes_at_least, f"{passed} node tests passed; at least {self.passes_at_least} must"
