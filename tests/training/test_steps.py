"""Training steps compared with those of PyTorch: the state that they keep, accumulation, and inference with their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import xrt
from xrt import ops, training
from xrt.engines import compute_peak_of_values
from xrt.errors import InputError, ModelError, OptionError

DRAW = np.random.default_rng(2)
X = DRAW.standard_normal((6, 4))
LABELS = DRAW.integers(0, 3, 6)


class Layers(xrt.Graph):
    """Two layers whose weights are arrays."""

    def __init__(self, dtype: Any = np.float64) -> None:
        draw = np.random.default_rng(1)
        self.w1, self.w2 = (draw.standard_normal(shape).astype(dtype) for shape in ((4, 5), (5, 3)))
        self.b1, self.b2 = (draw.standard_normal(size).astype(dtype) for size in (5, 3))

    def build(self, x: Any) -> Any:
        return {"scores": ops.Tanh(x @ self.w1 + self.b1) @ self.w2 + self.b2}


NAMES = ("w1", "b1", "w2", "b2")


def make_function(dtype: Any = np.float64) -> xrt.Function:
    return Layers(dtype).trace(X.astype(dtype))


def make_torch() -> tuple[nn.Module, list[nn.Parameter]]:
    layers, source = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double(), Layers()
    with torch.no_grad():
        for layer, w, b in ((layers[0], source.w1, source.b1), (layers[2], source.w2, source.b2)):
            layer.weight.copy_(torch.from_numpy(w.T))
            layer.bias.copy_(torch.from_numpy(b))
    return layers, list(layers.parameters())


OPTIMIZERS = {
    "sgd": (training.SGD(), lambda p: torch.optim.SGD(p, 0.1)),
    "momentum": (training.SGD(momentum=0.9, weight_decay=0.01), lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01)),
    "nesterov": (training.SGD(momentum=0.8, nesterov=True), lambda p: torch.optim.SGD(p, 0.1, 0.8, nesterov=True)),
    "adam": (training.Adam(weight_decay=0.02), lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.02)),
    "adamw": (training.AdamW(), lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.01)),
    "adagrad": (training.Adagrad(rate_decay=0.1), lambda p: torch.optim.Adagrad(p, 0.1, 0.1)),
}


PARTS = [slice(0, 2), slice(2, 4), slice(4, 6)]
"""A batch in three calls."""


@pytest.mark.slow
@pytest.mark.parametrize("parts", [[slice(0, 6)], PARTS], ids=["one call", "three calls"])
@pytest.mark.parametrize(
    ("name", "clip", "engine"),
    [
        *((name, clip, "toy") for name in OPTIMIZERS for clip in (None, 0.2)),
        ("adamw", 0.2, "ort"),
        ("adamw", 0.2, ["ort", "toy"]),
    ],
    ids=str,
)
def test_steps_are_those_of_torch(name: str, clip: float | None, engine: Any, parts: list[slice]) -> None:
    ours, theirs = OPTIMIZERS[name]
    module, parameters = make_torch()
    optimizer = theirs(parameters)
    options: dict[str, Any] = {"loss": training.CrossEntropy(), "optimizer": ours, "clip_norm": clip, "learning_rate": 0.1}
    pins = ["*Tanh=toy"] if isinstance(engine, list) else []
    function, count = Layers().trace(X[parts[0]]), len(parts)
    with training.TrainModule(function, engine, accumulation_steps=count, pins=pins, **options) as trained:
        for _ in range(10):
            optimizer.zero_grad()
            for part in parts:
                result = trained(X[part], LABELS[part])[0]
                loss = functional.cross_entropy(module(torch.from_numpy(X[part])), torch.from_numpy(LABELS[part]))
                (loss / count).backward()
                np.testing.assert_allclose(result, float(loss.detach()), rtol=1e-6)
            if clip is not None:
                nn.utils.clip_grad_norm_(parameters, clip)
            optimizer.step()
        weights = trained.parameters
        assert set(weights) == set(NAMES)
        for key, parameter in zip(NAMES, parameters, strict=True):
            np.testing.assert_allclose(weights[key], parameter.detach().numpy().T, rtol=1e-5, atol=1e-7)
        assert trained.steps == 10


def lamb(w: Any, g: Any, m: Any, v: Any, t: int) -> tuple[Any, Any, Any]:
    """The formula of the paper."""
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    r = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6) + 0.01 * w
    return w - 0.1 * np.linalg.norm(w) / np.linalg.norm(r) * r, m, v


@pytest.mark.slow
def test_lamb_is_the_formula_of_the_paper() -> None:
    function = make_function()
    module, parameters = make_torch()
    options: dict[str, Any] = {"loss": training.MeanSquaredError(), "optimizer": training.LAMB(weight_decay=0.01)}
    with training.TrainModule(function, engine="toy", learning_rate=0.1, **options) as trained:
        target = DRAW.standard_normal((6, 3))
        weights = {name: (value, 0 * value, 0 * value) for name, value in trained.parameters.items()}
        for t in range(1, 4):
            with torch.no_grad():
                for name, parameter in zip(NAMES, parameters, strict=True):
                    parameter.copy_(torch.from_numpy(weights[name][0].T))
            loss = functional.mse_loss(module(torch.from_numpy(X)), torch.from_numpy(target))
            trained(X, target)
            for name, g in zip(NAMES, torch.autograd.grad(loss, parameters), strict=True):
                weights[name] = lamb(weights[name][0], g.numpy().T, *weights[name][1:], t)
        for name, value in trained.parameters.items():
            np.testing.assert_allclose(value, weights[name][0], rtol=1e-5)


@pytest.mark.slow
def test_two_modules_of_one_model_train_alone_and_the_model_stays() -> None:
    function = make_function()
    before = {name: function.constants[name].array.copy() for name in NAMES}
    with (
        training.TrainModule(function, engine="toy", loss=training.CrossEntropy(), learning_rate=0.5) as context,
        training.TrainModule(function, engine="toy", loss=training.CrossEntropy(), learning_rate=0.5) as other,
    ):
        context(X, LABELS)
        assert not np.array_equal(context.parameters["w1"], before["w1"])
        np.testing.assert_array_equal(other.parameters["w1"], before["w1"])
    for name, array in before.items():
        np.testing.assert_array_equal(function.constants[name].array, array)


@pytest.mark.slow
def test_a_checkpoint_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    options: dict[str, Any] = {"loss": training.CrossEntropy(), "optimizer": training.Adam(), "learning_rate": 0.05}
    with training.TrainModule(make_function(), **options) as context, training.TrainModule(make_function(), **options) as other:
        for _ in range(3):
            context(X, LABELS)
        context.save(tmp_path / "checkpoint")
        other.restore(tmp_path / "checkpoint")
        for _ in range(3):
            np.testing.assert_array_equal(context(X, LABELS)[0], other(X, LABELS)[0])
        third = context.state_dict()
        other.load_state_dict(third)
        np.testing.assert_array_equal(context(X, LABELS)[0], other(X, LABELS)[0])
        with pytest.raises(InputError, match=r"^the state has other names: 'b1' is missing\.$"):
            other.load_state_dict({name: value for name, value in third.items() if name != "b1"})


def test_parameters_by_pattern_leave_the_others_as_they_are() -> None:
    function = make_function()
    with training.TrainModule(
        function, engine="toy", loss=training.CrossEntropy(), parameters=["w*", "b1"], learning_rate=0.1
    ) as trained:
        trained(X, LABELS)
        assert set(trained.parameters) == {"w1", "w2", "b1"}
        exported = trained.export()
    np.testing.assert_array_equal(exported.constants["b2"].array, function.constants["b2"].array)
    np.testing.assert_array_equal(exported.constants["w1"].array, trained.parameters["w1"])
    assert exported.outputs == function.outputs


def test_the_learning_rate_is_an_input() -> None:
    with training.TrainModule(make_function(), engine="toy", loss=training.CrossEntropy(), learning_rate=0.0) as trained:
        before = trained.parameters
        trained(X, LABELS)
        np.testing.assert_array_equal(trained.parameters["w1"], before["w1"])
        trained.learning_rate = 0.1
        trained(X, LABELS)
        assert not np.array_equal(trained.parameters["w1"], before["w1"])


def test_an_unknown_parameter_is_an_error() -> None:
    with pytest.raises(ModelError, match=r"^the model has no parameter 'w3'"):
        training.step(make_function(), loss=training.CrossEntropy(), parameters="w3")
    with pytest.raises(ModelError, match=r"^no parameter of the model matches 'z\*'; xrt.training.list_parameters"):
        training.step(make_function(), loss=training.CrossEntropy(), parameters="z*")


def test_state_of_the_model_stays_state() -> None:
    class Averaged(xrt.Graph):
        def build(self, x: Any) -> Any:
            average = self.state("average", xrt.graph.TensorType(xrt.DType.FLOAT64, (4,)))
            self.update(average, average * 0.9 + ops.ReduceMean(x, [0], keepdims=0) * 0.1)
            return ops.ReduceSum(x @ average.builder.constant(Layers().w1, "w1"), keepdims=0)

    with training.TrainModule(Averaged().trace(X), engine="toy", learning_rate=0.1) as trained:
        trained(X)
        np.testing.assert_allclose(trained.state_dict()["average"], 0.1 * X.mean(0))


class Deep(xrt.Graph):
    """A chain of layers that end in a sum: what they keep is far more than what a layer computes with."""

    def __init__(self, depth: int, width: int) -> None:
        self.depth, draw = depth, np.random.default_rng(1)
        for i in range(depth):
            setattr(self, f"w{i:02}", draw.standard_normal((width, width), dtype="float32") / 4)

    def build(self, x: Any) -> Any:
        for i in range(self.depth):
            x = ops.Tanh(x @ getattr(self, f"w{i:02}"))
        return {"loss": ops.ReduceSum(x * x, keepdims=0)}


def test_a_gradient_of_the_last_layer_is_used_before_that_of_the_first_is_known() -> None:
    """The order of a step keeps neither gradients nor what a layer has computed longer than needed."""
    depth, batch, width = 12, 64, 16
    function = training.step(Deep(depth, width).trace(np.ones((batch, width), "float32")), loss="loss")
    place = {node.name: number for number, node in enumerate(function.nodes)}
    updates = [place[f"w{i:02}/update/sub_1"] for i in range(depth)]
    assert updates == sorted(updates, reverse=True)
    peak = compute_peak_of_values(function)
    assert peak is not None and peak < (depth + 8) * batch * width * 4


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["toy", "ort"])
def test_parameters_stay_bit_for_bit_between_steps(engine: str) -> None:
    options: dict[str, Any] = {"loss": training.CrossEntropy(), "optimizer": training.Adam(), "learning_rate": 0.1}
    with training.TrainModule(Layers().trace(X[:2]), engine, accumulation_steps=3, **options) as trained:
        for _ in range(2):
            before = trained.state_dict()
            for part in PARTS:
                now = trained.state_dict()
                results = [name for name in now if not name.endswith(".gradient") and name != "optimizer.calls"]
                assert all(now[name].tobytes() == before[name].tobytes() for name in results)
                trained(X[part], LABELS[part])
            assert not any(value.any() for name, value in trained.state_dict().items() if name.endswith(".gradient"))


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_a_count_that_is_none_is_an_error(count: Any) -> None:
    with pytest.raises(OptionError, match=r"^accumulation_steps must be a positive integer; got"):
        training.step(make_function(), loss=training.CrossEntropy(), accumulation_steps=count)
