"""Values as they occur in the model: inputs for the measurement of subgraphs, and expected results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from xrt.graph import Function, TensorType, Value, is_deterministic
from xrt.partition.subgraph import extract_subgraph
from xrt.verify.execution import Stopped

__all__ = ["Reference", "capture_activations", "find_first_random_node", "select_values"]

Reference: TypeAlias = Callable[[Function, Sequence[Any]], Sequence[Any]]
"""Computes a Function's outputs, rightly."""

STRETCH = 32
"""Nodes that the reference computes at a time where it may be stopped."""

MOST_BYTES = 1 << 30
"""What captured values may take of memory; beyond it, those of later nodes are left out, and what needs them is not measured."""


def capture_activations(
    function: Function,
    inputs: Sequence[Any],
    reference: Reference,
    most: int = MOST_BYTES,
    *,
    is_stopped: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """Return inputs, constants and what the nodes compute, by name, from one run of the reference.

    Outputs are always there, inner values in their order as long as they take no more than so many bytes. With
    ``is_stopped`` the reference runs in stretches of `STRETCH` nodes, and Stopped is raised between two of them once it is true.
    """
    names = _within(function, most)
    values = {name: constant.array for name, constant in function.constants.items()}
    values.update((value.name, given) for value, given in zip(function.inputs, inputs, strict=True))
    if is_stopped is not None and len(function.nodes) > STRETCH:
        return _in_stretches(function, values, frozenset(names), reference, is_stopped)
    open_ = function.replace(outputs=tuple(Value(name, function.get_type(name)) for name in names), aliases=())
    results = reference(open_, list(inputs)) if names else ()
    return values | dict(zip(names, results, strict=True))


def _in_stretches(
    function: Function, values: dict[str, Any], names: frozenset[str], reference: Reference, is_stopped: Callable[[], bool]
) -> dict[str, Any]:
    """Compute the function in stretches of nodes; values outside ``names`` are kept only while a later stretch reads them."""
    whole, count = function.replace(aliases=()), len(function.nodes)
    last = {name: place for place, node in enumerate(function.nodes) for name in node.uses}
    kept = names | set(values)
    for start in range(0, count, STRETCH):
        if is_stopped():
            raise Stopped(f"after {start} of {count} nodes")
        end = min(start + STRETCH, count)
        part = extract_subgraph(whole, range(start, end))
        made = [name for node in part.nodes for name in node.outputs if name and (name in names or last.get(name, -1) >= end)]
        open_ = part.replace(outputs=tuple(Value(name, function.get_type(name)) for name in made))
        results = reference(open_, [values[value.name] for value in part.inputs]) if made else ()
        values.update(zip(made, results, strict=True))
        for name in [name for name in values if name not in kept and last.get(name, -1) < end]:
            del values[name]
    return values


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
    type_ = function.get_type(name)
    if not isinstance(type_, TensorType) or not type_.is_static or type_.shape is None:
        return 0
    size = int(type_.dtype.numpy.itemsize)
    for extent in type_.shape:
        size *= int(extent or 0)
    return size


def select_values(names: Sequence[str], values: Mapping[str, Any]) -> list[Any] | None:
    """Return those values in that order; None where one was not captured."""
    return [values[name] for name in names] if all(name in values for name in names) else None


def find_first_random_node(function: Function) -> str:
    """Return the first node that does not give the same twice, described; empty where there is none."""
    drawn = next((node for node in function.nodes if not is_deterministic(node, function)), None)
    return f"node {drawn.name!r} ({drawn.op}) does not give the same twice" if drawn is not None else ""
