"""Numbers at the limits of a type: squares that leave float16, the lowest integer, NaN where a weight is zero."""

from __future__ import annotations

from typing import Any

import numpy as np

from xrt.graph import DType
from xrt.testing.corpus.entry import Array, CorpusEntry, f32, graph, i64, node

__all__ = ["ENTRIES"]

NAN, INF = np.nan, np.inf
LOWEST = np.array(-(2**31), np.int32)
I64, F32 = DType.INT64.onnx, DType.FLOAT32.onnx


def _f16(*numbers: float) -> Array:
    return np.array([numbers], np.float16)


def _norm(name: str, op: str, given: str, numbers: Array, expected: Array, **attributes: Any) -> CorpusEntry:
    """Return an entry whose squares are no float16, though its result is."""
    shape = ",".join(map(str, expected.shape))
    inputs = {"x": f"float16[{','.join(map(str, numbers.shape))}]"}
    model = graph(inputs, {"y": f"float16[{shape}]"}, node(op, given, "y", **attributes), constants={"axis": i64([1])})
    why = "squares of float16 overflow, or are zero; what is computed of their sum is an ordinary number"
    return CorpusEntry(name, why, model, (numbers,), (expected,))


ENTRIES: tuple[CorpusEntry, ...] = (
    _norm("length_of_halves", "ReduceL2", "x axis", _f16(300, 400), _f16(500)),
    _norm("length_of_small_halves", "ReduceL2", "x axis", _f16(0.0003, 0.0004), _f16(0.0005)),
    _norm("unit_length_of_halves", "LpNormalization", "x", _f16(300, 400), _f16(0.6, 0.8)),
    _norm("pool_of_lengths_of_halves", "LpPool", "x", _f16(300, 400)[None], _f16(500)[None], kernel_shape=[2]),
    CorpusEntry(
        "sum_of_many_halves",
        "1,500 times 15, added in float16, is 6 % off",
        graph({"x": "float16[1,1500]"}, {"y": "float16[1,1]"}, node("ReduceSum", "x axis", "y"), constants={"axis": i64([1])}),
        (np.full((1, 1500), 15, np.float16),),
        (_f16(22500),),
    ),
    CorpusEntry(
        "equal_elements_normalized",
        "a row of one number has the deviation 0, to which the definition adds 1e-9; without it, the result is NaN",
        graph({"x": "float32[1,2,1,3]"}, {"y": "float32[1,2,1,3]"}, node("MeanVarianceNormalization", "x", "y", axes=[0, 2, 3])),
        (f32(2, 2, 2, 2, 2, 2).reshape(1, 2, 1, 3),),
        (np.zeros((1, 2, 1, 3), np.float32),),
    ),
    CorpusEntry(
        "truth_value_times_nan",
        "NaN times zero is NaN, where the zero was a truth value too; a compiler takes the product for a choice of zero",
        graph(
            {"x": "float32[4]", "b": "bool[4]"},
            {"y": "float32[4]"},
            node("Cast", "b", "c", to=F32),
            node("Mul", "x c", "y"),
        ),
        (f32(NAN, INF, NAN, 2), np.array([False, False, True, True])),
        (f32(NAN, NAN, NAN, 2),),
    ),
    CorpusEntry(
        "opposite_of_the_lowest_integer",
        "the lowest int32 has an opposite in int64, but none in the int32 that a library takes for it",
        graph(
            {"x": "int32[2]"},
            {"y": "int64[2]", "z": "int64[2]", "t": "bool[2]"},
            node("Add", "x lowest", "n"),
            node("Cast", "n", "w", to=I64),
            node("Neg", "w", "y"),
            node("Abs", "w", "z"),
            node("Cast", "w", "t", to=DType.BOOL.onnx),
            constants={"lowest": LOWEST},
        ),
        (np.array([0, 1], np.int32),),
        (i64(2**31, 2**31 - 1), i64(2**31, 2**31 - 1), np.array([True, True])),
    ),
    CorpusEntry(
        "places_compared_with_a_number",
        "one library returns integers of NumPy's other 64-bit type, which another does not know, though the two compare equal",
        graph(
            {"b": "bool[3]"},
            {"y": "bool[1,?]", "n": "int64[2]"},
            node("NonZero", "b", "v"),
            node("Equal", "v two", "y"),
            node("Shape", "v", "n"),
            constants={"two": i64(2)},
        ),
        (np.array([True, False, True]),),
        (np.array([[False, True]]), i64(1, 2)),
    ),
    CorpusEntry(
        "transposed_matrix_times_a_vector",
        "an optimizer that fuses the Transpose into the product takes the matrix as it lies in memory where a vector follows",
        graph(
            {"x": "float32[2,3]", "v": "float32[2]"},
            {"y": "float32[3]"},
            node("Transpose", "x", "t", perm=[1, 0]),
            node("MatMul", "t v", "y"),
        ),
        (f32(1, 2, 3, 4, 5, 6).reshape(2, 3), f32(10, 1)),
        (f32(14, 25, 36),),
    ),
)
