"""Binding named extents to numbers."""

from __future__ import annotations

import pytest
from onnx import parser

from xrt.errors import InputError
from xrt.formats.onnx import load
from xrt.graph import DType, Function, OptionalType, SequenceType, TensorType, Value
from xrt.passes import bind_dims, infer_shapes, specialize


def read(text: str) -> Function:
    return load(parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}'))


TWO = read(
    "(float[N,M,?] x, float[N,3] z) => (float[N,M,?] y, float[K] w) <float[N,M,?] a> {"
    " a = Relu(x)  y = Neg(a)  w = ReduceSum(z) }"
)


def text(function: Function) -> dict[str, str]:
    values = {value.name: str(value.type) for value in (*function.inputs, *function.outputs)}
    return values | {name: str(type_) for name, type_ in function.types.items()}


def test_a_name_takes_its_number_everywhere() -> None:
    bound = specialize(TWO, {"x": (2, 5, 7)})
    assert text(bound) == {
        "x": "float32[2,5,7]",
        "z": "float32[2,3]",
        "a": "float32[2,5,7]",
        "y": "float32[2,5,7]",
        "w": "float32[1,1]",
    }


def test_no_shapes_is_inference() -> None:
    assert specialize(TWO, {}) == infer_shapes(TWO)


def test_names_can_be_bound_by_themselves() -> None:
    assert text(bind_dims(TWO, {"N": 2, "other": 9}))["y"] == "float32[2,M,?]"


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
    assert refused(TWO, {"xx": (1,)}) == "function 'g' has no input 'xx'. Did you mean 'x'?"
    assert refused(TWO, {"x": (1, 2)}) == "input 'x' is float32[N,M,?]; a shape of rank 2, [1, 2], was given for it"
    assert refused(TWO, {"z": (2, 4)}) == "input 'z' is float32[N,3]; axis 1 was given as 4, but must be 3"
    assert refused(TWO, {"x": (2, 5, 7), "z": (3, 3)}) == (
        "input 'z' is float32[N,3]; axis 0 was given as 3, but must be 2, as 'N' is elsewhere"
    )


def test_an_input_that_is_no_tensor() -> None:
    tensor = TensorType(DType.FLOAT32, ("N",))
    for type_ in (SequenceType(tensor), OptionalType(tensor)):
        function = Function((Value("s", type_),), (Value("s"),), opsets={"": 17})
        assert refused(function, {"s": (2,)}) == f"input 's' is {type_}, which has no shape; the shape [2] was given for it"
