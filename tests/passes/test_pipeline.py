"""The passes of a module: their order, dead code, newer opsets, named extents bound to numbers, and decompositions."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from onnx import parser

import xrt
from xrt import XRTModule
from xrt.engines.contract import registry
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.errors import InputError
from xrt.formats.onnx import load, upgrade_opset, why_not_upgradable
from xrt.formats.text import parse
from xrt.graph import Constant, DType, Function, Node, OptionalType, SequenceType, TensorType, Value, read_attributes
from xrt.operators import rewrite_nodes
from xrt.operators.decompositions import DECOMPOSITIONS, write_decomposition
from xrt.passes import bind_dims, drop_dead_nodes, find_decomposition, fold_constants, infer_shapes, optimize, specialize
from xrt.testing.cases import node_cases
from xrt.testing.corpus import CORPUS
from xrt.testing.strategies import functions
from xrt.verify.execution import run_alone

TWO = """function main(x: float32[2]) -> (y: float32[2]) {
  opset ai.onnx 18
  const c: float32[2] = [1.0, 2.0]
  k = Neg(c)
  d = Neg(x)
  y = Add(x, k)
}
"""


def test_constants_are_folded_and_dead_nodes_removed() -> None:
    function = infer_shapes(parse(TWO))
    assert [node.op for node in optimize(function, evaluate).nodes] == ["Add"]
    assert [node.op for node in optimize(function).nodes] == ["Neg", "Add"]


def old(*nodes: Node, opset: int = 9) -> Function:
    x = Value("x", TensorType(DType.FLOAT32, (2, 3)))
    return infer_shapes(Function((x,), (Value("y"),), nodes, {"s": Constant(np.array([3, 2]))}, {"": opset}))


def test_attributes_become_inputs_and_numbers_stay() -> None:
    f = old(
        Node("Clip", ("x",), ("c",), read_attributes({"min": 0.0, "max": 1.5})),
        Node("Unsqueeze", ("c",), ("u",), read_attributes({"axes": [0]})),
        Node("ReduceSum", ("u",), ("r",), read_attributes({"axes": [2], "keepdims": 0})),
        Node("Relu", ("r",), ("y",), name="last"),
    )
    newer = upgrade_opset(f, 18)
    assert newer.opset() == 18 and newer.nodes[-1] == f.nodes[-1]
    assert not any(node.attr("axes") for node in newer.nodes)
    x = np.array([[-1, 1, 4], [2, 0, 0.5]], np.float32)
    toy = registry.create("toy")
    assert np.array_equal(run_alone(toy, newer, [x])[0], run_alone(toy, f, [x])[0])
    assert run_alone(toy, newer, [x])[0].tolist() == [[2.5, 2.0]]


@pytest.mark.parametrize("given", [{}, {"min": 1.0}, {"max": 1.0}], ids=["no bound", "lower", "upper"])
def test_a_bound_that_is_left_out_keeps_its_default(given: dict[str, float]) -> None:
    f = old(Node("Clip", ("x",), ("y",), read_attributes(given)))
    x = np.array([[np.inf, -np.inf, 3], [0, 1, 2]], np.float32)
    most = np.finfo(np.float32).max
    want = np.clip(x, given.get("min", -most), given.get("max", most))
    toy = registry.create("toy")
    for function in (f, upgrade_opset(f, 18)):
        np.testing.assert_array_equal(run_alone(toy, function, [x])[0], want)


def test_what_is_new_enough_stays_itself() -> None:
    f = old(Node("Relu", ("x",), ("y",)), opset=20)
    assert upgrade_opset(f, 18) is f
    assert why_not_upgradable(f.nodes[0], f, 18) is None


def test_a_function_without_onnx_operators_imports_them() -> None:
    f = parse("function main(x: float32[2]) -> (y: float32[2]) { opset com.acme 1 y = com.acme::Own(x) }")
    assert why_not_upgradable(f.nodes[0], f, 18) is None
    assert upgrade_opset(f, 18) == f.replace(opsets={"com.acme": 1, "": 18})


def test_what_cannot_be_raised_has_a_reason() -> None:
    f = old(Node("Scatter", ("x", "s", "s"), ("y",), name="n"))
    reason = why_not_upgradable(f.nodes[0], f, 18)
    assert reason is not None and reason.startswith("node 'n' (Scatter) cannot be brought from opset 9 to 18: ")


def test_the_nodes_of_a_body_are_raised_too() -> None:
    sum_ = Node("ReduceSum", ("x",), ("s",), read_attributes({"axes": [0], "keepdims": 0}))
    body = Function((), (Value("s"),), (sum_,), opsets={"": 12})
    node = Node("If", ("c",), ("y",), read_attributes({"then_branch": body, "else_branch": body}), name="n")
    inputs = (Value("x", TensorType(DType.FLOAT32, (2, 3))), Value("c", TensorType(DType.BOOL, ())))
    f = infer_shapes(Function(inputs, (Value("y"),), (node,), opsets={"": 12}))
    assert why_not_upgradable(f.nodes[0], f, 13) == "node 'n' (If) cannot be brought from opset 12 to 13: it has a body"
    f = infer_shapes(f.replace(nodes=(node.map_bodies(lambda b: b.replace(opsets={"": 11})),), opsets={"": 11}))
    newer = upgrade_opset(f, 12)
    assert [part.opset() for part in (newer, *newer.nodes[0].bodies)] == [12, 12, 12]


F = TensorType(DType.FLOAT32, (2,))


def graph(*nodes: Node, outputs: tuple[str, ...] = ("y",), **changes: object) -> Function:
    return Function((Value("x", F),), tuple(map(Value, outputs)), nodes, opsets={"": 17, "com.acme": 1}).replace(**changes)


def names(function: Function) -> list[str]:
    return [node.name for node in function.nodes]


KEPT = Node("Relu", ("x",), ("y",), name="kept")


def test_nodes_constants_and_types_that_nothing_needs_go() -> None:
    function = graph(
        KEPT,
        Node("Add", ("x", "k"), ("a",), name="dead"),
        Node("Neg", ("a",), ("b",), name="deader"),
        Node("RandomNormal", (), ("r",), read_attributes({"shape": [2]}), name="random"),
        constants={"k": Constant(np.ones(2, np.float32)), "unused": Constant(np.ones(1))},
        types={"a": F, "b": F, "nowhere": F},
    )
    dropped = drop_dead_nodes(function)
    assert dropped == graph(KEPT)
    assert drop_dead_nodes(dropped) is dropped


def test_inputs_and_outputs_stay() -> None:
    function = graph(inputs=(Value("x", F), Value("unused", F)), outputs=("x", "k"), constants={"k": Constant(np.ones(1))})
    assert drop_dead_nodes(function) is function


def test_a_node_with_one_output_in_use_stays_whole() -> None:
    function = graph(
        Node("Split", ("x",), ("a", "y", "c"), read_attributes({"num_outputs": 3}), name="s"), types={"a": F, "c": F}
    )
    assert drop_dead_nodes(function) is function


def test_an_operator_of_another_domain_may_have_an_effect() -> None:
    function = graph(
        KEPT,
        Node("Neg", ("x",), ("a",), name="fed"),
        Node("Log", ("a",), ("b",), domain="com.acme", name="effect"),
        types={"a": F},
    )
    assert drop_dead_nodes(function) is function


def test_so_may_one_inside_of_a_body() -> None:
    def body(domain: str) -> Function:
        node = Node("Neg", ("x",), ("b",), domain=domain)
        return Function((), (Value("b"),), (node,), opsets={"": 17, "com.acme": 1})

    def branches(domain: str) -> Node:
        return Node("If", ("c",), ("z",), read_attributes({"then_branch": body(""), "else_branch": body(domain)}), name="if")

    inputs = (Value("x", F), Value("c", TensorType(DType.BOOL, ())))
    assert names(drop_dead_nodes(graph(KEPT, branches("com.acme"), inputs=inputs))) == ["kept", "if"]
    assert names(drop_dead_nodes(graph(KEPT, branches(""), inputs=inputs))) == ["kept"]


def test_what_a_node_must_run_after_stays() -> None:
    first = Node("Neg", ("x",), ("a",), name="first")
    after = Node("Relu", ("x",), ("y",), name="after", control=("first",))
    assert names(drop_dead_nodes(graph(first, after, Node("Abs", ("x",), ("q",), name="dead")))) == ["first", "after"]


def test_a_body_that_needs_less_captures_less() -> None:
    dead = Node("Neg", ("big",), ("d",), name="dead")
    body = Function((), (Value("b"),), (Node("Relu", ("x",), ("b",), name="live"), dead), opsets={"": 17}, types={"d": F})
    node = Node("If", ("c",), ("y",), read_attributes({"then_branch": body, "else_branch": body}), name="if")
    function = graph(
        Node("Exp", ("x",), ("big",), name="big"), node, inputs=(Value("x", F), Value("c", TensorType(DType.BOOL, ())))
    )
    dropped = drop_dead_nodes(function)
    assert names(dropped) == ["if"]
    assert [names(body) for body in dropped.nodes[0].bodies] == [["live"], ["live"]]
    assert dropped.nodes[0].captures == ("x",)
    assert drop_dead_nodes(dropped) is dropped


@pytest.mark.slow
@given(functions())
@settings(max_examples=50, deadline=None)
def test_generated_functions_keep_their_face_and_nothing_dead(function: Function) -> None:
    dropped = drop_dead_nodes(function)
    assert (dropped.inputs, dropped.outputs, dropped.aliases) == (function.inputs, function.outputs, function.aliases)
    assert drop_dead_nodes(dropped) is dropped
    assert set(names(dropped)) <= set(names(function))


def read(text: str) -> Function:
    return load(parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}'))


TWO_DIMS = read(
    "(float[N,M,?] x, float[N,3] z) => (float[N,M,?] y, float[K] w) <float[N,M,?] a> {"
    " a = Relu(x)  y = Neg(a)  w = ReduceSum(z) }"
)


def text(function: Function) -> dict[str, str]:
    values = {value.name: str(value.type) for value in (*function.inputs, *function.outputs)}
    return values | {name: str(type_) for name, type_ in function.types.items()}


def test_a_name_takes_its_number_everywhere() -> None:
    bound = specialize(TWO_DIMS, {"x": (2, 5, 7)})
    assert text(bound) == {
        "x": "float32[2,5,7]",
        "z": "float32[2,3]",
        "a": "float32[2,5,7]",
        "y": "float32[2,5,7]",
        "w": "float32[1,1]",
    }


def test_no_shapes_is_inference() -> None:
    assert specialize(TWO_DIMS, {}) == infer_shapes(TWO_DIMS)


def test_names_can_be_bound_by_themselves() -> None:
    assert text(bind_dims(TWO_DIMS, {"N": 2, "other": 9}))["y"] == "float32[2,M,?]"


def test_a_rank_that_was_not_known() -> None:
    function = read("(float x) => (float y) { y = Relu(x) }").replace(
        inputs=(Value("x", TensorType(DType.FLOAT32)),), outputs=(Value("y"),)
    )
    assert text(specialize(function, {"x": (4, 0)})) == {"x": "float32[4,0]", "y": "float32[4,0]"}


def test_bodies_are_bound_too() -> None:
    function = read("""(int64 m, float[N] x) => (float[N] y) {
        y = Loop(m, "", x) <body = b (int64 i, bool c, float[N] s) => (bool d, float[N] t) { d = Identity(c)  t = Relu(s) }> }""")
    (body,) = specialize(function, {"x": (6,)}).nodes[0].bodies
    assert str(body.inputs[2]) == "s: float32[6]"
    assert str(body.outputs[1]) == "t: float32[6]"


def test_a_stale_number_gives_way() -> None:
    function = read("(float[N,3] x) => (float[1,3] y) <float[1,3] a> { a = Relu(x)  y = Neg(a) }")
    assert text(specialize(function, {"x": (4, 3)}))["y"] == "float32[4,3]"


def refused(function: Function, shapes: dict[str, tuple[int, ...]]) -> str:
    with pytest.raises(InputError) as caught:
        specialize(function, shapes)
    return str(caught.value)


def test_shapes_that_do_not_fit() -> None:
    assert refused(TWO_DIMS, {"xx": (1,)}) == "function 'g' has no input 'xx'. Did you mean 'x'?"
    assert refused(TWO_DIMS, {"x": (1, 2)}) == "input 'x' is float32[N,M,?]; a shape of rank 2, [1, 2], was given for it"
    assert refused(TWO_DIMS, {"z": (2, 4)}) == "input 'z' is float32[N,3]; axis 1 was given as 4, but must be 3"
    assert refused(TWO_DIMS, {"x": (2, 5, 7), "z": (3, 3)}) == (
        "input 'z' is float32[N,3]; axis 0 was given as 3, but must be 2, as 'N' is elsewhere"
    )


def test_an_input_that_is_no_tensor() -> None:
    tensor = TensorType(DType.FLOAT32, ("N",))
    for type_ in (SequenceType(tensor), OptionalType(tensor)):
        function = Function((Value("s", type_),), (Value("s"),), opsets={"": 17})
        assert refused(function, {"s": (2,)}) == f"input 's' is {type_}, which has no shape; the shape [2] was given for it"


MOST = 6
"""Cases of an operator that are run."""


ELSEWHERE = {"Equal", "GlobalLpPool", "com.microsoft.QuickGelu"}
"""Operators without a case that can be decomposed, tested below."""


@cache
def cases() -> dict[str, list[Any]]:
    """The node tests and corpus entries by operator."""
    results: dict[str, list[Any]] = {}
    for case in (*node_cases(), *CORPUS):
        if "bf16" not in case.name:  # compared with results of float32
            for operator in {node.op for node in case.function.nodes} & DECOMPOSITIONS.keys():
                results.setdefault(operator, []).append(case)
    return results


def evaluate_decomposed(function: Function, operator: str, inputs: list[Any]) -> list[Any] | None:
    """Evaluate with the operator decomposed; None if no node of it can be."""
    typed = infer_shapes(fold_constants(infer_shapes(function), evaluate))
    lowered = rewrite_nodes(typed, lambda w: write_decomposition(w) if w.node.op == operator else None)
    return None if lowered is typed else list(evaluate(lowered, inputs))


@pytest.mark.parametrize("operator", sorted(DECOMPOSITIONS.keys() - ELSEWHERE))
def test_a_decomposition_computes_what_its_operator_does(operator: str) -> None:
    count = 0
    for case in cases()[operator]:
        inputs = list(case.make_inputs() if hasattr(case, "make_inputs") else case.inputs)
        with np.errstate(all="ignore"):
            results = evaluate_decomposed(case.function, operator, inputs)
        if results is not None:
            assert case.judge(results), case.name
            count += 1
        if count == MOST:
            break
    assert count, f"no case of {operator} is decomposed"


def one(op: str, *inputs: Any, opset: int = 24, **attributes: Any) -> Function:
    """A node of arrays, the first of which is the input."""
    names = [f"i{k}" for k in range(len(inputs))]
    first = TensorType(DType.of(inputs[0]), inputs[0].shape)
    return infer_shapes(
        Function(
            (Value("i0", first),),
            (Value("y"),),
            (Node(op, tuple(names), ("y",), read_attributes(attributes)),),
            {name: Constant(np.asarray(array)) for name, array in zip(names[1:], inputs[1:], strict=True)},
            {"": opset},
        )
    )


@pytest.mark.parametrize("power", [1, 2, 3])
def test_a_global_norm_is_decomposed(power: int) -> None:
    x = np.linspace(-2, 2, 24, dtype=np.float32).reshape(1, 2, 3, 4)
    function = one("GlobalLpPool", x, p=power)
    lowered = rewrite_nodes(function, write_decomposition)
    assert {node.op for node in lowered.nodes} <= {"Abs", "Pow", "ReduceSum", "ReduceL2"}
    np.testing.assert_allclose(evaluate(lowered, [x])[0], evaluate(function, [x])[0], rtol=1e-5)


def test_equality_of_truth_values_is_decomposed() -> None:
    x, y = np.array([True, False, True]), np.array([True, True, False])
    lowered = rewrite_nodes(one("Equal", x, y), write_decomposition)
    assert [node.op for node in lowered.nodes] == ["Xor", "Not"]
    np.testing.assert_array_equal(evaluate(lowered, [x])[0], x == y)


@pytest.mark.parametrize("engine", ["toy", "ort", "openvino"])
def test_quick_gelu_runs_by_a_kernel_or_its_decomposition(engine: str) -> None:
    x = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
    node = Node("QuickGelu", ("x",), ("y",), domain="com.microsoft")
    types = TensorType(DType.FLOAT32, (3, 4))
    function = Function((Value("x", types),), (Value("y", types),), (node,), opsets={"": 20, "com.microsoft": 1})
    module = XRTModule(function, engine=engine, strict=True)
    np.testing.assert_allclose(module(x), x / (1 + np.exp(-1.702 * x)), rtol=1e-5, atol=1e-6)
    gradient = evaluate(xrt.gradient(function), [x])[1]
    weight = 1 / (1 + np.exp(-1.702 * x))
    np.testing.assert_allclose(gradient, weight + 1.702 * x * weight * (1 - weight), rtol=1e-4, atol=1e-6)


def test_an_operator_without_a_rule_gets_the_body_that_onnx_has() -> None:
    x = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
    function = one("ReduceL1", x, np.array([1]), keepdims=0)
    body = find_decomposition(function.nodes[0], function)
    assert [node.op for node in body.nodes] == ["Abs", "ReduceSum"]
    np.testing.assert_allclose(evaluate(body, [x])[0], np.abs(x).sum(1), rtol=1e-6)
    add = one("Add", x, x)
    assert find_decomposition(add.nodes[0], add) is None
