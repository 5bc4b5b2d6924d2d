"""Fold a BatchNormalization into the convolution before it, so that the weights that are quantized are those that count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from xrt.formats.onnx.names import FreshNames
from xrt.graph import Constant, Function, Node, is_training

__all__ = ["fold_batch_normalization"]


def fold_batch_normalization(function: Function) -> Function:
    """Return the Function with each BatchNormalization of constants that alone reads a Conv of constants folded into the Conv.

    Results are those of the Function up to rounding: the products are of other numbers. The function itself is returned where
    nothing is folded. Linear.
    """
    folded: dict[str, Node] = {}
    dropped: set[str] = set()
    constants, names = dict(function.constants), FreshNames(function)
    awaited = {name for node in function.nodes for name in node.control}
    for node in function.nodes:
        convolution = _find_convolution(node, function)
        if convolution is not None and not (node.control or node.name in awaited):
            weight, bias = _fold(convolution, node, function)
            made = [names.take(f"{convolution.name}_folded_weight"), names.take(f"{convolution.name}_folded_bias")]
            constants.update(zip(made, (Constant(weight), Constant(bias)), strict=True))
            inputs = (convolution.inputs[0], *made)
            folded[convolution.name] = replace(convolution, inputs=inputs, outputs=(node.outputs[0],))
            dropped.add(node.name)
    if not folded:
        return function
    nodes = [folded.get(node.name, node) for node in function.nodes if node.name not in dropped]
    read = {name for node in nodes for name in node.uses} | {value.name for value in function.outputs}
    defined = {name for node in nodes for name in node.defines}
    types = {name: type_ for name, type_ in function.types.items() if name in defined}
    return function.replace(nodes=nodes, types=types, constants={name: c for name, c in constants.items() if name in read})


def _find_convolution(node: Node, function: Function) -> Node | None:
    """Return the Conv whose result a BatchNormalization can be folded into; None where there is none."""
    if node.op != "BatchNormalization" or is_training(node, function) or any(node.outputs[1:]):
        return None
    before = function.producer(node.inputs[0])
    if before is None or before.op != "Conv" or len(function.users(before.outputs[0])) != 1:
        return None
    if any(value.name == before.outputs[0] for value in function.outputs):
        return None
    terms = [name for name in (*node.inputs[1:], *before.inputs[1:]) if name]
    return before if all(name in function.constants for name in terms) else None


def _fold(convolution: Node, node: Node, function: Function) -> tuple[np.ndarray, np.ndarray]:
    scale, shift, mean, variance = (function.constants[name].array.astype(np.float64) for name in node.inputs[1:5])
    factor = scale / np.sqrt(variance + node.attr("epsilon", 1e-5))
    weight = function.constants[convolution.inputs[1]].array
    given = convolution.inputs[2:]
    bias = function.constants[given[0]].array.astype(np.float64) if given and given[0] else 0.0
    spread = factor.reshape(-1, *[1] * (weight.ndim - 1))
    return (weight * spread).astype(weight.dtype), ((bias - mean) * factor + shift).astype(weight.dtype)
