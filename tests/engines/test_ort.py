"""The ort engine: its options, values, buffers, sessions, weights, forms, saving, and the suite."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest

import xrt
from tests.engines.written import node
from xrt import ops
from xrt.builder.tracing import trace
from xrt.cache import CompileCache, open_disk_tier
from xrt.engines import CompileContext, Executable, ExecutionOptions, RunOptions
from xrt.engines.ort import Ort, engine as ort_engine
from xrt.engines.ort.engine import WORTH_LAYING_OUT, WORTH_SAVING, has_saturating_sums
from xrt.engines.ort.executable import OrtExecutable
from xrt.engines.ort.export import export_model, session_function
from xrt.engines.toolkit.libraries import AllocationTracker
from xrt.errors import CompileRefused, OptionError, RunFailed
from xrt.formats.onnx.inference import node_types
from xrt.graph import Constant, DType, Function, Node, OptionalType, SequenceType, TensorType, Type, Value, read_attributes
from xrt.passes import infer_shapes
from xrt.testing.suite import EngineSuite

__all__ = ["F32", "function", "node"]

F32 = DType.FLOAT32
CONTEXT = CompileContext(threads=2)
SQUARE = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


def function(
    inputs: dict[str, Type | None],
    outputs: Sequence[str],
    nodes: Sequence[Node],
    constants: dict[str, np.ndarray[Any, Any]] | None = None,
    opset: int = 21,
    **opsets: int,
) -> Function:
    return Function(
        tuple(Value(name, type_) for name, type_ in inputs.items()),
        tuple(Value(name) for name in outputs),
        tuple(nodes),
        {name: Constant(array) for name, array in (constants or {}).items()},
        {"": opset, **{domain.replace("_", "."): version for domain, version in opsets.items()}},
    )


def relu() -> Function:
    return function({"x": TensorType(F32, ("N", 3))}, ["y"], [node("Relu", "x", "y")])


def compiled(f: Function) -> OrtExecutable:
    assert [Ort().why_not(n, f) for n in f.nodes] == [None] * len(f.nodes)
    executable = Ort().compile(f, CONTEXT)
    executable.prepare()
    return executable


def run(f: Function, *inputs: Any) -> Sequence[Any]:
    return compiled(f).run(inputs)


# ---------------------------------------------------------------------- values in and out


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
    widen = node("Cast", "x", "wide", to=F32.onnx)
    narrow = node("Cast", "wide", "y", to=dtype.onnx)
    wide, y = run(function({"x": TensorType(dtype, shape)}, ["wide", "y"], [widen, narrow], opset=25), x)
    assert np.array_equal(wide, numbers.astype(dtype.numpy).astype(np.float32))
    assert (y.dtype, y.shape) == (dtype.numpy, shape)
    assert y.tobytes() == x.tobytes()


def test_an_array_of_another_type_is_not_taken_for_its_bits() -> None:
    f = function({"x": TensorType(DType.BFLOAT16, (2,))}, ["y"], [node("Cast", "x", "y", to=F32.onnx)])
    with pytest.raises(RunFailed, match="an array of float16 was given for bfloat16"):
        run(f, np.zeros(2, np.float16))


def test_an_absent_optional_is_none_and_a_sequence_may_be_empty() -> None:
    nodes = [node("Identity", "o", "y"), node("OptionalHasElement", "o", "has"), node("SequenceInsert", "s x", "t")]
    inputs = {"o": OptionalType(TensorType(F32, (2,))), "s": SequenceType(TensorType(F32)), "x": TensorType(F32, (2,))}
    executable, x = compiled(function(inputs, ["y", "has", "t"], nodes)), np.ones(2, np.float32)
    y, has, items = executable.run([None, [], x])
    assert (y, has.tolist(), [item.tolist() for item in items]) == (None, False, [[1, 1]])
    y, has, items = executable.run([x, [x], x])
    assert (y.tolist(), has.tolist(), len(items)) == ([1, 1], True, 2)


# ---------------------------------------------------------------------- shapes of regions


def test_corners_are_aligned_in_a_batch_of_any_size() -> None:
    how = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    scales = np.array([1, 1, 2, 2], np.float32)
    f = function(
        {"x": TensorType(F32, ("N", 1, 2, 2))},
        ["y"],
        [Node("Resize", ("x", "", "s"), ("y",), read_attributes(how))],
        {"s": scales},
    )
    executable = compiled(f)
    for batch in (1, 3):
        x = np.arange(batch * 4, dtype=np.float32).reshape(batch, 1, 2, 2)
        (y,) = executable.run([x])
        np.testing.assert_allclose(y[-1, 0, :, 0], np.linspace(x[-1, 0, 0, 0], x[-1, 0, 1, 0], 4), rtol=1e-6)


# ---------------------------------------------------------------------- learned models


def test_buffers_serve_every_kind_of_output() -> None:
    f = function(
        {"x": TensorType(DType.BFLOAT16, (3,))},
        ["x", "c", "y", "y"],
        [node("Cast", "x", "wide", to=F32.onnx), node("Cast", "wide", "y", to=DType.BFLOAT16.onnx)],
        {"c": SQUARE},
        opset=25,
    )
    x = np.array([1, -2, 3], ml_dtypes.bfloat16)
    out = [np.zeros(3, ml_dtypes.bfloat16), np.zeros((2, 3), np.float32), None, np.zeros(3, ml_dtypes.bfloat16)]
    results = compiled(infer_shapes(f)).run([x], RunOptions(out=out))
    assert [result is buffer for result, buffer in zip(results, out, strict=True)] == [True, True, False, True]
    assert [results[i].tolist() for i in (0, 2, 3)] == [x.tolist()] * 3
    assert np.array_equal(results[1], SQUARE)


def test_calls_into_fixed_buffers_take_any_strides_and_go_the_public_way_where_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = function({"x": TensorType(F32, (2, 3))}, ["y"], [Node("Relu", ("x",), ("y",))])
    data, frozen = np.arange(-3, 3, dtype="float32").reshape(3, 2), SQUARE.copy()
    frozen.flags.writeable = False
    for private in (True, False):
        if not private:
            monkeypatch.setattr("xrt.engines.ort.executable.getattr", lambda item, name, default: default, raising=False)
        executable, buffer = Ort().compile(model, CONTEXT), np.empty((2, 3), "float32")
        np.testing.assert_array_equal(executable.run([SQUARE])[0], np.maximum(SQUARE, 0))
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
    (
        {"providers": "CPUExecutionProvide"},
        (
            "ONNX Runtime has no execution provider 'CPUExecutionProvide' here. Did you mean 'CPUExecutionProvider'? Available: "
            f"{', '.join(onnxruntime.get_available_providers())}. Others come with other builds, such as onnxruntime-gpu."
        ),
    ),
    ({"providers": ()}, "providers of engine 'ort' must be one or more different names; got ()"),
    ({"providers": 3}, "providers of engine 'ort' must be a tuple of names; got 3"),
    (
        {"inter_op_threads": 2},
        "inter_op_threads=2 of engine 'ort' has a meaning only with execution_mode='parallel'; it is 'sequential'",
    ),
    ({"config": "x"}, "config of engine 'ort' must map names to values; got 'x'"),
    (
        {"config": {"session.intra_op.alow_spinning": 0}},
        (
            "ONNX Runtime reads no session config entry 'session.intra_op.alow_spinning', and would ignore it. "
            "Did you mean 'session.intra_op.allow_spinning'? (Keys of an execution provider start with 'ep.'.)"
        ),
    ),
    (
        {"config": {"session.load_model_format": "ORT"}},
        (
            "engine 'ort' sets config entry 'session.load_model_format' itself: the engine passes the model itself, in "
            "ONNX's format; leave it out"
        ),
    ),
    (
        {"provider_options": {"AzureExecutionProvider.x": 1}},
        (
            "provider_options of engine 'ort' are named <provider>.<option>, for a provider in use (CPUExecutionProvider); "
            "got 'AzureExecutionProvider.x'"
        ),
    ),
    (
        {"provider_options": {"CPUExecutionProvider.x": 1}},
        "ONNX Runtime's CPUExecutionProvider has no options of its own, and would ignore 'x'; leave it out",
    ),
]


@pytest.mark.parametrize(("options", "text"), REFUSED, ids=lambda value: str(value)[:40])
def test_an_impossible_option_is_an_error_that_says_what_is_possible(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError) as error:
        Ort(**options)
    assert str(error.value) == text


def test_options_reach_the_session() -> None:
    engine = Ort(optimization="basic", memory_arena=False, deterministic=True, config={"session.set_denormal_as_zero": 1})
    options = engine.make_session_options(3)
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 1)
    assert (options.enable_cpu_mem_arena, options.enable_mem_pattern, options.use_deterministic_compute) == (False, True, True)
    assert options.get_session_config_entry("session.set_denormal_as_zero") == "1"
    parallel = Ort(execution_mode="parallel").make_session_options(3)
    assert (parallel.execution_mode, parallel.inter_op_num_threads) == (onnxruntime.ExecutionMode.ORT_PARALLEL, 3)


def test_spinning_is_stopped_unless_the_user_says_otherwise() -> None:
    key = "session.force_spinning_stop"
    assert Ort().make_session_options(1).get_session_config_entry(key) == "1"
    assert Ort(config={key: 0}).make_session_options(1).get_session_config_entry(key) == "0"


def test_weights_are_not_quantized_and_a_slow_fused_kernel_is_not_used_on_the_cpu() -> None:
    key = "optimization.disable_specified_optimizers"
    assert Ort().make_session_options(1).get_session_config_entry(key) == "WeightBiasQuantization;SkipLayerNormFusion"
    assert Ort(config={key: "GeluFusion"}).make_session_options(1).get_session_config_entry(key) == "GeluFusion"
    assert Ort().make_session_options(1, "cuda:0").get_session_config_entry(key) == "WeightBiasQuantization"


def test_execution_options_that_are_not_honoured_are_named() -> None:
    def answer(**options: Any) -> str | None:
        return Ort().unsupported_options(CompileContext(ExecutionOptions(**options)))

    assert answer(threads=1) is None
    assert answer(precision="fp16") == ("engine 'ort' computes in the model's own types: it does not honour precision='fp16'")


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


def test_what_cannot_cross_is_refused_at_compile() -> None:
    f = function({"x": None}, ["y"], [node("Relu", "x", "y")])
    with pytest.raises(CompileRefused, match="the type of input 'x' is not known"):
        Ort().compile(f, CONTEXT)
    f = function({"x": TensorType(DType.COMPLEX64, (2,))}, ["y"], [node("Identity", "x", "y")])
    with pytest.raises(CompileRefused, match="cannot pass 'x' in or out"):
        Ort().compile(f, CONTEXT)
    f = Function(
        (Value("s", SequenceType(TensorType(F32))),),
        (Value("y", TensorType(DType.BFLOAT16)),),
        (node("SequenceAt", "s i", "x"), node("Cast", "x", "y", to=DType.BFLOAT16.onnx)),
        {"i": Constant(np.array(0))},
        {"": 21},
    )
    with pytest.raises(CompileRefused) as error:
        Ort().compile(f, CONTEXT)
    assert str(error.value) == (
        "'y' of type bfloat16[...] comes out only by binding, and ONNX Runtime's Python interface cannot bind 's' with it, "
        "which is not a tensor of numbers"
    )


def test_what_the_library_declines_is_refused_in_few_words() -> None:
    f = function({"x": TensorType(DType.UINT16, (2,))}, ["y"], [Node("Relu", ("x",), ("y",), name="r")])
    with pytest.raises(CompileRefused) as error:
        Ort().compile(f, CONTEXT)
    assert len(str(error.value)) < 300
    assert "r" in str(error.value)


PROCESS = """
import sys, numpy as np, onnxruntime
if "pool" in sys.argv: onnxruntime.set_global_thread_pool_sizes(2, 1)
from xrt.engines import CompileContext
from xrt.engines.ort import Ort
from xrt.errors import CompileRefused
from xrt.graph import DType, Function, Node, TensorType, Value
def relu(dtype):
    t = TensorType(dtype, (2, 3))
    return Function((Value("x", t),), (Value("y", TensorType(dtype, (7,))),), (Node("Relu", ("x",), ("y",)),), opsets={"": 18})
f = relu(DType.FLOAT32)
assert Ort().why_not(f.nodes[0], f) is None
executable = Ort().compile(f, CompileContext(threads=2))
assert executable.run([np.full((2, 3), -1, np.float32)])[0].shape == (2, 3)
assert Ort().why_not(f.nodes[0], relu(DType.UINT16)) is not None
try: Ort().compile(relu(DType.UINT16), CompileContext())
except CompileRefused: pass
else: raise SystemExit("not refused")
"""


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["pool"]], ids=["own threads", "the process's pool"])
def test_nothing_is_printed(arguments: list[str]) -> None:
    completed = subprocess.run([sys.executable, "-c", PROCESS, *arguments], capture_output=True, text=True, check=False)
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "", "")


def test_sessions_opened_at_once_share_what_they_have_grown_by() -> None:
    weights = np.random.default_rng(0).standard_normal((2048, 2048), np.float32)

    def product(columns: int) -> Function:
        types = {"x": TensorType(F32, ("N", 2048))}
        return function(types, ["y"], [node("MatMul", "x w", "y")], {"w": weights[:, :columns].copy()})

    compiled(product(2048))
    # The growth is that of the process: garbage of other tests that goes in the meantime is taken off it. Bounds are wide.
    gc.collect()
    alone = _session_bytes(compiled(product(2048)))
    assert weights.nbytes / 2 <= alone <= 2 * weights.nbytes
    functions = product(2048), product(1024)
    gc.collect()
    with AllocationTracker(1):
        selected = list(map(compiled, functions))
        assert [_session_bytes(executable) for executable in selected] == [0, 0]  # not known before all are open
    large, small = (_session_bytes(executable) for executable in selected)
    assert large == pytest.approx(2 * small, rel=0.01)
    assert 0.75 * weights.nbytes <= large + small <= 3 * weights.nbytes
    with AllocationTracker(1) as opened, suppress(CompileRefused), AllocationTracker(1) as failed:
        raise CompileRefused("no")
    assert failed.nbytes is None and opened.nbytes is not None, "one that does not open has not grown"


def _session_bytes(executable: Executable) -> int:
    return next(use.nbytes or 0 for use in executable.memory() or () if use.name == "session")


def test_large_constants_of_bodies_and_packed_ones_are_handed_over_outside_of_the_model() -> None:
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((64, 64)).astype(np.float32) for _ in range(2)]
    packed = (np.arange(4096) % 16 - 8).astype(ml_dtypes.int4)
    value = TensorType(F32, (2, 64))
    bodies = [
        Function((), (Value(f"y{i}", value),), (node("MatMul", "x w", f"y{i}"),), {"w": Constant(w)}, {"": 21}, name=f"b{i}")
        for i, w in enumerate(weights)
    ]
    f = function(
        {"x": value, "c": TensorType(DType.BOOL, ()), "scale": TensorType(F32, ())},
        ["y", "z"],
        [
            node("If", "c", "y").with_attributes(then_branch=bodies[0], else_branch=bodies[1]),
            node("DequantizeLinear", "q scale", "z"),
        ],
        {"q": packed},
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
    value = TensorType(F32, (2, 3))
    f = function({"x": value}, ["y"], [node("Neg", "x", "n"), node("Abs", "n", "y")]).replace(types={"n": value})
    (inner,) = onnx.load_from_string(export_model(f).model).graph.value_info
    assert inner.name == "n" and not inner.type.tensor_type.HasField("shape")


DRAW = np.random.default_rng(5)
Array = np.ndarray[Any, Any]


def f(*shape: int) -> Array:
    return DRAW.standard_normal(shape).astype("float32")


def make(build: Callable[..., Any], *inputs: Any) -> Function:
    return infer_shapes(trace(build, *inputs, inference=node_types))


def list_operators(function: Function) -> list[str]:
    return [node.op for node in session_function(function).nodes]


# ---------------------------------------------------------------------- forms that are faster


FASTER = {
    "a convolution with few results": (lambda x: ops.Conv(x, ops.Neg(x), pads=[1, 0, 0, 1]), (3, 2, 6, 7), "Gemm", "Conv"),
    "a sum over leading axes": (lambda x: ops.ReduceSum(x, [0]), (20, 3), "MatMul", "ReduceSum"),
}


@pytest.mark.parametrize("form", FASTER)
def test_a_faster_form_is_a_product(form: str) -> None:
    build, shape, present, absent = FASTER[form]
    operators = list_operators(make(build, f(*shape)))
    assert present in operators and absent not in operators


SLOWER = {
    "many results": (lambda x: ops.Conv(x, ops.Slice(x, [0, 0], [3, 3], [2, 3])), (1, 2, 8, 8), "Conv"),
    "constant weights": (lambda x: ops.Conv(x, f(3, 2, 5, 5)), (1, 2, 6, 6), "Conv"),
    # In a convolution of bytes it took 276 us as a product, and 23 us as it was.
    "dequantized weights": (
        lambda x: ops.Conv(x, ops.DequantizeLinear(ops.Cast(x, to="int8"), np.float32(0.5))),
        (1, 2, 6, 6),
        "Conv",
    ),
    "trailing axes": (lambda x: ops.ReduceSum(x, [1]), (20, 3), "ReduceSum"),
    "few terms": (lambda x: ops.ReduceSum(x, [0]), (15, 9), "ReduceSum"),
    "integers": (lambda x: ops.ReduceSum(ops.Cast(x, to="int64"), [0]), (20, 3), "ReduceSum"),
}


@pytest.mark.parametrize("form", SLOWER)
def test_where_a_product_is_slower_the_operator_stays(form: str) -> None:
    build, shape, operator = SLOWER[form]
    assert operator in list_operators(make(build, f(*shape)))


X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def chain(length: int, constant: int = 4) -> Function:
    """Return a sum with a constant of so many elements, and Tanh after Tanh."""
    value = TensorType(DType.FLOAT32, (3, 4))
    nodes = [Node("Slice", ("c", "zero", "four"), ("part",)), Node("Add", ("x", "part"), ("v1",))]
    nodes += [Node("Tanh", (f"v{n}",), (f"v{n + 1}",)) for n in range(1, length - 1)]
    constants = {"c": np.arange(constant, dtype=np.float32), "zero": np.array([0]), "four": np.array([4])}
    held = {name: Constant(array) for name, array in constants.items()}
    return Function((Value("x", value),), (Value(f"v{length - 1}", value),), tuple(nodes), held, {"": 17})


def compile_model(function: Function, context: CompileContext) -> OrtExecutable:
    executable = Ort().compile(function, context)
    assert isinstance(executable, OrtExecutable)
    return executable


@pytest.mark.parametrize(("length", "constant", "writes"), [(4, 4, 0), (WORTH_SAVING, 4, 1), (4, WORTH_LAYING_OUT // 4, 1)])
def test_the_disk_cache_keeps_what_is_worth_saving(length: int, constant: int, writes: int, tmp_path: Path) -> None:
    for starts in (1, 2):
        cache = CompileCache(disk=open_disk_tier(directory=tmp_path))
        with xrt.XRTModule(chain(length, constant), engine="ort", strict=True, cache=cache, fold_constants=False) as module:
            module(X)
        output = cache.statistics.disk
        assert (output.writes, output.hits) == ((writes, 0) if starts == 1 else (0, writes))


def test_what_is_kept_is_optimized_once_and_computes_the_same(tmp_path: Path) -> None:
    function, context = chain(WORTH_SAVING), CompileContext(threads=1)
    saved = compile_model(function, replace(context, is_kept=True))
    data = Ort().save(saved, replace(context, workdir=tmp_path))
    assert saved.saved is data
    assert not list(tmp_path.iterdir()), "the work of the compile is what is saved"
    (expected,) = compile_model(function, context).run([X])
    for executable in (saved, Ort().load(memoryview(bytes(data)), function, context)):
        np.testing.assert_array_equal(executable.run([X])[0], expected)


def test_where_it_cannot_be_optimized_beforehand_the_model_itself_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> memoryview:
        raise RuntimeError("no such model")

    monkeypatch.setattr(ort_engine, "optimize_model", fail)
    executable = compile_model(chain(WORTH_SAVING), CompileContext(threads=1, is_kept=True))
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
