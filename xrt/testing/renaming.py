"""The same Function under other names, for the law that names change nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from xrt.graph import Function, Node, Value

__all__ = ["rename_values"]


def rename_values(function: Function, names: Mapping[str, str]) -> Function:
    """Return the function with values and nodes called otherwise, in its bodies too.

    Values that ``names`` does not mention get a prime, so that no name stays.
    """
    return function.replace(
        inputs=tuple(_value(value, names) for value in function.inputs),
        outputs=tuple(_value(value, names) for value in function.outputs),
        nodes=tuple(_node(node, names) for node in function.nodes),
        constants={_called(name, names): constant for name, constant in function.constants.items()},
        types={_called(name, names): type_ for name, type_ in function.types.items()},
        aliases=tuple((_called(a, names), _called(b, names)) for a, b in function.aliases),
    )


def _called(name: str, names: Mapping[str, str]) -> str:
    return names.get(name, f"{name}'") if name else ""


def _value(old: Value, names: Mapping[str, str]) -> Value:
    return Value(_called(old.name, names), old.type)


def _node(old: Node, names: Mapping[str, str]) -> Node:
    attributes = tuple(
        replace(a, value=rename_values(a.value, names)) if isinstance(a.value, Function) else a for a in old.attributes
    )
    return replace(
        old,
        inputs=tuple(_called(name, names) for name in old.inputs),
        outputs=tuple(_called(name, names) for name in old.outputs),
        attributes=attributes,
        name=f"node of {old.name}",
        control=tuple(f"node of {name}" for name in old.control),
    )
