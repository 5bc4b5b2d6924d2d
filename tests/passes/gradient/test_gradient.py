"""xrt.gradient as a pass: names, seeds, what has no gradient, sizes, laws, branches and loops, and other engines."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from onnx import parser

import xrt
from tests.passes.gradient.checking import Array, Case, assert_gradient, list_floats, make_function, run
from xrt import ops
from xrt.builder.record_op import get_builder
from xrt.errors import ModelError
from xrt.formats.onnx import load
from xrt.graph import DType, TensorType
from xrt.graph.verify import verify, verify_types
from xrt.passes import infer_shapes
from xrt.testing.corpus.entry import tensor

DRAW = np.random.default_rng(11)
X, W, B = DRAW.standard_normal((4, 3)), DRAW.standard_normal((3, 2)), DRAW.standard_normal(2)


def affine(x: Any, w: Any, b: Any) -> Any:
    return {"loss": ops.ReduceMean(ops.Tanh(x @ w + b), keepdims=0)}


FUNCTION = make_function(affine, (X, W, B))


def test_gradients_follow_the_outputs_in_the_order_asked_for() -> None:
    gradient = xrt.gradient(FUNCTION, of="loss", with_respect_to=("b", "x"))
    assert [value.name for value in gradient.outputs] == ["loss", "b_gradient", "x_gradient"]
    assert [str(value.type) for value in gradient.outputs[1:]] == ["float64[2]", "float64[4,3]"]
    assert gradient.inputs == FUNCTION.inputs
    assert {node.name for node in FUNCTION.nodes} <= {node.name for node in gradient.nodes}
    assert all("/gradient/" in node.name for node in gradient.nodes if node.name not in {n.name for n in FUNCTION.nodes})
    verify(gradient)
    verify_types(infer_shapes(gradient))


def test_a_weight_has_a_gradient_and_stays_a_constant() -> None:
    function = make_function(lambda x: ops.ReduceSum(x @ get_builder("w").constant(W, name="w"), keepdims=0), (X,))
    gradient = xrt.gradient(function, with_respect_to="w")
    assert gradient.constants["w"].array is function.constants["w"].array
    np.testing.assert_allclose(run(gradient, (X,))[1], np.repeat(X.sum(0)[:, None], 2, 1))


@pytest.mark.parametrize(
    ("build", "arrays", "options", "expected"),
    [
        (lambda x: ops.ReduceSum(ops.Sin(ops.Exp(x)), keepdims=0), (X,), {"with_respect_to": "exp_1"}, np.cos(np.exp(X))),
        (lambda x: ops.Cast(ops.Cast(x, to="float32") * 2, to="float64") * x, (X,), {}, 4 * X),
        (lambda x: x * ops.Floor(x) + ops.Cast(ops.Cast(x, to="int64"), to="float64"), (X,), {}, np.floor(X)),
        (lambda x, k: ops.ReduceSum(ops.Gather(x, k), keepdims=0), (X, np.arange(4)), {}, np.ones_like(X)),
    ],
    ids=["of an inner value", "through casts", "not through integers and steps", "by floats alone"],
)
def test_a_gradient_has_the_value_of_its_definition(build: Any, arrays: Any, options: Any, expected: Array) -> None:
    outputs = run(xrt.gradient(make_function(build, arrays), **options), arrays)
    assert len(outputs) == 2
    np.testing.assert_allclose(outputs[1], expected, rtol=1e-6)


def test_a_weight_of_which_only_the_shape_is_read_has_zeros() -> None:
    def build(x: Any) -> Any:
        return ops.ReduceSum(ops.Reshape(x, ops.Shape(get_builder("w").constant(W.T, name="w"))), keepdims=0)

    gradient = xrt.gradient(make_function(build, (W,)), with_respect_to=("w", "x"))
    np.testing.assert_array_equal(run(gradient, (W,))[1], np.zeros_like(W.T))


def test_seeds_are_further_inputs() -> None:
    function = make_function(lambda x: {"y": x * x}, (X,))
    gradient = xrt.gradient(function, seeds=True)
    assert [value.name for value in gradient.inputs] == ["x", "y_seed"]
    np.testing.assert_allclose(run(gradient, (X, X))[1], 2 * X * X)
    np.testing.assert_allclose(run(xrt.gradient(function), (X,))[1], 2 * X)


def test_a_name_that_is_taken_gets_a_number() -> None:
    once = xrt.gradient(make_function(lambda x: {"y": x * x * x}, (X,)), of="y")
    twice = xrt.gradient(once, of="x_gradient")
    assert [value.name for value in twice.outputs] == ["y", "x_gradient", "x_gradient_2"]
    np.testing.assert_allclose(run(twice, (X,))[2], 6 * X)


def test_symbolic_sizes_stay() -> None:
    def build(x: Any, w: Any, b: Any) -> Any:
        y = ops.LayerNormalization(x @ w + b, b, stash_type=11, outputs=1)[0]
        return ops.ReduceSum(ops.Softmax(y)[:, 1:] * 3, keepdims=0)

    function = make_function(build, [tensor(f"float64[{shape}]") for shape in ("N,3", "3,2", "K")])
    for size in (1, 4):
        assert_gradient(function, (DRAW.standard_normal((size, 3)), W, B))


@pytest.mark.parametrize("shapes", [((4, 3), (1, 3)), ((4, 3), (4, 1)), ((4, 3), (4, 3)), ((1, 1), (4, 3))])
def test_broadcasting_of_symbolic_sizes_is_undone_at_run_time(shapes: Any) -> None:
    function = make_function(lambda a, b: a * b, [tensor("float64[A,B]"), tensor("float64[C,D]")])
    assert_gradient(function, [DRAW.standard_normal(shape) for shape in shapes])


def test_other_types_of_floating_point() -> None:
    for dtype in (np.float32, np.float16):
        x, w, b = (array.astype(dtype) for array in (X, W, B))
        result = run(xrt.gradient(make_function(affine, (x, w, b)), of="loss"), (x, w, b))
        assert {gradient.dtype for gradient in result} == {np.dtype(dtype)}
        wanted = run(xrt.gradient(FUNCTION, of="loss"), (X, W, B))
        for a, e in zip(result, wanted, strict=True):
            np.testing.assert_allclose(a, e, rtol=3e-3, atol=3e-3)


def test_a_normalization_gives_its_statistics_and_they_are_not_computed_again() -> None:
    def layer(x: Any, scale: Any) -> Any:
        return ops.LayerNormalization(x, scale, outputs=1)[0] * x

    function = make_function(layer, (X.astype("float32"), X[0].astype("float32")))
    gradient = xrt.gradient(function)
    (node,) = (node for node in gradient.nodes if node.op == "LayerNormalization")
    assert len(node.outputs) == 3 and all(node.outputs)
    assert not {"Sqrt", "Reciprocal"} & {node.op for node in gradient.nodes}


def test_dropout_in_training_passes_the_gradient_of_what_is_kept() -> None:
    def build(x: Any, on: Any = np.asarray(True)) -> Any:
        return ops.Dropout(x, np.asarray(0.25), on, seed=3, outputs=1)[0]

    x, dropped = np.abs(X) + 1, []
    for flags in ([np.asarray(True)], [np.asarray(False)], []):  # none: the flag is a constant
        y, gradient = run(xrt.gradient(make_function(build, (x, *flags))), (x, *flags))
        np.testing.assert_allclose(gradient, y / x)
        dropped.append(np.count_nonzero(y == 0))
    assert dropped[1] == 0 and 0 < dropped[0] < x.size and dropped[2] == dropped[0]


def test_an_older_opset_is_brought_to_a_newer_one() -> None:
    text = """<ir_version: 8, opset_import: ["" : 11]>
    main (double[2,3] x) => (double[2] y) { z = Unsqueeze <axes=[0]> (x)  y0 = ReduceSum <axes=[2], keepdims=0> (z)
    y = Squeeze <axes=[0]> (y0) }"""
    gradient = xrt.gradient(load(parser.parse_model(text)))
    assert gradient.opset() >= 18
    np.testing.assert_array_equal(run(gradient, (DRAW.standard_normal((2, 3)),))[1], np.ones((2, 3)))


# ---------------------------------------------------------------------- errors


NO_GRADIENT: dict[str, tuple[Any, tuple[Array, ...], dict[str, Any], str]] = {
    "an operator without a rule": (
        lambda x: ops.Det(x @ ops.Transpose(x)), (X,), {},
        ("node 'det_1' (Det) has no gradient: its gradient is the inverse of the matrix, which no operator of ONNX computes. "
         "Omit from with_respect_to the values that reach `of` through this node, or replace it by other operators"),
    ),
    "an opaque operator": (
        lambda x: ops.custom("Fused", x, domain="com.acme", types=[x.type]), (X,), {},
        "(com.acme.Fused) has no gradient: there is no rule for it, and ONNX does not define",
    ),
    "an unknown output": (
        affine, (X, W, B), {"of": "los"}, "of names 'los', which is no value of function 'main'. Did you mean 'loss'?"
    ),
    "an unknown input": (
        affine, (X, W, B), {"with_respect_to": ["z"]}, "with_respect_to names 'z', which is no value of function 'main'."
    ),
    "integers": (
        lambda x, k: ops.Gather(x, k), (X, np.asarray([1])), {"with_respect_to": "k"},
        "with_respect_to names 'k', which is int64[1]; only values of floating point have",
    ),
    "several outputs": (
        lambda x: {"a": x, "b": x * 2}, (X,), {}, "function 'main' has 2 outputs (a, b); name one: of='a'"
    ),
    "random numbers in a body": (
        lambda c, x: ops.If(c, then_branch=lambda: x * ops.RandomNormalLike(x), else_branch=lambda: x),
        (np.asarray(True), X), {"with_respect_to": "x"}, "node 'if_1' (If) has no gradient: its body has 'randomnormallike_1'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NO_GRADIENT)
def test_what_has_no_gradient_is_named(case: str) -> None:
    build, arrays, options, message = NO_GRADIENT[case]
    with pytest.raises(ModelError, match=re.escape(message)):
        xrt.gradient(make_function(build, arrays), **options)


def test_an_operator_without_a_rule_that_is_not_on_the_path_is_passed() -> None:
    function = make_function(lambda x, w: (ops.ReduceSum(w, keepdims=0), ops.Det(x)), (X[:3], W))
    gradient = xrt.gradient(function, of=function.outputs[0].name, with_respect_to=("x", "w"))
    np.testing.assert_array_equal(run(gradient, (X[:3], W))[2], np.zeros((3, 3)))


# ---------------------------------------------------------------------- onnx's own tests


def test_a_gradient_node_reads_other_values_than_those_it_names() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18, "ai.onnx.preview.training" : 1]>
    main (double[2] x, double[2] at) => (double[2] y, double[2] dx) {
      h = Sin(x)
      y = Mul(h, h)
      dx = ai.onnx.preview.training.Gradient <xs=["h"], y="y"> (at)
    }"""
    function = load(parser.parse_model(text))
    x, at = DRAW.standard_normal(2), DRAW.standard_normal(2)
    with xrt.XRTModule(function, engine="toy") as m:
        y, dx = m(x, at)
    np.testing.assert_allclose(y, np.sin(x) ** 2)
    np.testing.assert_allclose(dx, 2 * at)
    assert list_floats(function) == ["x", "at"]


def test_gradients_in_half_precision_do_not_overflow_on_the_way() -> None:
    x = np.asarray([-200, -70, -1, 0, 70], np.float16)
    function = xrt.gradient(make_function(lambda x: ops.Gelu(x, approximate="tanh"), (x,)))
    np.testing.assert_allclose(run(function, [x])[1], [0, 0, -0.083, 0.5, 1], atol=1e-3)
    square = xrt.gradient(make_function(lambda x: x * x, (x,)), seeds=True)
    assert run(square, [np.full(5, 0.1, np.float16), np.full(5, 4e4, np.float16)])[1].tolist() == [8000] * 5


@pytest.mark.parametrize("recurrent", [(1, 8, "H"), (1, "G", "H"), (None, None, None)])
def test_the_hidden_size_of_a_layer_may_be_known_from_its_attribute_alone(recurrent: Any) -> None:
    types = [TensorType(DType.FLOAT64, shape) for shape in ((3, 2, 4), (1, 8, 4), recurrent)]
    function = make_function(lambda x, w, r: ops.LSTM(x, w, r, hidden_size=2, outputs=1)[0], types)
    x, w, r = (DRAW.standard_normal(shape) for shape in ((3, 2, 4), (1, 8, 4), (1, 8, 2)))
    assert run(xrt.gradient(function, with_respect_to=function.inputs[0].name), [x, w, r])[1].shape == x.shape


GENERATOR = np.random.default_rng(5)


def normal(*shape: int) -> Any:
    return GENERATOR.standard_normal(shape)


def branch_of_two(c: Any, x: Any, y: Any) -> Any:
    return ops.If(c, then_branch=lambda: (x * y, y), else_branch=lambda: (y, ops.Exp(x)))


def nested(c: Any, x: Any, y: Any) -> Any:
    def inner() -> Any:
        z = x * y
        return ops.If(ops.Not(c), then_branch=lambda: z, else_branch=lambda: z * ops.Cos(x))

    return ops.If(c, then_branch=inner, else_branch=lambda: y)


def turns(x: Any, w: Any) -> Any:
    def body(step: Any, go: Any, state: Any) -> Any:
        new = ops.Tanh(state @ w) + x
        return ops.Identity(go), new, ops.ReduceSum(new * state, keepdims=0)

    return ops.Loop(np.asarray(3), None, x, body=body)


def turns_of_two(x: Any, w: Any, s: Any) -> Any:
    """The second state has no gradient at first, and gets one from the first."""

    def body(step: Any, go: Any, a: Any, b: Any) -> Any:
        return ops.Identity(go), ops.Sin(a) * w, b * a + s

    return ops.Loop(np.asarray(3), None, x, np.zeros(2), body=body)[1]


def condition(x: Any) -> Any:
    def body(step: Any, go: Any, state: Any) -> Any:
        new = state * 1.5
        return ops.Less(ops.ReduceSum(ops.Abs(new), keepdims=0), np.asarray(40.0)), new, new * new

    return ops.Loop(np.asarray(50), np.asarray(True), x, body=body)


def no_turns(x: Any) -> Any:
    return ops.Loop(np.asarray(0), None, x, body=lambda step, go, s: (ops.Identity(go), s * s))


def by_step(x: Any) -> Any:
    def body(step: Any, go: Any, state: Any) -> Any:
        return ops.Identity(go), state + ops.Gather(x, step, axis=0) * state

    return ops.Loop(np.asarray(3), None, np.ones(2), body=body)


def loop_in_loop(x: Any, w: Any) -> Any:
    def outer(step: Any, go: Any, a: Any) -> Any:
        inner = ops.Loop(np.asarray(2), None, a, body=lambda k, g, b: (ops.Identity(g), ops.Sin(b * w) + a))
        return ops.Identity(go), inner

    return ops.Loop(np.asarray(2), None, x, body=outer)


def branch_in_loop(x: Any, w: Any) -> Any:
    def body(step: Any, go: Any, a: Any) -> Any:
        odd = ops.Equal(ops.Mod(step, np.asarray(2)), np.asarray(1))
        return ops.Identity(go), ops.If(odd, then_branch=lambda: a * w, else_branch=lambda: ops.Sin(a))

    return ops.Loop(np.asarray(3), None, x, body=body)


def scan(x: Any, rows: Any, w: Any) -> Any:
    def body(state: Any, row: Any) -> Any:
        new = ops.Tanh(state + row) * w
        return new, new * row

    return ops.Scan(x, rows, body=body, num_scan_inputs=1)


def scan_back(x: Any, rows: Any, more: Any) -> Any:
    def body(state: Any, row: Any, other: Any) -> Any:
        new = state * row + other
        return new, new * other, ops.Sin(row)

    reads = {"num_scan_inputs": 2, "scan_input_axes": [1, 0], "scan_input_directions": [1, 0]}
    return ops.Scan(x, rows, more, body=body, **reads, scan_output_axes=[0, -1], scan_output_directions=[1, 0])


def scan_without_state(rows: Any) -> Any:
    return ops.Scan(rows, body=lambda row: ops.Softmax(row), num_scan_inputs=1)


YES, NO = np.asarray(True), np.asarray(False)
CASES = [
    *(Case(f"{build.__name__} {c}", build, (c, normal(3), normal(3))) for build in (branch_of_two, nested) for c in (YES, NO)),
    Case("turns", turns, (normal(2, 2), normal(2, 2))),
    Case("two states", turns_of_two, (normal(2), normal(2), normal(2))),
    Case("condition", condition, (normal(3),)),
    Case("no turns", no_turns, (normal(3),)),
    Case("by step", by_step, (normal(4, 2),)),
    Case("loop in loop", loop_in_loop, (normal(2), normal(2))),
    Case("branch in loop", branch_in_loop, (normal(2), normal(2))),
    Case("scan", scan, (normal(2), normal(4, 2), normal(2))),
    Case("scan back", scan_back, (normal(2), normal(2, 3), normal(3, 2))),
    Case("scan without state", scan_without_state, (normal(3, 4),)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_gradient_through_bodies(case: Case) -> None:
    assert_gradient(make_function(case.build, case.inputs), case.inputs, second=case.second)
