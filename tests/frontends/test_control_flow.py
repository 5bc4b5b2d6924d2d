"""Conditions, loops and scans of PyTorch become If, Loop and Scan, and give what PyTorch gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils import _pytree as pytree

import xrt
from xrt.graph import Function

pytestmark = pytest.mark.slow


class Layer(nn.Module):
    """A function of a layer and a tensor, as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("offset", torch.ones(4))
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


@dataclass(frozen=True)
class Case:
    name: str
    operator: str
    function: Callable[[Layer, torch.Tensor], Any]


def nested(self: Layer, x: torch.Tensor) -> Any:
    def inner(y: torch.Tensor) -> Any:
        return torch.cond(y.sum() > 1, lambda z: self.layer(z) * y.shape[0], lambda z: z + self.offset, (y,))

    return torch.cond(x[0, 0] > 0, inner, lambda y: y * 2, (x,))


def count(limit: int) -> Callable[[Layer, torch.Tensor], Any]:
    def function(self: Layer, x: torch.Tensor) -> Any:
        return while_loop(lambda i, y: i < limit, lambda i, y: (i + 1, torch.tanh(self.layer(y))), (torch.tensor(0), x))

    return function


def in_turns(self: Layer, x: torch.Tensor) -> Any:
    def step(total: torch.Tensor, row: torch.Tensor) -> Any:
        return torch.cond(row.sum() > 0, lambda t, r: (t + self.layer(r), r * 2), lambda t, r: (t - r, r + 1), (total, row))

    return scan(step, torch.zeros(4), x, dim=0)


CASES = [
    Case("condition", "If", lambda self, x: torch.cond(x.sum() > 0, self.layer, lambda y: y - self.offset, (x,))),
    Case("several", "If", lambda self, x: torch.cond(x.sum() > 0, lambda y: (y + 1, y.sum()), lambda y: (y - 1, y.max()), (x,))),
    Case("nested", "If", nested),
    Case("size", "If", lambda self, x: torch.cond(torch.tensor(x.shape[0]) > 4, lambda y: y + 1, lambda y: y * 3, (x,))),
    Case("loop", "Loop", count(3)),
    Case("no iteration", "Loop", count(0)),
    Case("until", "Loop", lambda self, x: while_loop(lambda y: y.sum() < 100, lambda y: (y.abs() * 2 + self.offset,), (x,))),
    Case("rows", "Loop", lambda self, x: while_loop(lambda i, y: i < len(y), lambda i, y: (i + 1, y * i), (torch.tensor(1), x))),
    Case("scan", "Scan", lambda self, x: scan(lambda c, y: (c + self.layer(y), c * 2), torch.zeros(4), x, dim=0)),
    Case("scan columns", "Scan", lambda self, x: scan(lambda c, y: (c * y.mean(), y + c), torch.ones(1), x, dim=1)),
    Case("backwards", "Scan", lambda self, x: scan(lambda c, y: (c * 0.5 + y, c + y), torch.zeros(4), x, dim=0, reverse=True)),
    Case("map", "Scan", lambda self, x: torch_map(lambda y, z: self.layer(y) + z, x, self.offset)),
    Case("branch in a scan", "Scan", in_turns),
]  # fmt: skip


def make_inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, generator=generator)
    return [x, -x, torch.randn(3, 4, generator=generator).abs()]


def check(results: Any, expected: Any) -> None:
    for result, wanted in zip(pytree.tree_leaves(results), pytree.tree_leaves(expected), strict=True):
        torch.testing.assert_close(result, wanted.detach(), rtol=1e-5, atol=1e-5)


def list_ops(function: Function) -> set[str]:
    return {node.op for _, node in function.walk()}


@pytest.mark.sample(8)
@pytest.mark.parametrize("engine", ["ort", ["torch", "toy"]], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_module_gives_what_it_gives_in_pytorch(case: Case, engine: Any) -> None:
    model = Layer(case.function)
    module = xrt.XRTModule(model, engine=engine)
    for x in make_inputs():
        check(module(x), model(x))
    assert case.operator in list_ops(module.function)
    assert module.opaque == {}


@pytest.mark.sample(5)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_sizes_may_be_symbolic(case: Case) -> None:
    model = Layer(case.function)
    x = make_inputs()[0]
    function = xrt.from_torch(model, (x,), dynamic_shapes={"x": {0: "rows"}})
    assert function.inputs[0].type.shape == ("rows", 4)
    module = xrt.XRTModule(function, engine="toy")
    for rows in (2, 5, 7):
        x = torch.randn(rows, 4)
        results = module(x.numpy())
        results = results if isinstance(results, tuple) else (results,)
        check([torch.from_numpy(result) for result in results], model(x))


@pytest.mark.sample(8)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_compiled_module_gives_what_it_gives_in_pytorch(case: Case, dynamic: bool) -> None:
    model = Layer(case.function)
    compiled = torch.compile(model, backend="xrt", dynamic=dynamic, fullgraph=True, options={"engine": "toy"})
    with torch.no_grad():
        for x in make_inputs():
            check(compiled(x), model(x))


@pytest.mark.parametrize("case", CASES[:1] + CASES[4:5] + CASES[8:9], ids=lambda case: case.name)
def test_bodies_read_the_parameters_of_the_module_by_its_names(case: Case) -> None:
    model = Layer(case.function)
    function = xrt.from_torch(model, (make_inputs()[0],))
    assert function.constants["layer.weight"].array.ctypes.data == model.layer.weight.data_ptr()


def test_checkpointed_parts_and_transforms_are_computed_in_place() -> None:
    def function(self: Layer, x: torch.Tensor) -> Any:
        y = torch.utils.checkpoint.checkpoint(self.layer, x, use_reentrant=False)
        return torch.func.vmap(lambda row: row * self.offset + row.sum())(y)

    model = Layer(function)
    module = xrt.XRTModule(model, engine="toy")
    x = make_inputs()[0]
    check(module(x), model(x))
    assert list_ops(module.function) <= {"Gemm", "Mul", "ReduceSum", "Add", "Reshape", "Unsqueeze"}
