"""The openvino engine: its options, what it supports and declines, values, buffers, weights, threads, and the suite."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.engines import written
from tests.engines.written import CONTEXT, node, one, tensor
from tests.exact_errors import raises_exactly
from xrt.engines import CompileContext, ExecutionOptions, create
from xrt.engines.openvino import OpenVino
from xrt.engines.openvino.executable import MAX_COPIED_BYTES
from xrt.engines.openvino.library import LIBRARY, get_core
from xrt.engines.openvino.support import lower
from xrt.errors import CompileRefused, RunFailed
from xrt.graph import DType, Function, Node
from xrt.passes import infer_shapes
from xrt.testing import KnownFailure
from xrt.testing.suite import EngineSuite

SQUARE = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
LARGE = MAX_COPIED_BYTES  # columns of float32, so that two rows are well over what is copied

function = partial(written.function, opset=21)
why = partial(written.why, OpenVino())
compiled = partial(written.compiled, OpenVino(), is_supported=True)
run = partial(written.run, OpenVino(), is_supported=True)


def relu(columns: int = 3) -> Function:
    return function(node("Relu", "x", "y"), inputs={"x": tensor(2, columns)}, outputs={"y": tensor(2, columns)})


@pytest.mark.parametrize("columns", [3, LARGE], ids=["copied", "set"])
def test_bfloat16_goes_in_and_comes_out(columns: int) -> None:
    type_ = tensor(2, columns, dtype=DType.BFLOAT16)
    x = np.resize(np.array([-1.5, 256.0, 0, 1e30, 3]), (2, columns)).astype(ml_dtypes.bfloat16)
    (y,) = run(one("Neg", type_, output=type_), x)
    assert y.dtype == x.dtype
    assert np.array_equal(y, -x)


@pytest.mark.parametrize(
    "wrong", [np.zeros((2, 3), np.complex64), np.zeros((2, LARGE), np.complex64), np.zeros((3, LARGE), np.float32)]
)
def test_an_array_of_another_type_or_shape_is_refused_and_not_read_as_if(wrong: Any) -> None:
    executable = compiled(relu(wrong.shape[1]))
    with np.errstate(all="raise"), pytest.raises(RunFailed, match=f"{LIBRARY} failed while it ran 'main'"):
        executable.run([wrong])
    assert not executable.run([np.full((2, wrong.shape[1]), -1, np.float32)])[0].any()


def test_numbers_of_elements_are_computed_with() -> None:
    some = tensor(2, None, dtype=DType.INT64)
    nodes = node("NonZero", "x", "n"), node("Mul", "n thousand", "y")
    f = function(*nodes, inputs={"x": tensor(2, 3)}, outputs={"n": some, "y": some}, constants={"thousand": np.array(1000)})
    n, y = run(f, SQUARE)
    assert np.array_equal(n, np.nonzero(SQUARE)) and np.array_equal(y, 1000 * n)


@pytest.mark.parametrize("source", [DType.BOOL, DType.INT32], ids=str)
def test_position_ids_of_a_mask(source: DType) -> None:
    """As language models have them: the places of what is no padding, and one more."""
    nodes = [
        node("Cast", "x", "m", to=DType.INT32.onnx),
        node("CumSum", "m axis", "s"),
        node("Mul", "s m", "p"),
        node("Cast", "p", "w", to=DType.INT64.onnx),
        node("Add", "w one", "y"),
    ]
    constants = {"axis": np.array(1, np.int32), "one": np.array(1)}
    f = infer_shapes(function(*nodes, inputs={"x": tensor(2, 6, dtype=source)}, constants=constants))
    x = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]], source.numpy)
    assert run(f, x)[0].tolist() == [[2, 3, 4, 5, 1, 1], [2, 3, 1, 1, 1, 1]]


def test_what_the_library_declines_is_refused_in_few_words() -> None:
    with raises_exactly(CompileRefused, f"{LIBRARY} declines: No conversion rule found for operations: Det-11"):
        OpenVino().compile(one("Det", tensor(2, 2), output=tensor()), CONTEXT)


@pytest.mark.slow
def test_it_computes_in_fp32_unless_a_lower_precision_is_allowed() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((64, 512), np.float32), rng.standard_normal((512, 64), np.float32)
    ends = {"inputs": {"x": tensor(64, 512)}, "outputs": {"y": tensor(64, 64)}}
    f, exact = function(node("MatMul", "x w", "y"), **ends, constants={"w": w}), x.astype(np.float64) @ w

    def error(precision: Any) -> float:
        context = CompileContext(ExecutionOptions(precision=precision), threads=2)
        (y,) = OpenVino().compile(f, context).run([x])
        return float(np.abs(y - exact).max())

    assert error("fp32") < 1e-3
    has_bfloat16 = "BF16" in get_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    reason = OpenVino().unsupported_options(CompileContext(ExecutionOptions(precision="bf16")))
    assert (reason is None) is has_bfloat16
    assert 1e-3 < error("bf16") < 5 if has_bfloat16 else (reason or "").endswith("it does not honour precision='bf16'")


@pytest.mark.parametrize(
    ("engine", "precision"), [("openvino", "fp16"), ("openvino", "int8"), ("openvino{precision=bf16}", "fp16")]
)
def test_options_that_it_does_not_honour_are_refused(engine: str, precision: Any) -> None:
    assert create(engine).unsupported_options(CompileContext(ExecutionOptions(precision=precision))) == (
        f"engine 'openvino' computes in the model's types, or a reduced precision of this CPU: it does not honour {precision=}"
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
    f = one("DFT", tensor(2, length, 1), output=tensor(2, length, 2), opset=17, axis=1)
    if length == 1000:
        assert why(f) == (
            f"{LIBRARY} computes the angles of this transform in float32, so that its error is beyond 1e-4 of the largest element"
        )
        return
    result = run(f, x)[0]
    expected = np.fft.fft(x[..., 0].astype(np.float64))
    assert np.abs(result[..., 0] + 1j * result[..., 1] - expected).max() / np.abs(expected).max() <= 1e-4


def test_a_transform_along_an_axis_that_is_an_input_or_negative_is_declined() -> None:
    ends = {"inputs": {"x": tensor(4, 8, 2, 1)}, "outputs": {"y": tensor(4, 8, 2, 2)}}
    first, second = (function(node("DFT", "x - k", "y"), **ends, constants={"k": np.array(k)}, opset=20) for k in (1, 2))
    negative = one("DFT", tensor(2, 8, 1), output=tensor(2, 8, 2), opset=17, axis=-2)
    assert why(first) == ""
    assert (
        why(negative)
        == why(second)
        == (f"{LIBRARY} transforms another axis than a DFT specifies if that axis is negative or an input")
    )


@pytest.mark.parametrize("largest", [0, 1])
def test_equal_elements_of_topk_stand_in_order(largest: int) -> None:
    x = np.random.default_rng(0).integers(0, 5, (20, 40)).astype(np.float32)
    top = node("TopK", "x k", "v i", largest=largest)
    f = function(top, inputs={"x": tensor(20, 40)}, outputs=("v", "i"), constants={"k": np.array([9])})
    order = np.argsort(-x if largest else x, axis=1, kind="stable")[:, :9]
    values, places = run(infer_shapes(f), x)
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, 1))


@pytest.mark.parametrize("divisor", [2, 3, -7, 12345])
def test_wide_integers_divide_towards_zero(divisor: int) -> None:
    x = np.array([-(1 << 24), -100, -7, -1, 0, 1, 7, 100, 1 << 24])
    f = function(node("Div", "x c", "y"), inputs={"x": tensor(x.size, dtype=DType.INT64)}, constants={"c": np.array(divisor)})
    np.testing.assert_array_equal(run(infer_shapes(f), x)[0], np.trunc(x / divisor).astype(np.int64))


def test_each_place_of_a_definition_has_names_of_its_own() -> None:
    celus = node("Celu", "x", "y", alpha=1.0), node("Celu", "y", "z", alpha=1.0)
    f = infer_shapes(function(*celus, inputs={"x": tensor(3, dtype=DType.FLOAT16)}, outputs=("z",), opset=28))
    assert "Celu" not in [n.op for n in lower(f).nodes]
    x = np.array([-1, 0, 2], np.float16)
    once = np.where(x > 0, x, np.expm1(x))
    np.testing.assert_allclose(run(f, x)[0], np.where(once > 0, once, np.expm1(once)), rtol=1e-2)


def test_what_its_meaning_does_not_help_keeps_its_own_reason() -> None:
    wide = tensor(3, dtype=DType.FLOAT64)
    assert "float64 in float32" in why(one("HardSwish", wide, output=wide))


@pytest.mark.slow
def test_what_the_frontend_numbers_by_a_range_is_computed() -> None:
    f = one("ReduceSum", tensor(2, "n", 3), output=tensor(), keepdims=0)
    assert run(f, np.ones((2, 5, 3), np.float32))[0] == 30
    f = one("HannWindow", tensor(dtype=DType.INT64), output=tensor(None))
    assert run(f, np.array(4))[0].tolist() == pytest.approx([0, 0.5, 1, 0.5])


@pytest.mark.parametrize(
    ("op", "kernel", "extents", "text"),
    [("MaxPool", [3, 2], ("h", 7), "lies entirely in the padding"), ("LpPool", [2, 2], (7, 7), "beyond the padding")],
    ids=["of an unknown size", "behind padding"],
)
def test_poolings_whose_windows_reach_too_far_are_declined(op: str, kernel: list[int], extents: Any, text: str) -> None:
    options = {"kernel_shape": kernel, "strides": [2, 2], "ceil_mode": 1}
    assert text in why(one(op, tensor(1, 2, *extents), output=tensor(1, 2, None, None), opset=22, **options))


QUANTIZED_PRODUCT = [
    *(node("QuantizeLinear", "x step zero", "q"), node("DequantizeLinear", "q step zero", "d")),
    *(node("DequantizeLinear", "w steps", "e", axis=1), node("Relu", "e", "r"), node("MatMul", "d r", "y")),
]
MULTIPLIED = [*QUANTIZED_PRODUCT[:3], node("Mul", "two e", "r"), node("MatMul", "d r", "y")]
STEPS: dict[str, Any] = {"step": np.array(0.1, "f4"), "zero": np.array(0, "i1"), "steps": np.array([0.1, 0.2, 0.3], "f4")}
WEIGHTS: dict[str, Any] = {"w": np.ones((4, 3), np.int8)}


def by_weights(nodes: list[Node], *shape: int, **constants: Any) -> Function:
    """Return a product of a quantized input by weights with a scale for each column."""
    return infer_shapes(function(*nodes, inputs={"x": tensor(*shape)}, constants=STEPS | WEIGHTS | constants))


BYTES = tensor(2, dtype=DType.UINT8)
DECLINED = {
    "a quantized vector by weights with several scales": (by_weights(QUANTIZED_PRODUCT, 4), "one axis too many"),
    "a quantized vector by multiples of weights with several scales": (
        by_weights(MULTIPLIED, 4, two=np.array([2], "f4")),
        "one axis too many",
    ),
    "a range that leads away": (
        function(
            node("Range", "a b b", "y"),
            inputs={},
            outputs={"y": tensor("n", dtype=DType.INT64)},
            constants={"a": np.array(5), "b": np.array(1)},
        ),
        "counts the steps of a Range that lead away from its limit",
    ),
    "sums of bytes": (
        one("Add", BYTES, BYTES, output=BYTES),
        "computes Add in bfloat16, float16, float32, int32, int64, uint32, uint64, and 'x0' is uint8",
    ),
}


@pytest.mark.parametrize("case", DECLINED)
def test_ordinary_values_that_come_out_wrong_are_declined(case: str) -> None:
    f, reason = DECLINED[case]
    assert reason in why(f)


def test_other_products_of_weights_with_several_scales_are_supported() -> None:
    (y,) = run(by_weights(QUANTIZED_PRODUCT, 1, 4), np.ones((1, 4), np.float32))
    np.testing.assert_allclose(y, 4 * STEPS["steps"][None], rtol=1e-4)
    turned = [*QUANTIZED_PRODUCT[:3], node("MatMul", "e turn", "r"), node("MatMul", "d r", "y")]
    (y,) = run(by_weights(turned, 4, turn=np.eye(3, dtype="f4")), np.ones(4, np.float32))
    np.testing.assert_allclose(y, 4 * STEPS["steps"], rtol=1e-4)


def test_a_maximum_of_int32_and_a_product_of_sizes_are_supported() -> None:
    maximum = node("ReduceMax", "x a", "y", keepdims=0)
    f = function(maximum, inputs={"x": tensor(2, 3, dtype=DType.INT32)}, constants={"a": np.array([1])})
    assert run(infer_shapes(f), np.array([[1, 5, 2], [-3, -4, -9]], np.int32))[0].tolist() == [5, -3]
    nodes = node("Shape", "x", "s"), node("ReduceProd", "s", "y", keepdims=0)
    sizes = infer_shapes(function(*nodes, inputs={"x": tensor("n", "m")}))
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
