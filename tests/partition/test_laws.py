"""The laws that every plan keeps, over generated graphs and options."""

from __future__ import annotations

import pickle
import random
from dataclasses import replace

import networkx as nx
import pytest
from hypothesis import given, strategies as st

from tests.partition.drawn import graphs, options, palette, quotient, regions, run
from xrt.graph import Function, Value
from xrt.partition import ClusteringOptions, DependencyGraph, Plan, partition

pytestmark = pytest.mark.slow

TERMS = {"x": "x", "y": "y"}


@given(graphs(), options())
def test_a_plan_is_acyclic_keeps_the_order_and_computes_the_same(function: Function, asked: ClusteringOptions) -> None:
    plan = partition(function, palette(), asked)
    assert nx.is_directed_acyclic_graph(quotient(function, plan))
    placed = [name for launch in plan.launches for name in launch.nodes]
    assert sorted(placed) == sorted(node.name for node in function.nodes)
    assert all(launch.nodes for launch in plan.launches)
    assert len({launch.name for launch in plan.launches}) == len(plan.launches)
    assert run(plan.function, TERMS) == run(function, TERMS)
    at = {name: (i, k) for i, launch in enumerate(plan.launches) for k, name in enumerate(n.name for n in launch.function.nodes)}
    assert all(at[before] < at[node.name] for node in function.nodes for before in node.control)


@given(graphs(), options())
def test_regions_keep_to_engine_device_and_size(function: Function, asked: ClusteringOptions) -> None:
    plan = partition(function, palette(), asked)
    takes = {"red": {"Red"}, "green": {"Red", "Green"}, "all": {"Red", "Green", "Blue", "White"}}
    for launch in plan.launches:
        inside = [function.node(name) for name in launch.nodes]
        assert {node.op for node in inside} <= takes[launch.engine]
        assert {node.device for node in inside} <= {"", launch.device}
        assert launch.device in {node.device for node in inside}
        assert asked.maximum_nodes is None or len(inside) <= asked.maximum_nodes
        if len(inside) < asked.minimum_nodes:
            assert launch.engine == "all", "a cluster that is too small stays only where no further engine takes its nodes"


@given(graphs(), options())
def test_reason_law(function: Function, asked: ClusteringOptions) -> None:
    plan = partition(function, palette(), asked)
    home = {name: plan.engines.index(launch.engine) for launch in plan.launches for name in launch.nodes}
    due = {(node.name, plan.engines[e]) for node in function.nodes for e in range(home[node.name])}
    assert [(r.node, r.engine) for r in plan.reasons] == sorted(due, key=lambda pair: _rank(function, plan, pair))
    assert all(reason.text for reason in plan.reasons)


def _rank(function: Function, plan: Plan, pair: tuple[str, str]) -> tuple[int, int]:
    return [node.name for node in function.nodes].index(pair[0]), plan.engines.index(pair[1])


@given(graphs(dead=False), options(), st.randoms(use_true_random=False))
def test_order_law_listing_and_names(function: Function, asked: ClusteringOptions, chance: random.Random) -> None:
    plan = partition(function, palette(), asked)
    again = partition(_renamed(_shuffled(function, chance)), palette(), asked)
    assert regions(again) == regions(plan)
    assert [x.name for x in again.launches] == [x.name for x in plan.launches]
    assert [x.function.fingerprint for x in again.launches] == [x.function.fingerprint for x in plan.launches]


@given(graphs(), options(), st.randoms(use_true_random=False))
def test_order_law_count_of_regions_where_nodes_are_not_needed(
    function: Function, asked: ClusteringOptions, chance: random.Random
) -> None:
    asked = replace(asked, minimum_nodes=1, maximum_nodes=None)  # a choice among dead nodes may decide what is too small
    plan = partition(function, palette(), asked)
    assert len(partition(_shuffled(function, chance), palette(), asked).launches) == len(plan.launches)


@given(graphs(), options())
def test_the_same_twice_is_the_same_plan_byte_for_byte(function: Function, asked: ClusteringOptions) -> None:
    first, two = (partition(pickle.loads(pickle.dumps(function)), palette(), asked) for _ in range(2))
    assert first == two
    assert hash(first) == hash(two)
    assert str(first) == str(two)
    assert pickle.dumps(first) == pickle.dumps(two)


def _shuffled(function: Function, chance: random.Random) -> Function:
    nodes = list(function.nodes)
    chance.shuffle(nodes)
    return function.replace(nodes=tuple(nodes))


def _renamed(function: Function) -> Function:
    """Give every inner value another name; inputs, constants and outputs keep theirs."""
    outer_names = {v.name for v in (*function.inputs, *function.outputs)} | set(function.constants) | {""}
    names = [name for node in function.nodes for name in node.defined_names if name not in outer_names]
    new = {name: f"r{len(names) - i}" for i, name in enumerate(names)}

    def renamed(node: object) -> object:
        attributes = tuple(replace(a, value=_renamed_body(a.value, new)) for a in node.attributes)
        reads, makes = (tuple(new.get(name, name) for name in names) for names in (node.inputs, node.outputs))
        return replace(node, inputs=reads, outputs=makes, attributes=attributes)

    return function.replace(nodes=tuple(renamed(node) for node in function.nodes))


def _renamed_body(body: Function, new: dict[str, str]) -> Function:
    nodes = tuple(replace(node, inputs=tuple(new.get(name, name) for name in node.inputs)) for node in body.nodes)
    return Function((), tuple(Value(v.name, v.type) for v in body.outputs), nodes, opsets=body.opsets)


@given(graphs())
def test_dependencies_are_those_that_networkx_finds(function: Function) -> None:
    graph = DependencyGraph.of(function)
    names = [node.name for node in function.nodes]
    mine = {(names[b], names[i]) for i, before in enumerate(graph.predecessors) for b in before}
    theirs = set()
    for node in function.nodes:
        theirs |= {(p.name, node.name) for v in (*node.inputs, *node.captures) if (p := function.producer(v))}
        theirs |= {(before, node.name) for before in node.control}
    assert mine == theirs
