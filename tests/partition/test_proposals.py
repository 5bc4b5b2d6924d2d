"""What the planner asks to have measured, what it proposes, and what would unlock a graph."""

from __future__ import annotations

import pytest

from tests.partition.drawn import chain, engine, function, node, palette
from tests.partition.synthetic import run_search
from tests.partition.test_planner import by_hash
from xrt.errors import OptionError
from xrt.partition import CostTable, MeasuredCost, Plan, RegionCost, map_nodes_to_engines, map_nodes_to_regions
from xrt.placement import (
    ProfilingRequest,
    SearchOptions,
    choose_requests,
    predict_cost,
    propose_plans,
    rank_missing_support,
)
from xrt.placement.bitset_graph import BitsetGraph, to_mask

# ------------------------------------------------------------------ search, pieces, proposals


@pytest.mark.slow
def test_the_whole_is_asked_first_and_nothing_twice() -> None:
    whole = chain("RRGR")
    first = choose_requests(whole, palette())
    assert [(p.spec, p.nodes) for p in first] == [("green", ("n0", "n1", "n2", "n3")), ("all", ("n0", "n1", "n2", "n3"))]
    known = CostTable({(p.key, p.spec): MeasuredCost.exactly(1e-3) for p in first})
    asked = choose_requests(whole, palette(), known)
    assert asked
    assert len({(p.key, p.spec) for p in asked}) == len(asked)
    assert {(p.key, p.spec) for p in asked}.isdisjoint(known.regions)


@pytest.mark.slow
def test_equal_blocks_are_asked_once() -> None:
    blocks = chain("RGRRG" * 12)
    whole = CostTable({(p.key, p.spec): MeasuredCost.exactly(1e-3) for p in choose_requests(blocks, palette())})
    asked = choose_requests(blocks, palette(), whole, SearchOptions(pieces=1000))
    alone = [p for p in asked if len(p.nodes) == 1]
    assert len(alone) == len({(p.key, p.spec) for p in alone}) == 5, "Red on three engines, Green on two"


@pytest.mark.slow
def test_no_more_pieces_than_asked_for() -> None:
    whole = chain("RGB" * 10)
    known = CostTable({(p.key, p.spec): MeasuredCost.exactly(1e-3) for p in choose_requests(whole, palette())})
    assert len(choose_requests(whole, palette(), known, SearchOptions(pieces=7))) == 7


@pytest.mark.slow
def test_measuring_can_be_stopped() -> None:
    heard: list[ProfilingRequest] = []

    def measure(piece: ProfilingRequest) -> RegionCost | None:
        heard.append(piece)
        return by_hash(piece) if len(heard) < 4 else None

    found = run_search(chain("RRGB"), palette(), measure)
    assert (found.measured, len(found.table.regions), found.is_finished) == (3, 3, False)
    assert found.plans


@pytest.mark.slow
def test_an_engine_that_is_better_at_a_run_gets_it() -> None:
    """Softmax, 50 elementwise, softmax: two engines, each ten times as quick at one of them."""
    nodes = [node("Softmax", "x", "v0", name="first")]
    nodes += [node("Relu", f"v{i}", f"v{i + 1}", name=f"n{i}") for i in range(50)]
    nodes += [node("Softmax", "v50", "y", name="last")]
    whole = function(nodes, "y")

    def measure(piece: ProfilingRequest) -> RegionCost:
        softmax = sum(n.op_type == "Softmax" for n in piece.function.nodes)
        relu = len(piece.function.nodes) - softmax
        good, bad = (softmax, relu) if piece.spec == "normal" else (relu, softmax)
        return MeasuredCost.exactly(5e-6 + good * 100e-6 + bad * 1000e-6)

    left = iter(range(24))
    found = run_search(whole, [engine("normal"), engine("fuser")], lambda p: measure(p) if next(left, None) is not None else None)
    assert [(launch.engine, len(launch.nodes)) for launch in found.plans[0].launches] == [
        ("normal", 1),
        ("fuser", 50),
        ("normal", 1),
    ]


@pytest.mark.slow
def test_what_was_measured_throughout_is_proposed_on_the_quickest_engines() -> None:
    """Estimates of what was not measured look better, and lead the search elsewhere: they may be wrong."""
    whole, engines = chain("RRBRRGRRGRR"), [engine("main", "Red", "Green"), engine("poor", "Blue"), engine("all")]
    ground, table = BitsetGraph.of(whole, engines, "cpu"), CostTable()
    known = {
        (0, 2): {"main": 0.01},
        (2, 3): {"poor": 13.0, "all": 2.24},
        (3, 11): {"main": 24.0, "all": 92.0},
        (3, 6): {"all": 1.0},
        (0, 11): {"all": 97.0},
    }
    for (first, end), costs in known.items():
        for spec, milliseconds in costs.items():
            table = table.with_region(ground.key(to_mask(range(first, end))), spec, MeasuredCost.exactly(milliseconds * 1e-3))
    plans = propose_plans(whole, engines, table, limit=6)
    split = [plan for plan in plans if [len(launch.nodes) for launch in plan.launches] == [2, 1, 8]]
    (found,) = (plan for plan in split if [launch.engine for launch in plan.launches] == ["main", "all", "main"])
    assert {r.source for r in predict_cost(found, table).regions} == {"measured"}


@pytest.mark.slow
def test_a_whole_that_fails_is_cut() -> None:
    """One engine takes everything, and fails at more than three nodes: there is a plan all the same."""
    whole = chain("RRRRRRRR")
    found = run_search(
        whole, [engine("all")], lambda p: "too large" if len(p.nodes) > 3 else MeasuredCost.exactly(1e-4 * len(p.nodes))
    )
    assert found.plans
    assert {launch.engine for launch in found.plans[0].launches} == {"all"}
    assert max(len(launch.nodes) for launch in found.plans[0].launches) <= 3
    assert map_nodes_to_engines(found.plans[0]) == {f"n{i}": "all" for i in range(8)}
    assert len(set(map_nodes_to_regions(found.plans[0]).values())) == len(found.plans[0].launches)


def test_where_no_engine_takes_a_node_there_is_no_plan() -> None:
    assert propose_plans(chain("RB"), [engine("red", "Red")], CostTable()) == ()
    assert rank_missing_support(chain("RB"), [engine("red", "Red")], CostTable()) == ()


def test_every_single_engine_plan_is_proposed_whatever_the_limit() -> None:
    found = propose_plans(chain("RGRG"), palette(), CostTable(), limit=1)
    assert {plan.launches[0].engine for plan in found if len(plan.launches) == 1} == {"green", "all"}


def test_an_empty_function_is_one_plan_of_nothing() -> None:
    found = propose_plans(function([], "x"), palette(), CostTable())
    assert all(plan.launches == () for plan in found)


@pytest.mark.parametrize("field", ["pieces", "plans", "grain", "effort"])
def test_a_bound_below_one_is_reported(field: str) -> None:
    with pytest.raises(OptionError, match=rf"^{field} must be an integer of at least 1; got 0$"):
        SearchOptions(**{field: 0})


# ------------------------------------------------------------------ unlocks


@pytest.mark.slow
def test_what_would_unlock_a_model_is_reported_with_what_it_saves() -> None:
    """The quick engine declines White in the middle of a chain, which costs a change of engines there and back."""
    whole = chain("RRRWRRR")
    engines = [engine("quick", "Red", "Green"), engine("slow")]
    found = run_search(whole, engines, lambda p: MeasuredCost.exactly(len(p.nodes) * (1e-5 if p.spec == "quick" else 1e-4)))
    shown = rank_missing_support(whole, engines, found.table)
    assert [(one.operator, one.engine, one.nodes) for one in shown] == [("White", "quick", 1)]
    assert shown[0].seconds > 5e-5


@pytest.mark.slow
def test_what_saves_nothing_is_left_out() -> None:
    whole = chain("RRWRR")
    engines = [engine("slow", "Red"), engine("quick")]
    found = run_search(whole, engines, lambda p: MeasuredCost.exactly(len(p.nodes) * (1e-5 if p.spec == "quick" else 1e-3)))
    assert rank_missing_support(whole, engines, found.table) == ()


def test_plans_are_equal_values() -> None:
    one, two = (propose_plans(chain("RGB"), palette(), CostTable()) for _ in range(2))
    assert one == two
    assert all(isinstance(plan, Plan) for plan in one)
