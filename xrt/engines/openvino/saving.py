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
from xrt.engines.openvino.requests import Compiled
from xrt.engines.openvino.values import tensor_over
from xrt.graph import DType

__all__ = ["exported", "imported"]


def exported(compiled: Compiled) -> memoryview:
    """Return a compiled model as `imported` reads it."""
    stream = compiled.model.export_model()
    size = len(stream.getbuffer())
    passed = [not may for may in compiled.fixed]
    text = json.dumps({"used": compiled.used, "passed": passed, "blob": size}).encode()
    stream.seek(size)
    stream.write(text + len(text).to_bytes(8, "little"))
    view: memoryview = stream.getbuffer()
    return view


def imported(data: memoryview, device: str, settings: Mapping[str, Any]) -> Compiled:
    """Return what `exported` wrote, whose checksum has been checked; ``data`` must live as long as it."""
    length = int.from_bytes(data[-8:], "little")
    header = json.loads(bytes(data[-8 - length : -8]))
    blob = np.frombuffer(data[: header["blob"]], np.uint8)
    model = core().import_model(tensor_over(blob, DType.UINT8), device, settings)
    return Compiled.of(model, tuple(header["used"]), header["passed"])
