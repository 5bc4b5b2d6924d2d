"""The subprocess that compiles one Function to a shared library and exits."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch

from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.engines.toolkit.shared_values import read_function
from xrt.engines.torch.inductor.support import ProgramModule, SizeHints
from xrt.engines.torch.program import make_program
from xrt.errors import CompileRefused
from xrt.graph import Function, TensorType, Type
from xrt.passes import fold_constants, infer_shapes
from xrt.processes.ipc import Message
from xrt.processes.server import Request, serve

_USERS = ("TORCHINDUCTOR_", "AOT_INDUCTOR_", "AOTINDUCTOR_", "TORCH_COMPILE_")
"""Prefixes of environment variables that configure the user's own compiles; they are no part of the cache key."""

SETTINGS: dict[str, Any] = {
    "freezing": True,
    "compile_threads": 1,
    "emulate_precision_casts": True,
    "fx_graph_cache": False,
    "autotune_local_cache": False,
    "aot_inductor.precompile_headers": False,
    "aot_inductor.enable_line_tables": False,
    "aot_inductor.enable_frame_pointer": False,
}
"""Fold and pack weights, in a single process; round half precision after each operator, as ONNX specifies."""


def compile_library(function: Function, threads: int, folder: Path) -> Path:
    """Compile a Function to a library in the folder; raises errors of PyTorch."""
    function = fold_constants(infer_shapes(function), evaluate)
    hints = SizeHints()
    dims: dict[str, Any] = {}
    examples = tuple(hints.make_example(value.type) for value in function.inputs)
    shapes = [_name_dims(value.type, dims) for value in function.inputs]
    module = ProgramModule(make_program(function))
    torch.set_num_threads(threads)
    with torch.no_grad():
        program = torch.export.export(module, examples, dynamic_shapes=(tuple(shapes),), strict=False)
        settings = SETTINGS | {"cpp.threads": 1, "aot_inductor.output_path": str(folder / "region.so")}
        if threads > 1:  # the thread count of a call is OpenMP's, which the caller sets
            settings |= {"cpp.threads": threads, "cpp.dynamic_threads": True}
        output = torch._inductor.aot_compile(program.module(), examples, options=settings)
    if called := sorted(_list_python_calls(folder)):
        raise CompileRefused(f"its code would call back to Python for {', '.join(called)}")
    return Path(output if isinstance(output, str) else output[-1])


def _name_dims(type_: Type | None, dims: dict[str, Any]) -> dict[int, Any] | None:
    """Dimensions for torch.export: equal symbols share one dimension."""
    assert isinstance(type_, TensorType)
    assert type_.shape is not None
    axes = {}
    for axis, dim in enumerate(type_.shape):
        if dim is None:
            axes[axis] = torch.export.Dim.DYNAMIC
        elif isinstance(dim, str):
            axes[axis] = dims.setdefault(dim, torch.export.Dim(f"d{len(dims)}"))
    return axes or None


def _list_python_calls(folder: Path) -> set[str]:
    """Operators without a C interface, which Inductor lists in a file next to its code."""
    lists = [file for file in folder.rglob("*.json") if not file.name.endswith("_metadata.json")]
    return {entry["node"]["target"] for file in lists for entry in json.loads(file.read_text())["nodes"]}


def main(handle: str) -> None:
    """Serve one request on the socket with this handle."""
    for name in [name for name in os.environ if name.startswith(_USERS)]:
        del os.environ[name]

    def answer(request: Request) -> Message:
        message = request.message
        function = read_function(request.memory, message["function"])
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = message["folder"]
        return {"library": str(compile_library(function, message["threads"], Path(message["folder"])))}

    serve(handle, answer)
