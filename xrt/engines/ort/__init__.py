"""The `ort` engine: ONNX Runtime; and `tensorrt`, its TensorRT provider.

A Function goes in, an ONNX Runtime session over it comes out. What the library can take is asked of the library itself;
what it is known to get wrong is a table (`tables`). It never hands a model with opsets newer than the library knows.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from xrt.engines.contract.registry import EngineDeclaration
from xrt.lazy_names import list_names, load_lazily

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

# The library reports to its makers unless this is set before it is imported; `disable_telemetry_events()` comes too late.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_MODULES = {
    "xrt.engines.ort.engine": ("Ort", "TensorRT"),
}

__all__ = [*list_names(_MODULES)]
__getattr__, __dir__ = load_lazily(__name__, _MODULES)
