"""The search for the nodes that an error budget can bear."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from xrt.calibration import error_search
from xrt.calibration.error_search import measure_error, quantize_within
from xrt.errors import CalibrationError
from xrt.graph import Function, TensorType, Value
from xrt.graph.types import DType

NAMES = [f"n{i}" for i in range(100)]
EXACT = Function((Value("x", TensorType(DType.FLOAT32, (1,))),), (Value("x"),), name="")


class Simulated:
    """A model whose error is the root of the sum of the squares of its quantized nodes' errors, times a factor."""

    def __init__(self, errors: Mapping[str, float], factor: float = 1.0) -> None:
        self.errors, self.factor, self.runs = errors, factor, 0

    def quantize(self, names: frozenset[str]) -> Function:
        return EXACT.replace(name="|".join(sorted(names)))

    def run(self, function: Function, batches: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
        self.runs += 1
        names = [name for name in function.name.split("|") if name]
        error = math.sqrt(sum(self.errors.get(name, 1e-4) ** 2 for name in names)) * (self.factor if len(names) > 1 else 1)
        return [[np.array([1.0, 0.0]) + np.array([0.0, error])] for _ in batches]

    def search(self, budget: float, names: Sequence[str] = NAMES) -> error_search.QuantizationResult:
        terms = {"quantize": self.quantize, "run": self.run, "batches": [{}], "held_out": [{}]}
        return quantize_within(EXACT, names, budget, **terms)  # type: ignore[arg-type]


@pytest.mark.parametrize("factor", [0.6, 1.0, 3.0])
def test_the_worst_nodes_are_kept_and_the_error_is_within_the_budget(factor: float) -> None:
    culprits = {"n3": 0.5, "n40": 0.2, "n77": 0.1}
    model = Simulated(culprits, factor)
    found = model.search(0.01)
    assert found.error <= 0.01
    assert [one.name for one in found.kept][:3] == ["n3", "n40", "n77"] and found.kept[0].error == pytest.approx(0.5)
    assert len(found.kept) <= 6 and {*found.quantized, *(one.name for one in found.kept)} == {*NAMES}
    assert model.runs <= 3 + 50 + 3 * 3 + 4  # parts first, and only the worst ones node by node


def test_nothing_is_searched_where_all_nodes_fit() -> None:
    model = Simulated({})
    found = model.search(0.01)
    assert (found.kept, found.quantized, model.runs) == ((), tuple(NAMES), 3)


def test_a_node_that_gives_nan_is_kept() -> None:
    found = Simulated({"n5": math.inf}).search(0.01)
    assert [one.name for one in found.kept] == ["n5"]


def test_a_budget_that_cannot_be_met_says_how_near_it_came() -> None:
    with pytest.raises(CalibrationError) as caught:
        Simulated({}).search(0.00005, NAMES[:4])
    assert str(caught.value) == (
        "no quantized model keeps the error within 0.005%: the nearest has 0.010%, with 1 of 4 nodes "
        "quantized. Allow a larger error, calibrate on more batches, or by another method"
    )


ONE = np.array([3.0, 4.0], np.float32)
ERRORS = {
    "equal": ([[ONE]], [[ONE]], 0.0),
    "a tenth": ([[ONE]], [[ONE * np.float32(1.1)]], 0.1),
    "the worst output": ([[ONE, ONE]], [[ONE, ONE * 2]], 1.0),
    "all batches together": ([[ONE], [ONE]], [[ONE], [ONE * 2]], math.sqrt(0.5)),
    "NaN": ([[ONE]], [[ONE * np.float32(np.nan)]], math.inf),
    "an infinity that is expected": ([[np.array([1, np.inf])]], [[np.array([1, np.inf])]], 0.0),
    "another infinity": ([[np.array([1, np.inf])]], [[np.array([1, -np.inf])]], math.inf),
    "zeros": ([[ONE * 0]], [[ONE]], math.inf),
    "integers are left out": ([[ONE, np.array([1])]], [[ONE, np.array([2])]], 0.0),
    "integers alone": ([[np.array([1, 2, 3, 4])]], [[np.array([1, 2, 3, 5])]], 0.25),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_relative_to_the_norm(case: str) -> None:
    expected, found, error = ERRORS[case]
    assert measure_error(expected, found) == pytest.approx(error, rel=1e-5)
