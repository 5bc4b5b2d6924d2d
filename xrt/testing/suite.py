"""The suite that proves an engine: subclass it in a test file, name the engine, and pytest runs the contract and the laws.

    from xrt.testing.suite import EngineSuite

    class TestMine(EngineSuite):
        engine = "mine"

Every test asks the engine by its contract, or through a module that has it in its list. What the engine declines is no
failure; what it accepts and gets wrong is, unless `gaps` knows it. This module needs pytest and hypothesis.
"""

from __future__ import annotations

from typing import ClassVar

import pytest

from xrt.testing.conformance import conform
from xrt.testing.contract import Contract
from xrt.testing.dynamic import DynamicShapes
from xrt.testing.laws import Laws
from xrt.testing.report import ResultWord
from xrt.testing.suite_base import FORM, bounded
from xrt.worker.isolated_engine import why_not_isolated

__all__ = ["FORM", "EngineSuite", "bounded"]


class EngineSuite(Contract, Laws, DynamicShapes):
    """The contract, the laws, executables for all sizes and the node tests for one engine.

    `SuiteBase` has what one declares.
    """

    passes_at_least: ClassVar[int] = 0
    """How many of the node tests must pass."""

    @pytest.mark.slow
    def test_conformance(self) -> None:
        engine = self.made()
        report = conform(engine, isolate=why_not_isolated(engine) is None, gaps=self.conformance_gaps)
        assert report.ok, str(report)
        passed = report.counts[ResultWord.PASSED]
        assert passed >= self.passes_at_least, f"{passed} node tests passed; at least {self.passes_at_least} must"
