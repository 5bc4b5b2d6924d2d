"""What ONNX Runtime computes wrongly of ai.onnx.ml: scores that it transforms in no way, or in none that the operator knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xrt.engines.ort.errors import LIBRARY

if TYPE_CHECKING:
    from xrt.graph import Node

__all__ = ["why_not_learned"]


def why_not_learned(node: Node) -> str | None:
    """Return why a learned model is declined; None where it is not."""
    how = node.attr("post_transform", "NONE") if node.domain == "ai.onnx.ml" else "NONE"
    if node.op_type == "SVMRegressor" and how != "NONE":
        return f"{LIBRARY} leaves out the post_transform of SVMRegressor, and here it is {how}"
    if node.op_type == "SVMClassifier" and how in ("SOFTMAX", "SOFTMAX_ZERO", "PROBIT") and _gives_one_decision(node):
        return f"{LIBRARY} computes no {how} of the one decision of an SVMClassifier of two classes"
    if node.op_type == "SVMClassifier" and not node.attr("vectors_per_class", ()) and len(_labels(node)) < 3:
        return f"{LIBRARY} chooses by the sign of a score, not by the larger, in an SVMClassifier without vectors of two classes"
    return _why_not_trees(node, how) if node.op_type == "TreeEnsembleClassifier" else None


def _why_not_trees(node: Node, how: str) -> str | None:
    labels = node.attr("classlabels_int64s", ()) or node.attr("classlabels_strings", ())
    ids, weights = set(node.attr("class_ids", ())), node.attr("class_weights", ())
    if len(labels) == 2 and len(ids) == 2:
        return f"{LIBRARY} gives 0 and 1, not its labels, where the leaves of a TreeEnsembleClassifier speak of both classes"
    if len(labels) == 2 and how not in ("NONE", "PROBIT") and all(weight >= 0 for weight in weights):
        return f"{LIBRARY} takes positive weights of a TreeEnsembleClassifier for a probability, and here they are for {how}"
    return None


def _labels(node: Node) -> Sequence[object]:
    found: Sequence[object] = node.attr("classlabels_ints", ()) or node.attr("classlabels_strings", ())
    return found


def _gives_one_decision(node: Node) -> bool:
    return len(node.attr("vectors_per_class", ())) == 2 and not node.attr("prob_a", ())
