"""A compiled program as bytes: a shared library, and the constants that it is called with.

TVM exports code by way of a C compiler, which it calls as a linker (its ``.tar``, which needs none, does not load back).
Constants that are the Function's own are named by their place in it and not stored.

    8 bytes      length of the header
    header       JSON: the program's properties besides its code, the constants, the length of the library
    library
    constants    each at a multiple of 64 bytes
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tvm.runtime import load_module

from xrt.engines.tvm.linking import link
from xrt.engines.tvm.pipeline import TvmProgram
from xrt.errors import CompileRefused
from xrt.graph import Constant, DType, Function

__all__ = ["export_library", "load_program", "pack", "unpack"]

ALIGNMENT = 64
_LIBRARY = "library.so"
_SAVED = ("fresh", "fills", "in_place", "workspace")
"""What the header tells of a program for this processor."""


def export_library(program: TvmProgram, function: Function, folder: Path | None) -> bytes:
    """Return a program that was compiled from the Function, as `load_program` reads it; the folder is written to.

    Raises CompileRefused if there is no C compiler, or no folder.
    """
    return pack(program.code, program.constants, _details(program), function, folder)


def _details(program: TvmProgram) -> dict[str, Any]:
    """Return the header's part that is a program's own."""
    return {name: getattr(program, name) for name in _SAVED}


def pack(
    code: Any, constants: tuple[Constant, ...], details: Mapping[str, Any], function: Function, folder: Path | None
) -> bytes:
    """Return code, constants and details as `unpacked` reads them."""
    if folder is None:
        raise CompileRefused("TVM exports by way of a file, and there is no working directory")
    library = link(code, folder)
    described, parts = _described(constants, function)
    text = json.dumps({**details, "constants": described, "library": len(library)}).encode()
    start = len(text).to_bytes(8, "little") + text + library
    return b"".join([start, bytes(-len(start) % ALIGNMENT), *parts])


def _described(constants: tuple[Constant, ...], function: Function) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Return what the header says of each constant, and the bytes of those that are stored."""
    places = {constant.digest: place for place, constant in reversed(list(enumerate(_in_order(function))))}
    entries: list[dict[str, Any]] = []
    parts: list[bytes] = []
    for constant in constants:
        if constant.digest in places:
            entries.append({"place": places[constant.digest]})
            continue
        content = constant.array.tobytes()
        at = sum(map(len, parts))
        entries.append({"dtype": str(constant.dtype), "shape": constant.shape, "at": at, "size": len(content)})
        parts.append(content + bytes(-len(content) % ALIGNMENT))
    return entries, parts


def _in_order(function: Function) -> list[Constant]:
    """Return the constants in the order of their first use, which is the same for equal Functions."""
    used = dict.fromkeys(name for node in function.nodes for name in node.uses if name in function.constants)
    used.update(dict.fromkeys(v.name for v in function.outputs if v.name in function.constants))
    return [function.constants[name] for name in used]


def load_program(data: memoryview, function: Function, folder: Path | None) -> TvmProgram:
    """Return the program that `exported` wrote, for an equal Function; its checksum has been checked."""
    code, constants, details = unpack(data, function, folder)
    saved: dict[str, Any] = {name: details[name] for name in _SAVED}
    return TvmProgram(code, constants, **{**saved, "fresh": tuple(saved["fresh"]), "in_place": tuple(saved["in_place"])})


def unpack(data: memoryview, function: Function, folder: Path | None) -> tuple[Any, tuple[Constant, ...], dict[str, Any]]:
    """Return code, constants and details that `packed` wrote, for an equal Function."""
    if folder is None:
        raise CompileRefused("TVM loads a library from a file, and there is no working directory")
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(bytes(data[8:start]))
    end = start + header["library"]
    (folder / _LIBRARY).write_bytes(data[start:end])
    code = load_module(str(folder / _LIBRARY))
    stored = data[end + -end % ALIGNMENT :]
    own = _in_order(function)
    constants = tuple(own[e["place"]] if "place" in e else _stored(e, stored) for e in header["constants"])
    return code, constants, header


def _stored(entry: Mapping[str, Any], data: memoryview) -> Constant:
    content = np.frombuffer(data[entry["at"] : entry["at"] + entry["size"]], np.uint8)
    return Constant(content.view(DType.parse(entry["dtype"]).numpy).reshape(entry["shape"]))
