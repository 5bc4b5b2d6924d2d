"""The engines `ort` (ONNX Runtime) and `tensorrt` (its TensorRT provider).

A Function is exported as an ONNX model that the installed library can read, and opened as a session. A node is supported if the
library accepts it and no known defect (`tables`) affects it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from xrt.engines.contract.registry import EngineDeclaration
from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.engines.ort.engine import Ort as Ort, TensorRT as TensorRT

DECLARATION = EngineDeclaration(
    "ort",
    rank=10,
    color="blue",
    description="ONNX Runtime",
    libraries=("onnxruntime",),
    environment=("ORT_",),
)
TENSORRT = EngineDeclaration(
    "tensorrt",
    description="TensorRT, through ONNX Runtime's provider",
    libraries=("onnxruntime-gpu",),
    aliases=("trt",),
)

# This must be set before the import of the library; `disable_telemetry_events()` would be too late.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__all__, __getattr__, __dir__ = load_lazily(__name__)
