"""Casts: what they round, overflow and cut is part of the model, though libraries compute in wider numbers."""

from __future__ import annotations

import math

import numpy as np

from xrt.graph import DType
from xrt.testing.corpus.entry import Array, CorpusEntry, body, f32, graph, i64, node

__all__ = ["ENTRIES"]

INF = np.inf
LARGE = f32(70000, 1.0001, 250.5, 65519, 65520, 2049)
HALVES = f32(INF, 1, 250.5, 65504, INF, 2048)
F16, F32, I16, I32 = (dtype.onnx for dtype in (DType.FLOAT16, DType.FLOAT32, DType.INT16, DType.INT32))
TRUE = np.array(True)
_CONSTANT = np.array([0.8873110820235901, -0.3, 1 / 3])


def _squared_in_half(numbers: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.square(numbers.astype(np.float16)).astype(np.float32)


_SQUARED = body({}, {"b": "float32[6]"}, node("Cast", "x", "h", to=F16), node("Mul", "h h", "s"), node("Cast", "s", "b", to=F32))
_NEGATIVE = body({}, {"c": "float32[6]"}, node("Neg", "x", "c"))

ENTRIES: tuple[CorpusEntry, ...] = (
    CorpusEntry(
        "half_precision_in_the_middle",
        "a product of float16 between casts overflows and is rounded, whatever the library computes it in",
        graph(
            {"x": "float32[6]"},
            {"y": "float32[6]"},
            node("Cast", "x", "h", to=F16),
            node("Mul", "h h", "s"),
            node("Cast", "s", "y", to=F32),
        ),
        (LARGE,),
        (_squared_in_half(LARGE),),
    ),
    CorpusEntry(
        "cast_to_half_and_back",
        "a cast and the one back are no identity, between other operators neither",
        graph(
            {"x": "float32[6]"},
            {"y": "float32[6]"},
            node("Neg", "x", "n"),
            node("Cast", "n", "h", to=F16),
            node("Cast", "h", "w", to=F32),
            node("Neg", "w", "y"),
        ),
        (LARGE,),
        (HALVES,),
    ),
    CorpusEntry(
        "half_precision_overflows_on_the_way",
        "a product of float16 is infinite, and stays so when it is made small again",
        graph(
            {"x": "float16[2]"},
            {"y": "float16[2]"},
            node("Mul", "x x", "s"),
            node("Mul", "s k", "y"),
            constants={"k": np.array(2**-10, np.float16)},
        ),
        (np.array([300, 2], np.float16),),
        (np.array([INF, 2**-8], np.float16),),
    ),
    CorpusEntry(
        "half_precision_in_a_branch",
        "the body of an If rounds as the main graph does",
        graph(
            {"p": "bool[]", "x": "float32[6]"},
            {"y": "float32[6]"},
            node("If", "p", "y", then_branch=_SQUARED, else_branch=_NEGATIVE),
        ),
        (TRUE, LARGE),
        (_squared_in_half(LARGE),),
    ),
    CorpusEntry(
        "short_integers_in_the_middle",
        "a cast to int16 keeps the low bits, and a product of int16 wraps around, before it is widened",
        graph(
            {"x": "int32[4]"},
            {"y": "int32[4]", "z": "int32[4]"},
            node("Cast", "x", "n", to=I16),
            node("Cast", "n", "y", to=I32),
            node("Mul", "n n", "s"),
            node("Cast", "s", "z", to=I32),
        ),
        (np.array([70000, 40000, -3, 300], np.int32),),
        (np.array([4464, -25536, -3, 300], np.int32), np.array([4352, 4096, 9, 24464], np.int32)),
    ),
    CorpusEntry(
        "truth_of_the_lowest_integer",
        "every integer but zero is true, the one without an opposite too",
        graph({"x": "int32[3]"}, {"y": "bool[3]"}, node("Cast", "x", "y", to=DType.BOOL.onnx)),
        (np.array([-(2**31), 0, 1], np.int32),),
        (np.array([True, False, True]),),
    ),
    CorpusEntry(
        "wide_product_of_narrow_integers",
        "a product of int32 wraps around before it is cast to int64",
        graph({"x": "int32[2]"}, {"y": "int64[2]"}, node("Mul", "x x", "s"), node("Cast", "s", "y", to=DType.INT64.onnx)),
        (np.array([65535, 3], np.int32),),
        (i64(-131071, 9),),
    ),
    CorpusEntry(
        "float64_of_constants",
        "what is computed of float64 constants alone is float64, though nobody folded it; one library had it in float32",
        graph(
            {"x": "float32[1]"},
            {"y": "float64[3]", "z": "float64[1]", "w": "float32[1]"},
            node("Relu", "c", "y"),
            node("ReduceL2", "c", "z"),
            node("Neg", "x", "w"),
            constants={"c": _CONSTANT},
        ),
        (f32([1]),),
        (np.maximum(_CONSTANT, 0), np.sqrt(np.sum(_CONSTANT**2, keepdims=True)), f32([-1])),
    ),
    CorpusEntry(
        "gelu_of_float64",
        "Gelu of float64 needs an error function of float64, which not every library has",
        graph({"x": "float64[3]"}, {"y": "float64[3]"}, node("Gelu", "x", "y"), opset=20),
        (_CONSTANT,),
        (np.array([number / 2 * (1 + math.erf(number / math.sqrt(2))) for number in _CONSTANT]),),
    ),
    CorpusEntry(
        "shrink_keeps_every_digit",
        "Shrink of float64 and of wide integers is no affair of float32",
        graph(
            {"x": "float64[3]", "n": "int64[2]"},
            {"y": "float64[3]", "m": "int64[2]"},
            node("Shrink", "x", "y"),
            node("Shrink", "n", "m"),
        ),
        (np.array([0.8873110820235901, 0.25, -1 / 3 - 1]), i64(2**24 + 1, -5)),
        (np.array([0.8873110820235901, 0, -1 / 3 - 1]), i64(2**24 + 1, -5)),
    ),
    CorpusEntry(
        "float_weights_between_quantized_activations",
        "a Conv whose activations alone are quantized keeps its weights as they are; a library may quantize them too",
        graph(
            {"x": "float32[1,2,1,2]"},
            {"y": "float32[1,2,1,2]"},
            node("QuantizeLinear", "x step zero", "q"),
            node("DequantizeLinear", "q step zero", "d"),
            node("Conv", "d w", "c"),
            node("QuantizeLinear", "c fine zero", "p"),
            node("DequantizeLinear", "p fine zero", "y"),
            constants={
                "w": f32(100, 0.3, 0.31, 50).reshape(2, 2, 1, 1),
                "step": np.array(0.5, np.float32),
                "fine": np.array(0.25, np.float32),
                "zero": np.array(128, np.uint8),
            },
        ),
        (f32(0, 0, 10, 20).reshape(1, 2, 1, 2),),
        (f32(3, 6, 31.75, 31.75).reshape(1, 2, 1, 2),),
    ),
)
