"""What a model cannot make the torch engine do, and what the caller's settings of torch do not change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.test_torch import opaque
from tests.engines.torch_running import INT, compiled, run, why
from tests.engines.written import function, one, tensor
from xrt import XRTModule
from xrt.errors import CompileRefused, RunFailed
from xrt.graph import Constant, DType, Function, Node, TensorType, read_attributes
from xrt.graph.node import OpaqueCall, Tagged

X = Tagged("tensor", 0)

# ---------------------------------------------------------------------- operators that a model may call


@pytest.fixture
def own() -> Iterator[None]:
    library = torch.library.Library("xrt_test", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.define("twice_(Tensor(a!) x) -> Tensor(a!)")
    library.define("load(Tensor x, str file_name) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    yield
    library._destroy()


@pytest.mark.parametrize(
    ("operator", "reason"),
    [
        ("import_module::__func__.__call__", "this process has no operator"),
        ("load_library::__func__.__call__", "this process has no operator"),
        ("aten::__class__.__call__", "this process has no operator"),
        ("aten::relu.__call__", "this process has no operator"),
        ("aten::relu", "'aten::relu' is not the name of an operator"),
        ("aten::relu.default\n", "'aten::relu.default\\n' is not the name of an operator"),
        ("aten::relu.default.__call__", "'aten::relu.default.__call__' is not the name of an operator"),
        ("aten::from_file.default", "it takes the name of a file"),
        ("aten::save.default", "aten::save.default is an operator"),
        ("aten::relu_.default", "it modifies its arguments"),
        ("aten::relu.out", "it modifies its arguments"),
        ("aten::empty.memory_format", "it takes no tensor"),
        ("aten::_assert_async.default", "it returns something else than tensors and numbers"),
        ("debugprims::load_tensor.default", "those are the operators of aten and prims"),
        ("profiler::_record_function_enter_new.default", "those are the operators of aten and prims"),
        ("quantized::linear.default", "those are the operators of aten and prims"),
        ("xrt_test::twice_.default", "it modifies its arguments"),
        ("xrt_test::load.default", "it takes the name of a file"),
    ],
)
@pytest.mark.usefixtures("own")
def test_operators_that_no_model_may_call(operator: str, reason: str) -> None:
    f = opaque(OpaqueCall(operator, (X,)), tensor(2), outputs=(tensor(2),))
    assert reason in why(f)
    with pytest.raises(CompileRefused):
        compiled(f)


def test_a_name_imports_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_by_a_model.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    call = OpaqueCall("import_module::__func__.__call__", ("", "imported_by_a_model"))
    with pytest.raises(CompileRefused):
        run(opaque(call, tensor(2), outputs=(tensor(2),)), np.ones(2, np.float32))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("operator", ["xrt_test::twice.default", "aten::abs.default", "prims::abs.default"])
@pytest.mark.usefixtures("own")
def test_operators_that_a_model_may_call(operator: str) -> None:
    f = opaque(OpaqueCall(operator, (X,)), tensor(2), outputs=(tensor(2),))
    assert why(f) == ""
    assert run(f, np.array([1, 2], np.float32))[0].tolist() == ([2, 4] if "twice" in operator else [1, 2])


def test_an_operator_of_a_function_may_be_called() -> None:
    torch.library.define("xrt_test_define::twice", "(Tensor x) -> Tensor")
    torch.library.impl("xrt_test_define::twice", "CPU", lambda x: x * 2)
    f = opaque(OpaqueCall("xrt_test_define::twice.default", (X,)), tensor(2), outputs=(tensor(2),))
    assert why(f) == "" and run(f, np.ones(2, np.float32))[0].tolist() == [2, 2]


def test_an_operator_of_a_decorator_may_be_called() -> None:
    @torch.library.custom_op("xrt_test::thrice", mutates_args=())
    def thrice(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    f = opaque(OpaqueCall("xrt_test::thrice.default", (X,)), tensor(2), outputs=(tensor(2),))
    assert why(f) == "" and run(f, np.ones(2, np.float32))[0].tolist() == [3, 3]


def test_a_batch_norm_that_trains_leaves_its_statistics() -> None:
    arguments = (X, None, None, Tagged("tensor", 1), Tagged("tensor", 2), True, 0.5, 1e-5)
    f = opaque(
        OpaqueCall("aten::native_batch_norm.default", arguments), tensor(4, 1), tensor(1), tensor(1), outputs=(tensor(4, 1),)
    )
    mean, variance = np.zeros(1, np.float32), np.ones(1, np.float32)
    run(f, np.array([[1], [2], [3], [6]], np.float32), mean, variance)
    assert (mean.tolist(), variance.tolist()) == ([0], [1])


def test_an_argument_is_a_type_of_torch_and_nothing_else_of_it() -> None:
    call = OpaqueCall("aten::to.dtype", (X, Tagged("dtype", "load")))
    with pytest.raises(RunFailed, match="'load' is no dtype of PyTorch"):
        run(opaque(call, tensor(2), outputs=(tensor(2),)), np.ones(2, np.float32))


@pytest.mark.parametrize(
    ("call", "declared", "shown"),
    [
        (OpaqueCall("aten::to.dtype", (X, Tagged("dtype", "float64"))), tensor(2), r"float64\[2\]"),
        (OpaqueCall("aten::unsqueeze.default", (X, 0)), tensor(2), r"float32\[1,2\]"),
        (OpaqueCall("aten::repeat.default", (X, [2])), tensor(2), r"float32\[4\]"),
        (OpaqueCall("aten::_fft_r2c.default", (X, [0], 0, True)), tensor(2), r"complex64\[2\]"),
        (OpaqueCall("aten::to_sparse.default", (X,)), tensor(2), "a tensor on cpu with layout torch.sparse_coo"),
        (OpaqueCall("aten::to.device", (X, Tagged("device", "meta"), Tagged("dtype", "float32"))), tensor(2), "a tensor on meta"),
    ],
    ids=lambda value: value.operator if isinstance(value, OpaqueCall) else "",
)
def test_a_result_of_another_type_than_declared_fails(call: OpaqueCall, declared: TensorType, shown: str) -> None:
    with pytest.raises(RunFailed, match=f"result 0 of {call.operator} is {shown}"):
        run(opaque(call, tensor(2), outputs=(declared,)), np.ones(2, np.float32))


# ---------------------------------------------------------------------- memory of the engine


def _choice() -> Function:
    then = function(
        Node("Identity", ("k",), ("a",)), inputs={}, outputs={"a": tensor(3)}, constants={"k": np.ones(3, np.float32)}
    )
    constant = Node("Constant", (), ("b",), read_attributes({"value": Constant(np.ones(3, np.float32))}))
    other = function(constant, inputs={}, outputs={"b": tensor(3)})
    node = Node("If", ("c",), ("y",), read_attributes({"then_branch": then, "else_branch": other}))
    return function(node, inputs={"c": tensor(dtype=DType.BOOL)}, outputs={"y": tensor(3)})


def _repetition() -> Function:
    body = function(
        Node("Identity", ("c",), ("d",)),
        Node("Identity", ("k",), ("t",)),
        inputs={"i": tensor(dtype=INT), "c": tensor(dtype=DType.BOOL), "s": tensor(3)},
        outputs={"d": tensor(dtype=DType.BOOL), "t": tensor(3)},
        constants={"k": np.ones(3, np.float32)},
    )
    node = Node("Loop", ("n", "", "x"), ("y",), read_attributes({"body": body}))
    return function(
        node,
        inputs={"n": tensor(dtype=INT)},
        outputs={"y": tensor(3)},
        constants={"x": np.zeros(3, np.float32)},
    )


@pytest.mark.parametrize(
    ("f", "x"),
    [(_choice(), np.array(True)), (_choice(), np.array(False)), (_repetition(), np.array(2))],
    ids=["then", "else", "loop"],
)
def test_a_constant_of_a_body_is_not_returned_as_it_is(f: Function, x: Any) -> None:
    executable = compiled(f)
    (y,) = executable.run([x])
    y[:] = 7
    assert executable.run([x])[0].tolist() == [1, 1, 1]


# ---------------------------------------------------------------------- settings of the caller


@pytest.fixture
def double_by_default() -> Iterator[Callable[[], None]]:
    before = torch.get_default_dtype()
    yield lambda: torch.set_default_dtype(torch.float64)
    torch.set_default_dtype(before)


@pytest.mark.parametrize(
    "mode", [lambda: torch.autocast("cpu", dtype=torch.bfloat16), lambda: torch.device("meta")], ids=["autocast", "device"]
)
@pytest.mark.parametrize(
    "f",
    [
        one("MatMul", tensor(3, 3), tensor(3, 3), output=tensor(3, 3)),
        one("LpNormalization", tensor(3, 3), output=tensor(3, 3)),
        one("EyeLike", tensor(3, 3), output=tensor(3, 3)),
        one("Shape", tensor(3, 3), output=tensor(2, dtype=INT)),
    ],
    ids=lambda f: f.nodes[0].op,
)
def test_modes_of_the_caller_change_nothing(f: Function, mode: Callable[[], AbstractContextManager[Any]]) -> None:
    inputs = [np.random.default_rng(0).random((3, 3), np.float32) for _ in f.inputs]
    (expected,) = run(f, *inputs)
    with mode():
        assert why(f) == ""
        (y,) = run(f, *inputs)
    assert y.dtype == expected.dtype and np.array_equal(y, expected)


def test_the_default_type_of_the_caller_changes_nothing(double_by_default: Callable[[], None]) -> None:
    double_by_default()
    (y,) = run(one("ConstantOfShape", tensor(1, dtype=INT), output=tensor(2)), np.array([2]))
    assert y.dtype == np.float32


@pytest.mark.slow
def test_a_module_that_draws_numbers_is_run() -> None:
    class Noise(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand(3) + torch.randperm(3)

    with XRTModule(Noise(), engine=["ort", "torch"]) as module:
        found = module(torch.zeros(3))
    assert 3 <= found.sum() <= 6
