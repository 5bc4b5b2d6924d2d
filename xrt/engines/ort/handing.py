"""A Function as ONNX Runtime takes it: a small model, and the large constants beside it, by reference.

The library takes a constant by reference (``add_initializer``) only where the model says that its bytes lie in an
external file that exists, below a folder that it is told; it never reads that file. This module's own file serves, so
nothing is written anywhere. Weights are thus held once, and the 2 GB limit of protobuf does not apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from onnxruntime import OrtValue

from xrt.engines.ort.library import newest_ir, newest_opset
from xrt.engines.ort.values import by_reference
from xrt.formats.onnx import external_weights, lowest_model
from xrt.graph import Function

__all__ = ["FOLDER", "Handed", "hand_over"]

FOLDER = str(Path(__file__).parent)
"""The folder of the file that stands in for the constants' bytes."""
_STAND_IN = Path(__file__).name


@dataclass(frozen=True, slots=True)
class Handed:
    """What a session is made from."""

    model: bytes
    constants: Mapping[str, OrtValue]
    """Those that the model names but does not hold. They must live as long as the session."""


def hand_over(function: Function) -> Handed:
    """Return the Function at the lowest opset and IR version at which it means the same.

    Raises ModelError when that is newer than the library knows, and cannot be converted.
    """
    model = lowest_model(function, newest_opset(), newest_ir(), weights="external", location=_STAND_IN)
    large = external_weights(function)
    constants = {name: by_reference(array, function.constants[name].dtype) for name, array in large.items()}
    return Handed(model.SerializeToString(), constants)
