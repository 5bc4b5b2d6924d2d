"""Padding of open dims: results begin with what they are without padding; what cannot be shown to do so is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import xrt
from xrt import ops
from xrt.builder import Tensor
from xrt.builder.tracing import trace
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.formats.onnx.inference import infer_node_types
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
    types = [TensorType(dtype, shape) for dtype, shape in inputs.values()]
    return infer_shapes(trace(build, *types, inference=infer_node_types, opsets=opset))


def poison(x: Tensor) -> Tensor:
    """Return the same, with NaN where the input is padded with zeros."""
    log = ops.Log(x)
    return ops.Add(x, ops.Sub(log, log))


def draw(function: Function, sizes: Mapping[str, int]) -> list[Any]:
    """Return inputs whose sums and products are exact: positive multiples of a quarter."""
    rng = np.random.default_rng(7)
    results = []
    for value in function.inputs:
        shape = tuple(dim if isinstance(dim, int) else sizes[dim] for dim in value.type.shape)
        results.append((rng.integers(1, 9, shape) / (1 if value.type.dtype is INT else 4)).astype(value.type.dtype.numpy))
    return results


def run_padded(padded: PaddedFunction, values: Sequence[Any], sizes: Mapping[str, int], larger: Mapping[str, int]) -> list[Any]:
    """Run the padded form on values filled up with zeros, and cut its results."""
    whole = {name: larger[name] if name in padded.dims else size for name, size in sizes.items()}
    assert padded.allows(sizes, whole)
    filled = []
    for value, declared in zip(values, padded.function.inputs, strict=False):
        array = np.zeros([whole.get(dim, dim) for dim in declared.type.shape], value.dtype)
        array[tuple(map(slice, value.shape))] = value
        filled.append(array)
    fed = [np.array(sizes[name], np.int64) for name in padded.fed]
    return padded.cut(evaluate(padded.function, [*filled, *fed]), sizes, whole)


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


def shape_of(x: Tensor, *parts: int) -> Tensor:
    """Return a shape as exporters write it: extents of a tensor (-1 is the first), read one by one, and numbers."""
    size = ops.Shape(x)
    return ops.Concat(*([n] if n >= 0 else ops.Unsqueeze(ops.Gather(size, -n - 1, axis=0), [0]) for n in parts), axis=0)


def conv(**attributes: Any) -> Build:
    return lambda x: ops.Conv(poison(x), KERNEL, **attributes)


def lstm(x: Tensor, direction: str = "forward") -> Any:
    count = 2 if direction == "bidirectional" else 1
    rng = np.random.default_rng(1)
    weight, recurrent = (rng.standard_normal((count, 12, n)).astype("float32") for n in (4, 3))
    return ops.LSTM(x, weight, recurrent, hidden_size=3, direction=direction, outputs=3)


def attend(x: Tensor) -> Tensor:
    """Attention as models of PyTorch have it, without a mask."""
    query, key, value = (ops.MatMul(x, WEIGHT[:, :2] + np.float32(n)) for n in range(3))
    return ops.MatMul(ops.Softmax(ops.MatMul(query, ops.Transpose(key, perm=[0, 2, 1])), axis=-1), value)


# ---------------------------------------------------------------------- extents


def test_extents_are_equal_where_they_are_the_same_polynomial() -> None:
    assert (S + T) * (S - T) == S * S - T * T
    assert (S * Extent.of(6)) // 3 == S * Extent.of(2)
    assert ((S + Extent.of(1)) // 2).evaluate({"s": 6}) == 3
    assert (S * T * Extent.of(4)).divide(T) == S * Extent.of(4)
    assert ((S + T) * Extent.of(4)).divide(S + T) == Extent.of(4)
    assert (S * T + T).divide(S + Extent.of(1)) == T
    assert S.divide(T) is (S + T).divide(S) is None
    assert (S - S).number == 0
    assert (S + Extent.of(1)).number is None


# ---------------------------------------------------------------------- what is padded

END, LAST = 2**63 - 1, -(2**63)
REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")
ROW: Inputs = {"x": (FLOAT, ("s", 4))}
WHOLE: Inputs = {"x": (INT, ("s",))}
PLACES: Inputs = {"x": (FLOAT, (2, "s", 4)), "y": (INT, (2, "s", 4))}


def ones(*shape: int) -> Any:
    return np.ones(shape, "float32")


def pools(x: Tensor) -> Any:
    return (
        ops.MaxPool(poison(x), kernel_shape=[3, 2], pads=[1, 0, 1, 0], strides=[2, 1]),
        ops.AveragePool(poison(x), kernel_shape=[2, 2]),
        ops.AveragePool(poison(x), kernel_shape=[3, 2], pads=[1, 0, 1, 0], count_include_pad=1),
    )


def transposed(x: Tensor) -> Tensor:
    return ops.ConvTranspose(poison(x), KERNEL.transpose(1, 0, 2, 3).copy(), strides=[2, 1], pads=[1, 0, 1, 0])


def reductions(x: Tensor) -> Any:
    return tuple(getattr(ops, f"Reduce{kind}")(poison(x), [1], keepdims=keep) for kind in REDUCTIONS for keep in (0, 1))


def merged(x: Tensor) -> Tensor:
    return ops.Reshape(ops.Gemm(ops.Reshape(poison(x), [-1, 4]), WEIGHT), shape_of(x, -1, -2, 3))


def losses(x: Tensor, y: Tensor) -> Any:
    return tuple(ops.NegativeLogLikelihoodLoss(ops.Log(x), y % 4, reduction=kind) for kind in ("sum", "mean"))


PADS: dict[str, tuple[Build, Inputs, str]] = {
    "cropped, in a decomposition": (lambda x: ops.CenterCropPad(x, [3], axes=[2]), X, ""),
    "elementwise": (lambda x, y: poison(x) * y - ops.Sqrt(y), XY, ""),
    "broadcast": (lambda x: ops.Add(x, ones(1, 4)), X, ""),
    "integer division": (lambda x: ops.Div(x, x) + ops.Mod(x, x), {"x": (INT, ("s", 2))}, "s"),
    "product, rows": (lambda x: ops.MatMul(poison(x), WEIGHT), X, ""),
    "product, batch": (lambda x: ops.MatMul(ops.Transpose(poison(x), perm=[1, 2, 0]), ones(2, 3)), X, ""),
    "product, both sides": (lambda x: ops.MatMul(ops.Transpose(poison(x), perm=[0, 2, 1]), poison(x)), X, "s"),
    "product, a vector": (lambda x, y: ops.MatMul(poison(x), poison(y)), {"x": (FLOAT, ("s",)), "y": (FLOAT, ("s", 3))}, "s"),
    "gemm": (lambda x: ops.Gemm(poison(x), WEIGHT, ones(3)), ROW, ""),
    "gemm, summed": (lambda x: ops.Gemm(poison(x), poison(x), transA=1), ROW, "s"),
    "einsum": (lambda x: ops.Einsum(poison(x), poison(x), equation="bsc,bsd->bcd"), X, "s"),
    "conv, batch and rows": (conv(pads=[0, 1, 0, 1]), IMAGE, ""),
    "conv, reach": (conv(pads=[1, 1, 1, 1], strides=[2, 2], dilations=[1, 2]), IMAGE, "s"),
    "conv, same": (conv(auto_pad="SAME_UPPER"), IMAGE, "s"),
    "conv, same, strided over a fixed axis": (conv(auto_pad="SAME_LOWER", strides=[1, 2]), IMAGE, "s"),
    "conv, transposed": (transposed, IMAGE, "s"),
    "pools": (pools, IMAGE, "s"),
    "global pools": (lambda x: (ops.GlobalAveragePool(poison(x)), ops.GlobalMaxPool(poison(x))), IMAGE, "s"),
    "softmax over another axis": (lambda x: ops.Softmax(poison(x), axis=-1), X, ""),
    "softmax": (lambda x: ops.Softmax(poison(x), axis=1), X, "s"),
    "log softmax": (lambda x: ops.LogSoftmax(poison(x), axis=1), X, "s"),
    "attention": (lambda x: attend(poison(x)), X, "s"),
    "attention, one operator": (lambda x: ops.Attention(*[ops.Reshape(poison(x), [2, 1, -1, 4])] * 3), X, "s"),
    "reductions": (reductions, X, "s"),
    "a mean of all": (lambda x: ops.ReduceMean(poison(x), keepdims=0), BOTH, "s t"),
    "a reduction over another axis": (lambda x: ops.ReduceMean(poison(x), [2], keepdims=0), X, ""),
    "the largest integer": (lambda x: ops.ReduceMax(x * -1, keepdims=0), WHOLE, "s"),
    "arg max": (lambda x: ops.ArgMax(poison(x), axis=1), X, "s"),
    "sums from the front": (lambda x: ops.CumSum(x, 1), X, ""),
    "sums from the back": (lambda x: ops.CumSum(poison(x), 1, reverse=1), X, "s"),
    "layer normalization": (lambda x: ops.LayerNormalization(poison(x), ones(4), axis=-1), X, ""),
    "dropout with a mask that nothing reads": (lambda x: ops.Dropout(poison(x), outputs=2)[0], X, ""),
    "dropout with a mask": (lambda x: ops.Dropout(poison(x), outputs=2), X, ""),
    "moves": (lambda x: ops.Transpose(ops.Unsqueeze(poison(x), [0]), perm=[2, 0, 3, 1]), X, ""),
    "concat at the end": (lambda x: ops.Concat(ones(2, 1, 4), x, axis=1), X, ""),
    "concat of another axis": (lambda x, y: ops.Concat(x, y, axis=2), XY, ""),
    "split": (lambda x: ops.Split(x, axis=2, num_outputs=2)[1], X, ""),
    "the first element": (lambda x: ops.Gather(poison(x), 0, axis=1), X, ""),
    "the last element": (lambda x: ops.Gather(poison(x), -1, axis=1), X, "s"),
    "the last element, cut": (lambda x: ops.Slice(poison(x), [-1], [END], [1]), X, "s"),
    "all but the last": (lambda x: ops.Slice(poison(x), [1], [-1], [1]), X, ""),
    "every second": (lambda x: ops.Slice(poison(x), [0], [END], [1], [2]), X, ""),
    "an embedding": (lambda x: ops.Gather(WEIGHT, x - 5, axis=0), {"x": (INT, ("t", "s"))}, "s t"),
    "an embedding of the input": (lambda x: ops.Gather(ones(9, 2), x, axis=0), {"x": (INT, ("t", "s"))}, ""),
    "elements": (
        lambda x, y: ops.GatherElements(x, y * 0 - 1, axis=1), {"x": (FLOAT, (2, "s", 4)), "y": (INT, (2, 3, 4))}, "s"
    ),
    "places": (lambda x: ops.GatherND(poison(x), [[0, -1], [-1, 2]]), ROW, "s"),
    "places that are padded": (lambda x: ops.GatherND(WEIGHT, ops.Unsqueeze(x, [1]) - 5), WHOLE, "s"),
    "writes": (lambda x, y: ops.ScatterElements(ones(2, 9, 4), y % 9, poison(x), axis=1), PLACES, "s"),
    "the largest writes": (
        lambda x, y: ops.ScatterElements(0 * ones(9, 4), y % 9, poison(x), axis=0, reduction="max"),
        {"x": (FLOAT, ("s", 4)), "y": (INT, ("s", 4))},
        "s",
    ),
    "writes along another axis": (lambda x, y: ops.ScatterElements(poison(x), y * 0 - 1, poison(x), axis=2), PLACES, "s"),
    "writes from the end": (
        lambda x, y: ops.ScatterElements(poison(x), y * 0 - 1, ones(2, 1, 4), axis=1),
        {"x": (FLOAT, (2, "s", 4)), "y": (INT, (2, 1, 4))},
        "s",
    ),
    "positions": (lambda x: x + ops.Unsqueeze(ops.Cast(positions(x), to="float32"), [1]), X, ""),
    "a table of positions": (lambda x: x + ops.Slice(ones(9, 4), [0], shape_of(x, -2), [0]), X, ""),
    "merged and split": (merged, BOTH, ""),
    "heads": (lambda x: ops.Transpose(ops.Reshape(poison(x), [0, 0, 2, 2]), perm=[0, 2, 1, 3]), X, ""),
    "merged in the output": (lambda x: ops.Reshape(poison(x), [-1, 2]), X, ""),
    "flatten": (lambda x: ops.Flatten(poison(x), axis=2), BOTH, ""),
    "a size as a number": (lambda x: x / ops.Cast(ops.Size(x), to="float32"), X, "s"),
    "expand": (lambda x: x + ops.Expand(ones(1, 1), shape_of(x, -2, 4)), X, ""),
    "a triangle": (lambda x: ops.Trilu(poison(x), upper=0), SQUARE, ""),
    "a causal mask": (lambda x: ops.MatMul(ops.Softmax(poison(x) + causal(x), axis=-1), poison(x)), SQUARE, "s"),
    "pads": (lambda x: ops.Pad(poison(x), [0, 1, 0, 0, 2, 1]), X, "s"),
    "tile": (lambda x: ops.Tile(poison(x), [2, 1, 3]), X, ""),
    "nearest": (lambda x: ops.Resize(poison(x), None, np.float32([1, 1, 2, 1])), IMAGE, ""),
    "where": (lambda x, y: ops.Where(ops.Greater(x, y), poison(x), np.float32(0)), XY, ""),
    "one hot": (lambda x: ops.OneHot(x, 9, np.float32([0, 1])), WHOLE, ""),
    "recurrent": (lambda x: lstm(x)[0], {"x": (FLOAT, ("s", "t", 4))}, ""),
    "recurrent, the end": (lambda x: lstm(x)[1:], {"x": (FLOAT, ("s", "t", 4))}, "s"),
    "recurrent, both ways": (lambda x: lstm(x, "bidirectional"), {"x": (FLOAT, ("s", 2, 4))}, "s"),
    "the largest": (lambda x: ops.TopK(x, [2], axis=2), X, ""),
    "depth to space": (lambda x: ops.DepthToSpace(ops.Concat(x, x, x, x, axis=1), blocksize=2), IMAGE, ""),
    "losses": (losses, {"x": (FLOAT, ("s", 4)), "y": (INT, ("s",))}, "s"),
    "quantized": (lambda x: ops.QuantizeLinear(x, np.float32(0.25)), X, ""),
}  # fmt: skip


def positions(x: Tensor) -> Tensor:
    return ops.Range(0, ops.Gather(ops.Shape(x), 1, axis=0), 1)


def causal(x: Tensor) -> Tensor:
    rows = ops.Range(0, ops.Gather(ops.Shape(x), 0, axis=0), 1)
    return ops.Where(ops.Greater(ops.Unsqueeze(rows, [0]), ops.Unsqueeze(rows, [1])), np.float32(-np.inf), np.float32(0))


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
        shares = ops.Softmax(poison(x), axis=1 if opset > 12 else -1)
        return shares, ops.ReduceSum(poison(x), axes=[1], keepdims=0), ops.ReduceMean(poison(x), axes=[1], keepdims=0)

    function = make(build, X, opset)
    check(function, pad_dims(function))


def test_dropout_in_test_mode_as_before_opset_7() -> None:
    function = make(lambda x: ops.Dropout(x, is_test=1), X, 6)
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
    half = ops.Div(ops.Gather(ops.Shape(x), 0, axis=0) - 5, 2)
    return x + ops.Cast(ops.Max(half, 0), to="float32")


@pytest.mark.parametrize("size", [1, 9])
def test_a_quotient_of_sizes_may_be_negative(size: int) -> None:
    """A module runs the padded form also at sizes that must not be padded."""
    function = make(half_beyond_five, {"x": (FLOAT, ("s",))})
    module = xrt.XRTModule(function, engine="toy", shapes=xrt.Buckets({"s": [16]}))
    values = draw(function, {"s": size})
    np.testing.assert_array_equal(module(*values), evaluate(function, values)[0])


def test_a_sum_with_an_unknown_number_is_unknown() -> None:
    def build(x: Tensor, number: Tensor) -> Tensor:
        total = ops.ReduceSum(ops.Concat(ops.Shape(x), number, axis=0), [0])
        return ops.Where(ops.Less(total, 0), x, -x)

    function = make(build, {"x": (FLOAT, ("s",)), "number": (INT, (1,))})
    values = [np.ones(3, np.float32), np.array([-9])]
    np.testing.assert_array_equal(xrt.XRTModule(function, engine="toy")(*values), values[0])
    assert "some of which are unknown" in str(pad_dims(function).refusals["s"])


@pytest.mark.parametrize("dim", ["s", "t"])
def test_a_slice_behind_the_end_is_empty(dim: str) -> None:
    """A module runs the original model at sizes for which the padded one does not hold."""
    inputs: Inputs = {"x": (FLOAT, ("s",)), "y": (FLOAT, ("t",))}
    function = make(lambda x, y: (ops.Slice(x, ops.Shape(y), ops.Shape(x) + ops.Shape(y), [0]), y * 2), inputs)
    module = xrt.XRTModule(function, engine="toy", shapes=xrt.Buckets({dim: [4, 8]}))
    x, y = np.arange(6, dtype=np.float32), np.ones(2, np.float32)
    np.testing.assert_array_equal(module(x, y)[0], x[2:])
    np.testing.assert_array_equal(module(y, x)[0], y[6:])


def test_squares_of_squares_of_sums_end() -> None:
    """The terms of such a product grow with a power of the number of nodes."""

    def build(x: Tensor, y: Tensor) -> Tensor:
        total = ops.Shape(x) + ops.Shape(y)
        for _ in range(9):
            total = total * total
        return x + ops.Cast(ops.Mod(total, [3]), to="float32")

    function = make(build, {"x": (FLOAT, ("s",)), "y": (FLOAT, ("t",))})
    check(function, pad_dims(function))


def test_a_model_that_needs_no_mask_is_the_same() -> None:
    function = make(lambda x: ops.Relu(ops.MatMul(x, WEIGHT)), X)
    padded = pad_dims(function)
    assert padded.function.fingerprint == function.fingerprint
    assert (padded.dims, padded.fed) == (("s",), ())


def several_slices(x: Tensor) -> Tensor:
    return ops.Slice(x, ops.Concat(shape_of(x, -1) - 2, np.array([1]), axis=0), [2**62, 3])


REFUSED: dict[str, tuple[Build, Inputs, str]] = {
    "no rule": (lambda x: ops.NonZero(x), X, "there is no rule for its operator"),
    "sums of writes": (
        lambda x, y: ops.ScatterElements(0 * ones(9, 4), y % 9, x, axis=0, reduction="add"),
        {"x": (FLOAT, ("s", 4)), "y": (INT, ("s", 4))},
        "an entry that is written twice counts twice in reduction 'add'",
    ),
    "writes of another length": (
        lambda x, y: ops.ScatterElements(x, y * 0, ops.Cast(y, to="float32"), axis=2),
        {"x": (FLOAT, (2, "s", 4)), "y": (INT, (2, 3, 4))},
        "its operands differ along axis 1",
    ),
    "normalized": (
        lambda x: ops.InstanceNormalization(x, ones(3), ones(3)), IMAGE, "it normalizes by statistics over the padded axis"
    ),
    "sorted": (lambda x: ops.TopK(x, [1], axis=1), X, "it sorts the padded axis"),
    "joined behind": (
        lambda x: ops.Concat(x, ones(2, 1, 4), axis=1),
        X,
        "it concatenates behind a padded axis, so padding would lie between the parts",
    ),
    "a fixed extent": (
        lambda x: ops.Add(x, ones(5, 1)),
        X,
        "its inputs have the extents s and 5 along one axis, which padding would make unequal",
    ),
    "other extents": (
        lambda x, y: ops.MatMul(x, y),
        {"x": (FLOAT, (2, "s")), "y": (FLOAT, (5, 2))},
        "it sums over a padded axis whose extent differs between its operands",
    ),
    "a reshape in another order": (
        lambda x: ops.Reshape(x, shape_of(x, 4, -2, 2)), X, "the new shape has 2 where the old one has s"
    ),
    "a reshape to a number": (lambda x: ops.Reshape(x, [2, 5, 4]), X, "the new shape has 5 where the old one has s"),
    "linear": (
        lambda x: ops.Resize(x, None, np.float32([1, 1, 2, 1]), mode="linear"),
        IMAGE,
        "it interpolates, or its scale is not an integer",
    ),
    "rounded up": (
        lambda x: ops.MaxPool(x, kernel_shape=[2, 2], ceil_mode=1), IMAGE, "it rounds up (ceil_mode) or returns indices"
    ),
    "divided by fewer": (
        lambda x: ops.AveragePool(x, kernel_shape=[2, 2], pads=[0, 0, 1, 0]),
        IMAGE,
        "windows at the end divide by fewer elements",
    ),
    "a size as the result": (lambda x: ops.Shape(x), X, "its result is a size"),
    "backwards": (
        lambda x: ops.Slice(x, [-1], [LAST], [1], [-1]), X, "its bounds are not known, or its step is negative"
    ),
    "several slices": (several_slices, ROW, "it slices several axes, one from a start that depends on a padded size"),
    "reflected": (
        lambda x: ops.Pad(x, [0, 0, 0, 0, 2, 0], mode="reflect"), X, "it removes or repeats elements at the end"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_padding_would_change_is_refused_with_the_reason(name: str) -> None:
    build, inputs, reason = REFUSED[name]
    function = make(build, inputs)
    padded = pad_dims(function)
    assert "s" not in padded.dims
    refusal = padded.refusals["s"]
    assert reason in refusal.reason
    assert refusal.node in {node.name for node in function.nodes}
    assert refusal.op in {node.op for node in function.nodes}
    check(function, padded)  # the other dims are padded


def test_the_reason_names_the_node_that_is_decomposed() -> None:
    function = make(lambda x: ops.CenterCropPad(x, [3], axes=[1]), X, 18)
    reason = "node 'centercroppad_1' (CenterCropPad): in its decomposition, Pad: input 1 is not a constant"
    assert str(pad_dims(function).refusals["s"]) == reason


def test_the_body_of_a_loop_is_not_followed() -> None:
    def build(x: Tensor) -> Any:
        is_large = ops.Greater(ops.ReduceSum(x, keepdims=0), 3.0)
        return ops.If(is_large, then_branch=lambda: x + 1.0, else_branch=lambda: x)

    padded = pad_dims(make(build, X))
    assert padded.dims == ()
    assert "body" in padded.refusals["s"].reason


def test_what_no_output_needs_refuses_nothing() -> None:
    function = make(lambda x: (x * x, ops.NonZero(x)), X)
    padded = pad_dims(function.replace(outputs=function.outputs[:1]))
    assert padded.dims == ("s",)


def test_one_dim_is_refused_without_the_other() -> None:
    function = make(lambda x: ops.Transpose(ops.NonZero(ops.Slice(x, [0], [1], [1]))), BOTH)
    assert set(pad_dims(function).refusals) == {"s"}
    pooled = make(
        lambda x: ops.MaxPool(x, kernel_shape=[3, 3], strides=[1, 2], auto_pad="SAME_UPPER"), {"x": (FLOAT, (1, 1, "s", "t"))}
    )
    assert set(pad_dims(pooled).refusals) == {"t"}
    function = make(lambda x: ops.Concat(x, x, axis=1), BOTH)
    padded = pad_dims(function)
    assert (padded.dims, set(padded.refusals)) == (("s",), {"t"})
    check(function, padded)


def test_an_input_that_is_updated_in_place_is_not_padded() -> None:
    function = make(lambda x: x + 1.0, X)
    padded = pad_dims(function.replace(aliases=(("x", function.outputs[0].name),)))
    assert "updated in place" in str(padded.refusals["s"])
