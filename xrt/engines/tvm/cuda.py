"""``tvm`` on CUDA: TVM's GPU schedules, compiled by NVRTC, on XRT's memory and streams.

TVM translates a Function to CUDA C++. All memory of a call is passed to the code, so a run allocates nothing in TVM, does not
synchronize, and can be captured in a CUDA graph. NVRTC compiles the source, TVM's CUDA runtime loads the binary, and
`TvmOnDevice` launches it. Compiling needs no GPU.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import Call, GlobalVar, IRModule
from tvm.libinfo import package_lib_paths
from tvm.runtime import Tensor
from tvm.s_tir import dlight
from tvm.target import Target
from tvm_ffi.serialization import from_json_graph_str, to_json_graph_str

from xrt.engines.contract.graph_compiler import Executable, MemoryUse
from xrt.engines.contract.options import RunOptions
from xrt.engines.toolkit.libraries import summarize_error
from xrt.engines.tvm.export import ImportedModule, convert_type
from xrt.engines.tvm.pipeline import (
    ALLOCATE_RESULT,
    ALLOCATE_STORAGE,
    FUSION,
    LOWERING,
    PLANNING,
    get_called_operator,
    legalize,
    lift_constants,
    list_bindings,
    list_result_origins,
)
from xrt.errors import CompileRefused, RunFailed
from xrt.graph import DType, Function

if TYPE_CHECKING:
    from xrt.engines.contract.graph_compiler import Accelerator
    from xrt.graph import Constant

NVRTC_LIBRARY = "libnvrtc.so.13"
NVRTC_INSTALL_HINT = "pip install nvidia-cuda-nvrtc"
HEADERS_INSTALL_HINT = "pip install nvidia-cuda-runtime"
_CSTDINT_HEADER = """\
#pragma once
namespace cuda { namespace std {
typedef signed char int8_t; typedef unsigned char uint8_t;
typedef short int16_t; typedef unsigned short uint16_t;
typedef int int32_t; typedef unsigned int uint32_t;
typedef long long int64_t; typedef unsigned long long uint64_t;
} }
"""
_TYPE_TRAITS_HEADER = """\
#pragma once
namespace cuda { namespace std {
template <class A, class B> struct is_same { static constexpr bool value = false; };
template <class A> struct is_same<A, A> { static constexpr bool value = true; };
template <class A, class B> inline constexpr bool is_same_v = is_same<A, B>::value;
template <class A> struct is_integral;
template <class A> struct is_signed;
template <class A> struct is_unsigned;
template <class A> struct is_floating_point;
template <bool C, class A = void> struct enable_if {};
template <class A> struct enable_if<true, A> { typedef A type; };
template <bool C, class A, class B> struct conditional { typedef A type; };
template <class A, class B> struct conditional<false, A, B> { typedef B type; };
} }
"""
_MATH_CONSTANTS_HEADER = """\
#pragma once
#define CUDART_INF_F __int_as_float(0x7f800000)
#define CUDART_NAN_F __int_as_float(0x7fffffff)
#define CUDART_INF __longlong_as_double(0x7ff0000000000000LL)
#define CUDART_NAN __longlong_as_double(0xfff8000000000000LL)
"""
REPLACEMENT_HEADERS = {
    "cuda/std/cstdint": _CSTDINT_HEADER,
    "cuda/std/type_traits": _TYPE_TRAITS_HEADER,
    "math_constants.h": _MATH_CONSTANTS_HEADER,
}
"""Replacements, by file name, for the headers that TVM's sources include: NVRTC has no C++ standard library.

They declare only what TVM uses, because parsing NVIDIA's headers would take most of the compile time.
"""


def _list_float_headers(source: str) -> tuple[str, ...]:
    return tuple(name for name in ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h") if f"#include <{name}>\n" in source)


def compile_with_nvrtc(source: str, architecture: str) -> bytes:
    """Compile CUDA C++ to machine code for an architecture (``sm_90``); raises CompileRefused if NVRTC is missing or fails."""
    library = _load_nvrtc()
    program = ctypes.c_void_p()

    def check(status: int) -> None:
        if status:
            raise CompileRefused(f"NVRTC failed: {library.nvrtcGetErrorString(status).decode()}")

    def read(output: str) -> bytes:
        """Read an output of the compile: ``"ProgramLog"`` or ``"CUBIN"``."""
        # For each output NVRTC has one function that returns its size, and one that fills a buffer of this size.
        size = ctypes.c_size_t()
        check(getattr(library, f"nvrtcGet{output}Size")(program, ctypes.byref(size)))
        content = ctypes.create_string_buffer(size.value)
        check(getattr(library, f"nvrtcGet{output}")(program, content))
        return content.raw

    # "-default-device", as in TVM's own call of NVRTC: functions without an annotation are device code.
    flags = ["-default-device", f"--gpu-architecture={architecture}", *_make_include_flags(source)]
    code = source.encode()
    names, headers = _make_c_strings([*REPLACEMENT_HEADERS]), _make_c_strings([*REPLACEMENT_HEADERS.values()])
    check(library.nvrtcCreateProgram(ctypes.byref(program), code, b"tvm.cu", len(REPLACEMENT_HEADERS), headers, names))
    try:
        if status := library.nvrtcCompileProgram(program, len(flags), _make_c_strings(flags)):
            log = read("ProgramLog").rstrip(b"\0").decode(errors="replace")
            errors = [line for line in log.splitlines() if "error" in line]
            reason = errors[0] if errors else library.nvrtcGetErrorString(status).decode()
            raise CompileRefused(f"NVRTC cannot compile TVM's code: {reason}")
        return read("CUBIN")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _make_include_flags(source: str) -> list[str]:
    headers = _list_float_headers(source)
    if not headers:
        return []
    for folder in iter_cuda_folders("include"):
        if all((folder / name).is_file() for name in headers):
            return [f"-I{folder}"]
    raise CompileRefused(
        f"float16 and bfloat16 on CUDA need the header {headers[0]}, which was not found; {HEADERS_INSTALL_HINT}"
    )


def iter_cuda_folders(name: str) -> Iterator[Path]:
    """Yield folders that may have CUDA 13's libraries (``"lib"``) or headers (``"include"``): wheels first, then toolkits."""
    package = find_spec("nvidia")
    locations = package.submodule_search_locations if package else None
    for location in locations or ():
        yield Path(location) / "cu13" / name
    for root in filter(None, (os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda")):
        yield Path(root) / name
        yield Path(root) / f"{name}64"


@lru_cache(maxsize=1)
def _load_nvrtc() -> ctypes.CDLL:
    files = filter(Path.is_file, (folder / NVRTC_LIBRARY for folder in iter_cuda_folders("lib")))
    # Last the name without a folder, which the system's loader searches for in its default folders.
    for path in (*map(str, files), NVRTC_LIBRARY):
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            failure = error
        else:
            library.nvrtcGetErrorString.restype = ctypes.c_char_p
            return library
    raise CompileRefused(
        f"TVM's CUDA code is compiled by NVRTC 13, which was not found: {failure}; {NVRTC_INSTALL_HINT}"
    ) from failure


def _make_c_strings(strings: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(strings))(*(string.encode() for string in strings))


_COMPILE_HOOK = "tvm_callback_cuda_compile"
_TVM_RUNTIME_LIBRARY = "libtvm_runtime_cuda.so"
_CUDA_RUNTIME_LIBRARY = "libcudart.so.13"


def load_runtime() -> None:
    """Load TVM's CUDA runtime into this process. Raises CompileRefused if the driver or a library is missing."""
    if tvm.get_global_func("device_api.cuda", allow_missing=True) is not None:
        return
    # TVM's library needs CUDA's runtime, which the system does not find in NVIDIA's wheel unless it is loaded already.
    for folder in iter_cuda_folders("lib"):
        with suppress(OSError):
            ctypes.CDLL(str(folder / _CUDA_RUNTIME_LIBRARY), ctypes.RTLD_GLOBAL)
            break
    files = filter(Path.is_file, (folder / _TVM_RUNTIME_LIBRARY for folder in package_lib_paths()))
    path = next(files, None)
    if path is None:
        raise CompileRefused(
            f"this build of TVM has no runtime for CUDA: there is no {_TVM_RUNTIME_LIBRARY}; pip install 'xrt-engine[tvm]'"
        )
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        raise CompileRefused(
            f"TVM's runtime for CUDA does not load: {error}; it needs the driver (nvidia-smi) and CUDA's runtime "
            f"(pip install nvidia-cuda-runtime)"
        ) from error


@contextmanager
def use_nvrtc(compiler: Callable[[str], bytes]) -> Iterator[None]:
    """Within the ``with`` block, TVM calls ``compiler`` to compile CUDA C++ to machine code, instead of its own compiler.

    A CompileRefused that ``compiler`` raises leaves the block unchanged, although TVM converts it to another error.
    """
    refused: list[CompileRefused] = []

    def compile_source(source: object) -> bytes:
        try:
            return compiler(str(source))
        except CompileRefused as error:
            refused.append(error)
            raise

    # The registry is global to the process, so callers hold `compiler_lock`.
    original = tvm.get_global_func(_COMPILE_HOOK)
    tvm_ffi.register_global_func(_COMPILE_HOOK, compile_source, override=True)
    try:
        yield
    except Exception:
        if refused:
            raise refused[0] from None
        raise
    finally:
        tvm_ffi.register_global_func(_COMPILE_HOOK, original, override=True)


_ALLOCATE_TENSOR = tvm.ir.Op.get("relax.memory.alloc_tensor")
_MEMORY_OPERATORS = (
    ALLOCATE_STORAGE,
    ALLOCATE_RESULT,
    tvm.ir.Op.get("relax.memory.kill_storage"),
    tvm.ir.Op.get("relax.memory.kill_tensor"),
)
_CREATE_VIEW = relax.ExternFunc("runtime.TVMTensorCreateView")


def lift_allocations(module: IRModule) -> tuple[IRModule, tuple[int, ...], tuple[ResultType, ...], tuple[int, ...]]:
    """Turn all memory that ``main`` allocates after StaticPlanBlockMemory into its last parameters.

    Return the module, then the fields ``workspace``, ``result_types`` and ``result_positions`` of `DeviceProgram`. Raises
    CompileRefused if ``main`` contains anything but calls of the module's functions on tensors of static shape.
    """
    main = module["main"]
    bindings = list_bindings(main)
    # Each storage becomes a parameter: an array of bytes of the same size. ``blocks`` maps the storage to its parameter.
    blocks = {}
    for binding in bindings:
        if get_called_operator(binding) == ALLOCATE_STORAGE:
            (nbytes,) = binding.value.args[0].values
            blocks[binding.var] = relax.Var(binding.var.name, relax.TensorType((int(nbytes),), "uint8"))
    outputs = [binding.var for binding in bindings if get_called_operator(binding) == ALLOCATE_RESULT]
    # Operators that allocate or free memory disappear: the caller of the program owns all of it.
    inner = [
        _replace_allocation(binding, blocks) for binding in bindings if get_called_operator(binding) not in _MEMORY_OPERATORS
    ]
    parameters = [*main.params, *blocks.values(), *outputs]
    body = relax.SeqExpr([relax.BindingBlock(inner)], main.body.body)
    module["main"] = relax.Function(parameters, body, main.ret_ty, main.is_pure, main.attrs)
    result_positions = tuple(_find_parameter(origin, parameters) for origin in list_result_origins(main.body.body, inner))
    sizes = tuple(int(block.ty.shape.values[0]) for block in blocks.values())
    result_types = [convert_type(variable.ty) for variable in outputs]
    return module, sizes, tuple((str(type_.dtype), type_.shape) for type_ in result_types), result_positions


def _replace_allocation(binding: Any, blocks: Mapping[Any, relax.Var]) -> Any:
    """Replace the allocation of a tensor in a storage by a view of the workspace block that replaces the storage.

    ``blocks`` maps the variable of a storage to the parameter of its workspace block. Bindings that call a function of the module
    are returned unchanged. Raises CompileRefused for other calls, and for an offset other than 0, which TVM's views lack.
    """
    call = binding.value
    if not isinstance(call, Call) or isinstance(call.op, GlobalVar):
        return binding
    if call.op != _ALLOCATE_TENSOR or int(call.args[1]):
        raise CompileRefused(f"TVM's code for it calls {_get_callee_name(call)}, which is not a kernel of the device")
    storage, offset, shape, dtype, _ = call.args
    return relax.VarBinding(binding.var, Call(_CREATE_VIEW, [blocks[storage], shape, dtype, offset], ty_args=[binding.var.ty]))


def _get_callee_name(call: Call) -> str:
    """Get the name of the function or operator that a call calls."""
    if isinstance(call.op, relax.ExternFunc):
        return str(call.op.global_symbol)
    # Operators such as call_packed pass the function as the first argument.
    first = call.args[0] if call.args else None
    if isinstance(first, relax.ExternFunc):
        return str(first.global_symbol)
    return str(getattr(call.op, "name", call.op))


def _find_parameter(origin: Any, parameters: Sequence[Any]) -> int:
    """Find the index of the parameter that is the origin of a result; raises CompileRefused if TVM allocates the result."""
    for position, parameter in enumerate(parameters):
        if parameter.same_as(origin):
            return position
    raise CompileRefused("TVM allocates the memory of one of its results")


ResultType: TypeAlias = tuple[str, Any]
"""Name of the element type, such as ``"float32"``, and static shape."""
OLDEST_ARCHITECTURE = "sm_75"
"""Oldest architecture that CUDA 13 supports."""


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """Code compiled for a device. Its arguments are the inputs, constants, workspace blocks and result arrays, in this order."""

    code: Any
    """A Relax executable, or a module that was exported and loaded."""
    constants: tuple[Constant, ...]
    workspace: tuple[int, ...]
    """Bytes of each workspace block. Intermediate values that are not needed at the same time share a block."""
    result_types: tuple[ResultType, ...]
    """The types of the result arrays."""
    result_positions: tuple[int, ...]
    """For each result, the index of the argument that contains it after the call: a result array, an input or a constant."""


def make_target(architecture: str, host: Target) -> Target:
    """Make the target for a GPU architecture (``sm_90``). ``host`` is the target of the CPU code that launches kernels."""
    # dlight's rules read these limits, and TVM does not derive them from the architecture. `OLDEST_ARCHITECTURE` and all later
    # architectures have at least these.
    limits = {
        "max_shared_memory_per_block": 49152,
        "max_threads_per_block": 1024,
        "max_num_threads": 1024,
        "thread_warp_size": 32,
    }
    return Target({"kind": "cuda", "arch": architecture, **limits}, host=host)


def build(imported: ImportedModule, target: Target, opt_level: int, architecture: str = "") -> DeviceProgram:
    """Compile a module for a GPU. Without an ``architecture``, CUDA C++ is generated but not compiled.

    Raises CompileRefused if part of the work would run on the host or allocate memory, and if NVRTC is missing or fails.
    """

    def compile_source(source: str) -> bytes:
        return compile_with_nvrtc(source, architecture) if architecture else b""

    # For each loop nest the first rule that fits is applied.
    gpu = dlight.gpu
    rules = [gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback()]
    with target, tvm.transform.PassContext(opt_level=opt_level), use_nvrtc(compile_source):
        fused = tvm.transform.Sequential(FUSION)(legalize(_rename_parameters(imported.module), target))
        # Constants become parameters before the memory is planned, because constants inside the program are in host memory.
        free, constants = lift_constants(dlight.ApplyDefaultSchedule(*rules)(_remove_pragmas(fused)))
        lifted, workspace, result_types, positions = lift_allocations(tvm.transform.Sequential(PLANNING)(free))
        code = relax.build(tvm.transform.Sequential(LOWERING)(lifted), target, relax_pipeline=None)
    _check_no_device_allocation(code)
    return DeviceProgram(code, (*imported.weights, *constants), workspace, result_types, positions)


def _rename_parameters(module: IRModule) -> IRModule:
    """Rename the parameters of ``main`` to C identifiers, because TVM copies their names to its CUDA source."""
    main = module["main"]
    parameters = [relax.Var(f"parameter{index}", old.ty) for index, old in enumerate(main.params)]
    bindings = [relax.VarBinding(old, new) for old, new in zip(main.params, parameters, strict=True)]
    body = relax.SeqExpr([relax.BindingBlock(bindings), *main.body.blocks], main.body.body)
    renamed = relax.Function(parameters, body, main.ret_ty).with_attrs(main.attrs)
    return IRModule({**dict(module.functions_items()), module.get_global_var("main"): renamed})


def _remove_pragmas(module: IRModule) -> IRModule:
    """Remove the pragma of scatter operators, because TVM's code generator for the host prints a warning about it to stderr."""
    return from_json_graph_str(to_json_graph_str(module).replace('"pragma_scope"', '"scope"'))


def list_kernel_sources(program: DeviceProgram) -> str:
    """Join the CUDA C++ of all kernels of a compiled program; empty if it launches none."""
    return "\n".join(str(module.inspect_source()) for module in _list_imported_modules(program.code.mod) if module.kind == "cuda")


def _list_imported_modules(module: Any) -> list[Any]:
    return [inner for direct in module.imports for inner in (direct, *_list_imported_modules(direct))]


def _check_no_device_allocation(code: Any) -> None:
    """Raise CompileRefused if host code allocates device memory, for which TVM has a pool per thread that ignores streams."""
    for module in _list_imported_modules(code.mod):
        if module.kind == "llvm" and _ALLOCATE_WORKSPACE in str(module.inspect_source("ll")):
            raise CompileRefused(
                "TVM's schedule allocates memory that ignores streams, as its schedules for sorting and scanning do"
            )


_ALLOCATE_WORKSPACE = "TVMBackendAllocWorkspace"
ARRAY_ALIGNMENT = 64
"""TVM's code requires arrays at addresses that are multiples of this number of bytes."""
_NO_SYNCHRONIZATION = -1
"""The ``stream`` argument that tells DLPack not to synchronize. XRT's runtime has already ordered the work on its streams."""


class TvmOnDevice(Executable):
    """Runs a compiled program on arrays of the device. Each concurrent call uses a separate virtual machine."""

    outputs_are_fresh: ClassVar[bool] = True

    def __init__(self, program: DeviceProgram, function: Function, accelerator: Accelerator, device: Any) -> None:
        """``device`` is TVM's handle for the device of ``accelerator``."""
        self.program = program
        self.function = function
        self.saved: memoryview | None = None
        """The serialized program that was loaded; None if the program was compiled."""
        self._accelerator = accelerator
        self._device = device
        self._stream = accelerator.new_stream()
        self._constants: list[Any] = []
        self._idle: list[Callable[..., Any]] = []
        self._closed = False

    def prepare(self) -> None:
        accelerator = self._accelerator
        with accelerator.activate(self._stream):
            self._constants = [accelerator.upload(constant.array) for constant in self.program.constants]
        accelerator.wait([self._stream])
        self._idle.append(self._make_machine())

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        """Enqueue the work on ``options.stream``, which is the current stream of the thread. Without it, wait for the results."""
        if options.stream is not None:
            return self._launch(inputs, options.stream)
        # A caller without a stream does not synchronize with the device, so the results must be complete on return.
        with self._accelerator.activate(self._stream):
            results = self._launch(inputs, self._stream)
        self._accelerator.wait([self._stream])
        return results

    def _launch(self, inputs: Sequence[Any], stream: Any) -> list[Any]:
        if self._closed:
            raise RunFailed(f"the executable of {self.function.name!r} is closed")
        positions = self.program.result_positions
        empty = self._accelerator.xp.empty
        # In the order of the program's parameters: inputs, constants, workspace, results.
        arrays = [*map(self._align, inputs), *self._constants]
        arrays += [empty((nbytes,), np.dtype(np.uint8)) for nbytes in self.program.workspace]
        first_result = len(arrays)
        arrays += [empty(shape, DType.parse(dtype).numpy) for dtype, shape in self.program.result_types]
        try:
            main = self._idle.pop()
        except IndexError:
            main = self._make_machine()
        try:
            with tvm_ffi.use_raw_stream(self._device, self._accelerator.address(stream)):
                main(*map(view_as_tensor, arrays))
        except Exception as cause:
            raise RunFailed(f"TVM failed while it ran {self.function.name!r}: {summarize_error(cause)}") from cause
        # A machine whose call failed is not used again.
        self._idle.append(main)
        # Results that are also an input, a constant or an earlier result are copied.
        is_new = [position >= first_result and position not in positions[:k] for k, position in enumerate(positions)]
        return [arrays[position] if new else arrays[position].copy() for position, new in zip(positions, is_new, strict=True)]

    def _align(self, array: Any) -> Any:
        """Return the array, or a copy if it is not C-contiguous or not aligned to `ARRAY_ALIGNMENT`."""
        if array.flags.c_contiguous and not self._accelerator.address(array) % ARRAY_ALIGNMENT:
            return array
        return array.copy(order="C")

    def _make_machine(self) -> Callable[..., Any]:
        machine: Callable[..., Any] = relax.VirtualMachine(self.program.code, self._device)["main"]
        return machine

    def why_not_capturable(self) -> str | None:
        """None: a run only launches kernels."""
        return None

    def memory(self) -> tuple[MemoryUse, ...]:
        weights = sum(constant.nbytes for constant in self.program.constants)
        return (
            MemoryUse("weights on the device", weights, "a copy of the constants in the device's own memory"),
            MemoryUse(
                "workspace on the device", sum(self.program.workspace), "inner values, as planned by the compiler", per_call=True
            ),
        )

    def close(self) -> None:
        self._closed = True
        self._idle.clear()
        self._constants = []


def view_as_tensor(array: Any) -> Tensor:
    """Make a TVM tensor that shares the array's memory, also for types that DLPack may lack, such as bfloat16."""
    # The numeric kinds of NumPy. The types of ml_dtypes, such as bfloat16, are of kind "V", and are passed as integers.
    if array.dtype.kind in "biuf":
        return tvm_ffi.from_dlpack(array.__dlpack__(stream=_NO_SYNCHRONIZATION))
    bits = array.view(np.dtype(f"u{array.dtype.itemsize}"))
    integers = tvm_ffi.from_dlpack(bits.__dlpack__(stream=_NO_SYNCHRONIZATION))
    return _create_view(integers, array.shape, tvm.DataType(array.dtype.name), 0)


_create_view = tvm.get_global_func("runtime.TVMTensorCreateView")
