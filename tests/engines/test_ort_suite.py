"""The suite for ort."""

from __future__ import annotations

import pytest

from xrt.testing.suite import EngineSuite


@pytest.mark.slow
class TestOrt(EngineSuite):
    engine = "ort"
    test_conformance = None  # run in tests/conformance
    test_node_tests_with_symbolic_dims = None
