"""The model of `memory.py`: an embedding, then layers of product, addition and tanh, in either form of the file.

A file of its own, because a process that runs the engine alone must not import `onnx` where the engine does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

ROWS = 32
"""Rows of the activations; few, so that their memory is negligible beside the weights."""


def choose_width(megabytes: int) -> int:
    return 2048 if megabytes >= 200 else 256


def make_weights(megabytes: int) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield the weights one by one: a quarter in the embedding, the rest in the layers."""
    width = choose_width(megabytes)
    block = np.random.default_rng(0).standard_normal((width, width)).astype(np.float32) / np.float32(width**0.5)
    blocks = int(megabytes * 1e6) // block.nbytes + 1
    yield "table", np.concatenate([block] * max(1, blocks // 4))
    for layer in range(blocks - max(1, blocks // 4)):
        yield f"w{layer}", block * np.float32(1 + layer / 1000)
        yield f"b{layer}", np.full(width, layer / 1000, np.float32)


def make_nodes(layers: int) -> Iterator[Any]:
    yield helper.make_node("Gather", ["table", "ids"], ["x0"])
    for i in range(layers):
        yield helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"m{i}"])
        yield helper.make_node("Add", [f"m{i}", f"b{i}"], [f"a{i}"])
        yield helper.make_node("Tanh", [f"a{i}"], [f"x{i + 1}"])


def write_model(path: Path, megabytes: int, form: str) -> None:
    """Write the model, one weight in memory at a time."""
    names = [name for name, _ in list_shapes(megabytes)]
    layers, width = sum(name.startswith("w") for name in names), choose_width(megabytes)
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [ROWS])
    out = helper.make_tensor_value_info(f"x{layers}", TensorProto.FLOAT, [ROWS, width])
    graph = helper.make_graph(list(make_nodes(layers)), "memory", [ids], [out])
    if form == "inline":
        _write_inline(path, graph, megabytes)
    else:
        _write_external(path, graph, megabytes)


def list_shapes(megabytes: int) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, array.shape) for name, array in make_weights(megabytes)]


def _make_model(graph: Any) -> ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _write_external(path: Path, graph: Any, megabytes: int) -> None:
    with path.with_name(f"{path.name}.data").open("wb") as data:
        for name, array in make_weights(megabytes):
            data.write(bytes(-data.tell() % 4096))
            tensor = graph.initializer.add(name=name, data_type=TensorProto.FLOAT, dims=array.shape)
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", f"{path.name}.data"), ("offset", data.tell()), ("length", array.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            data.write(array.data)
    path.write_bytes(_make_model(graph).SerializeToString())


def _write_inline(path: Path, graph: Any, megabytes: int) -> None:
    """Write the model with inline weights. The messages are encoded here, because protobuf cannot write more than 2 GB."""
    model = _make_model(graph)
    headers = [_encode_header(name, shape) for name, shape in list_shapes(megabytes)]
    body = model.graph.SerializeToString()
    model.ClearField("graph")
    size = len(body) + sum(len(header) + nbytes for header, nbytes in headers)
    with path.open("wb") as file:
        file.write(model.SerializeToString() + _encode_field_start(ModelProto.GRAPH_FIELD_NUMBER, size) + body)
        for (header, _), (_, array) in zip(headers, make_weights(megabytes), strict=True):
            file.write(header)
            file.write(array.data)


def _encode_header(name: str, shape: tuple[int, ...]) -> tuple[bytes, int]:
    """Encode the bytes before a weight's data in the graph; return them and the size of the data in bytes."""
    nbytes = 4 * int(np.prod(shape))
    inside = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape).SerializeToString() + _encode_field_start(9, nbytes)
    return _encode_field_start(5, len(inside) + nbytes) + inside, nbytes


def _encode_field_start(number: int, length: int) -> bytes:
    """Encode the tag and length of a protobuf field."""
    out = bytearray([number << 3 | 2])
    while length >= 0x80:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*out, length])
