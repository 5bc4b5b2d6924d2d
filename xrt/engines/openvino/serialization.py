"""A compiled model as bytes: what the library exports, and behind it what XRT knows of its inputs and outputs.

blob       as OpenVINO exports it: its optimised graph and all constants
header     JSON: which of the Function's inputs the model has, which outputs it only passes on, the length of the blob, limits of
           inputs, and which outputs may be written over an input
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


def export_model(compiled: CompiledModel, limits: Mapping[int, int], inplace: Mapping[int, int]) -> memoryview:
    """Return a compiled model as `load_model` reads it.

    ``limits`` are the largest magnitudes of inputs by their places, ``inplace`` the places of outputs that may be written over an
    input, by its place.
    """
    stream = compiled.model.export_model()
    size = len(stream.getbuffer())
    header = {"used": compiled.used, "passed": compiled.passed, "blob": size, "limits": list(limits.items())}
    text = json.dumps({**header, "inplace": list(inplace.items())}).encode()
    stream.seek(size)
    stream.write(text + len(text).to_bytes(8, "little"))
    view: memoryview = stream.getbuffer()
    return view


def load_model(
    data: memoryview, device: str, settings: Mapping[str, Any]
) -> tuple[CompiledModel, dict[int, int], dict[int, int]]:
    """Return what `export_model` wrote, whose checksum has been checked; ``data`` must live as long as it."""
    length = int.from_bytes(data[-8:], "little")
    header = json.loads(bytes(data[-8 - length : -8]))
    blob = np.frombuffer(data[: header["blob"]], np.uint8)
    model = core().import_model(to_tensor(blob, DType.UINT8), device, settings)
    compiled = CompiledModel.of(model, tuple(header["used"]), header["passed"])
    return compiled, dict(header["limits"]), dict(header["inplace"])
