"""Control flow, sequences and borrowed operators on toy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engines.toy_running import Array, drawn, f32, function, i64, node, one, run, same

# ---------------------------------------------------------------------- control flow and sequences


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
    f = function(
        "s x",
        "s a b n",
        node("SequenceInsert", "s x i", "a"),
        node("SequenceErase", "a i", "b"),
        node("SequenceLength", "a", "n"),
        constants={"i": i64(0)},
    )
    given_ = [f32(1.0), f32(2.0)]
    s, a, b, n = run(f, given_, f32(9.0))
    assert len(given_) == 2
    assert [[float(v) for v in values] for values in (s, a, b)] == [[1, 2], [9, 1, 2], [1, 2]]
    same(n, i64(3))


def test_a_place_outside_of_a_sequence_says_so() -> None:
    from xrt.errors import RunFailed

    f = function("s i", "y", node("SequenceAt", "s i", "y"))
    with pytest.raises(RunFailed, match=r"IndexError: position 2 is outside of a sequence of 2; it must be from -2 to 1"):
        run(f, [f32(1.0), f32(2.0)], i64(2))


# ---------------------------------------------------------------------- borrowed operators


def test_a_borrowed_operator_gives_what_the_reference_gives() -> None:
    y = one("StringConcat", np.array(["a", "b"], dtype=object), np.array(["c", "d"], dtype=object))
    assert (y.dtype, y.tolist()) == (object, ["ac", "bd"])
    assert all(type(s) is str for s in y)
    q = drawn(1, 2, 3, 4)
    scores = exponentials(q @ q.swapaxes(2, 3) / 2)
    same(one("Attention", q, q, q), scores @ q)


def exponentials(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def test_a_borrowed_operator_with_a_left_out_output() -> None:
    f = function("q", "y k", node("Attention", "q q q _ p p", "y k _"), constants={"p": np.zeros((1, 2, 0, 4), np.float32)})
    q = drawn(1, 2, 3, 4)
    y, k = run(f, q)
    same(k, q)
    assert y.shape == q.shape
