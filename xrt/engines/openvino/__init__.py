"""The `openvino` engine: OpenVINO on the CPU. No other package imports OpenVINO.

OpenVINO's ONNX frontend converts a Function, with large constants passed by reference, and its CPU plugin compiles the result.
Each concurrent call uses a separate infer request. Values are computed in the types of the model unless a reduced precision is
requested.

``import openvino`` imports its model converter, which sends an event to a web analytics service and writes files to the home
directory (``openvino/tools/ovc/__init__.py``, through ``openvino-telemetry``). Hiding that package during the import makes the
converter use its silent stub. If other code has imported OpenVINO earlier, nothing changes. The frontend and the runtime report
only to a ``TelemetryExtension``, which XRT does not add.
"""

from xrt.engines.contract.registry import EngineDeclaration
from xrt.engines.toolkit.libraries import hide_module

with hide_module("openvino_telemetry", even_imported=True):  # NNCF imports it, too
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
