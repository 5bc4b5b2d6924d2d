"""The openvino engine: its options, what it supports and declines, values, buffers, weights, threads, and the suite."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.engines import written
from tests.engines.written import Array, node, tensor
from xrt.engines import CompileContext, ExecutionOptions, create
from xrt.engines.openvino import OpenVino
from xrt.engines.openvino.executable import COPY_TO, OpenVinoExecutable
from xrt.engines.openvino.library import LIBRARY, core
from xrt.engines.openvino.support import lower
from xrt.errors import CompileRefused, RunFailed
from xrt.graph import DType, Function, Node, TensorType, Type
from xrt.passes import infer_shapes
from xrt.testing import KnownFailure
from xrt.testing.suite import EngineSuite

CONTEXT = CompileContext(threads=2)
SQUARE = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
LARGE = COPY_TO  # columns of float32, so that two rows are well over what is copied


def function(
    inputs: Mapping[str, TensorType | None],
    outputs: Mapping[str, TensorType | None],
    nodes: Sequence[Node],
    constants: Mapping[str, Array] | None = None,
    opset: int = 21,
) -> Function:
    return written.function(*nodes, inputs=inputs, outputs=outputs, constants=constants, opset=opset)


def relu(columns: int = 3) -> Function:
    return function({"x": tensor(2, columns)}, {"y": tensor(2, columns)}, [node("Relu", "x", "y")])


def compiled(f: Function, engine: OpenVino = OpenVino()) -> OpenVinoExecutable:
    assert [engine.why_not(n, f) for n in f.nodes] == [None] * len(f.nodes)
    executable = engine.compile(f, CONTEXT)
    executable.prepare()
    return executable


def run(f: Function, *inputs: Any) -> Sequence[Any]:
    return compiled(f).run(inputs)


# ---------------------------------------------------------------------- values in and out


@pytest.mark.parametrize("columns", [3, LARGE], ids=["copied", "set"])
def test_bfloat16_goes_in_and_comes_out(columns: int) -> None:
    type_ = tensor(2, columns, dtype=DType.BFLOAT16)
    x = np.resize(np.array([-1.5, 256.0, 0, 1e30, 3]), (2, columns)).astype(ml_dtypes.bfloat16)
    (y,) = run(function({"x": type_}, {"y": type_}, [node("Neg", "x", "y")]), x)
    assert y.dtype == x.dtype
    assert np.array_equal(y, -x)


@pytest.mark.parametrize("columns", [3, LARGE], ids=["copied", "set"])
def test_an_array_of_another_type_is_refused_and_not_read_as_if(columns: int) -> None:
    executable = compiled(relu(columns))
    array = np.zeros((2, columns), np.complex64)
    with np.errstate(all="raise"), pytest.raises(RunFailed, match="failed while it ran"):
        executable.run([array])


def test_an_array_of_another_shape_is_refused() -> None:
    executable = compiled(relu(LARGE))
    with pytest.raises(RunFailed, match=f"{LIBRARY} failed while it ran 'main'"):
        executable.run([np.zeros((3, LARGE), np.float32)])
    x = np.full((2, LARGE), -1, np.float32)
    assert not executable.run([x])[0].any()


# ---------------------------------------------------------------------- shapes of regions


def test_numbers_of_elements_are_computed_with() -> None:
    some = TensorType(DType.INT64, (2, None))
    nodes, constants = [node("NonZero", "x", "n"), node("Mul", "n thousand", "y")], {"thousand": np.array(1000)}
    n, y = run(function({"x": tensor(2, 3)}, {"n": some, "y": some}, nodes, constants), SQUARE)
    assert np.array_equal(n, np.nonzero(SQUARE)) and np.array_equal(y, 1000 * n)


@pytest.mark.parametrize("source", [DType.BOOL, DType.INT32], ids=str)
def test_position_ids_of_a_mask(source: DType) -> None:
    """As language models have them: the places of what is no padding, and one more."""
    mask, places = TensorType(DType.INT32, (2, 6)), TensorType(DType.INT64, (2, 6))
    nodes = [
        node("Cast", "x", "m", to=DType.INT32.onnx),
        node("CumSum", "m axis", "s"),
        node("Mul", "s m", "p"),
        node("Cast", "p", "w", to=DType.INT64.onnx),
        node("Add", "w one", "y"),
    ]
    types = {"x": TensorType(source, (2, 6)), "m": mask, "s": mask, "p": mask, "w": places, "y": places}
    constants = {"axis": np.array(1, np.int32), "one": np.array(1)}
    f = function({"x": types["x"]}, {"y": places}, nodes, constants).replace(types={n: types[n] for n in "mspw"})
    x = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]], source.numpy)
    assert run(f, x)[0].tolist() == [[2, 3, 4, 5, 1, 1], [2, 3, 1, 1, 1, 1]]


def test_both_64_bit_integers_of_numpy_are_taken() -> None:
    kind = TensorType(DType.INT64, (2,))
    f = function({"x": kind}, {"y": TensorType(DType.BOOL, (2,))}, [node("Equal", "x two", "y")], {"two": np.array(2)})
    assert run(f, np.array([1, 2], np.longlong))[0].tolist() == [False, True]


# ---------------------------------------------------------------------- threads, errors, noise


def test_what_cannot_cross_is_refused_at_compile() -> None:
    f = function({"x": None}, {"y": None}, [node("Relu", "x", "y")])
    with pytest.raises(CompileRefused, match="the type of input 'x' is not known"):
        OpenVino().compile(f, CONTEXT)
    strings = tensor(2, dtype=DType.STRING)
    f = function({"x": strings}, {"y": strings}, [node("Identity", "x", "y")])
    with pytest.raises(CompileRefused, match=r"'x' is string\[2\]"):
        OpenVino().compile(f, CONTEXT)


def test_what_the_library_declines_is_refused_in_few_words() -> None:
    f = function({"x": tensor(2, 2)}, {"y": tensor()}, [node("Det", "x", "y")])
    with pytest.raises(CompileRefused) as error:
        OpenVino().compile(f, CONTEXT)
    assert str(error.value) == f"{LIBRARY} declines: No conversion rule found for operations: Det-11"


def product(columns: int) -> tuple[Function, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((64, columns), np.float32), rng.standard_normal((columns, 64), np.float32)
    f = function({"x": tensor(64, columns)}, {"y": tensor(64, 64)}, [node("MatMul", "x w", "y")], {"w": w})
    return f, x, w


@pytest.mark.slow
def test_it_computes_in_fp32_unless_a_lower_precision_is_allowed() -> None:
    f, x, w = product(512)
    exact = x.astype(np.float64) @ w

    def error(precision: Any) -> float:
        context = CompileContext(ExecutionOptions(precision=precision), threads=2)
        (y,) = OpenVino().compile(f, context).run([x])
        return float(np.abs(y - exact).max())

    assert error("fp32") < 1e-3
    has_bfloat16 = "BF16" in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    reason = OpenVino().unsupported_options(CompileContext(ExecutionOptions(precision="bf16")))
    assert (reason is None) is has_bfloat16
    assert 1e-3 < error("bf16") < 5 if has_bfloat16 else (reason or "").endswith("it does not honour precision='bf16'")


@pytest.mark.parametrize(
    ("engine", "precision"), [("openvino", "fp16"), ("openvino", "int8"), ("openvino{precision=bf16}", "fp16")]
)
def test_options_that_it_does_not_honour_are_refused(engine: str, precision: Any) -> None:
    assert create(engine).unsupported_options(CompileContext(ExecutionOptions(precision=precision))) == (
        f"engine 'openvino' computes in the model's own types or, where it sees fit, in bf16: it does not honour {precision=}"
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_the_thread_budget_is_the_librarys(threads: int) -> None:
    executable = OpenVino(streams=4).compile(relu(), CompileContext(threads=threads))
    assert executable.compiled is not None
    model = executable.compiled.model
    most = min(threads, len(os.sched_getaffinity(0)))  # the library takes no more than there are
    streams = most if threads > 1 else 0  # none: the thread that calls computes
    assert model.get_property("INFERENCE_NUM_THREADS") == streams
    assert model.get_property("NUM_STREAMS") == streams
    assert executable.idle_threads == (streams + 1 if streams else 0)
    assert executable.concurrent_runs == max(1, streams)
    assert not model.get_property("ENABLE_CPU_PINNING")


@pytest.mark.parametrize("length", [8, 60, 1024, 1000])
def test_transforms_are_taken_by_how_exact_they_are(length: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, length, 1)).astype(np.float32)
    f = function({"x": tensor(2, length, 1)}, {"y": tensor(2, length, 2)}, [node("DFT", "x", "y", axis=1)], opset=17)
    if length == 1000:
        assert OpenVino().why_not(f.nodes[0], f) == (
            f"{LIBRARY} computes the angles of this transform in float32, so that its error is beyond 1e-4 of the largest element"
        )
        return
    result = run(f, x)[0]
    expected = np.fft.fft(x[..., 0].astype(np.float64))
    assert np.abs(result[..., 0] + 1j * result[..., 1] - expected).max() / np.abs(expected).max() <= 1e-4


def test_a_transform_along_an_axis_that_is_an_input_or_negative_is_declined() -> None:
    nodes = [Node("DFT", ("x", "", "axis"), ("y",))]
    f = [
        function({"x": tensor(4, 8, 2, 1)}, {"y": tensor(4, 8, 2, 2)}, nodes, {"axis": np.array(axis)}, opset=20)
        for axis in (1, 2)
    ]
    f.append(function({"x": tensor(2, 8, 1)}, {"y": tensor(2, 8, 2)}, [node("DFT", "x", "y", axis=-2)], opset=17))
    assert OpenVino().why_not(nodes[0], f[0]) is None
    assert OpenVino().why_not(f[2].nodes[0], f[2]) == OpenVino().why_not(nodes[0], f[1])
    assert OpenVino().why_not(nodes[0], f[1]) == (
        f"{LIBRARY} transforms another axis than a DFT says where that is counted from the end, or is an input"
    )


@pytest.mark.parametrize("largest", [0, 1])
def test_equal_elements_of_topk_stand_in_order(largest: int) -> None:
    x = np.random.default_rng(0).integers(0, 5, (20, 40)).astype(np.float32)
    outputs: dict[str, Type | None] = {"v": tensor(20, 9), "i": tensor(20, 9, dtype=DType.INT64)}
    f = function({"x": tensor(20, 40)}, outputs, [node("TopK", "x k", "v i", largest=largest)], {"k": np.array([9])})
    order = np.argsort(-x if largest else x, axis=1, kind="stable")[:, :9]
    values, places = run(f, x)
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, 1))


@pytest.mark.parametrize("divisor", [2, 3, -7, 12345])
def test_wide_integers_divide_towards_zero(divisor: int) -> None:
    x = np.array([-(1 << 24), -100, -7, -1, 0, 1, 7, 100, 1 << 24])
    wide = tensor(x.size, dtype=DType.INT64)
    f = function({"x": wide}, {"y": wide}, [node("Div", "x c", "y")], {"c": np.array(divisor)})
    np.testing.assert_array_equal(run(f, x)[0], np.trunc(x / divisor).astype(np.int64))


def celu_twice() -> Function:
    half = tensor(3, dtype=DType.FLOAT16)
    f = function({"x": half}, {"z": half}, [node("Celu", "x", "y", alpha=1.0), node("Celu", "y", "z", alpha=1.0)], opset=28)
    return f.replace(types={"y": half})


def list_operators(f: Function) -> list[str]:
    return [n.op for n in lower(f).nodes]


def test_each_place_of_a_definition_has_names_of_its_own() -> None:
    assert "Celu" not in list_operators(celu_twice())
    x = np.array([-1, 0, 2], np.float16)
    once = np.where(x > 0, x, np.expm1(x))
    np.testing.assert_allclose(run(celu_twice(), x)[0], np.where(once > 0, once, np.expm1(once)), rtol=1e-2)


def test_what_its_meaning_does_not_help_keeps_its_own_reason() -> None:
    wide = tensor(3, dtype=DType.FLOAT64)
    f = function({"x": wide}, {"y": wide}, [node("HardSwish", "x", "y")])
    assert "float64 in float32" in str(OpenVino().why_not(f.nodes[0], f))


@pytest.mark.slow
def test_what_the_frontend_numbers_by_a_range_is_computed() -> None:
    f = function({"x": tensor(2, "n", 3)}, {"y": tensor()}, [node("ReduceSum", "x", "y", keepdims=0)])
    assert run(f, np.ones((2, 5, 3), np.float32))[0] == 30
    f = function({"n": tensor(dtype=DType.INT64)}, {"y": tensor(None)}, [node("HannWindow", "n", "y")])
    assert run(f, np.array(4))[0].tolist() == pytest.approx([0, 0.5, 1, 0.5])


@pytest.mark.parametrize(
    ("pooling", "extents", "text"),
    [
        (node("MaxPool", "x", "y", kernel_shape=[1, 1], strides=[2, 2], ceil_mode=1), (2, 3), "lies entirely in the padding"),
        (node("MaxPool", "x", "y", kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1), ("h", 7), "lies entirely in the padding"),
        (node("LpPool", "x", "y", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1), (7, 7), "beyond the padding"),
    ],
    ids=["in padding", "of an unknown size", "behind padding"],
)
def test_poolings_whose_windows_reach_too_far_are_declined(pooling: Node, extents: tuple[int | str, ...], text: str) -> None:
    f = function({"x": tensor(1, 2, *extents)}, {"y": tensor(1, 2, None, None)}, [pooling], opset=22)
    assert text in str(OpenVino().why_not(pooling, f))


QUANTIZED_PRODUCT = [
    *(node("QuantizeLinear", "x step zero", "q"), node("DequantizeLinear", "q step zero", "d")),
    *(node("DequantizeLinear", "w steps", "e", axis=1), node("Relu", "e", "r"), node("MatMul", "d r", "y")),
]
MULTIPLIED = [*QUANTIZED_PRODUCT[:3], node("Mul", "two e", "r"), node("MatMul", "d r", "y")]
STEPS: dict[str, Any] = {"step": np.array(0.1, "f4"), "zero": np.array(0, "i1"), "steps": np.array([0.1, 0.2, 0.3], "f4")}
WEIGHTS: dict[str, Any] = {"w": np.ones((4, 3), np.int8)}
DECLINED = {
    "a quantized vector by weights with several scales": (
        infer_shapes(function({"x": tensor(4)}, {"y": tensor(3)}, QUANTIZED_PRODUCT, STEPS | WEIGHTS)),
        "one axis too many",
    ),
    "a quantized vector by multiples of weights with several scales": (
        infer_shapes(function({"x": tensor(4)}, {"y": tensor(3)}, MULTIPLIED, STEPS | WEIGHTS | {"two": np.array([2], "f4")})),
        "one axis too many",
    ),
    "quotients of constants": (
        function({}, {"y": tensor(2, dtype=DType.INT64)}, [node("Div", "a a", "y")], {"a": np.array([-7, 7])}),
        "rounds the quotient of constant integers down",
    ),
    "a range that leads away": (
        function({}, {"y": tensor("n", dtype=DType.INT64)}, [node("Range", "a b b", "y")], {"a": np.array(5), "b": np.array(1)}),
        "counts the steps of a Range that lead away from its limit",
    ),
    "sums of bytes": (
        function({"x": tensor(2, dtype=DType.UINT8)}, {"y": tensor(2, dtype=DType.UINT8)}, [node("Add", "x x", "y")]),
        "computes Add in bfloat16, float16, float32, int32, int64, uint32, uint64, and 'x' is uint8",
    ),
}


@pytest.mark.parametrize("case", DECLINED)
def test_ordinary_values_that_come_out_wrong_are_declined(case: str) -> None:
    f, reason = DECLINED[case]
    assert reason in str(OpenVino().why_not(f.nodes[-1], f))


def test_other_products_of_weights_with_several_scales_are_supported() -> None:
    f = infer_shapes(function({"x": tensor(1, 4)}, {"y": tensor(1, 3)}, QUANTIZED_PRODUCT, STEPS | WEIGHTS))
    np.testing.assert_allclose(run(f, np.ones((1, 4), np.float32))[0], 4 * STEPS["steps"][None], rtol=1e-4)


def test_a_vector_by_a_product_of_weights_with_several_scales_is_supported() -> None:
    nodes = [*QUANTIZED_PRODUCT[:3], node("MatMul", "e turn", "r"), node("MatMul", "d r", "y")]
    f = infer_shapes(function({"x": tensor(4)}, {"y": tensor(3)}, nodes, STEPS | WEIGHTS | {"turn": np.eye(3, dtype="f4")}))
    np.testing.assert_allclose(run(f, np.ones(4, np.float32))[0], 4 * STEPS["steps"], rtol=1e-4)


def test_a_maximum_of_int32_and_a_product_of_sizes_are_supported() -> None:
    maximum = node("ReduceMax", "x a", "y", keepdims=0)
    f = function({"x": tensor(2, 3, dtype=DType.INT32)}, {"y": tensor(2, dtype=DType.INT32)}, [maximum], {"a": np.array([1])})
    assert run(f, np.array([[1, 5, 2], [-3, -4, -9]], np.int32))[0].tolist() == [5, -3]
    nodes = [node("Shape", "x", "s"), node("ReduceProd", "s", "y", keepdims=0)]
    sizes = function({"x": tensor("n", "m")}, {"y": tensor(dtype=DType.INT64)}, nodes)
    sizes = sizes.replace(types={"s": tensor(2, dtype=DType.INT64)})
    assert OpenVino().why_not_dynamic(sizes) is None
    assert int(compiled(sizes).run([np.zeros((3, 5), np.float32)])[0]) == 15


@pytest.mark.slow
@pytest.mark.sample(8, plain=2)
class TestOpenVino(EngineSuite):
    engine = "openvino"
    gaps = (
        KnownFailure(
            "rounded_by_a_large_sum",
            "not upstream",
            "OpenVINO makes one sum of the constants of neighbouring additions, and what they rounded is not rounded",
            "https://github.com/openvinotoolkit/openvino/tree/master/src/common/transformations",
        ),
    )
    test_conformance = None  # run in tests/conformance
    test_node_tests_with_symbolic_dims = None
