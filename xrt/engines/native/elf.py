"""Whether a file is a whole shared library of this machine: the system maps one without looking, and a torn one ends the process.

Only what the loader relies on before any code of the library runs is looked at. That a library is whole does not make it
harmless: opening it runs its code.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import BinaryIO

__all__ = ["why_not_loadable"]

_MAGIC = b"\x7fELF"
_HEAD = struct.Struct("<HHIQQQIHHH")
"""Kind, machine, version, entry, program headers' place, section headers' place, flags, and three sizes, after 16 bytes."""
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SHARED, _LOADED = 3, 1
_IDENTITY = 16
_MOST = 1024
"""Segments; a library has about ten."""


def why_not_loadable(file: BinaryIO, size: int) -> str | None:
    """Return why the system could not load a library that is open at its beginning, None where nothing speaks against it.

    A file that is of none of the formats known here is left to the system, which refuses it.
    """
    head = file.read(_IDENTITY + _HEAD.size)
    if not head.startswith(_MAGIC):
        return None
    if len(head) < _IDENTITY + _HEAD.size:
        return f"it is truncated: it has only {len(head)} bytes"
    return _why_foreign(head) or _why_torn(head, file, size)


def _why_foreign(head: bytes) -> str | None:
    """Return why the library is for another kind of machine, compared with Python's own build; None if it is not."""
    if head[4] != (2 if sys.maxsize > 2**32 else 1):
        return "it is built for processors of another word size"
    if head[5] != (1 if sys.byteorder == "little" else 2):
        return "it is built for processors of another byte order"
    mine, theirs = _machine_of_python(), _HEAD.unpack_from(head, _IDENTITY)[1]
    if mine is not None and mine != theirs:
        return f"it is built for another processor (ELF machine {theirs}; this one is {mine})"
    return None


def _machine_of_python() -> int | None:
    try:
        with Path(sys.executable).open("rb") as file:
            head = file.read(_IDENTITY + _HEAD.size)
    except OSError:
        return None
    is_elf = head.startswith(_MAGIC) and len(head) == _IDENTITY + _HEAD.size
    return int(_HEAD.unpack_from(head, _IDENTITY)[1]) if is_elf else None


def _why_torn(head: bytes, file: BinaryIO, size: int) -> str | None:
    """Return which part that the loader maps does not lie in the file."""
    kind, _, _, _, start, _, _, _, width, count = _HEAD.unpack_from(head, _IDENTITY)
    if kind != _SHARED:
        return "it is an object or a program, and no shared library"
    if width != _SEGMENT.size or count > _MOST or start + width * count > size:
        return f"it is truncated or damaged: its program headers do not lie in its {size} bytes"
    file.seek(start)
    for _ in range(count):
        segment = _SEGMENT.unpack(file.read(width))
        end = segment[2] + segment[5]
        if segment[0] == _LOADED and end > size:
            return f"it is truncated: a segment should end at byte {end}, but there are only {size} bytes"
    return None
