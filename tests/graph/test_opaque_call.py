"""A call of an opaque operator is read back from its node as it was."""

from __future__ import annotations

import math
from typing import Any

import pytest

from xrt.errors import ModelError
from xrt.graph import Node, read_attributes
from xrt.graph.node import ATEN_DOMAIN, OpaqueCall, Tagged

ARGUMENTS: list[Any] = [
    None,
    True,
    3,
    0.1,
    "mean",
    [1, [2.5, None]],
    Tagged("tensor", 0),
    [Tagged("tensor", 1), Tagged("number", 2)],
    Tagged("dtype", "float32"),
]


def node_of(call: OpaqueCall) -> Node:
    return Node(call.op_type, ("x",), ("y",), read_attributes(call.attributes), ATEN_DOMAIN, "y")


@pytest.mark.parametrize("argument", ARGUMENTS, ids=repr)
def test_a_call_is_read_back(argument: Any) -> None:
    call = OpaqueCall("mylib::blur.Tensor", (argument, 1), {"b": argument, "a": None}, "it has no ONNX form")
    assert OpaqueCall.read(node_of(call)) == call
    assert call.op_type == "mylib_blur_Tensor"


def test_resolve_changes_what_is_tagged() -> None:
    call = OpaqueCall("aten::add.Scalar", (Tagged("tensor", 0), [math.inf, Tagged("number", 1)]), {"c": 1 + 2j})
    args, kwargs = OpaqueCall.read(node_of(call)).resolve(lambda tagged: (tagged.kind, tagged.value))
    assert args == [("tensor", 0), [math.inf, ("number", 1)]]
    assert kwargs == {"c": 1 + 2j}


DEEP = f'{{"args": {"[" * 100_000}{"]" * 100_000}, "kwargs": {{}}}}'


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"args": [{"file": 1}], "kwargs": {}}', '{"args": [{}], "kwargs": {}}', pytest.param(DEEP, id="deep")],
)
def test_a_node_that_is_no_call_is_refused(text: str) -> None:
    node = Node("f", (), ("y",), read_attributes({"operator": "aten::f.default", "call": text}), ATEN_DOMAIN, "y")
    with pytest.raises(ModelError, match=r"node 'y' \(aten.f\) does not describe a call of an operator"):
        OpaqueCall.read(node)


def test_an_argument_without_a_form_is_refused() -> None:
    with pytest.raises(ModelError, match="an argument of an opaque operator is a object"):
        _ = OpaqueCall("aten::f.default", (object(),)).attributes
