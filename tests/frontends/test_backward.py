"""torch.compile in training: forward and backward graphs on engines, compared with eager PyTorch."""

from __future__ import annotations

import copy
from typing import Any
from unittest.mock import DEFAULT, Mock

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.frontends.cases import Call, compiled
from tests.training.test_torch_dropout import make
from xrt.errors import FallbackWarning, ModelError
from xrt.frontends.torch import backend
from xrt.graph import Function
from xrt.graph.node import ATEN_DOMAIN

pytestmark = pytest.mark.slow


NETWORKS = ["alpha", "convolutional", "transformer", "recurrent"]
ENGINES = ["toy", "ort", ["ort", "toy"], ["openvino", "ort"]]


def compare_gradients(module: nn.Module, twin: nn.Module) -> None:
    for (name, item), wanted in zip(module.named_parameters(), twin.parameters(), strict=True):
        assert (item.grad is None) == (wanted.grad is None), name
        if wanted.grad is not None:
            scale = float(wanted.grad.abs().max())
            torch.testing.assert_close(item.grad, wanted.grad, rtol=1e-4, atol=2e-6 + 2e-5 * scale, msg=name)


@pytest.mark.sample(6)
@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_and_running_statistics_are_those_of_eager(name: str, engine: Any, functions: list[Function]) -> None:
    module, *inputs = make(name, 0.0)
    twin = copy.deepcopy(module)
    pins = ["*Mul=toy"] if engine == ["ort", "toy"] else []
    call = compiled(module, engine, pins=pins)
    for _ in range(2):
        loss, wanted = call(*inputs), twin(*inputs)
        torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-5)
        loss.backward()
        wanted.backward()
        compare_gradients(module, twin)  # of the second call: the sum of both
    for key, buffer in module.named_buffers():
        torch.testing.assert_close(buffer, twin.get_buffer(key), rtol=1e-4, atol=1e-5)
    assert len(functions) == 2
    assert {node.domain for function in functions for _, node in function.walk()} == {""}


@pytest.mark.parametrize("name", ["convolutional", "transformer"])
def test_two_forward_passes_before_two_backward_passes(name: str) -> None:
    module, *inputs = make(name, 0.0)
    twin = copy.deepcopy(module)
    others = inputs[0].flip(0), (inputs[1] + 1) % 3
    call = compiled(module, "ort")
    for model, run in ((module, call), (twin, twin)):
        first, second = run(*inputs), run(*others)
        first.backward()
        results = [parameter.grad for parameter in model.parameters()]
        second.backward()
        assert [value.data_ptr() for value in results] == [parameter.grad.data_ptr() for parameter in model.parameters()]
    compare_gradients(module, twin)


def test_a_gradient_stays_as_it_is_while_others_are_computed() -> None:
    module, x, labels = make("alpha", 0.0)
    call = compiled(module, "ort")
    saved = torch.autograd.grad(call(x, labels), list(module.parameters()))
    copies = [item.clone() for item in saved]
    for _ in range(3):
        torch.autograd.grad(call(x * 3, labels), list(module.parameters()))
    torch.testing.assert_close(list(saved), copies, rtol=0, atol=0)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", NETWORKS[:3])
def test_other_batches_are_calls_of_the_same_graphs(name: str, functions: list[Function]) -> None:
    module, *inputs = make(name, 0.0)
    twin = copy.deepcopy(module)
    call = compiled(module, "ort", dynamic=True)
    for size in (5, 3, 7, 4):
        results = [torch.cat([value] * 3)[:size] for value in inputs]
        loss, wanted = call(*results), twin(*results)
        torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-5)
        loss.backward()
        wanted.backward()
    compare_gradients(module, twin)
    assert len(functions) == 2


def test_what_needs_no_gradient_has_none_and_inference_goes_on() -> None:
    module, *inputs = make("convolutional", 0.0)
    module.network[0].weight.requires_grad_(False)
    twin = copy.deepcopy(module)
    call = compiled(module, "ort")
    call(*inputs).backward()
    twin(*inputs).backward()
    compare_gradients(module, twin)
    assert module.network[0].weight.grad is None
    with torch.no_grad():
        loss = call(*inputs)
        torch.testing.assert_close(loss, twin(*inputs), rtol=1e-5, atol=1e-5)
        assert not loss.requires_grad


def test_frozen_training_has_the_parameters_that_change_as_inputs(functions: list[Function]) -> None:
    module, *inputs = make("alpha", 0.0)
    module.network[0].requires_grad_(False)
    twin = copy.deepcopy(module)
    call = compiled(module, "ort", freeze=True)
    for model, run in ((module, call), (twin, twin)):
        steps = torch.optim.SGD(model.parameters(), 0.5)
        for _ in range(3):
            steps.zero_grad()
            run(*inputs).backward()
            steps.step()
    compare_gradients(module, twin)
    assert [len(function.inputs) for function in functions][:1] == [4]
    assert len(functions) == 2


def test_an_operator_without_a_rule_stays_that_of_pytorch(functions: list[Function]) -> None:
    x = torch.randn(4, 4, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    compiled(lambda x: (torch.linalg.det(x) + torch.cdist(x, x + 1).sum()) * torch.special.i0(x).sum())(x).backward()
    ((torch.linalg.det(y) + torch.cdist(y, y + 1).sum()) * torch.special.i0(y).sum()).backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-4)
    assert [any(node.domain == ATEN_DOMAIN for node in function.nodes) for function in functions] == [True, True]


def test_a_backward_graph_that_cannot_be_lowered_runs_in_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    module, *inputs = make("convolutional", 0.0)
    twin = copy.deepcopy(module)
    lower_graph = Mock(side_effect=[DEFAULT, ModelError("no rule today")], wraps=backend.lower_graph)
    monkeypatch.setattr(backend, "lower_graph", lower_graph)
    with pytest.warns(FallbackWarning, match="a graph of torch.compile runs in PyTorch: no rule today"):
        compiled(module, "ort")(*inputs).backward()
    twin(*inputs).backward()
    compare_gradients(module, twin)


def test_a_graph_whose_gradient_depends_on_the_order_in_memory_runs_in_pytorch() -> None:
    x = torch.randn(4, 6, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    with pytest.warns(FallbackWarning, match="keeps for its gradient depends on the order of its input in memory"):
        compiled(lambda x: torch.linalg.det(x[:, :4]))(x).backward()
    torch.linalg.det(y[:, :4]).backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_the_mask_of_a_dropout_is_that_of_its_gradient() -> None:
    x = torch.ones(100, 100, requires_grad=True)
    y = compiled(nn.Dropout(0.25).train(), "ort")(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())
    assert 0.7 < float((y != 0).float().mean()) < 0.8


IMAGE = (2, 4, 6, 6)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("module", "shape"),
    [
        *((nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2), IMAGE), (nn.Conv1d(4, 2, 3), (2, 4, 6))),
        *((nn.Conv3d(4, 2, 2), (1, 4, 3, 3, 3)), (nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), IMAGE)),
        *((nn.MaxPool1d(2), (2, 4, 6)), (nn.MaxPool2d(3, 2, 1, ceil_mode=True), IMAGE), (nn.MaxPool3d(2), (1, 4, 4, 4, 4))),
        *((nn.AvgPool1d(2), (2, 4, 6)), (nn.AvgPool2d(3, 2, 1, count_include_pad=False), IMAGE)),
        *((nn.AvgPool3d(2), (1, 4, 4, 4, 4)), (nn.AdaptiveAvgPool2d(4), IMAGE)),
        *((nn.Upsample(scale_factor=2), IMAGE), (nn.Upsample(scale_factor=2, mode="bilinear"), IMAGE)),
        *((nn.Upsample(scale_factor=2, mode="bicubic"), IMAGE), (nn.Upsample(size=9, mode="linear"), (2, 4, 6))),
        *((nn.ReflectionPad2d(2), IMAGE), (nn.ReplicationPad2d(1), IMAGE), (nn.Unfold(2), IMAGE)),
        *((nn.BatchNorm2d(4), IMAGE), (nn.InstanceNorm2d(4, affine=True), IMAGE), (nn.GroupNorm(2, 4), IMAGE)),
        *((nn.LayerNorm([6, 6]), IMAGE), (nn.RMSNorm(6), IMAGE), (nn.LocalResponseNorm(2), IMAGE)),
        *((one, (3, 6)) for one in (nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Mish(), nn.ELU(), nn.Softplus(), nn.PReLU())),
        *((one, (3, 6)) for one in (nn.GLU(), nn.Hardswish(), nn.LogSigmoid(), nn.Softmax(-1), nn.LogSoftmax(-1))),
        (Call(lambda x: functional.cross_entropy(x[None], torch.tensor([[1, 2, 0, 0, -100, 1]]))), (3, 6)),
        (Call(lambda x: functional.scaled_dot_product_attention(x, x, x, attn_mask=torch.eye(6).log())), IMAGE),
        (Call(lambda x: torch.cdist(x, x + 1)), (3, 6)),
        (Call(lambda x: functional.embedding(torch.tensor([[1, 2], [2, 0]]), x)), (3, 6)),
        (Call(lambda x: x[:, torch.tensor([[0, 2], [2, 1]])] * x[torch.tensor([1, 1, 0]), :1, None]), (3, 6)),
        (Call(lambda x: (x.T + 0).T @ (x @ x[0])[None].expand(6, 3)[:, 0].clone()), (3, 6)),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, nn.Module) else None,
)
def test_the_gradient_of_each_operator_is_lowered(module: nn.Module, shape: tuple[int, ...], functions: list[Function]) -> None:
    torch.manual_seed(0)
    twin, x = copy.deepcopy(module), torch.randn(shape, requires_grad=True)
    other = x.detach().clone().requires_grad_()
    y, wanted = compiled(module, "toy")(x), twin(other)
    torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-5)
    seed = torch.randn_like(wanted)
    y.backward(seed)
    wanted.backward(seed)
    torch.testing.assert_close(x.grad, other.grad, rtol=1e-4, atol=1e-5)
    compare_gradients(module, twin)
    assert {node.domain for function in functions for node in function.nodes} == {""}


def test_a_gradient_without_memory_is_zeros() -> None:
    """PyTorch writes the gradient of a sign as a tensor that has no memory."""
    x = torch.tensor([2.0, -1.0], requires_grad=True)
    assert torch.autograd.grad(compiled(torch.sgn)(x).sum(), x)[0].tolist() == [0, 0]
