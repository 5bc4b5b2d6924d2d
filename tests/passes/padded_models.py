"""Models with open sizes, padded and run with what must not be read in the padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from xrt.builder import Builder, Tensor
from xrt.builder.record_op import apply, emit
from xrt.formats.onnx.inference import node_types
from xrt.graph import DType, Function, TensorType
from xrt.passes import infer_shapes
from xrt.passes.padding import Extent, PaddedFunction
from xrt.placement.reference import evaluate

S, T = Extent.of("s"), Extent.of("t")
FLOAT, INT, BOOL = DType.FLOAT32, DType.INT64, DType.BOOL
SIZES = {"s": 5, "t": 3}
PADDED = {"s": 8, "t": 6}

Inputs = Mapping[str, tuple[DType, tuple[Any, ...]]]
Build = Callable[..., Any]


def make(build: Build, inputs: Inputs, opset: int = 23) -> Function:
    builder = Builder("case", opsets=opset, inference=node_types)
    with builder:
        given = [builder.input(name, TensorType(dtype, shape)) for name, (dtype, shape) in inputs.items()]
        results = build(*given)
        for number, result in enumerate(results if isinstance(results, tuple) else (results,)):
            builder.output(result, f"y{number}")
    return infer_shapes(builder.function())


def constant(value: Any) -> Tensor:
    from xrt.builder.symbol import current

    return current("a test").constant(np.asarray(value))


def poison(x: Tensor) -> Tensor:
    """Return the same, with NaN where the input is padded with zeros."""
    log = emit("Log", x)
    return emit("Add", x, emit("Sub", log, log))


def draw(function: Function, sizes: Mapping[str, int]) -> list[Any]:
    """Return inputs whose sums and products are exact: positive multiples of a quarter."""
    rng = np.random.default_rng(7)
    found = []
    for value in function.inputs:
        shape = tuple(dim if isinstance(dim, int) else sizes[dim] for dim in value.type.shape)
        found.append((rng.integers(1, 9, shape) / (1 if value.type.dtype is INT else 4)).astype(value.type.dtype.numpy))
    return found


def fill(value: Any, shape: Sequence[int]) -> Any:
    made = np.zeros(shape, value.dtype)
    made[tuple(map(slice, value.shape))] = value
    return made


def run_padded(padded: PaddedFunction, values: Sequence[Any], sizes: Mapping[str, int], larger: Mapping[str, int]) -> list[Any]:
    whole = {name: larger[name] if name in padded.dims else size for name, size in sizes.items()}
    assert padded.allows(sizes, whole)
    shapes = [[dim if isinstance(dim, int) else whole[dim] for dim in value.type.shape] for value in padded.function.inputs]
    given = [fill(value, shape) for value, shape in zip(values, shapes, strict=False)]
    fed = [np.array(sizes[name], np.int64) for name in padded.fed]
    return padded.cut(evaluate(padded.function, [*given, *fed]), sizes, whole)


def check(
    function: Function, padded: PaddedFunction, sizes: Mapping[str, int] = SIZES, larger: Mapping[str, int] = PADDED
) -> None:
    values = draw(function, sizes)
    expected = evaluate(function, values)
    for found, wanted in zip(run_padded(padded, values, sizes, larger), expected, strict=True):
        assert found.shape == wanted.shape
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-6)


X: Inputs = {"x": (FLOAT, (2, "s", 4))}
XY: Inputs = {"x": (FLOAT, (2, "s", 4)), "y": (FLOAT, (2, "s", 4))}
IMAGE: Inputs = {"x": (FLOAT, ("t", 3, "s", 7))}
SQUARE: Inputs = {"x": (FLOAT, ("s", "s"))}
BOTH: Inputs = {"x": (FLOAT, ("s", "t", 4))}
WEIGHT = np.arange(12, dtype="float32").reshape(4, 3) / 4
KERNEL = np.arange(54, dtype="float32").reshape(2, 3, 3, 3) / 8


def shape_of(x: Tensor, *parts: int | None) -> Tensor:
    """Return a shape as exporters write it: extents of a tensor, read one by one, and numbers."""
    size = emit("Shape", x)
    pick = [
        constant([-1])
        if part is None
        else emit("Unsqueeze", emit("Gather", size, constant(-part - 1), axis=0), constant([0]))
        if part < 0
        else constant([part])
        for part in parts
    ]
    return emit("Concat", *pick, axis=0)


def conv(**attributes: Any) -> Build:
    return lambda x: emit("Conv", poison(x), constant(KERNEL), **attributes)


def lstm(x: Tensor, direction: str = "forward") -> Any:
    count = 2 if direction == "bidirectional" else 1
    rng = np.random.default_rng(1)
    weight, recurrent = (constant(rng.standard_normal((count, 12, n)).astype("float32")) for n in (4, 3))
    return apply("LSTM", (x, weight, recurrent), {"hidden_size": 3, "direction": direction}, outputs=3)


def attend(x: Tensor) -> Tensor:
    """Attention as models of PyTorch have it, without a mask."""
    query, key, value = (emit("MatMul", x, constant(WEIGHT[:, :2] + n)) for n in range(3))
    scores = emit("MatMul", query, emit("Transpose", key, perm=[0, 2, 1]))
    return emit("MatMul", emit("Softmax", scores, axis=-1), value)
