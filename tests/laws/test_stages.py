"""Law 1 for stages: a plan in consecutive stages, run one after the other, equals the plan; each within its memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.laws import bounded, doubles, living, pins, same_bits
from xrt.errors import PlanError
from xrt.module.stages import compile_stage
from xrt.partition import ClusteringOptions
from xrt.partition.stages import cut_plan
from xrt.testing.running import make_module
from xrt.testing.strategies import Form, make_random_inputs

PURE = Form(aliases=False)


@pytest.mark.slow
@bounded
@given(data=st.data(), count=st.integers(1, 4), most=st.one_of(st.none(), st.integers(1, 3)))
def test_stages_give_what_the_whole_gives(data, count, most):
    function = data.draw(living(PURE))
    engines = doubles()
    options = ClusteringOptions(maximum_nodes=most, pins=data.draw(pins(function, engines)))
    inputs = make_random_inputs(function, 8)
    with make_module(function, engines, clustering=options) as module:
        plan = module.plan_for(*inputs)
        nodes = [name for launch in plan.launches for name in launch.nodes]
        if count > len(nodes):
            return
        stages = plan.stages(count)
        assert sorted(n for stage in stages for launch in stage.plan.launches for n in launch.nodes) == sorted(nodes)
        values = inputs
        for stage in stages:
            with compile_stage(module, stage) as program:
                values = program(values)
        found = same_bits(values, function, 8)
        assert found, found.message
        assert [(s.plan, s.received, s.sent) for s in cut_plan(plan, [s.stop for s in stages])] == [
            (s.plan, s.received, s.sent) for s in stages
        ]


@pytest.mark.slow
@bounded
@given(data=st.data(), count=st.integers(1, 4), memory=st.integers(0, 2000))
def test_stages_fit_in_their_memory(data, count, memory):
    function = data.draw(living(PURE))
    with make_module(function, doubles()) as module:
        plan = module.plan_for(*make_random_inputs(function, 8))
        try:
            stages = plan.stages(count, memory=memory)
        except PlanError:
            return
        assert all(stage.weight_bytes + stage.value_bytes <= memory for stage in stages)
        for stage in stages:
            held = {name: c for launch in stage.plan.launches for name, c in launch.function.constants.items()}
            assert sum(constant.nbytes for constant in held.values()) == stage.weight_bytes
