"""Save and load sessions: the optimized model, and the weights whose layout the library changed.

Opening a session spends most of its time on graph optimization: fusion, constant folding, and weight layouts for the processor's
kernels. The result is an ONNX model again. Unchanged weights refer to the Function's constants by position; the others come first
in the file, aligned, and are used in place.

    weights    each at a multiple of 64 bytes; in a file for several processes also the packed weights
    model      ONNX; its external data is in "weights" or in "constant_<n>"
    mapped     with packed weights: the model again, with marks in place of references into this file, for the library to map
    header     JSON: names of inputs and outputs, used constants, sizes of weights and models
    8 bytes    length of the header
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

import numpy as np
from onnxruntime import ModelCompiler, OrtExternalInitializerInfo, SessionOptions

from xrt.engines.ort.session import Bytes, ExportedModel, get_tensor_bytes, open_session, register_files
from xrt.graph import Function, Value
from xrt.graph.constants import Mapping as FileMapping, find_file_offset, release

Array: TypeAlias = np.ndarray[Any, Any]

ALIGNMENT = 64
MIN_STORED_BYTES = 1024
"""Smaller weights stay in the model."""

_WEIGHTS = "weights"
_STRING_TYPE = 8
"""ONNX's element type of strings."""


@dataclass(frozen=True)
class SavedSession:
    """A parsed saved session."""

    data: memoryview
    """The whole file."""
    header: Mapping[str, Any]

    @classmethod
    def read(cls, data: memoryview) -> SavedSession:
        """Parse the output of `optimize_model`, whose checksum has been checked."""
        length = int.from_bytes(data[-8:], "little")
        return cls(data, json.loads(bytes(data[-8 - length : -8])))

    def export(self, function: Function) -> ExportedModel:
        """Make the model to open as a session. It reads the constants of ``function``, which must equal the saved Function."""
        constants = {_name_constant(index): content for index, content in self._iter_constants(function)}
        size, inner_size = self.header["weights"], self.header.get("own", self.header["weights"])
        content = np.frombuffer(self.data[:inner_size], np.uint8)
        copied, mapped = (inner_size, 0) if find_file_offset(content) is None else (0, inner_size)
        files = {**constants, _WEIGHTS: content} if inner_size else constants
        return ExportedModel(bytes(self.data[size : size + self.header["model"]]), files, copied, mapped)

    def place(self, function: Function) -> ExportedModel | None:
        """Make a model with which the library maps plain and packed weights from the file of this saved session.

        None if the file has no packed weights or may have been replaced, or if weights of ``function`` are in other files.
        """
        if "mapped" not in self.header:
            return None
        constants = {index + 1: content for index, content in self._iter_constants(function)}
        starts, mappings = dict[int, int](), set[FileMapping | None]()
        for part, content in {0: np.frombuffer(self.data, np.uint8), **constants}.items():
            mapping, starts[part] = find_file_offset(content) or (None, 0)
            mappings.add(mapping)
            release(content)  # free pages that the checksum has read; the library maps the file itself
        if len(mappings) > 1 or mapping is None or mapping.path is None:
            return None
        if not mapping.is_at_path() or not mapping.path.name.isprintable():
            return None
        # An equivalent relative path of fixed width.
        name = os.fsencode(mapping.path.name)
        missing = _NAME_WIDTH - len(name)
        path = b"./" * (missing // 2) + b"/" * (missing % 2) + name

        def locate(mark: re.Match[bytes]) -> bytes:
            """Return what replaces a mark in the model: the path or an offset in the file."""
            return path if mark[1] is None else b"%0*d" % (_NUMBER_WIDTH, starts[int(mark[1])] + int(mark[2]))

        size = self.header["weights"]
        start = size + self.header["model"]
        model = _MARKS.sub(locate, bytes(self.data[start : start + self.header["mapped"]]))
        return ExportedModel(model, mapped=size, mapping=mapping)

    def pack(self, function: Function, options: SessionOptions, folder: Path) -> memoryview:
        """Write the data with packed weights to a file in ``folder`` and map it; return `data` if the library packs none.

        ``function`` must equal the saved Function, ``options`` are those of a later load. Raises errors of the library.
        """
        size, model_size = self.header["weights"], self.header["model"]
        with (folder / "packed-session").open("w+b") as file:
            file.write(self.data[:size])
            marked = pack_weights(self.export(function), options, folder, file)
            if marked is None:
                return self.data
            changes = {"own": size, "weights": file.tell(), "mapped": len(marked)}
            file.write(self.data[size : size + model_size])
            file.write(marked)
            return _write_header(file, {**self.header, **changes})

    def _iter_constants(self, function: Function) -> Iterator[tuple[int, Bytes]]:
        """Yield index and bytes of each constant that the model refers to. The nodes are read only if a digest is not found."""
        weights: list[Array] = []
        for index, digest in zip(self.header["constants"], self.header["digests"], strict=True):
            content = function.find_weight_bytes(bytes.fromhex(digest))
            if content is None:
                weights = weights or list(_list_weights(function).values())
                content = get_tensor_bytes(weights[index])
            yield index, content

    def rename(self, kind: Literal["inputs", "outputs"], values: Sequence[Value]) -> tuple[Value, ...]:
        """Rename the inputs or outputs of an equal Function, ``values``, as the saved session names them."""
        return tuple(Value(name, value.type) for name, value in zip(self.header[kind], values, strict=True))


def _list_weights(function: Function) -> dict[str, Array]:
    """List the large constants by name, bodies included, in order of first use, which is equal in equal Functions."""
    from xrt.formats.onnx import external_weights, externalize_weights
    from xrt.operators import compute_outputs

    function = externalize_weights(compute_outputs(function))
    arrays = external_weights(function)
    used_names = dict.fromkeys(name for node in function.nodes for name in node.uses if name in arrays)
    return {name: arrays[name] for name in used_names}


def _name_constant(index: int | str) -> str:
    return f"constant_{index}"


def open_memory_file() -> BinaryIO:
    """Open an anonymous file in memory; raises OSError if the system has none."""
    if not hasattr(os, "memfd_create"):
        raise OSError("the system has no files in memory")
    return os.fdopen(os.memfd_create("xrt-session", os.MFD_CLOEXEC), "w+b")


def optimize_model(function: Function, export: ExportedModel, options: SessionOptions, file: BinaryIO) -> memoryview:
    """Optimize the model ``export`` of a Function; write the result to ``file`` as `SavedSession` reads it, and map the file.

    Sets ``options`` to one thread: nothing runs here, and further threads would spin for 30 ms when they start. Raises errors of
    the library.
    """
    from xrt.engines.toolkit.memory import find_inplace_outputs

    level = options.graph_optimization_level
    if options.use_per_session_threads:
        options.intra_op_num_threads = options.inter_op_num_threads = 1
    weights, used_names = _list_weights(function), set[str]()
    weight_indices = {name: index for index, name in enumerate(weights)}

    def choose_location(name: str, value: Any, info: object) -> OrtExternalInitializerInfo | None:
        """Choose where the library stores a weight: None for inside the model, else a constant of the Function or the file."""
        size = value.tensor_size_in_bytes()
        # Small weights stay inline; strings have no contiguous bytes.
        if size < MIN_STORED_BYTES or value.element_type() == _STRING_TYPE:
            return None
        memory, array = (ctypes.c_char * size).from_address(value.data_ptr()), weights.get(name)
        if array is not None and array.nbytes == size and _is_same(memory, array):
            used_names.add(name)
            return OrtExternalInitializerInfo(_name_constant(weight_indices[name]), 0, size)
        offset = file.tell()
        file.write(memory)
        file.write(bytes(-size % ALIGNMENT))
        return OrtExternalInitializerInfo(_WEIGHTS, offset, size)

    register_files(export, options)
    compiler = ModelCompiler(options, export.model, graph_optimization_level=level, get_initializer_location_func=choose_location)
    model = compiler.compile_to_bytes()
    # A constant that is an attribute of a node is not in `function.constants`, so it has no digest.
    constants = {_get_address_and_size(c.array): c for c in function.constants.values() if c.nbytes >= MIN_STORED_BYTES}
    used_constants = [constants.get(_get_address_and_size(weights[name])) for name in weights if name in used_names]
    header = {
        "inplace": sorted(find_inplace_outputs(function).items()),
        "inputs": [v.name for v in function.inputs],
        "outputs": [v.name for v in function.outputs],
        "constants": [weight_indices[name] for name in weights if name in used_names],
        "digests": [constant.digest.hex() if constant is not None else "" for constant in used_constants],
        "weights": file.tell(),
        "model": len(model),
    }
    file.write(model)
    return _write_header(file, header)


def _write_header(file: BinaryIO, header: Mapping[str, Any]) -> memoryview:
    """Write the header and map the file."""
    text = json.dumps(header).encode()
    file.write(text + len(text).to_bytes(8, "little"))
    file.flush()
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _get_address_and_size(array: Array) -> tuple[int, int]:
    """The address and size of an array's memory in bytes, as its identity."""
    return array.ctypes.data, array.nbytes


def _is_same(memory: Any, array: Array) -> bool:
    """Whether a weight of the library has the bytes of a constant: because it is at its address, or by comparison.

    Afterwards the pages of a constant in a mapped file are released.
    """
    is_unchanged = ctypes.addressof(memory) == array.ctypes.data or np.array_equal(
        np.frombuffer(memory, np.uint8), get_tensor_bytes(array)
    )
    release(array)
    return is_unchanged


# ---------------------------------------------------------------------- packed weights

# Packed weights are written once and mapped by every process that loads the file, a bundle. ONNX Runtime reads packed weights
# only from the file of the plain ones, at offsets in the model. The model is therefore written with marks of fixed width in
# place of the file name and of each offset, and a load replaces the marks by the actual positions. The library still packs the
# plain weights, one at a time, and uses the stored ones if both agree, so that those of another processor are not used.

_NAME_WIDTH = 258
"""Bytes of a file name after ``./``; a name has at most 255."""
# The width of a mark for an offset: replacing marks must not move what follows in the model.
_NUMBER_WIDTH = 20
_NAME = "\x01" * _NAME_WIDTH
_MARKS = re.compile(rb"\x01{258}|\x02(\d{6})(\d{13})")
"""A mark: the name of the file, or an offset, given by a part of the file (0 for the saved session, n + 1 for constant n) and the
offset in that part."""
_FILE = "packed"


def pack_weights(export: ExportedModel, options: SessionOptions, folder: Path, file: BinaryIO) -> bytes | None:
    """Append packed weights to ``file``, which begins with the plain ones; return the model with marks for both.

    None if the library packs nothing, or if other bytes of the model look like a mark. ``options`` are those of a later load;
    the library writes to ``folder``. Raises errors of the library.
    """
    from xrt.formats.onnx.messages import read_entries, write_entries

    packed = folder / f"{_FILE}.onnx"
    options.optimized_model_filepath = os.fspath(packed)
    options.add_session_config_entry("session.save_external_prepacked_constant_initializers", "1")
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", _FILE)
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1")
    open_session(export, options, ["CPUExecutionProvider"])
    source_entries, packed_entries = read_entries(export.model), read_entries(packed.read_bytes())
    packed_forms = {
        name: [value for key, value in packed_entries.get(name, ()) if key.startswith("prepacked")] for name in source_entries
    }
    if not any(packed_forms.values()):
        return None
    with (folder / _FILE).open("rb") as source:
        entries = {name: _mark_entries(dict(source_entries[name]), packed_forms[name], source, file) for name in source_entries}
    model = write_entries(export.model, entries)
    # A load replaces everything that looks like a mark, so nothing else in the model may look like one.
    marks = sum(len(_MARKS.findall(text.encode())) for tensor in entries.values() for _, text in tensor)
    return model if len(_MARKS.findall(model)) == marks else None


def _mark_entries(
    entry: Mapping[str, str], packed_forms: Sequence[str], source: BinaryIO, file: BinaryIO
) -> list[tuple[str, str]]:
    """Append the packed buffers of an initializer to ``file``; return its external-data entries with marks for the positions."""
    # Packed buffers are appended to the file of the saved session, part 0; plain weights stay where they are.
    part = 0 if entry["location"] == _WEIGHTS else int(entry["location"].removeprefix(_name_constant(""))) + 1
    entries = [("location", _NAME), ("offset", _mark(part, int(entry.get("offset", "0")))), ("length", entry["length"])]
    for count, form in enumerate(packed_forms):
        key, *buffers = form.split("|")
        for buffer in buffers:
            offset, length, checksum = buffer.split(";")
            file.write(bytes(-file.tell() % ALIGNMENT))
            key += f"|{_mark(0, file.tell())};{length};{checksum}"
            source.seek(int(offset))
            file.write(source.read(int(length)))
        entries.append((f"prepacked_{count}", key))
    return entries


def _mark(part: int, offset: int) -> str:
    return f"\x02{part:06d}{offset:013d}"
