"""Libraries of native kernels for the tests, compiled when they are first asked for."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from xrt.engines import native

SOURCE = Path(__file__).parent / "native" / "kernels.cc"
COMPILER = shutil.which(os.environ.get("CXX", "")) or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")

needs_native = pytest.mark.skipif(
    native.shipped() is None or COMPILER is None, reason=f"no native kernels here: {native.why_not_shipped() or 'no compiler'}"
)
"""For tests of native kernels themselves; where XRT was installed without, test_native_absent.py says what is then."""


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="xrt-test-kernels-")


@cache
def library(*macros: str) -> Path:
    """Return the path of the test library compiled with those macros, each ``NAME`` or ``NAME=value``."""
    name = f"lib{hashlib.sha256(' '.join(macros).encode()).hexdigest()[:12]}.so"
    target = Path(_folder().name) / name
    options = ["-shared", "-fPIC", "-O1", "-std=c++17", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused"]
    command = [str(COMPILER), *options, *(f"-D{macro}" for macro in macros), "-I", native.include_dir(), str(SOURCE)]
    subprocess.run([*command, "-o", str(target)], check=True)
    return target
