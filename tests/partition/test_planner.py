"""What the planner proposes: plans that keep the laws, the same in every process, with few regions and few values between."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings

from tests.module.test_faults import chain
from tests.partition.drawn import graphs, palette, quotient, run
from xrt.engines import GraphCompiler, create
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.formats.placement_file import dumps, loads
from xrt.graph import DType, Function, Node, TensorType, Value, shape_key
from xrt.partition import CostTable, MeasuredCost, RegionCost
from xrt.partition.clustering import DependencyGraph, QuotientGraph, find_engine_sequence, minimize_cut
from xrt.passes import infer_shapes
from xrt.placement import ProfilingRequest, choose_requests, predict_cost, propose_plans
from xrt.processes.background import OutOfTime
from xrt.testing.corpus.entry import graph, node

TERMS = {"x": "x", "y": "y"}


def by_hash(piece: ProfilingRequest) -> RegionCost:
    """Return a cost that looks like chance and is the same everywhere; one piece in eight cannot be measured."""
    number = int(shape_key(piece.function)[:8], 16) ^ sum(map(ord, piece.spec))
    return "it failed" if number % 8 == 0 else MeasuredCost.exactly((number % 997 + 1) * 1e-6)


def run_search(
    function: Function,
    engines: Sequence[GraphCompiler],
    measure: Callable[[ProfilingRequest], RegionCost],
    *,
    rounds: int = 32,
) -> Any:
    """Measure what the planner asks for, round by round; return its plans, the best first, and whether it asks for no more."""
    table, count = CostTable(), 0
    requests = choose_requests(function, engines, table)
    while requests and rounds:
        table = table.merge(CostTable({(piece.key, piece.spec): measure(piece) for piece in requests}))
        count, rounds = count + len(requests), rounds - 1
        requests = choose_requests(function, engines, table)
    plans = propose_plans(function, engines, table)
    return SimpleNamespace(plans=plans, table=table, measured=count, is_finished=not requests)


def test_a_planner_that_is_abandoned_ends() -> None:
    """It ran on while the engines raced, and took the time of the interpreter from them."""
    asked = iter((False, False, True))
    with pytest.raises(OutOfTime):
        propose_plans(chain("Exp", "Cos"), [create("toy")], CostTable(), is_stopped=lambda: next(asked))


def test_a_whole_model_that_was_skipped_is_not_requested_again() -> None:
    """The search got the same model again, and measured no part of it."""
    function = chain("Exp", "MatMul", "Cos")
    skipped = {(piece.key, piece.spec) for piece in choose_requests(function, palette())}
    parts = choose_requests(function, palette(), skipped=skipped)
    assert parts and skipped.isdisjoint((piece.key, piece.spec) for piece in parts)


@pytest.mark.slow
@settings(max_examples=30)
@given(graphs(most=7))
def test_every_plan_keeps_the_laws_and_the_fastest_comes_first_whatever_costs_what(function: Function) -> None:
    result = run_search(function, palette(), by_hash, rounds=3)
    costs = [predict_cost(function, plan, result.table).seconds for plan in result.plans]
    assert costs == sorted(costs)
    assert all(map(math.isfinite, costs)), "a plan with an impossible region is no proposal"
    for plan in result.plans:
        assert nx.is_directed_acyclic_graph(quotient(function, plan))
        assert sorted(name for launch in plan.launches for name in launch.nodes) == sorted(n.name for n in function.nodes)
        assert run(plan.function, TERMS) == run(function, TERMS)


@pytest.mark.slow
@settings(max_examples=20)
@given(graphs(most=7))
def test_the_regions_of_plans_have_the_keys_of_their_pieces(function: Function) -> None:
    seen: dict[tuple[str, str], frozenset[str]] = {}

    def measure(piece: ProfilingRequest) -> RegionCost:
        assert piece.key == shape_key(piece.function)
        assert (piece.key, piece.spec) not in seen, "equal parts are measured once"
        seen[piece.key, piece.spec] = frozenset(node.name for node in piece.function.nodes)
        return by_hash(piece)

    result = run_search(function, palette(), measure)
    assert result.measured == len(seen)
    assert result.is_finished
    if result.plans:
        assert {r.source for r in predict_cost(function, result.plans[0], result.table).regions} == {"measured"}, (
            "the best plan is no guess"
        )


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
        return "it failed" if {node.name for node in piece.function.nodes} == {"n0"} else MeasuredCost.exactly(1e-6)

    result = run_search(whole, palette(), measure)
    for plan in result.plans:
        table = CostTable()
        for launch in plan.launches:
            table = table.with_region(shape_key(launch.function), launch.engine, MeasuredCost.exactly(1e-6))
        assert {r.source for r in predict_cost(whole, plan, table).regions} == {"measured"}
    assert any({"n0", "n3"} <= set(launch.nodes) for plan in result.plans for launch in plan.launches)


@pytest.mark.slow
def test_a_plan_cut_in_pieces_computes_the_same_bits() -> None:
    whole = _arithmetic()
    result = run_search(whole, [create("toy{native=off}"), create("toy")], by_hash, rounds=2)
    assert max(len(plan.launches) for plan in result.plans) > 1
    x = np.random.default_rng(0).standard_normal((8, 16), dtype=np.float32)
    expected = evaluate(whole, [x])
    for plan in result.plans:
        values: dict[str, Any] = {"x": x}
        for launch in plan.launches:
            values.update(zip(launch.outputs, evaluate(launch.function, [values[name] for name in launch.inputs]), strict=True))
        assert [values[v.name].tobytes() for v in whole.outputs] == [item.tobytes() for item in expected]


def _arithmetic() -> Function:
    nodes = [
        *(node("Exp", "x", "a"), node("Softmax", "a", "b"), node("Mul", "a b", "c"), node("Relu", "x", "d")),
        *(node("Add", "c d", "e"), node("Softmax", "e", "f"), node("Sub", "f a", "y")),
    ]
    return infer_shapes(graph({"x": "float32[8,16]"}, {"y": None, "e": None}, *nodes, opset=20))


@pytest.mark.slow
@settings(max_examples=15)
@given(graphs(most=6))
def test_what_was_found_before_does_not_matter(function: Function) -> None:
    """Proposals depend on the table, not on what this process has looked at while it was made."""
    search = run_search(function, palette(), by_hash, rounds=2)
    again = Function(**{field: getattr(function, field) for field in function.__dataclass_fields__})
    assert propose_plans(again, palette(), CostTable.from_document(loads(dumps(search.table.to_document())))) == search.plans


def seeded(count: int, kinds: int, seed: int, window: int = 10) -> QuotientGraph:
    chance = random.Random(seed)
    before = [
        tuple({chance.randrange(max(0, i - window), i) for _ in range(chance.randint(0, 2))}) if i else () for i in range(count)
    ]
    return QuotientGraph.of(DependencyGraph(before), [chance.randrange(kinds) for _ in range(count)], [""] * count)


@pytest.mark.parametrize("seed", range(25))
def test_the_count_of_regions_is_near_the_least(seed: int) -> None:
    units = seeded(30, 4, seed)
    assert shortest(units) <= len(find_engine_sequence(units)) <= shortest(units) + 2


def shortest(units: QuotientGraph) -> int:
    """Return the length of the shortest sequence of kinds in which all can run: breadth first, over what has run."""
    reached, length = {frozenset[int]()}, 0
    while all(len(item) < len(units) for item in reached):
        reached = {exhausted(units, item, kind) for item in reached for kind in range(len(units.targets))}
        length += 1
    return length


def exhausted(units: QuotientGraph, value: frozenset[int], kind: int) -> frozenset[int]:
    then = set(value)
    for unit, before in enumerate(units.graph.predecessors):
        if units.target_of[unit] == kind and then.issuperset(before):
            then.add(unit)
    return frozenset(then)


def test_a_unit_stays_where_its_operands_would_cross_instead() -> None:
    """s(0) reads p and q(0), which b(1) reads too, and c(0) reads b and s: moving s to c only lets p and q cross instead."""
    units = QuotientGraph.of(DependencyGraph([(), (), (0, 1), (0, 1), (2, 3)]), [0, 0, 0, 1, 0], [""] * 5)
    assert minimize_cut(units, find_engine_sequence(units), ()) == [0, 0, 0, 1, 2]
