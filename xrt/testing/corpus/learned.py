"""Operators of ai.onnx.ml: maps, and models that were learned."""

from __future__ import annotations

from typing import Any

import numpy as np

from xrt.graph import DType, MapType, SequenceType, TensorType
from xrt.testing.corpus.entry import CorpusEntry, f32, graph, i64, node as any_node

__all__ = ["ENTRIES"]

_OF_NUMBERS = MapType(DType.INT64, TensorType(DType.FLOAT32, ()))
_OF_TEXTS = MapType(DType.STRING, TensorType(DType.FLOAT32, ()))


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return any_node(op, inputs, outputs, domain="ai.onnx.ml", **attributes)


_MACHINE = {
    "classlabels_ints": [1, 5, 9],
    "kernel_type": "LINEAR",
    "kernel_params": [0.0, 0.0, 3.0],
    "support_vectors": [1.0, 0.0, -1.0],
    "vectors_per_class": [1, 1, 1],
    "coefficients": [1.0, -1.0, 0.5, 0.5, 1.0, -0.5],
    "rho": [-0.5, 0.25, 0.5],
    "prob_a": [-1.0, -2.0, -1.5],
    "prob_b": [0.0, 0.5, -0.25],
}
_OF_INTEGERS = {
    "classlabels_strings": ["no", "yes"],
    "kernel_type": "LINEAR",
    "kernel_params": [0.0, 0.0, 3.0],
    "support_vectors": [1.0, -1.0],
    "vectors_per_class": [1, 1],
    "coefficients": [0.5, -0.5],
    "rho": [0.25],
}

_TREE = {
    "nodes_treeids": [0, 0, 0, 0, 0],
    "nodes_nodeids": [0, 1, 2, 3, 4],
    "nodes_featureids": [0, 1, 0, 0, 0],
    "nodes_values": [0.5, 1.0, 0.0, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LT", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 2, 0, 0, 0],
    "nodes_falsenodeids": [4, 3, 0, 0, 0],
    "nodes_missing_value_tracks_true": [1, 0, 0, 0, 0],
    "target_treeids": [0, 0, 0],
    "target_nodeids": [2, 3, 4],
    "target_ids": [0, 0, 0],
    "target_weights": [1.0, 2.0, 4.0],
    "n_targets": 1,
}


_FOREST = {
    "nodes_treeids": [0, 0, 0, 0, 0, 1, 1, 1],
    "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
    "nodes_featureids": [0, 1, 0, 0, 0, 1, 0, 0],
    "nodes_values": [0.5, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 2, 0, 0, 0, 1, 0, 0],
    "nodes_falsenodeids": [4, 3, 0, 0, 0, 2, 0, 0],
    "class_treeids": [0, 0, 0, 1, 1],
    "class_nodeids": [2, 3, 4, 1, 2],
    "class_ids": [1, 1, 2, 0, 2],
    "class_weights": [1.0, 0.75, 0.25, 0.5, 1.0],
    "classlabels_int64s": [5, 7, -2],
}

ENTRIES: tuple[CorpusEntry, ...] = (
    CorpusEntry(
        "zip_map_of_integers",
        "what a classifier of scikit-learn gives by default: a list with a dictionary for each row",
        graph(
            {"x": "float32[N,2]"}, {"y": SequenceType(_OF_NUMBERS)}, node("ZipMap", "x", "y", classlabels_int64s=[7, -1]), ml=1
        ),
        (f32([[0.25, 0.75], [1, 0]]),),
        ([{7: 0.25, -1: 0.75}, {7: 1.0, -1: 0.0}],),
    ),
    CorpusEntry(
        "zip_map_of_texts",
        "labels that are texts are keys as they are, and what is computed before the map may be in another region",
        graph(
            {"x": "float32[1,2]"},
            {"y": SequenceType(_OF_TEXTS), "s": "float32[1,2]"},
            any_node("Mul", "x x", "s"),
            node("ZipMap", "s", "y", classlabels_strings=["no", "yes"]),
            ml=1,
        ),
        (f32([[0.5, 3]]),),
        ([{"no": 0.25, "yes": 9.0}], f32([[0.25, 9]])),
    ),
    CorpusEntry(
        "map_to_row",
        "a dictionary as an input: a key of the vocabulary that it lacks is zero",
        graph(
            {"x": _OF_TEXTS},
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
        "the values of a dictionary go in the order of their keys; sparse, into the columns that the keys name",
        graph(
            {"x": _OF_NUMBERS},
            {"dense": "float32[1,2]", "sparse": "int64[1,5]"},
            node("CastMap", "x", "dense"),
            node("CastMap", "x", "sparse", map_form="SPARSE", cast_to="TO_INT64", max_map=5),
            ml=1,
        ),
        ({3: 1.75, 1: -2.5},),
        (f32([[-2.5, 1.75]]), i64([[0, -2, 0, 1, 0]])),
    ),
    CorpusEntry(
        "svm_probabilities_of_three_classes",
        "the probabilities of pairs are coupled by a matrix whose elements are products of two of them, and no sums",
        graph(
            {"x": "float32[2,1]"},
            {"label": "int64[2]", "p": "float32[2,3]"},
            node("SVMClassifier", "x", "label p", **_MACHINE),
            ml=1,
        ),
        (f32([[0], [2]]),),
        (i64(5, 1), f32([[0.27448362, 0.5083821, 0.21713431], [0.55167294, 0.2453508, 0.20297626]])),
    ),
    CorpusEntry(
        "svm_of_integers",
        "integers as features: the decisions are floats all the same",
        graph(
            {"x": "int64[3,1]"},
            {"label": "string[3]", "scores": "float32[3,2]"},
            node("SVMClassifier", "x", "label scores", **_OF_INTEGERS),
            ml=1,
        ),
        (i64([[-1], [0], [2]]),),
        (np.array(["yes", "no", "no"], object), f32([[0.75, -0.75], [-0.25, 0.25], [-2.25, 2.25]])),
    ),
    CorpusEntry(
        "linear_regressor_without_intercepts",
        "intercepts that are left out are zero",
        graph(
            {"x": "float32[2,2]"},
            {"y": "float32[2,1]"},
            node("LinearRegressor", "x", "y", coefficients=[0.5, -2.0]),
            ml=1,
        ),
        (f32([[2, 1], [4, 0]]),),
        (f32([[-1], [2]]),),
    ),
    CorpusEntry(
        "scaled_integers",
        "a Scaler gives float32, whatever it is given",
        graph({"x": "int64[1,2]"}, {"y": "float32[1,2]"}, node("Scaler", "x", "y", offset=[0.5, 1.0], scale=[0.5, 0.25]), ml=1),
        (i64([[1, 2]]),),
        (f32([[0.25, 0.25]]),),
    ),
    CorpusEntry(
        "tree_of_two_features",
        "all rows go down a tree at once; NaN goes where the node says",
        graph(
            {"x": "float32[4,2]"},
            {"y": "float32[4,1]"},
            node("TreeEnsembleRegressor", "x", "y", **_TREE),
            ml=1,
        ),
        (f32([[0, 0], [0, 2], [1, 0], [float("nan"), 0]]),),
        (f32([[1], [2], [4], [1]]),),
    ),
    CorpusEntry(
        "forest_of_three_classes",
        "trees of other depths in one ensemble: a row that has come to a leaf stays there; the first of equal scores is chosen",
        graph(
            {"x": "float32[4,2]"},
            {"label": "int64[4]", "scores": "float32[4,3]"},
            node("TreeEnsembleClassifier", "x", "label scores", **_FOREST),
            ml=1,
        ),
        (f32([[0, 0], [0.5, 2], [1, 0], [1, 2]]),),
        (i64(7, -2, 5, -2), f32([[0.5, 1, 0], [0, 0.75, 1], [0.5, 0, 0.25], [0, 0, 1.25]])),
    ),
    CorpusEntry(
        "linear_scores_of_three_classes",
        "the label is that of the greatest score as it is before it is transformed",
        graph(
            {"x": "float32[2,2]"},
            {"label": "int64[2]", "scores": "float32[2,3]"},
            node(
                "LinearClassifier",
                "x",
                "label scores",
                coefficients=[1.0, 0.0, 0.0, 1.0, -1.0, -1.0],
                intercepts=[0.0, 0.5, 0.0],
                classlabels_ints=[3, 1, 2],
                post_transform="LOGISTIC",
            ),
            ml=1,
        ),
        (f32([[0, -0.5], [-2, -2]]),),
        (i64(2, 2), f32([[0.5, 0.5, 0.62245935], [0.11920292, 0.18242553, 0.98201376]])),
    ),
    CorpusEntry(
        "rows_over_their_norms",
        "a row is divided by its norm, though its squares overflow; a row of zeros stays",
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
        "support_vectors_near_a_row",
        "a regression by distances from two vectors",
        graph(
            {"x": "float32[2,2]"},
            {"y": "float32[2,1]"},
            node(
                "SVMRegressor",
                "x",
                "y",
                kernel_type="RBF",
                kernel_params=[0.5, 0.0, 3.0],
                support_vectors=[0.0, 0.0, 1.0, 1.0],
                coefficients=[1.0, -2.0],
                n_supports=2,
                rho=[0.25],
            ),
            ml=1,
        ),
        (f32([[0, 0], [1, 0]]),),
        (f32([[1 - 2 * np.exp(-1) + 0.25], [0.25 - np.exp(-0.5)]]),),
    ),
    CorpusEntry(
        "labels_by_number",
        "all numbers pick along the last axis, and from one axis they make a row; the shape is known where theirs is",
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
        "a stop word that is compared without regard to case is dropped in any, and accents stay",
        graph(
            {"x": "string[4]"},
            {"y": "string[2]"},
            any_node("StringNormalizer", "x", "y", is_case_sensitive=0, stopwords=["the"]),
        ),
        (np.array(["The", "caf\u00e9", "the", "Bar"], object),),
        (np.array(["caf\u00e9", "Bar"], object),),
    ),
)
