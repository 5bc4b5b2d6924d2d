"""What a plan is predicted to cost, and how that is told."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings

from tests.partition.drawn import F32, chain, engine, function, graphs, node, palette
from xrt.graph import DType, Function, TensorType, Value, fingerprint, shape_key
from xrt.partition import CostTable, MeasuredCost, Plan, partition, plan_from_assignment
from xrt.partition.cost_table import LAUNCH
from xrt.placement import ProfilingRequest, choose_requests, predict_cost
from xrt.placement.prediction import inline_regions


def mixture() -> Plan:
    """Return a plan of three regions on two engines: n0 n1 | n2 | n3."""
    return plan_from_assignment(chain("RRGR"), palette(), {"n0": "green", "n1": "green", "n2": "all", "n3": "green"})


def measured(plan: Plan, *costs: float | str | None) -> CostTable:
    """Return a table of the plan's regions; None for one that was not measured."""
    table = CostTable().with_boundary("green", "all", 1e-6, 1e-9).with_boundary("all", "green", 2e-6, 0.0)
    for launch, cost in zip(plan.launches, costs, strict=True):
        if cost is not None:
            known = MeasuredCost.exactly(cost) if isinstance(cost, float) else cost
            table = table.with_region(shape_key(launch.function), launch.engine, known)
    return table


def test_what_was_measured() -> None:
    plan = mixture()
    found = predict_cost(plan, measured(plan, 1e-3, 2e-3, 4e-3))
    assert found.seconds == pytest.approx(7e-3 + 1e-6 + 16e-9 + 2e-6)
    assert {r.source for r in found.regions} == {"measured"}
    assert (
        str(found)
        == """predicted: 7.003 ms; 3 of 3 regions measured
  xrt_green_0 on green, 2 nodes: 1.000 ms measured
  xrt_all_1 on all, 1 node: 2.000 ms measured
  xrt_green_2 on green, 1 node: 4.000 ms measured
  v2 from xrt_green_0 to xrt_all_1, 16 bytes: 1.0 us
  v3 from xrt_all_1 to xrt_green_2, 16 bytes: 2.0 us"""
    )


def test_what_is_impossible() -> None:
    plan = mixture()
    found = predict_cost(plan, measured(plan, 1e-3, "it hung for 5 s", 4e-3))
    assert math.isinf(found.seconds)
    assert {r.source for r in found.regions} != {"measured"}
    assert str(found).splitlines()[:3] == [
        "predicted: never; 2 of 3 regions measured",
        "  xrt_green_0 on green, 2 nodes: 1.000 ms measured",
        "  xrt_all_1 on all, 1 node: never impossible (it hung for 5 s)",
    ]


def test_what_was_not_measured_says_from_what_it_was_estimated() -> None:
    whole = chain("RRRR")
    plan = plan_from_assignment(whole, palette(), dict.fromkeys(["n0", "n1", "n2", "n3"], "green"))
    alone = node_alone(whole, "green")
    table = CostTable().with_launch("green", 1e-6)
    assert notes(plan, table) == ["estimated from its size; nothing of it was measured"]
    table = table.with_region(alone.key, "green", MeasuredCost.exactly(11e-6))
    assert notes(plan, table) == ["estimated from parts that were measured"]
    assert predict_cost(plan, table).seconds == pytest.approx(41e-6), "four times what one costs, and one launch"
    cut = plan_from_assignment(
        whole, palette(), dict.fromkeys(["n0", "n1", "n2", "n3"], "green"), groups={"n0": 0, "n1": 0, "n2": 1, "n3": 1}
    )
    table = CostTable().with_region(shape_key(plan.launches[0].function), "green", MeasuredCost.exactly(105e-6))
    assert notes(cut, table) == ["estimated by its share of larger parts"] * 2
    assert predict_cost(cut, table).regions[0].seconds == pytest.approx(50e-6 + LAUNCH), "half of it, and a launch"


def node_alone(whole: Function, spec: str) -> ProfilingRequest:
    """Return the first piece of one node, once the whole is known."""
    known = CostTable({(piece.key, piece.spec): MeasuredCost.exactly(1e-3) for piece in choose_requests(whole, palette())})
    return next(piece for piece in choose_requests(whole, palette(), known) if len(piece.nodes) == 1 and piece.spec == spec)


def notes(plan: Plan, table: CostTable) -> list[str]:
    return [f"{region.source} {region.note}" for region in predict_cost(plan, table).regions]


def test_a_fusion_that_was_measured_is_expected_again() -> None:
    """Two nodes together cost half of what they cost apart: so will four, more or less."""
    whole = chain("RRRR")
    apart = plan_from_assignment(
        whole, palette(), dict.fromkeys(["n0", "n1", "n2", "n3"], "green"), groups={"n0": 0, "n1": 0, "n2": 1, "n3": 1}
    )
    alone = node_alone(whole, "green")
    table = CostTable().with_launch("green", 0.0).with_region(alone.key, "green", MeasuredCost.exactly(100e-6))
    for launch in apart.launches:
        table = table.with_region(shape_key(launch.function), "green", MeasuredCost.exactly(100e-6))
    together = plan_from_assignment(whole, palette(), dict.fromkeys(["n0", "n1", "n2", "n3"], "green"))
    assert predict_cost(together, table).seconds < 250e-6, "400 us without the fusion"


def test_sizes_that_are_not_known_are_estimated_and_say_so() -> None:
    plain = function([node("Red", "x", "a", name="n0"), node("Blue", "a", "b", name="n1")], "b")
    types = {"a": TensorType(DType.FLOAT32, ("N", 3))}
    dynamic = Function(plain.inputs, plain.outputs, plain.nodes, types=types, opsets=plain.opsets)
    (boundary,) = predict_cost(plan_from_assignment(dynamic, palette(), {"n0": "red", "n1": "all"}), CostTable()).boundaries
    assert (boundary.bytes, boundary.is_estimated) == (32 * 3 * 4, True)
    assert str(boundary) == "a from xrt_red_0 to xrt_all_1, about 384 bytes: 5.0 us"


def test_a_value_read_by_two_regions_crosses_twice() -> None:
    nodes = [node("Red", "x", "a", name="n0"), node("Blue", "a", "b", name="n1"), node("Green", "a b", "c", name="n2")]
    plan = plan_from_assignment(function(nodes, "c"), palette(), {"n0": "red", "n1": "all", "n2": "green"})
    assert [boundary.value for boundary in predict_cost(plan, CostTable()).boundaries] == ["a", "a", "b"]


def test_a_plan_of_nothing_costs_nothing() -> None:
    plan = partition(function([], "x"), palette())
    assert str(predict_cost(plan, CostTable())) == "predicted: 0.0 us; 0 of 0 regions measured"


@pytest.mark.slow
@settings(max_examples=40)
@given(graphs(dead=False))
def test_a_plan_unfolds_to_the_model(function: Function) -> None:
    bare = function.replace(nodes=tuple(node_without_control(n) for n in function.nodes))
    again = inline_regions(partition(bare, palette()))
    assert again.nodes == bare.nodes
    assert shape_key(again) == shape_key(bare)
    assert fingerprint(again) == fingerprint(bare)


def node_without_control(node: object) -> object:
    from dataclasses import replace

    return replace(node, control=())


def test_unknown_engines_cost_alike() -> None:
    """With an empty table every engine looks the same, so that the order of the list decides."""
    whole = Function((Value("x", F32),), (Value("y", F32),), (node("Red", "x", "y", name="n0"),), opsets={"": 20})
    one, two = (plan_from_assignment(whole, [engine("a"), engine("b")], {"n0": spec}) for spec in "ab")
    assert predict_cost(one, CostTable()).seconds == predict_cost(two, CostTable()).seconds
