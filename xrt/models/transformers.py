"""Transformers written in code: the shapes of BERT, GPT and ViT, and decoders of GPT-2 and Llama with KV caches as state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from xrt.builder import Builder, Tensor
from xrt.builder.record_op import apply, emit
from xrt.errors import OptionError
from xrt.formats.onnx.inference import infer_node_types
from xrt.graph import DType, Function, TensorType
from xrt.models.layer_builder import LayerBuilder, get_value_shape

if TYPE_CHECKING:
    from collections.abc import Sequence


_HIDDEN_FROM = -1e4
"""Added to the scores of masked tokens. Their weight is then zero, and float16, whose range ends at 65,504, holds it, too."""


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
    """A text encoder with the shape of BERT-base (Devlin et al. 2018), from token ids and a mask of ones for valid tokens.

    `states` is (batch, tokens, hidden), and `pooled` (batch, hidden), from the first token.
    """
    _check_heads(hidden, heads)
    with LayerBuilder("bert", seed) as net:
        ids, mask = (net.input(name, batch, tokens, dtype=DType.INT64) for name in ("ids", "mask"))
        bias = emit("Unsqueeze", (1.0 - mask.astype("float32")) * _HIDDEN_FROM, net.constant(np.array([1, 2])))
        x = net.normalize(net.embed(ids, vocabulary, hidden) + net.normal(1, tokens, hidden))
        # BERT normalizes after each residual connection, later transformers before it.
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
    """A causal decoder with the shape of GPT-2 small (Radford et al. 2019): pre-norm layers, logits per token."""
    _check_heads(hidden, heads)
    with LayerBuilder("gpt", seed) as net:
        ids = net.input("ids", batch, tokens, dtype=DType.INT64)
        # Each token sees itself and the tokens before it.
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
    """A vision transformer with the shape of ViT-B/16 (Dosovitskiy et al. 2020): patches and a class token."""
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
    """Raise OptionError if the heads cannot have equal widths."""
    if hidden % heads:
        raise OptionError(f"hidden={hidden} does not divide among heads={heads}; choose a multiple")


def _pre_norm_layers(net: LayerBuilder, x: Tensor, layers: int, heads: int, bias: Tensor | None = None) -> Tensor:
    """Apply `layers` layers of attention and feed-forward network to normalized inputs; `bias` is added to the scores."""
    for _ in range(layers):
        x = x + _attention(net, net.normalize(x), heads, bias)
        x = x + _feed_forward(net, net.normalize(x))
    return x


def _attention(net: LayerBuilder, x: Tensor, heads: int, bias: Tensor | None) -> Tensor:
    """Self-attention with `heads` heads; `bias` is added to the scores, to mask tokens."""
    hidden = get_value_shape(x)[-1]
    query, key, value = (_heads(net, net.linear(x, hidden), heads) for _ in range(3))
    # Products of two vectors of unit variance have their width as variance.
    scores = emit("MatMul", query, key.transpose(0, 1, 3, 2)) * (1 / math.sqrt(hidden // heads))
    shares = emit("Softmax", scores if bias is None else scores + bias, axis=-1)
    attended = emit("MatMul", shares, value).transpose(0, 2, 1, 3)
    return net.linear(net.reshape(attended, (0, 0, hidden)), hidden)


def _heads(net: LayerBuilder, x: Tensor, heads: int) -> Tensor:
    """Split into heads: (batch, tokens, hidden) to (batch, heads, tokens, hidden / heads)."""
    return net.reshape(x, (0, 0, heads, get_value_shape(x)[-1] // heads)).transpose(0, 2, 1, 3)


def _feed_forward(net: LayerBuilder, x: Tensor) -> Tensor:
    hidden = get_value_shape(x)[-1]
    return net.linear(net.gelu(net.linear(x, 4 * hidden)), hidden, gain=1.5)


def _first_token(net: LayerBuilder, x: Tensor) -> Tensor:
    return emit("Gather", x, net.constant(np.array(0)), axis=1)


Array: TypeAlias = np.ndarray[Any, Any]
OPSET = 24
"""First opset with TensorScatter."""
_HIDDEN = -1e9
"""Added to the scores of masked positions, so that their weight is zero."""


@dataclass(frozen=True, slots=True)
class DecoderSizes:
    """Sizes of a decoder."""

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    key_heads: int = 12
    """Heads of keys and values; fewer than ``heads`` means grouped-query attention."""
    inner: int = 3072
    """Width of the feed-forward layers."""
    vocabulary: int = 50257
    capacity: int = 1024
    """Tokens in the KV caches."""
    batch: int = 1

    def __post_init__(self) -> None:
        if self.hidden % self.heads or self.heads % self.key_heads:
            raise OptionError(
                f"hidden={self.hidden} must be a multiple of heads={self.heads}, and that of key_heads={self.key_heads}"
            )

    @property
    def width(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads


class _Network:
    """Records a decoder, with trained weights by name or with random ones."""

    def __init__(self, name: str, sizes: DecoderSizes, weights: Mapping[str, Array] | None, seed: int) -> None:
        self.sizes = sizes
        self.builder = Builder(name, opsets=OPSET, inference=infer_node_types)
        self._weights = weights
        self._random = np.random.default_rng(seed)

    def weight(self, name: str, *shape: int, deviation: float | None = None, center: float = 0.0) -> Tensor:
        """Get the weight of this name, or draw one if there are no weights. Raises OptionError for other shapes."""
        if self._weights is None:
            values = self._random.standard_normal(shape, dtype=np.float32)
            values *= np.float32(1 / math.sqrt(shape[0]) if deviation is None else deviation)
            return self.constant(values + np.float32(center))
        array = self._weights.get(name)
        if array is None or array.shape != shape:
            problem = "missing" if array is None else f"of shape {list(array.shape)}"
            raise OptionError(f"weight {name!r} is {problem}; it must be float32{list(shape)}")
        return self.constant(np.ascontiguousarray(array, np.float32))

    def constant(self, value: Any) -> Tensor:
        """A constant that takes ownership of the array, which becomes read-only."""
        array = np.asarray(value)
        array.flags.writeable = False
        return self.builder.constant(array)

    def shape(self, x: Tensor, *shape: int) -> Tensor:
        """Reshape to these extents, one of which may be -1."""
        return emit("Reshape", x, self.constant(np.array(shape, np.int64)))


@dataclass(frozen=True, slots=True)
class _Step:
    """Tensors that all layers read in a call with new tokens."""

    start: Tensor
    """Tokens in the caches before the call, for each sequence: (batch,)."""
    positions: Tensor
    """Positions of the new tokens: (tokens,)."""
    bias: Tensor
    """Added to the scores, to mask the positions after each new token: (tokens, capacity)."""


def gpt_decoder(sizes: DecoderSizes = DecoderSizes(), weights: Mapping[str, Array] | None = None, seed: int = 0) -> Function:
    """A decoder with the shape of GPT-2 (Radford et al. 2019), from the ``ids`` of new tokens to the ``logits`` of the last one.

    Keys and values of earlier tokens, and their number, are state. ``weights`` has the parameters of
    `transformers.GPT2LMHeadModel` by name; random by default. Raises OptionError for a missing weight or one of another shape.
    """
    net = _Network("gpt_decoder", sizes, weights, seed)
    with net.builder:
        ids, step = _begin(net)
        table = net.weight("transformer.wte.weight", sizes.vocabulary, sizes.hidden, deviation=0.5)
        position_table = net.weight("transformer.wpe.weight", sizes.capacity, sizes.hidden, deviation=0.1)
        x = emit("Gather", table, ids, axis=0) + emit("Gather", position_table, step.positions, axis=0)
        for layer in range(sizes.layers):
            prefix = f"transformer.h.{layer}"
            packed = _affine(net, _layer_norm(net, x, f"{prefix}.ln_1"), f"{prefix}.attn.c_attn", sizes.hidden, 3 * sizes.hidden)
            query, key, value = apply("Split", (packed,), {"axis": -1, "num_outputs": 3}, outputs=3)
            heads = (_split_heads(net, part, sizes.heads) for part in (query, key, value))
            x = x + _affine(net, _attend(net, step, layer, *heads), f"{prefix}.attn.c_proj", sizes.hidden, sizes.hidden)
            inner = _affine(net, _layer_norm(net, x, f"{prefix}.ln_2"), f"{prefix}.mlp.c_fc", sizes.hidden, sizes.inner)
            x = x + _affine(net, emit("Gelu", inner, approximate="tanh"), f"{prefix}.mlp.c_proj", sizes.inner, sizes.hidden)
        # Generation needs the logits of the last token only.
        last = _layer_norm(net, _last_token(net, x), "transformer.ln_f")
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
    random by default. ``base`` is the base of the rotary frequencies. Raises OptionError for a missing weight or one of another
    shape.
    """
    net = _Network("llama_decoder", sizes, weights, seed)
    hidden, key_width = sizes.hidden, sizes.key_heads * sizes.width
    with net.builder:
        ids, step = _begin(net)
        turn = _rotation(net, step, base)
        x = emit("Gather", net.weight("model.embed_tokens.weight", sizes.vocabulary, hidden, deviation=0.5), ids, axis=0)
        for layer in range(sizes.layers):
            prefix = f"model.layers.{layer}"
            normal = _root_norm(net, x, f"{prefix}.input_layernorm", epsilon)
            widths = {"q": hidden, "k": key_width, "v": key_width}
            parts = {name: _linear(net, normal, f"{prefix}.self_attn.{name}_proj", hidden, n) for name, n in widths.items()}
            counts = {"q": sizes.heads, "k": sizes.key_heads, "v": sizes.key_heads}
            query, key, value = (_split_heads(net, parts[name], count) for name, count in counts.items())
            attended = _attend(net, step, layer, turn(query), turn(key), value)
            x = x + _linear(net, attended, f"{prefix}.self_attn.o_proj", hidden, hidden)
            normal = _root_norm(net, x, f"{prefix}.post_attention_layernorm", epsilon)
            gate, up = (_linear(net, normal, f"{prefix}.mlp.{name}_proj", hidden, sizes.inner) for name in ("gate", "up"))
            x = x + _linear(net, gate * emit("Sigmoid", gate) * up, f"{prefix}.mlp.down_proj", sizes.inner, hidden)
        last = _root_norm(net, _last_token(net, x), "model.norm", epsilon)
        return _finish(net, _linear(net, last, "lm_head", hidden, sizes.vocabulary))


# ---------------------------------------------------------------------- ends


def _begin(net: _Network) -> tuple[Tensor, _Step]:
    """Record the input of token ids, the cache length and the causal mask; return the ids and what all layers share."""
    sizes, builder = net.sizes, net.builder
    ids = builder.input("ids", TensorType(DType.INT64, (sizes.batch, "tokens")))
    length = builder.state("length", TensorType(DType.INT64, (1,)))
    count = emit("Shape", ids, start=1, end=2)
    builder.update(length, length + count)
    zero, step = (net.constant(np.array(n, np.int64)) for n in (0, 1))
    positions = length + emit("Range", zero, emit("Squeeze", count, net.constant(np.array([0]))), step)
    # The caches have their whole capacity in each call: a token sees the columns up to its position, and masks the empty rest.
    columns = net.constant(np.arange(sizes.capacity, dtype=np.int64)[None])
    visible = emit("LessOrEqual", columns, emit("Unsqueeze", positions, net.constant(np.array([1]))))
    bias = emit("Where", visible, net.constant(np.float32(0)), net.constant(np.float32(_HIDDEN)))
    start = emit("Expand", length, net.constant(np.array([sizes.batch], np.int64)))
    return ids, _Step(start, positions, bias)


def _finish(net: _Network, logits: Tensor) -> Function:
    """Build the Function. Its sessions reject tokens beyond the capacity of the caches."""
    from xrt.graph.state import Capacity, declare_capacity

    net.builder.output(logits, "logits")
    return declare_capacity(net.builder.function(), Capacity("length", "ids", 1, net.sizes.capacity))


def _last_token(net: _Network, x: Tensor) -> Tensor:
    return emit("Gather", x, net.constant(np.array(-1)), axis=1)


# ---------------------------------------------------------------------- layers


def _attend(net: _Network, step: _Step, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention of the new tokens to all tokens in the caches of a layer, to which their keys and values are added."""
    sizes, builder = net.sizes, net.builder
    groups, heads = sizes.heads // sizes.key_heads, sizes.key_heads
    keys = builder.state(f"past_key_{layer}", TensorType(DType.FLOAT32, (sizes.batch, heads, sizes.width, sizes.capacity)))
    values = builder.state(f"past_value_{layer}", TensorType(DType.FLOAT32, (sizes.batch, heads, sizes.capacity, sizes.width)))
    # Keys are cached transposed, so that the scores are a plain product.
    all_keys = emit("TensorScatter", keys, key.transpose(0, 1, 3, 2), step.start, axis=3)
    all_values = emit("TensorScatter", values, value, step.start, axis=2)
    builder.update(keys, all_keys)
    builder.update(values, all_values)
    # The query heads of a group share keys: as further rows of one product, so that no key is copied.
    grouped = net.shape(query, sizes.batch, heads, -1, sizes.width)
    scores = net.shape(emit("MatMul", grouped, all_keys), sizes.batch, heads, groups, -1, sizes.capacity)
    shares = emit("Softmax", scores * (1 / math.sqrt(sizes.width)) + step.bias, axis=-1)
    attended = emit("MatMul", net.shape(shares, sizes.batch, heads, -1, sizes.capacity), all_values)
    joined = net.shape(attended, sizes.batch, sizes.heads, -1, sizes.width).transpose(0, 2, 1, 3)
    return net.shape(joined, sizes.batch, -1, sizes.hidden)


def _split_heads(net: _Network, x: Tensor, heads: int) -> Tensor:
    """Split into heads: (batch, tokens, heads * width) to (batch, heads, tokens, width)."""
    return net.shape(x, net.sizes.batch, -1, heads, net.sizes.width).transpose(0, 2, 1, 3)


def _rotation(net: _Network, step: _Step, base: float) -> Callable[[Tensor], Tensor]:
    """Make the function that applies rotary position embeddings (Su et al. 2021)."""
    # Element i of the first half is rotated with element i of the second half, as in transformers' Llama. Angles by position are
    # constants, so that a step computes no sines.
    half = net.sizes.width // 2
    angles = np.arange(net.sizes.capacity)[:, None] * base ** -(np.arange(half) / half)
    cos, sin = (emit("Gather", net.constant(f(angles).astype(np.float32)), step.positions, axis=0) for f in (np.cos, np.sin))

    def turn(x: Tensor) -> Tensor:
        first, second = _halves(x)
        return emit("Concat", first * cos - second * sin, second * cos + first * sin, axis=-1)

    return turn


def _halves(x: Tensor) -> Sequence[Tensor]:
    """Both halves of the last axis."""
    return apply("Split", (x,), {"axis": -1, "num_outputs": 2}, outputs=2)  # type: ignore[return-value]  # as many as outputs


def _linear(net: _Network, x: Tensor, name: str, in_features: int, out_features: int) -> Tensor:
    """Compute x @ weight.T, with the weight stored as (out_features, in_features) as in `torch.nn.Linear`."""
    return emit("MatMul", x, emit("Transpose", net.weight(f"{name}.weight", out_features, in_features), perm=[1, 0]))


def _affine(net: _Network, x: Tensor, name: str, in_features: int, out_features: int) -> Tensor:
    """Compute x @ weight + bias, with the weight stored as (in_features, out_features) as in transformers' Conv1D of GPT-2."""
    product = emit("MatMul", x, net.weight(f"{name}.weight", in_features, out_features))
    return product + net.weight(f"{name}.bias", out_features, deviation=0.1)


def _layer_norm(net: _Network, x: Tensor, name: str) -> Tensor:
    scale = net.weight(f"{name}.weight", net.sizes.hidden, deviation=0.1, center=1.0)
    return emit(
        "LayerNormalization", x, scale, net.weight(f"{name}.bias", net.sizes.hidden, deviation=0.1), axis=-1, epsilon=1e-5
    )


def _root_norm(net: _Network, x: Tensor, name: str, epsilon: float) -> Tensor:
    """RMS normalization (Zhang and Sennrich 2019), in operators that every engine has."""
    mean = emit("ReduceMean", x * x, net.constant(np.array([-1])), keepdims=1)
    return x / emit("Sqrt", mean + epsilon) * net.weight(f"{name}.weight", net.sizes.hidden, deviation=0.1, center=1.0)
