"""Operators of ai.onnx.ml, for most of which onnx has no tests, on the reference and by somebody else's code."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import onnxruntime
import pytest
import scipy.special

from xrt.comparison import Tolerance, compare_all
from xrt.engines import CompileContext
from xrt.engines.toy import Toy
from xrt.formats.onnx import to_model
from xrt.graph import Constant, DType, Function, MapType, Node, TensorType, Value, read_attributes

__all__ = ["Array", "Case", "Drawn", "case"]

Array = np.ndarray[Any, Any]
Formula = Callable[..., Any]
"""Computes the outputs from the inputs, with nothing of XRT and nothing of ``onnx.reference``."""


@dataclass(frozen=True, eq=False)
class Case:
    """A node alone."""

    op: str
    """With its domain, where that is not ONNX's own."""
    label: str
    function: Function
    inputs: tuple[Any, ...]
    formula: Formula | None = None
    """None: onnxruntime is the witness."""
    source: str = "onnxruntime"
    """Who the witness is."""
    tolerance: Tolerance | None = None
    """None: that of the type, for one operator."""

    @property
    def name(self) -> str:
        return f"{self.op}-{self.label}" if self.label else self.op


@dataclass(slots=True)
class Drawn:
    """Random inputs, the same for each case whatever runs before it."""

    seed: str
    generator: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = np.random.default_rng(zlib.crc32(self.seed.encode()))

    def floats(self, *shape: int, dtype: Any = np.float32, scale: float = 1.0) -> Array:
        return (self.generator.standard_normal(shape) * scale).astype(dtype)

    def integers(self, low: int, high: int, *shape: int, dtype: Any = np.int64) -> Array:
        return self.generator.integers(low, high, shape).astype(dtype)


def case(
    op: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any] | None = None,
    *,
    label: str = "",
    opset: int = 21,
    ml: int = 3,
    constants: Sequence[int] = (),
    outputs: int = 1,
    types: Sequence[Any] = (),
    formula: Formula | None = None,
    source: str = "",
    tolerance: Tolerance | None = None,
) -> Case:
    """Return the case of a node with those inputs, None for one that is left out; those at ``constants`` are constants.

    ``types`` are those of inputs that are not tensors, by position, else None; the types of outputs are not declared.
    """
    domain, _, kind = op.rpartition(":")
    names = tuple("" if value is None else f"x{i}" for i, value in enumerate(inputs))
    results = [(name, value, i) for i, (name, value) in enumerate(zip(names, inputs, strict=True)) if name]
    declared = dict(enumerate(types))
    node = Node(kind, names, tuple(f"y{i}" for i in range(outputs)), read_attributes(dict(attributes or {})), domain, "node")
    function = Function(
        inputs=tuple(Value(name, declared.get(i) or _type(value)) for name, value, i in results if i not in constants),
        outputs=tuple(Value(name) for name in node.outputs),
        nodes=(node,),
        constants={name: Constant(value) for name, value, i in results if i in constants},
        opsets={"": opset, domain: ml} if domain else {"": opset},
    )
    values = tuple(value for _, value, i in results if i not in constants)
    source = source or ("onnxruntime" if formula is None else "NumPy")
    return Case(op, label or _label(inputs, attributes or {}, opset), function, values, formula, source, tolerance)


def _type(value: Array) -> TensorType:
    return TensorType(DType.of(value), value.shape)


def _label(inputs: Sequence[Any], attributes: Mapping[str, Any], opset: int) -> str:
    results = [f"{x.dtype}{list(x.shape)}".replace(" ", "") if isinstance(x, np.ndarray) else "_" for x in inputs[:4]]
    options = [f"{name}={value}".replace(" ", "") for name, value in attributes.items() if np.size(value) <= 12]
    return ",".join([*results, *options, f"v{opset}"])


DRAWN = Drawn("learned")
ML = "ai.onnx.ml"
TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")


def _labels(count: int, texts: bool, *names: str) -> dict[str, list[object]]:
    numbers, strings = names
    return {strings: [f"c{i}" for i in range(count)]} if texts else {numbers: [7, 3, 9, 1][:count]}


def support_vectors() -> Iterator[Case]:
    for classes, texts, kernel, likely, dtype in product(
        (2, 3, 4), (False, True), ("LINEAR", "RBF", "POLY", "SIGMOID"), (False, True), (np.float32, np.int64)
    ):
        counts, pairs = [2, 3, 1, 2][:classes], classes * (classes - 1) // 2
        options = {
            "coefficients": DRAWN.floats(sum(counts) * (classes - 1)).tolist(),
            "support_vectors": DRAWN.floats(sum(counts) * 3).tolist(),
            "vectors_per_class": counts,
            "rho": DRAWN.floats(pairs).tolist(),
            "kernel_type": kernel,
            "kernel_params": [0.5, 0.25, 2.0],
            **_labels(classes, texts, "classlabels_ints", "classlabels_strings"),
        }
        if likely:
            options |= {"prob_a": (-1 - np.abs(DRAWN.floats(pairs))).tolist(), "prob_b": DRAWN.floats(pairs, scale=0.1).tolist()}
        label = f"{classes},{texts},{kernel},{likely},{dtype.__name__}"
        yield case(f"{ML}:SVMClassifier", [DRAWN.floats(5, 3, scale=2).astype(dtype)], options, ml=1, outputs=2, label=label)
        if classes > 2 and kernel == "RBF" and dtype is np.float32:
            for how in TRANSFORMS[1:]:
                yield case(
                    f"{ML}:SVMClassifier",
                    [DRAWN.floats(5, 3)],
                    {**options, "post_transform": how},
                    ml=1,
                    outputs=2,
                    label=f"{label},{how}",
                )
    for count, one_class, kernel in product((0, 4), (0, 1), ("LINEAR", "RBF", "POLY", "SIGMOID")):
        options = {
            "coefficients": DRAWN.floats(count or 3).tolist(),
            "rho": [0.25],
            "n_supports": count,
            "one_class": one_class,
            "kernel_type": kernel,
            "kernel_params": [0.5, 0.25, 2.0],
        }
        options |= {"support_vectors": DRAWN.floats(count * 3).tolist()} if count else {}
        yield case(f"{ML}:SVMRegressor", [DRAWN.floats(5, 3)], options, ml=1, label=f"{count},{one_class},{kernel}")
    # ONNX Runtime computes float32 only, without post_transform.
    weights = DRAWN.floats(3).tolist()
    for dtype, more in ((np.int64, {}), (np.float64, {"rho": [0.25]}), (np.float32, {"post_transform": "LOGISTIC"})):
        x, options = DRAWN.floats(5, 3, scale=2).astype(dtype), {"coefficients": weights, **more}
        yield case(f"{ML}:SVMRegressor", [x], options, ml=1, formula=lambda x, o=options: _regressed(x, **o))


def _regressed(x: Array, coefficients: list[float], rho: Sequence[float] = (0,), post_transform: str = "") -> Array:
    scores = (x.astype(np.float64) @ coefficients + rho[0])[:, None]
    return (scipy.special.expit(scores) if post_transform else scores).astype(np.float32)


def linear() -> Iterator[Case]:
    for classes, texts, how, dtype in product((2, 3), (False, True), TRANSFORMS, (np.float32, np.float64, np.int64)):
        if dtype is np.float64 and how != "NONE":
            continue
        options = {
            "coefficients": DRAWN.floats(classes * 3).tolist(),
            "intercepts": DRAWN.floats(classes).tolist(),
            "post_transform": how,
            **_labels(classes, texts, "classlabels_ints", "classlabels_strings"),
        }
        yield case(
            f"{ML}:LinearClassifier",
            [DRAWN.floats(5, 3, scale=2).astype(dtype)],
            options,
            ml=1,
            outputs=2,
            label=f"{classes},{texts},{how},{dtype.__name__}",
        )
    for texts, how in product((False, True), ("NONE", "LOGISTIC")):
        options = {
            "coefficients": DRAWN.floats(3).tolist(),
            "intercepts": [0.25],
            "post_transform": how,
            **_labels(2, texts, "classlabels_ints", "classlabels_strings"),
        }
        yield case(f"{ML}:LinearClassifier", [DRAWN.floats(5, 3)], options, ml=1, outputs=2, label=f"one row,{texts},{how}")
    for targets, intercepts in product((1, 2), (False, True)):
        weights, bias = DRAWN.floats(targets, 3), DRAWN.floats(targets)
        options = {
            "coefficients": weights.reshape(-1).tolist(),
            "targets": targets,
            **({"intercepts": bias.tolist()} if intercepts else {}),
        }
        formula = lambda x, w=weights, b=bias if intercepts else 0: (x @ w.T + b).astype(np.float32)
        yield case(f"{ML}:LinearRegressor", [DRAWN.floats(5, 3)], options, ml=1, label=f"{targets},{intercepts}", formula=formula)
    yield case(
        f"{ML}:LinearRegressor",
        [DRAWN.integers(-5, 5, 4, 2)],
        {"coefficients": [0.5, 0.25], "intercepts": [0.125]},
        ml=1,
        label="int64",
        formula=lambda x: (x @ [[0.5], [0.25]] + 0.125).astype(np.float32),
    )
    for how, formula in (("LOGISTIC", scipy.special.expit), ("SOFTMAX", lambda x: scipy.special.softmax(x, axis=1))):
        yield case(
            f"{ML}:LinearRegressor",
            [DRAWN.floats(4, 2)],
            {"coefficients": [0.5, 0.25, 1.0, -1.0], "targets": 2, "post_transform": how},
            ml=1,
            label=how,
            source="SciPy",
            formula=lambda x, f=formula: f(x @ np.array([[0.5, 1.0], [0.25, -1.0]])).astype(np.float32),
        )


MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def _trees(mode: str, missing: int) -> dict[str, object]:
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


def _added(prefix: str, columns: int) -> dict[str, object]:
    """Return what leaves add, each of them to every column: of a column that no leaf adds to, ONNX Runtime has its own idea."""
    keys = {f"{prefix}_{name}": np.repeat(ids, columns).tolist() for name, ids in LEAVES.items()}
    weights = np.add.outer(WEIGHTS, np.linspace(0, 1, columns) ** 2 - 0.5).reshape(-1)
    return {**keys, f"{prefix}_ids": list(range(columns)) * 5, f"{prefix}_weights": weights.tolist()}


def trees() -> Iterator[Case]:
    for mode, missing, texts in product(MODES, (0, 1), (False, True)):
        x = ROWS[~np.isnan(ROWS).any(axis=1)] if mode == "BRANCH_NEQ" else ROWS  # ONNX Runtime finds NaN unequal, and so present
        options = {
            **_trees(mode, missing),
            **_added("class", 3),
            **_labels(3, texts, "classlabels_int64s", "classlabels_strings"),
        }
        yield case(f"{ML}:TreeEnsembleClassifier", [x], options, ml=1, outputs=2, label=f"{mode},{missing},{texts}")
        targets = {**_trees(mode, missing), **_added("target", 2), "n_targets": 2}
        yield case(f"{ML}:TreeEnsembleRegressor", [x], targets, ml=1, label=f"{mode},{missing},{texts}")
    for how, base in product(TRANSFORMS[:-1], (None, [0.5, -0.25, 0.125])):
        options = {**_trees("BRANCH_LEQ", 0), "post_transform": how, **({"base_values": base} if base else {})}
        classes = {**options, **_added("class", 3), "classlabels_int64s": [5, 7, 9]}
        yield case(f"{ML}:TreeEnsembleClassifier", [ROWS], classes, ml=1, outputs=2, label=f"{how},{base}")
        yield case(
            f"{ML}:TreeEnsembleRegressor", [ROWS], {**options, **_added("target", 3), "n_targets": 3}, ml=1, label=f"{how},{base}"
        )
    for combine in ("SUM", "AVERAGE", "MIN", "MAX"):
        options = {**_trees("BRANCH_LEQ", 1), **_added("target", 2), "n_targets": 2, "aggregate_function": combine}
        yield case(f"{ML}:TreeEnsembleRegressor", [ROWS], options, ml=1, label=combine)
    for how, share, texts in product(
        ("NONE", "LOGISTIC"), (False, True), (False, True)
    ):  # one score, of the second of two classes
        if how == "LOGISTIC" and share:
            continue  # ONNX Runtime takes positive weights for a probability even where they are transformed to one
        weights = [0.25, 0.5, 0.375, 0.125, 0.25] if share else WEIGHTS
        options = {
            **_trees("BRANCH_LEQ", 0),
            **{f"class_{k}": v for k, v in LEAVES.items()},
            "class_ids": [0] * 5,
            "class_weights": weights,
            "post_transform": how,
        }
        options |= _labels(2, texts, "classlabels_int64s", "classlabels_strings")
        yield case(f"{ML}:TreeEnsembleClassifier", [ROWS], options, ml=1, outputs=2, label=f"binary,{how},{share},{texts}")
    for combine, dtype in product((0, 1, 2, 3), (np.float32, np.float64)):
        yield case(
            f"{ML}:TreeEnsemble",
            [ROWS.astype(dtype)],
            _ensemble(dtype, combine),
            ml=5,
            label=f"{combine},{dtype.__name__}",
            formula=lambda x, c=combine: _walked(x, c),
        )


def _ensemble(dtype: type, combine: int) -> dict[str, object]:
    """Return two trees of version 5, with nodes of all kinds but sets."""
    return {
        "n_targets": 1,
        "aggregate_function": combine,
        "nodes_modes": np.array([0, 1, 2], np.uint8),
        "nodes_splits": np.array([0.0, 0.5, -0.25], dtype),
        "nodes_featureids": [0, 1, 2],
        "nodes_truenodeids": [1, 0, 3],
        "nodes_trueleafs": [0, 1, 1],
        "nodes_falsenodeids": [2, 1, 4],
        "nodes_falseleafs": [1, 1, 1],
        "leaf_targetids": [0] * 5,
        "leaf_weights": np.array([0.25, 0.5, -0.75, 1.0, 0.125], dtype),
        "tree_roots": [0, 2],
        "post_transform": 0,
    }


def _walked(x: Array, combine: int) -> Array:
    first = np.where(x[:, 0] <= 0, np.where(x[:, 1] < 0.5, 0.25, 0.5), -0.75)
    second = np.where(x[:, 2] >= -0.25, 1.0, 0.125)
    both = np.stack([first, second])
    return [both.mean, both.sum, both.min, both.max][combine](axis=0)[:, None].astype(x.dtype)


def features() -> Iterator[Case]:
    x = DRAWN.floats(4, 3)
    for offset, scale in (([0.5, 1.0, -2.0], [2.0, 0.5, 4.0]), ([0.5], [2.0])):
        for dtype in (np.float32, np.int64, np.int32, np.float64):
            yield case(
                f"{ML}:Scaler",
                [DRAWN.floats(4, 3, scale=5).astype(dtype)],
                {"offset": offset, "scale": scale},
                ml=1,
                formula=lambda x, o=offset, s=scale: ((x - np.array(o)) * np.array(s)).astype(np.float32),
            )
    for norm, dtype in product(("MAX", "L1", "L2"), (np.float32, np.int64, np.float64)):
        data = DRAWN.floats(4, 3, scale=5).astype(dtype)
        yield case(
            f"{ML}:Normalizer",
            [data],
            {"norm": norm},
            ml=1,
            label=f"{norm},{dtype.__name__}",
            formula=lambda x, n=norm: _normalised(x, n),
        )
    yield case(f"{ML}:Normalizer", [np.zeros((2, 3), np.float32)], {"norm": "L2"}, ml=1, label="zeros")
    yield case(f"{ML}:Normalizer", [DRAWN.floats(3)], {"norm": "L2"}, ml=1, label="rank 1")
    for dtype in (np.float32, np.float64, np.int32, np.int64):
        yield case(
            f"{ML}:Binarizer",
            [DRAWN.floats(3, 4, scale=3).astype(dtype)],
            {"threshold": 0.5},
            ml=1,
            formula=lambda x: (x > 0.5).astype(x.dtype),
        )
    holes = np.array([[1, np.nan, 3], [np.nan, 5, 6]], np.float32)
    for values in ([9.0], [7.0, 8.0, 9.0]):
        filled = lambda x, v=values: np.where(np.isnan(x), np.broadcast_to(np.array(v, np.float32), x.shape), x)
        yield case(
            f"{ML}:Imputer",
            [holes],
            {"imputed_value_floats": values, "replaced_value_float": float("nan")},
            ml=1,
            label=f"nan,{values}",
            formula=filled,
        )
    yield case(
        f"{ML}:Imputer",
        [np.array([[1, 2], [2, 3]])],
        {"imputed_value_int64s": [9], "replaced_value_int64": 2},
        ml=1,
        formula=lambda x: np.where(x == 2, 9, x),
    )
    for dtypes in ((np.float32, np.float32), (np.int64, np.int64), (np.float64, np.float64)):
        data = [DRAWN.floats(3, n, scale=5).astype(t) for n, t in zip((2, 3), dtypes, strict=True)]
        yield case(
            f"{ML}:FeatureVectorizer",
            data,
            {"inputdimensions": [2, 3]},
            ml=1,
            formula=lambda *x: np.concatenate(x, 1).astype(np.float32),
        )
    yield case(f"{ML}:FeatureVectorizer", [DRAWN.floats(3, 2), DRAWN.floats(3, 2)], {"inputdimensions": [1, 3]}, ml=1)
    for zeros in (0, 1):
        results = {"zeros": zeros}
        array = np.array([[1, 3], [2, 1]]) if not zeros else np.array([[1, 9], [2, 1]])
        yield case(
            f"{ML}:OneHotEncoder",
            [array],
            {"cats_int64s": [1, 2, 3], **results},
            ml=1,
            label=f"int64,{zeros}",
            formula=lambda x: np.stack([x == c for c in (1, 2, 3)], -1).astype(np.float32),
        )
        yield case(
            f"{ML}:OneHotEncoder",
            [array.astype(np.float32)],
            {"cats_int64s": [1, 2, 3], **results},
            ml=1,
            label=f"float,{zeros}",
            formula=lambda x: np.stack([x == c for c in (1, 2, 3)], -1).astype(np.float32),
        )
    yield case(
        f"{ML}:OneHotEncoder",
        [np.array(["b", "z", "a"], object)],
        {"cats_strings": ["a", "b"], "zeros": 1},
        ml=1,
        label="texts",
        formula=lambda x: np.stack([x == c for c in "ab"], -1).astype(np.float32),
    )
    yield case(
        f"{ML}:OneHotEncoder",
        [DRAWN.integers(1, 4, 2, 2, 2)],
        {"cats_int64s": [1, 2, 3]},
        ml=1,
        label="rank 3",
        formula=lambda x: np.stack([x == c for c in (1, 2, 3)], -1).astype(np.float32),
    )
    yield case(f"{ML}:ArrayFeatureExtractor", [x, np.array([2, 0])], ml=1, formula=lambda x, i: x[:, i])
    yield case(f"{ML}:ArrayFeatureExtractor", [x[0], np.array([[2, 0]])], ml=1)


def _normalised(x: Array, norm: str) -> Array:
    wide = x.astype(np.float64)
    size = {"MAX": np.abs(wide).max(axis=1), "L1": np.abs(wide).sum(axis=1), "L2": np.sqrt(np.square(wide).sum(axis=1))}[norm]
    return (wide / np.where(size == 0, 1, size)[:, None]).astype(np.float32)


def encoders() -> Iterator[Case]:
    texts, numbers, floats = np.array(["b", "x", "a"], object), np.array([1, 5, 2]), np.array([1.5, np.nan, -2.0], np.float32)
    keys = {
        "s": (texts, {"keys_strings": ["a", "b"]}),
        "i": (numbers, {"keys_int64s": [1, 2]}),
        "f": (floats, {"keys_floats": [1.5, -2.0]}),
    }
    values = {"s": {"values_strings": ["u", "v"]}, "i": {"values_int64s": [8, 9]}, "f": {"values_floats": [0.5, 0.25]}}
    defaults = {"s": {"default_string": "none"}, "i": {"default_int64": -7}, "f": {"default_float": -0.5}}
    for (a, (x, key)), (b, value) in product(keys.items(), values.items()):
        for item in ({}, defaults[b]):
            yield case(f"{ML}:LabelEncoder", [x], {**key, **value, **item}, ml=2, label=f"{a}{b},{bool(item)}")
    yield case(f"{ML}:LabelEncoder", [floats], {"keys_floats": [1.5, float("nan")], "values_int64s": [1, 2]}, ml=2, label="nan")
    yield case(
        f"{ML}:LabelEncoder",
        [texts],
        {
            "keys_tensor": np.array(["a", "b"], object),
            "values_tensor": np.array([1, 2], np.int16),
            "default_tensor": np.array([9], np.int16),
        },
        ml=4,
        label="tensors",
        formula=lambda x: np.array([2, 9, 1], np.int16),
    )
    for labels in ({"classlabels_int64s": [7, 1]}, {"classlabels_strings": ["a", "b"]}):
        yield case(f"{ML}:ZipMap", [DRAWN.floats(3, 2)], labels, ml=1)
    of_texts, of_numbers = (
        MapType(DType.STRING, TensorType(DType.FLOAT32, ())),
        MapType(DType.INT64, TensorType(DType.FLOAT32, ())),
    )
    yield case(
        f"{ML}:DictVectorizer",
        [{"c": 2.5, "a": 1.0}],
        {"string_vocabulary": ["a", "b", "c"]},
        ml=1,
        types=[of_texts],
        label="texts",
    )
    yield case(
        f"{ML}:DictVectorizer", [{3: 2.5, 9: 1.0}], {"int64_vocabulary": [1, 3]}, ml=1, types=[of_numbers], label="numbers"
    )
    for to, form in product(("TO_FLOAT", "TO_INT64", "TO_STRING"), ("DENSE", "SPARSE")):
        yield case(
            f"{ML}:CastMap",
            [{3: 1.75, 1: -2.5, 7: 4.0}],
            {"cast_to": to, "map_form": form, "max_map": 5},
            ml=1,
            types=[of_numbers],
            label=f"{to},{form}",
        )
    yield case(
        f"{ML}:CategoryMapper",
        [np.array(["b", "z"], object)],
        {"cats_strings": ["a", "b"], "cats_int64s": [4, 5]},
        ml=1,
        label="texts",
    )
    yield case(
        f"{ML}:CategoryMapper", [np.array([5, 9])], {"cats_strings": ["a", "b"], "cats_int64s": [4, 5]}, ml=1, label="numbers"
    )


TOY = Toy(native="off")


def results(case: Case) -> list[Any]:
    """Return what toy computes."""
    executable = TOY.compile(case.function, CompileContext())
    executable.prepare()
    return list(executable.run(list(case.inputs)))


def expected(case: Case) -> Sequence[Any]:
    """Return what the witness computes."""
    if case.formula is None:
        return _by_onnxruntime(case)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        result = case.formula(*case.inputs)
    return result if isinstance(result, tuple) else (result,)


def _by_onnxruntime(case: Case) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(to_model(case.function).SerializeToString(), options, ["CPUExecutionProvider"])
    results = dict(zip((value.name for value in case.function.inputs), case.inputs, strict=True))
    return list(session.run(None, results))


@pytest.mark.parametrize("family", [support_vectors, linear, trees, features, encoders])
def test_the_reference_agrees_with_its_witness(family: Callable[[], Iterator[Case]]) -> None:
    wrong = []
    for case in family():
        with np.errstate(all="ignore"):
            comparison = compare_all(results(case), list(expected(case)), case.tolerance)
        wrong += [] if comparison else [f"{case.name}: {comparison.message}"]
    assert wrong == []
