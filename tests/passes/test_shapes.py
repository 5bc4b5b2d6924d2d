"""Types: what the operators say, merged with what the model declares."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from onnx import parser

from xrt.formats.onnx import inference, load
from xrt.graph import Constant, DType, Function, Node, OptionalType, SequenceType, TensorType, Type, Value, read_attributes
from xrt.passes import drop_dead_nodes, infer_shapes
from xrt.testing.strategies import functions


def read(text: str, head: str = '<ir_version: 8, opset_import: ["": 17, "com.acme": 1]>') -> Function:
    return load(parser.parse_model(f"{head} g {text}"))


def types(function: Function) -> dict[str, str]:
    """Return what is known of inner values and outputs, as text."""
    values = {name: str(type_) for name, type_ in function.types.items()}
    return values | {value.name: str(value.type) for value in function.outputs}


def without_outputs(function: Function) -> Function:
    return function.replace(outputs=tuple(Value(value.name) for value in function.outputs))


def test_inner_values_and_outputs() -> None:
    function = without_outputs(read("(float[2,3] x, float[3,N] w) => (float[1] y) { a = MatMul(x, w)  y = Relu(a) }"))
    inferred = infer_shapes(function)
    assert types(inferred) == {"a": "float32[2,N]", "y": "float32[2,N]"}
    assert infer_shapes(inferred) is inferred


def test_shapes_that_are_computed() -> None:
    function = read("""(float[N,3,4] x) => (float y) <int64[1] twelve = {12}, int64[1] zero = {0}> {
        s = Shape(x)  n = Gather(s, zero)  t = Concat<axis=0>(n, twelve)  y = Reshape(x, t) }""")
    assert types(infer_shapes(without_outputs(function)))["y"] == "float32[N,12]"


def test_extents_that_onnx_makes_up_are_unknown() -> None:
    inferred = infer_shapes(without_outputs(read("(float[N,3] x) => (int64 y) { y = NonZero(x) }")))
    assert types(inferred) == {"y": "int64[2,?]"}


def test_an_extent_of_such_a_name_that_the_model_declares_stays() -> None:
    function = without_outputs(read("(float[unk__0,3] x) => (float y) { a = Relu(x)  b = NonZero(a)  y = Neg(a) }"))
    assert types(infer_shapes(function)) == {"a": "float32[unk__0,3]", "b": "int64[2,?]", "y": "float32[unk__0,3]"}


@pytest.mark.parametrize("opset", [12, 17, 22])
def test_no_window_of_a_pool_begins_in_the_padding_behind(opset: int) -> None:
    head = f'<ir_version: 10, opset_import: ["": {opset}]>'
    function = read(
        """(float[N,1,5,4] x, bool p) => (float y, float z, float w) {
        a = MaxPool<kernel_shape = [2, 2], strides = [2, 2], pads = [1, 1, 1, 1], ceil_mode = 1>(x)
        y = AveragePool<kernel_shape = [2, 2], strides = [3, 2], ceil_mode = 1>(a)
        z = If(p) <then_branch = t () => (float b) {
            b = MaxPool<kernel_shape = [1, 1], strides = [3, 2], ceil_mode = 1>(x) }, else_branch = e () => (float b) {
            b = Neg(a) }>
        w = MaxPool<kernel_shape = [2, 2], strides = [2, 2], auto_pad = "SAME_UPPER", ceil_mode = 1>(x) }""",
        head,
    )
    inferred = infer_shapes(without_outputs(function))
    assert types(inferred) == {
        "a": "float32[N,1,3,3]",
        "y": "float32[N,1,1,2]",
        "z": "float32[N,1,?,?]",
        "w": "float32[N,1,3,2]",
    }
    assert [str(body.outputs[0].type) for body in inferred.nodes[2].bodies] == ["float32[N,1,3,3]", "float32[N,1,2,2]"]
    assert infer_shapes(inferred) is inferred


def test_a_pool_over_unknown_extents_has_unknown_extents() -> None:
    function = read(
        "(float[N,1,H,5] x) => (float y) { y = MaxPool<kernel_shape = [2, 2], strides = [2, 2], pads = [1, 1, 1, 1], "
        "ceil_mode = 1>(x) }"
    )
    assert types(infer_shapes(without_outputs(function)))["y"] == "float32[N,1,?,3]"


# ---------------------------------------------------------------------------------------------- declared and inferred


@pytest.mark.parametrize(
    ("declared", "result"),
    [
        ("float[2,3]", "float32[2,3]"),  # they agree
        ("float[2,7]", "float32[2,3]"),  # numbers that differ: the operators are right
        ("float[N,3]", "float32[2,3]"),  # a number beats a name
        ("float[?,3]", "float32[2,3]"),
        ("float[6]", "float32[2,3]"),  # another rank
        ("int64[2,3]", "float32[2,3]"),  # another element type
    ],
)
@pytest.mark.parametrize("place", ["inner", "output"])
def test_where_a_declaration_and_the_operators_differ(declared: str, result: str, place: str) -> None:
    text = f"(float[2,3] x) => ({declared} y) {{ y = Relu(x) }}"
    if place == "inner":
        text = f"(float[2,3] x) => (float y) <{declared} a> {{ a = Relu(x)  y = Neg(a) }}"
    inferred = types(infer_shapes(read(text)))
    assert inferred["a" if place == "inner" else "y"] == result


def test_a_declared_name_beats_another_name_and_no_name() -> None:
    assert types(infer_shapes(read("(float[N,3] x) => (float[M,3] y) { y = Relu(x) }"))) == {"y": "float32[M,3]"}
    assert types(infer_shapes(read("(float[N,3] x) => (int64[2,count] y) { y = NonZero(x) }"))) == {"y": "int64[2,count]"}


def test_what_follows_from_a_declaration_is_found() -> None:
    function = read(
        "(float[N,3] x, int64[2] s) => (float[?,?] y) <float[8,6] a> { a = Reshape(x, s)  b = Relu(a)  y = Transpose(b) }"
    )
    assert types(infer_shapes(function)) == {"a": "float32[8,6]", "b": "float32[8,6]", "y": "float32[6,8]"}


def test_what_onnx_cannot_infer_keeps_its_declaration() -> None:
    function = read("(float[2,3] x) => (float[4] y) <float[5] a> { a = com.acme.Foo(x)  b = Relu(a)  y = com.acme.Foo(b) }")
    assert types(infer_shapes(function)) == {"a": "float32[5]", "b": "float32[5]", "y": "float32[4]"}


def test_a_node_that_contradicts_itself_hides_nothing_else() -> None:
    function = without_outputs(read("(float[2,3] x, float[7] w) => (float y) { a = Add(x, w)  b = Relu(x)  y = Mul(a, b) }"))
    assert types(infer_shapes(function)) == {"b": "float32[2,3]", "y": "None"}


def test_a_function_that_onnx_cannot_read_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no")

    function = read("(float[2,3] x) => (float y) { y = Relu(x) }")
    monkeypatch.setattr(inference.shape_inference, "infer_shapes", refuses)
    assert infer_shapes(function) is function


def test_the_inputs_are_the_callers_to_declare() -> None:
    function = Function((Value("x"),), (Value("y"),), (Node("Relu", ("x",), ("y",)),), opsets={"": 17})
    assert infer_shapes(function) is function


def test_an_output_that_no_node_makes() -> None:
    two, unknown = TensorType(DType.FLOAT32, (2,)), TensorType(DType.FLOAT32, (None,))
    function = Function(
        (Value("x", two),),
        (Value("y"), Value("x", unknown), Value("k", unknown), Value("l")),
        (Node("Relu", ("x",), ("y",)),),
        constants={"k": Constant(np.ones(2, np.float32)), "l": Constant(np.ones(2, np.float32))},
        opsets={"": 17},
    )
    assert [value.type for value in infer_shapes(function).outputs] == [two] * 4


def test_sequences_and_optionals() -> None:
    f4 = TensorType(DType.FLOAT32, (4,))
    node = Node("SequenceConstruct", ("x", "x"), ("s",))
    declared: Type = SequenceType(TensorType(DType.FLOAT32))
    optional = Node("Optional", ("x",), ("y",))
    function = Function((Value("x", f4),), (Value("s", declared), Value("y")), (node, optional), opsets={"": 17})
    assert [value.type for value in infer_shapes(function).outputs] == [SequenceType(f4), OptionalType(f4)]


# ---------------------------------------------------------------------------------------------- bodies


LOOP = """(int64 m, float[2,N] x) => (float fin, float scan) {
    fin, scan = Loop(m, "", x) <body = b (int64 i, bool c, float s) => (bool c2, float s2, float o) {
        c2 = Identity(c)  s2 = Add(s, x)  t = Relu(x)  o = Neg(t)
    }>
}"""


def test_the_values_of_a_body() -> None:
    inferred = infer_shapes(without_outputs(read(LOOP)))
    (body,) = inferred.nodes[0].bodies
    assert types(body)["t"] == "float32[2,N]"
    assert types(body)["o"] == "float32[2,N]"
    assert types(inferred)["scan"] == "float32[?,2,N]"
    assert infer_shapes(inferred) is inferred


def test_the_inputs_of_a_body_get_what_is_known_of_them() -> None:
    function = read(LOOP)
    node = function.nodes[0].map_bodies(lambda b: b.replace(inputs=tuple(Value(v.name) for v in b.inputs)))
    (body,) = infer_shapes(function.replace(nodes=(node,))).nodes[0].bodies
    assert [str(value) for value in body.inputs] == ["i: int64[...]", "c: ?", "s: float32[...]"]


def test_a_wrong_claim_inside_of_a_body_is_put_right() -> None:
    function = read(
        "(bool c, float[3] x) => (float[3] y) { y = If(c) <then_branch = t () => (float[9] a) { q = Neg(x)  a = Relu(q) },"
        " else_branch = e () => (float[3] b) { b = Abs(x) }> }"
    )
    node = function.nodes[0].map_bodies(
        lambda b: b.replace(types={"q": TensorType(DType.FLOAT32, (8,))} if b.name == "t" else {})
    )
    bodies = infer_shapes(function.replace(nodes=(node,))).nodes[0].bodies
    assert [types(body) for body in bodies] == [{"b": "float32[3]"}, {"q": "float32[3]", "a": "float32[3]"}]


# ---------------------------------------------------------------------------------------------- weights


def test_weights_are_not_copied() -> None:
    weight = Constant(np.zeros((1000, 50), np.float32))
    function = Function(
        (Value("x", TensorType(DType.FLOAT32, ("N", 1000))),),
        (Value("y"),),
        (Node("MatMul", ("x", "w"), ("y",)),),
        constants={"w": weight},
        opsets={"": 17},
    )
    inferred = infer_shapes(function)
    assert types(inferred) == {"y": "float32[N,50]"}
    assert inferred.constants["w"] is weight


def test_large_tensors_among_the_attributes_do_not_stand_in_the_way() -> None:
    function = Function(
        (),
        (Value("y"), Value("z")),
        (
            Node("Constant", (), ("y",), read_attributes({"value": np.zeros(5000, np.int64)})),
            Node("Constant", (), ("z",), read_attributes({"value": np.zeros(5000, ml_dtypes.int4)})),
        ),
        opsets={"": 21},
    )
    assert types(infer_shapes(function)) == {"y": "int64[5000]", "z": "int4[5000]"}


@pytest.mark.slow
@given(functions())
@settings(max_examples=100, deadline=None)
def test_generated_functions_are_inferred_once_and_for_all(function: Function) -> None:
    inferred = infer_shapes(function)
    assert infer_shapes(inferred) is inferred
    assert inferred.inputs == function.inputs
    assert [node.name for node in inferred.nodes] == [node.name for node in function.nodes]
    for value in inferred.outputs:
        assert value.type is not None
    assert infer_shapes(drop_dead_nodes(inferred)) == drop_dead_nodes(inferred)


def test_values_are_not_propagated_where_onnx_would_make_an_object_of_each_of_billions_of_elements() -> None:
    text = "(float[{n}] x, int64[2] i) => (float[?] y, float[?,?] z) {{ y = Gather(x, i)  s = Shape(x)  z = Expand(y, i) }}"
    for extent in (3, 1 << 40):
        inferred = types(infer_shapes(read(text.format(n=extent))))
        assert (inferred["y"], inferred["s"]) == ("float32[2]", "int64[1]")
