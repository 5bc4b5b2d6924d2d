"""Operators of ai.onnx.ml: maps, normalizers, label encoders and text processing."""

from __future__ import annotations

from typing import Any

import numpy as np

from xrt.graph import DType, MapType, SequenceType, TensorType
from xrt.testing.corpus.entry import CorpusEntry, f32, graph, i64, node as any_node

_INTEGER_MAP = MapType(DType.INT64, TensorType(DType.FLOAT32, ()))
_STRING_MAP = MapType(DType.STRING, TensorType(DType.FLOAT32, ()))


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return any_node(op, inputs, outputs, domain="ai.onnx.ml", **attributes)


ENTRIES: tuple[CorpusEntry, ...] = (
    CorpusEntry(
        "zip_map_of_integers",
        "the default output of scikit-learn's classifiers: a list with a dictionary for each row",
        graph(
            {"x": "float32[N,2]"}, {"y": SequenceType(_INTEGER_MAP)}, node("ZipMap", "x", "y", classlabels_int64s=[7, -1]), ml=1
        ),
        (f32([[0.25, 0.75], [1, 0]]),),
        ([{7: 0.25, -1: 0.75}, {7: 1.0, -1: 0.0}],),
    ),
    CorpusEntry(
        "zip_map_of_texts",
        "labels that are strings; the operator before ZipMap may be in another region",
        graph(
            {"x": "float32[1,2]"},
            {"y": SequenceType(_STRING_MAP), "s": "float32[1,2]"},
            any_node("Mul", "x x", "s"),
            node("ZipMap", "s", "y", classlabels_strings=["no", "yes"]),
            ml=1,
        ),
        (f32([[0.5, 3]]),),
        ([{"no": 0.25, "yes": 9.0}], f32([[0.25, 9]])),
    ),
    CorpusEntry(
        "map_to_row",
        "a dictionary as an input: a missing key of the vocabulary is zero",
        graph(
            {"x": _STRING_MAP},
            {"y": "float32[1,3]"},
            node("DictVectorizer", "x", "v", string_vocabulary=["a", "b", "c"]),
            any_node("Add", "v v", "y"),
            ml=1,
        ),
        ({"c": 2.5, "a": 1.0},),
        (f32([[2, 0, 5]]),),
    ),
    CorpusEntry(
        "map_to_values",
        "CastMap sorts the values of a dictionary by key; with map_form=SPARSE, the keys are the columns",
        graph(
            {"x": _INTEGER_MAP},
            {"dense": "float32[1,2]", "sparse": "int64[1,5]"},
            node("CastMap", "x", "dense"),
            node("CastMap", "x", "sparse", map_form="SPARSE", cast_to="TO_INT64", max_map=5),
            ml=1,
        ),
        ({3: 1.75, 1: -2.5},),
        (f32([[-2.5, 1.75]]), i64([[0, -2, 0, 1, 0]])),
    ),
    CorpusEntry(
        "rows_over_their_norms",
        "a row is divided by its norm even if its squares overflow; a row of zeros does not change",
        graph(
            {"x": "float32[3,2]"},
            {"a": "float32[3,2]", "b": "float32[3,2]", "c": "float32[3,2]"},
            node("Normalizer", "x", "a", norm="L1"),
            node("Normalizer", "x", "b", norm="L2"),
            node("Normalizer", "x", "c", norm="MAX"),
            ml=1,
        ),
        (f32([[3, -4], [0, 0], [3e18, 4e18]]),),
        (
            f32([[3 / 7, -4 / 7], [0, 0], [3 / 7, 4 / 7]]),
            f32([[0.6, -0.8], [0, 0], [0.6, 0.8]]),
            f32([[0.75, -1], [0, 0], [0.75, 1]]),
        ),
    ),
    CorpusEntry(
        "labels_by_number",
        "ArrayFeatureExtractor selects along the last axis, and makes a row of a 1-d input",
        graph(
            {"i": "int64[3,1]"},
            {"y": "int64[3]"},
            node("ArrayFeatureExtractor", "labels i", "picked"),
            any_node("Reshape", "picked flat", "y"),
            constants={"labels": i64(7, 5, -2), "flat": i64([-1])},
            ml=1,
        ),
        (i64([[2], [0], [2]]),),
        (i64(-2, 7, -2),),
    ),
    CorpusEntry(
        "stop_words_in_any_case",
        "stop words are removed regardless of case, and accents remain",
        graph(
            {"x": "string[4]"},
            {"y": "string[2]"},
            any_node("StringNormalizer", "x", "y", is_case_sensitive=0, stopwords=["the"]),
        ),
        (np.array(["The", "caf\u00e9", "the", "Bar"], object),),
        (np.array(["caf\u00e9", "Bar"], object),),
    ),
)
