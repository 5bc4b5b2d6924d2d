"""Conversion between ONNX models and Functions.

`load` reads a file, bytes or a ModelProto. `save` writes a file, `to_model` a ModelProto. `to_lowest_model` writes a model for an
engine, at the lowest opset and IR version that preserve every operator's semantics. Only structural errors are detected here;
`xrt.graph.verify` checks nodes against their schemas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.formats.onnx.files import load as load
    from xrt.formats.onnx.opsets import (
        collect_external_weights as collect_external_weights,
        expand_definition as expand_definition,
        externalize_weights as externalize_weights,
        find_lowest_opset as find_lowest_opset,
        to_lowest_model as to_lowest_model,
        upgrade_opset as upgrade_opset,
        why_not_downgradable as why_not_downgradable,
        why_not_upgradable as why_not_upgradable,
    )
    from xrt.formats.onnx.writing import save as save, save_case as save_case, to_model as to_model

__all__, __getattr__, __dir__ = load_lazily(__name__)
