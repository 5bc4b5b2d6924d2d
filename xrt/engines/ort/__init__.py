"""The `ort` engine: ONNX Runtime; and `tensorrt`, its TensorRT provider.

A Function goes in, an ONNX Runtime session over it comes out. What the library can take is asked of the library itself;
what it is known to get wrong is a table (`gaps`). It never hands a model with opsets newer than the library knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.engines.contract.declaration import EngineDeclaration
from xrt.engines.ort.telemetry import disable_telemetry
from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.engines.ort.engine import Ort as Ort
    from xrt.engines.ort.tensorrt import TensorRT as TensorRT

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

disable_telemetry()  # before any module of the package imports the library

_MODULES = {"Ort": "xrt.engines.ort.engine", "TensorRT": "xrt.engines.ort.tensorrt"}

__all__ = [*_MODULES]
__getattr__, __dir__ = load_lazily(__name__, _MODULES)
