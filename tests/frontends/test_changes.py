"""What a capture of a module of PyTorch depends on: each change is seen in the next call, and captures are bounded."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import xrt
from tests.frontends.cases import Call
from tests.frontends.test_capture import Block
from xrt.cache import CompileCache
from xrt.cache.memory import LEAST_BYTES
from xrt.errors import InputError, ModelError, OptionError, SignatureWarning


def replace_weight(model: nn.Sequential) -> None:
    model[0].weight = nn.Parameter(torch.ones(4, 4))


def replace_module(model: nn.Sequential) -> None:
    model[1] = nn.Sigmoid()


def load(model: nn.Sequential) -> None:
    model.load_state_dict({name: torch.ones_like(one) for name, one in model.state_dict().items()}, assign=True)


def parametrize(model: nn.Sequential) -> None:
    nn.utils.parametrizations.weight_norm(model[0])
    with torch.no_grad():
        model[0].parametrizations.weight.original0.mul_(3)


def set_data(model: nn.Sequential) -> None:
    model[0].weight.data = torch.ones(4, 4)


def replace_buffer(model: nn.Sequential) -> None:
    model[2].running_mean = torch.ones(4)


def train_part(model: nn.Sequential) -> None:
    model[2].train()


CHANGES = [replace_weight, replace_module, load, parametrize, set_data, replace_buffer, train_part]


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_module_is_captured_again(change: Callable[[Any], None]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.BatchNorm1d(4)).eval()
    module, x = xrt.XRTModule(model, engine="toy"), torch.randn(3, 4)
    before = module(x)
    change(model)
    expected = copy.deepcopy(model)(x).detach()
    assert not torch.allclose(before, expected)
    torch.testing.assert_close(module(x), expected)


@pytest.mark.slow
def test_replaced_buffers_are_those_that_are_updated() -> None:
    model, x = nn.BatchNorm1d(4).train(), torch.randn(3, 4)
    module = xrt.XRTModule(model, engine="toy")
    module(x)
    model.load_state_dict(nn.BatchNorm1d(4).state_dict(), assign=True)
    module(x)
    assert model.num_batches_tracked.item() == 1
    model.eval()
    module(x)
    model.train()
    module(x + 5)
    model.eval()
    torch.testing.assert_close(module(x), model(x).detach())


BRANCHES: list[tuple[Callable[..., Any], list[Any]]] = [
    (lambda x: x * 2 if x.shape[0] > 4 else x * 3, [6, 8, 3, 2, 9]),
    (lambda x: x * 2 if x.shape[0] % 2 == 0 else x * 3, [6, 8, 5, 7, 4]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("function", "sizes"), BRANCHES)
def test_a_branch_on_a_size_is_taken(function: Callable[..., Any], sizes: list[int]) -> None:
    module = xrt.XRTModule(Call(function), engine="toy")
    for size in sizes:
        x = torch.ones(size, 2)
        torch.testing.assert_close(module(x), function(x))


@pytest.mark.parametrize(("function", "sizes"), BRANCHES)
def test_a_named_size_that_the_module_branches_on_is_refused(function: Callable[..., Any], sizes: list[int]) -> None:
    with pytest.raises(ModelError, match=r"holds only where tensors\[0\]\.size\(\)\[0\]|holds only where \(tensors"):
        xrt.from_torch(Call(function), (torch.ones(sizes[0], 2),), dynamic_shapes={"tensors": ({0: "n"},)})


@pytest.mark.slow
def test_threads_capture_one_after_another() -> None:
    failures: list[BaseException] = []

    def capture() -> None:
        try:
            xrt.XRTModule(Block(), engine="toy")(torch.randn(2, 4))
        except BaseException as error:  # noqa: BLE001  # looked at below
            failures.append(error)

    threads = [threading.Thread(target=capture) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [lambda model, x: model, lambda model, x: xrt.from_torch(model, (x,))], ids=["module", "function"]
)
@pytest.mark.parametrize("engine", ["toy", "torch", "ort"])
def test_a_copy_does_not_get_what_was_compiled_over_changed_parameters(engine: str, make: Callable[..., Any]) -> None:
    cache = CompileCache()

    def run(model: nn.Module) -> Any:
        result = xrt.XRTModule(make(model, x), engine=engine, cache=cache)(x.numpy())
        np.testing.assert_allclose(result, model(x).detach().numpy(), rtol=1e-5, atol=1e-6)

    model, x = nn.Linear(8, 8), torch.ones(1, 8)
    twin = copy.deepcopy(model)
    run(model)
    with torch.no_grad():
        model.weight.zero_()
    run(twin)
    run(model)
    run(twin)
    assert cache.statistics.hits == 1


def test_autocast_is_part_of_what_is_captured() -> None:
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    module = xrt.XRTModule(model, engine="toy")
    assert module(x).dtype is torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert module(x).dtype is torch.bfloat16
    torch.testing.assert_close(module(x), model(x).detach())


def test_captures_are_bounded() -> None:
    module = xrt.XRTModule(Call(lambda x, k: x * k), engine="toy", cache=CompileCache(max_bytes=2 * LEAST_BYTES))
    x = torch.ones(2)
    module(x, 1)
    module(x, 2)
    module(x, 1)
    with pytest.warns(SignatureWarning, match="max_bytes"):
        module(x, 3)
    assert "2 captures" in repr(module)
    kept = module.function
    module(x, 1)
    assert module.function is not kept
    assert module(x, 3).tolist() == [3, 3]


def test_buckets_are_refused() -> None:
    with pytest.raises(OptionError, match=r"^shapes=Buckets\(\.\.\.\) is not for a module of PyTorch"):
        xrt.XRTModule(nn.Linear(2, 2), engine=["toy", "auto"], shapes=xrt.Buckets())


@pytest.mark.slow
def test_numbers_are_distinguished_by_their_bits() -> None:
    module = xrt.XRTModule(Call(lambda x, k: torch.copysign(x, torch.tensor(k))), engine="toy")
    x = torch.ones(1)
    assert module(x, 0.0).tolist() == [1]
    assert module(x, -0.0).tolist() == [-1]
    for _ in range(2):
        module(x, math.nan)
    assert "3 captures" in repr(module)


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda a: a[::-1], lambda a: np.broadcast_to(a, a.shape)])
def test_an_input_that_cannot_be_updated_in_place_is_refused(make: Callable[[Any], Any]) -> None:
    module = xrt.XRTModule(Call(lambda x: x.add_(1)), engine="toy")
    with pytest.raises(InputError, match="the module updates an input in place, and the one given cannot be"):
        module(make(np.zeros((3, 2), "float32")))
    array = np.zeros((3, 2), "float32")
    module(array)
    assert array.tolist() == [[1, 1]] * 3


@pytest.mark.parametrize("name", ["fetch", "out", "options"])
def test_options_of_other_calls_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"a module of PyTorch is called without {name}="):
        xrt.XRTModule(Block(), engine="toy")(torch.ones(2, 4), **{name: None})


def test_modules_of_inference_mode_are_refused() -> None:
    with torch.inference_mode():
        model = nn.Linear(4, 4)
    for call in (lambda x: xrt.XRTModule(model, engine="toy")(x), lambda x: xrt.from_torch(model, (x,))):
        with pytest.raises(ModelError, match=r"weight was made under torch\.inference_mode"):
            call(torch.ones(2, 4))
