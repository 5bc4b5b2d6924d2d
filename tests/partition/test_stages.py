"""Where a plan is cut into stages: by cost, then by bytes, within a memory; between launches where that is balanced."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import xrt
from xrt.errors import PlanError
from xrt.graph import shape_key
from xrt.partition import CostTable, MeasuredCost, Plan


class _Chain(xrt.Graph):
    """Products of one size, with a narrow place in the middle."""

    def __init__(self, widths):
        self.weights = [np.ones(pair, "float32") for pair in pairwise(widths)]

    def build(self, x):
        for weight in self.weights:
            x = xrt.ops.MatMul(x, weight)
        return x


def _plan(widths, **options) -> Plan:
    with xrt.XRTModule(_Chain(widths), engine="toy", **options) as module:
        return module.plan_for(np.ones((4, widths[0]), "float32"))


def _sizes(stages):
    return [sum(len(launch.nodes) for launch in stage.plan.launches) for stage in stages]


def test_one_region_is_cut_into_equal_parts():
    plan = _plan([64] * 9)
    assert len(plan.launches) == 1
    stages = plan.stages(4)
    assert _sizes(stages) == [2, 2, 2, 2]
    assert [stage.weight_bytes for stage in stages] == [2 * 64 * 64 * 4] * 4
    assert [stage.sent_bytes for stage in stages] == [4 * 64 * 4] * 4
    assert str(stages[0]) == "2 nodes in 1 launches, weights 32.8 kB, values 2.0 kB, sends 1.0 kB"
    assert stages[1].received == stages[0].sent


def test_among_balanced_stages_the_cut_is_where_values_are_small():
    plan = _plan([64, 64, 8, 64, 64, 64])
    assert _sizes(plan.stages(2)) == [3, 2] or plan.stages(2)[0].sent_bytes == 4 * 8 * 4


def test_launches_are_kept_whole_where_that_is_balanced():
    plan = _plan([64] * 7, maximum_nodes=2)
    assert [len(launch.nodes) for launch in plan.launches] == [2, 2, 2]
    stages = plan.stages(3)
    assert [len(stage.plan.launches) for stage in stages] == [1, 1, 1]
    assert [stage.plan.launches[0].nodes for stage in stages] == [launch.nodes for launch in plan.launches]


def _measure(plan, seconds):
    keys = [(shape_key(launch.function), launch.engine) for launch in plan.launches]
    assert len(set(keys)) == len(seconds)
    return CostTable(dict(zip(keys, map(MeasuredCost.exactly, seconds), strict=True)))


def test_measured_costs_move_the_cuts():
    plan = _plan([64, 64, 64, 32, 64, 48, 64], maximum_nodes=2)
    stages = plan.stages(2, costs=_measure(plan, [1.0, 1.0, 2.0]))
    assert [len(stage.plan.launches) for stage in stages] == [2, 1]
    assert [stage.cost for stage in stages] == pytest.approx([2, 2])
    stages = plan.stages(2, costs=_measure(plan, [2.0, 1.0, 1.0]))
    assert [len(stage.plan.launches) for stage in stages] == [1, 2]


def test_a_memory_decides_where_costs_do_not():
    plan = _plan([8, 8, 8, 64, 8, 96, 8], maximum_nodes=2)
    costs = _measure(plan, [2.0, 1.0, 1.0])
    free = plan.stages(2, costs=costs)
    assert [len(stage.plan.launches) for stage in free] == [1, 2]
    limit = free[1].weight_bytes + free[1].value_bytes - 1
    tight = plan.stages(2, costs=costs, memory=limit)
    assert max(stage.weight_bytes + stage.value_bytes for stage in tight) <= limit
    assert tight[0].cost > free[0].cost


def test_why_there_are_no_stages():
    plan = _plan([64] * 5)
    for count, memory, text in (
        (5, None, "a plan of 4 nodes has 1 to 4 stages; 5 were asked for"),
        (0, None, "a plan of 4 nodes has 1 to 4 stages; 0 were asked for"),
        (2, 20_000, "2 stages of at most 20.0 kB each were asked for; the plan needs at least 4"),
        (4, 17_000, "4 stages of at most 17.0 kB each were asked for; node 'matmul_1' (MatMul) alone needs 18.4 kB"),
    ):
        with pytest.raises(PlanError) as caught:
            plan.stages(count, memory=memory)
        assert str(caught.value) == text


def test_a_plan_that_updates_inputs_has_no_stages():
    class Update(xrt.Graph):
        def build(self, x, y):
            self.update(x, xrt.ops.Add(x, y))
            return y * 2

    with xrt.XRTModule(Update(), engine="toy") as module:
        plan = module.plan_for(np.ones(2, "float32"), np.ones(2, "float32"))
    with pytest.raises(PlanError) as caught:
        plan.stages(2)
    assert str(caught.value) == "the model updates inputs in place (x); stages in processes of their own cannot do that"
