"""Arrays from untrusted ``.npy`` and ``.npz`` files (no pickles, sizes are checked), and the encoding of examples."""

from __future__ import annotations

import json
import math
import os
import stat
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from xrt.errors import BundleError, InputError
from xrt.graph import DType

__all__ = ["Example", "decode_example", "encode_example", "is_encodable", "read_npy", "read_npz"]

# Limits on the expanded size of an archive: always this many bytes, beyond that a multiple of its size.
# Deflate compresses zeros a thousandfold, so a small archive could otherwise fill the memory.
LARGEST_FREE = 64 << 20
LARGEST_RATIO = 100
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_ADVICE = "write one with numpy.save or numpy.savez"
# NumPy parses headers with Python's parser, which raises these; MemoryError for too many brackets.
_PARSER = (SyntaxError, tokenize.TokenError, RecursionError, MemoryError)
# Raised by NumPy and zipfile for malformed files.
_BROKEN = (ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error, *_PARSER)


def read_npy(path: Path) -> np.ndarray[Any, Any]:
    """Read a ``.npy`` file; raises InputError with the path if it is not one."""
    with _opened(path) as file:
        if zipfile.is_zipfile(file):
            raise InputError(f"{path} holds several arrays; give it without NAME=, and each goes to the input of its name")
        file.seek(0)
        try:
            return _array(file, os.fstat(file.fileno()).st_size)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from error
        except _BROKEN as error:
            raise InputError(f"{path} is not a .npy or .npz file of numbers: {_describe(error)}; {_ADVICE}") from error


def read_npz(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Read the arrays of a ``.npz`` file by name; raises InputError with the path if it is not one.

    Nothing is extracted to disk, so member names cannot escape a directory.
    """
    with _opened(path) as file:
        if file.read(6) == b"\x93NUMPY":
            raise InputError(f"{path} holds one array, not an archive of several; write NAME={path}")
        file.seek(0)
        try:
            with zipfile.ZipFile(file) as archive:
                return _members(archive, os.fstat(file.fileno()).st_size)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from error
        except (*_BROKEN, RuntimeError) as error:  # RuntimeError: the archive is encrypted
            raise InputError(f"{path} is not a .npy or .npz file of numbers: {_describe(error)}; {_ADVICE}") from error


def _describe(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text[:200] or type(error).__name__


def _opened(path: Path) -> IO[bytes]:
    try:
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"cannot read {path}: it is no file")
        return path.open("rb")
    except FileNotFoundError:
        raise InputError(f"there is no input file {path}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def _members(archive: zipfile.ZipFile, size: int) -> dict[str, np.ndarray[Any, Any]]:
    members = archive.infolist()
    expanded = sum(member.file_size for member in members)
    if expanded > LARGEST_FREE + LARGEST_RATIO * size:
        raise ValueError(
            f"it has {size} bytes and says that it expands to {expanded}, more than {LARGEST_RATIO} times as many; "
            "numpy.savez writes without compression"
        )
    arrays = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name in arrays:
            raise ValueError(f"two of its arrays are named {name!r}")
        with archive.open(member) as file:
            arrays[name] = _array(file, member.file_size)
            file.read(1)  # reading past the end makes zipfile verify the checksum
    return arrays


def _array(file: IO[bytes], size: int) -> np.ndarray[Any, Any]:
    """Read the array at the current position of a file with ``size`` bytes in total.

    Raises ValueError, before allocating, if the size in the header differs.
    """
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"it is of version {version}, which has names of fields in UTF-8, and no model's input has fields")
    shape, is_fortran, dtype = _HEADERS[version](file)
    _check_numbers(shape, dtype)
    needed, given = math.prod(shape) * dtype.itemsize, size - file.tell()
    if needed != given:
        raise ValueError(f"its header announces {list(shape)} of {dtype}, which takes {needed} bytes, and {given} follow")
    array = np.frombuffer(_read(file, needed), dtype)
    return array.reshape(shape, order="F" if is_fortran else "C")


def _check_numbers(shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never read")
    if dtype.itemsize == 0 or min(shape, default=0) < 0:
        raise ValueError(f"its header announces {list(shape)} of {dtype}, which no array can be")


def _read(file: IO[bytes], size: int) -> bytearray:
    """Read ``size`` bytes, allocating memory only as they arrive; raises EOFError if there are fewer."""
    data = bytearray()
    while len(data) < size:
        part = file.read(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError(f"it ends after {len(data)} of {size} bytes")
        data += part
    return data


ALIGNMENT = 64
Array: TypeAlias = np.ndarray[Any, Any]
Named: TypeAlias = tuple[tuple[str, Array], ...]


@dataclass(frozen=True, slots=True)
class Example:
    """Inputs of a model with the outputs computed from them."""

    inputs: Named
    outputs: Named

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for _, array in (*self.inputs, *self.outputs))


def is_encodable(value: Any) -> bool:
    """Whether the value is an array of numbers or booleans."""
    return isinstance(value, np.ndarray) and not value.dtype.hasobject and value.dtype.kind not in "SU"


def encode_example(example: Example) -> bytes:
    """Serialize an example for `decode_example`; all values must be encodable."""
    parts: list[bytes] = []
    at = 0

    def place(values: Named) -> list[dict[str, Any]]:
        nonlocal at
        entries = []
        for name, array in values:
            content = array.tobytes()
            dtype = str(DType.of(array))
            entries.append({"name": name, "dtype": dtype, "shape": array.shape, "at": at, "size": len(content)})
            parts.append(content + bytes(-len(content) % ALIGNMENT))
            at += len(parts[-1])
        return entries

    text = json.dumps({"inputs": place(example.inputs), "outputs": place(example.outputs)}).encode()
    start = len(text).to_bytes(8, "little") + text
    return b"".join([start, bytes(-len(start) % ALIGNMENT), *parts])


def decode_example(data: memoryview) -> Example:
    """Deserialize an example; raises BundleError for malformed data."""
    try:
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(bytes(data[8:start]))
        content = data[start + -start % ALIGNMENT :]
        return Example(_read_example(header["inputs"], content), _read_example(header["outputs"], content))
    except (ValueError, TypeError, KeyError, RecursionError, MemoryError, OverflowError) as error:
        raise BundleError(f"its example cannot be read: {error}") from error


def _read_example(entries: Sequence[dict[str, Any]], data: memoryview) -> Named:
    return tuple((str(entry["name"]), _read_array(entry, data)) for entry in entries)


def _read_array(entry: dict[str, Any], data: memoryview) -> Array:
    content = np.frombuffer(data[entry["at"] : entry["at"] + entry["size"]], np.uint8)
    array: Array = content.view(DType.parse(entry["dtype"]).numpy).reshape(entry["shape"])
    return array
