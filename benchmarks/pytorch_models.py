"""The models of `benchmarks.pytorch`: six networks of full size from their configurations, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class BenchModel:
    """A network and the inputs of a call."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    is_image: bool = False
    """Whether Inductor gets it with channels last, too."""


class FirstOutput(nn.Module):
    """A network of transformers that returns its first output alone, as all frontends can."""

    def __init__(self, network: nn.Module, argument: str) -> None:
        super().__init__()
        self.network, self.argument = network, argument

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(**{self.argument: x}, return_dict=False)[0]


class Recurrent(nn.Module):
    """An LSTM of two layers, both directions, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(256, 256, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(512, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(x)[0])


def _make_transformer(family: str, argument: str, head: str = "Model", **options: Any) -> Callable[[], nn.Module]:
    """Return a function that makes a network of transformers from its configuration; ``argument`` is the name of its input."""

    def make() -> nn.Module:
        import transformers

        config = getattr(transformers, f"{family}Config")(**options)
        return FirstOutput(getattr(transformers, family + head)(config), argument)

    return make


def _make_ids(limit: int, length: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randint(0, limit, (1, length)),)


def _make_image() -> tuple[torch.Tensor, ...]:
    return (torch.randn(1, 3, 224, 224),)


MODELS = {
    "bert": BenchModel(_make_transformer("Bert", "input_ids"), _make_ids(30_000, 128)),
    "gpt2": BenchModel(_make_transformer("GPT2", "input_ids", use_cache=False), _make_ids(50_000, 64)),
    "convnext": BenchModel(_make_transformer("ConvNext", "pixel_values"), _make_image, is_image=True),
    "resnet50": BenchModel(
        _make_transformer("ResNet", "pixel_values", "ForImageClassification", num_labels=1000), _make_image, is_image=True
    ),
    "vit": BenchModel(_make_transformer("ViT", "pixel_values"), _make_image),
    "lstm": BenchModel(Recurrent, lambda: (torch.randn(8, 50, 256),)),
}
"""BERT-base with 128 tokens, GPT-2 with 64, images of 224 pixels a side, 8 sequences of 50 steps."""


def make_model(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return a network in evaluation mode, and its inputs; the same ones in each process."""
    torch.manual_seed(0)
    model = MODELS[name]
    return model.make().eval().requires_grad_(False), model.inputs()
