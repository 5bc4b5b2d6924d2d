"""The example of native kernels, built by CMake outside of the tree, and used as a stranger would."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import xrt

pytestmark = pytest.mark.slow

ROOT = Path(xrt.__file__).parents[1]


def cmake() -> list[str]:
    return ["cmake"] if shutil.which("cmake") else [sys.executable, "-m", "cmake"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the example with its library built."""
    folder = tmp_path_factory.mktemp("native") / "example"
    shutil.copytree(ROOT / "examples" / "native_kernels", folder, ignore=shutil.ignore_patterns("build", "*.so"))
    run(folder, *cmake(), "-S", ".", "-B", "build", f"-DPython3_EXECUTABLE={sys.executable}")
    run(folder, *cmake(), "--build", "build")
    return folder


def run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


def test_its_own_tests_pass(place: Path) -> None:
    said = run(place, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error")
    assert "5 passed" in said


def test_the_library_exports_its_entry_and_nothing_else(place: Path) -> None:
    said = run(place, "nm", "-D", "--defined-only", "libmy_native_kernels.so")
    assert [line.split()[-1] for line in said.splitlines() if " T " in line] == ["xrt_library_entry"]
