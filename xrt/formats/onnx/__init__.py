"""ONNX in and out.

A file, bytes or a ModelProto comes in and a Function goes out, or the other way round; engines get models at the lowest
opset and IR version at which each operator means the same. Nothing here runs an operator or judges whether a node obeys its
schema (`xrt.graph.verify` does); only what breaks the structure of a model is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.formats.onnx.files import load as load
    from xrt.formats.onnx.operator_definitions import expand as expand
    from xrt.formats.onnx.opsets import external_weights as external_weights
    from xrt.formats.onnx.opsets import externalize_weights as externalize_weights
    from xrt.formats.onnx.opsets import lowest_model as lowest_model
    from xrt.formats.onnx.opsets import lowest_opset as lowest_opset
    from xrt.formats.onnx.opsets import why_not_downgradable as why_not_downgradable
    from xrt.formats.onnx.saving import save as save
    from xrt.formats.onnx.saving import save_case as save_case
    from xrt.formats.onnx.writing import to_model as to_model

_MODULES = {
    "expand": "xrt.formats.onnx.operator_definitions",
    "external_weights": "xrt.formats.onnx.opsets",
    "externalize_weights": "xrt.formats.onnx.opsets",
    "load": "xrt.formats.onnx.files",
    "lowest_model": "xrt.formats.onnx.opsets",
    "lowest_opset": "xrt.formats.onnx.opsets",
    "save": "xrt.formats.onnx.saving",
    "save_case": "xrt.formats.onnx.saving",
    "to_model": "xrt.formats.onnx.writing",
    "why_not_downgradable": "xrt.formats.onnx.opsets",
}

__all__ = [*_MODULES]
__getattr__, __dir__ = load_lazily(__name__, _MODULES)
