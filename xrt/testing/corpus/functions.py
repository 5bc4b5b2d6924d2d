"""Functions of one number: types that a library lacks them for, and arguments where they overflow."""

from __future__ import annotations

import numpy as np

from xrt.testing.corpus.entry import CorpusEntry, f32, graph, node

__all__ = ["ENTRIES"]

NAN = np.nan

ENTRIES: tuple[CorpusEntry, ...] = (
    CorpusEntry(
        "error_function_of_float64",
        "Erf of float64, which not every library has",
        graph({"x": "float64[3]"}, {"y": "float64[3]"}, node("Erf", "x", "y")),
        (np.array([0.0, 0.5, -1.0]),),
        (np.array([0.0, 0.5204998778130465, -0.8427007929497149]),),
    ),
    CorpusEntry(
        "functions_of_float64",
        "Functions of float64 that not every library has: iree refused whole regions for an undefined symbol",
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
        "A recurrence of float64, whose activation is Tanh",
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
        "Sin, Cos and Tan reduce a large argument with all the digits that it takes",
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
        "Asinh and Acosh of numbers whose square is too large, and of large negative ones",
        graph({"x": "float32[3]"}, {"s": "float32[3]", "c": "float32[3]"}, node("Asinh", "x", "s"), node("Acosh", "x", "c")),
        (f32(1e30, -1e4, 2),),
        (f32(69.77069, -9.9034876, 1.4436355), f32(69.77069, NAN, 1.316958)),
    ),
    CorpusEntry(
        "hyperbolic_near_the_end",
        "Sinh and Cosh are finite where half of Exp is",
        graph({"x": "float32[2]"}, {"s": "float32[2]", "c": "float32[2]"}, node("Sinh", "x", "s"), node("Cosh", "x", "c")),
        (f32(88.9, -88.9),),
        (f32(2.031188e38, -2.031188e38), f32(2.031188e38, 2.031188e38)),
    ),
)
