"""Every bad model, and every damaged one, is one clear error that names the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

from tests.malformed_inputs import malicious
from xrt.errors import ModelError
from xrt.formats.onnx import load

VERSION = onnx.__version__
HEAD = '<ir_version: 8, opset_import: ["": 17]>'


def message(source: object) -> str:
    with pytest.raises(ModelError) as caught:
        load(source)  # type: ignore[arg-type]  # also asked for what it must refuse
    return str(caught.value)


def parse_model(text: str, head: str = HEAD) -> ModelProto:
    return parser.parse_model(f"{head} g {text}")


RELU = parse_model("(float[2,3] x) => (float[2,3] y) { y = Relu(x) }")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no.onnx", "there is no such file"),
        ("empty", "it is a directory; name the file in it"),
        ("models", "it is a directory; name the file in it (a.onnx, b.onnx)"),
        ("models/a.onnx/m.onnx", "it cannot be read: Not a directory"),
        ("models/a.onnx", "it is empty"),
        ("text", "it is not an ONNX model: it does not parse as one"),
        ("picture", "it is not an ONNX model: it does not parse as one"),
        ("ones", "it is not an ONNX model: it does not parse as one"),
    ],
)
def test_a_file_that_is_no_model(name: str, reason: str, tmp_path: Path) -> None:
    for folder in ("empty", "models"):
        (tmp_path / folder).mkdir()
    for model in "ba":
        (tmp_path / "models" / f"{model}.onnx").touch()
    contents = {"text": b"not a model at all, but some text", "picture": b"\x89PNG\r\n\x1a\n" + bytes(64), "ones": b"\xff" * 100}
    for file, data in contents.items():
        (tmp_path / file).write_bytes(data)
    for path in (tmp_path / name, str(tmp_path / name)):
        assert message(path) == f"cannot load {str(path)!r}: {reason}"


def test_bytes_and_messages_of_something_else() -> None:
    assert message(b"") == "cannot load the given bytes: it is empty"
    assert message(helper.make_tensor_value_info("x", 1, [2]).SerializeToString()) in (
        "cannot load the given bytes: it is not an ONNX model: it does not parse as one",
        "cannot load the given bytes: it is not an ONNX model: it has no IR version",
    )
    assert message(ModelProto(ir_version=8)) == "cannot load the given ModelProto: it is not an ONNX model: it has no graph"
    assert message(ModelProto()) == "cannot load the given ModelProto: it is not an ONNX model: it has no IR version"


def test_a_truncated_file_says_where(tmp_path: Path) -> None:
    weights = numpy_helper.from_array(np.zeros(1000, np.float32), "w")
    whole = ModelProto()
    whole.CopyFrom(RELU)
    whole.graph.initializer.append(weights)
    data = whole.SerializeToString()
    path = tmp_path / "cut.onnx"
    path.write_bytes(data[: len(data) // 2])
    end = len(data) - len(whole.opset_import[0].SerializeToString()) - 2
    assert message(path) == (
        f"cannot load {str(path)!r}: it is truncated: its graph should end at byte {end}, "
        f"but there are only {len(data) // 2} bytes"
    )


def test_every_truncation_is_a_model_error() -> None:
    data = RELU.SerializeToString()
    for size in range(len(data)):
        with pytest.raises(ModelError):
            load(data[:size])


def with_opsets(opsets: str, ir_version: int = 8) -> ModelProto:
    return parse_model("(float x) => (float y) { y = Relu(x) }", f"<ir_version: {ir_version}, opset_import: [{opsets}]>")


BRANCHES = (
    "(bool c, float x) => (float y) {{ [if] y = If(c) <"
    "then_branch = t () => (float a) {{ {then} }}, else_branch = e () => (float b) {{ {other} }}> }}"
)


def branches(other: str) -> ModelProto:
    return parse_model(BRANCHES.format(then="a = Relu(x)", other=other))


NEWEST, UNDEFINED = onnx.defs.onnx_opset_version(), "which no input, initialiser or node defines."


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            with_opsets('"": 999'),
            (
                f"it uses opset 999 of ai.onnx, but the installed onnx {VERSION} knows {NEWEST} at most; upgrade onnx, or "
                "export the model for an older opset"
            ),
        ),
        (
            with_opsets('"": 17', 999),
            (
                f"it has IR version 999, but the installed onnx {VERSION} knows {onnx.IR_VERSION} at most; upgrade onnx, or "
                "export the model with an older version"
            ),
        ),
        (with_opsets('"": 0'), "it uses opset 0 of ai.onnx; versions start at 1"),
        (with_opsets('"": 17, "ai.onnx": 18'), "it imports domain 'ai.onnx' twice, at versions 17 and 18"),
        (
            parse_model("(float x) => (float y) { y = com.acme.Relu(x) }"),
            "node 'y' (Relu) is of domain com.acme, whose opset the model does not import (it imports: ai.onnx 17)",
        ),
        (
            parse_model("(float x) => (float y) { y = Rellu(x) }"),
            "node 'y' (Rellu): Rellu is not an operator of ai.onnx at opset 17. Did you mean 'Relu'?",
        ),
        (
            parse_model("(float x) => (float y) { [a] a = Add(x, b)  [b] b = Relu(a)  [y] y = Neg(b) }"),
            "the graph has a cycle of 2 node(s): b (Relu) -> a (Add) -> b (Relu); a function must be acyclic",
        ),
        (
            parse_model("(float x_input) => (float y) { [n] y = Relu(x_imput) }"),
            f"node 'n' (Relu) reads value 'x_imput', {UNDEFINED} Did you mean 'x_input'?",
        ),
        (parse_model("(float x) => (float nowhere) { [n] y = Relu(x) }"), f"graph 'g' returns value 'nowhere', {UNDEFINED}"),
        (branches("[inner] b = Relu(zzz)"), f"node 'inner' (Relu) reads value 'zzz', {UNDEFINED}"),
        (branches("q = Relu(x)"), f"body 'e' of node 'if' (If) returns value 'b', {UNDEFINED}"),
        (branches("[inner] b = Relu(a)"), f"node 'inner' (Relu) reads value 'a', {UNDEFINED}"),
        (
            parse_model("(float x) => (float y) { [m] y = Relu(x)  [n] y = Neg(x) }"),
            "value 'y' of function 'g' is defined twice: by node 'n' (Neg) and by another node; every value has one definition",
        ),
        (
            parse_model("(float x) => (float y) { y = SimplifiedLayerNormalization(x) }"),
            "node 'y' (SimplifiedLayerNormalization) needs two inputs and an output",
        ),
    ],
)
def test_a_model_that_violates_a_rule(source: ModelProto, reason: str) -> None:
    assert message(source) == f"cannot load the given ModelProto: {reason}"


def normalization(**attributes: Any) -> ModelProto:
    source = parse_model("(float x, float s) => (float y) { y = SimplifiedLayerNormalization(x, s) }")
    source.graph.node[0].attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    return source


@pytest.mark.parametrize(
    ("attributes", "values"),
    [({"axis": [1]}, "(1,) and 1e-05"), ({"axis": -(2**62)}, f"{-(2**62)} and 1e-05"), ({"epsilon": "small"}, "-1 and 'small'")],
)
def test_attributes_of_a_normalization_that_onnx_does_not_describe(attributes: dict[str, Any], values: str) -> None:
    assert message(normalization(**attributes)) == (
        f"cannot load the given ModelProto: SimplifiedLayerNormalization 'y' has no valid axis or epsilon: {values}"
    )


def changed(change: Callable[[ModelProto], Any], source: ModelProto = RELU) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(source)
    change(copy)
    return copy


LEAKY = parse_model("(float x) => (float y) { [n] y = LeakyRelu<alpha = 1.0>(x) }")
ZERO, UNNAMED = numpy_helper.from_array(np.zeros(1), "w"), numpy_helper.from_array(np.zeros(1))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (changed(lambda m: m.graph.node[0].ClearField("op_type")), "node 'y' () has no operator"),
        (changed(lambda m: m.graph.initializer.extend([ZERO, ZERO])), "graph 'g' has two initialisers named 'w'"),
        (changed(lambda m: m.graph.initializer.append(UNNAMED)), "graph 'g' has an initialiser without a name"),
        (changed(lambda m: m.graph.input[0].ClearField("name")), "graph 'g' has an input or output without a name"),
        (
            changed(lambda m: m.graph.node[0].attribute.append(helper.make_attribute("alpha", 2.0)), LEAKY),
            "node 'n' (LeakyRelu) has two attributes named 'alpha'",
        ),
        (
            changed(lambda m: m.graph.node[0].attribute[0].ClearField("type"), LEAKY),
            "attribute 'alpha' of node 'n' (LeakyRelu) has no kind",
        ),
        (
            changed(lambda m: m.graph.node[0].metadata_props.add(key="xrt.control", value="[1]")),
            "metadata 'xrt.control' is '[1]'; it must be a list of node names, like [\"a\", \"b\"]",
        ),
        (
            changed(lambda m: m.graph.metadata_props.add(key="xrt.aliases", value='[["x"]]')),
            'metadata \'xrt.aliases\' is \'[["x"]]\'; it must be a list of pairs, like [["input", "output"]]',
        ),
    ],
)
def test_a_message_that_is_not_well_formed(source: ModelProto, reason: str) -> None:
    assert message(source) == f"cannot load the given ModelProto: {reason}"


def call_local(body: str, opsets: str, imports: str = "", shape: str = "[4]") -> ModelProto:
    """Return a model that calls a local function of that body and of those opsets."""
    return parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17, "loc": 1{imports}]> g (float{shape} x) => (float{shape} z) {{ z = loc.f(x) }}'
        f'<domain: "loc", opset_import: [{opsets}]> f (a) => (b) {{ {body} }}'
    )


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (call_local("b = loc.f(a)", '"": 17, "loc": 1'), " cannot be inlined: loc.f is recursive, through 1 function(s)"),
        (call_local("b = Gelu(a)", '"": 20'), " cannot be inlined: No Previous Version of Gelu exists"),
        (call_local("b = c.Foo(a)", '"c": 2', ', "c": 1'), " loc.f cannot be inlined: they import other opsets than the model"),
    ],
)
def test_local_functions_that_cannot_be_inlined(source: ModelProto, reason: str) -> None:
    assert message(source) == f"cannot load the given ModelProto: its model-local functions{reason}"


def test_local_functions_that_would_make_too_many_nodes() -> None:
    """Each of nine functions calls the next ten times: a thousand bytes that spell a billion nodes."""
    assert message(malicious.models()["functions that make a billion nodes"].files["model.onnx"]).endswith(
        "they would make 1000000000 nodes of the 91 that the model holds; at most 100 times as many are allowed"
    )


def test_local_functions_in_a_long_line() -> None:
    bodies = "\n".join(
        f'<domain: "loc", opset_import: ["": 17, "loc": 1]> f{k} (a) => (b) {{ b = {call}(a) }}'
        for k, call in enumerate([*(f"loc.f{k}" for k in range(1, 300)), "Relu"])
    )
    text = f'<ir_version: 8, opset_import: ["": 17, "loc": 1]> g (float x) => (float y) {{ y = loc.f0(x) }}\n{bodies}'
    assert message(parser.parse_model(text)).endswith("calls are nested more than 200 deep, from loc.f99 on")


def with_weight(tensor: TensorProto) -> ModelProto:
    tensor.name = "w"
    return changed(lambda whole: whole.graph.initializer.append(tensor))


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (
            TensorProto(data_type=1, dims=[1 << 40], raw_data=bytes(4)),
            "is float32[1099511627776], which takes 4398046511104 bytes, but its data is 4 bytes",
        ),
        (
            TensorProto(data_type=1, dims=[1 << 62, 1 << 62], float_data=[1.0]),
            (
                f"is float32[{1 << 62},{1 << 62}], and its data does not fit: "
                f"cannot reshape array of size 1 into shape ({1 << 62},{1 << 62})"
            ),
        ),
        (TensorProto(data_type=22, dims=[3], int32_data=[1] * 9), "is int4[3], which takes 2 bytes, but its data is 9 bytes"),
        (TensorProto(data_type=8, dims=[2], raw_data=b"ab"), "holds strings as raw bytes; ONNX stores them in string_data only"),
        (TensorProto(data_type=1, dims=[-1], raw_data=b""), "has a negative extent in its shape [-1]"),
        (TensorProto(dims=[1], raw_data=b"\0"), "has no element type"),
        (TensorProto(data_type=99, dims=[1]), ": element type 99 is unknown; XRT knows ONNX's types 1 to 28"),
        (
            TensorProto(data_type=1, dims=[1], segment=TensorProto.Segment(begin=0, end=1)),
            "is a segment of a larger tensor, which ONNX has never defined how to join",
        ),
    ],
)
def test_a_tensor_whose_data_does_not_fit_its_header(tensor: TensorProto, reason: str) -> None:
    gap = "" if reason.startswith(":") else " "
    assert message(with_weight(tensor)) == f"cannot load the given ModelProto: initialiser 'w'{gap}{reason}"


def test_an_empty_tensor_of_an_impossible_shape() -> None:
    tensor = TensorProto(data_type=1, dims=[0, 1 << 62, 1 << 62])
    assert message(with_weight(tensor)).startswith(
        f"cannot load the given ModelProto: initialiser 'w' is float32[0,{1 << 62},{1 << 62}], and its data does not fit: "
    )


def sparse(dims: list[int], indices: np.ndarray, values: int = 1) -> ModelProto:
    whole = changed(lambda whole: None)
    entry = whole.graph.sparse_initializer.add(dims=dims)
    entry.values.CopyFrom(numpy_helper.from_array(np.ones(values, np.float32), "w"))
    entry.indices.CopyFrom(numpy_helper.from_array(indices))
    return whole


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            sparse([1 << 20, 1 << 20], np.array([0])),
            "is sparse and would take 4398046511104 bytes as a dense tensor, too many for the size of its data",
        ),
        (sparse([2, 2], np.array([4])), "is sparse, and one of its indices lies outside of its shape [2, 2]"),
        (sparse([2, 2], np.array([[0, 2]])), "is sparse, and one of its indices lies outside of its shape [2, 2]"),
        (
            sparse([2, 2], np.array([0, 1])),
            "is sparse with 1 values of rank 2; its indices must be int64[1] or int64[1,2], not int64[2]",
        ),
    ],
)
def test_a_sparse_tensor_that_is_not_one(model: ModelProto, reason: str) -> None:
    assert message(model) == f"cannot load the given ModelProto: initialiser 'w' {reason}"


@pytest.mark.slow
def test_among_very_many_nodes_the_nearest_name_is_not_looked_for() -> None:
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(10_000)]
    nodes.append(helper.make_node("Relu", ["v0_"], ["y"], name="n"))
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("v0", 1, [1])], [helper.make_tensor_value_info("y", 1, [1])]
    )
    assert message(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)) == (
        "cannot load the given ModelProto: node 'n' (Relu) reads value 'v0_', which no input, initialiser or node defines."
    )


NOT_TEXT = b"\xff\xfe"


@pytest.mark.parametrize(
    ("place", "what"),
    [
        (b"the_op", "the operator or domain of node 'the_node' (b'\\xff\\xfee_op')"),
        (b"the_domain", "the operator or domain of node 'the_node' (the_op)"),
        (b"the_input", "the name of a value or node"),
        (b"the_output", "the name of a value or node"),
        (b"the_node", "the name of a value or node"),
        (b"the_graph", "the name of a graph"),
        (b"the_x", "the name of a value"),
        (b"the_extent", "the name of an extent"),
        (b"the_weight", "the name of an initialiser"),
        (b"the_attribute", "the name of an attribute of node 'the_node' (the_op)"),
        (b"the_doc", "the documentation"),
        (b"the_import", "the domain of an opset import"),
        (b"the_key", "a key of the metadata"),
        (b"the_value", "a value of the metadata"),
    ],
)
def test_text_that_is_not_utf8(place: bytes, what: str) -> None:
    node = helper.make_node("the_op", ["the_input"], ["the_output"], name="the_node", domain="the_domain", the_attribute=1)
    outputs = [helper.make_tensor_value_info("y", 1, ["the_extent"])]
    inputs = [helper.make_tensor_value_info("the_x", 1, [])]
    graph = helper.make_graph(
        [node], "the_graph", inputs, outputs, [numpy_helper.from_array(np.zeros(1), "the_weight")], doc_string="the_doc"
    )
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("the_domain", 1), helper.make_opsetid("the_import", 1)])
    whole.metadata_props.add(key="the_key", value="the_value")
    data = whole.SerializeToString()
    broken = data.replace(place, NOT_TEXT + place[len(NOT_TEXT) :], 1)  # where it stands first
    assert message(broken).startswith(f"cannot load the given bytes: {what}")
    assert "is not UTF-8 text: b'" in message(broken)
