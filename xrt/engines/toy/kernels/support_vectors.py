"""Support vector machines, as libsvm computes them: in double precision, whatever type the features have."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.toy.kernels.scores import ML, name_labels, post_transform, read_labels, rows
from xrt.engines.toy.table import CPU, Array, Run, ops

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext
    from xrt.graph import Node

__all__: list[str] = []

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


@ops("SVMRegressor", domain=ML, devices=CPU)
def svm_regressor(node: Node, env: KernelContext) -> Run:
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


@ops("SVMClassifier", domain=ML, devices=CPU)
def svm_classifier(node: Node, env: KernelContext) -> Run:
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
