"""A Function as ONNX Runtime takes it: a small model, and the large constants by reference.

In the model, the bytes of each large constant are in an external file, and the library gets the file's content: the constant's
own memory. With the option to use such content directly, it copies none of it, reads it where it folds constants (which
``add_initializer`` does not allow: the optimiser then looks for the file), and writes no file. Weights are thus in memory once,
except for what the library packs for its products, and protobuf's limit of 2 GB does not apply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.ort.library import newest_ir, newest_opset
from xrt.engines.ort.session import ExportedModel, get_tensor_bytes
from xrt.formats.onnx import external_weights, externalize_weights, lowest_model

if TYPE_CHECKING:
    from xrt.graph import Function

__all__ = ["export_model", "get_tensor_bytes"]


_OPSET_OF_CASTS = 13
"""Where the library casts float16 to float32 and back, its Casts are of this form; it refuses them in a model below opset 6."""


def export_model(function: Function) -> ExportedModel:
    """Return the Function at the lowest opset and IR version at which it means the same.

    Raises ModelError when that is newer than the library knows, and cannot be converted.
    """
    function = externalize_weights(function)  # the library checks bodies by themselves, and then looks for a file
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
    contents = {files[name]: get_tensor_bytes(array) for name, array in arrays.items()}
    own = [function.constants[name].array for name in arrays]
    copied = sum(c.nbytes for c, array in zip(contents.values(), own, strict=True) if not np.may_share_memory(c, array))
    return ExportedModel(model.SerializeToString(), contents, copied)


def _name_file(tensor: Any, file: str) -> None:
    """Give an external tensor a file of its own: constants lie in memory each for itself."""
    for entry in tensor.external_data:
        if entry.key == "location":
            entry.value = file
