"""Compile a region in a subprocess, which writes to a temporary folder."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from xrt.engines.toolkit.shared_values import put_function
from xrt.engines.torch.dtypes import summarize_error
from xrt.errors import CompileRefused
from xrt.formats.output import map_file
from xrt.processes.client import RemoteError, WorkerFailure, WorkerProcess
from xrt.processes.ipc import SharedBuffer

if TYPE_CHECKING:
    from xrt.engines.contract.options import CompileContext
    from xrt.graph import Function


@cache
def why_no_compiler() -> str | None:
    """Explain why Inductor cannot compile C++ here; None if it can."""
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is not None:
        return None
    return f"mode=inductor compiles C++, and there is no {compiler}: install it, or name another by the variable CXX"


def compile_function(function: Function, context: CompileContext) -> memoryview:
    """Compile a Function to a library that contains its weights; raises CompileRefused with the reason."""
    if reason := why_no_compiler():
        raise CompileRefused(reason)
    with tempfile.TemporaryDirectory(prefix="inductor-", dir=context.workdir) as folder:
        buffer = SharedBuffer()
        request = {"function": put_function(buffer, function), "threads": context.threads, "folder": folder}
        variables = {"TMPDIR": folder, "OMP_NUM_THREADS": str(context.threads)}
        worker = WorkerProcess("xrt.engines.torch.inductor.compiler_process:main", environment=variables)
        try:
            answer, _ = worker.ask(request, buffer)
            with Path(answer["library"]).open("rb") as library:
                return map_file(library.fileno())  # the mapping outlives the folder
        except RemoteError as error:
            raise CompileRefused(f"Inductor cannot compile {function.name!r}: {summarize_error(error)}") from error
        except WorkerFailure as error:
            raise CompileRefused(f"Inductor's process failed at {function.name!r}: {error}") from error
        finally:
            worker.end()
