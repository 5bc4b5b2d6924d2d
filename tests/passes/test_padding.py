"""Padding of open dims: results begin with what they are without padding; what cannot be shown to do so is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import xrt
from xrt.builder import Builder, Tensor
from xrt.builder.record_op import apply, emit
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.formats.onnx.inference import node_types
from xrt.graph import DType, Function, TensorType
from xrt.passes import infer_shapes
from xrt.passes.padding import Extent, PaddedFunction, pad_dims

S, T = Extent.of("s"), Extent.of("t")
FLOAT, INT, BOOL = DType.FLOAT32, DType.INT64, DType.BOOL
SIZES = {"s": 5, "t": 3}
PADDED = {"s": 8, "t": 6}
Inputs = Mapping[str, tuple[DType, tuple[Any, ...]]]
Build = Callable[..., Any]


def make(build: Build, inputs: Inputs, opset: int = 23) -> Function:
    builder = Builder("case", opsets=opset, inference=node_types)
    with builder:
        items = [builder.input(name, TensorType(dtype, shape)) for name, (dtype, shape) in inputs.items()]
        results = build(*items)
        for number, result in enumerate(results if isinstance(results, tuple) else (results,)):
            builder.output(result, f"y{number}")
    return infer_shapes(builder.function())


def constant(value: Any) -> Tensor:
    from xrt.builder.record_op import current

    return current("a test").constant(np.asarray(value))


def poison(x: Tensor) -> Tensor:
    """Return the same, with NaN where the input is padded with zeros."""
    log = emit("Log", x)
    return emit("Add", x, emit("Sub", log, log))


def draw(function: Function, sizes: Mapping[str, int]) -> list[Any]:
    """Return inputs whose sums and products are exact: positive multiples of a quarter."""
    rng = np.random.default_rng(7)
    results = []
    for value in function.inputs:
        shape = tuple(dim if isinstance(dim, int) else sizes[dim] for dim in value.type.shape)
        results.append((rng.integers(1, 9, shape) / (1 if value.type.dtype is INT else 4)).astype(value.type.dtype.numpy))
    return results


def fill(value: Any, shape: Sequence[int]) -> Any:
    array = np.zeros(shape, value.dtype)
    array[tuple(map(slice, value.shape))] = value
    return array


def run_padded(padded: PaddedFunction, values: Sequence[Any], sizes: Mapping[str, int], larger: Mapping[str, int]) -> list[Any]:
    whole = {name: larger[name] if name in padded.dims else size for name, size in sizes.items()}
    assert padded.allows(sizes, whole)
    shapes = [[dim if isinstance(dim, int) else whole[dim] for dim in value.type.shape] for value in padded.function.inputs]
    results = [fill(value, shape) for value, shape in zip(values, shapes, strict=False)]
    fed = [np.array(sizes[name], np.int64) for name in padded.fed]
    return padded.cut(evaluate(padded.function, [*results, *fed]), sizes, whole)


def check(
    function: Function, padded: PaddedFunction, sizes: Mapping[str, int] = SIZES, larger: Mapping[str, int] = PADDED
) -> None:
    values = draw(function, sizes)
    expected = evaluate(function, values)
    for item, wanted in zip(run_padded(padded, values, sizes, larger), expected, strict=True):
        assert item.shape == wanted.shape
        assert item.dtype == wanted.dtype
        np.testing.assert_allclose(item, wanted, rtol=2e-6, atol=1e-6)


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


# ---------------------------------------------------------------------- extents


def test_extents_are_equal_where_they_are_the_same_polynomial() -> None:
    assert (S + T) * (S - T) == S * S - T * T
    assert (S * Extent.of(6)) // 3 == S * Extent.of(2)
    assert ((S + Extent.of(1)) // 2).at({"s": 6}) == 3
    assert (S * T * Extent.of(4)).divide(T) == S * Extent.of(4)
    assert ((S + T) * Extent.of(4)).divide(S + T) == Extent.of(4)
    assert (S * T + T).divide(S + Extent.of(1)) == T
    assert S.divide(T) is (S + T).divide(S) is None
    assert (S - S).number == 0
    assert (S + Extent.of(1)).number is None


# ---------------------------------------------------------------------- what is padded

PADS: dict[str, tuple[Build, Inputs, str]] = {
    "cropped, in a decomposition": (lambda x: emit("CenterCropPad", x, constant([3]), axes=[2]), X, ""),
    "elementwise": (lambda x, y: poison(x) * y - emit("Sqrt", y), XY, ""),
    "broadcast": (lambda x: x + constant(np.ones((1, 4), "float32")), X, ""),
    "integer division": (lambda x: emit("Div", x, x) + emit("Mod", x, x), {"x": (INT, ("s", 2))}, "s"),
    "product, rows": (lambda x: emit("MatMul", poison(x), constant(WEIGHT)), X, ""),
    "product, batch": (
        lambda x: emit("MatMul", emit("Transpose", poison(x), perm=[1, 2, 0]), constant(np.ones((2, 3), "float32"))),
        X,
        "",
    ),
    "product, both sides": (lambda x: emit("MatMul", emit("Transpose", poison(x), perm=[0, 2, 1]), poison(x)), X, "s"),
    "product, a vector": (lambda x, y: emit("MatMul", poison(x), poison(y)), {"x": (FLOAT, ("s",)), "y": (FLOAT, ("s", 3))}, "s"),
    "gemm": (lambda x: emit("Gemm", poison(x), constant(WEIGHT), constant(np.ones(3, "float32"))), {"x": (FLOAT, ("s", 4))}, ""),
    "gemm, summed": (lambda x: emit("Gemm", poison(x), poison(x), transA=1), {"x": (FLOAT, ("s", 4))}, "s"),
    "einsum": (lambda x: emit("Einsum", poison(x), poison(x), equation="bsc,bsd->bcd"), X, "s"),
    "conv, batch and rows": (conv(pads=[0, 1, 0, 1]), IMAGE, ""),
    "conv, reach": (conv(pads=[1, 1, 1, 1], strides=[2, 2], dilations=[1, 2]), IMAGE, "s"),
    "conv, same": (conv(auto_pad="SAME_UPPER"), IMAGE, "s"),
    "conv, same, strided over a fixed axis": (conv(auto_pad="SAME_LOWER", strides=[1, 2]), IMAGE, "s"),
    "conv, transposed": (
        lambda x: emit(
            "ConvTranspose", poison(x), constant(KERNEL.transpose(1, 0, 2, 3).copy()), strides=[2, 1], pads=[1, 0, 1, 0]
        ),
        IMAGE,
        "s",
    ),
    "pools": (
        lambda x: (
            emit("MaxPool", poison(x), kernel_shape=[3, 2], pads=[1, 0, 1, 0], strides=[2, 1]),
            emit("AveragePool", poison(x), kernel_shape=[2, 2]),
            emit("AveragePool", poison(x), kernel_shape=[3, 2], pads=[1, 0, 1, 0], count_include_pad=1),
        ),
        IMAGE,
        "s",
    ),
    "global pools": (lambda x: (emit("GlobalAveragePool", poison(x)), emit("GlobalMaxPool", poison(x))), IMAGE, "s"),
    "softmax over another axis": (lambda x: emit("Softmax", poison(x), axis=-1), X, ""),
    "softmax": (lambda x: emit("Softmax", poison(x), axis=1), X, "s"),
    "log softmax": (lambda x: emit("LogSoftmax", poison(x), axis=1), X, "s"),
    "attention": (lambda x: attend(poison(x)), X, "s"),
    "attention, one operator": (lambda x: emit("Attention", *[emit("Reshape", poison(x), constant([2, 1, -1, 4]))] * 3), X, "s"),
    "reductions": (
        lambda x: tuple(
            emit(f"Reduce{kind}", poison(x), constant([1]), keepdims=keep)
            for kind in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")
            for keep in (0, 1)
        ),
        X,
        "s",
    ),
    "a mean of all": (lambda x: emit("ReduceMean", poison(x), keepdims=0), BOTH, "s t"),
    "a reduction over another axis": (lambda x: emit("ReduceMean", poison(x), constant([2]), keepdims=0), X, ""),
    "the largest integer": (lambda x: emit("ReduceMax", x * constant(-1), keepdims=0), {"x": (INT, ("s",))}, "s"),
    "arg max": (lambda x: emit("ArgMax", poison(x), axis=1), X, "s"),
    "sums from the front": (lambda x: emit("CumSum", x, constant(1)), X, ""),
    "sums from the back": (lambda x: emit("CumSum", poison(x), constant(1), reverse=1), X, "s"),
    "layer normalization": (lambda x: emit("LayerNormalization", poison(x), constant(np.ones(4, "float32")), axis=-1), X, ""),
    "dropout with a mask that nothing reads": (lambda x: apply("Dropout", (poison(x),), {}, outputs=2)[0], X, ""),
    "dropout with a mask": (lambda x: apply("Dropout", (poison(x),), {}, outputs=2), X, ""),
    "moves": (lambda x: emit("Transpose", emit("Unsqueeze", poison(x), constant([0])), perm=[2, 0, 3, 1]), X, ""),
    "concat at the end": (lambda x: emit("Concat", constant(np.ones((2, 1, 4), "float32")), x, axis=1), X, ""),
    "concat of another axis": (lambda x, y: emit("Concat", x, y, axis=2), XY, ""),
    "split": (lambda x: apply("Split", (x,), {"axis": 2, "num_outputs": 2}, outputs=2)[1], X, ""),
    "the first element": (lambda x: emit("Gather", poison(x), constant(0), axis=1), X, ""),
    "the last element": (lambda x: emit("Gather", poison(x), constant(-1), axis=1), X, "s"),
    "the last element, cut": (lambda x: emit("Slice", poison(x), constant([-1]), constant([2**63 - 1]), constant([1])), X, "s"),
    "all but the last": (lambda x: emit("Slice", poison(x), constant([1]), constant([-1]), constant([1])), X, ""),
    "every second": (
        lambda x: emit("Slice", poison(x), constant([0]), constant([2**63 - 1]), constant([1]), constant([2])),
        X,
        "",
    ),
    "an embedding": (lambda x: emit("Gather", constant(WEIGHT), x - 5, axis=0), {"x": (INT, ("t", "s"))}, "s t"),
    "an embedding of the input": (
        lambda x: emit("Gather", constant(np.ones((9, 2), "float32")), x, axis=0),
        {"x": (INT, ("t", "s"))},
        "",
    ),
    "elements": (
        lambda x, y: emit("GatherElements", x, y * 0 - 1, axis=1),
        {"x": (FLOAT, (2, "s", 4)), "y": (INT, (2, 3, 4))},
        "s",
    ),
    "places": (lambda x: emit("GatherND", poison(x), constant([[0, -1], [-1, 2]])), {"x": (FLOAT, ("s", 4))}, "s"),
    "places that are padded": (
        lambda x: emit("GatherND", constant(WEIGHT), emit("Sub", emit("Unsqueeze", x, constant([1])), constant(5))),
        {"x": (INT, ("s",))},
        "s",
    ),
    "writes": (
        lambda x, y: emit("ScatterElements", constant(np.ones((2, 9, 4), "float32")), y % 9, poison(x), axis=1),
        {"x": (FLOAT, (2, "s", 4)), "y": (INT, (2, "s", 4))},
        "s",
    ),
    "the largest writes": (
        lambda x, y: emit("ScatterElements", constant(np.zeros((9, 4), "float32")), y % 9, poison(x), axis=0, reduction="max"),
        {"x": (FLOAT, ("s", 4)), "y": (INT, ("s", 4))},
        "s",
    ),
    "writes along another axis": (
        lambda x, y: emit("ScatterElements", poison(x), y * 0 - 1, poison(x), axis=2),
        {"x": (FLOAT, (2, "s", 4)), "y": (INT, (2, "s", 4))},
        "s",
    ),
    "writes from the end": (
        lambda x, y: emit("ScatterElements", poison(x), y * 0 - 1, constant(np.ones((2, 1, 4), "float32")), axis=1),
        {"x": (FLOAT, (2, "s", 4)), "y": (INT, (2, 1, 4))},
        "s",
    ),
    "positions": (lambda x: x + emit("Unsqueeze", emit("Cast", positions(x), to=FLOAT.onnx), constant([1])), X, ""),
    "a table of positions": (
        lambda x: x + emit("Slice", constant(np.ones((9, 4), "float32")), constant([0]), shape_of(x, -2), constant([0])),
        X,
        "",
    ),
    "merged and split": (
        lambda x: emit(
            "Reshape", emit("Gemm", emit("Reshape", poison(x), constant([-1, 4])), constant(WEIGHT)), shape_of(x, -1, -2, 3)
        ),
        BOTH,
        "",
    ),
    "heads": (lambda x: emit("Transpose", emit("Reshape", poison(x), constant([0, 0, 2, 2])), perm=[0, 2, 1, 3]), X, ""),
    "merged in the output": (lambda x: emit("Reshape", poison(x), constant([-1, 2])), X, ""),
    "flatten": (lambda x: emit("Flatten", poison(x), axis=2), BOTH, ""),
    "a size as a number": (lambda x: x / emit("Cast", emit("Size", x), to=FLOAT.onnx), X, "s"),
    "expand": (lambda x: x + emit("Expand", constant(np.ones((1, 1), "float32")), shape_of(x, -2, 4)), X, ""),
    "a triangle": (lambda x: emit("Trilu", poison(x), upper=0), SQUARE, ""),
    "a causal mask": (lambda x: emit("MatMul", emit("Softmax", poison(x) + causal(x), axis=-1), poison(x)), SQUARE, "s"),
    "pads": (lambda x: emit("Pad", poison(x), constant([0, 1, 0, 0, 2, 1])), X, "s"),
    "tile": (lambda x: emit("Tile", poison(x), constant([2, 1, 3])), X, ""),
    "nearest": (lambda x: emit("Resize", poison(x), None, constant(np.array([1, 1, 2, 1], "float32"))), IMAGE, ""),
    "where": (lambda x, y: emit("Where", emit("Greater", x, y), poison(x), constant(np.float32(0))), XY, ""),
    "one hot": (lambda x: emit("OneHot", x, constant(9), constant(np.array([0, 1], "float32"))), {"x": (INT, ("s",))}, ""),
    "recurrent": (lambda x: lstm(x)[0], {"x": (FLOAT, ("s", "t", 4))}, ""),
    "recurrent, the end": (lambda x: lstm(x)[1:], {"x": (FLOAT, ("s", "t", 4))}, "s"),
    "recurrent, both ways": (lambda x: lstm(x, "bidirectional"), {"x": (FLOAT, ("s", 2, 4))}, "s"),
    "the largest": (lambda x: apply("TopK", (x, constant([2])), {"axis": 2}, outputs=2), X, ""),
    "depth to space": (lambda x: emit("DepthToSpace", emit("Concat", x, x, x, x, axis=1), blocksize=2), IMAGE, ""),
    "losses": (
        lambda x, y: tuple(emit("NegativeLogLikelihoodLoss", emit("Log", x), y % 4, reduction=kind) for kind in ("sum", "mean")),
        {"x": (FLOAT, ("s", 4)), "y": (INT, ("s",))},
        "s",
    ),
    "quantized": (lambda x: emit("QuantizeLinear", x, constant(np.float32(0.25))), X, ""),
}


def positions(x: Tensor) -> Tensor:
    length = emit("Gather", emit("Shape", x), constant(1), axis=0)
    return emit("Range", constant(0), length, constant(1))


def causal(x: Tensor) -> Tensor:
    rows = emit("Range", constant(0), emit("Gather", emit("Shape", x), constant(0), axis=0), constant(1))
    hidden = emit("Greater", emit("Unsqueeze", rows, constant([0])), emit("Unsqueeze", rows, constant([1])))
    return emit("Where", hidden, constant(np.float32(-np.inf)), constant(np.float32(0)))


@pytest.mark.parametrize("name", PADS)
@pytest.mark.parametrize("sizes", [SIZES, {"s": 1, "t": 2}, {"s": 8, "t": 6}], ids=["some", "few", "all"])
def test_results_begin_with_those_without_padding(name: str, sizes: Mapping[str, int]) -> None:
    build, inputs, fed = PADS[name]
    function = make(build, inputs)
    padded = pad_dims(function)
    assert {dim: str(reason) for dim, reason in padded.refusals.items()} == {}
    assert padded.dims == tuple(sorted({d for _, shape in inputs.values() for d in shape if isinstance(d, str)}))
    assert " ".join(sorted(padded.fed)) == fed
    if not padded.allows(sizes, sizes):
        assert name in ("conv, reach", "conv, batch and rows", "pools", "all but the last"), name
        return
    check(function, padded, sizes)


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_older_forms_of_operators(opset: int) -> None:
    def build(x: Tensor) -> Any:
        shares = emit("Softmax", poison(x), axis=1 if opset > 12 else -1)
        axes = {"axes": [1]} if opset < 13 else {}
        more = [] if opset < 13 else [constant([1])]
        sums = emit("ReduceSum", poison(x), *more, **axes, keepdims=0)
        means = emit("ReduceMean", poison(x), **({"axes": [1]} if opset < 18 else {}), keepdims=0) if opset < 18 else sums
        return shares, sums, means

    function = make(build, X, opset)
    check(function, pad_dims(function))


def test_dropout_in_test_mode_as_before_opset_7() -> None:
    function = make(lambda x: emit("Dropout", x, is_test=1), X, 6)
    padded = pad_dims(function)
    assert padded.dims == ("s",)
    check(function, padded)


def test_a_table_bounds_the_size() -> None:
    build, inputs, _ = PADS["a table of positions"]
    padded = pad_dims(make(build, inputs))
    assert padded.allows({"s": 7}, {"s": 9})
    assert not padded.allows({"s": 9}, {"s": 12})


def half_beyond_five(x: Tensor) -> Tensor:
    """Return x plus the larger of 0 and (s - 5) / 2; that quotient is negative for few rows."""
    half = emit("Div", emit("Sub", emit("Gather", emit("Shape", x), constant(0), axis=0), constant(5)), constant(2))
    return emit("Add", x, emit("Cast", emit("Max", half, constant(0)), to=FLOAT.onnx))


@pytest.mark.parametrize("size", [1, 9])
def test_a_quotient_of_sizes_may_be_negative(size: int) -> None:
    """A module runs the padded form also at sizes that must not be padded."""
    function = make(half_beyond_five, {"x": (FLOAT, ("s",))})
    module = xrt.XRTModule(function, engine="toy", shapes=xrt.Buckets({"s": [16]}))
    values = draw(function, {"s": size})
    np.testing.assert_array_equal(module(*values), evaluate(function, values)[0])


def test_a_sum_with_an_unknown_number_is_unknown() -> None:
    def build(x: Tensor, number: Tensor) -> Tensor:
        total = emit("ReduceSum", emit("Concat", emit("Shape", x), number, axis=0), constant([0]))
        return emit("Where", emit("Less", total, constant([0])), x, emit("Neg", x))

    function = make(build, {"x": (FLOAT, ("s",)), "number": (INT, (1,))})
    values = [np.ones(3, np.float32), np.array([-9])]
    np.testing.assert_array_equal(xrt.XRTModule(function, engine="toy")(*values), values[0])
    assert "known in part" in str(pad_dims(function).refusals["s"])


@pytest.mark.parametrize("dim", ["s", "t"])
def test_a_slice_behind_the_end_is_empty(dim: str) -> None:
    """A module runs the original model at sizes for which the padded one does not hold."""
    function = make(
        lambda x, y: (emit("Slice", x, emit("Shape", y), emit("Add", emit("Shape", x), emit("Shape", y)), constant([0])), y * 2),
        {"x": (FLOAT, ("s",)), "y": (FLOAT, ("t",))},
    )
    module = xrt.XRTModule(function, engine="toy", shapes=xrt.Buckets({dim: [4, 8]}))
    x, y = np.arange(6, dtype=np.float32), np.ones(2, np.float32)
    np.testing.assert_array_equal(module(x, y)[0], x[2:])
    np.testing.assert_array_equal(module(y, x)[0], y[6:])


def test_squares_of_squares_of_sums_end() -> None:
    """The terms of such a product grow with a power of the number of nodes."""

    def build(x: Tensor, y: Tensor) -> Tensor:
        total = emit("Add", emit("Shape", x), emit("Shape", y))
        for _ in range(9):
            total = emit("Mul", total, total)
        return emit("Add", x, emit("Cast", emit("Mod", total, constant([3])), to=FLOAT.onnx))

    function = make(build, {"x": (FLOAT, ("s",)), "y": (FLOAT, ("t",))})
    check(function, pad_dims(function))


def test_a_model_that_needs_no_mask_is_the_same() -> None:
    function = make(lambda x: emit("Relu", emit("MatMul", x, constant(WEIGHT))), X)
    padded = pad_dims(function)
    assert padded.function.fingerprint == function.fingerprint
    assert (padded.dims, padded.fed) == (("s",), ())


REFUSED: dict[str, tuple[Build, Inputs, str, str]] = {
    "no rule": (lambda x: emit("NonZero", x), X, "s", "there is no rule for its operator"),
    "sums of writes": (
        lambda x, y: emit("ScatterElements", constant(np.zeros((9, 4), "float32")), y % 9, x, axis=0, reduction="add"),
        {"x": (FLOAT, ("s", 4)), "y": (INT, ("s", 4))},
        "s",
        "an entry that is written twice counts twice in reduction 'add'",
    ),
    "writes of another length": (
        lambda x, y: emit("ScatterElements", x, y * 0, emit("Cast", y, to=FLOAT.onnx), axis=2),
        {"x": (FLOAT, (2, "s", 4)), "y": (INT, (2, 3, 4))},
        "s",
        "its operands differ along axis 1",
    ),
    "normalized": (
        lambda x: emit("InstanceNormalization", x, constant(np.ones(3, "float32")), constant(np.ones(3, "float32"))),
        IMAGE,
        "s",
        "it normalizes by statistics over the padded axis",
    ),
    "sorted": (lambda x: apply("TopK", (x, constant([1])), {"axis": 1}, outputs=2), X, "s", "it sorts the padded axis"),
    "joined behind": (
        lambda x: emit("Concat", x, constant(np.ones((2, 1, 4), "float32")), axis=1),
        X,
        "s",
        "it joins something behind a padded axis, so there is padding between the parts",
    ),
    "a fixed extent": (
        lambda x: x + constant(np.ones((5, 1), "float32")),
        X,
        "s",
        "its inputs have the extents s and 5 along one axis, which padding would make unequal",
    ),
    "other extents": (
        lambda x, y: emit("MatMul", x, y),
        {"x": (FLOAT, (2, "s")), "y": (FLOAT, (5, 2))},
        "s",
        "it sums over a padded axis, whose extent is another one on the other side",
    ),
    "a reshape in another order": (
        lambda x: emit("Reshape", x, shape_of(x, 4, -2, 2)),
        X,
        "s",
        "the new shape has 2 where the old one has s",
    ),
    "a reshape to a number": (
        lambda x: emit("Reshape", x, constant([2, 5, 4])),
        X,
        "s",
        "the new shape has 5 where the old one has s",
    ),
    "linear": (
        lambda x: emit("Resize", x, None, constant(np.array([1, 1, 2, 1], "float32")), mode="linear"),
        IMAGE,
        "s",
        "it interpolates, or scales by no whole number",
    ),
    "rounded up": (
        lambda x: emit("MaxPool", x, kernel_shape=[2, 2], ceil_mode=1),
        IMAGE,
        "s",
        "it rounds up (ceil_mode), or gives indices",
    ),
    "divided by fewer": (
        lambda x: emit("AveragePool", x, kernel_shape=[2, 2], pads=[0, 0, 1, 0]),
        IMAGE,
        "s",
        "windows at the end divide by fewer elements",
    ),
    "a size as the result": (lambda x: emit("Shape", x), X, "s", "its result is a size"),
    "backwards": (
        lambda x: emit("Slice", x, constant([-1]), constant([-(2**63)]), constant([1]), constant([-1])),
        X,
        "s",
        "it cuts at places that are not known, or backwards",
    ),
    "several slices": (
        lambda x: emit("Slice", x, emit("Concat", shape_of(x, -1) - 2, constant([1]), axis=0), constant([2**62, 3])),
        {"x": (FLOAT, ("s", 4))},
        "s",
        "it slices several axes, one from a place that depends on the size",
    ),
    "reflected": (
        lambda x: emit("Pad", x, constant([0, 0, 0, 0, 2, 0]), mode="reflect"),
        X,
        "s",
        "it cuts, or repeats what is at the end",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_padding_would_change_is_refused_with_the_reason(name: str) -> None:
    build, inputs, dim, reason = REFUSED[name]
    function = make(build, inputs)
    padded = pad_dims(function)
    assert dim not in padded.dims
    refusal = padded.refusals[dim]
    assert reason in refusal.reason
    assert refusal.node in {node.name for node in function.nodes}
    assert refusal.op in {node.op for node in function.nodes}
    check(function, padded)  # the other dims are padded


def test_the_reason_names_the_node_that_is_decomposed() -> None:
    function = make(lambda x: emit("CenterCropPad", x, constant([3]), axes=[1]), X, 18)
    reason = "node 'centercroppad_1' (CenterCropPad): in its decomposition, Pad: input 1 is no constant"
    assert str(pad_dims(function).refusals["s"]) == reason


def test_the_body_of_a_loop_is_not_followed() -> None:
    def build(x: Tensor) -> Any:
        return emit(
            "If", emit("Greater", emit("ReduceSum", x, keepdims=0), 3.0), then_branch=lambda: x + 1.0, else_branch=lambda: x
        )

    padded = pad_dims(make(build, X))
    assert padded.dims == ()
    assert "body" in padded.refusals["s"].reason


def test_what_no_output_needs_refuses_nothing() -> None:
    function = make(lambda x: (x * x, emit("NonZero", x)), X)
    padded = pad_dims(function.replace(outputs=function.outputs[:1]))
    assert padded.dims == ("s",)


def test_one_dim_is_refused_without_the_other() -> None:
    function = make(
        lambda x: emit("Transpose", emit("NonZero", emit("Slice", x, constant([0]), constant([1]), constant([1])))), BOTH
    )
    assert set(pad_dims(function).refusals) == {"s"}
    pooled = make(
        lambda x: emit("MaxPool", x, kernel_shape=[3, 3], strides=[1, 2], auto_pad="SAME_UPPER"), {"x": (FLOAT, (1, 1, "s", "t"))}
    )
    assert set(pad_dims(pooled).refusals) == {"t"}
    function = make(lambda x: emit("Concat", x, x, axis=1), BOTH)
    padded = pad_dims(function)
    assert (padded.dims, set(padded.refusals)) == (("s",), {"t"})
    check(function, padded)


def test_an_input_that_is_updated_in_place_is_not_padded() -> None:
    function = make(lambda x: x + 1.0, X)
    padded = pad_dims(function.replace(aliases=(("x", function.outputs[0].name),)))
    assert "updated in place" in str(padded.refusals["s"])
