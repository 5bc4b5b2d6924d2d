"""XRT as a backend of torch.compile: results, graph breaks, sizes, updates, gradients and options."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from tests.frontends.cases import Call, compiled, write
from tests.frontends.test_capture import Block, Counter
from xrt.cache import CompileCache
from xrt.errors import FallbackWarning, OptionError, PlanError
from xrt.frontends.torch import backend
from xrt.frontends.torch.backend import xrt_backend
from xrt.graph import Function

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_a_model_gives_what_it_gives_without(context: Any, functions: list[Function]) -> None:
    block, x = Block(), torch.randn(2, 4)
    with context():
        torch.testing.assert_close(compiled(block)(x), block(x))
    assert [len(function.inputs) for function in functions] == [5]
    assert {node.op for node in functions[0].nodes} == {"Gemm", "Gelu", "Add"}


def test_frozen_parameters_are_constants_of_their_own_memory(functions: list[Function]) -> None:
    block, x = Block(), torch.randn(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(block, freeze=True)(x), block(x))
    assert [len(function.inputs) for function in functions] == [1]
    constants = {constant.array.ctypes.data for constant in functions[0].constants.values()}
    assert {parameter.data_ptr() for parameter in block.parameters()} <= constants


@pytest.mark.parametrize(
    "read",
    [
        lambda x: (x + 1).t().as_strided((6,), (1,)) * 2,
        lambda x: (x.t() + 1).as_strided((6,), (1,)) * 2,
        lambda x: (x + 1)[:, 1:].as_strided((3,), (1,)) * 2,
    ],
    ids=["a transposed value", "a value of a transposed one", "a part"],
)
def test_what_reads_the_memory_around_a_tensor_runs_in_pytorch(read: Callable[..., Any]) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    with torch.no_grad(), pytest.warns(FallbackWarning, match="reads the memory around a tensor"):
        torch.testing.assert_close(compiled(read, engine="torch")(x), read(x))


@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_layers_have_their_onnx_form(bias: bool, functions: list[Function]) -> None:
    """In evaluation mode AOTAutograd writes an LSTM in an operator of oneDNN per layer and direction."""
    lstm = nn.LSTM(3, 4, 2, bias=bias, batch_first=True, bidirectional=True).eval()
    x, state = torch.randn(2, 5, 3), (torch.randn(4, 2, 4), torch.randn(4, 2, 4))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        torch.testing.assert_close(compiled(lstm, freeze=True)(x, state), lstm(x, state))
    assert [node.op for node in functions[0].nodes].count("LSTM") == 4
    assert not any("rnn" in node.op for node in functions[0].nodes)


class Normal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return self.norm(x) * self.count


def test_frozen_buffers_are_constants_unless_the_graph_writes_to_them(functions: list[Function]) -> None:
    module, x = Normal().eval(), torch.randn(2, 4)
    module.norm.running_mean.fill_(3)
    call = compiled(module, freeze=True)
    with torch.no_grad():
        normal = module.norm(x)
        for count in (1, 2):
            torch.testing.assert_close(call(x), normal * count)
    assert [len(function.inputs) for function in functions] == [2]


class Broken(nn.Module):
    """A layer that is a graph of its own: Dynamo runs one for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        torch._dynamo.graph_break()
        return x.relu()


def test_a_frozen_graph_is_compiled_for_each_module_that_runs_it(functions: list[Function]) -> None:
    layers, x = nn.Sequential(Broken(), Broken(), Broken()), torch.randn(2, 4)
    call = compiled(layers, fullgraph=False, freeze=True)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(call(x), layers(x))
        assert len(functions) == 4  # three of the layers, and one of Relu
        layers[1].layer.weight.fill_(1)
        layers[2].layer.bias = nn.Parameter(torch.ones(4))
        torch.testing.assert_close(call(x), layers(x))
    assert len(functions) == 6


def test_a_frozen_graph_with_parameters_that_change_takes_them_as_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "MAX_VARIANTS", 2)
    linear, x = nn.Linear(2, 2), torch.ones(1, 2)
    call = compiled(linear, freeze=True)
    with torch.no_grad():
        for value in (1, 2):
            call(x)
            linear.weight.fill_(value)
        with pytest.warns(FallbackWarning, match="the parameters of a frozen graph of torch.compile were replaced or written"):
            torch.testing.assert_close(call(x), linear(x))
        linear.weight.fill_(3)
        torch.testing.assert_close(call(x), linear(x))


def test_four_batches_are_two_graphs(functions: list[Function]) -> None:
    block = Block()
    call = compiled(block)
    with torch.no_grad():
        for size in (4, 5, 6, 7):
            x = torch.randn(size, 4)
            torch.testing.assert_close(call(x), block(x))
    assert len(functions) == 2


def test_calls_of_threads_with_other_sizes_compile_nothing(functions: list[Function]) -> None:
    block, cache = Block(), CompileCache()
    call = compiled(lambda x, y: block(x + y).softmax(-1).mT @ y, dynamic=True, cache=cache)

    def compute_difference(rows: int) -> float:
        with torch.no_grad():
            x, y = torch.randn(rows, 4), torch.randn(rows, 4)
            return float((call(x, y) - block(x + y).softmax(-1).mT @ y).abs().max())

    results = [compute_difference(rows) for rows in (4, 5, 6)]
    before = len(functions), cache.statistics.misses
    with ThreadPoolExecutor(4) as pool:
        results += pool.map(compute_difference, [2 + number % 13 for number in range(100)])
    assert max(results) < 1e-5
    assert (len(functions), cache.statistics.misses) == before


@pytest.mark.parametrize("dynamic", [True, False])
def test_sizes_may_be_numbers_of_the_graph(dynamic: bool) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return torch.arange(x.shape[0]) * x.sum() + torch.zeros(x.shape[1] * 2)[0], x.shape[0] * 3

    call = compiled(function, dynamic=dynamic)
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(call(x), function(x))


def test_updates_in_place_and_views() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x.add_(1)
        return x, x.view(-1), x * 2

    x, y = torch.zeros(2, 2), torch.zeros(2, 2)
    results, expected = compiled(function)(x), function(y)
    torch.testing.assert_close(results, expected)
    torch.testing.assert_close(x, y)
    assert results[0] is x
    assert results[1].data_ptr() == x.data_ptr()
    counter = Counter()
    call = compiled(counter)
    assert [call(torch.ones(2)).tolist() for _ in range(2)] == [[2, 2], [4, 4]]
    assert counter.count.tolist() == [2, 2]


VIEWS: dict[str, Callable[..., Any]] = {
    "transposed": lambda x: (x + 1).t(),
    "several": lambda x: (y := x + 1, y.clone(), y.t(), y[:, ::2], y.expand(3, *y.shape), y[1], *y.chunk(2), y.view(torch.int32)),
    "of the input": lambda x: (x.t(), x[1:], x.t() + 0),
    "in another order": lambda x: (
        (y := x.view(2, 3, 2, 2).to(memory_format=torch.channels_last) * 2),
        y.permute(0, 2, 3, 1),
        y.flatten(),
    ),
}


@pytest.mark.parametrize("function", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_outputs_have_the_strides_and_the_shared_memory_of_eager(function: Any, dynamic: bool) -> None:
    x = torch.randn(4, 6)
    results, expected = compiled(function, dynamic=dynamic)(x), function(x)
    torch.testing.assert_close(results, expected, check_stride=True)
    for result, wanted in ((results, expected),) if isinstance(results, torch.Tensor) else zip(results, expected, strict=True):
        assert result.storage_offset() == wanted.storage_offset()
    if isinstance(results, tuple):
        starts = [[item.untyped_storage().data_ptr() for item in some] for some in (results, expected)]
        assert [[item == other for other in starts[0]] for item in starts[0]] == [[a == b for b in starts[1]] for a in starts[1]]


@pytest.mark.parametrize(
    "view",
    [
        lambda x, k: x[k],
        lambda x, k: x[k:],
        lambda x, k: (x[k:].t(), x[:, 1], k + 1),
        lambda x, k: x.narrow(0, k, 2),
        lambda x, k: x[k + 1 :],
        lambda x, k: [(y := x * 2)[k:], y[:k], y],
    ],
    ids=["row", "rows", "several", "narrow", "computed", "of one value"],
)
@pytest.mark.parametrize("freeze", [False, True])
def test_a_view_that_a_number_of_a_tensor_chooses_is_the_part_that_eager_gives(view: Any, freeze: bool) -> None:
    def choose(x: torch.Tensor, i: torch.Tensor) -> Any:
        k = i.item()
        torch._check(k >= 0)
        torch._check(k + 2 <= x.shape[0])
        return view(x, k)

    fast = compiled(choose, freeze=freeze)
    for index in (2, 1, 0):
        memories = []
        for run in (choose, fast):
            x = torch.arange(20.0).reshape(5, 4).requires_grad_()
            with torch._dynamo.config.patch(capture_scalar_outputs=True):
                parts = pytree.tree_leaves(run(x, torch.tensor(index)))
                first = next(item for item in parts if isinstance(item, torch.Tensor))
                first.sum().backward()
                with torch.no_grad():
                    again = pytree.tree_leaves(run(x.detach(), torch.tensor(index)))
                    again[0].fill_(-1)
            memories.append([x.detach(), x.grad, *parts, *again])
            assert [item.storage_offset() for item in again if isinstance(item, torch.Tensor)] == [
                item.storage_offset() for item in memories[0][2 + len(parts) :] if isinstance(item, torch.Tensor)
            ]
        torch.testing.assert_close(memories[1], memories[0])


def test_checks_that_pytorch_keeps_in_order_are_no_inputs() -> None:
    """AOTAutograd adds a token to the graph for them, which is None at run time."""
    x = torch.eye(3) * 2 + torch.arange(9.0).reshape(3, 3) / 9
    x = (x + x.mT).requires_grad_()
    for function in (torch.linalg.inv, torch.linalg.cholesky, lambda a: torch.linalg.solve(a, a[0])):
        with warnings.catch_warnings():
            warnings.simplefilter("error", FallbackWarning)
            results = [run(x) for run in (function, compiled(function, engine=["toy", "torch"]))]
        gradients = [torch.autograd.grad(result.sum(), x)[0] for result in results]
        torch.testing.assert_close(results[1], results[0])
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)


def test_an_operator_that_the_engine_torch_declines_runs_in_pytorch() -> None:
    x = torch.arange(3.0)
    fast = compiled(torch.hash_tensor)
    with pytest.warns(FallbackWarning, match=r"a graph of torch\.compile runs in PyTorch: no engine of the list"):
        assert torch.equal(fast(x), torch.hash_tensor(x))
    assert torch.equal(fast(x + 1), torch.hash_tensor(x + 1))
    with pytest.raises(PlanError, match="no engine of the list"):
        compiled(lambda x: torch.hash_tensor(x), strict=True)(x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_batch_statistics_of_half_precision_are_computed_in_float32(dtype: torch.dtype) -> None:
    tensors = [item.to(dtype) for item in (torch.randn(4, 3, 5), *torch.rand(4, 3))]

    def normalize(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> Any:
        functional = torch.ops.aten._batch_norm_with_update_functional(x, weight, bias, mean, variance, 0.1, 1e-5)
        return nn.functional.batch_norm(x, None, None, weight, bias, True), functional[0], functional[1]

    torch.testing.assert_close(compiled(normalize, strict=True)(*tensors), normalize(*tensors), rtol=1e-2, atol=1e-2)


def test_unpooling_keeps_the_memory_format() -> None:
    x = torch.randn(2, 3, 4, 6).contiguous(memory_format=torch.channels_last)
    pooled, indices = nn.functional.max_pool2d(x, 2, return_indices=True)
    result, expected = (run(pooled, indices, 2) for run in (compiled(nn.functional.max_unpool2d), nn.functional.max_unpool2d))
    torch.testing.assert_close(result, expected)
    assert result.stride() == expected.stride()


def test_code_after_a_graph_break_writes_through_a_view() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        z = y.t()
        torch._dynamo.graph_break()
        y.mul_(2)
        return z

    x = torch.randn(4, 6)
    torch.testing.assert_close(compiled(function, fullgraph=False)(x), function(x), check_stride=True)


def test_what_is_kept_for_the_backward_graph_has_the_strides_that_it_was_traced_with() -> None:
    results: list[tuple[int, ...]] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: results.append(x.stride()) or x, lambda x: x):
        compiled(lambda x: x.t().sigmoid())(torch.rand(3, 4, requires_grad=True))
    assert results == [(1, 4)]


def test_autocast_is_part_of_the_graph() -> None:
    linear, x = nn.Linear(4, 4), torch.randn(2, 4)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected, result = linear(x), compiled(linear)(x)
    assert result.dtype is expected.dtype is torch.bfloat16
    torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2)


class Subclass(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_subclass_of_tensor_may_be_an_input() -> None:
    linear, x = nn.Linear(4, 4), torch.randn(2, 4)
    with torch.no_grad():
        result = compiled(linear)(x.as_subclass(Subclass))
        torch.testing.assert_close(result.as_subclass(torch.Tensor), linear(x))


class Rows(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.flatten(2))  # type: ignore[no-any-return]  # untyped there


@pytest.mark.parametrize(
    ("module", "dynamic"),
    [
        (nn.InstanceNorm2d(3, affine=True), False),
        (nn.InstanceNorm2d(3), True),
        (nn.BatchNorm2d(3), False),
        (Rows(nn.TransformerEncoderLayer(20, 4, 8, batch_first=True)).eval(), True),
        (Rows(nn.TransformerEncoderLayer(20, 2, 8, batch_first=True, norm_first=True, activation="gelu")).eval(), False),
        (nn.Unfold(2), True),
        (Call(lambda x: nn.functional.pad(x, (x.shape[1] - 1, 0, 1, x.shape[0]), value=2.0)), True),
        (Call(lambda x: (nn.functional.huber_loss(write(x), x), nn.functional.softshrink(x))), False),
        (Call(lambda x: x.diag_embed().diagonal(dim1=-2, dim2=-1).std(0)), False),
    ],
)
def test_what_only_graphs_of_aot_have_is_lowered(module: nn.Module, dynamic: bool, functions: list[Function]) -> None:
    x, twin = torch.randn(2, 3, 4, 5), copy.deepcopy(module)
    with torch.no_grad():
        torch.testing.assert_close(compiled(module, dynamic=dynamic)(x), twin(x))
    for name, buffer in module.named_buffers():
        torch.testing.assert_close(buffer, twin.get_buffer(name))
    assert {node.domain for node in functions[0].nodes} == {""}


def test_a_graph_that_cannot_be_lowered_runs_in_pytorch() -> None:
    warnings.filterwarnings("ignore", message="ComplexHalf support is experimental")
    x = torch.ones(2, dtype=torch.complex32)
    with pytest.warns(
        FallbackWarning, match=r"a graph of torch.compile runs in PyTorch: torch.complex32 has no ONNX element type"
    ):
        assert compiled(torch.view_as_real)(x).tolist() == [[1, 0], [1, 0]]


@pytest.mark.parametrize("wrap", [lambda model: model, lambda model: lambda x: model(x)], ids=["module", "function"])
def test_nodes_have_the_names_that_the_module_gives_them(wrap: Any, functions: list[Function]) -> None:
    with torch.no_grad():
        compiled(wrap(Block()))(torch.randn(2, 4))
    assert {"first/gemm_1", "inner.0/gelu_1", "inner.1/gemm_1"} <= {node.name for node in functions[0].nodes}


def test_a_float_of_python_may_come_as_a_tensor_of_another_type() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * random.uniform(0, 1)

    random.seed(0)
    expected = function(torch.ones(2))
    random.seed(0)
    torch.testing.assert_close(compiled(function)(torch.ones(2)), expected)


def test_unknown_options_and_modes_are_refused() -> None:
    with pytest.raises(Exception, match="thread"):
        compiled(Block(), thread=1)(torch.ones(2, 4))
    with pytest.raises(OptionError, match="the backend 'xrt' has no modes"):
        xrt_backend(None, [], mode="max-autotune")  # type: ignore[arg-type]  # refused before it is looked at
    with pytest.raises(OptionError, match=r"the backend 'xrt' has no option 'freez'. Did you mean 'freeze'\? It has: .*freeze"):
        xrt_backend(None, [], options={"freez": True})  # type: ignore[arg-type]  # refused before it is looked at
    with pytest.raises(OptionError, match="freeze must be True or False; got 'no'"):
        xrt_backend(None, [], options={"freeze": "no"})  # type: ignore[arg-type]  # refused before it is looked at
