"""Toy on devices: kernels over the array module and nothing else, sizes on the host."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest

import xrt
from tests.devices.models import numbers
from tests.devices.worlds import TOY, same, traffic, world
from xrt.cache import CompileCache
from xrt.errors import PlanError
from xrt.testing import node_cases
from xrt.testing.corpus.entry import graph, node, sequence
from xrt.testing.running import make_module
from xrt.testing.simulated import simulate_devices


def test_an_element_of_a_sequence_is_returned_as_a_copy() -> None:
    inputs = {"s": sequence("float32[3]")}
    function = graph(inputs, {"y": "float32[3]"}, node("SequenceAt", "s first", "y"), constants={"first": np.array(0)})
    with world("late") as devices:
        element = devices.up(numbers(3))
        assert devices.module(function)([element]) is not element


def test_an_output_that_is_left_out_is_no_input_of_a_later_node() -> None:
    nodes = node("Split", "x", "- b", num_outputs=2), node("Clip", "b - most", "y")
    function = graph({"x": "float32[4]"}, {"y": "float32[2]"}, *nodes, constants={"most": np.float32(1)})
    with world("late") as devices:
        same(devices, devices.module(function)(np.float32([7, 8, 0, 3])), np.float32([0, 1]))


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("order", ["late", "random"])
def test_every_node_test_passes_on_a_device_or_is_declined(order: Any) -> None:
    words: Counter[str] = Counter()
    wrong = []
    for case in node_cases():
        with simulate_devices(order=order), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with make_module(case.function, [TOY], device="cuda") as m:
                    results = m(*case.inputs)
                    host = [down(r) for r in ([results] if len(case.function.outputs) == 1 else results)]
            except PlanError as error:
                words["declined" if TOY in str(error) else "declined without a reason"] += 1
                continue
            result = case.judge(host)
            words["passed" if result else "failed"] += 1
            wrong += [] if result else [(case.name, str(result))]
    assert wrong == []
    assert words["passed"] >= 1400 and words["declined"] <= 480 and not words["declined without a reason"]


def down(value: Any) -> Any:
    return [down(item) for item in value] if isinstance(value, list) else value.get() if hasattr(value, "get") else value


class Sized(xrt.Graph):
    """Reshapes to what is computed of a shape, as exported models do."""

    def build(self, x: Any) -> Any:
        rows = xrt.ops.Gather(xrt.ops.Shape(x), np.array([0], "int64"))
        target = xrt.ops.Concat(rows, np.array([-1], "int64"), axis=0)
        return xrt.ops.Reshape(xrt.ops.Exp(x), target)


def test_what_is_computed_of_shapes_stays_on_the_host() -> None:
    x = numbers(3, 2, 4)
    with world("late") as devices:
        m = devices.module(Sized(), fold_constants=False)
        same(devices, m(x), xrt.XRTModule(Sized(), TOY)(x))
        assert traffic(m).waits == 0 and devices.machine.copies == ["in", "out"], "x, and the result for this test"


def test_a_type_that_no_device_holds_is_a_reason() -> None:
    class Texts(xrt.Graph):
        def build(self, x: Any) -> Any:
            return xrt.ops.Equal(x, x)

    m = xrt.XRTModule(Texts(), TOY, "cuda", strict=True, cache=CompileCache())
    with pytest.raises(PlanError, match=r"is string, which CuPy does not support"):
        m.plan_for(np.array(["a"], object))
