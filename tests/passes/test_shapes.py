"""Types: what the operators say, merged with what the model declares; and operators of com.microsoft and ai.onnx.ml."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from onnx import parser

from xrt.formats.onnx import inference, load, to_model
from xrt.graph import Constant, DType, Function, SequenceType, TensorType, Value
from xrt.passes import drop_dead_nodes, infer_shapes
from xrt.passes.operator_types import OPERATOR_TYPES, Operands
from xrt.testing.corpus.entry import graph, node, tensor
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
    assert types(inferred) == {"a": "float32[N,1,3,3]", "y": "float32[N,1,1,2]", "z": "float32[N,1,?,?]", "w": "float32[N,1,3,2]"}
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


def test_what_follows_from_the_declaration_of_an_output_is_found() -> None:
    function = read("(float[N,3] x, int64[2] s) => (float[8,6] a, float[?,?] y) { a = Reshape(x, s)  y = Transpose(a) }")
    assert types(infer_shapes(function)) == {"a": "float32[8,6]", "y": "float32[6,8]"}


def test_what_onnx_cannot_infer_keeps_its_declaration() -> None:
    function = read("(float[2,3] x) => (float[4] y) <float[5] a> { a = com.acme.Foo(x)  b = Relu(a)  y = com.acme.Foo(b) }")
    assert types(infer_shapes(function)) == {"a": "float32[5]", "b": "float32[5]", "y": "float32[4]"}


def test_a_node_with_an_input_of_unknown_type_keeps_its_declaration() -> None:
    function = read("""(float[N,4,6] x) => (float[?,7,?] y) <int64[1] zero = {0}, int64[1] two = {2}, int64[1] rest = {-1}> {
        s = Shape(x)  n = Gather(s, zero)  t = Concat<axis=0>(n, two, rest)  r = Reshape(x, t)  b = com.acme.Foo(x)  y = Add(r, b)
    }""")
    assert types(infer_shapes(function)) | {"y": "float32[?,7,?]", "r": "float32[N,2,12]"} == types(infer_shapes(function))


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
    function = graph({"x": None}, {"y": None}, node("Relu", "x", "y"))
    assert infer_shapes(function) is function


def test_an_output_that_no_node_makes() -> None:
    unknown, ones = tensor("float32[?]"), np.ones(2, np.float32)
    outputs = {"y": None, "x": unknown, "k": unknown, "l": None}
    function = graph({"x": "float32[2]"}, outputs, node("Relu", "x", "y"), constants={"k": ones, "l": ones})
    assert [str(value.type) for value in infer_shapes(function).outputs] == ["float32[2]"] * 4


def test_sequences_and_optionals() -> None:
    nodes = node("SequenceConstruct", "x x", "s"), node("Optional", "x", "y")
    function = graph({"x": "float32[4]"}, {"s": SequenceType(TensorType(DType.FLOAT32)), "y": None}, *nodes)
    assert [str(value.type) for value in infer_shapes(function).outputs] == ["seq(float32[4])", "optional(float32[4])"]


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
    loop = function.nodes[0].map_bodies(lambda b: b.replace(inputs=tuple(Value(v.name) for v in b.inputs)))
    (body,) = infer_shapes(function.replace(nodes=(loop,))).nodes[0].bodies
    assert [str(value) for value in body.inputs] == ["i: int64[...]", "c: ?", "s: float32[...]"]


def test_a_wrong_claim_inside_of_a_body_is_put_right() -> None:
    function = read(
        "(bool c, float[3] x) => (float[3] y) { y = If(c) <then_branch = t () => (float[9] a) { q = Neg(x)  a = Relu(q) },"
        " else_branch = e () => (float[3] b) { b = Abs(x) }> }"
    )
    choice = function.nodes[0].map_bodies(lambda b: b.replace(types={"q": tensor("float32[8]")} if b.name == "t" else {}))
    bodies = infer_shapes(function.replace(nodes=(choice,))).nodes[0].bodies
    assert [types(body) for body in bodies] == [{"b": "float32[3]"}, {"q": "float32[3]", "a": "float32[3]"}]


def test_a_branch_inside_of_a_branch_reads_a_value_whose_shape_is_only_declared() -> None:
    function = read("""(bool c, float[3] x, int64[1] s) => (float[?] y, float[?] q) {
        p, q = If(c) <
            then_branch = t () => (float[2] v, float[?] w) {
                v = Reshape(x, s)
                w = If(c) <then_branch = i () => (float[?] a) { a = Relu(v) }, else_branch = j () => (float[?] b) { b = Neg(v) }>
            },
            else_branch = e () => (float[2] u, float[?] z) { u = Reshape(x, s)  z = Abs(u) }
        >
        y = Neg(p) }""")
    inferred = infer_shapes(function)
    assert types(inferred) == {"p": "float32[2]", "q": "float32[2]", "y": "float32[2]"}
    assert infer_shapes(inferred) is inferred


@pytest.mark.parametrize("control", [(), ("before",)])
def test_the_outputs_of_a_loop_follow_from_shapes_that_its_body_computes(control: tuple[str, ...]) -> None:
    function = read("""(int64 m, float[N,3] x) => (float fin, float scan) <int64[1] zero = {0}, int64[1] three = {3}> {
        fin, scan = Loop(m, "", x) <body = b (int64 i, bool c, float[N,3] s) => (bool d, float[N,3] t, float o) {
            d = Identity(c)  t = Relu(s)
            k = Shape(x)  n = Gather(k, zero)  target = Concat<axis=0>(n, three)  r = Reshape(s, target)  o = Relu(r)
        }>
    }""")
    nodes = node("Abs", "x", "a", name="before"), replace(function.nodes[0], control=control)
    inferred = infer_shapes(without_outputs(function.replace(nodes=nodes)))
    assert types(inferred)["scan"] == "float32[?,N,3]"
    assert inferred.nodes[1].control == control
    assert infer_shapes(inferred) is inferred


# ---------------------------------------------------------------------------------------------- weights


def test_weights_are_not_copied() -> None:
    weights = np.zeros((1000, 50), np.float32)
    function = graph({"x": "float32[N,1000]"}, {"y": None}, node("MatMul", "x w", "y"), constants={"w": weights})
    inferred = infer_shapes(function)
    assert types(inferred) == {"y": "float32[N,50]"}
    assert inferred.constants["w"] is function.constants["w"]


def test_large_tensors_among_the_attributes_do_not_stand_in_the_way() -> None:
    nodes = [node("Constant", "", name, value=np.zeros(5000, dtype)) for name, dtype in (("y", np.int64), ("z", ml_dtypes.int4))]
    assert types(infer_shapes(graph({}, {"y": None, "z": None}, *nodes, opset=21))) == {"y": "int64[5000]", "z": "int4[5000]"}


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


MS, ML = "com.microsoft", "ai.onnx.ml"


def one(op: str, inputs: str, domain: str = MS, version: int = 20, outputs: int = 1, **attributes: Any) -> Function:
    """Return a Function of one node; inputs are types by spaces, ``-`` for one that is left out."""
    types = {f"i{k}": word for k, word in enumerate(inputs.split())}
    read = " ".join("-" if word == "-" else name for name, word in types.items())
    results = [f"o{k}" for k in range(outputs)]
    values = {name: word for name, word in types.items() if word != "-"}
    function = graph(values, dict.fromkeys(results), node(op, read, " ".join(results), domain=domain, **attributes))
    return function.replace(opsets={"": version, MS: 1, ML: 3})


def row(op: str, inputs: str, *expected: str, **given: Any) -> Any:
    return pytest.param(one(op, inputs, outputs=len(expected), **given), list(expected), id=f"{op}-{len(inputs.split())}")


Q8 = "float32[] uint8[]"
F3, M3, Z = "float32[N,3,4]", "float32[N,3,1]", "float32[] float32[]"
"""Three axes, their means, two scales."""
PAST = "float32[N,2,0,8] float32[N,2,0,8] int32[N] int32[]"
CACHE = ["float32[N,2,?,8]"] * 2
WINDOW = {"kernel_shape": [3, 3], "strides": [2, 2]}
HEADS = {"num_heads": 4, "kv_num_heads": 2}
IDS = "int32[N,3] int32[N,3]"
LSTM = "float32[S,N,4] int8[2,4,32] int8[2,8,32] - - - - - float32[2] int8[2] float32[2] int8[2]"
LINEAR: dict[str, Any] = {"domain": ML, "coefficients": [1.0] * 9, "intercepts": [1.0] * 3}
VECTORS: dict[str, Any] = {
    "domain": ML, "coefficients": [1.0] * 3, "n_supports": 0, "rho": [0.0], "kernel_type": "LINEAR", "kernel_params": [0.0] * 3
}  # fmt: skip
LABELS, WORDS = {"classlabels_int64s": [0, 1, 2]}, {"classlabels_strings": ["a", "b", "c"]}
ROWS = [
    row("Gelu", "float32[N,4]", "float32[N,4]"),
    row("FastGelu", "float32[N,4] float32[4]", "float32[N,4]"),
    row("QuickGelu", "float32[N,4]", "float32[N,4]"),
    row("BiasGelu", "float32[N,4] float32[4]", "float32[N,4]"),
    row("BiasSplitGelu", "float16[N,3,8] float16[8]", "float16[N,3,4]"),
    row("SkipLayerNormalization", f"{F3} {F3} float32[4]", F3, M3, M3, F3),
    row("EmbedLayerNormalization", f"{IDS} float32[9,4] float32[5,4] float32[2,4] float32[4] float32[4]", F3, "int32[...]", F3),
    row("MatMulNBits", "float32[N,3,64] uint8[8,2,16] float32[16]", "float32[N,3,8]", K=64, N=8, bits=4, block_size=32),
    row("FusedMatMul", "float32[2,4,3] float32[2,4,5]", "float32[2,3,5]", transA=1),
    row("FusedMatMul", "float32[4,2,3] float32[2,3,5]", "float32[...]", transBatchA=1),
    row("FusedGemm", "float32[N,4] float32[5,4] float32[5]", "float32[N,5]", transB=1, activation="Relu"),
    row("QGemm", f"uint8[N,4] {Q8} uint8[4,5] {Q8} - {Q8}", "uint8[N,5]"),
    row("QGemm", f"uint8[N,4] {Q8} uint8[4,5] {Q8}", "float32[N,5]"),
    row("DynamicQuantizeMatMul", "float32[N,4] uint8[4,5] float32[] uint8[]", "float32[N,5]"),
    row("MatMulIntegerToFloat", "uint8[N,4] uint8[4,5] float32[] float32[]", "float32[N,5]"),
    row("QLinearAdd", f"uint8[N,4] {Q8} uint8[4] {Q8} {Q8}", "uint8[N,4]"),
    row("QLinearMul", "int8[1,4] float32[] int8[] int8[3,1] float32[] int8[] float32[] int8[]", "int8[3,4]"),
    row("QLinearSigmoid", f"uint8[N,4] {Q8} {Q8}", "uint8[N,4]"),
    row("QLinearLeakyRelu", f"uint8[N,4] {Q8} {Q8}", "uint8[N,4]"),
    row("QLinearSoftmax", f"uint8[N,4] {Q8} {Q8}", "uint8[N,4]", opset=13),
    row("QLinearConcat", f"{Q8} uint8[2,4] {Q8} uint8[3,4] {Q8}", "uint8[5,4]", axis=0),
    row("QLinearGlobalAveragePool", f"uint8[N,4,7,7] {Q8} {Q8}", "uint8[N,4,1,1]"),
    row("QLinearAveragePool", f"uint8[N,4,7,7] {Q8} {Q8}", "uint8[N,4,3,3]", **WINDOW),
    row("QLinearReduceMean", f"uint8[2,4,7] {Q8} {Q8}", "uint8[2,1,7]", axes=[1], keepdims=1),
    row("QLinearConv", f"uint8[N,3,7,7] {Q8} uint8[5,3,3,3] {Q8} {Q8}", "uint8[N,5,3,3]", **WINDOW),
    row("QLinearConv", f"uint8[N,7,7,3] {Q8} uint8[5,3,3,3] {Q8} {Q8}", "uint8[...]", channels_last=1, **WINDOW),
    row("FusedConv", "float32[N,3,7,7] float32[5,3,3,3]", "float32[N,5,3,3]", activation="Relu", **WINDOW),
    row("QuantizeLinear", "float32[N,4] float32[] int8[]", "int8[N,4]"),
    row("DequantizeLinear", "int8[N,4] float32[] int8[]", "float32[N,4]"),
    row("RotaryEmbedding", "float32[N,3,8] int64[1] float32[9,4] float32[9,4]", "float32[N,3,8]"),
    row("Attention", "float32[N,3,8] float32[8,24] float32[24]", "float32[N,3,8]", "float32[2,N,2,3,4]", num_heads=2),
    row("QAttention", f"uint8[N,3,8] uint8[8,24] float32[24] {Z} - uint8[] uint8[]", "float32[N,3,8]", num_heads=2),
    row("MultiHeadAttention", "float32[N,3,8] float32[N,5,8] float32[N,5,6]", "float32[N,3,6]", num_heads=2),
    row("MultiHeadAttention", "float32[N,3,2,3,4]", "float32[N,3,8]", num_heads=2),
    row("MultiHeadAttention", "float32[N,3,8] float32[N,2,5,4] float32[N,2,5,4]", "float32[N,3,8]", num_heads=2),
    row("GroupQueryAttention", f"float32[N,3,32] float32[N,3,16] float32[N,3,16] {PAST}", "float32[N,3,32]", *CACHE, **HEADS),
    row("GroupQueryAttention", f"float32[N,3,64] - - {PAST}", "float32[N,3,32]", *CACHE, **HEADS),
    row("DynamicQuantizeLSTM", LSTM, "float32[S,2,N,8]", *["float32[2,N,8]"] * 2, hidden_size=8, direction="bidirectional"),
    row("CDist", "float32[N,3] float32[5,3]", "float32[N,5]"),
    row("MurmurHash3", "int32[N,3]", "uint32[N,3]"),
    row("GatherBlockQuantized", "uint4[9,32] int64[N,3] float32[9,1]", "float32[N,3,32]", block_size=32, quantize_axis=1),
    row("Tokenizer", "string[N]", "string[N,?]", mark=0, pad_value="#", separators=[" "], mincharnum=1),
    # ai.onnx.ml
    row("Scaler", "int64[N,3]", "float32[N,3]", domain=ML, offset=[0.0], scale=[1.0]),
    row("Normalizer", "float32[N,3]", "float32[N,3]", domain=ML),
    row("Imputer", "float32[N,3]", "float32[N,3]", domain=ML, imputed_value_floats=[0.0]),
    row("Binarizer", "float32[N,3]", "float32[N,3]", domain=ML),
    row("LinearRegressor", "float32[N,3]", "float32[N,2]", domain=ML, coefficients=[1.0] * 6, targets=2),
    row("LinearClassifier", "float32[N,3]", "int64[N]", "float32[N,3]", **LINEAR, classlabels_ints=[0, 1, 2]),
    row("LinearClassifier", "float32[N,3]", "string[N]", "float32[N,3]", **LINEAR, classlabels_strings=["a", "b", "c"]),
    row("SVMRegressor", "float32[N,3]", "float32[N,1]", **VECTORS),
    row("FeatureVectorizer", "float32[N,3] float32[N,2]", "float32[N,5]", domain=ML, inputdimensions=[3, 2]),
    row("OneHotEncoder", "int64[N,3]", "float32[N,3,2]", domain=ML, cats_int64s=[0, 1]),
    row("LabelEncoder", "string[N,3]", "int64[N,3]", domain=ML, keys_strings=["a"], values_int64s=[1]),
    row("CategoryMapper", "string[N,3]", "int64[N,3]", domain=ML, cats_strings=["a"], cats_int64s=[1]),
    row("ArrayFeatureExtractor", "float32[N,3] int64[2]", "float32[N,2]", domain=ML),
    row("ZipMap", "float32[N,3]", "seq(map(int64,float32[]))", domain=ML, **LABELS),
    row("ZipMap", "float32[N,3]", "seq(map(string,float32[]))", domain=ML, **WORDS),
]  # fmt: skip


@pytest.mark.parametrize(
    "function",
    [
        one("QLinearReduceMean", "uint8[] float32[] uint8[] float32[] uint8[]", axes=[0]),
        one("GroupQueryAttention", "float32[2,3,8]", num_heads="many"),
    ],
    ids=lambda function: function.nodes[0].op_type,
)
def test_a_node_that_violates_its_operator_has_no_type(function: Function) -> None:
    assert infer_shapes(function).outputs == function.outputs


def test_contents_that_violate_their_operator_are_unknown() -> None:
    function = read("""(float x) => (float y, float z) <int64[1] low = {-9223372036854775807}, int64[1] one = {1},
        int64[1] high = {9223372036854775807}, int64 point = {3}, int64[1] zero = {0}> {
        y = Range(low, high, one)  z = Slice(point, zero, one, zero) }""")
    assert set(types(infer_shapes(without_outputs(function))).values()) <= {"int64[?]", "int64[...]", "int64[]", "None"}


def test_inferred_types_do_not_keep_the_memory_of_constants() -> None:
    weights = np.zeros((1000, 7), np.float32)
    bias = Constant(weights[0])
    types = {"x": tensor("float32[5,7]"), "bias": bias.type}
    assert inference.infer_node_types(node("Add", "x bias", "y"), types, {"bias": bias}, {"": 17}) == (types["x"],)
    memory = weakref.ref(weights)
    del weights, bias
    gc.collect()
    assert memory() is None


BINARY: dict[str, Any] = {"domain": ML, "coefficients": [1.0], "classlabels_ints": [0, 1]}
ENCODED = one("OneHotEncoder", "int64[?]", domain=ML, cats_int64s=[0, 1])
ENCODED = ENCODED.replace(inputs=(Value("i0", TensorType(DType.INT64)),))
BEYOND_ONNX = [
    *(row("LinearClassifier", f"float32[{n},1]", f"int64[{n}]", f"float32[{n},2]", **BINARY) for n in (4, "N", "?")),
    pytest.param(ENCODED, ["float32[...]"], id="OneHotEncoder of any rank"),
    pytest.param(
        one("LabelEncoder", "int64[N,3]", domain=ML, classes_strings=["a"]).replace(opsets={"": 20, ML: 1}),
        ["string[N,3]"],
        id="LabelEncoder of version 1",
    ),
]


@pytest.mark.parametrize(("function", "expected"), [*ROWS, *BEYOND_ONNX])
def test_types(function: Function, expected: list[str]) -> None:
    assert [str(value.type) for value in infer_shapes(function).outputs] == expected


DECLINED = frozenset({"BiasSplitGelu", "QLinearReduceMean"})
"""What this onnxruntime has no kernel for on the CPU."""


@pytest.mark.parametrize(("function", "expected"), ROWS)
def test_onnxruntime_says_nothing_else(function: Function, expected: list[str]) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    model = to_model(function).SerializeToString()
    if function.nodes[0].op_type in DECLINED:
        with pytest.raises(Exception, match="NOT_IMPLEMENTED"):  # onnxruntime's own classes
            onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
        return
    session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    for value, theirs in zip(infer_shapes(function).outputs, session.get_outputs(), strict=True):
        kind, _, inside = theirs.type.rstrip(")").partition("(")
        if kind != "tensor" or not isinstance(value.type, TensorType):
            continue
        assert value.type.dtype.text == {"float": "float32", "double": "float64"}.get(inside, inside)
        if value.type.shape is not None and theirs.shape:
            pairs = zip(theirs.shape, value.type.shape, strict=True)
            assert all(a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int))


TREE: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0], "nodes_values": [0.5, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
}  # fmt: skip
LEAVES = {"treeids": [0, 0], "nodeids": [1, 2], "ids": [0, 1], "weights": [1.0, 1.0]}


@pytest.mark.parametrize("rows", [4, "N"])
def test_trees_and_what_is_computed_of_them(rows: Any) -> None:
    """A Cast and a Reshape behind a classifier know what they get; so in XRT's own run of onnxruntime's numbers."""
    classes = {f"class_{name}": value for name, value in LEAVES.items()} | {"classlabels_int64s": [5, 6]}
    targets = {f"target_{name}": value for name, value in LEAVES.items()} | {"n_targets": 2}
    nodes = (
        node("TreeEnsembleClassifier", "x", "label scores", domain=ML, **TREE, **classes),
        node("TreeEnsembleRegressor", "x", "values", domain=ML, **TREE, **targets),
        *(node("Cast", "label", "cast", to=1), node("Concat", "scores values", "both", axis=1)),
    )
    function = graph({"x": f"float32[{rows},3]"}, dict.fromkeys(["label", "cast", "both"]), *nodes, ml=3)
    inferred = infer_shapes(function)
    assert [str(v.type) for v in inferred.outputs] == [f"int64[{rows}]", f"float32[{rows}]", f"float32[{rows},4]"]
    session = onnxruntime.InferenceSession(to_model(function).SerializeToString(), None, ["CPUExecutionProvider"])
    results = session.run(None, {"x": np.zeros((4, 3), np.float32)})
    assert [result.shape for result in results] == [(4,), (4,), (4, 4)]


@pytest.mark.parametrize("domain", OPERATOR_TYPES)
@pytest.mark.parametrize(
    "types", ["", "float32[]", "float32[?]", "float32[N,?]", "float32[2,3] float32[2,3]", "float32[2,0,4] " * 9]
)
def test_no_rule_fails_on_a_node_that_is_little_known(domain: str, types: str) -> None:
    results = [tensor(word) for word in types.split()]
    for op, rule in OPERATOR_TYPES[domain].items():
        little_known = node(op, " ".join(f"i{k}" for k in range(len(results))), "o", domain=domain)
        for operand_types in (results, [None] * len(results), [TensorType(type_.dtype) for type_ in results]):
            for type_ in rule(Operands(little_known, operand_types, 20)):
                assert type_ is None or str(type_)
