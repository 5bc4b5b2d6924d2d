"""Modules of PyTorch in training, also with Dropout; and inference with the weights of a module in training."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import xrt
from tests.training.test_steps import LABELS, X, make_function
from xrt import ops, training
from xrt.errors import InputError, ModelError, OptionError
from xrt.graph import TensorType

pytestmark = pytest.mark.slow


class Scores(nn.Module):  # type: ignore[misc]  # PyTorch is not seen by the type checker
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.network(x), labels)


def test_a_model_may_have_an_input_named_target() -> None:
    class Shifted(torch.nn.Linear):
        def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + target

    args = torch.ones(4, 3), torch.ones(4, 2)
    with training.TrainModule(Shifted(3, 2), loss=training.MeanSquaredError(), args=args, learning_rate=0.1) as module:
        losses = [float(module(*(item.numpy() for item in args), np.zeros((4, 2), "f4"))[0]) for _ in range(3)]
        assert [value.name for value in module.module.inputs[:3]] == ["x", "target", "loss_target"]
    assert losses[2] < losses[1] < losses[0]


def make_networks(p: float) -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    convolutional = nn.Sequential(
        *(nn.Conv2d(1, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout2d(p), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(p), nn.Linear(96, 3)),
    )
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=p, batch_first=True)
    return {
        "convolutional": (convolutional, (8, 1, 8, 8)),
        "transformer": (nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 3)), (8, 3, 8)),
        "recurrent": (Last(p), (8, 4, 3)),
        "residual": (nn.Sequential(Residual(1), nn.Dropout(p), nn.Flatten(), nn.Linear(64, 3)), (8, 1, 8, 8)),
        "alpha": (nn.Sequential(nn.Linear(4, 16), nn.SELU(), nn.AlphaDropout(p), nn.Linear(16, 3)), (8, 4)),
    }


class Residual(nn.Module):
    """The block of a ResNet."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        layers = [(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)) for _ in range(2)]
        self.body = nn.Sequential(*layers[0], nn.ReLU(), *layers[1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + x)


class Last(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.layers, self.head = nn.LSTM(3, 4, 2, dropout=p, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x)[0][:, -1])


NAMES = list(make_networks(0.0))


def make(name: str, p: float) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    network, shape = make_networks(p)[name]
    return Scores(network).train(), torch.randn(shape), torch.randint(0, 3, (8,))


@pytest.mark.sample(8)
@pytest.mark.filterwarnings("ignore::xrt.errors.PlacementWarning")  # on a busy machine the budget measures little
@pytest.mark.parametrize("engine", ["toy", "ort", ["openvino", "toy"], ["ort", "toy"], "auto"], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_losses_and_running_statistics_are_those_of_torch(name: str, engine: Any) -> None:
    """A Dropout that drops nothing is among the layers."""
    module, x, labels = make(name, 0.0)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    curves: list[list[float]] = [[], []]
    options: dict[str, Any] = {"optimizer": training.Adam(), "learning_rate": 0.01}
    options |= {"budget": 1.0} if engine == "auto" else {}
    with training.TrainModule(module, engine, args=(x, labels), **options) as trained:
        twin = copy.deepcopy(module)
        optimizer = torch.optim.Adam(twin.parameters(), 0.01)
        for _ in range(20):
            curves[0].append(float(trained(x.numpy(), labels.numpy())))
            optimizer.zero_grad()
            loss = twin(x, labels)
            loss.backward()
            optimizer.step()
            curves[1].append(float(loss.detach()))
        np.testing.assert_allclose(*curves, rtol=1e-3)
        state = trained.state_dict()
        for key, value in twin.named_buffers():
            np.testing.assert_allclose(state[key], value.numpy(), rtol=1e-3, atol=1e-4)
        with trained.eval() as evaluated:
            wanted = twin.eval()(x, labels)
            np.testing.assert_allclose(evaluated(x.numpy(), labels.numpy()), float(wanted.detach()), rtol=1e-3)
    assert module.training and all(item.training for item in module.modules())
    for key, value in module.state_dict().items():
        torch.testing.assert_close(value, before[key], rtol=0, atol=0)


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", NAMES)
def test_one_seed_drops_the_same_on_two_engines_and_other_elements_in_each_step(name: str) -> None:
    module, x, labels = make(name, 0.4)
    curves = {}
    for engine, seed in (("toy", 3), ("ort", 3), ("ort", 4)):
        with training.TrainModule(module, engine, args=(x, labels), learning_rate=0.0, seed=seed) as trained:
            curves[engine, seed] = [float(trained(x.numpy(), labels.numpy())) for _ in range(4)]
            with trained.eval() as evaluated:
                first, again = (float(evaluated(x.numpy(), labels.numpy())) for _ in range(2))
            assert first == again
    np.testing.assert_allclose(curves["toy", 3], curves["ort", 3], rtol=1e-4)
    assert len(set(curves["ort", 3])) == 4
    assert not np.allclose(curves["ort", 3], curves["ort", 4], rtol=1e-4)


@pytest.mark.parametrize("p", [0.2, 0.5, 1.0])
def test_whole_channels_are_dropped_by_the_share(p: float) -> None:
    x = torch.ones(40, 50, 2, 3)
    module = nn.Sequential(nn.Conv2d(50, 50, 1, groups=50, bias=False), nn.Dropout2d(p)).train()
    nn.init.ones_(module[0].weight)
    with training.TrainModule(module, "ort", args=(x,), loss=training.MeanSquaredError(), learning_rate=0.0) as trained:
        results = [trained(x.numpy(), x.numpy())[1] for _ in range(2)]
    for result in results:
        scale = 0.0 if p == 1 else 1 / (1 - p)
        assert set(np.unique(result).round(4)) <= {0.0, np.float32(scale).round(4)}
        assert abs((result[:, :, 0, 0] == 0).mean() - p) < 0.06
        assert (result == result[:, :, :1, :1]).all()
    assert p == 1 or (results[0] != results[1]).any()


def test_frozen_parameters_and_patterns_stay() -> None:
    module, x, labels = make("convolutional", 0.0)
    module.network[0].requires_grad_(False)
    with training.TrainModule(module, engine="toy", args=(x, labels), learning_rate=0.1, parameters="*.weight") as trained:
        assert set(trained.parameters) == {"network.1.weight", "network.7.weight"}
    with pytest.raises(ModelError, match=r"^no parameter of Scores that requires a gradient matches 'none'$"):
        training.step(module, args=(x, labels), parameters="none")


def test_example_inputs_belong_to_a_module() -> None:
    module, x, labels = make("alpha", 0.0)
    with pytest.raises(OptionError, match=r"^a module of PyTorch is captured with example inputs: pass args="):
        training.step(module)
    with pytest.raises(OptionError, match=r"^args= is for a torch.nn.Module"):
        training.step(xrt.from_torch(module, (x, labels)), args=(x, labels))
    function = training.step(module, args=(x, labels))
    assert function.outputs[0].type is not None


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    x = torch.randn(200, 300)
    y = xrt.XRTModule(xrt.from_torch(nn.AlphaDropout(0.3).train(), (x,)), "toy")(x.numpy())
    assert abs(float(y.mean())) < 0.03 and abs(float(y.var()) - 1) < 0.05


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
