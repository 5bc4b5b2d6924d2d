"""Architectures of transformers, from their configurations: small sizes, random weights, nothing downloaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import transformers

from benchmarks.zoo.model import Export, Made, Module
from benchmarks.zoo.torch_export import export_module

VOCABULARY = 97
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
Inputs = Mapping[str, torch.Tensor]


def text(batch: int, length: int) -> Inputs:
    """Return token ids and a mask that hides the end of the last row; axes 0 and 1 are open."""
    ids = torch.randint(3, VOCABULARY - 2, (batch, length))
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[-1, length - length // 3 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


def ids_only(batch: int, length: int) -> Inputs:
    return {"input_ids": torch.randint(3, VOCABULARY - 2, (batch, length))}


def translation(batch: int, length: int) -> Inputs:
    return {**text(batch, length), "decoder_input_ids": torch.randint(3, VOCABULARY - 2, (batch, length))}


def image(batch: int, _: int, size: int = 32) -> Inputs:
    return {"pixel_values": torch.randn(batch, 3, size, size)}


def sound(batch: int, _: int, length: int = 1600) -> Inputs:
    return {"input_values": torch.randn(batch, length)}


def speech(batch: int, length: int) -> Inputs:
    return {"input_features": torch.randn(batch, 16, 40), "decoder_input_ids": torch.randint(3, VOCABULARY - 2, (batch, length))}


def caption(batch: int, length: int) -> Inputs:
    return {**text(batch, length), **image(batch, 0)}


@dataclass(frozen=True)
class Architecture:
    """A class of models with its configuration."""

    name: str
    config: str
    options: Mapping[str, Any] = field(default_factory=dict)
    inputs: Callable[[int, int], Inputs] = text
    model: str = "AutoModel"
    dynamo: bool = False
    opset: int = 17
    tolerance: float = 1e-4
    open_axes: Sequence[int] = (0, 1)
    """Axes of integer inputs that are open; of others the first one alone."""


T = {**SMALL, "vocab_size": VOCABULARY, "max_position_embeddings": 64}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY, "use_cache": False}
LM = {**T, "use_cache": False, "num_key_value_heads": 2, "pad_token_id": 0}
SEQ2SEQ = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": VOCABULARY, "max_position_embeddings": 64, "use_cache": False,
    "pad_token_id": 1, "decoder_start_token_id": 2,
}  # fmt: skip
V = {**SMALL, "image_size": 32, "patch_size": 8}
STAGES = {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1]}
AUDIO = {**SMALL, "conv_dim": (16, 16, 16), "conv_stride": (5, 4, 2), "conv_kernel": (10, 4, 2), "vocab_size": 32,
         "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "num_feat_extract_layers": 3}  # fmt: skip

TEXT = (
    Architecture("bert", "BertConfig", T),
    Architecture("roberta", "RobertaConfig", T, dynamo=True, opset=20),
    Architecture("distilbert", "DistilBertConfig", {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": VOCABULARY}),
    Architecture("albert", "AlbertConfig", {**T, "embedding_size": 16}),
    Architecture("electra", "ElectraConfig", {**T, "embedding_size": 16}, dynamo=True, opset=18),
    Architecture("mpnet", "MPNetConfig", T),
    Architecture("deberta_v2", "DebertaV2Config", {**T, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}),
    Architecture("convbert", "ConvBertConfig", {**T, "embedding_size": 32, "head_ratio": 2}),
    Architecture("mobilebert", "MobileBertConfig", {**T, "embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16}),
    Architecture("squeezebert", "SqueezeBertConfig", {**T, "embedding_size": 32}),
    Architecture("roformer", "RoFormerConfig", {**T, "embedding_size": 32}),
    Architecture("rembert", "RemBertConfig", {**T, "input_embedding_size": 16, "output_embedding_size": 16}),
    Architecture("ernie", "ErnieConfig", T, dynamo=True, opset=18),
    Architecture("xlm", "XLMConfig", {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "vocab_size": VOCABULARY, "n_words": VOCABULARY}),
    Architecture("fnet", "FNetConfig", T, ids_only, dynamo=True, opset=20, open_axes=(0,)),
    Architecture("longformer", "LongformerConfig", {**T, "attention_window": 8}, tolerance=3e-4),  # its export differs from PyTorch by 1.3e-4, on ONNX Runtime and on toy
    Architecture("gpt2", "GPT2Config", GPT, dynamo=True, opset=18),
    Architecture("gpt_neo", "GPTNeoConfig", {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "vocab_size": VOCABULARY, "max_position_embeddings": 64, "window_size": 8, "use_cache": False}),
    Architecture("gpt_neox", "GPTNeoXConfig", {**T, "use_cache": False}, dynamo=True, opset=18),
    Architecture("gptj", "GPTJConfig", {**GPT, "rotary_dim": 4}, dynamo=True, opset=18),
    Architecture("opt", "OPTConfig", {**T, "ffn_dim": 64, "word_embed_proj_dim": 32, "use_cache": False}, dynamo=True, opset=18),
    Architecture("bloom", "BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY, "use_cache": False}, dynamo=True, opset=18),
    Architecture("llama", "LlamaConfig", LM, dynamo=True, opset=20),
    Architecture("mistral", "MistralConfig", {**LM, "sliding_window": 16, "head_dim": 8}, dynamo=True, opset=20),
    Architecture("qwen2", "Qwen2Config", LM, dynamo=True, opset=18),
    Architecture("qwen3", "Qwen3Config", {**LM, "head_dim": 8}, dynamo=True, opset=20),
    Architecture("gemma", "GemmaConfig", {**LM, "head_dim": 8}, dynamo=True, opset=18),
    Architecture("phi", "PhiConfig", {**T, "use_cache": False}, dynamo=True, opset=18),
    Architecture("falcon", "FalconConfig", {**T, "use_cache": False}, dynamo=True, opset=18),
    Architecture("olmo", "OlmoConfig", LM, dynamo=True, opset=18),
    Architecture("t5_encoder", "T5Config", {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": VOCABULARY}, model="T5EncoderModel"),
    Architecture("t5", "T5Config", {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": VOCABULARY, "use_cache": False}, translation, dynamo=True, opset=18),
    Architecture("bart", "BartConfig", SEQ2SEQ, translation),
    Architecture("mbart", "MBartConfig", SEQ2SEQ, translation, dynamo=True, opset=18),
    Architecture("pegasus", "PegasusConfig", SEQ2SEQ, translation),
)  # fmt: skip

VISION = tuple(
    Architecture(**{"inputs": image, "open_axes": (0,), **one})
    for one in (
        {"name": "vit", "config": "ViTConfig", "options": V},
        {"name": "deit", "config": "DeiTConfig", "options": V, "dynamo": True, "opset": 18},
        {"name": "beit", "config": "BeitConfig", "options": {**V, "use_relative_position_bias": True}},
        {"name": "swin", "config": "SwinConfig", "options": {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 1, 2], "num_heads": [2, 2, 4], "window_size": 4}},
        {"name": "swinv2", "config": "Swinv2Config", "options": {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}},
        {"name": "convnext", "config": "ConvNextConfig", "options": {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1]}},
        {"name": "convnextv2", "config": "ConvNextV2Config", "options": {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1]}, "dynamo": True, "opset": 18},
        {"name": "resnet", "config": "ResNetConfig", "options": {"embedding_size": 16, **STAGES}},
        {"name": "regnet", "config": "RegNetConfig", "options": {"embedding_size": 16, **STAGES, "groups_width": 8}, "dynamo": True, "opset": 18},
        {"name": "mobilenet_v1", "config": "MobileNetV1Config", "options": {"depth_multiplier": 0.25, "image_size": 32}},
        {"name": "mobilenet_v2", "config": "MobileNetV2Config", "options": {"depth_multiplier": 0.25, "image_size": 32}},
        {"name": "mobilevit", "config": "MobileViTConfig", "options": {"image_size": 32, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 32]}},
        {"name": "levit", "config": "LevitConfig", "options": {"image_size": 64, "hidden_sizes": [16, 24, 32], "num_attention_heads": [2, 2, 4], "depths": [1, 1, 1], "key_dim": [8, 8, 8], "stride": 2}, "inputs": partial(image, size=64)},
        {"name": "poolformer", "config": "PoolFormerConfig", "options": {**STAGES}},
        {"name": "segformer", "config": "SegformerConfig", "options": {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "decoder_hidden_size": 16}},
        {"name": "dinov2", "config": "Dinov2Config", "options": {**V}},
        {"name": "yolos", "config": "YolosConfig", "options": {**V, "image_size": [32, 32], "num_detection_tokens": 5}},
        {"name": "dpt", "config": "DPTConfig", "options": {**V, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8, 8, 16, 16], "fusion_hidden_size": 16, "reassemble_factors": [4, 2, 1, 0.5]}, "model": "AutoModelForDepthEstimation"},
        {"name": "pvt", "config": "PvtConfig", "options": {"image_size": 32, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 3, 4]}},
        {"name": "focalnet", "config": "FocalNetConfig", "options": {"image_size": 32, "embed_dim": 16, "depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 64, 128]}},
        {"name": "data2vec_vision", "config": "Data2VecVisionConfig", "options": {**V}},
        {"name": "swiftformer", "config": "SwiftFormerConfig", "options": {"image_size": 32, "depths": [1, 1, 1, 1], "embed_dims": [16, 24, 32, 48]}},
        {"name": "swin2sr", "config": "Swin2SRConfig", "options": {"image_size": 16, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "upsampler": "pixelshuffle"}, "model": "Swin2SRForImageSuperResolution", "inputs": partial(image, size=16)},
    )
)  # fmt: skip

VARIOUS = (
    Architecture("wav2vec2", "Wav2Vec2Config", AUDIO, sound, open_axes=(0,)),
    Architecture("hubert", "HubertConfig", AUDIO, sound, open_axes=(0,)),
    Architecture("whisper", "WhisperConfig", {**SEQ2SEQ, "num_mel_bins": 16, "max_source_positions": 20, "max_target_positions": 64}, speech, dynamo=True, opset=18, open_axes=(0,)),
    Architecture("clip", "CLIPConfig", {"text_config": {**T, "eos_token_id": 96}, "vision_config": V, "projection_dim": 16}, caption, open_axes=(0,)),
    Architecture("siglip", "SiglipConfig", {"text_config": T, "vision_config": V}, caption, dynamo=True, opset=18, open_axes=(0,)),
)  # fmt: skip


def list_exports() -> Iterator[Export]:
    """Yield every architecture."""
    for family, group in (("text", TEXT), ("vision", VISION), ("other", VARIOUS)):
        for one in group:
            yield Export(one.name, family, partial(_make, one), one.tolerance)


def list_modules() -> Iterator[Module]:
    """Yield every architecture as a module in memory."""
    for family, group in (("text", TEXT), ("vision", VISION), ("other", VARIOUS)):
        for one in group:
            yield Module(one.name, family, partial(_make_module, one), one.tolerance)


def _make_module(architecture: Architecture) -> tuple[torch.nn.Module, list[Inputs]]:
    torch.manual_seed(0)
    config = getattr(transformers, architecture.config)(**architecture.options)
    config._attn_implementation = "eager"
    kind = getattr(transformers, architecture.model)
    module = kind.from_config(config) if architecture.model.startswith("Auto") else kind(config)
    _randomize(module)
    return module.eval(), [architecture.inputs(2, 12), architecture.inputs(3, 16 if 1 in architecture.open_axes else 12)]


def _make(architecture: Architecture) -> Made:
    module, calls = _make_module(architecture)
    axes = {name: architecture.open_axes if not value.is_floating_point() else (0,) for name, value in calls[0].items()}
    return export_module(module, calls, dynamo=architecture.dynamo, opset=architecture.opset, axes=axes)


def _randomize(module: torch.nn.Module) -> None:
    """Give normalizations and biases values that are not their neutral ones: a wrong scale must show."""
    with torch.no_grad():
        for tensor in module.parameters():
            if tensor.ndim <= 1 and tensor.is_floating_point():
                tensor.add_(torch.randn_like(tensor) * 0.05)
        for name, tensor in module.named_buffers():
            if name.endswith("running_mean"):
                tensor.normal_(0, 0.1)
            elif name.endswith("running_var"):
                tensor.uniform_(0.5, 1.5)
