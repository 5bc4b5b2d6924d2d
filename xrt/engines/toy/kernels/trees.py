"""Ensembles of decision trees: all rows go down one tree at a time, level by level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.toy.kernels.scores import ML, name_labels, post_transform, read_labels
from xrt.engines.toy.table import CPU, Array, Run, ops

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext
    from xrt.graph import Node

__all__: list[str] = []

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


@ops("TreeEnsembleRegressor", domain=ML, devices=CPU)
def tree_ensemble_regressor(node: Node, env: KernelContext) -> Run:
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


@ops("TreeEnsembleClassifier", domain=ML, devices=CPU)
def tree_ensemble_classifier(node: Node, env: KernelContext) -> Run:
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
