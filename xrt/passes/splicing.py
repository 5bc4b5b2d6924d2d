"""Put the nodes of a body in place of the node that holds it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from xrt.graph import Constant, FrozenDict, Function, Node, TensorType, Type, Value
from xrt.graph.node import rename_node

__all__ = ["BodyNames", "Splice", "SplicedBody"]

_ANY_TYPE_OPSET = 16
"""From this opset on, Identity takes sequences and optionals too."""


@dataclass(frozen=True, slots=True)
class SplicedBody:
    """A body that runs exactly once, and what goes in and out."""

    function: Function
    results: tuple[tuple[str, str], ...]
    """Pairs: an output of the body, and the value of the outer Function that it becomes."""
    given: Mapping[str, str] = FrozenDict()
    """By input of the body: the value of the outer Function that it is."""


class BodyNames:
    """How often each value name is defined in a model, bodies included, while bodies move outward."""

    def __init__(self, root: Function) -> None:
        self._root = root
        self._counts: Counter[str] | None = None  # most models hold nothing to be inlined

    @property
    def counts(self) -> Counter[str]:
        if self._counts is None:
            self._counts = Counter(_defined_in(self._root))
        return self._counts

    def release(self, node: Node) -> None:
        """Forget the names that the node's bodies define."""
        for body in node.bodies:
            self.counts.subtract(_defined_in(body))

    def adopt(self, name: str) -> str:
        """Take the name as it is where it is free, numbered elsewhere."""
        fresh, count = name, 1
        while self.counts[fresh] > 0:
            count += 1
            fresh = f"{name}_{count}"
        self.counts[fresh] = 1
        return fresh


def _defined_in(function: Function) -> Iterator[str]:
    """Yield every name that the Function or a body in it defines."""
    yield from function.value_names()
    for node in function.nodes:
        for body in node.bodies:
            yield from _defined_in(body)


class Splice:
    """A Function under change: its nodes one after the other, each of which may be replaced by those of its body."""

    def __init__(self, function: Function, names: BodyNames) -> None:
        self.function = function
        self.constants: dict[str, Constant] = dict(function.constants)
        self.types: dict[str, Type] = {}
        """Types of values that came with inlined nodes."""
        self.nodes: list[Node] = []
        """What is kept, in order."""
        self._names = names
        self._waiting = list(reversed(function.nodes))
        self.inlined: list[Node] = []
        """What was inlined last."""
        self._awaited = {name for node in function.nodes for name in node.control}
        self._last: dict[str, tuple[str, ...]] = {}
        """By the name of a replaced node: the nodes that must have run where it had to."""
        self._node_names: set[str] | None = None
        self._came: set[str] = set()

    def iter_pending(self) -> Iterator[Node]:
        """Yield each node in order, those included that replace another."""
        while self._waiting:
            yield self._waiting.pop()

    @property
    def is_unchanged(self) -> bool:
        """Whether every node was kept as it was."""
        kept, own = self.nodes, self.function.nodes
        return not self._last and len(kept) == len(own) and all(new is old for new, old in zip(kept, own, strict=True))

    def inline(self, node: Node, body: SplicedBody) -> bool:
        """Let the body's nodes be visited in place of the node; False where its outputs cannot be passed on under their names.

        Names stay where they are free in the whole model. The first nodes run after what the node had to run after, and what had
        to run after the node runs after the last ones.
        """
        if not _can_be_passed_on(body, self.function) or _is_hidden(body):
            return False
        values = self._renamed_values(node, body)
        known = self._own_node_names()
        known.discard(node.name)
        nodes = {inner.name: _free(inner.name, known) for inner in body.function.nodes}
        inlined = [rename_node(inner, values, nodes) for inner in body.function.nodes]
        inlined += self._passed_on(body, values, known)
        self._take_facts(body, values)
        self.inlined = [_held(inner, node) for inner in _after(inlined, node.control)]
        self._waiting += reversed(self.inlined)
        self._last[node.name] = tuple(_last_names(inlined))
        self._awaited.update(name for inner in self.inlined for name in inner.control)
        if self.is_awaited(node):
            self._awaited.update(self._last[node.name])
        return True

    def is_awaited(self, node: Node) -> bool:
        """Whether another node must run after it."""
        return node.name in self._awaited

    def _own_node_names(self) -> set[str]:
        if self._node_names is None:
            self._node_names = {node.name for node in self.function.nodes}
        return self._node_names

    def _renamed_values(self, node: Node, body: SplicedBody) -> dict[str, str]:
        """Return the outer name of each value that the body, or a body inside of it, defines."""
        inner = body.function
        self._names.release(node)
        values = dict(body.given)
        for result, name in body.results:
            if inner.producer(result) is not None:
                values.setdefault(result, name)
        captured = frozenset(inner.captures)
        for name in dict.fromkeys(_defined_in(inner)):
            if name not in values and name not in captured:
                values[name] = self._names.adopt(name)
        self.constants.update((values[name], constant) for name, constant in inner.constants.items())
        self._came.update(values.values())
        return values

    def _passed_on(self, body: SplicedBody, values: Mapping[str, str], known: set[str]) -> Iterator[Node]:
        """Yield a copy for each result that no node of the body makes for it alone."""
        for result, name in body.results:
            if body.function.producer(result) is None or values[result] != name:
                yield Node("Identity", (values.get(result, result),), (name,), name=_free(name, known))

    def _take_facts(self, body: SplicedBody, values: Mapping[str, str]) -> None:
        inner, known = body.function, {*body.given.values(), *(name for _, name in body.results)}
        for name in inner.value_names():
            new, type_ = values.get(name, name), inner.get_type(name)
            if type_ is not None and new not in known and new not in self.constants:
                self.types[new] = type_

    def result(self) -> Function:
        """Return the Function of what was kept; the Function itself where that is what it was made of.

        Constants that only nodes read which are no more are left out.
        """
        if self.is_unchanged:
            return self.function
        function = self.function
        nodes = tuple(map(self.after, self.nodes))
        unread = (_read(function.nodes, function) | self._came) - _read(nodes, function)
        own = {value.name for value in function.outputs}
        types = {name: type_ for name, type_ in {**function.types, **self.types}.items() if name not in self.constants}
        return function.replace(
            nodes=nodes,
            outputs=tuple(Value(v.name, self.types.get(v.name, v.type)) for v in function.outputs),
            constants={name: constant for name, constant in self.constants.items() if name not in unread},
            types={name: type_ for name, type_ in types.items() if name not in own},
        )

    def after(self, node: Node) -> Node:
        """Return the node with its control predecessors as they are after inlining."""
        if self._last.keys().isdisjoint(node.control):
            return node
        return replace(node, control=tuple(dict.fromkeys(name for old in node.control for name in self._resolved(old))))

    def _resolved(self, name: str) -> Iterator[str]:
        if name not in self._last:
            yield name
        for inner in self._last.get(name, ()):
            yield from self._resolved(inner)


def _read(nodes: Sequence[Node], function: Function) -> set[str]:
    """Return every value that the nodes read or define, or the function returns."""
    values = {name for node in nodes for name in (*node.uses, *node.outputs)}
    return values.union(value.name for value in function.outputs)


def _can_be_passed_on(body: SplicedBody, function: Function) -> bool:
    """Whether Identity takes every result that it would have to copy."""
    if function.opsets.get("", 0) >= _ANY_TYPE_OPSET:
        return True
    made = [result for result, _ in body.results if body.function.producer(result) is not None]
    copied = [name for result, name in body.results if result not in made or made.count(result) > 1]
    return all(isinstance(function.get_type(name), TensorType) for name in copied)


def _is_hidden(body: SplicedBody) -> bool:
    """Whether a body inside defines a value of the name of an input: renaming could then catch what is read from outside."""
    inside = (name for node in body.function.nodes for inner in node.bodies for name in _defined_in(inner))
    return bool(body.function.inputs) and not {value.name for value in body.function.inputs}.isdisjoint(inside)


def _free(name: str, known: set[str]) -> str:
    """Take the name as it is where no node has it, numbered elsewhere."""
    fresh, count = name, 1
    while fresh in known:
        count += 1
        fresh = f"{name}_{count}"
    known.add(fresh)
    return fresh


def _after(nodes: list[Node], control: tuple[str, ...]) -> Iterator[Node]:
    """Yield the nodes, those that wait for no other among them made to run after the predecessors."""
    made = {name for node in nodes for name in node.defines}
    for node in nodes:
        first = bool(control) and not node.control and made.isdisjoint(node.uses)
        yield replace(node, control=control) if first else node


def _last_names(nodes: list[Node]) -> Iterator[str]:
    """Yield the names of the nodes for which no other among them waits."""
    read = {name for node in nodes for name in node.uses}
    before = {name for node in nodes for name in node.control}
    return (node.name for node in nodes if node.name not in before and read.isdisjoint(node.defines))


def _held(inner: Node, node: Node) -> Node:
    """Return the inner node on the device of the node that held it, unless it has one of its own."""
    return replace(inner, device=node.device) if node.device and not inner.device else inner
