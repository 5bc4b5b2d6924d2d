"""The small models that the onnx package stores, with their inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, ValueInfoProto, backend, numpy_helper

DATA = Path(next(iter(backend.__path__))) / "test" / "data"


def value(path: Path, info: ValueInfoProto) -> Any:
    """Return a stored tensor or sequence as engines take it."""
    if info.type.HasField("sequence_type"):
        return [tidy(item) for item in numpy_helper.to_list(onnx.SequenceProto.FromString(path.read_bytes()))]
    return tidy(numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes())))


def tidy(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype.kind not in "OUS":
        return array
    text = np.empty(array.shape, dtype=object)
    text.reshape(-1)[:] = [item.decode() if isinstance(item, bytes) else str(item) for item in array.flat]
    return text


def data_sets(path: Path, model: ModelProto) -> Iterator[tuple[list[Any], list[Any]]]:
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [info for info in model.graph.input if info.name not in weights]
    for folder in sorted(path.parent.glob("test_data_set_*")):
        yield (
            [value(folder / f"input_{i}.pb", info) for i, info in enumerate(inputs)],
            [value(folder / f"output_{i}.pb", info) for i, info in enumerate(model.graph.output)],
        )
