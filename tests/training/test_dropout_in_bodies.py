"""Dropout in the bodies of If, Loop and Scan: a mask for each turn, the same on every engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt
from tests.training.test_dropout import low_bias
from xrt import ops, training
from xrt.builder.symbol import current
from xrt.errors import ModelError
from xrt.training.dropout import write_dropout

TURNS, SIZE, RATIO = 3, 8, 0.25
Array = np.ndarray[Any, Any]

rng = np.random.default_rng(0)
X = rng.standard_normal((4, SIZE)).astype("float32")
W = rng.standard_normal((SIZE, SIZE)).astype("float32") / 3


def drop(x: Any, ratio: float = RATIO) -> Any:
    return ops.Dropout(x, np.array(ratio, "float32"), True)


def loop(x: Any, w: Any) -> Any:
    """Turns of x = drop(x @ w); the values of all turns too."""

    def body(turn: Any, go: Any, a: Any) -> Any:
        a = drop(a @ w)
        return ops.Identity(go), a, ops.Identity(a)

    return ops.Loop(np.asarray(TURNS), None, x, body=body)


def scan(x: Any, w: Any) -> Any:
    def body(a: Any, row: Any) -> Any:
        a = drop(a @ w + row)
        return a, ops.Identity(a)

    return ops.Scan(x, np.zeros((TURNS, SIZE), "float32"), body=body, num_scan_inputs=1)


def nested(x: Any, w: Any) -> Any:
    """The Loop with its Dropout in a branch of the body."""

    def body(turn: Any, go: Any, a: Any) -> Any:
        a = a @ w
        a = ops.If(turn < 100, then_branch=lambda: drop(a), else_branch=lambda: ops.Identity(a))
        return ops.Identity(go), a, ops.Identity(a)

    return ops.Loop(np.asarray(TURNS), None, x, body=body)


class Repeated(xrt.Graph):
    def __init__(self, form: Callable[[Any, Any], Any]) -> None:
        self.w = W
        self.form = form

    def build(self, x: Any) -> Any:
        last, turns = self.form(drop(x), ops.Identity(self.w))
        return {"loss": ops.ReduceSum(last, keepdims=0), "turns": turns}


def make(form: Any, engine: Any = "toy", **options: Any) -> training.TrainModule:
    return training.TrainModule(Repeated(form).trace(X), engine, loss="loss", parameters="w", **options)


def _key(of: Array, number: int) -> Array:
    return low_bias(of ^ np.uint32(number))


def _mask(call: Array, place: int) -> Array:
    """What the Dropout at a place multiplies with."""
    hashes = low_bias(np.arange(X.size, dtype=np.uint32) ^ _key(call, place), int(call[0]))
    keep = (hashes >> np.uint32(9) >= RATIO * (1 << 23)).reshape(X.shape)
    return np.where(keep, 1 / (1 - RATIO), 0).astype("float32")


def _list_masks(seed: int, call: int, depth: int) -> list[Array]:
    """The mask before the loop and those of its turns; the Dropout is in ``depth`` branches inside of the body."""
    start = _key(_key(np.array([seed], np.uint32), 0), call)
    found = [_mask(start, 0)]
    for turn in range(TURNS):
        own = _key(_key(start, 1), turn)  # the first number is that of the Dropout before the loop
        for _ in range(depth):
            own = _key(own, 0)
        found.append(_mask(own, 0))
    return found


def _differentiate(masks: list[Array], w: Array) -> tuple[list[Array], Array]:
    """The value of each turn, and the gradient of the sum of the last by the weight."""
    values = [X * masks[0]]
    for mask in masks[1:]:
        values.append(values[-1] @ w * mask)
    slope, change = np.ones_like(X), np.zeros_like(w)
    for before, mask in zip(reversed(values[:-1]), reversed(masks[1:]), strict=True):
        change += before.T @ (slope * mask)
        slope = slope * mask @ w.T
    return values[1:], change


@pytest.mark.slow
@pytest.mark.parametrize("form", [loop, scan, nested])
@pytest.mark.parametrize("engine", ["toy", "ort", ["xla", "toy"], ["openvino", "ort"], ["tvm", "ort"], ["torch", "toy"]], ids=str)
def test_each_turn_has_its_mask_on_every_engine_and_the_gradient_has_the_same(engine: Any, form: Any) -> None:
    with make(form, engine, seed=7, learning_rate=0.1) as trained:
        for call in range(2):
            w = trained.parameters["w"]
            values, change = _differentiate(_list_masks(7, call, depth=form is nested), w)
            _, turns = trained(X)
            np.testing.assert_allclose(turns, np.stack(values), rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose((w - trained.parameters["w"]) / np.float32(0.1), change, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("form", [loop, scan, nested])
def test_runs_from_one_checkpoint_have_the_same_numbers(form: Any, tmp_path: Path) -> None:
    with make(form, seed=1) as one, make(form, seed=2) as other:
        one(X)
        one.save(tmp_path / "checkpoint")
        other.restore(tmp_path / "checkpoint")
        for _ in range(3):
            for a, b in zip(one(X), other(X), strict=True):
                np.testing.assert_array_equal(a, b)


class Branching(xrt.Graph):
    """A branch that drops, by a flag outside of it, or does not."""

    def __init__(self, flag: bool) -> None:
        self.w = np.ones((1, 1000), "float32")
        self.flag = np.array(flag)

    def build(self, x: Any, take: Any) -> Any:
        y = x @ self.w
        ratio, flag = np.array(0.5, "float32"), ops.Identity(self.flag)
        z = ops.If(take, then_branch=lambda: ops.Dropout(y, ratio, flag), else_branch=lambda: ops.Identity(y))
        return {"loss": ops.ReduceSum(z, keepdims=0), "z": z}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["toy", "ort"])
@pytest.mark.parametrize("flag", [True, False])
def test_a_branch_drops_where_it_is_taken_and_its_flag_says_so(engine: str, flag: bool) -> None:
    one = np.ones((1, 1), "float32")
    function = Branching(flag).trace(one, np.array(True))
    with training.TrainModule(function, engine, loss="loss", learning_rate=0.0) as trained:
        taken = trained(one, np.array(True))[1]
        assert set(np.unique(taken)) == ({0, 2} if flag else {1})
        assert (trained(one, np.array(False))[1] == 1).all()


class Flagged(xrt.Graph):
    """A loop whose Dropout reads a flag that is a constant outside of the body."""

    def __init__(self, flag: bool) -> None:
        self.flag = flag

    def build(self, x: Any) -> Any:
        ratio, flag = np.array(0.5, "float32"), current("a flag").constant(np.array(self.flag))
        return ops.Loop(np.asarray(2), None, x, body=lambda turn, go, a: (ops.Identity(go), ops.Dropout(a, ratio, flag)))


def test_a_flag_that_is_a_constant_outside_of_the_body_decides() -> None:
    off = Flagged(False).trace(X)
    assert write_dropout(off, 0) == (off, [])
    on, states = write_dropout(Flagged(True).trace(X), 0)
    assert [state.input for state in states] == ["dropout.seed", "dropout.calls"]
    assert not [node for outer in on.nodes for body in outer.bodies for node in body.nodes if node.op in ("Dropout", "Not")]


class Mapped(xrt.Graph):
    def build(self, x: Any) -> Any:
        return ops.SequenceAt(ops.SequenceMap(ops.SequenceConstruct(x, x), body=drop), np.array(0))


def test_a_body_whose_turns_have_no_number_is_an_error() -> None:
    function = Mapped().trace(X)
    name = next(node.name for node in function.nodes if node.op == "SequenceMap")
    with pytest.raises(ModelError) as caught:
        write_dropout(function, 0)
    assert str(caught.value) == (
        f"node {name!r} (SequenceMap) has a Dropout in training form in its body, whose turns have no number that masks could be "
        "made of; write it as a Loop or a Scan, or give the Dropout in its inference form"
    )
