"""The extents inside of types: listing the named ones, and changing them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from xrt.graph import Dim, Function, MapType, OptionalType, SequenceType, TensorType, Type, Value

__all__ = ["list_symbols", "map_dims", "map_types"]


def map_dims(type_: Type, change: Callable[[Dim], Dim]) -> Type:
    """Return the type with each extent changed; the type itself where none changes."""
    if isinstance(type_, TensorType):
        if type_.shape is None:
            return type_
        shape = tuple(map(change, type_.shape))
        return type_ if shape == type_.shape else TensorType(type_.dtype, shape)
    if isinstance(type_, MapType):
        return replace(type_, value=map_dims(type_.value, change))
    return replace(type_, element=map_dims(type_.element, change))


def map_types(function: Function, change: Callable[[Type], Type]) -> Function:
    """Return the Function with the type of each value changed, in bodies too; constants keep theirs."""

    def changed(value: Value) -> Value:
        return value if value.type is None else Value(value.name, change(value.type))

    return function.replace(
        inputs=tuple(map(changed, function.inputs)),
        outputs=tuple(map(changed, function.outputs)),
        nodes=tuple(node.map_bodies(lambda body: map_types(body, change)) for node in function.nodes),
        types={name: change(type_) for name, type_ in function.types.items()},
    )


def list_symbols(function: Function) -> Iterator[str]:
    """Yield every named extent, bodies included; a name as often as it occurs."""
    types = [*(v.type for v in (*function.inputs, *function.outputs)), *function.types.values()]
    for type_ in types:
        if type_ is not None:
            yield from _symbols(type_)
    for node in function.nodes:
        for body in node.bodies:
            yield from list_symbols(body)


def _symbols(type_: Type) -> Iterator[str]:
    if isinstance(type_, TensorType):
        yield from (dim for dim in type_.shape or () if isinstance(dim, str))
    elif isinstance(type_, MapType):
        yield from _symbols(type_.value)
    elif isinstance(type_, SequenceType | OptionalType):
        yield from _symbols(type_.element)
