"""The toy engine: control flow, buffers, products, updates in place, calls and errors, and the suite."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.engines import written
from tests.engines.toy_running import function, one, ready, run, same, typed
from tests.engines.written import Array
from xrt.comparison import BIT_EQUAL, Tolerance
from xrt.engines import CompileContext, RunOptions
from xrt.engines.native import why_not_shipped
from xrt.engines.toolkit.blas import BlasLibrary, BlasThreads, find_blas
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.engines.toy import Toy, kernels as products
from xrt.engines.toy.kernels import ProductThreads, multiply
from xrt.errors import CompileRefused, InputError, RunFailed
from xrt.graph import DType, Function, Node, TensorType, Value
from xrt.passes import infer_shapes
from xrt.testing.corpus.entry import f32, i64, node
from xrt.testing.suite import EngineSuite

GENERATOR = np.random.default_rng(3)


def drawn(*shape: int) -> Array:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def test_elements_of_a_sequence_have_memory_of_their_own() -> None:
    x = f32(1, 2)
    s, t = run(function("x", "s t", node("SequenceConstruct", "x x", "s"), node("Identity", "s", "t")), x)
    (y,) = run(function("s", "y", node("SequenceAt", "s i", "y"), constants={"i": i64(0)}), s)
    same(y, x)
    everything = [x, *s, *t, y]
    assert s is not t
    assert not any(np.shares_memory(a, b) for i, a in enumerate(everything) for b in everything[:i])


def test_what_onnx_defines_raises_no_warning() -> None:
    zero, one_ = f32(0.0), f32(1.0)
    assert np.isinf(one("Div", one_, zero))
    assert np.isnan(one("Log", f32(-1)))
    assert one("Cast", f32(1e30), to=10) == np.inf


def test_dead_values_are_freed() -> None:
    names = ["x", *(f"v{i}" for i in range(12))]
    executable, x = ready(function("x", names[-1], *(node("Transpose", a, b) for a, b in pairwise(names)))), drawn(512, 512)
    executable.run([x])
    tracemalloc.start()
    try:
        executable.run([x])
        assert tracemalloc.get_traced_memory()[1] < 2.5 * x.nbytes
    finally:
        tracemalloc.stop()


def at_once(work: Callable[[int], bool], count: int = 6) -> list[int]:
    """Run the work in as many threads, and return the numbers of those in which it was wrong."""
    with ThreadPoolExecutor(count) as pool:
        return [number for number, right in enumerate(pool.map(work, range(count))) if not right]


def test_threads_share_a_borrowed_operator() -> None:
    executable = ready(function("x y", "z", node("StringConcat", "x y", "z")))

    def work(number: int) -> bool:
        x = np.array([str(number)] * 20, dtype=object)
        return all(executable.run([x, x])[0].tolist() == [2 * str(number)] * 20 for _ in range(20))

    assert at_once(work) == []


def test_scan_along_other_axes_and_backwards() -> None:
    body = function("s x", "t y", node("Add", "s x", "t"), node("Identity", "t", "y"))
    scan = node(
        "Scan", "s x", "t y", body=body, num_scan_inputs=1, scan_input_axes=[1], scan_input_directions=[1],
        scan_output_axes=[1], scan_output_directions=[1],
    )  # fmt: skip
    last, seen = run(function("s x", "t y", scan), f32(0, 0), f32([[1, 2, 3], [10, 20, 30]]))
    same(last, f32(6, 60))
    same(seen, f32([[6, 5, 3], [60, 50, 30]]))


def test_sequences_are_not_changed_in_place() -> None:
    nodes = node("SequenceInsert", "s x i", "a"), node("SequenceErase", "a i", "b"), node("SequenceLength", "a", "n")
    given_ = [f32(1.0), f32(2.0)]
    s, a, b, n = run(function("s x", "s a b n", *nodes, constants={"i": i64(0)}), given_, f32(9.0))
    assert len(given_) == 2
    assert [[float(v) for v in values] for values in (s, a, b)] == [[1, 2], [9, 1, 2], [1, 2]]
    same(n, i64(3))


def test_a_borrowed_operator_with_a_left_out_output() -> None:
    f = function("q", "y k", node("Attention", "q q q - p p", "y k -"), constants={"p": np.zeros((1, 2, 0, 4), np.float32)})
    q = drawn(1, 2, 3, 4)
    y, k = run(f, q)
    same(k, q)
    assert y.shape == q.shape


def test_a_wrong_number_of_inputs_is_refused() -> None:
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(InputError, match=r"^function 'main' takes 1 inputs; got 2$"):
        run(function("x", "y", node("Neg", "x", "y")), x, x)


@pytest.mark.parametrize("buffer", [np.empty((3, 2), np.float32), np.empty((2, 3))])
@pytest.mark.parametrize("engine", [Toy(), Toy(native="off")], ids=str)
def test_a_buffer_that_does_not_fit_is_refused(engine: Toy, buffer: Any) -> None:
    f = infer_shapes(function("x", "y", node("Neg", "x", "y")).replace(inputs=(Value("x", TensorType(DType.FLOAT32, (2, 3))),)))
    message = f"a result is float32[2, 3], but the buffer for it is {buffer.dtype}{list(buffer.shape)}"
    with pytest.raises(RunFailed, match=f"^{re.escape(message)}$"):
        written.compiled(engine, f).run([np.zeros((2, 3), np.float32)], RunOptions(out=[buffer]))


@dataclass(frozen=True)
class Mine(Toy):
    name: ClassVar[str] = "mine"


RESHAPED = function("", "y", node("Reshape", "x s", "y"), constants={"s": i64([7])})
FAILURES = [
    (function("a b", "y", node("Concat", "a b", "y", axis=0)), [np.zeros((2, 3), np.float32), i64(1)],
     "at node 'y' (Concat) on (float32[2,3], int64[]): ValueError: "),
    (function("s i", "y", node("SequenceAt", "s i", "y")), [[f32(1.0), f32(2.0)], i64(2)],
     "IndexError: position 2 is outside of a sequence of 2; it must be from -2 to 1; check the node's attributes and the shapes"),
    (function("x", "y z", node("Relu", "x", "y z")), [f32(1.0)],
     "the operator returns 1 output(s) with these attributes; the node has 2"),
    (function("c x", "y", node("If", "c", "y", then_branch=RESHAPED, else_branch=RESHAPED)), [np.array(True), f32(1, 2)],
     "at node 'y' (Reshape) on (float32[2], int64[1]): ValueError: "),
]  # fmt: skip


@pytest.mark.parametrize(("f", "inputs", "text"), FAILURES, ids=["kernel", "sequence", "outputs", "body"])
def test_a_kernel_that_fails_names_the_engine_and_its_node(f: Function, inputs: list[Any], text: str) -> None:
    with pytest.raises(RunFailed) as caught:
        written.run(Mine(native="off"), f, *inputs)
    assert str(caught.value).startswith("engine 'mine' failed at node 'y' (") and text in str(caught.value)


def test_outputs_that_are_left_out_are_not_computed_for() -> None:
    f = function("x", "y", Node("Relu", ("x",), ("y", "", "")))
    same(run(f, f32(-1.0))[0], f32(0.0))


TRAINING = "ai.onnx.preview.training"


def why(n: Node, opset: int = 18, **domains: int) -> str | None:
    f = Function(tuple(map(Value, dict.fromkeys(n.inputs))), (Value(n.outputs[0]),), (n,), opsets={"": opset, **domains})
    return Toy().why_not(f.nodes[0], f)


UNKNOWN = "the onnx package has no operator '{}' in version {} of domain '{}'"


def test_reasons() -> None:
    assert why(node("Relu", "x", "y")) is None
    assert why(node("Relu", "x", "y", domain="mine")) == "the function imports no opset for domain 'mine'"
    for op in ("Rleu", "Gelu"):
        assert why(node(op, "x", "y"), opset=18) == UNKNOWN.format(op, 18, "ai.onnx")
    assert why(node("Fused", "x", "y", domain="com.acme"), **{"com.acme": 1}) == UNKNOWN.format("Fused", 1, "com.acme")
    absent = why(node("Gradient", "x", "y", domain=TRAINING, xs=["x"], y="y"), **{TRAINING: 1})
    assert str(absent).startswith("neither toy nor onnx.reference implements Gradient in version 1: ")


def test_a_device_that_it_does_not_run_on_is_a_reason() -> None:
    assert why(Node("Relu", ("x",), ("y",), device="cuda:1")) is None
    kernel, borrowed = (str(why(Node(op, ("x",), ("y",), device="cuda:1"))) for op in ("Bernoulli", "DFT"))
    assert "the kernel runs on cpu, not on cuda:1" in kernel
    assert "the reference operators run on cpu, not on cuda:1" in borrowed


def test_a_body_that_it_cannot_take_is_a_reason() -> None:
    inner = function("", "y", node("Gradient", "x", "y", domain=TRAINING, xs=["x"], y="y"), **{TRAINING: 1})
    f = function("c x", "y", node("If", "c", "y", then_branch=inner, else_branch=inner), **{TRAINING: 1})
    reason = "its body 'main' holds node 'y' (ai.onnx.preview.training.Gradient): neither toy nor "
    assert str(Toy().why_not(f.nodes[0], f)).startswith(reason)
    with pytest.raises(CompileRefused, match=re.escape(f"engine 'toy' does not support node 'y' (If): {reason}")):
        Toy().compile(f, CompileContext())


def test_a_device_that_nobody_has_opened_is_refused() -> None:
    with pytest.raises(CompileRefused, match=r"^engine 'toy' needs an accelerator for cuda; compile through XRTModule$"):
        Toy().compile(function("x", "x"), CompileContext(device="cuda"))


needs_calls = pytest.mark.skipif(
    why_not_shipped() is not None or find_blas().calls is None,
    reason="native kernels were not built, or BLAS's calls are not known",
)


def of_threads(count: int) -> BlasThreads:
    """Return a library that says it has so many threads, so that products are cut on a machine of one core too."""
    limit = [count]
    library = BlasLibrary("fake", lambda: limit[0], lambda n: limit.__setitem__(0, n), find_blas().calls)
    return BlasThreads([library])


@pytest.fixture
def three_threads(monkeypatch: pytest.MonkeyPatch) -> ProductThreads:
    """The context of runs on three threads; every product is large enough."""
    monkeypatch.setattr(products, "MIN_THREADED_WORK", 1)
    return ProductThreads(of_threads(3), 3)


@needs_calls
def test_what_blas_does_not_multiply_goes_to_numpy(three_threads: ProductThreads) -> None:
    with three_threads:
        for dtype in (np.int32, np.complex64, np.float16):
            x = np.arange(6).reshape(2, 3).astype(dtype)
            assert np.array_equal(multiply(np, x, x.T), np.matmul(x, x.T))
        assert multiply(np, np.ones(3), np.ones((3, 2))).tolist() == [3, 3]
        assert multiply(np, np.ones((2, 3), np.float32), np.ones((3, 2))).dtype == np.float64
        with pytest.raises(ValueError, match="mismatch in its core dimension"):
            multiply(np, np.ones((2, 3)), np.ones((2, 3)))


@needs_calls
@pytest.mark.slow
def test_products_from_many_threads_at_once_are_right(three_threads: ProductThreads) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(-8, 8, (130, 64)).astype(np.float32), rng.integers(-8, 8, (64, 150)).astype(np.float32)

    def multiply_often(_: int) -> bool:
        with three_threads:
            return all(np.array_equal(multiply(np, a, b), np.matmul(a, b)) for _ in range(20))

    assert at_once(multiply_often) == []


def adam() -> Function:
    """Return an update of three states by a gradient."""
    nodes = (
        node("Mul", "m decay", "kept"),
        node("Add", "kept g", "m_next"),
        node("Mul", "g g", "square"),
        node("Add", "v square", "v_next"),
        node("Sqrt", "v_next", "root"),
        node("Div", "m_next root", "change"),
        node("Sub", "w change", "w_next"),
    )
    graph = function("w m v g", "m_next v_next w_next", *nodes, constants={"decay": np.float32(0.9)}, opset=20)
    graph = graph.replace(inputs=tuple(Value(v.name, TensorType(DType.FLOAT32, (1000,))) for v in graph.inputs))
    return infer_shapes(graph.replace(aliases=(("w", "w_next"), ("m", "m_next"), ("v", "v_next"))))


def propose(function: Function, engine: Toy) -> set[tuple[str, str]]:
    executable = written.compiled(engine, function)
    names = [v.name for v in function.inputs], [v.name for v in function.outputs]
    return {(names[0][i], names[1][o]) for i, o in executable.inplace_pairs()}


both = pytest.mark.parametrize("engine", [Toy(), Toy(native="off")], ids=str)


@both
def test_all_states_of_an_update_are_written_where_they_are(engine: Toy) -> None:
    assert propose(adam(), engine) >= {("w", "w_next"), ("m", "m_next"), ("v", "v_next")}


def overwritten(outputs: str, *nodes: Node, **arrays: Array) -> tuple[Function, list[Array]]:
    """Return a Function, whose int64 arrays are constants, and its inputs."""
    constants = {name: array for name, array in arrays.items() if array.dtype == np.int64}
    inputs = {name: array for name, array in arrays.items() if name not in constants}
    f = function(" ".join(inputs), outputs, *nodes, constants=constants, opset=20)
    return infer_shapes(f.replace(inputs=tuple(typed(*item) for item in inputs.items()))), list(inputs.values())


SAME = Function((), (Value("r", TensorType(DType.BOOL, (3,))),), (node("Identity", "x", "r"),), opsets={"": 20})
CHOICE = node("If", "c", "t", then_branch=SAME, else_branch=SAME)
OVERWRITTEN = {
    "an output that is the input": overwritten(
        "t n", CHOICE, node("Not", "x", "n"), c=np.array(True), x=np.array([True, False, True])
    ),
    "an output that is a view of the input": overwritten(
        "t n", node("Reshape", "x shape", "t"), node("Neg", "x", "n"), x=drawn(4, 6), shape=i64(6, 4)
    ),
    # The sum of one tensor is this tensor.
    "a value that is the input": overwritten(
        "next y", node("Sum", "x", "t"), node("Neg", "x", "next"), node("Mul", "next t", "y"), x=drawn(4, 6)
    ),
    "a view that is read later": overwritten(
        "y z",
        node("Reshape", "x shape", "view"),
        node("ReduceMean", "view", "mean", keepdims=0),
        node("Add", "x mean", "y"),
        node("ReduceMax", "y", "largest", keepdims=0),
        node("Mul", "view largest", "z"),
        x=drawn(12),
        shape=i64(3, 4),
    ),
}


@both
@pytest.mark.parametrize("case", OVERWRITTEN)
def test_an_input_is_read_before_an_output_overwrites_it(case: str, engine: Toy) -> None:
    function, inputs = OVERWRITTEN[case]
    expected = evaluate(function, [x.copy() for x in inputs])
    for updated in {"next"} & {value.name for value in function.outputs} or {None}:
        executable = written.compiled(engine, function.replace(aliases=(("x", updated),) if updated else ()))
        assert executable.inplace_pairs()
        for source, result in executable.inplace_pairs():
            arrays = [x.copy() for x in inputs]
            out = [arrays[source].view() if place == result else None for place in range(len(expected))]
            results = executable.run(arrays, RunOptions(out=out))
            assert results[result] is out[result]
            for value, right in zip(results, expected, strict=True):
                np.testing.assert_allclose(value, right, rtol=1e-5, atol=1e-6)


@both
def test_an_input_that_is_read_later_or_has_a_view_that_is_is_not_proposed_in_place(engine: Toy) -> None:
    negation, transpose = node("Neg", "w", "next"), node("Transpose", "w", "t")
    for readers in ((node("MatMul", "next w", "y"),), (transpose, node("MatMul", "next t", "y"))):
        assert propose(overwritten("next y", negation, *readers, w=drawn(4, 4))[0], engine) == set()
    assert propose(overwritten("next", negation, w=drawn(4, 4))[0], engine) == {("w", "next")}


@both
def test_a_state_that_is_read_after_its_update_is_not_overwritten_early(engine: Toy) -> None:
    """The length of ``g`` is known only at a call, when the kernels for it are chosen."""
    w, g = drawn(4, 4), drawn(3)
    inputs = (typed("w", w), Value("g", TensorType(DType.FLOAT32, ("n",))))
    nodes = (node("Neg", "w", "next"), node("MatMul", "next w", "y"), node("Relu", "g", "z"))
    function = Function(inputs, (Value("next"), Value("y"), Value("z")), nodes, opsets={"": 20})
    executable = written.compiled(engine, infer_shapes(function).replace(aliases=(("w", "next"),)))
    state = w.copy()
    results = executable.run([state, g], RunOptions(out=[state.view(), None, None]))
    np.testing.assert_array_equal(state, -w)
    np.testing.assert_allclose(results[1], -w @ w, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
class TestReference(EngineSuite):
    engine = "toy{native=off}"
    tolerance: ClassVar[Tolerance] = BIT_EQUAL
    test_conformance = None  # run in tests/conformance
    test_node_tests_with_symbolic_dims = None


class TestToy(EngineSuite):
    engine = "toy"
    test_conformance = None  # run in tests/conformance
    test_node_tests_with_symbolic_dims = None
