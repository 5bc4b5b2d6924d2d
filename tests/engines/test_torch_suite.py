"""The suite for torch."""

from __future__ import annotations

import pytest

from xrt.testing.suite import EngineSuite


@pytest.mark.slow
class TestTorch(EngineSuite):
    engine = "torch"
    test_conformance = None  # run in tests/conformance
    test_node_tests_with_symbolic_dims = None
