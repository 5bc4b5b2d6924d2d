"""Training steps that update their state where it is: the numbers of the functional form, no byte copied, no array replaced."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import xrt
from xrt import ops, training
from xrt.errors import ModelError, XRTWarning
from xrt.graph import list_states
from xrt.partition import Plan

pytestmark = pytest.mark.slow
DRAW = np.random.default_rng(3)
X = DRAW.standard_normal((8, 300), dtype="float32")
LABELS = DRAW.integers(0, 200, 8)
OPTIMIZERS = (
    training.SGD(),
    training.SGD(momentum=0.9, nesterov=True),
    training.Adam(weight_decay=0.01),
    training.AdamW(),
    training.LAMB(),
    training.Adagrad(rate_decay=0.1),
)


class Layers(xrt.Graph):
    """Two layers; the first is listed last, so that its gradient reads the other one after this one's own gradient is known."""

    def __init__(self) -> None:
        draw = np.random.default_rng(1)
        self.b = np.zeros(200, "float32")
        self.late = draw.standard_normal((300, 200), dtype="float32") / 20
        self.early = draw.standard_normal((300, 300), dtype="float32") / 20

    def build(self, x: Any) -> Any:
        return {"scores": ops.Tanh(x @ self.early) @ self.late + self.b}


def make_module(engine: Sequence[str], optimizer: training.Optimizer = OPTIMIZERS[2], **options: Any) -> xrt.TrainModule:
    return xrt.TrainModule(
        Layers().trace(X), list(engine), loss=training.CrossEntropy(), optimizer=optimizer, learning_rate=0.01, **options
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_a_step_in_place_is_the_functional_form(optimizer: training.Optimizer) -> None:
    """Bit for bit, on the same engine: five steps of a session, and five calls of a Function without aliases."""
    function = training.step(Layers().trace(X), loss=training.CrossEntropy(), optimizer=optimizer, clip_norm=0.5)
    states = list_states(function)
    functional = function.replace(aliases=(), metadata={})
    with make_module(["toy"], optimizer, clip_norm=0.5) as trained, xrt.XRTModule(functional, "toy") as m:
        state = {name: value.copy() for name, value in trained.state_dict().items()}
        names = [value.name for value in functional.outputs]
        for _ in range(5):
            loss, _scores = trained(X, LABELS)
            results = dict(zip(names, m(x=X, target=LABELS, learning_rate=np.float32(0.01), **state), strict=True))
            state = {one.input: results[one.output] for one in states}
            np.testing.assert_array_equal(loss, results["loss"])
            for name, value in trained.state_dict().items():
                np.testing.assert_array_equal(value, state[name], err_msg=name)
        assert trained.module.profile().copies == ()


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("engine", [["toy"], ["ort"], ["ort", "toy"]], ids=str)
def test_no_byte_of_the_state_is_copied_and_no_array_replaced(engine: list[str], accumulation: int) -> None:
    """Under ``ort`` the update goes to ``toy``, which writes in place, and that is no reason for a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", XRTWarning)
        with make_module(engine, accumulation_steps=accumulation) as trained:
            trained(X, LABELS)
            for _ in range(4):
                trained(X, LABELS)
            assert trained.module.profile().copies == ()


def test_an_update_alone_is_that_of_a_step() -> None:
    """Gradients from elsewhere: PyTorch's Adam, fed with the same ones."""
    import torch

    types = {name: xrt.graph.TensorType(xrt.graph.DType.FLOAT32, shape) for name, shape in (("a", (300, 20)), ("b", (7,)))}
    function = training.update(types, optimizer=training.Adam(weight_decay=0.1), clip_norm=1.0)
    draw = np.random.default_rng(6)
    start = {name: draw.standard_normal(type_.shape, dtype="float32") for name, type_ in types.items()}
    parameters = [torch.nn.Parameter(torch.from_numpy(value.copy())) for value in start.values()]
    optimizer = torch.optim.Adam(parameters, 0.01, weight_decay=0.1)
    with xrt.XRTModule(function, "toy") as m:
        session = m.new_session()
        session.state.update(start)
        for _ in range(3):
            gradients = {f"{name}_gradient": draw.standard_normal(type_.shape, dtype="float32") for name, type_ in types.items()}
            session(learning_rate=np.float32(0.01), **gradients)
            for parameter, value in zip(parameters, gradients.values(), strict=True):
                parameter.grad = torch.from_numpy(value.copy())
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
        for name, parameter in zip(types, parameters, strict=True):
            np.testing.assert_allclose(session.state[name], parameter.detach().numpy(), rtol=1e-4, atol=1e-6)
        assert m.profile().copies == ()
    with pytest.raises(ModelError, match="an update needs parameters of floating point: give their names and types"):
        training.update({})


def test_the_plan_says_why_the_update_is_elsewhere() -> None:
    with make_module(["ort"]) as trained:
        trained(X, LABELS)
        first, second = trained.module.plan.launches
        assert (first.engine, second.engine) == ("ort", "toy")
        assert {"MatMul", "Tanh"} <= {node.op for node in first.function.nodes}
        reasons = {reason.text for reason in trained.module.plan.reasons}
        size = 3 * 4 * (300 * 200 + 300 * 300 + 200) + 8
        text = f"it updates state, of which engine 'ort' would copy {size:,} bytes per call; engine 'toy' updates it in place"
        assert reasons == {text}
        assert {reason.updating_engine for reason in trained.module.plan.reasons} == {"toy"}
        assert Plan.from_bytes(trained.module.plan.to_bytes()).reasons == trained.module.plan.reasons
    with make_module(["ort"], strict=True) as trained:  # it has one engine alone
        trained(X, LABELS)
        assert [launch.engine for launch in trained.module.plan.launches] == ["ort"]
        assert {item.reason for item in trained.module.profile().copies} == {"engine 'ort' cannot write it in place in xrt_ort_0"}


def test_a_pin_keeps_the_update_where_it_is() -> None:
    with make_module(["ort", "toy"], pins=["name:*/update/*=ort"]) as trained:
        trained(X, LABELS)
        assert len(trained.module.profile().copies) >= 9


def test_little_state_stays_with_the_gradient() -> None:
    class Small(xrt.Graph):
        def __init__(self) -> None:
            self.w = np.ones((4, 3), "float32")

        def build(self, x: Any) -> Any:
            return {"scores": x @ self.w}

    x, labels = np.ones((2, 4), "float32"), np.array([0, 2])
    with xrt.TrainModule(Small().trace(x), ["ort", "toy"], loss=training.CrossEntropy()) as trained:
        trained(x, labels)
        assert [launch.engine for launch in trained.module.plan.launches] == ["ort"]


def test_batches_of_several_sizes_are_updated_in_place() -> None:
    """The Function has a symbolic batch; the parameters have fixed sizes."""
    function = Layers().trace(X)
    batch = xrt.graph.Value("x", xrt.graph.TensorType(xrt.graph.DType.FLOAT32, ("batch", 300)))
    function = xrt.passes.infer_shapes(function.replace(inputs=(batch,), types={}, outputs=(xrt.graph.Value("scores"),)))
    for engine in (["toy"], ["ort", "toy"]):
        with xrt.TrainModule(function, engine, loss=training.CrossEntropy(), optimizer=training.Adam()) as trained:
            for size in (8, 3, 5, 8):
                trained(X[:size], LABELS[:size])
            assert trained.module.profile().copies == ()
