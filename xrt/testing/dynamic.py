"""Executables for all sizes, as tests: what every engine promises by ``supports_dynamic_shapes``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from xrt.comparison import Comparison
from xrt.errors import CompileRefused
from xrt.testing.conformance import conform
from xrt.testing.corpus import CORPUS, find_entry
from xrt.testing.open_dims import OPENINGS, Opening, compare_at_sizes
from xrt.testing.suite_base import SuiteBase
from xrt.worker.isolated_engine import why_not_isolated

__all__ = ["DynamicShapes"]


class DynamicShapes(SuiteBase):
    """The corpus and the node tests with symbolic dims in place of sizes, each at several sizes."""

    @pytest.mark.parametrize("opening", OPENINGS)
    @pytest.mark.parametrize("name", [e.name for e in CORPUS])
    def test_corpus_with_symbolic_dims(self, name: str, opening: Opening) -> None:
        one = find_entry(name)
        if any(gap.covers(name) for gap in self.gaps):
            return  # wrong at every size
        if self.deviates(one):
            return
        try:
            with np.errstate(all="ignore"):
                found = list(compare_at_sizes(self.made(), one.function, one.make_inputs(), one.judge, opening))
        except CompileRefused:
            return
        except Exception as error:  # noqa: BLE001  # whatever an engine raises is reported with the entry's story
            found = [Comparison(f"{type(error).__name__}: {error}")]
        for comparison in found:
            assert comparison, f"{name} with {opening} extent symbolic ({one.why}): {comparison.message}"

    @pytest.mark.slow
    @pytest.mark.parametrize("opening", OPENINGS[:1])  # the others by `xrt conformance --opening`
    def test_node_tests_with_symbolic_dims(self, opening: Opening) -> None:
        engine = self.made()
        if not engine.supports_dynamic_shapes:
            return
        gaps = [replace(gap, everywhere=False) for gap in self.conformance_gaps]
        report = conform(engine, groups=["node"], opening=opening, isolate=why_not_isolated(engine) is None, gaps=gaps)
        assert report.ok, str(report)
