"""The machinery of the toy engine: what comes out, slots, buffers and threads."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from tests.engines.toy_running import Array, f32, function, i64, node, one, ready, run, same
from xrt.engines.toy import Toy
from xrt.engines.toy.tape import SMALLEST_REUSED
from xrt.graph import Function

LARGE = (512, 512)


def large(seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(LARGE).astype(np.float32)


# ---------------------------------------------------------------------- what comes out


def test_elements_of_a_sequence_have_memory_of_their_own() -> None:
    f = function("x", "s t", node("SequenceConstruct", "x x", "s"), node("Identity", "s", "t"))
    x = f32(1, 2)
    s, t = run(f, x)
    everything = [x, *s, *t]
    assert s is not t
    assert not any(np.shares_memory(a, b) for i, a in enumerate(everything) for b in everything[:i])


def test_an_element_of_a_given_sequence_is_copied() -> None:
    f = function("s", "y", node("SequenceAt", "s i", "y"), constants={"i": i64(0)})
    given_ = [f32(1.0), f32(2.0)]
    (y,) = run(f, given_)
    same(y, f32(1.0))
    assert not np.shares_memory(y, given_[0])


def test_what_onnx_defines_raises_no_warning() -> None:
    zero, one_ = f32(0.0), f32(1.0)
    assert np.isinf(one("Div", one_, zero))
    assert np.isnan(one("Log", f32(-1)))
    assert one("Cast", f32(1e30), to=10) == np.inf


# ---------------------------------------------------------------------- buffers


def peak_of(f: Function, *inputs: Array) -> int:
    """Return how many bytes a second run takes at most, beyond what is held before."""
    executable = ready(f)
    executable.run(inputs)
    tracemalloc.start()
    try:
        executable.run(inputs)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def chain_of(op: str, length: int) -> Function:
    names = ["x", *(f"v{i}" for i in range(length))]
    return function("x", names[-1], *(node(op, a, b) for a, b in pairwise(names)))


def test_dead_values_are_freed() -> None:
    x = large()
    assert peak_of(chain_of("Transpose", 12), x) < 2.5 * x.nbytes


def test_a_dead_buffer_is_written_to_in_place() -> None:
    x = large()
    assert peak_of(chain_of("Neg", 12), x) < 1.5 * x.nbytes


def test_a_buffer_with_a_live_view_is_not_written_to() -> None:
    f = function(
        "x",
        "y",
        node("Neg", "x", "a"),
        node("Reshape", "a s", "view"),
        node("Exp", "a", "b"),
        node("Reshape", "b s", "c"),
        node("Sub", "view c", "y"),
        constants={"s": i64([-1])},
    )
    x = large()
    same(run(f, x)[0], (-x - np.exp(-x)).reshape(-1))


def test_a_view_of_an_input_is_not_written_to() -> None:
    f = function(
        "x", "y", node("Slice", "x a b", "part"), node("Neg", "part", "y"), constants={"a": i64([0]), "b": i64([LARGE[0] // 2])}
    )
    x = large()
    before = x.copy()
    same(run(f, x)[0], -before[: LARGE[0] // 2])
    same(x, before)


def test_a_buffer_that_a_sequence_holds_is_not_written_to() -> None:
    f = function(
        "x",
        "y z",
        node("Neg", "x", "a"),
        node("SequenceConstruct", "a", "s"),
        node("Exp", "a", "z"),
        node("SequenceAt", "s i", "y"),
        constants={"i": i64(0)},
    )
    x = large()
    y, z = run(f, x)
    same(y, -x)
    same(z, np.exp(-x))


def test_a_buffer_that_does_not_fit_is_not_written_to() -> None:
    row = np.zeros(LARGE[1] * 64, np.float32)
    assert row.nbytes > SMALLEST_REUSED
    f = function("x y", "z", node("Neg", "x", "a"), node("Add", "a y", "z"))
    same(run(f, row, np.ones((2, 1), np.float32))[0], np.ones((2, row.size), np.float32))
    same(run(f, row, np.array(2.0, np.float32))[0], np.full(row.size, 2, np.float32))


def test_a_value_read_twice_by_one_node_is_right_in_place() -> None:
    f = function("x", "y", node("Neg", "x", "a"), node("Mul", "a a", "y"))
    x = large()
    same(run(f, x)[0], x * x)


def test_an_input_that_a_view_is_made_of_is_not_proposed_to_be_written_to() -> None:
    """The output lay over the input, and what was read through the view afterwards was the output."""
    f = function(
        "x",
        "y z",
        node("Reshape", "x s", "view"),
        node("ReduceMean", "view", "mean", keepdims=0),
        node("Add", "x mean", "y"),
        node("ReduceMax", "y", "largest", keepdims=0),
        node("Mul", "view largest", "z"),
        constants={"s": i64([-1])},
    )
    assert ready(f, Toy(native="off")).inplace_pairs() == ()


# ---------------------------------------------------------------------- threads


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
