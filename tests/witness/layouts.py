"""Shapes, slices, gathers, scatters, pads, and what is made of nothing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from tests.witness.case import Array, Case, Drawn, case, forms

DRAWN = Drawn("layouts")
TYPES = (np.float32, np.float16, np.int64, np.uint8, bool)


def shapes() -> Iterator[Case]:
    for dtype in TYPES:
        x = DRAWN.integers(0, 2, 2, 3, 4, dtype=dtype)
        yield case("Identity", [x], formula=lambda x: x)
        yield case("Reshape", [x, np.array([4, -1])], formula=lambda x, _: x.reshape(4, -1))
        yield case("Transpose", [x], {"perm": [2, 0, 1]}, formula=lambda x: x.transpose(2, 0, 1))
        yield case("Concat", [x, x[:1]], {"axis": 0}, formula=lambda *x: np.concatenate(x, 0))
        yield case("Tile", [x, np.array([1, 2, 3])], formula=np.tile)
        yield case("Expand", [x[:, :1], np.array([2, 2, 3, 4])], formula=lambda x, _: np.broadcast_to(x, (2, 2, 3, 4)))
    x = DRAWN.floats(2, 3, 1, 4)
    yield case("Reshape", [x, np.array([0, 0, -1])], formula=lambda x, _: x.reshape(2, 3, 4))
    yield case(
        "Reshape", [np.zeros((0, 3), np.float32), np.array([3, 0])], {"allowzero": 1}, formula=lambda x, _: x.reshape(3, 0)
    )
    yield case("Transpose", [x], formula=np.transpose)
    for axis in range(-4, 5):
        yield case(
            "Flatten",
            [x],
            {"axis": axis},
            formula=lambda x, a=axis: x.reshape(int(np.prod(x.shape[: a if a >= 0 else 4 + a])), -1),
        )
    yield case("Squeeze", [x, np.array([-2])], formula=lambda x, _: x[:, :, 0])
    yield case("Squeeze", [x], formula=np.squeeze)
    yield case("Unsqueeze", [x, np.array([0, -1])], formula=lambda x, _: x[None, ..., None])
    for start, end in ((0, None), (1, 3), (-2, None), (0, -1)):
        options = {"start": start} if end is None else {"start": start, "end": end}
        yield case("Shape", [x], options, formula=lambda x, s=start, e=end: np.array(x.shape[s:e]))
    yield case("Size", [x], formula=lambda x: np.array(x.size))
    for op, size, mode in product(("DepthToSpace",), (2,), ("DCR", "CRD")):
        for channels in (4, 8, 12):
            yield case(
                op,
                [DRAWN.floats(1, channels, 2, 3)],
                {"blocksize": size, "mode": mode},
                formula=lambda x, m=mode: _to_space(x, m),
            )
    yield case(
        "SpaceToDepth",
        [DRAWN.floats(2, 3, 4, 6)],
        {"blocksize": 2},
        formula=lambda x: x.reshape(2, 3, 2, 2, 3, 2).transpose(0, 3, 5, 1, 2, 4).reshape(2, 12, 2, 3),
    )


def _to_space(x: Array, mode: str) -> Array:
    n, c, h, w = x.shape
    parts = (
        x.reshape(n, 2, 2, c // 4, h, w).transpose(0, 3, 4, 1, 5, 2)
        if mode == "DCR"
        else x.reshape(n, c // 4, 2, 2, h, w).transpose(0, 1, 4, 2, 5, 3)
    )
    return parts.reshape(n, c // 4, 2 * h, 2 * w)


def slices() -> Iterator[Case]:
    x = DRAWN.floats(4, 5, 6)
    for starts, ends, axes, steps in (
        ([1], [3], None, None),
        ([0, -3], [9, -1], [0, 2], None),
        ([-1], [-9], [1], [-1]),
        ([5], [0], [2], [-2]),
        ([3], [1], [0], [1]),
    ):
        given = [
            np.array(starts),
            np.array(ends),
            None if axes is None else np.array(axes),
            None if steps is None else np.array(steps),
        ]
        at = [slice(None)] * 3
        for i, axis in enumerate(axes or range(len(starts))):
            at[axis] = slice(
                starts[i], None if steps and steps[i] < 0 and ends[i] <= -x.shape[axis] else ends[i], steps[i] if steps else None
            )
        yield case("Slice", [x, *given], label=f"{starts},{ends},{axes},{steps}", formula=lambda x, *_, a=tuple(at): x[a])
    for sizes in ([2, 4], [3, 3]):
        yield case(
            "Split",
            [x, np.array(sizes)],
            {"axis": 2},
            outputs=2,
            constants=(1,),
            formula=lambda x, a=sizes[0]: (x[:, :, :a], x[:, :, a:]),
        )
    yield case("Split", [x], {"axis": 1, "num_outputs": 2}, outputs=2, formula=lambda x: (x[:, :3], x[:, 3:]))
    for mode, opset in (("constant", 21), ("edge", 21), ("reflect", 21), ("wrap", 21)):
        pads = np.array([1, 2, 0, 2])
        yield case(
            "Pad",
            [DRAWN.floats(4, 5), pads],
            {"mode": mode},
            opset=opset,
            formula=lambda x, p, m=mode: np.pad(x, ((1, 0), (2, 2)), mode=m),
        )
    yield case(
        "Pad",
        [DRAWN.floats(4, 5), np.array([1, 2]), np.array(7.5, np.float32), np.array([1])],
        formula=lambda x, *_: np.pad(x, ((0, 0), (1, 2)), constant_values=7.5),
    )
    yield case("Pad", [DRAWN.floats(4, 5), np.array([-1, 0, 1, -2])], formula=lambda x, _: np.pad(x[1:, :-2], ((0, 1), (0, 0))))
    yield case("CenterCropPad", [DRAWN.floats(6, 3), np.array([4, 5])], formula=lambda x, _: np.pad(x[1:5], ((0, 0), (1, 1))))
    for upper, k in product((0, 1), (-1, 0, 2)):
        yield case(
            "Trilu",
            [DRAWN.floats(2, 4, 5), np.array(k)],
            {"upper": upper},
            label=f"{upper},{k}",
            formula=lambda x, k, u=upper: (np.triu if u else np.tril)(x, int(k)),
        )
    yield case("Compress", [x, np.array([True, False, True, True])], {"axis": 0}, formula=lambda x, c: x[c])
    yield case("Compress", [DRAWN.floats(2, 3), np.array([False, True, True])], formula=lambda x, c: np.compress(c, x))
    lengths = np.array([1, 3, 2])
    for time, batch in ((0, 1), (1, 0)):
        yield case(
            "ReverseSequence",
            [DRAWN.floats(*((4, 3) if time == 0 else (3, 4))), lengths],
            {"time_axis": time, "batch_axis": batch},
        )


def gathers() -> Iterator[Case]:
    x = DRAWN.floats(4, 5, 3)
    for axis in (0, 1, -1):
        yield case("Gather", [x, np.array([[0, -1], [2, 1]])], {"axis": axis}, formula=lambda x, i, a=axis: np.take(x, i, axis=a))
        indices = DRAWN.integers(0, 3, 4, 5, 3)
        yield case("GatherElements", [x, indices], {"axis": axis}, formula=lambda x, i, a=axis: np.take_along_axis(x, i, axis=a))
    yield case("GatherND", [x, np.array([[0, 1], [3, -1]])], formula=lambda x, i: x[i[:, 0], i[:, 1]])
    yield case("GatherND", [x, np.array([[1], [0], [2], [4]])], {"batch_dims": 1}, formula=lambda x, i: x[np.arange(4), i[:, 0]])
    updates = DRAWN.floats(2, 5, 3)
    for reduction, combine in (
        ("none", None),
        ("add", np.add.at),
        ("mul", np.multiply.at),
        ("max", np.maximum.at),
        ("min", np.minimum.at),
    ):
        # Repeated indices say nothing without a reduction.
        at = DRAWN.integers(0, 4, 2, 5, 3) if combine else np.argsort(DRAWN.floats(4, 5, 3), axis=0)[:2]
        formula = lambda x, i, u, c=combine: _scattered(x, i, u, c)
        yield case("ScatterElements", [x, at, updates], {"axis": 0, "reduction": reduction}, opset=18, formula=formula)
        rows = np.array([[1], [3 if combine is None else 1]])
        yield case(
            "ScatterND",
            [x, rows, updates],
            {"reduction": reduction},
            opset=18,
            formula=lambda x, i, u, c=combine: _scattered_rows(x, i, u, c),
        )
    yield case(
        "Scatter",
        [x, np.argsort(DRAWN.floats(4, 5, 3), axis=0)[:2], updates],
        {"axis": 0},
        opset=10,
        formula=lambda x, i, u: _scattered(x, i, u, None),
    )
    for axis, values in ((-1, [0, 1]), (0, [-2, 5])):
        given = [np.array([[0, 2], [-1, 5]]), np.array(3), np.array(values, np.float32)]
        yield case("OneHot", given, {"axis": axis})
    cache, update = DRAWN.floats(2, 2, 6, 3), DRAWN.floats(2, 2, 2, 3)
    written = lambda c, u, at, mode: np.stack([_written(*one, mode) for one in zip(c, u, at, strict=True)])
    for mode in ("linear", "circular"):
        places = np.array([1, 4 if mode == "linear" else 5])
        yield case(
            "TensorScatter",
            [cache, update, places],
            {"mode": mode},
            opset=24,
            formula=lambda c, u, at, m=mode: written(c, u, at, m),
        )
    boxes = np.array(
        [[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11], [0, 10.1, 1, 11.1], [0, 100, 1, 101]]], np.float32
    )
    scores = np.array([[[0.9, 0.75, 0.6, 0.95, 0.5, 0.3], [0.2, 0.8, 0.1, 0.4, 0.7, 0.6]]], np.float32)
    for centred, least in product((0, 1), (0.0, 0.55)):
        given = [boxes, scores, np.array([3]), np.array([0.5], np.float32), np.array([least], np.float32)]
        yield case("NonMaxSuppression", given, {"center_point_box": centred}, label=f"{centred},{least}")


def _scattered(x: Array, indices: Array, updates: Array, combine: object) -> Array:
    out, at = x.copy(), (indices, *np.indices(indices.shape)[1:])
    if combine is None:
        out[at] = updates
    else:
        combine(out, at, updates)  # type: ignore[operator]
    return out


def _scattered_rows(x: Array, indices: Array, updates: Array, combine: object) -> Array:
    out = x.copy()
    if combine is None:
        out[indices[:, 0]] = updates
    else:
        combine(out, indices[:, 0], updates)  # type: ignore[operator]
    return out


def _written(cache: Array, update: Array, at: int, mode: str) -> Array:
    out = cache.copy()
    for i in range(update.shape[1]):
        out[:, (at + i) % cache.shape[1] if mode == "circular" else at + i] = update[:, i]
    return out


def made() -> Iterator[Case]:
    for start, limit, delta in ((0, 10, 3), (5, -5, -2), (0, 0, 1)):
        for dtype in (np.int64, np.float32):
            given = [np.array(v, dtype) for v in (start, limit, delta)]
            yield case(
                "Range",
                given,
                label=f"{start},{limit},{delta},{dtype.__name__}",
                formula=lambda s, e, d: np.arange(s, e, d, dtype=s.dtype),
            )
    for options in forms(k=(-1, 0, 2), dtype=(1, 7)):
        yield case(
            "EyeLike",
            [np.zeros((3, 4), np.int32)],
            options,
            formula=lambda x, o=options: np.eye(3, 4, o["k"], dtype=np.float32 if o["dtype"] == 1 else np.int64),
        )
    yield case(
        "ConstantOfShape", [np.array([2, 3])], {"value": np.array([7], np.int32)}, formula=lambda s: np.full((2, 3), 7, np.int32)
    )
    yield case("ConstantOfShape", [np.array([2])], formula=lambda s: np.zeros(2, np.float32))
    yield case("Constant", [], {"value": np.arange(3.0)}, formula=lambda: np.arange(3.0))


def families() -> Iterator[Case]:
    for family in (shapes, slices, gathers, made):
        yield from family()
