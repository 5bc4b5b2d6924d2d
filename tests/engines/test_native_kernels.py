"""Native kernels of softmax, normalisations, reductions, transpose, pools and depthwise convolution, against toy's Python."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given, settings

import xrt
from tests.engines.native_running import kernel_of, numbers, on_native, on_python
from tests.engines.written import Array, over_arrays
from xrt.errors import CompileFailed, CompileRefused, RunFailed
from xrt.testing.corpus.entry import graph, node

SHAPES = [(1,), (5,), (0,), (3, 0), (4, 17), (2, 129), (3, 1, 4), (2, 3, 5, 7), (1, 2, 1, 3, 1, 4)]


def check(
    op: str,
    *inputs: Array | None,
    opset: int = 24,
    n_outputs: int = 1,
    constants: tuple[int, ...] = (),
    rtol: float = 2e-6,
    atol: float = 2e-6,
    **attributes: Any,
) -> None:
    """Compare one operator on both kinds of kernels, every output of it."""
    function = over_arrays(op, inputs, attributes, opset=opset, n_outputs=n_outputs, constants=constants)
    tensors = [x for i, x in enumerate(inputs) if x is not None and i not in constants]
    for actual, expected in zip(on_native(function, tensors), on_python(function, tensors), strict=True):
        assert actual.dtype == expected.dtype
        assert actual.shape == expected.shape
        if expected.dtype.kind in "iu":
            np.testing.assert_array_equal(actual, expected)
        else:
            np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("shape", SHAPES)
def test_softmax_along_each_axis(op: str, shape: tuple[int, ...]) -> None:
    for axis in range(-len(shape), len(shape)):
        check(op, numbers(shape), axis=axis)
        check(op, numbers(shape), axis=axis, opset=11)


@pytest.mark.parametrize("shape", [(5,), (4, 17), (2, 3, 5, 7), (0, 4), (1, 1000)])
def test_layer_and_rms_normalization(shape: tuple[int, ...]) -> None:
    for axis in range(-len(shape), len(shape)):
        parameter_shape = shape[axis % len(shape) :]
        scale, bias = numbers(parameter_shape, seed=1), numbers(parameter_shape, seed=2)
        check("LayerNormalization", numbers(shape) + 3, scale, bias, axis=axis, n_outputs=3)
        check("LayerNormalization", numbers(shape), scale, axis=axis, epsilon=1e-3)
        check("RMSNormalization", numbers(shape), scale, axis=axis)


def test_a_mean_far_from_zero_costs_no_digits() -> None:
    x = numbers((3, 4096)) + np.float32(1e4)
    function = over_arrays("LayerNormalization", [x, np.ones(4096, np.float32)])
    (actual,), wide = on_native(function, [x, np.ones(4096, np.float32)]), x.astype(np.float64)
    exact = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(actual, exact, atol=2e-3)


@pytest.mark.parametrize("shape", [(2, 6, 5, 7), (3, 4, 9), (1, 2, 0), (2, 4, 3, 3, 3)])
def test_normalisations_by_channel(shape: tuple[int, ...]) -> None:
    channels = shape[1]
    vectors = [numbers((channels,), seed=i) for i in range(4)]
    vectors[3] = np.abs(vectors[3])
    check("BatchNormalization", numbers(shape), *vectors, epsilon=1e-3)
    check("BatchNormalization", numbers(shape), *vectors, opset=9)
    check("InstanceNormalization", numbers(shape), *vectors[:2], rtol=1e-5, atol=1e-5)
    check("GroupNormalization", numbers(shape), *vectors[:2], num_groups=2, rtol=1e-5, atol=1e-5)


PLAIN = ("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceSumSquare")
OF_FLOATS = ("ReduceMean", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp")


@st.composite
def reductions(draw: st.DrawFn) -> tuple[Array, list[int], bool]:
    """Draw a tensor of rank 0 to 6, some of its axes, and whether they are kept."""
    shape = tuple(
        draw(
            st.lists(st.sampled_from([1, 1, 2, 3, 5, 17, 130, 0]), max_size=6).filter(
                lambda s: np.prod([n or 1 for n in s]) < 50_000
            )
        )
    )
    axes = draw(st.lists(st.integers(-len(shape), len(shape) - 1), unique_by=lambda a: a % len(shape))) if shape else []
    dtype = draw(st.sampled_from([np.float32, np.float64, np.int32, np.int64]))
    return numbers(shape, dtype, seed=len(axes)), axes, draw(st.booleans())


@pytest.mark.slow
@pytest.mark.parametrize("op", [*PLAIN, *OF_FLOATS])
@given(drawn=reductions())
@settings(max_examples=60, deadline=None)
def test_reductions(op: str, drawn: tuple[Array, list[int], bool]) -> None:
    x, axes, keep = drawn
    assume(op in PLAIN or x.dtype.kind == "f")
    if op == "ReduceLogSumExp":
        rank = x.ndim
        assume(x.dtype == np.float32 and (not axes or rank == 0 or rank - 1 in [a % rank for a in axes]))
    if op == "ReduceLogSum":
        x = np.abs(x)
    exact = {"rtol": 1e-5, "atol": 1e-4}
    array = np.array(axes, np.int64)
    check(op, x, array, constants=(1,), keepdims=int(keep), **exact)
    if op != "ReduceSum":
        check(op, x, opset=13, keepdims=int(keep), **({"axes": axes} if axes else {}), **exact)


@pytest.mark.parametrize("axis", [0, 1])
def test_long_sums_stay_exact(axis: int) -> None:
    x = np.full((3, 300_000) if axis else (300_000, 3), 0.1, np.float32)
    function = over_arrays("ReduceSum", [x, np.array([axis], np.int64)], constants=(1,))
    np.testing.assert_allclose(on_native(function, [x])[0], np.float32(0.1) * 300_000.0, rtol=1e-6)


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=120, deadline=None)
def test_transpose(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 5, 33, 70, 0]), max_size=6).filter(lambda s: np.prod(s) < 50_000)))
    perm = data.draw(st.permutations(range(len(shape))))
    dtype = data.draw(st.sampled_from([np.float32, np.float64, np.float16, np.int8, bool, np.uint16]))
    x = numbers(shape).astype(dtype)
    if shape:
        check("Transpose", x, perm=perm)
    check("Transpose", x)


@st.composite
def windows(draw: st.DrawFn) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Draw spatial extents and the attributes of a window that fits."""
    rank = draw(st.integers(1, 3))
    extents = tuple(draw(st.integers(4, 40 if rank == 1 else 12)) for _ in range(rank))
    each = st.integers(1, 3)
    attributes: dict[str, Any] = {"kernel_shape": [draw(each) for _ in extents], "strides": [draw(each) for _ in extents]}
    if draw(st.booleans()):
        attributes["dilations"] = [draw(st.integers(1, 2)) for _ in extents]
    if draw(st.booleans()):
        attributes["auto_pad"] = draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    else:
        attributes["pads"] = [draw(st.integers(0, k - 1)) for k in 2 * attributes["kernel_shape"]]
    spans = [(k - 1) * d + 1 for k, d in zip(attributes["kernel_shape"], attributes.get("dilations", [1] * rank), strict=True)]
    assume(all(span <= extent for span, extent in zip(spans, extents, strict=True)))
    return extents, attributes


@pytest.mark.slow
@given(windows(), st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_pools(window: tuple[tuple[int, ...], dict[str, Any]], round_up: bool, with_padding: bool) -> None:
    extents, attributes = window
    x = numbers((2, 3, *extents))
    check("MaxPool", x, ceil_mode=int(round_up), **attributes)
    check("AveragePool", x, ceil_mode=int(round_up), count_include_pad=int(with_padding), **attributes)


@pytest.mark.parametrize("shape", [(2, 3, 7, 7), (1, 5, 33), (2, 1, 3, 4, 5)])
def test_pools_of_whole_planes(shape: tuple[int, ...]) -> None:
    check("GlobalAveragePool", numbers(shape))
    check("GlobalMaxPool", numbers(shape))


@pytest.mark.slow
@given(windows(), st.integers(1, 2), st.booleans())
@settings(max_examples=150, deadline=None)
def test_depthwise_convolution(window: tuple[tuple[int, ...], dict[str, Any]], multiplier: int, biased: bool) -> None:
    extents, attributes = window
    kernel = attributes.pop("kernel_shape")
    x, w = numbers((2, 3, *extents)), numbers((3 * multiplier, 1, *kernel), seed=1)
    bias = [numbers((3 * multiplier,), seed=2)] if biased else []
    check("Conv", x, w, *bias, group=3, rtol=1e-5, atol=1e-5, **attributes)


X = numbers((2, 3))
AXIS = {"constants": (1,)}
REASONS: list[tuple[str, list[Array], dict[str, Any], dict[str, Any], str]] = [
    ("Softmax", [numbers((2, 3), np.float64)], {}, {}, "the kernel supports float32, not float64"),
    ("LayerNormalization", [X, numbers((1,))], {}, {}, "scale and bias must have the shape of the normalized axes"),
    ("LayerNormalization", [X, numbers((3,))], {"stash_type": 11}, {}, "stash_type must be 1, float32; it is 11"),
    ("ReduceMean", [numbers((2, 3), np.int32)], {}, {}, "the kernel supports float32, float64, not int32"),
    ("ReduceSum", [X, np.array([1])], {}, {}, "the axes are not constant"),
    ("ReduceSum", [X], {"noop_with_empty_axes": 1}, {}, "there are no axes to reduce"),
    ("ReduceLogSumExp", [X, np.array([0])], {}, AXIS, "the kernel requires a reduction of the last axis"),
    ("MaxPool", [numbers((1, 1, 4, 4))], {"kernel_shape": [2, 2]}, {"n_outputs": 2},
     "the kernel does not return the indices of the maxima"),
    ("Conv", [numbers((1, 4, 8, 8)), numbers((4, 2, 3, 3))], {"group": 2}, {},
     "the kernel supports depthwise convolutions only (group = channels)"),
    ("BatchNormalization", [numbers((1, 2, 3)), *[numbers((2,))] * 4], {"training_mode": 1}, {},
     "the kernel supports inference only, not training_mode=1"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "inputs", "attributes", "more", "reason"), REASONS)
def test_reasons(op: str, inputs: list[Array], attributes: Any, more: Any, reason: str) -> None:
    function = over_arrays(op, inputs, attributes, **more)
    answer = kernel_of(function.nodes[0], function).why_not(function.nodes[0], function)
    assert answer is not None and answer.partition(": ")[2] == reason


def test_what_makes_no_sense_is_refused_when_shapes_are_known() -> None:
    with pytest.raises(CompileRefused, match="axis 3 is out of range"):
        check("Softmax", numbers((2, 3)), axis=3)
    with pytest.raises(CompileFailed, match="the window does not fit into the padded tensor"):
        check("MaxPool", numbers((1, 1, 4, 4)), kernel_shape=[5, 5])


@pytest.mark.parametrize(
    ("op", "names", "attributes"),
    [
        ("BatchNormalization", "s b m v", {}),
        ("InstanceNormalization", "s b", {}),
        ("GroupNormalization", "s b", {"num_groups": 1}),
    ],
    ids=["batch", "instance", "group"],
)
def test_a_scale_that_is_shorter_than_the_channels_is_not_read_past_its_end(
    op: str, names: str, attributes: dict[str, int]
) -> None:
    inputs = {"x": "float32[N,C,H]", **dict.fromkeys(names.split(), "float32[K]")}
    function = graph(inputs, {"y": "float32[N,C,H]"}, node(op, f"x {names}", "y", **attributes), opset=21)
    x, count = numbers((2, 3, 4)), len(names.split())
    with xrt.XRTModule(function, engine="toy") as m:
        whole = m(x, *[np.ones(3, np.float32)] * count)
        with pytest.raises(RunFailed, match=op):
            m(x, *[np.ones(2, np.float32)] * count)
        np.testing.assert_array_equal(m(x, *[np.ones(3, np.float32)] * count), whole)
