"""Each rule of the front end for PyTorch gives what PyTorch computes, on the reference engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
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
    assert captured.declined == {}
    module = xrt.XRTModule(captured.function, engine="toy", strict=True)
    results = module(*[inputs[index].numpy() for index in captured.inputs])
    results = results if isinstance(results, tuple) else (results,)
    outputs = [inputs[leaf.index].numpy() if leaf.kind == "input" else results[leaf.index] for leaf in captured.leaves]
    for output, wanted in zip(outputs, expected, strict=True):
        assert torch.from_numpy(np.array(output)).dtype is wanted.dtype
        np.testing.assert_allclose(output, wanted.numpy(), rtol=2e-5, atol=1e-5)
        assert output.shape == tuple(wanted.shape)
