"""Defects of the C++ ancestor's partitioner, each as a case that must not come back."""

from __future__ import annotations

import os
import subprocess
import sys

import networkx as nx
import pytest

from tests.partition.drawn import chain, engine, function, node, palette, quotient, regions
from xrt.errors import OptionError
from xrt.partition import ClusteringOptions, DependencyGraph, partition


def test_launch_names_of_two_engines_do_not_collide() -> None:
    """Each engine counted from 0; two specs of one engine would give two launches of one name."""
    engines = [engine("ort", "Red", spec="ort{threads=1}"), engine("ort", spec="ort{threads=2}")]
    names = [launch.name for launch in partition(chain("RBRB"), engines).launches]
    assert names == ["xrt_ort_0", "xrt_ort_1", "xrt_ort_2", "xrt_ort_3"]


def test_unlimited_merges_everything() -> None:
    """-1 was said to be unlimited, and merged nothing; here that is None, and -1 is refused."""
    with pytest.raises(OptionError, match=r"^maximum_nodes must be a positive integer or None; got -1$"):
        ClusteringOptions(maximum_nodes=-1)
    assert len(partition(chain("R" * 40), palette(), ClusteringOptions(maximum_nodes=None)).launches) == 1


SCRIPT = """
import random
from tests.partition.drawn import function, node, palette
from xrt.partition import ClusteringOptions, partition

chance = random.Random(7)
nodes = []
for i in range(60):
    reads = " ".join(chance.choice(["x"] + [f"v{k}" for k in range(max(0, i - 9), i)]) for _ in range(2))
    op, device = chance.choice(["Red", "Green", "Blue"]), chance.choice(["", "cuda:1"])
    nodes.append(node(op, reads, f"v{i}", name=f"n{i}", device=device))
graph = function(nodes, "v59 v58 v40")
print(partition(graph, palette()))
print(partition(graph, palette(), ClusteringOptions(minimum_nodes=3, maximum_nodes=7)))
"""


@pytest.mark.slow
def test_plans_do_not_depend_on_the_process() -> None:
    """Clusters were kept in sets of heap addresses."""
    texts = {_printed(seed) for seed in ("0", "1", "4242")}
    assert len(texts) == 1
    assert texts.pop().count("plan: 60 nodes in") == 2


def _printed(seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_a_value_that_one_node_reads_twice_is_passed_once_and_read_twice() -> None:
    graph = function([node("Red", "x", "a", name="a"), node("Blue", "a a", "b", name="b")], "b")
    blue = partition(graph, palette()).launches[1]
    assert blue.inputs == ("a",)
    assert blue.function.nodes[0].inputs == ("a", "a")
    assert [use.slot for use in blue.function.users("a")] == [0, 1]


def test_control_edges_count_in_the_cycle_test() -> None:
    """a and c could share a region for their values alone; but b must run between them."""
    nodes = [
        node("Red", "x", "a", name="a"),
        node("Blue", "x", "b", name="b", control=("a",)),
        node("Red", "a", "c", name="c", control=("b",)),
    ]
    graph = function(nodes, "b c")
    assert DependencyGraph.of(graph).predecessors == [(), (0,), (0, 1)]
    plan = partition(graph, palette())
    assert regions(plan) == {("red", frozenset("a")), ("all", frozenset("b")), ("red", frozenset("c"))}
    assert nx.is_directed_acyclic_graph(quotient(graph, plan))


def test_the_index_of_a_device_keeps_nodes_apart() -> None:
    nodes = [
        node("Red", "x", "a", name="a", device="cuda:0"),
        node("Red", "a", "b", name="b", device="cuda:1"),
        node("Red", "b", "c", name="c"),
    ]
    plan = partition(function(nodes, "c"), palette())
    assert [(launch.device, launch.nodes) for launch in plan.launches] == [("cuda:0", ("a",)), ("cuda:1", ("b", "c"))]


def test_an_update_in_place_is_not_lost() -> None:
    nodes = [node("Red", "x", "a", name="a"), node("Blue", "a", "y", name="y")]
    graph = function(nodes, "y", aliases=(("x", "y"),))
    for engines in ([engine("all")], palette()):
        assert partition(graph, engines).function.aliases == (("x", "y"),)


def test_pairwise_convex_clusters_can_close_a_cycle_together() -> None:
    """Each of {a, d} and {b, c} is convex alone; as regions side by side they would wait for each other."""
    nodes = [
        node("Red", "x", "a", name="a"),
        node("Blue", "x", "b", name="b"),
        node("Blue", "a", "c", name="c"),
        node("Red", "b", "d", name="d"),
    ]
    graph = function(nodes, "c d")
    plan = partition(graph, palette())
    assert nx.is_directed_acyclic_graph(quotient(graph, plan))
    assert len(plan.launches) == 3
