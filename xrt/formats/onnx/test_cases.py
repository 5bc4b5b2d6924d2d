"""A function with inputs and what must come out, laid out as the test cases of the onnx package are."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import MapProto, SequenceProto, TensorProto

from xrt.errors import ModelError
from xrt.formats.onnx.saving import save
from xrt.formats.onnx.tensors import write_tensor
from xrt.graph import Constant, Function, Value

__all__ = ["save_case"]


def save_case(function: Function, inputs: Sequence[Any], outputs: Sequence[Any], folder: str | os.PathLike[str]) -> None:
    """Write ``model.onnx``, and ``test_data_set_0`` with one file per input and output, into a folder; it is made if need be.

    ONNX's own runner and those of the engines' projects read that layout. Raises ModelError where it cannot be written, or
    for a value that is no tensor, no map of numbers, and no list of one of these.
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


def _message(value: Value, content: Any) -> TensorProto | SequenceProto | MapProto:
    if isinstance(content, np.ndarray):
        return write_tensor(Constant(content), value.name)
    if isinstance(content, list) and all(isinstance(item, np.ndarray) for item in content):
        return _tensors(value.name, content)
    if isinstance(content, dict):
        return _map(value.name, content)
    if isinstance(content, list) and all(isinstance(item, dict) for item in content):
        return SequenceProto(name=value.name, elem_type=SequenceProto.MAP, map_values=[_map("", item) for item in content])
    raise ModelError(f"{value.name!r} is a {type(content).__name__}; a case holds tensors, maps, and lists of one of these")


def _tensors(name: str, content: Sequence[Any]) -> SequenceProto:
    tensors = [write_tensor(Constant(item)) for item in content]
    return SequenceProto(name=name, elem_type=SequenceProto.TENSOR, tensor_values=tensors)


def _map(name: str, content: Mapping[Any, Any]) -> MapProto:
    """Return a map; its floats, which are Python's own, are float32 as in ONNX's operators."""
    values = [np.array(x, np.float32 if isinstance(x, float) else None) for x in content.values()]
    values = [x.astype(object) if x.dtype.kind == "U" else x for x in values]
    if any(isinstance(key, str) for key in content):
        texts = [str(key).encode() for key in content]
        return MapProto(name=name, key_type=TensorProto.STRING, string_keys=texts, values=_tensors("", values))
    return MapProto(name=name, key_type=TensorProto.INT64, keys=list(content), values=_tensors("", values))
