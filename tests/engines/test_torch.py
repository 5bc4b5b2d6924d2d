"""The torch engine: its reasons, types and numbers, opaque calls, arrays in and out, threads, and what is left to the user."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from tests.engines.test_tvm_forked import status_of
from tests.engines.torch_running import INT, TORCH, run, why
from tests.engines.written import function, one, tensor
from xrt import XRTModule
from xrt.engines import CompileContext
from xrt.engines.torch.executable import call_within
from xrt.errors import RunFailed
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes
from xrt.graph.node import DOMAIN, OpaqueCall, Tagged
from xrt.passes import infer_shapes
from xrt.placement.reference import evaluate

IMPORT = """
import sys
from xrt.engines.contract import registry
engine = registry.create("torch")
engine.version()
assert "torch" not in sys.modules
"""


@pytest.mark.slow
def test_the_library_is_imported_with_the_first_node() -> None:
    subprocess.run([sys.executable, "-P", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{IMPORT}"], check=True)


# ---------------------------------------------------------------------- reasons


@pytest.mark.parametrize(
    ("f", "reason"),
    [
        (one("ImageDecoder", tensor(3, dtype=DType.UINT8), opset=20), "engine 'torch' has no kernel for ImageDecoder"),
        (one("NoSuch", tensor(2)), "NoSuch is not an operator of opset 18"),
        (one("Identity", tensor(2, dtype=DType.STRING)), "'x0' is string, in which this engine does not compute Identity"),
        (one("Conv"), "torch cannot take this Conv: tuple index out of range"),
        (one("Div", tensor(2, dtype=DType.UINT64), tensor(2, dtype=DType.UINT64)), "'x0' is uint64, in which this engine"),
    ],
    ids=lambda value: value.nodes[0].op if isinstance(value, Function) else "",
)
def test_reasons(f: Function, reason: str) -> None:
    typed = f.replace(outputs=tuple(Value(v.name, v.type or f.inputs[0].type if f.inputs else tensor(1)) for v in f.outputs))
    assert why(typed).startswith(reason)


def test_what_is_not_computed_inside_of_a_body_is_the_reason() -> None:
    then = function(Node("NoSuch", ("x",), ("a",)), inputs={}, outputs={"a": tensor(2)})
    other = function(Node("Neg", ("x",), ("b",)), inputs={}, outputs={"b": tensor(2)})
    node = Node("If", ("c",), ("y",), read_attributes({"then_branch": then, "else_branch": other}))
    f = function(node, inputs={"c": tensor(dtype=DType.BOOL), "x": tensor(2)}, outputs={"y": tensor(2)})
    assert why(f) == "its body 'main' holds node 'a' (NoSuch): NoSuch is not an operator of opset 18"


def test_a_call_that_fails_names_the_node() -> None:
    f = one("Gather", tensor(3), tensor(2, dtype=INT), output=tensor(2))
    with pytest.raises(RunFailed, match=r"^torch failed at node 'y' \(Gather\) of 'main': index out of range in self$"):
        run(f, np.ones(3, np.float32), np.array([0, 3]))


# ---------------------------------------------------------------------- types and numbers

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


# ---------------------------------------------------------------------- arrays in and out


def test_a_bfloat16_shares_memory_both_ways() -> None:
    from xrt.engines.torch.dtypes import from_numpy, to_numpy

    x = np.ones(3, ml_dtypes.bfloat16)
    t = from_numpy(DType.BFLOAT16)(x)
    assert t.dtype is torch.bfloat16 and np.shares_memory(to_numpy(DType.BFLOAT16)(t), x)


# ---------------------------------------------------------------------- opaque calls


def opaque(call: OpaqueCall, *types: TensorType, outputs: tuple[TensorType | None, ...]) -> Function:
    names = [f"x{k}" for k in range(len(types))]
    node = Node(call.op_type, tuple(names), tuple(f"y{k}" for k in range(len(outputs))), read_attributes(call.attributes), DOMAIN)
    return Function(
        tuple(Value(name, type_) for name, type_ in zip(names, types, strict=True)),
        tuple(Value(f"y{k}", type_) for k, type_ in enumerate(outputs)),
        (node,),
        opsets={"": 18, DOMAIN: 1},
    )


def test_an_opaque_call_is_the_operators_own() -> None:
    call = OpaqueCall("aten::logsumexp.default", (Tagged("tensor", 0), [1], True))
    x = np.random.default_rng(0).random((3, 4)).astype(np.float32)
    f = opaque(call, tensor(3, 4), outputs=(tensor(3, 1),))
    assert why(f) == ""
    np.testing.assert_allclose(run(f, x)[0], np.log(np.exp(x).sum(1, keepdims=True)), rtol=1e-5)


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
    node = Node(call.op_type, ("a",), ("y",), read_attributes(call.attributes), DOMAIN)
    f = Function(
        (Value("x", tensor(2, 3)),),
        (Value("y", tensor(6)),),
        (Node("Transpose", ("x",), ("a",)), node),
        opsets={"": 18, DOMAIN: 1},
    )
    assert run(f, np.arange(6, dtype=np.float32).reshape(2, 3))[0].tolist() == [0, 3, 1, 4, 2, 5]


def test_an_operator_that_is_not_registered_is_the_reason() -> None:
    f = opaque(OpaqueCall("mylib::blur.default", (Tagged("tensor", 0),)), tensor(2), outputs=(tensor(2),))
    assert why(f) == (
        "this process has no operator mylib::blur.default of PyTorch; "
        "import the library that registers it before the model is compiled"
    )


def test_a_model_with_an_opaque_call_is_partitioned() -> None:
    call = OpaqueCall("aten::erfinv.default", (Tagged("tensor", 0),), reason="no such operator in ONNX")
    node = Node(call.op_type, ("a",), ("b",), read_attributes(call.attributes), DOMAIN)
    f = Function(
        (Value("x", tensor(3)),),
        (Value("y", tensor(3)),),
        (Node("Tanh", ("x",), ("a",)), node, Node("Neg", ("b",), ("y",))),
        opsets={"": 18, DOMAIN: 1},
        types={"b": tensor(3)},
    )
    x = np.array([0.1, -0.5, 2], np.float32)
    with XRTModule(f, engine=["toy", "torch"], strict=True) as m:
        (y,) = np.atleast_2d(m(x))
        assert [launch.engine for launch in m.plan.launches] == ["toy", "torch", "toy"]
    np.testing.assert_allclose(y, -torch.erfinv(torch.tanh(torch.from_numpy(x))).numpy(), rtol=1e-5)


# ---------------------------------------------------------------------- threads, processes, and what is the user's


def test_the_budget_holds_for_the_call_and_the_calling_thread_alone() -> None:
    before, seen = torch.get_num_threads(), []
    barrier = threading.Barrier(2)

    def inside() -> int:
        other = threading.Thread(target=lambda: (seen.append(torch.get_num_threads()), barrier.wait()))
        other.start()
        barrier.wait()
        other.join()
        return torch.get_num_threads()

    assert call_within(before + 3, inside) == before + 3
    assert (torch.get_num_threads(), seen) == (before, [before])


def test_gradients_are_left_as_they_are() -> None:
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    run(one("Neg", tensor(2), output=tensor(2)), np.ones(2, np.float32))
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns of threads where there is a fork
def test_a_forked_child_computes_on_its_own_thread() -> None:
    x = np.linspace(-1, 1, 256 * 256, dtype=np.float32).reshape(256, 256)
    type_ = tensor(256, 256)
    f = Function(
        (Value("x", type_),), (Value("y", type_),), (Node("MatMul", ("x", "w"), ("y",)),), {"w": Constant(x)}, opsets={"": 18}
    )
    executable = TORCH.compile(f, CompileContext(threads=2))
    expected = executable.run([x])[0]
    assert status_of(lambda: np.testing.assert_allclose(executable.run([x])[0], expected, rtol=1e-5)) == 0


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        ((3, 2, 6, 7), (4, 2, 5, 5), {}),
        ((3, 2, 6, 6), (4, 2, 7, 7), {"pads": [1, 1, 1, 1]}),
        ((3, 2, 6, 6), (4, 2, 6, 6), {"pads": [1, 1, 0, 0]}),
        ((3, 2, 6, 6), (4, 2, 5, 5), {"pads": [0, 0, 1, 1]}),
        ((3, 2, 8, 9), (4, 2, 4, 4), {"dilations": [2, 2], "pads": [1, 0, 1, 0]}),
        ((3, 2, 8, 8), (4, 2, 4, 4), {"dilations": [2, 2], "pads": [1, 1, 0, 0]}),
        ((3, 2, 9, 9), (4, 2, 5, 5), {"strides": [2, 3]}),
        ((2, 3, 9), (5, 3, 8), {"pads": [0, 0]}),
        ((1, 1, 5, 4, 4), (2, 1, 4, 3, 3), {}),
    ],
)
def test_a_convolution_with_few_results_is_the_gradient_of_weights(
    x: tuple[int, ...], w: tuple[int, ...], options: dict[str, Any]
) -> None:
    draw = np.random.default_rng(3)
    f = infer_shapes(one("Conv", tensor(*x), tensor(*w), **options))
    arrays = [draw.standard_normal(shape).astype(np.float32) for shape in (x, w)]
    (expected,) = evaluate(f, arrays)
    np.testing.assert_allclose(run(f, *arrays)[0], expected, rtol=1e-4, atol=1e-4)
