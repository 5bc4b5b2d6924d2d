"""Every bad model is one clear error that names the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper, parser

from tests.malformed_inputs import malicious
from xrt.errors import ModelError
from xrt.formats.onnx import load

VERSION = onnx.__version__
HEAD = '<ir_version: 8, opset_import: ["": 17]>'


def message(source: object) -> str:
    with pytest.raises(ModelError) as caught:
        load(source)  # type: ignore[arg-type]  # also asked for what it must refuse
    return str(caught.value)


def model(text: str, head: str = HEAD) -> ModelProto:
    return parser.parse_model(f"{head} g {text}")


RELU = model("(float[2,3] x) => (float[2,3] y) { y = Relu(x) }")


# ---------------------------------------------------------------------------------------------- files


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


# ---------------------------------------------------------------------------------------------- structure


def with_opsets(opsets: str, ir_version: int = 8) -> ModelProto:
    return model("(float x) => (float y) { y = Relu(x) }", f"<ir_version: {ir_version}, opset_import: [{opsets}]>")


BRANCHES = (
    "(bool c, float x) => (float y) {{ [if] y = If(c) <"
    "then_branch = t () => (float a) {{ {then} }}, else_branch = e () => (float b) {{ {other} }}> }}"
)


def branches(other: str) -> ModelProto:
    return model(BRANCHES.format(then="a = Relu(x)", other=other))


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
            with_opsets('"com.acme": 1'),
            "node 'y' (Relu) is of domain ai.onnx, whose opset the model does not import (it imports: com.acme 1)",
        ),
        (
            model("(float x) => (float y) { y = com.acme.Relu(x) }"),
            "node 'y' (Relu) is of domain com.acme, whose opset the model does not import (it imports: ai.onnx 17)",
        ),
        (
            model("(float x) => (float y) { y = Rellu(x) }"),
            "node 'y' (Rellu): Rellu is not an operator of ai.onnx at opset 17. Did you mean 'Relu'?",
        ),
        (
            model("(float x) => (float y) { y = Gelu(x) }"),
            "node 'y' (Gelu): Gelu came with opset 20 of ai.onnx; the graph is at opset 17",
        ),
        (
            model("(float x) => (float y) { [a] a = Add(x, b)  [b] b = Relu(a)  [y] y = Neg(b) }"),
            "the graph has a cycle of 2 node(s): b (Relu) -> a (Add) -> b (Relu); a function must be acyclic",
        ),
        (
            model("(float x_input) => (float y) { [n] y = Relu(x_imput) }"),
            f"node 'n' (Relu) reads value 'x_imput', {UNDEFINED} Did you mean 'x_input'?",
        ),
        (
            model("(float x) => (float nowhere) { [n] y = Relu(x) }"),
            f"graph 'g' returns value 'nowhere', {UNDEFINED}",
        ),
        (branches("[inner] b = Relu(zzz)"), f"node 'inner' (Relu) reads value 'zzz', {UNDEFINED}"),
        (branches("q = Relu(x)"), f"body 'e' of node 'if' (If) returns value 'b', {UNDEFINED}"),
        (branches("[inner] b = Relu(a)"), f"node 'inner' (Relu) reads value 'a', {UNDEFINED}"),
        (
            model("(float x) => (float y) { [m] y = Relu(x)  [n] y = Neg(x) }"),
            "value 'y' of function 'g' is defined twice: by node 'n' (Neg) and by another node; every value has one definition",
        ),
        (
            model("(float x) => (float y) { y = SimplifiedLayerNormalization(x) }"),
            "node 'y' (SimplifiedLayerNormalization) needs two inputs and an output",
        ),
    ],
)
def test_a_model_that_violates_a_rule(source: ModelProto, reason: str) -> None:
    assert message(source) == f"cannot load the given ModelProto: {reason}"


def normalization(**attributes: Any) -> ModelProto:
    source = model("(float x, float s) => (float y) { y = SimplifiedLayerNormalization(x, s) }")
    source.graph.node[0].attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    return source


@pytest.mark.parametrize(
    ("attributes", "values"),
    [
        ({"axis": [1]}, "(1,) and 1e-05"),
        ({"axis": -(2**62)}, f"{-(2**62)} and 1e-05"),
        ({"epsilon": "small"}, "-1 and 'small'"),
    ],
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


LEAKY = model("(float x) => (float y) { [n] y = LeakyRelu<alpha = 1.0>(x) }")
ZERO, UNNAMED = numpy_helper.from_array(np.zeros(1), "w"), numpy_helper.from_array(np.zeros(1))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            changed(lambda m: m.ClearField("opset_import")),
            "node 'y' (Relu) is of domain ai.onnx, whose opset the model does not import (it imports: none)",
        ),
        (changed(lambda m: m.graph.node[0].ClearField("op_type")), "node 'y' () names no operator"),
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
            changed(lambda m: m.graph.node[0].metadata_props.add(key="xrt.control", value="nonsense")),
            "metadata 'xrt.control' is 'nonsense'; it must be JSON",
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


def test_a_recursive_local_function() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "loc": 1]> g (float x) => (float y) { y = loc.f(x) }
    <domain: "loc", opset_import: ["": 17, "loc": 1]> f (a) => (b) { b = loc.f(a) }"""
    assert message(parser.parse_model(text)) == (
        "cannot load the given ModelProto: its model-local functions cannot be inlined: "
        "loc.f is recursive, by way of 1 function(s)"
    )


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
    assert message(parser.parse_model(text)).endswith("more than 200 call one another in a line, from loc.f99 on")
