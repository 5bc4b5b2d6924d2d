"""The ort engine: its options, values, buffers, sessions, weights, forms, saving, and the suite."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

import xrt
from tests.engines import written
from tests.engines.written import CONTEXT, tensor
from tests.exact_errors import raises_exactly
from xrt import ops
from xrt.builder.tracing import trace
from xrt.cache import CompileCache, open_disk_tier
from xrt.engines import CompileContext, Executable, RunOptions
from xrt.engines.ort import Ort, engine as ort_engine
from xrt.engines.ort.engine import MIN_SAVED_CONSTANT_BYTES, MIN_SAVED_NODES, has_saturating_sums
from xrt.engines.ort.export import export_model, rewrite_for_session
from xrt.engines.toolkit.libraries import AllocationTracker
from xrt.errors import CompileRefused, OptionError, RunFailed
from xrt.formats.onnx.inference import infer_node_types
from xrt.graph import DType, Function, OptionalType, SequenceType, TensorType
from xrt.passes import infer_shapes
from xrt.testing.corpus.entry import node
from xrt.testing.suite import EngineSuite

SQUARE = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


function = partial(written.function, opset=21)
compiled = partial(written.compiled, Ort(), is_supported=True)
run = partial(written.run, Ort(), is_supported=True)


def relu() -> Function:
    return function(node("Relu", "x", "y"), inputs={"x": tensor("N", 3)})


NARROW = {
    DType.INT4: [-8, -1, 0, 7, 3],
    DType.UINT4: [15, 1, 0, 7, 3],
    DType.INT2: [-2, -1, 0, 1, 1],
    DType.UINT2: [3, 1, 0, 2, 1],
    DType.BFLOAT16: [-1.5, 256.0, 0, 1e30, 3],
    DType.FLOAT8E4M3FN: [-1.5, 448.0, 0, 2, 3],
    DType.FLOAT8E4M3FNUZ: [-1.5, 240.0, 0, 2, 3],
    DType.FLOAT8E5M2: [-1.5, 57344.0, 0, 2, 3],
    DType.FLOAT8E5M2FNUZ: [-1.5, 57344.0, 0, 2, 3],
    DType.FLOAT8E8M0: [1, 2, 4, 0.5, 8],
}


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("shape", [(5,), (1, 3), (), (0, 2)], ids=str)
def test_types_that_numpy_lacks_go_in_and_come_out(dtype: DType, shape: tuple[int, ...]) -> None:
    numbers = np.resize(np.array(NARROW[dtype], np.float32), shape)
    x = np.asarray(numbers.astype(dtype.numpy))
    casts = node("Cast", "x", "wide", to=DType.FLOAT32.onnx), node("Cast", "wide", "y", to=dtype.onnx)
    wide, y = run(function(*casts, inputs={"x": tensor(*shape, dtype=dtype)}, outputs=("wide", "y"), opset=25), x)
    assert np.array_equal(wide, numbers.astype(dtype.numpy).astype(np.float32))
    assert (y.dtype, y.shape) == (dtype.numpy, shape)
    assert y.tobytes() == x.tobytes()


def test_an_array_of_another_type_is_not_taken_for_its_bits() -> None:
    f = function(node("Cast", "x", "y", to=DType.FLOAT32.onnx), inputs={"x": tensor(2, dtype=DType.BFLOAT16)})
    with pytest.raises(RunFailed, match="an array of float16 was given for bfloat16"):
        run(f, np.zeros(2, np.float16))


def test_an_absent_optional_is_none_and_a_sequence_may_be_empty() -> None:
    nodes = [node("Identity", "o", "y"), node("OptionalHasElement", "o", "has"), node("SequenceInsert", "s x", "t")]
    inputs = {"o": OptionalType(tensor(2)), "s": SequenceType(TensorType(DType.FLOAT32)), "x": tensor(2)}
    executable, x = compiled(function(*nodes, inputs=inputs, outputs=("y", "has", "t"))), np.ones(2, np.float32)
    y, has, items = executable.run([None, [], x])
    assert (y, has.tolist(), [item.tolist() for item in items]) == (None, False, [[1, 1]])
    y, has, items = executable.run([x, [x], x])
    assert (y.tolist(), has.tolist(), len(items)) == ([1, 1], True, 2)


def test_buffers_serve_every_kind_of_output() -> None:
    casts = node("Cast", "x", "wide", to=DType.FLOAT32.onnx), node("Cast", "wide", "y", to=DType.BFLOAT16.onnx)
    inputs = {"x": tensor(3, dtype=DType.BFLOAT16)}
    f = function(*casts, inputs=inputs, outputs=("x", "c", "y", "y"), constants={"c": SQUARE}, opset=25)
    x = np.array([1, -2, 3], ml_dtypes.bfloat16)
    out = [np.zeros(3, ml_dtypes.bfloat16), np.zeros((2, 3), np.float32), None, np.zeros(3, ml_dtypes.bfloat16)]
    results = run(infer_shapes(f), x, options=RunOptions(out=out))
    assert [result is buffer for result, buffer in zip(results, out, strict=True)] == [True, True, False, True]
    assert [results[i].tolist() for i in (0, 2, 3)] == [x.tolist()] * 3
    assert np.array_equal(results[1], SQUARE)


def test_calls_into_fixed_buffers_take_any_strides() -> None:
    model = function(node("Relu", "x", "y"), inputs={"x": tensor(2, 3)})
    data, frozen = np.arange(-3, 3, dtype="float32").reshape(3, 2), SQUARE.copy()
    frozen.flags.writeable = False
    executable, buffer = Ort().compile(model, CONTEXT), np.empty((2, 3), "float32")
    into, bound = executable.bind_outputs([buffer]), executable.bind([frozen], [buffer])
    into(data.T)
    np.testing.assert_array_equal(buffer, np.maximum(data.T, 0))
    bound()
    np.testing.assert_array_equal(buffer, np.maximum(SQUARE, 0))


def test_equal_options_are_equal_engines_in_whatever_order() -> None:
    first = Ort(config={"session.disable_prepacking": True, "ep.x": 1})
    other = Ort(config={"ep.x": "1", "session.disable_prepacking": "1"})
    assert first == other
    assert hash(first) == hash(other)
    assert repr(first) == repr(other)


REFUSED = [
    ({"providers": "CPUExecutionProvide"}, (
        "ONNX Runtime has no execution provider 'CPUExecutionProvide' here. Did you mean 'CPUExecutionProvider'? Available: "
        f"{', '.join(onnxruntime.get_available_providers())}. Others come with other builds, such as onnxruntime-gpu.")),
    ({"providers": ()}, "providers of engine 'ort' must be one or more different names; got ()"),
    ({"config": {"session.intra_op.alow_spinning": 0}}, (
        "ONNX Runtime reads no session config entry 'session.intra_op.alow_spinning', and would ignore it. "
        "Did you mean 'session.intra_op.allow_spinning'? (Keys of an execution provider start with 'ep.'.)")),
    ({"config": {"session.load_model_format": "ORT"}}, (
        "engine 'ort' sets config entry 'session.load_model_format' itself: the engine passes the model itself, in "
        "ONNX's format; leave it out")),
    ({"provider_options": {"AzureExecutionProvider.x": 1}}, (
        "provider_options of engine 'ort' are named <provider>.<option>, for a provider in use (CPUExecutionProvider); "
        "got 'AzureExecutionProvider.x'")),
    ({"provider_options": {"CPUExecutionProvider.x": 1}},
     "ONNX Runtime's CPUExecutionProvider has no options, and would ignore 'x'; leave it out"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "text"), REFUSED, ids=lambda value: str(value)[:40])
def test_an_impossible_option_is_an_error_that_says_what_is_possible(options: dict[str, Any], text: str) -> None:
    with raises_exactly(OptionError, text):
        Ort(**options)


def test_options_reach_the_session() -> None:
    engine = Ort(optimization="basic", memory_arena=False, deterministic=True, config={"session.set_denormal_as_zero": 1})
    options = engine.make_session_options(3)
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 1)
    assert (options.enable_cpu_mem_arena, options.use_deterministic_compute) == (False, True)
    assert options.get_session_config_entry("session.set_denormal_as_zero") == "1"


DISABLED = "optimization.disable_specified_optimizers"


@pytest.mark.parametrize(
    ("key", "device", "value", "users"),
    [
        ("session.force_spinning_stop", "cpu", "1", "0"),  # spinning slows down what runs between two calls
        (DISABLED, "cpu", "SkipLayerNormFusion", "GeluFusion"),  # a slow kernel
    ],
)
def test_an_entry_of_the_session_has_the_value_of_the_engine_unless_the_user_says_otherwise(
    key: str, device: str, value: str, users: str
) -> None:
    assert Ort().make_session_options(1, device).get_session_config_entry(key) == value
    assert Ort(config={key: users}).make_session_options(1, device).get_session_config_entry(key) == users


@pytest.mark.parametrize("weights", ["dw", "exact", "turned"])
def test_biases_of_quantized_products_are_quantized_and_exact_weights_are_not(weights: str) -> None:
    nodes = [
        *(node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "d"), node("Transpose", "d", "m")),
        *(node("DequantizeLinear", "w s", "dw"), node("Transpose", "exact", "turned")),
        node("Gemm", f"m {weights} bias", "p"),
        *(node("QuantizeLinear", "p s z", "r"), node("DequantizeLinear", "r s z", "y")),
    ]
    numbers = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    constants = {"s": np.float32(1 / 32), "z": np.uint8(128), "w": np.round(31 * numbers).astype(np.int8)}
    constants |= {"exact": numbers**3, "bias": numbers[0]}
    model = infer_shapes(function(*nodes, inputs={"x": tensor(8, 8)}, constants=constants))
    disabled = Ort().make_session_options(1, function=model).get_session_config_entry(DISABLED)
    assert ("WeightBiasQuantization" in disabled) is (weights != "dw")
    with (
        xrt.XRTModule(model, engine="ort", strict=True, fold_constants=weights != "turned") as m,
        xrt.XRTModule(model, engine="toy") as reference,
    ):
        np.testing.assert_allclose(m(numbers), reference(numbers), atol=1 / 32)


def test_an_error_while_running_has_its_cause_and_its_sense() -> None:
    executable = compiled(relu())
    with pytest.raises(RunFailed) as error:
        executable.run([np.ones((2, 4), np.float32)])
    assert error.value.__cause__ is not None
    assert str(error.value) == (
        f"ONNX Runtime {onnxruntime.__version__} failed while it ran 'main': Got invalid dimensions for input: x for the "
        "following indices index: 1 Got: 4 Expected: 3 Please fix either the inputs/outputs or the model"
    )
    assert np.array_equal(executable.run([SQUARE])[0], np.maximum(SQUARE, 0))


PROCESS = """
import numpy as np
from xrt.engines import CompileContext
from xrt.engines.ort import Ort
from xrt.errors import CompileRefused
from xrt.testing.corpus.entry import graph, node
def relu(dtype): return graph({"x": dtype + "[2,3]"}, {"y": dtype + "[7]"}, node("Relu", "x", "y"))
f = relu("float32")
assert Ort().why_not(f.nodes[0], f) is None
executable = Ort().compile(f, CompileContext(threads=2))
assert executable.run([np.full((2, 3), -1, np.float32)])[0].shape == (2, 3)
assert Ort().why_not(f.nodes[0], relu("uint16")) is not None
try: Ort().compile(relu("uint16"), CompileContext())
except CompileRefused: pass
else: raise SystemExit("not refused")
"""


@pytest.mark.slow
def test_nothing_is_printed() -> None:
    completed = subprocess.run([sys.executable, "-c", PROCESS], capture_output=True, text=True, check=False)
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "", "")


def test_a_lack_of_device_memory_is_no_refusal_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    shortage = Fail("[ONNXRuntimeError] : 1 : FAIL : CUDA failure 2: out of memory ; GPU=0")
    monkeypatch.setattr("xrt.engines.ort.session.InferenceSession", Mock(side_effect=shortage))
    with pytest.raises(Fail, match="CUDA failure 2: out of memory"):
        Ort().compile(relu(), CONTEXT)


def test_sessions_opened_at_once_share_what_they_have_grown_by() -> None:
    weights = np.random.default_rng(0).standard_normal((2048, 2048), np.float32)
    f = function(node("MatMul", "x w", "y"), inputs={"x": tensor("N", 2048)}, constants={"w": weights})
    compiled(f)
    # The growth is that of the process: garbage of other tests that goes in the meantime is taken off it. Bounds are wide.
    gc.collect()
    assert weights.nbytes / 2 <= _session_bytes(compiled(f)) <= 2 * weights.nbytes
    gc.collect()
    with AllocationTracker():
        first, second = compiled(f), compiled(f)
        assert [_session_bytes(executable) for executable in (first, second)] == [0, 0]  # not known before all are open
    assert _session_bytes(first) == _session_bytes(second) >= weights.nbytes / 2
    with AllocationTracker() as opened, suppress(CompileRefused), AllocationTracker() as failed:
        raise CompileRefused("no")
    assert failed.nbytes is None and opened.nbytes is not None, "one that does not open has not grown"


def _session_bytes(executable: Executable) -> int:
    return next(use.nbytes or 0 for use in executable.memory() or () if use.name == "session")


def test_large_constants_of_bodies_and_packed_ones_are_handed_over_outside_of_the_model() -> None:
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((64, 64)).astype(np.float32) for _ in range(2)]
    packed = (np.arange(4096) % 16 - 8).astype(ml_dtypes.int4)
    then, other = (
        function(node("MatMul", "x w", name), inputs={}, outputs={name: tensor(2, 64)}, constants={"w": w})
        for name, w in zip(("first", "second"), weights, strict=True)
    )
    f = function(
        *(node("If", "c", "y", then_branch=then, else_branch=other), node("DequantizeLinear", "q scale", "z")),
        inputs={"x": tensor(2, 64), "c": tensor(dtype=DType.BOOL), "scale": tensor()},
        outputs=("y", "z"),
        constants={"q": packed},
    )
    export = export_model(f)
    assert len(export.model) < 2000
    assert sorted(content.nbytes for content in export.files.values()) == [2048, 64 * 64 * 4, 64 * 64 * 4]
    assert export.copied == 2048
    executable = compiled(f)
    x = rng.standard_normal((2, 64)).astype(np.float32)
    for choice, w in zip((True, False), weights, strict=True):
        y, z = executable.run([x, np.array(choice), np.array(1, np.float32)])
        assert np.allclose(y, x @ w, atol=1e-4)
        assert np.array_equal(z, packed.astype(np.float32))
    assert [use.name for use in executable.memory() or ()] == ["copied weights", "session", "workspace"]


def test_the_library_is_not_given_the_shapes_of_inner_values() -> None:
    """It would compare them with each result of each call, 40 ns a node."""
    value = tensor(2, 3)
    f = function(node("Neg", "x", "n"), node("Abs", "n", "y"), inputs={"x": value}, outputs={"y": value}, types={"n": value})
    (inner,) = onnx.load_from_string(export_model(f).model).graph.value_info
    assert inner.name == "n" and not inner.type.tensor_type.HasField("shape")


FORMS = {
    "a convolution with few results": (lambda x: ops.Conv(x, ops.Neg(x), pads=[1, 0, 0, 1]), (3, 2, 6, 7), "Gemm", "Conv"),
    "a sum over leading axes": (lambda x: ops.ReduceSum(x, [0]), (20, 3), "MatMul", "ReduceSum"),
    "many results": (lambda x: ops.Conv(x, ops.Slice(x, [0, 0], [3, 3], [2, 3])), (1, 2, 8, 8), "Conv", "Gemm"),
    "constant weights": (lambda x: ops.Conv(x, np.ones((3, 2, 5, 5), np.float32)), (1, 2, 6, 6), "Conv", "Gemm"),
    # In a convolution of bytes it took 276 us as a product, and 23 us as it was.
    "dequantized weights": (
        lambda x: ops.Conv(x, ops.DequantizeLinear(ops.Cast(x, to="int8"), np.float32(0.5))), (1, 2, 6, 6), "Conv", "Gemm"
    ),
    "trailing axes": (lambda x: ops.ReduceSum(x, [1]), (20, 3), "ReduceSum", "MatMul"),
    "few terms": (lambda x: ops.ReduceSum(x, [0]), (15, 9), "ReduceSum", "MatMul"),
    "integers": (lambda x: ops.ReduceSum(ops.Cast(x, to="int64"), [0]), (20, 3), "ReduceSum", "MatMul"),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_an_operator_is_a_product_where_that_is_faster_and_itself_elsewhere(form: str) -> None:
    build, shape, present, absent = FORMS[form]
    traced = infer_shapes(trace(build, np.ones(shape, np.float32), inference=infer_node_types))
    operators = [n.op for n in rewrite_for_session(traced).nodes]
    assert present in operators and absent not in operators


X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def chain(length: int, constant: int = 4) -> Function:
    """Return a sum with a constant of so many elements, and Tanh after Tanh."""
    nodes = [node("Slice", "c zero four", "part"), node("Add", "x part", "v1")]
    nodes += [node("Tanh", f"v{n}", f"v{n + 1}") for n in range(1, length - 1)]
    constants = {"c": np.arange(constant, dtype=np.float32), "zero": np.array([0]), "four": np.array([4])}
    ends = {"inputs": {"x": tensor(3, 4)}, "outputs": {f"v{length - 1}": tensor(3, 4)}}
    return function(*nodes, **ends, constants=constants, opset=17)


@pytest.mark.parametrize(
    ("length", "constant", "writes"), [(4, 4, 0), (MIN_SAVED_NODES, 4, 1), (4, MIN_SAVED_CONSTANT_BYTES // 4, 1)]
)
def test_the_disk_cache_keeps_what_is_worth_saving(length: int, constant: int, writes: int, tmp_path: Path) -> None:
    for starts in (1, 2):
        cache = CompileCache(disk=open_disk_tier(directory=tmp_path))
        with xrt.XRTModule(chain(length, constant), engine="ort", strict=True, cache=cache, fold_constants=False) as module:
            module(X)
        output = cache.statistics.disk
        assert (output.writes, output.hits) == ((writes, 0) if starts == 1 else (0, writes))


def test_what_is_kept_is_optimized_once_and_computes_the_same(tmp_path: Path) -> None:
    function, context = chain(MIN_SAVED_NODES), CompileContext(threads=1)
    saved = Ort().compile(function, replace(context, is_kept=True))
    data = Ort().save(saved, replace(context, workdir=tmp_path))
    assert saved.saved is data
    assert not list(tmp_path.iterdir()), "the work of the compile is what is saved"
    (expected,) = Ort().compile(function, context).run([X])
    for executable in (saved, Ort().load(memoryview(bytes(data)), function, context)):
        np.testing.assert_array_equal(executable.run([X])[0], expected)


def test_where_it_cannot_be_optimized_beforehand_the_model_itself_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> memoryview:
        raise RuntimeError("no such model")

    monkeypatch.setattr(ort_engine, "optimize_model", fail)
    executable = Ort().compile(chain(MIN_SAVED_NODES), CompileContext(threads=1, is_kept=True))
    assert executable.saved is None
    assert executable.run([X])[0].shape == X.shape


@pytest.mark.slow
class TestOrt(EngineSuite):
    engine = "ort"
    test_conformance = None  # run in tests/conformance
    test_node_tests_with_symbolic_dims = None


@pytest.mark.parametrize(
    ("flags", "is_saturating"),
    [("fpu avx2 avx512_vnni", False), ("fpu avx2 avx_vnni", False), ("fpu avx2 avx512f", True), (None, True)],
)
def test_sums_of_bytes_are_made_exact_only_where_they_saturate(flags: str | None, is_saturating: bool, tmp_path: Path) -> None:
    """The setting for exact sums halves the speed of quantized models on processors with VNNI, which do not need it."""
    info = tmp_path / "cpuinfo"
    if flags is not None:
        info.write_text(f"processor : 0\nflags : {flags}\n")
    assert has_saturating_sums(info) == (is_saturating and platform.machine() == "x86_64")
