"""``tvm`` on CUDA: TVM's GPU schedules, compiled by NVRTC, on XRT's memory and streams.

TVM lowers a Function to CUDA C++ with all memory of a call as parameters, so that a run allocates nothing in TVM, does not
synchronize, and can be captured in a CUDA graph. NVRTC compiles the source, TVM's CUDA runtime loads the binary, and
`TvmOnDevice` launches it. Compiling needs no GPU.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

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
from xrt.engines.tvm.executable import summarize_error
from xrt.engines.tvm.export import tensor_type
from xrt.engines.tvm.pipeline import (
    FUSION,
    LOWERING,
    PLANNING,
    RESULT,
    find_result_origin,
    get_operator_name,
    legalize,
    lift_constants,
    list_tuple_fields,
)
from xrt.engines.tvm.serialization import pack, unpack
from xrt.errors import CompileRefused, RunFailed
from xrt.graph import DType, Function, TensorType

if TYPE_CHECKING:
    from xrt.engines.contract.graph_compiler import Accelerator
    from xrt.graph import Constant


# ---------------------------------------------------------------------- from CUDA C++ to machine code

# NVRTC has no C++ standard library, and TVM's sources include parts of NVIDIA's. The few declarations that they use are enough.

LIBRARY = "libnvrtc.so.13"
PIP = "pip install nvidia-cuda-nvrtc"
HEADERS_PIP = "pip install nvidia-cuda-runtime"
_TYPES = """\
#pragma once
namespace cuda { namespace std {
typedef signed char int8_t; typedef unsigned char uint8_t;
typedef short int16_t; typedef unsigned short uint16_t;
typedef int int32_t; typedef unsigned int uint32_t;
typedef long long int64_t; typedef unsigned long long uint64_t;
} }
"""
_TRAITS = """\
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
_NUMBERS = """\
#pragma once
#define CUDART_INF_F __int_as_float(0x7f800000)
#define CUDART_NAN_F __int_as_float(0x7fffffff)
#define CUDART_INF __longlong_as_double(0x7ff0000000000000LL)
#define CUDART_NAN __longlong_as_double(0xfff8000000000000LL)
"""
PROVIDED = {"cuda/std/cstdint": _TYPES, "cuda/std/type_traits": _TRAITS, "math_constants.h": _NUMBERS}
"""Replacements of the CUDA headers that TVM's sources include: parsing the originals takes most of a compile."""
_MIN_MAX_MACROS = """\
template <class T> __device__ __forceinline__ T xrt_max(T a, T b) { return a > b ? a : b; }
template <class T> __device__ __forceinline__ T xrt_min(T a, T b) { return a < b ? a : b; }
#define max xrt_max
#define min xrt_min
"""
"""If one operand of max or min is NaN, TVM's CPU code returns the second operand, CUDA's functions the number. These macros make
both devices agree."""


def source_with_prelude(source: str) -> str:
    """Define max and min after CUDA's headers, which declare functions of these names."""
    # A macro before the headers would rewrite the names in their own declarations.
    headers = [f"#include <{name}>\n" for name in _list_float_headers(source)]
    place = max((source.index(header) + len(header) for header in headers), default=0)
    return source[:place] + _MIN_MAX_MACROS + source[place:]


def _list_float_headers(source: str) -> tuple[str, ...]:
    return tuple(name for name in ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h") if f"#include <{name}>\n" in source)


def binary(source: str, architecture: str) -> bytes:
    """Compile CUDA C++ to machine code for an architecture (``sm_90``); raises CompileRefused if NVRTC is missing or fails."""
    library = _load_nvrtc()
    # "-default-device", as in TVM's own call of NVRTC: functions without an annotation are code for the device.
    flags = ["-default-device", f"--gpu-architecture={architecture}", *_make_include_flags(source)]
    program = _Program(library, source_with_prelude(source))
    try:
        return program.compile(flags)
    finally:
        program.close()


def _make_include_flags(source: str) -> list[str]:
    headers = _list_float_headers(source)
    if not headers:
        return []
    for folder in folders("include"):
        if all((folder / name).is_file() for name in headers):
            return [f"-I{folder}"]
    raise CompileRefused(f"float16 and bfloat16 on CUDA need the header {headers[0]}, which is not to be found; {HEADERS_PIP}")


def folders(name: str) -> Iterator[Path]:
    """Yield possible folders of CUDA 13's libraries (``lib``) or headers (``include``): NVIDIA's wheels, then a toolkit."""
    package = find_spec("nvidia")
    for place in package.submodule_search_locations or () if package else ():
        yield Path(place) / "cu13" / name
    for top in filter(None, (os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda")):
        yield Path(top) / name
        yield Path(top) / f"{name}64"


@lru_cache(maxsize=1)
def _load_nvrtc() -> ctypes.CDLL:
    # The bare name comes last: the system's loader looks for it in its own folders.
    for path in (*(str(folder / LIBRARY) for folder in folders("lib") if (folder / LIBRARY).is_file()), LIBRARY):
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            failure = error
    raise CompileRefused(f"TVM's code for CUDA is compiled by NVRTC 13, which is not to be found: {failure}; {PIP}") from failure


class _Program:
    """An NVRTC program; every call checks its status."""

    def __init__(self, library: ctypes.CDLL, source: str) -> None:
        self._library = library
        self._handle = ctypes.c_void_p()
        headers = _make_c_strings([*PROVIDED.values()]), _make_c_strings([*PROVIDED])
        arguments = ctypes.byref(self._handle), source.encode(), b"tvm.cu", len(PROVIDED), *headers
        self._check(library.nvrtcCreateProgram(*arguments))

    def compile(self, options: Sequence[str]) -> bytes:
        status = self._library.nvrtcCompileProgram(self._handle, len(options), _make_c_strings(options))
        if status:
            log = self._read("ProgramLog").decode(errors="replace").strip("\0").strip()
            first_error = next((line for line in log.splitlines() if "error" in line), "") or self._name(status)
            raise CompileRefused(f"NVRTC refuses what TVM has generated: {first_error}")
        return self._read("CUBIN")

    def _read(self, kind: str) -> bytes:
        # NVRTC has a pair of functions for each kind of result: one for the size, one that fills a buffer of this size.
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{kind}Size")(self._handle, ctypes.byref(size)))
        content = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{kind}")(self._handle, content))
        return content.raw

    def _check(self, status: int) -> None:
        if status:
            raise CompileRefused(f"NVRTC failed: {self._name(status)}")

    def _name(self, status: int) -> str:
        name = self._library.nvrtcGetErrorString
        name.restype = ctypes.c_char_p
        return str(name(status).decode())

    def close(self) -> None:
        self._library.nvrtcDestroyProgram(ctypes.byref(self._handle))


def _make_c_strings(texts: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))


_COMPILER = "tvm_callback_cuda_compile"
_RUNTIME = "libtvm_runtime_cuda.so"
_CUDART = "libcudart.so.13"


def load_runtime() -> None:
    """Load TVM's CUDA runtime; raises CompileRefused with the loader's message if the driver or a library is missing."""
    if tvm.get_global_func("device_api.cuda", allow_missing=True) is not None:
        return
    # TVM's library depends on CUDA's runtime by name alone: load that of NVIDIA's wheel first, where the loader does not look.
    for folder in folders("lib"):
        with suppress(OSError):
            ctypes.CDLL(str(folder / _CUDART), ctypes.RTLD_GLOBAL)
            break
    path = next((path for folder in package_lib_paths() if (path := folder / _RUNTIME).is_file()), None)
    if path is None:
        raise CompileRefused(f"this build of TVM has no runtime for CUDA: there is no {_RUNTIME}; pip install 'xrt-engine[tvm]'")
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        raise CompileRefused(
            f"TVM's runtime for CUDA does not load: {error}; it needs the driver (nvidia-smi) and CUDA's runtime "
            f"(pip install nvidia-cuda-runtime)"
        ) from error


@contextmanager
def use_nvrtc(compiler: Callable[[str], bytes]) -> Iterator[None]:
    """Compile TVM's CUDA C++ with ``compiler`` inside this context; TVM's own compiler is restored afterwards.

    A CompileRefused from ``compiler`` is raised unchanged, although TVM would convert it to another error.
    """
    refused: list[CompileRefused] = []

    def compile_source(source: object) -> bytes:
        try:
            return compiler(str(source))
        except CompileRefused as error:
            refused.append(error)
            raise

    # The registry is global to the process; callers hold `compiler_lock`.
    before = tvm.get_global_func(_COMPILER)
    tvm_ffi.register_global_func(_COMPILER, compile_source, override=True)
    try:
        yield
    except Exception:
        if refused:
            raise refused[0] from None
        raise
    finally:
        tvm_ffi.register_global_func(_COMPILER, before, override=True)


_STORAGE = tvm.ir.Op.get("relax.memory.alloc_storage")
_TENSOR_IN_STORAGE = tvm.ir.Op.get("relax.memory.alloc_tensor")
_MEMORY_OPERATORS = (_STORAGE, RESULT, tvm.ir.Op.get("relax.memory.kill_storage"), tvm.ir.Op.get("relax.memory.kill_tensor"))
_VIEW = relax.ExternFunc("runtime.TVMTensorCreateView")


@dataclass(frozen=True, slots=True)
class AllocationFree:
    """A module whose ``main`` has additional parameters: the blocks of its workspace, then the arrays for its results."""

    module: IRModule
    workspace: tuple[int, ...]
    """Bytes of each block, which inner values share over time."""
    result_types: tuple[TensorType, ...]
    """Types of the result arrays that ``main`` fills: its last parameters."""
    results: tuple[int, ...]
    """For each result, the position of the parameter that holds it after the call."""


def lift_allocations(module: IRModule) -> AllocationFree:
    """Turn all allocations of ``main``, as planned by StaticPlanBlockMemory, into parameters.

    Raises CompileRefused if ``main`` does more than call functions of the module on tensors of static shape.
    """
    main = module["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    blocks = {binding.var: _make_block_parameter(binding) for binding in bindings if get_operator_name(binding) == _STORAGE}
    outputs = [binding.var for binding in bindings if get_operator_name(binding) == RESULT]
    # Operators that allocate or free memory disappear: the caller of the program owns all of it.
    inner = [_rewrite_binding(binding, blocks) for binding in bindings if get_operator_name(binding) not in _MEMORY_OPERATORS]
    parameters = [*main.params, *blocks.values(), *outputs]
    body = relax.SeqExpr([relax.BindingBlock(inner)], main.body.body)
    module["main"] = relax.Function(parameters, body, main.ret_ty, main.is_pure, main.attrs)
    values = {binding.var: binding.value for binding in inner}
    results = tuple(_find_parameter(field, values, parameters) for field in list_tuple_fields(main.body.body, values))
    sizes = tuple(int(block.ty.shape.values[0]) for block in blocks.values())
    return AllocationFree(module, sizes, tuple(tensor_type(variable.ty) for variable in outputs), results)


def _make_block_parameter(binding: Any) -> relax.Var:
    (extent,) = binding.value.args[0].values
    return relax.Var(binding.var.name, relax.TensorType((int(extent),), "uint8"))


def _rewrite_binding(binding: Any, blocks: Mapping[Any, relax.Var]) -> Any:
    """Rewrite an allocation within a storage to a view of its block; other bindings are unchanged.

    TVM's code supports no views with an offset, so each storage is a separate block; the planner puts tensors at offset 0.
    """
    call = binding.value
    if not isinstance(call, Call) or isinstance(call.op, GlobalVar):
        return binding
    if call.op != _TENSOR_IN_STORAGE or int(call.args[1]):
        raise CompileRefused(f"TVM computes a part of it by {_get_callee_name(call)}, which is no kernel of the device")
    storage, offset, shape, dtype, _ = call.args
    return relax.VarBinding(binding.var, Call(_VIEW, [blocks[storage], shape, dtype, offset], ty_args=[binding.var.ty]))


def _get_callee_name(call: Call) -> str:
    if isinstance(call.op, relax.ExternFunc):
        return str(call.op.global_symbol)
    first = call.args[0] if call.args else None
    return str(first.global_symbol) if isinstance(first, relax.ExternFunc) else str(getattr(call.op, "name", call.op))


def _find_parameter(result: Any, values: Mapping[Any, Any], parameters: Sequence[Any]) -> int:
    origin = find_result_origin(result, values)
    for position, parameter in enumerate(parameters):
        if parameter.same_as(origin):
            return position
    raise CompileRefused("a result of it lies in memory that is not the caller's")


OLDEST = "sm_75"
"""Oldest architecture that CUDA 13 supports."""


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """Compiled code and the rest of its signature: inputs, constants, workspace blocks, result arrays."""

    code: Any
    """A Relax executable, or a module that was exported and loaded."""
    constants: tuple[Constant, ...]
    workspace: tuple[int, ...]
    """Bytes of each block."""
    result_types: tuple[TensorType, ...]
    """Types of the result arrays, the last arguments."""
    results: tuple[int, ...]
    """For each result, the position of the argument that holds it after the call: a result array, an input or a constant."""


def make_target(architecture: str, host: Target) -> Target:
    """The target for an architecture (``sm_90``), with its host target."""
    # dlight's rules read these limits, which a target made from an architecture alone lacks; they hold from `OLDEST` on.
    limits = {
        "max_shared_memory_per_block": 49152,
        "max_threads_per_block": 1024,
        "max_num_threads": 1024,
        "thread_warp_size": 32,
    }
    return Target({"kind": "cuda", "arch": architecture, **limits}, host=host)


def build(module: IRModule, weights: Sequence[Constant], target: Target, opt_level: int, architecture: str = "") -> DeviceProgram:
    """Compile the module's ``main``, whose last parameters are the weights; without an architecture, only generate source.

    Raises CompileRefused for work that cannot run on the device alone, and if NVRTC is missing or fails.
    """

    def compile_source(source: str) -> bytes:
        return binary(source, architecture) if architecture else b""

    with target, tvm.transform.PassContext(opt_level=opt_level), use_nvrtc(compile_source):
        fused = tvm.transform.Sequential(FUSION)(legalize(_rename_parameters(module), target))
        # Constants become parameters before the memory is planned: inside the program they would be in host memory.
        free, constants = lift_constants(dlight.ApplyDefaultSchedule(*_list_schedule_rules())(_remove_pragmas(fused)))
        lifted = lift_allocations(tvm.transform.Sequential(PLANNING)(free))
        code = relax.build(tvm.transform.Sequential(LOWERING)(lifted.module), target, relax_pipeline=None)
    _check_memory(code)
    return DeviceProgram(code, (*weights, *constants), lifted.workspace, lifted.result_types, lifted.results)


def _rename_parameters(module: IRModule) -> IRModule:
    """Rename parameters of ``main`` to C identifiers, because TVM copies the names to its CUDA source."""
    main = module["main"]
    plain = [relax.Var(f"given{place}", old.ty) for place, old in enumerate(main.params)]
    bindings = [relax.VarBinding(old, new) for old, new in zip(main.params, plain, strict=True)]
    body = relax.SeqExpr([relax.BindingBlock(bindings), *main.body.blocks], main.body.body)
    functions = {**dict(module.functions_items()), module.get_global_var("main"): relax.Function(plain, body, main.ret_ty)}
    return IRModule({gvar: f.with_attrs(main.attrs) if gvar.name_hint == "main" else f for gvar, f in functions.items()})


def _list_schedule_rules() -> list[Any]:
    """TVM's default schedule rules in its order: the first that fits a loop nest is applied."""
    gpu = dlight.gpu
    return [gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback()]


def _remove_pragmas(module: IRModule) -> IRModule:
    """Remove the pragma of scatter operators, about which the host's code generator warns on stderr."""
    return from_json_graph_str(to_json_graph_str(module).replace('"pragma_scope"', '"scope"'))


def list_kernel_sources(program: DeviceProgram) -> str:
    """The CUDA C++ of a compiled program; empty if it launches nothing."""
    return "\n".join(str(module.inspect_source()) for module in _list_imports(program.code.mod) if module.kind == "cuda")


def _list_imports(module: Any) -> list[Any]:
    return [inner for direct in module.imports for inner in (direct, *_list_imports(direct))]


def _check_memory(code: Any) -> None:
    """Raise CompileRefused if host code allocates device memory: TVM's pools are per thread and ignore streams."""
    for module in _list_imports(code.mod):
        if module.kind == "llvm" and _WORKSPACE in str(module.inspect_source("ll")):
            raise CompileRefused("TVM's schedule takes working memory that follows no stream, as those that sort and scan do")


_WORKSPACE = "TVMBackendAllocWorkspace"


def export_program(program: DeviceProgram, function: Function, folder: Path | None) -> bytes:
    """Serialize a program compiled from the Function for `load_program`; writes temporary files to the folder.

    Raises CompileRefused without a C compiler or a folder.
    """
    outputs = [[str(type_.dtype), type_.shape] for type_ in program.result_types]
    details = {"workspace": program.workspace, "made": outputs, "results": program.results}
    return pack(program.code, program.constants, details, function, folder)


def load_program(data: memoryview, function: Function, folder: Path | None) -> DeviceProgram:
    """Load a program of `export_program` for an equal Function; the caller has verified its checksum."""
    code, constants, details = unpack(data, function, folder)
    outputs = tuple(TensorType(DType.parse(dtype), tuple(shape)) for dtype, shape in details["made"])
    return DeviceProgram(code, constants, tuple(details["workspace"]), outputs, tuple(details["results"]))


# ---------------------------------------------------------------------- run

ALIGNMENT = 64
"""Alignment in bytes that TVM's code expects of every array."""
_NO_WAIT = -1
"""DLPack's value for a stream without synchronization: the runtime has ordered the work already."""


class TvmOnDevice(Executable):
    """Launches one program on memory of the device's pool, with a virtual machine per concurrent call."""

    outputs_are_fresh: ClassVar[bool] = True

    def __init__(self, program: DeviceProgram, function: Function, accelerator: Accelerator, device: Any) -> None:
        """`device` is TVM's handle of the accelerator's device."""
        self.program = program
        self.function = function
        self.saved: memoryview | None = None
        """The saved form, if it was loaded."""
        self._accelerator = accelerator
        self._device = device
        self._stream = accelerator.new_stream()
        self._constants: list[Any] = []
        self._idle: list[Callable[..., Any]] = []
        self._closed = False

    def prepare(self) -> None:
        """Upload the constants to the device."""
        accelerator = self._accelerator
        with accelerator.activate(self._stream):
            self._constants = [accelerator.upload(constant.array) for constant in self.program.constants]
        accelerator.wait([self._stream])
        self._idle.append(self._make_machine())

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        """Enqueue the work on the stream of the options, which is the thread's current one; without one, wait for the results."""
        if options.stream is not None:
            return self._launch(inputs, options.stream)
        # No stream: the caller is not aware of the device, so the results must be complete on return.
        with self._accelerator.activate(self._stream):
            results = self._launch(inputs, self._stream)
        self._accelerator.wait([self._stream])
        return results

    def _launch(self, inputs: Sequence[Any], stream: Any) -> list[Any]:
        if self._closed:
            raise RunFailed(f"the executable of {self.function.name!r} is closed")
        program, empty = self.program, self._accelerator.xp.empty
        # In the order of the program's parameters: inputs, constants, workspace, results.
        arrays = [*map(self._align, inputs), *self._constants]
        arrays += [empty((nbytes,), np.dtype(np.uint8)) for nbytes in program.workspace]
        first_result = len(arrays)
        arrays += [empty(type_.shape, type_.dtype.numpy) for type_ in program.result_types]
        main = self._acquire_machine()
        try:
            with self._use_stream(stream):
                main(*map(share_program, arrays))
        except Exception as cause:
            raise RunFailed(f"TVM failed while it ran {self.function.name!r}: {summarize_error(cause)}") from cause
        # A machine whose call failed is not used again.
        self._idle.append(main)
        return _collect_results(arrays, program.results, first_result)

    def _use_stream(self, stream: Any) -> AbstractContextManager[object]:
        context: AbstractContextManager[object] = tvm_ffi.use_raw_stream(self._device, self._accelerator.address(stream))
        return context

    def _align(self, array: Any) -> Any:
        """Make the array C-contiguous and aligned as TVM's code expects; copies only if necessary."""
        if array.flags.c_contiguous and not self._accelerator.address(array) % ALIGNMENT:
            return array
        return array.copy(order="C")

    def _acquire_machine(self) -> Callable[..., Any]:
        try:
            return self._idle.pop()
        except IndexError:
            return self._make_machine()

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


def share_program(array: Any) -> Tensor:
    """View the array as a TVM tensor; types that DLPack may not support on the other side are passed as raw bits."""
    # The kinds of NumPy; the types of ml_dtypes, such as bfloat16, are of kind "V".
    if array.dtype.kind in "biuf":
        return tvm_ffi.from_dlpack(array.__dlpack__(stream=_NO_WAIT))
    bits = array.view(np.dtype(f"u{array.dtype.itemsize}"))
    return _view(tvm_ffi.from_dlpack(bits.__dlpack__(stream=_NO_WAIT)), array.shape, tvm.DataType(array.dtype.name), 0)


_view = tvm.get_global_func("runtime.TVMTensorCreateView")


def _collect_results(arrays: Sequence[Any], results: Sequence[int], first_result: int) -> list[Any]:
    """List one array per result; copy inputs, constants, and arrays that an earlier result returned already."""
    seen: set[int] = set()
    returned = []
    for position in results:
        is_new = position >= first_result and position not in seen
        seen.add(position)
        returned.append(arrays[position] if is_new else arrays[position].copy())
    return returned
