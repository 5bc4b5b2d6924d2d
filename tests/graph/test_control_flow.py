"""Bodies of control flow: callables traced in place, Functions taken as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graph.tracing import F32, compute, compute_by_ort, run, trace
from xrt import ops
from xrt.errors import ModelError
from xrt.graph import DType, Function, Node, SequenceType, TensorType, Value

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_if_takes_callables_that_read_what_is_around_them() -> None:
    def build(x: Any) -> Any:
        y = x * 2
        return ops.If(x.sum() > 0, then_branch=lambda: y + 1, else_branch=lambda: x)

    function = trace(build, F32)
    node = function.producer(function.outputs[0].name)
    assert node is not None
    assert node.captures == ("x", "mul_1")  # the else branch stands first: attributes are sorted
    np.testing.assert_array_equal(compute(function, X)[0], X * 2 + 1)
    np.testing.assert_array_equal(compute(function, -X)[0], -X)


def test_outputs_of_a_body_are_computed_in_it() -> None:
    def build(x: Any) -> Any:
        return ops.If(x.sum() > 0, then_branch=lambda: (x, x, 1.0), else_branch=lambda: (y := -x, y, 2.0))

    function = trace(build, F32)
    for body in function.nodes[-1].bodies:
        names = [value.name for value in body.outputs]
        assert len(set(names)) == 3
        assert all(body.producer(name) for name in names)
    np.testing.assert_array_equal(compute(function, X)[1], X)


def test_if_joins_the_types_of_its_branches() -> None:
    function = trace(lambda x: ops.If(x.sum() > 0, then_branch=lambda: x[:1], else_branch=lambda: x), F32)
    assert function.outputs[0].type == TensorType(DType.FLOAT32, (None, 3))
    function = trace(lambda x: ops.If(x.sum() > 0, then_branch=lambda: x[0], else_branch=lambda: x), F32)
    assert function.outputs[0].type == TensorType(DType.FLOAT32)


def test_if_returns_what_its_branches_return() -> None:
    single = trace(lambda x: ops.If(x.sum() > 0, then_branch=lambda: x, else_branch=lambda: -x) + 1, F32)
    assert len(single.outputs) == 1
    trace(lambda x: ops.If(x.sum() > 0, then_branch=lambda: (x,), else_branch=lambda: [-x])[0] + 1, F32)


def test_nested_bodies() -> None:
    def build(x: Any) -> Any:
        def outer() -> Any:
            y = x + 1
            return ops.If(y.sum() > 10, then_branch=lambda: y * x, else_branch=lambda: y)

        return ops.If(x.sum() > 0, then_branch=outer, else_branch=lambda: x)

    np.testing.assert_array_equal(run(build, X)[0], (X + 1) * X)


def test_loop_carries_and_gathers() -> None:
    def build(x: Any) -> Any:
        def body(i: Any, go: Any, total: Any) -> Any:
            new = total + x * i.astype("float32")
            return go, new, new.sum()

        return ops.Loop(3, True, x, body=body)

    total, sums = run(build, X, by=compute_by_ort)
    np.testing.assert_array_equal(total, X * 4)
    np.testing.assert_array_equal(sums, [15.0, 30.0, 60.0])
    function = trace(build, F32)
    assert [value.type for value in function.outputs] == [F32, TensorType(DType.FLOAT32, (None,))]
    (body,) = function.nodes[-1].bodies
    assert [value.name for value in body.inputs] == ["i", "go", "total"]


def test_loop_carries_numbers_of_several_types() -> None:
    function = trace(lambda: ops.Loop(3, True, 0, 1.5, body=lambda i, go, a, b: (go, a + 1, b * 2)))
    assert [value.type for value in function.outputs] == [TensorType(DType.INT64, ()), TensorType(DType.FLOAT32, ())]


def test_loop_stops_by_its_condition() -> None:
    (actual,) = run(lambda x: ops.Loop(None, True, x, body=lambda i, go, v: ((v * 2).sum() < 100, v * 2)), X)
    np.testing.assert_array_equal(actual, X * 8)


def test_a_carried_value_may_grow() -> None:
    calls = []

    def body(i: Any, go: Any, rows: Any) -> Any:
        calls.append(rows.type)
        return go, ops.Concat(rows, rows[:1], axis=0)

    function = trace(lambda x: ops.Loop(2, True, x, body=body), F32)
    assert function.outputs[0].type == TensorType(DType.FLOAT32, (None, 3))
    assert calls == [F32, TensorType(DType.FLOAT32, (None, 3))]
    assert compute(function, X)[0].shape == (4, 3)
    names = [node.name for _, node in function.walk()]
    assert "concat_1" in names  # the first round has left no names behind
    assert "concat_2" not in names


def test_a_carried_value_may_change_its_rank() -> None:
    function = trace(lambda x: ops.Loop(2, True, x, body=lambda i, go, v: (go, v[None])), F32)
    assert function.outputs[0].type == TensorType(DType.FLOAT32)
    assert compute(function, X)[0].shape == (1, 1, 2, 3)


def test_scan() -> None:
    def build(start: Any, x: Any) -> Any:
        return ops.Scan(start, x, num_scan_inputs=1, body=lambda total, row: (total + row, (total + row) * 2))

    start = np.zeros(3, np.float32)
    total, rows = run(build, start, X)
    np.testing.assert_array_equal(total, X.sum(0))
    np.testing.assert_array_equal(rows, X.cumsum(0) * 2)
    assert trace(build, start, X).outputs[1].type == F32


def test_scan_along_other_axes() -> None:
    def build(x: Any) -> Any:
        return ops.Scan(x, num_scan_inputs=1, scan_input_axes=[1], scan_output_axes=[-1], body=lambda column: column * 2)

    assert trace(build, F32).outputs[0].type == F32
    np.testing.assert_array_equal(run(build, X, by=compute_by_ort)[0], X * 2)


def test_loop_without_a_condition() -> None:
    function = trace(lambda x: ops.Loop(3, None, x, body=lambda i, go, v: (go, v * 2)), F32)
    assert function.nodes[-1].inputs == ("constant_1", "", "x")
    np.testing.assert_array_equal(compute_by_ort(function, X)[0], X * 8)


def test_sequence_map() -> None:
    def build(x: Any) -> Any:
        return ops.SequenceMap(ops.SequenceConstruct(x, -x), x, body=lambda item, same: item * 2 + same)

    function = trace(build, F32)
    assert function.outputs[0].type == SequenceType(F32)
    first, second = compute(function, X)[0]
    np.testing.assert_array_equal(first, X * 3)
    np.testing.assert_array_equal(second, -X)


def test_a_function_as_a_body() -> None:
    then = Function((), (Value("r", F32),), (Node("Relu", ("x",), ("r",)),), opsets={"": 26}, name="then")
    other = Function((), (Value("r", F32),), (Node("Neg", ("x",), ("r",)),), opsets={"": 26}, name="other")
    function = trace(lambda x: ops.If(x.sum() > 0, then_branch=then, else_branch=other), F32)
    bodies = function.nodes[-1].bodies
    assert {body.outputs[0].name for body in bodies} == {"r", "r_1"}  # no name stands for two values
    np.testing.assert_array_equal(compute(function, -X)[0], X)


def branch(**changes: Any) -> Function:
    return Function((), (Value("r", F32),), (Node("Relu", ("x",), ("r",)),), opsets={"": 26}, name="then").replace(**changes)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: ops.If(x, then_branch=1, else_branch=2), "takes no tensor(float) as input 'cond'"),
        (lambda x: ops.If(x.sum() > 0, then_branch=lambda: x), "needs the attribute 'else_branch' (graph); it was not given"),
        (lambda x: ops.If(True, then_branch=1, else_branch=2), "then_branch must be a callable or a Function; got int 1"),
        (
            lambda x: ops.If(True, then_branch=lambda y: y, else_branch=2),
            "then_branch is called with 0 arguments (none): missing",
        ),
        (
            lambda x: ops.If(True, then_branch=lambda: (x, x), else_branch=lambda: x),
            "then_branch gives 2 outputs and else_branch 1; they must give as many",
        ),
        (
            lambda x: ops.If(True, then_branch=lambda: x, else_branch=lambda: x.astype(int)),
            "output 1 is float32[2,3] in then_branch and int64[2,3] in else_branch",
        ),
        (
            lambda x: ops.If(True, then_branch=lambda: x, else_branch=lambda: x, outputs=2),
            "outputs=2 was asked, but the body gives 1",
        ),
        (
            lambda x: ops.Loop(3, True, x, body=lambda i, go: go),
            "body is called with 3 arguments (iteration, condition, carried)",
        ),
        (
            lambda x: ops.Loop(3, True, x, body=lambda i, go, v: v),
            "gives 1 output(s); it must give the condition and 1 carried value(s)",
        ),
        (
            lambda x: ops.Loop(3, True, x, body=lambda i, go, v: (go, v.astype("int8"))),
            "carried value 1 is float32[2,3] in the input and int8[2,3] in the body's output",
        ),
        (lambda x: ops.Scan(x, num_scan_inputs=2, body=abs), "num_scan_inputs must be 1 to 1, the number of its inputs; got 2"),
        (lambda x: ops.Scan(x, num_scan_inputs=1, scan_input_axes=[4], body=abs), "a scan input of rank 2 has no axis 4"),
        (
            lambda x: ops.If(True, then_branch=branch(inputs=(Value("a"),)), else_branch=branch()),
            "of 1 inputs; the operator gives it 0",
        ),
        (
            lambda x: ops.If(True, then_branch=branch(nodes=(Node("Relu", ("xx",), ("r",)),)), else_branch=branch()),
            "then_branch reads 'xx', which neither it nor the graph defines. Did you mean 'x'?",
        ),
        (lambda x: ops.If(True, then_branch=branch(opsets={"": 9}), else_branch=branch()), "'then' imports ai.onnx at version 9"),
    ],
)
def test_bodies_that_are_refused(build: Any, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        trace(build, F32)
    assert message in str(caught.value)
    assert str(caught.value).startswith("xrt.ops.")


def test_an_error_inside_a_body_names_the_inner_operator() -> None:
    with pytest.raises(ModelError, match=r"^xrt.ops.Relu: takes 1 input\(s\): X; got 2$"):
        trace(lambda x: ops.If(True, then_branch=lambda: ops.Relu(x, x), else_branch=lambda: x), F32)


def test_scan_of_opset_8_is_refused() -> None:
    with pytest.raises(ModelError, match="a graph is traced with Scan from opset 9 on"):
        trace(lambda x: ops.Scan(None, x, num_scan_inputs=1, body=lambda row: row), F32, opsets=8)
