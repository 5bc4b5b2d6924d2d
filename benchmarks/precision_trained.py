"""The classifiers that `benchmarks/precision.py` trains on generated images and texts.

The classes overlap: accuracies are about 95 %, and many items are near the border of two classes, where a small error changes the
class. Seeds are fixed; training takes about ten seconds on one core. The *hard* models compute the same functions with a few
channels far larger than the others, as in large transformers, where int8 with one scale per tensor loses accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from precision_models import PrecisionModel
from precision_tools import measure_accuracy
from torch import nn

import xrt

TRAINED = ("images", "images_hard", "texts", "texts_hard")
BATCH = 64
CLASSES, SIDE, NOISE = 10, 24, 2.2
TOPICS, WORDS, LENGTH, DISTANCE, WIDTH = 8, 128, 24, 0.8, 96
OUTLIER_CHANNELS = 4
"""Large channels per layer of the hard models."""
FIRST_TRAINING_SEED = 1_000_000
"""Seed of the first training batch; examples for calibration and measurement have smaller seeds."""


@dataclass(frozen=True)
class Task:
    """A network to train, with batches of its data drawn by a seed."""

    make_network: Callable[[], nn.Module]
    draw: Callable[[int, int], tuple[Any, Any]]
    """Map a seed and a number of items to inputs and labels."""
    find_scaled: Callable[[nn.Module], Iterator[tuple[nn.Module, nn.Module]]]
    """Pairs of a normalization and the only layer that reads its result."""
    factor: float
    """Factor of the large channels of the hard model."""
    steps: int
    learning_rate: float


def train_model(name: str, *, is_small: bool) -> PrecisionModel:
    """Train a model of `TRAINED`, with accuracy as its metric; small models have fewer steps and smaller batches."""
    task, batch = TASKS[name.removesuffix("_hard")], 16 if is_small else BATCH
    network = _train(task, task.steps // 2 if is_small else task.steps)
    if name.endswith("_hard"):
        _spread_channels(task, network)
    function = xrt.from_torch(network, (torch.from_numpy(task.draw(0, batch)[0]),))
    (name_of_input,) = (value.name for value in function.inputs)

    def draw(seed: int) -> dict[str, Any]:
        values, labels = task.draw(seed, batch)
        return {name_of_input: values, "label": labels}

    return PrecisionModel(name, function, draw, measure_accuracy)


def _train(task: Task, steps: int) -> nn.Module:
    torch.manual_seed(0)
    network = task.make_network()
    optimizer = torch.optim.AdamW(network.parameters(), task.learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, task.learning_rate, total_steps=steps)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # another number of threads gives other sums
    try:
        for step in range(steps):
            values, labels = map(torch.from_numpy, task.draw(FIRST_TRAINING_SEED + step, BATCH))
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(values), labels).backward()
            optimizer.step()
            schedule.step()
    finally:
        torch.set_num_threads(threads)
    return network.eval()


def _spread_channels(task: Task, network: nn.Module) -> None:
    """Scale a few channels of each normalization, and the layer that reads them inversely: the function stays the same."""
    with torch.no_grad():
        for norm, reader in task.find_scaled(network):
            norm.weight[:OUTLIER_CHANNELS] *= task.factor
            norm.bias[:OUTLIER_CHANNELS] *= task.factor
            is_depthwise = isinstance(reader, nn.Conv2d) and reader.groups > 1
            reader.weight[(slice(OUTLIER_CHANNELS),) if is_depthwise else (slice(None), slice(OUTLIER_CHANNELS))] /= task.factor


# ---------------------------------------------------------------------- images


@lru_cache(maxsize=1)
def make_patterns() -> Any:
    """Make a smooth pattern for each class; the two classes of a pair share most of theirs."""
    generator = np.random.default_rng(7)
    shared, single = (_draw_fields(count, generator) for count in (CLASSES // 2, CLASSES))
    return 0.8 * np.repeat(shared, 2, axis=0) + 0.6 * single


def _draw_fields(count: int, generator: np.random.Generator) -> Any:
    fields = np.kron(generator.standard_normal((count, 6, 6)), np.ones((1, SIDE // 6, SIDE // 6)))
    for axis in (1, 2):
        fields = sum(w * np.roll(fields, shift, axis) for w, shift in zip((1, 2, 3, 2, 1), range(-2, 3), strict=True))
    return fields / fields.std(axis=(1, 2), keepdims=True)


def draw_images(seed: int, count: int) -> tuple[Any, Any]:
    """Draw patterns of random classes, shifted by up to three pixels, with random contrast and noise."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, CLASSES, count)
    shifts = generator.integers(-3, 4, (count, 2))
    images = np.stack(
        [np.roll(make_patterns()[label], tuple(shift), (0, 1)) for label, shift in zip(labels, shifts, strict=True)]
    )
    images = images * generator.uniform(0.6, 1.4, (count, 1, 1)) + NOISE * generator.standard_normal(images.shape)
    return images[:, None].astype("float32"), labels


def make_image_network() -> nn.Module:
    """Make a small network like MobileNet: int8 harms depthwise convolutions most."""
    layers: list[nn.Module] = [nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    for width, out, stride in ((32, 64, 2), (64, 128, 2), (128, 128, 1)):
        layers += [nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES))


def find_scaled_convolutions(network: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Yield each normalization with the convolution after its Relu, which commutes with positive factors."""
    layers = list(network.children())
    for norm, _, reader in zip(layers, layers[1:], layers[2:], strict=False):
        if isinstance(norm, nn.BatchNorm2d) and isinstance(reader, nn.Conv2d):
            yield norm, reader


# ---------------------------------------------------------------------- texts


@lru_cache(maxsize=1)
def make_topics() -> Any:
    """Make cumulative word frequencies per topic: they fall with the rank, and differ by topic."""
    ranks = -0.7 * np.log(np.arange(1, WORDS + 1))
    shares = np.exp(ranks + DISTANCE * np.random.default_rng(3).standard_normal((TOPICS, WORDS)))
    return (shares / shares.sum(1, keepdims=True)).cumsum(1)


def draw_texts(seed: int, count: int) -> tuple[Any, Any]:
    """Draw texts of random topics, as word ids."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, TOPICS, count)
    samples = generator.random((count, LENGTH))
    return (samples[:, :, None] > make_topics()[labels][:, None, :-1]).sum(-1), labels


class Encoder(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.project(self.first(x)).reshape(batch, length, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(nn.functional.gelu(self.widen(self.second(x))))


class TextNetwork(nn.Module):
    """Embeddings of words and positions, two transformer layers, and the mean over words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Parameter(0.5 * torch.randn(LENGTH, WIDTH))
        self.layers = nn.Sequential(Encoder(WIDTH, 4), Encoder(WIDTH, 4))
        self.norm, self.classify = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOPICS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.classify(self.norm(self.layers(self.words(ids) + self.positions).mean(1)))


def find_scaled_products(network: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Yield the normalizations of each layer with the linear layers that read them."""
    for layer in network.layers:
        yield layer.first, layer.project
        yield layer.second, layer.widen


TASKS = {
    "images": Task(make_image_network, draw_images, find_scaled_convolutions, 40.0, 200, 1e-2),
    "texts": Task(TextNetwork, draw_texts, find_scaled_products, 150.0, 200, 2e-3),
}
