"""Networks whose loss is their result, and batches for them made by code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

__all__ = ["MODELS", "TrainingModel"]


class Loss(nn.Module):
    """The mean cross entropy of a network's scores: the loss of a batch."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = self.network(x)
        return functional.cross_entropy(scores.flatten(0, -2), labels.flatten())


class Residual(nn.Module):
    """The basic block of ResNet-18; He et al., arXiv:1512.03385."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()),
            *(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)),
        )
        self.shortcut = nn.Sequential()
        if stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class Decoder(nn.Module):
    """A GPT: tokens and places embedded, layers with causal attention, scores of the next token."""

    def __init__(self, tokens: int, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Parameter(0.02 * torch.randn(length, width))
        results = [Layer(width) for _ in range(layers)]
        self.layers = nn.Sequential(*results, nn.LayerNorm(width), nn.Linear(width, tokens, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(self.tokens(x) + self.places)


class Layer(nn.Module):
    """Attention and a perceptron, each after a normalization; Radford et al. (2019).

    A bias of the keys would have a gradient of zero, which rounding and Adam make a step of any size: there is none.
    """

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.project = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.query_key_value(self.before(x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).flatten(2))
        return x + self.perceptron(self.after(x))


class Recurrent(nn.Module):
    """An LSTM, and scores of its last output."""

    def __init__(self, features: int, width: int, classes: int) -> None:
        super().__init__()
        self.lstm, self.scores = nn.LSTM(features, width, batch_first=True), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scores(self.lstm(x)[0][:, -1])


Batch = tuple[torch.Tensor, torch.Tensor]
CLASSES = 10


@dataclass(frozen=True)
class TrainingModel:
    """A network with its loss, and a batch for it; both of a size, 1 or more."""

    network: Callable[[int], nn.Module]
    inputs: Callable[[int], Batch]

    def make(self, size: int) -> nn.Module:
        """Return the module whose result is the loss, in training form."""
        return Loss(self.network(size)).train()


def perceptron(size: int) -> nn.Module:
    width = 32 * size
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, CLASSES))


def residual(size: int) -> nn.Module:
    width = 8 * size
    widths = (width, width, 2 * width, 2 * width, 4 * width, 4 * width)[: 3 + size]
    blocks = [Residual(inputs, outputs) for inputs, outputs in zip((width, *widths), widths, strict=False)]
    stem = (nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], CLASSES))


def _labels(*shape: int) -> torch.Tensor:
    return torch.randint(0, CLASSES, shape)


MODELS = {
    "mlp": TrainingModel(perceptron, lambda size: (torch.randn(16 * size, 32 * size), _labels(16 * size))),
    "resnet": TrainingModel(residual, lambda size: (torch.randn(8 * size, 3, 8 * size, 8 * size), _labels(8 * size))),
    "gpt": TrainingModel(
        lambda size: Decoder(32 * size, 8 * size, 16 * size, 2),
        lambda size: (torch.randint(0, 32 * size, (4, 8 * size)), torch.randint(0, 32 * size, (4, 8 * size))),
    ),
    "lstm": TrainingModel(
        lambda size: Recurrent(8 * size, 16 * size, CLASSES), lambda size: (torch.randn(8, 4 + 4 * size, 8 * size), _labels(8))
    ),
}
"""By name: a perceptron of three layers, a small ResNet, a GPT of two layers, and an LSTM."""
