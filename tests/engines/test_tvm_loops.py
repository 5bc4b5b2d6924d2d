"""The tvm engine's loops: each arrangement is found where it is meant, and computes what NumPy computes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.engines.tvm_running import run
from tests.engines.written import function, one, tensor
from xrt.engines import CompileContext
from xrt.engines.tvm import Tvm
from xrt.graph import Function, Node, TensorType, read_attributes
from xrt.module import XRTModule

Array = np.ndarray[Any, Any]


def random(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def product(m: int, k: int, n: int) -> Function:
    return one("MatMul", tensor(m, k), tensor(k, n), output=tensor(m, n))


def reduction(op: str, shape: tuple[int, ...], axes: list[int], *, keepdims: int = 1) -> Function:
    result = (
        [1 if k in axes else d for k, d in enumerate(shape)] if keepdims else [d for k, d in enumerate(shape) if k not in axes]
    )
    node = Node(op, ("x", "a"), ("y",), read_attributes({"keepdims": keepdims}))
    return function(node, inputs={"x": tensor(*shape)}, outputs={"y": tensor(*result)}, constants={"a": np.array(axes)})


def in_a_row(length: int, shape: tuple[int, ...], op: str = "Abs") -> Function:
    """Return sums with an elementwise operator between them, which TVM makes one loop of."""
    names = [f"v{k}" for k in range(length + 1)]
    nodes = [Node(op, (a,), (b,)) if k % 2 else Node("Add", (a, "c"), (b,)) for k, (a, b) in enumerate(pairwise(names))]
    types = {name: tensor(*shape) for name in names[1:-1]}
    ends: list[dict[str, TensorType | None]] = [{names[0]: tensor(*shape)}, {names[-1]: tensor(*shape)}]
    return function(*nodes, inputs=ends[0], outputs=ends[1], constants={"c": np.array(0.25, np.float32)}, types=types)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(256, 512), (3, 5), (7, 1000), (1021,)], ids=str)
@pytest.mark.parametrize("op", ["Abs", "Relu", "Sqrt", "Floor", "Sigmoid", "Softplus"])
def test_chains(op: str, shape: tuple[int, ...]) -> None:
    f, x = in_a_row(30, shape, op), np.abs(random(*shape))
    expected = XRTModule(f, "toy")(x)
    assert np.allclose(run(f, x)[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("m", "k", "n"), [(64, 48, 96), (1, 300, 500), (37, 41, 43), (13, 64, 7), (128, 1, 200)])
def test_products(m: int, k: int, n: int) -> None:
    a, b = random(m, k), random(k, n)
    assert np.allclose(run(product(m, k, n), a, b)[0], a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((300, 400), [0]),
        ((300, 400), [1]),
        ((7, 64, 99), [1]),
        ((7, 64, 99), [0, 2]),
        ((40, 30, 20), [0, 1, 2]),
        ((97, 331), [1]),
    ],
)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions(shape: tuple[int, ...], axes: list[int], keepdims: int) -> None:
    x = random(*shape)
    (total,) = run(reduction("ReduceSum", shape, axes, keepdims=keepdims), x)
    assert np.allclose(total, x.sum(axis=tuple(axes), keepdims=bool(keepdims)), rtol=1e-4, atol=1e-3)
    (largest,) = run(reduction("ReduceMax", shape, axes, keepdims=keepdims), x)
    assert np.array_equal(largest, x.max(axis=tuple(axes), keepdims=bool(keepdims)))


@pytest.mark.slow
@pytest.mark.parametrize("permutation", [(1, 0, 2), (2, 1, 0), (0, 2, 1), (2, 0, 1), (1, 2, 0)])
@pytest.mark.parametrize("shape", [(16, 40, 56), (31, 37, 29)])
def test_transposes(permutation: tuple[int, ...], shape: tuple[int, ...]) -> None:
    x = random(*shape)
    result = tuple(shape[k] for k in permutation)
    f = one("Transpose", tensor(*shape), output=tensor(*result), perm=list(permutation))
    assert np.array_equal(run(f, x)[0], x.transpose(permutation))


@pytest.mark.slow
def test_indices_that_wrap_around() -> None:
    """LLVM's loop vectoriser makes 75 % of these elements wrong: see `xrt.engines.tvm.pipeline`."""
    x = random(3, 4, 5)
    node = Node("Tile", ("x", "r"), ("y",))
    f = function(node, inputs={"x": tensor(3, 4, 5)}, outputs={"y": tensor(18, 16, 10)}, constants={"r": np.array([6, 4, 2])})
    assert np.array_equal(run(f, x)[0], np.tile(x, (6, 4, 2)))


@pytest.mark.slow
def test_values_used_twice_over_and_over_do_not_explode() -> None:
    """Inlining alone would write 2 to the 40th terms."""
    nodes = [Node("Mul", (f"v{k}", f"v{k}"), (f"v{k + 1}",)) for k in range(40)]
    types = {f"v{k}": tensor(64, 64) for k in range(1, 40)}
    f = function(*nodes, inputs={"v0": tensor(64, 64)}, outputs={"v40": tensor(64, 64)}, types=types)
    x = np.full((64, 64), 1 + 1e-13, np.float32)
    assert np.array_equal(run(f, x)[0], x)


@pytest.mark.slow
def test_more_threads_give_the_same_bits() -> None:
    a, b = random(64, 96), random(96, 128)
    results = []
    for threads in (1, 2, 4):
        executable = Tvm().compile(product(64, 96, 128), CompileContext(threads=threads))
        results.append(executable.run([a, b])[0])
    assert all(np.array_equal(result, results[0]) for result in results)
