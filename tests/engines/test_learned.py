"""Learned models said in operators of ai.onnx compute what `toy`'s own kernels for them compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xrt.engines import CompileContext
from xrt.engines.toolkit.learned_models import find_learned_definition
from xrt.engines.toolkit.node_writer import rewrite_nodes
from xrt.engines.toy import Toy
from xrt.graph import Function
from xrt.testing.corpus.entry import f32, graph, i64, node

ROWS = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
WEIGHTS = [round(0.3 * k - 1, 2) for k in range(9)]
TREES: dict[str, Any] = {
    "nodes_treeids": [3, 3, 3, 8, 8, 8, 8, 8],
    "nodes_nodeids": [0, 1, 2, 0, 1, 2, 3, 4],
    "nodes_featureids": [1, 0, 0, 2, 0, 0, 0, 0],
    "nodes_values": [0.1, 0, 0, -0.2, 0.3, 0, 0, 0],
    "nodes_truenodeids": [1, 0, 0, 1, 3, 0, 0, 0],
    "nodes_falsenodeids": [2, 0, 0, 2, 4, 0, 0, 0],
}
LEAVES = ((3, 1, 0, 0.5), (3, 2, 1, 1.5), (8, 2, 0, 2.0), (8, 3, 1, -1.0), (8, 4, 1, 0.25))


def model(op: str, outputs: str, **attributes: Any) -> Function:
    types = {name: "int64[9]" if name == "label" else "float32[9,M]" for name in outputs.split()}
    return graph({"x": "float32[9,3]"}, types, node(op, "x", outputs, domain="ai.onnx.ml", **attributes), ml=1)


def trees(prefix: str, mode: str = "BRANCH_LEQ", ids: Any = None, **attributes: Any) -> dict[str, Any]:
    modes = [mode if to else "LEAF" for to in TREES["nodes_truenodeids"]]
    treeids, nodeids, own, weights = map(list, zip(*LEAVES, strict=True))
    added = {"treeids": treeids, "nodeids": nodeids, "ids": ids or own, "weights": weights}
    return {**TREES, "nodes_modes": modes, **{f"{prefix}_{name}": value for name, value in added.items()}, **attributes}


MODELS = {
    "scaler": model("Scaler", "y", offset=[1.0, 2.0, 3.0], scale=[0.5, 2.0, -1.0]),
    "scaler of neither": model("Scaler", "y"),
    **{f"norm {norm}": model("Normalizer", "y", norm=norm) for norm in ("L1", "L2", "MAX")},
    "regression of two": model("LinearRegressor", "y", coefficients=WEIGHTS[:6], intercepts=[0.5, -1.0], targets=2),
    "shares": model("LinearRegressor", "y", coefficients=WEIGHTS, targets=3, post_transform="SOFTMAX"),
    "classes": model("LinearClassifier", "label y", coefficients=WEIGHTS, classlabels_ints=[4, 2, 9]),
    "classes by number": model("LinearClassifier", "label y", coefficients=WEIGHTS, classlabels_ints=[0, 1, 2]),
    **{
        f"vectors {kind}": model(
            "SVMRegressor", "y", kernel_type=kind, kernel_params=[0.5, 0.0, 3.0], support_vectors=WEIGHTS[:6],
            coefficients=[1.0, -2.0], n_supports=2, rho=[0.25],
        )
        for kind in ("RBF", "LINEAR")
    },
    **{
        f"trees {mode}": model("TreeEnsembleRegressor", "y", **trees("target", mode, n_targets=2))
        for mode in ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT")
    },
    "trees on a base": model("TreeEnsembleRegressor", "y", **trees("target", n_targets=2, base_values=[1.0, -1.0])),
    "forest": model("TreeEnsembleClassifier", "label y", **trees("class", classlabels_int64s=[7, 5])),
    "forest of shares": model(
        "TreeEnsembleClassifier", "label y", **trees("class", classlabels_int64s=[0, 1], post_transform="SOFTMAX")
    ),
    "forest of one score": model(
        "TreeEnsembleClassifier", "label y",
        **trees("class", ids=[1] * 5, classlabels_int64s=[7, 5], base_values=[0.5], post_transform="LOGISTIC"),
    ),
}  # fmt: skip
LEFT = {
    "texts": model("LinearClassifier", "label y", coefficients=WEIGHTS, classlabels_strings=["a", "b", "c"]),
    "one score": model("LinearClassifier", "label y", coefficients=WEIGHTS[:3], classlabels_ints=[0, 1]),
    "probit": model("LinearRegressor", "y", coefficients=WEIGHTS, targets=3, post_transform="PROBIT"),
    "one class": model("SVMRegressor", "y", coefficients=[1.0], support_vectors=WEIGHTS[:3], n_supports=1, one_class=1),
    "NaN holds": model("TreeEnsembleRegressor", "y", **trees("target", n_targets=2, nodes_missing_value_tracks_true=[1] * 8)),
    "the least": model("TreeEnsembleRegressor", "y", **trees("target", n_targets=2, aggregate_function="MIN")),
    "a leaf alone": model(
        "TreeEnsembleRegressor", "y", nodes_treeids=[0], nodes_nodeids=[0], nodes_featureids=[0], nodes_values=[0.0],
        nodes_modes=["LEAF"], nodes_truenodeids=[0], nodes_falsenodeids=[0], target_treeids=[0], target_nodeids=[0],
        target_ids=[0], target_weights=[1.0], n_targets=1,
    ),
    "attributes that do not fit": model("LinearRegressor", "y", coefficients=WEIGHTS[:2], targets=1),
}  # fmt: skip


def run(function: Function, *inputs: Any) -> list[Any]:
    executable = Toy().compile(function, CompileContext())
    executable.prepare()
    return list(executable.run(inputs))


@pytest.mark.parametrize("name", MODELS)
def test_a_learned_model_said_by_others_computes_the_same(name: str) -> None:
    function = MODELS[name]
    said = rewrite_nodes(function, find_learned_definition)
    assert said.nodes and not any(inner.domain for inner in said.nodes)
    for got, due in zip(run(said, ROWS), run(function, ROWS), strict=True):
        assert got.dtype == due.dtype and got.shape == due.shape
        assert np.allclose(got, due, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LEFT)
def test_other_forms_are_left(name: str) -> None:
    (only,) = LEFT[name].nodes
    assert find_learned_definition(only, LEFT[name]) is None


def test_features_in_double_precision_are_left() -> None:
    function = graph({"x": "float64[2,3]"}, {"y": "float32[2,3]"}, node("Scaler", "x", "y", domain="ai.onnx.ml"), ml=1)
    assert find_learned_definition(function.nodes[0], function) is None


def test_features_are_picked_from_any_tensor() -> None:
    pick = node("ArrayFeatureExtractor", "x i", "y", domain="ai.onnx.ml")
    function = graph({"x": "int64[2,2,3]", "i": "int64[2,1]"}, {"y": "int64[2,2,2]"}, pick, ml=1)
    x, i = np.arange(12).reshape(2, 2, 3), i64([[2], [0]])
    said = rewrite_nodes(function, find_learned_definition)
    assert said is not function
    assert np.array_equal(run(said, x, i)[0], x[..., [2, 0]])
    row = graph({"x": "float32[3]", "i": "int64[2]"}, {"y": "float32[1,2]"}, pick, ml=1)
    assert run(rewrite_nodes(row, find_learned_definition), f32([1, 2, 3]), i64([2, 0]))[0].tolist() == [[3, 1]]
