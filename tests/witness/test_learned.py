"""Operators of ai.onnx.ml, for most of which onnx has no tests, on the reference and by somebody else's code."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import onnxruntime
import pytest
import scipy.special

from xrt.comparison import compare_all
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.formats.onnx import to_model
from xrt.graph import DType, Function, MapType, TensorType, Type
from xrt.testing.corpus.entry import graph, node

Array = np.ndarray[Any, Any]
Formula = Callable[..., Any]
"""Computes the output from the inputs, with nothing of XRT and nothing of ``onnx.reference``."""


@dataclass(frozen=True, eq=False)
class Case:
    """A node alone."""

    function: Function
    inputs: tuple[Any, ...]
    formula: Formula | None
    """None: onnxruntime is the witness."""


def case(
    op: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any] | None = None,
    *,
    ml: int = 1,
    type_: Type | None = None,
    formula: Formula | None = None,
) -> Case:
    """Return the case of a node with those inputs; ``type_`` is that of an input that is no tensor."""
    types = {f"x{i}": type_ or TensorType(DType.from_array(value), value.shape) for i, value in enumerate(inputs)}
    outputs = ("y0", "y1") if op.endswith("Classifier") else ("y0",)
    single = node(op, " ".join(types), " ".join(outputs), domain="ai.onnx.ml", name="node", **(attributes or {}))
    return Case(graph(types, dict.fromkeys(outputs), single, opset=21, ml=ml), tuple(inputs), formula)


GENERATOR = np.random.default_rng(4231761253)
TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")


def draw(*shape: int, dtype: Any = np.float32, scale: float = 1.0) -> Array:
    return (GENERATOR.standard_normal(shape) * scale).astype(dtype)


def list_labels(count: int, texts: bool, numbers: str = "classlabels_ints") -> dict[str, list[object]]:
    return {"classlabels_strings": [f"c{i}" for i in range(count)]} if texts else {numbers: [7, 3, 9, 1][:count]}


def support_vectors() -> Iterator[Case]:
    kernels = ("LINEAR", "RBF", "POLY", "SIGMOID")
    for classes, texts, kernel, likely, dtype in product(
        (2, 3, 4), (False, True), kernels, (False, True), (np.float32, np.int64)
    ):
        counts, pairs = [2, 3, 1, 2][:classes], classes * (classes - 1) // 2
        options = {
            "coefficients": draw(sum(counts) * (classes - 1)).tolist(),
            "support_vectors": draw(sum(counts) * 3).tolist(),
            "vectors_per_class": counts,
            "rho": draw(pairs).tolist(),
            "kernel_type": kernel,
            "kernel_params": [0.5, 0.25, 2.0],
            **list_labels(classes, texts),
        }
        if likely:
            options |= {"prob_a": (-1 - np.abs(draw(pairs))).tolist(), "prob_b": draw(pairs, scale=0.1).tolist()}
        yield case("SVMClassifier", [draw(5, 3, scale=2).astype(dtype)], options)
        if classes > 2 and kernel == "RBF" and dtype is np.float32:
            for how in TRANSFORMS[1:]:
                yield case("SVMClassifier", [draw(5, 3)], {**options, "post_transform": how})
    for count, one_class, kernel in product((0, 4), (0, 1), kernels):
        options = {"coefficients": draw(count or 3).tolist(), "rho": [0.25], "n_supports": count, "one_class": one_class}
        options |= {"kernel_type": kernel, "kernel_params": [0.5, 0.25, 2.0]}
        options |= {"support_vectors": draw(count * 3).tolist()} if count else {}
        yield case("SVMRegressor", [draw(5, 3)], options)
    # ONNX Runtime computes float32 only, without post_transform.
    weights = draw(3).tolist()
    for dtype, more in ((np.int64, {}), (np.float64, {"rho": [0.25]}), (np.float32, {"post_transform": "LOGISTIC"})):
        options = {"coefficients": weights, **more}
        yield case("SVMRegressor", [draw(5, 3, dtype=dtype, scale=2)], options, formula=lambda x, o=options: regress(x, **o))


def regress(x: Array, coefficients: list[float], rho: Sequence[float] = (0,), post_transform: str = "") -> Array:
    scores = (x.astype(np.float64) @ coefficients + rho[0])[:, None]
    return (scipy.special.expit(scores) if post_transform else scores).astype(np.float32)


def linear() -> Iterator[Case]:
    for classes, texts, how, dtype in product((2, 3), (False, True), TRANSFORMS, (np.float32, np.float64, np.int64)):
        if dtype is np.float64 and how != "NONE":
            continue
        options = {"coefficients": draw(classes * 3).tolist(), "intercepts": draw(classes).tolist(), "post_transform": how}
        yield case("LinearClassifier", [draw(5, 3, dtype=dtype, scale=2)], options | list_labels(classes, texts))
    for texts, how in product((False, True), ("NONE", "LOGISTIC")):  # one row of coefficients for two classes
        options = {"coefficients": draw(3).tolist(), "intercepts": [0.25], "post_transform": how}
        yield case("LinearClassifier", [draw(5, 3)], options | list_labels(2, texts))
    for targets, intercepts in product((1, 2), (False, True)):
        options = {"coefficients": draw(targets * 3).tolist(), "targets": targets}
        options |= {"intercepts": draw(targets).tolist()} if intercepts else {}
        yield case("LinearRegressor", [draw(5, 3)], options)
    yield case(
        "LinearRegressor",
        [GENERATOR.integers(-5, 5, (4, 2))],
        {"coefficients": [0.5, 0.25], "intercepts": [0.125]},
        formula=lambda x: (x @ [[0.5], [0.25]] + 0.125).astype(np.float32),
    )
    for how, transform in (("LOGISTIC", scipy.special.expit), ("SOFTMAX", lambda x: scipy.special.softmax(x, axis=1))):
        options = {"coefficients": [0.5, 0.25, 1.0, -1.0], "targets": 2, "post_transform": how}
        formula = lambda x, f=transform: f(x @ np.array([[0.5, 1.0], [0.25, -1.0]])).astype(np.float32)
        yield case("LinearRegressor", [draw(4, 2)], options, formula=formula)


def split(mode: str, missing: int) -> dict[str, object]:
    """Return two trees: one of two splits, one of a single split."""
    return {
        "nodes_treeids": [0, 0, 0, 0, 0, 1, 1, 1],
        "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
        "nodes_featureids": [0, 1, 0, 0, 0, 2, 0, 0],
        "nodes_values": [0.0, 0.5, 0.0, 0.0, 0.0, -0.25, 0.0, 0.0],
        "nodes_modes": [mode, mode, "LEAF", "LEAF", "LEAF", mode, "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 2, 0, 0, 0, 1, 0, 0],
        "nodes_falsenodeids": [4, 3, 0, 0, 0, 2, 0, 0],
        "nodes_missing_value_tracks_true": [missing] * 8,
    }


LEAVES = {"treeids": [0, 0, 0, 1, 1], "nodeids": [2, 3, 4, 1, 2]}
WEIGHTS = [0.25, 0.5, -0.75, 1.0, 0.125]
ROWS = np.array([[-1, 0.25, 0], [0, 0.5, -0.25], [1, 2, -3], [np.nan, 0.5, 1], [-2, np.nan, np.nan], [0.5, 0.5, 0.5]], np.float32)


def add(prefix: str, columns: int) -> dict[str, object]:
    """Return what leaves add, each of them to every column: of a column that no leaf adds to, ONNX Runtime has its own idea."""
    keys = {f"{prefix}_{name}": np.repeat(ids, columns).tolist() for name, ids in LEAVES.items()}
    weights = np.add.outer(WEIGHTS, np.linspace(0, 1, columns) ** 2 - 0.5).reshape(-1)
    return {**keys, f"{prefix}_ids": list(range(columns)) * 5, f"{prefix}_weights": weights.tolist()}


def trees() -> Iterator[Case]:
    numbers = "classlabels_int64s"
    modes = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
    for mode, missing, texts in product(modes, (0, 1), (False, True)):
        x = ROWS[~np.isnan(ROWS).any(axis=1)] if mode == "BRANCH_NEQ" else ROWS  # ONNX Runtime finds NaN unequal, and so present
        yield case("TreeEnsembleClassifier", [x], split(mode, missing) | add("class", 3) | list_labels(3, texts, numbers))
        yield case("TreeEnsembleRegressor", [x], split(mode, missing) | add("target", 2) | {"n_targets": 2})
    for how, base in product(TRANSFORMS[:-1], (None, [0.5, -0.25, 0.125])):
        options = split("BRANCH_LEQ", 0) | {"post_transform": how} | ({"base_values": base} if base else {})
        yield case("TreeEnsembleClassifier", [ROWS], options | add("class", 3) | {numbers: [5, 7, 9]})
        yield case("TreeEnsembleRegressor", [ROWS], options | add("target", 3) | {"n_targets": 3})
    for combine in ("SUM", "AVERAGE", "MIN", "MAX"):
        options = split("BRANCH_LEQ", 1) | add("target", 2) | {"n_targets": 2, "aggregate_function": combine}
        yield case("TreeEnsembleRegressor", [ROWS], options)
    # One score, of the second of two classes. ONNX Runtime takes positive weights for probabilities even before a transform.
    for (how, share), texts in product((("NONE", False), ("NONE", True), ("LOGISTIC", False)), (False, True)):
        options = split("BRANCH_LEQ", 0) | {f"class_{k}": v for k, v in LEAVES.items()} | {"class_ids": [0] * 5}
        options |= {"class_weights": [0.25, 0.5, 0.375, 0.125, 0.25] if share else WEIGHTS, "post_transform": how}
        yield case("TreeEnsembleClassifier", [ROWS], options | list_labels(2, texts, numbers))


def features() -> Iterator[Case]:
    types = (np.float32, np.int64, np.int32, np.float64)
    for (offset, scale), dtype in product((([0.5, 1.0, -2.0], [2.0, 0.5, 4.0]), ([0.5], [2.0])), types):
        yield case("Scaler", [draw(4, 3, dtype=dtype, scale=5)], {"offset": offset, "scale": scale})
    for norm, dtype in product(("MAX", "L1", "L2"), (np.float32, np.int64, np.float64)):
        formula = lambda x, n=norm: normalise(x, n)
        yield case("Normalizer", [draw(4, 3, dtype=dtype, scale=5)], {"norm": norm}, formula=formula)
    yield case("Normalizer", [np.zeros((2, 3), np.float32)], {"norm": "L2"})
    yield case("Normalizer", [draw(3)], {"norm": "L2"})
    holes = np.array([[1, np.nan, 3], [np.nan, 5, 6]], np.float32)
    for values in ([9.0], [7.0, 8.0, 9.0]):
        yield case("Imputer", [holes], {"imputed_value_floats": values, "replaced_value_float": float("nan")})
    yield case("Imputer", [np.array([[1, 2], [2, 3]])], {"imputed_value_int64s": [9], "replaced_value_int64": 2})
    for dtype in types:
        data = [draw(3, n, dtype=dtype, scale=5) for n in (2, 3)]
        yield case("FeatureVectorizer", data, {"inputdimensions": [2, 3]})
    yield case("FeatureVectorizer", [draw(3, 2), draw(3, 2)], {"inputdimensions": [1, 3]})
    for array, zeros in ((np.array([[1, 3], [2, 1]]), 0), (np.array([[1, 9], [2, 1]]), 1)):
        for dtype in (np.int64, np.float32):
            yield case("OneHotEncoder", [array.astype(dtype)], {"cats_int64s": [1, 2, 3], "zeros": zeros})
    yield case("OneHotEncoder", [np.array(["b", "z", "a"], object)], {"cats_strings": ["a", "b"], "zeros": 1})
    yield case("OneHotEncoder", [GENERATOR.integers(1, 4, (2, 2, 2))], {"cats_int64s": [1, 2, 3]})
    x = draw(4, 3)
    yield case("ArrayFeatureExtractor", [x, np.array([2, 0])])
    yield case("ArrayFeatureExtractor", [x[0], np.array([[2, 0]])])


def normalise(x: Array, norm: str) -> Array:
    wide = x.astype(np.float64)
    size = {"MAX": np.abs(wide).max(axis=1), "L1": np.abs(wide).sum(axis=1), "L2": np.sqrt(np.square(wide).sum(axis=1))}[norm]
    return (wide / np.where(size == 0, 1, size)[:, None]).astype(np.float32)


def encoders() -> Iterator[Case]:
    texts, numbers, floats = np.array(["b", "x", "a"], object), np.array([1, 5, 2]), np.array([1.5, np.nan, -2.0], np.float32)
    keys = [(texts, {"keys_strings": ["a", "b"]}), (numbers, {"keys_int64s": [1, 2]}), (floats, {"keys_floats": [1.5, -2.0]})]
    values = [
        ({"values_strings": ["u", "v"]}, {"default_string": "none"}),
        ({"values_int64s": [8, 9]}, {"default_int64": -7}),
        ({"values_floats": [0.5, 0.25]}, {"default_float": -0.5}),
    ]
    for (x, key), (value, default) in product(keys, values):
        yield case("LabelEncoder", [x], key | value, ml=2)
        yield case("LabelEncoder", [x], key | value | default, ml=2)
    yield case("LabelEncoder", [floats], {"keys_floats": [1.5, float("nan")], "values_int64s": [1, 2]}, ml=2)
    for labels in ({"classlabels_int64s": [7, 1]}, {"classlabels_strings": ["a", "b"]}):
        yield case("ZipMap", [draw(3, 2)], labels)
    of_texts, of_numbers = (MapType(key, TensorType(DType.FLOAT32, ())) for key in (DType.STRING, DType.INT64))
    yield case("DictVectorizer", [{"c": 2.5, "a": 1.0}], {"string_vocabulary": ["a", "b", "c"]}, type_=of_texts)
    yield case("DictVectorizer", [{3: 2.5, 9: 1.0}], {"int64_vocabulary": [1, 3]}, type_=of_numbers)
    for to, form in product(("TO_FLOAT", "TO_INT64", "TO_STRING"), ("DENSE", "SPARSE")):
        options = {"cast_to": to, "map_form": form, "max_map": 5}
        yield case("CastMap", [{3: 1.75, 1: -2.5, 7: 4.0}], options, type_=of_numbers)
    for x in (np.array(["b", "z"], object), np.array([5, 9])):
        yield case("CategoryMapper", [x], {"cats_strings": ["a", "b"], "cats_int64s": [4, 5]})


def expect(case: Case) -> Sequence[Any]:
    """Return what the witness computes."""
    if case.formula is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return (case.formula(*case.inputs),)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(to_model(case.function).SerializeToString(), options, ["CPUExecutionProvider"])
    return list(session.run(None, dict(zip((value.name for value in case.function.inputs), case.inputs, strict=True))))


@pytest.mark.parametrize("family", [support_vectors, linear, trees, features, encoders])
def test_the_reference_agrees_with_its_witness(family: Callable[[], Iterator[Case]]) -> None:
    wrong = []
    for case in family():
        with np.errstate(all="ignore"):
            comparison = compare_all(evaluate(case.function, list(case.inputs)), list(expect(case)))
        wrong += [] if comparison else [f"{case.function.nodes[0]}: {comparison.message}"]
    assert wrong == []
