"""A builder that goes on where a Function ends, and bodies recorded once more in another place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from xrt.builder.builder import Builder
from xrt.formats.onnx.node_inference import node_types
from xrt.graph import Constant, Function
from xrt.graph.rename import rename_node
from xrt.passes.constant_folding import find_constant

if TYPE_CHECKING:
    from xrt.builder.tensor import Tensor

__all__ = ["continue_function", "lift_constants", "list_names", "new_builder", "record_function"]


def new_builder(function: Function) -> Builder:
    """Return a builder without inputs that imports what the Function does."""
    return Builder(function.name, opsets=dict(function.opsets), inference=node_types)


def continue_function(function: Function) -> tuple[Builder, dict[str, Tensor]]:
    """Return a builder that has recorded the Function, outputs excepted, and the Function's values by name."""
    builder = new_builder(function)
    for name in list_names(function):
        builder.names.take(name)
    builder.nodes = list(function.nodes)
    builder.constants = dict(function.constants)
    builder.types = {name: type_ for node in function.nodes for name in node.defines if (type_ := function.get_type(name))}
    builder.inputs = [builder.tensor(value.name, value.type) for value in function.inputs]
    return builder, {name: builder.tensor(name, function.get_type(name)) for name in function.value_names()}


def list_names(function: Function) -> Iterator[str]:
    """Yield every name of a value or a node in the Function and its bodies, some more than once."""
    yield from function.value_names()
    yield from function.captures
    for node in function.nodes:
        yield node.name
        for body in node.bodies:
            yield from list_names(body)


def record_function(
    builder: Builder, function: Function, inputs: Sequence[Tensor], outer: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Record the nodes of a Function on other inputs, and return its values by the names that they have in it.

    ``outer`` has what it captures. Everything that it defines, also in bodies inside of it, gets a new name.
    """
    found = {name: outer[name] for name in function.captures}
    found.update({value.name: tensor for value, tensor in zip(function.inputs, inputs, strict=True)})
    found.update({name: builder.constant(constant) for name, constant in function.constants.items()})
    names = {name: tensor.name for name, tensor in found.items()}
    for name in _list_defined(function):
        if name not in names:
            names[name] = builder.names.plain(name)
    nodes = {node.name: names.get(node.name) or builder.names.plain(node.name) for node in function.nodes}
    for node in function.nodes:
        renamed = rename_node(node, names, nodes)
        tensors = builder.record(renamed, [function.get_type(name) if name else None for name in node.outputs])
        found.update(zip(node.outputs, tensors, strict=True))
    return found


def _list_defined(function: Function) -> Iterator[str]:
    """Yield every name that the Function or a body in it defines."""
    yield from function.value_names()
    for node in function.nodes:
        for body in node.bodies:
            yield from _list_defined(body)


def lift_constants(function: Function) -> Function:
    """Return the Function with what its Constant nodes give, and the Shape of static values, among its constants."""
    lifted: dict[str, Constant] = {}
    kept = []
    for node in function.nodes:
        constant = None if node.control else find_constant(node, function)
        if constant is None:
            kept.append(node)
        else:
            lifted[node.outputs[0]] = constant
    if not lifted:
        return function
    awaited = {name for node in kept for name in node.control}
    if awaited.intersection(node.name for node in function.nodes if node.outputs[0] in lifted):
        return function  # another node must run after one of them
    types = {name: type_ for name, type_ in function.types.items() if name not in lifted}
    return function.replace(nodes=tuple(kept), constants={**function.constants, **lifted}, types=types)
