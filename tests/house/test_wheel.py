"""The wheel holds all that the package needs to run from another place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
PROGRAM = """
import numpy as np, xrt
class Net(xrt.Graph):
    def build(self, x):
        return xrt.ops.Softmax(x)
y = xrt.XRTModule(Net())(np.zeros((1, 4), "float32"))
assert y.tolist() == [[0.25] * 4]
print(xrt.__file__)
"""


@pytest.mark.slow
def test_a_wheel_installs_and_runs(tmp_path: Path) -> None:
    source, site = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(TOP / name, source)
    shutil.copytree(TOP / "xrt", source / "xrt", ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    offline = ["--no-index", "--no-deps"]
    subprocess.run([*pip, "wheel", *offline, "--no-build-isolation", "-w", str(tmp_path), str(source)], check=True)
    (wheel,) = tmp_path.glob("xrt-*-py3-none-any.whl")
    subprocess.run([*pip, "install", *offline, "--target", str(site), str(wheel)], check=True)
    packed = {
        path.relative_to(source)
        for path in (source / "xrt").rglob("*")
        if path.suffix in (".py", ".pyi", ".typed", ".proto", ".json", ".toml")
    }
    assert {path for path in packed if not (site / path).exists()} == set()
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()) == site / "xrt" / "__init__.py"
