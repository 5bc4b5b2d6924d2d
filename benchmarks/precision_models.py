"""The models with random weights of `benchmarks/precision.py`, and one that is hard for int8.

Activations of a network with random weights may be almost zero, which proves nothing. Here each layer returns values of about
unit size, and residual branches of ConvNeXt have the weight 0.5 instead of 1e-6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pytorch_models import FirstOutput
from torch import nn

import xrt
from xrt.graph import Constant, Function
from xrt.models import load, sample_inputs
from xrt.passes import infer_shapes

NAMES = ("bert", "gpt", "gpt_hard", "convnext", "mobilenet")
OUTLIER_FACTOR, OUTLIER_CHANNELS = 40.0, 6
"""The factor by which the hard model scales outlier channels, and their number."""


@dataclass(frozen=True)
class PrecisionModel:
    """A model, with examples of its inputs drawn by a seed."""

    name: str
    function: Function
    draw: Callable[[int], dict[str, Any]]
    metric: Any = None
    """A metric of outputs and examples, if any."""


def make_model(name: str, *, is_small: bool) -> PrecisionModel:
    """Make a model of `NAMES`, in full size or small for a quick run."""
    small = {"hidden": 128, "heads": 4, "layers": 2} if is_small else {}
    if name == "bert":
        function = load("bert", **small, **({"tokens": 32, "vocabulary": 1000} if is_small else {}))
    elif name in ("gpt", "gpt_hard"):
        sizes = small or {"layers": 6}
        function = load("gpt", **sizes, **({"tokens": 32, "vocabulary": 1000} if is_small else {}))
        function = make_hard(function) if name == "gpt_hard" else function
    elif name == "mobilenet":
        function = load("mobilenet", **({"image": 64, "width": 50, "classes": 100} if is_small else {}))
    else:
        function = make_convnext(is_small=is_small)
    return PrecisionModel(name, function, lambda seed: sample_inputs(function, seed))


# ---------------------------------------------------------------------- outliers


def make_hard(function: Function) -> Function:
    """Scale a few channels of each normalization by 40, and the weights that read them by 1/40: the function stays the same.

    Changes only normalizations whose results are read by matrix products alone.
    """
    typed = infer_shapes(function)
    constants = dict(typed.constants)
    for node in typed.nodes:
        users = typed.users(node.outputs[0])
        products = [use.node for use in users]
        readable = all(p.op == "MatMul" and p.inputs[0] == node.outputs[0] and p.inputs[1] in constants for p in products)
        if node.op != "LayerNormalization" or not products or not readable or len(node.inputs) < 3:
            continue
        for name in node.inputs[1:3]:
            constants[name] = _scale(constants[name], OUTLIER_FACTOR, axis=0)
        for name in dict.fromkeys(product.inputs[1] for product in products):
            constants[name] = _scale(constants[name], 1 / OUTLIER_FACTOR, axis=0)
    return typed.replace(constants=constants)


def _scale(constant: Constant, factor: float, axis: int) -> Constant:
    array = np.array(constant.array)
    place = [slice(None)] * array.ndim
    place[axis] = slice(0, OUTLIER_CHANNELS)
    array[tuple(place)] *= factor
    return Constant(array)


# ---------------------------------------------------------------------- ConvNeXt


def make_convnext(*, is_small: bool) -> Function:
    """Make ConvNeXt-T (Liu et al., arXiv:2201.03545), or a narrow network of four blocks, with a layer scale of 0.5."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    torch.manual_seed(0)
    narrow = {"depths": [1, 1, 1, 1], "hidden_sizes": [24, 48, 96, 192]} if is_small else {}
    network = ConvNextForImageClassification(ConvNextConfig(layer_scale_init_value=0.5, num_labels=1000, **narrow))
    for layer in network.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):  # outputs of about unit size
            nn.init.normal_(layer.weight, std=layer.weight[0].numel() ** -0.5)
            if layer.bias is not None:
                nn.init.normal_(layer.bias, std=0.1)
    image = 64 if is_small else 224
    return xrt.from_torch(FirstOutput(network.eval(), "pixel_values"), (torch.randn(1, 3, image, image),))
