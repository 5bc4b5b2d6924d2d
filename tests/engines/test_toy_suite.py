"""The suite for toy: its Python kernels, the reference, are right to the bit however they are cut; native ones are right."""

from __future__ import annotations

from typing import ClassVar

import pytest

from xrt.comparison import BIT_EQUAL, Tolerance
from xrt.testing.suite import EngineSuite


@pytest.mark.slow
class TestReference(EngineSuite):
    engine = "toy{native=off}"
    tolerance: ClassVar[Tolerance] = BIT_EQUAL
    test_conformance = None  # run in tests/conformance
    test_node_tests_with_symbolic_dims = None


class TestToy(EngineSuite):
    engine = "toy"
    test_conformance = None  # run in tests/conformance
    test_node_tests_with_symbolic_dims = None
