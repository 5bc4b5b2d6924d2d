"""Regions compiled by Inductor, PyTorch's compiler, to a shared library that contains the weights.

The compile runs in a subprocess, because Inductor changes state, folders and environment variables of its process. A node is
supported if its kernel can be traced: if neither the operators that it calls nor the shapes of its results depend on data.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import shutil
import sys
import tempfile
from _ctypes import dlclose
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from xrt.engines.contract.graph_compiler import MemoryUse
from xrt.engines.toolkit.known_issues import match_known_issue
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.engines.toolkit.shared_values import put_function, read_function
from xrt.engines.torch.dtypes import get_torch_dtype, summarize_error
from xrt.engines.torch.executable import TorchExecutable
from xrt.engines.torch.program import TensorProgram, make_program
from xrt.engines.torch.tables import GAPS
from xrt.errors import CompileRefused, RunFailed
from xrt.formats.output import map_file
from xrt.graph import Dim, Function, Node, TensorType, Type
from xrt.graph.node import DOMAIN
from xrt.operators import as_function
from xrt.passes import fold_constants, infer_shapes
from xrt.processes.client import RemoteError, WorkerFailure, WorkerProcess
from xrt.processes.ipc import Message, Request, SharedBuffer, serve

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from xrt.engines.contract.options import CompileContext


# ---------------------------------------------------------------------- support


@cache
def why_no_compiler() -> str | None:
    """Explain why Inductor cannot compile C++ here; None if it can."""
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is not None:
        return None
    return f"mode=inductor compiles C++, and there is no {compiler}: install it, or name another by the variable CXX"


_CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def why_not(node: Node, function: Function) -> str | None:
    """Explain why Inductor does not support a node that has a kernel; None if it does."""
    if reason := why_no_compiler():
        return reason
    if node.domain == DOMAIN:
        return "mode=inductor leaves operators of PyTorch's own to mode=eager"
    for name in (*node.uses, *filter(None, node.outputs)):
        type_ = function.get_type(name)
        if not isinstance(type_, TensorType):
            return f"mode=inductor compiles tensors alone, and {name!r} is {type_}"
        if type_.shape is None:
            return f"mode=inductor needs the number of dimensions of {name!r}"
    return match_known_issue(GAPS, node, function) or _why_not_traced(as_function(node, function))


@lru_cache(maxsize=4096)
def _why_not_traced(isolated: Function) -> str | None:
    """Call `why_not_traced` and restore the environment variables.

    The first trace creates Inductor's folder and stores its name in a variable. Set the variable to an existing folder and
    remove it afterwards, so that the caller's own compiles use their usual folder.
    """
    is_set = _CACHE_VARIABLE in os.environ
    if not is_set:
        os.environ[_CACHE_VARIABLE] = tempfile.gettempdir()
    try:
        return why_not_traced(isolated)
    finally:
        if not is_set:
            os.environ.pop(_CACHE_VARIABLE, None)


HINTS = (5, 7, 11, 13, 17, 19, 23, 29)
"""Sizes of symbolic dims while tracing: distinct, and neither 0 nor 1, which PyTorch specializes."""


class SizeHints(dict[str, int]):
    """A size per symbol, chosen on first use; each unknown dimension gets another one."""

    def choose(self, dim: Dim) -> int:
        """The size to trace a dimension with: its extent, or a hint per symbol."""
        if isinstance(dim, int):
            return dim
        symbol = f"?{len(self)}" if dim is None else dim
        return self.setdefault(symbol, HINTS[len(self) % len(HINTS)] + len(self) // len(HINTS) * 31)

    def make_example(self, type_: Type | None) -> torch.Tensor:
        """A tensor of zeros of the type."""
        assert isinstance(type_, TensorType)  # checked by `why_not`
        assert type_.shape is not None
        return torch.zeros([self.choose(dim) for dim in type_.shape], dtype=get_torch_dtype(type_.dtype))


class ProgramModule(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    """A program as a module whose buffers are its constants, which a compiler may fold and pack."""

    def __init__(self, program: TensorProgram) -> None:
        super().__init__()
        self.program = program
        self.slots = [slot for slot, value in enumerate(program.template) if isinstance(value, torch.Tensor)]
        for slot in self.slots:
            self.register_buffer(f"constant{slot}", program.template[slot])

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        """Compute the outputs; constants and inputs among them are copied."""
        template = list(self.program.template)
        for slot in self.slots:
            template[slot] = getattr(self, f"constant{slot}")
        return tuple(replace(self.program, template=tuple(template))(inputs))


_TRACE_ERRORS = {
    "DataDependentOutputException": "it reads numbers that only a call shows",
    "DynamicOutputShapeException": "it gives results whose sizes only a call shows",
}
"""Reasons by the name of PyTorch's error."""


def why_not_traced(isolated: Function) -> str | None:
    """Explain why the single node of a Function cannot be traced; None if it can."""
    # These import SymPy, which takes half a second that a load of a compiled library does not need.
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    (node,) = isolated.nodes
    hints = SizeHints()
    shapes = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
    try:
        program = make_program(isolated)
        with _suppress_log(), FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True) as mode, torch.no_grad():
            inputs = [_make_fake(mode, value.type, hints) for value in isolated.inputs]
            template = [
                mode.from_tensor(slot, static_shapes=True) if isinstance(slot, torch.Tensor) else slot
                for slot in program.template
            ]
            replace(program, template=tuple(template))(inputs)
    except Exception as error:  # noqa: BLE001  # PyTorch raises many kinds of errors here
        cause = error.__cause__ or error
        return f"mode=inductor does not take this {node.op}: {_TRACE_ERRORS.get(type(cause).__name__) or summarize_error(cause)}"
    # The trace has fixed a symbolic dim to the size of the example: the code would be right for that size alone.
    if shapes.replacements:
        return f"mode=inductor does not take this {node.op}: what it does depends on sizes that only a call shows"
    return None


@contextmanager
def _suppress_log() -> Iterator[None]:
    """Suppress PyTorch's log of failed traces, which are expected here."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _make_fake(mode: FakeTensorMode, type_: Type | None, hints: SizeHints) -> torch.Tensor:
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    assert isinstance(type_, TensorType)
    assert type_.shape is not None
    if type_.is_static:
        return mode.from_tensor(hints.make_example(type_), static_shapes=True)
    kinds = [DimDynamic.STATIC if isinstance(dim, int) else DimDynamic.DYNAMIC for dim in type_.shape]
    return mode.from_tensor(hints.make_example(type_), symbolic_context=StatelessSymbolicContext(kinds))


# ---------------------------------------------------------------------- compile


def compile_function(function: Function, context: CompileContext) -> memoryview:
    """Compile a Function to a library that contains its weights; raises CompileRefused with the reason."""
    if reason := why_no_compiler():
        raise CompileRefused(reason)
    with tempfile.TemporaryDirectory(prefix="inductor-", dir=context.workdir) as folder:
        buffer = SharedBuffer()
        request = {"function": put_function(buffer, function), "threads": context.threads, "folder": folder}
        variables = {"TMPDIR": folder, "OMP_NUM_THREADS": str(context.threads)}
        worker = WorkerProcess("xrt.engines.torch.inductor:main", environment=variables)
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


# ---------------------------------------------------------------------- in the subprocess

_USER_PREFIXES = ("TORCHINDUCTOR_", "AOT_INDUCTOR_", "AOTINDUCTOR_", "TORCH_COMPILE_")
"""Prefixes of environment variables that configure the user's own compiles; they are not part of the cache key."""

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
    # Bounds the folding of constants too.
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
    for name in [name for name in os.environ if name.startswith(_USER_PREFIXES)]:
        del os.environ[name]

    def answer(request: Request) -> Message:
        message = request.message
        function = read_function(request.memory, message["function"])
        # Everything that Inductor writes is removed with the folder.
        os.environ[_CACHE_VARIABLE] = message["folder"]
        return {"library": str(compile_library(function, message["threads"], Path(message["folder"])))}

    serve(handle, answer)


# ---------------------------------------------------------------------- run

CONCURRENT_RUNS = 8
"""Threads that may run one library concurrently, sharing its weights; further ones wait."""
_wrap = ctypes.pythonapi.PyCapsule_New
_wrap.restype, _wrap.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_unwrap = ctypes.pythonapi.PyCapsule_GetPointer
_unwrap.restype, _unwrap.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


class LibraryError(RuntimeError):
    """The compiled code failed, or could not be loaded; the message is PyTorch's."""


class Library:
    """A compiled Function: contiguous tensors of its types in, new tensors out."""

    def __init__(self, path: Path) -> None:
        """Load the library; the file may be removed afterwards."""
        self._code = ctypes.CDLL(str(path))
        self._container = ctypes.c_void_p()
        self._check(
            self._code.AOTInductorModelContainerCreateWithDevice(
                ctypes.byref(self._container), ctypes.c_size_t(CONCURRENT_RUNS), b"cpu", None
            )
        )
        count = ctypes.c_size_t()
        self._check(self._code.AOTInductorModelContainerGetNumOutputs(self._container, ctypes.byref(count)))
        self._results = ctypes.c_void_p * count.value
        self._call = self._code.AOTInductorModelContainerRun

    def __call__(self, tensors: Sequence[Any]) -> list[Any]:
        """Compute the results; raises LibraryError."""
        handles = [_unwrap(handle, None) for handle in torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(list(tensors))]
        arguments, results = (ctypes.c_void_p * len(handles))(*handles), self._results()
        sizes = ctypes.c_size_t(len(arguments)), ctypes.c_size_t(len(results))
        self._check(self._call(self._container, arguments, sizes[0], results, sizes[1], None, None))
        return list(torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs([_wrap(result, None, None) for result in results]))

    def _check(self, code: int) -> None:
        if code:
            message = ctypes.c_char_p()
            self._code.AOTInductorGetLastError(ctypes.byref(message))
            raise LibraryError((message.value or b"").decode(errors="replace"))

    def close(self) -> None:
        """Unload the library."""
        self._code.AOTInductorModelContainerDelete(self._container)
        dlclose(self._code._handle)


class CompiledProgram:
    """The library of a Function, and a list of kernels for sizes 0 and 1, which PyTorch's compiler specializes."""

    constants: frozenset[int] = frozenset()
    packed_weights: tuple[Any, ...] = ()

    def __init__(self, library: Library, function: Function) -> None:
        self.library, self.function = library, function
        self._open_axes = tuple(_list_open_axes(function))
        """Input axes of symbolic or unknown size."""

    @cached_property
    def kernels(self) -> TensorProgram:
        """The Function as a list of kernels, built on first use."""
        return make_program(self.function)

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Compute the outputs."""
        if any(inputs[i].shape[axis] < 2 for i, axis in self._open_axes):
            return [result.clone() for result in self.kernels(inputs)]  # an output must not share a constant's memory
        try:
            return self.library([tensor.contiguous() for tensor in inputs])
        except LibraryError as cause:
            raise RunFailed(f"torch failed in {self.function.name!r}: {summarize_error(cause)}") from cause


def _list_open_axes(function: Function) -> Iterator[tuple[int, int]]:
    for i, value in enumerate(function.inputs):
        if isinstance(value.type, TensorType) and value.type.shape is not None:
            yield from ((i, axis) for axis, dim in enumerate(value.type.shape) if not isinstance(dim, int))


class InductorExecutable(TorchExecutable):
    """A library over tensors that share memory with the caller's arrays."""

    def __init__(self, data: memoryview, function: Function, context: CompileContext) -> None:
        """``data`` is the content of the library."""
        with tempfile.NamedTemporaryFile(prefix="inductor-", suffix=".so", dir=context.workdir) as file:
            file.write(data)
            file.flush()
            self._library = Library(Path(file.name))
        super().__init__(CompiledProgram(self._library, function), function, context.threads)
        self.data = data

    def memory(self) -> tuple[MemoryUse, ...]:
        packed = MemoryUse(
            "packed weights", len(self.data), "Inductor's library holds the weights as it packs them, and its code"
        )
        return (packed, *super().memory())

    def close(self) -> None:
        """Unload the library."""
        self._library.close()
