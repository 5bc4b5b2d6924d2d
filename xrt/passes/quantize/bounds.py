"""Drop a Relu or Clip in front of a QuantizeLinear whose integers end where it bounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from xrt.graph import Constant, DType, Function, Node
from xrt.passes.quantize.parameters import find_limits

__all__ = ["drop_bounds"]


def drop_bounds(function: Function) -> Function:
    """Return the Function without the Relu and Clip that change no integer behind them.

    Numbers below the least integer's become that integer, with or without the bound. A bound with another reader stays. Linear.
    """
    replaced: dict[str, str] = {}
    outputs = {value.name for value in function.outputs}
    awaited = {name for node in function.nodes for name in node.control}
    for node in function.nodes:
        if node.op in ("Clip", "Relu") and node.outputs[0] not in outputs and _is_idle(node, function):
            if node.control or node.name in awaited:
                continue
            replaced[node.outputs[0]] = replaced.get(node.inputs[0], node.inputs[0])
    if not replaced:
        return function
    nodes = [
        replace(node, inputs=tuple(replaced.get(name, name) for name in node.inputs))
        for node in function.nodes
        if node.outputs[0] not in replaced
    ]
    read = {name for node in nodes for name in node.uses} | outputs
    constants = {name: constant for name, constant in function.constants.items() if name in read}
    types = {name: type_ for name, type_ in function.types.items() if name not in replaced}
    return function.replace(nodes=nodes, constants=constants, types=types)


def _is_idle(node: Node, function: Function) -> bool:
    """Whether all that reads the bound is quantized to numbers within it."""
    readers = [use.node for use in function.users(node.outputs[0])]
    found = [_find_span(reader, function) for reader in readers]
    least, most = _find_bounds(node, function)
    return bool(found) and all(span is not None and least <= span[0] and span[1] <= most for span in found)


def _find_span(node: Node, function: Function) -> tuple[float, float] | None:
    """Return the least and the greatest number that a QuantizeLinear can give; None for another node."""
    if node.op != "QuantizeLinear" or len(node.inputs) < 3:
        return None
    scale, zero = (function.constants.get(name) for name in node.inputs[1:3])
    if scale is None or zero is None or scale.array.size != 1 or not zero.dtype.is_integer:
        return None
    step, middle = scale.array.reshape(()), int(zero.array.reshape(()))
    least, most = find_limits(DType.of(zero.array))
    return float(np.float32(least - middle) * step), float(np.float32(most - middle) * step)


def _find_bounds(node: Node, function: Function) -> tuple[float, float]:
    """Return the bounds of a Relu or Clip; NaN, with which no comparison is true, for one that is computed."""
    if node.op == "Relu":
        return 0.0, np.inf
    if len(node.inputs) == 1:  # attributes before opset 11, or no bounds
        return node.attr("min", -np.inf), node.attr("max", np.inf)
    found = [-np.inf, np.inf]
    for place, name in enumerate(node.inputs[1:3]):
        if name:
            constant: Constant | None = function.constants.get(name)
            found[place] = np.nan if constant is None else float(constant.array.reshape(()))
    return found[0], found[1]
