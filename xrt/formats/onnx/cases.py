"""A function with inputs and what must come out, laid out as the test cases of the onnx package are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import SequenceProto, TensorProto

from xrt.errors import ModelError
from xrt.formats.onnx.saving import save
from xrt.formats.onnx.tensors import write_tensor
from xrt.graph import Constant, Function, Value

__all__ = ["save_case"]


def save_case(function: Function, inputs: Sequence[Any], outputs: Sequence[Any], folder: str | os.PathLike[str]) -> None:
    """Write ``model.onnx``, and ``test_data_set_0`` with one file per input and output, into a folder; it is made if need be.

    ONNX's own runner and those of the engines' projects read that layout. Raises ModelError where it cannot be written, or
    for a value that is neither a tensor nor a list of tensors.
    """
    folder = Path(folder)
    data = folder / "test_data_set_0"
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"cannot make the folder {os.fspath(data)!r}: {error.strerror}") from error
    save(function, folder / "model.onnx")
    for what, values, given in (("input", function.inputs, inputs), ("output", function.outputs, outputs)):
        for index, (value, content) in enumerate(zip(values, given, strict=True)):
            (data / f"{what}_{index}.pb").write_bytes(_message(value, content).SerializeToString())


def _message(value: Value, content: Any) -> TensorProto | SequenceProto:
    if isinstance(content, np.ndarray):
        return write_tensor(Constant(content), value.name)
    if isinstance(content, list) and all(isinstance(item, np.ndarray) for item in content):
        tensors = [write_tensor(Constant(item)) for item in content]
        return SequenceProto(name=value.name, elem_type=SequenceProto.TENSOR, tensor_values=tensors)
    raise ModelError(f"{value.name!r} is a {type(content).__name__}; a case holds tensors and lists of tensors")
