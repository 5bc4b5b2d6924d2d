"""Recipes that bring many elements together: reductions with every attribute, normalisations, products, windows of any rank."""

from __future__ import annotations

import math

import numpy as np

from xrt.graph import DType
from xrt.testing.generators.elementwise import positive, real
from xrt.testing.graph_draft import LARGEST, DraftValue, GraphDraft, broadcastable

__all__ = ["PRODUCTS", "REDUCTIONS", "WINDOWS"]

F32 = DType.FLOAT32


# ---------------------------------------------------------------------- reductions


def _reduced(draft: GraphDraft, x: DraftValue) -> tuple[list[int], tuple[int, ...], int]:
    """Return axes, the shape without them, and whether they are kept."""
    axes = [a for a in range(x.rank) if draft.choose.integer(0, 1)]
    keep = draft.choose.integer(0, 1)
    gone = axes or list(range(x.rank))
    return axes, tuple(1 if a in gone else d for a, d in enumerate(x.shape) if keep or a not in gone), keep


def reduction(draft: GraphDraft) -> None:
    """A reduction over some axes or, where none are given, over all; over no elements too where the result is defined."""
    x = real(draft)
    axes, shape, keep = _reduced(draft, x)
    count = math.prod(x.shape[a] for a in axes or range(x.rank))
    bounds = {"ReduceL1": count * x.bound, "ReduceSumSquare": count * x.bound**2, "ReduceSum": count * x.bound}
    bounds |= {"ReduceL2": count * x.bound} if x.bound <= 1 else {}
    bounds |= {"ReduceProd": max(1.0, x.bound) ** count} if count <= 8 else {}
    _add_reduction(draft, x, bounds, axes, shape, keep)


def smooth_reduction(draft: GraphDraft) -> None:
    """Reductions through a logarithm, of what is away from zero, and those that need an element."""
    x = positive(draft, draft.want((F32,)))
    axes, shape, keep = _reduced(draft, x)
    if (count := math.prod(x.shape[a] for a in axes or range(x.rank))) and x.bound <= 20:
        bound = x.bound + math.log(count) + 1
        ops = ("ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2")
        _add_reduction(draft, x, dict.fromkeys(ops, bound * count), axes, shape, keep)


def reduction_of_integers(draft: GraphDraft) -> None:
    x = draft.want((DType.INT64, DType.INT32))
    axes, shape, keep = _reduced(draft, x)
    count = math.prod(x.shape[a] for a in axes or range(x.rank))
    bounds = {"ReduceSum": count * x.bound} | (dict.fromkeys(("ReduceMax", "ReduceMin"), x.bound) if count else {})
    bounds |= {"ReduceProd": max(x.bound, 1.0) ** count} if count <= 4 else {}
    _add_reduction(draft, x, bounds, axes, shape, keep)


def _add_reduction(
    draft: GraphDraft, x: DraftValue, bounds: dict[str, float], axes: list[int], shape: tuple[int, ...], keep: int
) -> None:
    fitting = [op for op, bound in bounds.items() if bound <= LARGEST]
    if not fitting:
        return
    op = draft.choose.pick(fitting)
    signed = [a - x.rank if draft.choose.integer(0, 2) == 2 else a for a in axes]
    read: list[str | DraftValue] = [x, draft.axes(*signed)] if axes else [x]
    draft.node(op, read, draft.out(x.dtype, shape, max(bounds[op], 1.0)), keepdims=keep)


def no_reduction(draft: GraphDraft) -> None:
    """A reduction that no axes turn into Identity."""
    x = real(draft)
    draft.node("ReduceSum", [x, draft.axes()], draft.out(x.dtype, x.shape, x.bound), noop_with_empty_axes=1)


def running_sum(draft: GraphDraft) -> None:
    x = real(draft, 1)
    axis = draft.choose.integer(-x.rank, x.rank - 1)
    if (bound := x.bound * max(x.shape[axis], 1)) <= LARGEST:
        out = draft.out(x.dtype, x.shape, bound)
        exclusive, reverse = draft.choose.integer(0, 1), draft.choose.integer(0, 1)
        draft.node("CumSum", [x, draft.axis(axis)], out, exclusive=exclusive, reverse=reverse)


def shares(draft: GraphDraft) -> None:
    x = real(draft, 1)
    axis = draft.choose.integer(-x.rank, x.rank - 1)
    op, bound = draft.choose.pick((("Softmax", 1.0), ("LogSoftmax", 2 * x.bound + 6)))
    if x.bound <= 50:
        draft.node(op, [x], draft.out(x.dtype, x.shape, bound), axis=axis)


def layer_norm(draft: GraphDraft) -> None:
    x = draft.want((F32,), ranks=(1, draft.rank))
    axis = draft.choose.integer(0, x.rank - 1)
    if not x.size:
        return
    scale = draft.want((F32,), x.shape[axis:])
    biases = [draft.want((F32,), x.shape[axis:])] if draft.choose.integer(0, 1) else []
    bound = scale.bound * math.sqrt(x.size) + sum(b.bound for b in biases)
    if bound <= LARGEST:
        draft.node("LayerNormalization", [x, scale, *biases], draft.out(F32, x.shape, bound), axis=axis, epsilon=0.1)


def batch_norm(draft: GraphDraft) -> None:
    x = draft.want((F32,), ranks=(2, min(draft.rank, 5)))
    channels = x.shape[1]
    scale, bias, mean = (draft.want((F32,), (channels,)) for _ in range(3))
    variance = draft.constant(np.linspace(0.5, 1.5, channels, dtype=np.float32))
    bound = (x.bound + mean.bound) * scale.bound * 1.5 + bias.bound
    if bound <= LARGEST:
        draft.node("BatchNormalization", [x, scale, bias, mean, variance], draft.out(F32, x.shape, bound), epsilon=0.01)


def instance_norm(draft: GraphDraft) -> None:
    x = draft.want((F32,), ranks=(3, min(draft.rank, 5)))
    if x.size:
        scale, bias = (draft.want((F32,), (x.shape[1],)) for _ in range(2))
        if (bound := scale.bound * math.sqrt(x.size) + bias.bound) <= LARGEST:
            draft.node("InstanceNormalization", [x, scale, bias], draft.out(F32, x.shape, bound), epsilon=0.1)


# ---------------------------------------------------------------------- products


def product(draft: GraphDraft) -> None:
    """MatMul of any ranks: vectors, matrices, stacks that broadcast."""
    x = real(draft, 1)
    inner, batch = x.shape[-1], broadcastable(draft.choose, x.shape[:-2])
    columns = draft.choose.pick((2, 1, 3))
    shape = draft.choose.pick(((inner, columns), (inner,), (*batch, inner, columns)))
    y = draft.want((x.dtype,), shape)
    rows = x.shape[:-1] if x.rank > 1 or len(shape) <= 2 else shape[:-2]
    result = (*rows, *(shape[-1:] if len(shape) > 1 else ()))
    if (bound := x.bound * y.bound * max(inner, 1)) <= LARGEST:
        draft.node("MatMul", [x, y], draft.out(x.dtype, result, bound))


def gemm(draft: GraphDraft) -> None:
    """Gemm with all of its attributes; what is added broadcasts."""
    x = real(draft, 2) if draft.choose.integer(0, 1) else draft.want((F32,), ranks=(2, 2))
    if x.rank != 2:
        return
    flip = draft.choose.integer(0, 1)
    rows, inner = x.shape[::-1] if flip else x.shape
    y = draft.want((x.dtype,), (inner, draft.choose.pick((2, 1, 3))))
    shape = (rows, y.shape[1])
    added = [draft.want((x.dtype,), broadcastable(draft.choose, shape))] if draft.choose.integer(0, 1) else []
    bound = x.bound * y.bound * max(inner, 1) + 2 * sum(v.bound for v in added)
    if bound <= LARGEST:
        out = draft.out(x.dtype, shape, bound)
        draft.node(
            "Gemm", [x, y, *added], out, transA=flip, alpha=draft.choose.pick((1.0, 0.5)), beta=draft.choose.pick((1.0, 2.0))
        )


def contraction(draft: GraphDraft) -> None:
    x = draft.want((F32,), ranks=(2, 2))
    y = draft.want((F32,), (x.shape[1], 2))
    i, j, k = x.shape[0], x.shape[1], 2
    equations = (("ij,jk->ik", (i, k), j), ("ij,jk->ki", (k, i), j), ("ij,jk->", (), i * j * k), ("ij,jk->ijk", (i, j, k), 1))
    text, shape, count = draft.choose.pick(equations)
    if (bound := x.bound * y.bound * max(count, 1)) <= LARGEST:
        draft.node("Einsum", [x, y], draft.out(F32, shape, bound), equation=text)


def product_of_integers(draft: GraphDraft) -> None:
    kinds = (DType.parse("uint8"), DType.parse("int8"))
    x = draft.want(kinds[:1], ranks=(2, 3))
    y = draft.want(kinds, (x.shape[-1], 3))
    zeros = [draft.constant(np.asarray(1, v.dtype.numpy)) for v in (x, y)] if draft.choose.integer(0, 1) else []
    bound = (x.bound + 1) * (y.bound + 1) * max(x.shape[-1], 1)
    if bound <= 1e5:
        draft.node("MatMulInteger", [x, y, *zeros], draft.out(DType.INT32, (*x.shape[:-1], 3), bound))


# ---------------------------------------------------------------------- windows


def _image(draft: GraphDraft, spatial: int) -> DraftValue:
    found = draft.find(lambda v: v.dtype is F32 and v.rank == spatial + 2 and min(v.shape) > 0 and min(v.shape[2:]) >= 3)
    sizes = [(1, 2), (2, 4), *[(4, 3, 5)] * spatial]
    return found or draft.add_given(F32, tuple(draft.choose.pick(options) for options in sizes))


def convolution(draft: GraphDraft) -> None:
    """Conv of one to three axes: groups, strides, dilations, uneven padding."""
    spatial = draft.choose.integer(1, 3)
    x = _image(draft, spatial)
    groups = x.shape[1] if draft.choose.integer(0, 2) == 2 else 1
    kernel, strides, dilations = ([draft.choose.integer(1, 2) for _ in range(spatial)] for _ in range(3))
    pads = [draft.choose.integer(0, 1) for _ in range(2 * spatial)]
    w = draft.want((F32,), (2 * groups, x.shape[1] // groups, *kernel))
    sizes = _windows(x.shape[2:], kernel, strides, dilations, pads)
    if (bound := x.bound * w.bound * math.prod(w.shape[1:])) <= LARGEST:
        out = draft.out(F32, (x.shape[0], w.shape[0], *sizes), bound)
        attributes = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads, "group": groups}
        draft.node("Conv", [x, w], out, **attributes)


def _windows(sizes: tuple[int, ...], kernel: list[int], strides: list[int], dilations: list[int], pads: list[int]) -> list[int]:
    ends = zip(sizes, kernel, strides, dilations, pads[: len(sizes)], pads[len(sizes) :], strict=True)
    return [(n + a + b - (k - 1) * d - 1) // s + 1 for n, k, s, d, a, b in ends]


def transposed_convolution(draft: GraphDraft) -> None:
    x = _image(draft, 2)
    stride, pad = draft.choose.integer(1, 2), draft.choose.integer(0, 1)
    w = draft.want((F32,), (x.shape[1], 2, 3, 3))
    shape = (x.shape[0], 2, *((d - 1) * stride + 3 - 2 * pad for d in x.shape[2:]))
    if (bound := x.bound * w.bound * x.shape[1] * 9) <= LARGEST:
        draft.node("ConvTranspose", [x, w], draft.out(F32, shape, bound), strides=[stride] * 2, pads=[pad] * 4)


def pooling(draft: GraphDraft) -> None:
    """Pooling of one to three axes: padding counted or not, strides."""
    spatial = draft.choose.integer(1, 3)
    x = _image(draft, spatial)
    kernel, strides = [2] * spatial, [draft.choose.integer(1, 2) for _ in range(spatial)]
    pads = [draft.choose.integer(0, 1) for _ in range(2 * spatial)]
    op, attributes = draft.choose.pick(
        (("MaxPool", {}), ("AveragePool", {}), ("AveragePool", {"count_include_pad": 1}), ("LpPool", {}))
    )
    sizes = _windows(x.shape[2:], kernel, strides, [1] * spatial, pads)
    bound = x.bound * 2**spatial
    if bound <= LARGEST and x.bound <= 10:
        out = draft.out(F32, (*x.shape[:2], *sizes), bound, steps=op == "LpPool")  # a root is steep at zero
        draft.node(op, [x], out, kernel_shape=kernel, strides=strides, pads=pads, **attributes)


def global_pooling(draft: GraphDraft) -> None:
    x = _image(draft, draft.choose.integer(1, 3))
    op = draft.choose.pick(("GlobalAveragePool", "GlobalMaxPool"))
    draft.node(op, [x], draft.out(F32, (*x.shape[:2], *[1] * (x.rank - 2)), x.bound))


def blocks(draft: GraphDraft) -> None:
    """SpaceToDepth and DepthToSpace."""
    x = draft.add_given(F32, (draft.choose.integer(1, 2), 4, 2, 4))
    n, c, h, w = x.shape
    if draft.choose.integer(0, 1):
        draft.node("SpaceToDepth", [x], draft.out(F32, (n, 4 * c, h // 2, w // 2), x.bound), blocksize=2)
    else:
        mode = draft.choose.pick(("DCR", "CRD"))
        draft.node("DepthToSpace", [x], draft.out(F32, (n, c // 4, 2 * h, 2 * w), x.bound), blocksize=2, mode=mode)


def resize(draft: GraphDraft) -> None:
    """Resize by whole factors, to the nearest pixel or between two."""
    x = _image(draft, 2)
    scales = draft.constant(np.array([1, 1, 2, draft.choose.integer(1, 3)], np.float32))
    factors = draft.constants[scales.name].array.astype(int)
    mode, way = draft.choose.pick((("nearest", "asymmetric"), ("linear", "half_pixel"), ("linear", "align_corners")))
    shape = tuple(int(d * f) for d, f in zip(x.shape, factors, strict=True))
    extra = {"nearest_mode": "floor"} if mode == "nearest" else {}
    out = draft.out(F32, shape, x.bound)
    draft.node("Resize", [x, "", scales], out, mode=mode, coordinate_transformation_mode=way, **extra)


def channels(draft: GraphDraft) -> None:
    x = _image(draft, 2)
    if x.bound <= 10:
        draft.node("LRN", [x], draft.out(F32, x.shape, x.bound), size=3, alpha=0.1, beta=0.5, bias=1.0)


REDUCTIONS = (
    reduction,
    reduction,
    smooth_reduction,
    reduction_of_integers,
    no_reduction,
    running_sum,
    shares,
    layer_norm,
    batch_norm,
    instance_norm,
)
PRODUCTS = (product, product, gemm, contraction, product_of_integers)
WINDOWS = (convolution, convolution, transposed_convolution, pooling, pooling, global_pooling, blocks, resize, channels)
