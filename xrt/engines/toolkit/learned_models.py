"""Decompose models of ai.onnx.ml (trees, SVMs, linear models) into operators of ai.onnx, for engines without kernels for them.

Supports float32 features, one row per sample, and integer labels; such engines have no strings. Other forms return None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from xrt.engines.toolkit.node_writer import as_function
from xrt.errors import ModelError
from xrt.graph import Constant, DType, Function, Node, TensorType, read_attributes
from xrt.passes import infer_shapes

__all__ = ["ML", "find_learned_definition"]

ML = "ai.onnx.ml"

LEAST_OPSET = 13
"""The first opset in which ReduceSum reads its axes from an input, as the decompositions write it."""
MAXIMUM_TAKES_AXES = 18
"""The first opset in which ReduceMax reads its axes from an input."""
DEEPEST = 24
"""Maximum depth of a tree, which is unrolled level by level."""
WIDEST = 1 << 16
"""Maximum of support vectors times features for one pairwise difference."""

_LARGEST = float(np.finfo(np.float32).max)
_COMPARED = {"BRANCH_LEQ": "LessOrEqual", "BRANCH_LT": "Less", "BRANCH_GTE": "GreaterOrEqual", "BRANCH_GT": "Greater"}


def find_learned_definition(node: Node, function: Function) -> Function | None:
    """Decompose a node of ai.onnx.ml into ai.onnx with inferred types; None if no decomposition is known.

    Values are named as in `as_function`.
    """
    if node.domain != ML or node.op_type not in _MEANINGS or node.control or function.opsets.get("", 0) < LEAST_OPSET:
        return None
    return _meaning(as_function(node, function))


@lru_cache(maxsize=256)
def _meaning(one: Function) -> Function | None:
    page = _Page(one)
    if page.features() is None or any(attribute.name.endswith("_as_tensor") for attribute in page.node.attributes):
        return None  # these attributes are float64
    try:
        results = _MEANINGS[page.node.op_type](page)
        return None if results is None else infer_shapes(page.whole(results))
    except (ModelError, ValueError, IndexError, TypeError, KeyError):  # inconsistent attributes
        return None


class _Page:
    """Writes the decomposition of one node; values are referred to by name."""

    def __init__(self, one: Function) -> None:
        self._one = one
        self._nodes: list[Node] = []
        self._constants = dict(one.constants)
        (self.node,) = one.nodes

    @property
    def opset(self) -> int:
        return self._one.opset()

    @property
    def x(self) -> str:
        return self.node.inputs[0]

    def type_of(self, name: str) -> TensorType | None:
        type_ = self._one.get_type(name)
        return type_ if isinstance(type_, TensorType) else None

    def features(self) -> int | None:
        """The number of features per row; None if unknown or if the input is not float32 rows.

        ArrayFeatureExtractor accepts any type.
        """
        type_ = self.type_of(self.x)
        if type_ is None or not type_.shape:
            return None
        is_any = self.node.op_type == "ArrayFeatureExtractor"
        is_row = type_.dtype is DType.FLOAT32 and len(type_.shape) == 2
        extent = type_.shape[-1] if is_any or is_row else None
        return extent if isinstance(extent, int) else None

    def attribute(self, name: str, default: Any = ()) -> Any:
        return self.node.attr(name, default)

    def write(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return the name of its result."""
        name = f"v{len(self._nodes)}"
        self._nodes.append(Node(op, inputs, (name,), read_attributes(attributes)))
        return name

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self._constants)}"
        self._constants[name] = Constant(np.array(value, dtype))
        return name

    def sum(self, name: str, axis: int, keepdims: int) -> str:
        return self.write("ReduceSum", name, self.constant([axis], np.int64), keepdims=keepdims)

    def whole(self, results: Sequence[str]) -> Function:
        ends = [Node("Identity", (name,), (end,)) for name, end in zip(results, self.node.outputs, strict=False) if end]
        return self._one.replace(nodes=(*self._nodes, *ends), constants=self._constants, types={}, opsets={"": self.opset})


_Meaning = Callable[[_Page], Sequence[str] | None]


# ---------------------------------------------------------------------- features


def _scaler(page: _Page) -> Sequence[str]:
    offset, scale = (page.attribute(name) or (neutral,) for name, neutral in (("offset", 0.0), ("scale", 1.0)))
    return [page.write("Mul", page.write("Sub", page.x, page.constant(offset)), page.constant(scale))]


def _normalizer(page: _Page) -> Sequence[str]:
    """Divide by the largest magnitude before computing the norm, so that squares do not overflow."""
    size = page.write("Abs", page.x)
    axes = {"axes": (1,)} if page.opset < MAXIMUM_TAKES_AXES else {}
    inputs = (size,) if axes else (size, page.constant([1], np.int64))
    greatest = page.write("ReduceMax", *inputs, keepdims=1, **axes)
    odd = page.write("Equal", greatest, page.constant(0.0)), page.write("Greater", greatest, page.constant(_LARGEST))
    one = page.constant(1.0)
    # Rows that are all 0 or contain infinities are divided by 1.
    unit = page.write("Div", page.x, page.write("Where", page.write("Or", *odd), one, greatest))
    norm = page.attribute("norm", "MAX")
    if norm == "MAX":
        return [page.write("Where", odd[1], page.write("Div", page.x, greatest), unit)]
    if norm == "L1":
        length = page.sum(page.write("Abs", unit), 1, 1)
    else:
        length = page.write("Sqrt", page.sum(page.write("Mul", unit, unit), 1, 1))
    return [page.write("Div", unit, page.write("Where", odd[0], one, length))]


def _array_feature_extractor(page: _Page) -> Sequence[str]:
    indices = page.write("Reshape", page.node.inputs[1], page.constant([-1], np.int64))
    type_ = page.type_of(page.x)
    axis = len(type_.shape or ()) - 1 if type_ is not None else 0
    picked = page.write("Gather", page.x, indices, axis=axis)
    return [picked if axis else page.write("Reshape", picked, page.constant([1, -1], np.int64))]


# ---------------------------------------------------------------------- scores


def _transformed(page: _Page, scores: str) -> str | None:
    """Apply ``post_transform`` to scores [rows, classes]; None for a transform that is not supported."""
    how = page.attribute("post_transform", "NONE")
    if how == "NONE":
        return scores
    if how == "LOGISTIC":
        return page.write("Sigmoid", scores)
    return page.write("Softmax", scores, axis=1) if how == "SOFTMAX" else None


def _alone(result: str | None) -> Sequence[str] | None:
    return None if result is None else [result]


def _labelled(page: _Page, scores: str, labels: Sequence[int]) -> Sequence[str] | None:
    """The label of the highest score, the first if equal, and the transformed scores."""
    best = page.write("ArgMax", scores, axis=1, keepdims=0)
    label = best if list(labels) == list(range(len(labels))) else page.write("Gather", page.constant(labels, np.int64), best)
    final = _transformed(page, scores)
    return None if final is None else [label, final]


def _of_one(page: _Page, score: str, is_share: bool) -> str:
    """Scores of two classes from that of the second."""
    other = page.write("Sub", page.constant(1.0), score) if is_share else page.write("Neg", score)
    return page.write("Concat", other, score, axis=1)


# ---------------------------------------------------------------------- linear models


def _weighted(page: _Page, count: int) -> str:
    weights = np.array(page.attribute("coefficients"), np.float32).reshape(count, page.features() or 0)
    product = page.write("MatMul", page.x, page.constant(weights.T))
    added = page.attribute("intercepts")
    return page.write("Add", product, page.constant(added)) if added else product


def _linear_regressor(page: _Page) -> Sequence[str] | None:
    return _alone(_transformed(page, _weighted(page, page.attribute("targets", 1))))


def _linear_classifier(page: _Page) -> Sequence[str] | None:
    labels = page.attribute("classlabels_ints")
    count = len(page.attribute("coefficients")) // (page.features() or 1)
    if len(labels) != count or count < 2:
        return None
    return _labelled(page, _weighted(page, count), labels)


def _svm_regressor(page: _Page) -> Sequence[str] | None:
    count, features, kind = page.attribute("n_supports", 0), page.features() or 0, page.attribute("kernel_type", "LINEAR")
    if not count or page.attribute("one_class", 0) or kind not in ("LINEAR", "RBF") or count * features > WIDEST:
        return None
    vectors = np.array(page.attribute("support_vectors"), np.float32).reshape(count, features)
    coefficients = page.constant(np.array(page.attribute("coefficients"), np.float32).reshape(count, 1))
    if kind == "LINEAR":
        near = page.write("MatMul", page.x, page.constant(vectors.T))
    else:
        # All pairs [rows, supports, features], bounded by WIDEST.
        apart = page.write("Sub", page.write("Unsqueeze", page.x, page.constant([1], np.int64)), page.constant(vectors))
        distance = page.sum(page.write("Mul", apart, apart), 2, 0)
        near = page.write("Exp", page.write("Mul", distance, page.constant(-page.attribute("kernel_params")[0])))
    scores = page.write("Add", page.write("MatMul", near, coefficients), page.constant(page.attribute("rho", (0.0,))[0]))
    return _alone(_transformed(page, scores))


# ---------------------------------------------------------------------- trees


def _leaves(page: _Page) -> str | None:
    """Traverse all trees for all rows at once, level by level; return the leaf indices [rows, trees]."""
    keys = list(zip(page.attribute("nodes_treeids"), page.attribute("nodes_nodeids"), strict=True))
    at = {key: place for place, key in enumerate(keys)}
    modes = page.attribute("nodes_modes")
    kinds = {mode for mode in modes if mode != "LEAF"}
    # Reversed, so that the first node of each tree wins: its root.
    roots = list({tree: place for place, (tree, _) in reversed(list(enumerate(keys)))}.values())
    if len(kinds) != 1 or not kinds <= set(_COMPARED) or any(page.attribute("nodes_missing_value_tracks_true")):
        return None
    # A leaf points to itself, so that rows that reach one early stay there.
    behind = [
        [
            here if mode == "LEAF" else at[tree, to]
            for here, (mode, (tree, _), to) in enumerate(zip(modes, keys, ids, strict=True))
        ]
        for ids in (page.attribute("nodes_truenodeids"), page.attribute("nodes_falsenodeids"))
    ]
    depth = _depth(roots, behind)
    # Each level adds nodes to the graph, and every row traverses all of them.
    if not 0 < depth <= DEEPEST:
        return None
    tables = {"feature": page.attribute("nodes_featureids"), "true": behind[0], "false": behind[1]}
    tables = {name: np.array(table, np.int32) for name, table in tables.items()}
    tables["value"] = np.array(page.attribute("nodes_values"), np.float32)
    compare = _COMPARED[kinds.pop()]
    # The first level reads constants: all rows start at the roots.
    first = {name: page.constant(table[roots], table.dtype) for name, table in tables.items()}
    holds = page.write(compare, page.write("Gather", page.x, first["feature"], axis=1), first["value"])
    place = page.write("Where", holds, first["true"], first["false"])
    known = {name: page.constant(table, table.dtype) for name, table in tables.items()}
    for _ in range(depth - 1):
        now = {name: page.write("Gather", table, place, axis=0) for name, table in known.items()}
        holds = page.write(compare, page.write("GatherElements", page.x, now["feature"], axis=1), now["value"])
        place = page.write("Where", holds, now["true"], now["false"])
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


def _added(page: _Page, prefix: str, columns: int) -> str | None:
    """Sum the weights of the reached leaves per column [rows, columns]."""
    place = _leaves(page)
    if place is None:
        return None
    keys = zip(page.attribute("nodes_treeids"), page.attribute("nodes_nodeids"), strict=True)
    at = {key: place for place, key in enumerate(keys)}
    # float64 sums: several entries may add to one leaf. Converted to float32 at the end.
    weights = np.zeros((len(at), columns))
    parts = ("treeids", "nodeids", "ids", "weights")
    for tree, number, column, value in zip(*(page.attribute(f"{prefix}_{part}") for part in parts), strict=True):
        weights[at[tree, number], column] += value
    return page.sum(page.write("Gather", page.constant(weights), place, axis=0), 1, 0)


def _tree_ensemble_regressor(page: _Page) -> Sequence[str] | None:
    if page.attribute("aggregate_function", "SUM") != "SUM":
        return None
    scores, base = _added(page, "target", page.attribute("n_targets", 1)), page.attribute("base_values")
    if scores is None:
        return None
    return _alone(_transformed(page, page.write("Add", scores, page.constant(base)) if base else scores))


def _tree_ensemble_classifier(page: _Page) -> Sequence[str] | None:
    labels, ids = page.attribute("classlabels_int64s"), sorted(set(page.attribute("class_ids")))
    base, how = page.attribute("base_values"), page.attribute("post_transform", "NONE")
    if len(labels) < 2 or max(ids) >= len(labels) or (len(ids) == 1 and len(labels) != 2):
        return None
    scores = _added(page, "class", len(labels))
    if scores is None:
        return None
    if len(ids) == 1:
        scores = page.write("Gather", scores, page.constant(ids, np.int32), axis=1)
        scores = page.write("Add", scores, page.constant(base[-1])) if base else scores
        # Scores of positive weights are probabilities p and 1 - p; others are a margin, s and -s.
        scores = _of_one(page, scores, min(page.attribute("class_weights")) >= 0 and how == "NONE")
    elif base:
        scores = page.write("Add", scores, page.constant(base))
    return _labelled(page, scores, labels)


_MEANINGS: Mapping[str, _Meaning] = {
    "ArrayFeatureExtractor": _array_feature_extractor,
    "LinearClassifier": _linear_classifier,
    "LinearRegressor": _linear_regressor,
    "Normalizer": _normalizer,
    "SVMRegressor": _svm_regressor,
    "Scaler": _scaler,
    "TreeEnsembleClassifier": _tree_ensemble_classifier,
    "TreeEnsembleRegressor": _tree_ensemble_regressor,
}
