"""The native tape: results, memory, Python around it, kernels that go wrong, and threads."""

from __future__ import annotations

import ctypes
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.engines import written
from tests.engines.test_native_library import library
from tests.engines.toy_running import function, typed
from tests.exact_errors import raises_exactly
from xrt.engines import CompileContext, native
from xrt.engines.toy import Toy
from xrt.engines.toy.native import PerShapeExecutable
from xrt.errors import CompileFailed, CompileRefused, InputError, RunFailed
from xrt.graph import DType, Function, TensorType, Value
from xrt.testing.corpus.entry import node

F32 = DType.FLOAT32
X = np.arange(-300, 300, dtype=np.float32).reshape(20, 30)


def count(what: int) -> int:
    counter = ctypes.CDLL(str(library())).count
    counter.restype = ctypes.c_int64
    return int(counter(what))


PREPARED, DESTROYED = 0, 1


def chain(length: int, **attributes: Any) -> Function:
    """Return x doubled so many times; each step may write over the one before."""
    nodes = [node("Twice", f"v{i} -", f"v{i + 1}", domain="test", **attributes) for i in range(length)]
    graph = function("v0", f"v{length}", *nodes, test=1)
    return graph.replace(inputs=(typed("v0", X),))


def ready(graph: Function) -> Any:
    return written.compiled(Toy(libraries=(str(library()),)), graph, CompileContext(threads=1))


def test_what_is_read_again_is_not_written_over() -> None:
    nodes = [
        node("Twice", "x -", "a", domain="test"),
        node("Twice", "a -", "b", domain="test"),
        node("Twice", "b a", "c", domain="test"),
        node("Twice", "c c", "d", domain="test"),
        node("Twice", "d a", "y", domain="test", bid="scratch"),
    ]
    graph = function("x", "y", *nodes, test=1).replace(inputs=(typed("x", X),))
    np.testing.assert_array_equal(ready(graph).run([X])[0], 2 * 3 * 10 * X + 2 * X)


def test_an_output_that_nobody_wants_is_left_out() -> None:
    graph = function("x", "y", node("Split", "x", "- y", domain="test"), test=1).replace(inputs=(typed("x", X),))
    np.testing.assert_array_equal(ready(graph).run([X])[0], -X)


def test_arrays_of_any_layout_are_read_as_they_are() -> None:
    executable = ready(chain(2))
    raw = np.empty(X.nbytes + 4, np.uint8)[1:-3]
    unaligned = raw.view(np.float32).reshape(X.shape)
    unaligned[:] = X
    assert not unaligned.flags.aligned
    strided = np.asfortranarray(X)
    readonly = X.copy()
    readonly.flags.writeable = False
    for array in (unaligned, strided, readonly, X[::-1][::-1]):
        np.testing.assert_array_equal(executable.run([array])[0], 4 * X)


def test_an_array_without_elements_may_have_any_address() -> None:
    """NumPy calls it aligned; the tape looks at the address."""
    value = typed("v0", np.empty((2, 0), np.float32))
    executable = ready(chain(2).replace(inputs=(value,)))
    raw = memoryview(bytearray(8))
    views = [np.frombuffer(raw[at:at], np.float32).reshape(2, 0) for at in (1, 2)]
    odd = next(view for view in views if view.__array_interface__["data"][0] % 4)
    assert odd.flags.aligned
    assert executable.run([odd])[0].shape == (2, 0)


def test_an_input_that_is_not_what_was_prepared_is_refused() -> None:
    executable = ready(chain(1))
    for wrong, got in ((X[:3], "float32[3,30]"), (X.astype("f8"), "float64[20,30]"), (X.tolist(), "list")):
        text = f"value 'v0' is {got}; the native kernels that read it were prepared for float32[20,30]"
        with raises_exactly(RunFailed, text):
            executable.run([wrong])
    with pytest.raises(InputError, match="function 'main' takes 1 inputs; got 2"):
        executable.run([X, X])


def test_native_runs_and_python_kernels_share_the_work() -> None:
    nodes = [
        node("Twice", "x -", "a", domain="test"),
        node("CumSum", "a axis", "b"),
        node("Twice", "b a", "c", domain="test"),
        node("Split", "c", "d e", domain="test"),
        node("Concat", "d e", "y", axis=0),
    ]
    graph = function("x", "y a", *nodes, constants={"axis": np.int64(1)}, test=1).replace(inputs=(typed("x", X),))
    y, a = ready(graph).run([X])
    c = 2 * np.cumsum(2 * X, axis=1) + 2 * X
    np.testing.assert_array_equal(a, 2 * X)
    np.testing.assert_allclose(y, np.concatenate([c, -c]), rtol=1e-5)


def test_a_kernel_of_higher_priority_serves_before_xrts_own() -> None:
    graph = function("x", "y", node("Neg", "x", "y"), opset=12).replace(inputs=(typed("x", X),))
    np.testing.assert_array_equal(ready(graph).run([X])[0], -2 * X)
    newer = function("x", "y", node("Neg", "x", "y"), opset=13).replace(inputs=(typed("x", X),))
    np.testing.assert_array_equal(ready(newer).run([X])[0], -X)


def test_a_body_may_hold_nodes_that_only_a_native_kernel_serves() -> None:
    double = Function((), (Value("y", TensorType(F32)),), (node("Twice", "x -", "y", domain="test"),), opsets={"": 20, "test": 1})
    keep = Function((), (Value("y", TensorType(F32)),), (node("Identity", "x", "y"),), opsets={"": 20, "test": 1})
    graph = function("c x", "y", node("If", "c", "y", then_branch=double, else_branch=keep), opset=20, test=1)
    graph = graph.replace(inputs=(typed("c", np.array(True)), typed("x", X)))
    executable = ready(graph)
    np.testing.assert_array_equal(executable.run([np.array(True), X])[0], 2 * X)
    np.testing.assert_array_equal(executable.run([np.array(False), X])[0], X)


def test_a_call_of_known_shapes_waits_for_nobody() -> None:
    """While one thread made the tape of a new shape, every other thread stood still."""
    begun, going_on = threading.Event(), threading.Event()

    def made(function: Function) -> Any:
        if function.inputs[0].type == TensorType(F32, (2,)):
            begun.set()
            assert going_on.wait(300)
        return ready(function)

    by_shapes = PerShapeExecutable(RELU, made)
    old, new = np.ones(1, np.float32), np.ones(2, np.float32)
    by_shapes.run([old])
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(by_shapes.run, [new])
        assert begun.wait(300)
        try:
            assert pool.submit(by_shapes.run, [old]).result(300)[0].tolist() == [1]
            assert not slow.done()
        finally:
            going_on.set()
        assert slow.result(300)[0].tolist() == [1, 1]


RELU = function("x", "y", node("Relu", "x", "y")).replace(inputs=(Value("x", TensorType(F32, ("n",))),))


@pytest.mark.parametrize(
    ("serves_all", "most", "sizes", "compiled_sizes"),
    [(lambda: ready(RELU), 3, (1, 2, 3, 4, 5, 6, 1, 4), [1, 2, 3]), (None, 2, (1, 2, 1, 3, 1, 2), [1, 2, 3, 2])],
    ids=["the first", "the last, where nothing serves every shape"],
)
def test_so_many_sets_of_shapes_have_tapes(serves_all: Any, most: int, sizes: tuple[int, ...], compiled_sizes: list[int]) -> None:
    """A value that grows in every call would else cost a preparation in every call."""
    compiled: list[Any] = []
    by_shapes = PerShapeExecutable(RELU, lambda f: compiled.append(f) or ready(f), serves_all, most)
    for size in sizes:
        assert by_shapes.run([np.full(size, -1, np.float32)])[0].tolist() == [0] * size
    assert [f.inputs[0].type.shape[0] for f in compiled] == compiled_sizes


def test_a_shape_that_only_another_kernel_knows() -> None:
    graph = function(
        "x", "y", node("NonZero", "x", "at"), node("Cast", "at", "f", to=1), node("Twice", "f -", "y", domain="test"), test=1
    )
    x = np.float32([0, 3, 0, 4])
    graph = graph.replace(inputs=(typed("x", x),))
    np.testing.assert_array_equal(ready(graph).run([x])[0], [[2, 6]])


WHERE = "node 'v1' (test.Twice)"
OUTPUT = f"output 0 of {WHERE}"
WRONG = [
    ("decline", CompileRefused, "engine 'toy' does not support " + WHERE + ": twice: it was bidden to; neither toy nor "
     "onnx.reference has operators of domain 'test'"),
    ("fail to prepare", CompileFailed, "{kernel} failed to prepare for " + WHERE + ": no room"),
    ("fail in silence", CompileFailed, "{kernel} failed to prepare for " + WHERE + ": it gives no reason"),
    ("announce another type", CompileFailed, "{kernel} returns float64[20,30] for " + OUTPUT
     + ", which is float32[20,30]; its prepare is wrong"),
    ("announce another shape", CompileFailed, "{kernel} returns float32[21,31] for " + OUTPUT
     + ", which is float32[20,30]; its prepare is wrong"),
    ("announce no type", CompileFailed, "{kernel} returns no type for " + OUTPUT
     + ", or one that XRT does not support; its prepare is wrong"),
    ("announce a long shape", CompileFailed, "{kernel} returns no type for " + OUTPUT
     + ", or one that XRT does not support; its prepare is wrong"),
    ("fail to run", RunFailed, "{kernel} failed at " + WHERE + ": the number is odd"),
]  # fmt: skip


@pytest.mark.parametrize(("bid", "error", "text"), WRONG)
def test_a_kernel_that_goes_wrong_is_named(bid: str, error: type[Exception], text: str) -> None:
    graph = chain(1, bid=bid).replace(outputs=(typed("v1", X),))
    with raises_exactly(error, text.format(kernel=f"kernel 'twice' of library {library()}")):
        ready(graph).run([X])


def test_a_kernel_that_refuses_when_prepared_leaves_the_node_to_the_next() -> None:
    nodes = [node("Neg", "x", "y", bid="refuse"), node("Twice", "y -", "z", domain="test")]
    graph = function("x", "z", *nodes, opset=12, test=1).replace(inputs=(typed("x", X),))
    np.testing.assert_array_equal(ready(graph).run([X])[0], -2 * X)


def test_every_state_that_was_made_is_destroyed() -> None:
    gc.collect()
    alive = count(PREPARED) - count(DESTROYED)
    executable = ready(chain(7))
    executable.run([X])
    assert count(PREPARED) - count(DESTROYED) - alive == 7
    executable.close()
    del executable
    gc.collect()
    assert count(PREPARED) - count(DESTROYED) == alive
    with pytest.raises(CompileFailed):
        ready(chain(3, bid="announce another shape").replace(outputs=(typed("v3", X),)))
    gc.collect()
    assert count(PREPARED) - count(DESTROYED) == alive, "a tape that was not made leaves nothing behind"


@pytest.mark.slow
def test_a_budget_has_as_many_workers() -> None:
    from xrt.engines.native.bindings import get_core

    (y,) = native.run_kernel(native.load(library()).kernel("twice"), np.ones((400, 1000), np.float32), None, threads=3)
    assert (y == 2).all() and get_core().xrt_pool_workers() >= 2
