"""The suite for openvino."""

from __future__ import annotations

import pytest

from xrt.testing.suite import EngineSuite


@pytest.mark.slow
class TestOpenVino(EngineSuite):
    engine = "openvino"
    test_conformance = None  # run in tests/conformance
