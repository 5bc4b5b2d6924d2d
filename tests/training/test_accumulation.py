"""Gradient accumulation: N calls make one step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.training.test_steps import LABELS, NAMES, OPTIMIZERS, Layers, X, make_function, make_torch
from xrt import training
from xrt.errors import OptionError

PARTS = [slice(0, 2), slice(2, 4), slice(4, 6)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "clip", "engine"),
    [
        *((name, clip, "toy") for name in OPTIMIZERS for clip in (None, 0.2)),
        ("adamw", 0.2, "ort"),
        ("adamw", 0.2, ["ort", "toy"]),
    ],
    ids=str,
)
def test_three_calls_are_a_step_of_torch_over_three_batches(name: str, clip: float | None, engine: Any) -> None:
    ours, theirs = OPTIMIZERS[name]
    module, parameters = make_torch()
    optimizer = theirs(parameters)
    options: dict[str, Any] = {"loss": training.CrossEntropy(), "optimizer": ours, "clip_norm": clip, "learning_rate": 0.1}
    pins = ["*Tanh=toy"] if isinstance(engine, list) else []
    with training.TrainModule(Layers().trace(X[:2]), engine, accumulation_steps=3, pins=pins, **options) as trained:
        for _ in range(5):
            optimizer.zero_grad()
            for part in PARTS:
                found = trained(X[part], LABELS[part])[0]
                loss = functional.cross_entropy(module(torch.from_numpy(X[part])), torch.from_numpy(LABELS[part]))
                (loss / 3).backward()
                np.testing.assert_allclose(found, float(loss.detach()), rtol=1e-6)
            if clip is not None:
                nn.utils.clip_grad_norm_(parameters, clip)
            optimizer.step()
        weights = trained.parameters
        for key, parameter in zip(NAMES, parameters, strict=True):
            np.testing.assert_allclose(weights[key], parameter.detach().numpy().T, rtol=1e-5, atol=1e-7)
        assert trained.steps == 5


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["toy", "ort"])
def test_parameters_stay_bit_for_bit_between_steps_and_the_step_is_that_of_one_large_batch(engine: str) -> None:
    options: dict[str, Any] = {"loss": training.CrossEntropy(), "optimizer": training.Adam(), "learning_rate": 0.1}
    with (
        training.TrainModule(Layers().trace(X[:2]), engine, accumulation_steps=3, **options) as parts,
        training.TrainModule(make_function(), engine, **options) as whole,
    ):
        for _ in range(2):
            before = parts.state_dict()
            for part in PARTS:
                now = parts.state_dict()
                kept = [name for name in now if not name.endswith(".gradient") and name != "optimizer.calls"]
                assert all(now[name].tobytes() == before[name].tobytes() for name in kept)
                parts(X[part], LABELS[part])
            whole(X, LABELS)
            state = parts.state_dict()
            assert all(not state[f"{name}.gradient"].any() for name in NAMES)
            for name, value in whole.state_dict().items():
                np.testing.assert_allclose(state[name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_a_count_that_is_none_is_an_error(count: Any) -> None:
    with pytest.raises(OptionError, match=r"^accumulation_steps must be a positive integer; got"):
        training.step(make_function(), loss=training.CrossEntropy(), accumulation_steps=count)
