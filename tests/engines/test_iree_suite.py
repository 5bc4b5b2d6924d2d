"""The suite for iree."""

from __future__ import annotations

import pytest

from xrt.testing.suite import EngineSuite


@pytest.mark.slow
@pytest.mark.sample(40, plain=12)
class TestIree(EngineSuite):
    engine = "iree"
    test_conformance = None  # run in tests/conformance
    test_node_tests_with_symbolic_dims = None
