"""Function to ONNX and back is equal, whatever the Function says; and what is read from ONNX."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from onnx import ModelProto, helper, numpy_helper

from xrt.errors import ModelError
from xrt.formats.onnx import load, to_model
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
from xrt.testing.strategies import functions

F23 = TensorType(DType.FLOAT32, (2, 3))


def round_trip(function: Function) -> Function:
    return load(to_model(function).SerializeToString())


def one(node: Node, *inputs: Value, opset: int = 21, **changes: object) -> Function:
    outputs = tuple(Value(name) for name in node.defines)
    return Function(inputs or (Value("x", F23),), outputs, (node,), opsets={"": opset}).replace(**changes)


@pytest.mark.slow
@given(functions())
@settings(max_examples=150, deadline=None)
def test_generated_functions(function: Function) -> None:
    again = round_trip(function)
    assert again == function
    assert again.fingerprint == function.fingerprint


# ---------------------------------------------------------------------------------------------- what ONNX has no word for


def test_control_edges_devices_and_aliases() -> None:
    function = Function(
        inputs=(Value("x", F23), Value("state", F23)),
        outputs=(Value("y", F23), Value("new", F23)),
        nodes=(
            Node("Relu", ("x",), ("y",), name="first", device="cuda:1"),
            Node("Neg", ("state",), ("new",), name='a "name"', control=("first",), device="cpu"),
        ),
        opsets={"": 17},
        aliases=(("state", "new"),),
    )
    model = to_model(function)
    assert round_trip(function) == function
    assert model.ir_version == 10  # the first with metadata on nodes
    onnx.checker.check_model(model)


def test_the_words_that_are_used() -> None:
    node = Node("Relu", ("x",), ("y",), name="n", device="cuda")
    function = one(node, aliases=(("x", "y"),), name="", metadata={"author": "me"}, doc="what it does")
    model = to_model(function)
    assert [(e.key, e.value) for e in model.graph.node[0].metadata_props] == [("xrt.device", "cuda")]
    assert [(e.key, e.value) for e in model.graph.metadata_props] == [("xrt.name", ""), ("xrt.aliases", '[["x", "y"]]')]
    assert [(e.key, e.value) for e in model.metadata_props] == [("author", "me")]
    assert round_trip(function) == function


def test_metadata_of_a_body_and_the_names_reserved_there() -> None:
    body = Function(
        (), (Value("b"),), (Node("Relu", ("x",), ("b",)),), opsets={"": 17}, name="body", metadata={"k": "v"}, doc="d"
    )
    node = Node("If", ("c",), ("y",), read_attributes({"then_branch": body, "else_branch": body}))
    function = one(node, Value("c", TensorType(DType.BOOL, ())), Value("x", F23), opset=17)
    assert round_trip(function) == function
    bad = node.map_bodies(lambda b: b.replace(metadata={"xrt.aliases": "mine"}))
    with pytest.raises(ModelError) as caught:
        to_model(function.replace(nodes=(bad,)))
    assert str(caught.value) == "the metadata of body 'body' uses 'xrt.aliases', which is reserved for XRT's own use"


def test_metadata_of_a_whole_model_may_use_any_name() -> None:
    function = one(Node("Relu", ("x",), ("y",)), metadata={"xrt.aliases": "mine", "xrt.name": "too"})
    assert round_trip(function) == function


def test_outputs_that_are_inputs_constants_and_repeated() -> None:
    function = one(
        Node("Relu", ("x",), ("y",)),
        outputs=(Value("y"), Value("x"), Value("k"), Value("y")),
        constants={"k": Constant(np.ones(2)), "unused": Constant(np.zeros(1))},
    )
    assert round_trip(function) == function


def test_a_function_without_nodes_and_without_inputs() -> None:
    assert round_trip(f := Function((Value("x", F23),), (Value("x", F23),))) == f
    assert round_trip(f := Function((), (Value("k"),), constants={"k": Constant(np.ones(2))}, opsets={"": 17})) == f


def test_operators_of_other_domains_are_opaque() -> None:
    node = Node("Fused", ("x", "", "x"), ("y", "", "z"), read_attributes({"a": 1}), domain="com.acme", name="n")
    function = one(node, opsets={"": 17, "com.acme": 3})
    assert round_trip(function) == function


def test_types_of_values_that_a_body_captures() -> None:
    body = Function((), (Value("b"),), (Node("Relu", ("x",), ("b",)),), opsets={"": 17}, types={"x": F23})
    node = Node("If", ("c",), ("y",), read_attributes({"then_branch": body, "else_branch": body}))
    function = one(node, Value("c"), Value("x", F23), opset=17)
    assert round_trip(function) == function


# ---------------------------------------------------------------------------------------------- types, tensors, attributes


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
    function = one(Node("Relu", ("x",), ("y",)), constants={"k": Constant(array)}, outputs=(Value("y", F23),))
    again = round_trip(function)
    assert again == function
    assert again.constants["k"].array.dtype == dtype.numpy
    onnx.checker.check_model(to_model(function))


@pytest.mark.parametrize("dtype", list(DType), ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 7)], ids=str)
def test_tensors_as_onnx_itself_writes_them(dtype: DType, shape: tuple[int, ...]) -> None:
    array = sample(dtype, shape)
    model = to_model(one(Node("Relu", ("x",), ("y",))))
    model.graph.initializer.append(numpy_helper.from_array(array, "k"))
    if dtype is not DType.STRING and not dtype.text.startswith("float6"):  # make_tensor writes those as raw data
        values = array.astype(np.float32) if dtype.is_float and dtype.bits < 32 else array
        model.graph.initializer.append(helper.make_tensor("typed", dtype.onnx, shape, values.flatten().tolist()))
        assert not model.graph.initializer[1].HasField("raw_data")
    constants = load(model).constants
    assert all(constant == Constant(array) for constant in constants.values()), constants


def test_raw_data_is_not_copied_again() -> None:
    array = load(to_model(one(Node("Relu", ("x",), ("y",)), constants={"k": Constant(np.ones(1000))}))).constants["k"].array
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
    attributes = read_attributes({name: Attribute.of(name, value, kind) for name, (kind, value) in ATTRIBUTES.items()})
    function = one(Node("Foo", ("x",), ("y",), attributes, domain="d"), opsets={"": 21, "d": 1})
    assert {a.kind for a in attributes} == set(AttrKind)
    assert round_trip(function) == function


def test_a_nan_among_the_attributes_is_read_equal_to_itself() -> None:
    model = to_model(one(Node("LeakyRelu", ("x",), ("y",), read_attributes({"alpha": 1.0}))))
    model.graph.node[0].attribute[0].f = math.nan
    assert load(model) == load(model)


# ---------------------------------------------------------------------------------------------- what is written


def test_the_ir_version_is_that_of_the_opset() -> None:
    assert to_model(one(Node("Relu", ("x",), ("y",)), opset=17)).ir_version == 8
    assert to_model(one(Node("Relu", ("x",), ("y",)), opset=6)).ir_version == 4


def test_the_producer_is_named() -> None:
    assert isinstance(model := to_model(one(Node("Relu", ("x",), ("y",)))), ModelProto)
    assert model.producer_name == "xrt"
