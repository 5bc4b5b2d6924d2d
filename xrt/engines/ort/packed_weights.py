"""Weights as the library packs them for its products and convolutions: written once, mapped by every process that loads them.

ONNX Runtime reads packed weights only from the file of the plain ones, at offsets that the model names. Both are in one container
then: a bundle. Its model is written with marks of a fixed width in place of the file's name and of each offset; a load replaces
the marks by the places that the sections have in the file. The library packs the plain weights anyway, one at a time, and takes
the packed ones of the file where the two agree, so that those of another processor are not used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from onnxruntime import SessionOptions

from xrt.engines.ort.session import ExportedModel, open_session
from xrt.graph.memory_map import Mapping as FileMapping
from xrt.graph.memory_map import find_file_offset, release

__all__ = ["MarkedModel", "PlacedModel", "pack_weights", "place_model"]

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

ALIGNMENT = 64

_NAME_WIDTH = 258
"""Bytes of a file's name with ``./`` before it; a name has at most 255."""
_NUMBER_WIDTH = 20
_NAME = "\x01" * _NAME_WIDTH
_MARKS = re.compile(rb"\x01{258}|\x02\d{19}")
_FILE = "packed"


@dataclass(frozen=True, slots=True)
class MarkedModel:
    """A model whose external data have no place yet."""

    model: bytes | memoryview
    names: Sequence[int]
    """Where in the model the name of the file belongs."""
    offsets: Sequence[tuple[int, str, int]]
    """Where in the model an offset belongs, the file of the saved model that it is counted from, and the number there."""


def pack_weights(
    handed: ExportedModel, options: SessionOptions, folder: Path, file: BinaryIO, own_name: str
) -> MarkedModel | None:
    """Append the packed weights of an optimized model to a file that begins with its own weights; return the model for both.

    ``options`` are those under which it will be opened; the folder is written to. ``own_name`` is the file in the model. None
    where the library packs nothing. What it raises passes.
    """
    from xrt.formats.onnx.external_entries import read_entries, write_entries

    packed = folder / f"{_FILE}.onnx"
    options.optimized_model_filepath = os.fspath(packed)
    options.add_session_config_entry("session.save_external_prepacked_constant_initializers", "1")
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", _FILE)
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1")
    open_session(handed, options, ["CPUExecutionProvider"])
    own, made = read_entries(handed.model), read_entries(packed.read_bytes())
    forms = {name: [value for key, value in made.get(name, ()) if key.startswith("prepacked")] for name in own}
    if not any(forms.values()):
        return None
    marks: list[tuple[str, int]] = []
    with (folder / _FILE).open("rb") as source:
        copier = _Copier(source, file, own_name, marks)
        entries = {name: tuple(copier.mark(dict(own[name]), forms[name])) for name in own}
    return _find_marks(write_entries(handed.model, entries), marks, len(own))


@dataclass(frozen=True, slots=True)
class _Copier:
    """Copies packed weights from the library's file, and marks the places where they and the plain ones come to lie."""

    source: BinaryIO
    file: BinaryIO
    own_name: str
    marks: list[tuple[str, int]]

    def mark(self, own: Mapping[str, str], forms: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield the entries of one initializer."""
        yield "location", _NAME
        yield "offset", self._number(own["location"], int(own.get("offset", "0")))
        yield "length", own["length"]
        for count, form in enumerate(forms):
            key, *blobs = form.split("|")
            yield f"prepacked_{count}", "|".join([key, *map(self._copy, blobs)])

    def _copy(self, blob: str) -> str:
        """Copy one of the buffers that a packed weight consists of."""
        offset, length, checksum = blob.split(";")
        self.file.write(bytes(-self.file.tell() % ALIGNMENT))
        mark = self._number(self.own_name, self.file.tell())
        self.source.seek(int(offset))
        self.file.write(self.source.read(int(length)))
        return f"{mark};{length};{checksum}"

    def _number(self, name: str, offset: int) -> str:
        self.marks.append((name, offset))
        return f"\x02{len(self.marks) - 1:0{_NUMBER_WIDTH - 1}d}"


def _find_marks(model: bytes, marks: Sequence[tuple[str, int]], count: int) -> MarkedModel | None:
    """Return the model with the places of its marks; None where something else in it looks like one."""
    names: list[int] = []
    offsets: dict[int, tuple[int, str, int]] = {}
    for found in _MARKS.finditer(model):
        if found[0][0] == 1:
            names.append(found.start())
        elif (number := int(found[0][1:])) < len(marks):
            offsets[number] = (found.start(), *marks[number])
    if (len(names), len(offsets)) != (count, len(marks)):
        return None
    return MarkedModel(model, tuple(names), tuple(offsets[number] for number in range(len(marks))))


# ---------------------------------------------------------------------- a load


@dataclass(frozen=True, slots=True)
class PlacedModel:
    """A model whose weights the library maps from a file that XRT has mapped too."""

    handed: ExportedModel
    mapping: FileMapping
    files: Sequence[Bytes]
    """The parts of the file."""

    def release(self) -> bool:
        """Release the pages that XRT has read to check them; False where the library may have mapped another file."""
        for content in self.files:
            release(content)
        return self.mapping.is_at_path()


def place_model(marked: MarkedModel, files: Mapping[str, Bytes], size: int) -> PlacedModel | None:
    """Return the model with the places of its weights in the file that all ``files`` are parts of.

    ``size`` is that of the weights which the library has laid out or packed. None where the files are not parts of one, or that
    is no longer at its path: another may have replaced it.
    """
    places = {name: find_file_offset(content) for name, content in files.items()}
    mappings = {id(place[0]): place[0] for place in places.values() if place is not None}
    if len(mappings) != 1 or None in places.values():
        return None
    (mapping,) = mappings.values()
    if mapping.path is None or not mapping.is_at_path() or not mapping.path.name.isprintable():
        return None
    starts = {name: place[1] for name, place in places.items() if place is not None}
    model, name = bytearray(marked.model), os.fsencode(mapping.path.name)
    for at in marked.names:
        model[at : at + _NAME_WIDTH] = _pad(name)
    for at, file, offset in marked.offsets:
        model[at : at + _NUMBER_WIDTH] = b"%0*d" % (_NUMBER_WIDTH, starts[file] + offset)
    handed = ExportedModel(bytes(model), mapped=size, folder=os.fspath(mapping.path.parent))
    return PlacedModel(handed, mapping, tuple(files.values()))


def _pad(name: bytes) -> bytes:
    """Return a relative path of a fixed length that means the file of that name."""
    left = _NAME_WIDTH - len(name)
    return b"./" * (left // 2) + b"/" * (left % 2) + name
