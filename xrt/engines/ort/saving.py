"""Save and load sessions: the optimized model, and the weights whose layout the library changed.

Opening a session takes long because of graph optimization: fusion, constant folding, and layouts of weights. Its result is an
ONNX model. A saved session is a file with these parts:

    weights    weights that are not constants of the Function, each aligned to 64 bytes; then packed weights, if there are any
    model      the optimized model; its external data is in "weights" or "constant_<n>", constant n of the Function
    mapped     with packed weights only: the model with marks in place of file names and offsets (see below)
    footer     JSON: names of inputs and outputs, used constants, sizes of weights and models
    8 bytes    length of the footer
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
from xrt.graph.constants import FileMapping, find_file_offset, release_pages

Array: TypeAlias = np.ndarray[Any, Any]

ALIGNMENT = 64
MIN_STORED_BYTES = 1024
"""Smaller weights are stored in the model."""

_WEIGHTS = "weights"
_CONSTANT = "constant_"
"""The names of files, as in the table above."""
_STRING_TYPE = 8
"""ONNX's element type of strings."""


@dataclass(frozen=True)
class SavedSession:
    """The parts of a saved session."""

    data: memoryview
    footer: Mapping[str, Any]

    @classmethod
    def read(cls, data: memoryview) -> SavedSession:
        """Parse the output of `optimize_model`. The caller has verified its checksum."""
        length = int.from_bytes(data[-8:], "little")
        return cls(data, json.loads(bytes(data[-8 - length : -8])))

    def export(self, function: Function) -> ExportedModel:
        """Make the model to open as a session. ``function`` must equal the saved Function, because the session reads its
        constants.
        """
        files = {f"{_CONSTANT}{index}": content for index, content in self._iter_constants(function)}
        model_start = self.footer["weights"]
        plain_bytes = self.footer.get("own", model_start)  # without packed weights
        weights = np.frombuffer(self.data[:plain_bytes], np.uint8)
        if plain_bytes:
            files[_WEIGHTS] = weights
        model = bytes(self.data[model_start : model_start + self.footer["model"]])
        if find_file_offset(weights) is None:
            return ExportedModel(model, files, copied=plain_bytes)
        return ExportedModel(model, files, mapped=plain_bytes)

    def export_mapped(self, function: Function) -> ExportedModel | None:
        """Make a model with which the library maps plain and packed weights from the file that contains this saved session.

        None if there are no packed weights, if the file may have been replaced, or if weights of ``function`` are in other files.
        """
        if "mapped" not in self.footer:
            return None
        # Part 0 of the file is this saved session, part n + 1 is constant n (see `_MARKS`).
        contents = {0: np.frombuffer(self.data, np.uint8)}
        contents.update((index + 1, content) for index, content in self._iter_constants(function))
        offsets: dict[int, int] = {}
        mappings: set[FileMapping | None] = set()
        for part, content in contents.items():
            mapping, offsets[part] = find_file_offset(content) or (None, 0)
            mappings.add(mapping)
            release_pages(content)  # free the pages that the checksum has read, because the library maps the file again
        if len(mappings) > 1 or mapping is None or mapping.path is None:
            return None
        if not mapping.is_at_path() or not mapping.path.name.isprintable():
            return None
        # Pad the path to a fixed width with "./" and "/", which do not change its meaning.
        name = os.fsencode(mapping.path.name)
        padding = _NAME_WIDTH - len(name)
        path = b"./" * (padding // 2) + b"/" * (padding % 2) + name

        def replace_mark(mark: re.Match[bytes]) -> bytes:
            """Return the path, or the offset in the file that the mark describes."""
            part, offset = mark.groups()
            if part is None:
                return path
            return b"%0*d" % (_NUMBER_WIDTH, offsets[int(part)] + int(offset))

        weights_bytes = self.footer["weights"]
        start = weights_bytes + self.footer["model"]
        model = _MARKS.sub(replace_mark, bytes(self.data[start : start + self.footer["mapped"]]))
        return ExportedModel(model, mapped=weights_bytes, mapping=mapping)

    def pack(self, function: Function, options: SessionOptions, folder: Path) -> memoryview:
        """Write this saved session with packed weights to a file in ``folder``, and map the file.

        Returns `data` if the library packs no weights. ``function`` must equal the saved Function. ``options`` are those of a
        later load. Raises errors of the library. Both models are written: `export_mapped` needs the one with marks, and `export`
        the plain one, for a load that cannot map the file.
        """
        size, model_size = self.footer["weights"], self.footer["model"]
        with (folder / "packed-session").open("w+b") as file:
            file.write(self.data[:size])  # the plain weights
            marked = pack_weights(self.export(function), options, folder, file)
            if marked is None:
                return self.data
            # "weights" is the size of plain and packed weights, "own" that of the plain ones only.
            changes = {"own": size, "weights": file.tell(), "mapped": len(marked)}
            file.write(self.data[size : size + model_size])
            file.write(marked)
            return _write_footer(file, {**self.footer, **changes})

    def _iter_constants(self, function: Function) -> Iterator[tuple[int, Bytes]]:
        """Yield the index and the bytes of each constant to which the model refers."""
        # Most constants are found by digest. Only for others are the weights of the Function listed, which reads all nodes.
        weights: list[Array] = []
        for index, digest in zip(self.footer["constants"], self.footer["digests"], strict=True):
            content = function.find_weight_bytes(bytes.fromhex(digest))
            if content is None:
                weights = weights or list(_list_weights(function).values())
                content = get_tensor_bytes(weights[index])
            yield index, content

    def rename(self, kind: Literal["inputs", "outputs"], values: Sequence[Value]) -> tuple[Value, ...]:
        """Give the inputs or outputs of the Function, ``values``, the names that they have in the saved session."""
        return tuple(Value(name, value.type) for name, value in zip(self.footer[kind], values, strict=True))


def _list_weights(function: Function) -> dict[str, Array]:
    """List the large constants of a Function and its bodies by name, in order of first use (the same in equal Functions)."""
    from xrt.formats.onnx import collect_external_weights, externalize_weights
    from xrt.operators import ensure_computed_outputs

    function = externalize_weights(ensure_computed_outputs(function))
    arrays = collect_external_weights(function)
    used_names = dict.fromkeys(name for node in function.nodes for name in node.uses if name in arrays)
    return {name: arrays[name] for name in used_names}


def open_memory_file() -> BinaryIO:
    """Open an anonymous file in memory; raises OSError if the system has none."""
    if not hasattr(os, "memfd_create"):
        raise OSError("the system has no files in memory")
    return os.fdopen(os.memfd_create("xrt-session", os.MFD_CLOEXEC), "w+b")


def optimize_model(function: Function, export: ExportedModel, options: SessionOptions, file: BinaryIO) -> memoryview:
    """Optimize the exported model of a Function. Write a saved session to ``file``, and map the file.

    Sets ``options`` to one thread, because other threads would only spin for 30 ms. Raises errors of the library.
    """
    from xrt.engines.toolkit.memory import find_inplace_outputs

    level = options.graph_optimization_level
    options.intra_op_num_threads = 1
    weights = _list_weights(function)
    used_names: set[str] = set()
    weight_indices = {name: index for index, name in enumerate(weights)}

    def choose_location(name: str, value: Any, info: object) -> OrtExternalInitializerInfo | None:
        """Choose where the library stores a weight: in a constant of the Function, in the file, or (None) in the model."""
        size = value.tensor_size_in_bytes()
        # Strings are not contiguous bytes.
        if size < MIN_STORED_BYTES or value.element_type() == _STRING_TYPE:
            return None
        memory = (ctypes.c_char * size).from_address(value.data_ptr())
        array = weights.get(name)
        if array is not None and array.nbytes == size and _is_same(memory, array):
            used_names.add(name)
            return OrtExternalInitializerInfo(f"{_CONSTANT}{weight_indices[name]}", 0, size)
        offset = file.tell()
        file.write(memory)
        file.write(bytes(-size % ALIGNMENT))
        return OrtExternalInitializerInfo(_WEIGHTS, offset, size)

    register_files(export, options)
    compiler = ModelCompiler(options, export.model, graph_optimization_level=level, get_initializer_location_func=choose_location)
    model = compiler.compile_to_bytes()
    # A constant that is an attribute of a node has no digest, because it is not in `function.constants`.
    constants = {_get_address_and_size(c.array): c for c in function.constants.values() if c.nbytes >= MIN_STORED_BYTES}
    used_constants = [constants.get(_get_address_and_size(weights[name])) for name in weights if name in used_names]
    footer = {
        "inplace": sorted(find_inplace_outputs(function).items()),
        "inputs": [v.name for v in function.inputs],
        "outputs": [v.name for v in function.outputs],
        "constants": [weight_indices[name] for name in weights if name in used_names],
        "digests": [constant.digest.hex() if constant is not None else "" for constant in used_constants],
        "weights": file.tell(),
        "model": len(model),
    }
    file.write(model)
    return _write_footer(file, footer)


def _write_footer(file: BinaryIO, footer: Mapping[str, Any]) -> memoryview:
    """Append the footer and its length to the file, and map the file."""
    text = json.dumps(footer).encode()
    file.write(text + len(text).to_bytes(8, "little"))
    file.flush()
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _get_address_and_size(array: Array) -> tuple[int, int]:
    """Get the address and the size of an array's memory in bytes, which identify a constant."""
    return array.ctypes.data, array.nbytes


def _is_same(memory: Any, array: Array) -> bool:
    """Whether a weight of the library is equal to a constant. Afterwards release the pages of a constant in a mapped file."""
    is_unchanged = ctypes.addressof(memory) == array.ctypes.data or np.array_equal(
        np.frombuffer(memory, np.uint8), get_tensor_bytes(array)
    )
    release_pages(array)
    return is_unchanged


# A bundle contains packed weights, so that all processes that load it map the same memory. ONNX Runtime reads packed weights only
# from the file of the plain weights, at offsets that the model specifies. Therefore the model is written with marks of fixed
# width for the file name and the offsets, which a load replaces. The library still packs the plain weights, one at a time, and
# uses the stored ones only if they are equal, because another processor may require other ones.

_NAME_WIDTH = 258
"""Width of a mark for the file name, in bytes. A name has at most 255 bytes."""
# The width of a mark for an offset. It is fixed, because a replacement must not move the following bytes of the model.
_NUMBER_WIDTH = 20
_NAME = "\x01" * _NAME_WIDTH
_MARKS = re.compile(rb"\x01{258}|\x02(\d{6})(\d{13})")
"""A mark for the file name, or for an offset: the number of a part of the file (0 for the saved session, n + 1 for constant n),
and the offset in this part."""
_FILE = "packed"


def pack_weights(export: ExportedModel, options: SessionOptions, folder: Path, file: BinaryIO) -> bytes | None:
    """Append packed weights to ``file``, which begins with the plain weights. Returns the model with marks for both.

    None if the library packs no weights, or if other bytes of the model look like a mark. ``options`` are those of a later load.
    The library writes temporary files to ``folder``. Raises errors of the library.
    """
    from xrt.formats.onnx.messages import read_entries, write_entries

    packed = folder / f"{_FILE}.onnx"
    options.optimized_model_filepath = os.fspath(packed)
    options.add_session_config_entry("session.save_external_prepacked_constant_initializers", "1")
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", _FILE)
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1")
    open_session(export, options, ["CPUExecutionProvider"])
    # The external-data entries (key, value) of each initializer, in the exported model and in the library's optimized one.
    source_entries, packed_entries = read_entries(export.model), read_entries(packed.read_bytes())
    packed_forms: dict[str, list[str]] = {}
    for name in source_entries:
        packed_forms[name] = [value for key, value in packed_entries.get(name, ()) if key.startswith("prepacked")]
    if not any(packed_forms.values()):
        return None
    with (folder / _FILE).open("rb") as source:
        entries = {name: _mark_entries(dict(source_entries[name]), packed_forms[name], source, file) for name in source_entries}
    model = write_entries(export.model, entries)
    # A load replaces all bytes that look like a mark, so there must be no others.
    num_marks = sum(len(_MARKS.findall(text.encode())) for tensor in entries.values() for _, text in tensor)
    return model if len(_MARKS.findall(model)) == num_marks else None


def _mark_entries(
    entry: Mapping[str, str], packed_forms: Sequence[str], source: BinaryIO, file: BinaryIO
) -> list[tuple[str, str]]:
    """Append the packed buffers of an initializer from ``source`` to ``file``. Returns its external-data entries, with marks."""
    # Packed buffers are in part 0, the saved session. The plain weights may be in another part.
    location = entry["location"]
    part = 0 if location == _WEIGHTS else int(location.removeprefix(_CONSTANT)) + 1
    entries = [("location", _NAME), ("offset", _mark(part, int(entry.get("offset", "0")))), ("length", entry["length"])]
    # The library writes a packed form as "key|offset;length;checksum|...", with one triple per buffer.
    for count, form in enumerate(packed_forms):
        marked, *buffers = form.split("|")
        for buffer in buffers:
            offset, length, checksum = buffer.split(";")
            file.write(bytes(-file.tell() % ALIGNMENT))
            marked += f"|{_mark(0, file.tell())};{length};{checksum}"
            source.seek(int(offset))
            file.write(source.read(int(length)))
        entries.append((f"prepacked_{count}", marked))
    return entries


def _mark(part: int, offset: int) -> str:
    return f"\x02{part:06d}{offset:013d}"
