"""A GPU of the host's own: TVM's runtime for CUDA over stand-ins of NVIDIA's libraries, and its kernels compiled as C++.

What runs is TVM's generated source and launch code, and its runtime as installed; what is not real is the silicon. TVM looks for
the libraries when it is imported, so all of it happens in a process of its own (`child`).
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

__all__ = ["binary", "build_libraries", "run_child"]

HERE = Path(__file__).parent
SHARED = ["g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-ffp-contract=off"]


def build_libraries(folder: Path) -> None:
    """Build the stand-ins, and the headers that TVM's source includes."""
    symbols = folder / "symbols"
    symbols.write_text("libcudart.so.13 { global: cuda*; };")
    source = str(HERE / "libraries.cc")
    _run([*SHARED, "-Wl,-soname,libcuda.so.1", "-o", str(folder / "libcuda.so.1"), source, "-ldl"])
    versioned = ["-DRUNTIME", "-Wl,-soname,libcudart.so.13", f"-Wl,--version-script={symbols}"]
    _run([*SHARED, *versioned, "-o", str(folder / "libcudart.so.13"), source])
    for name in ("cuda.h", "math_constants.h"):
        (folder / name).write_text("")


def binary(source: str, folder: Path) -> bytes:
    """Return what the driver's stand-in loads: the path of a library of the source's kernels."""
    kernels = re.findall(r"__launch_bounds__\(\d+\) (\w+)\([^;{]*\) \{", source)
    text = source.replace("__shared__ alignas(64)", "alignas(64) __shared__")
    for name in kernels:
        arguments = "const Extent* grid, const Extent* block, void** given"
        text += f'\nextern "C" void emulated_{name}({arguments}) {{ emulated::run({name}, grid, block, given); }}'
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"
    path.with_suffix(".cc").write_text(f'#include "{HERE / "block.h"}"\n{text}\n')
    _run([*SHARED, f"-I{folder}", "-o", str(path), str(path.with_suffix(".cc"))])
    return f"{path}\0".encode()


def _run(command: list[str]) -> None:
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr[:2000]


def run_child(folder: Path) -> None:
    """Run the checks of the child process."""
    build_libraries(folder)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "tests.engines.emulated_cuda.child", str(folder)]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr[-3000:]
