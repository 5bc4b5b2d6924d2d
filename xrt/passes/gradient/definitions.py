"""Operators that ONNX defines in words only, written by other operators: their gradient follows from those of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from xrt.graph import Function
from xrt.passes.gradient.recording import new_builder
from xrt.passes.gradient.table import RuleContext

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor

__all__ = ["DEFINITIONS", "Definition", "define", "definition"]

Definition: TypeAlias = Callable[[RuleContext], "Sequence[Tensor | None]"]
"""Returns the outputs of the node in their places; missing places at the end are outputs that it cannot be asked for."""

DEFINITIONS: dict[str, Definition] = {}
"""By operator."""

_Definition = TypeVar("_Definition", bound=Definition)


def definition(*operators: str) -> Callable[[_Definition], _Definition]:
    """Register a function as the definition of those operators."""

    def register(function: _Definition) -> _Definition:
        for operator in operators:
            DEFINITIONS[operator] = function
        return function

    return register


def define(alone: Function) -> Function:
    """Return a Function that computes by other operators what a Function of one node does."""
    (node,) = alone.nodes
    builder = new_builder(alone)
    with builder:
        tensors = {value.name: builder.input(value.name, value.type) for value in alone.inputs}
        at = RuleContext(replace(node, outputs=()), tensors, (), frozenset(), builder)
        results = dict(zip(node.outputs, DEFINITIONS[node.op](at), strict=False))
        for name in node.defines:
            value = results.get(name)
            if value is None:
                at.refuse(f"its output {name!r} is not defined by other operators")
            builder.output(value, name)
    return builder.function()
