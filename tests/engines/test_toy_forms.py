"""The forms that operators have had: attributes that became inputs, meanings that changed with the opset version."""

from __future__ import annotations

import numpy as np
import onnx.defs
import pytest

from tests.engines.toy_running import function, one, run, same
from tests.engines.written import Array
from xrt.engines.toy import reference
from xrt.engines.toy.kernels import ops
from xrt.passes.operator_types import MICROSOFT
from xrt.testing.corpus.entry import f32, i64, node

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


ABSENT = {
    ("ai.onnx.preview.training", "Gradient"),
}
"""Operators of the standard domains that nobody here computes."""


def served(schema: onnx.defs.OpSchema) -> bool:
    kernels = [k for k in ops if (k.domain, k.op_type) == (schema.domain, schema.name)]
    if any(k.since <= schema.since_version and (k.until is None or schema.since_version <= k.until) for k in kernels):
        return True
    return reference.why_not_implemented(schema.domain, schema.name, schema.since_version) is None


def test_every_version_of_every_operator_is_served() -> None:
    schemas = [s for s in onnx.defs.get_all_schemas_with_history() if s.name != "ImageDecoder"]
    assert {(s.domain, s.name) for s in schemas if not served(s)} == ABSENT


def test_every_kernel_serves_an_operator_that_exists() -> None:
    operators = {(s.domain, s.name) for s in onnx.defs.get_all_schemas_with_history()}
    assert {(k.domain, k.op_type) for k in ops} <= operators | {("com.microsoft", name) for name in MICROSOFT}


@pytest.mark.parametrize(
    ("op", "old", "attributes", "inputs"),
    [
        ("Squeeze", 11, {"axes": [0]}, [i64([0])]),
        ("Unsqueeze", 11, {"axes": [0, 3]}, [i64([0, 3])]),
        ("Clip", 6, {"min": 2.0, "max": 9.0}, [f32(2.0), f32(9.0)]),
        ("Clip", 6, {"max": 9.0}, [None, f32(9.0)]),
        ("Slice", 9, {"starts": [0, 1], "ends": [9, -1], "axes": [1, 2]}, [i64(0, 1), i64(9, -1), i64(1, 2)]),
        ("Slice", 9, {"starts": [0], "ends": [1]}, [i64([0]), i64([1])]),
        ("Pad", 2, {"pads": [0, 1, 0, 0, 0, 2], "value": 5.0}, [i64([0, 1, 0, 0, 0, 2]), f32(5.0)]),
        ("Pad", 2, {"pads": [0, 1, 0, 0, 0, 2], "mode": "reflect"}, [i64([0, 1, 0, 0, 0, 2])]),
        ("TopK", 1, {"k": 2}, [i64([2])]),
        ("Reshape", 1, {"shape": [0, -1]}, [i64(0, -1)]),
        ("Upsample", 7, {"scales": [1.0, 2.0, 1.5]}, [f32(1.0, 2.0, 1.5)]),
        ("Dropout", 7, {"ratio": 0.5}, []),
        ("Softmax", 12, {"axis": -1}, []),
        ("Split", 2, {"axis": 2}, []),
        ("Split", 2, {"axis": 2, "split": [1, 3]}, [i64(1, 3)]),
        *((f"Reduce{word}", 11, {"axes": [1], "keepdims": 0}, [i64([1])]) for word in ("Sum", "Mean", "Max", "L2", "LogSumExp")),
    ],
)
def test_attributes_became_inputs(op: str, old: int, attributes: dict[str, object], inputs: list[Array | None]) -> None:
    x = X[:1]
    outputs = 2 if op in ("Split", "TopK") else 1
    before = one(op, x, opset=old, outputs=outputs, **attributes)
    remaining = {name: value for name, value in attributes.items() if name in ("mode", "axis", "keepdims")}
    after = one(op, x, *inputs, opset={"Upsample": 9, "Split": 13}.get(op, 18), outputs=outputs, **remaining)
    for a, b in zip(*([before], [after]) if outputs == 1 else (before, after), strict=True):
        same(a, b)


def exponentials(x: Array, axis: int | tuple[int, ...]) -> Array:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


ROW, LINE, HUNDREDS = f32(1, 2, 3, 4), f32([[1, 2, 3]]), f32(10, 20, 30)
SQUARE, BOX = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4), [f32([[0.5, 0.5, 2.5, 2.5]]), i64([0])]
ROI = {"output_height": 1, "output_width": 1, "sampling_ratio": 1}
POINT = f32([[[[0.5, 0.0]]]])
FORMS: list[tuple[str, list[Array | None], int, dict[str, object], Array]] = [
    # no axes: all or nothing
    ("ReduceSum", [X], 13, {}, X.sum(keepdims=True)),
    ("ReduceSum", [X], 13, {"noop_with_empty_axes": 1}, X),
    # one axis, then all
    ("Tile", [X, f32(2.0), f32(1.0)], 1, {}, np.tile(X, (1, 2, 1))),
    # flattened before 13
    ("Softmax", [X], 12, {}, exponentials(X, (1, 2))),
    ("Softmax", [X], 12, {"axis": -1}, exponentials(X, 2)),
    ("LogSoftmax", [X], 12, {}, np.log(exponentials(X, (1, 2)))),
    ("Hardmax", [X], 12, {}, np.isin(X, (11, 23)).astype(np.float32)),
    # broadcast by an attribute before 7
    ("Add", [X, HUNDREDS], 6, {"broadcast": 1, "axis": 1}, X + HUNDREDS[:, None]),
    ("Mul", [X, ROW], 6, {"broadcast": 1}, X * ROW),
    ("Greater", [X, HUNDREDS], 1, {"broadcast": 1, "axis": 1}, HUNDREDS[:, None] < X),
    # a slope for each channel
    ("PRelu", [-X, f32(1, 2, 3)], 6, {}, -X * f32(1, 2, 3)[:, None]),
    # types by name
    ("Cast", [f32(1.5, 2.5)], 1, {"to": "INT32"}, np.array([1, 2], np.int32)),
    ("Cast", [i64(1, 2)], 1, {"to": "FLOAT"}, f32(1, 2)),
    # not shifted before 16: the mean around (1.5, 1.5)
    ("RoiAlign", [SQUARE, *BOX], 10, ROI, f32([[[[7.5]]]])),
    # rounded down before 11
    ("Resize", [LINE, f32(1, 2)], 10, {}, f32([[1, 1, 2, 2, 3, 3]])),
    ("Resize", [LINE, f32(1, 2)], 10, {"mode": "linear"}, f32([[1, 1.5, 2, 2.5, 3, 3]])),
    # modes of other names
    ("GridSample", [SQUARE[..., :3, :3], POINT], 16, {"mode": "bilinear", "align_corners": 1}, f32([[[[5.5]]]])),
]


@pytest.mark.parametrize(("op", "inputs", "opset", "attributes", "expected"), FORMS)
def test_a_form_of_a_version(
    op: str, inputs: list[Array | None], opset: int, attributes: dict[str, object], expected: Array
) -> None:
    same(one(op, *inputs, opset=opset, **attributes), expected)


def test_dropout_through_the_versions() -> None:
    for opset, attributes in ((1, {"is_test": 1}), (6, {"is_test": 1}), (7, {}), (10, {}), (13, {})):
        y, mask = one("Dropout", X, opset=opset, outputs=2, **attributes)
        same(y, X)
        same(mask, np.ones(X.shape, np.float32 if opset < 10 else bool))
    x = np.ones((100, 100), np.float32)
    y, mask = one("Dropout", x, f32(0.25), np.array(True), opset=13, outputs=2, seed=1)
    assert 0.7 < mask.mean() < 0.8
    same(y, np.where(mask, f32(4 / 3), f32(0.0)))
    assert not one("Dropout", x, opset=6, seed=1).all()


BATCH = [f32(1, 2, 3), f32(0.5, 0, -1), f32(4, 5, 6), f32(1, 4, 9)]


def normal(x: Array, mean: Array, var: Array) -> Array:
    scale, bias = BATCH[:2]
    return (x - mean[:, None]) / np.sqrt(var[:, None] + 1e-5) * scale[:, None] + bias[:, None]


def test_batch_normalisation_infers() -> None:
    for opset, attributes in ((1, {"is_test": 1}), (6, {"is_test": 1}), (7, {}), (9, {}), (14, {}), (15, {})):
        same(one("BatchNormalization", X, *BATCH, opset=opset, **attributes), normal(X, *BATCH[2:]))


@pytest.mark.parametrize(("opset", "outputs", "attributes"), [(7, 5, {}), (9, 3, {}), (14, 3, {"training_mode": 1})])
def test_batch_normalisation_trains(opset: int, outputs: int, attributes: dict[str, int]) -> None:
    mean, var = X.mean(axis=(0, 2)), X.var(axis=(0, 2))
    y, *rest = one("BatchNormalization", X, *BATCH, opset=opset, outputs=outputs, momentum=0.75, **attributes)
    same(y, normal(X, mean, var))
    same(rest[0], BATCH[2] * 0.75 + mean * 0.25)
    same(rest[1], BATCH[3] * 0.75 + var * 0.25)
    if outputs == 5:
        same(rest[2], mean)
        same(rest[3], var)


def test_batch_normalisation_trained_per_activation_before_9() -> None:
    scale, bias, old_mean, old_var = (np.full(X.shape[1:], value, np.float32) for value in (2, 0.5, 3, 4))
    scale[0, 0] = 5
    mean, var = X.mean(axis=0), X.var(axis=0)
    results = one("BatchNormalization", X, scale, bias, old_mean, old_var, opset=7, outputs=5, momentum=0.75, spatial=0)
    same(results[0], (X - mean) / np.sqrt(var + 1e-5) * scale + bias)
    same(results[1], old_mean * 0.75 + mean * 0.25)
    same(results[2], old_var * 0.75 + var * 0.25)
    same(results[3], mean)
    same(results[4], var)


def test_group_normalisation_scaled_groups_before_21() -> None:
    x = np.arange(16, dtype=np.float32).reshape(1, 4, 4)
    plain = one("GroupNormalization", x, f32(1, 1), f32(0, 0), opset=18, num_groups=2)
    same(plain.reshape(2, 8).mean(axis=1), f32(0, 0))
    same(
        one("GroupNormalization", x, f32(2, 3), f32(1, -1), opset=18, num_groups=2),
        plain * f32([[2], [2], [3], [3]]) + f32([[1], [1], [-1], [-1]]),
    )
    scale, bias = f32(1, 2, 3, 4), f32(4, 3, 2, 1)
    same(one("GroupNormalization", x, scale, bias, opset=21, num_groups=2), plain * scale[:, None] + bias[:, None])


def test_scan_had_a_batch_axis_in_version_8() -> None:
    body = function("state x", "next seen", node("Add", "state x", "next"), node("Identity", "next", "seen"))
    f = function("n s x", "last seen", node("Scan", "n s x", "last seen", body=body, num_scan_inputs=1), opset=8)
    x = f32([[[1], [2], [3]], [[10], [20], [30]]])
    last, seen = run(f, i64(3, 2), f32([[0], [0]]), x)
    same(last, f32([[6], [30]]))
    same(seen, f32([[[1], [3], [6]], [[10], [30], [0]]]))
    f = function("s x", "last seen", node("Scan", "s x", "last seen", body=body, num_scan_inputs=1), opset=16)
    last, seen = run(f, f32([0]), x[0])
    same(last, f32([6]))
    same(seen, f32([[1], [3], [6]]))
