"""Modules of PyTorch trained by XRT, compared with PyTorch's own loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import xrt
from xrt import training


class Scores(nn.Module):  # type: ignore[misc]  # PyTorch is not seen by the type checker
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.network(x), labels)


def networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    convolutional = nn.Sequential(
        *(nn.Conv2d(1, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 8, 3, groups=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)),
    )
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return {
        "convolutional": (convolutional, (8, 1, 8, 8)),
        "transformer": (nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 3)), (8, 3, 8)),
    }


@pytest.mark.slow
@pytest.mark.sample(6)
@pytest.mark.parametrize("engine", ["toy", "ort"])
@pytest.mark.parametrize("name", list(networks()))
def test_forty_steps_are_those_of_torch(name: str, engine: str) -> None:
    torch.manual_seed(0)
    network, shape = networks()[name]
    module = Scores(network).train()
    x, labels = torch.randn(shape), torch.randint(0, 3, (8,))
    function = xrt.from_torch(module, (x, labels))
    names = [key for key, _ in module.named_parameters()]
    buffers = {key: value.clone().numpy() for key, value in module.named_buffers()}
    losses: list[Any] = []
    with training.TrainModule(function, engine, optimizer=training.Adam(), parameters=names, learning_rate=0.01) as trained:
        trained.session.state.update({key: value for key, value in buffers.items() if key in trained.session.state})
        optimizer = torch.optim.Adam(module.parameters(), 0.01)
        for _ in range(40):
            found = trained(x.numpy(), labels.numpy())
            optimizer.zero_grad()
            loss = module(x, labels)
            loss.backward()
            optimizer.step()
            losses.append((float(found), float(loss.detach())))
        np.testing.assert_allclose(*zip(*losses, strict=True), rtol=1e-3)
        assert losses[-1][0] < 0.7 * losses[0][0]
        state = trained.state_dict()
    for key, value in module.named_buffers():
        if key in state:
            np.testing.assert_allclose(state[key], value.numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_an_lstm_is_captured_without_a_warning() -> None:
    module = nn.LSTM(3, 4, batch_first=True).train()
    x = torch.randn(2, 5, 3)
    function = xrt.from_torch(module, (x,))
    expected = module(x)[0].detach().numpy()
    np.testing.assert_allclose(xrt.XRTModule(function, "toy")(x.numpy())[0], expected, rtol=1e-4, atol=1e-6)


def test_a_model_may_have_an_input_named_target() -> None:
    class Shifted(torch.nn.Linear):
        def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + target

    args = torch.ones(4, 3), torch.ones(4, 2)
    with training.TrainModule(Shifted(3, 2), loss=training.MeanSquaredError(), args=args, learning_rate=0.1) as module:
        losses = [float(module(*(one.numpy() for one in args), np.zeros((4, 2), "f4"))[0]) for _ in range(3)]
        assert [value.name for value in module.module.inputs[:3]] == ["x", "target", "loss_target"]
    assert losses[2] < losses[1] < losses[0]
