"""The `openvino` engine: OpenVINO on the CPU. No other package imports OpenVINO.

A Function is exported to OpenVINO's ONNX frontend, with large constants passed by reference, and compiled; each concurrent call
uses a separate infer request. It computes in the types of the model unless a lower precision is requested. Telemetry is disabled
(`library`).
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
