"""What a region holds, what crosses its edge, what stays outside, and nodes whose engine is given."""

from __future__ import annotations

import random
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.exact_errors import raises_exactly
from tests.partition.drawn import F32, chain, engine, function, graphs, node, palette, quotient, regions, run
from xrt.errors import PlanError
from xrt.graph import Attribute, AttrKind, Constant, Function, Node, Value, shape_key
from xrt.partition import ClusteringOptions, Plan, map_nodes_to_engines, map_nodes_to_regions, partition, plan_from_assignment
from xrt.partition.fold import extract_subgraph
from xrt.partition.partitioner import MEASURED_REASON

ZEROS = Constant(np.zeros(4, np.float32))


def by_node(plan: Plan, name: str) -> Function:
    """Return the body of the region that holds the node."""
    return next(launch.function for launch in plan.launches if name in launch.nodes)


def names(values: tuple[Value, ...]) -> list[str]:
    return [value.name for value in values]


def test_a_region_is_typed_named_and_of_the_same_opsets() -> None:
    plan = partition(chain("RGGR"), palette())
    first, second, third = plan.launches
    assert [x.name for x in plan.launches] == ["xrt_red_0", "xrt_green_1", "xrt_red_2"]
    assert [x.function.name for x in plan.launches] == ["xrt_red_0", "xrt_green_1", "xrt_red_2"]
    assert second.function.inputs == (Value("v1", F32),)
    assert second.function.outputs == (Value("v3", F32),)
    assert dict(second.function.types) == {"v2": F32}
    assert all(x.function.opsets == {"": 20} for x in plan.launches)
    assert plan.function.opsets == {"": 20, "xrt": 1}
    assert dict(plan.function.types) == {"v1": F32, "v3": F32}
    assert (first.inputs, third.outputs) == (("v0",), ("v4",))


def test_a_launch_node_carries_what_the_launch_says() -> None:
    plan = partition(chain("RG"), palette())
    launch, folded = plan.launches[1], plan.function.nodes[1]
    assert (folded.op, folded.name, folded.inputs, folded.outputs) == ("xrt.Launch", "xrt_green_1", ("v1",), ("v2",))
    assert (folded.attr("engine"), folded.attr("nodes"), folded.attr("body")) == ("green", ("n1",), launch.function)
    assert (launch.engine, launch.nodes, launch.device, launch.control) == ("green", ("n1",), "", ())


def test_constants_go_into_each_region_that_reads_them_by_reference() -> None:
    nodes = [node("Red", "x c", "a", name="a"), node("Blue", "a c", "b", name="b"), node("Red", "b d", "e", name="e")]
    plan = partition(
        function(nodes, "e", constants={"c": ZEROS, "d": Constant(np.ones(4, np.float32)), "unread": ZEROS}), palette()
    )
    assert by_node(plan, "a").constants["c"] is by_node(plan, "b").constants["c"] is ZEROS
    assert list(by_node(plan, "e").constants) == ["d"]
    assert all(launch.inputs in (("x",), ("a",), ("b",)) for launch in plan.launches)
    assert not plan.function.constants


def test_constants_and_inputs_that_are_outputs_stay_outside() -> None:
    graph = function([node("Red", "x c", "a", name="a")], "a", constants={"c": ZEROS})
    graph = graph.replace(outputs=(Value("c", F32), Value("x", F32), Value("a", F32), Value("a", F32)))
    plan = partition(graph, palette())
    assert names(plan.function.outputs) == ["c", "x", "a", "a"]
    assert list(plan.function.constants) == ["c"]
    assert names(plan.launches[0].function.outputs) == ["a"]
    assert list(plan.launches[0].function.constants) == ["c"]


def test_values_read_outside_or_given_out_leave_a_region_once() -> None:
    nodes = [
        node("Red", "x", "a unread", name="a"),
        node("Red", "a", "b", name="b"),
        node("Blue", "a a", "c", name="c"),
        node("Blue", "a", "d", name="d"),
    ]
    plan = partition(function(nodes, "b c d"), palette())
    assert names(by_node(plan, "a").outputs) == ["a", "b"]
    assert names(by_node(plan, "c").inputs) == ["a"]
    assert by_node(plan, "c").node("c").inputs == ("a", "a")


def test_captured_values_are_inputs_of_the_region_or_constants() -> None:
    inner = node("Inner", "a c x", "t")
    body = Function((), (Value("t"),), (inner,), opsets={"": 20})
    nodes = [
        node("Red", "x", "a", name="a"),
        node("Blue", "", "b", name="b", attributes=(Attribute("body", AttrKind.GRAPH, body),)),
    ]
    plan = partition(function(nodes, "b", constants={"c": ZEROS}), palette())
    region = by_node(plan, "b")
    assert (names(region.inputs), list(region.constants), region.captures) == (["a", "x"], ["c"], ())
    assert names(by_node(plan, "a").outputs) == ["a"]


def test_a_body_of_an_outer_function_still_captures() -> None:
    """A Function that is itself a body reads values it does not define; its plan reads them too."""
    body = Function((), (Value("a"),), (node("Red", "outer", "a", name="a"),), opsets={"": 20})
    plan = partition(body, palette())
    assert plan.function.captures == ("outer",)
    assert plan.launches[0].inputs == ("outer",)


def test_control_edges_become_control_edges_of_launches_or_stay_inside() -> None:
    nodes = [
        node("Red", "x", "a", name="a"),
        node("Red", "x", "b", name="b", control=("a",)),
        node("Blue", "x", "c", name="c", control=("b", "a")),
    ]
    plan = partition(function(nodes, "a b c"), palette())
    assert [x.control for x in plan.launches] == [(), ("xrt_red_0",)]
    assert by_node(plan, "b").node("b").control == ("a",)
    assert by_node(plan, "c").node("c").control == ()


def test_an_empty_function() -> None:
    empty = Function((Value("x", F32),), (Value("x", F32),), opsets={"": 20})
    plan = partition(empty, palette())
    assert (plan.launches, plan.reasons) == ((), ())
    assert str(plan) == "plan: 0 nodes in 0 regions on red, green, all"


def test_names_of_the_outer_function_are_kept() -> None:
    graph = chain("R").replace(name="model", doc="text", metadata={"k": "v"})
    folded = partition(graph, palette()).function
    assert (folded.name, folded.doc, folded.metadata) == ("model", "text", {"k": "v"})


Y, Z = node("Red", "x", "y", name="y"), node("Blue", "y", "z", name="z")
UPDATES: dict[str, tuple[tuple[Node, ...], str, bool]] = {
    "nobody else reads the old value": ((Y, Z), "z y", True),
    "another region reads the old value": ((Y, Z, node("Blue", "x z", "w", name="w")), "w y", False),
    "the old value is an output": ((Y, Z), "z y x", False),
    "another region makes the output": ((node("Red", "x", "a", name="a"), node("Blue", "a", "y", name="y")), "y", False),
}
"""Nodes of which y updates x in place, the outputs, and whether the region that makes y does so; else it is left to the end."""


@pytest.mark.parametrize(("nodes", "outputs", "in_region"), UPDATES.values(), ids=UPDATES)
def test_an_update_in_place_stays_on_the_plan_and_goes_into_its_region(
    nodes: tuple[Node, ...], outputs: str, in_region: bool
) -> None:
    plan = partition(function(nodes, outputs, aliases=(("x", "y"),)), palette())
    assert plan.function.aliases == (("x", "y"),)
    aliases = {launch.nodes: launch.function.aliases for launch in plan.launches if launch.function.aliases}
    assert aliases == ({("y",): (("x", "y"),)} if in_region else {})


def test_an_update_waits_for_the_regions_that_read_the_old_value() -> None:
    nodes = [node("Red", "x", "y", name="y"), node("Blue", "x", "z", name="z")]
    plan = partition(function(nodes, "y z", aliases=(("x", "y"),)), palette())
    assert [launch.nodes for launch in plan.launches] == [("z",), ("y",)]
    assert plan.function.nodes[1].control == (plan.launches[0].name,)
    assert by_node(plan, "y").aliases == (("x", "y"),)


def test_two_updates_in_one_region() -> None:
    nodes = [node("Red", "x", "p", name="p"), node("Red", "y", "q", name="q")]
    plan = partition(function(nodes, "p q", "x y", aliases=(("x", "p"), ("y", "q"))), [engine("red", "Red")])
    assert plan.launches[0].function.aliases == (("x", "p"), ("y", "q"))


TERMS = {"x": "x", "y": "y"}


def homes(function: Function, chance: random.Random) -> dict[str, str]:
    """Return a home for each node by chance, among the engines that take it."""
    engines = palette()
    return {n.name: chance.choice([e.spec for e in engines if e.why_not(n, function) is None]) for n in function.nodes}


@pytest.mark.slow
@given(graphs(), st.randoms(use_true_random=False))
def test_every_node_is_where_it_was_put(function: Function, chance: random.Random) -> None:
    requests = homes(function, chance)
    plan = plan_from_assignment(function, palette(), requests)
    assert map_nodes_to_engines(plan) == requests
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
    assert regions(plan_from_assignment(function, palette(), map_nodes_to_engines(plan))) == regions(plan)


@pytest.mark.slow
@given(graphs(), st.randoms(use_true_random=False))
def test_a_part_is_what_the_launch_node_would_hold(function: Function, chance: random.Random) -> None:
    plan = plan_from_assignment(function, palette(), homes(function, chance))
    places = {n.name: place for place, n in enumerate(function.nodes)}
    for launch in plan.launches:
        part = extract_subgraph(function, sorted(places[name] for name in launch.nodes), launch.name)
        assert {*part.aliases} <= {*launch.function.aliases}  # a plan knows which of the other regions run later
        values, alone = (replace(item, aliases=()) for item in (launch.function, part))
        assert alone == values
        assert shape_key(alone) == shape_key(values)


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


GOOD = {"n0": "red", "n1": "green", "n2": "all"}
MISPLACED = [
    ({"n0": "red"}, {}, "node 'n1' (Green) has no engine; assign one to each of the 3 nodes"),
    ({**GOOD, "n1": "gren"}, {},
     "node 'n1' is assigned to 'gren', which is not in the list of engines: red, green, all. Did you mean 'green'?"),
    ({**GOOD, "n1": "red"}, {}, "node 'n1' (Green) is assigned to 'red', which does not support it: no kernel for Green"),
    (GOOD, {"n0": 1}, "node 'n1' (Green) is in no group; assign every node to a group, or omit groups"),
    (GOOD, {"n0": 1, "n1": 1, "n2": 2}, "nodes 'n0', 'n1' are in one group but differ in engine or device"),
    ({**GOOD, "n0": "all"}, {"n0": 1, "n1": 2, "n2": 1},
     "2 groups depend on each other in a cycle; split one of them"),
]  # fmt: skip


@pytest.mark.parametrize(("homes", "groups", "message"), MISPLACED)
def test_what_cannot_be_placed_is_reported(homes: dict[str, str], groups: dict[str, int], message: str) -> None:
    with raises_exactly(PlanError, message):
        plan_from_assignment(chain("RGB"), palette(), homes, groups=groups or None)


def test_two_devices_are_no_group() -> None:
    nodes = [node("Red", "x", "a", name="n0", device="cuda:0"), node("Red", "a", "b", name="n1", device="cuda:1")]
    with pytest.raises(PlanError, match=r"^nodes 'n0', 'n1' are in one group but differ in engine or device$"):
        plan_from_assignment(function(nodes, "b"), palette(), {"n0": "red", "n1": "red"}, groups={"n0": 0, "n1": 0})
