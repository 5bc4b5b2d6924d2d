"""IREE's compiler, in a process of its own for each call.

The compiler is a library of 350 MB that ends the process on some inputs and takes minutes over others. As a process it starts in
10 ms, answers a question after 80, compiles a small graph in 500, and a crash or a limit does no harm.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from xrt.engines.iree.errors import describe_exit, summarize_error
from xrt.errors import CompileRefused
from xrt.processes import run

__all__ = ["BINARY", "VERSION", "CompilerFlags", "compile_module", "lower_module"]


def _binary() -> Path:
    spec = find_spec("iree.compiler")  # which loads none of it
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'iree.compiler'", name="iree.compiler")
    return Path(spec.origin).parent / "_mlir_libs" / "iree-compile"


BINARY = _binary()
VERSION = version("iree-base-compiler")

ALIGNMENT = 16
"""What compiled code takes of the address of each buffer: NumPy's arrays have it, where IREE's own 64 would mean a copy."""

QUESTION_SECONDS = 60.0
"""The limit for one question."""

# What depends on constants alone is computed in each call, and not hoisted into memory of the module's: IREE 3.13 gives two
# hoisted values one place (`scattered_by_constants` of the corpus), now and then, so that each reads the other's bytes.
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


@dataclass(frozen=True, slots=True)
class CompilerFlags:
    """How to compile."""

    opt_level: int = 2
    """IREE's ``O0`` to ``O3``."""
    limit: float = 120.0
    """Seconds after which the compiler is stopped."""
    threads: int = 1
    """With one, the compiler starts none of its own; otherwise it takes what the system has."""
    dump: Path | None = None
    """Where the MLIR of every phase is written."""

    @property
    def flags(self) -> tuple[str, ...]:
        dump = () if self.dump is None else (f"--dump-compilation-phases-to={self.dump.absolute()}",)
        alone = ("--mlir-disable-threading",) if self.threads == 1 else ()
        return (*_TARGET, f"--iree-opt-level=O{self.opt_level}", *alone, *dump)


def compile_module(text: str, settings: CompilerFlags, folder: Path | None) -> bytes:
    """Return the module compiled for IREE's virtual machine; temporary files of the compiler's go to the folder.

    Raises CompileRefused with the reason where the compiler finds none, crashes, or takes longer than the limit.
    """
    done = _run(text, settings.flags, settings.limit, folder)
    if done.returncode:
        raise CompileRefused(f"IREE cannot compile it: {_reason(done)}")
    return done.stdout


def lower_module(texts: Sequence[str], names: Sequence[str]) -> list[str | None]:
    """Return for each module, whose one function has that name, why IREE cannot lower it to loops; None where it can.

    All are asked at once, 80 ms and some for each; those that fail once more each, for its own reason.
    """
    if len(texts) == 1:
        return [_answer(texts[0])]
    try:
        done = _run("\n// -----\n".join(texts), (*_QUESTION, "--split-input-file"), QUESTION_SECONDS, None)
    except CompileRefused:
        done = None
    known = set() if done is None else set(re.findall(r"util\.func public @(\w+)\(", done.stdout.decode()))
    return [None if name in known else _answer(text) for text, name in zip(texts, names, strict=True)]


_QUESTION = (*_TARGET, "--compile-to=input", "--mlir-disable-threading")


def _answer(text: str) -> str | None:
    try:
        done = _run(text, _QUESTION, QUESTION_SECONDS, None)
    except CompileRefused as refusal:
        return str(refusal)
    return _reason(done) if done.returncode else None


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    said = done.stderr.decode(errors="replace")
    return summarize_error(said) if done.returncode > 0 or "ERROR: " in said else describe_exit(done.returncode)


_HERE = "/proc/self/cwd"
"""The current directory by a name that needs no quoting: the compiler puts names of temporary files, unquoted, into the command
line of its linker."""


def _run(text: str, flags: Sequence[str], limit: float, folder: Path | None) -> subprocess.CompletedProcess[bytes]:
    """Run the compiler on a text; raises CompileRefused when it has not ended in time, and stops it then."""
    command = [str(BINARY), *flags, "-", "-o", "-"]
    place = folder or Path(tempfile.gettempdir())
    environment = {**os.environ, "TMPDIR": _HERE if Path(_HERE).exists() else str(place)}
    try:
        return run(command, text.encode(), limit, environment=environment, cwd=place)
    except subprocess.TimeoutExpired:
        raise CompileRefused(f"IREE's compiler did not end within {limit:g} s") from None
