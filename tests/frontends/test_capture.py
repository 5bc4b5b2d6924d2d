"""A module of PyTorch as a Function: parameters, names, symbolic sizes, updated buffers, and each change that is seen."""

from __future__ import annotations

import copy
import math
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import xrt
from tests.frontends.cases import Call
from xrt.cache import CompileCache
from xrt.cache.memory import MIN_BYTES
from xrt.errors import InputError, ModelError, OptionError, SignatureWarning
from xrt.frontends.torch.capture import capture
from xrt.frontends.torch.rules import RULES
from xrt.graph.node import OpaqueCall


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.inner = nn.Sequential(nn.GELU(), nn.Linear(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(self.first(x))


def run(function: Any, *arrays: Any) -> Any:
    return xrt.XRTModule(function, engine="toy", strict=True)(*arrays)


def test_constants_are_the_memory_of_the_parameters() -> None:
    module = Block()
    function = xrt.from_torch(module, (torch.randn(2, 4),))
    assert set(function.constants) == {"first.weight", "first.bias", "inner.1.weight", "inner.1.bias"}
    for name, parameter in module.named_parameters():
        assert function.constants[name].array.ctypes.data == parameter.data_ptr()


def test_tied_parameters_are_one_constant() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].weight = module[0].weight
    function = xrt.from_torch(module, (torch.randn(2, 4),))
    assert set(function.constants) == {"0.weight", "0.bias", "1.bias"}


def test_nodes_are_named_after_their_modules_so_that_pins_find_them() -> None:
    module = Block()
    function = xrt.from_torch(module, (torch.randn(2, 4),))
    assert [node.name for node in function.nodes] == ["first/gemm_1", "inner.0/gelu_1", "inner.1/gemm_1", "add_1"]
    compiled = xrt.XRTModule(function, engine=["toy", "ort"], pins=["name:inner.*=ort"], minimum_nodes=1)
    engines = {name: launch.engine for launch in compiled.plan.launches for name in launch.nodes}
    assert engines["inner.0/gelu_1"] == engines["inner.1/gemm_1"] == "ort"
    assert engines["first/gemm_1"] == "toy"


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3, 7])
def test_a_text_is_the_name_of_a_dimension(batch: int) -> None:
    module = Block()
    function = xrt.from_torch(module, (torch.randn(2, 5, 4),), dynamic_shapes=({0: "batch", 1: "length"},))
    assert str(function.inputs[0]) == "x: float32[batch,length,4]"
    x = torch.randn(batch, 6, 4)
    np.testing.assert_allclose(run(function, x.numpy()), module(x).detach().numpy(), rtol=1e-5, atol=1e-6)


SHAPES = [
    lambda x: x.view(x.shape[0] * 2, -1),
    lambda x: x.reshape(x.shape[0], x.shape[1] // 2, 2),
    lambda x: torch.arange(x.shape[1]) + x,
    lambda x: x.new_zeros(x.shape[1], x.shape[0] + 1),
    lambda x: x[:, : x.shape[1] - 1] * x.shape[0],
    lambda x: x.sum() / x.shape[1],
    lambda x: x.repeat(1, x.shape[0]),
    lambda x: torch.cat([x, x], 1),
    lambda x: nn.functional.scaled_dot_product_attention(x.mT[None], x.mT[None], x.mT[None], is_causal=True, scale=0.5),
    lambda x: x.unsqueeze(1).expand(-1, x.shape[0], -1).mean(2),
    lambda x: nn.functional.cosine_similarity(x, x.flip(1)),
    lambda x: torch.full_like(x, x.shape[0] - 2),
    lambda x: torch.ones(x.shape[0] ** 2) * x.sum(),
]


@pytest.mark.slow
@pytest.mark.parametrize("function", SHAPES)
def test_numbers_that_follow_from_symbolic_sizes_are_computed(function: Any) -> None:
    axes = {0: torch.export.Dim("rows", min=2, max=64), 1: 2 * torch.export.Dim("half", min=2, max=64)}
    captured = xrt.from_torch(Call(function), (torch.randn(4, 6),), dynamic_shapes={"tensors": (axes,)})
    assert "Pow" not in {node.op for node in captured.nodes}
    x = torch.randn(6, 8)
    np.testing.assert_allclose(run(captured, x.numpy()), function(x).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_what_depends_on_data_is_computed() -> None:
    captured = xrt.from_torch(Call(lambda x: torch.ones(x.nonzero().shape[0]) * x.sum()), (torch.tensor([1.0, 0.0, 2.0]),))
    np.testing.assert_array_equal(run(captured, np.array([1, 1, 3], "float32")), np.full(3, 5, "float32"))


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(x)
        return self.count * 2


@pytest.mark.slow
def test_a_buffer_that_is_updated_is_an_input_with_an_alias() -> None:
    captured = capture(Counter(), (torch.ones(2),))
    assert captured.buffers == ("count",)
    assert [value.name for value in captured.function.inputs] == ["x", "count"]
    count = np.zeros(2, "float32")
    module = xrt.XRTModule(captured.function, engine="toy")
    for step in (1, 2):
        results = module(np.ones(2, "float32"), count)
        np.testing.assert_array_equal(results[captured.leaves[0].index], np.full(2, 2 * step))
        np.testing.assert_array_equal(count, np.full(2, step))


def test_outputs_are_named_after_keys_and_fields() -> None:
    captured = capture(Call(lambda x: {"a": x + 1, "b": (x * 2, 3, None), "x": x}), (torch.ones(2),))
    assert [value.name for value in captured.function.outputs] == ["a", "b.0"]
    assert [(leaf.kind, leaf.index, leaf.value) for leaf in captured.leaves] == [
        ("output", 0, None), ("output", 1, None), ("value", 0, 3), ("value", 0, None), ("input", 0, None),
    ]  # fmt: skip


@pytest.mark.slow
def test_an_operator_without_a_rule_is_an_opaque_node_with_its_reason() -> None:
    captured = capture(Call(lambda x: torch.linalg.svd(x)[1] + torch.special.i0(x)), (torch.eye(3),))
    (node,) = [node for node in captured.function.nodes if node.op_type == "aten__linalg_svd_default"]
    call = OpaqueCall.read(node)
    assert call.operator == "aten::_linalg_svd.default"
    assert call.reason == "the operator has no ONNX form here"
    assert [bool(name) for name in node.outputs] == [False, True, False]
    assert "aten._linalg_svd.default" in captured.opaque


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_a_recurrent_layer_without_a_rule_is_not_unrolled_over_time() -> None:
    layer, x = nn.LSTM(3, 4, proj_size=2), torch.randn(5, 2, 3)
    function = xrt.from_torch(layer, (x,))
    assert [node.op_type for node in function.nodes if node.domain] == ["aten_lstm_input"]
    wanted, (states, cells) = layer(x)
    for result, tensor in zip(xrt.XRTModule(function, engine="torch")(x.numpy()), (wanted, states, cells), strict=True):
        np.testing.assert_allclose(result, tensor.detach().numpy(), rtol=1e-5, atol=1e-6)


def fail(*_: Any) -> Any:
    raise KeyError("planted")


@pytest.mark.parametrize(
    ("rule", "reason"),
    [(fail, r"its rule fails for these arguments \(KeyError: 'planted'\)"), (lambda _, x: x, "its rule gives float32")],
)
def test_what_a_rule_gets_wrong_is_an_opaque_node(monkeypatch: pytest.MonkeyPatch, rule: Any, reason: str) -> None:
    monkeypatch.setitem(RULES, "aten.max.default", rule)
    captured = capture(Call(torch.max), (torch.ones(2, 3),))
    assert re.match(reason, captured.opaque["aten.max.default"])
    assert [node.op for node in captured.function.nodes] == ["aten.aten_max_default"]


@pytest.mark.slow
def test_a_tensor_that_is_not_dense_is_refused() -> None:
    with pytest.raises(ModelError, match=r"computes with a tensor of layout torch\.sparse_coo; only dense tensors are lowered"):
        xrt.from_torch(Call(lambda x: x.to_sparse().sum()), (torch.eye(3),))


def test_dropout_in_training_mode_is_a_dropout() -> None:
    captured = capture(nn.Dropout(0.25).train(), (torch.ones(2),))
    assert [node.op for node in captured.function.nodes] == ["Dropout"] and not captured.opaque
    assert [node.op for node in capture(nn.Dropout().eval(), (torch.ones(2),)).function.nodes] == ["Identity"]


def test_what_cannot_be_exported_is_refused_with_the_reason() -> None:
    with pytest.raises(
        ModelError, match=r"Could not guard on data-dependent expression .*; write it with torch.cond, or run it by"
    ):
        xrt.from_torch(Call(lambda x: x if x.sum() > 0 else -x), (torch.ones(2),))


def test_without_pytorch_the_function_says_what_to_install() -> None:
    lines = ["import sys", "sys.modules['torch'] = None", "import xrt"]
    lines += ["try:", "    xrt.from_torch(1, ())", "except xrt.XRTError as e:", "    print(e)"]
    completed = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert completed.stdout.startswith("xrt.from_torch needs PyTorch, which cannot be imported (")
    assert completed.stdout.strip().endswith("pip install 'xrt-engine[torch]'")


def parametrize(model: nn.Sequential) -> None:
    nn.utils.parametrizations.weight_norm(model[0])
    with torch.no_grad():
        model[0].parametrizations.weight.original0.mul_(3)


CHANGES: dict[str, Callable[[Any], object]] = {
    "another weight": lambda model: setattr(model[0], "weight", nn.Parameter(torch.ones(4, 4))),
    "another module": lambda model: model.__setitem__(1, nn.Sigmoid()),
    "loaded": lambda model: model.load_state_dict({k: torch.ones_like(v) for k, v in model.state_dict().items()}, assign=True),
    "parametrized": parametrize,
    "data that are set": lambda model: setattr(model[0].weight, "data", torch.ones(4, 4)),
    "another buffer": lambda model: setattr(model[2], "running_mean", torch.ones(4)),
    "a part in training": lambda model: model[2].train(),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_module_is_captured_again(change: Callable[[Any], object]) -> None:
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
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: xrt.XRTModule(Block(), engine="toy")(torch.randn(2, 4)).shape, range(4)))
    assert results == [(2, 4)] * 4


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
    module = xrt.XRTModule(Call(lambda x, k: x * k), engine="toy", cache=CompileCache(max_bytes=2 * MIN_BYTES))
    x = torch.ones(2)
    module(x, 1)
    module(x, 2)
    module(x, 1)
    with pytest.warns(SignatureWarning, match="max_bytes"):
        module(x, 3)
    assert "2 captures" in repr(module)
    saved = module.function
    module(x, 1)
    assert module.function is not saved
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
