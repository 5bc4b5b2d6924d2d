"""The wheel holds all that the package needs to run from another place: with its native kernels, and where no compiler is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
PROGRAM = """
import sys, warnings
import numpy as np, xrt
from xrt.engines import native
class Net(xrt.Graph):
    def build(self, x):
        return xrt.ops.Softmax(x)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    for _ in range(2):
        m = xrt.XRTModule(Net(), engine="toy")
        y = m(np.zeros((1, 4), "float32"))
assert y.tolist() == [[0.25] * 4]
assert "<svg" in m.plan._repr_html_()
print(xrt.__file__, native.find_library() is not None, [f"{w.category.__name__}: {w.message}" for w in told], sep="\\n")
"""
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
OFFLINE = ["--no-index", "--no-deps"]


def wheel(folder: Path, tag: str, **environment: str) -> Path:
    """Return the one wheel that a copy of the sources gives, which must have that tag."""
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "CMakeLists.txt", "README.md", "LICENSE"):
        shutil.copy(TOP / name, source)
    shutil.copytree(TOP / "xrt", source / "xrt", ignore=shutil.ignore_patterns("__pycache__", "lib"))
    command = [*PIP, "wheel", *OFFLINE, "--no-build-isolation", "-w", str(folder), str(source)]
    subprocess.run(command, env={**os.environ, **environment}, check=True)
    (result,) = folder.glob("xrt_engine-*.whl")
    assert result.name.endswith(f"-py3-none-{tag}.whl")
    return result


def installed(value: Path, folder: Path) -> Path:
    site = folder / "site"
    subprocess.run([*PIP, "install", *OFFLINE, "--target", str(site), str(value)], check=True)
    return site


def told(site: Path, *command: str) -> str:
    """Return what a program says whose only XRT is the installed one."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    completed = subprocess.run(
        [sys.executable, *command], cwd=site.parent, env=environment, capture_output=True, text=True, check=True
    )
    return completed.stdout


@pytest.mark.full
def test_without_a_compiler_a_wheel_installs_runs_and_says_what_it_lacks(tmp_path: Path) -> None:
    site = installed(wheel(tmp_path, "any", CXX="/bin/false"), tmp_path)
    source = tmp_path / "source"
    packed = {
        path.relative_to(source)
        for path in (source / "xrt").rglob("*")
        if path.suffix in (".py", ".pyi", ".typed", ".proto", ".json", ".toml", ".h") and "src" not in path.parts
    }
    assert {path for path in packed if not (site / path).exists()} == set()
    where, has_native, warned = told(site, "-c", PROGRAM).splitlines()
    assert Path(where) == site / "xrt" / "__init__.py"
    assert has_native == "False"
    assert warned.count("NativeWarning") == 1 and "libxrt_native.so was not built when XRT was installed" in warned
    toy = next(engine for engine in json.loads(told(site, "-m", "xrt.cli", "engines", "--json")) if engine["name"] == "toy")
    assert toy["state"] == "ready" and toy["version"].endswith("no native kernels")
    assert toy["lacks"].startswith("libxrt_native.so was not built when XRT was installed")


@pytest.mark.full
def test_with_a_compiler_a_wheel_carries_the_native_kernels(tmp_path: Path) -> None:
    site = installed(wheel(tmp_path, f"{sys.platform}_{os.uname().machine}"), tmp_path)
    room = site / "xrt" / "engines" / "native"
    assert (room / "include" / "xrt" / "kernel.h").exists() and (room / "lib" / "libxrt_native.so").exists()
    assert not (room / "src").exists(), "sources go into a source distribution"
    assert told(site, "-c", PROGRAM).splitlines() == [str(site / "xrt" / "__init__.py"), "True", "[]"]
