"""A program for CUDA as bytes: machine code and all, so that a later process needs no NVRTC."""

from __future__ import annotations

from pathlib import Path

from xrt.engines.tvm.cuda.code import DeviceProgram
from xrt.engines.tvm.saving import packed, unpacked
from xrt.graph import DType, Function, TensorType

__all__ = ["exported", "imported_program"]


def exported(program: DeviceProgram, function: Function, folder: Path | None) -> bytes:
    """Return a program that was compiled from the Function, as `imported_program` reads it; the folder is written to.

    Raises CompileRefused where no C compiler is at hand, or no folder.
    """
    made = [[str(type_.dtype), type_.shape] for type_ in program.made]
    details = {"workspace": program.workspace, "made": made, "results": program.results}
    return packed(program.code, program.constants, details, function, folder)


def imported_program(data: memoryview, function: Function, folder: Path | None) -> DeviceProgram:
    """Return the program that `exported` wrote, for an equal Function; its checksum has been checked."""
    code, constants, details = unpacked(data, function, folder)
    made = tuple(TensorType(DType.parse(dtype), tuple(shape)) for dtype, shape in details["made"])
    return DeviceProgram(code, constants, tuple(details["workspace"]), made, tuple(details["results"]))
