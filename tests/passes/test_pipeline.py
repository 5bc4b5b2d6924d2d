"""The passes of a module: their order, dead code, newer opsets, named extents bound to numbers, and decompositions."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import xrt
from tests.passes.test_data_propagation import read
from xrt import XRTModule
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.errors import InputError
from xrt.formats.onnx import upgrade_opset, why_not_upgradable
from xrt.formats.text import parse
from xrt.graph import Constant, DType, Function, Node, OptionalType, SequenceType, TensorType
from xrt.operators import rewrite_nodes
from xrt.operators.decompositions import DECOMPOSITIONS, write_decomposition
from xrt.passes import bind_dims, drop_dead_nodes, find_decomposition, fold_constants, infer_shapes, optimize, specialize
from xrt.testing.cases import node_cases
from xrt.testing.corpus import CORPUS, entry
from xrt.testing.corpus.entry import body, node, tensor
from xrt.testing.strategies import functions

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
    return infer_shapes(entry.graph({"x": "float32[2,3]"}, {"y": None}, *nodes, constants={"s": np.array([3, 2])}, opset=opset))


def test_attributes_become_inputs_and_numbers_stay() -> None:
    f = old(
        node("Clip", "x", "c", min=0.0, max=1.5),
        node("Unsqueeze", "c", "u", axes=[0]),
        node("ReduceSum", "u", "r", axes=[2], keepdims=0),
        node("Relu", "r", "y", name="last"),
    )
    newer = upgrade_opset(f, 18)
    assert newer.opset() == 18 and newer.nodes[-1] == f.nodes[-1]
    assert not any(node.attr("axes") for node in newer.nodes)
    x = np.array([[-1, 1, 4], [2, 0, 0.5]], np.float32)
    assert evaluate(newer, [x])[0].tolist() == evaluate(f, [x])[0].tolist() == [[2.5, 2.0]]


@pytest.mark.parametrize("given", [{}, {"min": 1.0}, {"max": 1.0}], ids=["no bound", "lower", "upper"])
def test_a_bound_that_is_left_out_keeps_its_default(given: dict[str, float]) -> None:
    f = old(node("Clip", "x", "y", **given))
    x = np.array([[np.inf, -np.inf, 3], [0, 1, 2]], np.float32)
    most = np.finfo(np.float32).max
    want = np.clip(x, given.get("min", -most), given.get("max", most))
    for function in (f, upgrade_opset(f, 18)):
        np.testing.assert_array_equal(evaluate(function, [x])[0], want)


def test_what_is_new_enough_stays_itself() -> None:
    f = old(node("Relu", "x", "y"), opset=20)
    assert upgrade_opset(f, 18) is f
    assert why_not_upgradable(f.nodes[0], f, 18) is None


def test_a_function_without_onnx_operators_imports_them() -> None:
    f = parse("function main(x: float32[2]) -> (y: float32[2]) { opset com.acme 1 y = com.acme::Own(x) }")
    assert why_not_upgradable(f.nodes[0], f, 18) is None
    assert upgrade_opset(f, 18) == f.replace(opsets={"com.acme": 1, "": 18})


@pytest.mark.parametrize(
    ("op", "inputs", "opset", "newer"), [("Scatter", "x s s", 9, 18), ("Gelu", "x", 12, 20), ("Unheard", "x", 12, 20)]
)
def test_what_cannot_be_raised_has_a_reason(op: str, inputs: str, opset: int, newer: int) -> None:
    f = old(node(op, inputs, "y", name="n"), opset=opset)
    reason = why_not_upgradable(f.nodes[0], f, newer)
    assert reason is not None and reason.startswith(f"node 'n' ({op}) cannot be converted from opset {opset} to {newer}: ")


def test_the_nodes_of_a_body_are_raised_too() -> None:
    branch = body({}, {"s": None}, node("ReduceSum", "x", "s", axes=[0], keepdims=0), opset=12)
    choice = node("If", "c", "y", then_branch=branch, else_branch=branch, name="n")
    f = infer_shapes(entry.graph({"x": "float32[2,3]", "c": "bool[]"}, {"y": None}, choice, opset=12))
    assert why_not_upgradable(f.nodes[0], f, 13) == "node 'n' (If) cannot be converted from opset 12 to 13: it has a body"
    f = infer_shapes(f.replace(nodes=(choice.map_bodies(lambda b: b.replace(opsets={"": 11})),), opsets={"": 11}))
    newer = upgrade_opset(f, 12)
    assert [part.opset() for part in (newer, *newer.nodes[0].bodies)] == [12, 12, 12]


F = tensor("float32[2]")


def graph(*nodes: Node, outputs: str = "y", **changes: object) -> Function:
    function = entry.graph({"x": F, "c": "bool[]"}, dict.fromkeys(outputs.split()), *nodes)
    return function.replace(opsets={"": 17, "com.acme": 1}).replace(**changes)


def names(function: Function) -> list[str]:
    return [node.name for node in function.nodes]


KEPT = node("Relu", "x", "y", name="kept")


def test_nodes_constants_and_types_that_nothing_needs_go() -> None:
    function = graph(
        KEPT,
        *(node("Add", "x k", "a"), node("Neg", "a", "b"), node("RandomNormal", "", "r", shape=[2])),
        constants={"k": Constant(np.ones(2, np.float32)), "unused": Constant(np.ones(1))},
        types={"a": F, "b": F, "nowhere": F},
    )
    dropped = drop_dead_nodes(function)
    assert dropped == graph(KEPT)
    assert drop_dead_nodes(dropped) is dropped


def test_a_node_with_one_output_in_use_stays_whole() -> None:
    function = graph(node("Split", "x", "a y b", num_outputs=3), types={"a": F, "b": F})
    assert drop_dead_nodes(function) is function


def test_an_operator_of_another_domain_may_have_an_effect() -> None:
    function = graph(KEPT, node("Neg", "x", "a"), node("Log", "a", "b", domain="com.acme"), types={"a": F})
    assert drop_dead_nodes(function) is function


def test_so_may_one_inside_of_a_body() -> None:
    for domain, remaining in (("com.acme", ["kept", "if"]), ("", ["kept"])):
        plain, other = (
            body({}, {"b": None}, node("Neg", "x", "b", domain=each)).replace(opsets={"": 17, "com.acme": 1})
            for each in ("", domain)
        )
        function = graph(KEPT, node("If", "c", "z", then_branch=plain, else_branch=other, name="if"))
        assert names(drop_dead_nodes(function)) == remaining


def test_what_a_node_must_run_after_stays() -> None:
    first, after = node("Neg", "x", "a", name="first"), node("Relu", "x", "y", name="after", control=("first",))
    assert names(drop_dead_nodes(graph(first, after, node("Abs", "x", "q")))) == ["first", "after"]


def test_a_body_that_needs_less_captures_less() -> None:
    nodes = node("Relu", "x", "b", name="live"), node("Neg", "big", "d", name="dead")
    branch = body({}, {"b": None}, *nodes, opset=17).replace(types={"d": F})
    choice = node("If", "c", "y", then_branch=branch, else_branch=branch, name="if")
    dropped = drop_dead_nodes(graph(node("Exp", "x", "big", name="big"), choice))
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


def test_names_can_be_bound_by_themselves() -> None:
    assert text(bind_dims(TWO_DIMS, {"N": 2, "other": 9}))["y"] == "float32[2,M,?]"


def test_a_rank_that_was_not_known() -> None:
    function = entry.graph({"x": TensorType(DType.FLOAT32)}, {"y": None}, node("Relu", "x", "y"))
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
    for type_ in (SequenceType(tensor("float32[N]")), OptionalType(tensor("float32[N]"))):
        function = entry.graph({"s": type_}, {"s": None})
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
    arrays = {f"i{k}": array for k, array in enumerate(inputs)}
    x = {"i0": TensorType(DType.from_array(arrays["i0"]), arrays.pop("i0").shape)}
    names = " ".join([*x, *arrays])
    return infer_shapes(entry.graph(x, {"y": None}, node(op, names, "y", **attributes), constants=arrays, opset=opset))


X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(1, 2, 3, 4)
BY_RULE: dict[str, tuple[Function, set[str]]] = {
    **{f"norm {p}": (one("GlobalLpPool", X, p=p), {"Abs", "Pow", "ReduceSum", "ReduceL2"}) for p in (1, 2, 3)},
    "equality of truth values": (one("Equal", X > 0, X > 1), {"Xor", "Not"}),
}


@pytest.mark.parametrize("case", BY_RULE)
def test_what_no_node_test_shows_is_decomposed(case: str) -> None:
    function, operators = BY_RULE[case]
    lowered, inputs = rewrite_nodes(function, write_decomposition), [X if case.startswith("norm") else X > 0]
    assert {node.op for node in lowered.nodes} <= operators
    np.testing.assert_allclose(evaluate(lowered, inputs)[0], evaluate(function, inputs)[0], rtol=1e-5)


@pytest.mark.parametrize("engine", ["toy", "ort", "openvino"])
def test_quick_gelu_runs_by_a_kernel_or_its_decomposition(engine: str) -> None:
    x = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
    type_, gelu = "float32[3,4]", node("QuickGelu", "x", "y", domain="com.microsoft")
    function = entry.graph({"x": type_}, {"y": type_}, gelu).replace(opsets={"": 20, "com.microsoft": 1})
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
