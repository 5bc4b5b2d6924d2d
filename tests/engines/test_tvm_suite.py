"""The suite for tvm."""

from __future__ import annotations

import pytest

from xrt.testing.ledgers import Gap
from xrt.testing.suite import EngineSuite


@pytest.mark.slow
class TestTvm(EngineSuite):
    engine = "tvm"
    gaps = (
        Gap(
            "rounded_by_a_large_sum",
            "not implemented",
            "TVM's simplifier makes one sum of the constants of neighbouring additions, and what they rounded is not rounded",
            "https://github.com/apache/tvm/blob/main/src/arith/rewrite_simplify.cc",
        ),
    )
    test_conformance = None  # run in tests/conformance
