"""Libraries of native kernels for the tests, compiled when they are first asked for."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from xrt.engines import native

SOURCE = Path(__file__).parent / "native" / "kernels.cc"
COMPILER = next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), "c++", "g++", "clang++"))), "c++")


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="xrt-test-kernels-")


@cache
def library(*macros: str) -> Path:
    """Return the path of the test library compiled with those macros, each ``NAME`` or ``NAME=value``."""
    name = f"lib{hashlib.sha256(' '.join(macros).encode()).hexdigest()[:12]}.so"
    target = Path(_folder().name) / name
    options = ["-shared", "-fPIC", "-O1", "-std=c++17", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused"]
    command = [COMPILER, *options, *(f"-D{macro}" for macro in macros), "-I", native.include_dir(), str(SOURCE)]
    subprocess.run([*command, "-o", str(target)], check=True)
    return target
