"""Files with arrays: untrusted ``.npy`` and ``.npz`` files (no pickles, sizes are checked), examples, and state of sessions."""

from __future__ import annotations

import io
import json
import math
import os
import stat
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeAlias

import numpy as np

from xrt.errors import BundleError, InputError, ModelError
from xrt.formats.container import Container, ContainerWriter
from xrt.formats.output import replace_file
from xrt.graph import DType

Array: TypeAlias = np.ndarray[Any, Any]
NamedArrays: TypeAlias = tuple[tuple[str, Array], ...]
# An archive may expand to MIN_EXPANDED_LIMIT_BYTES plus MAX_EXPANSION_RATIO times its own size.
# Deflate compresses zeros a thousandfold, so a small archive could otherwise fill the memory.
MIN_EXPANDED_LIMIT_BYTES = 64 << 20
MAX_EXPANSION_RATIO = 100
# Errors of NumPy and zipfile for malformed files. RuntimeError: the archive is encrypted.
_ARCHIVE_ERRORS = (ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error, RuntimeError)
# Errors of Python's parser, with which NumPy reads headers. MemoryError: too many brackets.
_HEADER_ERRORS = (SyntaxError, tokenize.TokenError, RecursionError, MemoryError)

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@contextmanager
def _open_array_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file of arrays; errors in the ``with`` block become InputError with the path."""
    try:
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"cannot read {path}: it is not a regular file")
        with path.open("rb") as file:
            yield file
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"there is no input file {path}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (*_ARCHIVE_ERRORS, *_HEADER_ERRORS) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        advice = "write one with numpy.save or numpy.savez"
        raise InputError(f"{path} is not a .npy or .npz file of numbers: {reason}; {advice}") from error


def read_npy(path: Path) -> Array:
    """Read a ``.npy`` file; raises InputError with the path if it is not one."""
    with _open_array_file(path) as file:
        if zipfile.is_zipfile(file):
            raise InputError(f"{path} holds several arrays; pass it without NAME=: each array is used for the input of its name")
        file.seek(0)
        return _read_npy(file, os.fstat(file.fileno()).st_size)


def read_npz(path: Path) -> dict[str, Array]:
    """Read the arrays of a ``.npz`` file by name; raises InputError with the path if it is not one.

    Nothing is extracted to disk, so member names cannot escape a directory.
    """
    with _open_array_file(path) as file:
        if file.read(6) == b"\x93NUMPY":
            raise InputError(f"{path} holds one array, not an archive of several; write NAME={path}")
        size = os.fstat(file.fileno()).st_size
        arrays: dict[str, Array] = {}
        with zipfile.ZipFile(file) as archive:
            expanded = sum(member.file_size for member in archive.infolist())
            if expanded > MIN_EXPANDED_LIMIT_BYTES + MAX_EXPANSION_RATIO * size:
                raise ValueError(
                    f"it has {size} bytes and would expand to {expanded}, more than {MAX_EXPANSION_RATIO} times as many; "
                    "numpy.savez writes without compression"
                )
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if name in arrays:
                    raise ValueError(f"two of its arrays are named {name!r}")
                with archive.open(member) as content:
                    arrays[name] = _read_npy(content, member.file_size)
        return arrays


def _read_npy(file: IO[bytes], size: int) -> Array:
    """Read an array from a file of ``size`` bytes. Raises one of `_ARCHIVE_ERRORS` and `_HEADER_ERRORS` for malformed data.

    The shape in the header is compared with the size of the file before memory is allocated.
    """
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"it has version {version}; supported are {' and '.join(map(str, _HEADERS))}")
    shape, is_fortran, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never read")
    if dtype.kind == "V":
        raise ValueError(f"its element type {dtype} has fields, which no model input has")
    if not dtype.itemsize or min(shape, default=0) < 0:
        raise ValueError(f"its header announces {list(shape)} of {dtype}, which is not a valid array")
    needed, available = math.prod(shape) * dtype.itemsize, size - file.tell()
    if needed != available:
        raise ValueError(f"its header announces {list(shape)} of {dtype}, which takes {needed} bytes, and {available} follow")
    # Not `read_array`: it would seek back, after which zipfile no longer verifies the checksum.
    data = bytearray(file.read(needed))
    return np.frombuffer(data, dtype).reshape(shape, order="F" if is_fortran else "C")


# Section with the fields, and the name, dtype and shape of each array.
_LIST_SECTION = "arrays"


def _write_arrays(file: BinaryIO, kind: str, fields: Mapping[str, Any], arrays: Iterable[tuple[str, Array]]) -> None:
    """Write a container with a section per array, and one section for ``fields`` and the arrays' names, dtypes and shapes."""
    arrays = list(arrays)
    entries = [[name, str(DType.from_array(array)), list(array.shape)] for name, array in arrays]
    writer = ContainerWriter(file, kind)
    writer.add(_LIST_SECTION, json.dumps({**fields, "arrays": entries}, ensure_ascii=False).encode())
    for index, (_, array) in enumerate(arrays):
        writer.add(str(index), np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    writer.finish()


def _read_arrays(container: Container) -> tuple[dict[str, Any], NamedArrays]:
    """Read the fields and the arrays, which are views of the container's memory."""
    fields = json.loads(bytes(container.section(_LIST_SECTION)))
    arrays = []
    for index, (name, dtype, shape) in enumerate(fields["arrays"]):
        arrays.append((name, _view_array(container.section(str(index)), dtype, shape)))
    return fields, tuple(arrays)


def _view_array(data: memoryview, dtype: str, shape: list[int]) -> Array:
    numpy_dtype = np.dtype(DType.parse(dtype).numpy)
    if not all(isinstance(size, int) and size >= 0 for size in shape) or math.prod(shape) * numpy_dtype.itemsize != len(data):
        raise ValueError(f"an array of {dtype}{shape} does not have {len(data)} bytes")
    array: Array = np.frombuffer(data, np.uint8).view(numpy_dtype)
    return array.reshape(shape)


# Raised by `Container` and `_read_arrays` for a file that was not written by `_write_arrays`.
_READ_ERRORS = (BundleError, ModelError, ValueError, KeyError, TypeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Example:
    """Inputs of a model, by name, with the outputs computed from them."""

    inputs: NamedArrays
    outputs: NamedArrays

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for _, array in (*self.inputs, *self.outputs))


def is_numeric_array(value: Any) -> bool:
    """Whether the value is an array of numbers or booleans, which `encode_example` supports."""
    return isinstance(value, np.ndarray) and not value.dtype.hasobject and value.dtype.kind not in "SU"


def encode_example(example: Example) -> bytes:
    """Serialize an example for `decode_example`; all values must be arrays of numbers or booleans."""
    file = io.BytesIO()
    _write_arrays(file, "example", {"inputs": len(example.inputs)}, (*example.inputs, *example.outputs))
    return file.getvalue()


def decode_example(data: memoryview) -> Example:
    """Deserialize an example; raises BundleError for malformed data."""
    try:
        fields, arrays = _read_arrays(Container(data, "example"))
        return Example(arrays[: fields["inputs"]], arrays[fields["inputs"] :])
    except _READ_ERRORS as error:
        raise BundleError(f"its example cannot be read: {error}") from error


def write_session(path: str | os.PathLike[str], model: str, arrays: Mapping[str, Array]) -> None:
    """Save the state of a session atomically. ``model`` is the model's fingerprint. Raises InputError if that fails."""
    try:
        replace_file(Path(path), lambda file: _write_arrays(file, "session", {"model": model}, arrays.items()))
    except OSError as error:
        raise InputError(f"cannot write {os.fspath(path)!r}: {error.strerror}") from error


def read_session(path: str | os.PathLike[str]) -> tuple[str, dict[str, Array]]:
    """Load the state of a session: the model's fingerprint and copies of the arrays. Raises InputError for an invalid file."""
    try:
        fields, arrays = _read_arrays(Container.open(Path(path), "session"))
        return str(fields["model"]), {name: array.copy() for name, array in arrays}
    except (*_READ_ERRORS, OSError) as error:
        reason = (error.strerror or error) if isinstance(error, OSError) else error
        raise InputError(f"cannot read the state of a session from {os.fspath(path)!r}: {reason}") from error
