"""Inference with the weights of a module in training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import xrt
from tests.training.test_steps import LABELS, X, make_function
from tests.training.test_torch_dropout import make
from xrt import ops, training
from xrt.errors import InputError
from xrt.graph import TensorType


class Normalized(xrt.Graph):
    """A product, a batch normalization in training form with its statistics as state, and a Dropout."""

    def __init__(self) -> None:
        self.w = np.random.default_rng(0).standard_normal((4, 3)).astype("float32")
        self.scale, self.shift = np.full(3, 2, "float32"), np.ones(3, "float32")

    def build(self, x: Any) -> Any:
        type_ = TensorType(xrt.DType.FLOAT32, (3,))
        mean, variance = self.state("mean", type_), self.state("variance", type_, fill=1)
        options = {"training_mode": 1, "momentum": 0.5, "outputs": 3}
        y, *after = ops.BatchNormalization(x @ self.w, self.scale, self.shift, mean, variance, **options)
        self.update(mean, after[0])
        self.update(variance, after[1])
        return {"scores": ops.Dropout(y, np.float32(0.5), True)}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["toy", "ort", ["ort", "toy"]], ids=str)
def test_statistics_are_those_that_ran_and_nothing_is_dropped(engine: Any) -> None:
    x, function = X.astype("float32"), Normalized().trace(X.astype("float32"))
    with (
        training.TrainModule(function, engine, loss=training.CrossEntropy(), learning_rate=0.1) as trained,
        trained.eval() as evaluated,
    ):
        for _ in range(3):
            trained(x, LABELS)
            state = trained.state_dict()
            result = evaluated(x)
            with xrt.XRTModule(trained.export(), engine) as exported:
                np.testing.assert_allclose(exported(x), result, rtol=1e-5, atol=1e-6)
            normal = (x @ state["w"] - state["mean"]) / np.sqrt(state["variance"] + 1e-5)
            np.testing.assert_allclose(result, normal * state["scale"] + state["shift"], rtol=1e-4, atol=1e-5)
            np.testing.assert_array_equal(evaluated(x), result)
            for name, value in trained.state_dict().items():
                np.testing.assert_array_equal(value, state[name])


@pytest.mark.slow
def test_a_module_of_torch_is_evaluated_in_its_own_form() -> None:
    module, x, labels = make("convolutional", 0.0)
    names = [key for key, _ in module.named_parameters()]
    buffers = {key: value.clone().numpy() for key, value in module.named_buffers()}
    with training.TrainModule(xrt.from_torch(module, (x, labels)), "ort", parameters=names) as trained:
        trained.session.state.update({key: value for key, value in buffers.items() if key in trained.session.state})
        evaluated = trained.eval(xrt.from_torch(module.eval(), (x, labels)))
        for _ in range(3):
            trained(x.numpy(), labels.numpy())
        module.load_state_dict({name: torch.from_numpy(v) for name, v in trained.state_dict().items()}, strict=False)
        np.testing.assert_allclose(evaluated(x.numpy(), labels.numpy()), module(x, labels).detach().numpy(), rtol=1e-4)
        evaluated.close()
        exported = trained.export(xrt.from_torch(module.eval(), (x, labels)))
        assert [value.name for value in exported.inputs] == ["x", "labels"]
        with xrt.XRTModule(exported, "ort") as served:
            np.testing.assert_allclose(served(x.numpy(), labels.numpy()), module(x, labels).detach().numpy(), rtol=1e-4)


def test_a_model_of_other_weights_is_an_error() -> None:
    with (
        training.TrainModule(make_function(), engine="toy", loss=training.CrossEntropy()) as trained,
        pytest.raises(InputError, match=r"^weight 'w1' is float64\[4, 5\] in training, and float32\[4,5\] in the model"),
    ):
        trained.eval(make_function(np.float32))
