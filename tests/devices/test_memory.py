"""Memory of a device that runs out, wherever it does: one error that says how much and for whom, and nothing else is broken."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import xrt
from tests.devices.models import Counter, Forked, Net, Two, numbers
from tests.devices.worlds import TOY, World, world
from xrt.errors import OutOfDeviceMemory

X, W, ONE = numbers(40, 4), numbers(4, 5, seed=1), np.ones((40, 4), "float32")
TOLD = re.compile(
    r"^.+ asked cuda:[01] for ([0-9,.]+ (MB|bytes)|an amount of memory that it does not tell); .+ are free\. The module"
)


class Weighty(xrt.Graph):
    """A model with a constant of its own, which is an output too."""

    def build(self, x: Any) -> Any:
        w = xrt.ops.Constant(value=numbers(4, 60, seed=2))
        return {"y": xrt.ops.Relu(xrt.ops.MatMul(x, w)), "w": w, "x": x, "t": xrt.ops.Transpose(xrt.ops.Neg(x), perm=[1, 0])}


SPLIT = {"engine": [TOY, "ort"], "devices": {"ort": "cpu"}, "pins": ["Exp|Sqrt=ort"], "strict": True}
CASES: dict[str, tuple[xrt.Graph, Callable[[], list[Any]], dict[str, Any]]] = {
    "plain": (Net(), lambda: [X, W], {}),
    "weights": (Weighty(), lambda: [X], {}),
    "updates": (Counter(), lambda: [X.copy(), ONE], {}),
    "checked": (Net(), lambda: [X, W], {"engine": "toy", "check": 1.0}),
    "recorded": (Net(), lambda: [X, W], {"cuda_graph": True}),
    "two devices": (Two(), lambda: [X], {}),
    "a mixture": (Forked(), lambda: [np.abs(X)], SPLIT),
}
LIMITS = [0, 200, 700, 900, 1_500, 2_000, 2_500, 3_000, 3_500, 4_000, 5_000, 6_000, 8_000, 10_000, 14_000, 60_000]


def starved(found: World, limit: int, call: Callable[[], Any]) -> tuple[Any, str]:
    """Make the call three times with so little memory; return the last results, or what the last error says."""
    assert found.machine is not None
    found.machine.limit = limit
    told, result = "", None
    for _ in range(3):
        try:
            result, told = call(), ""
        except OutOfDeviceMemory as error:
            told = str(error)
    found.machine.limit = 1 << 30
    assert not told or TOLD.match(told), told
    return result, told


@pytest.mark.slow
@pytest.mark.parametrize("bound", [False, True], ids=["called", "bound"])
@pytest.mark.parametrize("name", CASES)
def test_every_amount_of_memory_is_enough_or_is_reported_and_the_module_goes_on(name: str, bound: bool) -> None:
    model, inputs, options = CASES[name]
    met = set()
    for limit in LIMITS:
        with world("late") as found, warnings.catch_warnings():
            warnings.simplefilter("error")  # a lack of memory is no fault of an engine: nothing is placed elsewhere
            m, expected = found.module(model, **options), xrt.XRTModule(model, TOY)(*inputs())
            call = (lambda: m.bind(*inputs())()) if bound else (lambda: m(*inputs()))  # noqa: B023  # they are called here
            result, told = starved(found, limit, call)
            met.add(bool(told))
            for results in (call(), *([] if told else [result])):
                for got, want in zip(_listed(found.down(results)), _listed(expected), strict=True):
                    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert met == {True, False}, "some amounts were too little, and some were enough"


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def test_weights_that_find_no_room_are_reported_by_the_region_that_has_them() -> None:
    with world("late", limit=500) as found, pytest.raises(OutOfDeviceMemory, match=r"^engine 'toy\{native=off\}' in xrt_toy_0 "):
        found.module(Weighty()).compile(X)


@pytest.mark.slow
def test_a_lack_of_memory_while_tuning_puts_one_engine_out_of_the_race() -> None:
    with world("eager", limit=3_000) as found, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        m = found.module(Weighty(), [TOY, "auto"], budget=60.0)
        with pytest.raises(OutOfDeviceMemory):
            m(numbers(100, 4))
        found.machine.limit = 1 << 30  # type: ignore[union-attr]  # it is simulated
        assert len(m(X)) == 4
