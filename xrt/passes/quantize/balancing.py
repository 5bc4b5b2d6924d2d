"""Balance activation channels before quantization (Xiao et al. 2023, "SmoothQuant").

An activation has one scale for all channels, so that a few large channels leave few integer steps for the others. Divide each
channel by a factor in the LayerNormalization that computes it, and multiply the weights that read it by the same factor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from xrt.graph import DType, Function, Node
from xrt.passes.quantize.weights import Array, Emission, find_inner_axis

MAX_FACTOR = 2.0**64
"""Maximum divisor: a placement file stores exponents of 2 from -64 to 64 (`BalancedValue`)."""


def list_balanced_values(function: Function) -> list[str]:
    """List the values whose channels can be balanced: outputs of LayerNormalization that only products with constants read."""
    return [node.outputs[0] for node, _ in _find_groups(function)]


def find_channel_factors(function: Function, magnitudes: Mapping[str, Array]) -> dict[str, Array]:
    """Compute, by value, the factors that its channels are divided by, and the weights that read these are multiplied by.

    ``magnitudes`` maps values of `list_balanced_values` to the largest magnitude of each channel over the calibration data. The
    factor is the square root of ``magnitude / weight``, where ``weight`` is the largest weight that reads the channel: the
    paper's strength of 0.5.
    """
    factors = {}
    for node, products in _find_groups(function):
        name = node.outputs[0]
        if name not in magnitudes:
            continue
        largest_weights = []
        for product in products:
            matrix = np.abs(function.constants[product.inputs[1]].array)
            largest_weights.append(matrix.max(axis=1 - find_inner_axis(product)))
        weight, magnitude = np.max(largest_weights, axis=0).astype(np.float64), np.asarray(magnitudes[name], np.float64)
        # A channel without values or weights keeps the factor 1.
        is_used = (weight > 0) & (magnitude > 0)
        weight, magnitude = np.where(is_used, weight, 1.0), np.where(is_used, magnitude, 1.0)
        factors[name] = np.clip(np.sqrt(magnitude / weight), 1 / MAX_FACTOR, MAX_FACTOR)
    return factors


def scale_channels(function: Function, factors: Mapping[str, Array]) -> Function:
    """Divide the channels of activations by factors, and multiply the weights that read them. Infer shapes first.

    ``factors`` maps a value to one factor per channel. Powers of two cause no rounding.
    """
    emission = Emission(function)
    changed: dict[str, Node] = {}

    def scale(node: Node, input_index: int, factor: Array) -> Node:
        # Add a constant instead of replacing the old one, which other nodes may read.
        array = function.constants[node.inputs[input_index]].array
        name = emission.add_constant(f"{node.name}_balanced_{input_index}", (array * factor).astype(array.dtype))
        return replace(node, inputs=(*node.inputs[:input_index], name, *node.inputs[input_index + 1 :]))

    for normalization, products in _find_groups(function):
        divisors = factors.get(normalization.outputs[0])
        if divisors is None:
            continue
        node = scale(normalization, 1, 1 / divisors)
        changed[node.name] = scale(node, 2, 1 / divisors) if any(node.inputs[2:]) else node
        for product in products:
            # The channels are the contracted axis of the weight: its rows, unless Gemm transposes it.
            changed[product.name] = scale(product, 1, divisors if find_inner_axis(product) else divisors[:, None])
    return emission.finish(changed.get(node.name, node) for node in function.nodes) if changed else function


def _find_groups(function: Function) -> Iterator[tuple[Node, list[Node]]]:
    """Yield each LayerNormalization whose channels can be balanced, with the products that read its output."""
    outputs = {value.name for value in function.outputs}
    for node in function.nodes:
        if node.op != "LayerNormalization" or any(node.outputs[1:]):
            continue
        # If scale and bias are vectors, only the last axis is normalized: the channels.
        constants = [function.constants.get(name) for name in node.inputs[1:] if name]
        if not all(c is not None and c.dtype is DType.FLOAT32 and len(c.shape) == 1 and c.shape[0] > 1 for c in constants):
            continue
        channels = function.constants[node.inputs[1]].shape[0]
        products = _find_products(node.outputs[0], channels, function, outputs)
        if products:
            yield node, products


def _find_products(value: str, channels: int, function: Function, outputs: set[str]) -> list[Node] | None:
    """Find the products that read a value, directly or through a Reshape that keeps the channels; None for any other reader."""
    products: list[Node] = []
    for use in function.users(value):
        node = use.node
        if node.op == "Reshape" and use.slot == 0:
            shape = getattr(function.get_type(node.outputs[0]), "shape", None)
            if not shape or shape[-1] != channels:
                return None
            inner = _find_products(node.outputs[0], channels, function, outputs)
            if inner is None:
                return None
            products += inner
        elif _is_product(node, use.slot, function):
            products.append(node)
        else:
            return None
    # An output must keep its unscaled channels.
    return None if value in outputs else products


def _is_product(node: Node, slot: int, function: Function) -> bool:
    if node.op not in ("Gemm", "MatMul") or slot != 0 or node.attr("transA", 0):
        return False
    weight = function.constants.get(node.inputs[1])
    return weight is not None and weight.dtype is DType.FLOAT32 and len(weight.shape) == 2
