"""Folding: replace each cluster of nodes by a launch node whose body is a closed Function."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from xrt.graph import Constant, FrozenDict, Function, Node, Type
from xrt.graph.function import canonical_order
from xrt.partition.plan import DOMAIN, LAUNCH, launch_node

if TYPE_CHECKING:
    from xrt.partition.clustering import Cluster

__all__ = ["extract_subgraph", "fold", "schedule_updates"]


def schedule_updates(successors: Sequence[Collection[int]], waits: Mapping[int, Collection[int]]) -> list[int]:
    """Sort numbers topologically by edges, satisfying as many soft constraints (``waits``) as possible.

    Return the position of each number. ``successors`` lists the successors of each number, without duplicates and cycles.
    ``waits`` lists the numbers that a number should wait for. If waits and edges form a cycle, some waits are dropped, starting
    with those of the numbers that the rest of the cycle depends on. O((n + edges + waits) log n).
    """
    order, is_complete = _sort(successors, waits, [0] * len(successors))
    # Not all waits can be satisfied. Only then are the ranks needed, which cost another pass.
    if not is_complete:
        order, _ = _sort(successors, waits, _rank_cycles(successors, waits))
    positions = [0] * len(successors)
    for position, number in enumerate(order):
        positions[number] = position
    return positions


def _sort(  # noqa: C901, PLR0912
    successors: Sequence[Collection[int]], waits: Mapping[int, Collection[int]], ranks: Sequence[int]
) -> tuple[list[int], bool]:
    """Sort, and report whether all waits are satisfied; when blocked, continue with a number of the lowest rank."""
    waiters: dict[int, list[int]] = {}
    missing, awaited = [0] * len(successors), [0] * len(successors)
    for edges in successors:
        for later in edges:
            missing[later] += 1
    for number, earlier in waits.items():
        awaited[number] = len(earlier)
        for one in earlier:
            waiters.setdefault(one, []).append(number)
    released = [number for number, count in enumerate(missing) if not count]
    held: list[tuple[int, int]] = []
    order: list[int] = []
    done = [False] * len(successors)
    is_complete = True
    while released or held:
        if released:
            number = released.pop()
            # All its predecessors have run, but not everything it should wait for.
            if awaited[number]:
                heappush(held, (ranks[number], number))
                continue
        else:
            # Nothing else can run: drop the remaining waits of a number of the lowest rank.
            number = heappop(held)[1]
            is_complete = is_complete and done[number]
        if done[number]:
            continue  # already run: its waits ended while it was in the heap
        done[number] = True
        order.append(number)
        for later in successors[number]:
            missing[later] -= 1
            if not missing[later]:
                released.append(later)
        for waiter in waiters.get(number, ()):
            awaited[waiter] -= 1
            if not awaited[waiter] and not missing[waiter] and not done[waiter]:
                released.append(waiter)
    return order, is_complete


def _rank_cycles(successors: Sequence[Collection[int]], waits: Mapping[int, Collection[int]]) -> list[int]:
    """Rank each number by its strongly connected component, in topological order of the components.

    Kosaraju's algorithm over edges and waits. Linear.
    """
    after = [list(later) for later in successors]
    for number, earlier in waits.items():
        for one in earlier:
            after[one].append(number)
    before: list[list[int]] = [[] for _ in after]
    for number, later in enumerate(after):
        for one in later:
            before[one].append(number)
    ranks = [-1] * len(after)
    for rank, number in enumerate(reversed(_list_finished(after))):
        waiting = [number] if ranks[number] < 0 else []
        while waiting:
            one = waiting.pop()
            if ranks[one] < 0:
                ranks[one] = rank
                waiting += before[one]
    return ranks


def _list_finished(after: Sequence[Sequence[int]]) -> list[int]:
    """The numbers in depth-first post-order."""
    order: list[int] = []
    seen = [False] * len(after)
    for root in range(len(after)):
        path = [] if seen[root] else [(root, iter(after[root]))]
        seen[root] = True
        while path:
            number, rest = path[-1]
            new = next((one for one in rest if not seen[one]), None)
            if new is None:
                order.append(number)
                path.pop()
            else:
                seen[new] = True
                path.append((new, iter(after[new])))
    return order


VERSION = 1
"""Version of the launch node's operator domain."""


@dataclass(slots=True)
class _Boundary:
    """The values at the boundary of a cluster, collected while reading the nodes in order."""

    inputs: dict[str, None] = field(default_factory=dict)
    constants: dict[str, Constant] = field(default_factory=dict)
    exports: set[str] = field(default_factory=set)
    """Values read by other clusters or returned by the Function."""
    outputs: tuple[str, ...] = ()
    """The exports in definition order."""
    control: set[int] = field(default_factory=set)
    """Clusters that must run before, without a data dependency."""


def fold(function: Function, clusters: Sequence[Cluster], engines: Sequence[tuple[str, str]]) -> Function:
    """Fold a Function to launch nodes, one per cluster, named ``xrt_<engine>_<n>`` in execution order.

    ``engines`` are (name, spec) pairs. Every node must be in one cluster, and the graph of clusters must be acyclic. Constants
    are added to each body that reads them, sharing memory; those that are outputs also remain outside. Linear.
    """
    boundaries = _boundaries(function, clusters)
    _order_updates(function, boundaries)
    order = _order(function, boundaries)
    rank = {c: n for n, c in enumerate(order)}
    names = [f"xrt_{engines[cluster.engine][0]}_{rank[c]}" for c, cluster in enumerate(clusters)]
    aliases = _inner_aliases(function, boundaries, rank)
    nodes = []
    for c in order:
        cluster, boundary = clusters[c], boundaries[c]
        body = _body(function, cluster, boundary, names[c], aliases.get(c, ()))
        inner = tuple(function.nodes[i].name for i in cluster.nodes)
        control = tuple(names[earlier] for earlier in sorted(boundary.control, key=rank.__getitem__))
        nodes.append(launch_node(names[c], engines[cluster.engine][1], body, inner, device=cluster.device, control=control))
    return _outer(function, nodes)


# ------------------------------------------------------------------ boundary values


def _boundaries(function: Function, clusters: Sequence[Cluster]) -> list[_Boundary]:
    home = _homes(function, clusters)
    found = [_Boundary() for _ in clusters]
    for i, node in enumerate(function.nodes):
        own = found[home[i]]
        for name in node.uses:
            position = function.position(name)
            if position is None:
                _take(own, name, function.constants.get(name))
            elif home[position] != home[i]:
                own.inputs[name] = None
                found[home[position]].exports.add(name)
    for value in function.outputs:
        position = function.position(value.name)
        if position is not None:
            found[home[position]].exports.add(value.name)
    _add_control(function, home, found)
    for cluster, own in zip(clusters, found, strict=True):
        own.outputs = tuple(name for i in cluster.nodes for name in function.nodes[i].outputs if name in own.exports)
    return found


def _homes(function: Function, clusters: Sequence[Cluster]) -> list[int]:
    home = [0] * len(function.nodes)
    for c, cluster in enumerate(clusters):
        for i in cluster.nodes:
            home[i] = c
    return home


def _take(own: _Boundary, name: str, constant: Constant | None) -> None:
    if constant is None:
        own.inputs[name] = None
    else:
        own.constants[name] = constant


def _add_control(function: Function, home: Sequence[int], found: Sequence[_Boundary]) -> None:
    if not any(node.control for node in function.nodes):
        return
    homes = {node.name: home[i] for i, node in enumerate(function.nodes)}
    for node in function.nodes:
        own = homes[node.name]
        found[own].control.update(other for name in node.control if (other := homes[name]) != own)


def _order(function: Function, boundaries: Sequence[_Boundary]) -> list[int]:
    """The canonical order of the clusters as nodes of a Function."""
    nodes = [
        Node(LAUNCH, tuple(own.inputs), own.outputs, name=str(c), control=tuple(map(str, sorted(own.control))))
        for c, own in enumerate(boundaries)
    ]
    producer = {name: c for c, node in enumerate(nodes) for name in node.outputs}
    return canonical_order(nodes, producer, [value.name for value in function.outputs])


def _order_updates(function: Function, boundaries: Sequence[_Boundary]) -> None:
    """Make the writer of an alias wait for all readers of the old value, unless they need the new value."""
    readers = _readers(function, boundaries)
    writer = {name: c for c, own in enumerate(boundaries) for name in own.exports}
    waits: dict[int, set[int]] = {}
    for before, after in function.aliases:
        last = writer.get(after)
        if last is not None:
            waits.setdefault(last, set()).update(c for c in readers[before] if c != last and c not in boundaries[last].control)
    if not any(waits.values()):
        return
    successors: list[set[int]] = [set() for _ in boundaries]
    for c, own in enumerate(boundaries):
        for earlier in {*own.control, *(writer[name] for name in own.inputs if name in writer)}:
            successors[earlier].add(c)
    # Readers that need the new value cannot run before its writer.
    waits = {last: others for last, found in waits.items() if (others := found - successors[last])}
    positions = schedule_updates(successors, waits)
    for last, others in waits.items():
        boundaries[last].control.update(c for c in others if positions[c] < positions[last])


def _readers(function: Function, boundaries: Sequence[_Boundary]) -> dict[str, list[int]]:
    """For each aliased input, the clusters that read it."""
    readers: dict[str, list[int]] = {before: [] for before, _ in function.aliases}
    for c, boundary in enumerate(boundaries):
        for name in readers.keys() & boundary.inputs.keys():
            readers[name].append(c)
    return readers


def _inner_aliases(
    function: Function, boundaries: Sequence[_Boundary], rank: Mapping[int, int]
) -> dict[int, tuple[tuple[str, str], ...]]:
    """For each cluster, the aliases that it can update in place.

    These are aliases whose output it computes and whose input no later cluster reads, since that needs the old value. The others
    remain aliases of the outer Function only: its runner copies the output to the input at the end.
    """
    found: dict[int, list[tuple[str, str]]] = {}
    readers = _readers(function, boundaries)
    given = {value.name for value in function.outputs}
    for before, after in function.aliases:
        last = max(readers[before], key=rank.__getitem__, default=None)
        # An input that is itself an output must keep its old value.
        if last is not None and after in boundaries[last].exports and before not in given:
            found.setdefault(last, []).append((before, after))
    return {c: tuple(aliases) for c, aliases in found.items()}


# ------------------------------------------------------------------ the Functions


def _body(function: Function, cluster: Cluster, boundary: _Boundary, name: str, aliases: tuple[tuple[str, str], ...]) -> Function:
    nodes = [function.nodes[i] for i in cluster.nodes]
    return Function(
        inputs=tuple(map(function.value, boundary.inputs)),
        outputs=tuple(map(function.value, boundary.outputs)),
        nodes=_closed(nodes),
        constants=FrozenDict(boundary.constants),
        opsets=function.opsets,
        aliases=aliases,
        types=_types(function, nodes, boundary.exports),
        name=name,
    )


def _closed(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Remove control edges from outside the cluster; they become control edges of the launch node."""
    if not any(node.control for node in nodes):
        return tuple(nodes)
    own = {node.name for node in nodes}
    return tuple(replace(n, control=tuple(c for c in n.control if c in own)) if n.control else n for n in nodes)


def _outer(function: Function, nodes: Sequence[Node]) -> Function:
    ends = {value.name for value in function.outputs}
    return function.replace(
        nodes=tuple(nodes),
        constants=FrozenDict((name, constant) for name, constant in function.constants.items() if name in ends),
        types=_types(function, nodes, ends),
        opsets=FrozenDict({**function.opsets, DOMAIN: VERSION}),
    )


def _types(function: Function, nodes: Iterable[Node], outputs: Collection[str]) -> FrozenDict[str, Type]:
    """Known types of values defined by the nodes, without outputs, whose types are stored with them."""
    known = function.types
    made = (name for node in nodes for name in node.outputs)
    return FrozenDict({name: known[name] for name in made if name in known and name not in outputs})


def extract_subgraph(function: Function, places: Sequence[int], name: str = "part") -> Function:
    """Extract nodes as a closed Function, equal to the body that `fold` would create for them.

    ``places`` must be ascending. Linear in the part, unless it updates state that other nodes read.
    """
    nodes = [function.nodes[place] for place in places]
    made = {name for node in nodes for name in node.defines}
    read = dict.fromkeys(name for node in nodes for name in node.uses if name not in made)
    own = {node.name for node in nodes}
    ends = {value.name for value in function.outputs}
    inputs = [name for name in read if name not in function.constants]
    outputs = [name for node in nodes for name in node.defines if name in ends or _is_read_outside(function, name, own)]
    return Function(
        inputs=tuple(map(function.value, inputs)),
        outputs=tuple(map(function.value, outputs)),
        nodes=tuple(replace(n, control=tuple(c for c in n.control if c in own)) if n.control else n for n in nodes),
        constants=FrozenDict({name: function.constants[name] for name in read if name in function.constants}),
        opsets=function.opsets,
        aliases=_aliases(function, inputs, outputs, own),
        types=FrozenDict({name: function.types[name] for name in made if name in function.types and name not in outputs}),
        name=name,
    )


def _is_read_outside(function: Function, value: str, own: set[str]) -> bool:
    return any(use.node.name not in own for use in function.users(value))


def _aliases(function: Function, inputs: Sequence[str], outputs: Sequence[str], own: set[str]) -> tuple[tuple[str, str], ...]:
    """The aliases that the part can update in place in any plan, consistent with `fold`.

    These are the aliases whose input no other node reads. If nothing runs after the part (parameter updates, for example), all
    aliases qualify, because the part waits for the other readers of its state.
    """
    if not function.aliases:
        return ()
    given, made = set(inputs).difference(value.name for value in function.outputs), set(outputs)
    found = [(before, after) for before, after in function.aliases if before in given and after in made]
    shared = {before for before, _ in found if _is_read_outside(function, before, own)}
    if shared and not _is_last(function, set(inputs), outputs, own):
        return tuple(pair for pair in found if pair[0] not in shared)
    return tuple(found)


def _is_last(function: Function, inputs: set[str], outputs: Sequence[str], own: set[str]) -> bool:
    """Whether nothing runs after the part: no node reads it, waits for it, or updates what it reads. Linear."""
    if any(_is_read_outside(function, name, own) for name in outputs):
        return False
    if any(not own.isdisjoint(node.control) for node in function.nodes if node.name not in own):
        return False
    return all(before not in inputs or after in outputs for before, after in function.aliases)
