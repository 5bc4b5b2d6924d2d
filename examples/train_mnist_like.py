"""Train two small networks to recognize digits, with PyTorch and with XRT on several engines; the loss curves are the same.

The digits are images of seven segments, shifted, scaled and covered with noise. A convolutional network and a transformer are
trained from the same weights on the same batches: with PyTorch, and with XRT on `toy`, on `ort`, on a mixture of both, and on
`auto`. The curves can be written to an SVG file.

    python examples/train_mnist_like.py [--steps N] [--svg FILE]

``pip install 'xrt-engine[ort,torch]'``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional

import xrt
from xrt import training

ENGINES: dict[str, dict[str, Any]] = {
    "toy": {"engine": "toy"},
    "ort": {"engine": "ort"},
    "toy + ort": {"engine": ["toy", "ort"], "pins": ["Conv|ConvTranspose|MatMul|Gemm=ort"]},
    "auto": {"engine": "auto", "budget": 3.0},
}
SEGMENTS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")
"""The segments of each digit, by the usual letters of a seven-segment display."""
SEGMENT_ENDS = {
    "a": (0, 0, 0, 1),
    "b": (0, 1, 1, 1),
    "c": (1, 1, 2, 1),
    "d": (2, 0, 2, 1),
    "e": (1, 0, 2, 0),
    "f": (0, 0, 1, 0),
    "g": (1, 0, 1, 1),
}
"""First row, first column, last row and last column of each segment, in units of the segment length."""
SIZE, BATCH, RATE = 16, 32, 2e-3


def draw_digit(digit: int, rng: np.random.Generator) -> np.ndarray:
    """Draw a digit at a random position and of a random size, with noise, as float32[1,16,16]."""
    picture = 0.2 * rng.standard_normal((1, SIZE, SIZE))
    length = rng.integers(4, 6)
    top, left = rng.integers(1, SIZE - 2 * length), rng.integers(1, SIZE - length)
    for segment in SEGMENTS[digit]:
        begin, first, end, last = (int(length * unit) for unit in SEGMENT_ENDS[segment])
        picture[0, top + begin : top + end + 1, left + first : left + last + 1] += 1
    return picture.astype("float32")


def draw_batches(steps: int, seed: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield ``steps`` batches of images and their digits."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        digits = rng.integers(0, 10, BATCH)
        yield np.stack([draw_digit(digit, rng) for digit in digits]), digits


class Patches(nn.Module):
    """A transformer over patches of 4 x 4 pixels."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, width, 4, 4)
        self.positions = nn.Parameter(0.02 * torch.randn(SIZE, width))
        self.layers = nn.Sequential(*(nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True) for _ in range(2)))
        self.scores = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scores(self.layers(self.embed(x).flatten(2).transpose(1, 2) + self.positions).mean(1))


def make_network(name: str) -> nn.Module:
    """Create the network "transformer" or "convolutional", always with the same weights."""
    torch.manual_seed(0)
    if name == "transformer":
        return Patches()
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(256, 10)),
    )


def train_in_torch(name: str, steps: int) -> list[float]:
    """Train a network with PyTorch; return the loss of each step."""
    network = make_network(name).train()
    optimizer = torch.optim.AdamW(network.parameters(), RATE)
    losses = []
    for x, digits in draw_batches(steps):
        optimizer.zero_grad()
        loss = functional.cross_entropy(network(torch.from_numpy(x)), torch.from_numpy(digits))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def train(name: str, steps: int, options: dict[str, Any]) -> tuple[list[float], float, str]:
    """Train a network with XRT; return the loss of each step, the accuracy on new digits, and the engines of the plan."""
    network = make_network(name).train()
    example = (torch.zeros(BATCH, 1, SIZE, SIZE),)
    function = xrt.from_torch(network, example)
    first = {key: value.numpy().copy() for key, value in network.state_dict().items()}
    names = [key for key, _ in network.named_parameters()]
    arguments = {"loss": training.CrossEntropy(), "optimizer": training.AdamW(), "parameters": names, "learning_rate": RATE}
    with xrt.TrainModule(function, **arguments, **options, progress=False) as trained:
        trained.session.state.update({key: value for key, value in first.items() if key in trained.session.state})
        losses = [float(trained(x, digits)[0]) for x, digits in draw_batches(steps)]
        exported = trained.export(xrt.from_torch(network.eval(), example))
        engines = ", ".join(sorted(trained.module.plan.used_engines))
    with xrt.XRTModule(exported, "ort") as module:
        correct = [module(x).argmax(1) == digits for x, digits in draw_batches(8, seed=1)]
    return losses, float(np.mean(correct)), engines


def draw_curves(curves: dict[str, list[float]], title: str) -> ET.Element:
    """Draw the loss curves as an SVG element. Earlier curves have thicker lines, so that they are visible below later ones."""
    svg = ET.Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox="0 0 640 360", width="640", height="360")
    ET.SubElement(svg, "text", x="20", y="24").text = f"{title}: loss by step"
    highest = max(max(losses) for losses in curves.values())
    colors = ("#bbbbbb", "#1b9e77", "#d95f02", "#7570b3", "#e7298a")
    for index, (label, losses) in enumerate(curves.items()):
        points = (f"{20 + 600 * i / len(losses):.1f},{340 - 300 * loss / highest:.1f}" for i, loss in enumerate(losses))
        width = str(2 * (len(curves) - index))
        line = {"points": " ".join(points), "fill": "none", "stroke": colors[index % len(colors)], "stroke-width": width}
        ET.SubElement(svg, "polyline", line)
        ET.SubElement(svg, "text", x="30", y=str(250 + 20 * index), fill=colors[index % len(colors)]).text = label
    return svg


def main() -> None:
    """Train, print a table and write the curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--svg", type=Path, help="write the curves to FILE, one for each network: FILE-convolutional.svg, ...")
    args = parser.parse_args()
    table = Table("network", "engine", "nodes on", "last loss", "deviation", "accuracy")
    for name in ("convolutional", "transformer"):
        curves = {"PyTorch": train_in_torch(name, args.steps)}
        for label, options in ENGINES.items():
            curves[label], accuracy, engines = train(name, args.steps, options)
            deviation = max(abs(a / b - 1) for a, b in zip(curves[label], curves["PyTorch"], strict=True))
            table.add_row(name, label, engines, f"{curves[label][-1]:.4f}", f"{deviation:.1e}", f"{accuracy:.1%}")
        if args.svg:
            path = args.svg.with_name(f"{args.svg.stem}-{name}.svg")
            ET.ElementTree(draw_curves(curves, name)).write(path)
    Console().print(table)


if __name__ == "__main__":
    main()
