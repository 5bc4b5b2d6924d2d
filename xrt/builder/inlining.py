"""Functions inside a trace: as the body of control flow, or with their nodes recorded in place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from xrt.errors import ModelError, did_you_mean
from xrt.graph.op_schema import domain_title
from xrt.graph.rename import rename_function, rename_node

if TYPE_CHECKING:
    from xrt.builder.builder import Builder
    from xrt.builder.tensor import Tensor
    from xrt.graph.function import Function

__all__ = ["adopt", "inline_function"]


def adopt(builder: Builder, title: str, function: Function, count: int) -> Function:
    """Return a Function as a body for an operator that hands it ``count`` inputs.

    What it captures must be visible; what it defines is renamed where the graph has a value of that name.
    """
    if len(function.inputs) != count:
        raise ModelError(f"{title} is function {function.name!r} of {len(function.inputs)} inputs; the operator gives it {count}")
    _check_opsets(builder, function)
    visible = {name for outer in builder.lineage() for name in _defined_by(outer)}
    for name in function.captures:
        if name not in visible:
            raise ModelError(f"{title} reads {name!r}, which neither it nor the graph defines.{did_you_mean(name, visible)}")
    values = {n: builder.names.plain(n) for n in _defined_in(function)}
    return rename_function(function, {a: b for a, b in values.items() if a != b}, {}).replace(opsets=dict(builder.opsets))


def inline_function(builder: Builder, function: Function, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Record the nodes of a Function with other inputs, names prefixed with its name, and return its outputs."""
    if len(inputs) != len(function.inputs):
        names = ", ".join(value.name for value in function.inputs) or "none"
        raise ModelError(f"function {function.name!r} takes {len(function.inputs)} inputs ({names}); got {len(inputs)}")
    if function.aliases or function.captures:
        what = "updates its inputs" if function.aliases else f"reads {function.captures[0]!r} from outside"
        raise ModelError(f"function {function.name!r} {what}, so its nodes cannot be recorded in another graph")
    _check_opsets(builder, function)
    constants = {name: builder.constant(constant) for name, constant in function.constants.items()}
    given = {value.name: tensor for value, tensor in zip(function.inputs, inputs, strict=True)}
    values = {name: tensor.name for name, tensor in {**constants, **given}.items()}
    with builder.scope(function.name):
        values.update((name, builder.fresh(name)) for name in _defined_in(function) if name not in values)
        nodes = {node.name: values.get(node.name) or builder.fresh(node.name) for node in function.nodes}
    for node in function.nodes:
        types = [function.get_type(name) if name else None for name in node.outputs]
        builder.record(builder.add_placement(rename_node(node, values, nodes)), types)
    return tuple(builder.tensor(values[value.name], value.type) for value in function.outputs)


def _check_opsets(builder: Builder, function: Function) -> None:
    for domain, version in function.opsets.items():
        if builder.opsets.setdefault(domain, version) != version:
            raise ModelError(
                f"function {function.name!r} imports {domain_title(domain)} at version {version}, the graph at "
                f"{builder.opsets[domain]}; trace both at the same version"
            )


def _defined_by(builder: Builder) -> Iterator[str]:
    yield from (tensor.name for tensor in builder.inputs)
    yield from builder.constants
    for node in builder.nodes:
        yield from node.defines


def _defined_in(function: Function) -> Iterator[str]:
    """Yield every name that the Function or a body in it defines."""
    yield from function.value_names()
    for node in function.nodes:
        for body in node.bodies:
            yield from _defined_in(body)
