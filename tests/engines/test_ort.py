"""The ort engine: values that go in and come out, and regions of every form."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.engines.ort_running import F32, SQUARE, compiled, function, node, run
from xrt.engines.ort import Ort
from xrt.engines.ort.session import LIBRARY
from xrt.errors import RunFailed
from xrt.graph import DType, Node, OptionalType, SequenceType, TensorType, read_attributes

# ---------------------------------------------------------------------- values in and out


NARROW = {
    DType.INT4: [-8, -1, 0, 7, 3],
    DType.UINT4: [15, 1, 0, 7, 3],
    DType.INT2: [-2, -1, 0, 1, 1],
    DType.UINT2: [3, 1, 0, 2, 1],
    DType.BFLOAT16: [-1.5, 256.0, 0, 1e30, 3],
    DType.FLOAT8E4M3FN: [-1.5, 448.0, 0, 2, 3],
    DType.FLOAT8E4M3FNUZ: [-1.5, 240.0, 0, 2, 3],
    DType.FLOAT8E5M2: [-1.5, 57344.0, 0, 2, 3],
    DType.FLOAT8E5M2FNUZ: [-1.5, 57344.0, 0, 2, 3],
    DType.FLOAT8E8M0: [1, 2, 4, 0.5, 8],
}


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("shape", [(5,), (1, 3), (), (0, 2)], ids=str)
def test_types_that_numpy_lacks_go_in_and_come_out(dtype: DType, shape: tuple[int, ...]) -> None:
    numbers = np.resize(np.array(NARROW[dtype], np.float32), shape)
    x = np.asarray(numbers.astype(dtype.numpy))
    widen = node("Cast", "x", "wide", to=F32.onnx)
    narrow = node("Cast", "wide", "y", to=dtype.onnx)
    wide, y = run(function({"x": TensorType(dtype, shape)}, ["wide", "y"], [widen, narrow], opset=25), x)
    assert np.array_equal(wide, numbers.astype(dtype.numpy).astype(np.float32))
    assert (y.dtype, y.shape) == (dtype.numpy, shape)
    assert y.tobytes() == x.tobytes()


def test_an_array_of_another_type_is_not_taken_for_its_bits() -> None:
    f = function({"x": TensorType(DType.BFLOAT16, (2,))}, ["y"], [node("Cast", "x", "y", to=F32.onnx)])
    with pytest.raises(RunFailed, match="an array of float16 was given for bfloat16"):
        run(f, np.zeros(2, np.float16))


def test_strings_are_object_arrays() -> None:
    f = function({"x": TensorType(DType.STRING, (None,))}, ["y"], [node("Identity", "x", "y")])
    (y,) = run(f, np.array(["a", "", "größer\x00"], object))
    assert y.dtype == object
    assert y.tolist() == ["a", "", "größer\x00"]


def test_sequences_are_lists() -> None:
    sequence = SequenceType(TensorType(DType.INT64))
    f = function({"s": sequence, "x": TensorType(DType.INT64)}, ["t"], [node("SequenceInsert", "s x", "t")])
    (got,) = run(f, [np.array([1, 2])], np.array(3))
    assert [item.tolist() for item in got] == [[1, 2], 3]
    assert [item.tolist() for item in run(f, [], np.array(3))[0]] == [3]


def test_an_absent_optional_is_none() -> None:
    f = function(
        {"x": OptionalType(TensorType(F32, (2,)))},
        ["y", "has"],
        [node("Identity", "x", "y"), node("OptionalHasElement", "x", "has")],
    )
    y, has = run(f, None)
    assert y is None
    assert has.tolist() is False
    y, has = run(f, np.ones(2, np.float32))
    assert y.tolist() == [1, 1]
    assert has.tolist() is True


# ---------------------------------------------------------------------- shapes of regions


def test_a_region_without_nodes() -> None:
    f = function({"x": TensorType(DType.INT4, (2,))}, ["x", "c", "x"], [], {"c": SQUARE})
    x = np.array([1, -2], ml_dtypes.int4)
    first, constant, second = run(f, x)
    assert first.tolist() == second.tolist() == x.tolist()
    assert np.array_equal(constant, SQUARE)
    assert not np.shares_memory(first, second)
    assert not np.shares_memory(first, x)


def test_an_operator_of_another_domain() -> None:
    gelu = Node("Gelu", ("x",), ("y",), domain="com.microsoft")
    (y,) = run(function({"x": TensorType(F32, (2, 3))}, ["y"], [gelu], com_microsoft=1), SQUARE)
    assert y[0, 1] == pytest.approx(-0.15865526)


def test_corners_are_aligned_in_a_batch_of_any_size() -> None:
    how = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    scales = np.array([1, 1, 2, 2], np.float32)
    f = function(
        {"x": TensorType(F32, ("N", 1, 2, 2))},
        ["y"],
        [Node("Resize", ("x", "", "s"), ("y",), read_attributes(how))],
        {"s": scales},
    )
    executable = compiled(f)
    for batch in (1, 3):
        x = np.arange(batch * 4, dtype=np.float32).reshape(batch, 1, 2, 2)
        (y,) = executable.run([x])
        np.testing.assert_allclose(y[-1, 0, :, 0], np.linspace(x[-1, 0, 0, 0], x[-1, 0, 1, 0], 4), rtol=1e-6)


# ---------------------------------------------------------------------- learned models


@pytest.mark.parametrize(
    ("op", "fields", "reason"),
    [
        (
            "SVMRegressor",
            {"post_transform": "LOGISTIC"},
            "leaves out the post_transform of SVMRegressor",
        ),
        (
            "SVMClassifier",
            {"post_transform": "SOFTMAX", "vectors_per_class": [1, 1], "classlabels_ints": [0, 1]},
            "does not transform the one decision of an SVMClassifier of two classes",
        ),
        (
            "SVMClassifier",
            {"classlabels_strings": ["a", "b"]},
            "chooses by the sign of a score, not by the larger, in an SVMClassifier without vectors of two classes",
        ),
        (
            "TreeEnsembleClassifier",
            {"class_ids": [0, 1], "class_weights": [0.5, 0.25], "classlabels_int64s": [7, 3]},
            "gives 0 and 1, not its labels, where the leaves of a TreeEnsembleClassifier have both of two classes",
        ),
        (
            "TreeEnsembleClassifier",
            {"class_ids": [0, 0], "class_weights": [0.5, 0.25], "classlabels_int64s": [0, 1], "post_transform": "LOGISTIC"},
            "takes positive weights of a TreeEnsembleClassifier for probabilities, and does not transform them",
        ),
    ],
)
def test_scores_that_the_library_does_not_transform_are_declined(op: str, fields: dict[str, object], reason: str) -> None:
    outputs = ("y",) if op == "SVMRegressor" else ("y", "z")
    given = Node(
        op,
        ("x",),
        outputs,
        read_attributes(({"coefficients": [1.0, -1.0], "rho": [0.5]} if op.startswith("SVM") else {}) | fields),
        "ai.onnx.ml",
    )
    f = function({"x": TensorType(F32, (1, 2))}, list(outputs), [given], ai_onnx_ml=1)
    assert Ort().why_not(given, f) == f"{LIBRARY} {reason}"
