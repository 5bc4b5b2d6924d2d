"""ONNX in and out.

A file, bytes or a ModelProto comes in and a Function goes out, or the other way round; engines get models at the lowest
opset and IR version at which each operator means the same. Nothing here runs an operator or judges whether a node obeys its
schema (`xrt.graph.verify` does); only what breaks the structure of a model is refused.
"""

from xrt.formats.onnx.cases import save_case
from xrt.formats.onnx.expansion import expanded
from xrt.formats.onnx.files import load
from xrt.formats.onnx.lowering import external_weights, lowest_model, lowest_opset, why_not_lowered, with_weights_outside
from xrt.formats.onnx.raising import raised, why_not_raised
from xrt.formats.onnx.saving import save
from xrt.formats.onnx.writing import to_model

__all__ = [
    "expanded",
    "external_weights",
    "load",
    "lowest_model",
    "lowest_opset",
    "raised",
    "save",
    "save_case",
    "to_model",
    "why_not_lowered",
    "why_not_raised",
    "with_weights_outside",
]
