"""Whole models on devices compute what they compute on the CPU, played and recorded."""

from __future__ import annotations

import pytest

import xrt
from tests.devices.worlds import TOY, World, listed, traffic
from xrt.comparison import compare_all, tolerance_for
from xrt.models import load, sample_inputs

MODELS = {"bert": {"layers": 1, "hidden": 32, "heads": 2, "vocabulary": 50}, "squeezenet": {}}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_what_it_does_on_the_cpu(world: World, name: str) -> None:
    model = load(name, **MODELS[name])
    inputs = sample_inputs(model, seed=0)
    expected = xrt.XRTModule(model, TOY)(**inputs)
    m = world.module(model, cuda_graph=True)
    for _ in range(3):  # played, recorded, replayed
        found = compare_all(listed(world.down(m(**inputs))), listed(expected), tolerance_for("float32", "network"))
        assert found, found.message  # products depend on where their operands lie in memory, and on the processor
    assert "\na graph of the device" in str(m.explain())
    assert (traffic(m).copies_out, traffic(m).waits) == (0, 0)
