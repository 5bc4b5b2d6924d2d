"""Numerics: types, signs, ties and limits that are easy to get wrong."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from xrt.graph import DType
from xrt.testing.corpus.entry import Array, CorpusEntry, f32, graph, i64, node

NAN, INF = np.nan, np.inf
_INT4_VALUES = np.array([-8, -1, 0, 7]).astype(ml_dtypes.int4)
ENTRIES: tuple[CorpusEntry, ...] = (
    CorpusEntry(
        "nan_goes_through",
        "Max returns NaN if either operand is NaN",
        graph({"x": "float32[4]", "y": "float32[4]"}, {"m": "float32[4]"}, node("Max", "x y", "m")),
        (f32(NAN, 1, INF, -INF), f32(1, NAN, 1, 1)),
        (f32(NAN, NAN, INF, 1),),
    ),
    CorpusEntry(
        "hash_of_unsigned_integers",
        "the steps of a hash use all bits of a uint32; OpenVINO computes them in int32",
        graph(
            {"x": "uint32[5]"},
            {"y": "uint32[5]"},
            node("BitShift", "x s", "a", direction="RIGHT"),
            node("BitwiseXor", "x a", "b"),
            node("Mul", "b m", "c"),
            node("BitShift", "c s", "d", direction="RIGHT"),
            node("BitwiseXor", "c d", "y"),
            constants={"s": np.array(15, np.uint32), "m": np.array(0x7FEB352D, np.uint32)},
            opset=18,
        ),
        (np.array([0, 1, 77, 0x7FFFFFFF, 0xFFFFFFF0], np.uint32),),
        (np.array([0, 2146159355, 2042498548, 1255380390, 342766975], np.uint32),),
    ),
    CorpusEntry(
        "softmax_before_opset_13",
        "before opset 13, Softmax normalizes over all axes from `axis` on",
        graph({"x": "float32[1,2,2]"}, {"y": "float32[1,2,2]"}, node("Softmax", "x", "y", axis=1), opset=11),
        (f32([[[0, 0], [0, 0]]]),),
        (f32([[[0.25, 0.25], [0.25, 0.25]]]),),
    ),
    CorpusEntry(
        "training_batch_normalization",
        "the predecessor of XRT lost training_mode when it cloned a node",
        graph(
            {"x": "float32[2,1]", "one": "float32[1]", "zero": "float32[1]", "mean": "float32[1]", "var": "float32[1]"},
            {"y": "float32[2,1]", "new_mean": "float32[1]", "new_var": "float32[1]"},
            node("BatchNormalization", "x one zero mean var", "y new_mean new_var", training_mode=1, momentum=0.5, epsilon=0.0),
        ),
        (f32([[1], [3]]), f32([1]), f32([0]), f32([0]), f32([0])),
        (f32([[-1], [1]]), f32([1]), f32([0.5])),
    ),
    CorpusEntry(
        "brain_float",
        "bfloat16, which is not a type of NumPy",
        graph({"x": "bfloat16[2]"}, {"y": "float32[2]"}, node("Cast", "x", "y", to=1)),
        (np.array([1.5, -2]).astype(ml_dtypes.bfloat16),),
        (f32(1.5, -2),),
    ),
    CorpusEntry(
        "four_bits",
        "int4, which takes a byte in memory and half a byte in a file",
        graph(
            {"x": "int4[4]"},
            {"y": "float32[4]"},
            node("DequantizeLinear", "x scale", "y"),
            constants={"scale": f32(0.5)},
            opset=21,
        ),
        (_INT4_VALUES,),
        (f32(-4, -0.5, 0, 3.5),),
    ),
    CorpusEntry(
        "product_with_four_bits",
        "weights of 4 bits are dequantized in blocks, and the other operand of the product is not rounded",
        graph(
            {"x": "float32[1,32]"},
            {"y": "float32[1,2]"},
            node("DequantizeLinear", "w scale", "d", axis=0, block_size=16),
            node("MatMul", "x d", "y"),
            constants={
                "w": np.array([[1, 1], [1, -2]] * 16).astype(ml_dtypes.int4),
                "scale": np.array([[0.5, 0.25], [1, 2]], np.float32),
            },
            opset=21,
        ),
        (np.array([[1000, *[1] * 31]], np.float32),),
        (np.array([[523.5, 231.75]], np.float32),),
    ),
    CorpusEntry(
        "rounded_by_a_large_sum",
        "adding and subtracting 2**23 rounds to integers, so the two constants must not be merged",
        graph(
            {"x": "float32[4]"},
            {"y": "float32[4]"},
            node("Add", "x large", "sum"),
            node("Sub", "sum large", "y"),
            constants={"large": f32(2**23)},
        ),
        (f32(1.4, 1.6, 2.5, 3.5),),
        (f32(1, 2, 2, 4),),
    ),
    CorpusEntry(
        "logarithm_of_an_infinite_sum",
        "the maximum is subtracted before the exponential, unless it is infinite: the difference would be NaN",
        graph(
            {"x": "float32[4,2]"}, {"y": "float32[4]"}, node("ReduceLogSumExp", "x a", "y", keepdims=0), constants={"a": i64([1])}
        ),
        (f32([[INF, 1], [-INF, -INF], [NAN, 1], [1000, 1000]]),),
        (f32(INF, -INF, NAN, 1000.6931),),
    ),
    CorpusEntry(
        "sorted_elsewhere",
        "TopK does not change its input",
        graph({"x": "float32[4]"}, {"v": "float32[2]", "i": "int64[2]"}, node("TopK", "x k", "v i"), constants={"k": i64([2])}),
        (f32(1, 4, 2, 3),),
        (f32(4, 3), i64([1, 3])),
    ),
    CorpusEntry(
        "scattered_by_constants",
        "ScatterElements does not change its input, and reads constants of two types",
        graph(
            {"x": "float32[4]"},
            {"y": "float32[4]"},
            node("ScatterElements", "x at u", "y"),
            constants={"at": i64([2]), "u": f32([9])},
        ),
        (f32(1, 2, 3, 4),),
        (f32(1, 2, 9, 4),),
    ),
    CorpusEntry(
        "large_unsigned_numbers",
        "unsigned integers above the maximum of the signed type are not negative",
        graph(
            {"x": "uint8[3]", "y": "uint8[3]"},
            {"d": "uint8[3]", "r": "uint8[3]", "c": "uint8[3]", "m": "uint8[3]"},
            node("Div", "x y", "d"),
            node("Mod", "x y", "r"),
            node("Clip", "x low high", "c"),
            node("Max", "x y", "m"),
            constants={"low": np.array(4, np.uint8), "high": np.array(250, np.uint8)},
        ),
        (np.array([200, 3, 255], np.uint8), np.array([3, 200, 2], np.uint8)),
        tuple(np.array(row, np.uint8) for row in ([66, 0, 127], [2, 3, 1], [200, 4, 250], [200, 200, 255])),
    ),
)
FUNCTION_ENTRIES: tuple[CorpusEntry, ...] = (
    CorpusEntry(
        "error_function_of_float64",
        "Erf of float64, which some libraries do not support",
        graph({"x": "float64[3]"}, {"y": "float64[3]"}, node("Erf", "x", "y")),
        (np.array([0.0, 0.5, -1.0]),),
        (np.array([0.0, 0.5204998778130465, -0.8427007929497149]),),
    ),
    CorpusEntry(
        "functions_of_float64",
        "functions of float64 that some libraries do not support: IREE refused regions because of an undefined symbol",
        graph(
            {"x": "float64[3]"},
            {"t": "float64[3]", "s": "float64[3]", "c": "float64[3]", "a": "float64[3]", "m": "float64[3]"},
            *(node(name, "x", result) for name, result in zip(("Tanh", "Asin", "Acos", "Atan", "Mish"), "tscam", strict=True)),
        ),
        (np.array([0.0, 0.5, -0.25]),),
        (
            np.array([0.0, 0.46211715726000974, -0.24491866240370913]),
            np.array([0.0, 0.5235987755982989, -0.25268025514207865]),
            np.array([1.5707963267948966, 1.0471975511965979, 1.8234765819369754]),
            np.array([0.0, 0.4636476090008061, -0.24497866312686414]),
            np.array([0.0, 0.3752452113048951, -0.129926963679141]),
        ),
    ),
    CorpusEntry(
        "recurrence_of_float64",
        "an RNN of float64 with the activation Tanh",
        graph(
            {"x": "float64[2,1,1]"},
            {"y": "float64[2,1,1,1]"},
            node("RNN", "x one two", "y", hidden_size=1),
            constants={"one": np.ones((1, 1, 1)), "two": np.full((1, 1, 1), 2.0)},
        ),
        (np.array([0.5, -1.0]).reshape(2, 1, 1),),
        (np.array([0.46211715726000974, -0.07562104149786411]).reshape(2, 1, 1, 1),),
    ),
    CorpusEntry(
        "sine_of_large_numbers",
        "Sin, Cos and Tan are accurate for large arguments",
        graph(
            {"x": "float32[2]"},
            {"s": "float32[2]", "c": "float32[2]", "t": "float32[2]"},
            node("Sin", "x", "s"),
            node("Cos", "x", "c"),
            node("Tan", "x", "t"),
        ),
        (f32(1e6, -1e6),),
        (f32(-0.3499935, 0.3499935), f32(0.9367521, 0.9367521), f32(-0.37362445, 0.37362445)),
    ),
    CorpusEntry(
        "inverse_hyperbolic_of_large_numbers",
        "Asinh and Acosh of large numbers, whose square overflows, and of negative numbers",
        graph({"x": "float32[3]"}, {"s": "float32[3]", "c": "float32[3]"}, node("Asinh", "x", "s"), node("Acosh", "x", "c")),
        (f32(1e30, -1e4, 2),),
        (f32(69.77069, -9.9034876, 1.4436355), f32(69.77069, NAN, 1.316958)),
    ),
    CorpusEntry(
        "hyperbolic_near_the_end",
        "Sinh and Cosh are finite although Exp overflows",
        graph({"x": "float32[2]"}, {"s": "float32[2]", "c": "float32[2]"}, node("Sinh", "x", "s"), node("Cosh", "x", "c")),
        (f32(88.9, -88.9),),
        (f32(2.031188e38, -2.031188e38), f32(2.031188e38, 2.031188e38)),
    ),
)
INT32_MIN = np.array(-(2**31), np.int32)
I64 = DType.INT64.onnx


def _f16(*numbers: float) -> Array:
    return np.array([numbers], np.float16)


def _norm(name: str, op: str, operands: str, numbers: Array, expected: Array, **attributes: Any) -> CorpusEntry:
    """Make an entry whose squares overflow or underflow in float16 although the result is representable."""
    shape = ",".join(map(str, expected.shape))
    inputs = {"x": f"float16[{','.join(map(str, numbers.shape))}]"}
    model = graph(inputs, {"y": f"float16[{shape}]"}, node(op, operands, "y", **attributes), constants={"axis": i64([1])})
    why = "squares of float16 overflow or are zero, but the result is representable"
    return CorpusEntry(name, why, model, (numbers,), (expected,))


LIMIT_ENTRIES: tuple[CorpusEntry, ...] = (
    _norm("length_of_halves", "ReduceL2", "x axis", _f16(300, 400), _f16(500)),
    _norm("length_of_small_halves", "ReduceL2", "x axis", _f16(0.0003, 0.0004), _f16(0.0005)),
    _norm("unit_length_of_halves", "LpNormalization", "x", _f16(300, 400), _f16(0.6, 0.8)),
    _norm("pool_of_lengths_of_halves", "LpPool", "x", _f16(300, 400)[None], _f16(500)[None], kernel_shape=[2]),
    CorpusEntry(
        "sum_of_many_halves",
        "a sum of 1,500 elements in float16 has an error of 6 %",
        graph({"x": "float16[1,1500]"}, {"y": "float16[1,1]"}, node("ReduceSum", "x axis", "y"), constants={"axis": i64([1])}),
        (np.full((1, 1500), 15, np.float16),),
        (_f16(22500),),
    ),
    CorpusEntry(
        "equal_elements_normalized",
        "equal elements have the deviation 0, to which ONNX adds 1e-9; otherwise the result is NaN",
        graph({"x": "float32[1,2,1,3]"}, {"y": "float32[1,2,1,3]"}, node("MeanVarianceNormalization", "x", "y", axes=[0, 2, 3])),
        (f32(2, 2, 2, 2, 2, 2).reshape(1, 2, 1, 3),),
        (np.zeros((1, 2, 1, 3), np.float32),),
    ),
    CorpusEntry(
        "opposite_of_the_lowest_integer",
        "the lowest int32 can be negated in int64, but not in the int32 that a library uses instead",
        graph(
            {"x": "int32[2]"},
            {"y": "int64[2]", "z": "int64[2]", "t": "bool[2]"},
            node("Add", "x lowest", "n"),
            node("Cast", "n", "w", to=I64),
            node("Neg", "w", "y"),
            node("Abs", "w", "z"),
            node("Cast", "w", "t", to=DType.BOOL.onnx),
            constants={"lowest": INT32_MIN},
        ),
        (np.array([0, 1], np.int32),),
        (i64(2**31, 2**31 - 1), i64(2**31, 2**31 - 1), np.array([True, True])),
    ),
    CorpusEntry(
        "places_compared_with_a_number",
        "a library returned NumPy's `longlong`, which equals int64, but which another library did not accept",
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
        "an optimizer that fuses a Transpose into a MatMul ignored it if the other operand is a vector",
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
_FLOAT16_EDGES = f32(70000, 1.0001, 250.5, 65519, 65520, 2049)
F16, FLOAT, I16, I32 = (dtype.onnx for dtype in (DType.FLOAT16, DType.FLOAT32, DType.INT16, DType.INT32))
_FLOAT64_VALUES = np.array([0.8873110820235901, -0.3, 1 / 3])


def _squared_in_half(numbers: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.square(numbers.astype(np.float16)).astype(np.float32)


CAST_ENTRIES: tuple[CorpusEntry, ...] = (
    CorpusEntry(
        "half_precision_in_the_middle",
        "a product of float16 between casts overflows and is rounded, even if a library computes it in float32",
        graph(
            {"x": "float32[6]"},
            {"y": "float32[6]"},
            node("Cast", "x", "h", to=F16),
            node("Mul", "h h", "s"),
            node("Cast", "s", "y", to=FLOAT),
        ),
        (_FLOAT16_EDGES,),
        (_squared_in_half(_FLOAT16_EDGES),),
    ),
    CorpusEntry(
        "short_integers_in_the_middle",
        "a cast to int16 keeps the low bits, and a product of int16 wraps around",
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
        "float64_of_constants",
        "unfolded operators on float64 constants are computed in float64; a library computed them in float32",
        graph(
            {"x": "float32[1]"},
            {"y": "float64[3]", "z": "float64[1]", "w": "float32[1]"},
            node("Relu", "c", "y"),
            node("ReduceL2", "c", "z"),
            node("Neg", "x", "w"),
            constants={"c": _FLOAT64_VALUES},
        ),
        (f32([1]),),
        (np.maximum(_FLOAT64_VALUES, 0), np.sqrt(np.sum(_FLOAT64_VALUES**2, keepdims=True)), f32([-1])),
    ),
    CorpusEntry(
        "gelu_of_float64",
        "Gelu of float64 needs Erf of float64, which some libraries do not support",
        graph({"x": "float64[3]"}, {"y": "float64[3]"}, node("Gelu", "x", "y"), opset=20),
        (_FLOAT64_VALUES,),
        (np.array([number / 2 * (1 + math.erf(number / math.sqrt(2))) for number in _FLOAT64_VALUES]),),
    ),
    CorpusEntry(
        "shrink_keeps_every_digit",
        "Shrink of float64 and int64 must not be computed in float32",
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
        "a Conv with quantized activations and float weights; a library may quantize the weights, too",
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
