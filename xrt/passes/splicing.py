"""Splice the nodes of a body into the Function in place of the node that owns the body."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from xrt.graph import Constant, FrozenDict, Function, Node, TensorType, Type, Value
from xrt.graph.node import FreshNames, list_definitions, rename_node

__all__ = ["BodyNames", "Splice", "SplicedBody"]

_ANY_TYPE_OPSET = 16
"""First opset in which Identity supports sequences and optionals."""


@dataclass(frozen=True, slots=True)
class SplicedBody:
    """A body that runs exactly once, with the mapping of its inputs and outputs."""

    function: Function
    results: tuple[tuple[str, str], ...]
    """Pairs of a body output and the outer value that it becomes."""
    given: Mapping[str, str] = FrozenDict()
    """Outer value by body input."""


class BodyNames:
    """Counts the definitions of each value name in a model, nested bodies included, while bodies are inlined."""

    def __init__(self, root: Function) -> None:
        self._root = root
        self._counts: Counter[str] | None = None  # computed on demand: most models have nothing to inline

    @property
    def counts(self) -> Counter[str]:
        if self._counts is None:
            self._counts = Counter(list_definitions(self._root))
        return self._counts

    def release(self, node: Node) -> None:
        """Remove the names defined in the node's bodies."""
        for body in node.bodies:
            self.counts.subtract(list_definitions(body))

    def adopt(self, name: str) -> str:
        """Reserve `name`, with a numeric suffix if it is in use."""
        fresh, count = name, 1
        while self.counts[fresh] > 0:
            count += 1
            fresh = f"{name}_{count}"
        self.counts[fresh] = 1
        return fresh


class Splice:
    """A Function being rewritten node by node, where a node may be replaced by the nodes of its body."""

    def __init__(self, function: Function, names: BodyNames) -> None:
        self.function = function
        self.constants: dict[str, Constant] = dict(function.constants)
        self.types: dict[str, Type] = {}
        """Types of values of inlined nodes."""
        self.nodes: list[Node] = []
        """The nodes of the result, in order."""
        self._names = names
        # A stack, so that inlined nodes are visited before the rest.
        self._waiting = list(reversed(function.nodes))
        self.inlined: list[Node] = []
        """The nodes inlined last."""
        self._awaited = {name for node in function.nodes for name in node.control}
        self._last: dict[str, tuple[str, ...]] = {}
        """By replaced node: the nodes that control edges to it must point to."""
        self._node_names: FreshNames | None = None
        self._came: set[str] = set()

    def iter_pending(self) -> Iterator[Node]:
        """Yield each node in order, inlined ones included."""
        while self._waiting:
            yield self._waiting.pop()

    @property
    def is_unchanged(self) -> bool:
        """Whether no node was replaced."""
        kept, own = self.nodes, self.function.nodes
        return not self._last and len(kept) == len(own) and all(new is old for new, old in zip(kept, own, strict=True))

    def inline(self, node: Node, body: SplicedBody) -> bool:
        """Replace the node by the body's nodes, which are visited next; return False if that is not possible.

        Names are kept unless they collide within the model. The first nodes inherit the control inputs of the node, and the
        nodes that waited for it wait for the last ones.
        """
        # Give up before anything is changed.
        if not _can_be_passed_on(body, self.function) or _is_hidden(body):
            return False
        values = self._renamed_values(node, body)
        known = self._own_node_names()
        known.release(node.name)
        nodes = {inner.name: known.take(inner.name) for inner in body.function.nodes}
        inlined = [rename_node(inner, values, nodes) for inner in body.function.nodes]
        inlined += self._passed_on(body, values, known)
        self._take_facts(body, values)
        self.inlined = [_held(inner, node) for inner in _after(inlined, node.control)]
        self._waiting += reversed(self.inlined)
        self._last[node.name] = tuple(_last_names(inlined))
        self._awaited.update(name for inner in self.inlined for name in inner.control)
        if self.is_awaited(node):
            # The last nodes inherit the waiters of the replaced node.
            self._awaited.update(self._last[node.name])
        return True

    def is_awaited(self, node: Node) -> bool:
        """Whether a control edge starts at the node."""
        return node.name in self._awaited

    def _own_node_names(self) -> FreshNames:
        if self._node_names is None:
            self._node_names = FreshNames((node.name for node in self.function.nodes), start=2)
        return self._node_names

    def _renamed_values(self, node: Node, body: SplicedBody) -> dict[str, str]:
        """Map each value defined in the body, nested bodies included, to its outer name."""
        inner = body.function
        self._names.release(node)
        values = dict(body.given)
        for result, name in body.results:
            if inner.producer(result) is not None:
                # Write the outer name directly, which saves an Identity.
                values.setdefault(result, name)
        captured = frozenset(inner.captures)
        for name in dict.fromkeys(list_definitions(inner)):
            if name not in values and name not in captured:
                values[name] = self._names.adopt(name)
        self.constants.update((values[name], constant) for name, constant in inner.constants.items())
        self._came.update(values.values())
        return values

    def _passed_on(self, body: SplicedBody, values: Mapping[str, str], known: FreshNames) -> Iterator[Node]:
        """Yield an Identity for each result that is not a distinct node output."""
        for result, name in body.results:
            if body.function.producer(result) is None or values[result] != name:
                yield Node("Identity", (values.get(result, result),), (name,), name=known.take(name))

    def _take_facts(self, body: SplicedBody, values: Mapping[str, str]) -> None:
        inner, known = body.function, {*body.given.values(), *(name for _, name in body.results)}
        for name in inner.value_names():
            new, type_ = values.get(name, name), inner.get_type(name)
            if type_ is not None and new not in known and new not in self.constants:
                self.types[new] = type_

    def result(self) -> Function:
        """The rewritten Function, or the original if nothing changed. Constants that lost their last reader are removed."""
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
        """Redirect control edges from replaced nodes to the inlined ones."""
        if self._last.keys().isdisjoint(node.control):
            return node
        return replace(node, control=tuple(dict.fromkeys(name for old in node.control for name in self._resolved(old))))

    def _resolved(self, name: str) -> Iterator[str]:
        if name not in self._last:
            yield name
        for inner in self._last.get(name, ()):
            yield from self._resolved(inner)


def _read(nodes: Sequence[Node], function: Function) -> set[str]:
    """Every value that the nodes read or define, or that the function returns."""
    values = {name for node in nodes for name in (*node.uses, *node.outputs)}
    return values.union(value.name for value in function.outputs)


def _can_be_passed_on(body: SplicedBody, function: Function) -> bool:
    """Whether Identity supports the type of every result that must be copied."""
    if function.opsets.get("", 0) >= _ANY_TYPE_OPSET:
        return True
    made = [result for result, _ in body.results if body.function.producer(result) is not None]
    copied = [name for result, name in body.results if result not in made or made.count(result) > 1]
    return all(isinstance(function.get_type(name), TensorType) for name in copied)


def _is_hidden(body: SplicedBody) -> bool:
    """Whether a nested body redefines the name of an input: renaming could then capture the wrong value."""
    inside = (name for node in body.function.nodes for inner in node.bodies for name in list_definitions(inner))
    return bool(body.function.inputs) and not {value.name for value in body.function.inputs}.isdisjoint(inside)


def _after(nodes: list[Node], control: tuple[str, ...]) -> Iterator[Node]:
    """Yield the nodes; those without predecessors among them get the control edges."""
    made = {name for node in nodes for name in node.defines}
    for node in nodes:
        first = bool(control) and not node.control and made.isdisjoint(node.uses)
        yield replace(node, control=control) if first else node


def _last_names(nodes: list[Node]) -> Iterator[str]:
    """Yield the names of the nodes that no other node in the list depends on."""
    read = {name for node in nodes for name in node.uses}
    before = {name for node in nodes for name in node.control}
    return (node.name for node in nodes if node.name not in before and read.isdisjoint(node.defines))


def _held(inner: Node, node: Node) -> Node:
    """Inherit the device of the outer node unless the inner node has one."""
    return replace(inner, device=node.device) if node.device and not inner.device else inner
