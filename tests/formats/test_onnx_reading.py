"""What is read of models that others have written."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper, parser

from tests.formats.test_onnx_roundtrip import one, round_trip
from xrt.errors import ModelError
from xrt.formats.onnx import load, to_model
from xrt.graph import (
    DType,
    Function,
    Node,
    TensorType,
    Value,
    read_attributes,
)

# ---------------------------------------------------------------------------------------------- what is read


def read(text: str, head: str = '<ir_version: 8, opset_import: ["": 17]>') -> Function:
    return load(parser.parse_model(f"{head} g {text}"))


def test_an_initialiser_that_is_an_input_is_a_constant() -> None:
    for ir in (3, 8):
        model = parser.parse_model(
            f'<ir_version: {ir}, opset_import: ["": 9]> g (float[2] x, float[2] w) => (float[2] y) {{ y = Add(x, w) }}'
        )
        model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
        function = load(model)
        assert [value.name for value in function.inputs] == ["x"]
        assert list(function.constants) == ["w"]


def test_the_same_in_a_body() -> None:
    function = read(
        "(bool c) => (float y) { y = If(c) <"
        "then_branch = t () => (float a) <float a = {1}> {}, else_branch = e () => (float a) <float a = {2}> {}> }"
    )
    assert [float(body.constants["a"].array) for body in function.nodes[0].bodies] == [2, 1]  # sorted by attribute


def test_nodes_in_any_order_with_blank_and_repeated_names() -> None:
    function = read("(float x) => (float y) { [n] y = Neg(b)  [n] b = Relu(a)  a = Abs(x) }")
    assert [(node.name, node.op_type) for node in function.nodes] == [("a", "Abs"), ("n_2", "Relu"), ("n", "Neg")]


def test_a_value_of_type_info_that_is_nowhere_is_left_out() -> None:
    function = read("(float x) => (float y) <float[7] nowhere, float[3] a, float[4] x> { a = Abs(x) y = Neg(a) }")
    assert dict(function.types) == {"a": TensorType(DType.FLOAT32, (3,))}


def test_type_info_of_an_output_fills_in_what_the_output_does_not_say() -> None:
    model = parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float x) => (float y) <float[3] y> { y = Neg(x) }')
    model.graph.output[0].ClearField("type")
    function = load(model)
    assert function.outputs == (Value("y", TensorType(DType.FLOAT32, (3,))),)
    assert not function.types


def test_unknown_extents() -> None:
    model = parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[N,?,3] x) => (float y) { y = Neg(x) }')
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = -1
    assert load(model).inputs[0].type == TensorType(DType.FLOAT32, ("N", None, None))


def test_ai_onnx_is_the_empty_domain() -> None:
    model = parser.parse_model('<ir_version: 8, opset_import: ["ai.onnx": 17]> g (float x) => (float y) { y = Neg(x) }')
    model.graph.node[0].domain = "ai.onnx"
    function = load(model)
    assert dict(function.opsets) == {"": 17}
    assert function.nodes[0].op == "Neg"


def test_a_model_from_before_opsets() -> None:
    model = parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float x) => (float y) { y = Neg(x) }')
    model.ir_version = 2
    del model.opset_import[:]
    assert dict(load(model).opsets) == {"": 1}


def test_docs_and_metadata() -> None:
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 17], doc_string: "of the model"> g (float x) => (float y) { y = Neg(x) }'
    )
    model.metadata_props.add(key="k", value="v")
    model.graph.metadata_props.add(key="g", value="w")
    function = load(model)
    assert (function.name, function.doc, dict(function.metadata)) == ("g", "of the model", {"g": "w", "k": "v"})
    model.graph.doc_string = "of the graph"
    assert load(model).doc == "of the graph"


def sparse(dense: np.ndarray, indices: np.ndarray) -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(dense[dense != 0], "w")
    return helper.make_sparse_tensor(values, numpy_helper.from_array(indices), dense.shape)


DENSE = np.array([[0, 5, 0], [7, 0, 9]], np.float32)


@pytest.mark.parametrize("indices", [np.array([1, 3, 5]), np.array([[0, 1], [1, 0], [1, 2]])], ids=["linear", "by axis"])
def test_sparse_tensors_become_dense(indices: np.ndarray) -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2,3] x) => (float[2,3] y, float c) { y = Add(x, w)  c = Constant() }'
    )
    model.graph.sparse_initializer.append(sparse(DENSE, indices))
    attribute = AttributeProto(name="sparse_value", type=AttributeProto.SPARSE_TENSOR)
    attribute.sparse_tensor.CopyFrom(sparse(DENSE, indices))
    model.graph.node[1].attribute.append(attribute)
    function = load(model)
    np.testing.assert_array_equal(function.constants["w"].array, DENSE)
    assert function.node("c").attributes == read_attributes({"value": DENSE})
    assert round_trip(function) == function


def test_an_empty_sparse_tensor() -> None:
    model = to_model(one(Node("Relu", ("x",), ("y",))))
    empty = onnx.SparseTensorProto(dims=[2, 2])
    empty.values.CopyFrom(TensorProto(name="w", data_type=1, dims=[0]))
    model.graph.sparse_initializer.append(empty)
    np.testing.assert_array_equal(load(model).constants["w"].array, np.zeros((2, 2), np.float32))


# The defaults of attributes are forgotten by onnx's own inliner.
FUNCTIONS = """<ir_version: 8, opset_import: ["": 17, "loc": 1]>
g (float[2,3] x) => (float[2,3] z) { y = loc.f<alpha=0.5>(x)  z = loc.f(y) }
<domain: "loc", opset_import: ["": 17, "loc": 1]> f <alpha: float=2.0> (a) => (b) {
    t = LeakyRelu<alpha: float=@alpha>(a)
    b = loc.h(t)
}
<domain: "loc", opset_import: ["": 17]> h (a) => (b) { t = Relu(a)  b = Neg(t) }"""


def test_local_functions_are_inlined() -> None:
    model = parser.parse_model(FUNCTIONS)
    weights = np.arange(1000, dtype=np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "big"))
    function = load(model)
    assert [node.op for node in function.nodes] == ["LeakyRelu", "Relu", "Neg"] * 2
    assert [node.attr("alpha") for node in function.nodes if node.attributes] == [0.5, 2.0]
    np.testing.assert_array_equal(function.constants["big"].array, weights)
    assert len(model.functions) == 2  # what was given is not changed


def test_a_local_function_of_another_opset_is_converted() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "loc": 1]> g (float[2,3,4] x) => (float[2,3,4] z) { z = loc.f(x) }
    <domain: "loc", opset_import: ["": 12]> f (a) => (b) { b = Softmax<axis=2>(a) }"""
    (node,) = load(parser.parse_model(text)).nodes
    assert (node.op, node.attr("axis")) == ("Softmax", -1)


def test_a_local_function_that_cannot_be_converted() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "loc": 1]> g (float[4] x) => (float[4] z) { z = loc.f(x) }
    <domain: "loc", opset_import: ["": 20]> f (a) => (b) { b = Gelu(a) }"""
    with pytest.raises(ModelError) as caught:
        load(parser.parse_model(text))
    assert str(caught.value) == (
        "cannot load the given ModelProto: its model-local functions cannot be inlined: No Previous Version of Gelu exists"
    )


def test_a_local_function_of_another_version_of_a_foreign_domain() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "loc": 1, "c": 1]> g (float[4] x) => (float[4] z) { z = loc.f(x) }
    <domain: "loc", opset_import: ["c": 2]> f (a) => (b) { b = c.Foo(a) }"""
    with pytest.raises(ModelError) as caught:
        load(parser.parse_model(text))
    assert str(caught.value) == (
        "cannot load the given ModelProto: its model-local functions loc.f cannot be inlined: "
        "they import other opsets than the model"
    )


def test_a_domain_that_only_a_local_function_imports() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "loc": 1]> g (float[4] x) => (float[4] z) { z = loc.f(x) }
    <domain: "loc", opset_import: ["": 17, "c": 2]> f (a) => (b) { b = c.Foo(a) }"""
    function = load(parser.parse_model(text))
    assert [node.op for node in function.nodes] == ["c.Foo"]
    assert function.opset("c") == 2


def test_bytes_of_every_sort() -> None:
    model = to_model(one(Node("Relu", ("x",), ("y",))))
    data = model.SerializeToString()
    assert load(data) == load(bytearray(data)) == load(memoryview(data)) == load(model)
