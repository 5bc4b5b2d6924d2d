"""The rule of every operator, and the gradient of that gradient, against central differences."""

from __future__ import annotations

from collections.abc import Iterator
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


def unary() -> Iterator[Case]:
    everywhere = "Abs Atan Cos Cosh Erf Exp Identity Neg Reciprocal Sin Sinh Tanh Asinh Sigmoid Softplus Softsign Mish Relu"
    for op in everywhere.split():
        yield Case(op, getattr(ops, op), (f(2, 3),))
    for op in ("Acos", "Asin", "Atanh", "Tan"):
        yield Case(op, getattr(ops, op), (inside(2, 3),))
    for op in ("Log", "Sqrt"):
        yield Case(op, getattr(ops, op), (positive(2, 3),))
    yield Case("Acosh", ops.Acosh, (positive(2, 3) + 1,))
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
        yield Case(
            f"{op} {attributes}", lambda x, op=op, attributes=attributes: getattr(ops, op)(x, **attributes), (2 * f(2, 5),)
        )
    yield Case("CastLike", lambda x, y: ops.CastLike(x, y), (f(2, 3), f(1)))
    for axis in (0, 1, -1):
        yield Case(f"Softmax {axis}", lambda x, axis=axis: ops.Softmax(x, axis=axis), (f(3, 4, 2),))
        yield Case(f"LogSoftmax {axis}", lambda x, axis=axis: ops.LogSoftmax(x, axis=axis), (f(3, 4, 2),))


def binary() -> Iterator[Case]:
    for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean"):
        for shapes in (((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (3,)), ((), (2, 3)), ((2, 1, 3), (4, 1))):
            yield Case(f"{op} {shapes}", getattr(ops, op), tuple(f(*shape) for shape in shapes))
    for op in ("Max", "Sum", "Mean"):
        yield Case(f"{op} of three", getattr(ops, op), (f(2, 3), f(3), f(2, 1)))
        yield Case(f"{op} of one", getattr(ops, op), (f(2, 3),))
    yield Case("Mul of itself", lambda x: x * x, (f(2, 3),))
    yield Case("Pow", ops.Pow, (positive(2, 3), f(3)))
    for exponent in (0.0, 1.0, 2.0, 3.0, -1.5):
        yield Case(f"Pow {exponent}", lambda x, e=exponent: ops.Pow(x, np.asarray(e)), (positive(2, 3),))
    yield Case("Pow of integers", lambda x, p: ops.Pow(x, p), (f(2, 3), i(0, 2, 3)))
    yield Case("Mod", lambda a, b: ops.Mod(a, b, fmod=1), (5 * f(2, 3), positive(3)))
    yield Case("PRelu", ops.PRelu, (f(2, 3, 2), positive(3, 1)))
    condition = np.asarray([[True], [False]])
    yield Case("Where", lambda a, b: ops.Where(condition, a, b), (f(2, 3), f(3)))
    yield Case("Clip", ops.Clip, (f(4, 5), np.asarray(-0.8), np.asarray(0.7)))
    yield Case("Clip below", lambda x, low: ops.Clip(x, low), (f(4, 5), np.asarray(-0.8)))
    yield Case("Clip above", lambda x, high: ops.Clip(x, None, high), (f(4, 5), np.asarray(0.8)))
    yield Case("Clip crossed", ops.Clip, (f(4, 5), np.asarray(0.8), np.asarray(0.2)))


def reductions() -> Iterator[Case]:
    kinds = ["Sum", "Mean", "SumSquare", "L1", "L2", "LogSum", "LogSumExp", "Max", "Min", "Prod"]
    for kind in kinds:
        op = f"Reduce{kind}"
        for axes, keepdims in (([1], 1), ([0, 2], 0), (None, 0), (None, 1), ([-1], 0)):

            def build(x: Any, op: str = op, axes: Any = axes, keepdims: int = keepdims) -> Any:
                return getattr(ops, op)(x, axes, keepdims=keepdims) if axes else getattr(ops, op)(x, keepdims=keepdims)

            yield Case(f"{op} {axes} {keepdims}", build, (positive(2, 3, 2),))
    yield Case("ReduceSum of no axes", lambda x: ops.ReduceSum(x, i([]), noop_with_empty_axes=1), (f(2, 3),))
    yield Case("ReduceSum axes at run time", lambda x, axes: ops.ReduceSum(x, axes, keepdims=0), (f(2, 3, 2), i(0, 2)))
    for exclusive in (0, 1):
        for reverse in (0, 1):
            options = {"exclusive": exclusive, "reverse": reverse}
            yield Case(f"CumSum {options}", lambda x, o=options: ops.CumSum(x, np.asarray(1), **o), (f(2, 4),))
    for largest in (0, 1):
        yield Case(f"TopK {largest}", lambda x, o=largest: ops.TopK(x, i(2), axis=1, largest=o)[0], (f(3, 5, 2),))
    for p in (1, 2):
        yield Case(f"LpNormalization {p}", lambda x, p=p: ops.LpNormalization(x, p=p, axis=1), (f(2, 4),))
    for p in (1, 2, 3):
        yield Case(f"GlobalLpPool {p}", lambda x, p=p: ops.GlobalLpPool(x, p=p), (f(2, 2, 3, 2),))


def moves() -> Iterator[Case]:
    x = f(2, 3, 4)
    yield Case("Reshape", lambda x: ops.Reshape(x, i(4, -1)), (x,))
    yield Case("Flatten", lambda x: ops.Flatten(x, axis=2), (x,))
    yield Case("Squeeze", lambda x: ops.Squeeze(x, i(1)), (f(2, 1, 3),))
    yield Case("Squeeze all", lambda x: ops.Squeeze(x), (f(2, 1, 3, 1),))
    yield Case("Unsqueeze", lambda x: ops.Unsqueeze(x, i(0, -1)), (x,))
    yield Case("Transpose", lambda x: ops.Transpose(x, perm=[2, 0, 1]), (x,))
    yield Case("Transpose reversed", lambda x: ops.Transpose(x), (x,))
    yield Case("Expand", lambda x: ops.Expand(x, i(5, 2, 3, 4)), (f(2, 1, 4),))
    yield Case("Tile", lambda x: ops.Tile(x, i(2, 1, 3)), (x,))
    yield Case("Tile at run time", ops.Tile, (x, i(2, 1, 3)))
    yield Case("Concat", lambda *xs: ops.Concat(*xs, axis=-2), (f(2, 1, 4), f(2, 3, 4), f(2, 2, 4)))
    yield Case("Concat of one", lambda x: ops.Concat(x, axis=0), (x,))
    yield Case("Split", lambda x: ops.Split(x, i(1, 2, 1), axis=2), (x,))
    yield Case("Split in a part", lambda x: ops.Split(x, i(1, 3), axis=-1)[1], (x,))
    yield Case("Slice", lambda x: x[:, 1:, -3:-1], (x,))
    yield Case("Slice steps", lambda x: x[:, ::-1, ::2], (x,))
    yield Case("Slice of nothing", lambda x: x[:, 2:1], (x,))
    yield Case("Slice at run time", lambda x, a, b: ops.Slice(x, a, b, i(1)), (x, i(1), i(3)))
    yield Case("Pad", lambda x, v: ops.Pad(x, i(0, 1, 2, 1, 0, 3), v), (x, np.asarray(0.3)))
    yield Case("Pad crops", lambda x: ops.Pad(x, i(-1, 2), None, i(2)), (x,))
    for mode in ("edge", "reflect", "wrap"):
        yield Case(f"Pad {mode}", lambda x, mode=mode: ops.Pad(x, i(0, 1, 2, 0, 1, 3), mode=mode), (f(2, 3, 4),))
    for mode in ("DCR", "CRD"):
        yield Case(f"DepthToSpace {mode}", lambda x, mode=mode: ops.DepthToSpace(x, blocksize=2, mode=mode), (f(2, 8, 2, 3),))
    yield Case("SpaceToDepth", lambda x: ops.SpaceToDepth(x, blocksize=2), (f(2, 2, 4, 6),))
    yield Case("ReverseSequence", lambda x: ops.ReverseSequence(x, i(2, 1, 3), batch_axis=1, time_axis=0), (f(4, 3, 2),))
    yield Case("Trilu", lambda x: ops.Trilu(x, np.asarray(1), upper=0), (f(2, 3, 4),))
    yield Case("Trilu upper", lambda x: ops.Trilu(x), (f(2, 3, 4),))
    mask = np.asarray([True, False, True])
    yield Case("Compress", lambda x: ops.Compress(x, mask, axis=1), (x,))
    yield Case("Compress all", lambda x: ops.Compress(x, mask), (x,))


def indexing() -> Iterator[Case]:
    x = f(3, 4, 2)
    yield Case("Gather", lambda x: ops.Gather(x, i([[0, 2], [2, -1]]), axis=1), (x,))
    yield Case("Gather rows", lambda x: ops.Gather(x, i([1, 1, 0]).astype("int32")), (x,))
    yield Case("Gather one", lambda x: ops.Gather(x, np.asarray(1), axis=-1), (x,))
    yield Case("Gather in another order", lambda x: ops.Gather(x, i([2, -3, 1]), axis=0), (f(3, 4),))
    yield Case("Gather a row of one", lambda x: ops.Gather(x, i([-2]), axis=1), (f(3, 4),))
    yield Case("Gather all of one", lambda x: ops.Gather(x, np.asarray(0), axis=1), (f(3, 1, 2),))
    yield Case("GatherElements", lambda x: ops.GatherElements(x, i([[0, 2], [2, 2]]), axis=0), (f(3, 4),))
    yield Case("GatherND", lambda x: ops.GatherND(x, i([[0, 1], [0, 1], [2, 3]])), (x,))
    yield Case("GatherND batch", lambda x: ops.GatherND(x, i([[1], [1], [0]]), batch_dims=1), (x,))
    for mode in ("none", "add"):
        at = i([[0, 2], [1, 0]])
        yield Case(
            f"ScatterElements {mode}",
            lambda x, u, m=mode, at=at: ops.ScatterElements(x, at, u, axis=1, reduction=m),
            (f(3, 4), f(2, 2)),
        )
        where = i([[0, 1], [2, 3]])
        yield Case(f"ScatterND {mode}", lambda x, u, m=mode, at=where: ops.ScatterND(x, at, u, reduction=m), (x, f(2, 2)))
    yield Case("TensorScatter", lambda past, update: ops.TensorScatter(past, update, i(1, 2)), (f(2, 2, 5, 3), f(2, 2, 2, 3)))
    yield Case("OneHot", lambda v: ops.OneHot(i(0, 2, 5), np.asarray(3), v), (f(2),))
    yield Case("Range", lambda a, d: ops.Range(a, np.asarray(4.0), d), (np.asarray(0.5), np.asarray(1.1)))


def products() -> Iterator[Case]:
    for shapes in (
        ((2, 3), (3, 4)),
        ((3,), (3,)),
        ((3,), (3, 4)),
        ((2, 3), (3,)),
        ((5, 2, 3), (3, 4)),
        ((5, 2, 3), (5, 3, 4)),
        ((2, 1, 2, 3), (5, 3, 4)),
        ((3,), (5, 3, 4)),
        ((5, 2, 3), (3,)),
    ):
        yield Case(f"MatMul {shapes}", ops.MatMul, tuple(f(*shape) for shape in shapes))
    for ta in (0, 1):
        for tb in (0, 1):
            for c in ((2, 4), (4,), ()):
                shapes = ((3, 2) if ta else (2, 3), (4, 3) if tb else (3, 4), c)
                options = {"transA": ta, "transB": tb, "alpha": 0.5, "beta": 1.5}
                yield Case(f"Gemm {options} {c}", lambda *x, o=options: ops.Gemm(*x, **o), tuple(f(*shape) for shape in shapes))
    yield Case("Gemm without C", lambda a, b: ops.Gemm(a, b), (f(2, 3), f(3, 4)))
    for equation, shapes in (
        ("ij,jk->ik", ((2, 3), (3, 4))),
        ("bij,bjk", ((2, 3, 2), (2, 2, 3))),
        ("...ij,...kj->...ik", ((2, 1, 3, 2), (2, 5, 4, 2))),
        ("ij->", ((2, 3),)),
        ("ij,k->jk", ((2, 3), (4,))),
        ("abc,cd,de->abe", ((2, 3, 2), (2, 3), (3, 2))),
        ("i,i->i", ((3,), (3,))),
    ):
        yield Case(f"Einsum {equation}", lambda *x, e=equation: ops.Einsum(*x, equation=e), tuple(f(*shape) for shape in shapes))


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
        arrays = (f(2, inputs, *sizes), f(outputs, inputs // group, *kernel), f(outputs))
        yield Case(f"Conv {k} {options} {group}", lambda *x, o=options, g=group: ops.Conv(*x, group=g, **o), arrays, k < 4)
        if mode == "NOTSET":
            strides = options["strides"]
            options = {**options, "output_padding": [int(DRAW.integers(0, s)) for s in strides]}
            options["pads"] = [0] * (2 * axes) if k % 2 else options["pads"]
        else:  # ONNX gives two shapes where windows do not touch
            reaches = [(size - 1) * d + 1 for size, d in zip(kernel, options["dilations"], strict=True)]
            options = {**options, "strides": [min(pair) for pair in zip(options["strides"], reaches, strict=True)]}
        weights = f(inputs, outputs // group, *kernel)
        small = f(2, inputs, *[4] * axes)
        yield Case(
            f"ConvTranspose {k} {options} {group}",
            lambda *x, o=options, g=group: ops.ConvTranspose(*x, group=g, **o),
            (small, weights, f(outputs)),
            k < 4,
        )
    yield Case("Conv pointwise", lambda *x: ops.Conv(*x), (f(2, 3, 4, 4), f(2, 3, 1, 1)))
    yield Case("Conv pointwise strides", lambda *x: ops.Conv(*x, strides=[2, 3]), (f(2, 3, 5, 5), f(2, 3, 1, 1)))
    for k, pads in enumerate(([2, 0, 0, 2], [0, 5, 1, 0])):
        yield Case(
            f"Conv of padding alone {k}", lambda *x, p=pads: ops.Conv(*x, strides=[3, 3], pads=p), (f(1, 2, 1, 1), f(2, 2, 1, 1))
        )
    yield Case("Conv of many places", lambda *x: ops.Conv(*x, pads=[1, 0, 1, 2]), (f(1, 2, 17, 18), f(2, 2, 3, 3)))
    yield Case("Conv of a large kernel", lambda *x: ops.Conv(*x, pads=[2] * 4), (f(1, 2, 6, 6), f(2, 2, 4, 5)))
    yield Case(
        "Conv depthwise", lambda *x: ops.Conv(*x, group=3, strides=[2, 1], dilations=[1, 2]), (f(2, 3, 7, 7), f(3, 1, 3, 2))
    )
    yield Case(
        "ConvTranspose output_shape",
        lambda *x: ops.ConvTranspose(*x, strides=[2, 3], output_shape=[8, 9]),
        (f(1, 2, 4, 3), f(2, 1, 3, 3)),
    )


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
        yield Case(f"MaxPool {options}", lambda x, o=options: ops.MaxPool(x, **o, outputs=1)[0], (x,))
        for counted in (0, 1):
            yield Case(
                f"AveragePool {counted} {options}",
                lambda x, o=options, c=counted: ops.AveragePool(x, count_include_pad=c, **o),
                (x,),
            )
        if "ceil_mode" not in options:
            for p in (1, 2, 3):
                yield Case(
                    f"LpPool {p} {options}", lambda x, o=options, p=p: ops.LpPool(x, p=p, **o), (positive(1, 2, 6, 5),), p != 1
                )
    yield Case("GlobalAveragePool", ops.GlobalAveragePool, (x,))
    yield Case("GlobalMaxPool", ops.GlobalMaxPool, (x,))
    places = i([[[[5, 7], [13, 15]]]])
    yield Case("MaxUnpool", lambda x: ops.MaxUnpool(x, places, kernel_shape=[2, 2], strides=[2, 2]), (f(1, 1, 2, 2),))


def normalizations() -> Iterator[Case]:
    x, c = f(3, 4, 2, 3), 4
    yield Case("BatchNormalization", lambda *a: ops.BatchNormalization(*a), (x, f(c), f(c), f(c), positive(c)))

    def train(*a: Any) -> Any:
        return ops.BatchNormalization(*a, training_mode=1, momentum=0.7, outputs=3)

    yield Case("BatchNormalization in training", train, (x, f(c), f(c), f(c), positive(c)))
    yield Case("BatchNormalization of rows", train, (f(5, c), f(c), f(c), f(c), positive(c)))
    yield Case("InstanceNormalization", ops.InstanceNormalization, (x, f(c), f(c)))
    yield Case("GroupNormalization", lambda *a: ops.GroupNormalization(*a, num_groups=2, stash_type=11), (x, f(c), f(c)))
    for axis, shape in ((-1, (3,)), (2, (2, 3)), (1, (4, 2, 3)), (-2, (1, 3))):

        def layer(*a: Any, axis: int = axis) -> Any:
            return ops.LayerNormalization(*a, axis=axis, stash_type=11, outputs=1)[0]

        yield Case(f"LayerNormalization {axis}", layer, (x, f(*shape), f(*shape)))

    yield Case("RMSNormalization", lambda *a: ops.RMSNormalization(*a, axis=-1, stash_type=11), (f(3, 4), f(4)))
    yield Case("LRN", lambda x: ops.LRN(x, size=3, alpha=0.3, beta=0.6, bias=1.2), (f(2, 5, 2, 3),))
    yield Case("LRN of an even size", lambda x: ops.LRN(x, size=4, alpha=0.3), (f(2, 5, 3),))
    yield Case("MeanVarianceNormalization", lambda x: ops.MeanVarianceNormalization(x, axes=[0, 2, 3]), (x,))
    yield Case("Dropout", lambda x: ops.Dropout(x, outputs=1)[0], (x,))


def losses() -> Iterator[Case]:
    scores, labels = f(5, 4), i(0, 3, 1, 2, 3)
    for reduction in ("mean", "sum", "none"):
        for ignored in (None, 3):
            options = {"reduction": reduction} | ({} if ignored is None else {"ignore_index": ignored})
            for weights in ((), (positive(4),)):
                name = f"{options} {len(weights)}"
                yield Case(
                    f"SoftmaxCrossEntropyLoss {name}",
                    lambda x, *w, o=options: ops.SoftmaxCrossEntropyLoss(x, labels, *w, **o, outputs=1)[0],
                    (scores, *weights),
                    reduction == "mean",
                )
                yield Case(
                    f"NegativeLogLikelihoodLoss {name}",
                    lambda x, *w, o=options: ops.NegativeLogLikelihoodLoss(x, labels, *w, **o),
                    (scores, *weights),
                    reduction == "mean",
                )


def others() -> Iterator[Case]:
    q, k, v = f(1, 2, 3, 4), f(1, 2, 5, 4), f(1, 2, 5, 4)
    yield Case("Attention", lambda *a: ops.Attention(*a, outputs=1)[0], (q, k, v))
    yield Case("Attention causal", lambda *a: ops.Attention(*a, is_causal=1, outputs=1)[0], (q, k, v))
    for options, scales in (
        ({"mode": "linear"}, [1, 1, 2, 0.6]),
        ({"mode": "nearest"}, [1, 1, 1.5, 2]),
        ({"mode": "cubic", "cubic_coeff_a": -0.5}, [1, 1, 2, 1.5]),
        ({"mode": "linear", "coordinate_transformation_mode": "align_corners"}, [1, 1, 2, 2]),
        ({"mode": "linear", "antialias": 1}, [1, 1, 0.5, 0.5]),
    ):

        def resize(x: Any, o: Any = options, s: Any = scales) -> Any:
            return ops.Resize(x, None, np.asarray(s, np.float32), **o)

        yield Case(f"Resize {options}", resize, (f(1, 2, 4, 6),))
    yield Case("Resize to sizes", lambda x: ops.Resize(x, None, None, i(5, 7), axes=[2, 3], mode="linear"), (f(1, 2, 4, 6),))
    yield Case("SwiGLU", lambda a, b: apply("SwiGLU", (a, b), {}), (f(2, 3), f(2, 3)), opset=28)
    yield Case("CenterCropPad", lambda x: ops.CenterCropPad(x, i(2, 6)), (f(4, 3),))


def recurrent() -> Iterator[Case]:
    t, n, size, h = 3, 2, 3, 2
    reset_last = {"linear_before_reset": 1}
    kinds = (("RNN", 1, {}), ("GRU", 3, {}), ("GRU", 3, reset_last), ("LSTM", 4, {}))
    for op, gates, options in kinds:
        for direction in ("forward", "reverse", "bidirectional"):
            ways = 2 if direction == "bidirectional" else 1
            weights = (f(ways, gates * h, size), f(ways, gates * h, h), f(ways, 2 * gates * h))
            states = (f(ways, n, h),) * (2 if op == "LSTM" else 1)
            count = 1 + len(states)

            def layer(
                x: Any, w: Any, r: Any, b: Any, *s: Any, op: str = op, d: str = direction, k: int = count, o: Any = options
            ) -> Any:
                return getattr(ops, op)(x, w, r, b, None, *s, hidden_size=h, direction=d, outputs=k, **o)

            name = f"{op} {direction}{', reset last' if options else ''}"
            yield Case(name, layer, (f(t, n, size), *weights, *states), direction == "forward")
    first = (f(1, 4 * h, size), f(1, 4 * h, h), f(1, 8 * h), f(1, n, h), f(1, n, h), f(1, 3 * h))
    lengths = np.asarray([2, 3], np.int32)

    def peephole(x: Any, w: Any, r: Any, b: Any, h0: Any, c0: Any, p: Any) -> Any:
        return ops.LSTM(x, w, r, b, lengths, h0, c0, p, hidden_size=h, outputs=3)

    yield Case("LSTM with peepholes and lengths", peephole, (f(t, n, size), *first))

    def ends(x: Any, w: Any, r: Any, h0: Any, c0: Any) -> Any:
        result = ops.LSTM(x, w, r, None, None, h0, c0, hidden_size=h, direction="bidirectional", layout=1, outputs=3)
        return result[1:]

    both = (f(n, t, size), f(2, 4 * h, size), f(2, 4 * h, h), f(n, 2, h), f(n, 2, h))
    yield Case("LSTM of batches, its last states", ends, both, False)

    functions = ["Sigmoid", "Relu", "Softsign"]

    def chosen(x: Any, w: Any, r: Any) -> Any:
        return ops.LSTM(x, w, r, hidden_size=h, activations=functions, clip=0.9, input_forget=1, outputs=1)[0]

    yield Case("LSTM with other functions", chosen, (f(t, n, size), first[0], first[1]), False)

    def clipped(x: Any, w: Any, r: Any, b: Any) -> Any:
        return ops.LSTM(x, w, r, b, hidden_size=h, clip=0.5, outputs=1)[0]

    positive = tuple(abs(values) for values in (f(6, n, size), *first[:3]))
    yield Case("LSTM with a cell above what its gates are clipped to", clipped, positive, False)


def narrow() -> Iterator[Case]:
    """Operators that ONNX or toy computes in float32 only."""
    x = 2 * f(2, 5).astype("float32")
    yield Case("Celu", lambda x: ops.Celu(x, alpha=0.6), (x,))
    arrays = tuple(f(*shape).astype("float32") for shape in ((2, 3, 5), (3, 1, 2), (3,)))
    options = {"activation": "silu"}
    yield Case("CausalConvWithState", lambda *a: apply("CausalConvWithState", a, options, outputs=2), arrays, opset=27)
    arrays = tuple(f(*shape).astype("float32") for shape in ((1, 2, 3, 4), (1, 3, 2), (1, 3, 2)))
    yield Case("RotaryEmbedding", ops.RotaryEmbedding, arrays)

    yield Case("AffineGrid", lambda x: ops.AffineGrid(x, i(2, 1, 3, 4)), (f(2, 2, 3).astype("float32"),))

    def statistics(x: Any, s: Any) -> Any:
        return ops.LayerNormalization(x, s, axis=-1, outputs=3)

    yield Case("LayerNormalization statistics", statistics, (x, f(5).astype("float32")))


FAMILIES = (unary, binary, reductions, moves, indexing, products, convolutions, pools, normalizations, losses, others, recurrent)
CASES = [case for family in FAMILIES for case in family()]
ELSEWHERE = {"If", "Loop", "Scan"}
"""Operators that are tested in test_control_flow.py."""


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
