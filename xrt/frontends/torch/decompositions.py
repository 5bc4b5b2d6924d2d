"""How operators without a rule are written in others when a graph of torch.compile is traced."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch._decomp.decompositions import im2col, max_unpool2d
from torch._prims_common import suggest_memory_format
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
        if str(operator) not in RULES and random not in operator.tags
    }
    aten = torch.ops.aten
    return {
        **table,
        aten._transformer_encoder_layer_fwd.default: _decompose_encoder_layer,
        aten.im2col.default: _decompose_im2col,
        aten.max_unpool2d.default: _decompose_max_unpool2d,
    }


def _decompose_im2col(x: torch.Tensor, *args: Any) -> Any:
    """Write the columns of an image of symbolic size as PyTorch does; the rule takes the others."""
    return NotImplemented if all(isinstance(size, int) for size in x.shape) else im2col(x, *args)


def _decompose_max_unpool2d(x: torch.Tensor, indices: torch.Tensor, output_size: Any) -> torch.Tensor:
    """Keep the memory format of the input, as PyTorch's kernel does and its decomposition does not."""
    return max_unpool2d(x, indices, output_size).contiguous(memory_format=suggest_memory_format(x))


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
        return functional.linear(_attend(functional.linear(x, qkv_weight, qkv_bias), heads), out_weight, out_bias)

    def feed(x: torch.Tensor) -> torch.Tensor:
        inner = functional.linear(x, weight_1, bias_1)
        return functional.linear(functional.gelu(inner) if use_gelu else functional.relu(inner), weight_2, bias_2)

    def normalize(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (width,), weight, bias, eps)

    if norm_first:
        x = x + attend(normalize(x, norm_weight_1, norm_bias_1))
        return x + feed(normalize(x, norm_weight_2, norm_bias_2))
    x = normalize(x + attend(x), norm_weight_1, norm_bias_1)
    return normalize(x + feed(x), norm_weight_2, norm_bias_2)


def _attend(qkv: torch.Tensor, heads: int) -> torch.Tensor:
    """Return the scaled dot product attention of queries, keys and values that lie side by side on the last axis."""
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    scores = torch.softmax((q / math.sqrt(q.shape[-1])) @ k.mT, -1)
    return (scores @ v).transpose(1, 2).flatten(2)
