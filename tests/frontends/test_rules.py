"""Each rule of the front end for PyTorch gives what PyTorch computes, on the reference engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # as everybody writes it
from torch.utils import _pytree as pytree

import xrt
from tests.frontends.cases import CASES, Call, Case
from xrt.frontends.torch.capture import capture


@pytest.mark.sample(3)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_rule_gives_what_pytorch_computes(case: Case) -> None:
    inputs = case.inputs()
    expected = pytree.tree_leaves(Call(case.function)(*inputs))
    captured = capture(Call(case.function), inputs)
    assert captured.opaque == {}
    module = xrt.XRTModule(captured.function, engine="toy", strict=True)
    results = module(*[inputs[index].numpy() for index in captured.inputs])
    results = results if isinstance(results, tuple) else (results,)
    outputs = [inputs[leaf.index].numpy() if leaf.kind == "input" else results[leaf.index] for leaf in captured.leaves]
    for output, wanted in zip(outputs, expected, strict=True):
        assert torch.from_numpy(np.array(output)).dtype is wanted.dtype
        np.testing.assert_allclose(output, wanted.numpy(), rtol=2e-5, atol=1e-5)
        assert output.shape == tuple(wanted.shape)


@pytest.mark.parametrize("function", [torch.expm1, F.selu], ids=["expm1", "selu"])
def test_a_gradient_is_finite_where_exponentials_overflow(function: Any) -> None:
    x = torch.tensor([-200.0, -1.0, -1e-3, 1e-3, 1.0, 80.0, 200.0])[: 6 if function is torch.expm1 else 7]
    gradient = xrt.gradient(xrt.from_torch(Call(function), (x,)))
    inputs = x.clone().requires_grad_()
    function(inputs).sum().backward()
    np.testing.assert_allclose(xrt.XRTModule(gradient, "toy")(x.numpy())[1], inputs.grad.numpy(), rtol=1e-5)


def test_atan2_of_two_infinities_is_a_multiple_of_a_quarter_of_pi() -> None:
    y, x = np.array([[np.inf, np.inf, -np.inf, -np.inf, 1], [np.inf, -np.inf, np.inf, -np.inf, np.inf]], np.float32)
    gradient = xrt.gradient(xrt.from_torch(Call(torch.atan2), (torch.from_numpy(y), torch.from_numpy(x))))
    angle, *slopes = xrt.XRTModule(gradient, "toy")(y, x)
    np.testing.assert_allclose(angle, np.arctan2(y, x), rtol=1e-6)
    assert not np.any(slopes)


def test_the_gradient_of_atan2_is_finite_on_the_axes() -> None:
    y, x = (torch.tensor(values) for values in ([0.0, 0.0, 2.0, -2.0, 1.0, -1.0, 3.0], [1.0, -1.0, 0.0, 0.0, 1e-30, -2.0, -1e10]))
    gradient = xrt.gradient(xrt.from_torch(Call(torch.atan2), (y, x)))
    inputs = [value.clone().requires_grad_() for value in (y, x)]
    torch.atan2(*inputs).sum().backward()
    results = xrt.XRTModule(gradient, "toy")(y.numpy(), x.numpy())
    np.testing.assert_allclose(results[0], torch.atan2(y, x).numpy(), rtol=1e-6)
    for result, value in zip(results[1:], inputs, strict=True):
        np.testing.assert_allclose(result, value.grad.numpy(), rtol=1e-5)
