"""The suite for tvm."""

from __future__ import annotations

import pytest

from xrt.testing.suite import EngineSuite


@pytest.mark.slow
@pytest.mark.sample(40, plain=4)
class TestTvm(EngineSuite):
    engine = "tvm"
    test_conformance = None  # run in tests/conformance
