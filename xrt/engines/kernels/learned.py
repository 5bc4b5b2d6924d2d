"""Learned models of ai.onnx.ml: features, linear models, support vector machines, trees, and the maps that they return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.kernels.table import Array, Run, numpy_only as ops
from xrt.graph import MapType, Node, SequenceType, TensorType, Type

if TYPE_CHECKING:
    from xrt.engines.kernels.table import NodeContext

__all__ = ["ML", "name_labels", "post_transform", "read_labels", "rows"]

ML = "ai.onnx.ml"
ZERO = 1e-7
"""What SOFTMAX_ZERO takes for zero."""


def rows(x: Array) -> Array:
    """Return the features in double precision, one row each; a tensor of rank 1 is one row."""
    return (x[None] if x.ndim == 1 else x.reshape(len(x), -1)).astype(np.float64)


def read_labels(node: Node, *attributes: str) -> list[Any]:
    """Return the labels of the classes, integers or texts; none where the node lists none."""
    return next((list(found) for name in attributes if (found := node.attr(name))), [])


def name_labels(chosen: Sequence[Any], labels: Sequence[Any]) -> Array:
    """Return labels as a tensor: of texts where the node's labels are texts, else of integers."""
    return np.array(chosen, dtype=object if any(isinstance(label, str) for label in labels) else np.int64)


def post_transform(scores: Array, how: str) -> Array:
    """Return the scores [rows, classes] in the form that ``post_transform`` asks for."""
    if how == "LOGISTIC":
        return 1 / (1 + np.exp(-np.clip(scores, -700, 700)))
    if how == "SOFTMAX":
        return _shares(np.exp(scores - scores.max(axis=1, keepdims=True)))
    if how == "SOFTMAX_ZERO":
        return _shares(np.where(np.abs(scores) <= ZERO, 0.0, np.exp(scores - scores.max(axis=1, keepdims=True))))
    return _probit(scores) if how == "PROBIT" else scores


def _shares(weights: Array) -> Array:
    """Return each weight as a share of its row's; a row of zeros stays."""
    total = weights.sum(axis=1, keepdims=True)
    return np.divide(weights, total, out=np.zeros_like(weights), where=total != 0)


def _probit(p: Array) -> Array:
    """Return the inverse of the normal distribution, by Winitzki's approximation, as ONNX Runtime computes it."""
    x = 2 * p - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.log((1 - x) * (1 + x))
        half = 2 / (np.pi * 0.147) + 0.5 * log
        return np.sqrt(2) * np.copysign(np.sqrt(np.sqrt(half * half - log / 0.147) - half), x)


@ops("Scaler", domain=ML)
def scaler(node: Node, env: NodeContext) -> Run:
    """Return float32, whatever the features are; left out, the offset is zero and the scale is one."""
    offset, scale = (np.array(node.attr(name) or (neutral,), np.float64) for name, neutral in (("offset", 0.0), ("scale", 1.0)))
    return lambda x: ((x.astype(np.float64) - offset) * scale).astype(np.float32)


@ops("Normalizer", domain=ML)
def normalizer(node: Node, env: NodeContext) -> Run:
    """Return float32 rows, each over its norm; a row of zeros stays. A tensor of rank 1 is one row."""
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
    """Return the inputs concatenated in float32, each cut, or filled with zeros, to its width."""

    def run(*values: Array) -> Array:
        parts = [x.reshape(len(x), -1) for x in values]
        widths = node.attr("inputdimensions") or [part.shape[1] for part in parts]
        padded = [np.pad(x[:, :width], ((0, 0), (0, max(0, width - x.shape[1])))) for x, width in zip(parts, widths, strict=True)]
        return np.concatenate(padded, axis=1).astype(np.float32)

    return run


@ops("OneHotEncoder", domain=ML)
def one_hot_encoder(node: Node, env: NodeContext) -> Run:
    """Return a last axis with a one in the column of each element's category; none where ``zeros`` allows it."""
    categories = read_labels(node, "cats_int64s", "cats_strings")
    known = np.array(categories, dtype=object if any(isinstance(one, str) for one in categories) else np.int64)

    def run(x: Array) -> Array:
        hot = np.asarray(x[..., None] == known)
        if not node.attr("zeros", 1) and not hot.any(axis=-1).all():
            missing = x[~hot.any(axis=-1)].reshape(-1)[0]
            raise ValueError(f"{missing!r} is none of the {len(categories)} categories, and zeros=0 allows no row without one")
        return hot.astype(np.float32)

    return run


def _weights(node: Node, count: int) -> tuple[Array, Array]:
    """Return the coefficients [count, features], and what is added."""
    coefficients = np.array(node.attr("coefficients"), np.float64).reshape(count, -1)
    return coefficients, np.array(node.attr("intercepts") or (0.0,), np.float64)


@ops("LinearRegressor", domain=ML)
def linear_regressor(node: Node, env: NodeContext) -> Run:
    weights, added = _weights(node, node.attr("targets", 1))
    how = node.attr("post_transform", "NONE")
    return lambda x: post_transform(rows(x) @ weights.T + added, how).astype(np.float32)


@ops("LinearClassifier", domain=ML)
def linear_classifier(node: Node, env: NodeContext) -> Run:
    """Return the label of the greatest score, as it is before it is transformed, and the scores.

    One row of coefficients for two classes is the score of the second.
    """
    labels = read_labels(node, "classlabels_ints", "classlabels_strings")
    how = node.attr("post_transform", "NONE")

    def run(x: Array) -> tuple[Array, Array]:
        given = rows(x)
        weights, added = _weights(node, len(node.attr("coefficients")) // given.shape[1])
        scores = given @ weights.T + added
        if scores.shape[1] == 1:
            return _of_one(scores, labels, how)
        chosen = [labels[i] if labels else int(i) for i in scores.argmax(axis=1)]
        return name_labels(chosen, labels), post_transform(scores, how).astype(np.float32)

    return run


def _of_one(scores: Array, labels: list[object], how: str) -> tuple[Array, Array]:
    """Return label and scores where there is one score: of the second of two classes, or of the only one."""
    wins = scores[:, 0] > 0
    if len(labels) != 2:
        first, other = (labels[0], "" if isinstance(labels[0], str) else 0) if labels else (1, 0)
        return name_labels([first if win else other for win in wins], labels), post_transform(scores, how).astype(np.float32)
    # Not transformed, two scores are a probability and what is left of it, as ONNX Runtime has it.
    both = np.concatenate([1 - scores if how == "NONE" else -scores, scores], axis=1)
    return name_labels([labels[int(win)] for win in wins], labels), post_transform(both, how).astype(np.float32)


@ops("ZipMap", domain=ML)
def zip_map(node: Node, env: NodeContext) -> Run:
    """Return one map for each row, with the node's labels as keys. A tensor of rank 1 is one row."""
    keys = _labels(node, "classlabels_int64s", "classlabels_strings")

    def run(x: Array) -> list[dict[int | str, float]]:
        rows = x[None] if x.ndim == 1 else x
        if rows.ndim != 2 or rows.shape[1] != len(keys):
            raise ValueError(f"the tensor has shape {list(x.shape)}; it must have one column for each of {len(keys)} keys")
        return [dict(zip(keys, row, strict=True)) for row in rows.tolist()]

    return run


@ops("DictVectorizer", domain=ML)
def dict_vectorizer(node: Node, env: NodeContext) -> Run:
    """Return a row with the value of each key of the vocabulary, zero or an empty text where the map has none.

    The standard speaks of a tensor of rank 1. Here it is [1, keys], as ONNX Runtime makes it and as converters, which stack
    such rows, rely on. A key that the vocabulary lacks is left out. A list of maps gives a row for each.
    """
    keys = _labels(node, "int64_vocabulary", "string_vocabulary")
    dtype = _element(env.function.get_type(node.inputs[0]))

    def run(x: Mapping[Any, Any] | Sequence[Mapping[Any, Any]]) -> Array:
        maps = [x] if isinstance(x, Mapping) else x
        kind = np.dtype(dtype or _seen(maps))
        absent: Any = "" if kind.hasobject else 0
        rows = [[given.get(key, absent) for key in keys] for given in maps]
        return np.array(rows, dtype=kind).reshape(len(maps), len(keys))

    return run


def _labels(node: Node, *names: str) -> list[Any]:
    """Return the keys that one of two attributes lists; raises ValueError where neither does."""
    for name in names:
        if found := node.attr(name):
            return list(found)
    raise ValueError(f"neither {' nor '.join(names)} is given")


def _element(type_: Type | None) -> Any:
    """Return NumPy's type of a map's values; None where it is not known."""
    inside = type_.element if isinstance(type_, SequenceType) else type_
    if not isinstance(inside, MapType) or not isinstance(inside.value, TensorType):
        return None
    return inside.value.dtype.numpy


def _seen(maps: Sequence[Mapping[Any, Any]]) -> Any:
    """Return the type of values whose declared one is not known: texts, integers, else the floats of ONNX's maps."""
    first = next((value for given in maps for value in given.values()), 0.0)
    return object if isinstance(first, str) else np.int64 if isinstance(first, int) else np.float32


@ops("CastMap", domain=ML)
def cast_map(node: Node, env: NodeContext) -> Run:
    """Return the values [1, count] in the order of their keys; sparse, each in the column that its key names.

    Sparse, a key from ``max_map`` on is left out. Of texts the standard says nothing: numbers are written with six digits and
    columns without a key as ONNX Runtime writes them.
    """
    convert, dtype, absent = _CASTS[node.attr("cast_to", "TO_FLOAT")]
    columns = node.attr("max_map", 1) if node.attr("map_form", "DENSE") == "SPARSE" else None

    def run(x: Mapping[int, float | str]) -> Array:
        if columns is None:
            return np.array([[convert(x[key]) for key in sorted(x)]], dtype=dtype).reshape(1, len(x))
        if x and min(x) < 0:
            raise ValueError(f"the map has the key {min(x)}; a sparse one names columns from 0 on")
        return np.array([[convert(x[key]) if key in x else absent for key in range(columns)]], dtype=dtype).reshape(1, columns)

    return run


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:f}"


_CASTS: Mapping[str, tuple[Any, Any, Any]] = {
    "TO_FLOAT": (float, np.float32, 0.0),
    "TO_INT64": (int, np.int64, 0),
    "TO_STRING": (_text, object, "0.f"),
}
"""How a value is converted, the element type, and what a column without a key holds."""


@ops("CategoryMapper", domain=ML)
def category_mapper(node: Node, env: NodeContext) -> Run:
    """Return the text for each integer, or the integer for each text."""
    numbers, texts = node.attr("cats_int64s", ()), node.attr("cats_strings", ())
    to_number = dict(zip(texts, numbers, strict=True))
    to_text = dict(zip(numbers, texts, strict=True))

    def run(x: Array) -> Array:
        if x.dtype.kind == "O":
            default = node.attr("default_int64", -1)
            return np.array([to_number.get(text, default) for text in x.reshape(-1)], dtype=np.int64).reshape(x.shape)
        default = node.attr("default_string", "_Unused")
        return np.array([to_text.get(number, default) for number in x.reshape(-1).tolist()], dtype=object).reshape(x.shape)

    return run


LEAST = 1e-7
"""What a probability of one class against another is kept from zero and one by."""


@dataclass(frozen=True, slots=True)
class KernelFunction:
    """How near two rows of features are."""

    kind: str
    gamma: float
    coef0: float
    degree: float

    @classmethod
    def of(cls, node: Node) -> KernelFunction:
        gamma, coef0, degree = (*node.attr("kernel_params", ()), 0.0, 0.0, 0.0)[:3]
        return cls(node.attr("kernel_type", "LINEAR"), gamma, coef0, degree)

    def __call__(self, x: Array, vectors: Array) -> Array:
        """Return [rows, vectors]."""
        if self.kind == "RBF":
            return np.exp(-self.gamma * ((x[:, None] - vectors) ** 2).sum(axis=2))
        near = x @ vectors.T
        if self.kind == "POLY":
            return (self.gamma * near + self.coef0) ** int(self.degree)
        return np.tanh(self.gamma * near + self.coef0) if self.kind == "SIGMOID" else near


@ops("SVMRegressor", domain=ML)
def svm_regressor(node: Node, env: NodeContext) -> Run:
    """Return one number for each row, or with ``one_class`` 1 inside and -1 outside."""
    count, coefficients = node.attr("n_supports", 0), np.array(node.attr("coefficients"), np.float64)
    vectors = np.array(node.attr("support_vectors", ()), np.float64)
    kernel, rho = KernelFunction.of(node), float(node.attr("rho", (0.0,))[0])
    one_class, how = bool(node.attr("one_class", 0)), node.attr("post_transform", "NONE")

    def run(x: Array) -> Array:
        given = rows(x)
        near = kernel(given, vectors.reshape(count, -1)) @ coefficients if count else given @ coefficients
        scores = (near + rho)[:, None]
        found = np.where(scores > 0, 1.0, -1.0) if one_class else post_transform(scores, how)
        return found.astype(np.float32)

    return run


# ---------------------------------------------------------------------- classification


@dataclass(frozen=True, slots=True)
class Machine:
    """A classifier: one decision for each pair of classes, or, without support vectors, a score for each class."""

    kernel: KernelFunction
    vectors: Array
    coefficients: Array
    """[classes - 1, vectors], as libsvm lays them out; without vectors [classes, features]."""
    counts: tuple[int, ...]
    """How many of the vectors belong to each class."""
    rho: Array

    @classmethod
    def of(cls, node: Node, classes: int) -> Machine:
        counts = tuple(node.attr("vectors_per_class", ()))
        coefficients = np.array(node.attr("coefficients"), np.float64)
        vectors = np.array(node.attr("support_vectors", ()), np.float64).reshape(sum(counts) or 1, -1)
        kernel = KernelFunction.of(node) if counts else KernelFunction("LINEAR", 0, 0, 0)
        shape = (-1, sum(counts)) if counts else (classes, -1)
        return cls(kernel, vectors, coefficients.reshape(shape), counts, np.array(node.attr("rho"), np.float64))

    def decisions(self, x: Array) -> Array:
        """Return the decision of each pair of classes, positive for the first of them; without vectors the classes' scores."""
        if not self.counts:
            return x @ self.coefficients.T + self.rho[0]
        near = self.kernel(x, self.vectors)
        ends = np.cumsum(self.counts)
        own = [slice(end - count, end) for end, count in zip(ends, self.counts, strict=True)]
        found = [
            near[:, own[i]] @ self.coefficients[j - 1, own[i]] + near[:, own[j]] @ self.coefficients[i, own[j]] + rho
            for (i, j), rho in zip(combinations(range(len(own)), 2), self.rho, strict=False)
        ]
        return np.stack(found, axis=1)

    def votes(self, decisions: Array) -> Array:
        """Return how many of the pairs each class wins."""
        votes = np.zeros((len(decisions), len(self.counts)))
        for pair, (i, j) in enumerate(combinations(range(len(self.counts)), 2)):
            votes[:, i] += decisions[:, pair] > 0
            votes[:, j] += decisions[:, pair] <= 0
        return votes


@ops("SVMClassifier", domain=ML)
def svm_classifier(node: Node, env: NodeContext) -> Run:
    """Return the labels and the scores: probabilities where the node has their parameters, else decisions."""
    labels = read_labels(node, "classlabels_ints", "classlabels_strings")
    classes = max(len(labels), 1)
    machine, how = Machine.of(node, classes), node.attr("post_transform", "NONE")
    a, b = (np.array(node.attr(name, ()), np.float64) for name in ("prob_a", "prob_b"))
    is_positive = bool((machine.coefficients >= 0).all())

    def run(x: Array) -> tuple[Array, Array]:
        decisions = machine.decisions(rows(x))
        weights = machine.votes(decisions) if machine.counts else decisions
        has_probabilities = bool(machine.counts) and len(a) > 0
        scores = np.stack([_probabilities(row, a, b, classes) for row in decisions]) if has_probabilities else decisions
        binary = _Binary(labels, is_positive and not has_probabilities) if len(machine.rho) == 1 else None
        chosen = [binary.label(row) if binary else _label(labels, int(row.argmax())) for row in weights]
        return name_labels(chosen, labels), _scores(scores, how, len(labels) == 2 and binary is not None).astype(np.float32)

    return run


def _label(labels: list[Any], index: int) -> Any:
    return labels[index] if labels else index


@dataclass(frozen=True, slots=True)
class _Binary:
    """The choice where there is one decision."""

    labels: list[Any]
    is_positive: bool
    """Whether all coefficients are, and there are no probabilities: then the second class is what half a vote chooses."""

    def label(self, weights: Array) -> Any:
        best = int(weights.argmax())
        if len(self.labels) == 2:
            return self.labels[1] if self.is_positive and weights[best] >= 0.5 else self.labels[best]
        return self.labels[best] if self.labels else int(weights[best] > 0)


def _scores(scores: Array, how: str, with_other: bool) -> Array:
    """Return scores in their final form; the one decision of two classes is given for both, with opposite signs."""
    if scores.shape[1] == 1 and with_other and how != "PROBIT":
        scores = np.concatenate([-scores, scores], axis=1)
    return post_transform(scores, how)


def _probabilities(decisions: Array, a: Array, b: Array, classes: int) -> Array:
    """Couple the probabilities of pairs to those of classes.

    Wu, Lin and Weng, Probability Estimates for Multi-class Classification by Pairwise Coupling, Journal of Machine Learning
    Research 5 (2004), the second method, in the order of steps that libsvm takes.
    """
    pairs = np.zeros((classes, classes))
    for pair, (i, j) in enumerate(combinations(range(classes), 2)):
        p = 1 / (1 + np.exp(np.clip(a[pair] * decisions[pair] + b[pair], -700, 700)))
        pairs[i, j] = np.clip(p, LEAST, 1 - LEAST)
        pairs[j, i] = 1 - pairs[i, j]
    q = -pairs.T * pairs
    np.fill_diagonal(q, (pairs**2).sum(axis=0))
    return _coupled(q)


def _coupled(q: Array) -> Array:
    """Return the distribution p that makes ``p @ q @ p`` least, one element improved after the other."""
    count = len(q)
    p = np.full(count, 1 / count)
    for _ in range(max(100, count)):
        gradient = q @ p
        value = p @ gradient
        if np.abs(gradient - value).max() < 0.005 / count:
            break
        for t in range(count):
            step = (value - gradient[t]) / q[t, t]
            p[t] += step
            value = (value + step * (step * q[t, t] + 2 * gradient[t])) / (1 + step) ** 2
            gradient = (gradient + step * q[t]) / (1 + step)
            p /= 1 + step
    return p


_COMPARED: dict[str, Any] = {
    "BRANCH_LEQ": np.less_equal,
    "BRANCH_LT": np.less,
    "BRANCH_GTE": np.greater_equal,
    "BRANCH_GT": np.greater,
    "BRANCH_EQ": np.equal,
    "BRANCH_NEQ": np.not_equal,
}


@dataclass(frozen=True, slots=True)
class Trees:
    """The nodes of all trees, by position; the node behind a branch is a position too."""

    roots: tuple[int, ...]
    modes: Array
    features: Array
    values: Array
    true: Array
    false: Array
    missing: Array
    """Whether NaN goes the way of what holds."""
    weights: Array
    """[nodes, classes]: what a leaf adds."""
    has_weight: Array
    """[nodes, classes]: where it adds something."""

    @classmethod
    def of(cls, node: Node, prefix: str, columns: int) -> Trees:
        """Read the attributes of versions 1 and 3; ``prefix`` is that of what leaves add, of so many columns."""
        keys = list(zip(node.attr("nodes_treeids"), node.attr("nodes_nodeids"), strict=True))
        at = {key: i for i, key in enumerate(keys)}
        modes = np.array(node.attr("nodes_modes"), dtype=object)
        true, false = (
            np.array([at.get((tree, target), 0) for (tree, _), target in zip(keys, node.attr(name), strict=True)])
            for name in ("nodes_truenodeids", "nodes_falsenodeids")
        )
        weights, has_weight = np.zeros((len(keys), columns)), np.zeros((len(keys), columns), bool)
        added = zip(
            *(node.attr(f"{prefix}_{name}") for name in ("treeids", "nodeids", "ids")),
            _floats(node, f"{prefix}_weights"),
            strict=True,
        )
        for tree, number, column, value in added:
            weights[at[tree, number], column] += value
            has_weight[at[tree, number], column] = True
        first = {tree: i for i, (tree, _) in reversed(list(enumerate(keys)))}
        missing = np.array(node.attr("nodes_missing_value_tracks_true") or [0] * len(keys), bool)
        features, values = np.array(node.attr("nodes_featureids")), _floats(node, "nodes_values")
        return cls(tuple(first.values()), modes, features, values, true, false, missing, weights, has_weight)

    def leaves(self, x: Array) -> list[Array]:
        """Return for each tree the leaf that each row comes to."""
        return [self._leaves(x, root) for root in self.roots]

    def _leaves(self, x: Array, root: int) -> Array:
        at, every = np.full(len(x), root), np.arange(len(x))
        while (moving := self.modes[at] != "LEAF").any():
            here = at[moving]
            given = x[every[moving], self.features[here]]
            holds = np.where(np.isnan(given), self.missing[here], self._holds(here, given))
            at[moving] = np.where(holds, self.true[here], self.false[here])
        return at

    def _holds(self, here: Array, given: Array) -> Array:
        modes, values, holds = self.modes[here], self.values[here], np.zeros(len(here), bool)
        for mode in set(modes.tolist()):
            chosen = modes == mode
            holds[chosen] = _COMPARED[mode](given[chosen], values[chosen])
        return holds


def _floats(node: Node, name: str) -> Array:
    """Return the numbers of an attribute, which version 3 may hold as a tensor in double precision, in that."""
    as_tensor = node.attr(f"{name}_as_tensor")
    return np.asarray(node.attr(name, ()) if as_tensor is None else as_tensor, np.float64)


def _features(x: Array, precise: bool) -> Array:
    """Return the features as they are compared: the values of nodes are float32, but where the attributes are double."""
    given = x[None] if x.ndim == 1 else x
    return given.astype(np.float64) if precise else given.astype(np.float32).astype(np.float64)


def _is_precise(node: Node, x: Array) -> bool:
    return x.dtype == np.float64 or node.attr("nodes_values_as_tensor") is not None


@ops("TreeEnsembleRegressor", domain=ML)
def tree_ensemble_regressor(node: Node, env: NodeContext) -> Run:
    trees = Trees.of(node, "target", node.attr("n_targets", 1))
    base, combine = _floats(node, "base_values"), node.attr("aggregate_function", "SUM")
    how = node.attr("post_transform", "NONE")

    def run(x: Array) -> Array:
        leaves = trees.leaves(_features(x, _is_precise(node, x)))
        scores = _combined(trees, leaves, combine) + (base if base.size else 0.0)
        return post_transform(scores, how).astype(np.float32)

    return run


def _combined(trees: Trees, leaves: list[Array], combine: str) -> Array:
    """Return what the leaves add up to [rows, columns]; the least and the greatest are of what leaves say, else zero."""
    values = np.stack([trees.weights[at] for at in leaves])
    if combine in ("SUM", "AVERAGE"):
        return values.sum(axis=0) / (len(leaves) if combine == "AVERAGE" else 1)
    said = np.stack([trees.has_weight[at] for at in leaves])
    worst, reduce = (np.inf, np.min) if combine == "MIN" else (-np.inf, np.max)
    found = reduce(np.where(said, values, worst), axis=0)
    return np.where(said.any(axis=0), found, 0.0)


@ops("TreeEnsembleClassifier", domain=ML)
def tree_ensemble_classifier(node: Node, env: NodeContext) -> Run:
    """Return the label of the greatest score, and the scores; leaves that all speak of one class speak of the second of two."""
    labels = read_labels(node, "classlabels_int64s", "classlabels_strings")
    ids, how = set(node.attr("class_ids")), node.attr("post_transform", "NONE")
    is_binary = len(ids) == 1 and len(labels) <= 2
    trees, base = Trees.of(node, "class", max(len(labels), max(ids) + 1)), _floats(node, "base_values")
    is_share = bool((trees.weights >= 0).all())

    def run(x: Array) -> tuple[Array, Array]:
        leaves = trees.leaves(_features(x, _is_precise(node, x)))
        scores = _combined(trees, leaves, "SUM")
        if is_binary:
            one = scores[:, list(ids)] + (base.reshape(-1)[-1] if base.size else 0.0)
            scores = np.concatenate([1 - one if is_share and how in ("NONE", "PROBIT") else -one, one], axis=1)
        elif base.size:
            scores = scores + base
        return _chosen(scores, labels), post_transform(scores, how).astype(np.float32)

    return run


def _chosen(scores: Array, labels: list[Any]) -> Array:
    best = scores.argmax(axis=1)
    if len(labels) == scores.shape[1]:
        return name_labels([labels[i] for i in best], labels)
    return name_labels(
        [labels[0] if i and labels else int(i) for i in best] if not _are_texts(labels) else [labels[0]] * len(best), labels
    )


def _are_texts(labels: list[Any]) -> bool:
    return any(isinstance(label, str) for label in labels)


_CHANGES: Mapping[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}


@ops("StringNormalizer")
def string_normalizer(node: Node, env: NodeContext) -> Run:
    """Return the texts, [C] or [1, C], without stop words; one empty text where none is left.

    Case is changed by Unicode's rules, whatever the ``locale``.
    """
    change = _CHANGES[node.attr("case_change_action", "NONE")]
    compared: Callable[[str], str] = str if node.attr("is_case_sensitive", 0) else str.lower
    stops = {compared(word) for word in node.attr("stopwords", ())}

    def run(x: Array) -> Array:
        if x.ndim not in (1, 2) or (x.ndim == 2 and len(x) != 1):
            raise ValueError(f"the texts have shape {list(x.shape)}; it must be [C] or [1, C]")
        kept = [change(text) for text in x.reshape(-1) if compared(text) not in stops] or [""]
        return np.array(kept, dtype=object).reshape((1,) * (x.ndim - 1) + (len(kept),))

    return run
