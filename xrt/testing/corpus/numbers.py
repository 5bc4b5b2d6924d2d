"""Numbers: where types, signs, ties and limits are easily got wrong."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from xrt.testing.corpus.entry import CorpusEntry, body, f32, graph, i64, node

__all__ = ["ENTRIES"]

NAN, INF = np.nan, np.inf
MOST = np.finfo(np.float32).max
INT4 = np.array([-8, -1, 0, 7]).astype(ml_dtypes.int4)

_CLIPPED_BELOW = body({}, {"below": "float32[3]"}, node("Clip", "n one", "below"))
_CLIPPED_ABOVE = body({}, {"above": "float32[3]"}, node("Clip", "n - one", "above"))

ENTRIES: tuple[CorpusEntry, ...] = (
    CorpusEntry(
        "nan_goes_through",
        "Max and Relu keep a NaN, whichever side it is on",
        graph({"x": "float32[4]", "y": "float32[4]"}, {"m": "float32[4]"}, node("Max", "x y", "m")),
        (f32(NAN, 1, INF, -INF), f32(1, NAN, 1, 1)),
        (f32(NAN, NAN, INF, 1),),
    ),
    CorpusEntry(
        "infinity_less_itself",
        "an infinity less itself is NaN, and no number makes zero of it, inside of a larger expression either",
        graph(
            {"x": "float32[4]"},
            {"y": "float32[4]"},
            node("Mul", "x two", "t"),
            node("Sub", "t t", "d"),
            node("Exp", "d", "y"),
            constants={"two": f32(2)},
        ),
        (f32(NAN, INF, -INF, 1.5),),
        (f32(NAN, NAN, NAN, 1),),
    ),
    CorpusEntry(
        "powers_of_great_integers",
        "a power of integers is exact beyond what a double holds",
        graph({"x": "int64[4]", "n": "int64[4]"}, {"y": "int64[4]"}, node("Pow", "x n", "y")),
        (i64(3, 7, -3, 2), i64(39, 20, 39, 62)),
        (i64(4052555153018976267, 79792266297612001, -4052555153018976267, 2**62),),
    ),
    CorpusEntry(
        "equal_to_itself",
        "NaN is not equal to itself, which is how some models look for it",
        graph(
            {"x": "float32[4]"}, {"y": "bool[4]"}, node("Mul", "x two", "t"), node("Equal", "t t", "y"), constants={"two": f32(2)}
        ),
        (f32(NAN, INF, -INF, 1.5),),
        (np.array([False, True, True, True]),),
    ),
    CorpusEntry(
        "equal_truth_values",
        "a comparison of truth values, which a compiler may take for one of floats",
        graph({"x": "bool[2,2]", "z": "bool[2]"}, {"y": "bool[2,2]"}, node("Equal", "x z", "y")),
        (np.array([[False, False], [True, True]]), np.array([False, True])),
        (np.array([[True, False], [False, True]]),),
    ),
    CorpusEntry(
        "less_or_not_less",
        "of two numbers one may be NaN, and then neither of two opposite comparisons holds",
        graph(
            {"x": "float32[4]"},
            {"y": "bool[4]"},
            node("Less", "x one", "a"),
            node("GreaterOrEqual", "x one", "b"),
            node("Or", "a b", "y"),
            constants={"one": f32(1)},
        ),
        (f32(NAN, INF, -INF, 1.5),),
        (np.array([False, True, True, True]),),
    ),
    CorpusEntry(
        "round_half_to_even",
        "a half rounds to the even neighbour",
        graph({"x": "float32[6]"}, {"y": "float32[6]"}, node("Round", "x", "y")),
        (f32(0.5, 1.5, 2.5, -0.5, -1.5, 2.4),),
        (f32(0, 2, 2, -0.0, -2, 2),),
    ),
    CorpusEntry(
        "integers_divide_towards_zero",
        "Div of integers truncates, Mod of Python's kind follows the divisor's sign",
        graph(
            {"x": "int64[4]", "y": "int64[4]"},
            {"d": "int64[4]", "m": "int64[4]"},
            node("Div", "x y", "d"),
            node("Mod", "x y", "m"),
        ),
        (i64(7, -7, 7, -7), i64(2, 2, -2, -2)),
        (i64(3, -3, -3, 3), i64(1, 1, -1, -1)),
    ),
    CorpusEntry(
        "cast_truncates",
        "a cast to integers drops the fraction, on both sides of zero",
        graph({"x": "float32[4]"}, {"y": "int32[4]"}, node("Cast", "x", "y", to=6)),
        (f32(1.9, -1.9, 0.5, -0.5),),
        (np.array([1, -1, 0, 0], np.int32),),
    ),
    CorpusEntry(
        "large_integers",
        "int64 beyond what a double holds exactly",
        graph({"x": "int64[2]"}, {"y": "int64[2]"}, node("Add", "x one", "y"), constants={"one": i64(1)}),
        (i64(2**53, -(2**62)),),
        (i64(2**53 + 1, -(2**62) + 1),),
    ),
    CorpusEntry(
        "first_of_equals",
        "ArgMax takes the first of equal elements, the last only where an attribute asks for it",
        graph(
            {"x": "float32[4]"},
            {"first": "int64[1]", "last": "int64[1]"},
            node("ArgMax", "x", "first"),
            node("ArgMax", "x", "last", select_last_index=1),
        ),
        (f32(1, 3, 3, 0),),
        (i64([1]), i64([2])),
    ),
    CorpusEntry(
        "top_of_equals",
        "among equal elements TopK takes the lower index first",
        graph({"x": "float32[4]"}, {"v": "float32[3]", "i": "int64[3]"}, node("TopK", "x k", "v i"), constants={"k": i64([3])}),
        (f32(1, 3, 3, 1),),
        (f32(3, 3, 1), i64(1, 2, 0)),
    ),
    CorpusEntry(
        "softmax_before_opset_13",
        "before opset 13 Softmax takes all axes from the given one as a single axis",
        graph({"x": "float32[1,2,2]"}, {"y": "float32[1,2,2]"}, node("Softmax", "x", "y", axis=1), opset=11),
        (f32([[[0, 0], [0, 0]]]),),
        (f32([[[0.25, 0.25], [0.25, 0.25]]]),),
    ),
    CorpusEntry(
        "softmax_of_large_numbers",
        "without taking the maximum away first, it overflows",
        graph({"x": "float32[3]"}, {"y": "float32[3]"}, node("Softmax", "x", "y")),
        (f32(1000, 1000, -1000),),
        (f32(0.5, 0.5, 0),),
    ),
    CorpusEntry(
        "training_batch_normalization",
        "the ancestor forgot on cloning that a node is in its training form, and gave it to an engine without one",
        graph(
            {"x": "float32[2,1]", "one": "float32[1]", "zero": "float32[1]", "mean": "float32[1]", "var": "float32[1]"},
            {"y": "float32[2,1]", "new_mean": "float32[1]", "new_var": "float32[1]"},
            node("BatchNormalization", "x one zero mean var", "y new_mean new_var", training_mode=1, momentum=0.5, epsilon=0.0),
        ),
        (f32([[1], [3]]), f32([1]), f32([0]), f32([0]), f32([0])),
        (f32([[-1], [1]]), f32([1]), f32([0.5])),
    ),
    CorpusEntry(
        "half_precision",
        "float16 stays float16 between nodes",
        graph({"x": "float16[2]"}, {"y": "float16[2]"}, node("Add", "x x", "a"), node("Neg", "a", "y")),
        (np.array([1.5, -2], np.float16),),
        (np.array([-3, 4], np.float16),),
    ),
    CorpusEntry(
        "brain_float",
        "bfloat16, which NumPy itself does not have",
        graph({"x": "bfloat16[2]"}, {"y": "float32[2]"}, node("Cast", "x", "y", to=1)),
        (np.array([1.5, -2]).astype(ml_dtypes.bfloat16),),
        (f32(1.5, -2),),
    ),
    CorpusEntry(
        "four_bits",
        "int4, held one to a byte in memory and two in a file",
        graph(
            {"x": "int4[4]"},
            {"y": "float32[4]"},
            node("DequantizeLinear", "x scale", "y"),
            constants={"scale": f32(0.5)},
            opset=21,
        ),
        (INT4,),
        (f32(-4, -0.5, 0, 3.5),),
    ),
    CorpusEntry(
        "product_with_four_bits",
        "weights of 4 bits in blocks are dequantized; the other operand of their product is not rounded for it",
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
        "quantize_saturates",
        "what does not fit becomes the nearest number that does; halves go to even",
        graph(
            {"x": "float32[5]"},
            {"y": "uint8[5]"},
            node("QuantizeLinear", "x scale zero", "y"),
            constants={"scale": f32(2), "zero": np.array(128, np.uint8)},
        ),
        (f32(0, 3, 5, 1e4, -1e4),),
        (np.array([128, 130, 130, 255, 0], np.uint8),),
    ),
    CorpusEntry(
        "not_a_number_is_not_equal",
        "a NaN equals nothing, and is less than nothing",
        graph(
            {"x": "float32[2]"},
            {"e": "bool[2]", "l": "bool[2]"},
            node("Equal", "x x", "e"),
            node("Less", "x one", "l"),
            constants={"one": f32(1)},
        ),
        (f32(NAN, 0),),
        (np.array([False, True]), np.array([False, True])),
    ),
    CorpusEntry(
        "rounded_by_a_large_sum",
        "adding 2**23 and taking it away rounds to whole numbers: the two constants are not merged",
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
        "sign_of_nan",
        "Sign of NaN is NaN, and not one of three numbers",
        graph({"x": "float32[4]"}, {"y": "float32[4]"}, node("Sign", "x", "y")),
        (f32(NAN, -2, 0, INF),),
        (f32(NAN, -1, 0, 1),),
    ),
    CorpusEntry(
        "curves_of_nan",
        "a curve in pieces chooses a piece by comparing, and NaN compares with nothing: it stays NaN",
        graph(
            {"x": "float32[4]"},
            {"e": "float32[4]", "s": "float32[4]", "h": "float32[4]"},
            node("Elu", "x", "e"),
            node("Selu", "x", "s"),
            node("HardSigmoid", "x", "h"),
        ),
        (f32(NAN, INF, -INF, 0),),
        (f32(NAN, INF, -1, 0), f32(NAN, INF, -1.7580993, 0), f32(NAN, 1, 0, 0.5)),
    ),
    CorpusEntry(
        "chosen_not_multiplied",
        "what is not above a threshold is zero by choice: a product with zero is NaN, of NaN and of an infinity",
        graph(
            {"x": "float32[4]"},
            {"t": "float32[4]", "s": "float32[4]", "p": "float32[4]"},
            node("ThresholdedRelu", "x", "t"),
            node("Shrink", "x", "s", bias=0.5, lambd=0.75),
            node("PRelu", "x slope", "p"),
            constants={"slope": f32(INF)},
        ),
        (f32(NAN, INF, -INF, 0),),
        (f32(0, INF, 0, 0), f32(0, INF, -INF, 0), f32(NAN, INF, -INF, 0)),
    ),
    CorpusEntry(
        "logarithm_of_an_infinite_sum",
        "the largest is taken away before the exponential, unless it is infinite: the difference would be NaN",
        graph(
            {"x": "float32[4,2]"}, {"y": "float32[4]"}, node("ReduceLogSumExp", "x a", "y", keepdims=0), constants={"a": i64([1])}
        ),
        (f32([[INF, 1], [-INF, -INF], [NAN, 1], [1000, 1000]]),),
        (f32(INF, -INF, NAN, 1000.6931),),
    ),
    CorpusEntry(
        "clipped_on_one_side",
        "a Clip with one bound leaves an infinity on the other side",
        graph(
            {"x": "float32[3]"},
            {"l": "float32[3]", "h": "float32[3]"},
            node("Clip", "x one", "l"),
            node("Clip", "x - one", "h"),
            constants={"one": np.array(1, np.float32)},
        ),
        (f32(INF, -INF, 3),),
        (f32(INF, 1, 3), f32(1, -INF, 1)),
    ),
    CorpusEntry(
        "a_constant_may_hold_nan",
        "Max and Min keep a NaN of a constant, which other elements of it are not",
        graph(
            {"x": "float32[3]"},
            {"a": "float32[3]", "b": "float32[3]", "c": "float32[3]"},
            node("Max", "x c0", "a"),
            node("Max", "c0 x", "b"),
            node("Min", "x c0", "c"),
            constants={"c0": f32(NAN, 1, 5)},
        ),
        (f32(1, 2, NAN),),
        (f32(NAN, 2, NAN), f32(NAN, 2, NAN), f32(NAN, 1, NAN)),
    ),
    CorpusEntry(
        "clipped_in_a_body",
        "a Clip with one bound, in a body, of a value from outside of it; others of the same type around it",
        graph(
            {"x": "float32[3]", "p": "bool[]"},
            {"y": "float32[3]", "z": "float32[3]"},
            node("Neg", "x", "n"),
            node("Clip", "n one", "z"),
            node("If", "p", "y", then_branch=_CLIPPED_BELOW, else_branch=_CLIPPED_ABOVE),
            constants={"one": np.array(1, np.float32)},
        ),
        (f32(INF, -INF, 3), np.array(True)),
        (f32(1, INF, 1), f32(1, INF, 1)),
    ),
    CorpusEntry(
        "clipped_on_one_side_by_attributes",
        "a Clip below opset 11 with one bound has the largest finite number for the other, and makes it of an infinity",
        graph(
            {"x": "float32[3]"},
            {"l": "float32[3]", "h": "float32[3]", "n": "float32[3]"},
            node("Clip", "x", "l", min=1.0),
            node("Clip", "x", "h", max=1.0),
            node("Clip", "x", "n"),
            opset=9,
        ),
        (f32(INF, -INF, 3),),
        (f32(MOST, 1, 3), f32(1, -MOST, 1), f32(MOST, -MOST, 3)),
    ),
    CorpusEntry(
        "nan_is_not_greater",
        "no comparison with NaN is true, and as a truth value it is no zero",
        graph(
            {"x": "float32[3]"},
            {"g": "bool[3]", "e": "bool[3]", "t": "bool[3]"},
            node("Greater", "x one", "g"),
            node("GreaterOrEqual", "one x", "e"),
            node("Cast", "x", "t", to=9),
            constants={"one": f32(1)},
        ),
        (f32(NAN, 2, 0),),
        tuple(np.array(row) for row in ([False, True, False], [False, False, True], [True, True, False])),
    ),
    CorpusEntry(
        "remainder_by_infinity",
        "the remainder of a number by an infinity is the number; that of an infinity is none",
        graph({"x": "float32[3]", "y": "float32[3]"}, {"r": "float32[3]"}, node("Mod", "x y", "r", fmod=1)),
        (f32(1.5, -2, INF), f32(INF, -INF, 2)),
        (f32(1.5, -2, NAN),),
    ),
    CorpusEntry(
        "sorted_elsewhere",
        "TopK leaves what it reads as it was",
        graph({"x": "float32[4]"}, {"v": "float32[2]", "i": "int64[2]"}, node("TopK", "x k", "v i"), constants={"k": i64([2])}),
        (f32(1, 4, 2, 3),),
        (f32(4, 3), i64([1, 3])),
    ),
    CorpusEntry(
        "scattered_by_constants",
        "ScatterElements leaves what it reads as it was, and keeps constants of two types apart",
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
        "unsigned numbers beyond the largest signed one are large, not negative",
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
