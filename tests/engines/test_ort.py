"""The ort engine: what it compiles, and what an executable does with values, buffers, threads and errors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest

from xrt.engines import CompileContext, Executable, RunOptions
from xrt.engines.ort import Ort
from xrt.engines.ort.calls import SessionCalls
from xrt.engines.ort.executable import BIND_FROM, OrtExecutable
from xrt.engines.ort.handing import hand_over
from xrt.engines.ort.memory import Growth
from xrt.errors import CompileRefused, InputError, RunFailed
from xrt.graph import Constant, DType, Function, Node, OptionalType, SequenceType, TensorType, Type, Value, attributes_of

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


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> Node:
    return Node(op, tuple(inputs.split()), tuple(outputs.split()), attributes_of(attributes))


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


def test_one_executable_serves_every_size_of_a_symbolic_dimension() -> None:
    executable = compiled(relu())
    for rows in (1, 5, 0):
        x = np.random.default_rng(0).standard_normal((rows, 3)).astype(np.float32)
        assert np.array_equal(executable.run([x])[0], np.maximum(x, 0))


@pytest.mark.parametrize("dtype", [d for d in DType if d.is_integer and d.bits >= 8] + [DType.BOOL, DType.FLOAT16, DType.FLOAT64])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_numpys_own_types_cross_unchanged(dtype: DType, shape: tuple[int, ...]) -> None:
    x = np.ones(shape, dtype.numpy)
    (y,) = run(function({"x": TensorType(dtype, shape)}, ["y"], [node("Identity", "x", "y")]), x)
    assert type(y) is np.ndarray
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    assert np.array_equal(y, x)


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


def test_arrays_may_lie_in_any_order() -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    assert np.array_equal(run(relu(), x[::-1, ::2])[0], x[::-1, ::2])
    small = x.astype(ml_dtypes.bfloat16).T[::2]
    f = function({"x": TensorType(DType.BFLOAT16, (3, 4))}, ["y"], [node("Identity", "x", "y")])
    assert np.array_equal(run(f, small)[0], small)


def test_strings_are_object_arrays() -> None:
    f = function({"x": TensorType(DType.STRING, (None,))}, ["y"], [node("Identity", "x", "y")])
    (y,) = run(f, np.array(["a", "", "größer\x00"], object))
    assert y.dtype == object
    assert y.tolist() == ["a", "", "größer\x00"]


def test_sequences_are_lists() -> None:
    sequence = SequenceType(TensorType(DType.INT64))
    f = function({"s": sequence, "x": TensorType(DType.INT64)}, ["t"], [node("SequenceInsert", "s x", "t")])
    (got,) = run(f, [np.array([1, 2])], np.array(3))
    assert [item.tolist() for item in got] == [[1, 2], 3]
    assert [item.tolist() for item in run(f, [], np.array(3))[0]] == [3]


def test_an_absent_optional_is_none() -> None:
    f = function(
        {"x": OptionalType(TensorType(F32, (2,)))},
        ["y", "has"],
        [node("Identity", "x", "y"), node("OptionalHasElement", "x", "has")],
    )
    y, has = run(f, None)
    assert y is None
    assert has.tolist() is False
    y, has = run(f, np.ones(2, np.float32))
    assert y.tolist() == [1, 1]
    assert has.tolist() is True


def test_maps_are_dictionaries() -> None:
    labels = attributes_of({"classlabels_strings": ["a", "b"]})
    f = function({"x": TensorType(F32, (1, 2))}, ["y"], [Node("ZipMap", ("x",), ("y",), labels, "ai.onnx.ml")], ai_onnx_ml=1)
    assert run(f, np.array([[1, 2]], np.float32))[0] == [{"a": 1.0, "b": 2.0}]


# ---------------------------------------------------------------------- shapes of regions


def test_a_region_without_inputs() -> None:
    f = function({}, ["y"], [node("Relu", "c", "y")], {"c": SQUARE})
    assert np.array_equal(run(f)[0], np.maximum(SQUARE, 0))


def test_a_region_without_nodes() -> None:
    f = function({"x": TensorType(DType.INT4, (2,))}, ["x", "c", "x"], [], {"c": SQUARE})
    x = np.array([1, -2], ml_dtypes.int4)
    first, constant, second = run(f, x)
    assert first.tolist() == second.tolist() == x.tolist()
    assert np.array_equal(constant, SQUARE)
    assert not np.shares_memory(first, second)
    assert not np.shares_memory(first, x)


def test_odd_names() -> None:
    f = function({'a b/ü"\n': TensorType(F32, (2,))}, ["\x00"], [Node("Relu", ('a b/ü"\n',), ("\x00",), name="\n")])
    assert run(f, np.array([1, -1], np.float32))[0].tolist() == [1, 0]


def branch(op: str, read: str) -> Function:
    return function({}, ["inside"], [node(op, read, "inside")])


def test_bodies_capture_values_of_the_region() -> None:
    f = function(
        {"flag": TensorType(DType.BOOL, ()), "x": TensorType(F32, (2,))},
        ["y"],
        [node("Neg", "x", "n"), node("If", "flag", "y", then_branch=branch("Relu", "n"), else_branch=branch("Abs", "x"))],
    )
    executable = compiled(f)
    x = np.array([-1, 2], np.float32)
    assert executable.run([np.array(True), x])[0].tolist() == [1, 0]
    assert executable.run([np.array(False), x])[0].tolist() == [1, 2]


def test_an_operator_of_another_domain() -> None:
    gelu = Node("Gelu", ("x",), ("y",), domain="com.microsoft")
    (y,) = run(function({"x": TensorType(F32, (2, 3))}, ["y"], [gelu], com_microsoft=1), SQUARE)
    assert y[0, 1] == pytest.approx(-0.15865526)


# ---------------------------------------------------------------------- buffers of the caller's


def two_outputs(columns: int) -> Function:
    return function({"x": TensorType(F32, ("N", columns))}, ["y", "z"], [node("Relu", "x", "y"), node("Neg", "x", "z")])


@pytest.mark.parametrize("columns", [3, BIND_FROM], ids=["copied", "bound"])
def test_a_buffer_holds_the_output_and_is_returned(columns: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, columns)).astype(np.float32)
    out = np.empty_like(x)
    y, z = compiled(two_outputs(columns)).run([x], RunOptions(out=[None, out]))
    assert z is out
    assert np.array_equal(out, -x)
    assert np.array_equal(y, np.maximum(x, 0))


def test_a_buffer_may_be_an_inputs_own() -> None:
    x = np.random.default_rng(0).standard_normal((2, BIND_FROM)).astype(np.float32)
    buffer = x.copy()
    y, z = compiled(two_outputs(BIND_FROM)).run([buffer], RunOptions(out=[None, buffer]))
    assert z is buffer
    assert np.array_equal(z, -x)
    assert np.array_equal(y, np.maximum(x, 0))


def test_buffers_serve_every_kind_of_output() -> None:
    f = function(
        {"x": TensorType(DType.INT4, (3,))},
        ["x", "c", "y", "y"],
        [node("Cast", "x", "wide", to=F32.onnx), node("Cast", "wide", "y", to=DType.INT4.onnx)],
        {"c": SQUARE},
        opset=25,
    )
    x = np.array([1, -2, 3], ml_dtypes.int4)
    out = [np.zeros(3, ml_dtypes.int4), np.zeros((2, 3), np.float32), None, np.zeros(3, ml_dtypes.int4)]
    results = compiled(f).run([x], RunOptions(out=out))
    assert [result is buffer for result, buffer in zip(results, out, strict=True)] == [True, True, False, True]
    assert [results[i].tolist() for i in (0, 2, 3)] == [x.tolist()] * 3
    assert np.array_equal(results[1], SQUARE)


@pytest.mark.parametrize("buffer", [np.empty((2, 3)), np.empty((1, 3), np.float32), np.empty(6, np.float32)])
def test_a_buffer_of_another_type_or_shape_is_refused(buffer: np.ndarray[Any, Any]) -> None:
    with pytest.raises(InputError) as error:
        compiled(relu()).run([SQUARE], RunOptions(out=[buffer]))
    assert str(error.value) == (
        f"a buffer given in out= is {buffer.dtype}{list(buffer.shape)}, and the output is float32[2, 3]; "
        "give one just like it, or None"
    )


# ---------------------------------------------------------------------- threads, errors, noise, memory


def test_threads_share_an_executable() -> None:
    executable = compiled(two_outputs(64))
    inputs = [np.random.default_rng(i).standard_normal((4, 64)).astype(np.float32) for i in range(64)]

    def right(x: np.ndarray[Any, Any]) -> bool:
        return all(np.array_equal(executable.run([x])[1], -x) for _ in range(20))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(right, inputs))


class OtherSession:
    """A session of a version without the inner call that this one has."""

    def get_outputs(self) -> list[Any]:
        return []

    def run(self, names: list[str], feed: dict[str, Any], options: None) -> list[Any]:
        return [feed["x"]]


def test_without_the_librarys_inner_call_its_public_one_serves() -> None:
    session: Any = OtherSession()
    calls = SessionCalls(session, (Value("x", TensorType(F32)),), (Value("y", TensorType(F32)),))
    assert calls.direct == session.run
    assert calls({"x": SQUARE}, {})["y"] is SQUARE


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


def test_a_closed_executable_says_so() -> None:
    executable = compiled(relu())
    (y,) = executable.run([SQUARE])
    executable.close()
    assert np.array_equal(y, np.maximum(SQUARE, 0))
    with pytest.raises(RunFailed, match="the executable is closed"):
        executable.run([SQUARE])
    with pytest.raises(RunFailed, match="the executable is closed"):
        executable.run([SQUARE], RunOptions(out=[y]))


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
        "'y' of type bfloat16[...] comes out only by binding, and ONNX Runtime's Python interface cannot bind 's' beside it, "
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
from xrt.engines.ort.calls import SessionCalls
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


@pytest.mark.parametrize("arguments", [[], ["pool"]], ids=["own threads", "the process's pool"])
def test_nothing_is_printed(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", PROCESS, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def resident() -> int:
    """Bytes that the process holds in memory, by Linux's own account."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_large_constants_are_not_copied() -> None:
    compiled(relu())
    weights = np.random.default_rng(0).standard_normal((1024, 16384), np.float32)
    f = function({"i": TensorType(DType.INT64, ("N",))}, ["y"], [node("Gather", "w i", "y")], {"w": weights})
    before = resident()
    executable = compiled(f)
    (y,) = executable.run([np.array([3])])
    assert np.array_equal(y[0], weights[3])
    assert resident() - before < weights.nbytes / 4


def test_a_large_constant_may_be_folded_mapped_or_lie_in_any_order(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.arange(3000, dtype=np.float32).reshape(1000, 3))
    mapped = np.load(tmp_path / "w.npy", mmap_mode="r")
    turned = np.arange(3000, dtype=np.float64).reshape(3, 1000).T
    small = np.ones(1000, ml_dtypes.bfloat16)
    f = function(
        {"x": TensorType(F32, (2, 3))},
        ["a", "b", "c"],
        [
            node("Neg", "m", "n"),
            node("Gemm", "x n", "a", transB=1),
            node("Transpose", "t", "b"),
            node("Cast", "s", "c", to=F32.onnx),
        ],
        {"m": mapped, "t": turned, "s": small},
    )
    a, b, c = run(f, SQUARE)
    assert np.allclose(a, SQUARE @ -mapped.T)
    assert np.array_equal(b, turned.T)
    assert np.array_equal(c, np.ones(1000, np.float32))


def test_calls_into_fixed_buffers_take_any_strides_and_go_the_public_way_where_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executable = Ort().compile(function({"x": TensorType(F32, (2, 3))}, ["y"], [Node("Relu", ("x",), ("y",))]), CONTEXT)
    given, frozen = np.arange(-3, 3, dtype="float32").reshape(3, 2), SQUARE.copy()
    frozen.flags.writeable = False
    for private in (True, False):
        if not private:
            monkeypatch.setattr("xrt.engines.ort.calls.getattr", lambda *_: None, raising=False)
        buffer = np.empty((2, 3), "float32")
        into, bound = executable.into([buffer]), executable.bind([frozen], [buffer])
        into(given.T)
        np.testing.assert_array_equal(buffer, np.maximum(given.T, 0))
        bound()
        np.testing.assert_array_equal(buffer, np.maximum(SQUARE, 0))


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
    handed = hand_over(f)
    assert len(handed.model) < 2000
    assert sorted(content.nbytes for content in handed.files.values()) == [2048, 64 * 64 * 4, 64 * 64 * 4]
    assert handed.copied == 2048
    executable = compiled(f)
    x = rng.standard_normal((2, 64)).astype(np.float32)
    for choice, w in zip((True, False), weights, strict=True):
        y, z = executable.run([x, np.array(choice), np.array(1, np.float32)])
        assert np.allclose(y, x @ w, atol=1e-4)
        assert np.array_equal(z, packed.astype(np.float32))
    assert [use.name for use in executable.memory() or ()] == ["copied weights", "session", "workspace"]


def test_sessions_opened_at_once_share_what_they_have_grown_by() -> None:
    weights = np.random.default_rng(0).standard_normal((1024, 1024), np.float32)

    def product(columns: int) -> Function:
        types = {"x": TensorType(F32, ("N", 1024))}
        return function(types, ["y"], [node("MatMul", "x w", "y")], {"w": weights[:, :columns].copy()})

    compiled(product(1024))
    alone = _session_bytes(compiled(product(1024)))
    assert weights.nbytes <= alone <= 1.5 * weights.nbytes
    functions = product(1024), product(512)
    with Growth(1):
        kept = list(map(compiled, functions))
        assert [_session_bytes(executable) for executable in kept] == [0, 0]  # not known before all are open
    large, small = (_session_bytes(executable) for executable in kept)
    assert large == pytest.approx(2 * small, rel=0.01)
    assert 1.5 * weights.nbytes <= large + small <= 2 * weights.nbytes


def test_a_session_that_does_not_open_has_not_grown() -> None:
    with pytest.raises(CompileRefused), Growth(1) as failed:
        raise CompileRefused("no")
    assert failed.nbytes is None


def _session_bytes(executable: Executable) -> int:
    return next(use.nbytes or 0 for use in executable.memory() or () if use.name == "session")
