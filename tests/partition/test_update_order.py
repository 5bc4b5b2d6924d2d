"""The order of updates: after all that reads the state, found in one sweep whatever the number of states."""

from __future__ import annotations

from collections.abc import Iterator

import networkx as nx
import pytest
from hypothesis import given, strategies as st

from tests.partition.drawn import function, node
from xrt.partition.clustering import Cluster
from xrt.partition.fold import fold, schedule_updates


@st.composite
def orders(draw: st.DrawFn) -> tuple[list[set[int]], dict[int, set[int]]]:
    """Edges without a cycle, and numbers that should wait for others."""
    count = draw(st.integers(1, 9))
    names = draw(st.permutations(range(count)))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    successors: list[set[int]] = [set() for _ in range(count)]
    for a, b in draw(st.lists(pairs, max_size=12)):
        if a != b:
            successors[names[min(a, b)]].add(names[max(a, b)])
    waits: dict[int, set[int]] = {}
    for a, b in draw(st.lists(pairs, max_size=8)):
        if a != b:
            waits.setdefault(a, set()).add(b)
    return successors, waits


def list_kept(positions: list[int], waits: dict[int, set[int]]) -> set[tuple[int, int]]:
    return {(a, b) for a, earlier in waits.items() for b in earlier if positions[b] < positions[a]}


@pytest.mark.slow
@given(orders())
def test_edges_are_kept_and_waits_where_they_make_no_cycle(drawn: tuple[list[set[int]], dict[int, set[int]]]) -> None:
    successors, waits = drawn
    positions = schedule_updates(successors, waits)
    assert sorted(positions) == list(range(len(successors)))
    assert all(positions[a] < positions[b] for a, later in enumerate(successors) for b in later)
    graph = nx.DiGraph([(a, b) for a, later in enumerate(successors) for b in later])
    graph.add_nodes_from(range(len(successors)))
    graph.add_edges_from((b, a) for a, earlier in waits.items() for b in earlier)
    component = {n: i for i, ns in enumerate(nx.strongly_connected_components(graph)) for n in ns}
    wanted = {(a, b) for a, earlier in waits.items() for b in earlier if component[a] != component[b]}
    assert wanted <= list_kept(positions, waits)


@pytest.mark.slow
@given(orders())
def test_one_that_waits_waits_for_all_that_do_not_follow_it(drawn: tuple[list[set[int]], dict[int, set[int]]]) -> None:
    successors, waits = drawn
    graph = nx.DiGraph([(a, b) for a, later in enumerate(successors) for b in later])
    graph.add_nodes_from(range(len(successors)))
    for a, earlier in waits.items():
        wanted = {(a, b) for b in earlier - nx.descendants(graph, a)}
        assert list_kept(schedule_updates(successors, {a: earlier}), {a: earlier}) == wanted


def test_a_number_that_its_own_reader_follows_is_given_up_first() -> None:
    # 0 writes what 1 reads, and 1 should come before it; 2 should come after 3, which follows 1.
    successors: list[set[int]] = [{1}, {3}, set(), set()]
    waits = {0: {1}, 2: {3}}
    assert list_kept(schedule_updates(successors, waits), waits) == {(2, 3)}


class _Counted(set[int]):
    """A set that counts what is read of it."""

    count = 0

    def __iter__(self) -> Iterator[int]:
        for item in super().__iter__():
            _Counted.count += 1
            yield item


def _count_reads(states: int) -> int:
    """How many edges and waits are read for a chain of regions, each of whose states is updated by a region of its own."""
    _Counted.count = 0
    successors = [_Counted({i + 1}) if i + 1 < states else _Counted() for i in range(states)]
    successors += [_Counted() for _ in range(states)]
    waits = {states + i: _Counted({i, min(i + 1, states - 1)}) for i in range(states)}
    positions = schedule_updates(successors, waits)
    assert len(list_kept(positions, {a: set(b) for a, b in waits.items()})) == 2 * states - 1
    return _Counted.count


def test_work_grows_with_edges_alone() -> None:
    assert _count_reads(2000) <= 10.1 * _count_reads(200)


@pytest.mark.slow
def test_thousands_of_states_that_are_updated_elsewhere() -> None:
    count = 3000
    reads = [node("Red", f"r{i} s{i}", f"r{i + 1}", name=f"read{i}") for i in range(count)]
    updates = [node("Green", f"s{i}", f"t{i}", name=f"update{i}") for i in range(count)]
    outputs = " ".join([f"r{count}", *(f"t{i}" for i in range(count))])
    inputs = " ".join(["r0", *(f"s{i}" for i in range(count))])
    model = function([*reads, *updates], outputs, inputs, aliases=tuple((f"s{i}", f"t{i}") for i in range(count)))
    clusters = [Cluster((i,), int(one.op == "Green")) for i, one in enumerate(model.nodes)]
    folded = fold(model, clusters, [("red", "red"), ("green", "green")])
    held = {one.attr("nodes")[0]: one for one in folded.nodes}
    names = {one.name: one.attr("nodes")[0] for one in folded.nodes}
    assert len(held) == 2 * count
    for i in range(count):
        launch = held[f"update{i}"]
        assert [names[name] for name in launch.control] == [f"read{i}"]
        assert launch.attr("body").aliases == ((f"s{i}", f"t{i}"),)
