"""The xla engine: its reasons, types, what it hands over by reference, threads, and what it leaves of JAX to the user."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from xrt.engines import CompileContext, Executable, RunOptions, registry
from xrt.engines.xla import Xla
from xrt.engines.xla.executable import XlaExecutable, _taken
from xrt.engines.xla.program import lowered_text
from xrt.errors import CompileRefused, RunFailed
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, attributes_of

Array = np.ndarray[Any, Any]
XLA = Xla()
CONTEXT = CompileContext(threads=2)
FLOAT, INT = DType.FLOAT32, DType.INT64
WHOLE = TensorType(INT, (8,))


def tensor(*shape: int | str, dtype: DType = FLOAT) -> TensorType:
    return TensorType(dtype, shape)


def function(
    *nodes: Node,
    inputs: dict[str, TensorType | None],
    outputs: dict[str, TensorType | None],
    constants: dict[str, Array] | None = None,
    opset: int = 18,
    types: dict[str, TensorType] | None = None,
    aliases: tuple[tuple[str, str], ...] = (),
) -> Function:
    return Function(
        tuple(Value(name, type_) for name, type_ in inputs.items()),
        tuple(Value(name, type_) for name, type_ in outputs.items()),
        nodes,
        {name: Constant(array) for name, array in (constants or {}).items()},
        {"": opset},
        types=types or {},
        aliases=aliases,
    )


def one(op_type: str, *shapes: TensorType, output: TensorType | None = None, opset: int = 18, **attributes: Any) -> Function:
    names = [f"x{k}" for k in range(len(shapes))]
    node = Node(op_type, tuple(names), ("y",), attributes_of(attributes))
    return function(node, inputs=dict(zip(names, shapes, strict=True)), outputs={"y": output}, opset=opset)


def compiled(f: Function, threads: int = 2) -> Executable:
    executable = XLA.compile(f, CompileContext(threads=threads))
    executable.prepare()
    return executable


def run(f: Function, *inputs: Array, options: RunOptions = RunOptions()) -> list[Array]:
    return list(compiled(f).run(inputs, options))


def placed(size: int, dtype: str = "float32", offset: int = 0) -> Array:
    """Return an array so many bytes behind a multiple of 64, the addresses that XLA takes without a copy."""
    nbytes = size * np.dtype(dtype).itemsize
    raw = np.zeros(nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    return raw[start : start + nbytes].view(dtype)


def why(f: Function) -> str:
    return XLA.why_not(f.nodes[-1], f) or ""


def test_the_spec_makes_it_again_and_versions_are_told() -> None:
    assert registry.create("xla") == XLA and XLA.spec == "xla"
    assert [part.split()[0] for part in XLA.version().split(", ")] == ["jax", "jaxlib"]


# ---------------------------------------------------------------------- reasons


@pytest.mark.parametrize(
    ("f", "reason"),
    [
        (one("NonZero", tensor(3)), "engine 'xla' has no kernel for NonZero"),
        (one("NoSuch", tensor(2)), "NoSuch is not an operator of opset 18"),
        (one("Relu", tensor("N", 3)), "the shape of 'x0' is not known before the run"),
        (one("Identity", tensor(2, dtype=DType.STRING)), "'x0' is string, in which this engine does not compute Identity"),
        (
            one("Reshape", tensor(4), tensor(2, dtype=INT)),
            "XLA needs the 'shape' of Reshape while it compiles, and here it is known only at run time",
        ),
        (
            one("Relu", tensor(4), output=tensor(5)),
            "XLA takes the result of this Relu for float32[4], where ONNX says float32[5]",
        ),
        (
            one("MatMul", tensor(2, 3), tensor(4, 5)),
            "XLA cannot take this MatMul: dot_general requires contracting dimensions to have the same shape, got (3,) and (4,)",
        ),
        (one("MaxPool", tensor(1, 1, 2), kernel_shape=[3]), "XLA cannot take this MaxPool: a window of [3] does not fit into"),
    ],
    ids=lambda value: value.nodes[0].op if isinstance(value, Function) else "",
)
def test_reasons(f: Function, reason: str) -> None:
    assert why(f).startswith(reason)


def test_equal_nodes_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from xrt.engines.xla import capability

    f = one("Relu", tensor(3, 1, 4, 1, 5), output=tensor(3, 1, 4, 1, 5))
    assert why(f) == ""
    monkeypatch.setattr(capability, "lower", pytest.fail)
    assert why(f.replace(name="other")) == ""


def test_outputs_that_nobody_reads_are_not_asked_for() -> None:
    node = Node("BatchNormalization", ("x", *"sbmv"), ("y", "m2", "v2"))
    shapes = {"x": tensor(1, 2), **{name: tensor(2) for name in "sbmv"}}
    assert why(function(node, inputs=shapes, outputs={"y": tensor(1, 2)}, opset=9)).startswith("BatchNormalization that trains")


def test_what_fails_late_is_a_refusal_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from xrt.engines.xla import engine

    def broken(*_: Any) -> Any:
        raise ValueError("INVALID_ARGUMENT: the loops\n are odd.")

    monkeypatch.setattr(engine, "compiled_program", broken)
    with pytest.raises(CompileRefused, match=r"^XLA cannot compile 'main': the loops$"):
        XLA.compile(one("Relu", tensor(2), output=tensor(2)), CONTEXT)


def test_a_call_that_fails_says_where() -> None:
    with pytest.raises(RunFailed, match=r"^XLA failed while it ran 'main': "):
        run(one("Relu", tensor(2), output=tensor(2)), np.ones(3, np.float32))


# ---------------------------------------------------------------------- types and numbers


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
)
def test_types_of_numbers(dtype: str) -> None:
    x = np.arange(-3, 5).astype(dtype)
    type_ = tensor(8, dtype=DType.parse(dtype))
    (y,) = run(one("Add", type_, type_, output=type_), x, x)
    assert y.dtype == x.dtype and np.array_equal(y, x + x)


def test_whole_numbers_of_64_bits_keep_them_all() -> None:
    x = np.array([2**62 + 1, -(2**53) - 1])
    (y,) = run(one("Neg", tensor(2, dtype=INT), output=tensor(2, dtype=INT)), x)
    assert y.tolist() == [-(2**62) - 1, 2**53 + 1]


def test_bfloat16_and_0_d() -> None:
    x = np.linspace(-2, 2, 40_000).astype(ml_dtypes.bfloat16)
    type_ = tensor(40_000, dtype=DType.BFLOAT16)
    (y,) = run(one("Relu", type_, output=type_), x)
    assert y.dtype == ml_dtypes.bfloat16 and y.flags.writeable and np.array_equal(y, np.maximum(x, 0))
    (y,) = run(
        one("Greater", tensor(), tensor(), output=tensor(dtype=DType.BOOL)), np.array(2, np.float32), np.array(1, np.float32)
    )
    assert isinstance(y, np.ndarray) and y.shape == () and y.dtype == np.bool_ and bool(y)


def test_products_are_of_full_precision() -> None:
    a, b = (np.random.default_rng(seed).random((64, 300)).astype(np.float32) for seed in (0, 1))
    (y,) = run(one("MatMul", tensor(64, 300), tensor(300, 64), output=tensor(64, 64)), a, np.ascontiguousarray(b.T))
    assert np.allclose(y, a.astype(float) @ b.T.astype(float), rtol=1e-6)


@pytest.mark.parametrize(("dtype", "big"), [("float16", 2048), ("float32", 2**24)])
@pytest.mark.parametrize("ops", ["Add Sub", "Sub Add"])
def test_what_was_rounded_stays_rounded(dtype: str, big: int, ops: str) -> None:
    """XLA would make one sum of the two constants, or keep float16 in float32."""
    type_, (first, second) = tensor(1, dtype=DType.parse(dtype)), ops.split()
    nodes = Node(first, ("x", "big"), ("s",)), Node(second, ("s", "big"), ("y",))
    f = function(*nodes, inputs={"x": type_}, outputs={"y": type_}, constants={"big": np.array([big], dtype)})
    x = np.array([0.25], dtype)
    assert run(f, x)[0].tolist() == [0]


def test_constants_in_sums_do_not_break_a_chain() -> None:
    nodes = [Node("Add" if k % 2 else "Mul", (f"v{k}", "c"), (f"v{k + 1}",)) for k in range(20)]
    f = function(
        *nodes, inputs={"v0": tensor(64, 64)}, outputs={"v20": tensor(64, 64)}, constants={"c": np.array(1.5, np.float32)}
    )
    executable = compiled(f)
    assert isinstance(executable, XlaExecutable)
    assert executable.program.code.hlo_modules()[0].to_string().count(" fusion(") == 1


def test_softmax_of_a_large_product() -> None:
    """XLA computes the product twice, once rounded and once within an FMA: the greatest is not itself then."""
    nodes = Node("Mul", ("x", "third"), ("m",)), Node("Softmax", ("m",), ("y",))
    third = np.array(1 / 3, np.float32)
    f = function(*nodes, inputs={"x": tensor(2, 8)}, outputs={"y": tensor(2, 8)}, constants={"third": third})
    x = np.repeat(np.array([[1e10], [7.7e11]], np.float32), 8, axis=1)
    assert run(f, x)[0].tolist() == [[0.125] * 8] * 2


def test_zero_extents() -> None:
    (y,) = run(one("Exp", tensor(0, 3), output=tensor(0, 3)), np.ones((0, 3), np.float32))
    assert y.shape == (0, 3)


# ---------------------------------------------------------------------- what is known while it is traced


def test_shapes_computed_from_shapes_are_numbers() -> None:
    nodes = (
        Node("Shape", ("x",), ("s",)),
        Node("Gather", ("s", "first"), ("n",), attributes_of({"axis": 0})),
        Node("Concat", ("n", "rest"), ("t",), attributes_of({"axis": 0})),
        Node("Reshape", ("x", "t"), ("y",)),
    )
    constants = {"first": np.array([0]), "rest": np.array([-1])}
    f = function(*nodes, inputs={"x": tensor(2, 3, 4)}, outputs={"y": tensor(2, 12)}, constants=constants)
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    assert np.array_equal(run(f, x)[0], x.reshape(2, 12))


def test_large_constants_are_arguments_and_small_ones_are_code() -> None:
    w = np.random.default_rng(0).random((64, 32)).astype(np.float32)
    node = Node("MatMul", ("x", "w"), ("y",)), Node("Mul", ("y", "two"), ("z",))
    f = function(*node, inputs={"x": tensor(3, 64)}, outputs={"z": tensor(3, 32)}, constants={"w": w, "two": np.float32(2)[...]})
    text = lowered_text(f)
    assert "%arg1: tensor<64x32xf32>" in text and "%arg2" not in text and "dense<2.000000e+00>" in text
    x = np.random.default_rng(1).random((3, 64)).astype(np.float32)
    assert np.allclose(run(f, x)[0], x @ w * 2, rtol=1e-5)


def test_aligned_weights_are_held_once_and_others_are_told() -> None:
    for offset, copied in ((0, 0), (16, 64 * 64 * 4)):
        w = placed(64 * 64, offset=offset).reshape(64, 64)
        f = function(
            Node("Add", ("x", "w"), ("y",)), inputs={"x": tensor(64, 64)}, outputs={"y": tensor(64, 64)}, constants={"w": w}
        )
        uses = {use.name: use.nbytes for use in compiled(f).memory() or ()}
        assert uses.get("copied weights", 0) == copied


def test_an_operator_without_a_kernel_is_lowered_by_its_definition() -> None:
    from xrt.engines.xla.kernels import ops

    assert ("", "AffineGrid") not in ops and ("", "RotaryEmbedding") not in ops
    shapes = tensor(1, 2, 4, 6), tensor(1, 4, 3), tensor(1, 4, 3)
    f = one("RotaryEmbedding", *shapes, output=tensor(1, 2, 4, 6), opset=23)
    x, angle = np.ones((1, 2, 4, 6), np.float32), np.full((1, 4, 3), 0.3, np.float32)
    (y,) = run(f, x, np.cos(angle), np.sin(angle))
    assert np.allclose(y[..., :3], np.cos(0.3) - np.sin(0.3)) and np.allclose(y[..., 3:], np.cos(0.3) + np.sin(0.3))


# ---------------------------------------------------------------------- control flow


BOOL = TensorType(DType.BOOL, ())


def body(*nodes: Node, inputs: dict[str, TensorType | None], outputs: dict[str, TensorType | None], **more: Any) -> Function:
    return function(*nodes, inputs=inputs, outputs=outputs, **more)


def test_a_condition_of_the_run_decides() -> None:
    then = body(Node("Relu", ("x",), ("a",)), inputs={}, outputs={"a": tensor(2)})
    otherwise = body(Node("Neg", ("x",), ("b",)), inputs={}, outputs={"b": tensor(2)})
    node = Node("If", ("c",), ("y",), attributes_of({"then_branch": then, "else_branch": otherwise}))
    f = function(node, inputs={"c": BOOL, "x": tensor(2)}, outputs={"y": tensor(2)})
    x = np.array([-1, 2], np.float32)
    assert why(f) == ""
    executable = compiled(f)
    assert [executable.run([np.array(c), x])[0].tolist() for c in (True, False)] == [[0, 2], [1, -2]]


def test_branches_of_two_shapes_are_declined() -> None:
    then = body(Node("Relu", ("x",), ("a",)), inputs={}, outputs={"a": tensor(2)})
    other = body(Node("ReduceSum", ("x",), ("b",)), inputs={}, outputs={"b": tensor(1)})
    node = Node("If", ("c",), ("y",), attributes_of({"then_branch": then, "else_branch": other}))
    f = function(node, inputs={"c": BOOL, "x": tensor(2)}, outputs={"y": None})
    assert why(f).startswith("XLA cannot take this If: ")


def doubling(condition: str = "c") -> Function:
    """A body that doubles what it carries and scans its square; it goes on as ``condition`` says."""
    nodes = [
        Node("Identity", (condition,), ("go",)),
        Node("Add", ("v", "v"), ("w",)),
        Node("Mul", ("w", "w"), ("q",)),
        Node("Less", ("w", "limit"), ("low",)),
        Node("Squeeze", ("low",), ("flag",)),
    ]
    return body(
        *nodes,
        inputs={"i": tensor(dtype=INT), "c": BOOL, "v": tensor(1)},
        outputs={"go": BOOL, "w": tensor(1), "q": tensor(1)},
        constants={"limit": np.array([10], np.float32)},
    )


@pytest.mark.parametrize("trips", [0, 3, 12])
def test_a_counted_loop(trips: int) -> None:
    node = Node("Loop", ("m", "", "x"), ("y", "squares"), attributes_of({"body": doubling()}))
    outputs: dict[str, TensorType | None] = {"y": tensor(1), "squares": tensor(trips, 1)}
    f = function(node, inputs={"x": tensor(1)}, outputs=outputs, constants={"m": np.array(trips)})
    assert why(f) == ""
    y, squares = run(f, np.array([1], np.float32))
    assert y.tolist() == [2.0**trips]
    assert squares.tolist() == [[4.0 ** (k + 1)] for k in range(trips)]


def test_a_loop_that_the_run_ends() -> None:
    inner = doubling("flag").replace(outputs=doubling("flag").outputs[:2])
    node = Node("Loop", ("m", "", "x"), ("y",), attributes_of({"body": inner}))
    f = function(node, inputs={"m": tensor(dtype=INT), "x": tensor(1)}, outputs={"y": tensor(1)})
    assert why(f) == ""
    executable = compiled(f)
    assert [executable.run([np.array(m), np.array([1], np.float32)])[0].tolist() for m in (0, 2, 99)] == [[1], [4], [16]]


def test_a_loop_whose_scan_is_as_long_as_the_run_says_is_declined() -> None:
    node = Node("Loop", ("m", "", "x"), ("y", "squares"), attributes_of({"body": doubling()}))
    f = function(node, inputs={"m": tensor(dtype=INT), "x": tensor(1)}, outputs={"y": tensor(1), "squares": None})
    assert why(f) == "Loop scans as many results as only the run shows, and XLA has no such shape"


def test_a_short_loop_may_change_shapes() -> None:
    inner = body(
        Node("Identity", ("c",), ("go",)),
        Node("Concat", ("v", "x"), ("w",), attributes_of({"axis": 0})),
        inputs={"i": tensor(dtype=INT), "c": BOOL, "v": None},
        outputs={"go": BOOL, "w": None},
    )
    node = Node("Loop", ("m", "", "x"), ("y",), attributes_of({"body": inner}))
    f = function(node, inputs={"x": tensor(1)}, outputs={"y": tensor(4)}, constants={"m": np.array(3)})
    assert why(f) == ""
    assert run(f, np.array([7], np.float32))[0].tolist() == [7] * 4


# ---------------------------------------------------------------------- arrays in and out


@pytest.mark.parametrize("size", [100, 100_000])
def test_results_are_memory_of_their_own(size: int) -> None:
    """Outputs that are an input, a constant, the same twice: small ones are copied, large ones are XLA's own memory."""
    constant = np.arange(size, dtype=np.float32)
    f = function(
        Node("Identity", ("x",), ("same",)),
        Node("Neg", ("x",), ("y",)),
        Node("Identity", ("y",), ("z",)),
        inputs={"x": tensor(size)},
        outputs={name: tensor(size) for name in ("x", "same", "y", "z", "c")},
        constants={"c": constant},
    )
    x = placed(size)
    x[:] = 1
    executable = compiled(f)
    first, second = (list(executable.run([x])) for _ in range(2))
    assert executable.outputs_are_fresh
    assert all(np.array_equal(r, w) for r, w in zip(first, (x, x, -x, -x, constant), strict=True))
    everything = [x, constant, *first, *second]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(everything) for b in everything[:i])
    for result in first:
        result[...] = 5
    assert all(np.array_equal(r, w) for r, w in zip(second, (x, x, -x, -x, constant), strict=True))


def test_a_large_result_outlives_its_executable() -> None:
    f = one("Neg", tensor(300, 300), output=tensor(300, 300))
    executable = compiled(f)
    y = executable.run([np.ones((300, 300), np.float32)])[0]
    executable.close()
    del executable
    assert (y == -1).all()


@pytest.mark.parametrize("size", [4, 100_000])
def test_an_updated_input_may_be_computed_into_and_is_never_spoilt(size: int) -> None:
    f = function(Node("Add", ("x", "x"), ("y",)), inputs={"x": tensor(size)}, outputs={"y": tensor(size)}, aliases=(("x", "y"),))
    executable = compiled(f)
    for offset in (0, 4):
        x = placed(size, offset=offset)
        x[:] = 3
        (y,) = executable.run([x])
        assert (y == 6).all() and ((x == 3).all() or np.shares_memory(x, y))


def test_strided_and_read_only_inputs() -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    frozen = base.copy()
    frozen.flags.writeable = False
    f = one("Neg", tensor(4, 6), output=tensor(4, 6))
    for executable in (compiled(f), loaded(f)):
        for x in (base, np.asfortranarray(base), np.repeat(base, 2, axis=0)[::2], base[::-1][::-1], frozen):
            assert np.array_equal(executable.run([x])[0], -base)


def test_given_buffers() -> None:
    node = Node("Split", ("x",), ("a", "b"), attributes_of({"axis": 0, "num_outputs": 2}))
    f = function(node, inputs={"x": tensor(4)}, outputs={"a": tensor(2), "b": tensor(2)})
    buffer = np.empty(2, np.float32)
    a, b = run(f, np.arange(4, dtype=np.float32), options=RunOptions(out=[None, buffer]))
    assert a.tolist() == [0, 1] and b is buffer and buffer.tolist() == [2, 3]


@pytest.mark.parametrize("offset", [0, 4])
def test_a_bound_call_reads_what_is_there_when_it_is_made(offset: int) -> None:
    f = function(Node("Add", ("x", "n"), ("y",)), inputs={"x": WHOLE, "n": WHOLE}, outputs={"y": WHOLE})
    x, n, buffer = placed(8, "int64", offset), placed(8, "int64"), np.empty(8, np.int64)
    n[:] = 2**40
    assert (_taken([x, n], XLA.compile(f, CONTEXT).program) is None) == bool(offset)
    for executable in (compiled(f), loaded(f)):
        bound = executable.bind([x, n], [buffer])
        for value in (3, 2**50):
            x[:] = value
            bound()
            assert (buffer == value + 2**40).all()


# ---------------------------------------------------------------------- saved and loaded


def loaded(f: Function) -> Executable:
    data = XLA.save(compiled(f), CONTEXT)
    executable = XLA.load(memoryview(data), f, CONTEXT)
    executable.prepare()
    return executable


def test_a_saved_executable_runs_without_being_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    from xrt.engines.xla import engine

    w = np.random.default_rng(0).random((64, 64)).astype(np.float32)
    nodes = (
        Node("MatMul", ("x", "w"), ("y",)),
        Node("Cast", ("n",), ("m",), attributes_of({"to": 1})),
        Node("Add", ("y", "m"), ("z",)),
    )
    f = function(
        *nodes,
        inputs={"x": tensor(2, 64), "n": tensor(64, dtype=INT)},
        outputs={"z": tensor(2, 64)},
        constants={"w": w},
        types={"y": tensor(2, 64), "m": tensor(64)},
    )
    x, n = np.ones((2, 64), np.float32), np.arange(64) + 2**33
    executable = compiled(f)
    data = bytes(XLA.save(executable, CONTEXT))
    assert not data.startswith(b"\x80"), "a pickle"
    monkeypatch.setattr(engine, "compiled_program", pytest.fail)
    again = XLA.load(memoryview(data), f, CONTEXT)
    assert np.array_equal(again.run([x, n])[0], executable.run([x, n])[0])
    assert bytes(XLA.save(again, CONTEXT)) == data


def test_bytes_that_are_no_executable_are_refused() -> None:
    with pytest.raises(CompileRefused, match=r"^XLA cannot load 'main': "):
        XLA.load(memoryview(b"nothing of the kind"), one("Relu", tensor(2), output=tensor(2)), CONTEXT)


# ---------------------------------------------------------------------- threads, and the process around


def busy_threads() -> dict[str, int]:
    """Return the processor time of each thread of this process, in ticks."""
    times = {}
    for task in Path("/proc/self/task").iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        times[task.name] = int(fields[11])
    return times


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_a_budget_bounds_the_threads_that_work(threads: int) -> None:
    f = one("MatMul", tensor(512, 512), tensor(512, 512), output=tensor(512, 512))
    executable, x = compiled(f, threads), np.ones((512, 512), np.float32)
    executable.run([x, x])
    before = busy_threads()
    for _ in range(60):
        executable.run([x, x])
    ticks = [after - before.get(name, 0) for name, after in busy_threads().items()]
    busy = sum(5 * each > sum(ticks) for each in ticks)
    assert 1 <= busy <= (1 if threads == 1 else 2 * threads)  # of both pools of the client; the caller waits meanwhile


QUIET = """
import os, sys
import jax, numpy as np, xrt
before = dict(jax.config.values)
environment = dict(os.environ)
class Net(xrt.Graph):
    def build(self, x): return xrt.ops.Relu(x)
m = xrt.XRTModule(Net(), engine="xla", strict=True)
m(np.ones(3)); m(np.ones(3, "int64").astype("float32"))
assert dict(jax.config.values) == before and dict(os.environ) == environment
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized(), "a client of the user's was made"
assert jax.numpy.ones(3, "float32").dtype == "float32" and jax.numpy.arange(2).dtype == "int32"
"""


def test_nothing_of_the_users_jax_is_changed_or_started() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", QUIET], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == ("", "")


def test_what_the_user_has_set_does_not_change_a_result() -> None:
    import jax

    f = function(
        Node("Add", ("x", "n"), ("y",)),
        inputs={"x": tensor(2, 2, dtype=INT), "n": tensor(2, dtype=INT)},
        outputs={"y": tensor(2, 2, dtype=INT)},
    )
    x, n = np.full((2, 2), 2**40), np.arange(2)
    with jax.enable_x64(False), jax.numpy_rank_promotion("raise"), jax.disable_jit(True), jax.debug_nans(True):
        assert np.array_equal(run(f, x, n)[0], x + n)
        assert np.isnan(run(one("Sqrt", tensor(1), output=tensor(1)), np.array([-1], np.float32))[0]).all()
