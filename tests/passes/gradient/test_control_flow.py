"""Gradients through branches and loops, against central differences and against what the loops compute when unrolled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xrt
from tests.passes.gradient.checking import Case, assert_gradient, make_function, run
from xrt import ops
from xrt.errors import ModelError

DRAW = np.random.default_rng(5)


def f(*shape: int) -> Any:
    return DRAW.standard_normal(shape)


def branch(c: Any, x: Any, y: Any) -> Any:
    return ops.If(c, then_branch=lambda: ops.Sin(x) * y, else_branch=lambda: x * x)


def branch_of_two(c: Any, x: Any, y: Any) -> Any:
    return ops.If(c, then_branch=lambda: (x * y, y), else_branch=lambda: (y, ops.Exp(x)))


def nested(c: Any, x: Any, y: Any) -> Any:
    def inner() -> Any:
        z = x * y
        return ops.If(ops.Not(c), then_branch=lambda: z, else_branch=lambda: z * ops.Cos(x))

    return ops.If(c, then_branch=inner, else_branch=lambda: y)


def turns(x: Any, w: Any) -> Any:
    def body(step: Any, go: Any, state: Any) -> Any:
        new = ops.Tanh(state @ w) + x
        return ops.Identity(go), new, ops.ReduceSum(new * state, keepdims=0)

    return ops.Loop(np.asarray(3), None, x, body=body)


def turns_of_two(x: Any, w: Any, s: Any) -> Any:
    """The second state has no gradient at first, and gets one from the first."""

    def body(step: Any, go: Any, a: Any, b: Any) -> Any:
        return ops.Identity(go), ops.Sin(a) * w, b * a + s

    return ops.Loop(np.asarray(3), None, x, np.zeros(2), body=body)[1]


def condition(x: Any) -> Any:
    def body(step: Any, go: Any, state: Any) -> Any:
        new = state * 1.5
        return ops.Less(ops.ReduceSum(ops.Abs(new), keepdims=0), np.asarray(40.0)), new, new * new

    return ops.Loop(np.asarray(50), np.asarray(True), x, body=body)


def no_turns(x: Any) -> Any:
    return ops.Loop(np.asarray(0), None, x, body=lambda step, go, s: (ops.Identity(go), s * s))


def by_step(x: Any) -> Any:
    def body(step: Any, go: Any, state: Any) -> Any:
        return ops.Identity(go), state + ops.Gather(x, step, axis=0) * state

    return ops.Loop(np.asarray(3), None, np.ones(2), body=body)


def loop_in_loop(x: Any, w: Any) -> Any:
    def outer(step: Any, go: Any, a: Any) -> Any:
        inner = ops.Loop(np.asarray(2), None, a, body=lambda k, g, b: (ops.Identity(g), ops.Sin(b * w) + a))
        return ops.Identity(go), inner

    return ops.Loop(np.asarray(2), None, x, body=outer)


def branch_in_loop(x: Any, w: Any) -> Any:
    def body(step: Any, go: Any, a: Any) -> Any:
        odd = ops.Equal(ops.Mod(step, np.asarray(2)), np.asarray(1))
        return ops.Identity(go), ops.If(odd, then_branch=lambda: a * w, else_branch=lambda: ops.Sin(a))

    return ops.Loop(np.asarray(3), None, x, body=body)


def scan(x: Any, rows: Any, w: Any) -> Any:
    def body(state: Any, row: Any) -> Any:
        new = ops.Tanh(state + row) * w
        return new, new * row

    return ops.Scan(x, rows, body=body, num_scan_inputs=1)


def scan_back(x: Any, rows: Any, more: Any) -> Any:
    def body(state: Any, row: Any, other: Any) -> Any:
        new = state * row + other
        return new, new * other, ops.Sin(row)

    return ops.Scan(
        x,
        rows,
        more,
        body=body,
        num_scan_inputs=2,
        scan_input_axes=[1, 0],
        scan_input_directions=[1, 0],
        scan_output_axes=[0, -1],
        scan_output_directions=[1, 0],
    )


def scan_without_state(rows: Any) -> Any:
    return ops.Scan(rows, body=lambda row: ops.Softmax(row), num_scan_inputs=1)


YES, NO = np.asarray(True), np.asarray(False)
CASES = [
    *(Case(f"{build.__name__} {c}", build, (c, f(3), f(3))) for build in (branch, branch_of_two, nested) for c in (YES, NO)),
    Case("turns", turns, (f(2, 2), f(2, 2))),
    Case("two states", turns_of_two, (f(2), f(2), f(2))),
    Case("condition", condition, (f(3),)),
    Case("no turns", no_turns, (f(3),)),
    Case("by step", by_step, (f(4, 2),)),
    Case("loop in loop", loop_in_loop, (f(2), f(2))),
    Case("branch in loop", branch_in_loop, (f(2), f(2))),
    Case("scan", scan, (f(2), f(4, 2), f(2))),
    Case("scan back", scan_back, (f(2), f(2, 3), f(3, 2))),
    Case("scan without state", scan_without_state, (f(3, 4),)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_gradient_through_bodies(case: Case) -> None:
    assert_gradient(make_function(case.build, case.inputs), case.inputs, second=case.second)


def test_a_body_with_random_numbers_is_refused() -> None:
    def build(c: Any, x: Any) -> Any:
        return ops.If(c, then_branch=lambda: x * ops.RandomNormalLike(x), else_branch=lambda: x)

    function = make_function(build, (YES, f(2)))
    with pytest.raises(ModelError, match=r"^node 'if_1' \(If\) has no gradient: its body holds 'randomnormallike_1'"):
        xrt.gradient(function, with_respect_to="x")


def test_the_forward_outputs_of_a_loop_stay() -> None:
    x, w = f(2, 2), f(2, 2)
    function = make_function(turns, (x, w))
    names = [value.name for value in function.outputs]
    differentiated = xrt.gradient(function, of=names)
    assert [value.name for value in differentiated.outputs] == [*names, "x_gradient", "w_gradient"]
    for before, after in zip(run(function, (x, w)), run(differentiated, (x, w)), strict=False):
        np.testing.assert_array_equal(before, after)
