"""The Function: a frozen graph of nodes in a canonical topological order."""

from __future__ import annotations

import gc
import operator
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from xrt.errors import ModelError, did_you_mean
from xrt.graph.attributes import FrozenDict
from xrt.graph.constants import Constant
from xrt.graph.node import FreshNames
from xrt.graph.types import Type, Value

if TYPE_CHECKING:
    import numpy as np

    from xrt.graph.node import Node


def sort_topologically(nodes: Sequence[Node], producer: Mapping[str, int], outputs: Sequence[str]) -> list[int]:
    """Sort node indices topologically: depth-first post-order from the outputs. Linear.

    ``producer`` maps values to the indices of the nodes that compute them. The predecessors of a node are visited in a fixed
    order: producers of the inputs, producers of the captures, then control predecessors. The result depends therefore on the
    structure of the graph and not on names or listing order. Nodes that no output needs come last, in listing order. Raises
    ModelError for a cycle or a missing control predecessor.
    """
    predecessors = _find_predecessors(nodes, producer)
    order: list[int] = []
    unvisited, on_path, is_sorted = 0, 1, 2
    status = bytearray(len(nodes))
    roots = [producer[name] for name in outputs if name in producer]
    for root in (*roots, *range(len(nodes))):
        if status[root] != unvisited:
            continue
        status[root] = on_path
        # An explicit stack: graphs are deeper than Python's recursion limit.
        path = [(root, iter(predecessors[root]))]
        while path:
            node, remaining = path[-1]
            for predecessor in remaining:
                if status[predecessor] == unvisited:
                    status[predecessor] = on_path
                    path.append((predecessor, iter(predecessors[predecessor])))
                    break
                if status[predecessor] == on_path:
                    raise _make_cycle_error([n for n, _ in path], predecessor, nodes)
            else:
                path.pop()
                status[node] = is_sorted
                order.append(node)
    return order


def _find_predecessors(nodes: Sequence[Node], producer: Mapping[str, int]) -> list[list[int]]:
    by_name: dict[str, int] | None = None
    predecessors = []
    for node in nodes:
        dependencies = [producer[name] for name in node.uses if name in producer]
        if node.control:
            if by_name is None:
                by_name = {n.name: i for i, n in enumerate(nodes)}
            for name in node.control:
                if name not in by_name:
                    raise ModelError(f"node {node.name!r} must run after node {name!r}, which is not in the function")
                dependencies.append(by_name[name])
        predecessors.append(dependencies)
    return predecessors


def _make_cycle_error(path: list[int], back_to: int, nodes: Sequence[Node]) -> ModelError:
    cycle = [nodes[i] for i in path[path.index(back_to) :]]
    # A cycle can have thousands of nodes; the first ones show where to look.
    path_text = " -> ".join(f"{n.name} ({n.op})" for n in (*cycle[:6], cycle[0]))
    return ModelError(f"the graph has a cycle of {len(cycle)} node(s): {path_text}; a function must be acyclic")


MIN_NODES_TO_PAUSE_GC = 50
"""From this many nodes on, garbage collection slows down the construction of a Function noticeably."""
_pausing_threads: list[int] = []
"""Ids of the threads that disabled garbage collection, and that will enable it again."""


@contextmanager
def pause_gc(nodes: int) -> Iterator[None]:
    """Disable garbage collection while a graph of ``nodes`` nodes is built, if it has at least `MIN_NODES_TO_PAUSE_GC`."""
    if nodes < MIN_NODES_TO_PAUSE_GC or not gc.isenabled():
        yield
        return
    gc.disable()
    _pausing_threads.append(threading.get_ident())
    try:
        yield
    finally:
        _pausing_threads.remove(threading.get_ident())
        gc.enable()


def _resume_in_child() -> None:
    """Restore garbage collection in a forked child, where the threads that paused it do not exist."""
    if _pausing_threads and _pausing_threads != [threading.get_ident()]:
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_resume_in_child)


@dataclass(frozen=True, slots=True)
class Use:
    """One read of a value: the node that reads it, and the index of the value in `Node.uses`."""

    node: Node
    slot: int


@dataclass(frozen=True, eq=False, repr=False)
class Function:
    """A graph: a whole model, a part that an engine compiles, or a body such as a branch of an If.

    Construction sorts the nodes topologically by content (see `sort_topologically`), gives every node a unique name and checks
    the structure: each value is defined once, there is no cycle, and control predecessors exist. Raises ModelError otherwise.
    Operators, types and opsets are checked by `verify`. Linear time.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...] = ()
    constants: Mapping[str, Constant] = FrozenDict()
    """Constant tensors by value name; disjoint from the inputs."""
    opsets: Mapping[str, int] = FrozenDict()
    """Version of each operator domain; the empty string is ai.onnx."""
    aliases: tuple[tuple[str, str], ...] = ()
    """(input, output) pairs: after a call, the buffer of the input contains the output."""
    types: Mapping[str, Type] = FrozenDict()
    """Known types of inner values. Inputs, outputs and constants carry their types themselves."""
    name: str = "main"
    doc: str = ""
    metadata: Mapping[str, str] = FrozenDict()
    """ONNX ``metadata_props``; not part of the fingerprint."""

    def __post_init__(self) -> None:
        for field in ("constants", "opsets", "types", "metadata"):
            value = getattr(self, field)
            if type(value) is not FrozenDict:
                object.__setattr__(self, field, FrozenDict(value))
        for field in ("inputs", "outputs", "aliases"):
            object.__setattr__(self, field, tuple(getattr(self, field)))
        nodes = tuple(self.nodes)
        if len(nodes) < MIN_NODES_TO_PAUSE_GC:  # entering the context costs more than sorting a few nodes
            self._order(nodes)
        else:
            with pause_gc(len(nodes)):
                self._order(nodes)

    def _order(self, nodes: tuple[Node, ...]) -> None:
        # Unique names first: control edges refer to nodes by name.
        unique = _make_names_unique(nodes)
        producer = _find_producers(self, unique)
        order = sort_topologically(unique, producer, [v.name for v in self.outputs])
        object.__setattr__(self, "nodes", tuple(unique[i] for i in order))
        rank = {old: new for new, old in enumerate(order)}
        object.__setattr__(self, "_producer", {name: rank[i] for name, i in producer.items()})

    def producer_index(self, value: str) -> int | None:
        """Index in `nodes` of the node that defines the value; None for inputs, constants and captures."""
        return self._producer.get(value)  # type: ignore[attr-defined, no-any-return]  # set in __post_init__

    def producer(self, value: str) -> Node | None:
        """The node that defines the value; None for inputs, constants and captures."""
        index = self.producer_index(value)
        return None if index is None else self.nodes[index]

    def computes(self, output: str) -> bool:
        """Whether a node defines the output; False if it is an input or a constant."""
        return self.producer_index(output) is not None

    def find_weight_bytes(self, digest: bytes) -> np.ndarray[Any, Any] | None:
        """The bytes of the constant with this digest if they can be read without loading nodes, else None."""
        return None

    def loaded_constants(self) -> tuple[Constant, ...]:
        """The constants that are already loaded; never triggers a read. Empty for a deferred Function that has not been read."""
        return tuple(self.constants.values())

    @cached_property
    def _users(self) -> dict[str, tuple[Use, ...]]:
        users: dict[str, list[Use]] = {}
        for node in self.nodes:
            for slot, name in enumerate(node.uses):
                users.setdefault(name, []).append(Use(node, slot))
        return {name: tuple(uses) for name, uses in users.items()}

    def users(self, value: str) -> tuple[Use, ...]:
        """All reads of the value by nodes, in node order; a node that reads it twice is listed twice."""
        return self._users.get(value, ())

    @cached_property
    def _by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    def node(self, name: str) -> Node:
        """Look up a node by name; raises ModelError that suggests the closest name."""
        try:
            return self._by_name[name]
        except KeyError:
            raise ModelError(f"function {self.name!r} has no node {name!r}.{did_you_mean(name, self._by_name)}") from None

    @cached_property
    def captures(self) -> tuple[str, ...]:
        """Values that are read but not defined here, in order of first use: a body reads them from the enclosing Function."""
        defined = self._definitions
        captures = dict.fromkeys(name for node in self.nodes for name in node.uses if name not in defined)
        captures.update(dict.fromkeys(v.name for v in self.outputs if v.name not in defined))
        return tuple(captures)

    @cached_property
    def _definitions(self) -> frozenset[str]:
        return frozenset([*(v.name for v in self.inputs), *self.constants, *self._producer])  # type: ignore[attr-defined]  # as above

    def defines(self, value: str) -> bool:
        """Whether the value is an input, a constant or a node's output of this Function; False for captures."""
        return value in self._definitions

    @cached_property
    def _types(self) -> dict[str, Type]:
        types = dict(self.types)
        types.update((v.name, v.type) for v in (*self.outputs, *self.inputs) if v.type is not None)
        # Constants last, because their types are the most precise.
        types.update((name, constant.type) for name, constant in self.constants.items())
        return types

    def get_type(self, value: str) -> Type | None:
        """The type of the value, or None if unknown."""
        return self._types.get(value)

    def value(self, name: str) -> Value:
        """The Value with this name and its type."""
        return Value(name, self.get_type(name))

    def opset(self, domain: str = "") -> int:
        """The imported version of a domain; raises ModelError if the domain is not imported."""
        try:
            return self.opsets[domain]
        except KeyError:
            imported = ", ".join(repr(d) for d in self.opsets) or "none"
            raise ModelError(f"function {self.name!r} imports no opset for domain {domain!r} (it imports: {imported})") from None

    def value_names(self) -> Iterator[str]:
        """Yield the names of all values defined here: inputs, constants, then node outputs."""
        yield from (v.name for v in self.inputs)
        yield from self.constants
        for node in self.nodes:
            yield from node.defined_names

    @property
    def size(self) -> int:
        """Number of nodes, including those in bodies. Linear."""
        return len(self.nodes) + sum(body.size for node in self.nodes if node.attributes for body in node.bodies)

    def walk(self) -> Iterator[tuple[Function, Node]]:
        """Yield every node with the Function that contains it, including bodies, outer nodes first."""
        for node in self.nodes:
            yield self, node
            for body in node.bodies:
                yield from body.walk()

    def walk_constants(self) -> Iterator[Constant]:
        """Yield every constant, including those in the attributes of nodes and in bodies."""
        yield from self.constants.values()
        for node in self.nodes:
            for attribute in node.attributes:
                values = attribute.value if attribute.kind.is_list else (attribute.value,)
                yield from (value for value in values if isinstance(value, Constant))
            for body in node.bodies:
                yield from body.walk_constants()

    def replace(self, **changes: Any) -> Function:
        """Copy the Function with some fields changed, which sorts and checks the nodes again."""
        return replace(self, **changes)

    def with_types(
        self, types: Mapping[str, Type], outputs: Iterable[Value] | None = None, nodes: Sequence[Node] | None = None
    ) -> Function:
        """Copy the Function with new types; return this Function if nothing changes.

        ``types`` has the types of inner values. ``outputs`` must have the same names as before. ``nodes`` must be the nodes of
        this Function in order, which may differ only in types inside bodies. Much faster than `replace`, which sorts the nodes
        and checks the definitions again.
        """
        outputs = self.outputs if outputs is None else tuple(outputs)
        nodes = self.nodes if nodes is None else tuple(nodes)
        if [v.name for v in outputs] != [v.name for v in self.outputs] or len(nodes) != len(self.nodes):
            raise ModelError(f"function {self.name!r} returns {[v.name for v in self.outputs]}; with_types cannot change that")
        has_same_nodes = all(map(operator.is_, nodes, self.nodes))
        if has_same_nodes and outputs == self.outputs and types == self.types:
            return self
        # Skip __post_init__, which would sort and check the nodes again.
        other = object.__new__(Function)
        fields = _VALID_WITH_TYPES if has_same_nodes else _VALID_WITH_BODIES
        other.__dict__.update((name, value) for name, value in self.__dict__.items() if name in fields)
        other.__dict__.update(types=FrozenDict(types), outputs=outputs, nodes=nodes)
        return other

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything the Function computes; see `xrt.graph.hashing`. Linear, cached."""
        from xrt.graph.hashing import fingerprint

        return fingerprint(self)

    @cached_property
    def shape_key(self) -> str:
        """Like `fingerprint`, but without the bytes of constants; see `xrt.graph.shape_key`. Linear, cached."""
        from xrt.graph.hashing import shape_key

        return shape_key(self)

    def __eq__(self, other: object) -> bool:
        """Compare contents including names. To compare up to renaming, compare `fingerprint`."""
        if not isinstance(other, Function):
            return NotImplemented
        if self is other:
            return True
        return all(getattr(self, f) == getattr(other, f) for f in self.__dataclass_fields__)

    def __hash__(self) -> int:
        # Hashing all nodes would be slow, and equal Functions have equal hashes anyway.
        return hash((self.inputs, self.outputs, len(self.nodes)))

    def _repr_html_(self) -> str:
        """Render diagrams and tables for a notebook."""
        from xrt.graph.printer import render_function  # needed only in notebooks

        return render_function(self)

    def __str__(self) -> str:
        from xrt.graph.printer import format_function

        return format_function(self)

    def __repr__(self) -> str:
        sizes = (
            f"{len(self.inputs)} inputs, {len(self.outputs)} outputs, {len(self.nodes)} nodes, {len(self.constants)} constants"
        )
        return f"<Function {self.name!r}: {sizes}>"

    # Only the fields are pickled; caches are computed again.
    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)
        self.__post_init__()


# Cached properties that remain valid in `with_types`. New node objects invalidate the ones that refer to nodes.
_FIELDS = frozenset(Function.__dataclass_fields__)
_VALID_WITH_BODIES = _FIELDS | {"_producer", "_definitions", "captures"}
_VALID_WITH_TYPES = _VALID_WITH_BODIES | {"_users", "_by_name"}


def _make_names_unique(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Name unnamed nodes after their first output and number duplicates.

    Raises ModelError for a duplicate name that a control edge refers to, because the edge would be ambiguous.
    """
    used = {node.name for node in nodes if node.name}
    has_unnamed = any(not node.name for node in nodes)
    if not has_unnamed and len(used) == len(nodes):
        return nodes
    control_names = {name for node in nodes for name in node.control}
    seen: set[str] = set()
    names = FreshNames(used, start=2)
    renamed = []
    for node in nodes:
        name = node.name
        if name and name not in seen:
            seen.add(name)
            renamed.append(node)
            continue
        if name in control_names:
            raise ModelError(f"two nodes are named {name!r}, and a control edge refers to that name; give them different names")
        base = name or next(node.defined_names, node.op_type)
        fresh = names.take(base)
        seen.add(fresh)
        renamed.append(replace(node, name=fresh))
    return tuple(renamed)


def _find_producers(function: Function, nodes: Iterable[Node]) -> dict[str, int]:
    """Map each value to the index of its defining node; raises ModelError for a value defined twice."""
    origins = {}
    for value in function.inputs:
        if value.name in origins:
            raise ModelError(f"function {function.name!r} has two inputs named {value.name!r}")
        origins[value.name] = "an input"
    for name in function.constants:
        if name in origins:
            raise ModelError(f"value {name!r} of function {function.name!r} is both an input and a constant")
        origins[name] = "a constant"
    producer: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.defined_names:
            if name in producer or name in origins:
                raise ModelError(
                    f"value {name!r} of function {function.name!r} is defined twice: by node {node.name!r} ({node.op}) and by "
                    f"{origins.get(name) or 'another node'}; every value has one definition"
                )
            producer[name] = index
    return producer
