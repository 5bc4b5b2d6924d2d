"""Types of com.microsoft and ai.onnx.ml: what a definition says of dtype, rank and extents; onnxruntime's word is the witness."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from xrt.formats.onnx import to_model
from xrt.graph import Function, Node, TensorType, Value, read_attributes
from xrt.passes import infer_shapes
from xrt.passes.operator_types import OPERATOR_TYPES, Operands
from xrt.testing.corpus.entry import tensor

MS, ML = "com.microsoft", "ai.onnx.ml"


def one(op: str, inputs: str, domain: str = MS, version: int = 20, outputs: int = 1, **attributes: Any) -> Function:
    """Return a Function of one node; inputs are types by spaces, ``-`` for one that is left out."""
    types = [None if word == "-" else tensor(word) for word in inputs.split()]
    names = ["" if type_ is None else f"i{k}" for k, type_ in enumerate(types)]
    made = tuple(f"o{k}" for k in range(outputs))
    node = Node(op, tuple(names), made, read_attributes(attributes), domain)
    values = tuple(Value(name, type_) for name, type_ in zip(names, types, strict=True) if type_ is not None)
    return Function(values, tuple(map(Value, made)), (node,), opsets={"": version, MS: 1, ML: 3})


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


@pytest.mark.parametrize(("function", "expected"), ROWS)
def test_types(function: Function, expected: list[str]) -> None:
    assert [str(value.type) for value in infer_shapes(function).outputs] == expected


_KINDS = {"float": "float32", "double": "float64"}


DECLINED = frozenset({"BiasSplitGelu", "QLinearReduceMean"})
"""What this onnxruntime has no kernel for on the CPU."""


@pytest.mark.parametrize(("function", "expected"), ROWS)
def test_onnxruntime_says_nothing_else(function: Function, expected: list[str]) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    model = to_model(function).SerializeToString()
    (node,) = function.nodes
    if node.op_type in DECLINED:
        with pytest.raises(Exception, match="NOT_IMPLEMENTED"):  # onnxruntime's own classes
            onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
        return
    session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    for value, theirs in zip(infer_shapes(function).outputs, session.get_outputs(), strict=True):
        kind, _, inside = theirs.type.partition("(")
        if kind != "tensor" or not isinstance(value.type, TensorType):
            continue
        assert value.type.dtype.text == _KINDS.get(inside.rstrip(")"), inside.rstrip(")"))
        if value.type.shape is not None and theirs.shape:
            assert len(theirs.shape) == len(value.type.shape)
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
    classes = {f"class_{name}": value for name, value in LEAVES.items()}
    targets = {f"target_{name}": value for name, value in LEAVES.items()}
    x = Value("x", TensorType(tensor("float32[1]").dtype, (rows, 3)))
    nodes = (
        Node(
            "TreeEnsembleClassifier",
            ("x",),
            ("label", "scores"),
            read_attributes(TREE | classes | {"classlabels_int64s": [5, 6]}),
            ML,
        ),
        Node("TreeEnsembleRegressor", ("x",), ("values",), read_attributes(TREE | targets | {"n_targets": 2}), ML),
        Node("Cast", ("label",), ("cast",), read_attributes({"to": 1})),
        Node("Concat", ("scores", "values"), ("both",), read_attributes({"axis": 1})),
    )
    function = Function((x,), tuple(map(Value, ("label", "cast", "both"))), nodes, opsets={"": 18, ML: 3})
    inferred = infer_shapes(function)
    assert [str(v.type) for v in inferred.outputs] == [f"int64[{rows}]", f"float32[{rows}]", f"float32[{rows},4]"]
    session = onnxruntime.InferenceSession(to_model(function).SerializeToString(), None, ["CPUExecutionProvider"])
    results = session.run(None, {"x": np.zeros((4, 3), np.float32)})
    assert [result.shape for result in results] == [(4,), (4,), (4, 4)]


def test_what_is_behind_such_an_operator_is_inferred() -> None:
    """ReduceMean behind MatMulNBits, whose rank was unknown."""
    head = one("MatMulNBits", "float32[N,3,64] uint8[8,2,16] float32[16]", K=64, N=8, bits=4, block_size=32)
    mean = Node("ReduceMean", ("o0",), ("y",), read_attributes({"keepdims": 0, "axes": [-1]}))
    function = head.replace(nodes=(*head.nodes, mean), outputs=(Value("y"),), opsets={"": 17, MS: 1})
    assert str(infer_shapes(function).outputs[0].type) == "float32[N,3]"


@pytest.mark.parametrize("domain", OPERATOR_TYPES)
@pytest.mark.parametrize(
    "types", ["", "float32[]", "float32[?]", "float32[N,?]", "float32[2,3] float32[2,3]", "float32[2,0,4] " * 9]
)
def test_no_rule_fails_on_a_node_that_is_little_known(domain: str, types: str) -> None:
    known = [tensor(word) for word in types.split()]
    for op, rule in OPERATOR_TYPES[domain].items():
        node = Node(op, tuple(f"i{k}" for k in range(len(known))), ("o",), domain=domain)
        for given in (known, [None] * len(known), [TensorType(type_.dtype) for type_ in known]):
            for type_ in rule(Operands(node, given, {}, 20)):
                assert type_ is None or str(type_)
