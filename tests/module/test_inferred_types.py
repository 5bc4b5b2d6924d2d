"""Types are verified again once they are inferred: what is inconsistent is refused, wherever it stands."""

from __future__ import annotations

import pytest
from onnx import parser

from xrt import XRTModule
from xrt.errors import ModelError
from xrt.formats.onnx import load

MIXED = "s = ReduceSum(k)  {result} = Div(e, s)"
TOLD = "node {result!r} (Div): needs inputs 'A' and 'B' of the same type; 'e' is tensor(float) and 's' is tensor(int64)"
OTHER = "else_branch = f () => (float[3] b) { b = Exp(x) }>"

MODELS = {
    "the graph": ("e = Exp(x)  " + MIXED.format(result="y"), TOLD.format(result="y")),
    "a branch": (
        "y = If(p) <then_branch = t () => (float[3] a) { e = Exp(x)  " + MIXED.format(result="a") + " }, " + OTHER,
        "in body 't' of node 'y': " + TOLD.format(result="a"),
    ),
    "a branch that reads from outside": (
        "e = Exp(x)  s = ReduceSum(k)  y = If(p) <then_branch = t () => (float[3] a) { a = Div(e, s) }, " + OTHER,
        "in body 't' of node 'y': " + TOLD.format(result="a"),
    ),
    "branches of two types": (
        "y = If(p) <then_branch = t () => (a) { a = Exp(x) }, else_branch = f () => (b) { b = Shape(x) }>",
        "node 'y' (If): the branches must give one type as output 1; 'a' is float32[3] and 'b' is int64[1]",
    ),
}


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize(("text", "message"), MODELS.values(), ids=MODELS)
def test_a_model_of_inconsistent_types_is_refused(text: str, message: str, fold: bool) -> None:
    head = '<ir_version: 8, opset_import: ["": 13]> g (float[3] x, int64[3] k, bool p) => (float[3] y)'
    model = parser.parse_model(f"{head} {{ {text} }}")
    with pytest.raises(ModelError) as caught:
        XRTModule(load(model), engine="toy", fold_constants=fold)
    assert str(caught.value) == f"function 'g' is not valid: {message}"
