"""The end of a trace: outputs get the names that were asked for, and what was recorded becomes a Function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from xrt.errors import ModelError
from xrt.graph.attributes import AttrKind
from xrt.graph.function import Function
from xrt.graph.node import Node
from xrt.graph.rename import rename_node
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
    for tensor, wanted in _all_outputs(builder):
        name = wanted if wanted is not None else tensor.name
        if wanted is not None and wanted != tensor.name:
            builder.names.take(_free(builder, wanted))
        if _can_be_called(builder, tensor, name, computed, renames):
            renames[tensor.name] = name
        else:
            name = _copy(builder, tensor, wanted)
        outputs.append(Value(name, tensor.type))
    return _function(builder, tuple(outputs), {a: b for a, b in renames.items() if a != b})


def _all_outputs(builder: Builder) -> Iterable[tuple[Tensor, str | None]]:
    """Yield the outputs that were asked for, then the values of updated inputs that are none of them."""
    yield from builder.outputs
    seen = {tensor.name for tensor, _ in builder.outputs}
    for tensor in builder.updates.values():
        if tensor.name not in seen:
            seen.add(tensor.name)
            yield tensor, None


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
        aliases=tuple((name, renames.get(value.name, value.name)) for name, value in builder.updates.items()),
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
