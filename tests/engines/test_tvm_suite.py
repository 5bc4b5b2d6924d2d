"""The suite for tvm."""

from __future__ import annotations

import pytest

from xrt.testing import KnownFailure
from xrt.testing.suite import EngineSuite


@pytest.mark.slow
@pytest.mark.sample(24, plain=4)
class TestTvm(EngineSuite):
    engine = "tvm"
    gaps = (
        KnownFailure(
            "rounded_by_a_large_sum",
            "not upstream",
            "TVM makes one sum of the constants of neighbouring additions, and what they rounded is not rounded",
            "https://github.com/apache/tvm/tree/main/src/arith",
        ),
    )
    test_conformance = None  # run in tests/conformance
    test_node_tests_with_symbolic_dims = None
