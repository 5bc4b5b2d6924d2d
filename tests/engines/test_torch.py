"""The torch engine: reasons, numbers, opaque calls, recurrences, threads, what a model cannot make it do, and the suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines import written
from tests.engines.written import Array, function, node, one, tensor
from xrt import XRTModule
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.engines.torch import Torch
from xrt.engines.torch.executable import call_with_threads
from xrt.errors import CompileRefused, RunFailed
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes
from xrt.graph.node import ATEN_DOMAIN, OpaqueCall, Tagged
from xrt.testing.suite import EngineSuite

TORCH = Torch()
INT = DType.INT64


compiled, run, why = (partial(helper, TORCH) for helper in (written.compiled, written.run, written.why))


def test_what_is_not_computed_inside_of_a_body_is_the_reason() -> None:
    then = function(node("NoSuch", "x", "a"), inputs={}, outputs={"a": tensor(2)})
    other = function(node("Neg", "x", "b"), inputs={}, outputs={"b": tensor(2)})
    choice = node("If", "c", "y", then_branch=then, else_branch=other)
    f = function(choice, inputs={"c": tensor(dtype=DType.BOOL), "x": tensor(2)}, outputs={"y": tensor(2)})
    assert why(f) == "its body 'main' holds node 'a' (NoSuch): NoSuch is not an operator of opset 18"


def test_a_call_that_fails_names_the_node() -> None:
    f = one("Gather", tensor(3), tensor(2, dtype=INT), output=tensor(2))
    with pytest.raises(RunFailed, match=r"^torch failed at node 'y' \(Gather\) of 'main': index out of range in self$"):
        run(f, np.ones(3, np.float32), np.array([0, 3]))


WIDE = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bfloat16"]


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (3, 4)])
@pytest.mark.parametrize("dtype", [*WIDE, "float8e4m3fn", "float8e5m2", "int4", "uint4", "bool"])
def test_what_moves_elements_takes_every_type_and_shape(dtype: str, shape: tuple[int, ...]) -> None:
    kind = DType.parse(dtype)
    x = np.arange(int(np.prod(shape))).reshape(shape).astype(kind.numpy)
    type_ = TensorType(kind, shape)
    f = one("Transpose", type_, output=TensorType(kind, shape[::-1]))
    assert why(f) == ""
    (y,) = run(f, x)
    assert y.dtype == x.dtype and y.shape == shape[::-1] and y.flags.c_contiguous and y.tobytes() == x.T.tobytes()


def test_a_convolution_over_four_axes_is_computed_by_the_shared_kernel() -> None:
    x, w = np.arange(81, dtype=np.float32).reshape(1, 1, 3, 3, 3, 3), np.ones((1, 1, 2, 2, 2, 2), np.float32)
    (y,) = run(one("Conv", tensor(*x.shape), tensor(*w.shape), output=tensor(1, 1, 2, 2, 2, 2)), x, w)
    assert y[0, 0, 0, 0, 0, 0] == x[0, 0, :2, :2, :2, :2].sum() and y.shape == (1, 1, 2, 2, 2, 2)


LEAST = {"int32": -(2**31), "int64": -(2**63)}


@pytest.mark.parametrize("dtype", LEAST)
@pytest.mark.parametrize(("op", "expected"), [("Div", [-3, LEAST, 0, 4]), ("Mod", [-1, 0, 0, 0])])
def test_whole_numbers_divided_by_zero_and_by_minus_one_end_no_process(op: str, expected: list[Any], dtype: str) -> None:
    a, b = np.array([-7, LEAST[dtype], 5, -4], dtype), np.array([2, -1, 0, -1], dtype)
    type_ = tensor(4, dtype=DType.parse(dtype))
    (y,) = run(one(op, type_, type_, output=type_, fmod=1) if op == "Mod" else one(op, type_, type_, output=type_), a, b)
    assert y.tolist() == [LEAST[dtype] if value is LEAST else value for value in expected]


def opaque(call: OpaqueCall, *types: TensorType, outputs: tuple[TensorType | None, ...]) -> Function:
    inputs, results = ({f"{letter}{k}": type_ for k, type_ in enumerate(many)} for letter, many in (("x", types), ("y", outputs)))
    opaque_node = Node(call.op_type, tuple(inputs), tuple(results), read_attributes(call.attributes), ATEN_DOMAIN)
    return function(opaque_node, inputs=inputs, outputs=results).replace(opsets={"": 18, ATEN_DOMAIN: 1})


def test_an_opaque_call_with_several_results_numbers_and_types() -> None:
    call = OpaqueCall("aten::topk.default", (Tagged("tensor", 0), Tagged("number", 1)), {"dim": 0})
    f = opaque(call, tensor(4), tensor(dtype=INT), outputs=(tensor(2), tensor(2, dtype=INT)))
    values, places = run(f, np.array([1, 4, 2, 3], np.float32), np.array(2))
    assert values.tolist() == [4, 3] and places.tolist() == [1, 3]
    call = OpaqueCall("aten::to.dtype", (Tagged("tensor", 0), Tagged("dtype", "int64")))
    assert run(opaque(call, tensor(2), outputs=(tensor(2, dtype=INT),)), np.array([1.5, -1.5], np.float32))[0].tolist() == [1, -1]


def test_complex_numbers_pass_between_opaque_calls() -> None:
    z = TensorType(DType.COMPLEX64, (3,))
    first = opaque(OpaqueCall("aten::fft_rfft.default", (Tagged("tensor", 0),)), tensor(4), outputs=(z,))
    x = np.array([1, 2, 3, 5], np.float32)
    np.testing.assert_allclose(run(first, x)[0], np.fft.rfft(x), rtol=1e-6)
    second = opaque(OpaqueCall("aten::imag.default", (Tagged("tensor", 0),)), z, outputs=(tensor(3),))
    conjugate = opaque(OpaqueCall("aten::conj.default", (Tagged("tensor", 0),)), z, outputs=(z,))
    np.testing.assert_allclose(run(second, *run(conjugate, *run(first, x)))[0], -np.fft.rfft(x).imag, rtol=1e-6)


def test_an_opaque_call_reads_its_inputs_in_the_order_of_their_elements() -> None:
    """A transposed tensor is a view within a region, and some operators read the memory as it lies."""
    call = OpaqueCall("aten::as_strided.default", (Tagged("tensor", 0), [6], [1]))
    f = opaque(call, tensor(3, 2), outputs=(tensor(6),))
    f = f.replace(inputs=(Value("x", tensor(2, 3)),), nodes=(node("Transpose", "x", "x0"), *f.nodes))
    assert run(f, np.arange(6, dtype=np.float32).reshape(2, 3))[0].tolist() == [0, 3, 1, 4, 2, 5]


def test_an_operator_that_is_not_registered_is_the_reason() -> None:
    f = opaque(OpaqueCall("mylib::blur.default", (Tagged("tensor", 0),)), tensor(2), outputs=(tensor(2),))
    assert why(f) == (
        "this process has no operator mylib::blur.default of PyTorch; "
        "import the library that registers it before the model is compiled"
    )


def test_the_budget_holds_for_the_call_and_the_calling_thread_alone() -> None:
    before = torch.get_num_threads()

    def inside() -> tuple[int, int]:
        with ThreadPoolExecutor(1) as pool:
            return torch.get_num_threads(), pool.submit(torch.get_num_threads).result()

    assert call_with_threads(before + 3, inside) == (before + 3, before)
    assert torch.get_num_threads() == before


def test_gradients_are_left_as_they_are() -> None:
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    run(one("Neg", tensor(2), output=tensor(2)), np.ones(2, np.float32))
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


TIME, BATCH, WIDTH, HIDDEN = 5, 3, 4, 6
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def layer(op: str, *, constant: bool, states: bool = True, **attributes: Any) -> tuple[Function, list[Array]]:
    """Return a Function of one recurrent node, and its inputs."""
    rng = np.random.default_rng(0)
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    first = bool(attributes.get("layout"))
    shapes = {
        "x": (BATCH, TIME, WIDTH) if first else (TIME, BATCH, WIDTH),
        "w": (directions, GATES[op] * HIDDEN, WIDTH),
        "r": (directions, GATES[op] * HIDDEN, HIDDEN),
        "b": (directions, 2 * GATES[op] * HIDDEN),
    }
    names = (["h0", "c0"] if op == "LSTM" else ["h0"]) if states else []
    shapes |= dict.fromkeys(names, (BATCH, directions, HIDDEN) if first else (directions, BATCH, HIDDEN))
    values = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    constants = {name: values.pop(name) for name in ("w", "r", "b")} if constant else {}
    outputs = ("y", "h", "c") if op == "LSTM" else ("y", "h")
    recurrent = node(op, f"x w r b - {' '.join(names)}", " ".join(outputs), hidden_size=HIDDEN, **attributes)
    results = dict.fromkeys(outputs, TensorType(DType.FLOAT32, None))
    inputs = {name: tensor(*value.shape) for name, value in values.items()}
    return function(recurrent, inputs=inputs, outputs=results, constants=constants, opset=22), list(values.values())


def list_layers() -> Iterator[Any]:
    for op in GATES:
        for direction in ("forward", "reverse", "bidirectional"):
            for layout in (0, 1):
                yield pytest.param(op, {"direction": direction, "layout": layout}, id=f"{op}-{direction}-{layout}")
    yield pytest.param("GRU", {"linear_before_reset": 1, "direction": "bidirectional"}, id="GRU-linear_before_reset")
    yield pytest.param("RNN", {"activations": ["Relu"], "direction": "reverse"}, id="RNN-relu")


@pytest.mark.parametrize("constant", [False, True], ids=["inputs", "constants"])
@pytest.mark.parametrize(("op", "attributes"), list(list_layers()))
def test_results_are_those_of_the_reference(op: str, attributes: dict[str, Any], constant: bool) -> None:
    for states in (False, True):
        function, inputs = layer(op, constant=constant, states=states, **attributes)
        executable = compiled(function)
        expected = evaluate(function, inputs)
        for _ in range(2):
            for got, due in zip(executable.run(inputs), expected, strict=True):
                np.testing.assert_allclose(got, due, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_the_copies_of_constant_weights_are_made_once_and_counted() -> None:
    function, inputs = layer("LSTM", constant=True)
    executable = compiled(function)
    for _ in range(3):
        executable.run(inputs)
    (packed,) = (use for use in executable.memory() if use.name == "packed weights")
    assert packed.nbytes == sum(constant.array.nbytes for constant in function.constants.values())
    function, inputs = layer("LSTM", constant=False)
    executable = compiled(function)
    executable.run(inputs)
    assert [use.name for use in executable.memory()] == ["workspace"]


X = Tagged("tensor", 0)


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
        ("aten::__class__.__call__", "this process has no operator"),
        ("aten::relu.__call__", "this process has no operator"),
        ("aten::relu", "'aten::relu' is not the name of an operator"),
        ("aten::relu.default\n", "'aten::relu.default\\n' is not the name of an operator"),
        ("aten::from_file.default", "it has a file name as argument"),
        ("aten::save.default", "operator aten::save.default"),
        ("aten::relu_.default", "it modifies its arguments"),
        ("aten::relu.out", "it modifies its arguments"),
        ("aten::empty.memory_format", "it has no tensor as argument"),
        ("aten::_assert_async.default", "it returns something other than tensors and numbers"),
        ("quantized::linear.default", "only operators of aten and prims"),
        ("xrt_test::twice_.default", "it modifies its arguments"),
        ("xrt_test::load.default", "it has a file name as argument"),
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


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("xrt_test::twice.default", [2, 4]),
        ("aten::abs.default", [1, 2]),
        ("prims::abs.default", [1, 2]),
    ],
)
@pytest.mark.usefixtures("own")
def test_operators_that_a_model_may_call(operator: str, expected: list[int]) -> None:
    f = opaque(OpaqueCall(operator, (X,)), tensor(2), outputs=(tensor(2),))
    assert why(f) == "" and run(f, np.array([1, 2], np.float32))[0].tolist() == expected


def test_an_operator_of_a_decorator_may_be_called() -> None:
    # Registered once, and not by the fixture: PyTorch removes an operator when the garbage of its decorator is collected.
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
    with pytest.raises(RunFailed, match="'load' is not a dtype of PyTorch"):
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


def test_a_constant_of_a_body_is_not_returned_as_it_is() -> None:
    ones, flag = np.ones(3, np.float32), tensor(dtype=DType.BOOL)
    then = function(node("Identity", "k", "a"), inputs={}, outputs={"a": tensor(3)}, constants={"k": ones})
    other = function(node("Constant", "", "b", value=Constant(ones)), inputs={}, outputs={"b": tensor(3)})
    choice = function(node("If", "c", "y", then_branch=then, else_branch=other), inputs={"c": flag}, outputs={"y": tensor(3)})
    body = function(
        *(node("Identity", "c", "d"), node("Identity", "k", "t")),
        inputs={"i": tensor(dtype=INT), "c": flag, "s": tensor(3)},
        outputs={"d": flag, "t": tensor(3)},
        constants={"k": ones},
    )
    turns = node("Loop", "n - x", "y", body=body)
    loop = function(turns, inputs={"n": tensor(dtype=INT)}, outputs={"y": tensor(3)}, constants={"x": 0 * ones})
    for f, value in ((choice, True), (choice, False), (loop, 2)):
        executable = compiled(f)
        (y,) = executable.run([np.array(value)])
        y[:] = 7
        assert executable.run([np.array(value)])[0].tolist() == [1, 1, 1]


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


def test_the_default_type_of_the_caller_changes_nothing() -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        (y,) = run(one("ConstantOfShape", tensor(1, dtype=INT), output=tensor(2)), np.array([2]))
    finally:
        torch.set_default_dtype(before)
    assert y.dtype == np.float32


@pytest.mark.slow
def test_a_module_that_draws_numbers_is_run() -> None:
    class Noise(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand(3) + torch.randperm(3)

    with XRTModule(Noise(), engine=["ort", "torch"]) as module:
        result = module(torch.zeros(3))
    assert 3 <= result.sum() <= 6


@pytest.mark.slow
class TestTorch(EngineSuite):
    engine = "torch"
    test_conformance = None  # run in tests/conformance
    test_node_tests_with_symbolic_dims = None
