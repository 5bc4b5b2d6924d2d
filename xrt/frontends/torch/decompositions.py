"""How operators without a rule are written in others when a graph of torch.compile is traced."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch.nn import functional

from xrt.frontends.torch.rules import RULES

__all__ = ["get_decompositions"]


@cache
def get_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return PyTorch's own decompositions and those of this module; random numbers and gradients stay as they are."""
    random = torch.Tag.nondeterministic_seeded
    table = {
        operator: decomposition
        for operator, decomposition in core_aten_decompositions().items()
        if str(operator) not in RULES and random not in operator.tags and "backward" not in str(operator)
    }
    return {**table, torch.ops.aten._transformer_encoder_layer_fwd.default: _decompose_encoder_layer}


def _decompose_encoder_layer(
    x: torch.Tensor,
    width: int,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    weight_1: torch.Tensor,
    bias_1: torch.Tensor,
    weight_2: torch.Tensor,
    bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> Any:
    """Write the layer, which `nn.TransformerEncoderLayer` is without gradients, as PyTorch describes it."""
    if mask is not None or x.is_nested:
        return NotImplemented

    def attend(x: torch.Tensor) -> torch.Tensor:
        parts = functional.linear(x, qkv_weight, qkv_bias).unflatten(-1, (3, heads, width // heads))
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        scores = torch.softmax((q / math.sqrt(width // heads)) @ k.mT, -1)
        return functional.linear((scores @ v).transpose(1, 2).flatten(2), out_weight, out_bias)

    def feed(x: torch.Tensor) -> torch.Tensor:
        inner = functional.linear(x, weight_1, bias_1)
        return functional.linear(functional.gelu(inner) if use_gelu else functional.relu(inner), weight_2, bias_2)

    def normalize_1(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (width,), norm_weight_1, norm_bias_1, eps)

    def normalize_2(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (width,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = x + attend(normalize_1(x))
        return x + feed(normalize_2(x))
    x = normalize_1(x + attend(x))
    return normalize_2(x + feed(x))
