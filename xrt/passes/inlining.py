"""Inline each If whose condition is constant, and remove dead nodes."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from xrt.graph import Constant, Function, Node, TensorType, Type, Value, since_version
from xrt.graph.node import FreshNames, list_definitions, rename_node

Lookup = Callable[[str], Constant | None]
"""Returns the constant of that name, or None if the value is only known at run time."""
_ANY_TYPE_OPSET = 16
"""First opset in which Identity supports sequences and optionals."""


def inline_constant_control_flow(function: Function) -> Function:
    """Replace each If with a constant condition by its branch.

    Nested bodies are processed too. Outputs keep their names; inlined values and nodes are renamed only on a collision. An If
    with control edges stays. Return `function` itself if nothing is inlined. Linear time.
    """
    return _inline_branches(function, {}, BodyNames(function))


def _inline_branches(function: Function, outer: Mapping[str, Constant], names: BodyNames) -> Function:
    # Most Functions have no bodies and need no tables.
    if not any(node.bodies for node in function.nodes):
        return function
    splice = Splice(function, names)
    values: dict[str, Constant] = {}  # of Constant nodes, which stay: a condition may read one
    scope: ChainMap[str, Constant] = ChainMap(values, splice.constants, outer)  # type: ignore[arg-type]  # only the first map is written
    while splice.pending:
        node = splice.pending.pop()
        branch = find_taken_branch(node, scope.get)
        if branch is None or not splice.inline(node, branch):
            splice.nodes.append(node.map_bodies(lambda inner: _inline_branches(inner, scope, names)))
            if node.op == "Constant" and isinstance(value := node.attr("value"), Constant):
                values[node.outputs[0]] = value
    return splice.result()


def find_taken_branch(node: Node, lookup: Lookup) -> Function | None:
    """The branch of an If with a constant condition; None for any other node."""
    condition = lookup(node.inputs[0]) if node.op == "If" else None
    if condition is None or condition.array.size != 1:
        return None
    branch = node.attr("then_branch" if condition.array.reshape(()) else "else_branch")
    return branch if isinstance(branch, Function) and len(branch.outputs) == len(node.outputs) else None


class BodyNames:
    """Counts the definitions of each value name in a model, nested bodies included, while branches are inlined."""

    # Counts and not a set: both branches of an If, and unrelated bodies, may define the same name.

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
    """A Function being rewritten node by node, where an If may be replaced by the nodes of a branch."""

    def __init__(self, function: Function, names: BodyNames) -> None:
        self.function = function
        self.constants: dict[str, Constant] = dict(function.constants)
        self.types: dict[str, Type] = {}
        """Types of values of inlined nodes."""
        self.nodes: list[Node] = []
        """The nodes of the result, in order."""
        self._names = names
        self.pending = list(reversed(function.nodes))
        """A stack of the nodes to be visited: those of an inlined branch come before the rest."""
        self.inlined: list[Node] = []
        """The nodes inlined last."""
        self.awaited = {name for node in function.nodes for name in node.control}
        """Names of the nodes where a control edge starts."""
        self._node_names: FreshNames | None = None
        self._inlined_values: set[str] = set()

    def inline(self, node: Node, branch: Function) -> bool:
        """Replace the node by the nodes of its branch, which are visited next; return False if that is not possible.

        Names are kept unless they collide within the model.
        """
        results = [(value.name, name) for value, name in zip(branch.outputs, node.outputs, strict=True) if name]
        if node.control or node.name in self.awaited or not _can_be_copied(branch, results, self.function):
            return False
        if self._node_names is None:
            self._node_names = FreshNames((node.name for node in self.function.nodes), start=2)
        values = self._rename_values(node, branch, results)
        self._node_names.release(node.name)
        nodes = {inner.name: self._node_names.take(inner.name) for inner in branch.nodes}
        inlined = [rename_node(inner, values, nodes) for inner in branch.nodes]
        for result, name in results:
            # An Identity for each result that is not a distinct node output.
            if branch.producer(result) is None or values[result] != name:
                inlined.append(Node("Identity", (values.get(result, result),), (name,), name=self._node_names.take(name)))
        outer = {name for _, name in results}
        for name in branch.value_names():
            new, type_ = values.get(name, name), branch.get_type(name)
            if type_ is not None and new not in outer and new not in self.constants:
                self.types[new] = type_
        self.inlined = [replace(inner, device=inner.device or node.device) for inner in inlined]
        self.pending += reversed(self.inlined)
        self.awaited.update(name for inner in self.inlined for name in inner.control)
        return True

    def _rename_values(self, node: Node, branch: Function, results: Sequence[tuple[str, str]]) -> dict[str, str]:
        """Map each value defined in the branch, nested bodies included, to its outer name."""
        self._names.release(node)
        values: dict[str, str] = {}
        for result, name in results:
            if branch.producer(result) is not None:
                # Write the outer name directly, which saves an Identity.
                values.setdefault(result, name)
        captured = frozenset(branch.captures)
        for name in dict.fromkeys(list_definitions(branch)):
            if name not in values and name not in captured:
                values[name] = self._names.adopt(name)
        self.constants.update((values[name], constant) for name, constant in branch.constants.items())
        self._inlined_values.update(values.values())
        return values

    def result(self) -> Function:
        """The rewritten Function, or the original if nothing changed. Constants that lost their last reader are removed."""
        function = self.function
        pairs = zip(self.nodes, function.nodes, strict=False)
        if len(self.nodes) == len(function.nodes) and all(new is old for new, old in pairs):
            return function
        nodes = tuple(self.nodes)
        unread = (_list_used_values(function.nodes, function) | self._inlined_values) - _list_used_values(nodes, function)
        outputs = {value.name for value in function.outputs}
        types = {name: type_ for name, type_ in {**function.types, **self.types}.items() if name not in self.constants}
        return function.replace(
            nodes=nodes,
            outputs=tuple(Value(v.name, self.types.get(v.name, v.type)) for v in function.outputs),
            constants={name: constant for name, constant in self.constants.items() if name not in unread},
            types={name: type_ for name, type_ in types.items() if name not in outputs},
        )


def _list_used_values(nodes: Sequence[Node], function: Function) -> set[str]:
    """Every value that the nodes read or define, or that the function returns."""
    values = {name for node in nodes for name in (*node.uses, *node.outputs)}
    return values.union(value.name for value in function.outputs)


def _can_be_copied(branch: Function, results: Sequence[tuple[str, str]], function: Function) -> bool:
    """Whether Identity supports the type of every result that must be copied."""
    if function.opsets.get("", 0) >= _ANY_TYPE_OPSET:
        return True
    computed = [result for result, _ in results if branch.producer(result) is not None]
    copied = [name for result, name in results if result not in computed or computed.count(result) > 1]
    return all(isinstance(function.get_type(name), TensorType) for name in copied)


def drop_dead_nodes(function: Function) -> Function:
    """Remove nodes, constants and types that no output depends on, in nested bodies too.

    ONNX operators have no side effects, random ones included. An operator of a custom domain may have one, so such a node stays,
    together with its inputs and control predecessors. Function inputs and outputs stay. Return `function` itself if nothing is
    removed. Linear time.
    """
    trimmed = [node.map_bodies(drop_dead_nodes) for node in function.nodes]
    nodes, needed = _find_live(function, trimmed)
    constants = {name: constant for name, constant in function.constants.items() if name in needed}
    live = {name for node in nodes for name in node.defines} | needed
    types = {name: type_ for name, type_ in function.types.items() if name in live}
    same_nodes = len(nodes) == len(trimmed) and all(new is old for new, old in zip(trimmed, function.nodes, strict=True))
    if same_nodes and len(constants) == len(function.constants) and len(types) == len(function.types):
        return function
    return function.replace(nodes=nodes, constants=constants, types=types)


def _find_live(function: Function, nodes: Iterable[Node]) -> tuple[tuple[Node, ...], set[str]]:
    """The live nodes in order, and the values that they and the outputs read."""
    values = {value.name for value in function.outputs}
    names: set[str] = set()
    live = []
    for node in reversed(list(nodes)):  # topological order: one backward sweep suffices
        if node.name in names or not values.isdisjoint(node.outputs) or _may_have_effect(node, function):
            live.append(node)
            values.update(node.uses)
            names.update(node.control)
    return tuple(reversed(live)), values


def _may_have_effect(node: Node, function: Function) -> bool:
    """Whether the node is, or contains, an operator without an ONNX schema."""
    if since_version(node, function) is None:
        return True
    return any(_may_have_effect(inner, body) for body in node.bodies for inner in body.nodes)
