"""Replace each cluster of nodes by a launch node whose body is a Function of these nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from xrt.graph import FrozenDict, Function, Node, Type
from xrt.graph.function import sort_topologically
from xrt.partition.plan import DOMAIN, LAUNCH, launch_node

if TYPE_CHECKING:
    from xrt.partition.clustering import Cluster

VERSION = 1
"""Version of the launch node's operator domain."""


@dataclass(slots=True)
class _Part:
    """A subset of the nodes of a Function, and the values at its boundary."""

    nodes: list[Node]
    names: set[str]
    read: list[str]
    """Values that the nodes read and do not compute, in the order of the first read."""
    outputs: list[str]
    """Values that other nodes read or the Function returns, in definition order."""
    control: set[int] = field(default_factory=set)
    """Indices of parts that must run before this one, although it reads none of their outputs."""

    @classmethod
    def from_indices(cls, function: Function, indices: Sequence[int], ends: Collection[str]) -> _Part:
        """Create a part from ascending node indices. ``ends`` are the names of the Function's outputs. Linear in the part."""
        nodes = [function.nodes[index] for index in indices]
        names = {node.name for node in nodes}
        defined = dict.fromkeys(name for node in nodes for name in node.defined_names)
        read = dict.fromkeys(name for node in nodes for name in node.uses if name not in defined)
        outputs = [name for name in defined if name in ends or _is_read_outside(function, name, names)]
        return cls(nodes, names, list(read), outputs)

    def to_function(self, function: Function, name: str, aliases: tuple[tuple[str, str], ...]) -> Function:
        """Convert the part of ``function`` to a Function with this name and these aliases, without control edges from outside."""
        nodes, outside = self.nodes, function.constants
        if any(node.control for node in nodes):
            # Edges to nodes of other parts are edges of the launch, see `_add_control`.
            nodes = [replace(n, control=tuple(c for c in n.control if c in self.names)) if n.control else n for n in nodes]
        return Function(
            inputs=tuple(function.value(value) for value in self.read if value not in outside),
            outputs=tuple(map(function.value, self.outputs)),
            nodes=tuple(nodes),
            constants=FrozenDict({value: outside[value] for value in self.read if value in outside}),
            opsets=function.opsets,
            aliases=aliases,
            types=_select_types(function, nodes, frozenset(self.outputs)),
            name=name,
        )


def _is_read_outside(function: Function, value: str, names: Collection[str]) -> bool:
    return any(use.node.name not in names for use in function.users(value))


def _select_types(function: Function, nodes: Iterable[Node], outputs: Collection[str]) -> FrozenDict[str, Type]:
    """Select the types of values that the nodes define. ``outputs`` are left out, because a Function stores their types there."""
    types = function.types
    names = (name for node in nodes for name in node.outputs)
    return FrozenDict({name: types[name] for name in names if name in types and name not in outputs})


# ------------------------------------------------------------------ all nodes, as launches


def fold(function: Function, clusters: Sequence[Cluster], engines: Sequence[tuple[str, str]]) -> Function:
    """Replace each cluster of a Function by a launch node, named ``xrt_<engine>_<n>`` in execution order.

    ``engines`` are (name, spec) pairs. Every node must be in one cluster, and the graph of clusters must be acyclic. A constant
    is copied, sharing memory, into each body that reads it; a constant that is an output also remains outside. Linear.
    """
    ends = frozenset(value.name for value in function.outputs)
    parts = [_Part.from_indices(function, cluster.nodes, ends) for cluster in clusters]
    _add_control(function, parts)
    _order_updates(function, parts)
    order = _order_parts(function, parts)
    rank = {c: n for n, c in enumerate(order)}
    names = [f"xrt_{engines[cluster.engine][0]}_{rank[c]}" for c, cluster in enumerate(clusters)]
    aliases = _find_inner_aliases(function, parts, rank)
    nodes = []
    for c in order:
        cluster, part = clusters[c], parts[c]
        body = part.to_function(function, names[c], tuple(aliases.get(c, ())))
        control = tuple(names[earlier] for earlier in sorted(part.control, key=rank.__getitem__))
        inner = tuple(node.name for node in part.nodes)
        nodes.append(launch_node(names[c], engines[cluster.engine][1], body, inner, device=cluster.device, control=control))
    return function.replace(
        nodes=tuple(nodes),
        constants=FrozenDict((name, constant) for name, constant in function.constants.items() if name in ends),
        types=_select_types(function, nodes, ends),
        opsets=FrozenDict({**function.opsets, DOMAIN: VERSION}),
    )


def _add_control(function: Function, parts: Sequence[_Part]) -> None:
    if any(node.control for node in function.nodes):
        part_of = {name: c for c, part in enumerate(parts) for name in part.names}
        for c, part in enumerate(parts):
            part.control.update(other for node in part.nodes for name in node.control if (other := part_of[name]) != c)


def _order_parts(function: Function, parts: Sequence[_Part]) -> list[int]:
    """Compute the order in which the parts run: the canonical order of a Function that has the parts as nodes."""
    nodes = [
        Node(
            LAUNCH,
            tuple(name for name in part.read if name not in function.constants),
            tuple(part.outputs),
            name=str(c),
            control=tuple(map(str, sorted(part.control))),
        )
        for c, part in enumerate(parts)
    ]
    producer = {name: c for c, part in enumerate(parts) for name in part.outputs}
    return sort_topologically(nodes, producer, [value.name for value in function.outputs])


def _order_updates(function: Function, parts: Sequence[_Part]) -> None:
    """Add control edges so that the part that writes an alias runs after all other readers of the old value.

    An edge from a reader that itself depends on the writer would form a cycle and is left out; the output of such an alias is
    copied to its input at the end instead.
    """
    if not function.aliases:
        return
    readers = _list_readers(function, parts)
    writer = {name: c for c, part in enumerate(parts) for name in part.outputs}
    successors: list[set[int]] = [set() for _ in parts]
    for c, part in enumerate(parts):
        for earlier in {*part.control, *(writer[name] for name in part.read if name in writer)}:
            successors[earlier].add(c)
    for before, after in function.aliases:
        last = writer.get(after)
        waits = [] if last is None else [c for c in readers[before] if c != last]
        # A reader that depends on the writer cannot run before it; the update is then a copy at the end.
        if last is not None and waits:
            later = _list_reachable(successors, last)
            for c in waits:
                if c not in later:
                    parts[last].control.add(c)
                    successors[c].add(last)


def _list_reachable(successors: Sequence[Collection[int]], start: int) -> set[int]:
    seen, waiting = {start}, [start]
    while waiting:
        new = [later for later in successors[waiting.pop()] if later not in seen]
        seen.update(new)
        waiting += new
    return seen


def _list_readers(function: Function, parts: Sequence[_Part]) -> dict[str, list[int]]:
    """Map each aliased input to the indices of the parts that read it."""
    readers: dict[str, list[int]] = {before: [] for before, _ in function.aliases}
    for c, part in enumerate(parts):
        for name in part.read:
            if name in readers:
                readers[name].append(c)
    return readers


def _find_inner_aliases(function: Function, parts: Sequence[_Part], rank: Mapping[int, int]) -> dict[int, list[tuple[str, str]]]:
    """Map each part to the aliases that it can update in place.

    A part can update an alias in place if it computes the output and no later part reads the old value of the input. Any other
    alias remains one of the outer Function only: its runner copies the output to the input at the end. ``rank`` has the
    execution order of the parts.
    """
    aliases: dict[int, list[tuple[str, str]]] = {}
    readers = _list_readers(function, parts)
    returned = {value.name for value in function.outputs}
    for before, after in function.aliases:
        # Only the last reader may overwrite the input.
        last = max(readers[before], key=rank.__getitem__, default=None)
        # An input that is itself an output must keep its old value.
        if last is not None and after in parts[last].outputs and before not in returned:
            aliases.setdefault(last, []).append((before, after))
    return aliases


# ------------------------------------------------------------------ some nodes


def extract_subgraph(function: Function, indices: Sequence[int], name: str = "part") -> Function:
    """Extract nodes, given by ascending ``indices``, as a Function equal to the body that `fold` would create for them.

    Linear in the number of these nodes, unless they update state that other nodes read.
    """
    part = _Part.from_indices(function, indices, {value.name for value in function.outputs})
    return part.to_function(function, name, _find_aliases(function, part) if function.aliases else ())


def _find_aliases(function: Function, part: _Part) -> tuple[tuple[str, str], ...]:
    """Find the aliases that a part can update in place in any plan; `fold` finds the same.

    They are the aliases whose input no node outside the part reads. If nothing runs after the part (parameter updates, for
    example), all its aliases qualify, because the part then runs after the other readers of its state.
    """
    inputs, outputs = set(part.read).difference(value.name for value in function.outputs), set(part.outputs)
    aliases = [(before, after) for before, after in function.aliases if before in inputs and after in outputs]
    shared = {before for before, _ in aliases if _is_read_outside(function, before, part.names)}
    if shared and not _is_last(function, part):
        return tuple(pair for pair in aliases if pair[0] not in shared)
    return tuple(aliases)


def _is_last(function: Function, part: _Part) -> bool:
    """Whether nothing runs after the part: no node reads it, waits for it, or updates what it reads. Linear."""
    if any(_is_read_outside(function, name, part.names) for name in part.outputs):
        return False
    if any(not part.names.isdisjoint(node.control) for node in function.nodes if node.name not in part.names):
        return False
    return all(before not in part.read or after in part.outputs for before, after in function.aliases)
