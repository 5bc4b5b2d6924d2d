"""The xla engine: its reasons, types and numbers, control flow, arrays, saving, threads, and the suite."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.engines import written
from tests.engines.written import CONTEXT, Array, function, node, one, tensor
from xrt.engines.xla import Xla
from xrt.errors import CompileRefused, RunFailed
from xrt.graph import DType
from xrt.testing.suite import EngineSuite

XLA = Xla()
INT = DType.INT64


compiled, run, why = (partial(helper, XLA) for helper in (written.compiled, written.run, written.why))


def placed(size: int, dtype: str = "float32", offset: int = 0) -> Array:
    """Return an array so many bytes behind a multiple of 64, the addresses that XLA takes without a copy."""
    nbytes = size * np.dtype(dtype).itemsize
    raw = np.zeros(nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    return raw[start : start + nbytes].view(dtype)


@pytest.mark.slow
def test_a_call_that_fails_says_where() -> None:
    with pytest.raises(RunFailed, match=r"^XLA failed while it ran 'main': "):
        run(one("Relu", tensor(2), output=tensor(2)), np.ones(3, np.float32))


def test_products_are_of_full_precision() -> None:
    a, b = (np.random.default_rng(seed).random((64, 300)).astype(np.float32) for seed in (0, 1))
    (y,) = run(one("MatMul", tensor(64, 300), tensor(300, 64), output=tensor(64, 64)), a, np.ascontiguousarray(b.T))
    assert np.allclose(y, a.astype(float) @ b.T.astype(float), rtol=1e-5)


@pytest.mark.parametrize(("dtype", "big"), [("float16", 2048), ("float32", 2**24)])
@pytest.mark.parametrize("ops", ["Add Sub", "Sub Add"])
def test_what_was_rounded_stays_rounded(dtype: str, big: int, ops: str) -> None:
    """XLA would make one sum of the two constants, or keep float16 in float32."""
    type_, (first, second) = tensor(1, dtype=DType.parse(dtype)), ops.split()
    nodes = node(first, "x big", "s"), node(second, "s big", "y")
    f = function(*nodes, inputs={"x": type_}, outputs={"y": type_}, constants={"big": np.array([big], dtype)})
    assert run(f, np.array([0.25], dtype))[0].tolist() == [0]


def test_constants_in_sums_do_not_break_a_chain() -> None:
    nodes = [node("Add" if k % 2 else "Mul", f"v{k} c", f"v{k + 1}") for k in range(20)]
    constants = {"c": np.array(1.5, np.float32)}
    executable = compiled(function(*nodes, inputs={"v0": tensor(64, 64)}, outputs=("v20",), constants=constants))
    assert executable.program.code.hlo_modules()[0].to_string().count(" fusion(") == 1


@pytest.mark.slow
def test_softmax_of_a_large_product() -> None:
    """XLA computes the product twice, once rounded and once within an FMA: the greatest is not itself then."""
    nodes, third = (node("Mul", "x third", "m"), node("Softmax", "m", "y")), np.array(1 / 3, np.float32)
    f = function(*nodes, inputs={"x": tensor(2, 8)}, outputs={"y": tensor(2, 8)}, constants={"third": third})
    x = np.repeat(np.array([[1e10], [7.7e11]], np.float32), 8, axis=1)
    assert run(f, x)[0].tolist() == [[0.125] * 8] * 2


@pytest.mark.slow
def test_aligned_weights_are_held_once_and_others_are_reported() -> None:
    square = tensor(64, 64)
    for offset, copied in ((0, 0), (16, 64 * 64 * 4)):
        w = placed(64 * 64, offset=offset).reshape(64, 64)
        f = function(node("Add", "x w", "y"), inputs={"x": square}, outputs={"y": square}, constants={"w": w})
        uses = {use.name: use.nbytes for use in compiled(f).memory() or ()}
        assert uses.get("copied weights", 0) == copied


@pytest.mark.parametrize("size", [4, 100_000])
def test_an_updated_input_may_be_computed_into_and_is_never_spoilt(size: int) -> None:
    f = function(node("Add", "x x", "y"), inputs={"x": tensor(size)}, outputs={"y": tensor(size)}, aliases=(("x", "y"),))
    executable = compiled(f)
    for offset in (0, 4):
        x = placed(size, offset=offset)
        x[:] = 3
        (y,) = executable.run([x])
        assert (y == 6).all() and ((x == 3).all() or np.shares_memory(x, y))


@pytest.mark.parametrize(("size", "is_moved"), [(1000, False), (100_000, True)])
def test_a_large_input_is_handed_over_where_the_library_reads_it_in_place(size: int, is_moved: bool) -> None:
    """Elsewhere XLA would copy it in a thread of its own, and compute in another one while the caller waits."""
    executable = compiled(one("Neg", tensor(size), output=tensor(size)))
    passed, call = [], executable.program.call
    executable.program = replace(executable.program, call=lambda x, *others: passed.append(x) or call(x, *others))
    for offset in (0, 16):
        x = placed(size, offset=offset)
        x[:] = np.arange(size)
        assert (executable.run([x])[0] == -x).all()
        assert (passed[-1] is x) == (offset == 0 or not is_moved)
        assert passed[-1].ctypes.data % 64 == (0 if is_moved else offset)


def test_a_saved_executable_runs_without_being_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    f = one("Add", tensor(2, 64, dtype=INT), tensor(64, dtype=INT), output=tensor(2, 64, dtype=INT))
    inputs = [np.ones((2, 64), np.int64), np.arange(64) + 2**33]
    executable = compiled(f)
    data = bytes(XLA.save(executable, CONTEXT))
    assert not data.startswith(b"\x80"), "a pickle"
    monkeypatch.setattr("xrt.engines.xla.engine.compile_program", pytest.fail)
    again = XLA.load(memoryview(data), f, CONTEXT)
    assert np.array_equal(again.run(inputs)[0], executable.run(inputs)[0])
    assert bytes(XLA.save(again, CONTEXT)) == data


def test_bytes_that_are_no_executable_are_refused() -> None:
    with pytest.raises(CompileRefused, match=r"^XLA cannot load 'main': "):
        XLA.load(memoryview(b"nothing of the kind"), one("Relu", tensor(2), output=tensor(2)), CONTEXT)


WORK = """
import sys, time
import numpy as np, xrt
class Net(xrt.Graph):
    def build(self, x): return xrt.ops.MatMul(x, x)
m, x = xrt.XRTModule(Net(), engine="xla", strict=True, threads=int(sys.argv[1])), np.ones((512, 512), np.float32)
m(x)
wall, processor = time.perf_counter(), time.process_time()
for _ in range(120):
    m(x)
print((time.process_time() - processor) / (time.perf_counter() - wall))
"""


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_a_budget_bounds_the_threads_that_work(threads: int) -> None:
    """In a process of its own, where nothing else works; what else the machine does can only lower the processor's share."""
    completed = subprocess.run([sys.executable, "-c", WORK, str(threads)], check=True, capture_output=True, text=True)
    assert float(completed.stdout) <= 1.1 * threads


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


@pytest.mark.slow
def test_nothing_of_the_users_jax_is_changed_or_started() -> None:
    completed = subprocess.run([sys.executable, "-W", "error", "-c", QUIET], check=False, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr
    assert (completed.stdout, completed.stderr) == ("", "")


@pytest.mark.slow
def test_what_the_user_has_set_does_not_change_a_result() -> None:
    import jax

    wide, row = tensor(2, 2, dtype=INT), tensor(2, dtype=INT)
    f, x, n = one("Add", wide, row, output=wide), np.full((2, 2), 2**40), np.arange(2)
    with jax.enable_x64(False), jax.numpy_rank_promotion("raise"), jax.disable_jit(True), jax.debug_nans(True):
        assert np.array_equal(run(f, x, n)[0], x + n)
        assert np.isnan(run(one("Sqrt", tensor(1), output=tensor(1)), np.array([-1], np.float32))[0]).all()


BOOL = tensor(dtype=DType.BOOL)


def test_branches_of_two_shapes_are_declined() -> None:
    then = function(node("Relu", "x", "a"), inputs={}, outputs={"a": tensor(2)})
    other = function(node("ReduceSum", "x", "b"), inputs={}, outputs={"b": tensor(1)})
    choice = node("If", "c", "y", then_branch=then, else_branch=other)
    assert why(function(choice, inputs={"c": BOOL, "x": tensor(2)})).startswith("XLA does not support this If: ")


def test_a_loop_whose_scan_is_as_long_as_the_run_says_is_declined() -> None:
    body = function(
        *(node("Identity", "c", "go"), node("Add", "v v", "w"), node("Mul", "w w", "q")),
        inputs={"i": tensor(dtype=INT), "c": BOOL, "v": tensor(1)},
        outputs={"go": BOOL, "w": tensor(1), "q": tensor(1)},
    )
    f = function(
        node("Loop", "m - x", "y squares", body=body),
        inputs={"m": tensor(dtype=INT), "x": tensor(1)},
        outputs={"y": tensor(1), "squares": None},
    )
    assert why(f) == "Loop stacks a number of results that is known only at run time, and XLA supports only static shapes"


@pytest.mark.parametrize("captured", ["o0", "i0", "x"])
def test_a_body_may_capture_a_value_of_any_name(captured: str) -> None:
    branch = function(node("Relu", captured, "a"), inputs={}, outputs={"a": tensor(2)})
    choice = node("If", "c", "y", then_branch=branch, else_branch=branch)
    assert why(function(choice, inputs={"c": BOOL, captured: tensor(2)}, outputs={"y": tensor(2)})) == ""


def test_a_short_loop_may_change_shapes() -> None:
    inner = function(
        *(node("Identity", "c", "go"), node("Concat", "v x", "w", axis=0)),
        inputs={"i": tensor(dtype=INT), "c": BOOL, "v": None},
        outputs={"go": BOOL, "w": None},
    )
    loop = node("Loop", "m - x", "y", body=inner)
    f = function(loop, inputs={"x": tensor(1)}, outputs={"y": tensor(4)}, constants={"m": np.array(3)})
    assert why(f) == ""
    assert run(f, np.array([7], np.float32))[0].tolist() == [7] * 4


@pytest.mark.slow
@pytest.mark.sample(8, plain=2)
class TestXla(EngineSuite):
    engine = "xla"
    test_conformance = None  # run in tests/conformance
    test_node_tests_with_symbolic_dims = None
