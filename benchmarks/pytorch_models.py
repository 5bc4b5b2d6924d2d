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


class Bottleneck(nn.Module):
    """The block of ResNet-50 (He et al., 2015, with the stride at the 3x3 convolution)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            *_make_convolution(inputs, width, 1, 1),
            nn.ReLU(),
            *_make_convolution(width, width, 3, stride),
            nn.ReLU(),
            *_make_convolution(width, outputs, 1, 1),
        )
        self.shortcut = (
            nn.Sequential(*_make_convolution(inputs, outputs, 1, stride)) if stride > 1 or inputs != outputs else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def _make_convolution(inputs: int, outputs: int, size: int, stride: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)


def make_resnet50() -> nn.Module:
    layers: list[nn.Module] = [*_make_convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(depth):
            layers.append(Bottleneck(inputs, width, stride if i == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


class Recurrent(nn.Module):
    """An LSTM of two layers, both directions, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(256, 256, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(512, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(x)[0])


def _make_transformer(kind: str, argument: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        config = getattr(transformers, f"{kind}Config")(**options)
        return FirstOutput(getattr(transformers, f"{kind}Model")(config), argument)

    return make


def _make_ids(limit: int, length: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randint(0, limit, (1, length)),)


def _make_image() -> tuple[torch.Tensor, ...]:
    return (torch.randn(1, 3, 224, 224),)


MODELS = {
    "bert": BenchModel(_make_transformer("Bert", "input_ids"), _make_ids(30_000, 128)),
    "gpt2": BenchModel(_make_transformer("GPT2", "input_ids", use_cache=False), _make_ids(50_000, 64)),
    "convnext": BenchModel(_make_transformer("ConvNext", "pixel_values"), _make_image, is_image=True),
    "resnet50": BenchModel(make_resnet50, _make_image, is_image=True),
    "vit": BenchModel(_make_transformer("ViT", "pixel_values"), _make_image),
    "lstm": BenchModel(Recurrent, lambda: (torch.randn(8, 50, 256),)),
}
"""BERT-base with 128 tokens, GPT-2 with 64, images of 224 pixels a side, 8 sequences of 50 steps."""


def make_model(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return a network in evaluation mode, and its inputs; the same ones in each process."""
    torch.manual_seed(0)
    model = MODELS[name]
    return model.make().eval().requires_grad_(False), model.inputs()
