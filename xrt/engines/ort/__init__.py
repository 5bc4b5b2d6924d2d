"""The `ort` engine: ONNX Runtime; and `tensorrt`, its TensorRT provider.

A Function goes in, an ONNX Runtime session over it comes out. What the library can take is asked of the library itself;
what it is known to get wrong is a table (`gaps`). It never hands a model with opsets newer than the library knows.
"""

from xrt.engines.ort.telemetry import disable_telemetry

disable_telemetry()  # before any module of the package imports the library

from xrt.engines.ort.engine import Ort  # noqa: E402
from xrt.engines.ort.tensorrt import TensorRT  # noqa: E402

__all__ = ["Ort", "TensorRT"]
