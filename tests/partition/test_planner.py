"""What the planner proposes: plans that keep the laws, near the true optimum, the same in every process."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings

from tests.partition.drawn import chain, engine, function, graphs, node, palette, quotient, run
from tests.partition.synthetic import Optimum, World, complete, worlds
from xrt.engines import CompileContext, create
from xrt.errors import OptionError
from xrt.formats.placement_file import dumps, loads
from xrt.graph import DType, Function, Node, TensorType, Value, shape_key
from xrt.partition import CostTable, MeasuredCost, Plan, RegionCost, map_nodes_to_engines, map_nodes_to_regions
from xrt.placement import (
    ProfilingRequest,
    SearchOptions,
    choose_requests,
    predict_cost,
    propose_plans,
    rank_missing_support,
    run_search,
)
from xrt.placement.cost_model.bitset_graph import BitsetGraph, to_mask

TERMS = {"x": "x", "y": "y"}
RATIO = 1.02
"""How much more than the optimum a plan may cost."""

EXCEEDING: dict[int, float] = {}
"""For each seed whose plan costs more than that, after a search that measures only some regions: the ratio, rounded to 0.01."""


def by_hash(piece: ProfilingRequest) -> RegionCost:
    """Return a cost that looks like chance and is the same everywhere; one piece in eight cannot be measured."""
    number = int(shape_key(piece.function)[:8], 16) ^ sum(map(ord, piece.spec))
    return "it failed" if number % 8 == 0 else MeasuredCost.exactly((number % 997 + 1) * 1e-6)


# ------------------------------------------------------------------ laws


@settings(max_examples=30)
@given(graphs(most=7))
def test_every_plan_keeps_the_laws_whatever_costs_what(function: Function) -> None:
    found = run_search(function, palette(), by_hash, SearchOptions(rounds=3))
    for plan in found.plans:
        assert nx.is_directed_acyclic_graph(quotient(function, plan))
        assert sorted(name for launch in plan.launches for name in launch.nodes) == sorted(n.name for n in function.nodes)
        assert run(plan.function, TERMS) == run(function, TERMS)
        assert math.isfinite(predict_cost(plan, found.table).seconds), "a plan with an impossible region is no proposal"


@settings(max_examples=30)
@given(graphs(most=7))
def test_plans_come_in_the_order_of_their_predictions(function: Function) -> None:
    found = run_search(function, palette(), by_hash, SearchOptions(rounds=2))
    costs = [predict_cost(plan, found.table).seconds for plan in found.plans]
    assert costs == sorted(costs)


@settings(max_examples=20)
@given(graphs(most=7))
def test_the_regions_of_plans_have_the_keys_of_their_pieces(function: Function) -> None:
    seen: dict[tuple[str, str], frozenset[str]] = {}

    def measure(piece: ProfilingRequest) -> RegionCost:
        assert piece.key == shape_key(piece.function)
        assert {n.name for n in piece.function.nodes} == set(piece.nodes)
        assert (piece.key, piece.spec) not in seen, "equal parts are measured once"
        seen[piece.key, piece.spec] = frozenset(piece.nodes)
        return by_hash(piece)

    found = run_search(function, palette(), measure)
    assert found.measured == len(seen)
    assert found.is_finished
    if found.plans:
        assert predict_cost(found.plans[0], found.table).is_measured, "the best plan is no guess"


def test_a_region_measured_before_control_edges_left_the_plan_is_still_measured() -> None:
    """The edge from ``n0`` to ``n2`` puts ``n0`` first; between regions no plan has it, and ``n3`` came first."""
    nodes = [
        Node("Green", (), ("v0",), name="n0", device="cuda:1"),
        Node("Red", ("y",), ("v2",), name="n2", control=("n0",), device="cuda:0"),
        Node("White", ("x",), ("v3",), name="n3"),
    ]
    inputs = [Value(name, TensorType(DType.FLOAT32, (4,))) for name in "xy"]
    whole = Function(tuple(inputs), tuple(map(Value, ("v2", "v3", "v0"))), tuple(nodes), opsets={"": 20})

    def measure(piece: ProfilingRequest) -> RegionCost:
        return "it failed" if set(piece.nodes) == {"n0"} else MeasuredCost.exactly(1e-6)

    found = run_search(whole, palette(), measure)
    for plan in found.plans:
        table = CostTable()
        for launch in plan.launches:
            table = table.with_region(shape_key(launch.function), launch.engine, MeasuredCost.exactly(1e-6))
        assert predict_cost(plan, table).is_measured
    assert any({"n0", "n3"} <= set(launch.nodes) for plan in found.plans for launch in plan.launches)


def test_a_plan_cut_in_pieces_computes_the_same_bits() -> None:
    whole = _arithmetic()
    engines = [create("toy{native=off}"), create("toy")]
    found = run_search(whole, engines, by_hash, SearchOptions(rounds=2))
    assert max(len(plan.launches) for plan in found.plans) > 1
    x = np.random.default_rng(0).standard_normal((8, 16), dtype=np.float32)
    expected = _called(whole, [x])
    for plan in found.plans:
        values: dict[str, Any] = {"x": x}
        for launch in plan.launches:
            values.update(zip(launch.outputs, _called(launch.function, [values[name] for name in launch.inputs]), strict=True))
        assert [values[v.name].tobytes() for v in whole.outputs] == [one.tobytes() for one in expected]


def _arithmetic() -> Function:
    nodes = [
        node("Exp", "x", "a"),
        node("Softmax", "a", "b"),
        node("Mul", "a b", "c"),
        node("Relu", "x", "d"),
        node("Add", "c d", "e"),
        node("Softmax", "e", "f"),
        node("Sub", "f a", "y"),
    ]
    plain = function(nodes, "y e")
    shape = (8, 16)
    types = {name: type_.with_shape(shape) for name, type_ in plain.types.items()}
    values = [tuple(type(v)(v.name, v.type.with_shape(shape)) for v in side) for side in (plain.inputs, plain.outputs)]
    return Function(values[0], values[1], plain.nodes, types=types, opsets={"": 20})


def _called(function: Function, inputs: list[Any]) -> list[Any]:
    executable = create("toy{native=off}").compile(function, CompileContext())
    executable.prepare()
    return list(executable.run(inputs))


# ------------------------------------------------------------------ the optimum


def searched(world: World) -> Plan:
    """Return the plan that comes of measuring what the search asks for."""
    return run_search(world.function, world.engines, world.measure, table=world.table).plans[0]


def proposed(world: World) -> Plan:
    """Return the plan that is proposed where every region there can be has been measured."""
    return propose_plans(world.function, world.engines, complete(world))[0]


def ratio(world: World, plan: Plan) -> float:
    """Return what a plan truly costs, against the best there is."""
    mine = world.total(plan)
    best = Optimum(world).seconds(mine * (1 + 1e-9))
    assert mine >= best * (1 - 1e-6), "the optimum is none"
    return mine / best


def exceeding(found: Callable[[World], Plan], seeds: range, most: int) -> dict[int, float]:
    """Return the seeds whose plan costs more than `RATIO` times of the optimum, with how much it does."""
    ratios = {seed: ratio(world, found(world)) for seed, world in zip(seeds, worlds(seeds, most), strict=True)}
    return {seed: round(one, 2) for seed, one in ratios.items() if one > RATIO}


def test_with_all_costs_known_the_plan_is_near_the_optimum() -> None:
    assert exceeding(proposed, range(8), most=9) == {}


@pytest.mark.proof("planner", share=0)
@pytest.mark.slow
@pytest.mark.parametrize("first", [110, 150, 180])
def test_with_all_costs_known_the_plan_is_near_the_optimum_on_many_graphs(first: int) -> None:
    assert exceeding(proposed, range(first, first + 10), 14) == {}


def test_what_a_search_finds_is_near_the_optimum() -> None:
    assert exceeding(searched, range(12), most=7) == {}


@pytest.mark.proof("planner", share=0)
@pytest.mark.slow
@pytest.mark.parametrize("first", [110, 150, 180])
def test_what_a_search_finds_is_near_the_optimum_on_many_graphs(first: int) -> None:
    """A listed case whose seed does not exceed any more fails until it is deleted."""
    seeds = range(first, first + 10)
    assert exceeding(searched, seeds, 14) == {seed: one for seed, one in EXCEEDING.items() if seed in seeds}


@pytest.mark.proof("planner", share=0)
@pytest.mark.slow
def test_the_optimum_is_what_trying_all_comes_to() -> None:
    for world in worlds(range(8), most=4, engines=(2, 3)):
        assert Optimum(world).seconds(1e9) == pytest.approx(_tried(world))


def _tried(world: World) -> float:
    """Return the cost of the best plan, by trying every engine for each node and every grouping."""
    from itertools import product

    from xrt.errors import PlanError
    from xrt.partition import plan_from_assignment

    names = [n.name for n in world.function.nodes]
    best = math.inf
    for specs in product([e.spec for e in world.engines], repeat=len(names)):
        for groups in product(range(len(names)), repeat=len(names)):
            try:
                plan = plan_from_assignment(
                    world.function,
                    world.engines,
                    dict(zip(names, specs, strict=True)),
                    groups=dict(zip(names, groups, strict=True)),
                )
            except PlanError:
                continue
            best = min(best, world.total(plan))
    return best


# ------------------------------------------------------------------ the same everywhere

SCRIPT = """
import hashlib, sys
from tests.partition.synthetic import worlds
from xrt.placement import SearchOptions, choose_requests, predict_cost, propose_plans, run_search, rank_missing_support
told = []
for world in worlds(range(200, 204), 10):
    found = run_search(world.function, world.engines, world.measure, SearchOptions(rounds=2), table=world.table)
    told += [repr(found.table.to_document()), *map(str, found.plans)]
    told += [*(str(predict_cost(plan, found.table)) for plan in found.plans)]
    told += [str(plan.function) for plan in propose_plans(world.function, world.engines, found.table)]
    told += [repr([(p.key, p.spec, p.nodes, p.why) for p in choose_requests(world.function, world.engines, found.table)])]
    told += [repr(rank_missing_support(world.function, world.engines, found.table))]
print(hashlib.sha256("\\n".join(told).encode()).hexdigest())
"""


@pytest.mark.slow
def test_the_same_in_other_processes() -> None:
    answers = set()
    for seed in ("0", "1", "4711"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
        )
        answers.add(done.stdout)
    assert len(answers) == 1


@settings(max_examples=15)
@given(graphs(most=6))
def test_what_was_found_before_does_not_matter(function: Function) -> None:
    """Proposals depend on the table, not on what this process has looked at while it was made."""
    found = run_search(function, palette(), by_hash, SearchOptions(rounds=2))
    again = Function(**{field: getattr(function, field) for field in function.__dataclass_fields__})
    assert propose_plans(again, palette(), CostTable.from_document(loads(dumps(found.table.to_document())))) == found.plans


# ------------------------------------------------------------------ search, pieces, proposals


def test_the_whole_is_asked_first_and_nothing_twice() -> None:
    whole = chain("RRGR")
    first = choose_requests(whole, palette())
    assert [(p.spec, p.nodes) for p in first] == [("green", ("n0", "n1", "n2", "n3")), ("all", ("n0", "n1", "n2", "n3"))]
    known = CostTable({(p.key, p.spec): MeasuredCost.exactly(1e-3) for p in first})
    asked = choose_requests(whole, palette(), known)
    assert asked
    assert len({(p.key, p.spec) for p in asked}) == len(asked)
    assert {(p.key, p.spec) for p in asked}.isdisjoint(known.regions)


def test_equal_blocks_are_asked_once() -> None:
    blocks = chain("RGRRG" * 12)
    whole = CostTable({(p.key, p.spec): MeasuredCost.exactly(1e-3) for p in choose_requests(blocks, palette())})
    asked = choose_requests(blocks, palette(), whole, SearchOptions(pieces=1000))
    alone = [p for p in asked if len(p.nodes) == 1]
    assert len(alone) == len({(p.key, p.spec) for p in alone}) == 5, "Red on three engines, Green on two"


def test_no_more_pieces_than_asked_for() -> None:
    whole = chain("RGB" * 10)
    known = CostTable({(p.key, p.spec): MeasuredCost.exactly(1e-3) for p in choose_requests(whole, palette())})
    assert len(choose_requests(whole, palette(), known, SearchOptions(pieces=7))) == 7


def test_measuring_can_be_stopped() -> None:
    heard: list[ProfilingRequest] = []

    def measure(piece: ProfilingRequest) -> RegionCost | None:
        heard.append(piece)
        return by_hash(piece) if len(heard) < 4 else None

    found = run_search(chain("RRGB"), palette(), measure)
    assert (found.measured, len(found.table.regions), found.is_finished) == (3, 3, False)
    assert found.plans


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
    (found,) = (plan for plan in plans if [len(launch.nodes) for launch in plan.launches] == [2, 1, 8])
    assert [launch.engine for launch in found.launches] == ["main", "all", "main"]
    assert predict_cost(found, table).is_measured


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


@pytest.mark.parametrize("field", ["pieces", "rounds", "plans", "grain", "starts", "width", "changes", "effort"])
def test_a_bound_below_one_is_told(field: str) -> None:
    with pytest.raises(OptionError, match=rf"^{field} must be an integer of at least 1; got 0$"):
        SearchOptions(**{field: 0})


# ------------------------------------------------------------------ unlocks


def test_what_would_unlock_a_model_is_told_with_what_it_saves() -> None:
    """The quick engine declines White in the middle of a chain, which costs a change of engines there and back."""
    whole = chain("RRRWRRR")
    engines = [engine("quick", "Red", "Green"), engine("slow")]
    found = run_search(whole, engines, lambda p: MeasuredCost.exactly(len(p.nodes) * (1e-5 if p.spec == "quick" else 1e-4)))
    told = rank_missing_support(whole, engines, found.table)
    assert [(one.operator, one.engine, one.nodes) for one in told] == [("White", "quick", 1)]
    assert told[0].seconds > 5e-5


def test_what_saves_nothing_is_left_out() -> None:
    whole = chain("RRWRR")
    engines = [engine("slow", "Red"), engine("quick")]
    found = run_search(whole, engines, lambda p: MeasuredCost.exactly(len(p.nodes) * (1e-5 if p.spec == "quick" else 1e-3)))
    assert rank_missing_support(whole, engines, found.table) == ()


def test_plans_are_equal_values() -> None:
    one, two = (propose_plans(chain("RGB"), palette(), CostTable()) for _ in range(2))
    assert one == two
    assert all(isinstance(plan, Plan) for plan in one)
