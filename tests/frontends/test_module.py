"""XRTModule of a module of PyTorch: nested inputs and outputs, no copies, changed parameters and sizes."""

from __future__ import annotations

import copy
import pickle
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import xrt
from tests.frontends.cases import Call
from tests.frontends.test_capture import Block, Counter
from xrt.builder import Builder
from xrt.errors import FallbackWarning, InputError, ModelError, OptionError, PlanError, UnknownEngine
from xrt.graph import DType, TensorType


def test_tensors_in_give_tensors_and_arrays_in_give_arrays() -> None:
    block = Block()
    module = xrt.XRTModule(block, engine="toy")
    x = torch.randn(2, 4)
    result = module(x)
    assert isinstance(module, xrt.XRTModule)
    assert isinstance(result, torch.Tensor)
    assert not result.requires_grad
    torch.testing.assert_close(result, block(x).detach())
    array = module(x.numpy())
    assert isinstance(array, np.ndarray)
    np.testing.assert_array_equal(array, result.numpy())


@dataclass
class Pair:
    first: torch.Tensor
    second: Any


def test_inputs_and_outputs_may_be_nested() -> None:
    def function(pair: Pair, more: dict[str, Any]) -> Any:
        return {"sum": pair.first + pair.second, "rest": [more["x"] * more["factor"], (pair.first, "text", None)]}

    x, y = torch.randn(2), torch.randn(2)
    module = xrt.XRTModule(Call(function), engine="toy")
    result = module(Pair(x, y), {"x": x, "factor": 3})
    torch.testing.assert_close(result["sum"], x + y)
    torch.testing.assert_close(result["rest"][0], x * 3)
    assert result["rest"][1][0] is x
    assert result["rest"][1][1:] == ("text", None)
    pair = xrt.XRTModule(Call(lambda x: Pair(x * 2, {"a": x + 1})), engine="toy")(torch.ones(2))
    assert isinstance(pair, Pair)
    assert pair.first.tolist() == pair.second["a"].tolist() == [2, 2]
    torch.testing.assert_close(module(Pair(x, y), {"x": x, "factor": 4})["rest"][0], x * 4)


@pytest.mark.slow
def test_keywords_are_those_of_the_module() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, *, scale: torch.Tensor | None = None, negate: bool = False) -> torch.Tensor:
            y = x if scale is None else x * scale
            return -y if negate else y + 0

    module = xrt.XRTModule(Scaled(), engine="toy")
    x = torch.ones(2)
    assert module(x).tolist() == [1, 1]
    assert module(x, scale=torch.tensor(2.0)).tolist() == [2, 2]
    assert module(x, negate=True).tolist() == [-1, -1]
    assert module(x=x, scale=x).tolist() == [1, 1]


@pytest.mark.slow
def test_a_third_size_needs_no_capture() -> None:
    block = Block()
    module = xrt.XRTModule(block, engine="toy")
    functions = []
    for size in (3, 4, 5, 7, 1):
        x = torch.randn(size, 4)
        torch.testing.assert_close(module(x), block(x).detach())
        functions.append(module.function)
    assert functions[1] is functions[2] is functions[3]
    assert [str(f.inputs[0].type.shape[0]).isdigit() for f in functions] == [True, False, False, False, True]


@pytest.mark.slow
def test_a_parameter_that_is_written_to_is_seen() -> None:
    linear = nn.Linear(2, 2)
    module = xrt.XRTModule(linear, engine="toy")
    x = torch.ones(1, 2)
    module(x)
    with torch.no_grad():
        linear.weight.mul_(2)
    torch.testing.assert_close(module(x), linear(x).detach())
    linear.load_state_dict({"weight": torch.zeros(2, 2), "bias": torch.ones(2)})
    assert module(x).tolist() == [[1, 1]]
    linear.weight.data.fill_(1)
    module.recapture()
    assert module(x).tolist() == [[3, 3]]


@pytest.mark.slow
def test_buffers_and_inputs_are_updated_in_place() -> None:
    counter = Counter()
    module = xrt.XRTModule(counter, engine="toy")
    for step in (1, 2, 3):
        assert module(torch.ones(2)).tolist() == [2 * step] * 2
        assert counter.count.tolist() == [step] * 2
    x = torch.ones(2)
    xrt.XRTModule(Call(lambda x: x.add_(1)), engine="toy")(x)
    assert x.tolist() == [2, 2]


def test_results_do_not_share_memory_with_a_later_call() -> None:
    module = xrt.XRTModule(nn.ReLU(), engine="ort")
    first = module(torch.ones(3))
    assert module(torch.zeros(3)).tolist() == [0, 0, 0]
    assert first.tolist() == [1, 1, 1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_narrow_types_pass_without_numpy_knowing_them(dtype: torch.dtype) -> None:
    linear = nn.Linear(4, 3).to(dtype)
    x = torch.randn(2, 4, dtype=dtype)
    result = xrt.XRTModule(linear, engine="toy")(x)
    assert result.dtype is dtype
    torch.testing.assert_close(result, linear(x).detach(), rtol=1e-2, atol=1e-2)


def test_conjugate_and_negative_views_are_read_as_what_they_mean() -> None:
    x = torch.tensor([1 + 2j, 3 - 1j]).conj().imag
    assert x.is_neg()
    assert xrt.XRTModule(Call(lambda x: x * 1), engine="toy")(x).tolist() == [-2, 1]


def test_the_plan_is_that_of_the_last_call() -> None:
    module = xrt.XRTModule(Block(), engine=["ort", "toy"])
    with pytest.raises(InputError, match=r"a module of PyTorch is captured for its inputs; call it, or its compile"):
        _ = module.plan
    x = torch.randn(2, 4)
    plan = module.compile(x)
    assert str(module.plan) == str(plan) == str(module.plan_for(x))
    assert [value.name for value in module.inputs] == ["x"]
    assert [value.name for value in module.outputs] == ["output"]
    assert module.engines[0] == "ort"
    assert "ort" in str(module.explain())
    assert bool(module.verify(x))
    assert module.opaque == {}
    assert repr(module) == "<XRTModule of Block, 1 capture>"


def test_a_bundle_takes_the_tensors_by_name(tmp_path: Any) -> None:
    block, x = Block(), torch.randn(2, 4)
    xrt.XRTModule(block, engine="ort").save(tmp_path / "block.xrt", x)
    np.testing.assert_allclose(xrt.load(tmp_path / "block.xrt")(x=x.numpy()), block(x).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_copies() -> None:
    module = xrt.XRTModule(Block(), engine="toy")
    assert copy.copy(module).model is module.model
    assert copy.deepcopy(module).model is not module.model
    with pytest.raises(TypeError, match="pickle the module, and make an XRTModule of it there"):
        pickle.dumps(module)


def test_what_cannot_be_is_refused() -> None:
    module = xrt.XRTModule(Block(), engine="toy")
    with pytest.raises(InputError, match="an input requires a gradient, and only the forward pass is computed"):
        module(torch.randn(2, 4, requires_grad=True))
    with torch.no_grad():
        module(torch.randn(2, 4, requires_grad=True))
    with pytest.raises(OptionError):
        xrt.XRTModule(Block(), engine="toy", thread=1)
    with pytest.raises(InputError, match=r"bind\(\) needs a flat list of arrays"):
        module.bind(torch.randn(2, 4))
    module.close()
    with pytest.raises(InputError, match="the module is closed"):
        module(torch.randn(2, 4))


@pytest.mark.slow
def test_errors_name_what_was_given() -> None:
    with pytest.raises(ModelError, match=r"Linear is a class; pass an instance: XRTModule\(Linear\(\.\.\.\)\)"):
        xrt.XRTModule(nn.Linear, engine="toy")
    with pytest.raises(InputError, match="forward of Call reads the key 'b', which no input has; pass it"):
        xrt.XRTModule(Call(lambda d: d["b"]), engine="toy")({"a": torch.ones(2)})
    with pytest.raises(UnknownEngine, match="no engine is named 'orx'"):
        xrt.XRTModule(nn.Linear(4, 4), engine="orx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(nn.Linear(4, 4), torch.ones(2, 4))
    with pytest.raises(ModelError, match=r"a module of torch\.jit cannot be captured; pass the module that it was scripted or"):
        xrt.XRTModule(traced, engine="toy")
    with pytest.raises(AttributeError, match=r"an XRTModule of Linear has no attribute 'eval'; its module .* one: \.model\.eval"):
        xrt.XRTModule(nn.Linear(4, 4), engine="toy").eval()


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ((), r"forward of Linear is called as \(input: .*Tensor\) -> .*Tensor: missing a required argument: 'input'"),
        ((torch.ones(2, 4), 1), "too many positional arguments"),
        ((torch.ones(2, 4).to_sparse(),), r"a tensor of layout sparse_coo was given; .*: pass tensor.to_dense\(\)"),
        ((torch.ones(2, 4, device="meta"),), r"a tensor on meta was given; .* run on the CPU: pass tensor.cpu\(\)"),
        ((torch.ones(2, 4, dtype=torch.int64),), "input 'input' is int64, and 'weight' is float32: linear of"),
    ],
)
def test_inputs_that_the_module_does_not_take_are_refused(inputs: Any, text: str) -> None:
    with pytest.raises(InputError, match=text):
        xrt.XRTModule(nn.Linear(4, 4), engine="toy")(*inputs)


def test_a_capture_for_several_sizes_leaves_no_mark_on_the_inputs() -> None:
    module = xrt.XRTModule(nn.Linear(4, 4), engine="toy")
    inputs = torch.ones(2, 4), torch.ones(3, 4)
    for x in inputs:
        module(x)
    assert [name for x in inputs for name in vars(x) if "dynamic" in name] == []


def test_a_function_becomes_a_module_of_pytorch_with_its_own_memory() -> None:
    block, x = Block(), torch.randn(2, 4)
    back = xrt.to_torch(xrt.from_torch(block, (x,)), engine="toy")
    assert isinstance(back, nn.Module)
    torch.testing.assert_close(back(x), block(x).detach())
    pointers = {name: tensor.data_ptr() for name, tensor in block.state_dict().items()}
    assert {name: tensor.data_ptr() for name, tensor in back.state_dict().items()} == pointers
    with pytest.raises(ModelError, match="the constants of a Function do not change; load them into the module"):
        back.load_state_dict(block.state_dict())


class Twice(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.inner(x)) * 2


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_function_that_became_a_module_is_captured_with_its_nodes(dynamic: bool) -> None:
    block, x = Block(), torch.randn(3, 4)
    shapes = ({0: "n"},) if dynamic else None
    back = xrt.to_torch(xrt.from_torch(block, (x,), dynamic_shapes=shapes), engine="toy")
    again = xrt.from_torch(Twice(back), (x,), dynamic_shapes=shapes)
    assert [node.op for node in again.nodes].count("Gelu") == 2
    x = torch.randn(5 if dynamic else 3, 4)
    expected = Twice(block)(x).detach()
    np.testing.assert_allclose(xrt.XRTModule(again, engine="toy")(x.numpy()), expected.numpy(), rtol=1e-5, atol=1e-6)
    torch._dynamo.reset()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of PyTorch about itself
        torch.testing.assert_close(torch.compile(Twice(back), backend="xrt", fullgraph=True)(x), expected)


def test_what_an_xrt_module_runs_becomes_a_module_of_pytorch() -> None:
    block, x = Block(), torch.randn(2, 4)
    module = xrt.XRTModule(xrt.from_torch(block, (x,)), engine="toy")
    torch.testing.assert_close(xrt.to_torch(module)(x), block(x).detach())
    with pytest.raises(OptionError, match="an XRTModule has its engines and options"):
        xrt.to_torch(module, engine="ort")
    with pytest.raises(ModelError, match="the module itself is its attribute `model`"):
        xrt.to_torch(xrt.XRTModule(block, engine="toy"))
    with pytest.raises(ModelError, match="takes a Function or an XRTModule; got a Block"):
        xrt.to_torch(block)


@pytest.mark.slow
def test_the_engine_torch_is_added_for_what_has_no_onnx_form() -> None:
    module = xrt.XRTModule(Call(lambda x: torch.i0(x) + 1), engine="ort")
    x = torch.randn(3)
    torch.testing.assert_close(module(x), torch.i0(x) + 1)
    assert list(module.opaque) == ["aten.i0.default"]
    assert "torch" in module.engines


def test_a_function_may_name_constants_as_pytorch_names_its_own() -> None:
    b = Builder("names")
    x = b.input("x", TensorType(DType.FLOAT32, (2,)))
    names = ("run.weight", "T_destination", "forward")
    with b:
        y = x
        for name in names:
            y = y + b.constant(np.ones(2, "float32"), name)
    b.output(y, "y")
    back = xrt.to_torch(b.function(), engine="toy")
    assert set(back.state_dict()) == set(names)
    assert back(torch.zeros(2)).tolist() == [3, 3]


def test_a_session_needs_state_with_names() -> None:
    with pytest.raises(InputError, match="a session needs named state; make it of xrt"):
        xrt.XRTModule(torch.nn.Linear(2, 2), engine="toy").new_session()


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.first(x)
        if hidden.sum() > 0:
            hidden = hidden * 2
        return {"out": self.second(hidden)}


@pytest.mark.slow
def test_a_module_that_branches_on_data_runs_in_parts() -> None:
    model = Branching().eval()
    module = xrt.XRTModule(model, engine="toy")
    x = torch.randn(3, 4)
    assert module.parts == ()
    with pytest.warns(FallbackWarning, match=r"Branching branches on data and runs in parts, .*; \.parts are their modules"):
        result = module(x)
    for item in (x, -x, torch.randn(5, 4)):
        with torch.no_grad():
            torch.testing.assert_close(module(item), model(item))
    assert len(module.parts) >= 3
    assert {part.engines for part in module.parts} == {("toy",)}
    assert any("Gemm" in str(part.explain()) for part in module.parts)
    assert not result["out"].requires_grad
    array = module(x.numpy())["out"]
    assert isinstance(array, np.ndarray)
    np.testing.assert_allclose(array, result["out"].numpy(), rtol=1e-6)
    with pytest.raises(InputError, match=r"Branching runs in parts, into which torch.compile splits it; ask one of its \.parts"):
        module.explain()
    with pytest.raises(InputError, match=r"ask one of its \.parts"):
        module.compile(x)
    module.close()
    with pytest.raises(InputError, match="the module is closed"):
        module(x)


@pytest.mark.slow
def test_parts_see_a_parameter_that_is_written_to_and_strict_refuses_them() -> None:
    model = Branching().eval()
    module = xrt.XRTModule(model, engine="toy")
    x = torch.randn(3, 4)
    with pytest.warns(FallbackWarning, match="runs in parts"):
        before = module(x)["out"]
    with torch.no_grad():
        model.second.bias.add_(1)
    torch.testing.assert_close(module(x)["out"], before + 1)
    module.recapture()
    assert module.parts == ()
    with pytest.warns(FallbackWarning, match="runs in parts"):
        torch.testing.assert_close(module(x)["out"], before + 1)
    with pytest.raises(ModelError, match="data-dependent"):
        xrt.XRTModule(model, engine="toy", strict=True)(x)


class Updating(nn.Module):
    """Doubles its input, or its buffer, in place."""

    def __init__(self, updates_input: bool) -> None:
        super().__init__()
        self.updates_input = updates_input
        self.register_buffer("state", torch.ones(4))
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        (x if self.updates_input else self.state).mul_(2)
        return self.state + self.weight + x + y


@pytest.mark.parametrize("is_first", [True, False], ids=["first call", "later call"])
def test_inputs_that_share_memory_with_what_a_module_updates_are_refused(is_first: bool) -> None:
    base = torch.ones(8)
    for updates_input in (True, False):
        model = Updating(updates_input).eval()
        module = xrt.XRTModule(model, engine="toy")
        if not is_first:
            module(torch.ones(4), torch.ones(4))
        shared = [(base[:4], base[2:6]), (base[:4], base[:4]), (model.weight.detach(), torch.ones(4))] if updates_input else []
        for x, y in [*shared, (torch.ones(4), model.state)]:
            if updates_input and y is model.state:
                continue
            with pytest.raises(
                InputError, match=r" share memory, and the module writes to one of them in place; pass a copy of one"
            ):
                module(x, y)
        grid = torch.ones(4, 2)
        for x, y in [(base[:4], base[4:]), (grid[:, 0], grid[:, 1])]:  # neighbors, and columns side by side
            expected = copy.deepcopy(model)(x.clone(), y.clone())
            torch.testing.assert_close(module(x, y), expected.detach())
    adding = xrt.XRTModule(Call(lambda x, y: x + y), engine="toy")  # it updates nothing
    torch.testing.assert_close(adding(base[:4], base[2:6]), base[:4] + base[2:6])


def test_buffers_of_one_memory_are_refused_where_one_is_updated() -> None:
    model = Updating(False)
    model.register_buffer("part", model.state[:2])
    with pytest.raises(ModelError, match=r"; 'state' and 'part' share memory: if the module writes to one of them"):
        xrt.XRTModule(model.eval(), engine="toy")(torch.ones(4), torch.ones(4))


def test_a_capture_that_fails_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """BatchNorm without momentum reads a number, so that the first capture fails and the module runs in parts."""
    model = nn.BatchNorm1d(4, momentum=None)
    x = torch.randn(3, 4)
    expected = copy.deepcopy(model)(x).detach()
    with pytest.warns(FallbackWarning, match="runs in parts"):
        torch.testing.assert_close(xrt.XRTModule(model, engine="toy")(x), expected)
    assert capfd.readouterr().err == ""


def test_a_module_with_an_operator_that_no_engine_supports_runs_in_parts() -> None:
    module = xrt.XRTModule(Call(lambda x: (torch.hash_tensor(x), x + 1)), engine="toy")
    x = torch.arange(3.0)
    with pytest.warns(FallbackWarning) as caught:
        number, following = module(x)
    assert [str(warning.message).partition("(")[0] for warning in caught] == [
        "Call has operators that no engine supports ",
        "a graph of torch.compile runs in PyTorch: no engine of the list ",
    ]
    assert torch.equal(number, torch.hash_tensor(x)) and following.tolist() == [1, 2, 3]
    with pytest.raises(PlanError, match="no engine of the list"):
        xrt.XRTModule(Call(torch.hash_tensor), engine="toy", strict=True)(x)
