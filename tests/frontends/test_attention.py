"""Scaled dot product attention in every form that PyTorch writes it in: values and gradients, compared with eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.nn import functional

import xrt
from tests.frontends.cases import Call
from xrt.frontends.torch.capture import capture


@dataclass(frozen=True)
class Form:
    """Shapes of queries, keys and values, with the options of the call; the mask is of queries by keys."""

    name: str
    query: tuple[int, ...] = (2, 4, 5, 8)
    key: tuple[int, ...] = (2, 4, 7, 8)
    value: tuple[int, ...] = ()
    mask: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    def make(self, dtype: torch.dtype = torch.float32) -> tuple[list[torch.Tensor], Callable[..., torch.Tensor]]:
        """Return the tensors and the function that attends."""
        generator = torch.Generator().manual_seed(7)
        tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in (self.query, self.key, self.value or self.key)]
        mask = None
        if self.mask:
            hidden = torch.rand((self.query[-2], self.key[-2]), generator=generator) < 0.4
            hidden[1] = True  # a row that sees nothing
            mask = ~hidden if self.mask == "bool" else torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf).to(dtype)

        def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(query, key, value, mask, **self.options)

        return tensors, attend


GROUPED = {"enable_gqa": True}
FORMS = [
    Form("plain"),
    Form("causal", options={"is_causal": True}),
    Form("causal, more queries", query=(2, 4, 9, 8), options={"is_causal": True}),
    Form("scale", options={"scale": 0.3}),
    Form("bool mask", mask="bool"),
    Form("float mask", mask="float", options={"scale": 0.3}),
    Form("wide values", value=(2, 4, 7, 3)),
    Form("grouped", key=(2, 2, 7, 8), options=GROUPED),
    Form("grouped, causal", key=(2, 2, 7, 8), options={**GROUPED, "is_causal": True}),
    Form("grouped, bool mask, scale", key=(2, 2, 7, 8), mask="bool", options={**GROUPED, "scale": 0.3}),
    Form("grouped, float mask", key=(2, 2, 7, 8), mask="float", options=GROUPED),
    Form("grouped otherwise in the values", key=(2, 2, 7, 8), value=(2, 1, 7, 8), options=GROUPED),
    Form("one token", query=(2, 4, 1, 8), key=(2, 2, 7, 8), options=GROUPED),
    Form("one key head", key=(2, 1, 7, 8), options={**GROUPED, "is_causal": True}),
    Form("one key head, broadcast", key=(2, 1, 7, 8)),
    Form("three axes", query=(4, 5, 8), key=(4, 7, 8)),
    Form("three axes, grouped", query=(4, 5, 8), key=(2, 7, 8), options=GROUPED),
    Form("no batch", query=(0, 4, 5, 8), key=(0, 2, 7, 8), options=GROUPED),
]


pytestmark = pytest.mark.filterwarnings("error::xrt.errors.FallbackWarning")


def compare(form: Form, dynamic: bool, dtype: torch.dtype = torch.float32, *, gradients: bool = False) -> None:
    tensors, attend = form.make(dtype)
    fast = torch.compile(attend, backend="xrt", fullgraph=True, dynamic=dynamic, options={"engine": "toy", "strict": True})
    results = []
    for run in (attend, fast):
        inputs = [tensor.clone().requires_grad_(gradients) for tensor in tensors]
        result = run(*inputs)
        weights = torch.linspace(-1, 1, result.numel()).reshape(result.shape).to(dtype)
        results.append([result, *(torch.autograd.grad(result, inputs, weights) if gradients else ())])
    near = {torch.float16: 1e-3, torch.bfloat16: 1e-2}.get(dtype)
    for item, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(item, expected, rtol=near, atol=near)


CASES = [
    *((form, False, False) for form in FORMS),
    *((form, True, False) for form in (*FORMS[1:6:2], *FORMS[7:13])),
    *((form, False, True) for form in FORMS[1:16:2]),
    (FORMS[9], True, True),
]


@pytest.mark.parametrize(("form", "dynamic", "gradients"), CASES)
def test_attention_and_its_gradients_are_those_of_pytorch(form: Form, dynamic: bool, gradients: bool) -> None:
    compare(form, dynamic, gradients=gradients)


@pytest.mark.parametrize("form", [FORMS[3], *FORMS[8:17:2]], ids=lambda form: form.name)
def test_exported_attention_is_that_of_pytorch(form: Form) -> None:
    tensors, attend = form.make()
    module = xrt.XRTModule(Call(attend), engine="toy", strict=True)
    for rows in (2, 3, 4):  # the second call is captured with open sizes
        inputs = [torch.cat([tensor, tensor * 2])[:rows] if tensor.ndim == 4 else tensor for tensor in tensors]
        torch.testing.assert_close(module(*inputs), attend(*inputs))


@pytest.mark.parametrize("gradients", [False, True], ids=["values", "gradients"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_grouped_attention_is_that_of_pytorch_in_each_type(dtype: torch.dtype, gradients: bool) -> None:
    compare(FORMS[10], False, dtype, gradients=gradients)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_attention_in_half_precision_is_as_near_to_float64_as_pytorch(dtype: torch.dtype) -> None:
    """Scores of half precision would be several times as far."""
    torch.manual_seed(0)
    tensors = [(torch.randn(2, 4, 64, 32) * 3).to(dtype) for _ in range(3)]
    attend = functional.scaled_dot_product_attention
    exact = attend(*(tensor.double() for tensor in tensors))
    result, eager = torch.compile(attend, backend="xrt", options={"engine": "toy"})(*tensors), attend(*tensors)
    assert (result.double() - exact).abs().max() <= 1.5 * (eager.double() - exact).abs().max()


@pytest.mark.parametrize(
    "attend",
    [
        lambda q, k, v: torch.ops.aten._scaled_dot_product_attention_math(q, k, v, is_causal=True, enable_gqa=True),
        lambda q, k, v: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, is_causal=True),
        lambda q, k, v: torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, False, is_causal=True)[:1],
        lambda q, k, v: torch.ops.aten._scaled_dot_product_fused_attention_overrideable(q, k, v, None, 0.0, True)[:1],
        lambda q, k, v: torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[:1],
    ],
    ids=["math", "flash for the CPU", "efficient", "fused", "flash"],
)
def test_each_operator_of_attention_has_an_onnx_form(attend: Callable[..., Any]) -> None:
    """Some of them do not run on the CPU, and are captured there all the same."""
    (query, key, value), _ = FORMS[8].make()
    expected = torch.ops.aten._scaled_dot_product_attention_math(query, key, value, is_causal=True, enable_gqa=True)
    captured = capture(Call(attend), (query, key, value))
    assert captured.opaque == {}
    results = xrt.XRTModule(captured.function, engine="toy", strict=True)(*(item.numpy() for item in (query, key, value)))
    first = results[0] if isinstance(results, tuple) else results
    torch.testing.assert_close(torch.from_numpy(first), expected[0])


def test_a_mask_of_booleans_does_not_cut_openvino() -> None:
    tensors, attend = FORMS[4].make()
    plan = xrt.XRTModule(xrt.from_torch(Call(attend), tuple(tensors)), engine=["openvino", "toy"]).plan_for(*tensors)
    assert [launch.engine for launch in plan.launches] == ["openvino"]
