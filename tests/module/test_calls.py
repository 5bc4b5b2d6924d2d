"""What a call costs nothing for: prepared and bound calls, the caller's buffers, several threads. Each refusal in full."""

from __future__ import annotations

import gc
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import xrt
from tests.exact_errors import raises_exactly
from tests.module.small_models import X, relu
from xrt.cache import CompileCache
from xrt.cache.memory import wait_until_closed
from xrt.errors import DeviceError, InputError, RunFailed
from xrt.graph import Constant, DType, Function, Node, TensorType, Value
from xrt.testing.corpus.entry import graph, node, sequence
from xrt.testing.fault_injection import RecordingEngine

ENGINES = ["toy", "ort", "tvm"]
MIXTURES: list[Any] = [*ENGINES, ["ort", "toy"], ["tvm", "ort"], ["toy", "tvm"]]


def blocks(size: int = 64) -> Function:
    """x and y through Add and Relu in turn, of size x size floats; the last value and one from the middle come out."""
    type_, nodes = f"float32[{size},{size}]", [node("Add", "x y", "v0", name="n0")]
    for i in range(1, 6):
        op, read = ("Add", f"v{i - 1} y") if i % 2 else ("Relu", f"v{i - 1}")
        nodes.append(node(op, read, f"v{i}", name=f"n{i}"))
    return graph({"x": type_, "y": type_}, {"v5": type_, "v2": type_}, *nodes).replace(name="blocks")


def by_hand(x: Any, y: Any) -> tuple[Any, Any]:
    values = [x + y]
    for i in range(1, 6):
        values.append(values[-1] + y if i % 2 else np.maximum(values[-1], 0))
    return values[-1], values[2]


def module(engine: Any, function: Function) -> xrt.XRTModule:
    """Return a module whose nodes alternate between the engines, if there are several."""
    if isinstance(engine, str):
        return xrt.XRTModule(function, engine=engine, strict=True)
    pins = [f"name:{node.name}={engine[i % len(engine)]}" for i, node in enumerate(function.nodes)]
    return xrt.XRTModule(function, engine=engine, strict=True, pins=pins)


def random(size: int = 64, seed: int = 0) -> list[Any]:
    return list(np.random.default_rng(seed).standard_normal((2, size, size)).astype("float32"))


@pytest.mark.slow
def test_signatures_take_turns_and_the_plan_is_that_of_the_last_call() -> None:
    m = xrt.XRTModule(relu(("N", 3)), engine=[RecordingEngine(), "toy"], strict=True)
    a, b = np.ones((2, 3), "float32"), np.ones((4, 3), "float32")
    for item in (a, b, a, b, b, a):
        assert m(item).shape == item.shape
        assert m.inputs == m.inputs and m.plan.launches[0].function.inputs[0].type == TensorType(DType.FLOAT32, item.shape)
    m.plan_for(b)
    assert m(a).shape == a.shape
    assert m.plan.launches[0].function.inputs[0].type == TensorType(DType.FLOAT32, a.shape)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_looks_alike_is_not_taken_for_what_was_prepared(engine: str) -> None:
    m = xrt.XRTModule(relu(), engine=engine, strict=True)
    m(X)
    for wrong in (X.astype("float64"), X[:1], X.tolist(), None):
        with pytest.raises(InputError):
            m(wrong)
    with pytest.raises(InputError):
        m(z=X)
    with pytest.raises(InputError):
        m()
    np.testing.assert_array_equal(m(X.T.copy().T), np.maximum(X, 0))
    np.testing.assert_array_equal(m(X.astype(">f4")), np.maximum(X, 0))
    np.testing.assert_array_equal(m(X.view(np.recarray)), np.maximum(X, 0))


@pytest.mark.slow
@pytest.mark.parametrize("size", [8, 64, 512])
@pytest.mark.parametrize("engine", MIXTURES, ids=str)
def test_eight_threads_call_one_module(engine: Any, size: int) -> None:
    m = module(engine, blocks(size))
    m(*random(size))

    def call(seed: int) -> list[Any]:
        x, y = random(size, seed)
        return [x, y, *(result for _ in range(4) for result in m(x, y)), *m.bind(x, y)()]

    with ThreadPoolExecutor(8) as pool:
        items = list(pool.map(call, range(16)))
    for x, y, *results in items:
        assert all(np.allclose(a, b) for a, b in zip(results, by_hand(x, y) * 5, strict=True))
    starts = sorted((a.ctypes.data, a.nbytes) for item in items for a in item)
    assert all(at + nbytes <= then for (at, nbytes), (then, _) in itertools.pairwise(starts)), "no memory is shared"


@pytest.mark.parametrize("size", [8, 512])
@pytest.mark.parametrize("engine", MIXTURES, ids=str)
def test_buffers_of_the_caller_hold_the_outputs(engine: Any, size: int) -> None:
    m, (x, y) = module(engine, blocks(size)), random(size)
    for _ in range(2):  # the first call of a signature and a prepared one
        out = [np.empty((size, size), "float32"), None]
        first, second = m(x, y, out=out)
        assert first is out[0] and not np.shares_memory(first, second)
        for result, wanted in zip((first, second), by_hand(x, y), strict=True):
            np.testing.assert_allclose(result, wanted, rtol=1e-6)


class Elsewhere:
    """An array on another device."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 1


TWO = np.zeros((2, 4, 4), "float32")


@pytest.mark.parametrize(
    ("out", "error", "text"),
    [
        (TWO[0], InputError, "out has 1 buffer; the model has 2 outputs (v5, v2): give one, or None, for each"),
        ([TWO[0], TWO[1], None], InputError, "out has 3 buffers; the model has 2 outputs (v5, v2): give one, or None, for each"),
        ([None, TWO[1][:2]], InputError, "out[1] for output 'v2' must be float32[4,4]; got float32[2, 4]"),
        ([TWO[0].astype("int32"), None], InputError, "out[0] for output 'v5' must be float32[4,4]; got int32[4, 4]"),
        (
            [TWO[0].T, None],
            InputError,
            "out[0] for output 'v5' is not C-contiguous; a buffer must be a writeable, C-contiguous array",
        ),
        (
            [np.broadcast_to(np.float32(1), (4, 4)), None],
            InputError,
            "out[0] for output 'v5' is read-only; a buffer must be a writeable, C-contiguous array",
        ),
        (
            [np.empty(65, "uint8")[1:].view("float32").reshape(4, 4), None],
            InputError,
            "out[0] for output 'v5' is not aligned to its element type; a buffer must be a writeable, C-contiguous array",
        ),
        ([TWO[0], TWO[0]], InputError, "out[1] for output 'v2' overlaps out[0]; pass a buffer with separate memory"),
        (["buffer", None], InputError, "out[0] for output 'v5' must be a NumPy array; got str"),
        (
            [Elsewhere(), None],
            DeviceError,
            "out[0] for output 'v5' is on cuda:1, and the module runs on cpu; pass a NumPy array",
        ),
    ],
)
@pytest.mark.parametrize("prepared", [False, True])
def test_a_buffer_that_does_not_fit_is_refused_by_name(out: Any, error: type[Exception], text: str, prepared: bool) -> None:
    m, (x, y) = xrt.XRTModule(blocks(4), engine="toy"), random(4)
    if prepared:
        m(x, y)
    for call in (lambda: m(x, y, out=out), lambda: m.bind(x, y, out=out)):
        with raises_exactly(error, text):
            call()


@pytest.mark.parametrize("prepared", [False, True])
def test_a_buffer_of_another_size_than_the_inputs_is_refused(prepared: bool) -> None:
    m, x = xrt.XRTModule(relu(("N", 3)), engine="ort", strict=True), np.ones((1 << 17, 3), "float32")
    if prepared:
        m(x)
    with raises_exactly(InputError, "out[0] for output 'y' must be float32[131072,3]; got float32[131071, 3]"):
        m(x, out=np.empty_like(x[1:]))
    assert m(x, out=np.empty_like(x)).all()


@pytest.mark.parametrize("prepared", [False, True])
def test_a_buffer_that_overlaps_an_input_is_refused_by_name(prepared: bool) -> None:
    m, memory = xrt.XRTModule(blocks(4), engine="toy"), np.zeros(40, "float32")
    x, y = memory[:16].reshape(4, 4), np.zeros((4, 4), "float32")
    if prepared:
        m(x, y)
    with raises_exactly(InputError, "out[1] for output 'v2' overlaps input 'x'; pass a buffer with separate memory"):
        m(x, y, out=[None, memory[8:24].reshape(4, 4)])


def test_no_buffer_holds_a_sequence() -> None:
    function = graph({"x": "float32[2]"}, {"s": sequence("float32[?]")}, node("SequenceConstruct", "x", "s"))
    m, data = xrt.XRTModule(function, engine="toy"), np.zeros(2, "float32")
    why = "is seq(float32[2]), which cannot be written to an array"
    with raises_exactly(InputError, f"out[0] for output 's' must be None: the output {why}"):
        m(data, out=np.empty(2, "float32"))
    with raises_exactly(InputError, f"output 's' {why}; call the module instead of binding it"):
        m.bind(data)


@pytest.mark.parametrize("rows", [2, "N"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_bound_call_writes_to_the_callers_buffer_whose_extents_the_inputs_settle(engine: str, rows: Any) -> None:
    m, x, out = xrt.XRTModule(relu((rows, 3)), engine=engine, strict=True), X.copy(), np.empty((2, 3), "float32")
    bound, other = m.bind(x=x, out=out), m.bind(x)
    assert bound() is out and other().shape == (2, 3)
    x *= -1
    for call in (bound, other):
        np.testing.assert_array_equal(call(), np.maximum(x, 0))
    with raises_exactly(InputError, "out[0] for output 'y' must be float32[2,3]; got float32[3, 3]"):
        m.bind(x, out=np.empty((3, 3), "float32"))


def test_extents_that_the_inputs_settle_give_inner_values_a_place() -> None:
    nodes = [node("Neg", f"v{i}", f"v{i + 1}", name=f"n{i}") for i in range(4)]
    m = module(["ort", "toy"], graph({"v0": "float32[N,300]"}, {"v4": "float32[N,300]"}, *nodes))
    x = np.ones((50, 300), "float32")
    bound = m.bind(x)
    for step in range(3):
        x += step
        np.testing.assert_array_equal(bound(), x)
    np.testing.assert_array_equal(m(x[:7].copy()), x[:7])


def test_an_output_whose_size_only_a_run_tells_needs_a_buffer() -> None:
    function = graph({"x": "float32[4]"}, {"y": "int64[1,?]"}, node("NonZero", "x", "y"))
    m, data, out = xrt.XRTModule(function, engine="toy"), np.array([0, 1, 0, 2], "float32"), np.empty((1, 2), "int64")
    with pytest.raises(InputError, match="whose size is known only after a run; pass a buffer for it in out="):
        m.bind(data)
    bound = m.bind(data, out=out)
    assert bound().tolist() == [[1, 3]]
    data[...] = 1
    with pytest.raises((InputError, RunFailed)):
        bound()


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("engine", MIXTURES, ids=str)
def test_inputs_constants_and_repeated_values_as_outputs_are_copies(engine: Any, bound: bool) -> None:
    type_ = TensorType(DType.FLOAT32, (2, 3))
    # Of the Reshape, an engine may return a view.
    nodes = node("Relu", "x", "y", name="n0"), node("Neg", "y", "z", name="n1"), node("Reshape", "y shape", "v", name="n2")
    outputs = tuple(Value(n, type_) for n in ("x", "y", "y", "w", "z", "v"))
    weight = Constant(X * 7)
    function = Function((Value("x", type_),), outputs, nodes, {"w": weight, "shape": Constant(np.array([2, 3]))}, {"": 14})
    m, x = module(engine, function), X.copy()
    run, earlier = m.bind(x) if bound else lambda: m(x), list[Any]()
    for _ in range(2):
        x += 1
        results, y = run(), np.maximum(x, 0)
        for i, (result, expected) in enumerate(zip(results, (x, y, y, X * 7, -y, y), strict=True)):
            np.testing.assert_array_equal(result, expected)
            assert not any(np.shares_memory(result, other) for other in (x, weight.array, *results[:i], *earlier))
        earlier = [] if bound else [*results]  # a bound call writes to the same buffers each time


@pytest.mark.parametrize("engine", ["toy", "ort"])
def test_texts_are_checked_in_each_call(engine: str) -> None:
    m = xrt.XRTModule(graph({"x": "string[2]"}, {"y": "string[2]"}, node("Identity", "x", "y")), engine=engine)
    assert m(np.array(["a", "b"], object)).tolist() == ["a", "b"]
    with pytest.raises(InputError, match="element 1 is int 1"):
        m(np.array(["a", 1], object))


def accumulating(*nodes: Node) -> Function:
    """``state``, which becomes the first output, beside ``x``."""
    new = nodes[-1].outputs[0] if nodes else "x"
    return graph({"x": "float32[2]", "state": "float32[2]"}, {new: "float32[2]"}, *nodes, aliases=(("state", new),))


ADD = node("Add", "x state", "next", name="n0"), node("Neg", "next", "new", name="n1")


@pytest.mark.parametrize("nodes", [(), ADD[:1], ADD], ids=["no node", "one", "several"])
@pytest.mark.parametrize("engine", ["toy", "ort"])
def test_an_input_that_cannot_be_updated_is_refused(engine: str, nodes: tuple[Node, ...]) -> None:
    """It came as NumPy's ValueError, as an IndexError, or as the engine's failure; of another byte order, the update was lost."""
    m, x = xrt.XRTModule(accumulating(*nodes), engine=engine, maximum_nodes=1), np.ones(2, "float32")
    text = "input 'state' cannot be written to, and the model updates it; give a writeable array of native byte order"
    for ready in (False, True):
        for state in (np.frombuffer(bytes(8), "float32"), np.zeros(2, ">f4")):
            for call in (
                lambda s=state: m(x, s),
                lambda s=state: m(x=x, state=s),
                lambda s=state: m(x, s, out=np.empty(2, "float32")),
            ):
                with pytest.raises(InputError) as caught:
                    call()
                assert str(caught.value) == text, ready
            assert not state.any()
        m(x, np.zeros(2, "float32"))
    with raises_exactly(InputError, text):
        m.bind(x, np.frombuffer(bytes(8), "float32"))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            np.zeros((3, 2), "float32").T,
            (
                "input 'x' is not C-contiguous; a bound input is read in place: bind np.ascontiguousarray(...) of it, and "
                "write to it"
            ),
        ),
        (
            np.zeros((2, 3), ">f4"),
            "input 'x' is >f4; a bound input is read in place, so it must be <f4: bind raw.astype('<f4'), and write to it",
        ),
        (np.zeros((2, 3)), "input 'x' must be float32; got float64; convert it with .astype('float32')"),
    ],
)
def test_an_input_that_cannot_be_fixed_is_refused(given: Any, text: str) -> None:
    with raises_exactly(InputError, text):
        xrt.XRTModule(relu(), engine="toy").bind(given)


def test_a_bound_call_outlives_its_module_and_ends_when_it_is_closed() -> None:
    x = X.copy()
    with xrt.XRTModule(relu(), engine="ort", strict=True) as m:
        bound = m.bind(x)
    np.testing.assert_array_equal(bound(), np.maximum(X, 0))
    with bound:
        bound()
    with pytest.raises(InputError, match=r"^the bound call is closed; bind the module's inputs again$"):
        bound()
    with pytest.raises(InputError, match=r"^the module is closed; make a new XRTModule$"):
        m.bind(x)


def test_a_bound_call_keeps_an_executable_that_the_cache_evicts() -> None:
    engine, cache = RecordingEngine(), CompileCache(capacity=1)
    bound = xrt.XRTModule(relu(), engine=engine, cache=cache).bind(X.copy())
    gc.collect()  # the module is gone
    with xrt.XRTModule(relu((4, 5)), engine=engine, cache=cache) as other:
        other.compile()
    assert wait_until_closed(60)
    assert (cache.statistics.evictions, engine.journal.count("close")) == (1, 0)
    np.testing.assert_array_equal(bound(), np.maximum(X, 0))
