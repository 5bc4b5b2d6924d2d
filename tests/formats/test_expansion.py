"""Operators replaced by what ONNX defines them by."""

from __future__ import annotations

from xrt.formats import text
from xrt.formats.onnx import expand


def test_a_definition_has_the_defaults_of_attributes_that_are_left_out() -> None:
    swish = "function main(x: float32[2]) -> (y: float32[2]) {\n  opset ai.onnx 24\n  y = Swish(x)%s\n}"
    for given, alpha in (("", 1.0), (" {alpha = 2.5}", 2.5)):
        definition = expand(text.parse(swish % given))
        assert definition is not None
        (constant,) = (node for node in definition.nodes if node.op_type == "Constant")
        assert constant.attr("value_float") == alpha
