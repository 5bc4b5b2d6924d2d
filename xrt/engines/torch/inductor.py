"""Compile regions with Inductor, PyTorch's compiler, to a shared library that contains the weights.

The compile runs in a subprocess, because Inductor changes state, folders and environment variables of its process. A node is
supported if its kernel can be traced: the operators that it calls, and the shapes of its results, must not depend on values.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from xrt.engines.contract.graph_compiler import MemoryUse
from xrt.engines.toolkit.known_issues import match_known_issue
from xrt.engines.toolkit.libraries import summarize_error
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.engines.toolkit.shared_values import put_function, read_function
from xrt.engines.torch.dtypes import get_torch_dtype
from xrt.engines.torch.executable import TorchExecutable
from xrt.engines.torch.program import TensorProgram, make_program
from xrt.engines.torch.tables import INDUCTOR_ISSUES
from xrt.errors import CompileRefused, RunFailed
from xrt.formats.output import map_file
from xrt.graph import Dim, Function, Node, TensorType, Type
from xrt.graph.node import ATEN_DOMAIN
from xrt.operators import as_function
from xrt.passes import fold_constants, infer_shapes
from xrt.processes.client import RemoteError, WorkerFailure, WorkerProcess
from xrt.processes.ipc import Message, Request, SharedBuffer, serve

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from xrt.engines.contract.options import CompileContext


_CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


@cache
def why_no_cxx_compiler() -> str | None:
    """Explain that the C++ compiler that Inductor needs is not installed; None if it is."""
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is not None:
        return None
    return f"mode=inductor compiles C++, and there is no {compiler}: install it, or name another by the variable CXX"


def why_not(node: Node, function: Function) -> str | None:
    """Explain why Inductor does not support a node that has a kernel; None if it does."""
    if reason := why_no_cxx_compiler():
        return reason
    if node.domain == ATEN_DOMAIN:
        return "mode=inductor does not support opaque calls of PyTorch operators; mode=eager does"
    for name in (*node.uses, *filter(None, node.outputs)):
        type_ = function.get_type(name)
        if not isinstance(type_, TensorType):
            return f"mode=inductor supports only tensors, and {name!r} is {type_}"
        if type_.shape is None:
            return f"mode=inductor needs the rank of {name!r}"
    return match_known_issue(INDUCTOR_ISSUES, node, function) or _why_not_traceable(as_function(node, function))


@lru_cache(maxsize=4096)
def _why_not_traceable(isolated: Function) -> str | None:
    """Explain why Inductor cannot trace the single node of a Function; None if it can. Cached.

    The first trace would create Inductor's cache folder, and store its name in an environment variable. The user's own compiles
    must not use that folder. Therefore the variable is set to an existing folder for the time of the trace, then removed.
    """
    is_set = _CACHE_VARIABLE in os.environ
    if not is_set:
        os.environ[_CACHE_VARIABLE] = tempfile.gettempdir()
    try:
        return trace_node(isolated)
    finally:
        if not is_set:
            os.environ.pop(_CACHE_VARIABLE, None)


EXAMPLE_SIZES = (5, 7, 11, 13, 17, 19, 23, 29)
"""Sizes to trace symbolic dims with: different, and neither 0 nor 1, because PyTorch would specialize the code for such sizes."""


class ExampleSizes(dict[str, int]):
    """Maps symbolic dims to the sizes to trace with, all distinct."""

    def choose(self, dim: Dim) -> int:
        """Return the size to trace a dim with: a static dim itself, one size per symbol, a new size for each unknown dim."""
        if isinstance(dim, int):
            return dim
        symbol = f"?{len(self)}" if dim is None else dim
        # If all of EXAMPLE_SIZES are in use, repeat them plus 31, which exceeds the largest one, so that all sizes are different.
        repetitions, index = divmod(len(self), len(EXAMPLE_SIZES))
        return self.setdefault(symbol, EXAMPLE_SIZES[index] + 31 * repetitions)

    def make_example(self, type_: Type | None) -> torch.Tensor:
        """Make a tensor of zeros of the type, with an example size for each symbolic dim."""
        assert isinstance(type_, TensorType)  # checked by `why_not`
        assert type_.shape is not None
        return torch.zeros([self.choose(dim) for dim in type_.shape], dtype=get_torch_dtype(type_.dtype))


class ProgramModule(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    """Wraps a program as a module with the constants as buffers, so that Inductor may fold and pack them."""

    def __init__(self, program: TensorProgram) -> None:
        super().__init__()
        self.program = program
        self.slots = [slot for slot, value in enumerate(program.template) if isinstance(value, torch.Tensor)]
        for slot in self.slots:
            self.register_buffer(f"constant{slot}", program.template[slot])

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        template = list(self.program.template)
        for slot in self.slots:
            template[slot] = getattr(self, f"constant{slot}")
        return tuple(replace(self.program, template=tuple(template))(inputs))


_TRACE_ERRORS = {
    "DataDependentOutputException": "it reads values that are known only at run time",
    "DynamicOutputShapeException": "the sizes of its results are known only at run time",
}
"""Explanations of PyTorch's errors, by the name of the error."""


def trace_node(isolated: Function) -> str | None:
    """Trace the single node of a Function; return the reason if that fails, else None."""
    # These import SymPy, which takes half a second that a load of a compiled library does not need.
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    (node,) = isolated.nodes
    example_sizes = ExampleSizes()
    shapes = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
    try:
        program = make_program(isolated)
        with _silence_trace_log(), FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True) as mode, torch.no_grad():
            inputs = [_make_fake_tensor(mode, value.type, example_sizes) for value in isolated.inputs]
            template = [
                mode.from_tensor(slot, static_shapes=True) if isinstance(slot, torch.Tensor) else slot
                for slot in program.template
            ]
            replace(program, template=tuple(template))(inputs)
    except Exception as error:  # noqa: BLE001  # PyTorch raises many kinds of errors here
        cause = error.__cause__ or error
        reason = _TRACE_ERRORS.get(type(cause).__name__) or summarize_error(cause)
        return f"mode=inductor does not support this {node.op}: {reason}"
    # The trace has replaced a symbolic dim by its example size, so the code would be correct for that size only.
    if shapes.replacements:
        return f"mode=inductor does not support this {node.op}: its code depends on sizes that are known only at run time"
    return None


@contextmanager
def _silence_trace_log() -> Iterator[None]:
    """Suppress PyTorch's log of failed traces, which are expected here."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _make_fake_tensor(mode: FakeTensorMode, type_: Type | None, example_sizes: ExampleSizes) -> torch.Tensor:
    """Make a tensor without data for the trace. Symbolic and unknown dims of the type become dynamic dims of PyTorch."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    assert isinstance(type_, TensorType)
    assert type_.shape is not None
    if type_.is_static:
        return mode.from_tensor(example_sizes.make_example(type_), static_shapes=True)
    kinds = [DimDynamic.STATIC if isinstance(dim, int) else DimDynamic.DYNAMIC for dim in type_.shape]
    return mode.from_tensor(example_sizes.make_example(type_), symbolic_context=StatelessSymbolicContext(kinds))


def compile_function(function: Function, context: CompileContext) -> memoryview:
    """Compile a Function in a subprocess, and return the bytes of the library. Raises CompileRefused if that fails."""
    if reason := why_no_cxx_compiler():
        raise CompileRefused(reason)
    with tempfile.TemporaryDirectory(prefix="inductor-", dir=context.workdir) as folder:
        buffer = SharedBuffer()
        request = {"function": put_function(buffer, function), "threads": context.threads, "folder": folder}
        variables = {"TMPDIR": folder, "OMP_NUM_THREADS": str(context.threads)}
        worker = WorkerProcess("xrt.engines.torch.inductor:main", environment=variables)
        try:
            response, _ = worker.ask(request, buffer)
            with Path(response["library"]).open("rb") as library:
                return map_file(library.fileno())  # the mapping outlives the folder
        except RemoteError as error:
            raise CompileRefused(f"Inductor cannot compile {function.name!r}: {summarize_error(error)}") from error
        except WorkerFailure as error:
            raise CompileRefused(f"Inductor's process failed at {function.name!r}: {error}") from error
        finally:
            worker.end()


_USER_PREFIXES = ("TORCHINDUCTOR_", "AOT_INDUCTOR_", "AOTINDUCTOR_", "TORCH_COMPILE_")
"""Prefixes of environment variables that configure the user's own compiles. The subprocess removes these variables, because XRT's
cache key does not contain them."""
INDUCTOR_SETTINGS: dict[str, Any] = {
    "freezing": True,
    "compile_threads": 1,
    "emulate_precision_casts": True,
    "fx_graph_cache": False,
    "autotune_local_cache": False,
    "aot_inductor.precompile_headers": False,
    "aot_inductor.enable_line_tables": False,
    "aot_inductor.enable_frame_pointer": False,
}
"""Settings of Inductor: fold and pack weights, compile in one process, and round half precision after each operator as ONNX
specifies."""


def compile_library(function: Function, threads: int, folder: Path) -> Path:
    """Compile a Function to a library in the folder, and return its path. Raises CompileRefused and any error of PyTorch."""
    function = fold_constants(infer_shapes(function), evaluate)
    example_sizes = ExampleSizes()
    dims: dict[str, Any] = {}
    examples = tuple(example_sizes.make_example(value.type) for value in function.inputs)
    shapes = [_make_export_dims(value.type, dims) for value in function.inputs]
    module = ProgramModule(make_program(function))
    # Inductor also folds constants with this number of threads.
    torch.set_num_threads(threads)
    with torch.no_grad():
        program = torch.export.export(module, examples, dynamic_shapes=(tuple(shapes),), strict=False)
        settings = INDUCTOR_SETTINGS | {"cpp.threads": 1, "aot_inductor.output_path": str(folder / "region.so")}
        if threads > 1:  # with dynamic threads, the code runs on the thread count that `call_with_threads` sets
            settings |= {"cpp.threads": threads, "cpp.dynamic_threads": True}
        output = torch._inductor.aot_compile(program.module(), examples, options=settings)
    if called := sorted(_list_python_calls(folder)):
        raise CompileRefused(f"its code would call back to Python for {', '.join(called)}")
    return Path(output if isinstance(output, str) else output[-1])


def _make_export_dims(type_: Type | None, dims: dict[str, Any]) -> dict[int, Any] | None:
    """Map the dynamic axes of an input to dims of torch.export; None if it is static.

    ``dims`` maps symbols to dims of torch.export, and receives the new ones.
    """
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
    """List the operators without a C interface, which the code calls through Python. Inductor writes them to JSON files."""
    files = [file for file in folder.rglob("*.json") if not file.name.endswith("_metadata.json")]
    targets: set[str] = set()
    for file in files:
        targets.update(entry["node"]["target"] for entry in json.loads(file.read_text())["nodes"])
    return targets


def main(handle: str) -> None:
    """Run the subprocess: compile each Function that it receives on the socket ``handle``."""
    for name in [name for name in os.environ if name.startswith(_USER_PREFIXES)]:
        del os.environ[name]

    def handle_request(request: Request) -> Message:
        message = request.message
        function = read_function(request.memory, message["function"])
        # Inductor writes only to this folder, which is removed afterwards.
        os.environ[_CACHE_VARIABLE] = message["folder"]
        return {"library": str(compile_library(function, message["threads"], Path(message["folder"])))}

    serve(handle, handle_request)


MAX_CONCURRENT_RUNS = 8
"""Number of threads that may run one library at the same time. They share the weights. Further threads wait."""
# PyTorch's functions in Python pass handles of tensors as capsules, and the library's C functions as pointers.
_make_capsule = ctypes.pythonapi.PyCapsule_New
_make_capsule.restype, _make_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


class InductorLibrary:
    """Calls the C interface of a library that Inductor compiled from a Function."""

    def __init__(self, path: Path) -> None:
        """Load the library. The file may be removed afterwards."""
        self._code = ctypes.CDLL(str(path))
        self._container = ctypes.c_void_p()
        self._check(
            self._code.AOTInductorModelContainerCreateWithDevice(
                ctypes.byref(self._container), ctypes.c_size_t(MAX_CONCURRENT_RUNS), b"cpu", None
            )
        )
        count = ctypes.c_size_t()
        self._check(self._code.AOTInductorModelContainerGetNumOutputs(self._container, ctypes.byref(count)))
        self._output_array = ctypes.c_void_p * count.value
        self._run = self._code.AOTInductorModelContainerRun

    def __call__(self, tensors: Sequence[Any]) -> list[Any]:
        """Compute the outputs into new tensors. The inputs must be contiguous. Raises RuntimeError with PyTorch's message."""
        capsules = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(list(tensors))
        inputs = (ctypes.c_void_p * len(capsules))(*(_get_pointer(capsule, None) for capsule in capsules))
        outputs = self._output_array()
        num_inputs, num_outputs = ctypes.c_size_t(len(inputs)), ctypes.c_size_t(len(outputs))
        self._check(self._run(self._container, inputs, num_inputs, outputs, num_outputs, None, None))
        capsules = [_make_capsule(pointer, None, None) for pointer in outputs]
        return list(torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs(capsules))

    def _check(self, code: int) -> None:
        if code:
            message = ctypes.c_char_p()
            self._code.AOTInductorGetLastError(ctypes.byref(message))
            raise RuntimeError((message.value or b"").decode(errors="replace"))

    def close(self) -> None:
        self._code.AOTInductorModelContainerDelete(self._container)
        dlclose(self._code._handle)


def _make_library_call(library: InductorLibrary, function: Function) -> Callable[[Sequence[Any]], list[Any]]:
    """Make the function that computes the outputs by the library, or by kernels for sizes that its code does not support.

    It does not refer to the executable, which is freed as soon as it is dropped.
    """
    dynamic_axes: list[tuple[int, int]] = []  # (input, axis)
    for index, value in enumerate(function.inputs):
        shape = getattr(value.type, "shape", None) or ()
        dynamic_axes += [(index, axis) for axis, dim in enumerate(shape) if not isinstance(dim, int)]
    get_kernels = cache(lambda: make_program(function))

    def call(inputs: Sequence[Any]) -> list[Any]:
        # Inductor's code is not valid for dynamic dims of 0 or 1.
        if any(inputs[index].shape[axis] < 2 for index, axis in dynamic_axes):
            return [result.clone() for result in get_kernels()(inputs)]  # an output must not share a constant's memory
        try:
            return library([tensor.contiguous() for tensor in inputs])
        except RuntimeError as cause:
            raise RunFailed(f"torch failed in {function.name!r}: {summarize_error(cause)}") from cause

    return call


class InductorExecutable(TorchExecutable):
    """Runs a library of Inductor on tensors that share memory with the caller's arrays."""

    def __init__(self, data: memoryview, function: Function, context: CompileContext) -> None:
        """``data`` is the content of the library's file."""
        with tempfile.NamedTemporaryFile(prefix="inductor-", suffix=".so", dir=context.workdir) as file:
            file.write(data)
            file.flush()
            self._library = InductorLibrary(Path(file.name))
        super().__init__(_make_library_call(self._library, function), function, context.threads)
        self.data = data

    def memory(self) -> tuple[MemoryUse, ...]:
        why = "Inductor's library, which contains code and packed weights"
        return (MemoryUse("packed weights", len(self.data), why), *super().memory())

    def close(self) -> None:
        self._library.close()
