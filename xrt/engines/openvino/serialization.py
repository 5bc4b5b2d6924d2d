"""A compiled model as bytes: what the library exports, and behind it what XRT knows of its inputs and outputs.

blob       as OpenVINO exports it: its optimised graph and all constants
header     JSON: which of the Function's inputs the model has, which outputs it only passes on, the length of the blob
8 bytes    length of the header
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from xrt.engines.openvino.library import core
from xrt.engines.openvino.requests import CompiledModel
from xrt.engines.openvino.values import to_tensor
from xrt.graph import DType

__all__ = ["export_model", "load_model"]


def export_model(compiled: CompiledModel, limits: Mapping[int, int]) -> memoryview:
    """Return a compiled model, and the largest magnitudes of its inputs by their places, as `load_model` reads them."""
    stream = compiled.model.export_model()
    size = len(stream.getbuffer())
    passed = [not may for may in compiled.fixed]
    text = json.dumps({"used": compiled.used, "passed": passed, "blob": size, "limits": list(limits.items())}).encode()
    stream.seek(size)
    stream.write(text + len(text).to_bytes(8, "little"))
    view: memoryview = stream.getbuffer()
    return view


def load_model(data: memoryview, device: str, settings: Mapping[str, Any]) -> tuple[CompiledModel, dict[int, int]]:
    """Return what `export_model` wrote, whose checksum has been checked; ``data`` must live as long as it."""
    length = int.from_bytes(data[-8:], "little")
    header = json.loads(bytes(data[-8 - length : -8]))
    blob = np.frombuffer(data[: header["blob"]], np.uint8)
    model = core().import_model(to_tensor(blob, DType.UINT8), device, settings)
    return CompiledModel.of(model, tuple(header["used"]), header["passed"]), dict(header["limits"])
