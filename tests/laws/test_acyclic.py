"""Law 2: the regions of every plan can run one after the other, in the order in which the plan lists them."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given, strategies as st

from tests.laws.laws import bounded, doubles, pins
from xrt.graph import Function
from xrt.partition import ClusteringOptions, Plan, partition
from xrt.passes import infer_shapes
from xrt.testing.strategies import functions

pytestmark = pytest.mark.slow


def waits(function: Function) -> list[tuple[str, str]]:
    """Return every (earlier, later) pair of nodes of the model, worked out from the nodes alone."""
    maker = {name: node.name for node in function.nodes for name in node.outputs if name}
    by_value = [(maker[name], node.name) for node in function.nodes for name in (*node.inputs, *node.captures) if name in maker]
    return by_value + [(earlier, node.name) for node in function.nodes for earlier in node.control]


def quotient(function: Function, plan: Plan) -> nx.DiGraph:
    """Return the graph of regions: an edge where a node of one waits for a node of another."""
    home = {node: launch.name for launch in plan.launches for node in launch.nodes}
    graph = nx.DiGraph()
    graph.add_nodes_from(launch.name for launch in plan.launches)
    graph.add_edges_from((home[a], home[b]) for a, b in waits(function) if home[a] != home[b])
    return graph


@bounded
@given(data=st.data(), most=st.one_of(st.none(), st.integers(1, 4)))
def test_regions_form_no_cycle_and_stand_in_order(data, most):
    function = infer_shapes(data.draw(functions()))
    engines = doubles()
    chosen = data.draw(pins(function, engines))
    plan = partition(function, engines, ClusteringOptions(maximum_nodes=most, pins=chosen), strict=True)
    graph = quotient(function, plan)
    assert nx.is_directed_acyclic_graph(graph)
    place = {launch.name: index for index, launch in enumerate(plan.launches)}
    assert all(place[a] < place[b] for a, b in graph.edges)


@bounded
@given(data=st.data())
def test_every_node_is_in_one_region(data):
    function = infer_shapes(data.draw(functions()))
    engines = doubles()
    plan = partition(function, engines, ClusteringOptions(pins=data.draw(pins(function, engines))), strict=True)
    assert sorted(n for launch in plan.launches for n in launch.nodes) == sorted(n.name for n in function.nodes)


@bounded
@given(data=st.data())
def test_neighbours_on_one_engine_are_one_region_where_no_other_is_between(data):
    """On one engine alone there is nothing to go around: everything is one region."""
    function = infer_shapes(data.draw(functions()))
    assert len(partition(function, doubles(1), strict=True).launches) <= 1
