"""The suite for xla."""

from __future__ import annotations

import pytest

from xrt.testing.suite import EngineSuite


@pytest.mark.slow
@pytest.mark.sample(8, plain=2)
class TestXla(EngineSuite):
    engine = "xla"
    test_conformance = None  # run in tests/conformance
    test_node_tests_with_symbolic_dims = None
