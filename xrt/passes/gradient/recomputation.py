"""Recomputation: values of the forward part that the backward part computes again instead of keeping them.

A Function with gradients goes in, an equivalent one comes out in which nodes of the forward part stand a second time, before the
nodes of the backward part that read their results: Chen et al., arXiv:1604.06174. Every copy computes what the first node did, so
results stay the same bit for bit wherever an engine computes a node the same twice.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from xrt.errors import ModelError, OptionError
from xrt.graph import Function, Node, TensorType, is_deterministic
from xrt.graph.memory_forecast import estimate_peak
from xrt.graph.patterns import compile_patterns
from xrt.graph.rename import Names
from xrt.passes.gradient.recording import list_names

__all__ = ["list_recomputable", "recompute", "recompute_within", "select_by_pattern"]

AGAIN = "again"
"""Scope of the names of what is computed again."""
LEAST = 1 << 10
"""Bytes from which a value is worth being computed again."""


def recompute(function: Function, outputs: Collection[str], chosen: Collection[str]) -> Function:
    """Return the Function with copies of the chosen nodes, by name, for the nodes that the ``outputs`` do not depend on.

    The outputs are those of the forward part, usually loss and results. A copy reads copies of the chosen nodes before it, and
    what is not chosen as it is. The first of them wait for a node of the backward part (control edges), so that no engine
    computes them together with their originals. Nodes that may give something else a second time are never copied.
    """
    return _Copies.of(function, outputs, chosen).insert()


def list_recomputable(function: Function, outputs: Collection[str]) -> tuple[Node, ...]:
    """Return the nodes of the forward part that may be computed again."""
    part = _find_forward(function, outputs)
    return tuple(node for number, node in enumerate(function.nodes) if number in part and _is_copied(node, function))


def select_by_pattern(function: Function, outputs: Collection[str], patterns: Sequence[str]) -> set[str]:
    """Return the names of the nodes that may be computed again and match: operators, or names after ``name:``.

    Patterns have ``*`` and ``?``, and ``|`` between several. Raises ModelError for a pattern that no such node matches.
    """
    nodes = list_recomputable(function, outputs)
    found: set[str] = set()
    for pattern in patterns:
        by_name = pattern.startswith("name:")
        texts = compile_patterns(tuple(part.strip() for part in pattern.removeprefix("name:").split("|")))
        matching = {node.name for node in nodes if texts.fullmatch(node.name if by_name else node.op)}
        if not matching:
            raise ModelError(f"recompute={pattern!r} matches no node before the loss that may be computed again")
        found |= matching
    return found


def recompute_within(function: Function, outputs: Collection[str], limit: int) -> Function:
    """Return the Function with as few nodes computed again as this finds, so that its values take at most ``limit`` bytes.

    Nodes whose results the backward part reads are taken by bytes per cost, of equal ones every other, then every other of the
    rest: the checkpoints of a chain stay evenly spread. What does not lower the peak is not kept. Raises ModelError where a size
    is not known, OptionError where the limit is below what can be reached.
    """
    peak = estimate_peak(function)
    if peak is None:
        raise ModelError("recompute='auto' weighs sizes, and the model has symbolic dims; give recompute= patterns of nodes")
    best, chosen, lowest = function, frozenset[str](), peak
    for group in _rank(function, outputs):
        if lowest <= limit:
            break
        tried = chosen | group
        made = _Copies.of(function, outputs, tried).insert(waits=False)
        if (found := estimate_peak(made) or 0) < lowest:
            chosen, lowest = tried, found
    if lowest > limit:
        raise OptionError(
            f"memory_limit={limit:,} is too low: the values of a step take {peak:,} bytes at once, and {lowest:,} with"
            " what can be computed again; raise it, or take a smaller batch"
        )
    return recompute(function, outputs, chosen) if chosen else best


# ---------------------------------------------------------------------- which nodes


def _find_forward(function: Function, outputs: Collection[str]) -> set[int]:
    """Return the numbers of the nodes that the outputs depend on."""
    needed, found = set(outputs), set()
    for number in reversed(range(len(function.nodes))):
        node = function.nodes[number]
        if not needed.isdisjoint(node.defines):
            found.add(number)
            needed.update(node.uses)
    return found


def _is_copied(node: Node, function: Function) -> bool:
    return not node.control and is_deterministic(node, function)


def _rank(function: Function, outputs: Collection[str]) -> Iterator[frozenset[str]]:
    """Yield groups of nodes, those first whose results save the most bytes for their cost.

    With a node goes what is between its result and the values that the backward part reads anyway.
    """
    part = _find_forward(function, outputs)
    read = {name for number, node in enumerate(function.nodes) if number not in part for name in node.uses}
    may = {node.name for node in list_recomputable(function, outputs)}
    alike: dict[float, list[frozenset[str]]] = {}
    for node in (node for node in function.nodes if node.name in may):
        saved = sum(_size(function, name) or 0 for name in node.outputs if name in read)
        if saved >= LEAST:
            nodes = _find_sources(function, node, read, may)
            cost = sum(_cost(function, one) for one in nodes)
            alike.setdefault(round(math.log2(saved / cost), 3), []).append(frozenset(one.name for one in nodes))
    for ratio in sorted(alike, reverse=True):
        for level in range(len(alike[ratio]).bit_length()):
            group = [nodes for i, nodes in enumerate(alike[ratio], 1) if i % (2 << level) == 1 << level]
            if group:
                yield frozenset().union(*group)


def _find_sources(function: Function, last: Node, read: set[str], may: set[str]) -> list[Node]:
    """Return a node, and those before it whose results are kept for nothing else."""
    found, waiting = {last.name: last}, [last]
    while waiting:
        for name in waiting.pop().inputs:
            node = function.producer(name)
            if node is not None and node.name in may and node.name not in found and read.isdisjoint(node.outputs):
                found[node.name] = node
                waiting.append(node)
    return list(found.values())


def _cost(function: Function, node: Node) -> float:
    """Return how long a node takes, in bytes moved: those of its values, and a quarter of a byte for each product."""
    moved = sum(_size(function, name) or 0 for name in dict.fromkeys((*node.uses, *node.defines)))
    return max(moved + _count_products(function, node) / 4, 1.0)


def _count_products(function: Function, node: Node) -> float:
    types = [function.get_type(name) for name in (*node.inputs[:2], *node.outputs[:1])]
    known = (type_.shape for type_ in types if isinstance(type_, TensorType) and type_.shape)
    shapes = [[n for n in shape if isinstance(n, int)] for shape in known if all(isinstance(n, int) for n in shape)]
    if len(shapes) < 3:
        return 0.0
    result = math.prod(shapes[2])
    if node.op_type in ("MatMul", "Gemm"):
        return float(result * shapes[0][0 if node.attr("transA", 0) else -1])
    if node.op_type in ("Conv", "ConvTranspose"):
        return float(result * math.prod(shapes[1][1:]))
    return 0.0


def _size(function: Function, name: str) -> int | None:
    type_ = function.get_type(name)
    return type_.nbytes if isinstance(type_, TensorType) else None


# ---------------------------------------------------------------------- the copies


@dataclass(slots=True)
class _Copies:
    """Copies of nodes of the forward part, made as nodes of the backward part ask for them."""

    function: Function
    outputs: Collection[str]
    part: set[int]
    chosen: set[int]
    names: Names
    values: dict[str, str] = field(default_factory=dict)
    """By value of the forward part its copy."""
    nodes: list[Node] = field(default_factory=list)

    @classmethod
    def of(cls, function: Function, outputs: Collection[str], chosen: Collection[str]) -> _Copies:
        names = Names()
        for name in dict.fromkeys(list_names(function)):
            names.take(name)
        part = _find_forward(function, outputs)
        taken = {n for n in part if function.nodes[n].name in chosen and _is_copied(function.nodes[n], function)}
        return cls(function, outputs, part, taken, names)

    def insert(self, *, waits: bool = True) -> Function:
        """Return the Function with the copies; without ``waits`` nothing keeps the first of them in the backward part."""
        function, rest = self.function, []
        for number, node in enumerate(function.nodes):
            rest.append(node if number in self.part else self._with_copies(node))
        if not self.nodes:
            return function
        types = {**function.types, **{copy: type_ for name, copy in self.values.items() if (type_ := function.get_type(name))}}
        made = function.replace(nodes=(*rest, *self.nodes), types=types)
        return self._with_waits(made) if waits else made

    def _with_copies(self, node: Node) -> Node:
        inputs = tuple(self._copy(name) for name in node.inputs)
        return node if inputs == node.inputs else replace(node, inputs=inputs)

    def _copy(self, name: str) -> str:
        """Return the copy of a value, whose nodes are made first; the value itself where its node is not chosen."""
        waiting = [name]
        while waiting:
            number = self.function.position(waiting[-1])
            if number not in self.chosen or waiting[-1] in self.values:
                waiting.pop()
                continue
            node = self.function.nodes[number]
            before = [x for x in node.inputs if x not in self.values and self.function.position(x) in self.chosen]
            if before:
                waiting += before
                continue
            inputs = tuple(self.values.get(x, x) for x in node.inputs)
            self.values.update((x, self.names.plain(f"{x}/{AGAIN}")) for x in node.outputs if x)
            outputs = tuple(self.values.get(x, "") for x in node.outputs)
            self.nodes.append(replace(node, inputs=inputs, outputs=outputs, name=self.names.plain(f"{node.name}/{AGAIN}")))
        return self.values.get(name, name)

    def _with_waits(self, made: Function) -> Function:
        """Return the Function in which copies that read no other copy wait for a gradient that arrives where they are read."""
        copied = {node.name for node in self.nodes}
        place = {node.name: number for number, node in enumerate(made.nodes)}
        gates = self._list_gates()
        end = self._find_end()
        waits: dict[str, str] = {}
        for node in self.nodes:
            if any(self.names_copy(made, name, copied) for name in node.inputs):
                continue
            gate = _find_gate(made, place[node.name], gates, waits) or end
            if gate is not None:
                waits[node.name] = gate
        return made.replace(
            nodes=tuple(replace(node, control=(waits[node.name],)) if node.name in waits else node for node in made.nodes)
        )

    def _list_gates(self) -> set[str]:
        """Return the nodes of the backward part that need a gradient and the forward part: none of them is computed early.

        What is made of weights or constants alone may be, and so may what is made of a value of the forward part alone.
        """
        function = self.function
        forward = [function.nodes[number] for number in self.part]
        late = {name for node in forward for name in node.defines}
        gradients = {value.name for value in function.inputs}.difference(*(node.uses for node in forward))  # seeds, if given
        found = set()
        for number, node in enumerate(function.nodes):
            if number in self.part:
                continue
            if all(name in function.constants for name in node.uses) or not gradients.isdisjoint(node.uses):
                gradients.update(node.defines)
            if not late.isdisjoint(node.uses):
                late.update(node.defines)
                found.update([node.name] if gradients.issuperset(node.defines) else [])
        return found

    @staticmethod
    def names_copy(function: Function, name: str, copied: Collection[str]) -> bool:
        producer = function.producer(name)
        return producer is not None and producer.name in copied

    def _find_end(self) -> str | None:
        """Return the last node of the forward part that makes an output of it."""
        makers = (self.function.position(name) for name in self.outputs)
        last = max((number for number in makers if number is not None), default=None)
        return None if last is None else self.function.nodes[last].name


def _find_gate(function: Function, first: int, gates: Collection[str], waits: Mapping[str, str]) -> str | None:
    """Return one of the gates that the first node to depend on the one of that number reads too, and that does not depend on it.

    ``waits`` has the gates of other nodes by name.
    """
    waiting: dict[str, list[str]] = {}
    for name, gate in waits.items():
        waiting.setdefault(gate, []).append(name)
    after, ahead = {function.nodes[first].name}, [function.nodes[first]]
    while ahead:
        node = ahead.pop()
        users = [use.node for name in node.defines for use in function.users(name)]
        new = [user for user in (*users, *map(function.node, waiting.get(node.name, ()))) if user.name not in after]
        after.update(user.name for user in new)
        ahead += new
    for node in function.nodes[first + 1 :]:
        if node.name in after:
            for name in node.inputs:
                producer = function.producer(name)
                if producer is not None and producer.name in gates and producer.name not in after:
                    return producer.name
    return None
