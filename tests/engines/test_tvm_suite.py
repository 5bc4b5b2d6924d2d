"""The suite for tvm."""

from __future__ import annotations

import pytest

from xrt.testing.suite import EngineSuite


@pytest.mark.slow
@pytest.mark.sample(24, plain=4)
class TestTvm(EngineSuite):
    engine = "tvm"
    test_conformance = None  # run in tests/conformance
    test_node_tests_with_symbolic_dims = None
