"""Nodes for calls that have no ONNX form: see `xrt.graph.opaque_call`, which describes how such a node is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from xrt.builder.symbol import Symbol, current
from xrt.frontends.torch.symbols import SymbolicNumber
from xrt.graph import read_attributes
from xrt.graph.opaque_call import DOMAIN, OpaqueCall, Tagged

if TYPE_CHECKING:
    from xrt.builder import Tensor
    from xrt.graph import Type

__all__ = ["record_opaque"]


def record_opaque(
    operator: str, args: Sequence[Any], kwargs: dict[str, Any], types: Sequence[Type | None], reason: str
) -> tuple[Tensor | None, ...]:
    """Record a node for a call and return its results in order; a result whose type is None is left out."""
    builder = current(operator)
    inputs: list[Symbol] = []
    call = OpaqueCall(
        operator, tuple(_argument(one, inputs) for one in args), {k: _argument(v, inputs) for k, v in kwargs.items()}, reason
    )
    builder.import_domain(DOMAIN, 1)
    labels = [str(index + 1) for index in range(len(types))]
    node = builder.new_node(call.op_type, inputs, len(types), read_attributes(call.attributes), domain=DOMAIN, labels=labels)
    node = replace(node, outputs=tuple(n if t is not None else "" for n, t in zip(node.outputs, types, strict=True)))
    results = builder.record(node, types)
    return tuple(result if result.name else None for result in results)


def _argument(value: Any, inputs: list[Symbol]) -> Any:
    """Return an argument as the node has it; tensors and symbolic numbers are appended to the node's inputs."""
    if isinstance(value, Symbol):
        inputs.append(value)
        return Tagged("tensor", len(inputs) - 1)
    if isinstance(value, SymbolicNumber):
        inputs.append(value.scalar)
        return Tagged("number", len(inputs) - 1)
    if isinstance(value, list | tuple):
        return [_argument(item, inputs) for item in value]
    for kind, class_ in (("dtype", torch.dtype), ("layout", torch.layout), ("memory_format", torch.memory_format)):
        if isinstance(value, class_):
            return Tagged(kind, str(value).removeprefix("torch."))
    return Tagged("device", str(value)) if isinstance(value, torch.device) else value
