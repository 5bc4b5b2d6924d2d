"""The end of a trace: outputs get the names that were asked for, and what was recorded becomes a Function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from xrt.errors import ModelError
from xrt.graph.attributes import AttrKind
from xrt.graph.function import Function
from xrt.graph.node import Node
from xrt.graph.rename import rename_node
from xrt.graph.state import State, declare_states
from xrt.graph.types import Value

if TYPE_CHECKING:
    from xrt.builder.builder import Builder
    from xrt.builder.tensor import Tensor
    from xrt.graph.constants import Constant

__all__ = ["finalize"]


def finalize(builder: Builder) -> Function:
    """Return the Function that a builder has recorded. It takes names and may record nodes: call it once."""
    computed = {name for node in builder.nodes for name in node.outputs}
    renames: dict[str, str] = {}
    outputs: list[Value] = []
    aliases: dict[str, str] = {}
    for tensor, wanted, target in _all_outputs(builder):
        name = wanted if wanted is not None else renames.get(tensor.name, tensor.name)
        if wanted is not None and wanted != tensor.name:
            builder.names.take(_free(builder, wanted))
        if target in builder.states and any(value.name == name for value in outputs):
            name = _copy(builder, tensor, None)  # a session returns the one and keeps the other
        elif _can_be_called(builder, tensor, name, computed, renames):
            renames[tensor.name] = name
        else:
            name = _copy(builder, tensor, wanted)
        if target is not None:
            aliases[target] = name
        if target is None or all(value.name != name for value in outputs):
            outputs.append(Value(name, tensor.type))
    function = _function(builder, tuple(outputs), {a: b for a, b in renames.items() if a != b})
    return _with_updates(builder, function, aliases)


def _all_outputs(builder: Builder) -> Iterable[tuple[Tensor, str | None, str | None]]:
    """Yield the outputs that were asked for with their names, then the values of updated inputs with the inputs' names."""
    for tensor, wanted in builder.outputs:
        yield tensor, wanted, None
    for target, tensor in builder.updates.items():
        yield tensor, None, target


def _with_updates(builder: Builder, function: Function, aliases: Mapping[str, str]) -> Function:
    if idle := [name for name in builder.states if name not in aliases]:
        raise ModelError(f"state {idle[0]!r} of graph {builder.name!r} gets no next value; call self.update({idle[0]}, value)")
    updated = function.replace(aliases=tuple((a, b) for a, b in aliases.items() if a not in builder.states))
    if not builder.states:
        return updated if aliases else function
    return declare_states(updated, (State(name, aliases[name], fill) for name, fill in builder.states.items()))


def _free(builder: Builder, wanted: str) -> str:
    if not wanted or wanted in builder.names:
        raise ModelError(f"an output is to be named {wanted!r}, which another value of the graph is; choose another name")
    return wanted


def _can_be_called(builder: Builder, tensor: Tensor, name: str, computed: set[str], renames: Mapping[str, str]) -> bool:
    """Whether the value itself can be the output of that name, without a node that copies it.

    The outputs of a body are computed in it, each once, as ONNX's runtimes expect.
    """
    if tensor.name in renames:
        return builder.outer is None and renames[tensor.name] == name
    if tensor.builder is builder and tensor.name in computed:
        return True
    return builder.outer is None and tensor.name == name


def _copy(builder: Builder, tensor: Tensor, wanted: str | None) -> str:
    name = wanted if wanted is not None else builder.names.plain(f"{tensor.name}_copy")
    builder.record(Node("Identity", (tensor.name,), (name,), name=name), [tensor.type])
    return name


def _function(builder: Builder, outputs: tuple[Value, ...], renames: Mapping[str, str]) -> Function:
    nodes = tuple(_with_opsets(node, builder.opsets) for node in builder.nodes)
    if renames:
        nodes = tuple(rename_node(node, renames, {}) for node in nodes)
    types = {renames.get(name, name): type_ for name, type_ in builder.types.items()}
    shown = {value.name for value in outputs}
    return Function(
        inputs=tuple(tensor.value for tensor in builder.inputs),
        outputs=outputs,
        nodes=nodes,
        constants=_used(builder.constants, nodes, shown),
        opsets=dict(builder.opsets),
        types={name: type_ for name, type_ in types.items() if name not in shown},
        name=builder.name,
    )


def _with_opsets(node: Node, opsets: Mapping[str, int]) -> Node:
    """Return the node with bodies that import what the graph does: a domain may have been imported after they were traced."""
    late = {a.name: _importing(a.value, opsets) for a in node.attributes if a.kind is AttrKind.GRAPH}
    return node.with_attributes(**late) if late else node


def _importing(body: Function, opsets: Mapping[str, int]) -> Function:
    if body.opsets == opsets:
        return body
    return body.replace(opsets=dict(opsets), nodes=tuple(_with_opsets(node, opsets) for node in body.nodes))


def _used(constants: Mapping[str, Constant], nodes: Iterable[Node], outputs: set[str]) -> dict[str, Constant]:
    used = outputs.union(*(node.uses for node in nodes))
    return {name: constant for name, constant in constants.items() if name in used}
