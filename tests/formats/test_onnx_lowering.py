"""The lowest opset and IR version at which every operator means the same, and what happens at a limit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto
from onnx.reference import ReferenceEvaluator

from xrt.errors import ModelError
from xrt.formats.onnx import (
    collect_external_weights,
    expand_definition,
    externalize_weights,
    find_lowest_opset,
    load,
    to_lowest_model,
    to_model,
    why_not_downgradable,
)
from xrt.formats.onnx.opsets import convert_function
from xrt.graph import Constant, DType, Function, Node, SequenceType, TensorType, Type, Value, read_attributes
from xrt.graph.verify import verify
from xrt.operators import as_function, decompose_nodes
from xrt.passes import infer_shapes

F4 = TensorType(DType.FLOAT32, (4, 4))
BOOL = TensorType(DType.BOOL, ())


def graph(*nodes: Node, opset: int = 28, **changes: object) -> Function:
    outputs = tuple(Value(name, F4) for name in nodes[-1].defined_names)
    return Function((Value("x", F4),), outputs, nodes, opsets={"": opset}, name="g").replace(**changes)


def opsets(model: ModelProto) -> dict[str, int]:
    return {entry.domain: entry.version for entry in model.opset_import}


def operators(model: ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def run(model: ModelProto, **inputs: np.ndarray) -> list[np.ndarray]:
    onnx.checker.check_model(model, full_check=True)
    return list(ReferenceEvaluator(model).run(None, inputs))


X = np.linspace(-3, 3, 16, dtype=np.float32).reshape(4, 4)


def test_each_operator_decides_by_the_version_that_gave_it_its_meaning() -> None:
    relu = graph(Node("Relu", ("x",), ("y",)))
    model = to_lowest_model(relu)
    assert (opsets(model), model.ir_version) == ({"": 14}, 7)
    assert opsets(to_lowest_model(graph(Node("Relu", ("x",), ("a",)), Node("Gelu", ("a",), ("y",))))) == {"": 20}
    assert opsets(to_lowest_model(relu.replace(opsets={"": 13}))) == {"": 13}


def choose(op: str, opset: int, type_: TensorType = F4) -> Function:
    """Return an If whose branches both have one node of that operator."""
    body = Function((), (Value("b", type_),), (Node(op, ("x",), ("b",), name="inner"),), opsets={"": opset}, name="b")
    node = Node("If", ("c",), ("y",), name="if").with_attributes(then_branch=body, else_branch=body)
    return graph(node, opset=opset, inputs=(Value("x", type_), Value("c", BOOL)), outputs=(Value("y", type_),))


def test_bodies_count() -> None:
    function = choose("Gelu", 21)
    assert opsets(to_lowest_model(function)) == {"": 21}  # If itself
    assert find_lowest_opset(function.nodes[0], function) == 21
    assert opsets(to_lowest_model(choose("Gelu", 20))) == {"": 20}  # Gelu in the body


def test_other_domains() -> None:
    function = graph(
        Node("Fused", ("x",), ("a",), domain="com.acme"),
        Node("Normalizer", ("a",), ("y",), domain="ai.onnx.ml"),
        opsets={"": 28, "com.acme": 7, "ai.onnx.ml": 5, "unused": 3},
    )
    assert opsets(to_lowest_model(function)) == {"": 1, "com.acme": 7, "ai.onnx.ml": 1}
    assert find_lowest_opset(function.nodes[0], function) == 1


def test_an_engine_gets_no_docs_metadata_devices_or_control_edges() -> None:
    nodes = (Node("Relu", ("x",), ("y",), name="a", device="cuda"), Node("Neg", ("x",), ("z",), name="b", control=("a",)))
    model = to_lowest_model(graph(*nodes, doc="long", metadata={"k": "v"}, aliases=(("x", "z"),)))
    assert not model.metadata_props
    assert not model.graph.metadata_props
    assert not model.graph.doc_string
    assert not any(node.metadata_props for node in model.graph.node)
    assert model.ir_version == 7


def test_a_limit_that_holds_changes_nothing() -> None:
    function = graph(Node("Relu", ("x",), ("y",)))
    assert to_lowest_model(function, max_opset=14) == to_lowest_model(function)
    assert why_not_downgradable(function.nodes[0], function, 14) is None


def refused(function: Function, max_opset: int) -> str:
    with pytest.raises(ModelError) as caught:
        to_lowest_model(function, max_opset)
    assert [r for node in function.nodes if (r := why_not_downgradable(node, function, max_opset))] == [str(caught.value)]
    return str(caught.value)


HALF, LONG = TensorType(DType.FLOAT16, (4, 4)), TensorType(DType.FLOAT32, (1 << 40,))


@pytest.mark.parametrize(
    ("op", "type_", "opset", "limit", "reason"),
    [
        ("Gelu", F4, 20, 19, "No Previous Version of Gelu exists"),
        ("Celu", HALF, 28, 27, "DataType (10) of Input or Output of operator 'Celu' is unallowed for Opset Version 27."),
        ("Celu", None, 28, 27, "the types of its inputs are not known; infer shapes first"),
        ("Celu", LONG, 28, 27, "its inputs are too long for onnx's converter"),
    ],
)
def test_an_operator_that_cannot_be_converted(op: str, type_: Type | None, opset: int, limit: int, reason: str) -> None:
    function = graph(Node(op, ("x",), ("y",), name="n"), inputs=(Value("x", type_),), outputs=(Value("y", type_ or F4),))
    assert refused(function, limit) == (
        f"node 'n' ({op}) needs opset {opset}; the limit is {limit}, and it cannot be converted: {reason}"
    )


def test_a_conversion_keeps_names_and_meaning() -> None:
    function = graph(
        Node("Relu", ("x",), ("a",), name="r"), Node("Celu", ("a",), ("y",), read_attributes({"alpha": 2.0}), name="c")
    )
    function = infer_shapes(function)
    model = to_lowest_model(function, max_opset=26)
    assert opsets(model) == {"": 14}
    assert [node.name for node in model.graph.node] == ["r", "c"]
    np.testing.assert_allclose(run(model, x=X)[0], run(to_lowest_model(function), x=X)[0])


def test_a_conversion_into_several_nodes_does_not_disturb_other_names() -> None:
    whole = TensorType(DType.INT32, (4,))
    function = Function(
        (Value("p", whole), Value("q", whole)),
        (Value("a", TensorType(DType.BOOL, (4,))), Value("b", TensorType(DType.BOOL, (4,))), Value("n_2", whole)),
        (Node("Greater", ("p", "q"), ("a",), name="n"), Node("Greater", ("q", "p"), ("b",), name="m")),
        constants={"n_2": Constant(np.arange(4, dtype=np.int32))},
        opsets={"": 9},
    )
    model = to_lowest_model(function, max_opset=8)
    assert sorted(operators(model)) == ["Cast"] * 4 + ["Greater"] * 2
    p, q = np.array([1, 2, 3, 4], np.int32), np.array([4, 3, 2, 1], np.int32)
    a, b, n = run(model, p=p, q=q)
    assert (a.tolist(), b.tolist(), n.tolist()) == ((p > q).tolist(), (q > p).tolist(), [0, 1, 2, 3])


def test_a_node_that_is_converted_or_decomposed_keeps_its_control_edges() -> None:
    celu, mish = Node("Celu", ("x",), ("y",), name="c", control=("r",)), Node("Mish", ("x",), ("z",), name="m", control=("r",))
    outputs = (Value("y", F4), Value("z", F4), Value("a", F4))
    function = infer_shapes(graph(Node("Relu", ("x",), ("a",), name="r"), celu, mish, outputs=outputs))
    older = convert_function(function, 26)
    assert older.opsets == {"": 26} and older.node("c").control == older.node("m").control == ("r",)
    parts = decompose_nodes(function, lambda n, f: expand_definition(as_function(n, f)) if n.op == "Mish" else None).nodes
    assert "Mish" not in {node.op for node in parts}
    assert {node.control for node in parts if node.name not in ("r", "c")} == {("r",)}


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_a_softmax_over_one_axis_is_not_what_it_was(op: str) -> None:
    function = graph(Node(op, ("x",), ("y",), read_attributes({"axis": 0}), name="n"), opset=13)
    assert refused(function, 12) == (
        f"node 'n' ({op}) needs opset 13; the limit is 12, and it cannot be converted: "
        "before opset 13 it takes all axes from the given one on together"
    )
    last = graph(Node(op, ("x",), ("y",), read_attributes({"axis": 1})), opset=13)
    model = to_lowest_model(last, max_opset=12)
    assert opsets(model) == {"": 11}
    np.testing.assert_allclose(run(model, x=X)[0], run(to_lowest_model(last), x=X)[0])


def test_a_conversion_looks_at_small_constants() -> None:
    axes = Constant(np.array([0]))
    function = graph(Node("Unsqueeze", ("x", "axes"), ("y",)), opset=13, constants={"axes": axes}, outputs=(Value("y"),))
    model = to_lowest_model(function, max_opset=12)
    assert operators(model) == ["Unsqueeze"]
    assert list(model.graph.node[0].attribute[0].ints) == [0]
    assert load(model).nodes[0].inputs == ("x",)


def test_an_operator_inside_of_a_body_is_converted_too() -> None:
    function = choose("Celu", 28)
    model = to_lowest_model(function, max_opset=20)
    assert opsets(model) == {"": 19}  # of If; that of Celu is 12
    assert why_not_downgradable(function.nodes[0], function, 20) is None
    expected = run(to_lowest_model(function), x=X, c=np.array(True))[0]
    np.testing.assert_allclose(run(model, x=X, c=np.array(True))[0], expected)


def test_control_flow_that_is_too_new_for_what_flows_through_it() -> None:
    function = choose("Identity", 25, TensorType(DType.UINT2, (4,)))
    assert refused(function, 24) == (
        "node 'if' (If) needs opset 25; the limit is 24, and it cannot be converted: opset 24 does not take tensor(uint2)"
    )
    assert "opset 10 lacks this operator, or defines it differently" in refused(function, 10)


def test_a_reason_inside_of_a_body() -> None:
    assert refused(choose("Gelu", 20), 19).startswith("node 'inner' (Gelu) needs opset 20; the limit is 19")


def test_a_repeated_output_goes_through_an_identity() -> None:
    function = graph(Node("Relu", ("x",), ("y",)), outputs=(Value("y", F4), Value("x", F4), Value("y", F4), Value("y", F4)))
    model = to_lowest_model(function)
    assert [value.name for value in model.graph.output] == ["y", "x", "y_2", "y_3"]
    assert opsets(model) == {"": 14}
    for result, expected in zip(run(model, x=X), (X.clip(0), X, X.clip(0), X.clip(0)), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_a_control_edge_may_use_the_name_that_such_an_identity_would_have() -> None:
    first, second = Node("Relu", ("x",), ("z",), name="y_2"), Node("Neg", ("x",), ("y",), control=("y_2",))
    function = graph(first, second, outputs=(Value("y", F4), Value("y", F4), Value("z", F4)))
    for result, expected in zip(run(to_lowest_model(function), x=X), (-X, -X, X.clip(0)), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_such_an_identity_may_need_a_higher_opset() -> None:
    sequence = SequenceType(F4)
    node = Node("SequenceConstruct", ("x",), ("y",))
    function = graph(node, outputs=(Value("y", sequence), Value("y", sequence)))
    assert opsets(to_lowest_model(function)) == {"": 14}  # the first whose Identity takes a sequence
    assert opsets(to_lowest_model(function.replace(outputs=(Value("y", sequence),)))) == {"": 11}


def test_a_body_that_returns_a_value_from_outside() -> None:
    def body(name: str, returned: str) -> Function:
        return Function((), (Value(returned, F4),), (), opsets={"": 17}, name=name)

    node = Node("If", ("c",), ("y",), read_attributes({"then_branch": body("t", "x"), "else_branch": body("e", "k")}))
    function = graph(
        node, opset=17, inputs=(Value("x", F4), Value("c", BOOL)), constants={"k": Constant(np.ones((4, 4), np.float32))}
    )
    model = to_lowest_model(function)
    np.testing.assert_array_equal(run(model, x=X, c=np.array(True))[0], X)
    np.testing.assert_array_equal(run(model, x=X, c=np.array(False))[0], np.ones((4, 4)))


WEIGHTS = {
    "big": Constant(np.arange(16, dtype=np.float64).reshape(4, 4).repeat(40, 0)),
    "small": Constant(np.ones((4, 4), np.float32)),
    "packed": Constant(np.ones(5000, ml_dtypes.int4)),
    "text": Constant(np.array(["a"] * 5000, object)),
}


def test_weights_by_reference() -> None:
    function = graph(Node("Add", ("x", "small"), ("y",)), constants=WEIGHTS)
    model = to_lowest_model(function, locations=dict.fromkeys(collect_external_weights(function), "the.bin"))
    referring = [tensor for tensor in model.graph.initializer if tensor.data_location == TensorProto.EXTERNAL]
    assert [tensor.name for tensor in referring] == ["big", "packed"] == list(collect_external_weights(function))
    assert {e.key: e.value for e in referring[0].external_data} == {
        "location": "the.bin",
        "offset": "0",
        "length": str(160 * 4 * 8),
    }
    assert collect_external_weights(function)["big"] is WEIGHTS["big"].array
    assert collect_external_weights(function)["packed"].tobytes() == b"\x11" * 2500
    assert len(model.SerializeToString()) < 40_000


def test_weights_of_bodies_and_nodes_are_brought_outside() -> None:
    """One branch has a large constant and a small one, the other a Constant node of the same name; an output keeps its node."""
    type_ = TensorType(DType.FLOAT32, (40, 40))
    large, w = (Constant(np.random.default_rng(seed).random((40, 40), np.float32)) for seed in (1, 2))
    scaled = (Node("Mul", ("x", "k"), ("p",)), Node("Add", ("p", "small"), ("t",)))
    constants = {"small": Constant(np.ones((), np.float32)), "k": large}
    then = Function((), (Value("t", type_),), scaled, constants, {"": 21}, name="then")
    shifted = (Node("Constant", (), ("k",)).with_attributes(value=w), Node("Add", ("x", "k"), ("e",)))
    other = Function((), (Value("e", type_),), shifted, opsets={"": 21}, name="other")
    nodes = (
        *(Node("Constant", (), (name,)).with_attributes(value=w) for name in "wz"),
        Node("If", ("c",), ("v",)).with_attributes(then_branch=then, else_branch=other),
        Node("Add", ("v", "w"), ("y",)),
    )
    function = Function((Value("x", type_), Value("c", BOOL)), (Value("y", type_), Value("z", type_)), nodes, opsets={"": 21})
    outside = externalize_weights(function)
    verify(outside)
    assert [node.op for node in outside.nodes] == ["If", "Add", "Constant"]
    assert sorted(collect_external_weights(outside)) == ["k_2", "k_3", "w"] and collect_external_weights(outside)["w"] is w.array
    assert [list(body.constants) for body in outside.nodes[0].bodies] == [[], ["small"]]
    for choice in (True, False):
        values = {"x": large.array, "c": np.array(choice)}
        before, after = (ReferenceEvaluator(to_model(f)).run(None, values) for f in (function, outside))
        np.testing.assert_array_equal(before, after)


def test_what_gives_out_a_weight_keeps_it() -> None:
    big = WEIGHTS["big"]
    body = Function((), (Value("k", big.type),), (), {"k": big}, {"": 21}, name="body")
    choice = Node("If", ("c",), ("z",)).with_attributes(then_branch=body, else_branch=body)
    function = Function((Value("c", TensorType(DType.BOOL, ())),), (Value("z", big.type),), (choice,), opsets={"": 21})
    assert externalize_weights(function) is function
