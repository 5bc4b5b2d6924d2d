"""Where the weights of a model file lie: so that a later process reads one that it needs, and not the model."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xrt.errors import ModelError
from xrt.formats.file_mapping import map_file
from xrt.graph.aligned_arrays import make_aligned_block
from xrt.graph.memory_map import find_file_offset

if TYPE_CHECKING:
    from onnx import TensorProto

    from xrt.formats.onnx.weightless_model import Span
    from xrt.graph.constants import Constant

__all__ = ["ModelFiles", "Place", "find_places", "list_files", "read_weight"]

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Place(NamedTuple):
    """Bytes of a file."""

    path: Path
    offset: int
    size: int


class ModelFiles(NamedTuple):
    """A model's file, what it names, and where its large weights lie."""

    path: Path
    named: tuple[Path, ...]
    """The files of external data."""
    spans: Mapping[str, Span]
    """By name of the initializer, those that lie in the model's own file."""


def list_files(path: Path) -> ModelFiles:
    """Return what a model's file names; raises ModelError where it cannot be read so, OSError where it cannot be read."""
    from google.protobuf.message import DecodeError

    from xrt.formats.onnx.protobuf_wire import MalformedMessage
    from xrt.formats.onnx.weightless_model import extract_weights

    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = extract_weights(data)
    except (ValueError, MalformedMessage, DecodeError) as error:
        raise ModelError(f"the weights in {os.fspath(path)!r} cannot be found: {error}") from error
    initializers = {tensor.name: location for tensor in found.model.graph.initializer for location in _locations(tensor)}
    spans = {name: found.spans[location] for name, location in initializers.items() if location in found.spans}
    named = {location for location in _all_locations(found.model) if location not in found.spans}
    return ModelFiles(path, tuple(path.parent / location.replace("\\", "/") for location in sorted(named)), spans)


def _locations(tensor: TensorProto) -> Iterator[str]:
    return (entry.value for entry in tensor.external_data if entry.key == "location")


def _all_locations(message: Any) -> Iterator[str]:
    """Yield the locations of all tensors in a message, whatever it is."""
    if message.DESCRIPTOR.full_name == "onnx.TensorProto":
        yield from _locations(message)
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for one in value if field.is_repeated else (value,):
                yield from _all_locations(one)


def find_places(files: ModelFiles, constants: Mapping[str, Constant]) -> dict[str, Place]:
    """Return where constants are in those files, byte for byte; one found in no file is left out. Reads what it compares."""
    found: dict[str, Place] = {}
    with files.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        whole = memoryview(data)
        for name, constant in constants.items():
            mapped, span = find_file_offset(constant.array), files.spans.get(name)
            if mapped is not None and mapped[0].path is not None:
                found[name] = Place(Path(mapped[0].path), mapped[1], constant.nbytes)
            elif mapped is None and span is not None and span[1] - span[0] == constant.nbytes:
                part = whole[span[0] : span[1]]
                if part == np.ascontiguousarray(constant.array).reshape(-1).view(np.uint8).data:
                    found[name] = Place(files.path, span[0], constant.nbytes)
                part.release()
        whole.release()
    return found


def read_weight(file: int, path: Path, offset: int, size: int, *, is_own: bool) -> Bytes:
    """Return bytes of an open file, in aligned memory of their own if it is the model's file, else mapped.

    Raises ModelError where the file ends before they do, and where it cannot be read.
    """
    try:
        if offset + size > os.fstat(file).st_size:
            raise ModelError(f"{os.fspath(path)!r} has become shorter")
        if not is_own:
            return np.frombuffer(map_file(file, path), np.uint8, size, offset)
        part = make_aligned_block(size)
        done = 0
        while done < size:  # one reading gives two gigabytes at most
            got = os.preadv(file, [part.data[done:]], offset + done)
            if not got:
                raise ModelError(f"{os.fspath(path)!r} became shorter while it was read")
            done += got
        return part
    except OSError as error:
        raise ModelError(f"{os.fspath(path)!r} cannot be read: {error.strerror}") from error
