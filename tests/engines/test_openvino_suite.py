"""The suite for openvino."""

from __future__ import annotations

import pytest

from xrt.testing.ledgers import Gap
from xrt.testing.suite import EngineSuite


@pytest.mark.slow
class TestOpenVino(EngineSuite):
    engine = "openvino"
    gaps = (
        Gap(
            "nan_goes_through",
            "not upstream",
            "the CPU plugin's kernels compare before they compute, and lose NaN in Relu, Max and Min",
            "https://docs.openvino.ai/2026/documentation/openvino-ir-format/operation-sets/operation-specs/arithmetic/maximum-1.html",
        ),
    )
    test_conformance = None  # run in tests/conformance
