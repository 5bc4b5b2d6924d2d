"""The rule of every operator, and the gradient of that gradient, against central differences."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.passes.gradient.checking import Array, Case, assert_gradient, make_function
from xrt import ops
from xrt.builder.record_op import apply
from xrt.passes.gradient import rules  # noqa: F401  # they register themselves
from xrt.passes.gradient.preparation import DEFINITIONS
from xrt.passes.gradient.table import RULES

DRAW = np.random.default_rng(7)
I64 = np.int64


def f(*shape: int) -> Array:
    """Return numbers away from 0 and from each other, so that no kink is near."""
    size = int(np.prod(shape))
    steps = (DRAW.permutation(size) + 0.5) / max(size, 1) * 2 + 0.3
    return ((steps + DRAW.uniform(0, 0.01)) * DRAW.choice([-1.0, 1.0], size)).reshape(shape)


def positive(*shape: int) -> Array:
    return np.abs(f(*shape))


def inside(*shape: int) -> Array:
    """Return numbers between -0.9 and 0.9."""
    return f(*shape) / 2.6


def i(*values: Any) -> Array:
    return np.asarray(values[0] if len(values) == 1 and isinstance(values[0], list) else values, I64)


def case(op: str, inputs: tuple[Array, ...], *constants: Any, second: bool = True, take: Any = None, **attributes: Any) -> Case:
    """Return the case of one operator on inputs and constants; with ``take``, this one of its outputs counts, or this slice."""

    def build(*x: Any) -> Any:
        results = getattr(ops, op)(*x, *constants, **attributes)
        return results if take is None else results[take]

    return Case(f"{op} {attributes or ''} {[x.shape for x in inputs]}", build, inputs, second)


def unary() -> Iterator[Case]:
    everywhere = "Abs Atan Cos Cosh Erf Exp Identity Neg Reciprocal Sin Sinh Tanh Asinh Sigmoid Softplus Softsign Mish Relu"
    yield from (case(op, (f(2, 3),)) for op in everywhere.split())
    yield from (case(op, (inside(2, 3),)) for op in ("Acos", "Asin", "Atanh", "Tan"))
    yield from (case(op, (positive(2, 3),)) for op in ("Log", "Sqrt"))
    yield case("Acosh", (positive(2, 3) + 1,))
    for op, attributes in (
        ("LeakyRelu", {"alpha": 0.3}),
        ("LeakyRelu", {}),
        ("ThresholdedRelu", {"alpha": 1.1}),
        ("Elu", {"alpha": 0.7}),
        ("Selu", {}),
        ("HardSigmoid", {"alpha": 0.4}),
        ("HardSwish", {}),
        ("Shrink", {"lambd": 0.6, "bias": 0.1}),
        ("Gelu", {}),
        ("Gelu", {"approximate": "tanh"}),
        ("Swish", {"alpha": 0.8}),
        ("Cast", {"to": "float64"}),
    ):
        yield case(op, (2 * f(2, 5),), **attributes)
    yield case("CastLike", (f(2, 3), f(1)))
    yield from (case(op, (f(3, 4, 2),), axis=axis) for axis in (0, 1, -1) for op in ("Softmax", "LogSoftmax"))


def binary() -> Iterator[Case]:
    for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean"):
        for shapes in (((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (3,)), ((), (2, 3)), ((2, 1, 3), (4, 1))):
            yield case(op, tuple(f(*shape) for shape in shapes))
    for op in ("Max", "Sum", "Mean"):
        yield case(op, (f(2, 3), f(3), f(2, 1)))
        yield case(op, (f(2, 3),))
    yield Case("Mul of itself", lambda x: x * x, (f(2, 3),))
    yield case("Pow", (positive(2, 3), f(3)))
    for exponent in (0.0, 1.0, 2.0, 3.0, -1.5):
        yield case("Pow", (positive(2, 3),), np.asarray(exponent))
    yield case("Pow", (f(2, 3), i(0, 2, 3)))
    yield case("Mod", (5 * f(2, 3), positive(3)), fmod=1)
    yield case("PRelu", (f(2, 3, 2), positive(3, 1)))
    condition = np.asarray([[True], [False]])
    yield Case("Where", lambda a, b: ops.Where(condition, a, b), (f(2, 3), f(3)))
    yield case("Clip", (f(4, 5), np.asarray(-0.8), np.asarray(0.7)))
    yield case("Clip", (f(4, 5), np.asarray(-0.8)))
    yield Case("Clip above", lambda x, high: ops.Clip(x, None, high), (f(4, 5), np.asarray(0.8)))
    yield case("Clip", (f(4, 5), np.asarray(0.8), np.asarray(0.2)))


def reductions() -> Iterator[Case]:
    for kind in ("Sum", "Mean", "SumSquare", "L1", "L2", "LogSum", "LogSumExp", "Max", "Min", "Prod"):
        for axes, keepdims in (([1], 1), ([0, 2], 0), (None, 0), (None, 1), ([-1], 0)):
            yield case(f"Reduce{kind}", (positive(2, 3, 2),), *([axes] if axes else []), keepdims=keepdims)
    yield case("ReduceSum", (f(2, 3),), i([]), noop_with_empty_axes=1)
    yield case("ReduceSum", (f(2, 3, 2), i(0, 2)), keepdims=0)
    for exclusive, reverse in product((0, 1), (0, 1)):
        yield case("CumSum", (f(2, 4),), np.asarray(1), exclusive=exclusive, reverse=reverse)
    yield from (case("TopK", (f(3, 5, 2),), i(2), take=0, axis=1, largest=largest) for largest in (0, 1))
    yield from (case("LpNormalization", (f(2, 4),), p=p, axis=1) for p in (1, 2))
    yield from (case("GlobalLpPool", (f(2, 2, 3, 2),), p=p) for p in (1, 2, 3))


def moves() -> Iterator[Case]:
    x = f(2, 3, 4)
    yield case("Reshape", (x,), i(4, -1))
    yield case("Flatten", (x,), axis=2)
    yield case("Squeeze", (f(2, 1, 3),), i(1))
    yield case("Squeeze", (f(2, 1, 3, 1),))
    yield case("Unsqueeze", (x,), i(0, -1))
    yield case("Transpose", (x,), perm=[2, 0, 1])
    yield case("Transpose", (x,))
    yield case("Expand", (f(2, 1, 4),), i(5, 2, 3, 4))
    yield case("Tile", (x,), i(2, 1, 3))
    yield case("Tile", (x, i(2, 1, 3)))
    yield case("Concat", (f(2, 1, 4), f(2, 3, 4), f(2, 2, 4)), axis=-2)
    yield case("Concat", (x,), axis=0)
    yield case("Split", (x,), i(1, 2, 1), axis=2)
    yield case("Split", (x,), i(1, 3), take=1, axis=-1)
    yield Case("Slice", lambda x: x[:, 1:, -3:-1], (x,))
    yield Case("Slice steps", lambda x: x[:, ::-1, ::2], (x,))
    yield Case("Slice of nothing", lambda x: x[:, 2:1], (x,))
    yield case("Slice", (x, i(1), i(3)), i(1))
    yield Case("Pad", lambda x, v: ops.Pad(x, i(0, 1, 2, 1, 0, 3), v), (x, np.asarray(0.3)))
    yield case("Pad", (x,), i(-1, 2), None, i(2))
    yield from (case("Pad", (f(2, 3, 4),), i(0, 1, 2, 0, 1, 3), mode=mode) for mode in ("edge", "reflect", "wrap"))
    yield from (case("DepthToSpace", (f(2, 8, 2, 3),), blocksize=2, mode=mode) for mode in ("DCR", "CRD"))
    yield case("SpaceToDepth", (f(2, 2, 4, 6),), blocksize=2)
    yield case("ReverseSequence", (f(4, 3, 2),), i(2, 1, 3), batch_axis=1, time_axis=0)
    yield case("Trilu", (f(2, 3, 4),), np.asarray(1), upper=0)
    yield case("Trilu", (f(2, 3, 4),))
    mask = np.asarray([True, False, True])
    yield case("Compress", (x,), mask, axis=1)
    yield case("Compress", (x,), mask)


def indexing() -> Iterator[Case]:
    x, rows = f(3, 4, 2), f(3, 4)
    yield case("Gather", (x,), i([[0, 2], [2, -1]]), axis=1)
    yield case("Gather", (x,), i([1, 1, 0]).astype("int32"))
    yield case("Gather", (x,), np.asarray(1), axis=-1)
    yield case("Gather", (f(3, 4),), i([2, -3, 1]), axis=0)
    yield case("Gather", (f(3, 4),), i([-2]), axis=1)
    yield case("Gather", (f(3, 1, 2),), np.asarray(0), axis=1)
    yield case("GatherElements", (rows,), i([[0, 2], [2, 2]]), axis=0)
    yield case("GatherND", (x,), i([[0, 1], [0, 1], [2, 3]]))
    yield case("GatherND", (x,), i([[1], [1], [0]]), batch_dims=1)
    at, where = i([[0, 2], [1, 0]]), i([[0, 1], [2, 3]])
    for mode in ("none", "add"):
        options = {"axis": 1, "reduction": mode}
        yield Case(f"ScatterElements {mode}", lambda x, u, o=options: ops.ScatterElements(x, at, u, **o), (rows, f(2, 2)))
        yield Case(f"ScatterND {mode}", lambda x, u, m=mode: ops.ScatterND(x, where, u, reduction=m), (x, f(2, 2)))
    yield case("TensorScatter", (f(2, 2, 5, 3), f(2, 2, 2, 3)), i(1, 2))
    yield Case("OneHot", lambda v: ops.OneHot(i(0, 2, 5), np.asarray(3), v), (f(2),))
    yield Case("Range", lambda a, d: ops.Range(a, np.asarray(4.0), d), (np.asarray(0.5), np.asarray(1.1)))


def products() -> Iterator[Case]:
    for shapes in (
        *(((2, 3), (3, 4)), ((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((5, 2, 3), (3, 4)), ((5, 2, 3), (5, 3, 4))),
        *(((2, 1, 2, 3), (5, 3, 4)), ((3,), (5, 3, 4)), ((5, 2, 3), (3,))),
    ):
        yield case("MatMul", tuple(f(*shape) for shape in shapes))
    for ta, tb, c in product((0, 1), (0, 1), ((2, 4), (4,), ())):
        inputs = f(*((3, 2) if ta else (2, 3))), f(*((4, 3) if tb else (3, 4))), f(*c)
        yield case("Gemm", inputs, transA=ta, transB=tb, alpha=0.5, beta=1.5)
    yield case("Gemm", (f(2, 3), f(3, 4)))
    for equation, shapes in (
        ("ij,jk->ik", ((2, 3), (3, 4))),
        ("bij,bjk", ((2, 3, 2), (2, 2, 3))),
        ("...ij,...kj->...ik", ((2, 1, 3, 2), (2, 5, 4, 2))),
        ("ij->", ((2, 3),)),
        ("ij,k->jk", ((2, 3), (4,))),
        ("abc,cd,de->abe", ((2, 3, 2), (2, 3), (3, 2))),
        ("i,i->i", ((3,), (3,))),
    ):
        yield case("Einsum", tuple(f(*shape) for shape in shapes), equation=equation)


def convolutions() -> Iterator[Case]:
    for k in range(16):
        group, axes = int(DRAW.choice([1, 1, 2])), int(DRAW.integers(1, 4))
        inputs, outputs = group * int(DRAW.integers(1, 3)), group * int(DRAW.integers(1, 3))
        kernel = DRAW.integers(1, 4, axes).tolist()
        options: dict[str, Any] = {"strides": DRAW.integers(1, 4, axes).tolist(), "dilations": DRAW.integers(1, 3, axes).tolist()}
        mode = ["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"][k % 5]
        if mode == "NOTSET":
            options["pads"] = DRAW.integers(0, 3, 2 * axes).tolist()
        else:
            options["auto_pad"] = mode
        sizes = DRAW.integers(6, 9, axes).tolist() if axes < 3 else DRAW.integers(5, 7, axes).tolist()
        arrays = f(2, inputs, *sizes), f(outputs, inputs // group, *kernel), f(outputs)
        yield case("Conv", arrays, second=k < 4, group=group, **options)
        if mode == "NOTSET":
            strides = options["strides"]
            options = {**options, "output_padding": [int(DRAW.integers(0, s)) for s in strides]}
            options["pads"] = [0] * (2 * axes) if k % 2 else options["pads"]
        else:  # ONNX gives two shapes where windows do not touch
            reaches = [(size - 1) * d + 1 for size, d in zip(kernel, options["dilations"], strict=True)]
            options = {**options, "strides": [min(pair) for pair in zip(options["strides"], reaches, strict=True)]}
        arrays = f(2, inputs, *[4] * axes), f(inputs, outputs // group, *kernel), f(outputs)
        yield case("ConvTranspose", arrays, second=k < 4, group=group, **options)
    pointwise = f(2, 3, 1, 1)
    yield case("Conv", (f(2, 3, 4, 4), pointwise))
    yield case("Conv", (f(2, 3, 5, 5), pointwise), strides=[2, 3])
    for pads in ([2, 0, 0, 2], [0, 5, 1, 0]):  # some windows see padding alone
        yield case("Conv", (f(1, 2, 1, 1), f(2, 2, 1, 1)), strides=[3, 3], pads=pads)
    yield case("Conv", (f(1, 2, 17, 18), f(2, 2, 3, 3)), pads=[1, 0, 1, 2])
    yield case("Conv", (f(1, 2, 6, 6), f(2, 2, 4, 5)), pads=[2] * 4)
    yield case("Conv", (f(2, 3, 7, 7), f(3, 1, 3, 2)), group=3, strides=[2, 1], dilations=[1, 2])
    yield case("ConvTranspose", (f(1, 2, 4, 3), f(2, 1, 3, 3)), strides=[2, 3], output_shape=[8, 9])


def pools() -> Iterator[Case]:
    x = f(2, 3, 7, 6)
    for options in (
        {"kernel_shape": [2, 3]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [2, 2], "strides": [2, 3], "ceil_mode": 1},
        {"kernel_shape": [3, 2], "dilations": [2, 1], "pads": [1, 0, 0, 1]},
        {"kernel_shape": [3, 2], "auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"kernel_shape": [2, 3], "auto_pad": "SAME_LOWER"},
    ):
        yield case("MaxPool", (x,), take=0, outputs=1, **options)
        yield from (case("AveragePool", (x,), count_include_pad=counted, **options) for counted in (0, 1))
        if "ceil_mode" not in options:
            yield from (case("LpPool", (positive(1, 2, 6, 5),), second=p != 1, p=p, **options) for p in (1, 2, 3))
    yield case("GlobalAveragePool", (x,))
    yield case("GlobalMaxPool", (x,))
    yield case("MaxUnpool", (f(1, 1, 2, 2),), i([[[[5, 7], [13, 15]]]]), kernel_shape=[2, 2], strides=[2, 2])


def normalizations() -> Iterator[Case]:
    x, c = f(3, 4, 2, 3), 4
    yield case("BatchNormalization", (x, f(c), f(c), f(c), positive(c)))
    for data in (x, f(5, c)):
        operands = data, f(c), f(c), f(c), positive(c)
        yield case("BatchNormalization", operands, training_mode=1, momentum=0.7, outputs=3)
    yield case("InstanceNormalization", (x, f(c), f(c)))
    yield case("GroupNormalization", (x, f(c), f(c)), num_groups=2, stash_type=11)
    for axis, shape in ((-1, (3,)), (2, (2, 3)), (1, (4, 2, 3)), (-2, (1, 3))):
        yield case("LayerNormalization", (x, f(*shape), f(*shape)), take=0, axis=axis, stash_type=11, outputs=1)
    yield case("RMSNormalization", (f(3, 4), f(4)), axis=-1, stash_type=11)
    yield case("LRN", (f(2, 5, 2, 3),), size=3, alpha=0.3, beta=0.6, bias=1.2)
    yield case("LRN", (f(2, 5, 3),), size=4, alpha=0.3)
    yield case("MeanVarianceNormalization", (x,), axes=[0, 2, 3])
    yield case("Dropout", (x,), take=0, outputs=1)


def losses() -> Iterator[Case]:
    scores, labels = f(5, 4), i(0, 3, 1, 2, 3)
    for reduction, ignored, weights in product(("mean", "sum", "none"), ({}, {"ignore_index": 3}), ((), (positive(4),))):
        options = {"reduction": reduction, **ignored}
        for op, more in (("SoftmaxCrossEntropyLoss", {"outputs": 1}), ("NegativeLogLikelihoodLoss", {})):

            def build(x: Any, *w: Any, op: str = op, options: Any = options | more) -> Any:
                results = getattr(ops, op)(x, labels, *w, **options)
                return results[0] if "outputs" in options else results

            yield Case(f"{op} {options} {len(weights)}", build, (scores, *weights), reduction == "mean")


def others() -> Iterator[Case]:
    operands = f(1, 2, 3, 4), f(1, 2, 5, 4), f(1, 2, 5, 4)
    yield case("Attention", operands, take=0, outputs=1)
    yield case("Attention", operands, take=0, is_causal=1, outputs=1)
    for options, scales in (
        ({"mode": "linear"}, [1, 1, 2, 0.6]),
        ({"mode": "nearest"}, [1, 1, 1.5, 2]),
        ({"mode": "cubic", "cubic_coeff_a": -0.5}, [1, 1, 2, 1.5]),
        ({"mode": "linear", "coordinate_transformation_mode": "align_corners"}, [1, 1, 2, 2]),
        ({"mode": "linear", "antialias": 1}, [1, 1, 0.5, 0.5]),
    ):
        yield case("Resize", (f(1, 2, 4, 6),), None, np.float32(scales), **options)
    yield case("Resize", (f(1, 2, 4, 6),), None, None, i(5, 7), axes=[2, 3], mode="linear")
    yield Case("SwiGLU", lambda a, b: apply("SwiGLU", (a, b), {}), (f(2, 3), f(2, 3)), opset=28)
    yield case("CenterCropPad", (f(4, 3),), i(2, 6))


def recurrent() -> Iterator[Case]:
    t, n, size, h = 3, 2, 3, 2
    kinds = (("RNN", 1, {}), ("GRU", 3, {}), ("GRU", 3, {"linear_before_reset": 1}), ("LSTM", 4, {}))
    for (op, gates, options), direction in product(kinds, ("forward", "reverse", "bidirectional")):
        ways = 2 if direction == "bidirectional" else 1
        weights = f(ways, gates * h, size), f(ways, gates * h, h), f(ways, 2 * gates * h)
        states = (f(ways, n, h),) * (2 if op == "LSTM" else 1)
        attributes = {"hidden_size": h, "direction": direction, "outputs": 1 + len(states), **options}

        def layer(x: Any, w: Any, r: Any, b: Any, *s: Any, op: str = op, attributes: Any = attributes) -> Any:
            return getattr(ops, op)(x, w, r, b, None, *s, **attributes)

        yield Case(f"{op} {attributes}", layer, (f(t, n, size), *weights, *states), direction == "forward")
    first = f(1, 4 * h, size), f(1, 4 * h, h), f(1, 8 * h), f(1, n, h), f(1, n, h), f(1, 3 * h)
    lengths = np.asarray([2, 3], np.int32)

    def peephole(x: Any, w: Any, r: Any, b: Any, h0: Any, c0: Any, p: Any) -> Any:
        return ops.LSTM(x, w, r, b, lengths, h0, c0, p, hidden_size=h, outputs=3)

    yield Case("LSTM with peepholes and lengths", peephole, (f(t, n, size), *first))

    def ends(x: Any, w: Any, r: Any, h0: Any, c0: Any) -> Any:
        result = ops.LSTM(x, w, r, None, None, h0, c0, hidden_size=h, direction="bidirectional", layout=1, outputs=3)
        return result[1:]

    both = (f(n, t, size), f(2, 4 * h, size), f(2, 4 * h, h), f(n, 2, h), f(n, 2, h))
    yield Case("LSTM of batches, its last states", ends, both, False)
    others = {"activations": ["Sigmoid", "Relu", "Softsign"], "clip": 0.9, "input_forget": 1}
    yield case("LSTM", (f(t, n, size), *first[:2]), second=False, take=0, hidden_size=h, outputs=1, **others)
    # A cell above what its gates are clipped to.
    positives = tuple(abs(values) for values in (f(6, n, size), *first[:3]))
    yield case("LSTM", positives, second=False, take=0, hidden_size=h, clip=0.5, outputs=1)


def narrow() -> Iterator[Case]:
    """Operators that ONNX or toy computes in float32 only."""

    def f32(*shapes: tuple[int, ...]) -> tuple[Array, ...]:
        return tuple(f(*shape).astype("float32") for shape in shapes)

    x = 2 * f32((2, 5))[0]
    yield case("Celu", (x,), alpha=0.6)
    options, arrays = {"activation": "silu"}, f32((2, 3, 5), (3, 1, 2), (3,))
    yield Case("CausalConvWithState", lambda *a: apply("CausalConvWithState", a, options, outputs=2), arrays, opset=27)
    yield case("RotaryEmbedding", f32((1, 2, 3, 4), (1, 3, 2), (1, 3, 2)))
    yield case("AffineGrid", f32((2, 2, 3)), i(2, 1, 3, 4))
    yield case("LayerNormalization", (x, *f32((5,))), axis=-1, outputs=3)


FAMILIES = (unary, binary, reductions, moves, indexing, products, convolutions, pools, normalizations, losses, others, recurrent)
CASES = [each for family in FAMILIES for each in family()]
ELSEWHERE = {"If", "Loop", "Scan"}
"""Operators that are tested in test_gradient.py."""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_gradient_is_that_of_central_differences(case: Case) -> None:
    function = make_function(case.build, case.inputs, case.opset)
    assert_gradient(
        function, case.inputs, second=case.second, same=1e-6 if case.name.startswith(("Attention", "MeanVariance")) else 1e-12
    )


@pytest.mark.parametrize("case", list(narrow()), ids=str)
def test_a_gradient_in_float32(case: Case) -> None:
    function = make_function(case.build, case.inputs, case.opset)
    assert_gradient(function, case.inputs, dtype="float32", step=1e-2, tolerance=3e-3, same=1e-5)


def test_every_rule_has_a_case() -> None:
    results = {node.op for case in [*CASES, *narrow()] for node in make_function(case.build, case.inputs, case.opset).nodes}
    assert {*RULES, *DEFINITIONS} - ELSEWHERE - results == set()
