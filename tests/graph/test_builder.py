"""Tracing: names, inputs, outputs, constants, scopes, aliases, parts, bodies of control flow, and what goes wrong."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tests.graph.tracing import F32, compute, compute_by_ort, run, trace
from xrt import ops
from xrt.builder import Builder, Tensor, device, inline, scope, trace as builder_trace
from xrt.builder.record_op import get_builder
from xrt.builder.tracing import Graph
from xrt.errors import ModelError
from xrt.graph import Constant, DType, Function, Node, SequenceType, TensorType, Value
from xrt.graph.verify import verify
from xrt.testing.corpus.entry import body, node


class Affine(Graph):
    def __init__(self, width: int = 3) -> None:
        self.weight = np.ones((3, width), np.float32)
        self.bias = np.zeros(width, np.float32)

    def build(self, x: Any) -> Any:
        return ops.Relu(x @ self.weight + self.bias)


def test_a_graph_is_traced_with_types_or_arrays() -> None:
    function = Affine().trace(F32)
    assert function == Affine().trace(np.zeros((2, 3), np.float32)) == Affine().trace(x=Value("other", F32))
    assert function.name == "Affine"
    assert function.inputs == (Value("x", F32),)
    assert function.outputs == (Value("relu_1", F32),)
    assert [(n.op, n.inputs, n.outputs) for n in function.nodes] == [
        ("MatMul", ("x", "weight"), ("matmul_1",)),
        ("Add", ("matmul_1", "bias"), ("add_1",)),
        ("Relu", ("add_1",), ("relu_1",)),
    ]
    assert function.opsets == {"": 26}
    assert function.types == {"matmul_1": F32, "add_1": F32}
    verify(function)


def test_a_graph_declares_its_opsets() -> None:
    class Old(Affine):
        opset = 17
        opsets = {"ai.onnx.ml": 3}

    assert Old().trace(F32).opsets == {"": 17, "ai.onnx.ml": 3}


def test_inputs_are_named_by_the_parameters() -> None:
    class Many(Graph):
        def build(self, a: Any, *rest: Any, scale: Any, flag: bool = False) -> Any:
            assert flag is True
            return sum(rest, a) * scale

    function = Many().trace(F32, F32, F32, scale=TensorType(DType.FLOAT32, ()), flag=True)
    assert [value.name for value in function.inputs] == ["a", "rest_1", "rest_2", "scale"]
    assert Many().input_names == ("a", "scale")


def test_outputs_by_name() -> None:
    function = trace(lambda x: {"a": ops.Relu(x), "same": x, "b": (y := x + 1), "again": y}, F32)
    assert [value.name for value in function.outputs] == ["a", "same", "b", "again"]
    assert [node.op for node in function.nodes] == ["Relu", "Identity", "Add", "Identity"]
    x = np.ones((2, 3), np.float32)
    for actual, expected in zip(compute(function, x), (x, x, x + 1, x + 1), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_an_output_may_be_an_input_a_constant_or_stand_twice() -> None:
    function = trace(lambda x: (x, np.zeros(2), (y := -x), y, 1.5), F32)
    assert [value.name for value in function.outputs] == ["x", "constant_1", "neg_1", "neg_1", "constant_2"]
    assert function.constants["constant_2"] == Constant(np.array(1.5, np.float32))


def test_an_output_is_renamed_where_a_body_reads_it_too() -> None:
    def build(x: Any) -> Any:
        y = x + 1
        return {"y": y, "z": ops.If(x.sum() > 0, then_branch=lambda: y * 2, else_branch=lambda: y)}

    function = trace(build, F32)
    assert [value.name for value in function.outputs] == ["y", "z"]
    assert function.producer("z").captures == ("y",)  # type: ignore[union-attr]  # there is one


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: None, "build of 'main' returns nothing"),
        (lambda x: object(), "build of 'main' returns object"),
        (lambda x: {"x": -x}, "an output cannot be named 'x', the name of another value of the graph"),
        (lambda x: {"": -x}, "an output cannot be named ''"),
        (lambda: 1, r"build of 'main' takes \(\); the inputs passed are 1 by position: too many"),
        (lambda x: Affine()(x, x), "takes 2 positional arguments but 3 were given"),
        (lambda x: Graph()(x), "Graph has no build; write `def build"),
    ],
)
def test_builds_that_are_refused(build: Any, message: str) -> None:
    with pytest.raises((ModelError, TypeError), match=message):
        trace(build, F32)


def test_constants_are_shared_by_value_when_small_and_by_identity_when_large() -> None:
    large = np.ones(1000, np.float32)
    function = trace(lambda x: (x * 2 + 2) * large + large + large.copy(), TensorType(DType.FLOAT32, (1000,)))
    assert sorted(c.array.size for c in function.constants.values()) == [1, 1000, 1000]


def test_a_writeable_array_is_copied_a_read_only_one_is_not() -> None:
    mine, shared = np.ones(100, np.float32), np.ones(100, np.float32)
    shared.flags.writeable = False
    function = trace(lambda x: x + mine + shared, TensorType(DType.FLOAT32, (100,)))
    mine += 1
    arrays = [constant.array for constant in function.constants.values()]
    assert [np.shares_memory(array, shared) for array in arrays] == [False, True]
    assert float(arrays[0].max()) == 1.0


def test_unused_constants_are_left_out() -> None:
    function = trace(lambda x: (get_builder("").constant(np.ones(3)), x)[1], F32)
    assert function.constants == {}


def test_an_explicit_builder() -> None:
    with Builder("double", opsets=20) as b:
        x = b.input("x", F32)
        b.output(x + b.constant(1.0, name="one"), "y")
    function = b.function()
    assert function is b.function()
    assert function.name == "double"
    assert function.outputs == (Value("y", TensorType(DType.FLOAT32)),)
    assert set(function.constants) == {"one"}
    with b, pytest.raises(ModelError, match="'double' is already a Function; no node can be added"):
        x + 1


def test_names_are_unique() -> None:
    with Builder() as b:
        x = b.input("x", F32)
        with pytest.raises(ModelError, match="a value named 'x' already"):
            b.input("x", F32)
        ops.Relu(x, name="act")
        with pytest.raises(ModelError, match=r"another value of the graph has the name '.*act'; choose another name"):
            ops.Relu(x, name="act")
        with scope("block"):
            assert ops.Relu(x, name="act").name == "block/act"
            assert ops.Relu(x).name == "block/relu_1"


def test_a_name_names_the_node_and_its_outputs() -> None:
    function = trace(lambda x: ops.TopK(x, [1], name="best"), F32)
    assert function.nodes[0].name == "best"
    assert function.nodes[0].outputs == ("best", "best_indices")


def test_device_and_scope() -> None:
    def build(x: Any) -> Any:
        first = ops.Relu(x)
        with device("cuda:1"), scope("late"):
            second = ops.Neg(x)
            with device("cpu"):
                third = ops.Abs(x)
        return second, third, first

    nodes = {node.op: node for node in trace(build, F32).nodes}
    assert (nodes["Neg"].device, nodes["Abs"].device, nodes["Relu"].device) == ("cuda:1", "cpu", "")
    assert nodes["Neg"].name == "late/neg_1"


def test_an_update_is_an_alias_and_its_value_an_output() -> None:
    class Counter(Graph):
        def build(self, state: Any, x: Any, named: bool) -> Any:
            new = self.update(state, state + x)
            return {"total": new} if named else x * state

    function = Counter().trace(F32, F32, named=True)
    assert function.aliases == (("state", "total"),)
    verify(function)
    function = Counter().trace(F32, F32, named=False)
    assert [value.name for value in function.outputs] == ["mul_1", "add_1"]
    assert function.aliases == (("state", "add_1"),)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: Graph.update(-x, x), r"only an input can be updated; <Tensor neg_1: .*> is not an input \(the inputs"),
        (lambda x: Graph.update(x, x.sum()), "input x: .* cannot be updated with reducesum_1: .*; their types differ"),
        (lambda x: (Graph.update(x, -x), Graph.update(x, x + 1)), "input 'x' is updated twice"),
        (
            lambda x: ops.If(x.sum() > 0, then_branch=lambda: Graph.update(x, -x), else_branch=lambda: x),
            "an input can be updated only in the graph itself, not in the body 'then_branch'",
        ),
    ],
)
def test_updates_that_are_refused(build: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        trace(build, F32)


def test_a_graph_used_in_another() -> None:
    class Twice(Graph):
        def __init__(self) -> None:
            self.layer = Affine()

        def build(self, x: Any) -> Any:
            return self.layer(self.layer(x))

    function = Twice().trace(F32)
    assert [node.name for node in function.nodes][::3] == ["affine_1/matmul_1", "affine_2/matmul_1"]
    assert list(function.constants) == ["affine_1/weight", "affine_1/bias"]  # used twice, there once


def test_bodies_import_what_is_imported_after_them() -> None:
    def build(x: Any) -> Any:
        branch = ops.If(
            x.sum() > 0, then_branch=lambda: ops.If(True, then_branch=lambda: x, else_branch=lambda: -x), else_branch=lambda: x
        )
        return ops.ml.Binarizer(branch)

    function = trace(build, F32)
    assert {f"{scope.name}: {sorted(scope.opsets)}" for scope, _ in function.walk()} == {
        f"{name}: ['', 'ai.onnx.ml']" for name in ("main", "then_branch", "else_branch")
    }


def test_a_function_recorded_in_another() -> None:
    inner = trace(lambda x, y: (ops.Relu(x + y), y), F32, F32, name="part")
    function = trace(lambda a: inline(inner, a, a * 2) + inline(inner, a, 3.0 * a), F32)
    verify(function)
    x = np.ones((2, 3), np.float32)
    assert [float(result[0, 0]) for result in compute(function, x)] == [3.0, 2.0, 4.0, 3.0]
    assert len({node.name for node in function.nodes}) == len(function.nodes) == 6


def test_a_function_with_bodies_recorded_twice() -> None:
    def branch(x: Any) -> Any:
        return ops.If(x.sum() > 0, then_branch=lambda: ops.Neg(x + 1), else_branch=lambda: x)

    inner = trace(branch, F32, name="part")
    function = trace(lambda a: inline(inner, inline(inner, a)[0]), F32)
    verify(function)
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(compute(function, x)[0], -(x + 1))


@pytest.mark.parametrize(
    ("change", "inputs", "message"),
    [
        ({}, 1, r"function 'part' takes 2 inputs \(x, y\); got 1"),
        ({"aliases": (("x", "add_1"),)}, 2, "function 'part' updates its inputs"),
        ({"opsets": {"": 20}}, 2, "function 'part' imports ai.onnx at version 20, the graph at 26"),
        ({"outputs": (Value("z"),)}, 2, "function 'part' reads 'z' from outside"),
    ],
)
def test_functions_that_cannot_be_recorded(change: dict[str, Any], inputs: int, message: str) -> None:
    inner = trace(lambda x, y: x + y, F32, F32, name="part").replace(**change)
    with pytest.raises(ModelError, match=message):
        trace(lambda a: inline(inner, *[a] * inputs), F32)


def test_a_tensor_of_another_graph_is_refused() -> None:
    results: list[Tensor] = []
    trace(lambda x: (results.append(x), x)[1], F32, name="first")
    with pytest.raises(ModelError, match=r"value 'x' belongs to another graph \('first'\) and cannot be used in 'main'"):
        trace(lambda x: ops.Add(x, results[0]), F32)


def test_a_tensor_of_a_body_that_has_ended_is_refused() -> None:
    results: list[Tensor] = []

    def build(x: Any) -> Any:
        ops.If(x.sum() > 0, then_branch=lambda: (results.append(y := x + 1), y)[1], else_branch=lambda: x)
        return results[0] + 1

    with pytest.raises(ModelError, match=r"belongs to a body that has ended, or another graph \('then_branch'\)"):
        trace(build, F32)


def test_outside_of_a_trace() -> None:
    for call in (lambda: ops.Relu(1.0), lambda: scope("a"), lambda: Affine()(1)):
        with pytest.raises(ModelError, match=r"builds a graph, but no graph is being traced; call it inside xrt.Graph.build"):
            call()


def test_threads_trace_apart() -> None:
    seen: list[Function] = []
    threads = [threading.Thread(target=lambda: seen.append(Affine().trace(F32))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [Affine().trace(F32)] * 4


def test_an_error_leaves_no_trace_behind() -> None:
    with pytest.raises(ModelError):
        trace(lambda x: ops.Relu(x, x), F32)
    with pytest.raises(ModelError, match="no graph is being traced"):
        ops.Relu(1.0)


def test_values_that_are_no_tensors() -> None:
    function = trace(lambda x: ops.SequenceConstruct(x, x), F32)
    assert function.outputs[0].type == SequenceType(F32)
    with pytest.raises(ModelError, match=r"value 'sequenceconstruct_1' is used as a tensor, but it is a seq\(float32\[2,3\]\)"):
        trace(lambda x: ops.SequenceConstruct(x, x) + 1, F32)
    with pytest.raises(ModelError, match="value 'x' is used as a tensor, but its type is not known"):
        Builder().input("x").dtype  # noqa: B018  # the property raises


def test_types_without_inference() -> None:
    function = builder_trace(
        lambda x: (x + 1, ops.Cast(x, to="int32"), ops.RandomNormal(shape=[2]), ops.ConstantOfShape([2])), F32
    )
    assert [str(value.type) for value in function.outputs] == ["float32[...]", "int32[...]", "float32[...]", "float32[...]"]


def test_inference_refuses_what_does_not_fit() -> None:
    with pytest.raises(
        ModelError, match=r"xrt.ops.Add: Incompatible dimensions \(its inputs are x: float32\[2,3\], constant_1: float32\[4\]\)"
    ):
        trace(lambda x: x + np.ones(4, np.float32), F32)


def test_an_opaque_operator() -> None:
    def build(x: Any) -> Any:
        gelu = ops.custom("FastGelu", x, None, 2, domain="com.microsoft", types=[F32], alpha=2, empty=None)
        return ops.custom("Pair", gelu, domain="com.microsoft", types=[None, F32])

    function = trace(build, F32)
    gelu, pair = function.nodes
    assert gelu == Node("FastGelu", ("x", "", "constant_1"), ("fastgelu_1",), gelu.attributes, "com.microsoft", "fastgelu_1")
    assert pair.outputs == ("pair_1", "pair_1_2")
    assert function.opsets == {"": 26, "com.microsoft": 1}
    assert [value.type for value in function.outputs] == [None, F32]
    with pytest.raises(ModelError, match=r"the operator imports com.microsoft at version 2, the graph at 1"):
        trace(lambda x: (ops.custom("A", x, domain="com.microsoft"), ops.custom("B", x, domain="com.microsoft", version=2)), F32)


def test_custom_knows_the_domains_that_onnx_describes() -> None:
    function = trace(lambda x: ops.custom("Binarizer", x, domain="ai.onnx.ml", threshold=0.5), F32)
    assert function.nodes[0].op == "ai.onnx.ml.Binarizer"
    with pytest.raises(ModelError, match=r"Binariser is not an operator of ai.onnx.ml at opset 5. Did you mean 'Binarizer'"):
        trace(lambda x: ops.custom("Binariser", x, domain="ai.onnx.ml"), F32)


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
    for inner in function.nodes[-1].bodies:
        names = [value.name for value in inner.outputs]
        assert len(set(names)) == 3
        assert all(inner.producer(name) for name in names)
    np.testing.assert_array_equal(compute(function, X)[1], X)


def test_if_joins_the_types_and_forms_of_its_branches() -> None:
    function = trace(lambda x: ops.If(x.sum() > 0, then_branch=lambda: x[:1], else_branch=lambda: x), F32)
    assert function.outputs[0].type == TensorType(DType.FLOAT32, (None, 3))
    function = trace(lambda x: ops.If(x.sum() > 0, then_branch=lambda: x[0], else_branch=lambda: x), F32)
    assert function.outputs[0].type == TensorType(DType.FLOAT32)
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


def test_loop_stops_by_its_condition_or_has_none() -> None:
    (actual,) = run(lambda x: ops.Loop(None, True, x, body=lambda i, go, v: ((v * 2).sum() < 100, v * 2)), X)
    np.testing.assert_array_equal(actual, X * 8)
    function = trace(lambda x: ops.Loop(3, None, x, body=lambda i, go, v: (go, v * 2)), F32)
    assert function.nodes[-1].inputs == ("constant_1", "", "x")
    np.testing.assert_array_equal(compute_by_ort(function, X)[0], X * 8)


def test_a_carried_value_may_grow_and_change_its_rank() -> None:
    calls = []

    def body(i: Any, go: Any, rows: Any) -> Any:
        calls.append(rows.type)
        return go, ops.Concat(rows, rows[:1], axis=0)

    function = trace(lambda x: ops.Loop(2, True, x, body=body), F32)
    assert function.outputs[0].type == TensorType(DType.FLOAT32, (None, 3))
    assert calls == [F32, TensorType(DType.FLOAT32, (None, 3))]
    assert compute(function, X)[0].shape == (4, 3)
    names = [node.name for _, node in function.walk()]
    assert "concat_1" in names and "concat_2" not in names  # the first round has left no names behind
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


def test_sequence_map() -> None:
    def build(x: Any) -> Any:
        return ops.SequenceMap(ops.SequenceConstruct(x, -x), x, body=lambda item, same: item * 2 + same)

    function = trace(build, F32)
    assert function.outputs[0].type == SequenceType(F32)
    first, second = compute(function, X)[0]
    np.testing.assert_array_equal(first, X * 3)
    np.testing.assert_array_equal(second, -X)


def branch(**changes: Any) -> Function:
    return body({}, {"r": F32}, node("Relu", "x", "r"), opset=26).replace(name="then", **changes)


def test_a_function_as_a_body() -> None:
    other = branch(nodes=(node("Neg", "x", "r"),))
    function = trace(lambda x: ops.If(x.sum() > 0, then_branch=branch(), else_branch=other), F32)
    bodies = function.nodes[-1].bodies
    assert {body.outputs[0].name for body in bodies} == {"r", "r_1"}  # no name stands for two values
    np.testing.assert_array_equal(compute(function, -X)[0], X)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: ops.If(x, then_branch=1, else_branch=2), "takes no tensor(float) as input 'cond'"),
        (lambda x: ops.If(x.sum() > 0, then_branch=lambda: x), "needs the attribute 'else_branch' (graph); it is missing"),
        (lambda x: ops.If(True, then_branch=1, else_branch=2), "then_branch must be a callable or a Function; got int 1"),
        (
            lambda x: ops.If(True, then_branch=lambda y: y, else_branch=2),
            "then_branch is called with 0 arguments (none): missing",
        ),
        (
            lambda x: ops.If(True, then_branch=lambda: (x, x), else_branch=lambda: x),
            "then_branch has 2 outputs and else_branch 1; both must have the same number",
        ),
        (
            lambda x: ops.If(True, then_branch=lambda: x, else_branch=lambda: x.astype(int)),
            "output 1 is float32[2,3] in then_branch and int64[2,3] in else_branch",
        ),
        (
            lambda x: ops.If(True, then_branch=lambda: x, else_branch=lambda: x, outputs=2),
            "got outputs=2, but the body has 1",
        ),
        (
            lambda x: ops.Loop(3, True, x, body=lambda i, go, v: v),
            "has 1 output(s); the first must be the condition and 1 carried value(s)",
        ),
        (
            lambda x: ops.Loop(3, True, x, body=lambda i, go, v: (go, v.astype("int8"))),
            "carried value 1 is float32[2,3] in the input and int8[2,3] in the body's output",
        ),
        (lambda x: ops.Scan(x, num_scan_inputs=2, body=abs), "num_scan_inputs must be 1 to 1, the number of its inputs; got 2"),
        (lambda x: ops.Scan(x, num_scan_inputs=1, scan_input_axes=[4], body=abs), "a scan input of rank 2 has no axis 4"),
        (
            lambda x: ops.If(True, then_branch=branch(inputs=(Value("a"),)), else_branch=branch()),
            "with 1 inputs; the operator passes 0",
        ),
        (
            lambda x: ops.If(True, then_branch=branch(nodes=(node("Relu", "xx", "r"),)), else_branch=branch()),
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
    with pytest.raises(ModelError, match="Scan needs opset 9 or newer"):
        trace(lambda x: ops.Scan(None, x, num_scan_inputs=1, body=lambda row: row), F32, opsets=8)
