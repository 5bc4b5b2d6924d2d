"""Linear models, in double precision and rounded to float32, whatever type the features have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xrt.engines.toy.kernels.scores import ML, name_labels, post_transform, read_labels, rows
from xrt.engines.toy.table import CPU, Array, Run, ops

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext
    from xrt.graph import Node

__all__: list[str] = []


def _weights(node: Node, count: int) -> tuple[Array, Array]:
    """Return the coefficients [count, features], and what is added."""
    coefficients = np.array(node.attr("coefficients"), np.float64).reshape(count, -1)
    return coefficients, np.array(node.attr("intercepts") or (0.0,), np.float64)


@ops("LinearRegressor", domain=ML, devices=CPU)
def linear_regressor(node: Node, env: KernelContext) -> Run:
    weights, added = _weights(node, node.attr("targets", 1))
    how = node.attr("post_transform", "NONE")
    return lambda x: post_transform(rows(x) @ weights.T + added, how).astype(np.float32)


@ops("LinearClassifier", domain=ML, devices=CPU)
def linear_classifier(node: Node, env: KernelContext) -> Run:
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
