"""The table of rules, and what a rule is given: one node with the gradients of its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from xrt.errors import ModelError
from xrt.graph import Node, OptionalType, SequenceType, TensorType, Type
from xrt.passes.gradient.tensors import zeros_like

if TYPE_CHECKING:
    import numpy as np

    from xrt.builder.builder import Builder
    from xrt.builder.tensor import Tensor

__all__ = ["RULES", "Rule", "RuleContext", "find_rule", "may_have_gradient", "refuse", "rule"]

Rule: TypeAlias = Callable[["RuleContext"], "Sequence[Tensor | None]"]
"""Returns the gradient of each input in its place; None, or a missing place at the end, where there is none."""

RULES: dict[str, Rule] = {}
"""The rule of each operator, by its name with the domain as in `Node.op`."""

_CONDITIONS: dict[str, Callable[[Node], bool]] = {}
"""Of a rule that is not for every node of its operator: whether it is for a node. Others have a definition."""

_Rule = TypeVar("_Rule", bound=Rule)


def rule(*operators: str, when: Callable[[Node], bool] | None = None) -> Callable[[_Rule], _Rule]:
    """Register a function as the rule of those operators; with ``when``, of the nodes for which that is true."""

    def register(function: _Rule) -> _Rule:
        for operator in operators:
            RULES[operator] = function
            if when is not None:
                _CONDITIONS[operator] = when
        return function

    return register


def find_rule(node: Node) -> Rule | None:
    """Return the rule for a node, None where there is none."""
    condition = _CONDITIONS.get(node.op)
    return RULES.get(node.op) if condition is None or condition(node) else None


def may_have_gradient(type_: Type | None) -> bool:
    """Whether a value of the type can have a gradient: floats can, integers, booleans and strings cannot."""
    if isinstance(type_, SequenceType | OptionalType):
        return may_have_gradient(type_.element)
    return type_ is None or (isinstance(type_, TensorType) and type_.dtype.is_float)


def refuse(node: Node, reason: str) -> NoReturn:
    """Raise the ModelError for a node that cannot be differentiated."""
    raise ModelError(
        f"node {node.name!r} ({node.op}) has no gradient: {reason}. Leave out of with_respect_to what reaches `of` through it, "
        f"or write it with other operators"
    )


class RuleContext:
    """A node, its inputs and outputs as tensors of the graph that is recorded, and the gradients of its outputs."""

    def __init__(
        self,
        node: Node,
        tensors: MutableMapping[str, Tensor],
        gradients: Sequence[Tensor | None],
        active: frozenset[str],
        builder: Builder,
    ) -> None:
        self.node = node
        self.tensors = tensors
        """Every value that the node may read, by its name."""
        self.gradients = tuple(gradients)
        """By output; None where no gradient arrives."""
        self.active = active
        """The values whose gradients are wanted."""
        self.builder = builder
        self.inputs = tuple(tensors[name] if name else None for name in node.inputs)
        self.outputs = tuple(tensors[name] if name else None for name in node.outputs)
        self.captured: dict[str, Tensor] = {}
        """Gradients of what the node's bodies capture; the rule fills it in."""

    @property
    def x(self) -> Tensor:
        """The first input."""
        return self.input(0)

    @property
    def y(self) -> Tensor:
        """The first output."""
        return self.tensors[self.node.outputs[0]]

    @property
    def g(self) -> Tensor:
        """The gradient of the first output; zeros where none arrives."""
        return self.gradient(0)

    def input(self, index: int) -> Tensor:
        """Return an input that the operator requires."""
        return self.tensors[self.node.inputs[index]]

    def optional(self, index: int) -> Tensor | None:
        """Return an input, None where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def gradient(self, index: int) -> Tensor:
        """Return the gradient of an output; zeros where none arrives."""
        found = self.gradients[index]
        return zeros_like(self.tensors[self.node.outputs[index]]) if found is None else found

    def wants(self, index: int) -> bool:
        """Whether the gradient of that input is wanted."""
        return index < len(self.node.inputs) and self.node.inputs[index] in self.active

    def attr(self, name: str, default: Any = None) -> Any:
        return self.node.attr(name, default)

    def constant(self, index: int) -> np.ndarray[Any, Any] | None:
        """Return the array that an input is known to be, None where it is left out or computed."""
        symbol = self.optional(index)
        found = None if symbol is None else symbol.builder.find_constant(symbol)
        return None if found is None else found.array

    def rank(self, tensor: Tensor) -> int:
        """Return the number of axes; refuse the node where it is not known."""
        rank = tensor.tensor_type.rank
        if rank is None:
            self.refuse(f"the rank of {tensor.name!r} is not known")
        return rank

    def refuse(self, reason: str) -> NoReturn:
        """Raise the ModelError that names the node and the reason."""
        refuse(self.node, reason)

    def output(self, index: int, type_: Type) -> Tensor:
        """Return an optional output of that type; where the node leaves it out, it is made to give it."""
        names = [*self.node.outputs, *[""] * (index + 1 - len(self.node.outputs))]
        if not names[index]:
            names[index] = self.builder.fresh(f"{self.node.name}_output_{index + 1}")
            self.replace_node(replace(self.node, outputs=tuple(names)), {names[index]: type_})
        return self.tensors[names[index]]

    def replace_node(self, node: Node, types: Mapping[str, Type | None]) -> None:
        """Put a node that gives more in the place of this one in the graph; ``types`` are those of the new outputs."""
        place = next(index for index, known in enumerate(self.builder.nodes) if known.name == self.node.name)
        self.builder.nodes[place] = self.node = node
        self.builder.types.update((name, type_) for name, type_ in types.items() if type_ is not None)
        self.tensors.update((name, self.builder.tensor(name, type_)) for name, type_ in types.items())
