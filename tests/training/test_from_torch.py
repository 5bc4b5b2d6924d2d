"""Modules of PyTorch trained by XRT, compared with PyTorch's own loop."""

from __future__ import annotations

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
