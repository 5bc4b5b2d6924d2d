"""Serialize a compiled program: a shared library, and the constants that it is called with.

Linking the library needs a C compiler. TVM's ``.tar`` format needs none, but cannot be loaded. A constant that the Function
contains is stored as its index in the Function, without data. The format:

8 bytes      length of the header in bytes
header       JSON: the fields of the program except its code, and the length of the library in bytes
library
constants    only those that the Function does not contain, each at a multiple of 64 bytes
"""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import tvm
from tvm.support import cc
from tvm_ffi import load_module

from xrt.errors import CompileRefused
from xrt.graph import Constant, DType, Function

if TYPE_CHECKING:
    from xrt.engines.tvm.cuda import DeviceProgram
    from xrt.engines.tvm.pipeline import TvmProgram

_LIBRARY_NAME = "library.so"


def link(code: Any, folder: Path) -> bytes:
    """Link a module and its imports to a shared library, like `Module.export_library`, and return the library's bytes.

    ``folder`` receives the object files and the library. Raises CompileRefused if there is no C compiler, if this system has no
    in-memory files, or if the module contains no object code. Raises OSError if the linker fails, as on a full disk.
    """
    if cc.get_cc() is None:
        raise CompileRefused("TVM needs a C compiler to export code, and there is none; install gcc or clang")
    if reason := _why_not_in_memory():
        raise CompileRefused(f"LLVM ends the process if it cannot write a file, and {reason}")
    # `Module.export_library` would let LLVM write the files, and LLVM ends the process if a write fails.
    objects = []
    for index, module in enumerate(_iter_modules(getattr(code, "mod", code))):
        objects.append(folder / f"{index}.o")
        objects[-1].write_bytes(_write_object(module))
    library = folder / _LIBRARY_NAME
    try:
        cc.create_shared(str(library), list(map(str, objects)))
    except RuntimeError as error:
        raise OSError(f"the C compiler could not link in {str(folder)!r}: {' '.join(str(error).split())[-300:]}") from error
    return library.read_bytes()


def _iter_modules(root: Any) -> Iterator[Any]:
    """Yield the modules to link: those with object code, then one that embeds the other imports, such as CUDA binaries."""
    targets = set()
    for module in root._collect_dso_modules():
        if module.kind != "llvm":  # TVM generates C source instead of object code for a Function that computes nothing
            raise CompileRefused(f"TVM writes no object file for a module of kind {module.kind!r}, which has no code")
        targets.add(module.get_function("_get_target_string")())
        yield module
    if root.imports:
        pack = tvm.get_global_func("runtime.ModulePackImportsToLLVM")
        yield pack(root, False, sorted(targets)[0], "")


def _why_not_in_memory() -> str | None:
    """Explain why this process cannot write in-memory files of any size; None if it can."""
    if not hasattr(os, "memfd_create") or not Path("/proc/self/fd").is_dir():
        return "this system has no files in memory"
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if limit == resource.RLIM_INFINITY else f"this one may not write files over {limit} bytes (ulimit -f)"


def _write_object(module: Any) -> bytes:
    descriptor = os.memfd_create("xrt-object")
    with os.fdopen(descriptor, "rb") as file:
        module.write_to_file(f"/proc/self/fd/{descriptor}", "o")
        return file.read()


ALIGNMENT = 64
"""Offsets of constants are multiples of this number of bytes."""
Program = TypeVar("Program", "TvmProgram", "DeviceProgram")


def save_program(program: TvmProgram | DeviceProgram, function: Function, folder: Path | None) -> bytes:
    """Serialize a program for `load_program`.

    ``function`` is the Function that the program was compiled from: its constants are stored by index. Temporary files are
    written to ``folder``. Raises CompileRefused if that is None, or if there is no C compiler.
    """
    if folder is None:
        raise CompileRefused("TVM exports through a file, and there is no working directory")
    library = link(program.code, folder)
    entries, parts = _describe_constants(program.constants, function)
    details = {field.name: getattr(program, field.name) for field in fields(program) if field.name != "code"}
    text = json.dumps({**details, "constants": entries, "library": len(library)}).encode()
    start = len(text).to_bytes(8, "little") + text + library
    return b"".join([start, bytes(-len(start) % ALIGNMENT), *parts])


def _describe_constants(constants: tuple[Constant, ...], function: Function) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Return the header entry of each constant, and the padded bytes of those constants that are not in the Function.

    An entry is ``{"index": index}`` for a constant of the Function. For others it has the dtype, shape, offset and size in bytes.
    """
    indices: dict[bytes, int] = {}
    for index, constant in enumerate(_list_constants(function)):
        indices.setdefault(constant.digest, index)  # equal constants have the index of the first one
    entries: list[dict[str, Any]] = []
    parts: list[bytes] = []
    for constant in constants:
        if constant.digest in indices:
            entries.append({"index": indices[constant.digest]})
            continue
        content = constant.array.tobytes()
        offset = sum(map(len, parts))
        entries.append({"dtype": str(constant.dtype), "shape": constant.shape, "offset": offset, "nbytes": len(content)})
        parts.append(content + bytes(-len(content) % ALIGNMENT))
    return entries, parts


def _list_constants(function: Function) -> list[Constant]:
    """List the Function's constants in the order of first use, which is the same for equal Functions."""
    used = dict.fromkeys(name for node in function.nodes for name in node.uses if name in function.constants)
    used.update(dict.fromkeys(v.name for v in function.outputs if v.name in function.constants))
    return [function.constants[name] for name in used]


def load_program(kind: type[Program], data: memoryview, function: Function, folder: Path | None) -> Program:
    """Load a program of class ``kind`` that `save_program` serialized for an equal Function.

    The library is written to ``folder``. The caller has verified the checksum of ``data``.
    """
    if folder is None:
        raise CompileRefused("TVM loads a library from a file, and there is no working directory")
    # The layout is that of `save_program`: the header's length, the header, the library, padding, the stored constants.
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(bytes(data[8:start]))
    end = start + header.pop("library")
    # The system can only load a library from a file. The library stays mapped after the folder is removed.
    (folder / _LIBRARY_NAME).write_bytes(data[start:end])
    # By default TVM never unmaps a library: each load would leak 36 KB and 5 of the 65,530 mappings that Linux allows.
    code = load_module(str(folder / _LIBRARY_NAME), keep_module_alive=False)
    stored = data[end + -end % ALIGNMENT :]  # after the padding
    ordered = _list_constants(function)
    entries = header.pop("constants")
    constants = [ordered[entry["index"]] if "index" in entry else _read_constant(entry, stored) for entry in entries]
    # JSON has no tuples.
    details: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in header.items()}
    return kind(code, tuple(constants), **details)


def _read_constant(entry: Mapping[str, Any], data: memoryview) -> Constant:
    content = np.frombuffer(data[entry["offset"] : entry["offset"] + entry["nbytes"]], np.uint8)
    return Constant(content.view(DType.parse(entry["dtype"]).numpy).reshape(entry["shape"]))
