"""Learned models of ai.onnx.ml (features, linear models, support vector machines, trees), their maps, and text normalization."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.kernels.table import Array, Run, numpy_only as ops
from xrt.graph import MapType, Node, SequenceType, TensorType, Type

if TYPE_CHECKING:
    from xrt.engines.kernels.table import NodeContext

ML = "ai.onnx.ml"
ZERO = 1e-7
"""SOFTMAX_ZERO treats scores up to this magnitude as zero."""
_LABELS = (
    *("classlabels_ints", "classlabels_int64s", "classlabels_strings", "cats_int64s", "cats_strings"),
    *("int64_vocabulary", "string_vocabulary"),
)


def _read_labels(node: Node) -> list[Any]:
    """The labels, categories or keys that the node lists, integers or strings; empty if it lists none."""
    return next((list(labels) for name in _LABELS if (labels := node.attr(name))), [])


def _read_keys(node: Node) -> list[Any]:
    if keys := _read_labels(node):
        return keys
    raise ValueError(f"{node.op} lists no keys")


def _as_labels(values: Sequence[Any], labels: Sequence[Any]) -> Array:
    """Convert labels to an array: of strings if any of the node's ``labels`` is one, else of integers."""
    return np.array(values, dtype=object if any(isinstance(label, str) for label in labels) else np.int64)


def _as_rows(x: Array) -> Array:
    """The features in double precision, one sample per row; a vector is one sample."""
    return (x[None] if x.ndim == 1 else x.reshape(len(x), -1)).astype(np.float64)


def _transform(scores: Array, node: Node) -> Array:
    """Apply the node's ``post_transform`` to scores [rows, classes]; float32."""
    transform = node.attr("post_transform", "NONE")
    if transform == "LOGISTIC":
        # exp overflows beyond 709.
        scores = 1 / (1 + np.exp(-np.clip(scores, -700, 700)))
    elif transform in ("SOFTMAX", "SOFTMAX_ZERO"):
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights = np.where(np.abs(scores) <= ZERO, 0.0, weights) if transform == "SOFTMAX_ZERO" else weights
        # SOFTMAX_ZERO may leave a row without any weight, which then stays zero.
        total = weights.sum(axis=1, keepdims=True)
        scores = np.divide(weights, total, out=np.zeros_like(weights), where=total != 0)
    elif transform == "PROBIT":
        scores = _probit(scores)
    return scores.astype(np.float32)


def _probit(p: Array) -> Array:
    """The inverse of the normal distribution, by Winitzki's approximation, as ONNX Runtime computes it."""
    x = 2 * p - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.log((1 - x) * (1 + x))
        half = 2 / (np.pi * 0.147) + 0.5 * log
        return np.sqrt(2) * np.copysign(np.sqrt(np.sqrt(half * half - log / 0.147) - half), x)


# ---------------------------------------------------------------------- features


@ops("Scaler", domain=ML)
def scaler(node: Node, env: NodeContext) -> Run:
    """Computes ``(x - offset) * scale`` in float32 for every feature type."""
    offset, scale = (np.array(node.attr(name) or (neutral,), np.float64) for name, neutral in (("offset", 0.0), ("scale", 1.0)))
    return lambda x: ((x.astype(np.float64) - offset) * scale).astype(np.float32)


@ops("Normalizer", domain=ML)
def normalizer(node: Node, env: NodeContext) -> Run:
    """Divide each row by its norm, in float32; a row of zeros is unchanged."""
    norm = node.attr("norm", "MAX")

    def run(x: Array) -> Array:
        wide = x.astype(np.float64)
        if norm == "L2":
            size = np.sqrt(np.square(wide).sum(axis=-1, keepdims=True))
        else:
            size = (np.abs(wide).sum if norm == "L1" else np.abs(wide).max)(axis=-1, keepdims=True)
        return np.divide(wide, size, out=wide.copy(), where=size != 0).astype(np.float32)

    return run


@ops("FeatureVectorizer", domain=ML)
def feature_vectorizer(node: Node, env: NodeContext) -> Run:
    """Concatenate the inputs in float32, each cropped or zero-padded to its width."""

    def run(*values: Array) -> Array:
        parts = [x.reshape(len(x), -1) for x in values]
        widths = node.attr("inputdimensions") or [part.shape[1] for part in parts]
        padded = [np.pad(x[:, :width], ((0, 0), (0, max(0, width - x.shape[1])))) for x, width in zip(parts, widths, strict=True)]
        return np.concatenate(padded, axis=1).astype(np.float32)

    return run


@ops("OneHotEncoder", domain=ML)
def one_hot_encoder(node: Node, env: NodeContext) -> Run:
    """Append an axis with a one at the element's category. An unknown element gives zeros, or an error with ``zeros=0``."""
    categories = _read_labels(node)
    labels = _as_labels(categories, categories)

    def run(x: Array) -> Array:
        hot = np.asarray(x[..., None] == labels)
        if not node.attr("zeros", 1) and not hot.any(axis=-1).all():
            missing = x[~hot.any(axis=-1)].reshape(-1)[0]
            raise ValueError(f"{missing!r} is none of the {len(categories)} categories, and zeros=0 allows no row without one")
        return hot.astype(np.float32)

    return run


# ---------------------------------------------------------------------- maps


@ops("ZipMap", domain=ML)
def zip_map(node: Node, env: NodeContext) -> Run:
    """One map per row, from the node's labels to the row's elements. A vector is one row."""
    keys = _read_keys(node)

    def run(x: Array) -> list[dict[int | str, float]]:
        rows = x[None] if x.ndim == 1 else x
        if rows.ndim != 2 or rows.shape[1] != len(keys):
            raise ValueError(f"the tensor has shape {list(x.shape)}; it must have one column for each of {len(keys)} keys")
        return [dict(zip(keys, row, strict=True)) for row in rows.tolist()]

    return run


@ops("DictVectorizer", domain=ML)
def dict_vectorizer(node: Node, env: NodeContext) -> Run:
    """The values of the vocabulary's keys, zero or an empty string for a missing key. A list of maps gives several rows.

    ONNX specifies a vector. The result is [1, keys], as in ONNX Runtime, because converters stack such rows.
    """
    keys = _read_keys(node)
    declared = _find_value_dtype(env.function.get_type(node.inputs[0]))

    def run(x: Mapping[Any, Any] | Sequence[Mapping[Any, Any]]) -> Array:
        maps = [x] if isinstance(x, Mapping) else x
        dtype = np.dtype(declared or _guess_dtype(maps))
        absent: Any = "" if dtype.hasobject else 0
        rows = [[entry.get(key, absent) for key in keys] for entry in maps]
        return np.array(rows, dtype=dtype).reshape(len(maps), len(keys))

    return run


def _find_value_dtype(type_: Type | None) -> Any:
    """NumPy's type of a map's values; None if unknown."""
    inside = type_.element if isinstance(type_, SequenceType) else type_
    return inside.value.dtype.numpy if isinstance(inside, MapType) and isinstance(inside.value, TensorType) else None


def _guess_dtype(maps: Sequence[Mapping[Any, Any]]) -> Any:
    first = next((value for entry in maps for value in entry.values()), 0.0)
    return object if isinstance(first, str) else np.int64 if isinstance(first, int) else np.float32


@ops("CastMap", domain=ML)
def cast_map(node: Node, env: NodeContext) -> Run:
    """The values [1, count] in the order of their keys; in the sparse form, each in the column of its key, below ``max_map``.

    ONNX does not specify strings: numbers have six digits, and empty columns "0.f", as in ONNX Runtime.
    """
    convert, dtype, absent = _CASTS[node.attr("cast_to", "TO_FLOAT")]
    # In the dense form `max_map` has no meaning.
    columns = node.attr("max_map", 1) if node.attr("map_form", "DENSE") == "SPARSE" else None

    def run(x: Mapping[int, float | str]) -> Array:
        if columns is None:
            return np.array([[convert(x[key]) for key in sorted(x)]], dtype=dtype).reshape(1, len(x))
        if x and min(x) < 0:
            raise ValueError(f"the map has the key {min(x)}; a sparse one names columns from 0 on")
        return np.array([[convert(x[key]) if key in x else absent for key in range(columns)]], dtype=dtype).reshape(1, columns)

    return run


_CASTS: Mapping[str, tuple[Any, Any, Any]] = {
    "TO_FLOAT": (float, np.float32, 0.0),
    "TO_INT64": (int, np.int64, 0),
    "TO_STRING": (lambda value: value if isinstance(value, str) else f"{value:f}", object, "0.f"),
}
"""By ``cast_to``: the conversion of a value, the element type of the result, and the default for a column without a key."""


@ops("CategoryMapper", domain=ML)
def category_mapper(node: Node, env: NodeContext) -> Run:
    """Map integers to strings or strings to integers."""
    numbers, texts = node.attr("cats_int64s", ()), node.attr("cats_strings", ())
    to_number, to_text = dict(zip(texts, numbers, strict=True)), dict(zip(numbers, texts, strict=True))
    unknown_text, unknown_number = node.attr("default_string", "_Unused"), node.attr("default_int64", -1)

    def run(x: Array) -> Array:
        if x.dtype.kind == "O":
            return np.array([to_number.get(text, unknown_number) for text in x.reshape(-1)], dtype=np.int64).reshape(x.shape)
        return np.array([to_text.get(n, unknown_text) for n in x.reshape(-1).tolist()], dtype=object).reshape(x.shape)

    return run


# ---------------------------------------------------------------------- linear models


def _read_weights(node: Node, count: int) -> tuple[Array, Array]:
    """The coefficients [count, features] and intercepts."""
    coefficients = np.array(node.attr("coefficients"), np.float64).reshape(count, -1)
    return coefficients, np.array(node.attr("intercepts") or (0.0,), np.float64)


@ops("LinearRegressor", domain=ML)
def linear_regressor(node: Node, env: NodeContext) -> Run:
    weights, intercepts = _read_weights(node, node.attr("targets", 1))
    return lambda x: _transform(_as_rows(x) @ weights.T + intercepts, node)


@ops("LinearClassifier", domain=ML)
def linear_classifier(node: Node, env: NodeContext) -> Run:
    """The label of the highest score before ``post_transform``, and the scores.

    One row of coefficients scores the second of two classes.
    """
    labels = _read_labels(node)

    def run(x: Array) -> tuple[Array, Array]:
        features = _as_rows(x)
        weights, intercepts = _read_weights(node, len(node.attr("coefficients")) // features.shape[1])
        scores = features @ weights.T + intercepts
        if scores.shape[1] > 1:
            row_labels = [labels[i] if labels else int(i) for i in scores.argmax(axis=1)]
            return _as_labels(row_labels, labels), _transform(scores, node)
        wins = scores[:, 0] > 0
        if len(labels) == 2:
            # Without a transform the scores are a probability and its complement, as in ONNX Runtime.
            other = 1 - scores if node.attr("post_transform", "NONE") == "NONE" else -scores
            return _as_labels([labels[int(win)] for win in wins], labels), _transform(np.hstack([other, scores]), node)
        yes, no = (labels[0], "" if isinstance(labels[0], str) else 0) if labels else (1, 0)
        return _as_labels([yes if win else no for win in wins], labels), _transform(scores, node)

    return run


# ---------------------------------------------------------------------- support vector machines

LEAST = 1e-7
"""Pairwise probabilities are clipped to at least this distance from 0 and 1."""


def _make_similarity(node: Node) -> Callable[[Array, Array], Array]:
    """The kernel function of the node: the similarities [rows, vectors] of features and support vectors."""
    kind = node.attr("kernel_type", "LINEAR")
    gamma, coef0, degree = (*node.attr("kernel_params", ()), 0.0, 0.0, 0.0)[:3]
    if kind == "RBF":
        return lambda x, vectors: np.exp(-gamma * ((x[:, None] - vectors) ** 2).sum(axis=2))
    if kind == "POLY":
        return lambda x, vectors: (gamma * (x @ vectors.T) + coef0) ** int(degree)
    if kind == "SIGMOID":
        return lambda x, vectors: np.tanh(gamma * (x @ vectors.T) + coef0)
    return lambda x, vectors: x @ vectors.T


def _read_vectors(node: Node, count: int) -> Array:
    """The support vectors [count, features]."""
    return np.array(node.attr("support_vectors", ()), np.float64).reshape(count, -1)


@ops("SVMRegressor", domain=ML)
def svm_regressor(node: Node, env: NodeContext) -> Run:
    """One number per row, or with ``one_class`` 1 inside and -1 outside."""
    count, coefficients = node.attr("n_supports", 0), np.array(node.attr("coefficients"), np.float64)
    similarity, vectors = _make_similarity(node), _read_vectors(node, count or 1)
    rho = float(node.attr("rho", (0.0,))[0])

    def run(x: Array) -> Array:
        features = _as_rows(x)
        sums = similarity(features, vectors) @ coefficients if count else features @ coefficients
        scores = (sums + rho)[:, None]
        return np.where(scores > 0, 1.0, -1.0).astype(np.float32) if node.attr("one_class", 0) else _transform(scores, node)

    return run


def _decide_pairs(similarity: Array, coefficients: Array, counts: Sequence[int], rho: Array) -> Array:
    """The decision of each pair of classes, positive for the first one.

    ``counts`` are the vectors of each class, and the coefficients [classes - 1, vectors] have libsvm's layout.
    """
    parts = [slice(end - count, end) for end, count in zip(np.cumsum(counts), counts, strict=True)]
    decisions = [
        similarity[:, parts[i]] @ coefficients[j - 1, parts[i]] + similarity[:, parts[j]] @ coefficients[i, parts[j]] + offset
        for (i, j), offset in zip(combinations(range(len(parts)), 2), rho, strict=False)
    ]
    return np.stack(decisions, axis=1)


def _count_votes(decisions: Array, classes: int) -> Array:
    """The number of pairs that each class wins."""
    votes = np.zeros((len(decisions), classes))
    for pair, (i, j) in enumerate(combinations(range(classes), 2)):
        votes[:, i] += decisions[:, pair] > 0
        votes[:, j] += decisions[:, pair] <= 0
    return votes


@ops("SVMClassifier", domain=ML)
def svm_classifier(node: Node, env: NodeContext) -> Run:
    """The labels and the scores: probabilities if the node has their parameters, else decisions.

    The node has one decision per pair of classes, or, without support vectors, one linear score per class.
    """
    labels, counts, similarity = _read_labels(node), node.attr("vectors_per_class", ()), _make_similarity(node)
    classes = max(len(labels), 1)
    vectors = _read_vectors(node, sum(counts) or 1)
    coefficients = np.array(node.attr("coefficients"), np.float64).reshape((-1, sum(counts)) if counts else (classes, -1))
    rho, a, b = (np.array(node.attr(name, ()), np.float64) for name in ("rho", "prob_a", "prob_b"))
    has_probabilities, has_one_decision = bool(counts) and len(a) > 0, len(rho) == 1
    second_by_half = bool((coefficients >= 0).all()) and not has_probabilities

    def choose(weights: Array) -> Any:
        best = int(weights.argmax())
        # As in ONNX Runtime, which reads one score from positive coefficients as the probability of the second class.
        if has_one_decision and len(labels) == 2 and second_by_half:
            return labels[1] if weights[best] >= 0.5 else labels[best]
        if has_one_decision and not labels:
            return int(weights[best] > 0)
        return labels[best] if labels else best

    def run(x: Array) -> tuple[Array, Array]:
        features = _as_rows(x)
        if counts:
            decisions = _decide_pairs(similarity(features, vectors), coefficients, counts, rho)
            weights = _count_votes(decisions, len(counts))
        else:
            decisions = weights = features @ coefficients.T + rho[0]
        scores = np.stack([_couple(row, a, b, classes) for row in decisions]) if has_probabilities else decisions
        if scores.shape[1] == 1 and len(labels) == 2 and has_one_decision and node.attr("post_transform") != "PROBIT":
            scores = np.hstack([-scores, scores])
        return _as_labels([choose(row) for row in weights], labels), _transform(scores, node)

    return run


def _couple(decisions: Array, a: Array, b: Array, classes: int) -> Array:
    """Couple the probabilities of pairs of classes to those of classes, which minimize ``p @ q @ p``.

    Wu, Lin and Weng, Probability Estimates for Multi-class Classification by Pairwise Coupling, Journal of Machine Learning
    Research 5 (2004), the second method, in the order of steps of libsvm.
    """
    pairs = np.zeros((classes, classes))
    for pair, (i, j) in enumerate(combinations(range(classes), 2)):
        # Platt scaling: a sigmoid of the decision with fitted slope and offset.
        p = 1 / (1 + np.exp(np.clip(a[pair] * decisions[pair] + b[pair], -700, 700)))
        pairs[i, j] = np.clip(p, LEAST, 1 - LEAST)
        pairs[j, i] = 1 - pairs[i, j]
    q = -pairs.T * pairs
    np.fill_diagonal(q, (pairs**2).sum(axis=0))
    p = np.full(classes, 1 / classes)
    for _ in range(max(100, classes)):
        gradient = q @ p
        value = p @ gradient
        if np.abs(gradient - value).max() < 0.005 / classes:
            break
        for t in range(classes):
            step = (value - gradient[t]) / q[t, t]
            p[t] += step
            value = (value + step * (step * q[t, t] + 2 * gradient[t])) / (1 + step) ** 2
            gradient = (gradient + step * q[t]) / (1 + step)
            p /= 1 + step
    return p


# ---------------------------------------------------------------------- trees

_COMPARED: dict[str, Any] = {
    "BRANCH_LEQ": np.less_equal,
    "BRANCH_LT": np.less,
    "BRANCH_GTE": np.greater_equal,
    "BRANCH_GT": np.greater,
    "BRANCH_EQ": np.equal,
    "BRANCH_NEQ": np.not_equal,
}


class Trees:
    """The nodes of all trees, by index; branches refer to indices."""

    def __init__(self, node: Node, prefix: str, columns: int) -> None:
        """Read the attributes of versions 1 and 3. The attributes of leaves are named ``{prefix}_ids`` and so on."""
        keys = list(zip(node.attr("nodes_treeids"), node.attr("nodes_nodeids"), strict=True))
        position = {key: i for i, key in enumerate(keys)}
        self.true, self.false = (
            # The targets of a leaf name no node; its index 0 is never followed.
            np.array([position.get((tree, target), 0) for (tree, _), target in zip(keys, node.attr(name), strict=True)])
            for name in ("nodes_truenodeids", "nodes_falsenodeids")
        )
        # Reversed, so that the first node of each tree wins: its root.
        self.roots = {tree: i for i, (tree, _) in reversed(list(enumerate(keys)))}.values()
        self.modes = np.array(node.attr("nodes_modes"), dtype=object)
        self.features = np.array(node.attr("nodes_featureids"))
        self.values = _read_floats(node, "nodes_values")
        # Whether NaN follows the true branch.
        self.missing = np.array(node.attr("nodes_missing_value_tracks_true") or [0] * len(keys), bool)
        self.weights, self.has_weight = np.zeros((len(keys), columns)), np.zeros((len(keys), columns), bool)
        ids = (node.attr(f"{prefix}_{name}") for name in ("treeids", "nodeids", "ids"))
        for tree, number, column, value in zip(*ids, _read_floats(node, f"{prefix}_weights"), strict=True):
            self.weights[position[tree, number], column] += value
            self.has_weight[position[tree, number], column] = True

    def sum_leaves(self, x: Array, combine: str = "SUM") -> Array:
        """Combine the leaves that the rows reach [rows, columns]; MIN and MAX ignore leaves without a contribution."""
        leaves = [self._find_leaves(x, root) for root in self.roots]
        values = np.stack([self.weights[leaf] for leaf in leaves])
        if combine in ("SUM", "AVERAGE"):
            return values.sum(axis=0) / (len(leaves) if combine == "AVERAGE" else 1)
        contributes = np.stack([self.has_weight[leaf] for leaf in leaves])
        worst, reduce = (np.inf, np.min) if combine == "MIN" else (-np.inf, np.max)
        return np.where(contributes.any(axis=0), reduce(np.where(contributes, values, worst), axis=0), 0.0)

    def _find_leaves(self, x: Array, root: int) -> Array:
        # All rows descend by one level per iteration; those place a leaf stay.
        place, rows = np.full(len(x), root), np.arange(len(x))
        while (moving := self.modes[place] != "LEAF").any():
            nodes = place[moving]
            features = x[rows[moving], self.features[nodes]]
            modes, values, holds = self.modes[nodes], self.values[nodes], np.zeros(len(nodes), bool)
            # Nodes of one tree may compare in different ways; there is one array operation per way.
            for mode in set(modes.tolist()):
                mask = modes == mode
                holds[mask] = _COMPARED[mode](features[mask], values[mask])
            holds = np.where(np.isnan(features), self.missing[nodes], holds)
            place[moving] = np.where(holds, self.true[nodes], self.false[nodes])
        return place


def _read_floats(node: Node, name: str) -> Array:
    """The numbers of an attribute, which version 3 may store as a tensor of double precision."""
    as_tensor = node.attr(f"{name}_as_tensor")
    return np.asarray(node.attr(name, ()) if as_tensor is None else as_tensor, np.float64)


def _read_features(node: Node, x: Array) -> Array:
    """The features in the precision of the comparisons: float32, unless features or attributes are double."""
    rows = x[None] if x.ndim == 1 else x
    is_double = x.dtype == np.float64 or node.attr("nodes_values_as_tensor") is not None
    return (rows if is_double else rows.astype(np.float32)).astype(np.float64)


@ops("TreeEnsembleRegressor", domain=ML)
def tree_ensemble_regressor(node: Node, env: NodeContext) -> Run:
    trees = Trees(node, "target", node.attr("n_targets", 1))
    base, combine = _read_floats(node, "base_values"), node.attr("aggregate_function", "SUM")
    return lambda x: _transform(trees.sum_leaves(_read_features(node, x), combine) + (base if base.size else 0.0), node)


@ops("TreeEnsembleClassifier", domain=ML)
def tree_ensemble_classifier(node: Node, env: NodeContext) -> Run:
    """The label of the highest score, and the scores. If all leaves contribute to one class, it is the second of two."""
    labels, ids = _read_labels(node), set(node.attr("class_ids"))
    trees, base = Trees(node, "class", max(len(labels), max(ids) + 1)), _read_floats(node, "base_values")
    is_binary = len(ids) == 1 and len(labels) <= 2
    # Positive weights are probabilities; others are a margin.
    is_probability = bool((trees.weights >= 0).all()) and node.attr("post_transform", "NONE") in ("NONE", "PROBIT")

    def run(x: Array) -> tuple[Array, Array]:
        scores = trees.sum_leaves(_read_features(node, x))
        if is_binary:
            score = scores[:, list(ids)] + (base.reshape(-1)[-1] if base.size else 0.0)
            scores = np.hstack([1 - score if is_probability else -score, score])
        elif base.size:
            scores = scores + base
        best = scores.argmax(axis=1)
        if len(labels) == scores.shape[1]:
            row_labels = [labels[i] for i in best]
        elif labels and isinstance(labels[0], str):
            row_labels = [labels[0]] * len(best)
        else:
            row_labels = [labels[0] if i and labels else int(i) for i in best]
        return _as_labels(row_labels, labels), _transform(scores, node)

    return run


# ---------------------------------------------------------------------- text

_CHANGES: Mapping[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}


@ops("StringNormalizer")
def string_normalizer(node: Node, env: NodeContext) -> Run:
    """Remove stop words from strings [C] or [1, C] and change their case by Unicode's rules, for every ``locale``.

    If no string is left, the result is one empty string.
    """
    change = _CHANGES[node.attr("case_change_action", "NONE")]
    fold: Callable[[str], str] = str if node.attr("is_case_sensitive", 0) else str.lower
    stop_words = {fold(word) for word in node.attr("stopwords", ())}

    def run(x: Array) -> Array:
        if x.ndim not in (1, 2) or (x.ndim == 2 and len(x) != 1):
            raise ValueError(f"the texts have shape {list(x.shape)}; it must be [C] or [1, C]")
        words = [change(text) for text in x.reshape(-1) if fold(text) not in stop_words] or [""]
        return np.array(words, dtype=object).reshape((1,) * (x.ndim - 1) + (len(words),))

    return run
