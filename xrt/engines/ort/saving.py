"""A session as bytes: the optimised model, and those weights that the library has laid out differently.

Most of the time to open a session is spent on graph optimisation: fusing, folding, and laying weights out for the processor's
kernels. The result is a model again. Unchanged weights are named by their place among the Function's constants and not stored.
The others come first in the file, aligned, and are used in place.

    weights    each at a multiple of 64 bytes; then, for a file that several processes load, the weights that the library packs
    model      ONNX; its external data is in "weights", or in "constant_<n>"
    mapped     with packed weights: the model again, for the library to map them and the others from the file itself
    header     JSON: names of inputs and outputs, the constants that are used, lengths of weights and models, places in "mapped"
    8 bytes    length of the header
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from onnxruntime import ModelCompiler, OrtExternalInitializerInfo, SessionOptions

from xrt.engines.ort.session import ExportedModel, get_tensor_bytes, give_files, open_session
from xrt.graph import Function, Node, Value
from xrt.graph.constants import Mapping as FileMapping, find_file_offset, release

__all__ = ["MarkedModel", "PlacedModel", "SavedSession", "optimize_model", "pack_weights", "place_model"]

Array: TypeAlias = np.ndarray[Any, Any]

ALIGNMENT = 64
SMALL = 1024
"""Bytes under which a weight stays in the model."""

_OWN = "weights"
_STRING = 8
"""ONNX's number for tensors of strings."""


@dataclass(frozen=True)
class SavedSession:
    """What a session was saved as, read."""

    data: memoryview
    """All of it."""
    header: Mapping[str, Any]

    @classmethod
    def read(cls, data: memoryview) -> SavedSession:
        """Read what `optimised` wrote, whose checksum has been checked."""
        length = int.from_bytes(data[-8:], "little")
        return cls(data, json.loads(bytes(data[-8 - length : -8])))

    def export(self, function: Function) -> ExportedModel:
        """Return what a session is made from, with the weights of an equal Function."""
        return self._hand_over(dict(self._constants(function)))

    def _hand_over(self, constants: Mapping[str, Bytes]) -> ExportedModel:
        size, own = self.header["weights"], self.header.get("own", self.header["weights"])
        content = np.frombuffer(self.data[:own], np.uint8)
        copied, mapped = (own, 0) if find_file_offset(content) is None else (0, own)
        files = {**constants, _OWN: content} if own else constants
        return ExportedModel(bytes(self.data[size : size + self.header["model"]]), files, copied, mapped)

    @property
    def has_packed(self) -> bool:
        """Whether it has weights as the library packs them."""
        return "marks" in self.header

    def place(self, function: Function) -> PlacedModel | None:
        """Return what a session is made from whose weights, packed ones too, the library maps from the file of this.

        None where there are no packed ones, or the weights of the Function are not in the same file.
        """
        if not self.has_packed:
            return None
        size = self.header["weights"]
        start = size + self.header["model"]
        marked = MarkedModel(self.data[start : start + self.header["mapped"]], **self.header["marks"])
        files = {_OWN: np.frombuffer(self.data, np.uint8)}
        release(files[_OWN])
        for name, content in self._constants(function):
            release(content)  # one after the other: each was read through to be checked, and the library reads what it maps
            files[name] = content
        return place_model(marked, files, size)

    def pack(self, constants: Mapping[str, Bytes], options: SessionOptions, folder: Path) -> memoryview:
        """Return this with the weights that the library packs, mapped from a file in the folder; itself where it packs none.

        ``constants`` are the files of the session, ``options`` those of a load. What the library raises passes.
        """
        size, model_size = self.header["weights"], self.header["model"]
        handed = self._hand_over({name: content for name, content in constants.items() if name != _OWN})
        with (folder / "packed-session").open("w+b") as file:
            file.write(self.data[:size])
            marked = pack_weights(handed, options, folder, file, _OWN)
            if marked is None:
                return self.data
            marks = {name: value for name, value in asdict(marked).items() if name != "model"}
            changes = {"own": size, "weights": file.tell(), "mapped": len(marked.model), "marks": marks}
            file.write(self.data[size : size + model_size])
            file.write(marked.model)
            return _finish(file, {**self.header, **changes})

    def _constants(self, function: Function) -> Iterator[tuple[str, Bytes]]:
        """Yield the constants that the model refers to; the nodes are looked at only for one that no digest finds."""
        weights: list[tuple[str, Array]] = []
        for index, digest in zip(self.header["constants"], self.header["digests"], strict=True):
            found = function.find_weight_bytes(bytes.fromhex(digest))
            if found is None:
                weights = weights or _weights(function)
                found = get_tensor_bytes(weights[index][1])
            yield _name(index), found

    def border(self, function: Function) -> Function:
        """Return a Function with the inputs and outputs of an equal one under the session's names.

        One node represents all that the session computes; an output that is an input or a constant stays one.
        """
        sides = (function.inputs, self.header["inputs"]), (function.outputs, self.header["outputs"])
        named = {value.name: name for side, names in sides for value, name in zip(side, names, strict=True)}
        inputs, outputs = (tuple(Value(named[v.name], v.type) for v in side) for side, _ in sides)
        computed = dict.fromkeys(named[v.name] for v in function.outputs if function.computes(v.name))
        given = {v.name for v in function.inputs}
        passed = [v.name for v in function.outputs if v.name not in given and not function.computes(v.name)]
        constants = {named[name]: function.constants[name] for name in passed}
        node = Node("Session", (), tuple(computed), domain="ort", name="session")
        return Function(inputs, outputs, (node,), constants, name=function.name)


def _weights(function: Function) -> list[tuple[str, Array]]:
    """Return the large constants, bodies' too, in the order of their first use, which is the same for equal Functions."""
    from xrt.formats.onnx import external_weights, externalize_weights

    function = externalize_weights(function)
    arrays = external_weights(function)
    used = dict.fromkeys(name for node in function.nodes for name in node.uses if name in arrays)
    return [(name, arrays[name]) for name in used]


def _name(index: int) -> str:
    return f"constant_{index}"


def in_memory() -> BinaryIO:
    """Open a file without a name, in memory alone; raises OSError if the system has none."""
    if not hasattr(os, "memfd_create"):
        raise OSError("the system has no files in memory")
    return os.fdopen(os.memfd_create("xrt-session", os.MFD_CLOEXEC), "w+b")


def optimize_model(function: Function, handed: ExportedModel, options: SessionOptions, file: BinaryIO) -> memoryview:
    """Return the model of a session optimised, as `BundledModel` reads it: mapped from the file, which is new.

    ``handed`` is what the Function was handed over as, and ``options`` those of its session, which are changed: nothing
    runs here, and threads of the library spin for 30 ms when they start. Whatever the library raises passes.
    """
    from xrt.engines.toolkit.scatters import find_inplace_outputs

    level = options.graph_optimization_level
    if options.use_per_session_threads:
        options.intra_op_num_threads = options.inter_op_num_threads = 1
    places = _Places(function, file)
    give_files(handed, options)
    compiler = ModelCompiler(options, handed.model, graph_optimization_level=level, get_initializer_location_func=places.place)
    model = compiler.compile_to_bytes()
    header = {
        "inplace": sorted(find_inplace_outputs(function).items()),
        "inputs": [v.name for v in function.inputs],
        "outputs": [v.name for v in function.outputs],
        "constants": sorted(places.used),
        "digests": [places.find_digest(index) for index in sorted(places.used)],
        "weights": file.tell(),
        "model": len(model),
    }
    file.write(model)
    return _finish(file, header)


def _finish(file: BinaryIO, header: Mapping[str, Any]) -> memoryview:
    """Write the header, and return the file mapped."""
    text = json.dumps(header).encode()
    file.write(text + len(text).to_bytes(8, "little"))
    file.flush()
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


class _Places:
    """Gives the place of each weight of an optimised model, and writes those that have none yet."""

    def __init__(self, function: Function, file: BinaryIO) -> None:
        weights = _weights(function)
        self._weights = {name: (index, array) for index, (name, array) in enumerate(weights)}
        self._places = [_locate(array) for _, array in weights]
        self._constants = {_locate(one.array): one for one in function.constants.values() if one.nbytes >= SMALL}
        self._file = file
        self.used: set[int] = set()
        """Which of the Function's constants the model refers to."""

    def find_digest(self, index: int) -> str:
        """Return the digest of a constant of the Function; empty for one that is an attribute there."""
        constant = self._constants.get(self._places[index])
        return "" if constant is None else constant.digest.hex()

    def place(self, name: str, value: Any, info: object) -> OrtExternalInitializerInfo | None:
        """Return the place of a weight: in the model (None), in a constant of the Function, or in the file."""
        size = value.tensor_size_in_bytes()
        if size < SMALL or value.element_type() == _STRING:
            return None
        memory = (ctypes.c_char * size).from_address(value.data_ptr())
        index, array = self._weights.get(name, (0, None))
        if array is not None and array.nbytes == size and _is_same(memory, array):
            self.used.add(index)
            return OrtExternalInitializerInfo(_name(index), 0, size)
        at = self._file.tell()
        self._file.write(memory)
        self._file.write(bytes(-size % ALIGNMENT))
        return OrtExternalInitializerInfo(_OWN, at, size)


def _locate(array: Array) -> tuple[int, int]:
    """Return address and length, which tell arrays apart that are in memory at once."""
    return array.ctypes.data, array.nbytes


def _is_same(memory: Any, array: Array) -> bool:
    """Whether the library has left a weight unchanged; pages of a mapped file are released after the comparison.

    What it has left where it is, as it does with most, needs no comparison.
    """
    same = ctypes.addressof(memory) == array.ctypes.data or np.array_equal(
        np.frombuffer(memory, np.uint8), get_tensor_bytes(array)
    )
    release(array)
    return same


# ---------------------------------------------------------------------- packed weights

# Weights as the library packs them for its products and convolutions: written once, mapped by every process that loads them. ONNX
# Runtime reads packed weights only from the file of the plain ones, at offsets that the model names. Both are in one container
# then: a bundle. Its model is written with marks of a fixed width in place of the file's name and of each offset; a load replaces
# the marks by the places that the sections have in the file. The library packs the plain weights anyway, one at a time, and takes
# the packed ones of the file where the two agree, so that those of another processor are not used.

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]


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
    from xrt.formats.onnx.tensors import read_entries, write_entries

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
