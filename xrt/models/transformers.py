"""Transformers written in code: the shapes of BERT, GPT and ViT, and decoders of GPT-2 and Llama with KV caches as state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from xrt.builder import Tensor
from xrt.builder.record_op import apply, emit
from xrt.errors import OptionError
from xrt.graph import DType, Function, TensorType
from xrt.graph.state import Capacity, declare_capacity
from xrt.models.layer_builder import Array, LayerBuilder, get_value_shape

_MASK_BIAS = -1e4
"""Added to the attention scores of masked tokens, so that their weights are zero. It is in the range of float16, up to 65,504."""


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
    """A text encoder with the shape of BERT-base (Devlin et al. 2018), from token ids and a mask with 1 for valid tokens.

    The output `states` has the shape (batch, tokens, hidden), and `pooled`, which is of the first token, (batch, hidden).
    """
    _check_heads(hidden, heads)
    with LayerBuilder("bert", seed) as net:
        ids, mask = (net.input(name, batch, tokens, dtype=DType.INT64) for name in ("ids", "mask"))
        bias = emit("Unsqueeze", (1.0 - mask.astype("float32")) * _MASK_BIAS, net.constant(np.array([1, 2])))
        x = net.normalize(net.embed(ids, vocabulary, hidden) + net.normal(1, tokens, hidden))
        # BERT normalizes after each residual connection, later transformers before it.
        for _ in range(layers):
            x = net.normalize(x + _add_attention(net, x, heads, bias))
            x = net.normalize(x + _add_feed_forward(net, x))
        pooled = emit("Tanh", net.linear(net.take_token(x, 0), hidden))
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
    """A causal decoder with the shape of GPT-2 small (Radford et al. 2019), from token ids to the logits of each token."""
    _check_heads(hidden, heads)
    with LayerBuilder("gpt", seed) as net:
        ids = net.input("ids", batch, tokens, dtype=DType.INT64)
        # Each token sees itself and the tokens before it.
        causal = net.constant(np.triu(np.full((tokens, tokens), _MASK_BIAS, np.float32), k=1))
        x = net.embed(ids, vocabulary, hidden) + net.normal(1, tokens, hidden)
        x = net.normalize(_add_pre_norm_layers(net, x, layers, heads, causal))
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
    """An image classifier with the shape of the vision transformer ViT-B/16 (Dosovitskiy et al. 2020)."""
    _check_heads(hidden, heads)
    if image % patch:
        raise OptionError(f"image={image} must be a multiple of patch={patch}")
    with LayerBuilder("vit", seed) as net:
        patches = net.convolution(net.input("image", batch, 3, image, image), hidden, patch, stride=patch, padding=0)
        flat = net.reshape(patches, (0, 0, -1)).transpose(0, 2, 1)
        class_token = emit("Expand", net.normal(1, 1, hidden), net.constant(np.array([batch, 1, hidden])))
        x = emit("Concat", class_token, flat, axis=1)
        x = x + net.normal(1, get_value_shape(x)[1], hidden)
        x = net.normalize(_add_pre_norm_layers(net, x, layers, heads))
        return net.finish(logits=net.linear(net.take_token(x, 0), classes))


def _check_heads(hidden: int, heads: int) -> None:
    if hidden % heads:
        raise OptionError(f"hidden={hidden} must be a multiple of heads={heads}")


def _add_pre_norm_layers(net: LayerBuilder, x: Tensor, layers: int, heads: int, bias: Tensor | None = None) -> Tensor:
    """Add transformer layers that normalize before attention and feed-forward network; ``bias`` is as in `_add_attention`."""
    for _ in range(layers):
        x = x + _add_attention(net, net.normalize(x), heads, bias)
        x = x + _add_feed_forward(net, net.normalize(x))
    return x


def _add_attention(net: LayerBuilder, x: Tensor, heads: int, bias: Tensor | None) -> Tensor:
    """Add self-attention. ``bias`` masks tokens: it is added to the scores of shape (batch, heads, tokens, tokens)."""
    hidden = get_value_shape(x)[-1]
    query, key, value = (_split_hidden(net, net.linear(x, hidden), heads) for _ in range(3))
    # The product of two vectors of unit variance has their length as variance.
    scores = emit("MatMul", query, key.transpose(0, 1, 3, 2)) * (1 / math.sqrt(hidden // heads))
    weights = emit("Softmax", scores if bias is None else scores + bias, axis=-1)
    attended = emit("MatMul", weights, value).transpose(0, 2, 1, 3)
    return net.linear(net.reshape(attended, (0, 0, hidden)), hidden)


def _split_hidden(net: LayerBuilder, x: Tensor, heads: int) -> Tensor:
    """Split into heads: (batch, tokens, hidden) to (batch, heads, tokens, hidden / heads)."""
    return net.reshape(x, (0, 0, heads, get_value_shape(x)[-1] // heads)).transpose(0, 2, 1, 3)


def _add_feed_forward(net: LayerBuilder, x: Tensor) -> Tensor:
    hidden = get_value_shape(x)[-1]
    return net.linear(net.gelu(net.linear(x, 4 * hidden)), hidden, gain=1.5)


@dataclass(frozen=True, slots=True)
class DecoderSizes:
    layers: int = 12
    hidden: int = 768
    heads: int = 12
    key_heads: int = 12
    """Number of heads of keys and values. Below ``heads``, several query heads share each of them (grouped-query attention)."""
    inner: int = 3072
    """Features between the two layers of a feed-forward network."""
    vocabulary: int = 50257
    capacity: int = 1024
    """Maximum number of tokens in the KV caches."""
    batch: int = 1

    def __post_init__(self) -> None:
        if self.hidden % self.heads or self.heads % self.key_heads:
            raise OptionError(
                f"hidden={self.hidden} must be a multiple of heads={self.heads}, and heads of key_heads={self.key_heads}"
            )

    @property
    def head_width(self) -> int:
        return self.hidden // self.heads


class _DecoderBuilder(LayerBuilder):
    """Records a decoder with the given weights by name, or with random ones if ``weights`` is None."""

    def __init__(self, name: str, sizes: DecoderSizes, weights: Mapping[str, Array] | None, seed: int) -> None:
        super().__init__(name, seed, opset=24)  # the first opset with TensorScatter
        self.sizes = sizes
        self._weights = weights

    def weight(self, name: str, *shape: int, deviation: float | None = None, center: float = 0.0) -> Tensor:
        """Get or draw the weight ``name``; raises OptionError if it is missing or has another shape."""
        if self._weights is None:
            values = self.random.standard_normal(shape, dtype=np.float32)
            values *= np.float32(1 / math.sqrt(shape[0]) if deviation is None else deviation)
            return self.constant(values + np.float32(center))
        array = self._weights.get(name)
        if array is None or array.shape != shape:
            problem = "missing" if array is None else f"of shape {list(array.shape)}"
            raise OptionError(f"weight {name!r} is {problem}; it must be float32{list(shape)}")
        return self.constant(np.ascontiguousarray(array, np.float32))


@dataclass(frozen=True, slots=True)
class _Step:
    """Tensors that all layers read in a call with new tokens."""

    start: Tensor
    """Number of tokens in the caches before the call, for each sequence: (batch,)."""
    positions: Tensor
    """Positions of the new tokens: (tokens,)."""
    bias: Tensor
    """Added to the attention scores, to mask the positions after each new token: (tokens, capacity)."""


def gpt_decoder(sizes: DecoderSizes = DecoderSizes(), weights: Mapping[str, Array] | None = None, seed: int = 0) -> Function:
    """A decoder with the shape of GPT-2 (Radford et al. 2019), from the ``ids`` of new tokens to the ``logits`` of the last one.

    The keys and values of earlier tokens, and the number of these tokens, are state. ``weights`` has the parameters of
    `transformers.GPT2LMHeadModel` by name; random by default. Raises OptionError for a missing weight or a wrong shape.
    """
    net = _DecoderBuilder("gpt_decoder", sizes, weights, seed)
    with net:
        ids, step = _begin(net)
        table = net.weight("transformer.wte.weight", sizes.vocabulary, sizes.hidden, deviation=0.5)
        position_table = net.weight("transformer.wpe.weight", sizes.capacity, sizes.hidden, deviation=0.1)
        x = emit("Gather", table, ids, axis=0) + emit("Gather", position_table, step.positions, axis=0)
        for layer in range(sizes.layers):
            prefix = f"transformer.h.{layer}"
            packed = _add_affine(
                net, _add_layer_norm(net, x, f"{prefix}.ln_1"), f"{prefix}.attn.c_attn", sizes.hidden, 3 * sizes.hidden
            )
            query, key, value = apply("Split", (packed,), {"axis": -1, "num_outputs": 3}, outputs=3)
            heads = (_split_heads(net, part, sizes.heads) for part in (query, key, value))
            x = x + _add_affine(net, _attend(net, step, layer, *heads), f"{prefix}.attn.c_proj", sizes.hidden, sizes.hidden)
            inner = _add_affine(net, _add_layer_norm(net, x, f"{prefix}.ln_2"), f"{prefix}.mlp.c_fc", sizes.hidden, sizes.inner)
            x = x + _add_affine(net, emit("Gelu", inner, approximate="tanh"), f"{prefix}.mlp.c_proj", sizes.inner, sizes.hidden)
        # Generation needs the logits of the last token only.
        last = _add_layer_norm(net, net.take_token(x, -1), "transformer.ln_f")
        # GPT-2 ties the output projection to the embedding.
        return _finish(net, emit("MatMul", last, emit("Transpose", table, perm=[1, 0])))


def llama_decoder(
    sizes: DecoderSizes = DecoderSizes(key_heads=4, inner=2048, vocabulary=32000),
    weights: Mapping[str, Array] | None = None,
    seed: int = 0,
    *,
    base: float = 10000.0,
    epsilon: float = 1e-6,
) -> Function:
    """A decoder with the shape of Llama (Touvron et al. 2023): rotary positions, grouped queries, gated layers.

    Inputs, outputs and state are as in `gpt_decoder`. ``weights`` has the parameters of `transformers.LlamaForCausalLM` by name;
    random by default. ``base`` is the base of the rotary frequencies. Raises OptionError for a missing weight or a wrong shape.
    """
    net = _DecoderBuilder("llama_decoder", sizes, weights, seed)
    hidden, key_width = sizes.hidden, sizes.key_heads * sizes.head_width
    with net:
        ids, step = _begin(net)
        rotate = _make_rotation(net, step, base)
        x = emit("Gather", net.weight("model.embed_tokens.weight", sizes.vocabulary, hidden, deviation=0.5), ids, axis=0)
        for layer in range(sizes.layers):
            prefix = f"model.layers.{layer}"
            normal = _add_rms_norm(net, x, f"{prefix}.input_layernorm", epsilon)
            widths = {"q": hidden, "k": key_width, "v": key_width}
            parts = {name: _add_linear(net, normal, f"{prefix}.self_attn.{name}_proj", hidden, n) for name, n in widths.items()}
            counts = {"q": sizes.heads, "k": sizes.key_heads, "v": sizes.key_heads}
            query, key, value = (_split_heads(net, parts[name], count) for name, count in counts.items())
            attended = _attend(net, step, layer, rotate(query), rotate(key), value)
            x = x + _add_linear(net, attended, f"{prefix}.self_attn.o_proj", hidden, hidden)
            normal = _add_rms_norm(net, x, f"{prefix}.post_attention_layernorm", epsilon)
            gate, up = (_add_linear(net, normal, f"{prefix}.mlp.{name}_proj", hidden, sizes.inner) for name in ("gate", "up"))
            x = x + _add_linear(net, gate * emit("Sigmoid", gate) * up, f"{prefix}.mlp.down_proj", sizes.inner, hidden)
        last = _add_rms_norm(net, net.take_token(x, -1), "model.norm", epsilon)
        return _finish(net, _add_linear(net, last, "lm_head", hidden, sizes.vocabulary))


def _begin(net: _DecoderBuilder) -> tuple[Tensor, _Step]:
    """Add the input of token ids, the cache length and the causal mask; return the ids and the tensors that all layers read."""
    sizes, builder = net.sizes, net.builder
    ids = builder.input("ids", TensorType(DType.INT64, (sizes.batch, "tokens")))
    length = builder.state("length", TensorType(DType.INT64, (1,)))
    count = emit("Shape", ids, start=1, end=2)
    builder.update(length, length + count)
    zero, step = (net.constant(np.array(n, np.int64)) for n in (0, 1))
    positions = length + emit("Range", zero, emit("Squeeze", count, net.constant(np.array([0]))), step)
    # The caches have a fixed capacity: mask the columns after the position of each token, which may be empty.
    columns = net.constant(np.arange(sizes.capacity, dtype=np.int64)[None])
    visible = emit("LessOrEqual", columns, emit("Unsqueeze", positions, net.constant(np.array([1]))))
    bias = emit("Where", visible, net.constant(np.float32(0)), net.constant(np.float32(-1e9)))
    start = emit("Expand", length, net.constant(np.array([sizes.batch], np.int64)))
    return ids, _Step(start, positions, bias)


def _finish(net: _DecoderBuilder, logits: Tensor) -> Function:
    """Build the Function; a session of it rejects tokens beyond the capacity of the caches."""
    net.builder.output(logits, "logits")
    return declare_capacity(net.builder.function(), Capacity("length", "ids", 1, net.sizes.capacity))


def _attend(net: _DecoderBuilder, step: _Step, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Add the new keys and values to the caches of a layer; compute the causal attention of the new tokens to the caches."""
    sizes, builder = net.sizes, net.builder
    groups, heads = sizes.heads // sizes.key_heads, sizes.key_heads
    keys = builder.state(f"past_key_{layer}", TensorType(DType.FLOAT32, (sizes.batch, heads, sizes.head_width, sizes.capacity)))
    values = builder.state(
        f"past_value_{layer}", TensorType(DType.FLOAT32, (sizes.batch, heads, sizes.capacity, sizes.head_width))
    )
    # Keys are cached transposed, so that the scores are a plain product.
    all_keys = emit("TensorScatter", keys, key.transpose(0, 1, 3, 2), step.start, axis=3)
    all_values = emit("TensorScatter", values, value, step.start, axis=2)
    builder.update(keys, all_keys)
    builder.update(values, all_values)
    # The query heads of a group become rows of one product with their shared keys, so that no key is copied.
    grouped = net.reshape(query, (sizes.batch, heads, -1, sizes.head_width))
    scores = net.reshape(emit("MatMul", grouped, all_keys), (sizes.batch, heads, groups, -1, sizes.capacity))
    weights = emit("Softmax", scores * (1 / math.sqrt(sizes.head_width)) + step.bias, axis=-1)
    attended = emit("MatMul", net.reshape(weights, (sizes.batch, heads, -1, sizes.capacity)), all_values)
    joined = net.reshape(attended, (sizes.batch, sizes.heads, -1, sizes.head_width)).transpose(0, 2, 1, 3)
    return net.reshape(joined, (sizes.batch, -1, sizes.hidden))


def _split_heads(net: _DecoderBuilder, x: Tensor, heads: int) -> Tensor:
    """Split into heads: (batch, tokens, heads * width) to (batch, heads, tokens, width)."""
    return net.reshape(x, (net.sizes.batch, -1, heads, net.sizes.head_width)).transpose(0, 2, 1, 3)


def _make_rotation(net: _DecoderBuilder, step: _Step, base: float) -> Callable[[Tensor], Tensor]:
    """Make the function that applies rotary position embeddings (Su et al. 2021)."""
    # Element i of the first half is rotated with element i of the second half, as in transformers' Llama. The sines and cosines
    # of all positions are constants, so that a call does not compute them.
    half = net.sizes.head_width // 2
    angles = np.arange(net.sizes.capacity)[:, None] * base ** -(np.arange(half) / half)
    cos, sin = (emit("Gather", net.constant(f(angles).astype(np.float32)), step.positions, axis=0) for f in (np.cos, np.sin))

    def rotate(x: Tensor) -> Tensor:
        first, second = apply("Split", (x,), {"axis": -1, "num_outputs": 2}, outputs=2)
        return emit("Concat", first * cos - second * sin, second * cos + first * sin, axis=-1)

    return rotate


def _add_linear(net: _DecoderBuilder, x: Tensor, name: str, in_features: int, out_features: int) -> Tensor:
    """Compute x @ weight.T; the weight has the shape (out_features, in_features), as in `torch.nn.Linear`."""
    return emit("MatMul", x, emit("Transpose", net.weight(f"{name}.weight", out_features, in_features), perm=[1, 0]))


def _add_affine(net: _DecoderBuilder, x: Tensor, name: str, in_features: int, out_features: int) -> Tensor:
    """Compute x @ weight + bias; the weight has the shape (in_features, out_features), as in transformers' Conv1D of GPT-2."""
    product = emit("MatMul", x, net.weight(f"{name}.weight", in_features, out_features))
    return product + net.weight(f"{name}.bias", out_features, deviation=0.1)


def _add_layer_norm(net: _DecoderBuilder, x: Tensor, name: str) -> Tensor:
    scale = net.weight(f"{name}.weight", net.sizes.hidden, deviation=0.1, center=1.0)
    return emit(
        "LayerNormalization", x, scale, net.weight(f"{name}.bias", net.sizes.hidden, deviation=0.1), axis=-1, epsilon=1e-5
    )


def _add_rms_norm(net: _DecoderBuilder, x: Tensor, name: str, epsilon: float) -> Tensor:
    """RMS normalization (Zhang and Sennrich 2019), in operators that every engine has."""
    mean = emit("ReduceMean", x * x, net.constant(np.array([-1])), keepdims=1)
    return x / emit("Sqrt", mean + epsilon) * net.weight(f"{name}.weight", net.sizes.hidden, deviation=0.1, center=1.0)
