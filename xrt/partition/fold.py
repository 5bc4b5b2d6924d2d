"""Folding: each cluster of nodes becomes one launch node that holds them as a Function of its own."""

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
    """Return the position of each number in an order that keeps the edges and as many waits as it finds.

    ``successors`` has, by number, the numbers that come after it, each once; they hang together without a cycle. ``waits`` has
    those for which a number should wait. Where waits and edges make a cycle some waits are given up; first those of the numbers
    from which the others of the cycle follow. O((n + edges + waits) log n).
    """
    order, is_complete = _sort(successors, waits, [0] * len(successors))
    if not is_complete:
        order, _ = _sort(successors, waits, _rank_cycles(successors, waits))
    positions = [0] * len(successors)
    for position, number in enumerate(order):
        positions[number] = position
    return positions


def _sort(  # noqa: C901, PLR0912
    successors: Sequence[Collection[int]], waits: Mapping[int, Collection[int]], ranks: Sequence[int]
) -> tuple[list[int], bool]:
    """Return the numbers in order, and whether all waits are kept; where none can go on, one of the least rank does."""
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
            if awaited[number]:
                heappush(held, (ranks[number], number))
                continue
        else:
            number = heappop(held)[1]
            is_complete = is_complete and done[number]
        if done[number]:
            continue  # its waits ended after it was held
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
    """Return for each number the position of its strongly connected component, in an order that keeps what is between them.

    Kosaraju's algorithm over the edges and waits. Linear.
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
    """Return the numbers in the order in which a depth-first search is done with them."""
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
"""Version of the operator domain that holds the launch node."""


@dataclass(slots=True)
class _Boundary:
    """What crosses the edge of a cluster, gathered while the nodes are read in order."""

    inputs: dict[str, None] = field(default_factory=dict)
    constants: dict[str, Constant] = field(default_factory=dict)
    exports: set[str] = field(default_factory=set)
    """Values that others read, or that the Function gives out."""
    outputs: tuple[str, ...] = ()
    """The exports in the order in which they are made."""
    control: set[int] = field(default_factory=set)
    """Clusters that must have run before, without a value passing."""


def fold(function: Function, clusters: Sequence[Cluster], engines: Sequence[tuple[str, str]]) -> Function:
    """Return the Function whose nodes are launch nodes, one per cluster, named ``xrt_<engine>_<n>`` in their order.

    ``engines`` are (name, spec) pairs. The caller guarantees that every node is in one cluster and that the clusters
    hang together without a cycle. Constants go into each body that reads them, shared by reference; those that are
    outputs stay outside as well. Linear.
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


# ------------------------------------------------------------------ what crosses


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
    """Return the clusters in the order that a Function gives to its nodes."""
    nodes = [
        Node(LAUNCH, tuple(own.inputs), own.outputs, name=str(c), control=tuple(map(str, sorted(own.control))))
        for c, own in enumerate(boundaries)
    ]
    producer = {name: c for c, node in enumerate(nodes) for name in node.outputs}
    return canonical_order(nodes, producer, [value.name for value in function.outputs])


def _order_updates(function: Function, boundaries: Sequence[_Boundary]) -> None:
    """Have what writes the output of an alias wait for all that read its input, except for what needs the output itself."""
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
    waits = {last: others for last, found in waits.items() if (others := found - successors[last])}
    positions = schedule_updates(successors, waits)
    for last, others in waits.items():
        boundaries[last].control.update(c for c in others if positions[c] < positions[last])


def _readers(function: Function, boundaries: Sequence[_Boundary]) -> dict[str, list[int]]:
    """Return, by the input of each alias, the clusters that read it."""
    readers: dict[str, list[int]] = {before: [] for before, _ in function.aliases}
    for c, boundary in enumerate(boundaries):
        for name in readers.keys() & boundary.inputs.keys():
            readers[name].append(c)
    return readers


def _inner_aliases(
    function: Function, boundaries: Sequence[_Boundary], rank: Mapping[int, int]
) -> dict[int, tuple[tuple[str, str], ...]]:
    """Return by cluster the updates in place that it can make itself.

    Those are the aliases whose output it makes from an input that no later cluster reads: it must find the old value. The others
    stay with the outer Function alone, whose runner copies the output into the input when all is done.
    """
    found: dict[int, list[tuple[str, str]]] = {}
    readers = _readers(function, boundaries)
    given = {value.name for value in function.outputs}
    for before, after in function.aliases:
        last = max(readers[before], key=rank.__getitem__, default=None)
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
    """Return the nodes without the control edges that come from elsewhere; those are the launch node's."""
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
    """Return what is known of the values that the nodes make, those apart that are outputs and carry their own."""
    known = function.types
    made = (name for node in nodes for name in node.outputs)
    return FrozenDict({name: known[name] for name in made if name in known and name not in outputs})


def extract_subgraph(function: Function, places: Sequence[int], name: str = "part") -> Function:
    """Return the nodes at those places as a closed Function, equal to the body of the launch node that a fold makes of them.

    ``places`` ascend. Linear in what is taken, not in the whole, unless it updates state that other nodes read.
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
    """Return the updates in place that the part makes in any plan, as `xrt.partition.fold` has them.

    Those are the ones of inputs that nothing else reads, and all of them where nothing runs after the part, such as updates of
    parameters: it waits for whatever else reads its state.
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
    """Whether nothing runs after the part: no node reads or waits for it, or updates what it reads. Linear in the whole."""
    if any(_is_read_outside(function, name, own) for name in outputs):
        return False
    if any(not own.isdisjoint(node.control) for node in function.nodes if node.name not in own):
        return False
    return all(before not in inputs or after in outputs for before, after in function.aliases)
