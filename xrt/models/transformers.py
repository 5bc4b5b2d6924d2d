"""Transformers written by code: an encoder over text, a causal decoder, and an encoder over patches of an image."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from xrt.builder.record_op import emit
from xrt.errors import OptionError
from xrt.graph import DType, Function
from xrt.models.layer_builder import LayerBuilder, get_value_shape

if TYPE_CHECKING:
    from xrt.builder import Tensor

__all__ = ["bert", "gpt", "vit"]

_HIDDEN_FROM = -1e4
"""Added to the score of a token that must not be seen: its share is zero in float16 too."""


def bert(
    seed: int = 0,
    *,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    tokens: int = 128,
    vocabulary: int = 30522,
    batch: int = 1,
) -> Function:
    """Return an encoder of text with the shape of BERT-base (Devlin et al. 2018): post-norm layers, a pooled output."""
    _check_heads(hidden, heads)
    with LayerBuilder("bert", seed) as net:
        ids, mask = (net.input(name, batch, tokens, dtype=DType.INT64) for name in ("ids", "mask"))
        bias = emit("Unsqueeze", (1.0 - mask.astype("float32")) * _HIDDEN_FROM, net.constant(np.array([1, 2])))
        x = net.normalize(net.embed(ids, vocabulary, hidden) + net.normal(1, tokens, hidden))
        for _ in range(layers):
            x = net.normalize(x + _attention(net, x, heads, bias))
            x = net.normalize(x + _feed_forward(net, x))
        pooled = emit("Tanh", net.linear(_first_token(net, x), hidden))
        return net.finish(states=x, pooled=pooled)


def gpt(
    seed: int = 0,
    *,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    tokens: int = 64,
    vocabulary: int = 50257,
    batch: int = 1,
) -> Function:
    """Return a causal decoder with the shape of the small GPT-2 (Radford et al. 2019): pre-norm layers, logits for each token."""
    _check_heads(hidden, heads)
    with LayerBuilder("gpt", seed) as net:
        ids = net.input("ids", batch, tokens, dtype=DType.INT64)
        causal = net.constant(np.triu(np.full((tokens, tokens), _HIDDEN_FROM, np.float32), k=1))
        x = net.embed(ids, vocabulary, hidden) + net.normal(1, tokens, hidden)
        x = net.normalize(_pre_norm_layers(net, x, layers, heads, causal))
        return net.finish(logits=net.linear(x, vocabulary))


def vit(
    seed: int = 0,
    *,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    image: int = 224,
    patch: int = 16,
    classes: int = 1000,
    batch: int = 1,
) -> Function:
    """Return a vision transformer with the shape of ViT-B/16 (Dosovitskiy et al. 2020): patches and a class token."""
    _check_heads(hidden, heads)
    if image % patch:
        raise OptionError(f"an image of {image} does not divide into patches of {patch}; choose a multiple")
    with LayerBuilder("vit", seed) as net:
        patches = net.convolution(net.input("image", batch, 3, image, image), hidden, patch, stride=patch, padding=0)
        flat = net.reshape(patches, (0, 0, -1)).transpose(0, 2, 1)
        token = emit("Expand", net.normal(1, 1, hidden), net.constant(np.array([batch, 1, hidden])))
        x = emit("Concat", token, flat, axis=1)
        x = x + net.normal(1, get_value_shape(x)[1], hidden)
        x = net.normalize(_pre_norm_layers(net, x, layers, heads))
        return net.finish(logits=net.linear(_first_token(net, x), classes))


def _check_heads(hidden: int, heads: int) -> None:
    if hidden % heads:
        raise OptionError(f"hidden={hidden} does not divide among heads={heads}; choose a multiple")


def _pre_norm_layers(net: LayerBuilder, x: Tensor, layers: int, heads: int, bias: Tensor | None = None) -> Tensor:
    for _ in range(layers):
        x = x + _attention(net, net.normalize(x), heads, bias)
        x = x + _feed_forward(net, net.normalize(x))
    return x


def _attention(net: LayerBuilder, x: Tensor, heads: int, bias: Tensor | None) -> Tensor:
    """Let each token gather from those that the bias lets it see, in several heads side by side."""
    hidden = get_value_shape(x)[-1]
    query, key, value = (_heads(net, net.linear(x, hidden), heads) for _ in range(3))
    scores = emit("MatMul", query, key.transpose(0, 1, 3, 2)) * (1 / math.sqrt(hidden // heads))
    shares = emit("Softmax", scores if bias is None else scores + bias, axis=-1)
    gathered = emit("MatMul", shares, value).transpose(0, 2, 1, 3)
    return net.linear(net.reshape(gathered, (0, 0, hidden)), hidden)


def _heads(net: LayerBuilder, x: Tensor, heads: int) -> Tensor:
    """Split the last axis among the heads: (batch, tokens, hidden) to (batch, heads, tokens, hidden / heads)."""
    return net.reshape(x, (0, 0, heads, get_value_shape(x)[-1] // heads)).transpose(0, 2, 1, 3)


def _feed_forward(net: LayerBuilder, x: Tensor) -> Tensor:
    hidden = get_value_shape(x)[-1]
    return net.linear(net.gelu(net.linear(x, 4 * hidden)), hidden, gain=1.5)


def _first_token(net: LayerBuilder, x: Tensor) -> Tensor:
    return emit("Gather", x, net.constant(np.array(0)), axis=1)
