"""Copy values and Functions to memory that two processes share, and read them there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xrt.formats.onnx.messages import encode_data
from xrt.formats.protobuf import read_model, write_model
from xrt.graph import Constant, DType, Function
from xrt.processes.ipc import Block, SharedBuffer, read_block


def put_value(buffer: SharedBuffer, value: Any) -> Any:
    """Copy an array, a list, a map or None to shared memory. Returns a JSON record, from which `read_value` finds it."""
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return {"list": put_values(buffer, value)}
    if isinstance(value, dict):  # as pairs, because the keys may be numbers, and JSON objects have strings only
        return {"map": list(value.items())}
    array = np.asarray(value)
    if array.dtype.kind in "USO":
        elements = array.reshape(-1)
        texts = [x.decode("utf-8", "surrogateescape") if isinstance(x, bytes) else str(x) for x in elements]
        return {"shape": array.shape, "strings": texts}
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return {"shape": array.shape, "dtype": DType.from_array(array).text, "at": buffer.put(flat.data.cast("B"))}


def put_values(buffer: SharedBuffer, values: Sequence[Any]) -> list[Any]:
    return [put_value(buffer, value) for value in values]


def put_function(buffer: SharedBuffer, function: Function) -> Any:
    """Copy a Function to shared memory, each weight once. Returns the record for `read_function`."""
    weights: dict[int, str] = {}
    blocks: dict[str, Block] = {}

    def store(constant: Constant) -> str:
        # Constants that share an array are stored once.
        name = weights.setdefault(id(constant.array), f"weights:{len(weights)}")
        if name not in blocks:
            blocks[name] = buffer.put(encode_data(constant).cast("B"))
        return name

    model = write_model(function, store)
    return {"model": buffer.put(memoryview(model)), "weights": blocks}


def read_value(memory: memoryview, record: Any) -> Any:
    """Read the value that `put_value` described by a record. Arrays of numbers are views of the shared memory."""
    if record is None:
        return None
    if "list" in record:
        return read_values(memory, record["list"])
    if "map" in record:
        return dict(record["map"])
    if "strings" in record:
        return np.array(record["strings"], dtype=object).reshape(record["shape"])
    dtype = DType.parse(record["dtype"]).numpy
    return np.frombuffer(read_block(memory, record["at"]), dtype).reshape(record["shape"])


def read_values(memory: memoryview, record: Sequence[Any]) -> list[Any]:
    return [read_value(memory, item) for item in record]


def read_function(memory: memoryview, record: Any) -> Function:
    """Read the Function of a record. Its weights are views of the shared memory."""
    weights = {name: read_block(memory, block) for name, block in record["weights"].items()}
    return read_model(bytes(read_block(memory, record["model"])), weights.get)
