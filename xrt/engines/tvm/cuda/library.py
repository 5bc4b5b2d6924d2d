"""TVM's runtime for CUDA, which ``import tvm`` loads only where what it is linked to is found; and who compiles for it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import tvm
import tvm_ffi
from tvm.libinfo import package_lib_paths

from xrt.engines.tvm.cuda.nvrtc import folders
from xrt.errors import CompileRefused

__all__ = ["load_runtime", "use_nvrtc"]

_COMPILER = "tvm_callback_cuda_compile"
_RUNTIME = "libtvm_runtime_cuda.so"
_CUDART = "libcudart.so.13"


def load_runtime() -> None:
    """Load TVM's runtime for CUDA; raises CompileRefused, with what the loader says, where the driver or a library is missing."""
    if tvm.get_global_func("device_api.cuda", allow_missing=True) is not None:
        return
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
    """Let TVM have its CUDA C++ compiled by a function of ours as long as the context lasts, and by its own again after.

    A refusal of the function's comes out as it is, where TVM would make another error of it.
    """
    refused: list[CompileRefused] = []

    def compiled(source: object) -> bytes:
        try:
            return compiler(str(source))
        except CompileRefused as error:
            refused.append(error)
            raise

    before = tvm.get_global_func(_COMPILER)
    tvm_ffi.register_global_func(_COMPILER, compiled, override=True)
    try:
        yield
    except Exception:
        if refused:
            raise refused[0] from None
        raise
    finally:
        tvm_ffi.register_global_func(_COMPILER, before, override=True)
