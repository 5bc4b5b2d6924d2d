"""Scores of learned models: what ``post_transform`` makes of them, and the labels that they choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from xrt.engines.toy.table import Array
    from xrt.graph import Node

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
