"""Operators that compute each element by itself, over types, broadcasts and special values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import scipy.special

from tests.witness.case import Case, Drawn, case, forms
from xrt.graph import DType

FLOATS = (np.float16, np.float32, np.float64)
DRAWN = Drawn("elementwise")

UNARY: dict[str, tuple[Any, tuple[float, float]]] = {
    "Abs": (np.abs, (-3, 3)),
    "Acos": (np.arccos, (-1, 1)),
    "Acosh": (np.arccosh, (1, 5)),
    "Asin": (np.arcsin, (-1, 1)),
    "Asinh": (np.arcsinh, (-5, 5)),
    "Atan": (np.arctan, (-5, 5)),
    "Atanh": (np.arctanh, (-0.95, 0.95)),
    "Ceil": (np.ceil, (-5, 5)),
    "Cos": (np.cos, (-10, 10)),
    "Cosh": (np.cosh, (-4, 4)),
    "Erf": (scipy.special.erf, (-4, 4)),
    "Exp": (np.exp, (-5, 5)),
    "Floor": (np.floor, (-5, 5)),
    "HardSwish": (lambda x: x * np.clip(x / 6 + 0.5, 0, 1), (-5, 5)),
    "Log": (np.log, (0.01, 9)),
    "Mish": (lambda x: x * np.tanh(np.logaddexp(0, x)), (-5, 5)),
    "Neg": (np.negative, (-5, 5)),
    "Reciprocal": (np.reciprocal, (0.2, 5)),
    "Relu": (lambda x: np.where(x < 0, 0, x), (-3, 3)),
    "Round": (np.rint, (-4, 4)),
    "Sigmoid": (scipy.special.expit, (-9, 9)),
    "Sign": (np.sign, (-2, 2)),
    "Sin": (np.sin, (-10, 10)),
    "Sinh": (np.sinh, (-4, 4)),
    "Softplus": (lambda x: np.logaddexp(0, x), (-20, 20)),
    "Softsign": (lambda x: x / (1 + np.abs(x)), (-5, 5)),
    "Sqrt": (np.sqrt, (0, 9)),
    "Tan": (np.tan, (-1.4, 1.4)),
    "Tanh": (np.tanh, (-5, 5)),
}
"""A formula in double precision, and where it is tried."""


def unary() -> Iterator[Case]:
    for op, (formula, (low, high)) in UNARY.items():
        source = "SciPy" if op in ("Erf", "Sigmoid") else "NumPy"
        for dtype in FLOATS:
            x = np.linspace(low, high, 24).reshape(2, 3, 4).astype(dtype)
            wide = lambda x, f=formula: f(x.astype(np.float64)).astype(x.dtype)
            yield case(op, [x], opset=22, formula=wide, source=source)
        yield case(op, [np.array(1.0, np.float32)], opset=22, formula=lambda x, f=formula: f(x).astype(x.dtype), source=source)
    for op in ("Abs", "Neg", "Sign"):
        for dtype in (np.int8, np.int32, np.int64):
            yield case(op, [np.array([-128, -1, 0, 1, 127], dtype)], formula=UNARY[op][0])


def activations() -> Iterator[Case]:
    x = np.linspace(-4, 4, 33).astype(np.float32)
    e = np.exp(x.astype(np.float64)) - 1
    told = {
        "Elu": ({"alpha": 0.75}, lambda x: np.where(x < 0, 0.75 * e, x)),
        "Selu": ({"alpha": 1.5, "gamma": 1.25}, lambda x: 1.25 * np.where(x < 0, 1.5 * e, x)),
        "Celu": ({"alpha": 0.8}, lambda x: np.maximum(0, x) + np.minimum(0, 0.8 * (np.exp(x / 0.8) - 1))),
        "LeakyRelu": ({"alpha": 0.25}, lambda x: np.where(x < 0, 0.25 * x, x)),
        "ThresholdedRelu": ({"alpha": 0.5}, lambda x: np.where(x > 0.5, x, 0)),
        "HardSigmoid": ({"alpha": 0.25, "beta": 0.375}, lambda x: np.clip(0.25 * x + 0.375, 0, 1)),
        "Shrink": ({"lambd": 0.875, "bias": 0.375}, lambda x: np.where(x < -0.875, x + 0.375, np.where(x > 0.875, x - 0.375, 0))),
    }
    for op, (attributes, formula) in told.items():
        for dtype in (np.float32, np.float64) if op != "Celu" else (np.float32,):
            wide = lambda x, f=formula: f(x.astype(np.float64)).astype(x.dtype)
            yield case(op, [x.astype(dtype)], attributes, opset=21, formula=wide)
        yield case(op, [x], attributes)
        yield case(op, [x])
    normal = scipy.special.ndtr
    yield case("Gelu", [x], opset=20, formula=lambda x: (x * normal(x.astype(np.float64))).astype(x.dtype), source="SciPy")
    yield case("Gelu", [x], {"approximate": "tanh"}, opset=20)
    yield case("Swish", [x], {"alpha": 1.5}, opset=24, formula=lambda x: x * scipy.special.expit(1.5 * x), source="SciPy")
    yield case("PRelu", [DRAWN.floats(2, 3, 4), DRAWN.floats(3, 1)])
    gated = [DRAWN.floats(3, 4), DRAWN.floats(3, 4)]
    for alpha in (1.0, 1.5):
        swish = lambda a, b, k=alpha: (a * scipy.special.expit(k * a.astype(np.float64)) * b).astype(a.dtype)
        yield case("SwiGLU", gated, {"alpha": alpha}, opset=28, formula=swish, source="SciPy")


def binary() -> Iterator[Case]:
    shapes = (((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (4,)), ((3, 1), (2, 1, 4)), ((), (2, 2)), ((0, 3), (3,)))
    for op, formula in (("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply), ("Div", np.divide)):
        for left, right in shapes:
            yield case(op, [DRAWN.floats(*left), DRAWN.floats(*right) + 3], formula=formula)
        for dtype in (np.float16, np.float64):
            yield case(op, [DRAWN.floats(5, dtype=dtype), DRAWN.floats(5, dtype=dtype) + dtype(3)], formula=formula)
    for dtype in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64):
        x, y = DRAWN.integers(0, 60, 6, dtype=dtype), DRAWN.integers(1, 9, 6, dtype=dtype)
        for op, formula in (("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply), ("Div", np.floor_divide)):
            yield case(op, [x, y], formula=formula)
    for op, formula in (("Mod", np.mod), ("Div", lambda x, y: np.trunc(x / y).astype(x.dtype))):
        yield case(op, [np.array([7, -7, 7, -7, 6]), np.array([2, 2, -2, -2, 3])], formula=formula)
    floats = np.array([7.5, -7.5, 7.5, -7.5], np.float32), np.array([2, 2, -2, -2], np.float32)
    yield case("Mod", list(floats), {"fmod": 1}, formula=np.fmod)
    yield case("Mod", [np.array([7, -7]), np.array([-4, 4])], {"fmod": 1}, formula=np.fmod)
    for dtype in FLOATS:
        yield case("Pow", [np.linspace(0.1, 3, 6).astype(dtype), np.linspace(-2, 2, 6).astype(dtype)], formula=np.power)
    yield case("Pow", [np.array([2, -3, 5]), np.array([3, 3, 0])], formula=np.power)
    yield case("Pow", [np.array([2, 3], np.float32), np.array([2, 3], np.int64)])
    numbers = [DRAWN.floats(2, 3), DRAWN.floats(3), DRAWN.floats(2, 1)]
    for op, formula in (
        ("Max", lambda *x: np.maximum.reduce(np.broadcast_arrays(*x))),
        ("Min", lambda *x: np.minimum.reduce(np.broadcast_arrays(*x))),
        ("Sum", lambda *x: sum(x)),
        ("Mean", lambda *x: sum(x) / np.float32(len(x))),
    ):
        yield case(op, numbers, formula=formula)
        yield case(op, numbers[:1], formula=formula)
    yield case(
        "BitShift", [np.array([1, 8, 255], np.uint8), np.array([1, 2, 3], np.uint8)], {"direction": "LEFT"}, formula=np.left_shift
    )
    yield case(
        "BitShift",
        [np.array([1, 8, 255], np.uint64), np.array([1, 2, 3], np.uint64)],
        {"direction": "RIGHT"},
        formula=np.right_shift,
    )
    for op, formula in (("BitwiseAnd", np.bitwise_and), ("BitwiseOr", np.bitwise_or), ("BitwiseXor", np.bitwise_xor)):
        for dtype in (np.int8, np.uint16, np.int64):
            yield case(op, [DRAWN.integers(0, 100, 2, 3, dtype=dtype), DRAWN.integers(0, 100, 3, dtype=dtype)], formula=formula)
    yield case("BitwiseNot", [np.array([0, 1, -5, 77], np.int32)], formula=np.invert)


def logic() -> Iterator[Case]:
    x, y = DRAWN.integers(-2, 3, 3, 4), DRAWN.integers(-2, 3, 4)
    compared = {
        "Equal": np.equal,
        "Less": np.less,
        "Greater": np.greater,
        "LessOrEqual": np.less_equal,
        "GreaterOrEqual": np.greater_equal,
    }
    for op, formula in compared.items():
        for dtype in (np.float32, np.float64, np.int32, np.int64):
            yield case(op, [x.astype(dtype), y.astype(dtype)], formula=formula)
    special = np.array([np.nan, np.inf, -np.inf, 0, -0.0], np.float32)
    for op, formula in compared.items():
        yield case(op, [special, special[::-1].copy()], label="special", formula=formula)
    for op, formula in (("And", np.logical_and), ("Or", np.logical_or), ("Xor", np.logical_xor)):
        yield case(op, [x > 0, y > 0], formula=formula)
    yield case("Not", [x > 0], formula=np.logical_not)
    yield case(
        "Equal", [np.array(["a", "b"], object), np.array(["a", "c"], object)], formula=lambda x, y: np.equal(x, y).astype(bool)
    )
    yield case("IsNaN", [special], formula=np.isnan)
    for options in forms(detect_positive=(0, 1), detect_negative=(0, 1)):
        yield case("IsInf", [special], options)
    for shape in ((3, 4), (4,), (1,)):
        yield case("Where", [DRAWN.integers(0, 2, *shape, dtype=bool), DRAWN.floats(3, 4), DRAWN.floats(1, 4)], formula=np.where)


def clips_and_casts() -> Iterator[Case]:
    for dtype in (np.float32, np.float64, np.float16, np.int8, np.int64, np.uint8):
        x = DRAWN.integers(0, 50, 8, dtype=dtype)
        yield case("Clip", [x, np.array(5, dtype), np.array(20, dtype)], formula=np.clip)
    x = DRAWN.floats(9)
    yield case("Clip", [x, None, np.array(0.5, np.float32)], formula=lambda x, high: np.minimum(x, high))
    yield case(
        "Clip",
        [x, np.array(1, np.float32), np.array(-1, np.float32)],
        label="crossed",
        formula=lambda x, low, high: np.minimum(np.maximum(x, low), high),
    )
    yield case("Clip", [x], {"min": -0.5, "max": 0.5}, opset=6, formula=lambda x: np.clip(x, -0.5, 0.5))
    kinds = (np.float16, np.float32, np.float64, np.int8, np.int32, np.int64, np.uint8, bool)
    values = np.array([0, 1, 2.75, 3.5, 100, 0.25])
    for source in kinds:
        for target in kinds:
            yield case(
                "Cast",
                [values.astype(source)],
                {"to": DType.of(np.zeros(1, target)).onnx},
                formula=lambda x, t=target: x.astype(t),
            )
    for target in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        x = np.array([0, 1, -2.7, 3.1415926, 100, 1e-3, 448], np.float32)
        yield case(
            "Cast", [x], {"to": DType.of(np.zeros(1, target)).onnx}, formula=lambda x, t=target: x.astype(t), source="ml_dtypes"
        )
    yield case("Cast", [np.array(["1.5", "-2", "1e3"], object)], {"to": 1}, formula=lambda x: x.astype(np.float32))
    yield case("Cast", [np.array([1, -20, 300])], {"to": 8}, formula=lambda x: x.astype(str).astype(object))
    yield case(
        "CastLike", [DRAWN.floats(4, scale=9), np.zeros(1, np.int32)], opset=19, formula=lambda x, like: x.astype(like.dtype)
    )
    yield case("BitCast", [DRAWN.floats(4)], {"to": 6}, opset=26, formula=lambda x: x.view(np.int32))


def families() -> Iterator[Case]:
    for family in (unary, activations, binary, logic, clips_and_casts):
        yield from family()
