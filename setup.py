"""Build of XRT. Everything that can be said without code stands in pyproject.toml.

The one thing that needs code is the native library: CMake builds it (CMakeLists.txt) where a C++ compiler is at hand.
Where none is, or the build fails, the install goes on without it, and XRT runs on its Python kernels and says so; see
docs/tutorials/write-a-kernel.md. A wheel that carries the library is for its platform, and for every Python: ctypes opens it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

TOP = Path(__file__).parent.resolve()
LIBRARY = "xrt/engines/native/lib/libxrt_native.so"
NATIVE = Extension("xrt.engines.native.lib.libxrt_native", sources=[], optional=True)


def compiler() -> str | None:
    """Return the C++ compiler that CMake would take: the one that CXX names, else the first of the usual ones on the path."""
    named = os.environ.get("CXX")
    return shutil.which(named.split()[0]) if named else next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


def cmake() -> list[str]:
    """Return the distribution of CMake if it is needed to build: nobody else has to download it."""
    return ["cmake>=3.26"] if compiler() and not shutil.which("cmake") else []


class BuildNative(build_ext):
    """Builds the library with CMake; whatever goes wrong is a CompileError, which an optional extension survives."""

    def get_ext_filename(self, fullname: str) -> str:
        return f"{fullname.replace('.', '/')}.so"

    def copy_extensions_to_source(self) -> None:
        """Put the library beside its sources, as an editable install wants it; its folder is not one of them."""
        (TOP / LIBRARY).parent.mkdir(parents=True, exist_ok=True)
        super().copy_extensions_to_source()

    def build_extension(self, extension: Extension) -> None:
        if compiler() is None:
            raise CompileError("no C++ compiler is at hand; XRT will run on its Python kernels")
        target = Path(self.get_ext_fullpath(extension.name)).resolve().parent
        build = Path(self.build_temp).resolve() / "native"
        configure = ["-S", str(TOP), "-B", str(build), "-DXRT_NATIVE=ON", f"-DXRT_NATIVE_OUT={target}"]
        try:
            target.mkdir(parents=True, exist_ok=True)
            build.mkdir(parents=True, exist_ok=True)
            subprocess.run([*_command(), *configure], check=True)
            subprocess.run([*_command(), "--build", str(build), "--parallel", str(os.cpu_count() or 1)], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise CompileError(f"CMake did not build the native kernels: {error}; XRT will run on its Python kernels") from error


def _command() -> list[str]:
    return ["cmake"] if shutil.which("cmake") else [sys.executable, "-m", "cmake"]


class Wheel(bdist_wheel):
    """Tags the wheel by what it holds: any platform without the library, this one with it; any Python 3 either way."""

    def get_tag(self) -> tuple[str, str, str]:
        self.root_is_pure = not (Path(self.bdist_dir or "") / LIBRARY).exists()
        if self.root_is_pure:
            return "py3", "none", "any"
        return "py3", "none", super().get_tag()[2]


setup(ext_modules=[NATIVE], cmdclass={"build_ext": BuildNative, "bdist_wheel": Wheel}, setup_requires=cmake())
