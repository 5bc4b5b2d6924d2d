"""Function to ONNX and back is equal, whatever the Function says; and what is read of models that others have written."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper, parser

import xrt
from tests.formats.test_onnx_errors import call_local, parse_model
from xrt.errors import ModelError
from xrt.formats import text
from xrt.formats.onnx import expand_definition, load, to_model
from xrt.graph import (
    Attribute,
    AttrKind,
    Constant,
    DType,
    Function,
    MapType,
    Node,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    Value,
    read_attributes,
)

F23 = TensorType(DType.FLOAT32, (2, 3))


def round_trip(function: Function) -> Function:
    """Return what ONNX's form gives back; the text form must give the Function itself."""
    assert text.parse(text.to_text(function)) == function
    return load(to_model(function).SerializeToString())


def one(node: Node, *inputs: Value, opset: int = 21, **changes: object) -> Function:
    outputs = tuple(Value(name) for name in node.defined_names)
    return Function(inputs or (Value("x", F23),), outputs, (node,), opsets={"": opset}).replace(**changes)


def test_what_onnx_has_no_word_for_is_metadata() -> None:
    nodes = (
        Node("Relu", ("x",), ("y",), name="first", device="cuda:1"),
        Node("Neg", ("x",), ("z",), name='a "name"', control=("first",)),
    )
    more = {"aliases": (("x", "z"),), "name": "", "metadata": {"author": "me"}, "doc": "what it does"}
    function = one(nodes[0], opset=17, nodes=nodes, outputs=(Value("y", F23), Value("z", F23)), **more)
    model = to_model(function)
    assert [[(e.key, e.value) for e in node.metadata_props] for node in model.graph.node] == [
        [("xrt.device", "cuda:1")],
        [("xrt.control", '["first"]')],
    ]
    assert [(e.key, e.value) for e in model.graph.metadata_props] == [("xrt.name", ""), ("xrt.aliases", '[["x", "z"]]')]
    assert [(e.key, e.value) for e in model.metadata_props] == [("author", "me")]
    assert round_trip(function) == function
    assert model.ir_version == 10  # the first with metadata on nodes
    onnx.checker.check_model(model)


RELU = Node("Relu", ("x",), ("y",))
BODY = Function((), (Value("b"),), (Node("Relu", ("x",), ("b",)),), opsets={"": 17}, name="body")


def choose(body: Function) -> Function:
    """Return an If whose branches are both that body."""
    node = Node("If", ("c",), ("y",)).with_attributes(then_branch=body, else_branch=body)
    return one(node, Value("c", TensorType(DType.BOOL, ())), Value("x", F23), opset=17)


ROUND_TRIPS = {
    "metadata that looks like XRT's own": one(RELU, metadata={"xrt.aliases": "mine", "xrt.name": "too"}),
    "metadata of a body": choose(BODY.replace(metadata={"k": "v"}, doc="d")),
    "types of values that a body captures": choose(BODY.replace(types={"x": F23})),
    "no nodes": Function((Value("x", F23),), (Value("x", F23),)),
    "no inputs": Function((), (Value("k"),), constants={"k": Constant(np.ones(2))}, opsets={"": 17}),
    "an operator of another domain": one(
        Node("Fused", ("x", "", "x"), ("y", "", "z"), read_attributes({"a": 1}), domain="com.acme", name="n"),
        opsets={"": 17, "com.acme": 3},
    ),
}


@pytest.mark.parametrize("function", ROUND_TRIPS.values(), ids=ROUND_TRIPS)
def test_a_function_comes_back_equal(function: Function) -> None:
    assert round_trip(function) == function


def test_names_that_are_reserved_are_refused_in_a_body() -> None:
    with pytest.raises(ModelError) as caught:
        to_model(choose(BODY.replace(metadata={"xrt.aliases": "mine"})))
    assert str(caught.value) == "the metadata of body 'body' uses 'xrt.aliases', which is reserved for XRT's own use"


@pytest.mark.parametrize(
    "type_",
    [
        None,
        TensorType(DType.FLOAT32),
        TensorType(DType.STRING, ()),
        TensorType(DType.BFLOAT16, ("N", None, 3, 0)),
        SequenceType(TensorType(DType.INT64, (None,))),
        SequenceType(SequenceType(TensorType(DType.BOOL))),
        OptionalType(SequenceType(F23)),
        OptionalType(F23),
        MapType(DType.INT64, F23),
        MapType(DType.STRING, SequenceType(TensorType(DType.FLOAT64, ("n",)))),
    ],
)
def test_types_of_every_kind(type_: Type | None) -> None:
    opaque = Node("Foo", ("x",), ("t", "y"), domain="d")
    types = {} if type_ is None else {"t": type_}
    function = Function((Value("x", type_),), (Value("y", type_),), (opaque,), opsets={"d": 1}, types=types)
    assert round_trip(function) == function


def sample(dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    count = math.prod(shape)
    if dtype is DType.STRING:
        return np.array([f"é{i}\0" for i in range(count)], object).reshape(shape)
    if dtype.text.startswith("complex"):
        return (np.arange(count) + 1j).astype(dtype.numpy).reshape(shape)
    if dtype.bits < 8:
        codes = np.arange(count, dtype=np.uint8) % (1 << dtype.bits)
        values = codes.view(dtype.numpy)
        if dtype.is_integer:  # two's complement in the low bits
            values = (codes.astype(np.int8) - (1 << (dtype.bits - 1)) * (not dtype.text.startswith("u"))).astype(dtype.numpy)
        return values.reshape(shape)
    return np.arange(count).astype(dtype.numpy).reshape(shape)


@pytest.mark.parametrize("dtype", list(DType), ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (5,), (3, 7)], ids=str)
def test_constants_of_every_element_type(dtype: DType, shape: tuple[int, ...]) -> None:
    array = sample(dtype, shape)
    function = one(RELU, constants={"k": Constant(array)}, outputs=(Value("y", F23),))
    again = round_trip(function)
    assert again == function
    assert again.constants["k"].array.dtype == dtype.numpy
    onnx.checker.check_model(to_model(function))


@pytest.mark.parametrize("dtype", list(DType), ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 7)], ids=str)
def test_tensors_as_onnx_itself_writes_them(dtype: DType, shape: tuple[int, ...]) -> None:
    array = sample(dtype, shape)
    model = to_model(one(RELU))
    model.graph.initializer.append(numpy_helper.from_array(array, "k"))
    if dtype is not DType.STRING and not dtype.text.startswith("float6"):  # make_tensor writes those as raw data
        values = array.astype(np.float32) if dtype.is_float and dtype.bits < 32 else array
        model.graph.initializer.append(helper.make_tensor("typed", dtype.onnx, shape, values.flatten().tolist()))
        assert not model.graph.initializer[1].HasField("raw_data")
    constants = load(model).constants
    assert all(constant == Constant(array) for constant in constants.values()), constants


def test_raw_data_is_not_copied_again() -> None:
    array = load(to_model(one(RELU, constants={"k": Constant(np.ones(1000))}))).constants["k"].array
    assert not array.flags.owndata
    assert not array.flags.writeable


ATTRIBUTES = {
    "float": (AttrKind.FLOAT, 0.1),
    "infinite": (AttrKind.FLOAT, -math.inf),
    "int": (AttrKind.INT, -(2**63)),
    "text": (AttrKind.STRING, "é"),
    "nothing": (AttrKind.STRING, ""),
    "bytes": (AttrKind.STRING, b"\xff\x00"),
    "tensor": (AttrKind.TENSOR, Constant(np.arange(6, dtype=np.float16).reshape(2, 3))),
    "floats": (AttrKind.FLOATS, (1, 2.5)),
    "no_floats": (AttrKind.FLOATS, ()),
    "ints": (AttrKind.INTS, (1, 2)),
    "no_ints": (AttrKind.INTS, ()),
    "texts": (AttrKind.STRINGS, ("a", b"\xfe")),
    "tensors": (AttrKind.TENSORS, (Constant(np.ones(1)), Constant(np.array(["s"], object)))),
    "type": (AttrKind.TYPE, SequenceType(F23)),
    "types": (AttrKind.TYPES, (F23, OptionalType(F23))),
    "body": (AttrKind.GRAPH, Function((), (Value("k"),), constants={"k": Constant(np.ones(1))}, opsets={"": 21, "d": 1})),
    "bodies": (AttrKind.GRAPHS, (Function((), (), opsets={"": 21, "d": 1}),) * 2),
}


def test_attributes_of_every_kind() -> None:
    attributes = read_attributes({name: Attribute.create(name, value, kind) for name, (kind, value) in ATTRIBUTES.items()})
    function = one(Node("Foo", ("x",), ("y",), attributes, domain="d"), opsets={"": 21, "d": 1})
    assert {a.kind for a in attributes} == set(AttrKind)
    assert round_trip(function) == function


def test_a_nan_among_the_attributes_is_read_equal_to_itself() -> None:
    model = to_model(one(Node("LeakyRelu", ("x",), ("y",), read_attributes({"alpha": 1.0}))))
    model.graph.node[0].attribute[0].f = math.nan
    assert load(model) == load(model)


def test_the_ir_version_is_that_of_the_opset() -> None:
    assert to_model(one(RELU, opset=17)).ir_version == 8
    assert to_model(one(RELU, opset=6)).ir_version == 4


NEG = "(float x) => (float y) { y = Neg(x) }"


def load_text(text: str) -> Function:
    return load(parse_model(text))


def test_an_initialiser_that_is_an_input_is_a_constant() -> None:
    for ir in (3, 8):
        head = f'<ir_version: {ir}, opset_import: ["": 9]>'
        source = parse_model("(float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }", head)
        source.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
        function = load(source)
        assert [value.name for value in function.inputs] == ["x"]
        assert list(function.constants) == ["w"]


def test_the_same_in_a_body() -> None:
    function = load_text(
        "(bool c) => (float y) { y = If(c) <"
        "then_branch = t () => (float a) <float a = {1}> {}, else_branch = e () => (float a) <float a = {2}> {}> }"
    )
    assert [float(body.constants["a"].array) for body in function.nodes[0].bodies] == [2, 1]  # sorted by attribute


def test_nodes_in_any_order_with_blank_and_repeated_names() -> None:
    function = load_text("(float x) => (float y) { [n] y = Neg(b)  [n] b = Relu(a)  a = Abs(x) }")
    assert [(node.name, node.op_type) for node in function.nodes] == [("a", "Abs"), ("n_2", "Relu"), ("n", "Neg")]


def test_a_value_of_type_info_that_is_nowhere_is_left_out() -> None:
    function = load_text("(float x) => (float y) <float[7] nowhere, float[3] a, float[4] x> { a = Abs(x) y = Neg(a) }")
    assert dict(function.types) == {"a": TensorType(DType.FLOAT32, (3,))}


def test_type_info_of_an_output_fills_in_what_the_output_does_not_say() -> None:
    model = parse_model("(float x) => (float y) <float[3] y> { y = Neg(x) }")
    model.graph.output[0].ClearField("type")
    function = load(model)
    assert function.outputs == (Value("y", TensorType(DType.FLOAT32, (3,))),)
    assert not function.types


def test_unknown_extents() -> None:
    model = parse_model("(float[N,?,3] x) => (float y) { y = Neg(x) }")
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = -1
    assert load(model).inputs[0].type == TensorType(DType.FLOAT32, ("N", None, None))


def test_ai_onnx_is_the_empty_domain() -> None:
    model = parse_model(NEG, '<ir_version: 8, opset_import: ["ai.onnx": 17]>')
    model.graph.node[0].domain = "ai.onnx"
    function = load(model)
    assert dict(function.opsets) == {"": 17}
    assert function.nodes[0].op == "Neg"


def test_a_model_from_before_opsets() -> None:
    model = parse_model(NEG)
    model.ir_version = 2
    del model.opset_import[:]
    assert dict(load(model).opsets) == {"": 1}


def test_docs_and_metadata() -> None:
    model = parse_model(NEG, '<ir_version: 10, opset_import: ["": 17], doc_string: "of the model">')
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
    model = parse_model("(float[2,3] x) => (float[2,3] y, float c) { y = Add(x, w)  c = Constant() }")
    model.graph.sparse_initializer.append(sparse(DENSE, indices))
    attribute = AttributeProto(name="sparse_value", type=AttributeProto.SPARSE_TENSOR)
    attribute.sparse_tensor.CopyFrom(sparse(DENSE, indices))
    model.graph.node[1].attribute.append(attribute)
    function = load(model)
    np.testing.assert_array_equal(function.constants["w"].array, DENSE)
    assert function.node("c").attributes == read_attributes({"value": DENSE})
    assert round_trip(function) == function


def test_an_empty_sparse_tensor() -> None:
    model = to_model(one(RELU))
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
    (node,) = load(call_local("b = Softmax<axis=2>(a)", '"": 12', shape="[2,3,4]")).nodes
    assert (node.op, node.attr("axis")) == ("Softmax", -1)


def test_a_domain_that_only_a_local_function_imports() -> None:
    function = load(call_local("b = c.Foo(a)", '"": 17, "c": 2'))
    assert [node.op for node in function.nodes] == ["c.Foo"]
    assert function.opset("c") == 2


X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
SCALE, BIAS = np.float32([1, 2, 3, 4]), np.float32([0.1, 0.2, 0.3, 0.4])


def normalize(x: Any, op: str, dtype: Any) -> Any:
    wide = x.astype(np.float64)
    if op == "LayerNormalization":
        wide = wide - wide.mean(-1, keepdims=True)
    result = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * SCALE
    return (result + BIAS if op == "LayerNormalization" else result).astype(dtype)


def make(op: str, opset: int, dtype: Any = np.float32, *, axis: int = -1, known: bool = True) -> onnx.ModelProto:
    names = ["x", "s", "b"] if op == "LayerNormalization" else ["x", "s"]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = [helper.make_tensor_value_info("x", kind, [2, 3, 4])]
    results = [numpy_helper.from_array(array.astype(dtype), name) for name, array in (("s", SCALE), ("b", BIAS)) if name in names]
    if not known:
        inputs.append(helper.make_tensor_value_info("s", kind, [4]))
        results = results[1:]
    nodes = [helper.make_node(op, names, ["y"], axis=axis, epsilon=1e-5, **({"stash_type": 1} if opset >= 17 else {}))]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", kind, [2, 3, 4])], results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


FORMS = [("LayerNormalization", 11), ("LayerNormalization", 16)]
FORMS += [("SimplifiedLayerNormalization", opset) for opset in (11, 17, 18, 23)]


@pytest.mark.parametrize("engine", ["toy", "ort", "openvino"])
@pytest.mark.parametrize(("op", "opset"), FORMS)
def test_they_run_on_every_engine(op: str, opset: int, engine: str) -> None:
    with xrt.XRTModule(make(op, opset), engine=engine, strict=True) as module:
        np.testing.assert_allclose(module(X), normalize(X, op, np.float32), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", ["LayerNormalization", "SimplifiedLayerNormalization"])
def test_halves_are_normalized_in_float32(op: str) -> None:
    x = (300 * X).astype(np.float16)  # whose squares float16 does not hold
    with xrt.XRTModule(make(op, 13, np.float16), engine="ort") as module:
        np.testing.assert_allclose(module(x), normalize(x, op, np.float16), rtol=3e-3, atol=3e-3)


@pytest.mark.parametrize("op", ["LayerNormalization", "SimplifiedLayerNormalization"])
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_the_scale_may_be_an_input_of_any_float_type(op: str, dtype: Any) -> None:
    with xrt.XRTModule(make(op, 13, dtype, known=False), engine="toy") as module:
        result = module(X.astype(dtype), SCALE.astype(dtype))
    np.testing.assert_allclose(result, normalize(X.astype(dtype), op, dtype), rtol=3e-3, atol=3e-3)


def test_axes_are_those_of_the_scale() -> None:
    with xrt.XRTModule(make("LayerNormalization", 13, axis=2), engine="toy") as module:
        np.testing.assert_allclose(module(X), normalize(X, "LayerNormalization", np.float32), rtol=1e-4, atol=1e-5)
    with pytest.raises(
        ModelError, match="the axes of SimplifiedLayerNormalization 'y' are not known: its scale is not an initialiser"
    ):
        load(make("SimplifiedLayerNormalization", 13, axis=2, known=False))


def test_the_operators_of_a_normalization_are_named_after_it() -> None:
    model = make("LayerNormalization", 13)
    model.graph.node[0].name = "norm"
    assert all(node.name.startswith("norm/") for node in load(model).nodes)


def test_a_normalization_may_leave_out_its_result() -> None:
    model = make("LayerNormalization", 13)
    model.graph.node[0].output[:] = ["", "y"]
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 1
    assert all(any(node.outputs) for node in load(model).nodes)
    with xrt.XRTModule(model, engine="toy") as module:
        np.testing.assert_allclose(module(X), X.mean(-1, keepdims=True), rtol=1e-5)


def test_a_session_writes_a_file_that_is_read(tmp_path: Any) -> None:
    import onnxruntime

    text = """<ir_version: 8, opset_import: ["": 13]> g (float[2,3,4] x) => (float[2,3,4] y)
    <float[4] s = {1,2,3,4}, float[4] b = {0.1,0.2,0.3,0.4}, float two = {2}, float e = {0.00001}> {
        m = ReduceMean <axes=[-1]> (x)  d = Sub(x, m)  q = Pow(d, two)  v = ReduceMean <axes=[-1]> (q)  w = Add(v, e)
        r = Sqrt(w)  n = Div(d, r)  k = Mul(n, s)  y = Add(k, b)
    }"""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(onnx.parser.parse_model(text).SerializeToString(), options)
    assert "LayerNormalization" in {node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node}
    with xrt.XRTModule(tmp_path / "optimized.onnx", engine="openvino") as module:
        np.testing.assert_allclose(module(X), normalize(X, "LayerNormalization", np.float32), rtol=1e-4, atol=1e-5)


def test_a_definition_has_the_defaults_of_attributes_that_are_left_out() -> None:
    swish = "function main(x: float32[2]) -> (y: float32[2]) {\n  opset ai.onnx 24\n  y = Swish(x)%s\n}"
    for attributes, alpha in (("", 1.0), (" {alpha = 2.5}", 2.5)):
        definition = expand_definition(text.parse(swish % attributes))
        assert definition is not None
        (constant,) = (node for node in definition.nodes if node.op_type == "Constant")
        assert constant.attr("value_float") == alpha
