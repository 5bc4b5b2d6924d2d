"""Model-local functions, replaced by their nodes."""

from __future__ import annotations

from onnx import ModelProto, TensorProto, inliner

from xrt.errors import ModelError

__all__ = ["inline"]

_SMALL = 1024
"""Bytes up to which an initialiser goes through the inliner with its data."""


def inline(model: ModelProto) -> ModelProto:
    """Return the model without model-local functions; the model itself where it has none.

    The inliner works on a serialised copy, so large initialisers are left out of what it is given: they keep their names.
    Raises ModelError for a function that is recursive or that the inliner cannot bring to the model's opset.
    """
    if not model.functions:
        return model
    bare = ModelProto()
    bare.CopyFrom(model)
    del bare.graph.initializer[:]
    bare.graph.initializer.extend(_without_data(tensor) for tensor in model.graph.initializer)
    try:
        inlined = inliner.inline_local_functions(bare, convert_version=True)
    except Exception as error:  # the inliner raises whatever its C++ does; all of it is about this model
        raise ModelError(f"its model-local functions cannot be inlined: {error}") from error
    if inlined.functions:
        names = ", ".join(f"{f.domain}.{f.name}" for f in inlined.functions)
        raise ModelError(f"its model-local functions {names} cannot be inlined: onnx cannot bring them to the model's opset")
    del inlined.graph.initializer[:]
    inlined.graph.initializer.extend(model.graph.initializer)
    return inlined


def _without_data(tensor: TensorProto) -> TensorProto:
    if tensor.ByteSize() <= _SMALL:
        return tensor
    return TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
