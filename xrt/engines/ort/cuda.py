"""ONNX Runtime on a CUDA device: sessions that read and write device arrays.

A session has one stream for its lifetime. A run waits for the earlier work on the caller's stream, and the later work on that
stream waits for the run. The run also blocks the calling thread until the device has computed the results.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnxruntime
from onnxruntime import InferenceSession

from xrt.engines.contract.graph_compiler import Executable
from xrt.engines.contract.options import RunOptions
from xrt.engines.ort.executable import ValueTransport, choose_transport
from xrt.engines.ort.session import LIBRARY
from xrt.engines.toolkit.libraries import summarize_error
from xrt.errors import CompileRefused, RunFailed
from xrt.forking import get_generation, renew_after_fork
from xrt.graph import DType, Function, Node, TensorType, Type, Value, is_static

if TYPE_CHECKING:
    from xrt.engines.contract.graph_compiler import Accelerator

CUDA = "CUDAExecutionProvider"
RECORD_ASSIGNMENTS = "session.record_ep_graph_assignment_info"
"""The session configuration entry for recording the provider of each node."""
_loading = renew_after_fork(threading.Lock())


def why_not_present(provider: str) -> str | None:
    """Explain why the installed library lacks the provider; None if it has it."""
    if provider in onnxruntime.get_available_providers():
        return None
    return (
        f"this build of {LIBRARY} has no {provider}: pip install 'xrt-engine[cuda]' in an environment without the package "
        f"onnxruntime, because onnxruntime-gpu installs the same module, and the two overwrite each other"
    )


def why_no_tensorrt() -> str | None:
    """Load TensorRT's libraries from its Python package, else from the loader's path. Explain why that fails, or return None."""
    package = find_spec("tensorrt_libs")
    locations = package.submodule_search_locations if package else None
    folders = [Path(folder) for folder in locations or ()]
    for name in ("libnvinfer.so.10", "libnvonnxparser.so.10"):
        path = next((folder / name for folder in folders if (folder / name).is_file()), Path(name))
        try:
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        except OSError as error:
            return f"TensorRT does not load: {error}"
    return None


@lru_cache(maxsize=1)
def load_libraries() -> None:
    """Load CUDA's libraries and cuDNN from NVIDIA's Python packages, because the system's loader does not search these."""
    # The function prints the names of libraries that are not in packages, which is normal. The lock is for the global stdout.
    with _loading, redirect_stdout(StringIO()):
        onnxruntime.preload_dlls()


def why_not_on_device(node: Node, function: Function, provider: str) -> str | None:
    """Explain why a device does not support a node that the CPU supports; None if it does. Does not access a device."""
    if reason := why_not_present(provider):
        return reason
    if node.bodies:
        return "the host decides which body runs and how often, and would wait for the device each time"
    if node.op_type in ("DequantizeLinear", "QuantizeLinear") and node.attr("block_size", 0):
        return f"{LIBRARY} has no device kernel for scales per block (block_size)"
    if node.op_type == "BatchNormalization" and node.attr("training_mode", 0):
        return f"{LIBRARY} has no device kernel for training_mode=1"
    if node.op_type == "Attention" and node.attr("qk_matmul_output_mode", 0) and len(node.outputs) > 3 and node.outputs[3]:
        return (
            f"{LIBRARY} returns the scores of an Attention on a device only as before softcap and mask (qk_matmul_output_mode=0)"
        )
    for name in (*node.uses, *node.defined_names):
        type_ = function.get_type(name)
        if type_ is not None and not _is_bindable(type_):
            return f"value {name!r} is {type_}, which cannot be bound to device memory"
    return None


def _is_bindable(type_: Type) -> bool:
    if not isinstance(type_, TensorType) or type_.dtype is DType.STRING:
        return False
    return choose_transport(type_) is ValueTransport.DIRECT or type_.dtype is DType.BFLOAT16


def check_opened(session: InferenceSession, provider: str) -> None:
    """Raise CompileRefused if the session does not use the provider, because the libraries of the provider are missing."""
    if provider not in session.get_providers():
        raise CompileRefused(
            f"{LIBRARY} could not load its {provider}: it needs CUDA 13 (cuBLAS, cuFFT, cuRAND) and cuDNN 9 on the "
            f"loader's path, or from pip install 'xrt-engine[cuda]'"
        )


def check_assigned(session: InferenceSession, function: Function) -> None:
    """Raise CompileRefused if the CPU computes nodes with float outputs, which requires copies between host and device.

    Nodes without float outputs compute shapes, and are expected on the CPU.
    """
    cpu_names: set[str] = set()
    for part in session.get_provider_graph_assignment_info():
        if part.ep_name == "CPUExecutionProvider":
            cpu_names.update(node.name for node in part.get_nodes())
    unsupported = []
    for node in function.nodes:
        types = [function.get_type(name) for name in node.defined_names]
        if node.name in cpu_names and any(isinstance(type_, TensorType) and type_.dtype.is_float for type_ in types):
            unsupported.append(node)
    if unsupported:
        names = ", ".join(f"{node.name!r} ({node.op})" for node in unsupported[:5])
        raise CompileRefused(f"{LIBRARY} has no device kernel for {names}", [node.name for node in unsupported])


@dataclass(frozen=True, slots=True)
class DeviceBuffer:
    """A device, as the library's I/O binding identifies it."""

    kind: str = "cuda"
    index: int = 0


class OrtOnDevice(Executable):
    """Runs a session on device arrays. Runs from several threads wait for each other, because they share one stream."""

    outputs_are_fresh: ClassVar[bool] = True

    def __init__(
        self,
        function: Function,
        session: InferenceSession,
        accelerator: Accelerator,
        stream: Any,
        device: DeviceBuffer,
        owner: object = None,
    ) -> None:
        """``session`` computes the Function on ``stream``, and needs the memory of ``owner``."""
        self.function = function
        self._accelerator = accelerator
        self._stream = stream
        self._device = device
        self._lock = renew_after_fork(threading.Lock())
        self._opened: list[Any] = [session, owner]
        """The session and its owner; empty once closed."""
        self._finalizer = weakref.finalize(self, _close_session, self._opened, accelerator, stream, get_generation())

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        accelerator, stream = self._accelerator, self._stream
        caller_stream = stream if options.stream is None else options.stream
        # Copies of inputs must live until the run is enqueued.
        contiguous = [x if x.flags.c_contiguous else accelerator.xp.ascontiguousarray(x) for x in inputs]
        arguments = {value.name: array for value, array in zip(self.function.inputs, contiguous, strict=True)}
        results = {value.name: self._allocate(value) for value in self.function.outputs}
        with self._lock:
            if not self._opened:
                raise RunFailed(f"the executable of {self.function.name!r} is closed")
            try:
                # The order is: earlier work of the caller, the run, later work of the caller.
                accelerator.follow(stream, caller_stream)
                computed = self._compute(self._opened[0], arguments, results)
                accelerator.follow(caller_stream, stream)
            except Exception as error:
                raise RunFailed(f"{LIBRARY} failed while it ran {self.function.name!r}: {summarize_error(error)}") from error
        return list(computed.values())

    def _compute(self, session: InferenceSession, arguments: dict[str, Any], buffers: dict[str, Any]) -> dict[str, Any]:
        """Run the session on its stream and return its outputs, in ``buffers`` or, where the buffer is None, in new arrays."""
        binding, device = session.io_binding(), self._device
        for name, array in arguments.items():
            binding.bind_input(
                name, device.kind, device.index, _encode_dtype(array.dtype), list(array.shape), self._address(array)
            )
        for name, array in buffers.items():
            # The library allocates an output of dynamic shape.
            if array is None:
                binding.bind_output(name, device.kind, device.index)
            else:
                shape = list(array.shape)
                binding.bind_output(name, device.kind, device.index, _encode_dtype(array.dtype), shape, self._address(array))
        try:
            # This waits for the device. Without waiting, the library would never free its staging buffers.
            session.run_with_iobinding(binding)
        except Exception:
            # After a failed run, the destructor of the session would free the staging buffers, which may end the process: see
            # `_close_session`.
            _prevent_release(session)
            raise
        if all(array is not None for array in buffers.values()):
            return buffers
        results = dict(zip(buffers, binding.get_outputs(), strict=True))
        return {name: self._copy_result(results[name]) if array is None else array for name, array in buffers.items()}

    def _allocate(self, value: Value) -> Any:
        """Allocate an output; None if its shape is dynamic."""
        if not isinstance(value.type, TensorType) or not is_static(value.type):
            return None
        return self._accelerator.xp.empty(value.type.shape, value.type.dtype.numpy)

    def _address(self, array: Any) -> int:
        """Get the address of an array. An empty array has no address; the library accepts any number except 0 for it."""
        return self._accelerator.address(array) or 1

    def _copy_result(self, result: Any) -> Any:
        """Copy an output that ONNX Runtime allocated to a new array, on the session's stream."""
        type_ = DType.from_onnx(result.element_type())
        with self._accelerator.activate(self._stream) if self._device.kind != "cpu" else nullcontext():
            return self._accelerator.view_memory(result.data_ptr(), result.shape(), type_.numpy, result).copy()

    def why_not_capturable(self) -> str | None:
        return f"{LIBRARY} keeps scratch memory and staging buffers for its next run, which a replay would write to, too"

    def close(self) -> None:
        with self._lock:
            self._finalizer()


def _close_session(opened: list[Any], accelerator: Accelerator, stream: Any, generation: int) -> None:
    """Release the session and its owner (the list ``opened``) when their work is done, and empty the list.

    In a forked child, which has no device, the session of the parent is not released.
    """
    if generation == get_generation():
        # A session frees staging buffers in a host function on its stream. If the session is released before that, the function
        # also frees pinned memory, which CUDA forbids in host functions, and the library ends the process.
        accelerator.wait([stream])
    else:
        _prevent_release(opened[0])
    opened.clear()


def _prevent_release(session: InferenceSession) -> None:
    """Add a reference to the session that is never released, so that its destructor does not run."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))


def _encode_dtype(dtype: np.dtype[Any]) -> Any:
    """Return the element type for a binding: NumPy's type, or ONNX's number for bfloat16, which NumPy does not have."""
    return DType.BFLOAT16.onnx if dtype == DType.BFLOAT16.numpy else dtype.type
