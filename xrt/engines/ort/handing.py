"""A Function as ONNX Runtime takes it: a small model, and the large constants beside it, by reference.

The model says that the bytes of each large constant lie in an external file, and the library is given the file's content:
the constant's own memory. Told to use such content directly, it copies none of it, reads it where it folds constants
(which ``add_initializer`` does not allow: the optimiser then looks for the file), and writes no file. Weights are thus
held once, apart from what the library packs for its products, and protobuf's limit of 2 GB does not apply.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from xrt.engines.ort.library import newest_ir, newest_opset
from xrt.engines.ort.session import Bytes, Handed
from xrt.formats.onnx import external_weights, lowest_model, with_weights_outside
from xrt.graph import Function

__all__ = ["bytes_of", "hand_over"]


_OPSET_OF_CASTS = 13
"""Where the library casts float16 to float32 and back, its Casts are of this form; it refuses them in a model below opset 6."""


def hand_over(function: Function) -> Handed:
    """Return the Function at the lowest opset and IR version at which it means the same.

    Raises ModelError when that is newer than the library knows, and cannot be converted.
    """
    function = with_weights_outside(function)  # the library checks bodies by themselves, and then looks for a file
    model = lowest_model(function, newest_opset(), newest_ir(), weights="external", least_opset=_OPSET_OF_CASTS)
    for value in model.graph.value_info:
        if value.type.HasField("tensor_type"):
            # The library infers shapes itself. Where it is given one it compares it with each result of each call: 40 ns a node.
            value.type.tensor_type.ClearField("shape")
    arrays = external_weights(function)
    files = {name: f"constant_{index}" for index, name in enumerate(arrays)}
    for tensor in model.graph.initializer:
        if tensor.name in files:
            _name_file(tensor, files[tensor.name])
    contents = {files[name]: bytes_of(array) for name, array in arrays.items()}
    own = [function.constants[name].array for name in arrays]
    copied = sum(c.nbytes for c, array in zip(contents.values(), own, strict=True) if not np.may_share_memory(c, array))
    return Handed(model.SerializeToString(), contents, copied)


def _name_file(tensor: Any, file: str) -> None:
    """Give an external tensor a file of its own: constants lie in memory each for itself."""
    for entry in tensor.external_data:
        if entry.key == "location":
            entry.value = file


def bytes_of(array: np.ndarray[Any, Any]) -> Bytes:
    """Return the array's memory; an array that does not lie in order, or is not aligned, is copied."""
    return np.require(array, requirements=["C", "A"]).reshape(-1).view(np.uint8)
