"""A compiled module as a shared library, without a moment in which a full disk could end the process.

LLVM writes an object file itself, and where it cannot it ends the process: no exception, exit status 1. So it writes to
files in memory. From there on it is Python that writes, and a child that links, whose failures are errors.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tvm
from tvm.support import cc

from xrt.errors import CompileRefused

__all__ = ["link"]

_LIBRARY = "library.so"


def link(code: Any, folder: Path) -> bytes:
    """Return a module and what it imports as the bytes of a shared library, as `Module.export_library` makes it.

    The folder is written to. Raises CompileRefused where there is no C compiler, which serves as the linker, no file in
    memory or no code, and OSError where the folder has no room.
    """
    if cc.get_cc() is None:
        raise CompileRefused("TVM exports by way of a C compiler, and none is at hand; install gcc or clang")
    if reason := _why_not_in_memory():
        raise CompileRefused(f"LLVM ends the process where it cannot write a file, and {reason}")
    objects = []
    for index, module in enumerate(_modules(getattr(code, "mod", code))):
        objects.append(folder / f"{index}.o")
        objects[-1].write_bytes(_object(module))
    library = folder / _LIBRARY
    try:
        cc.create_shared(str(library), list(map(str, objects)))
    except RuntimeError as error:
        raise OSError(f"the C compiler could not link in {str(folder)!r}: {' '.join(str(error).split())[-300:]}") from error
    return library.read_bytes()


def _modules(root: Any) -> Iterator[Any]:
    """Yield the modules that are object files: those with code, and what the root and all else it imports is packed into."""
    targets = set()
    for module in root._collect_dso_modules():
        if module.kind != "llvm":  # TVM makes a source file, without code, of a Function that computes nothing
            raise CompileRefused(f"TVM writes no object file of a module of kind {module.kind!r}, which has no code")
        targets.add(module.get_function("_get_target_string")())
        yield module
    if root.imports:
        pack = tvm.get_global_func("runtime.ModulePackImportsToLLVM")
        yield pack(root, False, sorted(targets)[0], "")


def _why_not_in_memory() -> str | None:
    """Return why a file in memory may not take an object of any size; None where it may."""
    if not hasattr(os, "memfd_create") or not Path("/proc/self/fd").is_dir():
        return "this system has no files in memory"
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if limit == resource.RLIM_INFINITY else f"this one may write none of more than {limit} bytes (ulimit -f)"


def _object(module: Any) -> bytes:
    """Return what LLVM makes of a module."""
    number = os.memfd_create("xrt-object")
    with os.fdopen(number, "rb") as file:
        module.write_to_file(f"/proc/self/fd/{number}", "o")
        return file.read()
