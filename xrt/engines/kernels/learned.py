"""Operators of ai.onnx.ml: features, maps, linear models, support vector machines and trees. Also StringNormalizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from xrt.engines.kernels.table import Array, NodeContext, Run, numpy_only as ops
from xrt.graph import MapType, Node, SequenceType, TensorType, Type

ML = "ai.onnx.ml"
SOFTMAX_ZERO_THRESHOLD = 1e-7
"""The post-transform SOFTMAX_ZERO treats scores up to this magnitude as zero."""
_LABEL_ATTRIBUTES = (
    *("classlabels_ints", "classlabels_int64s", "classlabels_strings", "cats_int64s", "cats_strings"),
    *("int64_vocabulary", "string_vocabulary"),
)


def _read_labels(node: Node) -> list[Any]:
    """Read the labels, categories or keys in the node's attributes: integers or strings. Empty if the node has none."""
    return next((list(node.attr(name)) for name in _LABEL_ATTRIBUTES if node.attr(name)), [])


def _read_keys(node: Node) -> list[Any]:
    if keys := _read_labels(node):
        return keys
    raise ValueError(f"{node.op} lists no keys")


def _make_label_array(values: Sequence[Any], labels: Sequence[Any]) -> Array:
    """Convert ``values`` to an array of strings if any of the node's ``labels`` is a string, else of integers."""
    return np.array(values, dtype=object if any(isinstance(label, str) for label in labels) else np.int64)


def _make_feature_rows(x: Array) -> Array:
    """Convert features to float64, with one sample per row. A vector is one sample."""
    rows = x[None] if x.ndim == 1 else x.reshape(len(x), -1)
    return rows.astype(np.float64)


def _post_process(scores: Array, node: Node) -> Array:
    """Apply the node's ``post_transform`` to scores [rows, classes], and convert them to float32."""
    transform = node.attr("post_transform", "NONE")
    if transform == "LOGISTIC":
        # exp overflows from 710 on.
        scores = 1 / (1 + np.exp(-np.clip(scores, -700, 700)))
    elif transform in ("SOFTMAX", "SOFTMAX_ZERO"):
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        if transform == "SOFTMAX_ZERO":
            weights = np.where(np.abs(scores) <= SOFTMAX_ZERO_THRESHOLD, 0.0, weights)
        # With SOFTMAX_ZERO the sum of a row may be zero. The row then stays zero.
        total = weights.sum(axis=1, keepdims=True)
        scores = np.divide(weights, total, out=np.zeros_like(weights), where=total != 0)
    elif transform == "PROBIT":
        scores = _compute_probit(scores)
    return scores.astype(np.float32)


def _compute_probit(p: Array) -> Array:
    """Compute the inverse of the normal distribution by Winitzki's approximation, as ONNX Runtime does."""
    x = 2 * p - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.log((1 - x) * (1 + x))
        half = 2 / (np.pi * 0.147) + 0.5 * log
        return np.sqrt(2) * np.copysign(np.sqrt(np.sqrt(half * half - log / 0.147) - half), x)


@ops("Scaler", domain=ML)
def scaler(node: Node, ctx: NodeContext) -> Run:
    """Compute ``(x - offset) * scale``. The result is float32 for every type of features."""
    offset = np.array(node.attr("offset") or (0.0,), np.float64)
    scale = np.array(node.attr("scale") or (1.0,), np.float64)
    return lambda x: ((x.astype(np.float64) - offset) * scale).astype(np.float32)


@ops("Normalizer", domain=ML)
def normalizer(node: Node, ctx: NodeContext) -> Run:
    """Divide each row by its norm. The result is float32. A row of zeros is unchanged."""
    norm = node.attr("norm", "MAX")

    def run(x: Array) -> Array:
        wide = x.astype(np.float64)
        if norm == "L2":
            norms = np.sqrt(np.square(wide).sum(axis=-1, keepdims=True))
        elif norm == "L1":
            norms = np.abs(wide).sum(axis=-1, keepdims=True)
        else:
            norms = np.abs(wide).max(axis=-1, keepdims=True)
        return np.divide(wide, norms, out=wide.copy(), where=norms != 0).astype(np.float32)

    return run


@ops("FeatureVectorizer", domain=ML)
def feature_vectorizer(node: Node, ctx: NodeContext) -> Run:
    """Concatenate the columns of the inputs as float32. Each input is cropped or padded with zeros to its ``inputdimensions``."""

    def run(*values: Array) -> Array:
        inputs = [x.reshape(len(x), -1) for x in values]  # a vector is one column
        widths = node.attr("inputdimensions") or [x.shape[1] for x in inputs]
        parts = []
        for x, width in zip(inputs, widths, strict=True):
            missing_columns = max(0, width - x.shape[1])
            parts.append(np.pad(x[:, :width], ((0, 0), (0, missing_columns))))
        return np.concatenate(parts, axis=1).astype(np.float32)

    return run


@ops("OneHotEncoder", domain=ML)
def one_hot_encoder(node: Node, ctx: NodeContext) -> Run:
    """Append an axis with a one at the category of the element. An unknown element has only zeros; with ``zeros=0`` it raises."""
    categories = _read_labels(node)
    labels = _make_label_array(categories, categories)

    def run(x: Array) -> Array:
        hot = np.asarray(x[..., None] == labels)
        if not node.attr("zeros", 1) and not hot.any(axis=-1).all():
            unknown = x[~hot.any(axis=-1)].reshape(-1)[0]
            raise ValueError(f"{unknown!r} is not one of the {len(categories)} categories, which zeros=0 requires")
        return hot.astype(np.float32)

    return run


@ops("ZipMap", domain=ML)
def zip_map(node: Node, ctx: NodeContext) -> Run:
    """Make one map per row, from the node's labels to the elements of the row. A vector is one row."""
    keys = _read_keys(node)

    def run(x: Array) -> list[dict[int | str, float]]:
        rows = x[None] if x.ndim == 1 else x
        if rows.ndim != 2 or rows.shape[1] != len(keys):
            raise ValueError(f"the tensor has shape {list(x.shape)}; it must have one column for each of {len(keys)} keys")
        return [dict(zip(keys, row, strict=True)) for row in rows.tolist()]

    return run


@ops("DictVectorizer", domain=ML)
def dict_vectorizer(node: Node, ctx: NodeContext) -> Run:
    """Make a row [1, keys] with the values of the vocabulary's keys in a map; zero or an empty string for a missing key.

    A list of maps has several rows. ONNX specifies a vector for a single map, but ONNX Runtime returns a row, and models of
    converters need it.
    """
    keys = _read_keys(node)
    declared = _find_map_value_dtype(ctx.function.get_type(node.inputs[0]))

    def run(x: Mapping[Any, Any] | Sequence[Mapping[Any, Any]]) -> Array:
        maps = [x] if isinstance(x, Mapping) else x
        dtype = declared
        if dtype is None:  # then that of the first value
            first = next((value for entry in maps for value in entry.values()), 0.0)
            dtype = np.dtype({"U": object, "i": np.int64, "b": np.int64}.get(np.asarray(first).dtype.kind, np.float32))
        absent: Any = "" if dtype.hasobject else 0
        rows = [[entry.get(key, absent) for key in keys] for entry in maps]
        return np.array(rows, dtype=dtype).reshape(len(maps), len(keys))

    return run


def _find_map_value_dtype(type_: Type | None) -> Any:
    """Find the NumPy dtype of the values of a map, or of a sequence of maps; None if it is unknown."""
    inside = type_.element if isinstance(type_, SequenceType) else type_
    value = inside.value if isinstance(inside, MapType) else None
    return value.dtype.numpy if isinstance(value, TensorType) else None


@ops("CastMap", domain=ML)
def cast_map(node: Node, ctx: NodeContext) -> Run:
    """Make a row of the values of a map: sorted by key, or, in the sparse form, each in the column of its key.

    The sparse form has ``max_map`` columns. ONNX does not specify how numbers are converted to strings. As in ONNX Runtime, they
    have six decimals, and a column without a key is "0.f".
    """
    convert, dtype, absent = _CASTS[node.attr("cast_to", "TO_FLOAT")]
    # The dense form ignores max_map.
    columns = node.attr("max_map", 1) if node.attr("map_form", "DENSE") == "SPARSE" else None

    def run(x: Mapping[int, float | str]) -> Array:
        if columns is None:
            return np.array([[convert(x[key]) for key in sorted(x)]], dtype=dtype).reshape(1, len(x))
        if x and min(x) < 0:
            raise ValueError(f"the map has the key {min(x)}; the keys of a sparse map are columns, from 0 on")
        return np.array([[convert(x[key]) if key in x else absent for key in range(columns)]], dtype=dtype).reshape(1, columns)

    return run


_CASTS: Mapping[str, tuple[Any, Any, Any]] = {
    "TO_FLOAT": (float, np.float32, 0.0),
    "TO_INT64": (int, np.int64, 0),
    "TO_STRING": (lambda value: value if isinstance(value, str) else f"{value:f}", object, "0.f"),
}
"""By ``cast_to``: the conversion of a value, the element type of the result, and the value of a column without a key."""


@ops("CategoryMapper", domain=ML)
def category_mapper(node: Node, ctx: NodeContext) -> Run:
    """Map strings to integers, or integers to strings, by two parallel lists. An element in no list becomes the default."""
    integers, strings = node.attr("cats_int64s", ()), node.attr("cats_strings", ())
    to_integer = dict(zip(strings, integers, strict=True))
    to_string = dict(zip(integers, strings, strict=True))
    default_string, default_integer = node.attr("default_string", "_Unused"), node.attr("default_int64", -1)

    def run(x: Array) -> Array:
        if x.dtype.kind == "O":
            return np.array([to_integer.get(s, default_integer) for s in x.reshape(-1)], dtype=np.int64).reshape(x.shape)
        return np.array([to_string.get(n, default_string) for n in x.reshape(-1).tolist()], dtype=object).reshape(x.shape)

    return run


def _read_weights(node: Node, count: int) -> tuple[Array, Array]:
    """Read the coefficients [count, features] and the intercepts, for ``count`` targets or classes."""
    coefficients = np.array(node.attr("coefficients"), np.float64).reshape(count, -1)
    return coefficients, np.array(node.attr("intercepts") or (0.0,), np.float64)


@ops("LinearRegressor", domain=ML)
def linear_regressor(node: Node, ctx: NodeContext) -> Run:
    weights, intercepts = _read_weights(node, node.attr("targets", 1))
    return lambda x: _post_process(_make_feature_rows(x) @ weights.T + intercepts, node)


@ops("LinearClassifier", domain=ML)
def linear_classifier(node: Node, ctx: NodeContext) -> Run:
    """Return the label of the highest score before ``post_transform``, and the scores.

    With a single row of coefficients there are two classes, and the row computes the score of the second class.
    """
    labels = _read_labels(node)

    def run(x: Array) -> tuple[Array, Array]:
        features = _make_feature_rows(x)
        weights, intercepts = _read_weights(node, len(node.attr("coefficients")) // features.shape[1])
        scores = features @ weights.T + intercepts
        if scores.shape[1] > 1:
            row_labels = [labels[i] if labels else int(i) for i in scores.argmax(axis=1)]
            return _make_label_array(row_labels, labels), _post_process(scores, node)
        is_positive = scores[:, 0] > 0
        if len(labels) == 2:
            # As in ONNX Runtime: without a transform the score is a probability, which the first class complements.
            first_scores = 1 - scores if node.attr("post_transform", "NONE") == "NONE" else -scores
            row_labels = [labels[int(positive)] for positive in is_positive]
            return _make_label_array(row_labels, labels), _post_process(np.hstack([first_scores, scores]), node)
        positive_label = labels[0] if labels else 1  # a single label is that of the second class
        negative_label = "" if isinstance(positive_label, str) else 0
        row_labels = [positive_label if positive else negative_label for positive in is_positive]
        return _make_label_array(row_labels, labels), _post_process(scores, node)

    return run


MIN_PAIR_PROBABILITY = 1e-7
"""Probabilities of pairs of classes are clipped to [this, 1 - this], as in libsvm."""


def _make_kernel_function(node: Node) -> Callable[[Array, Array], Array]:
    """Make the node's kernel function, which computes the similarities [rows, vectors] of features and support vectors."""
    kind = node.attr("kernel_type", "LINEAR")
    parameters = (*node.attr("kernel_params", ()), 0.0, 0.0, 0.0)  # missing parameters are 0
    gamma, coef0, degree = parameters[:3]
    if kind == "RBF":
        return lambda x, vectors: np.exp(-gamma * ((x[:, None] - vectors) ** 2).sum(axis=2))
    if kind == "POLY":
        return lambda x, vectors: (gamma * (x @ vectors.T) + coef0) ** int(degree)
    if kind == "SIGMOID":
        return lambda x, vectors: np.tanh(gamma * (x @ vectors.T) + coef0)
    return lambda x, vectors: x @ vectors.T


def _read_vectors(node: Node, count: int) -> Array:
    """Read the support vectors [count, features]; an array without elements if there are none, as in a linear model."""
    vectors = np.array(node.attr("support_vectors", ()), np.float64)
    return vectors.reshape(count, -1) if count else vectors


@ops("SVMRegressor", domain=ML)
def svm_regressor(node: Node, ctx: NodeContext) -> Run:
    """Compute one number per row. With ``one_class`` it is 1 inside the class and -1 outside."""
    count = node.attr("n_supports", 0)
    kernel_function, vectors = _make_kernel_function(node), _read_vectors(node, count)
    coefficients = np.array(node.attr("coefficients"), np.float64)
    rho = float(node.attr("rho", (0.0,))[0])

    def run(x: Array) -> Array:
        features = _make_feature_rows(x)
        # Without support vectors the coefficients are those of a linear model.
        operands = kernel_function(features, vectors) if count else features
        scores = (operands @ coefficients + rho)[:, None]
        if node.attr("one_class", 0):
            return np.where(scores > 0, 1.0, -1.0).astype(np.float32)
        return _post_process(scores, node)

    return run


def _compute_pair_decisions(similarity: Array, coefficients: Array, counts: Sequence[int], rho: Array) -> Array:
    """Compute a number for each pair of classes that is positive if the first class is more likely.

    ``similarity`` is [rows, vectors], ``counts`` are the numbers of support vectors of the classes, ``rho`` has an offset for
    each pair. The coefficients [classes - 1, vectors] have libsvm's layout: the row of a vector of class i for the pair with
    class j is j - 1 if j > i, else j.
    """
    vectors = [slice(end - count, end) for end, count in zip(np.cumsum(counts), counts, strict=True)]
    decisions = []
    for (i, j), offset in zip(combinations(range(len(counts)), 2), rho, strict=False):
        first, second = vectors[i], vectors[j]
        products = similarity[:, first] @ coefficients[j - 1, first] + similarity[:, second] @ coefficients[i, second]
        decisions.append(products + offset)
    return np.stack(decisions, axis=1)


def _count_votes(decisions: Array, classes: int) -> Array:
    """Count for each class the pairs in which it is more likely."""
    votes = np.zeros((len(decisions), classes))
    for pair, (i, j) in enumerate(combinations(range(classes), 2)):
        votes[:, i] += decisions[:, pair] > 0
        votes[:, j] += decisions[:, pair] <= 0
    return votes


@ops("SVMClassifier", domain=ML)
def svm_classifier(node: Node, ctx: NodeContext) -> Run:
    """Return the labels and the scores. The scores are probabilities if the node has the parameters ``prob_a`` and ``prob_b``.

    Otherwise there is a score for each pair of classes, or, without support vectors, a linear score for each class.
    """
    labels, counts = _read_labels(node), node.attr("vectors_per_class", ())
    classes = max(len(labels), 1)
    kernel_function, vectors = _make_kernel_function(node), _read_vectors(node, sum(counts))
    coefficients_shape = (-1, sum(counts)) if counts else (classes, -1)  # a linear model has (classes, features)
    coefficients = np.array(node.attr("coefficients"), np.float64).reshape(coefficients_shape)
    rho, a, b = (np.array(node.attr(name, ()), np.float64) for name in ("rho", "prob_a", "prob_b"))  # one per pair of classes
    has_one_decision = len(rho) == 1
    has_probabilities = bool(counts) and len(a) > 0
    scores_are_probabilities = bool((coefficients >= 0).all()) and not has_probabilities

    def choose_label(weights: Array) -> Any:
        """Choose the label of a row by its weights per class: votes, or without support vectors the linear scores."""
        best = int(weights.argmax())
        # If all coefficients are positive, ONNX Runtime treats a single score as the probability of the second class.
        if has_one_decision and len(labels) == 2 and scores_are_probabilities:
            return labels[1] if weights[best] >= 0.5 else labels[best]
        if has_one_decision and not labels:
            return int(weights[best] > 0)
        return labels[best] if labels else best

    def run(x: Array) -> tuple[Array, Array]:
        features = _make_feature_rows(x)
        if counts:
            decisions = _compute_pair_decisions(kernel_function(features, vectors), coefficients, counts, rho)
            weights = _count_votes(decisions, len(counts))
        else:
            decisions = features @ coefficients.T + rho[0]
            weights = decisions
        scores = decisions
        if has_probabilities:
            scores = np.stack([_couple_probabilities(row, a, b, classes) for row in decisions])
        if scores.shape[1] == 1 and len(labels) == 2 and has_one_decision and node.attr("post_transform") != "PROBIT":
            scores = np.hstack([-scores, scores])  # of the first and the second class
        return _make_label_array([choose_label(row) for row in weights], labels), _post_process(scores, node)

    return run


def _couple_probabilities(decisions: Array, a: Array, b: Array, classes: int) -> Array:
    """Compute the probabilities of the classes from the decisions of pairs of classes: those that minimize ``p @ q @ p``.

    This is the second method of Wu, Lin and Weng, Probability Estimates for Multi-class Classification by Pairwise Coupling,
    Journal of Machine Learning Research 5 (2004), in the order of steps of libsvm. ``a`` and ``b`` are the fitted parameters of
    the sigmoid of each pair.
    """
    pairs = np.zeros((classes, classes))
    for pair, (i, j) in enumerate(combinations(range(classes), 2)):
        # Platt scaling: the probability is a sigmoid of the decision.
        p = 1 / (1 + np.exp(np.clip(a[pair] * decisions[pair] + b[pair], -700, 700)))
        pairs[i, j] = np.clip(p, MIN_PAIR_PROBABILITY, 1 - MIN_PAIR_PROBABILITY)
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


_COMPARISONS: dict[str, Any] = {
    "BRANCH_LEQ": np.less_equal,
    "BRANCH_LT": np.less,
    "BRANCH_GTE": np.greater_equal,
    "BRANCH_GT": np.greater,
    "BRANCH_EQ": np.equal,
    "BRANCH_NEQ": np.not_equal,
}


class TreeEnsemble:
    """The nodes of all trees of an ensemble, in arrays. A branch is stored as the index of its first node."""

    def __init__(self, node: Node, prefix: str, columns: int) -> None:
        """Read the attributes. Those of leaves begin with ``prefix``: class or target. A leaf has a weight for each column."""
        keys = list(zip(node.attr("nodes_treeids"), node.attr("nodes_nodeids"), strict=True))
        index_by_key = {key: i for i, key in enumerate(keys)}

        def read_branches(name: str) -> Array:
            # A leaf has no branches: the indices 0 are never used.
            targets = zip(keys, node.attr(name), strict=True)
            return np.array([index_by_key.get((tree, target), 0) for (tree, _), target in targets])

        self.true_branches = read_branches("nodes_truenodeids")
        self.false_branches = read_branches("nodes_falsenodeids")
        # The root of a tree is its first node. The loop is reversed, so that the first node of a tree is stored last.
        self.roots = {tree: i for i, (tree, _) in reversed(list(enumerate(keys)))}.values()
        self.modes = np.array(node.attr("nodes_modes"), dtype=object)
        self.features = np.array(node.attr("nodes_featureids"))
        self.values = _read_floats(node, "nodes_values")
        self.nan_takes_true_branch = np.array(node.attr("nodes_missing_value_tracks_true") or [0] * len(keys), bool)
        self.weights = np.zeros((len(keys), columns))
        self.has_weight = np.zeros((len(keys), columns), bool)
        leaf_keys = zip(node.attr(f"{prefix}_treeids"), node.attr(f"{prefix}_nodeids"), strict=True)
        leaf_weights = _read_floats(node, f"{prefix}_weights")
        for key, column, value in zip(leaf_keys, node.attr(f"{prefix}_ids"), leaf_weights, strict=True):
            self.weights[index_by_key[key], column] += value
            self.has_weight[index_by_key[key], column] = True

    def sum_leaves(self, x: Array, combine: str = "SUM") -> Array:
        """Combine the weights of the leaves that each row reaches, one per tree. Returns [rows, columns].

        ``combine`` is SUM, AVERAGE, MIN or MAX. The last two ignore leaves that have no weight for a column.
        """
        leaves = [self._find_leaves(x, root) for root in self.roots]
        values = np.stack([self.weights[leaf] for leaf in leaves])  # [trees, rows, columns]
        if combine in ("SUM", "AVERAGE"):
            divisor = len(leaves) if combine == "AVERAGE" else 1
            return values.sum(axis=0) / divisor
        has_weight = np.stack([self.has_weight[leaf] for leaf in leaves])
        if combine == "MIN":
            extremes = np.min(np.where(has_weight, values, np.inf), axis=0)
        else:
            extremes = np.max(np.where(has_weight, values, -np.inf), axis=0)
        return np.where(has_weight.any(axis=0), extremes, 0.0)

    def _find_leaves(self, x: Array, root: int) -> Array:
        current = np.full(len(x), root)
        rows = np.arange(len(x))
        # Each iteration moves all rows that are not at a leaf to a child of their node.
        while (is_inner := self.modes[current] != "LEAF").any():
            nodes = current[is_inner]
            features = x[rows[is_inner], self.features[nodes]]
            modes = self.modes[nodes]
            values = self.values[nodes]
            takes_true_branch = np.zeros(len(nodes), bool)
            # The nodes of a tree may have different comparisons. Compute each for all rows that need it.
            for mode in set(modes.tolist()):
                mask = modes == mode
                takes_true_branch[mask] = _COMPARISONS[mode](features[mask], values[mask])
            takes_true_branch = np.where(np.isnan(features), self.nan_takes_true_branch[nodes], takes_true_branch)
            current[is_inner] = np.where(takes_true_branch, self.true_branches[nodes], self.false_branches[nodes])
        return current


def _read_floats(node: Node, name: str) -> Array:
    """Read the numbers of an attribute. Since ai.onnx.ml 3 a float64 tensor in ``{name}_as_tensor`` may replace it."""
    as_tensor = node.attr(f"{name}_as_tensor")
    return np.asarray(node.attr(name, ()) if as_tensor is None else as_tensor, np.float64)


def _convert_features(node: Node, x: Array) -> Array:
    """Round features to the precision of comparisons: float32, or float64 if the features or the node's values are float64."""
    rows = x[None] if x.ndim == 1 else x
    is_double = x.dtype == np.float64 or node.attr("nodes_values_as_tensor") is not None
    rounded = rows if is_double else rows.astype(np.float32)
    return rounded.astype(np.float64)


@ops("TreeEnsembleRegressor", domain=ML)
def tree_ensemble_regressor(node: Node, ctx: NodeContext) -> Run:
    trees = TreeEnsemble(node, "target", node.attr("n_targets", 1))
    combine = node.attr("aggregate_function", "SUM")
    base_values = _read_floats(node, "base_values")
    base = base_values if base_values.size else 0.0
    return lambda x: _post_process(trees.sum_leaves(_convert_features(node, x), combine) + base, node)


@ops("TreeEnsembleClassifier", domain=ML)
def tree_ensemble_classifier(node: Node, ctx: NodeContext) -> Run:
    """Return the label of the highest score, and the scores. If all leaves have one class, it is the second class of two."""
    labels = _read_labels(node)
    ids = set(node.attr("class_ids"))
    trees = TreeEnsemble(node, "class", columns=max(len(labels), max(ids) + 1))
    base = _read_floats(node, "base_values")
    is_binary = len(ids) == 1 and len(labels) <= 2
    # If all weights are positive, a score is a probability; otherwise it is a margin.
    is_probability = bool((trees.weights >= 0).all()) and node.attr("post_transform", "NONE") in ("NONE", "PROBIT")

    def run(x: Array) -> tuple[Array, Array]:
        scores = trees.sum_leaves(_convert_features(node, x))
        if is_binary:
            second_base = base.reshape(-1)[-1] if base.size else 0.0  # the last base value is that of the second class
            score = scores[:, list(ids)] + second_base  # [rows, 1], because there is one id
            scores = np.hstack([1 - score if is_probability else -score, score])
        elif base.size:
            scores = scores + base
        best = scores.argmax(axis=1)
        if len(labels) == scores.shape[1]:
            row_labels = [labels[i] for i in best]
        elif labels:
            # There is a single label, for the second class. An integer label has the complement 0, a string label has none.
            first_label = labels[0] if isinstance(labels[0], str) else 0
            row_labels = [labels[0] if i else first_label for i in best]
        else:
            row_labels = [int(i) for i in best]
        return _make_label_array(row_labels, labels), _post_process(scores, node)

    return run


@ops("StringNormalizer")
def string_normalizer(node: Node, ctx: NodeContext) -> Run:
    """Remove stop words from strings [C] or [1, C], and change the case of the others. If no string remains, return an empty one.

    The case is changed by Unicode's rules; the attribute ``locale`` is ignored.
    """
    case_changes: Mapping[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}
    change = case_changes[node.attr("case_change_action", "NONE")]
    fold: Callable[[str], str] = str if node.attr("is_case_sensitive", 0) else str.lower
    stop_words = {fold(word) for word in node.attr("stopwords", ())}

    def run(x: Array) -> Array:
        if x.ndim not in (1, 2) or (x.ndim == 2 and len(x) != 1):
            raise ValueError(f"the strings have shape {list(x.shape)}; it must be [C] or [1, C]")
        words = [change(word) for word in x.reshape(-1) if fold(word) not in stop_words] or [""]
        row = np.array(words, dtype=object)
        return row if x.ndim == 1 else row[None]

    return run
