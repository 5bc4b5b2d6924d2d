"""Run IREE's compiler in a separate process.

The compiler is a library of 350 MB that crashes its process on some inputs, and takes minutes for others. A separate process can
crash, or be stopped at a time limit, without harm. It starts in 20 ms and compiles a small graph in 500 ms.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from xrt.engines.toolkit.libraries import shorten
from xrt.errors import CompileRefused
from xrt.processes import name_signal, run

LIBRARY = "IREE"
MAX_SUMMARY_LENGTH = 200
_NO_LOWERING_RULE = "it has no rule to lower this"


def summarize_error(output: str) -> str:
    """Shorten the compiler's output to its first error, without source locations: these refer to a pipe."""
    lines = output.splitlines()
    # If MLIR reports no error, the first line with text is an error of the linker or the system's loader.
    errors = [line for line in lines if "error: " in line or "ERROR: " in line] or [line for line in lines if line.strip()]
    text = errors[0].strip() if errors else "it gives no reason"
    # MLIR's message for an operator without a rule contains the whole operator with its types: keep only the name.
    if match := re.search(r'failed to legalize operation \'torch\.operator\'.*name = "onnx\.(\w+)"', text):
        return f"{_NO_LOWERING_RULE} {match[1]}"
    text = re.sub(r"^.*?(?:error|ERROR): ", "", text)
    text = re.sub(r"^(failed to legalize operation '[\w.]+').*$", r"\1", text)
    return shorten(text, MAX_SUMMARY_LENGTH)


def _find_binary() -> Path:
    spec = find_spec("iree.compiler")  # does not load the library
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'iree.compiler'", name="iree.compiler")
    return Path(spec.origin).parent / "_mlir_libs" / "iree-compile"


BINARY = _find_binary()
VERSION = version("iree-base-compiler")
OPT_BINARY = BINARY.with_name("iree-opt")
ALIGNMENT = 16
"""Compiled code requires buffers at addresses that are multiples of this number. NumPy's arrays are aligned to 16 bytes, so with
IREE's default of 64 arrays would be copied."""
QUERY_SECONDS = 60.0
"""Time limit of one run of the compiler that only checks whether nodes are supported."""
# Hoisting of constant expressions is off, because IREE 3.13 sometimes stores two hoisted values at the same address
# (`scattered_by_constants` of the corpus).
_TARGET_FLAGS = (
    "--iree-opt-const-expr-hoisting=false",
    "--iree-opt-const-eval=false",
    "--iree-input-type=onnx",
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
    "--iree-input-demote-f64-to-f32=false",  # which IREE does by default
    f"--iree-stream-resource-min-offset-alignment={ALIGNMENT}",
)


def compile_module(source: str, opt_level: int, time_limit: float, threads: int, folder: Path | None) -> bytes:
    """Compile MLIR to a module for IREE's virtual machine, and return its bytes.

    ``opt_level`` is IREE's level 0 to 3, and ``time_limit`` is in seconds. If ``threads`` is 1 the compiler runs on one thread,
    otherwise on all cores. It writes temporary files to ``folder``. Raises CompileRefused if the compiler fails, crashes or
    exceeds the time limit.
    """
    single_threaded = ("--mlir-disable-threading",) if threads == 1 else ()
    # Input and output are pipes, so only the linker of the process writes files.
    process = _run(source, (*_TARGET_FLAGS, f"--iree-opt-level=O{opt_level}", *single_threaded), time_limit, folder, BINARY)
    if process.returncode:
        raise CompileRefused(f"IREE cannot compile it: {_explain_failure(process)}")
    return process.stdout


def why_not_lowerable(modules: Sequence[str], function_names: Sequence[str]) -> list[str | None]:
    """For each MLIR module, explain why IREE cannot lower it to loops; None if it can.

    Each module has a single function, named as in ``function_names``. All modules are lowered in one run of the compiler. Modules
    that fail are lowered again one by one, to get their errors.
    """
    lowered: set[str] = set()
    # If this run crashes or exceeds the time limit, all modules are lowered one by one.
    if len(modules) > 1:
        with suppress(CompileRefused):
            process = _run(
                "\n// -----\n".join(modules), (*_LOWERING_FLAGS, "--split-input-file"), QUERY_SECONDS, None, OPT_BINARY
            )
            lowered.update(re.findall(r"util\.func public @(\w+)\(", process.stdout.decode()))
    return [None if name in lowered else _why_not_lowered(source) for source, name in zip(modules, function_names, strict=True)]


_LOWERING_FLAGS = (
    "--pass-pipeline=builtin.module(func.func(convert-torch-onnx-to-torch),torch-to-iree)",
    "--mlir-disable-threading",
)
"""The first passes of a compile, without shape inference, which parses a library of shape functions and takes 60 of 80 ms."""
_COMPILE_TO_INPUT_FLAGS = (*_TARGET_FLAGS, "--compile-to=input", "--mlir-disable-threading")


def _why_not_lowered(source: str) -> str | None:
    """Explain why IREE cannot lower a module, with or without shape inference; None if it can."""
    reason = None
    for flags, binary in ((_LOWERING_FLAGS, OPT_BINARY), (_COMPILE_TO_INPUT_FLAGS, BINARY)):
        try:
            process = _run(source, flags, QUERY_SECONDS, None, binary)
        except CompileRefused as error:
            return str(error)
        if not process.returncode:
            return None
        reason = _explain_failure(process)
        # Inferred shapes do not help an operator without a rule, so skip the slower trial.
        if reason.startswith(_NO_LOWERING_RULE):
            break
    return reason


def _explain_failure(process: subprocess.CompletedProcess[bytes]) -> str:
    output = process.stderr.decode(errors="replace")
    if process.returncode < 0 and "ERROR: " not in output:
        return f"it crashed ({name_signal(-process.returncode)})"
    return summarize_error(output)


_CURRENT_FOLDER = "/proc/self/cwd"
"""A path of the working directory without spaces: the compiler does not quote the paths that it passes to its linker."""


def _run(
    source: str, flags: Sequence[str], time_limit: float, folder: Path | None, binary: Path
) -> subprocess.CompletedProcess[bytes]:
    """Run a program of the compiler on a module; stop it and raise CompileRefused at the time limit (in seconds)."""
    command = [str(binary), *flags, "-", "-o", "-"]
    working_folder = folder or Path(tempfile.gettempdir())
    environment = {**os.environ, "TMPDIR": _CURRENT_FOLDER if Path(_CURRENT_FOLDER).exists() else str(working_folder)}
    try:
        return run(command, source.encode(), time_limit, environment=environment, cwd=working_folder)
    except subprocess.TimeoutExpired:
        raise CompileRefused(f"IREE's compiler exceeded the time limit of {time_limit:g} s") from None
