"""Run a library compiled by Inductor on NumPy arrays."""

from __future__ import annotations

import ctypes
import tempfile
from _ctypes import dlclose
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from xrt.engines.contract.graph_compiler import MemoryUse
from xrt.engines.torch.dtypes import summarize_error
from xrt.engines.torch.executable import TorchExecutable
from xrt.engines.torch.program import TensorProgram, make_program
from xrt.errors import RunFailed
from xrt.graph import TensorType

if TYPE_CHECKING:
    from xrt.engines.contract.options import CompileContext
    from xrt.graph import Function


AT_ONCE = 8
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
                ctypes.byref(self._container), ctypes.c_size_t(AT_ONCE), b"cpu", None
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
