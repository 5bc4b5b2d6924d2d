"""A program for CUDA as bytes: machine code and all, so that a later process needs no NVRTC."""

from __future__ import annotations

from pathlib import Path

from xrt.engines.tvm.cuda.codegen import DeviceProgram
from xrt.engines.tvm.serialization import pack, unpack
from xrt.graph import DType, Function, TensorType

__all__ = ["export_program", "load_program"]


def export_program(program: DeviceProgram, function: Function, folder: Path | None) -> bytes:
    """Return a program that was compiled from the Function, as `load_program` reads it; the folder is written to.

    Raises CompileRefused if there is no C compiler, or no folder.
    """
    made = [[str(type_.dtype), type_.shape] for type_ in program.made]
    details = {"workspace": program.workspace, "made": made, "results": program.results}
    return pack(program.code, program.constants, details, function, folder)


def load_program(data: memoryview, function: Function, folder: Path | None) -> DeviceProgram:
    """Return the program that `exported` wrote, for an equal Function; its checksum has been checked."""
    code, constants, details = unpack(data, function, folder)
    made = tuple(TensorType(DType.parse(dtype), tuple(shape)) for dtype, shape in details["made"])
    return DeviceProgram(code, constants, tuple(details["workspace"]), made, tuple(details["results"]))
