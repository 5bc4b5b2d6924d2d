"""The text form: it reads well, gives an equal Function back, and refuses bad text with the place; and the form as DOT."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from tests.graph.tracing import F32, trace
from xrt import ops
from xrt.errors import ModelError
from xrt.formats.text import parse, to_dot, to_text
from xrt.graph import Constant, DType, Function, MapType, Node, OptionalType, SequenceType, TensorType, Value, read_attributes
from xrt.graph.printer import KEYWORDS
from xrt.models import load_light
from xrt.testing.corpus.entry import body, graph, node


def test_a_function_reads_well() -> None:
    def build(x: Any, c: Any) -> Any:
        h = ops.Relu(x @ np.ones((3, 3), np.float32) + 0.5, name="act")
        return {"y": ops.If(c, then_branch=lambda: h * 2, else_branch=lambda: h), "best": ops.TopK(h, [1], axis=-1)[1]}

    function = trace(build, TensorType(DType.FLOAT32, ("N", 3)), TensorType(DType.BOOL, ()), name="example")
    assert str(function) == EXAMPLE
    assert parse(EXAMPLE) == function


START = "function f(x: float32[2]) -> (y: ?) {\n  "
EXAMPLE = """\
function example(x: float32[N,3], c: bool[]) -> (y: float32[N,3], best: int64[N,1]) {
  opset ai.onnx 26
  const constant_1: float32[3,3] = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
  const constant_2: float32[] = 0.5
  const constant_4: int64[1] = [1]
  matmul_1: float32[N,3] = MatMul(x, constant_1)
  add_1: float32[N,3] = Add(matmul_1, constant_2)
  act: float32[N,3] = Relu(add_1)
  y = If(c) {
    else_branch = function else_branch() -> (act_copy: float32[N,3]) {
      opset ai.onnx 26
      act_copy = Identity(act)
    },
    then_branch = function then_branch() -> (mul_1: float32[N,3]) {
      opset ai.onnx 26
      const constant_3: float32[] = 2.0
      mul_1 = Mul(act, constant_3)
    },
  } @if_1
  topk_1: float32[N,1], best = TopK(act, constant_4) {axis = -1}
}"""


def test_large_constants_are_summarised_for_people_and_whole_in_files() -> None:
    function = Function((), (Value("w"),), constants={"w": Constant(np.arange(100, dtype=np.float32))})
    digest = function.constants["w"].digest.hex()
    assert f'const w: float32[100] = sha256 "{digest}"' in str(function)
    assert 'const w: float32[100] = base64 "AAAAAAAAgD8AAABA' in to_text(function)
    assert parse(to_text(function)) == function
    with pytest.raises(ModelError, match="line 2, column 27: the constant is given by its digest only: this text is a summary"):
        parse(str(function))


def test_a_plan_is_its_function_with_comments() -> None:
    class Plan:
        function = Function((Value("x"),), (Value("x"),))

        def __str__(self) -> str:
            return "plan: nothing\nelse"

    assert to_text(Plan()) == "# plan: nothing\n# else\nfunction main(x: ?) -> (x: ?) {\n}\n"
    assert parse(to_text(Plan())) == Plan.function


def test_comments_spaces_and_trailing_commas() -> None:
    text = """
    # a comment
    function f ( x : float32 [ 2 , ] , ) -> ( y : ? ) {  # another
      y = Relu(x,) { alpha = 1.0, axes = [1, 2,], }
    } # the end"""
    node = Node("Relu", ("x",), ("y",), read_attributes({"alpha": 1.0, "axes": [1, 2]}))
    assert parse(text) == Function((Value("x", TensorType(DType.FLOAT32, (2,))),), (Value("y"),), (node,), name="f")


names = st.one_of(
    st.sampled_from([*sorted(KEYWORDS), "inf", "nan", "ai.onnx", "1", "a:0", "?", "N"]), st.text(min_size=1, max_size=6)
)
texts = st.text(max_size=8)
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)


@st.composite
def constants(draw: st.DrawFn) -> Constant:
    """Constants of every type, any bits among their bytes."""
    dtype, shape = draw(st.sampled_from(DType)), draw(shapes)
    if dtype is DType.STRING:
        return Constant(draw(hnp.arrays(object, shape, elements=texts)))
    if dtype is DType.BOOL:
        return Constant(draw(hnp.arrays(bool, shape)))
    if dtype.is_integer and dtype.bits >= 8:
        return Constant(draw(hnp.arrays(dtype.numpy, shape)))
    bits = draw(hnp.arrays(np.uint8, (*shape, dtype.numpy.itemsize)))
    if dtype.bits < 8:
        bits &= 2**dtype.bits - 1
    return Constant(np.frombuffer(bits.tobytes(), dtype.numpy).reshape(shape))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(names)
def test_any_name_comes_back_in_every_place(name: str) -> None:
    type_ = TensorType(DType.FLOAT32, (name, 2, None))
    body = Function((Value(f"{name}i", type_),), (Value("x"),), opsets={name: 3}, name=name)
    attributes = read_attributes({name: name, f"{name}b": body, f"{name}t": type_, f"{name}s": [name, b"\xff"]})
    nodes = (
        Node(name, ("x", "", f"{name}k"), (f"{name}y", ""), attributes, name, name, device=name),
        Node("Op", (f"{name}y",), ("", "z"), name=f"{name}2", control=(name,)),
    )
    function = Function(
        inputs=(Value("x", type_),),
        outputs=(Value(f"{name}y"), Value("z", SequenceType(type_))),
        nodes=nodes,
        constants={f"{name}k": Constant(np.array([name], object))},
        opsets={name: 3, "": 9},
        aliases=((name, f"{name}y"),),
        types={f"{name}y": type_, "elsewhere": OptionalType(MapType(DType.INT64, type_))},
        name=name,
        doc=name,
        metadata={name: name},
    )
    text = to_text(function)
    assert parse(text) == function
    assert to_text(parse(text)) == text
    str(function)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(constants())
def test_any_constant_comes_back(constant: Constant) -> None:
    function = Function((), (Value("k"),), constants={"k": constant})
    assert parse(to_text(function)).constants["k"] == constant


def test_a_quiet_nan_with_a_payload_keeps_its_bits() -> None:
    array = np.array([0x7FC00001], np.uint32).view(np.float32)
    function = Function((), (Value("k"),), constants={"k": Constant(array)})
    assert "base64" in to_text(function)
    assert parse(to_text(function)).constants["k"].array.tobytes() == array.tobytes()


def test_a_function_that_is_a_plan_of_launches() -> None:
    inner = trace(lambda x: x + 1, F32, name="region")
    launch = Node(
        "Launch", ("x",), ("add_1",), read_attributes({"body": inner, "engine": "ort{a=1}", "nodes": ["n 1"]}), "xrt", "xrt_ort_0"
    )
    function = Function(inner.inputs, inner.outputs, (launch,), opsets={"": 26})
    text = to_text(function)
    assert "add_1 = xrt::Launch(x) {" in text
    assert '    engine = "ort{a=1}",' in text
    assert parse(text) == function


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: expected 'function'; found the end of the text"),
        ("function f(x: float32[2]", "line 1, column 25: expected ')'; found the end of the text"),
        ("function f(x float32)", "line 1, column 14: expected ':'; found 'float32'"),
        ("function f(x: flaot32[2])", "line 1, column 15: unknown element type 'flaot32'. Did you mean 'float32'?"),
        ("function f(x: float32[2.5])", "line 1, column 23: expected an extent; found '2.5'"),
        ("function f(x: 3)", "line 1, column 15: expected a type; found '3'"),
        ("function f() -> () {} rest", "line 1, column 23: expected the end of the text after the function; found 'rest'"),
        ("function f() -> () { $ }", "line 1, column 22: expected a name, a number, a string or a mark; found '$'"),
        ('function "f', "line 1, column 10: expected a name, a number, a string or a mark; found '\"'"),
        ('function "\\x"() -> () {}', "line 1, column 10: expected a string with JSON's escapes"),
        (START + "y Relu(x)", "line 2, column 5: expected '='; found 'Relu'"),
        (START + "y = (x)", "line 2, column 7: expected an operator; found '('"),
        (
            START + "3 = Relu(x)",
            "line 2, column 3: expected a statement (alias, const, doc, meta, opset, type), or the outputs of a node",
        ),
        (START + "y = Relu(after)", "line 2, column 12: expected an input; found 'after'"),
        (
            START + "y = Relu(x) {a = }",
            "line 2, column 20: expected a number, a string, bytes, tensor, type, function, or a list",
        ),
        (START + "y = Relu(x) {a = []}", "line 2, column 21: an empty list needs its kind, as in 'ints []'"),
        (START + "y = Relu(x) {a = [1, 2.0]}", "line 2, column 21: a list holds float, int; its items must be of one kind"),
        (START + "y = Relu(x) {a = [1e39]}", "line 2, column 21: 1e39 is out of the range of float32"),
        (START + "const k: float64[] = 1e999", "line 2, column 24: 1e999 is out of the range of float64"),
        (START + 'y = Relu(x) {a = bytes "0g"}', "line 2, column 26: non-hexadecimal number"),
        (START + "y = Relu(x) on cpu", "line 2, column 18: expected a device in double quotes; found 'cpu'"),
        (START + "y = Relu(x) @", "line 2, column 16: expected the node's name; found the end"),
        (START + "opset ai.onnx new", "line 2, column 17: expected the version of the domain; found 'new'"),
        (START + "opset a 1 opset a 2", "line 2, column 19: 'a' is defined twice"),
        (START + "const k: float32[2] = [1.0]", "line 2, column 25: a constant of shape [2] has 2 elements; 1 are given"),
        (START + "const k: float32[N] = [1.0]", "line 2, column 25: a constant needs a shape of numbers; its type is float32[N]"),
        (START + "const k: seq(float32[1]) = []", "line 2, column 12: unknown element type 'seq'"),
        (START + "const k: int8[] = 300", "line 2, column 21: a number is out of the range of int8"),
        (START + "const k: int8[] = 1.5", "line 2, column 21: invalid literal for int()"),
        (START + "const k: bool[] = 1", "line 2, column 21: '1' is neither true nor false"),
        (START + "const k: string[] = 1", "line 2, column 23: expected an element in double quotes; found '1'"),
        (START + 'const k: float32[1] = base64 "AAA"', "line 2, column 25: "),
        (START + 'const k: float32[1] = base64 "AAAA"', "a constant of float32 and shape [1] has 4 bytes; 3 are given"),
        (START + 'const k: bool[1] = base64 "Ag=="', "a byte of a bool constant is neither 0 nor 1"),
        (START + 'const k: string[1] = base64 "Ag=="', "strings are listed one by one, not as base64"),
        (START + "y = Relu(y) }", "line 1, column 1: the graph has a cycle"),
    ],
)
def test_bad_text(text: str, message: str) -> None:
    with pytest.raises(ModelError, match=re.escape(message)):
        parse(text)


F2 = "float32[2]"


def sample() -> Function:
    """A value read twice, a constant, a captured value, a control edge, and names that need quoting."""
    name = 'a "quoted" \\ name'
    then = body({}, {"u": F2}, node("Neg", "t", "u")).replace(name="then")
    other = body({}, {"v": F2}, node("Abs", "t", "v")).replace(name="else")
    nodes = (
        node("Mul", "x x", "t", name=name),
        node("Add", "t w", "s", name="add", control=(name,)),
        node("If", "c", "y", name="if", then_branch=then, else_branch=other),
    )
    function = graph({"x": F2, "c": "bool[]"}, {"y": F2}, *nodes, constants={"w": np.ones(2, np.float32)})
    y = function.outputs[0]
    return function.replace(name="sample", outputs=(y, Value("s"), y))


DOT = r"""digraph {
  label="sample"; labelloc=t
  node [shape=box, fontname=Helvetica]; edge [fontname=Helvetica, fontsize=10]
  input0 [shape=ellipse, label="x\nfloat32[2]"]
  input1 [shape=ellipse, label="c\nbool[]"]
  output2 [shape=ellipse, label="y\nfloat32[2]"]
  output3 [shape=ellipse, label="s"]
  node0 [label="Mul\na \"quoted\" \\ name"]
  node1 [label="If\nif\nelse_branch=else (1 nodes)\nthen_branch=then (1 nodes)"]
  node2 [label="Add\nadd\nw: float32[2]"]
  input0 -> node0 [label="x\nfloat32[2]"]
  input0 -> node0 [label="x\nfloat32[2]"]
  input1 -> node1 [label="c\nbool[]"]
  node0 -> node1 [label="t", style=dashed]
  node0 -> node2 [label="t"]
  node0 -> node2 [label="", style=dotted]
  node1 -> output2 [label="y\nfloat32[2]"]
  node2 -> output3 [label="s"]
  node1 -> output2 [label="y\nfloat32[2]"]
}
"""


def test_the_picture() -> None:
    assert to_dot(sample()) == DOT


def test_every_edge_of_a_real_model_is_drawn_between_things_that_are_drawn() -> None:
    lines = [line.strip() for line in to_dot(load_light("squeezenet")).splitlines()]
    results = {line.split(" ", 1)[0] for line in lines if "[" in line and "->" not in line}
    ends = {end for line in lines if "->" in line for end in line.split(" [")[0].split(" -> ")}
    assert ends == results - {"node"}


def test_a_long_attribute_is_cut_short() -> None:
    node = Node("Constant", (), ("y",), read_attributes({"value_ints": list(range(100))}))
    output = next(
        line for line in to_dot(Function((), (Value("y"),), (node,), opsets={"": 20})).splitlines() if "value_ints" in line
    )
    assert "0, 1, 2" in output
    assert "…" in output
    assert "99" not in output
