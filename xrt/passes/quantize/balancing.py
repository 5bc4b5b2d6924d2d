"""Balance activation channels before quantization (Xiao et al. 2023, "SmoothQuant").

An activation has one scale for all channels, so a few large channels leave few integer levels for the others. Weights have one
scale per channel. Divide the channels in the LayerNormalization and multiply the weight rows by the same factors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from xrt.errors import OptionError
from xrt.graph import DType, Function, Node
from xrt.passes.quantize.weights import Emission, find_inner_axis

Array: TypeAlias = np.ndarray[Any, Any]

STRENGTH = 0.5
"""Default of ``strength``, see `balance_channels`; the paper's value for most models."""
MAX_FACTOR = 2.0**64
"""Maximum divisor: a placement file stores divisors as exponents of 2 from -64 to 64 (`BalancedValue`)."""


@dataclass(frozen=True, slots=True)
class _Group:
    """A LayerNormalization whose output only products read, and these products."""

    node: Node
    products: tuple[Node, ...]


def list_balanced_values(function: Function) -> list[str]:
    """List the values whose channels can be balanced: outputs of LayerNormalization read only by products with constants."""
    return [group.node.outputs[0] for group in _find_groups(function)]


def balance_channels(function: Function, magnitudes: Mapping[str, Array], strength: float = STRENGTH) -> Function:
    """Divide the channels of activations by factors, and multiply the weights that read them.

    ``magnitudes`` has, for each value of `list_balanced_values`, the largest magnitude per channel over the calibration data.
    The factor is ``magnitude^strength / weight^(1 - strength)``, with the largest weight of the channel: 1 moves all
    differences into the weights, 0 makes all weight rows equally large. Infer shapes first, and calibrate ranges on the result.
    Raises OptionError unless strength is between 0 and 1.
    """
    return scale_channels(function, find_channel_factors(function, magnitudes, strength))


def find_channel_factors(function: Function, magnitudes: Mapping[str, Array], strength: float = STRENGTH) -> dict[str, Array]:
    """Compute the divisors of `balance_channels`: for each value, an array with one divisor per channel."""
    if not 0 <= strength <= 1:
        raise OptionError(f"strength must be from 0 to 1; got {strength!r}")
    groups = ((group, group.node.outputs[0]) for group in _find_groups(function))
    return {name: _find_factors(group, function, magnitudes[name], strength) for group, name in groups if name in magnitudes}


def scale_channels(function: Function, factors: Mapping[str, Array]) -> Function:
    """Divide the channels of activations by ``factors``, and multiply the weights that read them.

    ``factors`` maps a value to one divisor per channel. Powers of two cause no rounding. Infer shapes first.
    """
    emission = Emission(function)
    changed: dict[str, Node] = {}

    def scale(node: Node, input_index: int, factor: Array) -> Node:
        # A new constant: other nodes may read the old one.
        array = function.constants[node.inputs[input_index]].array
        name = emission.add_constant(f"{node.name}_balanced_{input_index}", (array * factor).astype(array.dtype))
        return replace(node, inputs=(*node.inputs[:input_index], name, *node.inputs[input_index + 1 :]))

    for group in _find_groups(function):
        divisors = factors.get(group.node.outputs[0])
        if divisors is None:
            continue
        node = scale(group.node, 1, 1 / divisors)
        changed[node.name] = scale(node, 2, 1 / divisors) if any(node.inputs[2:]) else node
        for product in group.products:
            # The channels are the contracted axis of the weight: its rows, unless Gemm transposes it.
            changed[product.name] = scale(product, 1, divisors if find_inner_axis(product) else divisors[:, None])
    return emission.finish(changed.get(node.name, node) for node in function.nodes) if changed else function


def _find_factors(group: _Group, function: Function, magnitudes: Array, strength: float) -> Array:
    """Compute the divisors per channel; 1 if the activation or its weights are all zero."""
    weights = [
        np.abs(function.constants[product.inputs[1]].array).max(axis=1 - find_inner_axis(product)) for product in group.products
    ]
    largest, values = np.max(weights, axis=0).astype(np.float64), np.asarray(magnitudes, np.float64)
    usable = (largest > 0) & (values > 0)
    factors = np.where(usable, values, 1.0) ** strength / np.where(usable, largest, 1.0) ** (1 - strength)
    return np.clip(factors, 1 / MAX_FACTOR, MAX_FACTOR)


def _find_groups(function: Function) -> Iterator[_Group]:
    """Yield the LayerNormalizations whose channels can be balanced, with the products that read them."""
    outputs = {value.name for value in function.outputs}
    for node in function.nodes:
        if node.op != "LayerNormalization" or any(node.outputs[1:]):
            continue
        # Scale and bias must be constant vectors: then a single axis is normalized, the channels.
        constants = [function.constants.get(name) for name in node.inputs[1:] if name]
        if not all(c is not None and c.dtype is DType.FLOAT32 and len(c.shape) == 1 and c.shape[0] > 1 for c in constants):
            continue
        channels = function.constants[node.inputs[1]].shape[0]
        products = _find_products(node.outputs[0], channels, function, outputs)
        if products:
            yield _Group(node, tuple(products))


def _find_products(value: str, channels: int, function: Function, outputs: set[str]) -> list[Node] | None:
    """Find the products that read the value, directly or through a Reshape to rows; None if there are other readers."""
    products: list[Node] = []
    for use in function.users(value):
        node = use.node
        if node.op == "Reshape" and use.slot == 0:
            shape = getattr(function.get_type(node.outputs[0]), "shape", None) or (None,)
            inner = _find_products(node.outputs[0], channels, function, outputs) if shape[-1] == channels else None
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
