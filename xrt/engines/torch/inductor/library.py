"""A library that Inductor has made, loaded and called by its C interface (torch's ``aoti_runtime/interface.h``).

A call by it releases Python's lock, so that threads run at once. One by torch's own class for it does not.
"""

from __future__ import annotations

import ctypes
from _ctypes import dlclose
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

__all__ = ["Library", "LibraryError"]

AT_ONCE = 8
"""Threads that may run one library at once; a further one waits. They share the weights."""

_open = ctypes.pythonapi.PyCapsule_New
_open.restype, _open.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_point = ctypes.pythonapi.PyCapsule_GetPointer
_point.restype, _point.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


class LibraryError(RuntimeError):
    """The compiled code, or the loading of it, failed; the message is torch's."""


class Library:
    """A compiled Function: contiguous tensors of its types in, new tensors out."""

    def __init__(self, path: Path) -> None:
        """Load the library; the file is not needed afterwards."""
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
        """Return the results of a call; raises LibraryError."""
        handles = [_point(handle, None) for handle in torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(list(tensors))]
        given, results = (ctypes.c_void_p * len(handles))(*handles), self._results()
        sizes = ctypes.c_size_t(len(given)), ctypes.c_size_t(len(results))
        self._check(self._call(self._container, given, sizes[0], results, sizes[1], None, None))
        return list(torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs([_open(result, None, None) for result in results]))

    def _check(self, code: int) -> None:
        if code:
            message = ctypes.c_char_p()
            self._code.AOTInductorGetLastError(ctypes.byref(message))
            raise LibraryError((message.value or b"").decode(errors="replace"))

    def close(self) -> None:
        """Unload it; no call follows."""
        self._code.AOTInductorModelContainerDelete(self._container)
        dlclose(self._code._handle)
