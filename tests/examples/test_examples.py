"""The examples run, and print what they should: for PyTorch, of training, and of native kernels."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import xrt

pytestmark = pytest.mark.slow
FOLDER = Path(xrt.__file__).parents[1] / "examples" / "pytorch"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of PyTorch about itself
def test_the_transformer(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(FOLDER / "transformer.py"), run_name="__main__")
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "XRTModule returns a SequenceClassifierOutput with what PyTorch computes"
    assert second.endswith(" nodes on toy")
    assert third == "torch.compile gives what PyTorch gives"


def test_the_custom_operator(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(FOLDER / "custom_operator.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["ort", "torch", "ort", "example.clip_norm.default:"]
    assert lines[-1] == "example.clip_norm.default: the operator has no ONNX form here"


EXAMPLE = Path(xrt.__file__).parents[1] / "examples" / "train_mnist_like.py"


@pytest.mark.filterwarnings("ignore::xrt.errors.PlacementWarning")  # on a slow machine the budget measures little
def test_digits(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "argv", ["train_mnist_like.py", "--steps", "20", "--svg", str(tmp_path / "curves.svg")])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert [row[:2] for row in rows] == [
        [n, e] for n in ("convolutional", "transformer") for e in ("toy", "ort", "toy + ort", "auto")
    ]
    assert all(float(row[4]) < 1e-3 for row in rows)
    assert [row[2] for row in rows if row[1] == "toy + ort"] == ["ort, toy"] * 2
    for name in ("convolutional", "transformer"):
        picture = (tmp_path / f"curves-{name}.svg").read_text(encoding="utf-8")
        assert picture.count("<polyline") == 5


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
    completed = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    assert completed.returncode == 0, f"{command}: {completed.stdout}\n{completed.stderr}"
    return completed.stdout


def test_its_own_tests_pass(place: Path) -> None:
    output = run(place, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error")
    assert "5 passed" in output


def test_the_library_exports_its_entry_and_nothing_else(place: Path) -> None:
    output = run(place, "nm", "-D", "--defined-only", "libmy_native_kernels.so")
    assert [line.split()[-1] for line in output.splitlines() if " T " in line] == ["xrt_library_entry"]


DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "160", "PYTHONWARNINGS": "error::UserWarning"}
    return subprocess.run([sys.executable, str(DEMO), *arguments], env=environment, capture_output=True, text=True, check=False)


def test_the_demonstration_shows_each_engine_and_a_true_mixture() -> None:
    completed = run_demo("squeezenet")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    rows = re.findall(r"^squeezenet +(toy|ort|tvm \+ ort) +(\S.*?)  +[\d.]+ s +[\d.]+ ms +(\S+)", completed.stdout, re.MULTILINE)
    assert [engine for engine, _, _ in rows] == ["toy", "ort", "tvm + ort"]
    assert rows[1][1] == "1 ort"
    assert re.fullmatch(r"\d+ ort, \d+ tvm", rows[2][1])
    assert all(float(difference) < 1e-5 for _, _, difference in rows)


def test_an_unknown_model_is_reported() -> None:
    completed = run_demo("resnet51")
    assert completed.returncode == 2
    assert completed.stderr.startswith("no model resnet51; there are bvlc_alexnet, ")
