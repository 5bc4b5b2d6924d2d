"""Run IREE's compiler as a process.

The compiler is a library of 350 MB that ends its process on some inputs and takes minutes on others. As a separate process it
starts in 20 ms, compiles a small graph in 500 ms, and a crash or time limit does no harm.
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
LONGEST = 200
_NO_RULE = "it has no rule to lower this"


def summarize_error(output: str) -> str:
    """The first error in the compiler's output, without positions in a file that does not exist."""
    lines = output.splitlines()
    # Without an error of MLIR, the first line is the linker's or the loader's.
    errors = [line for line in lines if "error: " in line or "ERROR: " in line] or [line for line in lines if line.strip()]
    text = errors[0].strip() if errors else "it gives no reason"
    unknown = re.search(r'failed to legalize operation \'torch\.operator\'.*name = "onnx\.(\w+)"', text)
    # The message would be the whole operator with its types.
    if unknown:
        return f"{_NO_RULE} {unknown[1]}"
    text = re.sub(r"^.*?(?:error|ERROR): ", "", text)
    text = re.sub(r"^(failed to legalize operation '[\w.]+').*$", r"\1", text)
    return shorten(text, LONGEST)


def describe_exit(code: int) -> str:
    """Describe an exit status, for a process without an error message."""
    return f"it crashed ({name_signal(-code)})" if code < 0 else f"it ended with status {code}"


def _find_binary() -> Path:
    spec = find_spec("iree.compiler")  # does not load the library
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'iree.compiler'", name="iree.compiler")
    return Path(spec.origin).parent / "_mlir_libs" / "iree-compile"


BINARY = _find_binary()
VERSION = version("iree-base-compiler")
OPT = BINARY.with_name("iree-opt")
ALIGNMENT = 16
"""Alignment of buffers in compiled code. NumPy's arrays have it; IREE's default of 64 would require copies."""
QUERY_SECONDS = 60.0
"""Time limit of a query."""
# No hoisting of constant expressions into the module: IREE 3.13 sometimes places two hoisted values at the same address
# (`scattered_by_constants` of the corpus).
_TARGET = (
    "--iree-opt-const-expr-hoisting=false",
    "--iree-opt-const-eval=false",
    "--iree-input-type=onnx",
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
    "--iree-input-demote-f64-to-f32=false",  # which IREE does by default
    f"--iree-stream-resource-min-offset-alignment={ALIGNMENT}",
)


def compile_module(text: str, opt_level: int, limit: float, threads: int, folder: Path | None) -> bytes:
    """Compile a module for IREE's virtual machine at IREE's level ``O0`` to ``O3``, within ``limit`` seconds.

    With one thread the compiler is single-threaded; otherwise it uses all cores. Its temporary files go to ``folder``. Raises
    CompileRefused with the reason if the compiler fails, crashes or exceeds the time limit.
    """
    single_threaded = ("--mlir-disable-threading",) if threads == 1 else ()
    # The module goes in and comes out by pipes: the process leaves no file but those of its linker.
    process = _run(text, (*_TARGET, f"--iree-opt-level=O{opt_level}", *single_threaded), limit, folder, BINARY)
    if process.returncode:
        raise CompileRefused(f"IREE cannot compile it: {_explain_failure(process)}")
    return process.stdout


def lower_module(texts: Sequence[str], names: Sequence[str]) -> list[str | None]:
    """For each module of one named function, the reason why IREE cannot lower it to loops; None if it can.

    All modules are lowered in one call; those that fail are lowered again, one by one, for their reasons.
    """
    lowered: set[str] = set()
    # A crash or the time limit in this call decides nothing: each module is then lowered alone.
    if len(texts) > 1:
        with suppress(CompileRefused):
            process = _run("\n// -----\n".join(texts), (*_LOWERING, "--split-input-file"), QUERY_SECONDS, None, OPT)
            lowered.update(re.findall(r"util\.func public @(\w+)\(", process.stdout.decode()))
    return [None if name in lowered else _why_not_lowered(text) for text, name in zip(texts, names, strict=True)]


_LOWERING = (
    "--pass-pipeline=builtin.module(func.func(convert-torch-onnx-to-torch),torch-to-iree)",
    "--mlir-disable-threading",
)
"""The passes of a compile without the refinement of shapes, which parses a library of shape functions: 60 of 80 ms."""
_COMPILING = (*_TARGET, "--compile-to=input", "--mlir-disable-threading")


def _why_not_lowered(text: str) -> str | None:
    """Try without refined shapes, then with them, which lowers a few more; an operator without a rule fails for good."""
    reason = None
    for flags, binary in ((_LOWERING, OPT), (_COMPILING, BINARY)):
        try:
            process = _run(text, flags, QUERY_SECONDS, None, binary)
        except CompileRefused as refusal:
            return str(refusal)
        if not process.returncode:
            return None
        reason = _explain_failure(process)
        # Known shapes do not help: this saves the slower of the two trials.
        if reason.startswith(_NO_RULE):
            break
    return reason


def _explain_failure(process: subprocess.CompletedProcess[bytes]) -> str:
    output = process.stderr.decode(errors="replace")
    return summarize_error(output) if process.returncode > 0 or "ERROR: " in output else describe_exit(process.returncode)


_CURRENT_FOLDER = "/proc/self/cwd"
"""The current directory under a name without spaces: the compiler passes names of temporary files unquoted to its linker."""


def _run(text: str, flags: Sequence[str], limit: float, folder: Path | None, binary: Path) -> subprocess.CompletedProcess[bytes]:
    """Run a program of the compiler; stop it and raise CompileRefused at the time limit."""
    command = [str(binary), *flags, "-", "-o", "-"]
    place = folder or Path(tempfile.gettempdir())
    environment = {**os.environ, "TMPDIR": _CURRENT_FOLDER if Path(_CURRENT_FOLDER).exists() else str(place)}
    try:
        return run(command, text.encode(), limit, environment=environment, cwd=place)
    except subprocess.TimeoutExpired:
        raise CompileRefused(f"IREE's compiler did not end within {limit:g} s") from None
