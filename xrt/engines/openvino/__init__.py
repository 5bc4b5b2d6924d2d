"""The `openvino` engine: OpenVINO on the CPU. No other package imports OpenVINO.

OpenVINO's ONNX frontend converts a Function, with large constants passed by reference, and its CPU plugin compiles the result.
Each concurrent call uses a separate infer request. Values are computed in the types of the model unless a lower precision is
requested. OpenVINO's telemetry is disabled: see the module `library`.
"""

from xrt.engines.contract.registry import EngineDeclaration
from xrt.engines.openvino.engine import OpenVino

DECLARATION = EngineDeclaration(
    "openvino",
    rank=20,
    color="orange",
    description="OpenVINO, in float32 by default",
    libraries=("openvino",),
    environment=("OPENVINO_", "OV_"),
)

__all__ = ["OpenVino"]
