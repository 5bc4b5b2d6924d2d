"""The suite for openvino."""

from __future__ import annotations

import pytest

from xrt.testing import KnownFailure
from xrt.testing.suite import EngineSuite


@pytest.mark.slow
@pytest.mark.sample(8, plain=2)
class TestOpenVino(EngineSuite):
    engine = "openvino"
    gaps = (
        KnownFailure(
            "rounded_by_a_large_sum",
            "not upstream",
            "OpenVINO makes one sum of the constants of neighbouring additions, and what they rounded is not rounded",
            "https://github.com/openvinotoolkit/openvino/tree/master/src/common/transformations",
        ),
    )
    test_conformance = None  # run in tests/conformance
    test_node_tests_with_symbolic_dims = None
