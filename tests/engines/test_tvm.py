"""The tvm engine: its options and reasons, loops, numbers, results in memory, threads, and the suite."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm.tirx import PrimFunc

from tests.conformance.sample import with_constants
from tests.engines import written
from tests.engines.written import CONTEXT, Array, function, node, one, tensor
from tools.known_failures import list_known_failures
from xrt.engines import CompileContext, RunOptions
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.engines.tvm import Tvm
from xrt.errors import CompileRefused, OptionError
from xrt.graph import DType, Function
from xrt.passes import infer_shapes
from xrt.testing import ConformanceReport, KnownFailure, ResultWord, node_cases, run_case, settle
from xrt.testing.conformance import run_single
from xrt.testing.suite import EngineSuite

TVM = Tvm()
compiled, run, why = (partial(helper, TVM) for helper in (written.compiled, written.run, written.why))


def test_an_unknown_processor_is_reported_with_its_neighbour() -> None:
    with pytest.raises(OptionError) as error:
        Tvm(mcpu="x86-64-v33")
    assert str(error.value).startswith("tvm: mcpu='x86-64-v33' is not a processor that LLVM knows. Did you mean 'x86-64-v")


def test_a_processor_whose_code_this_one_cannot_run_is_reported() -> None:
    with pytest.raises(OptionError, match=r"^tvm: mcpu='diamondrapids' needs .*amx.*, which this processor does not have$"):
        Tvm(mcpu="diamondrapids")


@pytest.mark.slow
def test_the_level_decides_on_fusion(monkeypatch: pytest.MonkeyPatch) -> None:
    from xrt.engines.tvm import pipeline

    functions: list[int] = []
    build = pipeline.relax.build

    def counting(module: Any, *rest: Any, **options: Any) -> Any:
        loops = [name.name_hint for name, f in module.functions.items() if isinstance(f, PrimFunc)]
        functions.append(sum(not name.endswith("_over_0") for name in loops))
        return build(module, *rest, **options)

    monkeypatch.setattr(pipeline.relax, "build", counting)
    x = np.arange(8, dtype=np.float32)
    chain = node("Abs", "x", "a"), node("Sqrt", "a", "b"), node("Neg", "b", "y")
    f = infer_shapes(function(*chain, inputs={"x": tensor(8)}))
    for level in (0, 3):
        assert np.allclose(written.run(Tvm(opt_level=level), f, x)[0], -np.sqrt(x))
    assert functions == [3, 1]


@pytest.mark.slow
def test_code_for_an_older_processor_runs() -> None:
    x, relu = np.linspace(-1, 1, 64, dtype=np.float32), one("Relu", tensor(64), output=tensor(64))
    assert np.allclose(written.run(Tvm(mcpu="x86-64-v2"), relu, x)[0], np.maximum(x, 0))


SHIFT = function(node("BitShift", "x x", "y", direction="LEFT"), inputs={"x": tensor(3, dtype=DType.INT32)})
THIRDS = function(
    node("Resize", "x - s", "y"), inputs={"x": tensor(1, 1, 2, 2)}, constants={"s": np.array([1, 1, 3, 3], np.float32)}
)


@pytest.mark.parametrize(
    ("f", "reason"),
    [
        (SHIFT, "TVM's result of a shift by the width of the type or more depends on the processor"),
        (THIRDS, "TVM rounds the position of the nearest element, so that ties depend on the processor"),
    ],
)
def test_what_depends_on_the_processor_is_declined(f: Function, reason: str) -> None:
    assert why(infer_shapes(f)) == reason


@pytest.mark.parametrize("amount", [1, 31])
def test_a_shift_by_a_constant_is_taken(amount: int) -> None:
    shift = node("BitShift", "x a", "y", direction="RIGHT")
    constants = {"a": np.array(amount, np.uint32)}
    f = infer_shapes(function(shift, inputs={"x": tensor(2, dtype=DType.UINT32)}, constants=constants, opset=18))
    x = np.array([8, 1 << 31], np.uint32)
    assert run(f, x)[0].tolist() == (x >> amount).tolist()


@pytest.mark.slow
def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    assert why(one("LpNormalization", tensor(7)))
    assert why(one("Pad", tensor(7), tensor(2, dtype=DType.INT64)))
    inputs, outputs = {"x": tensor(3)}, {"y": tensor(3)}
    indices = {"i": np.array([1, -1, 0])}
    run(function(node("Gather", "x i", "y"), inputs=inputs, outputs=outputs, constants=indices), np.ones(3, np.float32))
    cube = function(node("Pow", "x e", "y"), inputs=inputs, outputs=outputs, constants={"e": np.array(3, np.float32)})
    assert run(cube, np.array([1, 2, -3], np.float32))[0].tolist() == [1, 8, -27]
    assert why(one("ReduceMax", tensor(3, dtype=DType.BOOL), output=tensor(1, dtype=DType.BOOL), opset=20)) == (
        "TVM does not support this ReduceMax: Cannot decide min_value for typeT.bool"
    )
    assert capfd.readouterr() == ("", "")


def test_one_thread_makes_serial_loops() -> None:
    import tvm

    x = np.ones((512, 512), np.float32)
    executable = Tvm().compile(one("Relu", tensor(512, 512), output=tensor(512, 512)), CompileContext(threads=1))
    executable.run([x])
    assert tvm.get_global_func("runtime.NumThreads")() == 1


def test_a_loaded_library_is_unmapped_with_its_executable(tmp_path: Path) -> None:
    """A process that loads from its cache all day would otherwise run out of mappings."""
    context = CompileContext(threads=1, workdir=tmp_path)
    f = one("Relu", tensor(4, 4), output=tensor(4, 4))
    loaded = Tvm().load(memoryview(Tvm().save(Tvm().compile(f, context), context)), f, context)
    (result,) = loaded.run([-np.ones((4, 4), np.float32)])
    assert str(tmp_path) in Path("/proc/self/maps").read_text()
    del loaded
    gc.collect()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    np.testing.assert_array_equal(result, np.zeros((4, 4)))


def test_a_function_without_code_is_not_saved(tmp_path: Path) -> None:
    constants = {"c": np.float32(3), "axes": np.zeros(1, np.int64)}
    f = function(node("Unsqueeze", "c axes", "y"), inputs={}, outputs={"y": tensor(1)}, constants=constants)
    executable = Tvm().compile(f, CONTEXT)
    try:
        with pytest.raises(CompileRefused, match=r"^TVM writes no object file for a module of kind '\w+', which has no code$"):
            Tvm().save(executable, CompileContext(workdir=tmp_path))
    finally:
        executable.close()


def random(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def in_a_row(op: str, shape: tuple[int, ...], length: int = 30) -> Function:
    """Return sums with an elementwise operator between them, which TVM makes one loop of."""
    names = [f"v{k}" for k in range(length + 1)]
    nodes = [node(op, a, b) if k % 2 else node("Add", f"{a} c", b) for k, (a, b) in enumerate(pairwise(names))]
    return function(*nodes, inputs={"v0": tensor(*shape)}, outputs=names[-1:], constants={"c": np.array(0.25, np.float32)})


def list_loops() -> Iterator[Function]:
    """Operators over many elements, of extents that vectors and tiles divide, and that they do not."""
    shapes = [(256, 512), (3, 5), (7, 1000), (1021,)]
    operators = ["Abs", "Relu", "Sqrt", "Floor", "Sigmoid", "Softplus"]
    yield from (in_a_row(op, shapes[k % 4]) for k, op in enumerate([*operators, *operators[2:4]]))
    for m, k, n in [(64, 48, 96), (1, 300, 500), (37, 41, 43), (13, 64, 7), (128, 1, 200)]:
        yield one("MatMul", tensor(m, k), tensor(k, n))
    for axes in [(1, 0, 2), (2, 1, 0), (0, 2, 1), (2, 0, 1), (1, 2, 0)]:
        yield one("Transpose", tensor(31, 37, 29), perm=axes)
        yield one("Transpose", tensor(16, 40, 56), perm=axes)
    columns = [((300, 400), [0]), ((300, 400), [1]), ((7, 64, 99), [1]), ((7, 64, 99), [0, 2]), ((40, 30, 20), [0, 1, 2])]
    for keepdims, (shape, reduced) in enumerate([*columns, ((97, 331), [1])]):
        for op in ("ReduceSum", "ReduceMax"):
            reduction = node(op, "x a", "y", keepdims=keepdims % 2)
            yield function(reduction, inputs={"x": tensor(*shape)}, constants={"a": np.array(reduced)})


@pytest.mark.slow
@pytest.mark.parametrize("f", list(list_loops()), ids=lambda f: f"{f.nodes[-1].op} {f.inputs[0].type}")
def test_loops_over_many_elements_are_right(f: Function) -> None:
    f = infer_shapes(f)
    arrays = [np.abs(random(*value.type.shape)) for value in f.inputs]
    np.testing.assert_allclose(run(f, *arrays)[0], evaluate(f, arrays)[0], rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_sums_over_a_symbolic_number_of_rows_are_right_at_every_size() -> None:
    nodes, constants = (node("MatMul", "x w", "p"), node("ReduceSum", "p a", "y")), {"w": random(300, 96), "a": np.array([1])}
    f = infer_shapes(function(*nodes, inputs={"x": tensor("N", 300)}, outputs=("p", "y"), constants=constants))
    executable = written.compiled(Tvm(), f)
    for rows in (1, 7, 8, 61):
        x = random(rows, 300)
        for result, expected in zip(executable.run([x]), evaluate(f, [x]), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_values_used_twice_over_and_over_do_not_explode() -> None:
    """Inlining alone would write 2 to the 40th terms."""
    nodes = [node("Mul", f"v{k} v{k}", f"v{k + 1}") for k in range(40)]
    types = {f"v{k}": tensor(64, 64) for k in range(1, 40)}
    f = function(*nodes, inputs={"v0": tensor(64, 64)}, outputs={"v40": tensor(64, 64)}, types=types)
    x = np.full((64, 64), 1 + 1e-13, np.float32)
    assert np.array_equal(run(f, x)[0], x)


def test_buffers_that_compiled_code_cannot_write_to_are_filled() -> None:
    executable, x = compiled(one("Neg", tensor(4, 6), output=tensor(4, 6))), random(4, 6)
    strided = np.zeros((4, 12), np.float32)[:, ::2]
    executable.bind_outputs([strided])(x)
    assert np.array_equal(strided, -x)
    over = x.copy()
    assert executable.run([over.T.copy().T], RunOptions(out=[over]))[0] is over
    assert np.array_equal(over, -x)


def test_a_buffer_that_may_not_be_written_to_is_not() -> None:
    executable, x = compiled(one("Neg", tensor(9), output=tensor(9))), random(9)
    frozen = np.zeros(9, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        executable.bind_outputs([frozen])(x)
    assert not frozen.any()


@pytest.mark.slow
@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("number", [0.1, 1e6 / 3, -7e-6])
def test_what_does_not_vary_is_normalised_to_nothing(number: float, opset: int) -> None:
    f = one("MeanVarianceNormalization", tensor(1, 2, 7, 9), output=tensor(1, 2, 7, 9), opset=opset)
    (y,) = run(f, np.full((1, 2, 7, 9), number, np.float32))
    assert np.abs(y).max() < 1e-2


@pytest.mark.parametrize("outputs", ["y mean inverse", "y mean"])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.FLOAT64])
def test_the_statistics_of_a_normalization_are_float32(dtype: DType, outputs: str) -> None:
    """TVM's importer leaves them out."""
    normalization = node("LayerNormalization", "x scale bias", outputs, axis=1)
    inputs = {"x": tensor(2, 3, 8, dtype=dtype), "scale": tensor(3, 8, dtype=dtype), "bias": tensor(3, 8, dtype=dtype)}
    f = infer_shapes(function(normalization, inputs=inputs, outputs=outputs.split()))
    arrays = [random(*value.type.shape).astype(dtype.numpy) for value in f.inputs]
    tolerance = 1e-2 if dtype is DType.FLOAT16 else 1e-5
    for got, want in zip(run(f, *arrays), evaluate(f, arrays), strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_narrow_floats_are_summed_in_float32(dtype: DType) -> None:
    x = np.full((1, 4096), 1 / 64, np.float32).astype(dtype.numpy)
    ones = np.ones((4096, 1), dtype.numpy)
    f = one("MatMul", tensor(1, 4096, dtype=dtype), tensor(4096, 1, dtype=dtype), output=tensor(1, 1, dtype=dtype))
    (y,) = run(f, x, ones)
    assert y.dtype == dtype.numpy and float(y[0, 0]) == 64


SPREAD = np.concatenate([np.logspace(-7, 1.9, 4000), -np.logspace(-7, 1.9, 4000), [88.3, 88.5, 88.72]]).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "exact"),
    [("Exp", np.exp), ("Tanh", np.tanh), ("Erf", np.vectorize(math.erf)), ("Sigmoid", lambda x: 1 / (1 + np.exp(-x)))],
)
def test_exponentials_are_right_to_a_millionth(op: str, exact: Any) -> None:
    (y,) = run(one(op, tensor(SPREAD.size), output=tensor(SPREAD.size)), SPREAD)
    expected = exact(SPREAD.astype(np.float64))
    normal = np.abs(expected) > 2e-38
    assert np.max(np.abs(y - expected)[normal] / np.abs(expected)[normal]) < 1e-6


@pytest.mark.full
@pytest.mark.slow
def test_node_tests_with_constants() -> None:
    """A model has its shapes, axes and pads as constants, where the node tests feed them and TVM declines."""
    make = run_single(TVM)
    outcomes = [run_case(constant, make) for case in node_cases() for constant in with_constants(case)]
    report = settle(ConformanceReport("tvm", tuple(outcomes)), list_known_failures(["tvm"]), complete=False)
    assert report.ok, str(report)
    assert report.counts[ResultWord.PASSED] >= 170


@pytest.mark.slow
@pytest.mark.sample(24, plain=4)
class TestTvm(EngineSuite):
    engine = "tvm"
    gaps = (
        KnownFailure(
            "rounded_by_a_large_sum",
            "not upstream",
            "TVM makes one sum of the constants of neighbouring additions, and what they rounded is not rounded",
            "https://github.com/apache/tvm/tree/main/src/arith",
        ),
    )
    test_conformance = None  # run in tests/conformance
    test_node_tests_with_symbolic_dims = None
