"""Values as they occur in the model: what pieces of it are measured on, and what their results are held against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from xrt.graph import Function, TensorType, Value, is_deterministic

__all__ = ["Reference", "captured", "first_drawn", "values_of"]

Reference: TypeAlias = Callable[[Function, Sequence[Any]], Sequence[Any]]
"""Computes a Function's outputs, rightly."""

MOST_BYTES = 1 << 30
"""What captured values may take of memory; beyond it, those of later nodes are left out, and what needs them is not measured."""


def captured(function: Function, inputs: Sequence[Any], reference: Reference, most: int = MOST_BYTES) -> dict[str, Any]:
    """Return inputs, constants and what the nodes compute, by name, from one run of the reference.

    Outputs are always there, inner values in their order as long as they take no more than so many bytes.
    """
    names = _within(function, most)
    open_ = function.replace(outputs=tuple(Value(name, function.type_of(name)) for name in names), aliases=())
    results = reference(open_, list(inputs)) if names else ()
    values = {name: constant.array for name, constant in function.constants.items()}
    values.update((value.name, given) for value, given in zip(function.inputs, inputs, strict=True))
    return values | dict(zip(names, results, strict=True))


def _within(function: Function, most: int) -> list[str]:
    made = [name for node in function.nodes for name in node.outputs if name]
    ends = {value.name for value in function.outputs}
    taken, names = 0, []
    for name in made:
        taken += _bytes(function, name)
        if name in ends or taken <= most:
            names.append(name)
    return names


def _bytes(function: Function, name: str) -> int:
    type_ = function.type_of(name)
    if not isinstance(type_, TensorType) or not type_.is_static or type_.shape is None:
        return 0
    size = int(type_.dtype.numpy.itemsize)
    for extent in type_.shape:
        size *= int(extent or 0)
    return size


def values_of(names: Sequence[str], values: Mapping[str, Any]) -> list[Any] | None:
    """Return those values in that order; None where one was not captured."""
    return [values[name] for name in names] if all(name in values for name in names) else None


def first_drawn(function: Function) -> str:
    """Return the first node that does not give the same twice, described; empty where there is none."""
    drawn = next((node for node in function.nodes if not is_deterministic(node, function)), None)
    return f"node {drawn.name!r} ({drawn.op}) does not give the same twice" if drawn is not None else ""
