"""Decompose models of ai.onnx.ml (trees, SVMs, linear models) into operators of ai.onnx, for engines without kernels for them.

Supports float32 features, one row per sample, and integer labels; such engines have no strings. Other forms return None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from xrt.graph import DType
from xrt.operators.decompositions import decomposition
from xrt.operators.rewriting import NodeWriter

__all__ = ["ML"]

ML = "ai.onnx.ml"

LEAST_OPSET = 13
"""The first opset in which ReduceSum reads its axes from an input, as the decompositions write it."""
DEEPEST = 24
"""Maximum depth of a tree, which is unrolled level by level."""
WIDEST = 1 << 16
"""Maximum of support vectors times features for one pairwise difference."""

_LARGEST = float(np.finfo(np.float32).max)
_COMPARED = {"BRANCH_LEQ": "LessOrEqual", "BRANCH_LT": "Less", "BRANCH_GTE": "GreaterOrEqual", "BRANCH_GT": "Greater"}


def _find_features(w: NodeWriter) -> int | None:
    """The number of features per row; None if unknown or if the input is not float32 rows.

    ArrayFeatureExtractor accepts any type.
    """
    type_ = w.find_type(w.x)
    if type_ is None or not type_.shape:
        return None
    is_any = w.node.op_type == "ArrayFeatureExtractor"
    is_row = type_.dtype is DType.FLOAT32 and len(type_.shape) == 2
    extent = type_.shape[-1] if is_any or is_row else None
    return extent if isinstance(extent, int) else None


_Rule: TypeAlias = Callable[[NodeWriter], Sequence[str] | None]


def model(op_type: str) -> Callable[[_Rule], _Rule]:
    """Decorator: register the decomposition of a model with a known number of features."""

    def register(rule: _Rule) -> _Rule:
        @decomposition(f"{ML}.{op_type}", since=LEAST_OPSET)
        def write(w: NodeWriter) -> Sequence[str] | None:
            # Attributes as tensors are float64.
            if _find_features(w) is None or any(attribute.name.endswith("_as_tensor") for attribute in w.node.attributes):
                return None
            return rule(w)

        return rule

    return register


# ---------------------------------------------------------------------- features


@model("Scaler")
def _scaler(w: NodeWriter) -> Sequence[str]:
    offset, scale = (w.attr(name) or (neutral,) for name, neutral in (("offset", 0.0), ("scale", 1.0)))
    return [w.op("Mul", w.op("Sub", w.x, w.constant(offset, np.float32)), w.constant(scale, np.float32))]


@model("Normalizer")
def _normalizer(w: NodeWriter) -> Sequence[str]:
    """Divide by the largest magnitude before computing the norm, so that squares do not overflow."""
    size = w.op("Abs", w.x)
    greatest = w.reduce("ReduceMax", size, [1])
    odd = w.op("Equal", greatest, w.constant(0.0, np.float32)), w.op("Greater", greatest, w.constant(_LARGEST, np.float32))
    one = w.constant(1.0, np.float32)
    # Rows that are all 0 or contain infinities are divided by 1.
    unit = w.op("Div", w.x, w.op("Where", w.op("Or", *odd), one, greatest))
    norm = w.attr("norm", "MAX")
    if norm == "MAX":
        return [w.op("Where", odd[1], w.op("Div", w.x, greatest), unit)]
    if norm == "L1":
        length = w.reduce("ReduceSum", w.op("Abs", unit), [1], 1)
    else:
        length = w.op("Sqrt", w.reduce("ReduceSum", w.op("Mul", unit, unit), [1], 1))
    return [w.op("Div", unit, w.op("Where", odd[0], one, length))]


@model("ArrayFeatureExtractor")
def _array_feature_extractor(w: NodeWriter) -> Sequence[str]:
    indices = w.op("Reshape", w.node.inputs[1], w.integers([-1]))
    type_ = w.find_type(w.x)
    axis = len(type_.shape or ()) - 1 if type_ is not None else 0
    picked = w.op("Gather", w.x, indices, axis=axis)
    return [picked if axis else w.op("Reshape", picked, w.integers([1, -1]))]


# ---------------------------------------------------------------------- scores


def _transformed(w: NodeWriter, scores: str) -> str | None:
    """Apply ``post_transform`` to scores [rows, classes]; None for a transform that is not supported."""
    how = w.attr("post_transform", "NONE")
    if how == "NONE":
        return scores
    if how == "LOGISTIC":
        return w.op("Sigmoid", scores)
    return w.op("Softmax", scores, axis=1) if how == "SOFTMAX" else None


def _alone(result: str | None) -> Sequence[str] | None:
    return None if result is None else [result]


def _labelled(w: NodeWriter, scores: str, labels: Sequence[int]) -> Sequence[str] | None:
    """The label of the highest score, the first if equal, and the transformed scores."""
    best = w.op("ArgMax", scores, axis=1, keepdims=0)
    label = best if list(labels) == list(range(len(labels))) else w.op("Gather", w.constant(labels, np.int64), best)
    final = _transformed(w, scores)
    return None if final is None else [label, final]


def _of_one(w: NodeWriter, score: str, is_share: bool) -> str:
    """Scores of two classes from that of the second."""
    other = w.op("Sub", w.constant(1.0, np.float32), score) if is_share else w.op("Neg", score)
    return w.op("Concat", other, score, axis=1)


# ---------------------------------------------------------------------- linear models


def _weighted(w: NodeWriter, count: int) -> str:
    weights = np.array(w.attr("coefficients", ()), np.float32).reshape(count, _find_features(w) or 0)
    product = w.op("MatMul", w.x, w.constant(weights.T, np.float32))
    added = w.attr("intercepts", ())
    return w.op("Add", product, w.constant(added, np.float32)) if added else product


@model("LinearRegressor")
def _linear_regressor(w: NodeWriter) -> Sequence[str] | None:
    return _alone(_transformed(w, _weighted(w, w.attr("targets", 1))))


@model("LinearClassifier")
def _linear_classifier(w: NodeWriter) -> Sequence[str] | None:
    labels = w.attr("classlabels_ints", ())
    count = len(w.attr("coefficients", ())) // (_find_features(w) or 1)
    if len(labels) != count or count < 2:
        return None
    return _labelled(w, _weighted(w, count), labels)


@model("SVMRegressor")
def _svm_regressor(w: NodeWriter) -> Sequence[str] | None:
    count, features, kind = w.attr("n_supports", 0), _find_features(w) or 0, w.attr("kernel_type", "LINEAR")
    if not count or w.attr("one_class", 0) or kind not in ("LINEAR", "RBF") or count * features > WIDEST:
        return None
    vectors = np.array(w.attr("support_vectors", ()), np.float32).reshape(count, features)
    coefficients = w.constant(np.array(w.attr("coefficients", ()), np.float32).reshape(count, 1), np.float32)
    if kind == "LINEAR":
        near = w.op("MatMul", w.x, w.constant(vectors.T, np.float32))
    else:
        # All pairs [rows, supports, features], bounded by WIDEST.
        apart = w.op("Sub", w.op("Unsqueeze", w.x, w.integers([1])), w.constant(vectors, np.float32))
        distance = w.reduce("ReduceSum", w.op("Mul", apart, apart), [2], 0)
        near = w.op("Exp", w.op("Mul", distance, w.constant(-w.attr("kernel_params", ())[0], np.float32)))
    scores = w.op("Add", w.op("MatMul", near, coefficients), w.constant(w.attr("rho", (0.0,))[0], np.float32))
    return _alone(_transformed(w, scores))


# ---------------------------------------------------------------------- trees


def _leaves(w: NodeWriter) -> str | None:
    """Traverse all trees for all rows at once, level by level; return the leaf indices [rows, trees]."""
    keys = list(zip(w.attr("nodes_treeids", ()), w.attr("nodes_nodeids", ()), strict=True))
    at = {key: place for place, key in enumerate(keys)}
    modes = w.attr("nodes_modes", ())
    kinds = {mode for mode in modes if mode != "LEAF"}
    # Reversed, so that the first node of each tree wins: its root.
    roots = list({tree: place for place, (tree, _) in reversed(list(enumerate(keys)))}.values())
    if len(kinds) != 1 or not kinds <= set(_COMPARED) or any(w.attr("nodes_missing_value_tracks_true", ())):
        return None
    # A leaf points to itself, so that rows that reach one early stay there.
    behind = [
        [
            here if mode == "LEAF" else at[tree, to]
            for here, (mode, (tree, _), to) in enumerate(zip(modes, keys, ids, strict=True))
        ]
        for ids in (w.attr("nodes_truenodeids", ()), w.attr("nodes_falsenodeids", ()))
    ]
    depth = _depth(roots, behind)
    # Each level adds nodes to the graph, and every row traverses all of them.
    if not 0 < depth <= DEEPEST:
        return None
    tables = {"feature": w.attr("nodes_featureids", ()), "true": behind[0], "false": behind[1]}
    tables = {name: np.array(table, np.int32) for name, table in tables.items()}
    tables["value"] = np.array(w.attr("nodes_values", ()), np.float32)
    compare = _COMPARED[kinds.pop()]
    # The first level reads constants: all rows start at the roots.
    first = {name: w.constant(table[roots], table.dtype) for name, table in tables.items()}
    holds = w.op(compare, w.op("Gather", w.x, first["feature"], axis=1), first["value"])
    place = w.op("Where", holds, first["true"], first["false"])
    known = {name: w.constant(table, table.dtype) for name, table in tables.items()}
    for _ in range(depth - 1):
        now = {name: w.op("Gather", table, place, axis=0) for name, table in known.items()}
        holds = w.op(compare, w.op("GatherElements", w.x, now["feature"], axis=1), now["value"])
        place = w.op("Where", holds, now["true"], now["false"])
    return place


def _depth(roots: Sequence[int], behind: Sequence[Sequence[int]]) -> int:
    """Depth of the deepest leaf, counted up to `DEEPEST` + 1."""
    depth, level = 0, set(roots)
    while depth <= DEEPEST:
        level = {to for place in level for to in (behind[0][place], behind[1][place]) if to != place}
        if not level:
            break
        depth += 1
    return depth


def _added(w: NodeWriter, prefix: str, columns: int) -> str | None:
    """Sum the weights of the reached leaves per column [rows, columns]."""
    place = _leaves(w)
    if place is None:
        return None
    keys = zip(w.attr("nodes_treeids", ()), w.attr("nodes_nodeids", ()), strict=True)
    at = {key: place for place, key in enumerate(keys)}
    # float64 sums: several entries may add to one leaf. Converted to float32 at the end.
    weights = np.zeros((len(at), columns))
    parts = ("treeids", "nodeids", "ids", "weights")
    for tree, number, column, value in zip(*(w.attr(f"{prefix}_{part}", ()) for part in parts), strict=True):
        weights[at[tree, number], column] += value
    return w.reduce("ReduceSum", w.op("Gather", w.constant(weights, np.float32), place, axis=0), [1], 0)


@model("TreeEnsembleRegressor")
def _tree_ensemble_regressor(w: NodeWriter) -> Sequence[str] | None:
    if w.attr("aggregate_function", "SUM") != "SUM":
        return None
    scores, base = _added(w, "target", w.attr("n_targets", 1)), w.attr("base_values", ())
    if scores is None:
        return None
    return _alone(_transformed(w, w.op("Add", scores, w.constant(base, np.float32)) if base else scores))


@model("TreeEnsembleClassifier")
def _tree_ensemble_classifier(w: NodeWriter) -> Sequence[str] | None:
    labels, ids = w.attr("classlabels_int64s"), sorted(set(w.attr("class_ids", ())))
    base, how = w.attr("base_values", ()), w.attr("post_transform", "NONE")
    if len(labels) < 2 or max(ids) >= len(labels) or (len(ids) == 1 and len(labels) != 2):
        return None
    scores = _added(w, "class", len(labels))
    if scores is None:
        return None
    if len(ids) == 1:
        scores = w.op("Gather", scores, w.constant(ids, np.int32), axis=1)
        scores = w.op("Add", scores, w.constant(base[-1], np.float32)) if base else scores
        # Scores of positive weights are probabilities p and 1 - p; others are a margin, s and -s.
        scores = _of_one(w, scores, min(w.attr("class_weights", ())) >= 0 and how == "NONE")
    elif base:
        scores = w.op("Add", scores, w.constant(base, np.float32))
    return _labelled(w, scores, labels)
