"""The `openvino` engine: OpenVINO on the CPU.

A Function goes in through OpenVINO's ONNX frontend, its large constants by reference; out comes a compiled model on which
each concurrent call has an infer request of its own. It computes in the model's own types unless a lower precision is asked
for, and nothing that it does reports to anybody (`library`). This package is the only home of OpenVINO.
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
