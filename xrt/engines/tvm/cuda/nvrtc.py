"""CUDA C++ to machine code by NVRTC, NVIDIA's compiler as a library: no toolkit, and no GPU.

TVM asks for NVRTC through ``cuda-bindings`` and a whole toolkit's headers, and has functions of float32 approximated. Here they
are as exact as CUDA has them, and a program of float32 needs no header of CUDA's; those of float16 and bfloat16 need theirs.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from xrt.errors import CompileRefused

__all__ = ["binary", "folders", "version"]

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
"""What every source of TVM's includes of CUDA's headers, as far as it uses it: those themselves take most of a compile."""

_OWN = """\
template <class T> __device__ __forceinline__ T xrt_max(T a, T b) { return a > b ? a : b; }
template <class T> __device__ __forceinline__ T xrt_min(T a, T b) { return a < b ? a : b; }
#define max xrt_max
#define min xrt_min
"""
"""Of two numbers one of which is NaN, TVM's code for the CPU takes the second, CUDA's functions the other; both devices are to
agree."""


def source_with_prelude(source: str) -> str:
    """Return TVM's source with max and min as they are to be, behind the headers of CUDA's that declare some of their own."""
    headers = [f"#include <{name}>\n" for name in _needs_headers(source)]
    place = max((source.index(header) + len(header) for header in headers), default=0)
    return source[:place] + _OWN + source[place:]


def _needs_headers(source: str) -> tuple[str, ...]:
    return tuple(name for name in ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h") if f"#include <{name}>\n" in source)


def binary(source: str, architecture: str) -> bytes:
    """Return machine code for an architecture (``sm_90``); raises CompileRefused where NVRTC is missing or refuses."""
    library = _library()
    given = ["-default-device", f"--gpu-architecture={architecture}", *_includes(source)]
    program = _Program(library, source_with_prelude(source))
    try:
        return program.compiled(given)
    finally:
        program.close()


def version() -> str:
    """Return NVRTC's version; raises CompileRefused where it is missing."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"nvrtc {major.value}.{minor.value}"


def _includes(source: str) -> list[str]:
    wanted = _needs_headers(source)
    if not wanted:
        return []
    for folder in folders("include"):
        if all((folder / name).is_file() for name in wanted):
            return [f"-I{folder}"]
    raise CompileRefused(f"float16 and bfloat16 on CUDA need the header {wanted[0]}, which is not to be found; {HEADERS_PIP}")


def folders(name: str) -> Iterator[Path]:
    """Yield where CUDA 13's libraries (``lib``) or headers (``include``) may lie: NVIDIA's wheels first, then a toolkit."""
    found = find_spec("nvidia")
    for place in found.submodule_search_locations or () if found else ():
        yield Path(place) / "cu13" / name
    for top in filter(None, (os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda")):
        yield Path(top) / name
        yield Path(top) / f"{name}64"


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    for path in (*(str(folder / LIBRARY) for folder in folders("lib") if (folder / LIBRARY).is_file()), LIBRARY):
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            said = error
    raise CompileRefused(f"TVM's code for CUDA is compiled by NVRTC 13, which is not to be found: {said}; {PIP}") from said


class _Program:
    """One source in the hands of the library; every call of it says how it went."""

    def __init__(self, library: ctypes.CDLL, source: str) -> None:
        self._library = library
        self._handle = ctypes.c_void_p()
        headers = _texts([*PROVIDED.values()]), _texts([*PROVIDED])
        made = ctypes.byref(self._handle), source.encode(), b"tvm.cu", len(PROVIDED), *headers
        self._check(library.nvrtcCreateProgram(*made))

    def compiled(self, options: Sequence[str]) -> bytes:
        status = self._library.nvrtcCompileProgram(self._handle, len(options), _texts(options))
        if status:
            said = self._read("ProgramLog").decode(errors="replace").strip("\0").strip()
            raise CompileRefused(f"NVRTC refuses what TVM has generated: {_first_error(said) or self._name(status)}")
        return self._read("CUBIN")

    def _read(self, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(self._handle, ctypes.byref(size)))
        content = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(self._handle, content))
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


def _texts(texts: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))


def _first_error(log: str) -> str:
    return next((line for line in log.splitlines() if "error" in line), "")
