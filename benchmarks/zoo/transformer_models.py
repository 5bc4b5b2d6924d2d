"""Architectures of transformers, from their configurations: small sizes, random weights, nothing downloaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import transformers

from benchmarks.zoo.model import CreatedModel, Export, Module
from benchmarks.zoo.torch_export import export_module

VOCABULARY = 97
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
Inputs = Mapping[str, torch.Tensor]


def make_text(batch: int, length: int) -> Inputs:
    """Return token ids and a mask that hides the end of the last row; axes 0 and 1 are open."""
    ids = torch.randint(3, VOCABULARY - 2, (batch, length))
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[-1, length - length // 3 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


def make_ids(batch: int, length: int) -> Inputs:
    return {"input_ids": torch.randint(3, VOCABULARY - 2, (batch, length))}


def make_translation(batch: int, length: int) -> Inputs:
    return {**make_text(batch, length), "decoder_input_ids": torch.randint(3, VOCABULARY - 2, (batch, length))}


def make_image(batch: int, _: int, size: int = 32) -> Inputs:
    return {"pixel_values": torch.randn(batch, 3, size, size)}


def make_sound(batch: int, _: int, length: int = 1600) -> Inputs:
    return {"input_values": torch.randn(batch, length)}


def make_speech(batch: int, length: int) -> Inputs:
    return {"input_features": torch.randn(batch, 16, 40), "decoder_input_ids": torch.randint(3, VOCABULARY - 2, (batch, length))}


def make_caption(batch: int, length: int) -> Inputs:
    return {**make_text(batch, length), **make_image(batch, 0)}


@dataclass(frozen=True)
class Architecture:
    """A class of models with its configuration."""

    name: str
    config: str
    options: Mapping[str, Any] = field(default_factory=dict)
    inputs: Callable[[int, int], Inputs] = make_text
    model: str = "AutoModel"
    dynamo: bool = False
    opset: int = 17
    tolerance: float = 1e-4
    open_axes: Sequence[int] = (0, 1)
    """Open axes of integer inputs; of other inputs only axis 0 is open."""


TEXT_OPTIONS = {**SMALL, "vocab_size": VOCABULARY, "max_position_embeddings": 64}
GPT_OPTIONS = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY, "use_cache": False}
DECODER_OPTIONS = {**TEXT_OPTIONS, "use_cache": False, "num_key_value_heads": 2, "pad_token_id": 0}
SEQ2SEQ = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": VOCABULARY, "max_position_embeddings": 64, "use_cache": False,
    "pad_token_id": 1, "decoder_start_token_id": 2,
}  # fmt: skip
VISION_OPTIONS = {**SMALL, "image_size": 32, "patch_size": 8}
STAGES = {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1]}
AUDIO = {**SMALL, "conv_dim": (16, 16, 16), "conv_stride": (5, 4, 2), "conv_kernel": (10, 4, 2), "vocab_size": 32,
         "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "num_feat_extract_layers": 3}  # fmt: skip

TEXT = (
    Architecture("bert", "BertConfig", TEXT_OPTIONS),
    Architecture("roberta", "RobertaConfig", TEXT_OPTIONS, dynamo=True, opset=20),
    Architecture("distilbert", "DistilBertConfig", {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": VOCABULARY}),
    Architecture("albert", "AlbertConfig", {**TEXT_OPTIONS, "embedding_size": 16}),
    Architecture("electra", "ElectraConfig", {**TEXT_OPTIONS, "embedding_size": 16}, dynamo=True, opset=18),
    Architecture("mpnet", "MPNetConfig", TEXT_OPTIONS),
    Architecture("deberta_v2", "DebertaV2Config", {**TEXT_OPTIONS, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}),
    Architecture("convbert", "ConvBertConfig", {**TEXT_OPTIONS, "embedding_size": 32, "head_ratio": 2}),
    Architecture("mobilebert", "MobileBertConfig", {**TEXT_OPTIONS, "embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16}),
    Architecture("squeezebert", "SqueezeBertConfig", {**TEXT_OPTIONS, "embedding_size": 32}),
    Architecture("roformer", "RoFormerConfig", {**TEXT_OPTIONS, "embedding_size": 32}),
    Architecture("rembert", "RemBertConfig", {**TEXT_OPTIONS, "input_embedding_size": 16, "output_embedding_size": 16}),
    Architecture("ernie", "ErnieConfig", TEXT_OPTIONS, dynamo=True, opset=18),
    Architecture("xlm", "XLMConfig", {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "vocab_size": VOCABULARY, "n_words": VOCABULARY}),
    Architecture("fnet", "FNetConfig", TEXT_OPTIONS, make_ids, dynamo=True, opset=20, open_axes=(0,)),
    Architecture("longformer", "LongformerConfig", {**TEXT_OPTIONS, "attention_window": 8}, tolerance=3e-4),  # its export differs from PyTorch by 1.3e-4, on ONNX Runtime and on toy
    Architecture("gpt2", "GPT2Config", GPT_OPTIONS, dynamo=True, opset=18),
    Architecture("gpt_neo", "GPTNeoConfig", {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "vocab_size": VOCABULARY, "max_position_embeddings": 64, "window_size": 8, "use_cache": False}),
    Architecture("gpt_neox", "GPTNeoXConfig", {**TEXT_OPTIONS, "use_cache": False}, dynamo=True, opset=18),
    Architecture("gptj", "GPTJConfig", {**GPT_OPTIONS, "rotary_dim": 4}, dynamo=True, opset=18),
    Architecture("opt", "OPTConfig", {**TEXT_OPTIONS, "ffn_dim": 64, "word_embed_proj_dim": 32, "use_cache": False}, dynamo=True, opset=18),
    Architecture("bloom", "BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY, "use_cache": False}, dynamo=True, opset=18),
    Architecture("llama", "LlamaConfig", DECODER_OPTIONS, dynamo=True, opset=20),
    Architecture("mistral", "MistralConfig", {**DECODER_OPTIONS, "sliding_window": 16, "head_dim": 8}, dynamo=True, opset=20),
    Architecture("qwen2", "Qwen2Config", DECODER_OPTIONS, dynamo=True, opset=18),
    Architecture("qwen3", "Qwen3Config", {**DECODER_OPTIONS, "head_dim": 8}, dynamo=True, opset=20),
    Architecture("gemma", "GemmaConfig", {**DECODER_OPTIONS, "head_dim": 8}, dynamo=True, opset=18),
    Architecture("phi", "PhiConfig", {**TEXT_OPTIONS, "use_cache": False}, dynamo=True, opset=18),
    Architecture("falcon", "FalconConfig", {**TEXT_OPTIONS, "use_cache": False}, dynamo=True, opset=18),
    Architecture("olmo", "OlmoConfig", DECODER_OPTIONS, dynamo=True, opset=18),
    Architecture("t5_encoder", "T5Config", {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": VOCABULARY}, model="T5EncoderModel"),
    Architecture("t5", "T5Config", {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": VOCABULARY, "use_cache": False}, make_translation, dynamo=True, opset=18),
    Architecture("bart", "BartConfig", SEQ2SEQ, make_translation),
    Architecture("mbart", "MBartConfig", SEQ2SEQ, make_translation, dynamo=True, opset=18),
    Architecture("pegasus", "PegasusConfig", SEQ2SEQ, make_translation),
)  # fmt: skip

VISION = tuple(
    Architecture(**{"inputs": make_image, "open_axes": (0,), **architecture})
    for architecture in (
        {"name": "vit", "config": "ViTConfig", "options": VISION_OPTIONS},
        {"name": "deit", "config": "DeiTConfig", "options": VISION_OPTIONS, "dynamo": True, "opset": 18},
        {"name": "beit", "config": "BeitConfig", "options": {**VISION_OPTIONS, "use_relative_position_bias": True}},
        {"name": "swin", "config": "SwinConfig", "options": {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 1, 2], "num_heads": [2, 2, 4], "window_size": 4}},
        {"name": "swinv2", "config": "Swinv2Config", "options": {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}},
        {"name": "convnext", "config": "ConvNextConfig", "options": {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1]}},
        {"name": "convnextv2", "config": "ConvNextV2Config", "options": {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1]}, "dynamo": True, "opset": 18},
        {"name": "resnet", "config": "ResNetConfig", "options": {"embedding_size": 16, **STAGES}},
        {"name": "regnet", "config": "RegNetConfig", "options": {"embedding_size": 16, **STAGES, "groups_width": 8}, "dynamo": True, "opset": 18},
        {"name": "mobilenet_v1", "config": "MobileNetV1Config", "options": {"depth_multiplier": 0.25, "image_size": 32}},
        {"name": "mobilenet_v2", "config": "MobileNetV2Config", "options": {"depth_multiplier": 0.25, "image_size": 32}},
        {"name": "mobilevit", "config": "MobileViTConfig", "options": {"image_size": 32, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 32]}},
        {"name": "levit", "config": "LevitConfig", "options": {"image_size": 64, "hidden_sizes": [16, 24, 32], "num_attention_heads": [2, 2, 4], "depths": [1, 1, 1], "key_dim": [8, 8, 8], "stride": 2}, "inputs": partial(make_image, size=64)},
        {"name": "poolformer", "config": "PoolFormerConfig", "options": {**STAGES}},
        {"name": "segformer", "config": "SegformerConfig", "options": {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "decoder_hidden_size": 16}},
        {"name": "dinov2", "config": "Dinov2Config", "options": {**VISION_OPTIONS}},
        {"name": "yolos", "config": "YolosConfig", "options": {**VISION_OPTIONS, "image_size": [32, 32], "num_detection_tokens": 5}},
        {"name": "dpt", "config": "DPTConfig", "options": {**VISION_OPTIONS, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8, 8, 16, 16], "fusion_hidden_size": 16, "reassemble_factors": [4, 2, 1, 0.5]}, "model": "AutoModelForDepthEstimation"},
        {"name": "pvt", "config": "PvtConfig", "options": {"image_size": 32, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 3, 4]}},
        {"name": "focalnet", "config": "FocalNetConfig", "options": {"image_size": 32, "embed_dim": 16, "depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 64, 128]}},
        {"name": "data2vec_vision", "config": "Data2VecVisionConfig", "options": {**VISION_OPTIONS}},
        {"name": "swiftformer", "config": "SwiftFormerConfig", "options": {"image_size": 32, "depths": [1, 1, 1, 1], "embed_dims": [16, 24, 32, 48]}},
        {"name": "swin2sr", "config": "Swin2SRConfig", "options": {"image_size": 16, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "upsampler": "pixelshuffle"}, "model": "Swin2SRForImageSuperResolution", "inputs": partial(make_image, size=16)},
    )
)  # fmt: skip

OTHER = (
    Architecture("wav2vec2", "Wav2Vec2Config", AUDIO, make_sound, open_axes=(0,)),
    Architecture("hubert", "HubertConfig", AUDIO, make_sound, open_axes=(0,)),
    Architecture("whisper", "WhisperConfig", {**SEQ2SEQ, "num_mel_bins": 16, "max_source_positions": 20, "max_target_positions": 64}, make_speech, dynamo=True, opset=18, open_axes=(0,)),
    Architecture("clip", "CLIPConfig", {"text_config": {**TEXT_OPTIONS, "eos_token_id": 96}, "vision_config": VISION_OPTIONS, "projection_dim": 16}, make_caption, open_axes=(0,)),
    Architecture("siglip", "SiglipConfig", {"text_config": TEXT_OPTIONS, "vision_config": VISION_OPTIONS}, make_caption, dynamo=True, opset=18, open_axes=(0,)),
)  # fmt: skip


def list_exports() -> Iterator[Export]:
    """Yield every architecture."""
    for family, group in (("text", TEXT), ("vision", VISION), ("other", OTHER)):
        for architecture in group:
            yield Export(architecture.name, family, partial(_make, architecture), architecture.tolerance)


def list_modules() -> Iterator[Module]:
    """Yield every architecture as a module in memory."""
    for family, group in (("text", TEXT), ("vision", VISION), ("other", OTHER)):
        for architecture in group:
            yield Module(architecture.name, family, partial(_make_module, architecture), architecture.tolerance)


def _make_module(architecture: Architecture) -> tuple[torch.nn.Module, list[Inputs]]:
    torch.manual_seed(0)
    config = getattr(transformers, architecture.config)(**architecture.options)
    config._attn_implementation = "eager"
    kind = getattr(transformers, architecture.model)
    module = kind.from_config(config) if architecture.model.startswith("Auto") else kind(config)
    _randomize(module)
    return module.eval(), [architecture.inputs(2, 12), architecture.inputs(3, 16 if 1 in architecture.open_axes else 12)]


def _make(architecture: Architecture) -> CreatedModel:
    module, calls = _make_module(architecture)
    axes = {name: architecture.open_axes if not value.is_floating_point() else (0,) for name, value in calls[0].items()}
    return export_module(module, calls, dynamo=architecture.dynamo, opset=architecture.opset, axes=axes)


def _randomize(module: torch.nn.Module) -> None:
    """Change scales and biases from their neutral values 1 and 0, so that a wrong use of them changes the result."""
    with torch.no_grad():
        for tensor in module.parameters():
            if tensor.ndim <= 1 and tensor.is_floating_point():
                tensor.add_(torch.randn_like(tensor) * 0.05)
        for name, tensor in module.named_buffers():
            if name.endswith("running_mean"):
                tensor.normal_(0, 0.1)
            elif name.endswith("running_var"):
                tensor.uniform_(0.5, 1.5)
