"""Elementwise chains in the tvm engine: expressions do not multiply where a value is read in several places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import tirx

from tests.engines.tvm_running import CONTEXT, run
from tests.engines.written import function, one, tensor
from xrt.engines.tvm import Tvm
from xrt.engines.tvm.schedules import CpuSchedule, fuse_rows, loads, operations
from xrt.graph import Function, Node

pytestmark = pytest.mark.slow

Array = np.ndarray[Any, Any]
SIZE = (64, 257)


def chain(step: Callable[[int, str], tuple[str, ...]], length: int) -> Function:
    """Return a row of nodes, each the operator and the inputs that `step` gives for its place and its predecessor."""
    nodes = [Node(op, inputs, (f"v{k + 1}",)) for k in range(length) for op, *inputs in [step(k, f"v{k}")]]
    inner = {f"v{k}": tensor(*SIZE) for k in range(1, length)}
    bounds = {f"c{k}": np.array(k / 4 - 1, np.float32) for k in range(12)}
    return function(*nodes, inputs={"v0": tensor(*SIZE)}, outputs={f"v{length}": tensor(*SIZE)}, constants=bounds, types=inner)


def maxima(k: int, x: str) -> tuple[str, ...]:
    return ("Max" if k % 2 else "Min", x, f"c{k if k % 2 else 11 - k}")


def squares(k: int, x: str) -> tuple[str, ...]:
    return "Mul", x, x


def tails(k: int, x: str) -> tuple[str, ...]:
    return ("Sigmoid", x) if k % 2 else ("Mul", x, f"v{max(k - 2, 0)}")


def rectifiers(k: int, x: str) -> tuple[str, ...]:
    return ("Clip", x, "c1", "c9") if k % 3 == 0 else ("Relu", x) if k % 3 == 1 else ("Sub", x, "c9")


def scheduled(f: Function, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the bodies of the blocks that compiling leaves."""
    bodies: list[Any] = []
    apply = CpuSchedule.apply

    def noting(rule: CpuSchedule, *rest: Any) -> Any:
        result = apply(rule, *rest)
        bodies.extend(result.get(block).body for block in result.get_child_blocks(result.get_sblock("root")))
        return result

    monkeypatch.setattr(CpuSchedule, "apply", noting)
    Tvm().compile(f, CONTEXT)
    return bodies


@pytest.mark.parametrize("step", [maxima, squares, tails, rectifiers], ids=lambda step: step.__name__)
def test_expressions_grow_with_the_chain(step: Callable[[int, str], tuple[str, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = (sum(map(operations, scheduled(chain(step, n), monkeypatch))) for n in (6, 12))
    assert short >= 6
    assert long <= 3 * short


def test_shared_parts_count_wherever_they_are_read() -> None:
    buffer, other = (tirx.decl_buffer((4,), "float32") for _ in range(2))
    value = buffer[0] + other[0]
    for _ in range(64):
        value = value * value
    stored = tirx.BufferStore(other, value, [0])
    assert operations(stored) == 2**65
    assert (loads(stored, buffer), loads(stored, other)) == (2**64, 2**64)
    assert operations(tirx.BufferStore(other, tirx.const(1, "float32"), [0])) == 1


def test_a_value_with_two_readers_is_right_whether_it_is_kept_or_not() -> None:
    x = np.random.default_rng(0).standard_normal(SIZE).astype(np.float32)
    values = [x]
    for k in range(12):
        values.append(1 / (1 + np.exp(-values[-1])) if k % 2 else values[-1] * values[max(k - 2, 0)])
    assert np.allclose(run(chain(tails, 12), x)[0], values[-1], rtol=1e-5, atol=1e-6)


def test_a_kept_value_is_right_under_a_transpose() -> None:
    nodes = [Node("Max", ("x", "c"), ("m",)), Node("Mul", ("m", "m"), ("s",)), Node("Max", ("s", "m"), ("t",))]
    f = function(
        *nodes,
        Node("Transpose", ("t",), ("u",)),
        Node("Min", ("u", "c"), ("y",)),
        inputs={"x": tensor(256, 128)},
        outputs={"y": tensor(128, 256)},
        constants={"c": np.array(0.5, np.float32)},
        types={"m": tensor(256, 128), "s": tensor(256, 128), "t": tensor(256, 128), "u": tensor(128, 256)},
    )
    x = np.random.default_rng(1).standard_normal((256, 128)).astype(np.float32)
    m = np.maximum(x, 0.5)
    assert np.allclose(run(f, x)[0], np.minimum(np.maximum(m * m, m).T, 0.5))


def test_nests_over_the_same_rows_share_one_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    from xrt.engines.tvm import schedules

    taken: list[bool] = []

    def noting(*rest: Any) -> Any:
        result = fuse_rows(*rest)
        taken.append(result is not None)
        return result

    monkeypatch.setattr(schedules, "fuse_rows", noting)
    x = np.random.default_rng(2).standard_normal((6, 43, 96)).astype(np.float32)
    softmax = one("Softmax", tensor(*x.shape), output=tensor(*x.shape), axis=-1)
    powers = np.exp(x - x.max(-1, keepdims=True))
    assert np.allclose(run(softmax, x)[0], powers / powers.sum(-1, keepdims=True), rtol=1e-5)
    assert taken == [True]
    down = one("Softmax", tensor(*x.shape), output=tensor(*x.shape), axis=1)
    powers = np.exp(x - x.max(1, keepdims=True))
    assert np.allclose(run(down, x)[0], powers / powers.sum(1, keepdims=True), rtol=1e-5)
    assert taken == [True, False]
