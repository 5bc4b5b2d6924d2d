"""Plans whose nodes are where somebody says."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, strategies as st

from tests.partition.drawn import chain, function, graphs, node, palette, quotient, regions, run
from xrt.errors import PlanError
from xrt.graph import Function, shape_key
from xrt.partition import ClusteringOptions, Plan, map_nodes_to_engines, map_nodes_to_regions, partition, plan_from_assignment
from xrt.partition.fold import extract_subgraph
from xrt.partition.partitioner import MEASURED_REASON

TERMS = {"x": "x", "y": "y"}


def homes(function: Function, chance: random.Random) -> dict[str, str]:
    """Return a home for each node by chance, among the engines that take it."""
    engines = palette()
    return {n.name: chance.choice([e.spec for e in engines if e.why_not(n, function) is None]) for n in function.nodes}


@pytest.mark.slow
@given(graphs(), st.randoms(use_true_random=False))
def test_every_node_is_where_it_was_put(function: Function, chance: random.Random) -> None:
    asked = homes(function, chance)
    plan = plan_from_assignment(function, palette(), asked)
    assert map_nodes_to_engines(plan) == asked
    assert nx.is_directed_acyclic_graph(quotient(function, plan))
    assert run(plan.function, TERMS) == run(function, TERMS)
    assert sorted(name for launch in plan.launches for name in launch.nodes) == sorted(n.name for n in function.nodes)


@pytest.mark.slow
@given(graphs(), st.randoms(use_true_random=False))
def test_homes_and_groups_give_the_plan_back(function: Function, chance: random.Random) -> None:
    for plan in (plan_from_assignment(function, palette(), homes(function, chance)), partition(function, palette())):
        again = plan_from_assignment(function, palette(), map_nodes_to_engines(plan), groups=map_nodes_to_regions(plan))
        assert again.launches == plan.launches
        assert again.function == plan.function
        assert str(again.function) == str(plan.function)


@pytest.mark.slow
@given(graphs())
def test_the_homes_of_a_plan_by_priority_give_its_regions(function: Function) -> None:
    plan = partition(function, palette())
    assert regions(plan_from_assignment(function, palette(), map_nodes_to_engines(plan))) == regions(plan)


@pytest.mark.slow
@given(graphs(), st.randoms(use_true_random=False))
def test_a_part_is_what_the_launch_node_would_hold(function: Function, chance: random.Random) -> None:
    plan = plan_from_assignment(function, palette(), homes(function, chance))
    places = {n.name: place for place, n in enumerate(function.nodes)}
    for launch in plan.launches:
        part = extract_subgraph(function, sorted(places[name] for name in launch.nodes), launch.name)
        assert {*part.aliases} <= {*launch.function.aliases}  # a plan knows which of the other regions run later
        held, alone = (replace(one, aliases=()) for one in (launch.function, part))
        assert alone == held
        assert shape_key(alone) == shape_key(held)


def test_groups_keep_nodes_of_one_engine_apart() -> None:
    whole, homes = chain("RRRR"), dict.fromkeys(["n0", "n1", "n2", "n3"], "all")
    assert len(plan_from_assignment(whole, palette(), homes).launches) == 1
    plan = plan_from_assignment(whole, palette(), homes, groups={"n0": 7, "n1": 7, "n2": 3, "n3": 3})
    assert [launch.nodes for launch in plan.launches] == [("n0", "n1"), ("n2", "n3")]
    assert map_nodes_to_regions(plan) == {"n0": 0, "n1": 0, "n2": 1, "n3": 1}


def test_reasons_say_who_placed_the_node() -> None:
    plan = plan_from_assignment(chain("RB"), palette(), {"n0": "green", "n1": "all"})
    assert [str(reason) for reason in plan.reasons] == [
        f"'n0' (Red) is not on red: {MEASURED_REASON}",
        "'n1' (Blue) is not on red: no kernel for Blue",
        "'n1' (Blue) is not on green: no kernel for Blue",
    ]
    assert plan.options == ClusteringOptions()


def test_the_implicit_engine_is_reported() -> None:
    plan = plan_from_assignment(chain("R"), palette(), {"n0": "red"}, implicit="all")
    assert "all (fallback)" in str(plan)


def asked(homes: dict[str, str], **more: Any) -> Plan:
    return plan_from_assignment(chain("RGB"), palette(), homes, **more)


GOOD = {"n0": "red", "n1": "green", "n2": "all"}


@pytest.mark.parametrize(
    ("homes", "more", "message"),
    [
        ({"n0": "red"}, {}, "node 'n1' (Green) has no home; name an engine for each of the 3 nodes"),
        (
            {**GOOD, "n1": "gren"},
            {},
            "node 'n1' is assigned to 'gren', which is not in the list of engines: red, green, all. Did you mean 'green'?",
        ),
        ({**GOOD, "n1": "red"}, {}, "node 'n1' (Green) is assigned to 'red', which does not take it: no kernel for Green"),
        (GOOD, {"groups": {"n0": 1}}, "node 'n1' (Green) is in no group; give each node a group, or leave groups out"),
        (
            GOOD,
            {"groups": {"n0": 1, "n1": 1, "n2": 2}},
            "nodes 'n0', 'n1' are one group, but not of one engine and one device; a region is",
        ),
        (
            {**GOOD, "n0": "all"},
            {"groups": {"n0": 1, "n1": 2, "n2": 1}},
            "2 groups wait for each other in a cycle; cut one of them where another stands between",
        ),
    ],
)
def test_what_cannot_be_placed_is_reported(homes: dict[str, str], more: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError) as caught:
        asked(homes, **more)
    assert str(caught.value) == message


def test_two_devices_are_no_group() -> None:
    nodes = [node("Red", "x", "a", name="n0", device="cuda:0"), node("Red", "a", "b", name="n1", device="cuda:1")]
    with pytest.raises(PlanError, match=r"^nodes 'n0', 'n1' are one group, but not of one engine and one device; a region is$"):
        plan_from_assignment(function(nodes, "b"), palette(), {"n0": "red", "n1": "red"}, groups={"n0": 0, "n1": 0})
