"""Replace each cluster of nodes by a launch node whose body is a Function of these nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from xrt.graph import FrozenDict, Function, Node, Type
from xrt.graph.function import sort_topologically
from xrt.partition.plan import LAUNCH_DOMAIN, LAUNCH_OP, launch_node

if TYPE_CHECKING:
    from xrt.partition.clustering import Cluster

LAUNCH_DOMAIN_VERSION = 1
"""Version of `LAUNCH_DOMAIN`, the operator domain of launch nodes."""


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
    def from_indices(cls, function: Function, indices: Sequence[int], output_names: Collection[str]) -> _Part:
        """Create a part from ascending node indices; ``output_names`` are of the Function. Linear in the size of the part."""
        nodes = [function.nodes[index] for index in indices]
        names = {node.name for node in nodes}
        computed = dict.fromkeys(name for node in nodes for name in node.defined_names)
        read = dict.fromkeys(name for node in nodes for name in node.uses if name not in computed)
        outputs = [name for name in computed if name in output_names or _is_read_outside(function, name, names)]
        return cls(nodes, names, list(read), outputs)

    def to_function(self, function: Function, name: str, aliases: tuple[tuple[str, str], ...]) -> Function:
        """Convert the part of ``function`` to a Function with this name and these aliases, without control edges from outside."""
        nodes, constants = self.nodes, function.constants
        if any(node.control for node in nodes):
            # Control edges from other parts are edges of the launch, see `_add_control`.
            inner_control = [tuple(name for name in node.control if name in self.names) for node in nodes]
            pairs = zip(nodes, inner_control, strict=True)
            nodes = [node if control == node.control else replace(node, control=control) for node, control in pairs]
        return Function(
            inputs=tuple(function.value(value) for value in self.read if value not in constants),
            outputs=tuple(map(function.value, self.outputs)),
            nodes=tuple(nodes),
            constants=FrozenDict({value: constants[value] for value in self.read if value in constants}),
            opsets=function.opsets,
            aliases=aliases,
            types=_select_types(function, nodes, frozenset(self.outputs)),
            name=name,
        )


def _is_read_outside(function: Function, value: str, names: Collection[str]) -> bool:
    return any(use.node.name not in names for use in function.users(value))


def _select_types(function: Function, nodes: Iterable[Node], outputs: Collection[str]) -> FrozenDict[str, Type]:
    """Select the types of values that the nodes define, except ``outputs``, whose types a Function has in its outputs."""
    types = function.types
    names = (name for node in nodes for name in node.outputs)
    return FrozenDict({name: types[name] for name in names if name in types and name not in outputs})


def fold(function: Function, clusters: Sequence[Cluster], engines: Sequence[tuple[str, str]]) -> Function:
    """Replace each cluster of a Function by a launch node, named ``xrt_<engine>_<n>`` in execution order.

    ``engines`` are (name, spec) pairs. Every node must be in one cluster, and the graph of clusters must be acyclic. Each body
    that reads a constant has the constant, without a copy of its memory; a constant that is an output is also in the result.
    Linear.
    """
    output_names = frozenset(value.name for value in function.outputs)
    parts = [_Part.from_indices(function, cluster.nodes, output_names) for cluster in clusters]
    _add_control(function, parts)
    _order_updates(function, parts)
    order = _order_parts(function, parts)
    # Index of a part, and of its cluster, to the position in execution order.
    rank = {index: position for position, index in enumerate(order)}
    names = []
    for index, cluster in enumerate(clusters):
        engine_name, _ = engines[cluster.engine]
        names.append(f"xrt_{engine_name}_{rank[index]}")
    aliases = _find_inner_aliases(function, parts, rank)
    nodes = []
    for index in order:
        cluster, part = clusters[index], parts[index]
        body = part.to_function(function, names[index], tuple(aliases.get(index, ())))
        control = tuple(names[predecessor] for predecessor in sorted(part.control, key=rank.__getitem__))
        node_names = tuple(node.name for node in part.nodes)
        _, spec = engines[cluster.engine]
        nodes.append(launch_node(names[index], spec, body, node_names, device=cluster.device, control=control))
    return function.replace(
        nodes=tuple(nodes),
        constants=FrozenDict((name, constant) for name, constant in function.constants.items() if name in output_names),
        types=_select_types(function, nodes, output_names),
        opsets=FrozenDict({**function.opsets, LAUNCH_DOMAIN: LAUNCH_DOMAIN_VERSION}),
    )


def _add_control(function: Function, parts: Sequence[_Part]) -> None:
    """Add the control edges between nodes of different parts to the parts."""
    if any(node.control for node in function.nodes):
        part_of = {name: index for index, part in enumerate(parts) for name in part.names}
        for index, part in enumerate(parts):
            part.control.update(part_of[name] for node in part.nodes for name in node.control)
            part.control.discard(index)


def _order_parts(function: Function, parts: Sequence[_Part]) -> list[int]:
    """Compute the order in which the parts run: the canonical order of a Function that has the parts as nodes."""
    nodes = []
    for index, part in enumerate(parts):
        inputs = tuple(name for name in part.read if name not in function.constants)
        control = tuple(map(str, sorted(part.control)))
        nodes.append(Node(LAUNCH_OP, inputs, tuple(part.outputs), name=str(index), control=control))
    producer = {name: index for index, part in enumerate(parts) for name in part.outputs}
    return sort_topologically(nodes, producer, [value.name for value in function.outputs])


def _order_updates(function: Function, parts: Sequence[_Part]) -> None:
    """Add control edges so that the part that computes the output of an alias runs after the other readers of the input.

    The input may then be overwritten. A reader that depends on the writer cannot run first; the output of such an alias is copied
    to the input at the end of the call instead.
    """
    if not function.aliases:
        return
    readers = _list_readers(function, parts)
    producer = {name: index for index, part in enumerate(parts) for name in part.outputs}
    successors: list[set[int]] = [set() for _ in parts]
    for index, part in enumerate(parts):
        for predecessor in {*part.control, *(producer[name] for name in part.read if name in producer)}:
            successors[predecessor].add(index)
    for input_name, output_name in function.aliases:
        writer = producer.get(output_name)
        if writer is None:
            continue
        other_readers = [reader for reader in readers[input_name] if reader != writer]
        dependent = _find_reachable(successors, writer) if other_readers else set()
        for reader in other_readers:
            if reader not in dependent:
                parts[writer].control.add(reader)
                successors[reader].add(writer)


def _find_reachable(successors: Sequence[Collection[int]], start: int) -> set[int]:
    reachable, pending = {start}, [start]
    while pending:
        new = [successor for successor in successors[pending.pop()] if successor not in reachable]
        reachable.update(new)
        pending += new
    return reachable


def _list_readers(function: Function, parts: Sequence[_Part]) -> dict[str, list[int]]:
    """Map the input of each alias to the indices of the parts that read it."""
    readers: dict[str, list[int]] = {input_name: [] for input_name, _ in function.aliases}
    for index, part in enumerate(parts):
        for name in part.read:
            if name in readers:
                readers[name].append(index)
    return readers


def _find_inner_aliases(function: Function, parts: Sequence[_Part], rank: Mapping[int, int]) -> dict[int, list[tuple[str, str]]]:
    """Map each part to the aliases that it can update in place; ``rank`` has the position of each part in execution order.

    A part can update an alias in place if it computes the output and is the last part that reads the input. For any other alias
    of the Function, the output is copied to the input at the end of the call.
    """
    aliases: dict[int, list[tuple[str, str]]] = {}
    readers = _list_readers(function, parts)
    output_names = {value.name for value in function.outputs}
    for input_name, output_name in function.aliases:
        last_reader = max(readers[input_name], key=rank.__getitem__, default=None)
        # An input that is also an output of the Function must keep its value.
        if last_reader is not None and output_name in parts[last_reader].outputs and input_name not in output_names:
            aliases.setdefault(last_reader, []).append((input_name, output_name))
    return aliases


def extract_subgraph(function: Function, indices: Sequence[int], name: str = "part") -> Function:
    """Extract nodes, given by ascending ``indices``, as a Function equal to the body that `fold` would create for them.

    Linear in the number of these nodes, unless they update state that other nodes read.
    """
    part = _Part.from_indices(function, indices, {value.name for value in function.outputs})
    return part.to_function(function, name, _find_aliases(function, part) if function.aliases else ())


def _find_aliases(function: Function, part: _Part) -> tuple[tuple[str, str], ...]:
    """Find the aliases that the part can update in place in any plan. `fold` finds the same for the same part.

    No node outside the part may read the input of such an alias, unless nothing can run after the part (an update of parameters,
    for example): the part then runs after all other readers.
    """
    inputs = set(part.read).difference(value.name for value in function.outputs)
    outputs = set(part.outputs)
    aliases = [(name, result) for name, result in function.aliases if name in inputs and result in outputs]
    shared_inputs = {name for name, _ in aliases if _is_read_outside(function, name, part.names)}
    if shared_inputs and not _is_last(function, part):
        aliases = [(name, result) for name, result in aliases if name not in shared_inputs]
    return tuple(aliases)


def _is_last(function: Function, part: _Part) -> bool:
    """Whether nothing can run after the part: no other node reads its outputs, waits for it, or updates a value that it reads.

    Linear.
    """
    if any(_is_read_outside(function, name, part.names) for name in part.outputs):
        return False
    if any(not part.names.isdisjoint(node.control) for node in function.nodes if node.name not in part.names):
        return False
    return all(name not in part.read or output_name in part.outputs for name, output_name in function.aliases)
