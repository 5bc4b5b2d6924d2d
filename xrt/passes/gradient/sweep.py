"""The reverse sweep of differentiation: from the last node to the first, apply the gradient rule of each node.

Griewank and Walther, *Evaluating Derivatives* (2008), chapter 3: the gradient of a value is the sum of the contributions of its
readers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, MutableMapping, Sequence
from typing import TYPE_CHECKING

from xrt.graph import Node
from xrt.operators import is_deterministic
from xrt.passes.gradient.preparation import WITHOUT_GRADIENT, describe_missing
from xrt.passes.gradient.table import RuleContext, add_up, find_rule, may_have_gradient, refuse

if TYPE_CHECKING:
    from xrt.builder.builder import Builder
    from xrt.builder.tensor import Tensor
    from xrt.graph import Function


def find_active(nodes: Iterable[Node], starts: Collection[str], tensors: MutableMapping[str, Tensor]) -> frozenset[str]:
    """Values, `starts` included, that depend differentiably on `starts`. `nodes` is in topological order."""
    active = set(starts)
    for node in nodes:
        if node.op not in WITHOUT_GRADIENT and not active.isdisjoint(node.uses):
            active.update(name for name in node.defines if may_have_gradient(tensors[name].type))
    return frozenset(active)


def check_repeatable(node: Node, body: Function) -> None:
    """Refuse a node with a random operator in its body: recomputing the body would draw other numbers."""
    for inner in body.nodes:
        if not is_deterministic(inner, body):
            refuse(node, f"its body holds {inner.name!r} ({inner.op}), which does not give the same numbers again")


class Sweep:
    """Accumulates gradients by value; `run` propagates them from node outputs to node inputs."""

    def __init__(self, builder: Builder, tensors: MutableMapping[str, Tensor], active: frozenset[str]) -> None:
        self.builder = builder
        self.tensors = tensors
        self.active = active
        self._parts: dict[str, list[Tensor]] = {}

    def add(self, name: str, gradient: Tensor) -> None:
        """Add a contribution to the gradient of a value."""
        self._parts.setdefault(name, []).append(gradient)

    def sum(self, name: str) -> Tensor | None:
        """The accumulated gradient of a value, or None if there is none."""
        parts = self._parts.get(name)
        if not parts:
            return None
        if len(parts) > 1:
            with self.builder.scope(f"{name}/gradient"):
                # Store the sum, so that a second reader does not add the parts again.
                parts[:] = [add_up(parts)]
        return parts[0]

    def run(self, nodes: Sequence[Node]) -> None:
        """Backpropagate through topologically ordered nodes; raises ModelError for a node without a gradient."""
        for node in reversed(nodes):
            if not self.active.isdisjoint(node.uses) and any(name in self._parts for name in node.outputs):
                self._visit(node)

    def _visit(self, node: Node) -> None:
        if node.op in WITHOUT_GRADIENT:
            return
        found = find_rule(node)
        if found is None:
            refuse(node, describe_missing(node))
        gradients = [self.sum(name) if name else None for name in node.outputs]
        at = RuleContext(node, self.tensors, gradients, self.active, self.builder)
        with self.builder.scope(f"{node.name}/gradient"), self.builder.device(node.device):
            results = found(at)
        for name, result in [*zip(node.inputs, results, strict=False), *at.captured.items()]:
            if result is not None and name in self.active:
                self.add(name, result)
