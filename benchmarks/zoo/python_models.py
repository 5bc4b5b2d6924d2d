"""PyTorch modules with features that an ONNX file cannot have: Python control flow, in-place updates, custom operators, nests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.zoo.model import Module


class Branch(nn.Module):
    """Runs one of two layers, depending on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, self.first, lambda x: self.second(x).relu(), (x,))


class Repeat(nn.Module):
    """Runs a layer a number of times that is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        from torch._higher_order_ops import while_loop

        return while_loop(lambda i, x: i < times, lambda i, x: (i + 1, self.layer(x).tanh()), (torch.zeros_like(times), x))[1]  # type: ignore[no-any-return]  # untyped there


class SizeBranch(nn.Module):
    """Has a loop and a branch that depend on sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x) if x.shape[0] > 2 else layer(x).relu()
        return x


class InPlace(nn.Module):
    """Writes to a buffer, to parts of a tensor, and to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(8))
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(x.sum(0))
        y = self.layer(x)
        y[:, 1] += 2
        y[0] = self.calls
        x.mul_(0.5)
        return y.relu_()


@torch.library.custom_op("xrt_zoo::shorten", mutates_args=())
def shorten(x: torch.Tensor, limit: float) -> torch.Tensor:
    """Shorten rows that are longer than the limit."""
    return x * (limit / x.norm(dim=-1, keepdim=True)).clamp(max=1)


@shorten.register_fake
def _(x: torch.Tensor, limit: float) -> torch.Tensor:
    return torch.empty_like(x)


class Custom(nn.Module):
    """A custom operator between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(shorten(self.first(x).relu(), 1.0))  # type: ignore[no-any-return]  # untyped here


@dataclass
class NestResult:
    """The result of `Nest`."""

    scores: torch.Tensor
    parts: dict[str, list[torch.Tensor]]
    size: int


class Nest(nn.Module):
    """Has dictionaries, lists and a dataclass as inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, items: dict[str, Any], scale: float = 2.0) -> NestResult:
        outputs = [self.layer(x) * scale for x in (items["a"], *items["b"])]
        return NestResult(torch.stack(outputs).softmax(-1), {"each": outputs}, len(outputs))


def _make_calls(*counts: int) -> Sequence[Mapping[str, Any]]:
    return [{"x": torch.randn(count, 8)} for count in counts]


MODULES: Mapping[str, Any] = {
    "branch": (Branch, lambda: _make_calls(2, 5)),
    "repeat": (
        Repeat,
        lambda: [{**call, "times": torch.tensor(times)} for call, times in zip(_make_calls(2, 5), (3, 5), strict=True)],
    ),
    "size_branch": (SizeBranch, lambda: _make_calls(2, 5)),
    "in_place": (InPlace, lambda: _make_calls(2, 5)),
    "custom_operator": (Custom, lambda: _make_calls(2, 5)),
    "nest": (Nest, lambda: [{"items": {"a": x["x"], "b": [x["x"] + 1]}} for x in _make_calls(2, 5)]),
}


def list_modules() -> Iterator[Module]:
    """Yield every module."""
    for name in MODULES:
        yield Module(name, "python", partial(_make, name))


def _make(name: str) -> tuple[nn.Module, Sequence[Mapping[str, Any]]]:
    torch.manual_seed(0)
    return MODULES[name][0]().eval(), MODULES[name][1]()
