"""Reductions, scans and what is chosen by size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.special

from tests.witness.case import Case, Drawn, case, forms

DRAWN = Drawn("reductions")

REDUCTIONS: dict[str, tuple[Any, str]] = {
    "ReduceSum": (np.sum, "NumPy"),
    "ReduceMean": (np.mean, "NumPy"),
    "ReduceMax": (np.max, "NumPy"),
    "ReduceMin": (np.min, "NumPy"),
    "ReduceProd": (np.prod, "NumPy"),
    "ReduceL1": (lambda x, **how: np.sum(np.abs(x), **how), "NumPy"),
    "ReduceL2": (lambda x, **how: np.sqrt(np.sum(np.square(x), **how)), "NumPy"),
    "ReduceLogSum": (lambda x, **how: np.log(np.sum(x, **how)), "NumPy"),
    "ReduceLogSumExp": (scipy.special.logsumexp, "SciPy"),
    "ReduceSumSquare": (lambda x, **how: np.sum(np.square(x), **how), "NumPy"),
}


def reductions() -> Iterator[Case]:
    for op, (formula, source) in REDUCTIONS.items():
        for axes, keep in ((None, 1), ([1], 0), ([0, -1], 1), ([-2], 0), ([0, 1, 2], 0)):
            for dtype in (np.float32, np.float64):
                x = np.abs(DRAWN.floats(2, 3, 4, dtype=dtype)) + dtype(0.1)
                axis = None if axes is None else tuple(axes)
                how = lambda x, *_, f=formula, a=axis, k=keep: np.asarray(f(x, axis=a, keepdims=bool(k)), x.dtype)
                given = [x] if axes is None else [x, np.array(axes)]
                yield case(
                    op,
                    given,
                    {"keepdims": keep},
                    label=f"{axes},{keep},{dtype.__name__}",
                    opset=20,
                    constants=(1,),
                    formula=how,
                    source=source,
                )
        x = DRAWN.floats(2, 3) + 3
        opset = 11 if op == "ReduceSum" else 13
        yield case(op, [x], {"axes": [1], "keepdims": 1}, opset=opset)
        yield (
            case(op, [x], {"noop_with_empty_axes": 1}, opset=18, label="noop")
            if op in ("ReduceSum", "ReduceMax", "ReduceMean", "ReduceProd")
            else case(op, [x], {"keepdims": 0}, opset=18, label="all")
        )
    for op in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd"):
        x = DRAWN.integers(-4, 5, 3, 4, dtype=np.int64)
        yield case(op, [x, np.array([1])], {"keepdims": 0}, opset=18, label="int64")
    for op in ("ReduceSum", "ReduceProd", "ReduceL1"):
        formula = REDUCTIONS[op][0]
        yield case(
            op,
            [np.zeros((2, 0, 3), np.float32), np.array([1])],
            {"keepdims": 0},
            opset=18,
            label="empty",
            formula=lambda x, a, f=formula: f(x, axis=1),
        )


def scans() -> Iterator[Case]:
    for options in forms(exclusive=(0, 1), reverse=(0, 1)):
        for axis in (0, 1, -1):
            x = DRAWN.floats(3, 4)
            yield case("CumSum", [x, np.array(axis)], options, label=f"{axis},{options}")
            yield case(
                "CumProd",
                [x, np.array(axis)],
                options,
                opset=26,
                label=f"{axis},{options}",
                formula=lambda x, a, o=options: _cumulative(np.cumprod, 1, x, int(a), **o),
            )
    yield case("CumSum", [DRAWN.integers(0, 9, 5), np.array(0)], formula=lambda x, a: np.cumsum(x))


def _cumulative(how: Any, neutral: float, x: Any, axis: int, exclusive: int, reverse: int) -> Any:
    x = np.moveaxis(x, axis, 0)
    x = x[::-1] if reverse else x
    found = how(x, axis=0)
    if exclusive:
        found = np.concatenate([np.full_like(x[:1], neutral), found[:-1]])
    found = found[::-1] if reverse else found
    return np.moveaxis(found, 0, axis)


def chosen() -> Iterator[Case]:
    for op, formula in (("ArgMax", np.argmax), ("ArgMin", np.argmin)):
        for axis in (0, 1, -1):
            for keep in (0, 1):
                x = DRAWN.floats(3, 4, 5)
                yield case(
                    op,
                    [x],
                    {"axis": axis, "keepdims": keep},
                    formula=lambda x, f=formula, a=axis, k=keep: f(x, axis=a, keepdims=bool(k)),
                )
        ties = np.array([[1, 3, 3], [2, 2, 0]], np.float32)
        for last in (0, 1):
            yield case(op, [ties], {"axis": 1, "select_last_index": last}, label=f"ties,{last}")
    for axis, largest, k in ((0, 1, 2), (1, 0, 3), (-1, 1, 1)):
        for dtype in (np.float32, np.float64, np.int64):
            x = DRAWN.generator.permutation(60).reshape(3, 4, 5).astype(dtype)
            yield case(
                "TopK",
                [x, np.array([k])],
                {"axis": axis, "largest": largest},
                outputs=2,
                label=f"{axis},{largest},{k},{dtype.__name__}",
            )
    yield case("Hardmax", [DRAWN.floats(3, 4)], {"axis": 1})
    yield case("Hardmax", [DRAWN.floats(3, 4, 2)], {"axis": 0})
    for axis in (None, 0, 1, -1):
        for ordered in (0, 1):
            x = DRAWN.integers(0, 3, 4, 3).astype(np.float32)
            options = {"sorted": ordered} if axis is None else {"sorted": ordered, "axis": axis}
            yield case("Unique", [x], options, outputs=4, label=f"{axis},{ordered}")
    yield case("NonZero", [DRAWN.integers(0, 2, 3, 4)], formula=lambda x: np.array(np.nonzero(x)))


def families() -> Iterator[Case]:
    for family in (reductions, scans, chosen):
        yield from family()
